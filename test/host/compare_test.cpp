// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The comparer of the GPU tests must fail when it should: each test here hands it something wrong.

#include "../common/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace
{

using tconv_test::compare_convolution;
using tconv_test::compare_values;
using tconv_test::comparison;
using tconv_test::comparison_options;
using tconv_test::element_index;
using tconv_test::layout;
using tconv_test::output_extents;
using tconv_test::tolerance;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan      = std::numeric_limits<float>::quiet_NaN();
constexpr double u       = 0x1p-24;

/// A reference of [2, 3, 2, 3, 4] with distinct values, S twice their size and K = 5, and the right answer to it.
struct problem
{
  output_extents extents{2, 3, 2, 3, 4};
  std::vector<double> value, magnitude;
  std::vector<std::int64_t> terms;
  std::vector<float> bias{0.5f, -2.0f, 0.0f};
  std::vector<float> right;

  problem()
  {
    for (std::int64_t i = 0; i < extents.elements(); ++i)
    {
      value.push_back(std::sin(static_cast<double>(i)) * 3.0);
      magnitude.push_back(2.0 * std::fabs(value.back()));
      terms.push_back(5);
      right.push_back(
        static_cast<float>(value.back() + static_cast<double>(bias[static_cast<std::size_t>(i / 24 % 3)])));
    }
  }

  comparison compare(const std::vector<float>& got, const comparison_options& options = {}) const
  {
    return compare_convolution(
      got.data(), {value.data(), magnitude.data(), terms.data(), bias.data()}, extents, options);
  }
};

/// Flat index 101 of [2, 3, 2, 3, 4] by hand: 101 = ((((1*3 + 1)*2 + 0)*3 + 1)*4 + 1.
constexpr std::size_t some_index = 101;
constexpr element_index some_place{1, 1, 0, 1, 1};

TEST(compare, accepts_the_right_answer)
{
  const problem p;
  const comparison c = p.compare(p.right);
  EXPECT_TRUE(c);
  EXPECT_TRUE(c.ok());
  EXPECT_EQ(c.count, 144);
  EXPECT_EQ(c.bad, 0);
  EXPECT_GT(c.worst, 0.0) << "rounding to fp32 is an error, though a small one";
  EXPECT_LT(c.worst, 0.1);
}

TEST(compare, rejects_one_wrong_element_and_names_it)
{
  const problem p;
  std::vector<float> got = p.right;
  got[some_index] += 1e-4f;
  const comparison c = p.compare(got);
  EXPECT_FALSE(c);
  EXPECT_EQ(c.bad, 1);
  EXPECT_TRUE(c.first_bad == some_place) << c.first_bad;
  EXPECT_TRUE(c.worst_at == some_place) << c.worst_at;
  EXPECT_GT(c.worst, 1.0);
  EXPECT_NE(c.message().find("1 of 144"), std::string::npos) << c.message();
  EXPECT_NE(c.message().find("(n=1, c=1, d=0, h=1, w=1)"), std::string::npos) << c.message();
}

TEST(compare, names_the_first_and_the_worst)
{
  const problem p;
  std::vector<float> got = p.right;
  got[some_index] += 1e-4f;
  got[143] += 1.0f;
  const comparison c = p.compare(got);
  EXPECT_EQ(c.bad, 2);
  EXPECT_TRUE(c.first_bad == some_place) << c.first_bad;
  EXPECT_TRUE((c.worst_at == element_index{1, 2, 1, 2, 3})) << c.worst_at;
}

TEST(compare, rejects_nan_and_infinity_where_the_reference_is_finite)
{
  const problem p;
  for (const float bad : {nan, -nan, infinity, -infinity})
  {
    for (const std::size_t at : {std::size_t{0}, some_index, std::size_t{143}})
    {
      std::vector<float> got = p.right;
      got[at]                = bad;
      const comparison c     = p.compare(got);
      EXPECT_FALSE(c) << bad;
      EXPECT_EQ(c.bad, 1);
      EXPECT_EQ(c.worst, std::numeric_limits<double>::infinity());
    }
  }
}

TEST(compare, rejects_an_unwritten_element)
{
  // Outputs are poisoned with 0xff bytes, a NaN, before a launch.
  const problem p;
  std::vector<float> got = p.right;
  std::memset(&got[some_index], 0xff, sizeof(float));
  const comparison c = p.compare(got);
  EXPECT_FALSE(c);
  EXPECT_TRUE(c.first_bad == some_place);

  std::vector<float> never(got.size());
  std::memset(never.data(), 0xff, never.size() * sizeof(float));
  EXPECT_EQ(p.compare(never).bad, 144);
}

TEST(compare, rejects_a_zero_tensor)
{
  // Also where the values are as small as those of a wide softmax: the bound is relative to them.
  problem p;
  EXPECT_FALSE(p.compare(std::vector<float>(144, 0.0f)));
  for (std::size_t i = 0; i < 144; ++i)
  {
    p.value[i] *= 1e-12;
    p.magnitude[i] *= 1e-12;
  }
  p.bias             = {0.0f, 0.0f, 0.0f};
  const comparison c = p.compare(std::vector<float>(144, 0.0f));
  EXPECT_FALSE(c);
  EXPECT_EQ(c.bad, 143) << "all but sin(0)";

  const std::vector<double> small(144, 1e-6);
  EXPECT_FALSE(compare_values(std::vector<float>(144, 0.0f).data(), small.data(), p.extents, [](std::int64_t, double) {
    return tolerance{0.0, 1e-5};
  }));
}

TEST(compare, rejects_a_missing_or_misplaced_bias)
{
  const problem p;
  std::vector<float> without;
  std::vector<float> swapped;
  for (std::size_t i = 0; i < 144; ++i)
  {
    without.push_back(static_cast<float>(p.value[i]));
    swapped.push_back(static_cast<float>(p.value[i] + static_cast<double>(p.bias[(i / 24 + 1) % 3])));
  }
  EXPECT_EQ(p.compare(without).bad, 96) << "the third channel has no bias";
  EXPECT_EQ(p.compare(swapped).bad, 144);
}

TEST(compare, rejects_the_wrong_order)
{
  const problem p;
  std::vector<float> channels_last(144);
  for (std::size_t n = 0; n < 2; ++n)
  {
    for (std::size_t c = 0; c < 3; ++c)
    {
      for (std::size_t s = 0; s < 24; ++s)
      {
        channels_last[(n * 24 + s) * 3 + c] = p.right[(n * 3 + c) * 24 + s];
      }
    }
  }
  EXPECT_FALSE(p.compare(channels_last));
  comparison_options options;
  options.order = layout::channels_last;
  EXPECT_TRUE(p.compare(channels_last, options));
  EXPECT_FALSE(p.compare(p.right, options));

  // The place is named in N, C, D, H, W whatever the order: position (0, 1, 1) = 5 of sample 1, channel 1.
  channels_last[(24 + 5) * 3 + 1] += 1.0f;
  EXPECT_TRUE(p.compare(channels_last, options).first_bad == some_place);
}

TEST(compare, comparing_nothing_fails)
{
  const problem p;
  const output_extents empty{0, 3, 2, 3, 4};
  const comparison c = compare_convolution(
    p.right.data(), {p.value.data(), p.magnitude.data(), p.terms.data(), nullptr}, empty);
  EXPECT_FALSE(c);
  EXPECT_NE(c.message().find("nothing"), std::string::npos);
}

// The bound itself: (K + 8) * 2^-24 * (S + |b|) + ulp_out / 2 + K * 2^-149.

/// Compares one value that is off by \p error.
comparison off_by(
  double error, double value, double magnitude, std::int64_t terms, float bias, const comparison_options& options = {})
{
  // The output is fp32: what it is off by is put into the reference instead.
  const double reference = value - error - static_cast<double>(bias);
  const auto got         = static_cast<float>(value);
  return compare_convolution(&got, {&reference, &magnitude, &terms, &bias}, {1, 1, 1, 1, 1}, options);
}

TEST(compare_bound, is_the_contract)
{
  // Value 1, so that ulp / 2 = u just above and the reference just below has u too at most.
  for (const std::int64_t terms : {1, 8, 256, 8000})
  {
    for (const double magnitude : {1.0, 3.0, 100.0})
    {
      for (const float bias : {0.0f, 0.25f, -7.0f})
      {
        const double bound = (static_cast<double>(terms) + 8) * u * (magnitude + std::fabs(static_cast<double>(bias)))
                           + u;
        EXPECT_TRUE(off_by(-bound * 0.999, 1.0, magnitude, terms, bias));
        EXPECT_FALSE(off_by(-bound * 1.001, 1.0, magnitude, terms, bias));
        EXPECT_TRUE(off_by(bound * 0.999, 1.0, magnitude, terms, bias)) << "both signs";
        EXPECT_FALSE(off_by(bound * 1.001, 1.0, magnitude, terms, bias));
      }
    }
  }
}

TEST(compare_bound, worst_error_is_in_units_of_the_bound)
{
  const double bound = (10 + 8) * u * 4.0 + u;
  EXPECT_NEAR(off_by(-bound / 4, 1.0, 4.0, 10, 0.0f).worst, 0.25, 1e-9);
  EXPECT_NEAR(off_by(-bound * 8, 1.0, 4.0, 10, 0.0f).worst, 8.0, 1e-6);
}

TEST(compare_bound, without_terms_only_the_bias_counts)
{
  EXPECT_TRUE(off_by(0.0, 0.5, 0.0, 0, 0.5f));
  EXPECT_FALSE(off_by(1e-5, 0.5, 0.0, 0, 0.5f));
  EXPECT_FALSE(off_by(1e-40, 0.0, 0.0, 0, 0.0f)) << "nothing lands and no bias: exactly 0";
}

TEST(compare_bound, subnormal_products_have_an_absolute_term)
{
  EXPECT_TRUE(off_by(16 * 0x1p-149, 0.0, 1e-44, 16, 0.0f)) << "each of K products may lose half a subnormal";
  EXPECT_FALSE(off_by(20 * 0x1p-149, 0.0, 1e-44, 16, 0.0f));
}

TEST(compare_bound, tf32_adds_its_share)
{
  comparison_options tf32;
  tf32.extra = 0x1p-10;
  EXPECT_FALSE(off_by(0.9 * 0x1p-10 * 4.0, 1.0, 4.0, 10, 0.0f)) << "TF32 in precise mode must fail";
  EXPECT_TRUE(off_by(0.9 * 0x1p-10 * 4.0, 1.0, 4.0, 10, 0.0f, tf32));
  EXPECT_FALSE(off_by(1.1 * 0x1p-10 * 4.0, 1.0, 4.0, 10, 0.0f, tf32));
}

TEST(compare_bound, sixteen_bit_outputs_round_more)
{
  comparison_options half;
  comparison_options brain;
  half.format  = tconv_test::float16;
  brain.format = tconv_test::bfloat16;
  EXPECT_FALSE(off_by(0x1p-12, 1.0, 1.0, 4, 0.0f));
  EXPECT_TRUE(off_by(0x1p-12, 1.0, 1.0, 4, 0.0f, half)) << "half of 2^-10 is 2^-11";
  EXPECT_FALSE(off_by(0x1p-10, 1.0, 1.0, 4, 0.0f, half));
  EXPECT_TRUE(off_by(0x1p-9, 1.0, 1.0, 4, 0.0f, brain));
  EXPECT_FALSE(off_by(0x1p-7, 1.0, 1.0, 4, 0.0f, brain));
}

TEST(compare_bound, spacing_of_the_formats)
{
  using tconv_test::ulp;
  EXPECT_EQ(ulp(1.0), 0x1p-23);
  EXPECT_EQ(ulp(1.9999), 0x1p-23);
  EXPECT_EQ(ulp(-2.0), 0x1p-22);
  EXPECT_EQ(ulp(0.0), 0x1p-149);
  EXPECT_EQ(ulp(1e-45), 0x1p-149);
  EXPECT_EQ(ulp(0x1p-126), 0x1p-149);
  EXPECT_EQ(ulp(0x1p-125), 0x1p-148);
  EXPECT_EQ(ulp(1.0, tconv_test::float16), 0x1p-10);
  EXPECT_EQ(ulp(0x1p-14, tconv_test::float16), 0x1p-24);
  EXPECT_EQ(ulp(1e-8, tconv_test::float16), 0x1p-24);
  EXPECT_EQ(ulp(1.0, tconv_test::bfloat16), 0x1p-7);
  EXPECT_EQ(ulp(0x1p-126, tconv_test::bfloat16), 0x1p-133);
}

TEST(compare_bound, beyond_the_contract_is_reported_and_not_waved_through)
{
  const comparison c = off_by(0.0, 1.0, 2e38, 4, 0.0f);
  EXPECT_FALSE(c);
  EXPECT_NE(c.message().find("contract"), std::string::npos) << c.message();
  EXPECT_FALSE(off_by(0.0, 1.0, 1.6e38, 4, 2e37f)) << "the bias counts";
  EXPECT_TRUE(off_by(0.0, 1.0, 1.6e38, 4, 0.0f));
}

// NaN and infinities of the reference.

comparison against(float got, double reference, bool infinity_may_change = false)
{
  const double magnitude   = std::fabs(reference);
  const std::int64_t terms = 3;
  comparison_options options;
  options.infinity_may_change = infinity_may_change;
  return compare_convolution(&got, {&reference, &magnitude, &terms, nullptr}, {1, 1, 1, 1, 1}, options);
}

TEST(compare_special, nan_only_for_nan)
{
  const double wanted = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(against(nan, wanted));
  EXPECT_TRUE(against(-nan, wanted));
  for (const bool may_change : {false, true})
  {
    EXPECT_FALSE(against(0.0f, wanted, may_change));
    EXPECT_FALSE(against(infinity, wanted, may_change));
  }
}

TEST(compare_special, infinity_only_for_the_same_infinity)
{
  const double wanted = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(against(infinity, wanted));
  EXPECT_TRUE(against(-infinity, -wanted));
  EXPECT_FALSE(against(-infinity, wanted));
  EXPECT_FALSE(against(nan, wanted));
  EXPECT_FALSE(against(std::numeric_limits<float>::max(), wanted));
}

TEST(compare_special, an_engine_may_be_allowed_to_change_an_infinity)
{
  const double wanted = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(against(nan, wanted, true));
  EXPECT_TRUE(against(infinity, wanted, true));
  EXPECT_FALSE(against(0.0f, wanted, true)) << "but not to lose it";
  EXPECT_FALSE(against(3e38f, wanted, true));
}

TEST(compare_special, minus_infinity_by_bias)
{
  // A masked class: bias -inf.
  const double value       = 1.0;
  const double magnitude   = 2.0;
  const std::int64_t terms = 3;
  const float bias         = -infinity;
  const auto compare       = [&](float got) {
    return compare_convolution(&got, {&value, &magnitude, &terms, &bias}, {1, 1, 1, 1, 1});
  };
  EXPECT_TRUE(compare(-infinity));
  EXPECT_FALSE(compare(1.0f));
  EXPECT_FALSE(compare(nan));
}

// After an epilogue.

TEST(compare_values, applies_the_bound_of_each_element)
{
  const std::vector<double> expected{1.0, 10.0, 100.0, -1000.0};
  const output_extents e{1, 4, 1, 1, 1};
  const auto bound = [](std::int64_t flat, double) { return flat == 2 ? tolerance{1.0, 0.0} : tolerance{0.0, 1e-3}; };
  const auto check = [&](std::vector<float> got) { return compare_values(got.data(), expected.data(), e, bound); };
  EXPECT_TRUE(check({1.0f, 10.0f, 100.0f, -1000.0f}));
  EXPECT_TRUE(check({1.0009f, 9.991f, 100.9f, -1000.9f}));
  EXPECT_FALSE(check({1.0011f, 10.0f, 100.0f, -1000.0f}));
  EXPECT_FALSE(check({1.0f, 10.0f, 101.1f, -1000.0f}));
  EXPECT_FALSE(check({1.0f, 10.0f, 100.0f, -1001.1f})) << "relative to the magnitude of negative values too";
  EXPECT_FALSE(check({1.0f, nan, 100.0f, -1000.0f}));
  EXPECT_TRUE((check({1.0f, 10.0f, 100.0f, 1000.0f}).first_bad == element_index{0, 3, 0, 0, 0}));
}

TEST(compare_values, hands_the_expected_value_to_the_bound)
{
  const double expected = 8.0;
  const float got       = 8.5f;
  EXPECT_TRUE(compare_values(&got, &expected, {1, 1, 1, 1, 1}, [](std::int64_t flat, double v) {
    EXPECT_EQ(flat, 0);
    return tolerance{v / 10, 0.0};
  }));
}

TEST(compare_values, a_zero_or_senseless_tolerance_means_exact)
{
  const double expected = 1.0;
  for (const tolerance t : {tolerance{0.0, 0.0}, tolerance{-1.0, 0.0}, tolerance{std::nan(""), 0.0}})
  {
    const auto bound  = [t](std::int64_t, double) { return t; };
    const float right = 1.0f;
    const float wrong = std::nextafter(1.0f, 2.0f);
    EXPECT_TRUE(compare_values(&right, &expected, {1, 1, 1, 1, 1}, bound));
    EXPECT_FALSE(compare_values(&wrong, &expected, {1, 1, 1, 1, 1}, bound));
  }
}

TEST(compare_values, an_infinite_tolerance_still_rejects_nan)
{
  const double expected = 1.0;
  const auto bound      = [](std::int64_t, double) { return tolerance{std::numeric_limits<double>::infinity(), 0.0}; };
  EXPECT_FALSE(compare_values(&nan, &expected, {1, 1, 1, 1, 1}, bound));
  EXPECT_FALSE(compare_values(&infinity, &expected, {1, 1, 1, 1, 1}, bound));
}

TEST(compare, prints_its_message_when_it_fails)
{
  const problem p;
  std::vector<float> got             = p.right;
  got[some_index]                    = nan;
  const testing::AssertionResult out = p.compare(got);
  EXPECT_FALSE(out);
  EXPECT_NE(std::string(out.message()).find("(n=1, c=1, d=0, h=1, w=1)"), std::string::npos) << out.message();
}

} // namespace
