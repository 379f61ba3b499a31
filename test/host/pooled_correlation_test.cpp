// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Average pools behind a convolution as a correlation: the sums that the plan describes, worked out on the host,
/// against windows of the convolution's outputs. Values are small integers, so that every sum is exact.

#include "../common/conv_case.hpp"

#include <tconv/detail/pooled_correlation.hpp>
#include <tconv/reference/conv_transpose.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace
{

using std::int64_t;
using tconv::correlation_problem;
using tconv::pool_window;
using namespace tconv_test;

std::vector<float> small_integers(random_stream& random, int64_t count)
{
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
  {
    values.push_back(static_cast<float>(random.integer(-4, 4)));
  }
  return values;
}

/// Sums of \p y [rows][in...] over the windows of \p pool.
std::vector<double> window_sums(const std::vector<double>& y, const pool_window& pool, int64_t rows)
{
  std::vector<double> sums;
  for (int64_t row = 0; row < rows; ++row)
  {
    for (int64_t o = 0; o < pool.positions(); ++o)
    {
      double sum = 0;
      for (int64_t i = 0; i < pool.volume(); ++i)
      {
        const int64_t d = o / pool.out[2] / pool.out[1] * pool.step[0] + i / pool.size[2] / pool.size[1];
        const int64_t h = o / pool.out[2] % pool.out[1] * pool.step[1] + i / pool.size[2] % pool.size[1];
        const int64_t w = o % pool.out[2] * pool.step[2] + i % pool.size[2];
        sum += y[static_cast<std::size_t>(row * pool.input_positions() + (d * pool.in[1] + h) * pool.in[2] + w)];
      }
      sums.push_back(sum);
    }
  }
  return sums;
}

/// What kernel::pooled_correlation computes, as sums.
std::vector<double>
correlate(const correlation_problem& p, const std::vector<float>& x, const std::vector<float>& w, const shape3& s)
{
  std::vector<double> y;
  for (int64_t n = 0; n < p.batch; ++n)
  {
    for (int64_t co = 0; co < p.out_channels; ++co)
    {
      for (int o = 0; o < p.positions(); ++o)
      {
        const int j[3] = {o / p.axis[2].out / p.axis[1].out, o / p.axis[2].out % p.axis[1].out, o % p.axis[2].out};
        double sum     = 0;
        for (int k = 0; k < p.products(); ++k)
        {
          const int ci   = k / p.taps();
          const int tap  = k % p.taps();
          const int v[3] = {
            tap / p.axis[2].taps / p.axis[1].taps, tap / p.axis[2].taps % p.axis[1].taps, tap % p.axis[2].taps};
          int64_t from = n * p.in_channels + ci;
          bool there   = true;
          for (int a = 0; a < 3; ++a)
          {
            const int i = p.axis[a].step * j[a] + p.axis[a].first + v[a];
            there       = there && i >= 0 && i < p.axis[a].in;
            from        = from * p.axis[a].in + i;
          }
          EXPECT_TRUE(there || !p.inside());
          if (!there)
          {
            continue;
          }
          const auto d    = p.summed_taps(0, v[0]);
          const auto h    = p.summed_taps(1, v[1]);
          const auto last = p.summed_taps(2, v[2]);
          double weight   = 0;
          for (int64_t td = d.begin; td < d.end; ++td)
          {
            for (int64_t th = h.begin; th < h.end; ++th)
            {
              for (int64_t tw = last.begin; tw < last.end; ++tw)
              {
                weight += static_cast<double>(w[static_cast<std::size_t>(
                  (((ci * s.out_channels + co) * s.kernel[0] + td) * s.kernel[1] + th) * s.kernel[2] + tw)]);
              }
            }
          }
          sum += weight * static_cast<double>(x[static_cast<std::size_t>(from)]);
        }
        y.push_back(sum);
      }
    }
  }
  return y;
}

TEST(pooled_correlation, sums_are_those_of_the_windows)
{
  int taken  = 0;
  int inside = 0;
  for (std::uint32_t i = 0; i < 3000; ++i)
  {
    random_stream random(20000 + i);
    SCOPED_TRACE(random.replay());
    const shape3 s = random_shape(random, 20000);
    pool_window pool;
    for (int a = 0; a < 3; ++a)
    {
      pool.in[a]   = s.output(a);
      pool.size[a] = random.integer(1, std::min<int64_t>(pool.in[a], 5));
      pool.step[a] = random.integer(0, 1) == 0 ? s.stride[static_cast<std::size_t>(a)] * random.integer(1, 2)
                                               : pool.size[a];
      pool.out[a]  = (pool.in[a] - pool.size[a]) / pool.step[a] + 1;
    }
    correlation_problem problem;
    if (!tconv::detail::plan_pooled_correlation(s, pool, tconv::layout::channels_first, problem))
    {
      continue;
    }
    ++taken;
    inside += problem.inside() ? 1 : 0;
    const auto x = small_integers(random, s.input_elements());
    const auto w = small_integers(random, s.weight_elements());
    std::vector<double> y(static_cast<std::size_t>(s.output_elements()));
    tconv::reference::conv_transpose(x.data(), w.data(), y.data(), s);
    ASSERT_EQ(correlate(problem, x, w, s), window_sums(y, pool, s.batch * s.out_channels)) << to_string(s);
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(inside, 20);
  EXPECT_GT(taken - inside, 20);
}

TEST(pooled_correlation, windows_of_windows)
{
  int merged_once = 0;
  for (std::uint32_t i = 0; i < 200; ++i)
  {
    random_stream random(30000 + i);
    SCOPED_TRACE(random.replay());
    pool_window first;
    pool_window second;
    for (int a = 0; a < 3; ++a)
    {
      first.in[a]    = random.integer(4, 12);
      first.size[a]  = random.integer(1, 3);
      first.step[a]  = random.integer(0, 4) == 0 ? random.integer(1, 3) : first.size[a];
      first.out[a]   = (first.in[a] - first.size[a]) / first.step[a] + 1;
      second.in[a]   = first.out[a];
      second.size[a] = random.integer(1, std::min<int64_t>(second.in[a], 3));
      second.step[a] = random.integer(1, 3);
      second.out[a]  = (second.in[a] - second.size[a]) / second.step[a] + 1;
    }
    pool_window merged;
    if (!tconv::detail::merge_windows(first, second, merged))
    {
      continue;
    }
    ++merged_once;
    std::vector<double> y;
    for (const float v : small_integers(random, first.input_positions()))
    {
      y.push_back(static_cast<double>(v));
    }
    ASSERT_EQ(window_sums(window_sums(y, first, 1), second, 1), window_sums(y, merged, 1));
  }
  EXPECT_GT(merged_once, 20);
}

// L2_72: two pools of 2 behind k3 s2 p1 are three taps every other input, none beyond the border; L2_50: one pool, two
// taps.
TEST(pooled_correlation, three_taps_and_two)
{
  const shape3 s = make_shape<3>({1, 3, 16, 1}, {32, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  for (const int size : {2, 4})
  {
    pool_window pool;
    for (int a = 0; a < 3; ++a)
    {
      pool.in[a]   = s.output(a);
      pool.size[a] = pool.step[a] = size;
      pool.out[a]                 = pool.in[a] / size;
    }
    correlation_problem problem;
    ASSERT_TRUE(tconv::detail::plan_pooled_correlation(s, pool, tconv::layout::channels_first, problem));
    EXPECT_EQ(problem.products(), size == 2 ? 24 : 81);
    EXPECT_EQ(problem.axis[0].step, size / 2);
    EXPECT_EQ(problem.axis[2].first, 0);
    EXPECT_TRUE(problem.inside());
  }
}

} // namespace
