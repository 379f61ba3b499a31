// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A transposed convolution with an average pool behind it, whose windows are multiples of the stride apart, as a
/// correlation.
///
/// With step = m * stride, output o = i * stride - padding + t * dilation lies in window j, [j * step, j * step + size),
/// where 0 <= v * stride - padding + t * dilation < size for v = i - m j. So
///
///     sum over window j = sum over v of W[v] x[m j + v],
///     W[v] = sum of w[t] over the t with 0 <= v * stride - padding + t * dilation < size.
///
/// Windows of 4 behind k3 s2 p1: three taps v, m = 2, and nothing of what is pooled is ever formed.

#include "../layout.hpp"
#include "../shape.hpp"
#include "../thread/pool.hpp"
#include "../tuning/pooled_correlation.hpp"

TCONV_NAMESPACE_BEGIN

/// One axis: y[j] = sum over v < taps of W[v] x[step * j + first + v], for inputs that exist.
struct correlation_axis
{
  int in    = 1;
  int out   = 1;
  int step  = 1;
  int first = 0;
  int taps  = 1;

  /// No output reaches beyond the input.
  TCONV_HOST_DEVICE bool inside() const { return first >= 0 && step * (out - 1) + first + taps <= in; }
};

/// What the kernels need besides pointers.
struct correlation_problem
{
  correlation_axis axis[3];
  conv_axis conv[3];             ///< of the convolution
  int64_t window[3] = {1, 1, 1}; ///< sizes
  double factor     = 1.0;       ///< 1 / values of a window
  tensor_strides x;
  int64_t batch        = 0;
  int64_t in_channels  = 1;
  int64_t out_channels = 1;

  TCONV_HOST_DEVICE int taps() const { return axis[0].taps * axis[1].taps * axis[2].taps; }
  /// Products of an output.
  TCONV_HOST_DEVICE int products() const { return static_cast<int>(in_channels) * taps(); }
  TCONV_HOST_DEVICE int positions() const { return axis[0].out * axis[1].out * axis[2].out; }
  TCONV_HOST_DEVICE int64_t channel_tiles() const
  {
    return ceil_div(out_channels, tuning::pooled_correlation_policy::channels);
  }
  /// Packed weights: [channel tile][product][channel of the tile].
  TCONV_HOST_DEVICE int64_t weights() const
  {
    return channel_tiles() * products() * tuning::pooled_correlation_policy::channels;
  }
  TCONV_HOST_DEVICE bool inside() const { return axis[0].inside() && axis[1].inside() && axis[2].inside(); }
  /// Taps of the convolution that are summed to tap \p v of axis \p a.
  TCONV_HOST_DEVICE index_range summed_taps(int a, int v) const
  {
    const conv_axis& c   = conv[a];
    const int64_t origin = c.padding - (axis[a].first + v) * c.stride;
    return clip(ceil_div(origin, c.dilation), ceil_div(origin + window[a], c.dilation), c.kernel);
  }
};

namespace detail
{

/// The windows of two average pools in a row as those of one, where those of the \p first lie side by side; false where
/// they do not.
inline bool merge_windows(const pool_window& first, const pool_window& second, pool_window& merged)
{
  for (int a = 0; a < 3; ++a)
  {
    if (first.step[a] != first.size[a])
    {
      return false;
    }
    merged.in[a]   = first.in[a];
    merged.out[a]  = second.out[a];
    merged.size[a] = first.size[a] * second.size[a];
    merged.step[a] = first.size[a] * second.step[a];
  }
  return true;
}

/// The correlation of the canonical \p shape, with x in \p order, averaged over \p window; false where there is none
/// with few products.
inline bool plan_pooled_correlation(const conv_transpose_shape<3>& shape,
                                    const pool_window& window,
                                    layout order,
                                    correlation_problem& problem)
{
  using policy = tuning::pooled_correlation_policy;
  if (shape.groups != 1 || shape.input_elements() / shape.batch > (int64_t{1} << 30)
      || window.positions() > (int64_t{1} << 30))
  {
    return false;
  }
  problem.x            = tensor_strides::of(order, shape.input_slice.total(shape.in_channels), shape.input_positions());
  problem.batch        = shape.batch;
  problem.in_channels  = shape.in_channels;
  problem.out_channels = shape.out_channels;
  problem.factor       = 1.0 / static_cast<double>(window.volume());
  if (problem.x.sample > 0x7fffffff)
  {
    return false;
  }
  int64_t products = shape.in_channels;
  for (int a = 0; a < 3; ++a)
  {
    const conv_axis axis = shape.axis(a);
    // Where there is one window, steps do not matter.
    const int64_t step = window.out[a] == 1 ? axis.stride : window.step[a];
    if (step % axis.stride != 0)
    {
      return false;
    }
    const int64_t first = ceil_div(axis.padding - (axis.kernel - 1) * axis.dilation, axis.stride);
    const int64_t last  = floor_div(window.size[a] - 1 + axis.padding, axis.stride);
    if (last < first || last - first >= policy::most_taps)
    {
      return false;
    }
    problem.conv[a]   = axis;
    problem.window[a] = window.size[a];
    problem.axis[a]   = {static_cast<int>(axis.in),
                         static_cast<int>(window.out[a]),
                         static_cast<int>(step / axis.stride),
                         static_cast<int>(first),
                         static_cast<int>(last - first + 1)};
    for (int v = 0; v < problem.axis[a].taps; ++v)
    {
      if (problem.summed_taps(a, v).empty()) // its weight 0 would carry a NaN of x
      {
        return false;
      }
    }
    products *= last - first + 1;
  }
  return products <= policy::most_products;
}

} // namespace detail

TCONV_NAMESPACE_END
