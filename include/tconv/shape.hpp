// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The shape of a transposed convolution, with PyTorch's semantics and rules, and its validation.
///
/// Per axis: out = (in - 1)*stride - 2*padding + dilation*(kernel - 1) + output_padding + 1. Host only; needs no CUDA.

#include "status.hpp"
#include "taps.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

TCONV_NAMESPACE_BEGIN

namespace detail
{

template <std::size_t N>
constexpr std::array<int64_t, N> filled(int64_t value)
{
  std::array<int64_t, N> result{};
  for (std::size_t i = 0; i < N; ++i)
  {
    result[i] = value;
  }
  return result;
}

/// Multiplies \p total (>= 0) by \p factor (>= 0); false where the product does not fit 63 bits.
constexpr bool multiply_checked(int64_t& total, int64_t factor)
{
  if (factor != 0 && total > std::numeric_limits<int64_t>::max() / factor)
  {
    return false;
  }
  total *= factor;
  return true;
}

/// Adds \p term (>= 0) to \p total (>= 0); false where the sum does not fit 63 bits.
constexpr bool add_checked(int64_t& total, int64_t term)
{
  if (total > std::numeric_limits<int64_t>::max() - term)
  {
    return false;
  }
  total += term;
  return true;
}

/// "w", "h, w" or "d, h, w": the name of axis \p axis of \p rank, as error messages use it.
constexpr const char* axis_name(int rank, int axis)
{
  constexpr const char* names[3] = {"d", "h", "w"};
  return names[axis + 3 - rank];
}

} // namespace detail

/// A tensor that is a slice of the channels of a wider one, as the halves of a U-Net concatenation are.
///
/// Pointers are those of the wider tensor, which is packed: [batch, tensor_channels, positions...] or, channels last, [batch,
/// positions..., tensor_channels].
struct channel_slice
{
  int64_t tensor_channels = 0; ///< channels of the wider tensor; 0: none, the tensor has exactly the slice's channels
  int64_t first_channel   = 0; ///< >= 0; first_channel + channels of the slice <= tensor_channels

  /// Channels of the tensor that holds a slice of \p channels channels.
  constexpr int64_t total(int64_t channels) const { return tensor_channels == 0 ? channels : tensor_channels; }
};

/// Shape of a transposed convolution over \p Rank spatial axes (1, 2 or 3), slowest axis first: {w}, {h, w} or {d, h, w}.
///
/// Tensors: x [batch, in_channels, input...], w [in_channels, out_channels / groups, kernel...], y [batch, out_channels,
/// output...], all packed; channels last (see options) x [batch, input..., in_channels] and y [batch, output..., out_channels].
/// x and y may be channel slices of wider tensors. Every field is checked by validate(), which each launcher calls before
/// anything else.
template <int Rank>
struct conv_transpose_shape
{
  static_assert(Rank >= 1 && Rank <= 3, "tconv: a transposed convolution has 1, 2 or 3 spatial axes");

  /// Number of spatial axes.
  static constexpr int rank = Rank;
  /// One value per spatial axis.
  using extents = std::array<int64_t, Rank>;

  int64_t batch        = 1;   ///< >= 0; 0 is legal and does nothing
  int64_t in_channels  = 1;   ///< >= 1, divisible by groups
  int64_t out_channels = 1;   ///< >= 1, divisible by groups
  int64_t groups       = 1;   ///< >= 1
  channel_slice input_slice;  ///< where x stands in a wider tensor
  channel_slice output_slice; ///< where y stands in a wider tensor
  // Every field of an axis is at most 2^60.
  extents input          = detail::filled<Rank>(1); ///< >= 1
  extents kernel         = detail::filled<Rank>(1); ///< >= 1
  extents stride         = detail::filled<Rank>(1); ///< >= 1
  extents padding        = detail::filled<Rank>(0); ///< >= 0
  extents output_padding = detail::filled<Rank>(0); ///< >= 0 and < max(stride, dilation)
  extents dilation       = detail::filled<Rank>(1); ///< >= 1

  /// Output extent of axis \p axis by the formula above; meaningful after validate(). Never negative then.
  constexpr int64_t output(int axis) const
  {
    const auto a = static_cast<std::size_t>(axis);
    return (input[a] - 1) * stride[a] - 2 * padding[a] + dilation[a] * (kernel[a] - 1) + output_padding[a] + 1;
  }

  /// All output extents.
  constexpr extents output() const
  {
    extents result{};
    for (int a = 0; a < Rank; ++a)
    {
      result[static_cast<std::size_t>(a)] = output(a);
    }
    return result;
  }

  /// One axis as the tap arithmetic sees it.
  constexpr conv_axis axis(int axis) const
  {
    const auto a = static_cast<std::size_t>(axis);
    return {input[a], output(axis), kernel[a], stride[a], padding[a], dilation[a]};
  }

  /// Product of the input extents: elements of one channel of x.
  constexpr int64_t input_positions() const { return product(input); }
  /// Product of the output extents: elements of one channel of y.
  constexpr int64_t output_positions() const { return product(output()); }
  /// Product of the kernel extents.
  constexpr int64_t taps() const { return product(kernel); }
  /// Elements of x (of the slice).
  constexpr int64_t input_elements() const { return batch * in_channels * input_positions(); }
  /// Elements of w.
  constexpr int64_t weight_elements() const { return in_channels * (out_channels / groups) * taps(); }
  /// Elements of y (of the slice).
  constexpr int64_t output_elements() const { return batch * out_channels * output_positions(); }
  /// Elements of the tensor that holds x: its slice and the channels beside it.
  constexpr int64_t input_tensor_elements() const { return batch * input_slice.total(in_channels) * input_positions(); }

private:
  static constexpr int64_t product(const extents& values)
  {
    int64_t result = 1;
    for (const int64_t value : values)
    {
      result *= value;
    }
    return result;
  }
};

namespace detail
{

/// The largest value of a field of an axis: sums of a few of them, and products modulo one of them, fit 63 bits.
inline constexpr int64_t field_limit = int64_t{1} << 60;

/// Extents and parameters of one axis, before anything is computed from them.
template <int Rank>
status validate_axis(const conv_transpose_shape<Rank>& shape, int axis)
{
  const auto a     = static_cast<std::size_t>(axis);
  const char* name = axis_name(Rank, axis);

  struct rule
  {
    const char* field;
    int64_t value;
    int64_t least;
  };
  const rule rules[] = {{"input", shape.input[a], 1},
                        {"kernel", shape.kernel[a], 1},
                        {"stride", shape.stride[a], 1},
                        {"dilation", shape.dilation[a], 1},
                        {"padding", shape.padding[a], 0},
                        {"output_padding", shape.output_padding[a], 0}};
  for (const rule& r : rules)
  {
    if (r.value < r.least)
    {
      return status::error(status_code::invalid_argument,
                           "shape.%s[%s] = %lld: must be >= %lld",
                           r.field,
                           name,
                           static_cast<long long>(r.value),
                           static_cast<long long>(r.least));
    }
    if (r.value > field_limit)
    {
      return status::error(status_code::invalid_argument,
                           "shape.%s[%s] = %lld: must be <= 2^60",
                           r.field,
                           name,
                           static_cast<long long>(r.value));
    }
  }

  const int64_t limit = shape.stride[a] > shape.dilation[a] ? shape.stride[a] : shape.dilation[a];
  if (shape.output_padding[a] >= limit)
  {
    return status::error(status_code::invalid_argument,
                         "shape.output_padding[%s] = %lld: must be < max(stride, dilation) = %lld",
                         name,
                         static_cast<long long>(shape.output_padding[a]),
                         static_cast<long long>(limit));
  }

  // The largest numbers that the tap arithmetic forms: (in - 1)*stride + dilation*(kernel - 1) + output_padding + 1 + padding.
  int64_t reach  = shape.input[a] - 1;
  int64_t kernel = shape.kernel[a] - 1;
  int64_t crop   = shape.padding[a];
  if (!multiply_checked(reach, shape.stride[a]) || !multiply_checked(kernel, shape.dilation[a])
      || !multiply_checked(crop, 2) || !add_checked(reach, kernel) || !add_checked(reach, shape.output_padding[a])
      || !add_checked(reach, shape.stride[a]) || !add_checked(reach, shape.dilation[a]) || !add_checked(reach, crop)
      || reach == std::numeric_limits<int64_t>::max())
  {
    return status::error(
      status_code::invalid_argument, "shape: the output extent of axis %s does not fit 63 bits", name);
  }
  if (shape.output(axis) < 0)
  {
    return status::error(status_code::invalid_argument,
                         "shape: the output extent of axis %s is %lld: must be >= 0 (padding[%s] = %lld is too large)",
                         name,
                         static_cast<long long>(shape.output(axis)),
                         name,
                         static_cast<long long>(shape.padding[a]));
  }
  return {};
}

/// A slice of \p channels channels; \p name: its field.
[[nodiscard]] inline status validate_slice(const channel_slice& slice, const char* name, int64_t channels)
{
  if (slice.first_channel < 0)
  {
    return status::error(status_code::invalid_argument,
                         "shape.%s.first_channel = %lld: must be >= 0",
                         name,
                         static_cast<long long>(slice.first_channel));
  }
  // Without sums: both may be large.
  if (slice.total(channels) < channels || slice.first_channel > slice.total(channels) - channels)
  {
    return status::error(status_code::invalid_argument,
                         "shape.%s: channels %lld to %lld + %lld do not lie in a tensor of %lld channels",
                         name,
                         static_cast<long long>(slice.first_channel),
                         static_cast<long long>(slice.first_channel),
                         static_cast<long long>(channels),
                         static_cast<long long>(slice.total(channels)));
  }
  return {};
}

/// validate() for a result of \p written channels, which is what the output slice holds: a chain may reduce the channels.
template <int Rank>
[[nodiscard]] status validate_result(const conv_transpose_shape<Rank>& shape, int64_t written, int64_t element_size = 4)
{
  struct rule
  {
    const char* field;
    int64_t value;
    int64_t least;
  };
  const rule rules[] = {{"batch", shape.batch, 0},
                        {"in_channels", shape.in_channels, 1},
                        {"out_channels", shape.out_channels, 1},
                        {"groups", shape.groups, 1}};
  for (const rule& r : rules)
  {
    if (r.value < r.least)
    {
      return status::error(status_code::invalid_argument,
                           "shape.%s = %lld: must be >= %lld",
                           r.field,
                           static_cast<long long>(r.value),
                           static_cast<long long>(r.least));
    }
  }
  for (const rule& r : {rules[1], rules[2]})
  {
    if (r.value % shape.groups != 0)
    {
      return status::error(status_code::invalid_argument,
                           "shape.%s = %lld: must be divisible by groups = %lld",
                           r.field,
                           static_cast<long long>(r.value),
                           static_cast<long long>(shape.groups));
    }
  }
  for (int axis = 0; axis < Rank; ++axis)
  {
    if (status s = validate_axis(shape, axis); !s.ok())
    {
      return s;
    }
  }

  if (status s = validate_slice(shape.input_slice, "input_slice", shape.in_channels); !s.ok())
  {
    return s;
  }
  if (status s = validate_slice(shape.output_slice, "output_slice", written); !s.ok())
  {
    return s;
  }

  int64_t x   = element_size;
  int64_t w   = element_size;
  int64_t y   = element_size;
  bool x_fits = multiply_checked(x, shape.input_slice.total(shape.in_channels));
  bool w_fits = multiply_checked(w, shape.in_channels) && multiply_checked(w, shape.out_channels / shape.groups);
  bool y_fits = multiply_checked(y, std::max(shape.output_slice.total(written), shape.out_channels));
  for (int axis = 0; axis < Rank; ++axis)
  {
    const auto a = static_cast<std::size_t>(axis);
    x_fits       = x_fits && multiply_checked(x, shape.input[a]);
    w_fits       = w_fits && multiply_checked(w, shape.kernel[a]);
    y_fits       = y_fits && multiply_checked(y, shape.output(axis));
  }
  // Batch last: with batch 0 the sizes of one sample must fit all the same.
  x_fits = x_fits && multiply_checked(x, shape.batch);
  y_fits = y_fits && multiply_checked(y, shape.batch);
  if (!x_fits || !w_fits || !y_fits)
  {
    return status::error(status_code::invalid_argument,
                         "shape: the bytes of %s do not fit 63 bits",
                         !x_fits ? "x" : (!w_fits ? "w" : "y"));
  }
  return {};
}

} // namespace detail

/// Checks every rule of a shape; the message of a failure names the field, the axis and the rule.
///
/// \p element_size: size in bytes of one tensor element; the bytes of x, w and y, and of the tensors that hold them, must fit 63
/// bits.
/// Output extent 0 and batch 0 are legal: launchers then succeed and write nothing.
template <int Rank>
[[nodiscard]] status validate(const conv_transpose_shape<Rank>& shape, int64_t element_size = 4)
{
  return detail::validate_result(shape, shape.out_channels, element_size);
}

namespace detail
{

/// The same convolution over three axes: leading axes of extent 1, kernel 1, stride 1. Kernels exist for rank 3 only.
template <int Rank>
constexpr conv_transpose_shape<3> canonical(const conv_transpose_shape<Rank>& shape)
{
  conv_transpose_shape<3> result;
  result.batch        = shape.batch;
  result.in_channels  = shape.in_channels;
  result.out_channels = shape.out_channels;
  result.groups       = shape.groups;
  result.input_slice  = shape.input_slice;
  result.output_slice = shape.output_slice;
  for (std::size_t a = 0; a < static_cast<std::size_t>(Rank); ++a)
  {
    const std::size_t b      = a + static_cast<std::size_t>(3 - Rank);
    result.input[b]          = shape.input[a];
    result.kernel[b]         = shape.kernel[a];
    result.stride[b]         = shape.stride[a];
    result.padding[b]        = shape.padding[a];
    result.output_padding[b] = shape.output_padding[a];
    result.dilation[b]       = shape.dilation[a];
  }
  return result;
}

} // namespace detail

TCONV_NAMESPACE_END
