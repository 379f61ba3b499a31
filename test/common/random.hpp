// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Replayable random tests: a base seed from the environment and a stream of numbers per case.
///
/// A randomised test names the seed of the failing case in its message; TCONV_TEST_SEED=<base> repeats the whole run.
/// Independent of tconv.

#include "uniform.hpp"

#include <cstdlib>
#include <string>

namespace tconv_test
{

/// TCONV_TEST_SEED, or 1: runs are the same every day unless asked otherwise.
inline std::uint32_t base_seed()
{
  const char* text = std::getenv("TCONV_TEST_SEED");
  return text != nullptr ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 0)) : 1U;
}

/// The numbers of one random case.
class random_stream
{
public:
  /// \p number: which case of the test.
  explicit random_stream(std::uint32_t number) : seed_(lowbias32(base_seed()) + number) {}

  /// Uniform in [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) { return uniform_integer(seed_, next_++, low, high); }
  /// Uniform over the orders of magnitude of [low, high], 1 <= low <= high.
  std::int64_t magnitude(std::int64_t low, std::int64_t high)
  {
    int bits = 0;
    while (bits < 62 && (high >> bits) > low)
    {
      ++bits;
    }
    const std::int64_t top    = high >> integer(0, bits);
    const std::int64_t bottom = top / 2 > low ? top / 2 : low;
    // Two draws: an extent may have more than 32 bits.
    const std::int64_t span = (top > bottom ? top - bottom : 0) + 1;
    const auto wide         = static_cast<std::uint64_t>(integer(0, 0xffffffffLL)) << 31
                    ^ static_cast<std::uint64_t>(integer(0, 0xffffffffLL));
    return bottom + static_cast<std::int64_t>(wide % static_cast<std::uint64_t>(span));
  }
  /// Uniform in [0, 1).
  float real() { return uniform(seed_, next_++); }
  /// Uniform in [low, high].
  float real(float low, float high) { return uniform(seed_, next_++, low, high); }

  /// For failure messages.
  std::string replay() const
  {
    return "replay with TCONV_TEST_SEED=" + std::to_string(base_seed()) + ", case seed " + std::to_string(seed_);
  }

private:
  std::uint32_t seed_;
  std::uint64_t next_ = 0;
};

} // namespace tconv_test
