// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// What a convolution needs whose outputs are averaged: taps summed over windows, and inputs summed along an axis.

#include "../detail/fold_average_pool.hpp"
#include "../detail/launch.cuh"
#include "../layout.hpp"
#include "../taps.hpp"
#include "../thread/element.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

/// Which taps are summed: those of an axis that land in one window, or that one class of inputs of the collapsed axis has.
struct tap_windows
{
  conv_axis axis[3];
  int64_t kernel[3]     = {1, 1, 1}; ///< summed taps per axis
  int64_t size[3]       = {1, 1, 1};
  int64_t step[3]       = {1, 1, 1};
  bool folded[3]        = {}; ///< else the taps of the axis stay as they are
  int64_t in_channels   = 1;
  int64_t out_per_group = 1;
  int collapsed         = -1; ///< axis, or none
  int64_t classes       = 1;
  double factor         = 1.0; ///< of the sums
  index_range class_taps[detail::average_pool_fold::most_classes];

  /// Those of \p shape that \p fold sums.
  static tap_windows of(const conv_transpose_shape<3>& shape, const detail::average_pool_fold& fold)
  {
    tap_windows windows;
    for (int a = 0; a < 3; ++a)
    {
      windows.axis[a]   = shape.axis(a);
      windows.kernel[a] = fold.shape.kernel[static_cast<std::size_t>(a)];
      windows.size[a]   = fold.size[a];
      windows.step[a]   = fold.step[a];
      windows.folded[a] = fold.folded[a];
    }
    windows.in_channels   = shape.in_channels;
    windows.out_per_group = shape.out_channels / shape.groups;
    windows.collapsed     = fold.collapsed;
    windows.classes       = fold.classes;
    for (int i = 0; i < fold.classes; ++i)
    {
      windows.class_taps[i] = fold.table[i].taps;
    }
    return windows;
  }

  /// The taps that become tap \p u of axis \p a for class \p number.
  TCONV_HOST_DEVICE index_range taps(int a, int64_t u, int64_t number) const
  {
    if (a == collapsed)
    {
      return class_taps[number];
    }
    return folded[a] ? axis[a].pooled_taps(size[a], step[a], u) : index_range{u, u + 1};
  }
  /// Sums of all rows.
  TCONV_HOST_DEVICE int64_t sums() const
  {
    return in_channels * classes * out_per_group * kernel[0] * kernel[1] * kernel[2];
  }
};

/// Classes of inputs along one axis of a tensor [batch, channels, outer, extent, inner].
struct axis_classes
{
  tensor_strides x;
  int64_t batch    = 0;
  int64_t channels = 1;
  int64_t outer    = 1;
  int64_t extent   = 1;
  int64_t inner    = 1;
  int classes      = 1;
  index_range inputs[detail::average_pool_fold::most_classes];
};

namespace kernel
{

/// folded [in_channels][class][out_channels / groups][summed tap], times windows.factor, in fp64, rounded once.
template <int Threads, class In>
__global__
__launch_bounds__(Threads) void sum_tap_windows(const __grid_constant__ tap_windows windows, const In* w, float* folded)
{
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int64_t plane = windows.kernel[1] * windows.kernel[2];
  const int64_t taps  = windows.kernel[0] * plane;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * Threads + threadIdx.x; i < windows.sums();
       i += static_cast<int64_t>(gridDim.x) * Threads)
  {
    const int64_t co        = i / taps % windows.out_per_group;
    const int64_t number    = i / taps / windows.out_per_group % windows.classes;
    const int64_t ci        = i / taps / windows.out_per_group / windows.classes;
    const index_range d     = windows.taps(0, i / plane % windows.kernel[0], number);
    const index_range h     = windows.taps(1, i / windows.kernel[2] % windows.kernel[1], number);
    const index_range along = windows.taps(2, i % windows.kernel[2], number);
    const int64_t row       = ci * windows.out_per_group + co;
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
    folded[i] = static_cast<float>(sum * windows.factor);
  }
}

/// sums [batch][channels][class][outer][inner]: fp32 over Loads values, fp64 beyond, rounded once. A thread takes Width neighbours
/// along inner, which are one vector where Width > 1.
template <class Policy, int Width, class In>
__global__ __launch_bounds__(Policy::axis_threads) void sum_along_axis(const __grid_constant__ axis_classes problem,
                                                                       const In* x,
                                                                       float* sums)
{
  constexpr int loads = Policy::axis_loads;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int64_t groups = problem.inner / Width;
  const int64_t rows   = problem.outer * groups;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * Policy::axis_threads + threadIdx.x;
       item < problem.batch * problem.channels * rows;
       item += static_cast<int64_t>(gridDim.x) * Policy::axis_threads)
  {
    const int64_t channel = item / rows;
    const int64_t row     = item - channel * rows;
    const int64_t o       = row / groups;
    const int64_t i       = (row - o * groups) * Width;
    const int64_t n       = channel / problem.channels;
    const In* column      = x + n * problem.x.sample + (channel - n * problem.channels) * problem.x.channel
                     + (o * problem.extent * problem.inner + i) * problem.x.position;
    const int64_t pitch = problem.inner * problem.x.position;
    for (int k = 0; k < problem.classes; ++k)
    {
      double total[Width] = {};
      for (int64_t e = problem.inputs[k].begin; e < problem.inputs[k].end; e += loads)
      {
        element_vector<In, Width> v[loads] = {};
        TCONV_PRAGMA_UNROLL
        for (int j = 0; j < loads; ++j)
        {
          if (e + j < problem.inputs[k].end)
          {
            v[j].load_streaming(column + (e + j) * pitch);
          }
        }
        TCONV_PRAGMA_UNROLL
        for (int c = 0; c < Width; ++c)
        {
          float partial = 0.0f;
          TCONV_PRAGMA_UNROLL
          for (int j = 0; j < loads; ++j)
          {
            partial += to_float(v[j].values[c]);
          }
          total[c] += static_cast<double>(partial);
        }
      }
      float* target = sums + ((channel * problem.classes + k) * problem.outer + o) * problem.inner + i;
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < Width; ++c)
      {
        target[c] = static_cast<float>(total[c]);
      }
    }
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
