// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policy of the kernel that finishes a chain on stored logits.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Block shape of kernel::finish_channels.
struct channels_policy
{
  static constexpr int threads = 256;
  /// Shared memory for values: two blocks fit on sm_80 and sm_90, one on sm_86.
  static constexpr int shared_bytes = 96 * 1024;

  /// Positions side by side in a block, for \p channels channels: as many as shared memory holds, at most 32 (one 128-byte
  /// line), a power of two; 0 where not even one column fits and values stay in global memory.
  static constexpr int columns(int64_t channels)
  {
    int result = 32;
    while (result > 0 && channels * result > shared_bytes / 4)
    {
      result /= 2;
    }
    return result;
  }
};

} // namespace tuning

TCONV_NAMESPACE_END
