// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A transposed convolution with an average pool behind it as one with fewer taps. Host only.

#include "../shape.hpp"
#include "../thread/pool.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// What becomes of a convolution and the average pool behind it: a convolution of window sums, and the pool that remains.
struct average_pool_fold
{
  /// Of the convolution whose outputs are sums over windows. Its output_padding may be any number, also negative: that is how
  /// each end of an axis is cropped on its own.
  conv_transpose_shape<3> shape;
  int64_t size[3] = {1, 1, 1}; ///< of the windows that it sums
  int64_t step[3] = {1, 1, 1}; ///< between them
  bool folded[3]  = {};        ///< the axis has summed taps; else its own
  pool_window rest;            ///< of its outputs; still a mean

  /// At least one axis has summed taps.
  bool any() const { return folded[0] || folded[1] || folded[2]; }
  /// No pool remains.
  bool whole() const { return rest.volume() == 1 && rest.positions() == rest.input_positions(); }
  /// Sums to means.
  double factor() const { return 1.0 / static_cast<double>(size[0] * size[1] * size[2]); }
};

/// Folds the windows \p size, \p step of one axis into its taps where that leaves no more of them, and all of them have one of \p axis
/// (a tap without would carry a NaN of x times 0).
constexpr bool folds(const conv_axis& axis, int64_t size, int64_t step)
{
  return axis.stride % step == 0 && size >= axis.dilation && axis.pooled(size, step).kernel <= axis.kernel;
}

/// Folds as much of \p window, an average pool of the outputs of the canonical \p shape, as there is: per axis all of it where its
/// step divides the stride; else, with g the greatest common divisor of both, sums of g neighbours, where windows consist of
/// those.
inline average_pool_fold fold_average_pool(const conv_transpose_shape<3>& shape, const pool_window& window)
{
  average_pool_fold result;
  result.shape = shape;
  result.rest  = window;
  for (int a = 0; a < 3; ++a)
  {
    const auto i         = static_cast<std::size_t>(a);
    const conv_axis axis = shape.axis(a);
    const int64_t step   = gcd(axis.stride, window.step[a]);
    const bool all       = step == window.step[a];
    const int64_t size   = all ? window.size[a] : step;
    if (size * step == 1 || window.size[a] % size != 0 || !folds(axis, size, step))
    {
      continue;
    }
    const conv_axis pooled         = axis.pooled(size, step);
    result.folded[a]               = true;
    result.size[a]                 = size;
    result.step[a]                 = step;
    result.shape.kernel[i]         = pooled.kernel;
    result.shape.stride[i]         = pooled.stride;
    result.shape.padding[i]        = pooled.padding;
    result.shape.dilation[i]       = 1;
    result.shape.output_padding[i] = 0;
    result.shape.output_padding[i] = pooled.out - result.shape.output(a);
    result.rest.in[a]              = pooled.out;
    result.rest.size[a]            = window.size[a] / size;
    result.rest.step[a]            = window.step[a] / step;
  }
  return result;
}

} // namespace detail

TCONV_NAMESPACE_END
