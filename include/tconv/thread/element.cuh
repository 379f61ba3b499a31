// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Elements of tensors: float, __half and __nv_bfloat16. All arithmetic is fp32; elements are converted where they are loaded
/// and stored.

#include "../detail/config.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

TCONV_CUDA_NAMESPACE_BEGIN

/// Which types tensors may have.
template <class T>
struct is_tensor_type
{
  static constexpr bool value = false; ///< a tensor may have elements of type T
};
/// fp32.
template <>
struct is_tensor_type<float>
{
  static constexpr bool value = true; ///< allowed
};
/// fp16.
template <>
struct is_tensor_type<__half>
{
  static constexpr bool value = true; ///< allowed
};
/// bf16.
template <>
struct is_tensor_type<__nv_bfloat16>
{
  static constexpr bool value = true; ///< allowed
};

/// Outputs have the type of the inputs, or float: f32 -> f32, f16 -> f16, bf16 -> bf16, f16 -> f32, bf16 -> f32.
template <class In, class Out>
struct is_type_pair
{
  static constexpr bool value = false; ///< inputs of type In may be followed by outputs of type Out
};
/// The type of the inputs.
template <class In>
struct is_type_pair<In, In>
{
  static constexpr bool value = is_tensor_type<In>::value; ///< allowed for every tensor type
};
/// f16 -> f32.
template <>
struct is_type_pair<__half, float>
{
  static constexpr bool value = true; ///< allowed
};
/// bf16 -> f32.
template <>
struct is_type_pair<__nv_bfloat16, float>
{
  static constexpr bool value = true; ///< allowed
};

/// The value of an element; exact.
TCONV_HOST_DEVICE float to_float(float v)
{
  return v;
}
/// The same of an fp16 element.
TCONV_HOST_DEVICE float to_float(__half v)
{
  return __half2float(v);
}
/// The same of a bf16 element.
TCONV_HOST_DEVICE float to_float(__nv_bfloat16 v)
{
  return __bfloat162float(v);
}

/// \p v rounded to the nearest element, ties to even; beyond the largest one infinity.
template <class T>
TCONV_HOST_DEVICE T from_float(float v)
{
  return v;
}
/// To fp16.
template <>
TCONV_HOST_DEVICE __half from_float<__half>(float v)
{
  return __float2half_rn(v);
}
/// To bf16.
template <>
TCONV_HOST_DEVICE __nv_bfloat16 from_float<__nv_bfloat16>(float v)
{
  return __float2bfloat16_rn(v);
}

/// Two values rounded to neighbouring elements of 16 bits, the first one in the low half.
template <class T>
TCONV_DEVICE unsigned pack_pair(float low, float high);
/// To fp16.
template <>
TCONV_DEVICE unsigned pack_pair<__half>(float low, float high)
{
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
/// To bf16.
template <>
TCONV_DEVICE unsigned pack_pair<__nv_bfloat16>(float low, float high)
{
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

/// Elements of T that one access of Count neighbours takes: at most 16 bytes.
template <class T, int Count>
inline constexpr int vector_width = Count* static_cast<int>(sizeof(T)) < 16 ? Count : 16 / static_cast<int>(sizeof(T));

/// Stores values(0), values(1), ... to Count neighbouring elements, which are aligned to vector_width of them. Streaming: they are
/// not read again. As an intrinsic, because the compiler splits plain vector stores whose values do not lie in neighbouring
/// registers; and without an array in between, which would cost a move for each value.
template <int Count, class T, class Values>
TCONV_DEVICE void store_streaming(T* target, Values values)
{
  constexpr int width = vector_width<T, Count>;
  TCONV_PRAGMA_UNROLL
  for (int i = 0; i < Count; i += width)
  {
    if constexpr (width == 1)
    {
      target[i] = from_float<T>(values(i));
    }
    else if constexpr (sizeof(T) == 4 && width == 4)
    {
      __stcs(
        reinterpret_cast<float4*>(target + i), make_float4(values(i), values(i + 1), values(i + 2), values(i + 3)));
    }
    else if constexpr (sizeof(T) == 4)
    {
      static_assert(width == 2, "tconv: vectors of float have 2 or 4 elements");
      __stcs(reinterpret_cast<float2*>(target + i), make_float2(values(i), values(i + 1)));
    }
    else if constexpr (width == 8)
    {
      __stcs(reinterpret_cast<uint4*>(target + i),
             make_uint4(pack_pair<T>(values(i), values(i + 1)),
                        pack_pair<T>(values(i + 2), values(i + 3)),
                        pack_pair<T>(values(i + 4), values(i + 5)),
                        pack_pair<T>(values(i + 6), values(i + 7))));
    }
    else if constexpr (width == 4)
    {
      __stcs(reinterpret_cast<uint2*>(target + i),
             make_uint2(pack_pair<T>(values(i), values(i + 1)), pack_pair<T>(values(i + 2), values(i + 3))));
    }
    else
    {
      static_assert(width == 2, "tconv: vectors of 16-bit elements have 2, 4 or 8");
      __stcs(reinterpret_cast<unsigned*>(target + i), pack_pair<T>(values(i), values(i + 1)));
    }
  }
}

/// Register types of Bytes bytes.
template <int Bytes>
struct word_of;
/// 2 bytes.
template <>
struct word_of<2>
{
  using type = unsigned short; ///< the register type
};
/// 4 bytes.
template <>
struct word_of<4>
{
  using type = unsigned; ///< the register type
};
/// 8 bytes.
template <>
struct word_of<8>
{
  using type = uint2; ///< the register type
};
/// 16 bytes.
template <>
struct word_of<16>
{
  using type = uint4; ///< the register type
};

/// Count neighbouring elements as one load of at most 16 bytes, for which they must be aligned.
template <class T, int Count>
struct alignas(sizeof(T) * Count) element_vector
{
  /// What one load brings.
  using word = typename word_of<static_cast<int>(sizeof(T)) * Count>::type;

  T values[Count]; ///< in the order of memory

  /// Loads through the read-only cache.
  TCONV_DEVICE void load(const T* source)
  {
    *reinterpret_cast<word*>(values) = __ldg(reinterpret_cast<const word*>(source));
  }
  /// Streaming load: the data is not read again soon.
  TCONV_DEVICE void load_streaming(const T* source)
  {
    *reinterpret_cast<word*>(values) = __ldcs(reinterpret_cast<const word*>(source));
  }
};

TCONV_CUDA_NAMESPACE_END
