// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policies of the moments from lagged products of x.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Block shapes of the kernels in kernel/lagged.cuh, and where they are used. Estimates: nothing here has been
/// measured.
struct lagged_policy
{
  /// Threads of a block that forms products of one piece of x, whose warps share its cells, and blocks on a
  /// multiprocessor.
  static constexpr int threads    = 512;
  static constexpr int min_blocks = 2;
  /// Bytes of shared memory for a piece with what lags reach beyond it: two blocks a multiprocessor, and within 99 KB,
  /// all that some devices have.
  static constexpr int64_t piece_bytes = int64_t{96} * 1024;
  /// Pieces below which samples are cut further while they keep least_piece positions: two waves of blocks of a large
  /// device.
  static constexpr int64_t wanted_pieces = 512;
  static constexpr int64_t least_piece   = 1024;
  /// Inputs along an axis that a piece keeps if another axis can be cut: what lags reach beyond is staged twice.
  static constexpr int64_t least_extent = 4;
  /// Values of a channel whose mean centres it.
  static constexpr int64_t sampled = 1024;
  /// Threads of the smaller kernels.
  static constexpr int small_threads = 256;
  /// Limits of the tables: taps and segments of an axis, cells that warps walk over, input channels.
  static constexpr int most_taps         = 8;
  static constexpr int most_segments     = 16;
  static constexpr int64_t most_cells    = 1024;
  static constexpr int64_t most_channels = 64;
  /// Sums of all pieces, and elements of the Gram matrix, at most: 32 and 64 MiB of workspace.
  static constexpr int64_t most_sums = int64_t{1} << 23;
  /// A product of the convolution takes as long as so many of x: where few products make an output, the pass over the
  /// outputs spends most of its time around them.
  static constexpr double worth = 0.25;
  /// Products in a millisecond, and what the kernels around them take (L2_72: 98 us for 4.1e8 products, 24 and some more around them).
  static constexpr double products_per_ms = 4.2e9;
  static constexpr double launches_ms     = 0.03;
  /// Products of a convolution below which either way takes no time, and sums are not long enough for their errors to
  /// average out.
  static constexpr double least_products = 16.0 * 1024 * 1024;
};

} // namespace tuning

TCONV_NAMESPACE_END
