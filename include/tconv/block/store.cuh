// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Stores of accumulator tiles, channels first.

#include "../detail/config.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Where the outputs of one thread go: channel c, position p of the tile to
/// y[(channel_base + c) * channel_stride + position + p * step].
struct output_run
{
  int64_t channel_stride; ///< elements of one channel
  int64_t position; ///< of the first output within its channel
  int step; ///< between neighbouring outputs of the thread
  int count; ///< how many of them exist; 0 where the thread has none
};

/// Stores \p channels x run.count values. \p base: first channel's first element. \p vector: every run starts on 16 bytes.
/// Called by each thread for itself.
template <int Channels, int Positions>
TCONV_DEVICE void
store_tile(const float (&values)[Channels][Positions], float* base, const output_run& run, int channels, bool vector)
{
  if (vector && run.step == 1 && run.count == Positions)
  {
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < Channels; ++c)
    {
      if (c < channels)
      {
        auto* target = reinterpret_cast<float4*>(base + c * run.channel_stride + run.position);
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < Positions / 4; ++p)
        {
          // Streaming: y is not read again. Written as an intrinsic, because the compiler splits plain float4 stores whose
          // values do not lie in neighbouring registers.
          __stcs(target + p,
                 make_float4(values[c][4 * p], values[c][4 * p + 1], values[c][4 * p + 2], values[c][4 * p + 3]));
        }
      }
    }
    return;
  }
  TCONV_PRAGMA_UNROLL
  for (int c = 0; c < Channels; ++c)
  {
    if (c < channels)
    {
      float* target = base + c * run.channel_stride + run.position;
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < Positions; ++p)
      {
        if (p < run.count)
        {
          target[static_cast<int64_t>(p) * run.step] = values[c][p];
        }
      }
    }
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
