// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The channel functors beside softmax: log-softmax, logsumexp, reductions and layer normalisation. Each on one thread's row, on
/// a row spread over four threads, and in double.

#include "../common/random.hpp"
#include "../tables/functor_tables.hpp"
#include "shared_row.hpp"

#include <tconv/reference/chain.hpp>
#include <tconv/thread/channel_reduction.hpp>
#include <tconv/thread/layer_norm.hpp>
#include <tconv/thread/softmax.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace
{

namespace tables = tconv_test::tables;
using floats     = std::vector<float>;
using doubles    = std::vector<double>;
using tconv_test::shared_row;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan      = std::numeric_limits<float>::quiet_NaN();
constexpr double u       = 0x1p-24; // the relative error of one rounding

template <class Functor>
floats by_one_thread(const Functor& functor, floats row)
{
  tconv::thread_row r(row.data(), static_cast<int>(row.size()));
  functor(r);
  return row;
}

template <class Functor>
floats by_four_threads(const Functor& functor, const floats& row)
{
  return shared_row(row).run(functor);
}

/// One element where the functor reduces the channels.
template <class Functor>
doubles by_reference(const Functor& functor, const floats& row)
{
  doubles result(row.begin(), row.end());
  tconv::reference::evaluate(functor, result);
  return result;
}

/// Both fp32 forms against \p expected, each channel within \p bound (channel). Of one expected element every channel must hold
/// the result.
template <class Functor, class Bound>
void check(const Functor& functor, const floats& row, const doubles& expected, Bound bound)
{
  ASSERT_TRUE(expected.size() == row.size() || expected.size() == 1);
  for (const auto& [form, result] : {std::pair<const char*, floats>{"one thread", by_one_thread(functor, row)},
                                     std::pair<const char*, floats>{"four threads", by_four_threads(functor, row)}})
  {
    ASSERT_EQ(result.size(), row.size());
    for (std::size_t c = 0; c < row.size(); ++c)
    {
      const double wanted = expected[expected.size() == 1 ? 0 : c];
      const auto got      = static_cast<double>(result[c]);
      if (std::isnan(wanted))
      {
        ASSERT_TRUE(std::isnan(got)) << form << ", channel " << c << ": " << got;
      }
      else if (std::fabs(wanted) > static_cast<double>(std::numeric_limits<float>::max()))
      {
        ASSERT_EQ(got, std::copysign(static_cast<double>(infinity), wanted)) << form << ", channel " << c;
      }
      else
      {
        ASSERT_LE(std::fabs(got - wanted), bound(c))
          << form << ", channel " << c << ": got " << got << ", expected " << wanted;
      }
    }
  }
}

/// Likewise, the expected values from the double reference.
template <class Functor, class Bound>
void check(const Functor& functor, const floats& row, Bound bound)
{
  check(functor, row, by_reference(functor, row), bound);
}

/// A NaN in every channel and in every form.
template <class Functor>
void expect_all_nan(const Functor& functor, const floats& row)
{
  check(functor, row, doubles(row.size(), std::numeric_limits<double>::quiet_NaN()), [](std::size_t) { return 0.0; });
  for (const double v : by_reference(functor, row))
  {
    ASSERT_TRUE(std::isnan(v)) << "reference";
  }
}

/// The same number in every channel and in every form.
template <class Functor>
void expect_all(const Functor& functor, const floats& row, float expected)
{
  const doubles wanted(row.size(), static_cast<double>(expected));
  check(functor, row, wanted, [](std::size_t) { return 0.0; });
  for (const double v : by_reference(functor, row))
  {
    ASSERT_EQ(static_cast<float>(v), expected) << "reference";
  }
}

double largest(const floats& row)
{
  return static_cast<double>(*std::max_element(row.begin(), row.end()));
}

double sum_of_magnitudes(const floats& row)
{
  double sum = 0;
  for (const float v : row)
  {
    sum += std::fabs(static_cast<double>(v));
  }
  return sum;
}

/// Rows of many lengths and spreads.
template <class Visitor>
void for_random_rows(Visitor visit)
{
  for (const int channels : {1, 2, 3, 4, 5, 16, 31, 32, 33, 64, 100, 255, 1000, 1025, 4096})
  {
    tconv_test::random_stream random(static_cast<std::uint32_t>(channels) + 77U);
    for (const float spread : {0.1f, 5.0f, 60.0f, 1000.0f})
    {
      for (const float offset : {0.0f, -3000.0f})
      {
        SCOPED_TRACE(testing::Message() << channels << " channels, spread " << spread << ", offset " << offset << ", "
                                        << random.replay());
        floats row(static_cast<std::size_t>(channels));
        for (float& v : row)
        {
          v = offset + random.real(-spread, spread);
        }
        visit(row);
      }
    }
  }
}

constexpr int awkward_lengths[] = {1, 2, 3, 4, 7, 32, 100, 512, 1000, 1025, 2048, 4096};

// Log-softmax and logsumexp.

/// The sum of exponentials: its terms, sum of at most C of them; the logarithm turns that relative error into an absolute one.
/// The rounding of a difference d to the peak weighs d e^-d < 0.37 there.
double log_of_total(std::size_t channels)
{
  return (static_cast<double>(channels) + 4 + std::log(static_cast<double>(channels))) * u;
}

/// The difference to the peak, the logarithm, the difference of both.
auto log_softmax_bound(const floats& row, const doubles& expected)
{
  return [&row, &expected](std::size_t c) {
    const double below = largest(row) - static_cast<double>(row[c]);
    return (std::isinf(below) ? 0.0 : below * u) + log_of_total(row.size()) + u * std::fabs(expected[c]) + 0x1p-149;
  };
}

double logsumexp_bound(const floats& row, double expected)
{
  return log_of_total(row.size()) + u * std::fabs(expected);
}

TEST(log_softmax, against_the_table)
{
  for (const tables::softmax_row& entry : tables::softmax)
  {
    const floats row(entry.logits, entry.logits + entry.channels);
    const doubles expected(entry.logarithms, entry.logarithms + entry.channels);
    SCOPED_TRACE(testing::PrintToString(row));
    const doubles reference = by_reference(tconv::channel_log_softmax{}, row);
    for (std::size_t c = 0; c < row.size(); ++c)
    {
      if (std::isinf(expected[c]))
      {
        EXPECT_EQ(reference[c], expected[c]) << "reference, channel " << c;
      }
      else
      {
        EXPECT_NEAR(reference[c], expected[c], 1e-14 * std::fabs(expected[c])) << "reference, channel " << c;
      }
    }
    check(tconv::channel_log_softmax{}, row, expected, log_softmax_bound(row, expected));
  }
}

TEST(log_softmax, random_rows)
{
  for_random_rows([](const floats& row) {
    const doubles expected = by_reference(tconv::channel_log_softmax{}, row);
    check(tconv::channel_log_softmax{}, row, expected, log_softmax_bound(row, expected));
  });
}

TEST(log_softmax, is_the_logarithm_of_softmax)
{
  const floats row{0.5f, -1.25f, 2.0f, 0.0f, -3.5f};
  const doubles logarithms = by_reference(tconv::channel_log_softmax{}, row);
  const doubles values     = by_reference(tconv::channel_softmax{}, row);
  const doubles total      = by_reference(tconv::channel_logsumexp{}, row);
  for (std::size_t c = 0; c < row.size(); ++c)
  {
    EXPECT_NEAR(logarithms[c], std::log(values[c]), 1e-14);
    EXPECT_NEAR(logarithms[c], static_cast<double>(row[c]) - total[0], 1e-14);
  }
}

TEST(log_softmax, a_common_offset_changes_nothing)
{
  // Case A10: integers came back where max + log(sum) was formed first. At offsets where the logits stay exact the result must
  // be the same bit for bit.
  const floats row{0.0f, 1.0f, 2.0f, -3.0f, 5.0f};
  const floats expected = by_one_thread(tconv::channel_log_softmax{}, row);
  for (const float offset : {1.0f, 1024.0f, 1e4f, 1e7f, -1e7f, 8e6f})
  {
    floats shifted = row;
    for (float& v : shifted)
    {
      v += offset;
    }
    EXPECT_EQ(by_one_thread(tconv::channel_log_softmax{}, shifted), expected) << offset;
    EXPECT_EQ(by_reference(tconv::channel_log_softmax{}, shifted), by_reference(tconv::channel_log_softmax{}, row));
  }
}

TEST(log_softmax, large_logits_of_case_a10)
{
  const auto expect = [](const floats& row, const doubles& expected) {
    const floats result = by_one_thread(tconv::channel_log_softmax{}, row);
    for (std::size_t c = 0; c < row.size(); ++c)
    {
      EXPECT_NEAR(static_cast<double>(result[c]), expected[c], 2.5e-7) << c;
    }
  };
  const float t = -1e7f;
  expect({t, t, t}, {-1.0986123, -1.0986123, -1.0986123});
  expect({t, t, t + 1}, {-1.5514447, -1.5514447, -0.5514447});
  expect({t, t + 1, t + 1}, {-1.8619948, -0.8619948, -0.8619948});
}

TEST(log_softmax, one_channel_is_exactly_zero)
{
  // Case A09.
  for (const float v : {0.0f, 123.0f, -1e30f, 3e38f, -1e-40f})
  {
    expect_all(tconv::channel_softmax{}, {v}, 1.0f);
    expect_all(tconv::channel_log_softmax{}, {v}, 0.0f);
    expect_all(tconv::channel_logsumexp{}, {v}, v);
  }
}

TEST(log_softmax, masked_channels)
{
  // Case A11: 1024 of 2048 channels at -inf, then all but one.
  constexpr std::size_t channels = 2048;
  const auto check_mask          = [](const auto& masked) {
    floats row(channels, 0.0f);
    double open = 0;
    for (std::size_t c = 0; c < channels; ++c)
    {
      row[c] = masked(c) ? -infinity : 0.0f;
      open += masked(c) ? 0 : 1;
    }
    doubles expected(channels);
    for (std::size_t c = 0; c < channels; ++c)
    {
      expected[c] = masked(c) ? -std::numeric_limits<double>::infinity() : -std::log(open);
    }
    // The sum is exact, so the logarithm alone is rounded, and log(1) is 0.
    check(tconv::channel_log_softmax{}, row, expected, [&](std::size_t) { return 2 * u * std::log(open); });
    check(tconv::channel_logsumexp{}, row, {std::log(open)}, [&](std::size_t) { return 2 * u * std::log(open); });
    const doubles reference = by_reference(tconv::channel_log_softmax{}, row);
    for (std::size_t c = 0; c < channels; ++c)
    {
      ASSERT_EQ(std::isinf(reference[c]), masked(c)) << c;
      ASSERT_TRUE(masked(c) || std::fabs(reference[c] - expected[c]) <= 1e-15 * std::log(open)) << c;
    }
  };
  check_mask([](std::size_t c) { return c < channels / 2; });
  check_mask([](std::size_t c) { return c >= channels / 2; });
  check_mask([](std::size_t c) { return c % 2 == 0; });
  check_mask([](std::size_t c) { return c % 4 == 1; });
  for (const std::size_t open :
       {std::size_t{0}, std::size_t{31}, std::size_t{32}, std::size_t{1023}, std::size_t{1024}, channels - 1})
  {
    check_mask([open](std::size_t c) { return c != open; });
  }
}

TEST(log_softmax, equal_logits_are_minus_log_c)
{
  // Case A12; the sum of ones is exact.
  for (const int channels : awkward_lengths)
  {
    const double expected = std::log(static_cast<double>(channels));
    for (const float logit : {0.0f, -3.7f, 1e30f})
    {
      const floats row(static_cast<std::size_t>(channels), logit);
      check(tconv::channel_log_softmax{}, row, doubles(row.size(), -expected), [&](std::size_t) {
        return 2 * u * expected;
      });
    }
    check(tconv::channel_logsumexp{}, floats(static_cast<std::size_t>(channels), 0.0f), {expected}, [&](std::size_t) {
      return 2 * u * expected;
    });
  }
}

TEST(log_softmax, nan_plus_infinity_and_nothing_but_minus_infinity)
{
  for (const float bad : {infinity, nan, -nan})
  {
    for (const float rest : {0.0f, -1000.0f, 3e38f, -infinity})
    {
      for (const std::size_t channels : {1U, 2U, 7U, 64U})
      {
        for (std::size_t at = 0; at < channels; at += 1 + at / 8)
        {
          floats row(channels, rest);
          row[at] = bad;
          SCOPED_TRACE(testing::Message() << bad << " at " << at << " of " << channels << ", rest " << rest);
          expect_all_nan(tconv::channel_log_softmax{}, row);
          if (std::isnan(bad))
          {
            expect_all_nan(tconv::channel_logsumexp{}, row);
          }
          else
          {
            expect_all(tconv::channel_logsumexp{}, row, infinity);
          }
        }
      }
    }
  }
  for (const std::size_t channels : {1U, 2U, 64U, 2048U})
  {
    expect_all_nan(tconv::channel_log_softmax{}, floats(channels, -infinity));
    expect_all(tconv::channel_logsumexp{}, floats(channels, -infinity), -infinity);
  }
  expect_all(tconv::channel_logsumexp{}, {infinity, infinity}, infinity);
  expect_all(tconv::channel_logsumexp{}, {100.0f, infinity, -infinity, 100.0f}, infinity);
  expect_all_nan(tconv::channel_logsumexp{}, {nan, infinity, -infinity, 0.0f});
  expect_all_nan(tconv::channel_logsumexp{}, {infinity, nan});
}

TEST(logsumexp, against_the_table)
{
  for (const tables::softmax_row& entry : tables::softmax)
  {
    const floats row(entry.logits, entry.logits + entry.channels);
    SCOPED_TRACE(testing::PrintToString(row));
    EXPECT_NEAR(by_reference(tconv::channel_logsumexp{}, row)[0], entry.logsumexp, 1e-14 * std::fabs(entry.logsumexp));
    check(tconv::channel_logsumexp{}, row, {entry.logsumexp}, [&](std::size_t) {
      return logsumexp_bound(row, entry.logsumexp);
    });
  }
}

TEST(logsumexp, random_rows)
{
  for_random_rows([](const floats& row) {
    const doubles expected = by_reference(tconv::channel_logsumexp{}, row);
    ASSERT_EQ(expected.size(), 1U);
    check(tconv::channel_logsumexp{}, row, expected, [&](std::size_t) { return logsumexp_bound(row, expected[0]); });
  });
}

TEST(logsumexp, finite_rows_never_overflow)
{
  constexpr float most = std::numeric_limits<float>::max();
  expect_all(tconv::channel_logsumexp{}, {most, most}, most);
  expect_all(tconv::channel_logsumexp{}, {-most, -most}, -most);
  expect_all(tconv::channel_logsumexp{}, {-most, most}, most);
  expect_all(tconv::channel_logsumexp{}, {-infinity, -3e38f}, -3e38f);
}

// Reductions.

TEST(channel_reduction, against_the_table)
{
  for (const tables::channel_row& entry : tables::channels)
  {
    const floats row(entry.v, entry.v + entry.channels);
    SCOPED_TRACE(testing::PrintToString(row));
    const double magnitude = sum_of_magnitudes(row);
    const auto count       = static_cast<double>(row.size());
    const auto exactly     = [](std::size_t) { return 0.0; };
    check(tconv::channel_min{}, row, {entry.min}, exactly);
    check(tconv::channel_max{}, row, {entry.max}, exactly);
    check(tconv::channel_sum{}, row, {entry.sum}, [&](std::size_t) { return (count - 1) * u * magnitude; });
    check(tconv::channel_mean{}, row, {entry.mean}, [&](std::size_t) {
      return (count + 2) * u * magnitude / count + 0x1p-149;
    });
    EXPECT_EQ(by_reference(tconv::channel_min{}, row), doubles{entry.min});
    EXPECT_EQ(by_reference(tconv::channel_max{}, row), doubles{entry.max});
    EXPECT_NEAR(by_reference(tconv::channel_sum{}, row).at(0), entry.sum, count * 0x1p-52 * magnitude);
    EXPECT_NEAR(by_reference(tconv::channel_mean{}, row).at(0), entry.mean, 0x1p-52 * magnitude);
  }
}

TEST(channel_reduction, random_rows)
{
  for_random_rows([](const floats& row) {
    const double magnitude = sum_of_magnitudes(row);
    const auto count       = static_cast<double>(row.size());
    const auto exactly     = [](std::size_t) { return 0.0; };
    check(tconv::channel_min{}, row, exactly);
    check(tconv::channel_max{}, row, exactly);
    check(tconv::channel_sum{}, row, [&](std::size_t) { return (count - 1) * u * magnitude + 1e-12 * magnitude; });
    check(tconv::channel_mean{}, row, [&](std::size_t) { return (count + 2) * u * magnitude / count; });
  });
}

TEST(channel_reduction, small_integers_are_exact)
{
  for (const int channels : awkward_lengths)
  {
    floats row;
    double sum = 0;
    for (int c = 0; c < channels; ++c)
    {
      row.push_back(static_cast<float>(c * 7 % 23 - 11));
      sum += static_cast<double>(row.back());
    }
    expect_all(tconv::channel_sum{}, row, static_cast<float>(sum));
    if ((channels & (channels - 1)) == 0)
    {
      expect_all(tconv::channel_mean{}, row, static_cast<float>(sum / channels));
    }
  }
}

TEST(channel_reduction, every_channel_counts)
{
  // The extreme value and the only non-zero one at every place in turn.
  for (std::size_t channels = 1; channels <= 11; ++channels)
  {
    for (std::size_t at = 0; at < channels; ++at)
    {
      floats row(channels, 0.0f);
      row[at] = 8.0f;
      expect_all(tconv::channel_max{}, row, 8.0f);
      expect_all(tconv::channel_sum{}, row, 8.0f);
      row[at] = -8.0f;
      expect_all(tconv::channel_min{}, row, -8.0f);
      row[at] = static_cast<float>(channels);
      check(tconv::channel_mean{}, row, {1.0}, [](std::size_t) { return 2 * u; });
    }
  }
}

TEST(channel_reduction, nan_and_infinities)
{
  for (const std::size_t channels : {1U, 2U, 7U, 64U})
  {
    for (std::size_t at = 0; at < channels; at += 1 + at / 8)
    {
      for (const float rest : {0.0f, infinity, -infinity})
      {
        for (const float bad : {nan, -nan})
        {
          floats row(channels, rest);
          row[at] = bad;
          SCOPED_TRACE(testing::Message() << "NaN at " << at << " of " << channels << ", rest " << rest);
          expect_all_nan(tconv::channel_min{}, row);
          expect_all_nan(tconv::channel_max{}, row);
          expect_all_nan(tconv::channel_sum{}, row);
          expect_all_nan(tconv::channel_mean{}, row);
        }
      }
      floats row(channels, 0.0f);
      row[at] = infinity;
      expect_all(tconv::channel_max{}, row, infinity);
      expect_all(tconv::channel_sum{}, row, infinity);
      expect_all(tconv::channel_mean{}, row, infinity);
      expect_all(tconv::channel_min{}, row, channels == 1 ? infinity : 0.0f);
      row[at] = -infinity;
      expect_all(tconv::channel_min{}, row, -infinity);
      expect_all(tconv::channel_sum{}, row, -infinity);
      expect_all(tconv::channel_max{}, row, channels == 1 ? -infinity : 0.0f);
    }
  }
  expect_all_nan(tconv::channel_sum{}, {infinity, 0.0f, -infinity});
  expect_all_nan(tconv::channel_mean{}, {infinity, 0.0f, -infinity});
  expect_all(tconv::channel_min{}, {infinity, infinity}, infinity);
  expect_all(tconv::channel_max{}, {-infinity, -infinity}, -infinity);
}

// Layer normalisation.

double deviation(const floats& row)
{
  double mean = 0;
  for (const float v : row)
  {
    mean += static_cast<double>(v) / static_cast<double>(row.size());
  }
  double variance = 0;
  for (const float v : row)
  {
    const double d = static_cast<double>(v) - mean;
    variance += d * d / static_cast<double>(row.size());
  }
  return std::sqrt(variance);
}

/// Differences to the first channel are at most R = largest - smallest and round by u R; C of them are added up, so that the
/// centred value is off by (C + 3) u R at most, and the root of the variance by as much, and relatively by (C / 2 + 4) u for
/// its own sum, product and root (rsqrt 2 ulp = 4 u). The last product and sum round the result.
auto layer_norm_bound(const floats& row, const tconv::channel_layer_norm& f, const doubles& expected)
{
  const auto [low, high]  = std::minmax_element(row.begin(), row.end());
  const double range      = static_cast<double>(*high) - static_cast<double>(*low);
  const auto channels     = static_cast<double>(row.size());
  const double root       = std::sqrt(std::pow(deviation(row), 2) + static_cast<double>(f.eps));
  const double of_centred = root == 0.0 ? 0.0 : (channels + 3) * u * range / root;
  return [&f, &expected, channels, of_centred](std::size_t c) {
    const double gamma = f.gamma != nullptr ? static_cast<double>(f.gamma[c]) : 1.0;
    const double beta  = f.beta != nullptr ? static_cast<double>(f.beta[c]) : 0.0;
    const double made  = std::fabs(expected[c] - beta);
    return std::fabs(gamma) * of_centred + made * (of_centred + (channels / 2 + 6) * u) + u * std::fabs(expected[c])
         + 0x1p-149;
  };
}

TEST(layer_norm, against_the_table)
{
  int compared = 0;
  for (const tables::channel_row& entry : tables::channels)
  {
    for (int e = 0; e < 2; ++e)
    {
      const floats row(entry.v, entry.v + entry.channels);
      const doubles expected(entry.layer_norm[e], entry.layer_norm[e] + entry.channels);
      const tconv::channel_layer_norm functor(
        tables::layer_norm_gamma, tables::layer_norm_beta, tables::layer_norm_eps[e]);
      SCOPED_TRACE(testing::Message() << testing::PrintToString(row) << ", eps " << functor.eps);
      const doubles reference = by_reference(functor, row);
      const auto [low, high]  = std::minmax_element(entry.v, entry.v + entry.channels);
      const double range      = static_cast<double>(*high) - static_cast<double>(*low);
      const double root       = std::sqrt(entry.deviation * entry.deviation + static_cast<double>(functor.eps));
      for (std::size_t c = 0; c < row.size(); ++c)
      {
        // Values and mean round by 2^-53 of the largest value, C of them.
        const double gamma   = static_cast<double>(functor.gamma[c]);
        const double largest = range + std::fabs(entry.mean);
        const double slack   = 0x1p-50 * largest / root * (1 + range / root) * std::fabs(gamma);
        EXPECT_NEAR(reference[c], expected[c], (root == 0.0 ? 0.0 : slack) + 1e-14 * std::fabs(expected[c]) + 1e-50)
          << "reference, channel " << c;
      }
      // The squares of fp32 numbers must neither overflow nor vanish, as documented; with eps they may vanish.
      const bool vanishes = entry.deviation != 0.0 && entry.deviation < 0x1p-55 && functor.eps == 0.0f;
      if (range < 0x1p60 && !vanishes)
      {
        check(functor, row, expected, layer_norm_bound(row, functor, expected));
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 28);
}

TEST(layer_norm, random_rows)
{
  for_random_rows([](const floats& row) {
    floats gamma;
    floats beta;
    for (std::size_t c = 0; c < row.size(); ++c)
    {
      gamma.push_back(0.01f * static_cast<float>(c % 300) - 1.0f);
      beta.push_back(0.02f * static_cast<float>(c % 200) - 2.0f);
    }
    for (const tconv::channel_layer_norm& functor : {tconv::channel_layer_norm(),
                                                     tconv::channel_layer_norm(gamma.data()),
                                                     tconv::channel_layer_norm(nullptr, beta.data(), 0.5f),
                                                     tconv::channel_layer_norm(gamma.data(), beta.data(), 0.0f)})
    {
      const doubles expected = by_reference(functor, row);
      check(functor, row, expected, layer_norm_bound(row, functor, expected));
    }
  });
}

TEST(layer_norm, equal_channels_are_exactly_beta)
{
  for (const int channels : awkward_lengths)
  {
    floats beta;
    floats gamma;
    for (int c = 0; c < channels; ++c)
    {
      beta.push_back(0.1f * static_cast<float>(c) - 3.0f);
      gamma.push_back(1000.0f);
    }
    for (const float eps : {1e-5f, 1e-12f, 0.0f})
    {
      for (const float v : {0.0f, 0.1f, -3.7e4f, 1e7f, 3e38f, 1e-40f})
      {
        const floats row(static_cast<std::size_t>(channels), v);
        const tconv::channel_layer_norm functor(gamma.data(), beta.data(), eps);
        const doubles expected(beta.begin(), beta.end());
        check(functor, row, expected, [](std::size_t) { return 0.0; });
        ASSERT_EQ(by_reference(functor, row), expected) << "reference";
      }
    }
  }
}

TEST(layer_norm, a_common_offset_costs_nothing)
{
  // Case A14 across channels: at offsets where the values stay exact the result must be the same bit for bit, for a mean of the
  // squares minus the square of the mean would be pure noise.
  floats row;
  for (int c = 0; c < 128; ++c)
  {
    row.push_back(c % 2 == 0 ? 0.125f : -0.125f);
  }
  row[5] = 0.375f;
  const tconv::channel_layer_norm functor;
  const floats expected                     = by_one_thread(functor, row);
  const floats expected_of_four             = by_four_threads(functor, row);
  const auto [smallest, largest_of_results] = std::minmax_element(expected.begin(), expected.end());
  EXPECT_LT(*smallest, -0.9f);
  EXPECT_GT(*largest_of_results, 2.5f);
  for (const float offset : {5.0f, 4096.0f, 65536.0f, -1e6f})
  {
    floats shifted = row;
    for (float& v : shifted)
    {
      v += offset;
    }
    EXPECT_EQ(by_one_thread(functor, shifted), expected) << offset;
    EXPECT_EQ(by_four_threads(functor, shifted), expected_of_four) << offset;
  }
}

TEST(layer_norm, mean_is_zero_and_variance_one)
{
  floats row;
  for (int c = 0; c < 96; ++c)
  {
    row.push_back(100.0f + 3.0f * std::sin(static_cast<float>(c)));
  }
  double sum     = 0;
  double squares = 0;
  for (const float v : by_four_threads(tconv::channel_layer_norm(nullptr, nullptr, 0.0f), row))
  {
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  EXPECT_NEAR(sum / 96, 0.0, 1e-6);
  EXPECT_NEAR(squares / 96, 1.0, 1e-5) << "the biased variance: 96/95 would be 1.01";
}

TEST(layer_norm, nan_and_infinities_take_the_whole_row)
{
  const floats gamma(64, 0.5f);
  const floats beta(64, 2.0f);
  for (const float bad : {nan, -nan, infinity, -infinity})
  {
    for (const std::size_t channels : {1U, 2U, 7U, 64U})
    {
      for (std::size_t at = 0; at < channels; at += 1 + at / 8)
      {
        for (const float rest : {0.0f, 3.0f, bad})
        {
          floats row(channels, rest);
          row[at] = bad;
          SCOPED_TRACE(testing::Message() << bad << " at " << at << " of " << channels << ", rest " << rest);
          expect_all_nan(tconv::channel_layer_norm(gamma.data(), beta.data()), row);
          expect_all_nan(tconv::channel_layer_norm(nullptr, beta.data(), 0.0f), row);
        }
      }
    }
  }
}

TEST(layer_norm, only_the_row_with_the_nan_is_lost)
{
  doubles y(12, 0.0);
  y[2 * 3 + 1]     = std::numeric_limits<double>::quiet_NaN();
  const float b[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  tconv::reference::apply(tconv::chain(tconv::channel_layer_norm(nullptr, b)), y.data(), 1, 4, 3);
  for (std::size_t c = 0; c < 4; ++c)
  {
    EXPECT_EQ(y[c * 3], static_cast<double>(b[c]));
    EXPECT_TRUE(std::isnan(y[c * 3 + 1]));
    EXPECT_EQ(y[c * 3 + 2], static_cast<double>(b[c]));
  }
}

} // namespace
