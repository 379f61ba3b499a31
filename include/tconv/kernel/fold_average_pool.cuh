// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Taps summed over the windows of an average pool.

#include "../detail/launch.cuh"
#include "../taps.hpp"
#include "../thread/element.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

/// Which taps are summed: those of the convolution, and windows of its outputs.
struct tap_windows
{
  conv_axis axis[3];
  int64_t kernel[3] = {1, 1, 1}; ///< summed taps per axis
  int64_t size[3]   = {1, 1, 1};
  int64_t step[3]   = {1, 1, 1};
  bool folded[3]    = {}; ///< else the taps of the axis stay as they are

  /// The taps that become tap \p u of axis \p a.
  TCONV_HOST_DEVICE index_range taps(int a, int64_t u) const
  {
    return folded[a] ? axis[a].pooled_taps(size[a], step[a], u) : index_range{u, u + 1};
  }
};

namespace kernel
{

/// folded[row][summed tap] = scale * sum of the taps of w[row], in fp64, rounded once. A row is a pair of channels.
template <int Threads, class In, class Out>
__global__ __launch_bounds__(Threads) void fold_average_pool(
  const __grid_constant__ tap_windows windows, const In* w, Out* folded, int64_t rows, double scale)
{
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int64_t plane = windows.kernel[1] * windows.kernel[2];
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * Threads + threadIdx.x; i < rows * windows.kernel[0] * plane;
       i += static_cast<int64_t>(gridDim.x) * Threads)
  {
    const int64_t row       = i / plane / windows.kernel[0];
    const index_range d     = windows.taps(0, i / plane % windows.kernel[0]);
    const index_range h     = windows.taps(1, i / windows.kernel[2] % windows.kernel[1]);
    const index_range along = windows.taps(2, i % windows.kernel[2]);
    double sum              = 0;
    for (int64_t td = d.begin; td < d.end; ++td)
    {
      for (int64_t th = h.begin; th < h.end; ++th)
      {
        const In* line = w
                       + ((row * windows.axis[0].kernel + td) * windows.axis[1].kernel + th) * windows.axis[2].kernel;
        for (int64_t tw = along.begin; tw < along.end; ++tw)
        {
          sum += static_cast<double>(to_float(line[tw]));
        }
      }
    }
    folded[i] = from_float<Out>(static_cast<float>(scale * sum));
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
