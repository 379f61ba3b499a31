// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Checks of pointers that every launcher makes before its first launch.

#include "launch.cuh"
#include "workspace_layout.hpp"

#include <cstdint>
#include <initializer_list>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// One tensor argument: its name in messages, its first byte, its size.
struct argument
{
  const char* name;
  const void* data;
  int64_t bytes;
};

/// Rejects null and misaligned pointers (elements of \p alignment bytes) and, on request, memory the device cannot read.
[[nodiscard]] inline status check_argument(const argument& a, const options& opts, std::size_t alignment = 4)
{
  if (a.bytes == 0)
  {
    return {};
  }
  if (a.data == nullptr)
  {
    return status::error(status_code::invalid_argument, "%s: must not be null", a.name);
  }
  if (reinterpret_cast<std::uintptr_t>(a.data) % alignment != 0)
  {
    return status::error(status_code::invalid_argument,
                         "%s: %p is not a multiple of the element size %d",
                         a.name,
                         a.data,
                         static_cast<int>(alignment));
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

/// Rejects an output that overlaps an input: kernels read inputs after they have written outputs.
[[nodiscard]] inline status check_disjoint(const argument& output, const argument& other)
{
  const auto begin_a = reinterpret_cast<std::uintptr_t>(output.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(other.data);
  if (output.data == nullptr || other.data == nullptr || output.bytes == 0 || other.bytes == 0
      || begin_a + static_cast<std::uintptr_t>(output.bytes) <= begin_b
      || begin_b + static_cast<std::uintptr_t>(other.bytes) <= begin_a)
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
  const argument scratch = {"workspace", space.data, static_cast<int64_t>(layout.bytes())};
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

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
