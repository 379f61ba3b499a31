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
  /// Threads of a block whose warps sum slices of x; blocks on a multiprocessor where each class is one row (64 registers a
  /// thread) and where not (80); elements that a thread has in flight, as vectors of 16 bytes or one by one. P2's sums of x: 17.0
  /// us in a graph, 16.3 for a kernel that does nothing else.
  static constexpr int sum_threads     = 256;
  static constexpr int sum_blocks      = 4;
  static constexpr int row_blocks      = 3;
  static constexpr int vector_elements = 32;
  static constexpr int scalar_elements = 16;
  /// Slices of x below which classes are cut: two waves of warps of a large device (half as many: P2 17.6 us).
  static constexpr int64_t wanted_slices = 8192;
  /// Elements of a slice: at least on average over the classes, and at most.
  static constexpr int64_t least_slice = 256;
  static constexpr int64_t most_slice  = int64_t{1} << 24;
  /// Sums over w that a warp takes, and most blocks for them: they come first in the grid, so that they are not its tail. P2: 17.5
  /// us with the sums of x, 18.4 with two a warp.
  static constexpr int64_t weight_rows   = 8;
  static constexpr int64_t weight_blocks = 1024;
  /// Threads of a block that sums along one axis, and vectors that a thread has in flight.
  static constexpr int axis_threads = 256;
  static constexpr int axis_loads   = 8;
  /// Warps that share the products of 32 output channels, and terms of the product that they hold at once.
  static constexpr int product_warps = 16;
  static constexpr int product_terms = 1024;
};

} // namespace tuning

TCONV_NAMESPACE_END
