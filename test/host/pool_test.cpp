// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Functors across positions: the windows that they stand for, their reference against values worked out by hand, and how a
/// chain is cut at them.

#include <tconv/detail/resolve_pool.hpp>
#include <tconv/reference/chain.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/channel_reduction.hpp>
#include <tconv/thread/pool.hpp>
#include <tconv/thread/softmax.hpp>
#include <tconv/tuning/reduce.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace
{

using std::int64_t;
using tconv::average_pool;
using tconv::chain;
using tconv::max_pool;
using tconv::pool_window;
using tconv::spatial_max;
using tconv::spatial_mean;
using tconv::spatial_sum;
using doubles = std::vector<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan      = std::numeric_limits<double>::quiet_NaN();

template <int Rank>
tconv::tensor_shape<Rank> make_tensor(int64_t batch, int64_t channels, const std::array<int64_t, Rank>& extent)
{
  tconv::tensor_shape<Rank> s;
  s.batch    = batch;
  s.channels = channels;
  s.extent   = extent;
  return s;
}

/// 1, 2, 3, ...
doubles counting(int64_t count)
{
  doubles result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 1.0);
  return result;
}

/// True if both are equal element by element; a NaN equals a NaN alone.
testing::AssertionResult same(const doubles& got, const doubles& expected)
{
  bool equal = got.size() == expected.size();
  for (std::size_t i = 0; equal && i < got.size(); ++i)
  {
    equal = std::isnan(expected[i]) ? std::isnan(got[i]) : got[i] == expected[i];
  }
  return (equal ? testing::AssertionSuccess() : testing::AssertionFailure())
      << "got " << testing::PrintToString(got) << ", expected " << testing::PrintToString(expected);
}

/// A pool of \p y by the reference; \p extent: what must be left.
template <class Pool, int Rank>
doubles pooled(const Pool& pool,
               doubles y,
               const tconv::tensor_shape<Rank>& shape,
               const std::array<int64_t, static_cast<std::size_t>(Rank)>& extent)
{
  EXPECT_EQ(static_cast<int64_t>(y.size()), shape.elements());
  const tconv::tensor_shape<Rank> left = tconv::reference::apply_pool(pool, y.data(), shape);
  EXPECT_EQ(left.batch, shape.batch);
  EXPECT_EQ(left.channels, shape.channels);
  EXPECT_EQ(left.extent, extent);
  y.resize(static_cast<std::size_t>(left.elements()));
  return y;
}

// The reference, by hand.

TEST(pool_reference, one_axis_side_by_side)
{
  const auto s = make_tensor<1>(1, 1, {7});
  const doubles x{3, 1, 4, 1, 5, 9, 2}; // the last value has no partner
  EXPECT_TRUE(same(pooled(max_pool(2), x, s, {3}), {3, 4, 9}));
  EXPECT_TRUE(same(pooled(average_pool(2), x, s, {3}), {2, 2.5, 7}));
  EXPECT_TRUE(same(pooled(max_pool(3), x, s, {2}), {4, 9}));
  EXPECT_TRUE(same(pooled(max_pool(7), x, s, {1}), {9}));
  EXPECT_TRUE(same(pooled(average_pool(5), x, s, {1}), {2.8}));
  EXPECT_TRUE(same(pooled(max_pool(1), x, s, {7}), x));
  EXPECT_TRUE(same(pooled(average_pool(1), x, s, {7}), x));
}

TEST(pool_reference, one_axis_with_steps)
{
  const auto s = make_tensor<1>(1, 1, {7});
  const doubles x{3, 1, 4, 1, 5, 9, 2};
  EXPECT_TRUE(same(pooled(max_pool({3}, {1}), x, s, {5}), {4, 4, 5, 9, 9})) << "overlapping";
  EXPECT_TRUE(same(pooled(average_pool({2}, {1}), x, s, {6}), {2, 2.5, 2.5, 3, 7, 5.5})) << "overlapping";
  EXPECT_TRUE(same(pooled(max_pool({2}, {3}), x, s, {2}), {3, 5})) << "gaps: neither 4 nor 9 is in a window";
  EXPECT_TRUE(same(pooled(max_pool({4}, {2}), x, s, {2}), {4, 9}));
  EXPECT_TRUE(same(pooled(max_pool({1}, {4}), x, s, {2}), {3, 5}));
  EXPECT_TRUE(same(pooled(max_pool({2}, {100}), x, s, {1}), {3}));
}

// 1  2  3  4  5
// 6  7  8  9 10
// 11 12 13 14 15
TEST(pool_reference, two_axes)
{
  const auto s    = make_tensor<2>(1, 1, {3, 5});
  const doubles x = counting(15);
  EXPECT_TRUE(same(pooled(max_pool(2), x, s, {1, 2}), {7, 9}));
  EXPECT_TRUE(same(pooled(average_pool(2), x, s, {1, 2}), {4, 6}));
  EXPECT_TRUE(same(pooled(max_pool({1, 3}), x, s, {3, 1}), {3, 8, 13}));
  EXPECT_TRUE(same(pooled(max_pool({3, 1}), x, s, {1, 5}), {11, 12, 13, 14, 15}));
  EXPECT_TRUE(same(pooled(max_pool({2, 3}, {1, 2}), x, s, {2, 2}), {8, 10, 13, 15}));
  EXPECT_TRUE(same(pooled(average_pool({2, 3}, {1, 2}), x, s, {2, 2}), {4.5, 6.5, 9.5, 11.5}));
  EXPECT_TRUE(same(pooled(spatial_sum({0}), x, s, {1, 5}), {18, 21, 24, 27, 30}));
  EXPECT_TRUE(same(pooled(spatial_sum({1}), x, s, {3, 1}), {15, 40, 65}));
  EXPECT_TRUE(same(pooled(spatial_sum({1, 0}), x, s, {1, 1}), {120}));
  EXPECT_TRUE(same(pooled(spatial_sum(), x, s, {1, 1}), {120}));
  EXPECT_TRUE(same(pooled(spatial_mean(), x, s, {1, 1}), {8}));
  EXPECT_TRUE(same(pooled(spatial_mean({1}), x, s, {3, 1}), {3, 8, 13}));
  EXPECT_TRUE(same(pooled(spatial_max(), x, s, {1, 1}), {15}));
  EXPECT_TRUE(same(pooled(spatial_max({0}), x, s, {1, 5}), {11, 12, 13, 14, 15}));
}

// Samples and channels are lines of their own: d 0 is 1 to 6 as 2 x 3, d 1 is 7 to 12; the next channel 13 and on.
TEST(pool_reference, three_axes_batch_and_channels)
{
  const auto s    = make_tensor<3>(2, 2, {2, 2, 3});
  const doubles x = counting(48);
  EXPECT_TRUE(same(pooled(max_pool({2, 1, 2}), x, s, {1, 2, 1}), {8, 11, 20, 23, 32, 35, 44, 47}));
  EXPECT_TRUE(same(pooled(average_pool({2, 1, 2}), x, s, {1, 2, 1}), {4.5, 7.5, 16.5, 19.5, 28.5, 31.5, 40.5, 43.5}));
  EXPECT_TRUE(same(pooled(spatial_max({0, 2}), x, s, {1, 2, 1}), {9, 12, 21, 24, 33, 36, 45, 48}));
  EXPECT_TRUE(same(pooled(spatial_sum({1}), x, s, {2, 1, 3}),
                   {5, 7, 9, 17, 19, 21, 29, 31, 33, 41, 43, 45, 53, 55, 57, 65, 67, 69, 77, 79, 81, 89, 91, 93}));
  EXPECT_TRUE(same(pooled(spatial_mean(), x, s, {1, 1, 1}), {6.5, 18.5, 30.5, 42.5}));
}

TEST(pool_reference, nan_and_infinity)
{
  const auto s = make_tensor<1>(1, 1, {9});
  const doubles x{nan, 1, 2, 3, nan, infinity, 4, -infinity, nan};
  // Windows of 2: the last NaN is in none of them.
  EXPECT_TRUE(same(pooled(max_pool(2), x, s, {4}), {nan, 3, nan, 4}));
  EXPECT_TRUE(same(pooled(average_pool(2), x, s, {4}), {nan, 2.5, nan, -infinity}));
  // Infinities of both signs have no mean, but a maximum.
  EXPECT_TRUE(same(pooled(average_pool({3}, {5}), x, s, {2}), {nan, nan}));
  EXPECT_TRUE(same(pooled(max_pool({3}, {5}), x, s, {2}), {nan, infinity}));
  EXPECT_TRUE(same(pooled(spatial_sum(), x, s, {1}), {nan}));
  // A NaN first, between and last; and values that are all below zero.
  const auto three = make_tensor<1>(1, 5, {3});
  const doubles rows{nan, 1, 2, 1, nan, 2, 1, 2, nan, -infinity, -infinity, -infinity, -3, -1, -2};
  EXPECT_TRUE(same(pooled(spatial_max(), rows, three, {1}), {nan, nan, nan, -infinity, -1}));
  EXPECT_TRUE(same(pooled(max_pool(3), rows, three, {1}), {nan, nan, nan, -infinity, -1}));
}

TEST(pool_reference, chains_of_pools_and_other_functors)
{
  // 1 sample, 2 channels of 2 x 4: 1 to 8, and 9 to 16.
  doubles y       = counting(16);
  const auto left = tconv::reference::apply(
    chain(max_pool({1, 2}), tconv::channel_sum{}, tconv::scale(2.0f), spatial_sum({0}), average_pool(1)),
    y.data(),
    make_tensor<2>(1, 2, {2, 4}));
  // Maxima {2, 4}, {6, 8} and {10, 12}, {14, 16}; their sums {12, 16}, {20, 24}; twice; down the columns.
  EXPECT_EQ(left.batch, 1);
  EXPECT_EQ(left.channels, 1);
  EXPECT_EQ(left.extent, (std::array<int64_t, 2>{1, 2}));
  EXPECT_EQ(y[0], 64);
  EXPECT_EQ(y[1], 80);

  // Operands behind a pool are those of the channel still.
  const float b[] = {100, 200, 300};
  doubles z       = counting(12);
  tconv::reference::apply(chain(spatial_max(), tconv::bias(b)), z.data(), make_tensor<1>(2, 3, {2}));
  z.resize(6);
  EXPECT_TRUE(same(z, {102, 204, 306, 108, 210, 312}));
}

// Windows on given extents.

template <class Pool>
tconv::status resolve(const Pool& pool, int rank, const std::array<int64_t, 3>& extent, pool_window& window)
{
  std::copy(extent.begin(), extent.end(), window.in);
  return tconv::detail::resolve_pool(pool, rank, window);
}

using triple = std::array<int64_t, 3>;

/// Outputs, sizes and steps of \p pool.
template <class Pool>
void expect_windows(
  const Pool& pool, int rank, const triple& extent, const triple& out, const triple& size, const triple& step)
{
  pool_window w;
  const tconv::status s = resolve(pool, rank, extent, w);
  ASSERT_TRUE(s.ok()) << s.message();
  for (std::size_t a = 0; a < 3; ++a)
  {
    EXPECT_EQ(w.in[a], extent[a]) << a;
    EXPECT_EQ(w.out[a], out[a]) << a;
    EXPECT_EQ(w.size[a], size[a]) << a;
    // Where there is one window its step says nothing.
    EXPECT_TRUE(w.step[a] == step[a] || out[a] == 1) << a << ": " << w.step[a];
  }
  EXPECT_EQ(w.input_positions(), extent[0] * extent[1] * extent[2]);
  EXPECT_EQ(w.positions(), out[0] * out[1] * out[2]);
  EXPECT_EQ(w.volume(), size[0] * size[1] * size[2]);
}

TEST(resolve_pool, fills_the_windows)
{
  expect_windows(max_pool(2), 3, {5, 6, 7}, {2, 3, 3}, {2, 2, 2}, {2, 2, 2});
  expect_windows(max_pool(2), 2, {1, 6, 7}, {1, 3, 3}, {1, 2, 2}, {1, 2, 2});
  expect_windows(max_pool(2), 1, {1, 1, 7}, {1, 1, 3}, {1, 1, 2}, {1, 1, 2});
  expect_windows(average_pool({1, 2, 3}), 3, {5, 6, 7}, {5, 3, 2}, {1, 2, 3}, {1, 2, 3});
  expect_windows(average_pool({3, 2}), 2, {1, 6, 7}, {1, 2, 3}, {1, 3, 2}, {1, 3, 2});
  expect_windows(max_pool({3, 2, 1}, {1, 3, 4}), 3, {5, 6, 7}, {3, 2, 2}, {3, 2, 1}, {1, 3, 4});
  expect_windows(max_pool({5, 6, 7}), 3, {5, 6, 7}, {1, 1, 1}, {5, 6, 7}, {5, 6, 7});
  expect_windows(max_pool({7}, {3}), 1, {1, 1, 18}, {1, 1, 4}, {1, 1, 7}, {1, 1, 3});
  expect_windows(spatial_sum(), 3, {5, 6, 7}, {1, 1, 1}, {5, 6, 7}, {1, 1, 1});
  expect_windows(spatial_sum(), 1, {1, 1, 7}, {1, 1, 1}, {1, 1, 7}, {1, 1, 1});
  expect_windows(spatial_mean({0}), 3, {5, 6, 7}, {1, 6, 7}, {5, 1, 1}, {1, 1, 1});
  expect_windows(spatial_mean({1}), 3, {5, 6, 7}, {5, 1, 7}, {1, 6, 1}, {1, 1, 1});
  expect_windows(spatial_max({2, 0}), 3, {5, 6, 7}, {1, 6, 1}, {5, 1, 7}, {1, 1, 1});
  expect_windows(spatial_max({1}), 2, {1, 6, 7}, {1, 6, 1}, {1, 1, 7}, {1, 1, 1});
  expect_windows(spatial_max({0}), 1, {1, 1, 7}, {1, 1, 1}, {1, 1, 7}, {1, 1, 1});
}

/// The message of what must be refused.
template <class Pool>
std::string refusal(const Pool& pool, int rank, const triple& extent)
{
  pool_window w;
  const tconv::status s = resolve(pool, rank, extent, w);
  EXPECT_EQ(s.code(), tconv::status_code::invalid_argument);
  return s.message();
}

TEST(resolve_pool, wrong_number_of_axes)
{
  EXPECT_EQ(refusal(max_pool({2, 2}), 3, {5, 6, 7}), "functors: max_pool has windows for 2 axes: the tensor has 3");
  EXPECT_EQ(
    refusal(average_pool({1, 1, 1}), 1, {1, 1, 7}), "functors: average_pool has windows for 3 axes: the tensor has 1");
  EXPECT_EQ(refusal(max_pool({2, 2, 2}, {1, 1, 1}), 2, {1, 6, 7}),
            "functors: max_pool has windows for 3 axes: the tensor has 2");
}

TEST(resolve_pool, axes_that_are_not_there_or_twice)
{
  EXPECT_EQ(refusal(spatial_sum({3}), 3, {5, 6, 7}), "functors: spatial_sum over axis 3: must be in [0, 3), each once");
  EXPECT_EQ(refusal(spatial_sum({1}), 1, {1, 1, 7}), "functors: spatial_sum over axis 1: must be in [0, 1), each once");
  EXPECT_EQ(
    refusal(spatial_mean({0, -1}), 2, {1, 6, 7}), "functors: spatial_mean over axis -1: must be in [0, 2), each once");
  EXPECT_EQ(
    refusal(spatial_max({1, 2, 1}), 3, {5, 6, 7}), "functors: spatial_max over axis 1: must be in [0, 3), each once");
}

TEST(resolve_pool, sizes_and_steps_below_one)
{
  EXPECT_EQ(refusal(max_pool(0), 3, {5, 6, 7}), "functors: max_pool has size 0 and step 0 along d: both must be >= 1");
  EXPECT_EQ(
    refusal(max_pool(-2), 1, {1, 1, 7}), "functors: max_pool has size -2 and step -2 along w: both must be >= 1");
  EXPECT_EQ(refusal(average_pool({2, 0}), 2, {1, 6, 7}),
            "functors: average_pool has size 0 and step 0 along w: both must be >= 1");
  EXPECT_EQ(refusal(average_pool({2, 2, 2}, {1, 0, 1}), 3, {5, 6, 7}),
            "functors: average_pool has size 2 and step 0 along h: both must be >= 1");
}

TEST(resolve_pool, windows_larger_than_the_extent)
{
  EXPECT_EQ(
    refusal(max_pool(6), 3, {7, 6, 5}), "functors: max_pool has size 6 along w: must be <= 5, the extent there");
  EXPECT_EQ(refusal(average_pool({7, 1}), 2, {1, 6, 7}),
            "functors: average_pool has size 7 along h: must be <= 6, the extent there");
  EXPECT_EQ(refusal(max_pool({6, 1, 1}, {1, 1, 1}), 3, {5, 6, 7}),
            "functors: max_pool has size 6 along d: must be <= 5, the extent there");
}

/// Flat indices of the inputs of output \p o, in ascending order.
std::vector<int64_t> elements(const pool_window& w, int64_t o)
{
  const int64_t first[] = {
    o / (w.out[1] * w.out[2]) * w.step[0], o / w.out[2] % w.out[1] * w.step[1], o % w.out[2] * w.step[2]};
  std::vector<int64_t> result;
  for (int64_t d = first[0]; d < first[0] + w.size[0]; ++d)
  {
    for (int64_t h = first[1]; h < first[1] + w.size[1]; ++h)
    {
      for (int64_t x = first[2]; x < first[2] + w.size[2]; ++x)
      {
        result.push_back((d * w.in[1] + h) * w.in[2] + x);
      }
    }
  }
  return result;
}

// Every size and step on every small extent.
TEST(merge_axes, keeps_the_elements_of_every_window)
{
  int64_t merged_windows = 0;
  const auto check       = [&](const triple& in, const triple& size, const triple& step) {
    pool_window w;
    for (std::size_t a = 0; a < 3; ++a)
    {
      w.in[a]   = in[a];
      w.size[a] = size[a];
      w.step[a] = step[a];
      w.out[a]  = (in[a] - size[a]) / step[a] + 1;
    }
    const pool_window merged = tconv::detail::merge_axes(w);
    ASSERT_EQ(merged.positions(), w.positions());
    ASSERT_EQ(merged.volume(), w.volume());
    ASSERT_EQ(merged.input_positions(), w.input_positions());
    for (int64_t o = 0; o < w.positions(); ++o)
    {
      ASSERT_EQ(elements(merged, o), elements(w, o)) << o;
    }
    if (size[2] == in[2])
    {
      // Whole lines never remain lines.
      EXPECT_EQ(merged.in[2] % in[2], 0);
      EXPECT_EQ(merged.in[0], 1);
      ++merged_windows;
    }
    if (size == in)
    {
      EXPECT_EQ(merged.size[2], w.volume()) << "a reduction over everything is one run";
    }
  };
  for (int64_t code = 0; code < 64; ++code)
  {
    const triple in{code / 16 + 1, code / 4 % 4 + 1, code % 4 + 1};
    for (int64_t d = 1; d <= in[0]; ++d)
    {
      for (int64_t h = 1; h <= in[1]; ++h)
      {
        for (int64_t x = 1; x <= in[2]; ++x)
        {
          for (int64_t step = 0; step < 8; ++step)
          {
            check(in, {d, h, x}, {step / 4 + 1, step / 2 % 2 + 1, step % 2 + 1});
          }
        }
      }
    }
  }
  EXPECT_GT(merged_windows, 1000);
}

// The reference and resolve_pool() agree on what a window is.
TEST(merge_axes, windows_are_those_of_the_reference)
{
  const auto s    = make_tensor<3>(1, 1, {4, 5, 6});
  const auto test = [&](const auto& pool) {
    pool_window w;
    ASSERT_TRUE(resolve(pool, 3, {4, 5, 6}, w).ok());
    const pool_window merged = tconv::detail::merge_axes(w);
    doubles sums             = counting(120);
    const auto left          = tconv::reference::apply_pool(pool, sums.data(), s);
    ASSERT_EQ(left.positions(), merged.positions());
    for (int64_t o = 0; o < merged.positions(); ++o)
    {
      double total = 0;
      for (const int64_t e : elements(merged, o))
      {
        total += static_cast<double>(e + 1);
      }
      EXPECT_EQ(sums[static_cast<std::size_t>(o)], total / static_cast<double>(merged.volume())) << o;
    }
  };
  test(average_pool(2));
  test(average_pool({1, 2, 6}));
  test(average_pool({3, 5, 6}, {1, 1, 1}));
  test(average_pool({2, 3, 6}, {1, 2, 1}));
  test(average_pool({3, 1, 2}, {1, 2, 3}));
  test(spatial_mean());
  test(spatial_mean({0}));
  test(spatial_mean({1}));
  test(spatial_mean({2}));
  test(spatial_mean({2, 1}));
  test(spatial_mean({0, 2}));
}

// Chains.

using bias_only   = chain<tconv::bias>;
using two_pools   = chain<tconv::bias, max_pool, tconv::relu, spatial_mean, tconv::sigmoid>;
using softmax_max = chain<tconv::channel_softmax, tconv::channel_max, spatial_max>;

template <class Chain>
using before = decltype(tconv::detail::before_pool(std::declval<const Chain&>()));
template <class Chain>
using from = decltype(tconv::detail::from_pool(std::declval<const Chain&>()));

static_assert(chain<>::pools == 0);
static_assert(bias_only::pools == 0);
static_assert(chain<max_pool>::pools == 1);
static_assert(two_pools::pools == 2 && two_pools::length == 5);
static_assert(!two_pools::linear && !two_pools::across_channels && !two_pools::reduces_channels);
static_assert(!chain<spatial_mean>::linear, "a mean that follows is not over the positions that it leaves");
static_assert(softmax_max::pools == 1 && softmax_max::across_channels && softmax_max::reduces_channels);
static_assert(softmax_max::output_channels(7) == 1 && two_pools::output_channels(7) == 7);

static_assert(std::is_same<before<chain<>>, chain<>>::value);
static_assert(std::is_same<from<chain<>>, chain<>>::value);
static_assert(std::is_same<before<bias_only>, bias_only>::value);
static_assert(std::is_same<from<bias_only>, chain<>>::value);
static_assert(std::is_same<before<chain<max_pool>>, chain<>>::value);
static_assert(std::is_same<from<chain<max_pool>>, chain<max_pool>>::value);
static_assert(std::is_same<before<two_pools>, bias_only>::value);
static_assert(std::is_same<from<two_pools>, chain<max_pool, tconv::relu, spatial_mean, tconv::sigmoid>>::value);
static_assert(std::is_same<before<softmax_max>, chain<tconv::channel_softmax, tconv::channel_max>>::value);
static_assert(std::is_same<from<softmax_max>, chain<spatial_max>>::value);

static_assert(tconv::detail::across_positions<max_pool>::value);
static_assert(tconv::detail::across_positions<spatial_sum>::value);
static_assert(!tconv::detail::across_positions<tconv::bias>::value);
static_assert(!tconv::detail::across_channels<max_pool>::value);
static_assert(!tconv::detail::has_bind<max_pool>::value);
static_assert(std::is_trivially_copyable<average_pool>::value);
static_assert(std::is_trivially_copyable<spatial_max>::value);
static_assert(max_pool::operation == tconv::pool_operation::maximum);
static_assert(average_pool::operation == tconv::pool_operation::mean);
static_assert(spatial_max::operation == tconv::pool_operation::maximum);
static_assert(spatial_sum::operation == tconv::pool_operation::sum);
static_assert(spatial_mean::operation == tconv::pool_operation::mean);

// The parts of a chain keep what the functors hold.
TEST(pool_chain, cutting_copies_the_functors)
{
  const auto whole = chain(tconv::scale(3.0f), max_pool({4, 5}, {6, 7}), tconv::scale(0.5f), spatial_sum({1, 0}));
  EXPECT_EQ(tconv::detail::before_pool(whole).first.bind({})(2.0f), 6.0f);
  const auto tail = tconv::detail::from_pool(whole);
  EXPECT_EQ(tail.first.count, 2);
  EXPECT_EQ(tail.first.size[0], 4);
  EXPECT_EQ(tail.first.size[1], 5);
  EXPECT_EQ(tail.first.step[0], 6);
  EXPECT_EQ(tail.first.step[1], 7);
  EXPECT_EQ(tail.rest.first.bind({})(2.0f), 1.0f);
  EXPECT_EQ(tail.rest.rest.first.count, 2);
  EXPECT_EQ(tail.rest.rest.first.size[0], 1);
  EXPECT_EQ(tail.rest.rest.first.size[1], 0);
}

// How large windows are shared.

TEST(window_slices, small_windows_and_many_outputs_stay_with_threads)
{
  using policy = tconv::tuning::reduce_policy;
  EXPECT_EQ(policy::window_slices(1, 1), 0);
  EXPECT_EQ(policy::window_slices(1, 511), 0);
  EXPECT_EQ(policy::window_slices(1, 512), 1);
  EXPECT_EQ(policy::window_slices(1, 8191), 1);
  EXPECT_EQ(policy::window_slices(1, 8192), 2);
  EXPECT_EQ(policy::window_slices(1, int64_t{1} << 40), 2048);
  EXPECT_EQ(policy::window_slices(1024, int64_t{1} << 40), 2);
  EXPECT_EQ(policy::window_slices(2047, 8192), 2);
  EXPECT_EQ(policy::window_slices(2048, 8192), 1);
  EXPECT_EQ(policy::window_slices(65536, 512), 1);
  EXPECT_EQ(policy::window_slices(65537, 512), 0);
  EXPECT_EQ(policy::window_slices(65537, int64_t{1} << 40), 0);
}

TEST(window_slices, no_slice_is_short_and_there_are_not_too_many)
{
  using policy = tconv::tuning::reduce_policy;
  for (int64_t outputs = 1; outputs <= policy::most_outputs; outputs = outputs * 3 / 2 + 1)
  {
    for (int64_t volume = policy::least_window; volume < int64_t{1} << 34; volume = volume * 3 / 2 + 1)
    {
      const int64_t slices = policy::window_slices(outputs, volume);
      ASSERT_GE(slices, 1) << outputs << ' ' << volume;
      ASSERT_TRUE(slices == 1 || volume / slices >= policy::least_slice) << outputs << ' ' << volume;
      ASSERT_LT(outputs * (slices - 1), policy::wanted_blocks) << outputs << ' ' << volume;
    }
  }
}

} // namespace
