// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Stores of accumulator tiles, in either layout and any element type.

#include "../layout.hpp"
#include "../thread/element.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Which outputs of one thread exist, and at which positions of their channel: output p of group g stands at position
/// first + g * group_step + p * step.
template <int Groups>
struct output_runs
{
  int64_t first;
  int64_t group_step; ///< between the first outputs of neighbouring groups
  int64_t step;       ///< between neighbouring outputs of a group
  int count[Groups];  ///< how many outputs of each group exist; 0 where the thread has none

  /// Position of output \p p of the Positions of a thread, or -1 where there is none.
  template <int Positions>
  TCONV_DEVICE int64_t position(int p) const
  {
    constexpr int held = Positions / Groups;
    return p % held < count[p / held] ? first + p / held * group_step + p % held * step : -1;
  }
  TCONV_DEVICE int total() const
  {
    int sum = 0;
    TCONV_PRAGMA_UNROLL
    for (int g = 0; g < Groups; ++g)
    {
      sum += count[g];
    }
    return sum;
  }
};

/// Stores \p channels of the thread's channels x the outputs of \p runs. \p base: position 0 of the thread's first channel.
/// \p vector: the first output of every group (channels first), or the first channel of every position (channels last), is aligned
/// to as many elements as one store takes. Called by each thread for itself.
template <int Channels, int Positions, int Groups, class T>
TCONV_DEVICE void store_tile(const float (&values)[Channels][Positions],
                             T* base,
                             const tensor_strides& strides,
                             const output_runs<Groups>& runs,
                             int channels,
                             bool vector)
{
  constexpr int held = Positions / Groups;
  // Vectors want neighbouring registers: of positions, channels first, but of channels, channels last. Left alone, the compiler
  // serves the latter and moves every value for the former (1.5 % of P1). An or with a zero that it cannot see makes copies for
  // the latter instead.
  const int zero    = static_cast<int>(strides.channel - 1);
  const auto copied = [zero](float v) {
    return sizeof(T) == sizeof(float) ? __int_as_float(__float_as_int(v) | zero) : v;
  };
  TCONV_PRAGMA_UNROLL
  for (int g = 0; g < Groups; ++g)
  {
    T* group = base + (runs.first + g * runs.group_step) * strides.position;
    if (!strides.channels_last())
    {
      if (vector && held > 1 && runs.step == 1 && runs.count[g] == held)
      {
        TCONV_PRAGMA_UNROLL
        for (int c = 0; c < Channels; ++c)
        {
          if (c < channels)
          {
            store_streaming<held>(group + c * strides.channel, [&](int i) { return values[c][g * held + i]; });
          }
        }
        continue;
      }
    }
    else if (vector && Channels % 4 == 0 && channels == Channels)
    {
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < held; ++p)
      {
        if (p < runs.count[g])
        {
          store_streaming<Channels>(
            group + p * runs.step * strides.position, [&](int i) { return copied(values[i][g * held + p]); });
        }
      }
      continue;
    }
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < Channels; ++c)
    {
      if (c < channels)
      {
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < held; ++p)
        {
          if (p < runs.count[g])
          {
            group[c * strides.channel + p * runs.step * strides.position] = from_float<T>(values[c][g * held + p]);
          }
        }
      }
    }
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
