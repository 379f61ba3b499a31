// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Moments and BatchNorm: the mergeable state, and the double reference against hand values, public reports (A14 ... as
/// collected) and PyTorch's rules for running statistics.

#include "../common/random.hpp"

#include <tconv/reference/batch_norm.hpp>
#include <tconv/thread/moments.hpp>

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

using tconv::batch_norm_arguments;
using tconv::moments;
using tconv_test::random_stream;

using doubles = std::vector<double>;

template <class T>
moments<T> one_by_one(const std::vector<T>& values)
{
  moments<T> result;
  for (const T v : values)
  {
    result.merge(moments<T>::of(v));
  }
  return result;
}

template <class T>
moments<T> by_halves(const std::vector<T>& values, std::size_t begin, std::size_t end)
{
  if (end - begin <= 1)
  {
    return begin == end ? moments<T>{} : moments<T>::of(values[begin]);
  }
  const std::size_t middle = begin + (end - begin) / 2;
  moments<T> result        = by_halves(values, begin, middle);
  result.merge(by_halves(values, middle, end));
  return result;
}

/// Two passes in long double.
template <class T>
std::pair<double, double> mean_and_m2(const std::vector<T>& values)
{
  long double sum = 0;
  long double m2  = 0;
  for (const T v : values)
  {
    sum += static_cast<long double>(v);
  }
  const long double mean = sum / static_cast<long double>(values.size());
  for (const T v : values)
  {
    m2 += (static_cast<long double>(v) - mean) * (static_cast<long double>(v) - mean);
  }
  return {static_cast<double>(mean), static_cast<double>(m2)};
}

// The state.

template <class T>
class moments_state : public testing::Test
{};
using value_types = testing::Types<float, double>;
TYPED_TEST_SUITE(moments_state, value_types);

TYPED_TEST(moments_state, starts_empty)
{
  const moments<TypeParam> m;
  EXPECT_EQ(m.count, 0);
  EXPECT_EQ(m.mean, 0);
  EXPECT_EQ(m.m2, 0);
}

TYPED_TEST(moments_state, one_value_has_no_spread)
{
  const auto m = moments<TypeParam>::of(TypeParam(-7.25));
  EXPECT_EQ(m.count, 1);
  EXPECT_EQ(m.mean, TypeParam(-7.25));
  EXPECT_EQ(m.m2, 0);
  EXPECT_EQ(m.biased_variance(), 0);
}

TYPED_TEST(moments_state, small_sets_by_hand)
{
  auto m = one_by_one<TypeParam>({1, 3});
  EXPECT_EQ(m.count, 2);
  EXPECT_EQ(m.mean, 2);
  EXPECT_EQ(m.m2, 2);
  EXPECT_EQ(m.biased_variance(), 1);
  EXPECT_EQ(m.unbiased_variance(), 2);

  // {1, 3} and {8, 8}: mean 5, m2 = 16 + 4 + 9 + 9.
  m.merge(one_by_one<TypeParam>({8, 8}));
  EXPECT_EQ(m.count, 4);
  EXPECT_EQ(m.mean, 5);
  EXPECT_EQ(m.m2, 38);
}

TYPED_TEST(moments_state, merging_the_empty_set_changes_nothing)
{
  const auto some = one_by_one<TypeParam>({TypeParam(0.1), TypeParam(0.7), TypeParam(-3)});
  auto left       = some;
  left.merge({});
  EXPECT_EQ(left.count, some.count);
  EXPECT_EQ(left.mean, some.mean);
  EXPECT_EQ(left.m2, some.m2);

  moments<TypeParam> right;
  right.merge(some);
  EXPECT_EQ(right.count, some.count);
  EXPECT_EQ(right.mean, some.mean) << "bit for bit: an empty side must not round";
  EXPECT_EQ(right.m2, some.m2);

  moments<TypeParam> both;
  both.merge({});
  EXPECT_EQ(both.count, 0);
  EXPECT_EQ(both.mean, 0) << "not 0 / 0";
  EXPECT_EQ(both.m2, 0);
}

TYPED_TEST(moments_state, equal_values_have_exactly_no_spread)
{
  for (const double v : {100.0, 0.1, -1e10, 1e-30})
  {
    const std::vector<TypeParam> values(1000, static_cast<TypeParam>(v));
    for (const auto& m : {one_by_one(values), by_halves(values, 0, values.size())})
    {
      EXPECT_EQ(m.count, 1000);
      EXPECT_EQ(m.mean, static_cast<TypeParam>(v));
      EXPECT_EQ(m.m2, 0);
    }
  }
}

TYPED_TEST(moments_state, nan_and_infinity_reach_the_result)
{
  for (const TypeParam bad : {std::numeric_limits<TypeParam>::quiet_NaN(), std::numeric_limits<TypeParam>::infinity()})
  {
    for (std::size_t at = 0; at < 3; ++at)
    {
      std::vector<TypeParam> values{1, 2, 3};
      values[at]   = bad;
      const auto m = one_by_one(values);
      EXPECT_FALSE(std::isfinite(m.mean)) << at;
      EXPECT_TRUE(std::isnan(m.m2) || std::isinf(m.m2)) << at;
    }
  }
}

TYPED_TEST(moments_state, any_order_of_merges)
{
  constexpr double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  for (std::uint32_t number = 0; number < 300; ++number)
  {
    random_stream random(number);
    SCOPED_TRACE(random.replay());
    const auto n       = static_cast<std::size_t>(random.integer(1, 200));
    const float offset = random.real(-30.0f, 30.0f);
    std::vector<TypeParam> values(n);
    for (TypeParam& v : values)
    {
      v = static_cast<TypeParam>(offset + random.real(-1.0f, 1.0f));
    }
    const auto [mean, m2] = mean_and_m2(values);

    // A random tree: merge two random neighbours or strangers until one is left; some leaves are empty.
    std::vector<moments<TypeParam>> leaves;
    for (const TypeParam v : values)
    {
      leaves.push_back(moments<TypeParam>::of(v));
      if (random.integer(0, 3) == 0)
      {
        leaves.push_back({});
      }
    }
    while (leaves.size() > 1)
    {
      const auto i = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(leaves.size()) - 1));
      std::swap(leaves[i], leaves.back());
      const moments<TypeParam> taken = leaves.back();
      leaves.pop_back();
      leaves[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(leaves.size()) - 1))].merge(taken);
    }

    // Chan, Golub, LeVeque: the relative error of m2 is bounded by a small multiple of n * kappa * u with
    // kappa = sqrt(1 + mean^2 / variance); the mean's error by n roundings of its size.
    const auto count   = static_cast<double>(n);
    const double kappa = m2 > 0 ? std::sqrt(1 + mean * mean / (m2 / count)) : 1.0;
    for (const auto& m : {leaves[0], one_by_one(values), by_halves(values, 0, n)})
    {
      ASSERT_EQ(m.count, static_cast<TypeParam>(n));
      ASSERT_NEAR(static_cast<double>(m.mean), mean, 4 * count * u * (std::fabs(mean) + 1));
      ASSERT_NEAR(static_cast<double>(m.m2), m2, 4 * count * kappa * u * m2 + 1e-300);
      ASSERT_GE(m.m2, 0);
    }
  }
}

TYPED_TEST(moments_state, a_large_mean_does_not_swallow_the_spread)
{
  // A14's values. In fp32 at a mean of 4096, E[v^2] - E[v]^2 gives a variance of 0 or worse (kappa^2 u = 64); the merge is
  // bounded by log2(n) kappa u = 1.4 %. In double all is nearly exact.
  for (const double mean : {5.0, 4096.0, 65536.0})
  {
    std::vector<TypeParam> values;
    for (int i = 0; i < 128; ++i)
    {
      values.push_back(static_cast<TypeParam>(mean + (i % 2 == 0 ? 0.125 : -0.125)));
    }
    const auto m          = by_halves(values, 0, values.size());
    constexpr double u    = std::numeric_limits<TypeParam>::epsilon() / 2;
    const double relative = 7 * (mean / 0.125 + 1) * u;
    EXPECT_NEAR(static_cast<double>(m.mean), mean, 7 * u * mean);
    EXPECT_NEAR(static_cast<double>(m.biased_variance()), 0.015625, 0.015625 * relative) << "mean " << mean;
    EXPECT_NEAR(static_cast<double>(m.unbiased_variance()), 2.0 / 127, 2.0 / 127 * relative + 1e-17) << "mean " << mean;
  }
}

// The reference of a layer.

TEST(channel_moments, are_taken_over_batch_and_positions)
{
  // [2, 3, 2]: channel c holds {10c, 10c + 1} and {10c + 2, 10c + 3}.
  const doubles y{0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23};
  const auto m = tconv::reference::channel_moments(y.data(), 2, 3, 2);
  ASSERT_EQ(m.size(), 3U);
  for (std::size_t c = 0; c < 3; ++c)
  {
    EXPECT_EQ(m[c].count, 4);
    EXPECT_EQ(m[c].mean, 10.0 * static_cast<double>(c) + 1.5);
    EXPECT_EQ(m[c].m2, 5.0);
  }
}

TEST(global_mean, is_taken_per_sample_and_channel)
{
  const doubles y{1, 3, 5, 5, -1, 0, 2, 10};
  EXPECT_EQ(tconv::reference::global_mean(y.data(), 2, 2, 2), (doubles{2, 5, -0.5, 6}));
}

TEST(batch_norm_train, a14_large_mean_small_variance)
{
  for (const double mean : {5.0, 4096.0, 65536.0})
  {
    doubles y;
    for (int i = 0; i < 128; ++i)
    {
      y.push_back(mean + (i % 2 == 0 ? 0.125 : -0.125));
    }
    float running_mean = 0.0f;
    float running_var  = 1.0f;
    batch_norm_arguments arguments;
    arguments.running_mean = &running_mean;
    arguments.running_var  = &running_var;
    arguments.momentum     = 1.0f; // shows the statistics themselves
    const auto statistics  = tconv::reference::batch_norm_train(y.data(), 4, 1, 32, arguments);
    ASSERT_EQ(statistics.size(), 1U);
    EXPECT_EQ(statistics[0].count, 128);
    EXPECT_EQ(statistics[0].mean, mean);
    EXPECT_EQ(statistics[0].biased_variance(), 0.015625);
    EXPECT_EQ(running_mean, static_cast<float>(mean));
    EXPECT_EQ(running_var, static_cast<float>(2.0 / 127)) << "unbiased: 0.01574803";
    for (std::size_t i = 0; i < y.size(); ++i)
    {
      ASSERT_NEAR(y[i], i % 2 == 0 ? 0.99968015 : -0.99968015, 5e-9) << i;
    }
  }
}

TEST(batch_norm_train, a15_running_statistics)
{
  // x[n, c, l] = (n + 1) + l + 4c, [4, 3, 4].
  doubles y;
  for (int n = 0; n < 4; ++n)
  {
    for (int c = 0; c < 3; ++c)
    {
      for (int l = 0; l < 4; ++l)
      {
        y.push_back(n + 1 + l + 4 * c);
      }
    }
  }
  float running_mean[] = {0.0f, 0.0f, 0.0f};
  float running_var[]  = {1.0f, 1.0f, 1.0f};
  batch_norm_arguments arguments;
  arguments.running_mean = running_mean;
  arguments.running_var  = running_var;
  tconv::reference::batch_norm_train(y.data(), 4, 3, 4, arguments);
  const float means[] = {0.4f, 0.8f, 1.2f};
  for (int c = 0; c < 3; ++c)
  {
    EXPECT_NEAR(running_mean[c], means[c], 1e-7f) << c;
    EXPECT_NEAR(running_var[c], 1.16666667f, 1e-7f) << "biased would give 1.15";
  }
  const double first_row[] = {-1.8973628, -1.2649085, -0.6324543, 0.0};
  for (std::size_t i = 0; i < 4; ++i)
  {
    EXPECT_NEAR(y[i], first_row[i], 5e-8) << i;
  }
}

TEST(batch_norm_train, a16_two_values_per_channel)
{
  doubles y{1, 3};
  float running_mean = 0.0f;
  float running_var  = 1.0f;
  batch_norm_arguments arguments;
  arguments.running_mean = &running_mean;
  arguments.running_var  = &running_var;
  arguments.momentum     = 1.0f;
  const auto statistics  = tconv::reference::batch_norm_train(y.data(), 1, 1, 2, arguments);
  EXPECT_EQ(statistics[0].mean, 2);
  EXPECT_EQ(statistics[0].biased_variance(), 1);
  EXPECT_EQ(statistics[0].unbiased_variance(), 2);
  EXPECT_EQ(running_mean, 2.0f);
  EXPECT_EQ(running_var, 2.0f);
  EXPECT_NEAR(y[0], -0.999995, 5e-9);
  EXPECT_NEAR(y[1], 0.999995, 5e-9);
}

TEST(batch_norm_train, gamma_and_beta_per_channel)
{
  doubles y{1, 3, 10, 30};
  const float gamma[] = {2.0f, -3.0f};
  const float beta[]  = {0.5f, 7.0f};
  batch_norm_arguments arguments;
  arguments.gamma = gamma;
  arguments.beta  = beta;
  arguments.eps   = 0.0f;
  tconv::reference::batch_norm_train(y.data(), 1, 2, 2, arguments);
  EXPECT_EQ(y, (doubles{-1.5, 2.5, 10.0, 4.0}));
}

TEST(batch_norm_train, output_does_not_depend_on_the_running_statistics)
{
  float running_mean = 1000.0f;
  float running_var  = 1e6f;
  batch_norm_arguments arguments;
  doubles plain{1, 3};
  tconv::reference::batch_norm_train(plain.data(), 1, 1, 2, arguments);
  arguments.running_mean = &running_mean;
  arguments.running_var  = &running_var;
  doubles tracked{1, 3};
  tconv::reference::batch_norm_train(tracked.data(), 1, 1, 2, arguments);
  EXPECT_EQ(plain, tracked);
}

TEST(batch_norm_train, momentum_weighs_the_new_statistic)
{
  // torch: new = (1 - momentum) * old + momentum * statistic; mean 2, unbiased variance 2.
  for (const float momentum : {0.0f, 0.25f, 0.5f, 1.0f})
  {
    doubles y{1, 3};
    float running_mean = 10.0f;
    float running_var  = 6.0f;
    batch_norm_arguments arguments;
    arguments.running_mean = &running_mean;
    arguments.running_var  = &running_var;
    arguments.momentum     = momentum;
    tconv::reference::batch_norm_train(y.data(), 1, 1, 2, arguments);
    EXPECT_EQ(running_mean, 10.0f - 8.0f * momentum);
    EXPECT_EQ(running_var, 6.0f - 4.0f * momentum);
  }
}

TEST(batch_norm_train, cumulative_average_is_momentum_one_over_count)
{
  float running_mean = 0.0f;
  float running_var  = 0.0f;
  batch_norm_arguments arguments;
  arguments.running_mean  = &running_mean;
  arguments.running_var   = &running_var;
  const doubles batches[] = {{1, 3}, {4, 8}, {0, 4}, {-1, 5}};
  float count             = 0;
  for (doubles y : batches)
  {
    count += 1.0f;
    arguments.momentum = 1.0f / count;
    tconv::reference::batch_norm_train(y.data(), 1, 1, 2, arguments);
  }
  EXPECT_NEAR(running_mean, (2.0f + 6.0f + 2.0f + 2.0f) / 4, 1e-6f);
  EXPECT_NEAR(running_var, (2.0f + 8.0f + 8.0f + 18.0f) / 4, 1e-6f);
}

TEST(batch_norm_train, null_running_buffers_are_not_tracked)
{
  // One of the two may be missing.
  float running = 5.0f;
  doubles y{1, 3};
  batch_norm_arguments arguments;
  arguments.momentum     = 1.0f;
  arguments.running_mean = &running;
  tconv::reference::batch_norm_train(y.data(), 1, 1, 2, arguments);
  EXPECT_EQ(running, 2.0f);

  y                      = {1, 3};
  running                = 5.0f;
  arguments.running_mean = nullptr;
  arguments.running_var  = &running;
  tconv::reference::batch_norm_train(y.data(), 1, 1, 2, arguments);
  EXPECT_EQ(running, 2.0f);
}

TEST(batch_norm_train, a_constant_channel_gives_exactly_beta)
{
  // caffe #3963 (3x3 of 100) and pytorch #5410 (up to 1e10); fp32 values, so their sums are exact in double.
  for (const float v : {100.0f, 0.1f, -3.3e-20f, 1e10f, 65504.0f})
  {
    for (const float eps : {1e-5f, 0.0f})
    {
      const float gamma = 1e6f;
      const float beta  = -0.7f;
      batch_norm_arguments arguments;
      arguments.gamma = &gamma;
      arguments.beta  = &beta;
      arguments.eps   = eps;
      doubles y(9, static_cast<double>(v));
      tconv::reference::batch_norm_train(y.data(), 1, 1, 9, arguments);
      EXPECT_EQ(y, doubles(9, static_cast<double>(beta))) << v << ", eps " << eps;
    }
  }
}

TEST(batch_norm_train, a_nan_stays_in_its_channel)
{
  doubles y{1, std::numeric_limits<double>::quiet_NaN(), 1, 3};
  tconv::reference::batch_norm_train(y.data(), 1, 2, 2, {});
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_TRUE(std::isfinite(y[2]) && std::isfinite(y[3]));
}

TEST(batch_norm_train, an_empty_batch_leaves_the_running_statistics_alone)
{
  float running_mean = 3.0f;
  float running_var  = 4.0f;
  batch_norm_arguments arguments;
  arguments.running_mean = &running_mean;
  arguments.running_var  = &running_var;
  tconv::reference::batch_norm_train(nullptr, 0, 1, 5, arguments);
  EXPECT_EQ(running_mean, 3.0f);
  EXPECT_EQ(running_var, 4.0f);
}

TEST(batch_norm_eval, uses_the_running_statistics_and_leaves_them_alone)
{
  float running_mean[] = {1.0f, -1.0f};
  float running_var[]  = {4.0f, 0.25f};
  batch_norm_arguments arguments;
  arguments.running_mean = running_mean;
  arguments.running_var  = running_var;
  arguments.eps          = 0.0f;
  doubles y{3, 1, 0, -1, 5, 1, 1, -2};
  tconv::reference::batch_norm_eval(y.data(), 2, 2, 2, arguments);
  EXPECT_EQ(y, (doubles{1, 0, 2, 0, 2, 0, 4, -2}));
  EXPECT_EQ(running_mean[0], 1.0f);
  EXPECT_EQ(running_var[1], 0.25f);
}

TEST(batch_norm_eval, one_value_per_channel_works)
{
  // A16: what is an error in train mode.
  float running_mean = 1.0f;
  float running_var  = 4.0f;
  batch_norm_arguments arguments;
  arguments.running_mean = &running_mean;
  arguments.running_var  = &running_var;
  arguments.eps          = 0.0f;
  double y               = 5.0;
  tconv::reference::batch_norm_eval(&y, 1, 1, 1, arguments);
  EXPECT_EQ(y, 2.0);
}

TEST(batch_norm_arguments, defaults_are_pytorchs)
{
  const batch_norm_arguments arguments;
  EXPECT_EQ(arguments.gamma, nullptr);
  EXPECT_EQ(arguments.beta, nullptr);
  EXPECT_EQ(arguments.running_mean, nullptr);
  EXPECT_EQ(arguments.running_var, nullptr);
  EXPECT_EQ(arguments.eps, 1e-5f);
  EXPECT_EQ(arguments.momentum, 0.1f);
}

} // namespace
