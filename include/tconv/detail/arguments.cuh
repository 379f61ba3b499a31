// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Checks of pointers that every launcher makes before its first launch.

#include "../batch_norm_arguments.hpp"
#include "../tensor_shape.hpp"
#include "launch.cuh"
#include "workspace_layout.hpp"

#include <cstdint>
#include <initializer_list>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// One tensor argument: its name in messages, its first byte, its size, and which of its channels are meant.
struct argument
{
  const char* name;
  const void* data;
  int64_t bytes;
  std::size_t alignment;
  channel_slice slice;
  int64_t channels;      ///< of the slice; 0 where the argument is not a slice
  layout order;          ///< of the tensor that it is a slice of
  bool in_place = false; ///< an input each element of which is read before an output that is the same slice is written

  /// \p elements of type T.
  template <class T>
  argument(const char* argument_name, const T* values, int64_t elements)
      : argument(argument_name, values, elements, {}, 0, layout::channels_first)
  {}
  /// A slice of a tensor of \p elements.
  template <class T>
  argument(const char* argument_name,
           const T* values,
           int64_t elements,
           const channel_slice& part,
           int64_t part_channels,
           layout part_order)
      : name(argument_name)
      , data(values)
      , bytes(elements * static_cast<int64_t>(sizeof(T)))
      , alignment(alignof(T))
      , slice(part)
      , channels(part_channels)
      , order(part_order)
  {}
};

/// Written out where nvcc would get a braced list wrong: one element, or none that depends on a template parameter.
using argument_list = std::initializer_list<argument>;

/// Rejects null and misaligned pointers and, on request, memory the device cannot read.
[[nodiscard]] inline status check_argument(const argument& a, const options& opts)
{
  if (a.bytes == 0)
  {
    return {};
  }
  if (a.data == nullptr)
  {
    return status::error(status_code::invalid_argument, "%s: must not be null", a.name);
  }
  if (reinterpret_cast<std::uintptr_t>(a.data) % a.alignment != 0)
  {
    return status::error(status_code::invalid_argument,
                         "%s: %p is not a multiple of the element size %d",
                         a.name,
                         a.data,
                         static_cast<int>(a.alignment));
  }
  if (opts.check_pointers)
  {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, a.data) != cudaSuccess || attributes.devicePointer == nullptr)
    {
      (void) cudaGetLastError(); // the failed query must not surface in the user's next call
      return status::error(
        status_code::invalid_argument, "%s: %p is not memory that the current device can access", a.name, a.data);
    }
  }
  return {};
}

/// True if both are slices of one tensor, with no channel in common.
[[nodiscard]] inline bool disjoint_slices(const argument& a, const argument& b)
{
  return a.data == b.data && a.bytes == b.bytes && a.alignment == b.alignment && a.order == b.order
      && a.slice.tensor_channels != 0 && a.slice.tensor_channels == b.slice.tensor_channels
      && (a.slice.first_channel + a.channels <= b.slice.first_channel
          || b.slice.first_channel + b.channels <= a.slice.first_channel);
}

/// True if both are the same slice of the same tensor.
[[nodiscard]] inline bool same_slice(const argument& a, const argument& b)
{
  return a.data == b.data && a.bytes == b.bytes && a.alignment == b.alignment && a.order == b.order
      && a.slice.first_channel == b.slice.first_channel;
}

/// Rejects an output that overlaps an input: kernels read inputs after they have written outputs, but for in_place ones.
[[nodiscard]] inline status check_disjoint(const argument& output, const argument& other)
{
  const auto begin_a = reinterpret_cast<std::uintptr_t>(output.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(other.data);
  if (output.data == nullptr || other.data == nullptr || output.bytes == 0 || other.bytes == 0
      || begin_a + static_cast<std::uintptr_t>(output.bytes) <= begin_b
      || begin_b + static_cast<std::uintptr_t>(other.bytes) <= begin_a || disjoint_slices(output, other)
      || (other.in_place && same_slice(output, other)))
  {
    return {};
  }
  return status::error(status_code::invalid_argument, "%s: must not overlap %s", output.name, other.name);
}

/// Everything a launcher checks about its memory: pointers, workspace, and that outputs and workspace overlap nothing.
[[nodiscard]] inline status check_call(std::initializer_list<argument> inputs,
                                       std::initializer_list<argument> outputs,
                                       const detail::workspace_layout& layout,
                                       const options& opts,
                                       const workspace& space)
{
  for (const auto& list : {inputs, outputs})
  {
    for (const argument& a : list)
    {
      if (status s = check_argument(a, opts); !s.ok())
      {
        return s;
      }
    }
  }
  if (status s = layout.check(space); !s.ok())
  {
    return s;
  }
  const argument scratch("workspace", static_cast<const char*>(space.data), static_cast<int64_t>(layout.bytes()));
  if (status s = check_argument(scratch, opts); !s.ok())
  {
    return s;
  }
  for (const argument& output : outputs)
  {
    for (const argument& input : inputs)
    {
      if (status s = check_disjoint(output, input); !s.ok())
      {
        return s;
      }
    }
    if (status s = check_disjoint(output, scratch); !s.ok())
    {
      return s;
    }
    for (const argument* other = outputs.begin(); other != &output; ++other)
    {
      if (status s = check_disjoint(output, *other); !s.ok())
      {
        return s;
      }
    }
  }
  for (const argument& input : inputs)
  {
    if (status s = check_disjoint(scratch, input); !s.ok())
    {
      return s;
    }
  }
  return {};
}

/// Strides of the tensor that holds x.
template <int Rank>
[[nodiscard]] tensor_strides input_strides(const conv_transpose_shape<Rank>& shape, const options& opts)
{
  return tensor_strides::of(opts.input_layout, shape.input_slice.total(shape.in_channels), shape.input_positions());
}
template <int Rank>
[[nodiscard]] tensor_strides input_strides(const tensor_shape<Rank>& shape, const options& opts)
{
  return tensor_strides::of(opts.input_layout, shape.input_slice.total(shape.channels), shape.positions());
}

/// The first channel of the slice x.
template <class In, class Shape>
[[nodiscard]] const In* first_of_slice(const In* x, const Shape& shape, const options& opts)
{
  return x + shape.input_slice.first_channel * input_strides(shape, opts).channel;
}

/// x as an argument: all of the tensor that it is a slice of.
template <class In, int Rank>
[[nodiscard]] argument input_argument(const In* x, const conv_transpose_shape<Rank>& shape, const options& opts)
{
  return {"x", x, shape.input_tensor_elements(), shape.input_slice, shape.in_channels, opts.input_layout};
}
template <class In, int Rank>
[[nodiscard]] argument input_argument(const In* x, const tensor_shape<Rank>& shape, const options& opts)
{
  const int64_t elements = shape.batch * shape.input_slice.total(shape.channels) * shape.positions();
  return {"x", x, elements, shape.input_slice, shape.channels, opts.input_layout};
}

/// eps and momentum, which every BatchNorm launcher takes.
[[nodiscard]] inline status check_batch_norm(const batch_norm_arguments& arguments)
{
  if (!(arguments.eps >= 0.0f))
  {
    return status::error(
      status_code::invalid_argument, "batch_norm.eps = %g: must be >= 0", static_cast<double>(arguments.eps));
  }
  if (!(arguments.momentum >= 0.0f && arguments.momentum <= 1.0f))
  {
    return status::error(status_code::invalid_argument,
                         "batch_norm.momentum = %g: must be in [0, 1]",
                         static_cast<double>(arguments.momentum));
  }
  return {};
}

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
