// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policies of the tensor-core engine.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

/// Which matrix instructions multiply.
enum class gemm_instruction : int
{
  warp      = 0, ///< mma.sync: of one warp, compute capability 8.0 and newer
  warpgroup = 1  ///< wgmma: of four warps, which sm_90a alone has
};

/// How a warp lays 8 channels of its outputs out in shared memory: Sets outputs of each of its 16 cells are a row, of channel c at row(c). The
/// rows are so far apart that vectors of 4 floats which lanes write at once have no bank conflicts.
template <int Sets>
struct fragment_exchange
{
  static constexpr int length = 16 * Sets;      ///< of a row
  static constexpr int pitch  = 2 * length + 4; ///< of pairs of rows
  static constexpr int floats = 4 * pitch;

  TCONV_HOST_DEVICE static constexpr int row(int c) { return c / 2 * pitch + c % 2 * length; }
};

namespace tuning
{

/// The register tile and the warps of one kernel: each consumer warpgroup multiplies 64 cells by all columns, for one phase along w
/// or for all of a stride up to 8; one more warpgroup copies. Tiles do not depend on the instruction, and on an H200 neither does a bit of the sums.
///
/// Promoted, in the split form: sums are kept beside the accumulators of the tensor core, which truncates. Where they have room for it, always.
template <int Columns,
          int Sets,
          gemm_instruction Instruction = gemm_instruction::warpgroup,
          bool Promoted                = Sets* Columns <= 64,
          int Unit                     = 1>
struct implicit_gemm_policy
{
  /// What multiplies.
  static constexpr gemm_instruction instruction = Instruction;
  /// Output channels of a tile.
  static constexpr int columns = Columns;
  /// Phases along w that a thread has room for: 1, or all of a stride (2; 4 for 3 and 4; 8 for 5 to 8), so that its outputs are contiguous in
  /// memory and the input is staged once for all of them.
  static constexpr int sets = Sets;
  /// Phases that an instruction multiplies at once, their columns one behind the other: they have taps at the same shifts.
  static constexpr int unit         = Unit;
  static constexpr int units        = Sets / Unit;
  static constexpr int unit_columns = Columns * Unit;
  /// Accumulators of a thread.
  static constexpr int accumulators = Sets * Columns / 2;
  /// Products that the tensor core adds up before they join sums beside it: those of a stage of weights; where a thread has no room for twice its
  /// accumulators, those of a step and a phase.
  static constexpr bool promoted       = Promoted;
  static constexpr bool promoted_steps = Promoted && accumulators > 64;
  /// Registers for the left operands of two groups of products, of which one is under way while those of the next one are loaded; 0 where the compiler lets none be: with
  /// few registers beside the accumulators, or more than two of them, it waits for each product.
  static constexpr int registers_ahead =
    Instruction == gemm_instruction::warpgroup && accumulators > 64 && unit_columns == 128 ? 24 : 0;
  /// Four warpgroups while a thread holds 64 numbers: one's epilogue runs under the others' products.
  static constexpr int consumers = accumulators * (Promoted ? 2 : 1) <= 64 ? 4 : 2;
  static constexpr int rows      = consumers * 64; ///< cells of a tile
  /// Bytes of shared memory in which the lanes of a warp exchange outputs before they store them, channels first; see fragment_exchange. None
  /// where a thread's outputs are few enough to be stored at once, or exchanged by shuffles.
  static constexpr int exchange_bytes = Sets > 2 ? fragment_exchange<Sets>::floats * 4 : 0;
  /// Warps that copy: one streams weights, the others stage the input. Two warpgroups where registers allow: with few accumulators there are
  /// as many inputs as outputs, and staging them is what limits a block (three warps: L1_57 waited for them a third of its time). With mma.sync
  /// registers are dealt out evenly, and 80 for each of 768 threads are too few.
  static constexpr int copying_warps   = Instruction == gemm_instruction::warpgroup && accumulators <= 32 ? 8 : 4;
  static constexpr int threads         = consumers * 128 + copying_warps * 32;
  static constexpr int staging_warps   = copying_warps - 1;
  static constexpr int staging_threads = staging_warps * 32;
  /// Steps of one phase that are multiplied at once, whose left operands take \p registers each: as many as there are registers for.
  /// Instructions of a warp are waited for one by one, so that there is nothing to gain.
  TCONV_HOST_DEVICE static constexpr int steps_at_once(int registers)
  {
    return Instruction == gemm_instruction::warp ? 1
         : accumulators > 64                     ? (registers <= 4 ? 3 : (registers <= 8 ? 1 : 2))
         : accumulators > 32                     ? (registers <= 4 && Sets < 4 ? 2 : 1)
         : registers <= 4                        ? 4
         : registers <= 8                        ? 2
                                                 : (accumulators <= 16 ? 2 : 1);
  }
  /// Registers per thread with wgmma: what consumers take, what the copying warpgroups keep. Together no more than the block is launched with: 80
  /// for each of 768 threads, 96 for 640, 168 for 384.
  static constexpr int consumer_registers = copying_warps == 8 ? 88 : (consumers == 4 ? 104 : 216);
  static constexpr int producer_registers = consumers == 4 ? 64 : 72;
};

/// Split form: products that accumulators of the tensor core may add up alone in tiles of \p columns; longer sums are promoted, for which there are no tiles
/// of 128 columns. Largest error of alone and promoted sums of U(0,1) inputs: 256 products 1.9e-6 and 3.6e-7 (k4 s2, 128->64; PyTorch 0.8e-6 to 1.0e-6),
/// 384 2.5e-6 and 3.6e-7 (L1_64; PyTorch 1.6e-6), 1,024 2.8e-6 and 2.7e-7 (k16 s8; PyTorch 0.8e-6). They cost 9 % more time in tiles of 64 columns and
/// two phases (k4 s2), 60 % where tiles of 128 columns become two (3D k2 s2, 256->128).
TCONV_HOST_DEVICE constexpr int64_t implicit_gemm_longest_sum(int columns)
{
  return columns == 128 ? 384 : 192;
}

/// Dynamic shared memory of a block: one block per multiprocessor. What compute capability 9.0 has; others have less.
inline constexpr int implicit_gemm_shared_bytes = 227 * 1024;
/// Bytes of one stage of weights, at most, and no more than an eighth of the shared memory, unless one step needs more. Each is waited for, and in the
/// split form added to sums: with half of it L1_57 takes 3 % more time in the split form, 3D k2 s2 256->128 18 % in bf16, 2D k4 s2 128->128 40 % in TF32.
inline constexpr int64_t implicit_gemm_stage_bytes = int64_t{24} * 1024;
/// Half of it, and of that share, where that lets more of the input wait beside them.
inline constexpr int64_t implicit_gemm_small_stage_bytes = implicit_gemm_stage_bytes / 2;
/// Stages of weights: at least, and as many as are worth having. Bytes of them that leave the input of the next tile its place, if there are as many.
inline constexpr int implicit_gemm_min_stages     = 4;
inline constexpr int64_t implicit_gemm_ring_bytes = int64_t{96} * 1024;
inline constexpr int implicit_gemm_max_stages     = 32;
/// The packing kernel: columns that a group of blocks packs together, a cluster with wgmma.
inline constexpr int implicit_gemm_pack_columns = 8;
inline constexpr int implicit_gemm_pack_cluster = 8;
inline constexpr int implicit_gemm_pack_threads = 256;
/// Multiprocessors of the device that the tiles are cut for.
inline constexpr int64_t implicit_gemm_multiprocessors = 132;
/// Packed weights beyond which the engine is not used.
inline constexpr int64_t implicit_gemm_most_packed_bytes = int64_t{1} << 30;

} // namespace tuning

TCONV_NAMESPACE_END
