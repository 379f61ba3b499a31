// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policy of the reductions of a stored tensor over its positions.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Block shape of kernel::reduce_slices, kernel::reduce_windows and of what follows them.
struct reduce_policy
{
  static constexpr int threads = 256;
  /// Values a thread takes at a time, all of whose loads are in flight together.
  static constexpr int chunk = 16;
  /// Blocks below which channels are cut into slices: several waves of a large device.
  static constexpr int64_t wanted_blocks = 2048;
  /// Positions below which a slice is not cut any further.
  static constexpr int64_t least_slice = 4096;

  /// Values of a window below which one thread takes it, and outputs above which threads suffice for any window.
  static constexpr int64_t least_window = 512;
  static constexpr int64_t most_outputs = int64_t{1} << 16;

  /// Blocks that share a window of \p volume values where there are \p outputs of them; 0 where threads take whole windows.
  static constexpr int64_t window_slices(int64_t outputs, int64_t volume)
  {
    if (volume < least_window || outputs > most_outputs)
    {
      return 0;
    }
    const int64_t wanted = (wanted_blocks + outputs - 1) / (outputs > 0 ? outputs : 1);
    const int64_t most   = volume / least_slice > 1 ? volume / least_slice : 1;
    return wanted < most ? wanted : most;
  }
};

} // namespace tuning

TCONV_NAMESPACE_END
