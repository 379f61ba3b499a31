// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policies of the Hopper tensor-core engine.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Cells that a warpgroup multiplies at once: the columns of its instructions. The most whose accumulators ptxas takes in a block of 24
/// warps. Rows of 32 cells with what lies between them in a staged tile come to 36: 3 of them fit.
inline constexpr int implicit_gemm_cells = 104;
/// Output channels that it multiplies at once: the rows of its instructions.
inline constexpr int implicit_gemm_rows = 64;

/// The tile and the warps of one kernel. Two warpgroups multiply, each its own run of cells, and do nothing else; their accumulators go to
/// other warps through shared memory, a part at a time. A thread holds one or two blocks of 64 output channels by 104 cells.
template <int Sets, int Halves>
struct implicit_gemm_policy
{
  /// Phases along w that are multiplied together; 2 for stride 2, so that outputs are contiguous in memory.
  static constexpr int sets = Sets;
  /// Blocks of 64 output channels.
  static constexpr int halves = Halves;
  /// Blocks of accumulators.
  static constexpr int blocks = Sets * Halves;
  static_assert(blocks <= 2, "tconv: registers hold two blocks of accumulators");
  /// Output channels of a tile.
  static constexpr int channels = Halves * implicit_gemm_rows;

  /// Warpgroups that multiply: runs of cells.
  static constexpr int runs = 2;
  /// Warps that finish the outputs of one of them. With stride 2 there are more outputs than inputs.
  static constexpr int finishing_warps   = Sets == 2 ? 6 : 4;
  static constexpr int finishing_threads = finishing_warps * 32;
  static constexpr int threads           = 768;
  /// Of the other warps one streams weights, and these stage the input.
  static constexpr int staging_warps   = threads / 32 - runs * (4 + finishing_warps) - 1;
  static constexpr int staging_threads = staging_warps * 32;
  /// Registers per thread: of the warpgroups that multiply, and of the others. The register file holds 65,536.
  static constexpr int multiplying_registers = 144;
  static constexpr int other_registers       = 48;

  /// Cells of a part, each of whose outputs (of both phases) 16 channels are a thread's work.
  static constexpr int part_cells = finishing_threads * 16 / channels / Sets;
  /// Parts of a run, the last of which may be smaller, and how many there is room for.
  static constexpr int parts      = (implicit_gemm_cells + part_cells - 1) / part_cells;
  static constexpr int room       = Sets == 2 ? 2 : 4;
  /// Room for a part in shared memory: rows of channels, one per output, a vector apart from multiples of all banks. Outputs of the
  /// second phase begin where lanes on neighbouring outputs meet other banks than those of the first.
  static constexpr int pitch     = channels + 4;
  static constexpr int set_rows  = part_cells + (Sets == 2 ? 4 : 0);
  static constexpr int part_size = set_rows * Sets * pitch; ///< elements
};
/// Most parts that any policy has room for, of a run.
inline constexpr int implicit_gemm_most_room = 4;

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
