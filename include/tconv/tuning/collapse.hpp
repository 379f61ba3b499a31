// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policies of the collapsed global mean.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Block shapes of kernel::class_sums and kernel::class_product.
struct collapse_policy
{
  /// Threads of a block that sums one box of x, and loads in flight per thread.
  static constexpr int sum_threads = 256;
  static constexpr int loads       = 8;
  static constexpr int sum_blocks  = 4; ///< of whole_sums on a multiprocessor: 64 registers a thread
  /// Blocks for x below which boxes are cut into slices: several waves of a large device.
  static constexpr int64_t wanted_blocks = 2048;
  /// Elements below which a box is not cut any further.
  static constexpr int64_t least_slice = 4096;
  /// Most blocks for the sums over w: they come first in the grid, so that they are not its tail.
  static constexpr int64_t weight_blocks = 512;
  /// Output channels side by side, and threads that share the sum of one of them.
  static constexpr int product_channels = 32;
  static constexpr int product_split    = 8;
};

} // namespace tuning

TCONV_NAMESPACE_END
