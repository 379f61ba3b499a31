// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Constants of the model of costs that chooses an engine, in milliseconds of an H200.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Fitted to 25 problems in three forms (docs/performance.md, "Choice of an engine").
struct engine_costs
{
  /// Blocks of the gather engine that run side by side, and products of one of them in a millisecond.
  static constexpr int64_t gather_blocks        = 264;
  static constexpr double gather_block_products = 54.5e6;
  static constexpr double gather_launch         = 0.01;
  /// Per output where rows are no whole vectors, and where neighbours along w belong to different phases of different threads.
  static constexpr double gather_odd_rows = 8e-9;
  static constexpr double gather_strided  = 24e-9;

  /// Cycles of a multiprocessor in a millisecond; what the first tile and the launches cost.
  static constexpr double gemm_cycles = 1.7e6;
  static constexpr double gemm_launch = 0.02;
  /// Of cycles, with mma.sync: P1 and slices of level 1 took 1.2 to 1.9 times as long as with wgmma in 16 bits and TF32, 1.8 to 2.2
  /// in the split form.
  static constexpr double gemm_warp       = 1.5;
  static constexpr double gemm_warp_split = 2.0;
  static constexpr double gemm_odd_rows   = 4.5e-9;
  /// Cycles of a multiprocessor for an output of channels-first tensors that is stored by itself: 9e-9 ms of 132 (L1_81 and k16 s8).
  static constexpr double gemm_scattered = 2.0;
  /// Bytes by which a run of outputs of two and more phases takes longer where rows begin anywhere (L1_73: tiles of 32, 64 and 128 cells along w
  /// take 0.91, 0.77 and 0.76 ms).
  static constexpr double gemm_run_ends = 200.0;
  /// Narrower tiles must be this much better by the estimate: it is no better itself.
  static constexpr double gemm_narrower = 0.9;
  /// Cycles of the staging warps for an input, where they are the limit (k16 s8, whose input is staged once a phase).
  static constexpr double gemm_stage_split = 0.7;
  static constexpr double gemm_stage_tf32  = 0.5;
  static constexpr double gemm_stage_half  = 0.2;
  /// The same for fp32 tensors where outputs leave through shared memory (L1_75 in groups: tiles of 1 x 256 cells read three rows for one and take
  /// 0.506 ms, those of 2 x 128 two for one and 0.456).
  static constexpr double gemm_stage_exchanged = 1.6;
  /// More than two phases along w in a thread: of the cycles of products, and cycles of a step beside them (k16 s8, 512->256, in three forms: 458,
  /// 760 and 937 a step for 171, 341 and 512 of products).
  static constexpr double gemm_many_sets      = 1.4;
  static constexpr double gemm_many_sets_step = 220.0;
  /// More than four phases in rows that the main loop has code of its own for: the products, and cycles of a step beside them (k16 s8 in bf16: 418 a step for 171).
  static constexpr double gemm_known_step = 80.0;
  /// Per output whose logits are stored and finished by another kernel: 8 bytes of copy.
  static constexpr double logits = 2e-9;
  /// Per weight.
  static constexpr double pack_split = 6.0e-9;
  static constexpr double pack_tf32  = 4.5e-9;
  static constexpr double pack_half  = 4.1e-9;
};

} // namespace tuning

TCONV_NAMESPACE_END
