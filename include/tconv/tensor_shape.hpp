// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The shape of an existing tensor [batch, channels, extent...], for the launchers that work on one. Host only; needs no CUDA.

#include "shape.hpp"

TCONV_NAMESPACE_BEGIN

/// Shape of a tensor over \p Rank spatial axes (1, 2 or 3). Inputs and outputs may be channel slices of wider tensors.
template <int Rank>
struct tensor_shape
{
  static_assert(Rank >= 1 && Rank <= 3, "tconv: a tensor has 1, 2 or 3 spatial axes");

  /// Number of spatial axes.
  static constexpr int rank = Rank;

  int64_t batch    = 1; ///< >= 0; 0 is legal and does nothing
  int64_t channels = 1; ///< >= 1
  /// Extents per spatial axis, slowest first, each >= 0; 0 is legal and does nothing.
  std::array<int64_t, Rank> extent = detail::filled<Rank>(1);
  channel_slice input_slice;  ///< where x stands in a wider tensor
  channel_slice output_slice; ///< where y stands in a wider tensor

  /// Product of the extents.
  constexpr int64_t positions() const
  {
    int64_t result = 1;
    for (const int64_t e : extent)
    {
      result *= e;
    }
    return result;
  }
  /// Elements of the slice.
  constexpr int64_t elements() const { return batch * channels * positions(); }
};

/// Checks every rule of a shape; the message of a failure names the field, the axis and the rule.
///
/// \p out_channels: channels of y, shape.channels or, where a chain reduces them, 1. \p element_size: size in bytes of
/// one element; the bytes of either tensor, slices counted with the channels beside them, must fit 63 bits.
template <int Rank>
[[nodiscard]] status validate(const tensor_shape<Rank>& shape, int64_t out_channels, int64_t element_size = 4)
{
  if (shape.batch < 0)
  {
    return status::error(
      status_code::invalid_argument, "shape.batch = %lld: must be >= 0", static_cast<long long>(shape.batch));
  }
  if (shape.channels < 1)
  {
    return status::error(
      status_code::invalid_argument, "shape.channels = %lld: must be >= 1", static_cast<long long>(shape.channels));
  }
  if (status s = detail::validate_slice(shape.input_slice, "input_slice", shape.channels); !s.ok())
  {
    return s;
  }
  if (status s = detail::validate_slice(shape.output_slice, "output_slice", out_channels); !s.ok())
  {
    return s;
  }
  int64_t bytes = element_size;
  bool fits     = detail::multiply_checked(bytes,
                                       shape.input_slice.total(shape.channels) > shape.output_slice.total(out_channels)
                                             ? shape.input_slice.total(shape.channels)
                                             : shape.output_slice.total(out_channels));
  for (int axis = 0; axis < Rank; ++axis)
  {
    const int64_t extent = shape.extent[static_cast<std::size_t>(axis)];
    if (extent < 0)
    {
      return status::error(status_code::invalid_argument,
                           "shape.extent[%s] = %lld: must be >= 0",
                           detail::axis_name(Rank, axis),
                           static_cast<long long>(extent));
    }
    // An empty axis says nothing about the others.
    fits = fits && detail::multiply_checked(bytes, extent > 0 ? extent : 1);
  }
  if (!fits || !detail::multiply_checked(bytes, shape.batch))
  {
    return status::error(status_code::invalid_argument, "shape: the bytes of the tensor do not fit 63 bits");
  }
  return {};
}

TCONV_NAMESPACE_END
