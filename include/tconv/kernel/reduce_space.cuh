// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Reductions of a stored tensor over its positions: sums and moments, per sample and channel or per channel.
///
/// Two passes with a fixed order: slices of each channel of each sample to partial states, then the states. Within a thread,
/// values are taken in chunks whose sum or moments are formed in fp32; everything beyond is fp64.

#include "../detail/launch.cuh"
#include "../layout.hpp"
#include "../taps.hpp"
#include "../thread/chain.hpp"
#include "../thread/element.cuh"
#include "../thread/moments.hpp"
#include "../tuning/reduce.hpp"
#include "batch_norm.cuh"

#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

TCONV_CUDA_NAMESPACE_BEGIN

/// What a reduction over positions needs besides pointers.
struct space_problem
{
  tensor_strides x;
  int64_t batch     = 0;
  int64_t channels  = 1;
  int64_t positions = 0;
  int64_t slices    = 1; ///< pieces that the positions of a channel are cut into

  TCONV_HOST_DEVICE int64_t states() const { return batch * channels * slices; }
  /// Channels that blocks take: one at a time, or 32 neighbours where channels come last.
  TCONV_HOST_DEVICE int64_t channel_tiles() const
  {
    return x.channels_last() ? ceil_div(channels, int64_t{32}) : channels;
  }
};

/// Which partial states make one set of values: those of state s * first + i / inner * outer + i % inner, i < size, for set s.
struct moment_sets
{
  int64_t count;
  int64_t size;
  int64_t first;
  int64_t inner;
  int64_t outer;

  /// Each channel, over all samples.
  static moment_sets channels(const space_problem& p)
  {
    return {p.channels, p.batch * p.slices, p.slices, p.slices, p.channels * p.slices};
  }
  /// Each group of neighbouring channels of each sample.
  static moment_sets groups(const space_problem& p, int64_t groups)
  {
    const int64_t states = p.channels / groups * p.slices;
    return {p.batch * groups, states, states, states, 0};
  }
  TCONV_HOST_DEVICE int64_t at(int64_t set, int64_t i) const { return set * first + i / inner * outer + i % inner; }
};

namespace block
{

/// Sums of values.
struct sum_reduction
{
  using state = double;

  TCONV_DEVICE static state zero() { return 0.0; }
  template <int Count>
  TCONV_DEVICE static void add(state& total, const float (&values)[Count])
  {
    float sum = values[0];
    TCONV_PRAGMA_UNROLL
    for (int i = 1; i < Count; ++i)
    {
      sum += values[i];
    }
    total += static_cast<double>(sum);
  }
  TCONV_DEVICE state operator()(state a, const state& b) const { return a + b; }
};

/// Count, mean and centred squares of values.
struct moments_reduction
{
  using state = moments<double>;

  TCONV_DEVICE static state zero() { return {}; }
  template <int Count>
  TCONV_DEVICE static void add(state& total, const float (&values)[Count])
  {
    // Around the first value, so that equal values have exactly that mean, and a common offset costs no accuracy.
    const float origin = values[0];
    float sum          = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int i = 1; i < Count; ++i)
    {
      sum += values[i] - origin;
    }
    const float mean = sum / static_cast<float>(Count);
    float m2         = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < Count; ++i)
    {
      const float centred = (values[i] - origin) - mean;
      m2                  = fmaf(centred, centred, m2);
    }
    total.merge(
      {static_cast<double>(Count), static_cast<double>(origin) + static_cast<double>(mean), static_cast<double>(m2)});
  }
  TCONV_DEVICE state operator()(state a, const state& b) const
  {
    a.merge(b);
    return a;
  }
};

} // namespace block

namespace kernel
{

/// \p partials [batch][channels][slices]: the states of slices. \p vector: channels first, and every channel starts on 16 bytes.
template <class Policy, class Reduction, class In>
__global__ __launch_bounds__(Policy::threads) void reduce_slices(const __grid_constant__ space_problem problem,
                                                                 const In* x,
                                                                 bool vector,
                                                                 typename Reduction::state* partials)
{
  constexpr int threads = Policy::threads;
  constexpr int warps   = threads / 32;
  constexpr int width   = 16 / static_cast<int>(sizeof(In));
  constexpr int chunk   = Policy::chunk;
  using state           = typename Reduction::state;
  using block_reduce    = cub::BlockReduce<state, threads>;
  __shared__ union
  {
    typename block_reduce::TempStorage block;
    alignas(state) unsigned char rows[warps][32][sizeof(state)];
  } scratch;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  // Work items: (sample, channel, slice); channels last, 32 neighbouring channels at a time.
  const int thread    = static_cast<int>(threadIdx.x);
  const bool last     = problem.x.channels_last();
  const int64_t tiles = problem.channel_tiles();
  for (int64_t item = blockIdx.x; item < problem.batch * tiles * problem.slices; item += gridDim.x)
  {
    const int64_t slice = item % problem.slices;
    const int64_t tile  = item / problem.slices % tiles;
    const int64_t n     = item / problem.slices / tiles;
    // Slices begin on multiples of a vector.
    const int64_t vectors = ceil_div(problem.positions, int64_t{width});
    const int64_t begin   = vectors * slice / problem.slices * width;
    const int64_t limit   = vectors * (slice + 1) / problem.slices * width;
    const int64_t end     = limit < problem.positions ? limit : problem.positions;
    const auto state_at   = [&](int64_t c) -> state& {
      return partials[(n * problem.channels + c) * problem.slices + slice];
    };
    state total = Reduction::zero();
    if (last)
    {
      const int lane  = thread % 32;
      const int warp  = thread / 32;
      const int64_t c = tile * 32 + lane;
      const In* at    = x + n * problem.x.sample + (c < problem.channels ? c : problem.channels - 1);
      int64_t p       = begin + warp;
      for (; p + (chunk - 1) * warps < end; p += chunk * warps)
      {
        float values[chunk];
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < chunk; ++i)
        {
          values[i] = to_float(__ldcs(at + (p + i * warps) * problem.x.position));
        }
        Reduction::add(total, values);
      }
      for (; p < end; p += warps)
      {
        const float values[1] = {to_float(__ldcs(at + p * problem.x.position))};
        Reduction::add(total, values);
      }
      auto* rows             = reinterpret_cast<state*>(scratch.rows);
      rows[warp * 32 + lane] = total;
      __syncthreads();
      if (warp == 0 && c < problem.channels)
      {
        for (int i = 1; i < warps; ++i)
        {
          total = Reduction{}(total, rows[i * 32 + lane]);
        }
        state_at(c) = total;
      }
    }
    else
    {
      const In* channel = x + n * problem.x.sample + tile * problem.x.channel;
      int64_t p         = begin;
      if (vector)
      {
        constexpr int loads = chunk / width;
        for (; p + threads * chunk <= end; p += threads * chunk)
        {
          float values[chunk];
          TCONV_PRAGMA_UNROLL
          for (int j = 0; j < loads; ++j)
          {
            element_vector<In, width> v;
            v.load_streaming(channel + p + (j * threads + thread) * width);
            TCONV_PRAGMA_UNROLL
            for (int i = 0; i < width; ++i)
            {
              values[j * width + i] = to_float(v.values[i]);
            }
          }
          Reduction::add(total, values);
        }
      }
      for (; p + threads * chunk <= end; p += threads * chunk)
      {
        float values[chunk];
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < chunk; ++i)
        {
          values[i] = to_float(__ldcs(channel + p + i * threads + thread));
        }
        Reduction::add(total, values);
      }
      for (p += thread; p < end; p += threads)
      {
        const float values[1] = {to_float(__ldcs(channel + p))};
        Reduction::add(total, values);
      }
      // The order of the tree is fixed.
      total = block_reduce(scratch.block).Reduce(total, Reduction{});
      if (thread == 0)
      {
        state_at(tile) = total;
      }
    }
    __syncthreads();
  }
}

/// y[n * y_stride + c] = functors(sum / positions); a warp per sample and channel.
template <class Policy, class Chain, class Out>
__global__ __launch_bounds__(Policy::threads) void finish_means(const __grid_constant__ space_problem problem,
                                                                const double* partials,
                                                                Out* y,
                                                                int64_t y_stride,
                                                                const __grid_constant__ Chain functors)
{
  constexpr int warps = Policy::threads / 32;
  using warp_reduce   = cub::WarpReduce<double>;
  __shared__ typename warp_reduce::TempStorage scratch[warps];
  runtime::grid_dependency_wait();

  const int lane      = static_cast<int>(threadIdx.x) % 32;
  const int warp      = static_cast<int>(threadIdx.x) / 32;
  const int64_t count = problem.batch * problem.channels;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * warps + warp; row < count;
       row += static_cast<int64_t>(gridDim.x) * warps)
  {
    double sum = 0.0;
    for (int64_t i = lane; i < problem.slices; i += 32)
    {
      sum += partials[row * problem.slices + i];
    }
    sum = warp_reduce(scratch[warp]).Sum(sum);
    if (lane == 0)
    {
      const coordinate at             = {row / problem.channels, row % problem.channels};
      const double value              = apply_to_mean(functors, sum / static_cast<double>(problem.positions), at);
      y[at.n * y_stride + at.channel] = from_float<Out>(static_cast<float>(value));
    }
    __syncwarp();
  }
}

/// Hands the moments of each set to finish(set, moments); a block per set.
template <class Policy, class Finish>
__global__ __launch_bounds__(Policy::threads) void finish_moments(const __grid_constant__ moment_sets sets,
                                                                  const moments<double>* partials,
                                                                  const __grid_constant__ Finish finish)
{
  using block_reduce = cub::BlockReduce<moments<double>, Policy::threads>;
  __shared__ typename block_reduce::TempStorage scratch;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  for (int64_t set = blockIdx.x; set < sets.count; set += gridDim.x)
  {
    moments<double> total;
    for (int64_t i = threadIdx.x; i < sets.size; i += Policy::threads)
    {
      total.merge(partials[sets.at(set, i)]);
    }
    total = block_reduce(scratch).Reduce(total, block::moments_reduction{});
    if (threadIdx.x == 0)
    {
      finish(set, total);
    }
    __syncthreads();
  }
}

/// Finish of channel_moments() and group_moments().
struct store_moments
{
  float* mean;
  float* variance;

  TCONV_DEVICE void operator()(int64_t c, const moments<double>& total) const
  {
    mean[c]     = static_cast<float>(total.mean);
    variance[c] = static_cast<float>(total.biased_variance());
  }
};

/// Finish of batch_norm_train(): what normalises each channel, and the running statistics.
struct prepare_batch_norm
{
  batch_norm_arguments arguments;
  float* centres;
  float* slopes;

  TCONV_DEVICE void operator()(int64_t c, const moments<double>& total) const
  {
    const double gamma = arguments.gamma != nullptr ? static_cast<double>(arguments.gamma[c]) : 1.0;
    centres[c]         = static_cast<float>(total.mean);
    slopes[c] =
      static_cast<float>(batch_norm_slope(total.biased_variance(), static_cast<double>(arguments.eps), gamma));
    update_running_statistics(arguments, c, total.mean, total.unbiased_variance());
  }
};

/// Finish of group_norm(): what normalises each group of each sample.
struct prepare_group_norm
{
  float eps;
  float* centres;
  float* slopes;

  TCONV_DEVICE void operator()(int64_t set, const moments<double>& total) const
  {
    centres[set] = static_cast<float>(total.mean);
    slopes[set]  = static_cast<float>(batch_norm_slope(total.biased_variance(), static_cast<double>(eps), 1.0));
  }
};

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
