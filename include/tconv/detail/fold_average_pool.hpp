// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A transposed convolution with an average pool behind it as one with fewer taps. Host only.

#include "../shape.hpp"
#include "../status.hpp"
#include "../thread/pool.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// What becomes of a convolution and the average pool behind it: a convolution of window sums, and the pool that remains.
struct average_pool_fold
{
  static constexpr int most_classes = 8; ///< of a collapsed axis

  /// Of the convolution whose outputs are sums over windows. Its output_padding may be any number, also negative: that is how
  /// each end of an axis is cropped on its own.
  conv_transpose_shape<3> shape;
  int64_t size[3] = {1, 1, 1}; ///< of the windows that it sums
  int64_t step[3] = {1, 1, 1}; ///< between them
  bool folded[3]  = {};        ///< the axis has summed taps; else its own
  /// The axis that one window covers, if any: its inputs are summed class by class beforehand, so that the convolution has none, and
  /// classes times as many input channels.
  int collapsed = -1;
  int classes   = 1;
  tap_class table[most_classes]; ///< the classes, without those that land nowhere
  pool_window rest;              ///< of its outputs; still a mean

  /// At least one axis has summed taps.
  bool any() const { return folded[0] || folded[1] || folded[2] || collapsed >= 0; }
  /// No pool remains.
  bool whole() const { return rest.volume() == 1 && rest.positions() == rest.input_positions(); }
  /// Sums to means.
  double factor() const
  {
    return 1.0 / (static_cast<double>(size[0]) * static_cast<double>(size[1]) * static_cast<double>(size[2]));
  }
};

/// Collapses axis \p a, all of whose outputs are summed; false where it has too many classes.
inline bool collapse_axis(average_pool_fold& fold, int a)
{
  const auto i         = static_cast<std::size_t>(a);
  const conv_axis axis = fold.shape.axis(a);
  int classes          = 0;
  for (int64_t first = 0; first < axis.in;)
  {
    const tap_class c = axis.class_from(first);
    first             = c.inputs.end;
    if (c.taps.empty())
    {
      continue;
    }
    if (classes == average_pool_fold::most_classes)
    {
      return false;
    }
    fold.table[classes++] = c;
  }
  if (classes == 0)
  {
    return false;
  }
  fold.collapsed               = a;
  fold.classes                 = classes;
  fold.size[a]                 = axis.out;
  fold.shape.in_channels       = fold.shape.in_channels * classes;
  fold.shape.input_slice       = {};
  fold.shape.input[i]          = 1;
  fold.shape.kernel[i]         = 1;
  fold.shape.stride[i]         = 1;
  fold.shape.padding[i]        = 0;
  fold.shape.dilation[i]       = 1;
  fold.shape.output_padding[i] = 0;
  fold.rest.in[a] = fold.rest.size[a] = fold.rest.step[a] = 1;
  return true;
}

/// Folds the window of axis \p a: all of it where its step divides the stride; else, with g the greatest common divisor of both, sums
/// of g neighbours, where windows consist of those. Only where that leaves no more taps, and each is the sum of at least one (one
/// without would carry a NaN of x times 0).
inline void fold_axis(average_pool_fold& fold, const pool_window& window, int a)
{
  const auto i         = static_cast<std::size_t>(a);
  const conv_axis axis = fold.shape.axis(a);
  const int64_t step   = gcd(axis.stride, window.step[a]);
  const int64_t size   = step == window.step[a] ? window.size[a] : step;
  if (size * step == 1 || window.size[a] % size != 0 || size < axis.dilation)
  {
    return;
  }
  const conv_axis pooled = axis.pooled(size, step);
  if (pooled.kernel > axis.kernel || pooled.kernel < 1) // none: no window meets a tap
  {
    return;
  }
  fold.folded[a]               = true;
  fold.size[a]                 = size;
  fold.step[a]                 = step;
  fold.shape.kernel[i]         = pooled.kernel;
  fold.shape.stride[i]         = pooled.stride;
  fold.shape.padding[i]        = pooled.padding;
  fold.shape.dilation[i]       = 1;
  fold.shape.output_padding[i] = 0;
  fold.shape.output_padding[i] = pooled.out - fold.shape.output(a);
  fold.rest.in[a]              = pooled.out;
  fold.rest.size[a]            = window.size[a] / size;
  fold.rest.step[a]            = window.step[a] / step;
}

/// Folds as much of \p window, an average pool of the outputs of the canonical \p shape, as there is.
inline average_pool_fold fold_average_pool(const conv_transpose_shape<3>& shape, const pool_window& window)
{
  average_pool_fold fold;
  fold.shape = shape;
  fold.rest  = window;
  for (int a = 0; a < 3; ++a)
  {
    const bool covered = window.size[a] == window.in[a] && window.in[a] > 1;
    if (!covered || fold.collapsed >= 0 || !collapse_axis(fold, a))
    {
      fold_axis(fold, window, a);
    }
  }
  return fold;
}

/// Folds all of \p window without touching inputs, into a convolution that a caller may have as well; not_supported, naming an axis of
/// \p rank, where a pool remains or the convolution crops its ends in a way of its own.
[[nodiscard]] inline status fold_whole_average_pool(const conv_transpose_shape<3>& shape,
                                                    const pool_window& window,
                                                    int rank,
                                                    average_pool_fold& fold)
{
  fold       = {};
  fold.shape = shape;
  fold.rest  = window;
  for (int a = 0; a < 3; ++a)
  {
    fold_axis(fold, window, a);
    const auto i     = static_cast<std::size_t>(a);
    const char* name = axis_name(rank, a - (3 - rank));
    if (fold.rest.size[a] != 1 || fold.rest.step[a] != 1)
    {
      return status::error(
        status_code::not_supported,
        "pool: windows of %lld in steps of %lld along %s do not fold: the step must divide the stride = %lld, the "
        "size be >= the dilation = %lld, and no tap be added",
        static_cast<long long>(window.size[a]),
        static_cast<long long>(window.step[a]),
        name,
        static_cast<long long>(shape.stride[i]),
        static_cast<long long>(shape.dilation[i]));
    }
    const int64_t more = fold.shape.output_padding[i];
    if (more < 0 || (more > 0 && more >= fold.shape.stride[i]))
    {
      return status::error(
        status_code::not_supported,
        "pool: along %s the folded convolution needs output_padding = %lld with stride = %lld, which is no "
        "conv_transpose_shape; conv_transpose() with average_pool in its chain takes it",
        name,
        static_cast<long long>(more),
        static_cast<long long>(fold.shape.stride[i]));
    }
  }
  return {};
}

} // namespace detail

TCONV_NAMESPACE_END
