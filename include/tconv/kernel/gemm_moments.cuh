// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Per-channel moments of what the tensor-core engine computes, from its accumulators.

#include "../thread/moments.hpp"
#include "implicit_gemm.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Sums over the rows of a fragment, that is over the lanes with the same lane % 4, of Count values each. Every lane gets Count / 8 of the
/// sums in the first elements, those from kept_first() on. Called by whole warps; the order is fixed.
template <int Count>
TCONV_DEVICE void sum_rows(float (&values)[Count], int lane)
{
  int rest = Count;
  TCONV_PRAGMA_UNROLL
  for (int distance = 16; distance >= 4; distance /= 2)
  {
    rest /= 2;
    const bool upper = (lane & distance) != 0;
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < Count / 2; ++i)
    {
      if (i < rest)
      {
        const float sent = upper ? values[i] : values[i + rest];
        const float kept = upper ? values[i + rest] : values[i];
        values[i]        = kept + __shfl_xor_sync(0xffffffffu, sent, distance);
      }
    }
  }
}

/// The first of the Count / 8 values that \p lane keeps in sum_rows().
template <int Count>
TCONV_DEVICE int kept_first(int lane)
{
  return ((lane & 16) != 0 ? Count / 2 : 0) + ((lane & 8) != 0 ? Count / 4 : 0) + ((lane & 4) != 0 ? Count / 8 : 0);
}

/// Inverse of the distribution of sum_rows(): from Count / 8 values of each lane to all of them in every one.
template <int Count>
TCONV_DEVICE void spread_rows(float (&values)[Count], int lane)
{
  int held = Count / 8;
  TCONV_PRAGMA_UNROLL
  for (int distance = 4; distance <= 16; distance *= 2)
  {
    const bool upper = (lane & distance) != 0;
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < Count / 2; ++i)
    {
      if (i < held)
      {
        const float own   = values[i];
        const float other = __shfl_xor_sync(0xffffffffu, own, distance);
        values[i]         = upper ? other : own;
        values[i + held]  = upper ? own : other;
      }
    }
    held *= 2;
  }
}

} // namespace block

namespace kernel
{

/// Finish by reducing: per channel the moments of the outputs of each warp that multiplies, into partials[channel][warp of all blocks].
///
/// Within a warp the mean of a phase of a tile is taken first and then the squares around it; everything else merges moments. The order
/// of all merges is fixed.
struct reduce_gemm_moments
{
  moments<float>* partials; ///< [out_channels][partials_per_channel]
  int64_t partials_per_channel;

  template <class Policy>
  struct state
  {
    static constexpr int channels = Policy::columns / 4; ///< of a thread
    static constexpr int kept     = channels / 8;
    moments<float> totals[kept];

    template <class Locate, class Scale>
    TCONV_DEVICE void add(const reduce_gemm_moments&,
                          int,
                          int,
                          int,
                          Locate locate,
                          const Scale& scale,
                          float (&sums)[Policy::sets][Policy::columns / 2])
    {
      scale.apply(sums);
      block::fragment_tile<Policy::columns, Policy::sets, true> tile{sums, 0, 0, 0, locate()};
      const int lane = block::own_lane();
      int count      = tile.run.count;
      TCONV_PRAGMA_UNROLL
      for (int distance = 4; distance <= 16; distance *= 2)
      {
        count += __shfl_xor_sync(0xffffffffu, count, distance);
      }
      float mean[channels];
      sum_outputs(
        tile, [](float v, int) { return v; }, mean);
      block::sum_rows(mean, lane);
      const float inverse = count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
      float own[kept];
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < kept; ++i)
      {
        mean[i] *= inverse;
        own[i] = mean[i];
      }
      block::spread_rows(mean, lane);
      float m2[channels];
      sum_outputs(
        tile, [&mean](float v, int c) { return (v - mean[c]) * (v - mean[c]); }, m2);
      block::sum_rows(m2, lane);
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < kept; ++i)
      {
        totals[i].merge({static_cast<float>(count), own[i], m2[i]});
      }
    }

    /// Writes what there is of channel tile \p channel_tile, and forgets it.
    TCONV_DEVICE void done(const reduce_gemm_moments& self, int channel_tile, int out_channels)
    {
      const int lane     = block::own_lane();
      const int64_t slot = static_cast<int64_t>(blockIdx.x) * (Policy::consumers * 4) + threadIdx.x / 32;
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < kept; ++i)
      {
        const int c       = block::kept_first<channels>(lane) + i;
        const int channel = channel_tile * Policy::columns + c / 2 * 8 + lane % 4 * 2 + c % 2;
        if (channel < out_channels)
        {
          self.partials[channel * self.partials_per_channel + slot] = totals[i];
        }
        totals[i] = {};
      }
    }

  private:
    /// \p results[c] = the sum of term(value, c) over the outputs of the thread that exist.
    template <class Tile, class Term>
    TCONV_DEVICE static void sum_outputs(Tile& tile, Term term, float (&results)[channels])
    {
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < channels; ++c)
      {
        results[c] = 0.0f;
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < Tile::positions(); ++p)
        {
          results[c] += tile.exists(p) ? term(tile(c, p), c) : 0.0f;
        }
      }
    }
  };
};

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
