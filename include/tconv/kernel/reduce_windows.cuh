// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Large windows of a stored tensor to partial totals, for pools with too few outputs to give each a thread.

#include "../block/tensor_view.cuh"
#include "../detail/launch.cuh"
#include "../tuning/reduce.hpp"

#include <cub/block/block_reduce.cuh>

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// \p partials [batch][channels][outputs][slices]: a block takes a slice of a window. The order of everything is fixed; within a
/// thread chunks are taken in fp32, everything beyond in fp64.
template <class Policy, pool_operation Operation, class In>
__global__ __launch_bounds__(Policy::threads) void reduce_windows(const block::tensor_view<const In> x,
                                                                  const __grid_constant__ pool_window window,
                                                                  int64_t batch,
                                                                  int64_t channels,
                                                                  int64_t slices,
                                                                  double* partials)
{
  using reduction       = block::window_reduction<Operation>;
  using block_reduce    = cub::BlockReduce<double, Policy::threads>;
  constexpr int threads = Policy::threads;
  constexpr int chunk   = Policy::chunk;
  __shared__ typename block_reduce::TempStorage scratch;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  const int64_t outputs = window.positions();
  const bool one_row    = window.size[0] * window.size[1] == 1;
  for (int64_t item = blockIdx.x; item < batch * channels * outputs * slices; item += gridDim.x)
  {
    const int64_t slice  = item % slices;
    const int64_t number = item / slices;
    const int64_t o      = number % outputs;
    const int64_t c      = number / outputs % channels;
    const int64_t n      = number / outputs / channels;
    const int64_t line   = o / window.out[2];
    const int64_t first =
      ((line / window.out[1] * window.step[0]) * window.in[1] + line % window.out[1] * window.step[1]) * window.in[2]
      + o % window.out[2] * window.step[2];
    const In* at       = x.at(n, c, first);
    const auto element = [&](int64_t e) {
      if (!one_row)
      {
        const int64_t row = e / window.size[2];
        e = (row / window.size[1] * window.in[1] + row % window.size[1]) * window.in[2] + e % window.size[2];
      }
      return to_float(__ldcs(at + e * x.strides.position));
    };
    const int64_t begin = window.volume() * slice / slices;
    const int64_t end   = window.volume() * (slice + 1) / slices;
    double total        = static_cast<double>(reduction::zero());
    int64_t e           = begin + static_cast<int>(threadIdx.x);
    for (; e + (chunk - 1) * threads < end; e += chunk * threads)
    {
      float values[chunk];
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < chunk; ++i)
      {
        values[i] = element(e + i * threads);
      }
      float sum = reduction::zero();
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < chunk; ++i)
      {
        sum = reduction{}(sum, values[i]);
      }
      total = reduction{}(total, static_cast<double>(sum));
    }
    for (; e < end; e += threads)
    {
      total = reduction{}(total, static_cast<double>(element(e)));
    }
    total = block_reduce(scratch).Reduce(total, reduction{});
    if (threadIdx.x == 0)
    {
      partials[item] = total;
    }
    __syncthreads();
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
