// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Average pools folded into a convolution: the sums that the fold describes, worked out on the host, against the pooled outputs of the
/// convolution. Values are small integers, so that every sum is exact.

#include "../common/conv_case.hpp"

#include <tconv/detail/fold_average_pool.hpp>
#include <tconv/reference/conv_transpose.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace
{

using std::int64_t;
using tconv::index_range;
using tconv::pool_window;
using tconv::detail::average_pool_fold;
using namespace tconv_test;

/// Sums of \p y [rows][in...] over the windows of \p pool.
std::vector<double> window_sums(const std::vector<double>& y, const pool_window& pool, int64_t rows)
{
  std::vector<double> sums;
  for (int64_t row = 0; row < rows; ++row)
  {
    for (int64_t o = 0; o < pool.positions(); ++o)
    {
      const int64_t first[3] = {o / pool.out[2] / pool.out[1] * pool.step[0],
                                o / pool.out[2] % pool.out[1] * pool.step[1],
                                o % pool.out[2] * pool.step[2]};
      double sum             = 0;
      for (int64_t i = 0; i < pool.volume(); ++i)
      {
        const int64_t d = first[0] + i / pool.size[2] / pool.size[1];
        const int64_t h = first[1] + i / pool.size[2] % pool.size[1];
        const int64_t w = first[2] + i % pool.size[2];
        sum += y[static_cast<std::size_t>(row * pool.input_positions() + (d * pool.in[1] + h) * pool.in[2] + w)];
      }
      sums.push_back(sum);
    }
  }
  return sums;
}

std::vector<double> convolve(const std::vector<float>& x, const std::vector<float>& w, const shape3& s)
{
  std::vector<double> y(static_cast<std::size_t>(s.output_elements()));
  tconv::reference::conv_transpose(x.data(), w.data(), y.data(), s);
  return y;
}

/// The taps that are summed to tap \p u of axis \p a for class \p number.
index_range summed_taps(const average_pool_fold& fold, const shape3& s, int a, int64_t u, int number)
{
  if (a == fold.collapsed)
  {
    return fold.table[number].taps;
  }
  return fold.folded[a] ? s.axis(a).pooled_taps(fold.size[a], fold.step[a], u) : index_range{u, u + 1};
}

std::vector<float> folded_weights(const average_pool_fold& fold, const std::vector<float>& w, const shape3& s)
{
  const int64_t out = s.out_channels / s.groups;
  std::vector<float> sums;
  for (int64_t ci = 0; ci < s.in_channels; ++ci)
  {
    for (int number = 0; number < fold.classes; ++number)
    {
      for (int64_t co = 0; co < out; ++co)
      {
        for (int64_t u = 0; u < fold.shape.taps(); ++u)
        {
          const auto& k   = fold.shape.kernel;
          const auto d    = summed_taps(fold, s, 0, u / k[2] / k[1], number);
          const auto h    = summed_taps(fold, s, 1, u / k[2] % k[1], number);
          const auto last = summed_taps(fold, s, 2, u % k[2], number);
          float sum       = 0;
          for (int64_t td = d.begin; td < d.end; ++td)
          {
            for (int64_t th = h.begin; th < h.end; ++th)
            {
              for (int64_t tw = last.begin; tw < last.end; ++tw)
              {
                sum += w[static_cast<std::size_t>(
                  (((ci * out + co) * s.kernel[0] + td) * s.kernel[1] + th) * s.kernel[2] + tw)];
              }
            }
          }
          EXPECT_FALSE(d.empty() || h.empty() || last.empty()) << to_string(s);
          sums.push_back(sum);
        }
      }
    }
  }
  return sums;
}

std::vector<float> folded_inputs(const average_pool_fold& fold, const std::vector<float>& x, const shape3& s)
{
  if (fold.collapsed < 0)
  {
    return x;
  }
  std::vector<float> sums(static_cast<std::size_t>(fold.shape.input_elements()));
  for (int64_t i = 0; i < s.input_elements(); ++i)
  {
    const int64_t channel = i / s.input_positions();
    int64_t at[3]         = {i / s.input[2] / s.input[1] % s.input[0], i / s.input[2] % s.input[1], i % s.input[2]};
    for (int number = 0; number < fold.classes; ++number)
    {
      if (fold.table[number].inputs.contains(at[fold.collapsed]))
      {
        at[fold.collapsed] = 0;
        const auto& in     = fold.shape.input;
        const int64_t to = ((channel * fold.classes + number) * in[0] + at[0]) * in[1] * in[2] + at[1] * in[2] + at[2];
        sums[static_cast<std::size_t>(to)] += x[static_cast<std::size_t>(i)];
        break;
      }
    }
  }
  return sums;
}

std::vector<float> small_integers(random_stream& random, int64_t count)
{
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
  {
    values.push_back(static_cast<float>(random.integer(-4, 4)));
  }
  return values;
}

TEST(fold_average_pool, sums_are_those_of_the_windows)
{
  int folded    = 0;
  int whole     = 0;
  int collapsed = 0;
  int partly    = 0;
  for (std::uint32_t i = 0; i < 1500; ++i)
  {
    random_stream random(i);
    SCOPED_TRACE(random.replay());
    const shape3 s = random_shape(random, 20000);
    pool_window pool;
    for (int a = 0; a < 3; ++a)
    {
      pool.in[a]   = s.output(a);
      pool.size[a] = random.integer(0, 3) == 0 ? pool.in[a] : random.integer(1, std::min<int64_t>(pool.in[a], 5));
      pool.step[a] = pool.size[a] == pool.in[a] ? 1 : (random.integer(0, 2) == 0 ? random.integer(1, 5) : pool.size[a]);
      pool.out[a]  = (pool.in[a] - pool.size[a]) / pool.step[a] + 1;
    }
    const average_pool_fold fold = tconv::detail::fold_average_pool(s, pool);
    folded += fold.any() ? 1 : 0;
    whole += fold.any() && fold.whole() ? 1 : 0;
    collapsed += fold.collapsed >= 0 ? 1 : 0;
    partly += fold.any() && !fold.whole() ? 1 : 0;
    for (int a = 0; a < 3; ++a)
    {
      ASSERT_EQ(fold.rest.in[a], fold.shape.output(a)) << to_string(s);
      ASSERT_EQ(fold.rest.out[a], pool.out[a]) << to_string(s);
      ASSERT_EQ(fold.rest.out[a], (fold.rest.in[a] - fold.rest.size[a]) / fold.rest.step[a] + 1) << to_string(s);
    }
    const auto x    = small_integers(random, s.input_elements());
    const auto w    = small_integers(random, s.weight_elements());
    const auto sums = convolve(folded_inputs(fold, x, s), folded_weights(fold, w, s), fold.shape);
    const int64_t n = s.batch * s.out_channels;
    ASSERT_EQ(window_sums(sums, fold.rest, n), window_sums(convolve(x, w, s), pool, n)) << to_string(s);
    ASSERT_EQ(fold.rest.volume() * fold.size[0] * fold.size[1] * fold.size[2], pool.volume());
  }
  // Each kind comes up.
  EXPECT_GT(folded, 200);
  EXPECT_GT(whole, 50);
  EXPECT_GT(collapsed, 100);
  EXPECT_GT(partly, 50);
}

// What folds as a whole is a legal convolution of the pooled extents, with the same sums; what does not is refused.
TEST(fold_average_pool, whole_pools_for_callers)
{
  int folded  = 0;
  int refused = 0;
  for (std::uint32_t i = 0; i < 1500; ++i)
  {
    random_stream random(9000 + i);
    SCOPED_TRACE(random.replay());
    const shape3 s = random_shape(random, 20000);
    pool_window pool;
    for (int a = 0; a < 3; ++a)
    {
      pool.in[a]   = s.output(a);
      pool.size[a] = random.integer(1, std::min<int64_t>(pool.in[a], 4));
      pool.step[a] = random.integer(0, 2) == 0 ? random.integer(1, 3) : pool.size[a];
      pool.out[a]  = (pool.in[a] - pool.size[a]) / pool.step[a] + 1;
    }
    average_pool_fold fold;
    const tconv::status outcome = tconv::detail::fold_whole_average_pool(s, pool, 3, fold);
    if (!outcome.ok())
    {
      ++refused;
      ASSERT_EQ(outcome.code(), tconv::status_code::not_supported);
      ASSERT_NE(std::string(outcome.message()).find("pool: "), std::string::npos);
      continue;
    }
    ++folded;
    ASSERT_TRUE(tconv::validate(fold.shape).ok()) << to_string(s);
    ASSERT_EQ(fold.shape.output(), (std::array<tconv::int64_t, 3>{pool.out[0], pool.out[1], pool.out[2]}));
    const auto x = small_integers(random, s.input_elements());
    const auto w = small_integers(random, s.weight_elements());
    ASSERT_EQ(convolve(x, folded_weights(fold, w, s), fold.shape),
              window_sums(convolve(x, w, s), pool, s.batch * s.out_channels))
      << to_string(s);
  }
  EXPECT_GT(folded, 50);
  EXPECT_GT(refused, 50);
}

// k3 s2 p1 with windows of 2: 27 taps become 8.
TEST(fold_average_pool, eight_taps)
{
  const shape3 s = make_shape<3>({1, 3, 16, 1}, {16, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  pool_window pool;
  for (int a = 0; a < 3; ++a)
  {
    pool.in[a]   = s.output(a);
    pool.size[a] = pool.step[a] = 2;
    pool.out[a]                 = (pool.in[a] - 2) / 2 + 1;
  }
  const average_pool_fold fold = tconv::detail::fold_average_pool(s, pool);
  EXPECT_TRUE(fold.whole());
  EXPECT_EQ(fold.shape.taps(), 8);
  EXPECT_EQ(fold.shape.output(), (std::array<tconv::int64_t, 3>{15, 31, 31}));
  EXPECT_EQ(fold.factor(), 0.125);
}

} // namespace
