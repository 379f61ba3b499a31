// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Softmax over channels: one thread's row, a row spread over four threads, and the double reference.

#include "../common/random.hpp"
#include "../tables/functor_tables.hpp"
#include "shared_row.hpp"

#include <tconv/reference/chain.hpp>
#include <tconv/reference/softmax.hpp>
#include <tconv/thread/row.hpp>
#include <tconv/thread/softmax.hpp>
#include <tconv/thread/specialise.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace
{

using floats  = std::vector<float>;
using doubles = std::vector<double>;
using tconv_test::shared_row;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan      = std::numeric_limits<float>::quiet_NaN();

floats by_one_thread(floats row)
{
  tconv::thread_row r(row.data(), static_cast<int>(row.size()));
  tconv::channel_softmax{}(r);
  return row;
}

doubles by_reference(const floats& row)
{
  doubles result(row.begin(), row.end());
  tconv::reference::evaluate(tconv::channel_softmax{}, result);
  return result;
}

floats by_four_threads(const floats& row)
{
  return shared_row(row).run(tconv::channel_softmax{});
}

/// Bound of the fp32 form at a logit \p below the peak: one rounding of the difference (an absolute error in the exponent is a
/// relative one of the result), expf (1 ulp, 2^-23), C - 1 additions of positive numbers, one division, one product; relative.
/// Below fp32's normal numbers the absolute error of expf counts.
double bound(std::size_t channels, double below, double value)
{
  return (std::fabs(below) + 2 + static_cast<double>(channels) + 2) * 0x1p-24 * value * 1.01 + 2 * 0x1p-149;
}

/// Both fp32 forms against the reference, and all sums against 1.
void check_row(const floats& row)
{
  const doubles expected = by_reference(row);
  const double peak      = static_cast<double>(*std::max_element(row.begin(), row.end()));
  for (const auto& [form, result] : {std::pair<const char*, floats>{"one thread", by_one_thread(row)},
                                     std::pair<const char*, floats>{"four threads", by_four_threads(row)}})
  {
    double sum   = 0;
    double slack = 0;
    for (std::size_t c = 0; c < row.size(); ++c)
    {
      const double below = std::isinf(row[c]) ? 0.0 : peak - static_cast<double>(row[c]);
      const double limit = bound(row.size(), below, expected[c]);
      ASSERT_NEAR(static_cast<double>(result[c]), expected[c], limit) << form << ", channel " << c;
      sum += static_cast<double>(result[c]);
      slack += limit;
    }
    ASSERT_NEAR(sum, 1.0, slack) << form;
  }
}

void expect_all_nan(const floats& row)
{
  const floats one        = by_one_thread(row);
  const floats four       = by_four_threads(row);
  const doubles reference = by_reference(row);
  for (std::size_t c = 0; c < row.size(); ++c)
  {
    ASSERT_TRUE(std::isnan(one[c])) << "one thread, channel " << c;
    ASSERT_TRUE(std::isnan(four[c])) << "four threads, channel " << c;
    ASSERT_TRUE(std::isnan(reference[c])) << "reference, channel " << c;
  }
}

/// What specialise() makes of a chain, on one row.
struct softmax_then_sigmoid
{
  template <class Row>
  void operator()(Row& row) const
  {
    const auto chain = tconv::detail::specialise(tconv::chain(tconv::channel_softmax(), tconv::sigmoid()));
    static_assert(
      std::is_same<decltype(chain.rest.first), tconv::detail::probability_sigmoid>::value, "not specialised");
    chain.first(row);
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] = chain.rest.first(row[i]);
    }
  }
};

TEST(softmax, against_the_table)
{
  for (const auto& entry : tconv_test::tables::softmax)
  {
    const floats row(entry.logits, entry.logits + entry.channels);
    SCOPED_TRACE(testing::PrintToString(row));
    const doubles reference = by_reference(row);
    for (std::size_t c = 0; c < row.size(); ++c)
    {
      EXPECT_NEAR(reference[c], entry.values[c], 1e-14 * entry.values[c] + 1e-300) << "reference, channel " << c;
    }
    check_row(row);
  }
}

TEST(softmax, random_rows)
{
  for (const int channels : {1, 2, 3, 5, 16, 31, 32, 33, 64, 100, 255, 1000, 1025, 4096, 8192})
  {
    tconv_test::random_stream random(static_cast<std::uint32_t>(channels));
    SCOPED_TRACE(testing::Message() << channels << " channels, " << random.replay());
    for (const float spread : {0.1f, 5.0f, 60.0f, 1000.0f})
    {
      floats row(static_cast<std::size_t>(channels));
      for (float& v : row)
      {
        v = random.real(-spread, spread);
      }
      check_row(row);
    }
  }
}

TEST(softmax, equal_logits_give_one_over_c_correctly_rounded)
{
  for (const int channels : {1, 2, 4, 8, 32, 64, 128, 512, 1000, 1024, 1025, 2048, 4096, 8192, 3, 7, 100})
  {
    const float expected = 1.0f / static_cast<float>(channels);
    for (const float logit : {0.0f, 1.0f, -3.7f, 88.8f, -1e30f, 3e38f})
    {
      const floats row(static_cast<std::size_t>(channels), logit);
      const floats one        = by_one_thread(row);
      const floats four       = by_four_threads(row);
      const doubles reference = by_reference(row);
      for (std::size_t c = 0; c < row.size(); ++c)
      {
        ASSERT_EQ(one[c], expected) << channels << " channels of " << logit;
        ASSERT_EQ(four[c], expected) << channels << " channels of " << logit;
        ASSERT_EQ(reference[c], 1.0 / channels) << channels << " channels of " << logit;
      }
    }
  }
}

TEST(softmax, a_common_offset_changes_nothing)
{
  // Offsets at which the logits stay exact: the result must be the same bit for bit.
  const floats row{0.0f, 1.0f, 2.0f, -3.0f, 5.0f};
  const floats expected = by_one_thread(row);
  for (const float offset : {1.0f, 1024.0f, 1e4f, 1e7f, -1e7f, 8e6f})
  {
    floats shifted = row;
    for (float& v : shifted)
    {
      v += offset;
    }
    EXPECT_EQ(by_one_thread(shifted), expected) << offset;
    EXPECT_EQ(by_reference(shifted), by_reference(row)) << offset;
  }
}

TEST(softmax, finite_rows_never_overflow)
{
  constexpr float most = std::numeric_limits<float>::max();
  EXPECT_EQ(by_one_thread({most, most}), (floats{0.5f, 0.5f}));
  EXPECT_EQ(by_one_thread({-most, -most}), (floats{0.5f, 0.5f}));
  EXPECT_EQ(by_one_thread({-most, most}), (floats{0.0f, 1.0f})) << "the difference overflows to -inf, exp of it is 0";
  EXPECT_EQ(by_one_thread({0.0f, most, 0.0f}), (floats{0.0f, 1.0f, 0.0f}));
  EXPECT_EQ(by_reference({-most, most}), (doubles{0.0, 1.0}));
}

TEST(softmax, minus_infinity_is_exactly_zero)
{
  // Case A11: 1024 of 2048 channels masked, in every arrangement that has tripped somebody.
  constexpr std::size_t channels = 2048;
  const auto first_half          = [](std::size_t c) { return c < channels / 2; };
  const auto last_half           = [](std::size_t c) { return c >= channels / 2; };
  const auto every_other         = [](std::size_t c) { return c % 2 == 0; };
  // All channels of one of four threads, so that its own maximum is -inf.
  const auto of_one_thread = [](std::size_t c) { return c % 4 == 1; };
  const auto check         = [](const auto& masked) {
    floats row(channels, 0.0f);
    std::size_t open = 0;
    for (std::size_t c = 0; c < channels; ++c)
    {
      row[c] = masked(c) ? -infinity : 0.0f;
      open += masked(c) ? 0 : 1;
    }
    const floats one        = by_one_thread(row);
    const floats four       = by_four_threads(row);
    const doubles reference = by_reference(row);
    const float expected    = 1.0f / static_cast<float>(open);
    for (std::size_t c = 0; c < channels; ++c)
    {
      ASSERT_EQ(one[c], masked(c) ? 0.0f : expected) << "one thread, channel " << c;
      ASSERT_EQ(four[c], masked(c) ? 0.0f : expected) << "four threads, channel " << c;
      ASSERT_EQ(reference[c], masked(c) ? 0.0 : 1.0 / static_cast<double>(open)) << "reference, channel " << c;
    }
  };
  check(first_half);
  check(last_half);
  check(every_other);
  check(of_one_thread);
  for (const std::size_t open :
       {std::size_t{0}, std::size_t{31}, std::size_t{32}, std::size_t{1023}, std::size_t{1024}, channels - 1})
  {
    check([open](std::size_t c) { return c != open; });
  }
}

TEST(softmax, minus_infinity_beside_other_values)
{
  check_row({-infinity, 0.0f, 1.0f, -infinity, 2.0f});
  check_row({-infinity, -1000.0f});
  check_row({-3e38f, -infinity, -3e38f});
}

TEST(softmax, nothing_but_minus_infinity_is_nan)
{
  for (const std::size_t channels : {1U, 2U, 64U, 2048U})
  {
    expect_all_nan(floats(channels, -infinity));
  }
}

TEST(softmax, plus_infinity_or_nan_anywhere_makes_the_row_nan)
{
  for (const float bad : {infinity, nan, -nan})
  {
    for (const float rest : {0.0f, -1000.0f, 3e38f, -infinity})
    {
      for (const std::size_t channels : {1U, 2U, 7U, 64U})
      {
        for (std::size_t at = 0; at < channels; ++at)
        {
          floats row(channels, rest);
          row[at] = bad;
          SCOPED_TRACE(testing::Message() << bad << " at " << at << " of " << channels << ", rest " << rest);
          expect_all_nan(row);
        }
      }
    }
  }
  expect_all_nan({infinity, infinity});
  expect_all_nan({infinity, -infinity});
  expect_all_nan({nan, infinity, -infinity, 0.0f});
}

TEST(softmax, only_the_row_with_the_nan_is_lost)
{
  // Three positions of four channels, the middle one with a NaN.
  doubles y(12, 0.0);
  y[2 * 3 + 1] = std::numeric_limits<double>::quiet_NaN();
  tconv::reference::apply(tconv::chain(tconv::channel_softmax{}), y.data(), 1, 4, 3);
  for (std::size_t c = 0; c < 4; ++c)
  {
    EXPECT_EQ(y[c * 3], 0.25);
    EXPECT_TRUE(std::isnan(y[c * 3 + 1]));
    EXPECT_EQ(y[c * 3 + 2], 0.25);
  }
}

TEST(softmax, one_channel_is_one)
{
  EXPECT_EQ(by_one_thread({123.0f}), floats{1.0f});
  EXPECT_EQ(by_four_threads({123.0f}), floats{1.0f}) << "three threads hold nothing but padding";
  EXPECT_EQ(by_reference({-1e30f}), doubles{1.0});
}

// The row and its reductions.

// What launchers apply in place of softmax and sigmoid: the softmax's bound through the sigmoid's slope of at most 1/4, the polynomial's
// error, and the rounding of the result.
TEST(softmax, with_sigmoid_in_one_functor)
{
  tconv_test::random_stream random(90210);
  for (int i = 0; i < 400; ++i)
  {
    const auto channels = static_cast<std::size_t>(random.integer(1, 130));
    const float spread  = i % 4 == 0 ? 0.1f : (i % 4 == 1 ? 3.0f : 40.0f);
    floats row(channels);
    for (float& v : row)
    {
      v = random.real(-spread, spread);
    }
    const doubles softmax = by_reference(row);
    const double peak     = static_cast<double>(*std::max_element(row.begin(), row.end()));
    const floats result   = shared_row(row).run(softmax_then_sigmoid{});
    for (std::size_t c = 0; c < channels; ++c)
    {
      const double expected = 1 / (1 + std::exp(-softmax[c]));
      const double limit    = bound(channels, peak - static_cast<double>(row[c]), softmax[c]) / 4 + 1.1e-7 + 0x1p-25;
      ASSERT_NEAR(static_cast<double>(result[c]), expected, limit) << "channel " << c << " of " << channels;
    }
  }
  const floats lost = shared_row(floats{1.0f, nan, 2.0f}).run(softmax_then_sigmoid{});
  EXPECT_TRUE(std::isnan(lost[0]) && std::isnan(lost[1]) && std::isnan(lost[2]));
  const floats masked = shared_row(floats{1.0f, -infinity, 1.0f}).run(softmax_then_sigmoid{});
  EXPECT_EQ(masked[1], 0.5f);
}

TEST(row, thread_row_holds_every_channel)
{
  float values[] = {1.0f, 2.0f, 3.0f};
  tconv::thread_row row(values, 3);
  EXPECT_EQ(row.size(), 3);
  for (int i = 0; i < 3; ++i)
  {
    EXPECT_TRUE(row.valid(i));
    EXPECT_EQ(row.channel(i), i);
  }
  EXPECT_EQ(row.channels(), 3);
  row[1] = 7.0f;
  EXPECT_EQ(values[1], 7.0f) << "a view, not a copy";
  EXPECT_EQ(row.all_reduce(5.0f, tconv::plus{}), 5.0f);
}

TEST(row, reductions_skip_padding_lanes)
{
  const auto sum_of_squares = [](auto& row) {
    const float sum = tconv::reduce_row(row, 0.0f, tconv::plus{}, [](float v) { return v * v; });
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] = sum;
    }
  };
  EXPECT_EQ(shared_row({1.0f, 2.0f, 3.0f, 4.0f, 5.0f}).run(sum_of_squares), floats(5, 55.0f))
    << "every thread gets the result";
  const auto peak = [](auto& row) {
    const float most = tconv::reduce_row(row, -infinity, tconv::maximum_ignoring_nan{}, [](float v) { return v; });
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] = most;
    }
  };
  EXPECT_EQ(shared_row({-1.0f, -2.0f, -7.0f}).run(peak), floats(3, -1.0f));
}

TEST(row, reductions_without_a_map_and_fill)
{
  const auto largest = [](auto& row) {
    tconv::fill_row(row, tconv::reduce_row(row, -infinity, tconv::maximum_propagating_nan{}));
  };
  EXPECT_EQ(shared_row({-1.0f, -2.0f, -7.0f, -0.5f, -3.0f}).run(largest), floats(5, -0.5f));
  float values[] = {1.0f, 2.0f};
  tconv::thread_row row(values, 2);
  tconv::fill_row(row, 7.0f);
  EXPECT_EQ(values[0], 7.0f);
  EXPECT_EQ(values[1], 7.0f);
}

TEST(row, extrema_that_propagate_nan)
{
  constexpr tconv::maximum_propagating_nan max{};
  constexpr tconv::minimum_propagating_nan min{};
  EXPECT_EQ(max(1.0f, 2.0f), 2.0f);
  EXPECT_EQ(max(2.0f, 1.0f), 2.0f);
  EXPECT_EQ(max(-infinity, -3.0f), -3.0f);
  EXPECT_EQ(min(1.0f, 2.0f), 1.0f);
  EXPECT_EQ(min(2.0f, 1.0f), 1.0f);
  EXPECT_EQ(min(infinity, 3.0f), 3.0f);
  for (const float other : {0.0f, -infinity, infinity, nan})
  {
    EXPECT_TRUE(std::isnan(max(nan, other)) && std::isnan(max(other, nan))) << other;
    EXPECT_TRUE(std::isnan(min(nan, other)) && std::isnan(min(other, nan))) << other;
  }
}

TEST(row, maximum_ignoring_nan_is_what_it_says)
{
  constexpr tconv::maximum_ignoring_nan max{};
  EXPECT_EQ(max(1.0f, 2.0f), 2.0f);
  EXPECT_EQ(max(2.0f, 1.0f), 2.0f);
  EXPECT_EQ(max(nan, 1.0f), 1.0f);
  EXPECT_EQ(max(1.0f, nan), 1.0f);
  EXPECT_EQ(max(-infinity, nan), -infinity);
}

} // namespace
