// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policy of the kernels that apply a chain to a stored tensor.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Block shape of kernel::apply_chain_columns.
struct columns_policy
{
  static constexpr int threads = 256;
  /// Shared memory for values: two blocks fit on sm_80 and sm_90, one on sm_86.
  static constexpr int shared_bytes = 96 * 1024;
  /// Blocks where values lie in global memory: each has a row of its own there.
  static constexpr int64_t scratch_blocks = 264;

  /// Floats between the channels of a block: odd, so that both layouts are read without bank conflicts.
  TCONV_HOST_DEVICE static constexpr int pitch(int columns) { return columns == 1 ? 1 : columns + 1; }

  /// Positions side by side in a block, for \p channels channels: as many as shared memory holds, at most 32 (one 128-byte
  /// line), a power of two; 0 where not even one column fits and values stay in global memory.
  static constexpr int columns(int64_t channels)
  {
    int result = 32;
    while (result > 0 && channels > shared_bytes / 4 / pitch(result))
    {
      result /= 2;
    }
    return result;
  }
};

/// How kernel::apply_chain_rows holds rows in registers: at most 64 values a thread, whose neighbours in memory are loaded together.
///
/// [16, 64, 32, 64, 64], channel softmax, against one position and 64 channels a thread (4 channels last): f32 0.28 -> 0.27 ms, bf16
/// 0.32 -> 0.16, channels last f32 0.40 -> 0.26 and bf16 0.40 -> 0.17.
struct rows_policy
{
  static constexpr int threads   = 128;
  static constexpr int positions = 4; ///< of a thread

  int channels; ///< per thread: 4, 8 or 16
  int lanes;    ///< threads of a row, a power of two; 0 where the row does not fit

  /// Channels first: at most 16 lanes, so that warps still read whole sectors. Channels last: neighbouring lanes hold neighbouring
  /// channels, 8 each where vectors of 8 are aligned; else 4 (19 channels: 0.20 ms against 0.34).
  static constexpr rows_policy of(int64_t count, bool channels_last)
  {
    rows_policy result{16, 1};
    if (channels_last)
    {
      result.channels = count % 8 == 0 && count <= 256 ? 8 : (count <= 128 ? 4 : 16);
    }
    else
    {
      result.channels = count <= 4 ? 4 : (count <= 8 ? 8 : 16);
    }
    const int most = channels_last ? 32 : 16;
    while (result.lanes <= most && static_cast<int64_t>(result.channels) * result.lanes < count)
    {
      result.lanes *= 2;
    }
    result.lanes = result.lanes <= most ? result.lanes : 0;
    return result;
  }
};

} // namespace tuning

TCONV_NAMESPACE_END
