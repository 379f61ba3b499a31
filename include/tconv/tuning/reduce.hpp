// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policy of the reductions of a stored tensor over its positions.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Block shape of kernel::reduce_slices and of what follows it.
struct reduce_policy
{
  static constexpr int threads = 256;
  /// Values a thread takes at a time, all of whose loads are in flight together.
  static constexpr int chunk = 16;
  /// Blocks below which channels are cut into slices: several waves of a large device.
  static constexpr int64_t wanted_blocks = 2048;
  /// Positions below which a slice is not cut any further.
  static constexpr int64_t least_slice = 4096;
};

} // namespace tuning

TCONV_NAMESPACE_END
