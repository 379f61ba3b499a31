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
  static constexpr double gemm_strided    = 15e-9;
  /// Per output whose logits are stored and finished by another kernel: 8 bytes of copy.
  static constexpr double logits = 2e-9;
  /// Per weight.
  static constexpr double pack_split = 6.0e-9;
  static constexpr double pack_tf32  = 4.5e-9;
  static constexpr double pack_half  = 4.1e-9;
};

} // namespace tuning

TCONV_NAMESPACE_END
