// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Pooled convolutions as correlations with few products an output, see detail/pooled_correlation.hpp.

#include "../block/lane_tile.cuh"
#include "../block/tensor_view.cuh"
#include "../detail/launch.cuh"
#include "../detail/pooled_correlation.hpp"
#include "../thread/chain.hpp"
#include "../thread/specialise.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// packed [channel tile][product][channel]: means of the weights \p w that meet in a window, summed in fp64 and rounded
/// once; 0 for channels that do not exist.
template <class Policy>
__global__ __launch_bounds__(Policy::weight_threads) void pack_correlation(
  const __grid_constant__ correlation_problem problem, const float* w, float* packed)
{
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int64_t step = static_cast<int64_t>(gridDim.x) * Policy::weight_threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * Policy::weight_threads + threadIdx.x; i < problem.weights();
       i += step)
  {
    const int64_t row = i / Policy::channels;
    const int64_t co  = row / problem.products() * Policy::channels + i % Policy::channels;
    const auto k      = static_cast<int>(row % problem.products());
    const int ci      = k / problem.taps();
    const int tap     = k - ci * problem.taps();
    double sum        = 0;
    if (co < problem.out_channels)
    {
      const index_range d     = problem.summed_taps(0, tap / problem.axis[2].taps / problem.axis[1].taps);
      const index_range h     = problem.summed_taps(1, tap / problem.axis[2].taps % problem.axis[1].taps);
      const index_range along = problem.summed_taps(2, tap % problem.axis[2].taps);
      const float* from =
        w + (ci * problem.out_channels + co) * problem.conv[0].kernel * problem.conv[1].kernel * problem.conv[2].kernel;
      for (int64_t td = d.begin; td < d.end; ++td)
      {
        for (int64_t th = h.begin; th < h.end; ++th)
        {
          const float* line = from + (td * problem.conv[1].kernel + th) * problem.conv[2].kernel;
          for (int64_t tw = along.begin; tw < along.end; ++tw)
          {
            sum += static_cast<double>(line[tw]);
          }
        }
      }
    }
    packed[i] = static_cast<float>(sum * problem.factor);
  }
}

/// y = functors(correlation): a block takes Policy::threads * Policy::positions neighbouring positions of a sample and
/// a tile of channels, a thread every Policy::threads-th of them.
///
/// \p Inside: no tap reaches beyond x. Products are summed in the order of channels and taps. Shared memory: a tile of
/// the weights, and where each product reads x: (4 * Policy::channels + 8) * problem.products() bytes.
template <class Policy, bool Inside, class Chain, class Out>
__global__
__launch_bounds__(Policy::threads, Inside ? Policy::min_blocks : Policy::border_blocks) void pooled_correlation(
  const __grid_constant__ correlation_problem problem,
  const float* x,
  const float* packed,
  const __grid_constant__ block::tensor_view<Out> y,
  const __grid_constant__ Chain functors)
{
  constexpr int held      = Policy::channels;
  constexpr int positions = Policy::positions;
  extern __shared__ float4 weights[]; // [product][channel]
  const int products = problem.products();
  int2* sources      = reinterpret_cast<int2*>(weights + products * (held / 4)); // offset in x; taps along d, h, w
  const int thread   = static_cast<int>(threadIdx.x);
  const int all      = problem.positions();
  const int64_t per_sample = ceil_div(all, Policy::threads * positions);
  const int64_t items      = problem.batch * per_sample * problem.channel_tiles();
  for (int k = thread; k < products; k += Policy::threads)
  {
    const int ci  = k / problem.taps();
    const int tap = k - ci * problem.taps();
    const int d   = tap / problem.axis[2].taps / problem.axis[1].taps;
    const int h   = tap / problem.axis[2].taps % problem.axis[1].taps;
    const int w   = tap % problem.axis[2].taps;
    const int at  = (d * problem.axis[1].in + h) * problem.axis[2].in + w;
    sources[k]    = make_int2(
      ci * static_cast<int>(problem.x.channel) + at * static_cast<int>(problem.x.position), d | h << 8 | w << 16);
  }
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x)
  {
    const int64_t tile    = item % problem.channel_tiles();
    const int64_t part    = item / problem.channel_tiles();
    const int64_t n       = part / per_sample;
    const int first       = static_cast<int>(part - n * per_sample) * Policy::threads * positions + thread;
    const auto* packed_at = reinterpret_cast<const float4*>(packed + tile * products * held);
    for (int i = thread; i < products * (held / 4); i += Policy::threads)
    {
      weights[i] = packed_at[i];
    }
    __syncthreads();

    const float* sample = x + n * problem.x.sample;
    int base[positions];
    unsigned exists[3][positions]; // bit v: tap v of the axis reads an input
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < positions; ++p)
    {
      // Beyond the last position its values are computed once more and not stored.
      const int o    = first + p * Policy::threads < all ? first + p * Policy::threads : all - 1;
      const int row  = o / problem.axis[2].out;
      const int d    = row / problem.axis[1].out;
      const int j[3] = {d, row - d * problem.axis[1].out, o - row * problem.axis[2].out};
      int at         = 0;
      TCONV_PRAGMA_UNROLL
      for (int a = 0; a < 3; ++a)
      {
        const correlation_axis& axis = problem.axis[a];
        const int from               = axis.step * j[a] + axis.first;
        at                           = at * axis.in + from;
        if constexpr (!Inside)
        {
          exists[a][p] = 0;
          for (int v = 0; v < axis.taps; ++v)
          {
            exists[a][p] |= from + v >= 0 && from + v < axis.in ? 1u << v : 0u;
          }
        }
      }
      base[p] = at * static_cast<int>(problem.x.position);
    }
    float sums[held][positions] = {};
    TCONV_PRAGMA_UNROLL_4
    for (int k = 0; k < products; ++k)
    {
      const int2 source = sources[k];
      float values[positions];
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < positions; ++p)
      {
        bool there = true;
        if constexpr (!Inside)
        {
          there = ((exists[0][p] >> (source.y & 0xff)) & (exists[1][p] >> (source.y >> 8 & 0xff))
                   & (exists[2][p] >> (source.y >> 16)) & 1u)
               != 0;
        }
        values[p] = there ? sample[base[p] + source.x] : 0.0f;
      }
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < held; c += 4)
      {
        const float4 four  = weights[k * (held / 4) + c / 4];
        const float row[4] = {four.x, four.y, four.z, four.w};
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i)
        {
          TCONV_PRAGMA_UNROLL
          for (int p = 0; p < positions; ++p)
          {
            sums[c + i][p] = fmaf(row[i], values[p], sums[c + i][p]);
          }
        }
      }
    }

    const int64_t channel = tile * held;
    const auto locate     = [&](int p) -> int64_t {
      const int o = first + p * Policy::threads;
      return o < all ? o : -1;
    };
    block::lane_tile<held, positions, 0, decltype(locate)> finished = {
      sums, n, channel, problem.out_channels, 1, locate};
    apply(detail::specialise(functors), finished);
    Out* target = y.data + n * y.strides.sample + channel * y.strides.channel;
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < held; ++c)
    {
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < positions; ++p)
      {
        const int o = first + p * Policy::threads;
        if (o < all && channel + c < problem.out_channels)
        {
          target[c * y.strides.channel + o * y.strides.position] = from_float<Out>(sums[c][p]);
        }
      }
    }
    __syncthreads(); // the weights are read until here
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
