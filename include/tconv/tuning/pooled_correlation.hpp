// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policy of pooled convolutions as correlations.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Block shape of kernel::pooled_correlation, and where it is used. Estimates: nothing here has been measured.
struct pooled_correlation_policy
{
  /// Threads of a block, blocks on a multiprocessor where all taps read inputs (128 registers) and where not (168), and
  /// what a thread holds: weights of a tap are read once for all its positions, and the functors' operands, too.
  static constexpr int threads       = 128;
  static constexpr int min_blocks    = 4;
  static constexpr int border_blocks = 3;
  static constexpr int positions     = 4;
  static constexpr int channels      = 16; ///< a multiple of 4
  /// Taps of an axis at most, and products of an output: beyond, the gather engine's tiles read x less often.
  static constexpr int most_taps     = 8;
  static constexpr int most_products = 128;
  /// Threads of the kernel that sums weights.
  static constexpr int weight_threads = 128;
};

} // namespace tuning

TCONV_NAMESPACE_END
