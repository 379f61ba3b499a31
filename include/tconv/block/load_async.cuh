// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Copies of tensor elements to shared memory as floats, asynchronous where the tensor has floats.

#include "../thread/element.cuh"
#include "async_copy.cuh"

#include <cuda/std/type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Copies one element to shared memory as a float, or 0 where \p inside is false; without waiting where the types are
/// the same.
template <class In>
TCONV_DEVICE void load_async(float* target, const In* source, bool inside)
{
  if constexpr (cuda::std::is_same<In, float>::value)
  {
    copy_async_or_zero(target, source, inside);
  }
  else
  {
    *target = inside ? to_float(*source) : 0.0f;
  }
}

/// The same for 4 neighbours that are aligned to 16 bytes, in floats.
template <class In>
TCONV_DEVICE void load_async_quad(float* target, const In* source, bool inside)
{
  if constexpr (cuda::std::is_same<In, float>::value)
  {
    copy_async_16_or_zero(target, source, inside);
  }
  else
  {
    // Not read where it is outside: whole chunks of channels may be padding.
    element_vector<In, 4> v = {};
    if (inside)
    {
      v.load(source);
    }
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i)
    {
      target[i] = inside ? to_float(v.values[i]) : 0.0f;
    }
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
