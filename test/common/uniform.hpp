// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Random numbers as a pure function of a seed and an index: the same on the host, on the device and in numpy
/// (test/golden/uniform.py), in any order and by any number of threads. Independent of tconv; plain C++17 that is also device
/// code.

#include <cstdint>

#if defined(__CUDACC__)
#  define TCONV_TEST_HOST_DEVICE __host__ __device__
#else
#  define TCONV_TEST_HOST_DEVICE
#endif

namespace tconv_test
{

/// A bijection on 32 bits that mixes well: Chris Wellons' lowbias32 (https://nullprogram.com/blog/2018/07/31/).
TCONV_TEST_HOST_DEVICE constexpr std::uint32_t lowbias32(std::uint32_t x)
{
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}

/// 32 random bits for element \p index of the tensor that \p seed names.
///
/// Seeds closer together than index / 2^32 share values: keep seeds apart for tensors of 2^32 elements and more.
TCONV_TEST_HOST_DEVICE constexpr std::uint32_t random_bits(std::uint32_t seed, std::uint64_t index)
{
  const auto low  = static_cast<std::uint32_t>(index);
  const auto high = static_cast<std::uint32_t>(index >> 32);
  return lowbias32(low ^ lowbias32(seed + high));
}

/// Uniform in [0, 1): a multiple of 2^-24, so exact in fp32.
TCONV_TEST_HOST_DEVICE constexpr float uniform(std::uint32_t seed, std::uint64_t index)
{
  return static_cast<float>(random_bits(seed, index) >> 8) * 0x1p-24f;
}

/// Uniform in [low, high], rounded to fp32.
///
/// In double the product is exact (24 by 24 bits), so contracting it with the sum, as nvcc does by default, changes nothing.
TCONV_TEST_HOST_DEVICE constexpr float uniform(std::uint32_t seed, std::uint64_t index, float low, float high)
{
  const float span = high - low;
  return static_cast<float>(static_cast<double>(low)
                            + static_cast<double>(span) * static_cast<double>(uniform(seed, index)));
}

/// Uniform integer in [low, high], for high - low < 2^32 (bias below 2^-32 per value is of no concern in tests).
TCONV_TEST_HOST_DEVICE constexpr std::int64_t
uniform_integer(std::uint32_t seed, std::uint64_t index, std::int64_t low, std::int64_t high)
{
  const std::uint64_t count = static_cast<std::uint64_t>(high - low) + 1;
  return low + static_cast<std::int64_t>((random_bits(seed, index) * count) >> 32);
}

/// Flat index of sample \p j of a tensor of \p count elements (at most 2^32): the first, the last, then random ones.
TCONV_TEST_HOST_DEVICE constexpr std::int64_t sample_index(std::uint32_t seed, std::int64_t j, std::int64_t count)
{
  return j == 0 ? 0 : j == 1 ? count - 1 : uniform_integer(seed, static_cast<std::uint64_t>(j), 0, count - 1);
}

} // namespace tconv_test
