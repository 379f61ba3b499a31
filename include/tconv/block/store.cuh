// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Stores of accumulator tiles, channels first.

#include "../detail/config.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Where the outputs of one thread go: channel c, output p of group g to
/// base[c * channel_stride + position + g * group_step + p * step].
template <int Groups>
struct output_runs
{
  int64_t channel_stride; ///< elements of one channel
  int64_t position;       ///< of the first output within its channel
  int64_t group_step;     ///< between the first outputs of neighbouring groups
  int64_t step;           ///< between neighbouring outputs of a group
  int count[Groups];      ///< how many outputs of each group exist; 0 where the thread has none

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

/// Stores \p channels x the outputs of \p runs. \p base: first channel's first element. \p vector: every group starts on 16
/// bytes. Called by each thread for itself.
template <int Channels, int Positions, int Groups>
TCONV_DEVICE void store_tile(
  const float (&values)[Channels][Positions], float* base, const output_runs<Groups>& runs, int channels, bool vector)
{
  constexpr int held = Positions / Groups;
  TCONV_PRAGMA_UNROLL
  for (int g = 0; g < Groups; ++g)
  {
    float* group = base + runs.position + g * runs.group_step;
    if (vector && held % 4 == 0 && runs.step == 1 && runs.count[g] == held)
    {
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < Channels; ++c)
      {
        if (c < channels)
        {
          auto* target = reinterpret_cast<float4*>(group + c * runs.channel_stride);
          TCONV_PRAGMA_UNROLL
          for (int q = 0; q < held / 4; ++q)
          {
            const float* v = &values[c][g * held + 4 * q];
            // Streaming: y is not read again. Written as an intrinsic, because the compiler splits plain float4 stores whose
            // values do not lie in neighbouring registers.
            __stcs(target + q, make_float4(v[0], v[1], v[2], v[3]));
          }
        }
      }
      continue;
    }
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < Channels; ++c)
    {
      if (c < channels)
      {
        float* target = group + c * runs.channel_stride;
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < held; ++p)
        {
          if (p < runs.count[g])
          {
            target[p * runs.step] = values[c][g * held + p];
          }
        }
      }
    }
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
