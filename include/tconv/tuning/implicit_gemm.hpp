// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policies of the Hopper tensor-core engine.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Cells that a warpgroup multiplies at once: the columns of its instructions. Two phases of them fill the accumulators of a thread; the
/// weights, which each instruction reads again, are then a third of what it reads from shared memory. Rows of 32 cells with what lies
/// between them in a staged tile come to 36: 4 of them fill it.
inline constexpr int implicit_gemm_cells = 144;

/// The register tile and the warps of one kernel. A warpgroup multiplies 64 output channels by implicit_gemm_cells cells, for one phase
/// along w or for both of stride 2.
template <int Channels, int Sets>
struct implicit_gemm_policy
{
  static_assert(Channels == 64 || Channels == 128, "tconv: a block has two consumer warpgroups");
  /// Output channels of a tile: with 64 both warpgroups have the same channels and cells side by side, with 128 the same cells.
  static constexpr int channels = Channels;
  /// Phases along w that a thread holds; 2 for stride 2, so that its outputs are contiguous in memory.
  static constexpr int sets = Sets;
  /// Warpgroups that multiply: each finishes its outputs while the other multiplies.
  static constexpr int consumers = 2;
  /// Runs of cells of a tile.
  static constexpr int runs    = consumers * 64 / Channels;
  static constexpr int threads = (consumers + 1) * 128;
  /// Cells that are finished at once: what passes through shared memory between the products and the stores.
  static constexpr int finished_cells = Sets == 1 ? implicit_gemm_cells / 2 : implicit_gemm_cells / 3;
  /// Warps of the copying warpgroup that stage the input; one streams weights.
  static constexpr int staging_warps   = 3;
  static constexpr int staging_threads = staging_warps * 32;
  /// Registers per thread: what consumers take, what the copying warpgroup keeps. The register file holds 65,536.
  static constexpr int consumer_registers = 216;
  static constexpr int producer_registers = 72;
};

/// Dynamic shared memory of a block: one block per multiprocessor.
inline constexpr int implicit_gemm_shared_bytes = 227 * 1024;
/// Bytes of one stage of weights, at most, unless one step needs more.
inline constexpr int implicit_gemm_stage_bytes = 12 * 1024;
/// Stages of weights: at least, and as many as are worth having.
inline constexpr int implicit_gemm_min_stages = 3;
inline constexpr int implicit_gemm_max_stages = 32;
/// The packing kernel: columns that a cluster of blocks packs together.
inline constexpr int implicit_gemm_pack_columns = 8;
inline constexpr int implicit_gemm_pack_cluster = 8;
inline constexpr int implicit_gemm_pack_threads = 256;
/// Multiprocessors of the device that the tiles are cut for.
inline constexpr int64_t implicit_gemm_multiprocessors = 132;
/// Packed weights beyond which the engine is not used.
inline constexpr int64_t implicit_gemm_most_packed_bytes = int64_t{1} << 30;

} // namespace tuning

TCONV_NAMESPACE_END
