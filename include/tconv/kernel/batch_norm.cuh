// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// BatchNorm from merged moments, and its folding into per-channel affines and weights.

#include "../batch_norm_arguments.hpp"
#include "../detail/launch.cuh"
#include "../taps.hpp"
#include "../thread/chain.hpp"
#include "../thread/moments.hpp"
#include "collapse.cuh"

#include <cub/block/block_reduce.cuh>

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// Slope of a chain of linear functors at \p at: the product of theirs.
template <class... Functors>
TCONV_DEVICE double chain_slope(const chain<Functors...>& functors, const coordinate& at)
{
  double slope = 1;
  functors.for_each([&](const auto& functor) { slope *= detail::bind(functor, at).slope(); });
  return slope;
}

/// new = (1 - momentum) * old + momentum * statistic, for the running statistics of channel \p c that are tracked.
TCONV_DEVICE void
update_running_statistics(const batch_norm_arguments& arguments, int64_t c, double mean, double unbiased_variance)
{
  const auto momentum = static_cast<double>(arguments.momentum);
  const auto update   = [&](float* running, double statistic) {
    if (running != nullptr)
    {
      running[c] = static_cast<float>((1.0 - momentum) * static_cast<double>(running[c]) + momentum * statistic);
    }
  };
  update(arguments.running_mean, mean);
  update(arguments.running_var, unbiased_variance);
}

/// Moments of pieces of each channel, by themselves for batch_norm_statistics() or as spread of exact_moments. \p partials
/// [channels][per_channel].
struct partial_moments
{
  const moments<float>* partials;
  int64_t per_channel;

  /// Moments of channel \p c, in thread 0. Called by the block.
  template <int Threads>
  TCONV_DEVICE moments<double> total(int64_t c) const
  {
    using block_merge = cub::BlockReduce<moments<double>, Threads>;
    __shared__ typename block_merge::TempStorage scratch;
    // The order of the tree is fixed.
    return block_merge(scratch).Reduce(
      moments_of(c, static_cast<int>(threadIdx.x), Threads), [](moments<double> a, const moments<double>& b) {
        a.merge(b);
        return a;
      });
  }

  /// What thread \p first of \p step contributes to the moments of channel \p c.
  TCONV_DEVICE moments<double> moments_of(int64_t c, int first, int step) const
  {
    moments<double> mine;
    for (int64_t i = first; i < per_channel; i += step)
    {
      const moments<float> p = partials[c * per_channel + i];
      mine.merge({static_cast<double>(p.count), static_cast<double>(p.mean), static_cast<double>(p.m2)});
    }
    return mine;
  }
  /// The same for squares beyond those of the moments: none.
  TCONV_DEVICE double squares_of(int64_t, int, int) const { return 0.0; }
  /// The means of channel \p c exist before the kernel.
  TCONV_DEVICE void find_means(int64_t) const {}
};

/// Spread of exact_moments: sums of squares around the samples' means, in \p per_channel pieces, and those
/// means, each of \p positions values. \p squares [channels][per_channel], \p means [batch][channels].
struct sample_squares
{
  const double* squares;
  int64_t per_channel;
  const double* means;
  int64_t batch;
  int64_t channels;
  double positions;

  TCONV_DEVICE moments<double> moments_of(int64_t c, int first, int step) const
  {
    moments<double> mine;
    for (int64_t n = first; n < batch; n += step)
    {
      mine.merge({positions, means[n * channels + c], 0.0});
    }
    return mine;
  }
  TCONV_DEVICE double squares_of(int64_t c, int first, int step) const
  {
    double sum = 0.0;
    for (int64_t i = first; i < per_channel; i += step)
    {
      sum += squares[c * per_channel + i];
    }
    return sum;
  }
  TCONV_DEVICE void find_means(int64_t) const {}
};

/// The same where the samples' means are yet to be found, from sums over positions and over taps of convolutions whose taps all
/// land. \p found: the means, \p x_sums [batch][in_channels], \p w_sums [in_channels][channels].
struct collapsed_squares : sample_squares
{
  double* found;
  const double* x_sums;
  const double* w_sums;
  int64_t in_channels;

  /// Called by the block of channel \p c: a warp takes a sample at a time.
  TCONV_DEVICE void find_means(int64_t c) const
  {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int64_t n = threadIdx.x / 32; n < batch; n += blockDim.x / 32)
    {
      double share = 0.0;
      for (int64_t i = lane; i < in_channels; i += 32)
      {
        share = fma(x_sums[n * in_channels + i], w_sums[i * channels + c], share);
      }
      share = block::sum_lanes(share);
      if (lane == 0)
      {
        found[n * channels + c] = share / positions;
      }
    }
    __syncthreads();
  }
};

/// Statistics of batch_norm_means() and store_moments_of_channels(): the deviations that \p Spread knows, around the exact mean,
/// that of the samples' means. \p means [batch][channels], which spread may have to find first.
template <class Spread>
struct exact_moments
{
  Spread spread;
  const double* means;
  int64_t batch;
  int64_t channels;

  /// Moments of channel \p c, in thread 0; all of its means are found by then. Called by the block.
  template <int Threads>
  TCONV_DEVICE moments<double> total(int64_t c) const
  {
    using block_sum   = cub::BlockReduce<double, Threads>;
    using block_merge = cub::BlockReduce<moments<double>, Threads>;
    __shared__ typename block_sum::TempStorage sum_scratch;
    __shared__ typename block_sum::TempStorage square_scratch;
    __shared__ typename block_merge::TempStorage merge_scratch;
    const int thread = static_cast<int>(threadIdx.x);
    spread.find_means(c);
    const moments<double> mine = spread.moments_of(c, thread, Threads);
    double sum                 = 0;
    for (int64_t n = thread; n < batch; n += Threads)
    {
      sum += means[n * channels + c];
    }
    // The order of the trees is fixed.
    moments<double> result = block_merge(merge_scratch).Reduce(mine, [](moments<double> a, const moments<double>& b) {
      a.merge(b);
      return a;
    });
    result.m2 += block_sum(square_scratch).Sum(spread.squares_of(c, thread, Threads));
    result.mean = block_sum(sum_scratch).Sum(sum) / static_cast<double>(batch);
    return result;
  }
};

/// Statistics of batch_norm_means(): moments of parts of the batch, merged in the order of ranks. \p parts [ranks][channels].
struct rank_moments
{
  const moments<double>* parts;
  int64_t ranks;
  int64_t channels;

  /// Moments of channel \p c, in thread 0.
  template <int Threads>
  TCONV_DEVICE moments<double> total(int64_t c) const
  {
    moments<double> result;
    if (threadIdx.x == 0)
    {
      // One after the other on every rank, so that all of them get the same bits.
      for (int64_t rank = 0; rank < ranks; ++rank)
      {
        result.merge(parts[rank * channels + c]);
      }
    }
    return result;
  }
};

/// result[c] = moments of channel c of \p statistics, a channel per block.
template <int Threads, class Statistics>
__global__ __launch_bounds__(Threads) void store_moments_of_channels(const __grid_constant__ Statistics statistics,
                                                                     moments<double>* result,
                                                                     int64_t channels)
{
  runtime::grid_dependency_wait();

  for (int64_t c = blockIdx.x; c < channels; c += gridDim.x)
  {
    const moments<double> total = statistics.template total<Threads>(c);
    if (threadIdx.x == 0)
    {
      result[c] = total;
    }
    __syncthreads();
  }
}

/// Train-mode BatchNorm of globally averaged outputs, one channel per block.
///
/// \p statistics: of the convolution's outputs, of which these may be a part; \p means [batch][channels]: exact means per
/// sample, which statistics may have to find first. With a = slope of \p before, and everything centred before it is scaled,
///     y[n, c] = gamma * a * (mean[n, c] - mean[c]) / sqrt(a^2 var[c] + eps) + beta.
/// Without a value in the statistics of a channel nothing is tracked.
template <int Threads, class Statistics, class Chain, class Out>
__global__ __launch_bounds__(Threads) void batch_norm_means(const __grid_constant__ Statistics statistics,
                                                            const double* means,
                                                            Out* y,
                                                            int64_t y_stride,
                                                            int64_t batch,
                                                            int64_t channels,
                                                            const __grid_constant__ Chain before,
                                                            const batch_norm_arguments arguments)
{
  __shared__ double shared_mean;
  __shared__ double shared_factor;
  runtime::grid_dependency_wait();

  for (int64_t c = blockIdx.x; c < channels; c += gridDim.x)
  {
    const moments<double> total = statistics.template total<Threads>(c);
    if (threadIdx.x == 0)
    {
      const coordinate at   = {0, c};
      const double slope    = chain_slope(before, at);
      const double biased   = slope * slope * total.biased_variance();
      const double unbiased = slope * slope * total.unbiased_variance();
      const double gamma    = arguments.gamma != nullptr ? static_cast<double>(arguments.gamma[c]) : 1.0;
      shared_mean           = total.mean;
      shared_factor         = slope * batch_norm_slope(biased, static_cast<double>(arguments.eps), gamma);
      if (total.count > 0)
      {
        update_running_statistics(arguments, c, apply_to_mean(before, total.mean, at), unbiased);
      }
    }
    __syncthreads();
    const double beta = arguments.beta != nullptr ? static_cast<double>(arguments.beta[c]) : 0.0;
    for (int64_t n = threadIdx.x; n < batch; n += Threads)
    {
      y[n * y_stride + c] =
        from_float<Out>(static_cast<float>(shared_factor * (means[n * channels + c] - shared_mean) + beta));
    }
    __syncthreads();
  }
}

/// What batch_norm_statistics() leaves where BatchNorm is applied as it stands: centres[c] = before(mean[c]) and
/// slopes[c] = gamma / sqrt(a^2 var[c] + eps), both [channels].
struct channel_affines
{
  float* centres;
  float* slopes;

  TCONV_DEVICE void store(int64_t c, double mean, double, double slope) const
  {
    centres[c] = static_cast<float>(mean);
    slopes[c]  = static_cast<float>(slope);
  }
};

/// The same where a mean is subtracted behind it: what is left of BatchNorm and \p before is a slope of the
/// convolution's outputs, slopes[c] = a * gamma / sqrt(a^2 var[c] + eps).
struct channel_slopes
{
  float* slopes;

  TCONV_DEVICE void store(int64_t c, double, double slope_before, double slope) const
  {
    slopes[c] = static_cast<float>(slope_before * slope);
  }
};

/// What normalises each channel behind \p before in train mode, into \p result, and the running statistics; a channel
/// per block.
///
/// \p statistics: of the convolution's outputs. a = slope of before.
template <int Threads, class Statistics, class Chain, class Result>
__global__ __launch_bounds__(Threads) void batch_norm_statistics(const __grid_constant__ Statistics statistics,
                                                                 const Result result,
                                                                 int64_t channels,
                                                                 const __grid_constant__ Chain before,
                                                                 const batch_norm_arguments arguments)
{
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  for (int64_t c = blockIdx.x; c < channels; c += gridDim.x)
  {
    const moments<double> total = statistics.template total<Threads>(c);
    if (threadIdx.x == 0)
    {
      const coordinate at = {0, c};
      const double slope  = chain_slope(before, at);
      const double mean   = apply_to_mean(before, total.mean, at);
      const double gamma  = arguments.gamma != nullptr ? static_cast<double>(arguments.gamma[c]) : 1.0;
      const double biased = slope * slope * total.biased_variance();
      result.store(c, mean, slope, batch_norm_slope(biased, static_cast<double>(arguments.eps), gamma));
      update_running_statistics(arguments, c, mean, slope * slope * total.unbiased_variance());
    }
    __syncthreads();
  }
}

/// Per-channel slopes and offsets of BatchNorm in eval mode behind a bias: slope * (v + bias) + offset form folded into
/// slopes[c] * v + offsets[c].
template <int Threads>
__global__ __launch_bounds__(Threads) void fold_batch_norm(
  const float* bias, const batch_norm_arguments arguments, float* slopes, float* offsets, int64_t channels)
{
  runtime::grid_dependency_wait();
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * Threads + threadIdx.x; c < channels;
       c += static_cast<int64_t>(gridDim.x) * Threads)
  {
    const double gamma = arguments.gamma != nullptr ? static_cast<double>(arguments.gamma[c]) : 1.0;
    const double beta  = arguments.beta != nullptr ? static_cast<double>(arguments.beta[c]) : 0.0;
    const double shift = bias != nullptr ? static_cast<double>(bias[c]) : 0.0;
    const double slope = batch_norm_slope(
      static_cast<double>(arguments.running_var[c]), static_cast<double>(arguments.eps), gamma);
    slopes[c]  = static_cast<float>(slope);
    offsets[c] = static_cast<float>(slope * (shift - static_cast<double>(arguments.running_mean[c])) + beta);
  }
}

/// folded[ci, co, taps] = w[ci, co, taps] * slopes[group(ci), co]: output channels are the second axis of the weights.
template <int Threads, class T>
__global__ __launch_bounds__(Threads) void fold_into_weights(const T* w,
                                                             const float* slopes,
                                                             T* folded,
                                                             int64_t elements,
                                                             int64_t taps,
                                                             int64_t in_per_group,
                                                             int64_t out_per_group)
{
  runtime::grid_dependency_wait();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * Threads + threadIdx.x; i < elements;
       i += static_cast<int64_t>(gridDim.x) * Threads)
  {
    const int64_t row   = i / taps;
    const int64_t group = row / out_per_group / in_per_group;
    folded[i]           = from_float<T>(to_float(w[i]) * slopes[group * out_per_group + row % out_per_group]);
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
