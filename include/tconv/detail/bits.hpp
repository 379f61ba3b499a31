// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Words as sets of bits.

#include "config.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// How many bits of \p v are set.
TCONV_HOST_DEVICE constexpr int count_bits(uint64_t v)
{
  v -= v >> 1 & 0x5555555555555555U;
  v = (v & 0x3333333333333333U) + (v >> 2 & 0x3333333333333333U);
  v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0fU;
  return static_cast<int>(v * 0x0101010101010101U >> 56);
}

/// The lowest \p count bits of \p v, at most 64.
TCONV_HOST_DEVICE constexpr uint64_t low_bits(uint64_t v, int count)
{
  return count < 64 ? v & ((uint64_t{1} << count) - 1) : v;
}

/// \p v, which has \p width bits, \p count times.
TCONV_HOST_DEVICE constexpr uint64_t repeat_bits(uint64_t v, int width, int count)
{
  uint64_t result = 0;
  for (int i = 0; i < count; ++i)
  {
    result |= v << (width * i);
  }
  return result;
}

/// The digits of \p width bits that \p v has, without leading zeros.
TCONV_HOST_DEVICE constexpr int count_digits(uint64_t v, int width)
{
  int count = 0;
  for (; v != 0; v >>= width)
  {
    ++count;
  }
  return count;
}

} // namespace detail

TCONV_NAMESPACE_END
