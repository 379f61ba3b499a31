// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The generator behind random tests and golden values: the same numbers as its numpy twin, and random enough.

#include "../common/random.hpp"
#include "../common/recipes.hpp"
#include "../common/uniform.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace
{

TEST(uniform, is_what_numpy_computes)
{
  // Printed by test/golden/uniform.py.
  EXPECT_EQ(tconv_test::random_bits(1, 0), 0x58f54975U);
  // Indices on both sides of a multiple of 2^32.
  const std::uint64_t index = (std::uint64_t{5} << 32) - 1;
  EXPECT_EQ(tconv_test::random_bits(7, index), 0x678c8353U);
  EXPECT_EQ(tconv_test::random_bits(7, index + 1), 0xeb3a203cU);
  EXPECT_EQ(tconv_test::random_bits(7, index + 2), 0x1e943958U);
  const float expected[] = {0.37542695f, 0.5626922f, 0.7206395f, 0.66387016f, 0.3275112f};
  for (std::uint64_t i = 0; i < 5; ++i)
  {
    EXPECT_EQ(tconv_test::uniform(42, i), expected[i]) << i;
  }
}

TEST(uniform, is_constexpr)
{
  static_assert(tconv_test::uniform(42, 0) > 0.375f && tconv_test::uniform(42, 0) < 0.376f);
  static_assert(tconv_test::lowbias32(0) == 0, "a bijection that keeps 0");
}

TEST(uniform, stays_inside_its_interval)
{
  constexpr std::uint32_t largest = 0xffffffffU;
  EXPECT_LT(static_cast<float>(largest >> 8) * 0x1p-24f, 1.0f) << "1 itself is never reached";
  for (std::uint64_t i = 0; i < 10000; ++i)
  {
    const float u = tconv_test::uniform(3, i);
    ASSERT_TRUE(u >= 0.0f && u < 1.0f);
    const float v = tconv_test::uniform(3, i, -0.25f, 7.0f);
    ASSERT_TRUE(v >= -0.25f && v <= 7.0f);
    const std::int64_t k = tconv_test::uniform_integer(3, i, -2, 4);
    ASSERT_TRUE(k >= -2 && k <= 4);
  }
}

TEST(uniform, has_the_moments_of_a_uniform_variable)
{
  constexpr int count = 1 << 20;
  for (const std::uint32_t seed : {0U, 1U, 2U, 101U, 0xffffffffU})
  {
    double sum        = 0;
    double square     = 0;
    double neighbours = 0;
    double last       = 0.5;
    for (int i = 0; i < count; ++i)
    {
      const double u = static_cast<double>(tconv_test::uniform(seed, static_cast<std::uint64_t>(i))) - 0.5;
      sum += u;
      square += u * u;
      neighbours += u * last;
      last = u;
    }
    // Six standard deviations: 1/sqrt(12 n), 1/sqrt(180 n), 1/(12 sqrt(n)).
    EXPECT_NEAR(sum / count, 0.0, 6 * 0.2887 / 1024) << seed;
    EXPECT_NEAR(square / count, 1.0 / 12, 6 * 0.0745 / 1024) << seed;
    EXPECT_NEAR(neighbours / count, 0.0, 6 * 0.0833 / 1024) << seed;
  }
}

TEST(uniform, seeds_make_different_tensors)
{
  int equal = 0;
  for (std::uint64_t i = 0; i < 10000; ++i)
  {
    equal += tconv_test::uniform(101, i) == tconv_test::uniform(102, i) ? 1 : 0;
  }
  EXPECT_LT(equal, 5);
}

TEST(uniform, integers_cover_their_range)
{
  std::vector<int> hits(7, 0);
  for (std::uint64_t i = 0; i < 7000; ++i)
  {
    ++hits[static_cast<std::size_t>(tconv_test::uniform_integer(9, i, -3, 3) + 3)];
  }
  for (const int h : hits)
  {
    EXPECT_NEAR(h, 1000, 200);
  }
}

TEST(uniform, samples_contain_both_ends)
{
  EXPECT_EQ(tconv_test::sample_index(104, 0, 1000), 0);
  EXPECT_EQ(tconv_test::sample_index(104, 1, 1000), 999);
  for (std::int64_t j = 0; j < 1000; ++j)
  {
    const std::int64_t i = tconv_test::sample_index(104, j, 134217728);
    ASSERT_TRUE(i >= 0 && i < 134217728);
  }
}

TEST(random_stream, magnitudes_stay_in_range_and_reach_both_ends)
{
  bool small = false;
  bool large = false;
  for (std::uint32_t number = 0; number < 2000; ++number)
  {
    tconv_test::random_stream random(number);
    const std::int64_t v = random.magnitude(1, 1000000000000);
    ASSERT_TRUE(v >= 1 && v <= 1000000000000) << random.replay();
    small = small || v < 10;
    large = large || v > 500000000000;
  }
  EXPECT_TRUE(small && large);
}

TEST(recipes, first_values_by_hand)
{
  // x: (7i + 3) mod 11 - 5 = 3-5, 10-5, 6-5, 2-5, 9-5; w: (5j + 1) mod 7 - 3 = 1-3, 6-3, 4-3, 2-3, 0-3.
  EXPECT_EQ(tconv_test::recipe_x_values(5), (std::vector<float>{-2, 5, 1, -3, 4}));
  EXPECT_EQ(tconv_test::recipe_w_values(5), (std::vector<float>{-2, 3, 1, -1, -3}));
  EXPECT_EQ(tconv_test::counting(3), (std::vector<float>{1, 2, 3}));
}

TEST(recipes, checksum_by_hand_and_its_sensitivity)
{
  const std::vector<double> y{1, -2, 3};
  EXPECT_EQ(tconv_test::make_checksum(y), (tconv_test::checksum{3, 2, 6, 14}));
  EXPECT_FALSE(tconv_test::make_checksum(std::vector<double>{-2, 1, 3}) == tconv_test::make_checksum(y)) << "a swap";
  EXPECT_FALSE(tconv_test::make_checksum(std::vector<double>{1, -2, 3, 0}) == tconv_test::make_checksum(y))
    << "a longer tensor";
}

} // namespace
