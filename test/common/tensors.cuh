// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Tensors of any element type and layout, as slices of wider ones: made from channels-first floats, and read back as such.

#include "compare.hpp"
#include "device.hpp"

#include <tconv/layout.hpp>
#include <tconv/shape.hpp>
#include <tconv/thread/element.cuh>

#include <cstring>
#include <vector>

namespace tconv_test
{

template <class T>
struct format_of;
template <>
struct format_of<float>
{
  static constexpr output_format value = float32;
  static constexpr const char* name    = "f32";
};
template <>
struct format_of<__half>
{
  static constexpr output_format value = float16;
  static constexpr const char* name    = "f16";
};
template <>
struct format_of<__nv_bfloat16>
{
  static constexpr output_format value = bfloat16;
  static constexpr const char* name    = "bf16";
};

/// Each value rounded to T: what a reference has to start from.
template <class T>
std::vector<float> rounded_to(std::vector<float> values)
{
  for (float& v : values)
  {
    v = tconv::to_float(tconv::from_float<T>(v));
  }
  return values;
}

/// \p values as elements of T.
template <class T>
std::vector<T> elements_of(const std::vector<float>& values)
{
  std::vector<T> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
  {
    result[i] = tconv::from_float<T>(values[i]);
  }
  return result;
}

/// Where a slice [batch, channels, positions] stands.
struct placement
{
  std::int64_t batch;
  std::int64_t channels;
  std::int64_t positions;
  tconv::layout order;
  tconv::channel_slice slice;

  std::int64_t tensor_elements() const { return batch * slice.total(channels) * positions; }
  /// visit(channels-first index within the slice, index within the tensor) for every element of the slice.
  template <class Visitor>
  void for_each(Visitor visit) const
  {
    const auto strides   = tconv::tensor_strides::of(order, slice.total(channels), positions);
    std::size_t in_slice = 0;
    for (std::int64_t n = 0; n < batch; ++n)
    {
      for (std::int64_t c = 0; c < channels; ++c)
      {
        for (std::int64_t p = 0; p < positions; ++p)
        {
          visit(in_slice++,
                static_cast<std::size_t>(n * strides.sample + (slice.first_channel + c) * strides.channel
                                         + p * strides.position));
        }
      }
    }
  }

  /// The tensor that holds \p values; what is not the slice is poison (a NaN of 0xff bytes).
  template <class T>
  std::vector<T> place(const std::vector<float>& values) const
  {
    std::vector<T> result(static_cast<std::size_t>(tensor_elements()));
    std::memset(static_cast<void*>(result.data()), 0xff, result.size() * sizeof(T));
    for_each([&](std::size_t from, std::size_t to) { result[to] = tconv::from_float<T>(values[from]); });
    return result;
  }
  /// The slice of \p tensor, channels first.
  template <class T>
  std::vector<float> extract(const std::vector<T>& tensor) const
  {
    std::vector<float> result(static_cast<std::size_t>(batch * channels * positions));
    for_each([&](std::size_t to, std::size_t from) { result[to] = tconv::to_float(tensor[from]); });
    return result;
  }
  /// True if every byte of \p tensor outside the slice is the poison.
  template <class T>
  bool others_untouched(std::vector<T> tensor) const
  {
    for_each([&](std::size_t, std::size_t at) { std::memset(static_cast<void*>(&tensor[at]), 0xff, sizeof(T)); });
    const auto* bytes = reinterpret_cast<const unsigned char*>(tensor.data());
    return std::all_of(bytes, bytes + tensor.size() * sizeof(T), [](unsigned char byte) { return byte == 0xff; });
  }
};

/// The ways in which a tensor of \p channels channels can stand: packed, and in the middle, at the start and at the end of wider ones.
inline tconv::channel_slice slice_number(std::int64_t number, std::int64_t channels)
{
  switch (number % 4)
  {
    case 0: return {};
    case 1: return {channels + 5, 3};
    case 2: return {2 * channels, channels};
    default: return {channels + 8, 0};
  }
}

} // namespace tconv_test
