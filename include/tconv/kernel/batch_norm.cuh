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

/// Statistics of batch_norm_means(): moments of pieces of each channel. \p partials [channels][per_channel].
struct partial_moments
{
  const moments<float>* partials;
  int64_t per_channel;

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
  /// Moments of channel \p c; called by a block, thread 0 has them. The order of the tree is fixed.
  template <int Threads>
  TCONV_DEVICE moments<double> reduce(int64_t c, double) const
  {
    using block_merge = cub::BlockReduce<moments<double>, Threads>;
    __shared__ typename block_merge::TempStorage scratch;
    return block_merge(scratch).Reduce(
      moments_of(c, static_cast<int>(threadIdx.x), Threads), [](moments<double> a, const moments<double>& b) {
        a.merge(b);
        return a;
      });
  }
  /// The means of channel \p c exist before the kernel.
  TCONV_DEVICE void find_means(int64_t) const {}
};

/// Statistics of batch_norm_means(): sums of squares around the samples' means, in \p per_channel pieces, and those means, each of
/// \p positions values. \p squares [channels][per_channel], \p means [batch][channels].
struct sample_squares
{
  const double* squares;
  int64_t per_channel;
  const double* means;
  int64_t batch;
  int64_t channels;
  double positions;

  /// As partial_moments::reduce(), around the mean \p mean. Samples are of one size: nothing to merge, so no divisions one after
  /// the other.
  template <int Threads>
  TCONV_DEVICE moments<double> reduce(int64_t c, double mean) const
  {
    using block_sum = cub::BlockReduce<double, Threads>;
    __shared__ typename block_sum::TempStorage scratch;
    double mine = 0.0;
    for (int64_t i = threadIdx.x; i < per_channel; i += Threads)
    {
      mine += squares[c * per_channel + i];
    }
    for (int64_t n = threadIdx.x; n < batch; n += Threads)
    {
      const double centred = means[n * channels + c] - mean;
      mine                 = fma(positions * centred, centred, mine);
    }
    return {static_cast<double>(batch) * positions, mean, block_sum(scratch).Sum(mine)};
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

  /// Called by the block of channel \p c: a warp takes a sample at a time. The sums are older than the squares: they exist before the
  /// kernel that batch_norm_means() overlaps has ended.
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

/// Train-mode BatchNorm of globally averaged outputs, one channel per block.
///
/// \p statistics: of the convolution's outputs; \p means [batch][channels]: exact means per sample, which statistics may have to find
/// first. With a = slope of \p before, and
/// everything centred before it is scaled,
///     y[n, c] = gamma * a * (mean[n, c] - mean[c]) / sqrt(a^2 var[c] + eps) + beta.
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
  using block_sum = cub::BlockReduce<double, Threads>;
  __shared__ typename block_sum::TempStorage sum_scratch;
  __shared__ double shared_mean;
  __shared__ double shared_factor;
  const int thread = static_cast<int>(threadIdx.x);
  // Means that are found here rest on sums of kernels before the predecessor, which had waited for them when it let this one start.
  statistics.find_means(blockIdx.x);
  runtime::grid_dependency_wait();

  for (int64_t c = blockIdx.x; c < channels; c += gridDim.x)
  {
    if (c != blockIdx.x)
    {
      statistics.find_means(c);
    }
    double sum = 0;
    for (int64_t n = thread; n < batch; n += Threads)
    {
      sum += means[n * channels + c];
    }
    // The order of the trees is fixed.
    sum = block_sum(sum_scratch).Sum(sum);
    if (thread == 0)
    {
      shared_mean = sum / static_cast<double>(batch);
    }
    __syncthreads();
    const double mean           = shared_mean;
    const moments<double> total = statistics.template reduce<Threads>(c, mean);
    if (thread == 0)
    {
      const coordinate at   = {0, c};
      const double slope    = chain_slope(before, at);
      const double biased   = slope * slope * total.biased_variance();
      const double unbiased = slope * slope * total.unbiased_variance();
      const double gamma    = arguments.gamma != nullptr ? static_cast<double>(arguments.gamma[c]) : 1.0;
      shared_factor         = slope * batch_norm_slope(biased, static_cast<double>(arguments.eps), gamma);
      update_running_statistics(arguments, c, apply_to_mean(before, mean, at), unbiased);
    }
    __syncthreads();
    const double beta = arguments.beta != nullptr ? static_cast<double>(arguments.beta[c]) : 0.0;
    for (int64_t n = thread; n < batch; n += Threads)
    {
      y[n * y_stride + c] =
        from_float<Out>(static_cast<float>(shared_factor * (means[n * channels + c] - mean) + beta));
    }
    __syncthreads();
  }
}

/// What normalises each channel behind \p before in train mode, and the running statistics; a channel per block.
///
/// \p statistics: of the convolution's outputs. With a = slope of before: centres[c] = before(mean[c]) and slopes[c] = gamma /
/// sqrt(a^2 var[c] + eps).
template <int Threads, class Chain>
__global__ __launch_bounds__(Threads) void batch_norm_statistics(const __grid_constant__ partial_moments statistics,
                                                                 float* centres,
                                                                 float* slopes,
                                                                 int64_t channels,
                                                                 const __grid_constant__ Chain before,
                                                                 const batch_norm_arguments arguments)
{
  using block_merge = cub::BlockReduce<moments<double>, Threads>;
  __shared__ typename block_merge::TempStorage scratch;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  for (int64_t c = blockIdx.x; c < channels; c += gridDim.x)
  {
    // The order of the tree is fixed.
    const moments<double> total = block_merge(scratch).Reduce(
      statistics.moments_of(c, static_cast<int>(threadIdx.x), Threads),
      [](moments<double> a, const moments<double>& b) {
        a.merge(b);
        return a;
      });
    if (threadIdx.x == 0)
    {
      const coordinate at = {0, c};
      const double slope  = chain_slope(before, at);
      const double mean   = apply_to_mean(before, total.mean, at);
      const double gamma  = arguments.gamma != nullptr ? static_cast<double>(arguments.gamma[c]) : 1.0;
      centres[c]          = static_cast<float>(mean);
      slopes[c]           = static_cast<float>(
        batch_norm_slope(slope * slope * total.biased_variance(), static_cast<double>(arguments.eps), gamma));
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
