// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// apply_chain() with functors across positions, against the reference: window pools and reductions over some or all axes, alone,
/// several in one chain, and between other functors.
///
/// Inputs are exact; bounds follow a value through the chain, see common/bounded_tensor.cuh. A maximum is exact.

#include "common/bounded_tensor.cuh"

#include <tconv/launch/apply_chain.cuh>

#include <algorithm>
#include <cstring>
#include <limits>

namespace
{

using namespace tconv_test;
using tconv::average_pool;
using tconv::chain;
using tconv::max_pool;
using tconv::spatial_max;
using tconv::spatial_mean;
using tconv::spatial_sum;
using bf16    = __nv_bfloat16;
using tensor3 = tconv::tensor_shape<3>;
using triple  = std::array<tconv::int64_t, 3>;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <int Rank>
tconv::tensor_shape<Rank> make_tensor(std::int64_t batch,
                                      std::int64_t channels,
                                      const std::array<tconv::int64_t, static_cast<std::size_t>(Rank)>& extent)
{
  tconv::tensor_shape<Rank> s;
  s.batch    = batch;
  s.channels = channels;
  s.extent   = extent;
  return s;
}

/// Random values, with a few that are not finite where \p special.
template <class In, int Rank>
std::vector<float> make_input(const tconv::tensor_shape<Rank>& s, std::uint32_t seed, bool special)
{
  auto x = rounded_to<In>(random_values(seed, s.elements(), -4.0f, 6.0f));
  if (special)
  {
    const float values[] = {nan, inf, -inf, nan, -inf, inf};
    for (std::uint64_t i = 0; i < 6; ++i)
    {
      x[random_bits(seed + 1, i) % x.size()] = values[i];
    }
  }
  return x;
}

template <class In, class Out, int Rank, class Functors>
std::vector<float> apply_on_device(const tconv::tensor_shape<Rank>& s,
                                   const std::vector<float>& x,
                                   const tconv::tensor_shape<Rank>& result,
                                   const Functors& functors,
                                   const arrangement& how)
{
  return call_on_tensor<In, Out>(
    s,
    x,
    result,
    how,
    [&](const auto& shape, const auto& opts) { return tconv::apply_chain_workspace_bytes(shape, functors, opts); },
    [&](const In* from, Out* to, const auto& shape, const auto& opts, tconv::workspace space, cudaStream_t stream) {
      return tconv::apply_chain(from, to, shape, functors, opts, space, stream);
    });
}

/// \p on_device and \p on_host: the same chain, with operands there.
template <class In, class Out, int Rank, class Functors>
void check(const tconv::tensor_shape<Rank>& s,
           std::uint32_t seed,
           bool special,
           const Functors& on_host,
           const Functors& on_device,
           std::int64_t number)
{
  const arrangement how = arrangement::number(number);
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(s) + ", seed "
               + std::to_string(seed) + ", " + to_string(how));
  const auto x = make_input<In>(s, seed, special);
  bounded_tensor<Rank> expected(s, x);
  expected.follow(on_host);
  const auto y = apply_on_device<In, Out>(s, x, expected.shape, on_device, how);
  EXPECT_TRUE(expected.template compare<Out>(y)) << y.size() << " values";
}

template <class In, class Out, int Rank, class Functors>
void check(
  const tconv::tensor_shape<Rank>& s, std::uint32_t seed, bool special, const Functors& functors, std::int64_t number)
{
  check<In, Out>(s, seed, special, functors, functors, number);
}

/// Windows and steps.
struct window
{
  triple size;
  triple step;

  /// A pool of these, cut to \p extent.
  template <class Pool>
  Pool on(const triple& extent) const
  {
    tconv::int64_t sizes[3] = {};
    tconv::int64_t steps[3] = {};
    for (std::size_t a = 0; a < 3; ++a)
    {
      sizes[a] = std::min(size[a], extent[a]);
      steps[a] = step[a];
    }
    return Pool(sizes, steps);
  }
};

constexpr tconv::int64_t all = 1000;

/// Side by side, overlapping, with gaps, partial ones dropped, one value, and those with whole lines and planes, which are merged.
const window windows[] = {{{2, 2, 2}, {2, 2, 2}},
                          {{1, 1, 1}, {1, 1, 1}},
                          {{3, 3, 3}, {1, 2, 1}},
                          {{1, 2, 3}, {2, 3, 5}},
                          {{2, 1, 17}, {1, 1, 3}},
                          {{1, 1, all}, {1, 1, 1}},
                          {{2, 1, all}, {1, 2, 1}},
                          {{1, 3, all}, {2, 2, 7}},
                          {{2, all, all}, {1, 1, 1}},
                          {{all, all, all}, {1, 1, 1}},
                          {{all, 1, 2}, {1, 1, 1}}};

const tensor3 shapes[] = {make_tensor<3>(1, 1, {1, 1, 1}),
                          make_tensor<3>(2, 3, {5, 6, 7}),
                          make_tensor<3>(3, 17, {1, 1, 23}),
                          make_tensor<3>(1, 64, {3, 1, 8}),
                          make_tensor<3>(2, 5, {2, 9, 33}),
                          make_tensor<3>(2, 130, {4, 3, 1})};

class pool_gpu : public gpu_test
{};

TEST_F(pool_gpu, windows_of_every_form)
{
  std::uint32_t seed = 1;
  for (const tensor3& s : shapes)
  {
    for (const window& w : windows)
    {
      const auto largest = chain(w.on<max_pool>(s.extent));
      const auto mean    = chain(w.on<average_pool>(s.extent));
      for (std::int64_t i = 0; i < 4; ++i)
      {
        check<float, float>(s, seed, seed % 3 == 0, largest, 5 * seed + i);
        check<float, float>(s, seed, seed % 3 == 1, mean, 5 * seed + i + 1);
      }
      check<bf16, bf16>(s, seed, seed % 3 == 1, largest, 3 * seed);
      check<bf16, float>(s, seed, seed % 3 == 2, largest, 3 * seed + 1);
      check<bf16, bf16>(s, seed, seed % 3 == 2, mean, 3 * seed + 2);
      ++seed;
    }
  }
}

TEST_F(pool_gpu, one_and_two_axes)
{
  std::uint32_t seed = 300;
  const auto test    = [&](const auto& s, bool special, const auto& pool) {
    ++seed;
    check<float, float>(s, seed, special, chain(pool), seed);
  };
  for (const std::int64_t channels : {1, 7, 40})
  {
    for (int i = 0; i < 4; ++i)
    {
      const auto line = make_tensor<1>(2, channels, {29});
      test(line, false, max_pool(2));
      test(line, true, average_pool(3));
      test(line, false, max_pool({5}, {2}));
      test(line, false, spatial_mean({0}));
      test(line, false, spatial_max());
      const auto plane = make_tensor<2>(2, channels, {9, 11});
      test(plane, true, max_pool(3));
      test(plane, false, average_pool({2, 5}));
      test(plane, false, max_pool({4, 3}, {1, 4}));
      test(plane, false, spatial_mean({1}));
      test(plane, false, spatial_max({0}));
      test(plane, false, spatial_mean());
    }
  }
}

/// Each reduction over every set of axes.
template <class Pool>
void check_axes(const tensor3& s, std::uint32_t seed)
{
  const Pool pools[] = {
    Pool(), Pool({0}), Pool({1}), Pool({2}), Pool({1, 0}), Pool({0, 2}), Pool({2, 1}), Pool({0, 1, 2})};
  for (const Pool& pool : pools)
  {
    for (std::int64_t i = 0; i < 4; ++i)
    {
      check<float, float>(s, seed, seed % 2 == 0, chain(pool), 7 * seed + i);
    }
    ++seed;
  }
}

TEST_F(pool_gpu, reductions_over_every_set_of_axes)
{
  std::uint32_t seed = 500;
  // The second one has windows of more than 512 values along one axis, along two and along all.
  for (const tensor3& s : {make_tensor<3>(2, 9, {5, 6, 7}), make_tensor<3>(1, 3, {3, 601, 5})})
  {
    check_axes<spatial_sum>(s, seed);
    check_axes<spatial_mean>(s, seed + 10);
    check_axes<spatial_max>(s, seed + 20);
    seed += 30;
  }
}

// Blocks take windows of 512 values and more, several a window from 8192 on; threads take those of 511.
TEST_F(pool_gpu, large_windows)
{
  struct large
  {
    tensor3 shape;
    window windows;
  };
  const large cases[] = {{make_tensor<3>(2, 3, {1, 7, 73}), {{all, all, all}, {1, 1, 1}}}, // 511
                         {make_tensor<3>(2, 3, {8, 8, 8}), {{all, all, all}, {1, 1, 1}}},  // 512, one run
                         {make_tensor<3>(2, 5, {9, 10, 11}), {{8, 9, 10}, {1, 1, 1}}},     // 720, lines
                         {make_tensor<3>(1, 4, {10, 10, 12}), {{3, 15, all}, {2, 1, 1}}},  // 360, planes
                         {make_tensor<3>(1, 2, {40, 5, 7}), {{20, 5, 7}, {9, 1, 1}}},      // 700, merged, overlapping
                         {make_tensor<3>(1, 2, {1, 1, 8191}), {{all, all, 8191}, {1, 1, 1}}},  // one slice
                         {make_tensor<3>(1, 2, {1, 2, 4096}), {{all, all, 4096}, {1, 1, 1}}},  // two
                         {make_tensor<3>(1, 2, {3, 53, 101}), {{all, all, all}, {1, 1, 1}}},   // three
                         {make_tensor<3>(1, 3, {22, 23, 25}), {{20, 21, 22}, {1, 2, 3}}},      // two, of lines
                         {make_tensor<3>(1, 1, {37, 101, 151}), {{all, 100, 150}, {1, 1, 1}}}, // 135
                         {make_tensor<3>(1, 1, {1, 3, 100000}), {{1, 1, 99999}, {1, 1, 1}}}};  // 24, rows that overlap
  std::uint32_t seed  = 600;
  for (const large& c : cases)
  {
    for (std::int64_t i = 0; i < 2; ++i)
    {
      ++seed;
      check<float, float>(c.shape, seed, i == 1, chain(c.windows.on<max_pool>(c.shape.extent)), 5 * seed);
      check<float, float>(c.shape, seed, i == 1, chain(c.windows.on<average_pool>(c.shape.extent)), 5 * seed + 1);
      check<bf16, bf16>(c.shape, seed, i == 0, chain(c.windows.on<average_pool>(c.shape.extent)), 5 * seed + 2);
      check<bf16, bf16>(c.shape, seed, i == 0, chain(c.windows.on<max_pool>(c.shape.extent)), 5 * seed + 3);
    }
  }
}

// More than 65,536 outputs: threads take windows of any size.
TEST_F(pool_gpu, many_large_windows)
{
  const auto s = make_tensor<1>(1, 2, {33400});
  check<float, float>(s, 700, true, chain(max_pool({600}, {1})), 1);
  check<float, float>(s, 701, false, chain(average_pool({600}, {1})), 2);
}

/// Operands of a chain on the host and on the device.
struct operands
{
  std::vector<float> values;
  device_buffer<float> on_device;

  operands(std::uint32_t seed, std::int64_t count) : values(random_values(seed, count)), on_device(values) {}
};

const tensor3 deep_shapes[] = {make_tensor<3>(2, 1, {4, 6, 7}),
                               make_tensor<3>(2, 5, {4, 6, 35}),
                               make_tensor<3>(1, 64, {2, 4, 33}),
                               make_tensor<3>(2, 129, {2, 5, 6}),
                               make_tensor<3>(1, 256, {2, 3, 9}),
                               make_tensor<3>(2, 257, {3, 4, 21}),
                               make_tensor<3>(1, 1000, {2, 2, 7})};

// A head before the pool, and rows of channels behind it, in registers and in shared memory.
TEST_F(pool_gpu, bias_then_pool_then_softmax)
{
  std::uint32_t seed = 800;
  const auto test    = [&](const tensor3& s, const max_pool& pool, int arrangements) {
    const operands b(++seed, s.channels);
    for (int i = 0; i < arrangements; ++i)
    {
      check<float, float>(s,
                          seed,
                          i % 2 == 0,
                          chain(tconv::bias(b.values.data()), pool, tconv::channel_softmax{}),
                          chain(tconv::bias(b.on_device.data()), pool, tconv::channel_softmax{}),
                          5 * seed + i);
    }
  };
  for (const tensor3& s : deep_shapes)
  {
    test(s, max_pool(2), 4);
    test(s, max_pool({1, 2, 3}, {1, 1, 2}), 2);
  }
  // Large windows before the rows.
  test(make_tensor<3>(2, 20, {8, 9, 10}), max_pool({8, 8, 8}, {1, 1, 1}), 2);
  test(make_tensor<3>(1, 300, {3, 52, 53}), max_pool({3, 52, 53}), 2);
  // Rows that fit no block's shared memory.
  test(make_tensor<3>(1, 30011, {1, 2, 5}), max_pool({1, 2, 2}), 1);
}

// A reduction of the channels before the pools: what they see has one channel, and functors behind them channel 0.
TEST_F(pool_gpu, channel_max_then_pools)
{
  std::uint32_t seed = 900;
  for (const tensor3& s : deep_shapes)
  {
    const operands factor(++seed, 1);
    const auto make = [](const float* factors) {
      return chain(tconv::channel_max{}, average_pool(2), tconv::scale(factors), spatial_sum({2}));
    };
    for (std::int64_t i = 0; i < 4; ++i)
    {
      check<float, float>(s, seed, i == 1, make(factor.values.data()), make(factor.on_device.data()), 5 * seed + i);
    }
  }
}

// The same behind the first pool: the second one has a single channel to read.
TEST_F(pool_gpu, pool_then_channel_max_then_sum)
{
  std::uint32_t seed = 950;
  for (const tensor3& s : deep_shapes)
  {
    const operands factor(++seed, 1);
    const auto make = [](const float* factors) {
      return chain(average_pool(2), tconv::channel_max{}, tconv::scale(factors), spatial_sum({2}));
    };
    for (std::int64_t i = 0; i < 4; ++i)
    {
      check<float, float>(s, seed, i == 2, make(factor.values.data()), make(factor.on_device.data()), 5 * seed + i);
    }
  }
}

// Operands of a whole tensor behind a pool have its shape; three pools in one chain.
TEST_F(pool_gpu, several_pools_and_a_residual)
{
  std::uint32_t seed = 1000;
  for (const tensor3& s : deep_shapes)
  {
    for (std::int64_t i = 0; i < 4; ++i)
    {
      const std::int64_t left = (s.extent[0] - 1) * (s.extent[1] / 2) * ((s.extent[2] - 3) / 2 + 1);
      const operands r(++seed, s.batch * s.channels * left);
      const auto strides = tconv::tensor_strides::of(
        i % 2 == 0 ? tconv::layout::channels_first : tconv::layout::channels_last, s.channels, left);
      const auto make = [&](const float* residual) {
        return chain(max_pool({2, 2, 3}, {1, 2, 2}),
                     tconv::add_tensor(residual, strides),
                     tconv::relu{},
                     average_pool({1, 1, 2}),
                     tconv::sigmoid{},
                     spatial_sum());
      };
      check<float, float>(s, seed, i == 1, make(r.values.data()), make(r.on_device.data()), seed);
    }
  }
}

// One NaN: exactly the outputs whose windows hold it, wherever it stands; none where no window does.
TEST_F(pool_gpu, nan_reaches_its_windows_alone)
{
  const tensor3 s = make_tensor<3>(1, 2, {3, 5, 24});
  struct pooled
  {
    window windows;
    std::size_t outputs; ///< per channel
  };
  for (const pooled& p : {pooled{{{2, 3, 4}, {1, 2, 3}}, 2 * 2 * 7}, pooled{{{1, 2, 2}, {2, 3, 5}}, 2 * 2 * 5}})
  {
    for (std::int64_t at = 0; at < s.positions(); at += 7)
    {
      auto x = random_values(3, s.elements());
      // The second channel's.
      x[static_cast<std::size_t>(s.positions() + at)] = nan;
      const std::int64_t place[]                      = {at / (5 * 24), at / 24 % 5, at % 24};
      const auto expected                             = [&](std::size_t o) {
        const std::size_t out[] = {o / (p.outputs / 2), o / (p.outputs / 4) % 2, o % (p.outputs / 4)};
        bool inside             = true;
        for (std::size_t a = 0; a < 3; ++a)
        {
          const std::int64_t first = static_cast<std::int64_t>(out[a]) * p.windows.step[a];
          inside                   = inside && first <= place[a] && place[a] < first + p.windows.size[a];
        }
        return inside;
      };
      const auto test = [&](const auto& pool) {
        bounded_tensor<3> result(s, x);
        result.follow(chain(pool));
        const auto y = apply_on_device<float, float>(s, x, result.shape, chain(pool), arrangement::number(at));
        ASSERT_EQ(y.size(), 2 * p.outputs);
        for (std::size_t o = 0; o < p.outputs; ++o)
        {
          EXPECT_FALSE(std::isnan(y[o])) << "channel 0, output " << o << ", NaN at " << at;
          EXPECT_EQ(std::isnan(y[p.outputs + o]), expected(o)) << "output " << o << ", NaN at " << at;
        }
      };
      test(p.windows.on<max_pool>(s.extent));
      test(p.windows.on<average_pool>(s.extent));
    }
  }
}

// In every slice of a large window, at its ends and in the middle; and the other channel's result is a number.
TEST_F(pool_gpu, nan_in_a_large_window)
{
  const tensor3 s = make_tensor<3>(1, 2, {5, 50, 101}); // 25250 values, 6 slices
  for (std::int64_t at = 0; at < s.positions(); at += at % 2 == 0 ? 2103 : 2106)
  {
    for (const std::int64_t place : {at, s.positions() - 1 - at})
    {
      auto x                             = random_values(5, s.elements());
      x[static_cast<std::size_t>(place)] = nan;
      const auto test                    = [&](const auto& functors) {
        const auto y = apply_on_device<float, float>(
          s, x, make_tensor<3>(1, 2, {1, 1, 1}), functors, arrangement::number(place));
        ASSERT_EQ(y.size(), 2U);
        EXPECT_TRUE(std::isnan(y[0])) << place;
        EXPECT_FALSE(std::isnan(y[1])) << place;
      };
      test(chain(spatial_max()));
      test(chain(spatial_mean()));
    }
  }
}

// Nothing but -inf, and all values below zero: a maximum starts from nothing.
TEST_F(pool_gpu, maxima_below_zero)
{
  for (const std::int64_t positions : {6, 600, 20000})
  {
    const auto s = make_tensor<1>(1, 3, {positions});
    std::vector<float> x(static_cast<std::size_t>(3 * positions), -inf);
    std::fill(x.begin() + positions, x.begin() + 2 * positions, -7.5f);
    x[static_cast<std::size_t>(3 * positions) - 2] = -std::numeric_limits<float>::max();
    for (std::int64_t number = 0; number < 4; ++number)
    {
      const auto y = apply_on_device<float, float>(
        s, x, make_tensor<1>(1, 3, {1}), chain(spatial_max()), arrangement::number(number));
      EXPECT_EQ(y, (std::vector<float>{-inf, -7.5f, -std::numeric_limits<float>::max()})) << positions;
    }
  }
}

// Sums of integers are exact in any order, and their mean is rounded once.
TEST_F(pool_gpu, integers_are_exact)
{
  std::uint32_t seed = 1100;
  const auto test    = [&](const auto& s, const auto& pool) {
    std::vector<float> x(static_cast<std::size_t>(s.elements()));
    ++seed;
    for (std::size_t i = 0; i < x.size(); ++i)
    {
      x[i] = static_cast<float>(uniform_integer(seed, i, -9, 9));
    }
    std::vector<double> expected(x.begin(), x.end());
    const auto left = tconv::reference::apply_pool(pool, expected.data(), s);
    const std::vector<float> rounded(expected.begin(), expected.begin() + left.elements());
    for (std::int64_t i = 0; i < 4; ++i)
    {
      EXPECT_EQ((apply_on_device<float, float>(s, x, left, chain(pool), arrangement::number(5 * seed + i))), rounded)
        << to_string(s) << ", arrangement " << 5 * seed + i;
    }
  };
  const auto small = make_tensor<3>(2, 6, {5, 6, 37});
  test(small, average_pool(3));
  test(small, average_pool({2, 2, 19}, {1, 3, 2}));
  test(small, max_pool(2));
  test(small, spatial_sum({0}));
  test(small, spatial_sum({2, 1}));
  test(small, spatial_mean());
  const auto large = make_tensor<2>(2, 3, {101, 203});
  test(large, spatial_sum());
  test(large, spatial_mean());
  test(large, spatial_max());
  test(large, average_pool({99, 97}, {1, 50}));
}

// A sum whose terms cancel, and which fp32 loses beyond 16 of them.
TEST_F(pool_gpu, long_sums_are_fp64)
{
  // 2^24 once, then ones: an fp32 sum would stay at 2^24.
  for (const std::int64_t positions : {401, 5001, 50001})
  {
    std::vector<float> x(static_cast<std::size_t>(positions), 1.0f);
    x[0]         = 0x1p24f;
    const auto s = make_tensor<1>(1, 1, {positions});
    const auto y = apply_on_device<float, float>(s, x, make_tensor<1>(1, 1, {1}), chain(spatial_sum()), {});
    ASSERT_EQ(y.size(), 1U);
    // At most the 15 values that share a chunk with the large one are lost, and one rounding.
    EXPECT_NEAR(y[0], 0x1p24 + static_cast<double>(positions - 1), 15 + 1) << positions;
  }
}

// Windows of 32400 values, 7 blocks each.
TEST_F(pool_gpu, a_hundred_launches_agree)
{
  const tensor3 s = make_tensor<3>(2, 7, {9, 50, 77});
  device_buffer<float> x(random_values(11, s.elements()));
  const auto functors = chain(tconv::scale(1.1f), average_pool({9, 48, 75}, {1, 1, 1}), spatial_mean());
  device_buffer<float> y(2 * 7);
  std::vector<float> first;
  for (int i = 0; i < 100; ++i)
  {
    // New and poisoned each time.
    workspace_buffer space(tconv::apply_chain_workspace_bytes(s, functors));
    y.poison();
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::apply_chain(x.data(), y.data(), s, functors, tconv::options{}, space.get(), stream);
    }));
    const auto got = y.download();
    if (i == 0)
    {
      first = got;
      ASSERT_TRUE(std::none_of(got.begin(), got.end(), [](float v) { return std::isnan(v); }));
    }
    ASSERT_EQ(got, first) << i;
    ASSERT_TRUE(space.guards_intact());
  }
}

// y has the extents that the pool leaves: it may begin where x ends, and end where x begins.
TEST_F(pool_gpu, y_may_touch_x)
{
  const auto s        = make_tensor<2>(1, 3, {6, 10}); // 180 values; y has 45
  const auto functors = chain(max_pool(2));
  const auto values   = random_values(12, 180);
  std::vector<double> expected(values.begin(), values.end());
  tconv::reference::apply(functors, expected.data(), s);
  for (const bool y_first : {false, true})
  {
    std::vector<float> both(225, nan);
    const std::ptrdiff_t x = y_first ? 45 : 0;
    const std::ptrdiff_t y = y_first ? 0 : 180;
    std::copy(values.begin(), values.end(), both.begin() + x);
    device_buffer<float> d(both);
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::apply_chain(d.data() + x, d.data() + y, s, functors, tconv::options{}, {}, stream);
    }));
    const auto got = d.download();
    EXPECT_TRUE(std::equal(values.begin(), values.end(), got.begin() + x));
    for (std::ptrdiff_t i = 0; i < 45; ++i)
    {
      EXPECT_EQ(static_cast<double>(got[static_cast<std::size_t>(y + i)]), expected[static_cast<std::size_t>(i)]) << i;
    }
  }
}

TEST_F(pool_gpu, errors_and_nothing_to_do_write_nothing)
{
  device_buffer<float> x(std::vector<float>(3 * 4 * 5, 1.0f));
  device_buffer<float> y(3 * 4 * 5);
  const auto code = [&](const auto& s, const auto& functors) {
    return tconv::apply_chain(x.data(), y.data(), s, functors, tconv::options{}, {}, nullptr).code();
  };
  using tconv::status_code;
  const auto s = make_tensor<2>(1, 3, {4, 5});
  EXPECT_EQ(code(s, chain(max_pool(5))), status_code::invalid_argument);
  EXPECT_EQ(code(s, chain(tconv::relu{}, max_pool(1))), status_code::workspace_too_small);
  EXPECT_EQ(code(s, chain(max_pool(2), spatial_max({2}))), status_code::invalid_argument) << "the second of two";
  EXPECT_EQ(code(make_tensor<2>(0, 3, {4, 5}), chain(max_pool(2))), status_code::success);
  EXPECT_EQ(code(make_tensor<2>(1, 3, {0, 5}), chain(max_pool(2))), status_code::success);
  EXPECT_EQ(code(make_tensor<2>(1, 3, {4, 0}), chain(spatial_max())), status_code::success);
  ASSERT_TRUE(cuda_ok(cudaDeviceSynchronize(), "nothing"));
  for (const float v : y.download())
  {
    EXPECT_TRUE(std::isnan(v)) << "written";
  }
}

// Checked before anything is launched, so without a GPU too.
struct pool_arguments : testing::Test
{
  static constexpr std::uintptr_t base = std::uintptr_t{1} << 40;

  static float* at(std::uintptr_t offset) { return reinterpret_cast<float*>(base + offset); }
  /// The status of a call with x at offset 0 and the workspace far away.
  template <int Rank, class Functors>
  static tconv::status
  call(const tconv::tensor_shape<Rank>& s, const Functors& functors, std::uintptr_t y, std::size_t missing = 0)
  {
    const std::size_t bytes = tconv::apply_chain_workspace_bytes(s, functors) - missing;
    return tconv::apply_chain(
      at(0), at(y), s, functors, tconv::options{}, {at(std::uintptr_t{1} << 30), bytes}, nullptr);
  }
};

TEST_F(pool_arguments, windows_are_checked)
{
  const auto s       = make_tensor<3>(2, 3, {4, 5, 6});
  const auto message = [&](const auto& functors) {
    const tconv::status result = call(s, functors, 1 << 20);
    EXPECT_EQ(result.code(), tconv::status_code::invalid_argument);
    EXPECT_EQ(tconv::apply_chain_workspace_bytes(s, functors), 0U);
    return std::string(result.message());
  };
  EXPECT_EQ(message(chain(max_pool(5))), "functors: max_pool has size 5 along d: must be <= 4, the extent there");
  EXPECT_EQ(message(chain(max_pool({2, 2}))), "functors: max_pool has windows for 2 axes: the tensor has 3");
  EXPECT_EQ(message(chain(spatial_sum({1, 1}))), "functors: spatial_sum over axis 1: must be in [0, 3), each once");
  // Of what the first has left.
  EXPECT_EQ(message(chain(tconv::relu{}, max_pool(2), tconv::relu{}, average_pool({1, 1, 4}))),
            "functors: average_pool has size 4 along w: must be <= 3, the extent there");
}

TEST_F(pool_arguments, y_stays_clear_of_x)
{
  const auto s     = make_tensor<2>(1, 2, {4, 6}); // 192 bytes; y has 48
  const auto check = [&](const auto& functors, std::uintptr_t y, const char* message) {
    const tconv::status result = call(s, functors, y);
    EXPECT_EQ(result.code(), tconv::status_code::invalid_argument) << y;
    EXPECT_STREQ(result.message(), message) << y;
  };
  // In place as well, even where the extents stay.
  check(chain(max_pool(2)), 0, "y: must not overlap x");
  check(chain(max_pool(1)), 0, "y: must not overlap x");
  check(chain(tconv::relu{}, max_pool(2)), 0, "y: must not overlap x");
  check(chain(max_pool(2)), 188, "y: must not overlap x");
  // Beginning before x; base is far from 0.
  check(chain(max_pool(2)), static_cast<std::uintptr_t>(-44), "y: must not overlap x");
  check(chain(tconv::relu{}, max_pool(2)), std::uintptr_t{1} << 30, "y: must not overlap workspace");
}

TEST_F(pool_arguments, workspace)
{
  const auto s        = make_tensor<3>(2, 3, {16, 16, 16});
  const auto elements = static_cast<std::size_t>(s.elements());
  EXPECT_EQ(tconv::apply_chain_workspace_bytes(s, chain(max_pool(2))), 0U) << "threads read x itself";
  EXPECT_EQ(tconv::apply_chain_workspace_bytes(s, chain(max_pool(2), tconv::channel_softmax{})), 0U);
  EXPECT_GE(tconv::apply_chain_workspace_bytes(s, chain(tconv::relu{}, max_pool(2))), elements * 4);
  EXPECT_GE(tconv::apply_chain_workspace_bytes(s, chain(max_pool(2), max_pool(2))), elements / 8 * 4);
  EXPECT_GE(tconv::apply_chain_workspace_bytes(s, chain(spatial_max())), 8U * 6);
  EXPECT_EQ(tconv::apply_chain_workspace_bytes(make_tensor<3>(0, 3, {16, 16, 16}), chain(spatial_max())), 0U);
  for (const tconv::status& result : {call(s, chain(tconv::relu{}, max_pool(2)), 1 << 20, 1),
                                      call(s, chain(max_pool(2), max_pool(2)), 1 << 20, 1),
                                      call(s, chain(spatial_max()), 1 << 20, 1)})
  {
    EXPECT_EQ(result.code(), tconv::status_code::workspace_too_small) << result.message();
  }
}

} // namespace
