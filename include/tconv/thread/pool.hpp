// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Functors across the positions of a channel: window pools and reductions over some or all spatial axes. As torch.nn.MaxPool*d,
/// AvgPool*d without padding, and as amax, sum and mean with keepdim = True. NaN in a window makes its result NaN.
///
/// A chain may hold several of them, anywhere. What follows one sees the pooled tensor: positions, and the operands of add_tensor
/// and the like, are numbered there.
///
///     chain(bias(b), max_pool(2), spatial_mean(), sigmoid())
///     chain(max_pool({1, 2, 2}), spatial_sum({1}))               // windows per axis; sum over the second axis (H of D, H, W)

#include "../detail/meta.hpp"

TCONV_NAMESPACE_BEGIN

/// What becomes of the values of a window.
enum class pool_operation : int
{
  maximum = 0,
  sum     = 1,
  mean    = 2
};

/// The windows of a pool along canonical axes (three, slowest first): output o takes the inputs o * step ... o * step + size - 1.
struct pool_window
{
  int64_t in[3]   = {1, 1, 1}; ///< extents of the input
  int64_t out[3]  = {1, 1, 1}; ///< extents of the output
  int64_t size[3] = {1, 1, 1}; ///< of a window
  int64_t step[3] = {1, 1, 1}; ///< between windows

  /// Values of the input.
  TCONV_HOST_DEVICE int64_t input_positions() const { return in[0] * in[1] * in[2]; }
  /// Windows.
  TCONV_HOST_DEVICE int64_t positions() const { return out[0] * out[1] * out[2]; }
  /// Values of a window.
  TCONV_HOST_DEVICE int64_t volume() const { return size[0] * size[1] * size[2]; }
};

/// A functor that takes each window of a channel to one value.
template <pool_operation Operation>
class spatial_pool
{
public:
  static constexpr bool across_positions    = true;      ///< see thread/chain.hpp
  static constexpr pool_operation operation = Operation; ///< what becomes of a window

  /// How the windows were given: the same along every axis, one per axis, or whole axes.
  enum class given : int
  {
    same,     ///< size[0], step[0] along every axis
    per_axis, ///< one size and step per axis
    axes      ///< all of some axes, or of all where none is named
  };
  given form      = given::same; ///< how size and step are meant
  int count       = 0;           ///< windows or axes given
  int64_t size[3] = {0, 0, 0};   ///< of the windows; or the axes, slowest first from 0
  int64_t step[3] = {0, 0, 0};   ///< between windows

protected:
  /// The same along every axis.
  TCONV_HOST_DEVICE spatial_pool(int64_t window_size, int64_t window_step)
      : size{window_size, window_size, window_size}
      , step{window_step, window_step, window_step}
  {}
  /// As \p how says.
  template <int Count>
  TCONV_HOST_DEVICE spatial_pool(given how, const int64_t (&sizes)[Count], const int64_t (&steps)[Count])
      : form(how)
      , count(Count)
  {
    static_assert(Count >= 1 && Count <= 3, "tconv: a tensor has 1, 2 or 3 spatial axes");
    for (int i = 0; i < Count; ++i)
    {
      size[i] = sizes[i];
      step[i] = steps[i];
    }
  }
};

namespace detail
{

/// Windows along the axes of a tensor, trailing partial ones dropped.
template <pool_operation Operation>
class window_pool : public spatial_pool<Operation>
{
  using base = spatial_pool<Operation>;

public:
  /// Windows of \p window_size >= 1 along every axis, side by side. (A template, so that {3} is a list of one axis.)
  template <class Integer, detail::meta::enable_if_t<detail::meta::is_integral<Integer>::value, int> = 0>
  TCONV_HOST_DEVICE explicit window_pool(Integer window_size)
      : base(static_cast<int64_t>(window_size), static_cast<int64_t>(window_size))
  {}
  /// One size per axis, slowest first, side by side.
  template <int Rank>
  TCONV_HOST_DEVICE explicit window_pool(const int64_t (&sizes)[Rank]) : base(base::given::per_axis, sizes, sizes)
  {}
  /// One size and one step >= 1 per axis, slowest first; windows overlap where the step is smaller.
  template <int Rank>
  TCONV_HOST_DEVICE window_pool(const int64_t (&sizes)[Rank], const int64_t (&steps)[Rank])
      : base(base::given::per_axis, sizes, steps)
  {}
};

/// A reduction over all values along some axes, whose extents become 1.
template <pool_operation Operation>
class axes_pool : public spatial_pool<Operation>
{
  using base = spatial_pool<Operation>;

public:
  /// Over all spatial axes.
  TCONV_HOST_DEVICE axes_pool() : base(0, 1) { this->form = base::given::axes; }
  /// Over the given ones, each once: 0 is the slowest spatial axis.
  template <int Count>
  TCONV_HOST_DEVICE explicit axes_pool(const int64_t (&axes)[Count]) : base(base::given::axes, axes, axes)
  {}
};

} // namespace detail

/// The largest value of each window.
struct max_pool : detail::window_pool<pool_operation::maximum>
{
  using detail::window_pool<pool_operation::maximum>::window_pool;
};

/// The mean of each window.
struct average_pool : detail::window_pool<pool_operation::mean>
{
  using detail::window_pool<pool_operation::mean>::window_pool;
};

/// The largest value along spatial axes.
struct spatial_max : detail::axes_pool<pool_operation::maximum>
{
  using detail::axes_pool<pool_operation::maximum>::axes_pool;
};

/// The sum along spatial axes.
struct spatial_sum : detail::axes_pool<pool_operation::sum>
{
  using detail::axes_pool<pool_operation::sum>::axes_pool;
};

/// The mean along spatial axes.
struct spatial_mean : detail::axes_pool<pool_operation::mean>
{
  using detail::axes_pool<pool_operation::mean>::axes_pool;
};

TCONV_NAMESPACE_END
