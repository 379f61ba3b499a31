// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Asynchronous copies from global to shared memory, one element or 16 bytes at a time, and into the cache.

#include "../detail/config.hpp"

#include <cuda_pipeline_primitives.h>

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Copies one float, or writes 0 without reading where \p inside is false. Called by one thread.
TCONV_DEVICE void copy_async_or_zero(float* target, const float* source, bool inside)
{
  __pipeline_memcpy_async(target, source, sizeof(float), inside ? 0 : sizeof(float));
}

/// Copies 16 bytes; both addresses are multiples of 16. Called by one thread.
TCONV_DEVICE void copy_async_16(float* target, const float* source)
{
  __pipeline_memcpy_async(target, source, 16);
}

/// Copies 16 bytes, or writes zeros without reading where \p inside is false; both addresses are multiples of 16.
TCONV_DEVICE void copy_async_16_or_zero(float* target, const float* source, bool inside)
{
  __pipeline_memcpy_async(target, source, 16, inside ? 0 : 16);
}

/// Closes the group of copies that this thread has started since the last commit.
TCONV_DEVICE void copy_async_commit()
{
  __pipeline_commit();
}

/// Waits until at most \p Pending of this thread's groups are under way.
template <int Pending>
TCONV_DEVICE void copy_async_wait()
{
  __pipeline_wait_prior(Pending);
}

/// Brings the line of global memory that \p source is in into the second-level cache. Called by one thread; waits for nothing.
TCONV_DEVICE void prefetch_line(const void* source)
{
  asm volatile("prefetch.global.L2 [%0];" ::"l"(source));
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
