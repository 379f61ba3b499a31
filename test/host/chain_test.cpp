// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Chains of functors on a tile of values and on a whole tensor in double.

#include "../common/random.hpp"

#include <tconv/reference/chain.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/affine.hpp>
#include <tconv/thread/chain.hpp>
#include <tconv/thread/channel_reduction.hpp>
#include <tconv/thread/layer_norm.hpp>
#include <tconv/thread/softmax.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace
{

/// The tile concept on the CPU: all channels of some positions of one sample, channels first.
class host_tile
{
public:
  host_tile(int channels, int positions, std::int64_t n = 0)
      : channels_(channels)
      , positions_(positions)
      , n_(n)
      , values(static_cast<std::size_t>(channels) * static_cast<std::size_t>(positions))
  {}

  int channels() const { return channels_; }
  int positions() const { return positions_; }
  tconv::coordinate at(int c) const { return {n_, c}; }
  float& operator()(int c, int p)
  {
    return values[static_cast<std::size_t>(c) * static_cast<std::size_t>(positions_) + static_cast<std::size_t>(p)];
  }

  /// All channels of one position, a stride apart.
  class position_row
  {
  public:
    position_row(host_tile& tile, int p) : tile_(tile), p_(p) {}
    int size() const { return tile_.channels(); }
    float& operator[](int i) { return tile_(i, p_); }
    std::int64_t channel(int i) const { return i; }
    bool valid(int) const { return true; }
    std::int64_t channels() const { return tile_.channels(); }
    template <class Op>
    float all_reduce(float v, Op) const
    {
      return v;
    }

  private:
    host_tile& tile_;
    int p_;
  };
  position_row row(int p) { return {*this, p}; }

private:
  int channels_;
  int positions_;
  std::int64_t n_;

public:
  std::vector<float> values;
};

host_tile make_tile(int channels, int positions, std::vector<float> values, std::int64_t n = 0)
{
  host_tile tile(channels, positions, n);
  tile.values = std::move(values);
  return tile;
}

// Users' functors.

struct plus_one
{
  float operator()(float v) const { return v + 1.0f; }
};

struct times_two
{
  float operator()(float v) const { return v * 2.0f; }
};

/// Its double form is told apart from the fp32 one by an offset that no rounding explains.
struct with_reference
{
  float operator()(float v) const { return v + 1.0f; }
  double reference(double v) const { return v + 1.0625; }
};

/// Depends on the sample and on the channel, and counts how often it is bound.
struct counting_offset
{
  int* binds;

  struct bound
  {
    float offset;
    float operator()(float v) const { return v + offset; }
    double reference(double v) const { return v + static_cast<double>(offset); }
  };
  bound bind(const tconv::coordinate& at) const
  {
    ++*binds;
    return {static_cast<float>(100 * at.n + 10 * at.channel)};
  }
};

/// A channel functor of a user: subtracts the largest channel.
struct minus_peak
{
  static constexpr bool across_channels = true;

  template <class Row>
  void operator()(Row& row) const
  {
    const float peak = tconv::reduce_row(
      row, -std::numeric_limits<float>::infinity(), tconv::maximum_ignoring_nan{}, [](float v) { return v; });
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] -= peak;
    }
  }
};

/// Its double form, found by argument-dependent lookup as the built-in ones are.
[[maybe_unused]] void evaluate(const minus_peak&, std::vector<double>& row)
{
  double peak = row[0];
  for (const double v : row)
  {
    peak = v > peak ? v : peak;
  }
  for (double& v : row)
  {
    v -= peak;
  }
}

/// A user's linear functor says so.
struct negate
{
  static constexpr bool linear = true;
  float operator()(float v) const { return -v; }
};

/// Says that it is not linear, which must count as no.
struct not_linear
{
  static constexpr bool linear          = false;
  static constexpr bool across_channels = false;
  float operator()(float v) const { return v * v; }
};

/// A user's variation on a built-in functor, with its own double form.
struct shifted_relu : tconv::relu
{
  float operator()(float v) const { return tconv::relu::operator()(v) + 1.0f; }
  double reference(double v) const { return (v > 0.0 ? v : 0.0) + 1.0; }
};

/// A user's functor that reduces the channels: the square of their sum.
struct squared_sum
{
  static constexpr bool across_channels  = true;
  static constexpr bool reduces_channels = true;

  template <class Row>
  void operator()(Row& row) const
  {
    const float sum = tconv::reduce_row(row, 0.0f, tconv::plus{});
    tconv::fill_row(row, sum * sum);
  }
};

[[maybe_unused]] void evaluate(const squared_sum&, std::vector<double>& row)
{
  double sum = 0;
  for (const double v : row)
  {
    sum += v;
  }
  row = {sum * sum};
}

// Order and binding.

TEST(chain, applies_first_to_last)
{
  host_tile tile = make_tile(1, 2, {1.0f, 2.0f});
  apply(tconv::chain(plus_one{}, times_two{}), tile);
  EXPECT_EQ(tile.values, (std::vector<float>{4.0f, 6.0f}));

  tile = make_tile(1, 2, {1.0f, 2.0f});
  apply(tconv::chain(times_two{}, plus_one{}), tile);
  EXPECT_EQ(tile.values, (std::vector<float>{3.0f, 5.0f}));
}

TEST(chain, bias_before_and_after_relu)
{
  const float b[] = {-1.0f, 1.0f};
  host_tile tile  = make_tile(2, 2, {0.5f, 2.0f, -3.0f, -0.5f});
  apply(tconv::chain(tconv::bias(b), tconv::relu{}), tile);
  EXPECT_EQ(tile.values, (std::vector<float>{0.0f, 1.0f, 0.0f, 0.5f}));

  tile = make_tile(2, 2, {0.5f, 2.0f, -3.0f, -0.5f});
  apply(tconv::chain(tconv::relu{}, tconv::bias(b)), tile);
  EXPECT_EQ(tile.values, (std::vector<float>{-0.5f, 1.0f, 1.0f, 1.0f}));
}

TEST(chain, binds_once_per_channel_to_sample_and_channel)
{
  int binds      = 0;
  host_tile tile = make_tile(3, 4, std::vector<float>(12, 0.5f), 2);
  apply(tconv::chain(counting_offset{&binds}), tile);
  EXPECT_EQ(binds, 3) << "operands are read once, not per position";
  for (int c = 0; c < 3; ++c)
  {
    for (int p = 0; p < 4; ++p)
    {
      EXPECT_EQ(tile(c, p), 200.5f + 10.0f * static_cast<float>(c));
    }
  }
}

TEST(chain, channel_functors_see_one_position_at_a_time)
{
  // Channels-first values of two channels and two positions: a softmax over the wrong axis would mix 0 and 3.
  host_tile tile = make_tile(2, 2, {0.0f, 3.0f, 0.0f, 3.0f});
  apply(tconv::chain(tconv::channel_softmax{}), tile);
  EXPECT_EQ(tile.values, std::vector<float>(4, 0.5f));

  tile = make_tile(2, 2, {1.0f, 7.0f, 5.0f, 2.0f});
  apply(tconv::chain(minus_peak{}), tile);
  EXPECT_EQ(tile.values, (std::vector<float>{-4.0f, 0.0f, 0.0f, -5.0f}));
}

TEST(chain, pointwise_and_channel_functors_mix)
{
  const float b[] = {std::log(3.0f), 0.0f};
  host_tile tile  = make_tile(2, 1, {5.0f, 5.0f});
  apply(tconv::chain(tconv::bias(b), tconv::channel_softmax{}, tconv::scale(4.0f), tconv::sigmoid{}), tile);
  const auto sigmoid = [](double v) { return 1.0 / (1.0 + std::exp(-v)); };
  EXPECT_NEAR(static_cast<double>(tile(0, 0)), sigmoid(3.0), 1e-6);
  EXPECT_NEAR(static_cast<double>(tile(1, 0)), sigmoid(1.0), 1e-6);
}

TEST(chain, the_headline_chain_keeps_its_values_apart)
{
  // softmax then sigmoid lies in [0.5, 0.7311): sigmoid then softmax would not.
  const float b[] = {0.0f, 0.0f, 0.0f};
  host_tile tile  = make_tile(3, 1, {-20.0f, 0.0f, 20.0f});
  apply(tconv::chain(tconv::bias(b), tconv::channel_softmax{}, tconv::sigmoid{}), tile);
  EXPECT_EQ(tile(0, 0), 0.5f);
  EXPECT_NEAR(tile(1, 0), 0.5f, 1e-8f);
  EXPECT_NEAR(tile(2, 0), 0.7310586f, 2e-7f);
}

TEST(chain, empty_does_nothing)
{
  host_tile tile = make_tile(2, 1, {1.0f, -2.0f});
  apply(tconv::chain<>{}, tile);
  EXPECT_EQ(tile.values, (std::vector<float>{1.0f, -2.0f}));
  double y[] = {1.0, -2.0};
  tconv::reference::apply(tconv::chain<>{}, y, 1, 2, 1);
  EXPECT_EQ(y[0], 1.0);
  EXPECT_EQ(y[1], -2.0);
}

TEST(chain, works_on_an_empty_tile)
{
  int binds      = 0;
  host_tile tile = make_tile(0, 0, {});
  apply(tconv::chain(counting_offset{&binds}, tconv::channel_softmax{}), tile);
  EXPECT_EQ(binds, 0);
}

TEST(chain, visits_every_functor_in_order)
{
  std::string seen;
  const auto visitor = [&seen](const auto& functor) {
    using F = std::decay_t<decltype(functor)>;
    seen += std::is_same_v<F, plus_one>   ? 'p'
          : std::is_same_v<F, times_two>  ? 't'
          : std::is_same_v<F, minus_peak> ? 'm'
                                          : '?';
  };
  tconv::chain(plus_one{}, minus_peak{}, times_two{}, plus_one{}).for_each(visitor);
  EXPECT_EQ(seen, "pmtp");
  seen.clear();
  tconv::chain<>{}.for_each(visitor);
  EXPECT_EQ(seen, "");
}

TEST(chain, carries_the_parameters_of_its_functors)
{
  // Two functors of one type with different parameters must stay two.
  host_tile tile = make_tile(1, 1, {-8.0f});
  apply(tconv::chain(tconv::leaky_relu{0.5f}, tconv::leaky_relu{0.25f}), tile);
  EXPECT_EQ(tile.values, std::vector<float>{-1.0f});

  const auto original = tconv::chain(tconv::leaky_relu{0.5f}, plus_one{});
  const auto copy     = original;
  tile                = make_tile(1, 1, {-8.0f});
  apply(copy, tile);
  EXPECT_EQ(tile.values, std::vector<float>{-3.0f});
}

// Chains that reduce the channels.

TEST(chain, reducing_functors_leave_their_result_in_every_channel)
{
  const std::vector<float> values{1.0f, 7.0f, 5.0f, 2.0f, -3.0f, 0.0f}; // three channels, two positions
  const auto run = [&](const auto& functor) {
    host_tile tile = make_tile(3, 2, values);
    apply(tconv::chain(functor), tile);
    return tile.values;
  };
  EXPECT_EQ(run(tconv::channel_max{}), (std::vector<float>{5.0f, 7.0f, 5.0f, 7.0f, 5.0f, 7.0f}));
  EXPECT_EQ(run(tconv::channel_min{}), (std::vector<float>{-3.0f, 0.0f, -3.0f, 0.0f, -3.0f, 0.0f}));
  EXPECT_EQ(run(tconv::channel_sum{}), (std::vector<float>{3.0f, 9.0f, 3.0f, 9.0f, 3.0f, 9.0f}));
  EXPECT_EQ(run(tconv::channel_mean{}), (std::vector<float>{1.0f, 3.0f, 1.0f, 3.0f, 1.0f, 3.0f}));
  EXPECT_EQ(run(squared_sum{}), (std::vector<float>{9.0f, 81.0f, 9.0f, 81.0f, 9.0f, 81.0f}));
}

TEST(chain, functors_behind_a_reducing_one_see_channel_0)
{
  const float before[] = {1.0f, 10.0f, 100.0f};
  const float after[]  = {0.5f, 1e30f, 1e30f};
  host_tile tile       = make_tile(3, 2, {0.0f, 1.0f, 0.0f, 2.0f, 0.0f, 3.0f});
  apply(tconv::chain(tconv::bias(before), tconv::channel_sum{}, tconv::bias(after), plus_one{}), tile);
  EXPECT_EQ(tile.values, (std::vector<float>{112.5f, 118.5f, 112.5f, 118.5f, 112.5f, 118.5f}));
}

TEST(chain, functors_behind_a_reducing_one_are_bound_once_to_their_sample)
{
  int before     = 0;
  int after      = 0;
  host_tile tile = make_tile(3, 2, std::vector<float>(6, 0.0f), 4);
  apply(tconv::chain(counting_offset{&before}, tconv::channel_max{}, counting_offset{&after}), tile);
  EXPECT_EQ(before, 3);
  EXPECT_EQ(after, 1);
  EXPECT_EQ(tile.values, std::vector<float>(6, 420.0f + 400.0f));
}

TEST(chain, reducing_chains_work_on_an_empty_tile)
{
  // What a thread sees that holds none of the channels.
  int binds      = 0;
  host_tile tile = make_tile(0, 0, {});
  apply(tconv::chain(tconv::channel_logsumexp{}, counting_offset{&binds}), tile);
  EXPECT_EQ(binds, 0);
}

TEST(chain, operands_per_sample)
{
  const float values[] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}; // three samples of two channels
  host_tile tile       = make_tile(2, 1, {10.0f, 20.0f}, 2);
  apply(tconv::chain(tconv::sample_scale(values, 2), tconv::sample_bias(values, 2)), tile);
  EXPECT_EQ(tile.values, (std::vector<float>{55.0f, 126.0f}));

  // Behind a reduction out_channels is 1, and so is the distance of packed samples.
  tile = make_tile(2, 1, {10.0f, 20.0f}, 2);
  apply(tconv::chain(tconv::channel_sum{}, tconv::sample_bias(values, 1)), tile);
  EXPECT_EQ(tile.values, (std::vector<float>{33.0f, 33.0f}));
}

// Traits.

static_assert(tconv::chain<>::linear && !tconv::chain<>::across_channels && tconv::chain<>::length == 0,
              "the plain convolution commutes with means");
static_assert(tconv::chain<tconv::bias>::linear && tconv::chain<tconv::scale>::linear
              && tconv::chain<tconv::affine>::linear && tconv::chain<tconv::batch_norm>::linear);
static_assert(tconv::chain<tconv::bias, tconv::scale, tconv::batch_norm, negate>::linear);
static_assert(!tconv::chain<tconv::relu>::linear && !tconv::chain<tconv::leaky_relu>::linear
              && !tconv::chain<tconv::sigmoid>::linear && !tconv::chain<tconv::tanh>::linear
              && !tconv::chain<tconv::gelu>::linear && !tconv::chain<tconv::gelu_tanh>::linear
              && !tconv::chain<tconv::silu>::linear && !tconv::chain<tconv::clamp>::linear
              && !tconv::chain<tconv::channel_softmax>::linear);
static_assert(!tconv::chain<tconv::hardsigmoid>::linear && !tconv::chain<tconv::hardswish>::linear
              && !tconv::chain<tconv::mish>::linear && !tconv::chain<tconv::softplus>::linear
              && !tconv::chain<tconv::log_sigmoid>::linear && !tconv::chain<tconv::elu>::linear
              && !tconv::chain<tconv::exponential>::linear && !tconv::chain<tconv::minimum>::linear
              && !tconv::chain<tconv::maximum>::linear && !tconv::chain<tconv::channel_sum>::linear);
static_assert(tconv::chain<tconv::sample_bias>::linear && tconv::chain<tconv::sample_scale>::linear
              && tconv::chain<tconv::bias, tconv::sample_affine>::linear
              && tconv::chain<tconv::sample_centred_scale>::linear
              && tconv::chain<tconv::sample_centred_scale>::per_sample);
static_assert(tconv::chain<tconv::sample_bias>::per_sample && tconv::chain<tconv::relu, tconv::sample_scale>::per_sample
              && tconv::chain<tconv::sample_affine, tconv::relu>::per_sample);
static_assert(!tconv::chain<>::per_sample && !tconv::chain<tconv::bias, tconv::scale, tconv::batch_norm>::per_sample);
static_assert(!tconv::chain<>::reduces_channels && !tconv::chain<tconv::channel_softmax>::reduces_channels
              && !tconv::chain<tconv::channel_log_softmax, tconv::channel_layer_norm>::reduces_channels);
static_assert(tconv::chain<tconv::channel_logsumexp>::reduces_channels
              && tconv::chain<tconv::channel_min>::reduces_channels
              && tconv::chain<tconv::channel_max>::reduces_channels
              && tconv::chain<tconv::channel_sum>::reduces_channels
              && tconv::chain<tconv::channel_mean>::reduces_channels);
static_assert(tconv::chain<tconv::bias, tconv::channel_softmax, tconv::channel_max, tconv::relu>::reduces_channels);
static_assert(tconv::chain<tconv::channel_sum, tconv::bias>::across_channels);
static_assert(tconv::chain<tconv::bias, tconv::channel_softmax>::output_channels(64) == 64
              && tconv::chain<tconv::bias, tconv::channel_max>::output_channels(64) == 1
              && tconv::chain<>::output_channels(64) == 64);
static_assert(!tconv::chain<tconv::bias, tconv::relu>::linear && !tconv::chain<tconv::relu, tconv::bias>::linear,
              "one functor that is not linear is enough, wherever it stands");
static_assert(!tconv::chain<plus_one>::linear, "a user's functor is not linear unless it says so");
static_assert(!tconv::chain<not_linear>::linear && !tconv::chain<not_linear>::across_channels);
static_assert(tconv::chain<tconv::channel_softmax>::across_channels);
static_assert(tconv::chain<tconv::bias, tconv::channel_softmax, tconv::sigmoid>::across_channels);
static_assert(tconv::chain<minus_peak>::across_channels);
static_assert(!tconv::chain<tconv::bias, tconv::sigmoid>::across_channels);
static_assert(tconv::chain<plus_one, minus_peak, plus_one>::length == 3);
static_assert(std::is_same_v<decltype(tconv::chain(plus_one{}, times_two{})), tconv::chain<plus_one, times_two>>);
// Chains are passed to kernels by value.
static_assert(std::is_trivially_copyable_v<tconv::chain<tconv::bias, tconv::channel_softmax, tconv::sigmoid>>);
static_assert(std::is_trivially_copyable_v<tconv::chain<tconv::scale, tconv::batch_norm, tconv::clamp>>);
static_assert(std::is_trivially_copyable_v<
              tconv::chain<tconv::sample_affine, tconv::channel_layer_norm, tconv::channel_logsumexp, tconv::minimum>>);

// The double form of a chain.

TEST(chain_reference, applies_first_to_last_with_operands_per_channel)
{
  const float b[] = {-1.0f, 1.0f};
  // Two samples, two channels, two positions.
  double y[] = {0.5, 2.0, -3.0, -0.5, 1.0, 1.5, 0.0, 4.0};
  tconv::reference::apply(tconv::chain(tconv::bias(b), tconv::relu{}, tconv::scale(2.0f)), y, 2, 2, 2);
  const double expected[] = {0.0, 2.0, 0.0, 1.0, 0.0, 1.0, 2.0, 10.0};
  for (int i = 0; i < 8; ++i)
  {
    EXPECT_EQ(y[i], expected[i]) << i;
  }
}

TEST(chain_reference, binds_to_sample_and_channel)
{
  int binds  = 0;
  double y[] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
  tconv::reference::apply(tconv::chain(counting_offset{&binds}), y, 3, 2, 1);
  const double expected[] = {0.5, 10.5, 100.5, 110.5, 200.5, 210.5};
  for (int i = 0; i < 6; ++i)
  {
    EXPECT_EQ(y[i], expected[i]) << i;
  }
}

TEST(chain_reference, uses_the_reference_of_a_users_functor)
{
  double y = 1.0;
  tconv::reference::apply(tconv::chain(with_reference{}), &y, 1, 1, 1);
  EXPECT_EQ(y, 2.0625);
}

TEST(chain_reference, falls_back_to_the_fp32_form_of_a_users_functor)
{
  double y = 1.0 + 0x1p-40;
  tconv::reference::apply(tconv::chain(plus_one{}), &y, 1, 1, 1);
  EXPECT_EQ(y, 2.0) << "rounded to fp32 on the way";
}

TEST(chain_reference, a_functor_built_on_a_built_in_one_keeps_its_own_reference)
{
  double y = 2.0;
  tconv::reference::apply(tconv::chain(shifted_relu{}), &y, 1, 1, 1);
  EXPECT_EQ(y, 3.0);
}

TEST(chain_reference, channel_functors_see_one_position_at_a_time)
{
  double y[] = {1.0, 7.0, 5.0, 2.0, -1.0, 0.0, -2.0, 3.0};
  tconv::reference::apply(tconv::chain(minus_peak{}), y, 2, 2, 2);
  const double expected[] = {-4.0, 0.0, 0.0, -5.0, 0.0, -3.0, -1.0, 0.0};
  for (int i = 0; i < 8; ++i)
  {
    EXPECT_EQ(y[i], expected[i]) << i;
  }
}

TEST(chain_reference, softmax_works_in_double)
{
  double y[] = {0.0, std::log(3.0)};
  tconv::reference::apply(tconv::chain(tconv::channel_softmax{}), y, 1, 2, 1);
  EXPECT_NEAR(y[0], 0.25, 1e-16);
  EXPECT_NEAR(y[1], 0.75, 2e-16);
}

TEST(chain_reference, agrees_with_the_tile)
{
  const float b[]       = {0.25f, -0.5f, 1.5f};
  const float slopes[]  = {2.0f, -1.0f, 0.5f};
  const float offsets[] = {0.1f, 0.2f, 0.3f};
  const float mean[]    = {0.5f, 0.0f, -1.0f};
  const float var[]     = {1.0f, 4.0f, 0.25f};
  std::vector<float> values;
  for (int i = 0; i < 12; ++i)
  {
    values.push_back(0.7f * static_cast<float>(i) - 4.0f);
  }
  const auto check = [&](const auto& functors) {
    host_tile tile = make_tile(3, 4, values);
    std::vector<double> y(values.begin(), values.end());
    apply(functors, tile);
    tconv::reference::apply(functors, y.data(), 1, 3, 4);
    for (std::size_t i = 0; i < values.size(); ++i)
    {
      // Values below 20 and at most four functors of a few ulp each.
      EXPECT_NEAR(static_cast<double>(tile.values[i]), y[i], 2e-5) << i;
    }
  };
  check(tconv::chain(tconv::bias(b), tconv::channel_softmax{}, tconv::sigmoid{}));
  check(tconv::chain(tconv::affine(slopes, offsets), tconv::gelu{}));
  check(tconv::chain(tconv::batch_norm(mean, var, slopes, offsets), tconv::tanh{}, tconv::scale(b)));
  check(tconv::chain(tconv::gelu_tanh{}, tconv::silu{}, tconv::leaky_relu{}, tconv::clamp{-1.0f, 2.0f}));
}

TEST(chain_reference, reducing_functors_shrink_the_tensor)
{
  // Two samples, three channels, two positions become two samples of two positions at the front.
  double y[]     = {1.0, 7.0, 5.0, 2.0, -3.0, 0.0, 10.0, -1.0, 20.0, -2.0, 30.0, -3.0};
  const auto run = [&](const auto& functors) {
    std::vector<double> values(std::begin(y), std::end(y));
    EXPECT_EQ(tconv::reference::apply(functors, values.data(), 2, 3, 2), 1);
    values.resize(4);
    return values;
  };
  EXPECT_EQ(run(tconv::chain(tconv::channel_max{})), (std::vector<double>{5.0, 7.0, 30.0, -1.0}));
  EXPECT_EQ(run(tconv::chain(tconv::channel_min{})), (std::vector<double>{-3.0, 0.0, 10.0, -3.0}));
  EXPECT_EQ(run(tconv::chain(tconv::channel_sum{})), (std::vector<double>{3.0, 9.0, 60.0, -6.0}));
  EXPECT_EQ(run(tconv::chain(tconv::channel_mean{})), (std::vector<double>{1.0, 3.0, 20.0, -2.0}));
  EXPECT_EQ(run(tconv::chain(squared_sum{})), (std::vector<double>{9.0, 81.0, 3600.0, 36.0})) << "a user's";

  // What follows sees one channel.
  const float b[] = {0.5f};
  int binds       = 0;
  EXPECT_EQ(run(tconv::chain(tconv::channel_max{}, tconv::bias(b), counting_offset{&binds})),
            (std::vector<double>{5.5, 7.5, 130.5, 99.5}));
  EXPECT_EQ(binds, 2) << "once per sample";
}

TEST(chain_reference, returns_the_channels_that_are_left)
{
  double y[] = {1.0, 2.0, 3.0};
  EXPECT_EQ(tconv::reference::apply(tconv::chain<>{}, y, 1, 3, 1), 3);
  EXPECT_EQ(tconv::reference::apply(tconv::chain(tconv::relu{}, tconv::channel_softmax{}), y, 1, 3, 1), 3);
  EXPECT_EQ(tconv::reference::apply(tconv::chain(tconv::channel_mean{}, tconv::relu{}), y, 1, 3, 1), 1);
}

TEST(chain_reference, log_softmax_and_logsumexp_work_in_double)
{
  double y[] = {0.0, std::log(3.0)};
  tconv::reference::apply(tconv::chain(tconv::channel_log_softmax{}), y, 1, 2, 1);
  EXPECT_NEAR(y[0], -std::log(4.0), 1e-15);
  EXPECT_NEAR(y[1], std::log(0.75), 1e-15);
  double z[] = {0.0, std::log(3.0)};
  tconv::reference::apply(tconv::chain(tconv::channel_logsumexp{}), z, 1, 2, 1);
  EXPECT_NEAR(z[0], std::log(4.0), 1e-15);
}

// Random chains of one to five functors of all kinds: the tile against the reference.

/// Operands of up to 16 channels and two samples, below 1 in magnitude.
struct random_operands
{
  std::array<float, 32> first{};
  std::array<float, 32> second{};
  std::array<float, 32> positive{};

  explicit random_operands(tconv_test::random_stream& random)
  {
    for (std::size_t i = 0; i < first.size(); ++i)
    {
      first[i]    = random.real(-1.0f, 1.0f);
      second[i]   = random.real(-1.0f, 1.0f);
      positive[i] = random.real(0.25f, 1.0f);
    }
  }
};

constexpr std::size_t pointwise_functors = 24;
constexpr std::size_t keeping_functors   = pointwise_functors + 4; // those that keep the channels
constexpr std::size_t all_functors       = keeping_functors + 5;

/// One of each: pointwise, then channel functors, then those that reduce the channels.
auto all_of(const random_operands& o, std::int64_t channels)
{
  const float* a = o.first.data();
  const float* b = o.second.data();
  const float* p = o.positive.data();
  return std::tuple(tconv::sample_bias(a, channels),
                    tconv::sample_scale(b, channels),
                    tconv::sample_affine(a, b, channels),
                    tconv::bias(a),
                    tconv::scale(b),
                    tconv::affine(a, b),
                    tconv::batch_norm(a, p, b, a),
                    tconv::relu{},
                    tconv::leaky_relu{0.2f},
                    tconv::sigmoid{},
                    tconv::tanh{},
                    tconv::gelu{},
                    tconv::gelu_tanh{},
                    tconv::silu{},
                    tconv::hardsigmoid{},
                    tconv::hardswish{},
                    tconv::softplus{},
                    tconv::log_sigmoid{},
                    tconv::mish{},
                    tconv::elu{0.7f},
                    tconv::minimum{0.4f},
                    tconv::maximum{-0.6f},
                    tconv::clamp{-2.0f, 1.5f},
                    plus_one{},
                    tconv::channel_softmax{},
                    tconv::channel_log_softmax{},
                    tconv::channel_layer_norm(b, a, 0.25f),
                    minus_peak{},
                    tconv::channel_logsumexp{},
                    tconv::channel_min{},
                    tconv::channel_max{},
                    tconv::channel_sum{},
                    tconv::channel_mean{});
}
static_assert(std::tuple_size_v<decltype(all_of(std::declval<const random_operands&>(), 1))> == all_functors);

/// Which functors the chain number \p Seed is made of.
template <std::uint32_t Seed>
struct random_chain
{
  static constexpr std::size_t length = 1 + Seed % 5;
  static constexpr std::array<std::size_t, length> pick()
  {
    std::array<std::size_t, length> which{};
    bool reduced = false;
    for (std::size_t i = 0; i < length; ++i)
    {
      const std::size_t choices = reduced ? pointwise_functors : all_functors;
      which[i] =
        static_cast<std::size_t>(tconv_test::uniform_integer(Seed, i, 0, static_cast<std::int64_t>(choices) - 1));
      reduced = reduced || which[i] >= keeping_functors;
    }
    return which;
  }
  static constexpr std::array<std::size_t, length> functors = pick();

  template <class All, std::size_t... I>
  static auto make(const All& all, std::index_sequence<I...>)
  {
    return tconv::chain(std::get<functors[I]>(all)...);
  }
  template <class All>
  static auto make(const All& all)
  {
    return make(all, std::make_index_sequence<length>{});
  }
};

/// How much a functor may enlarge an error, at most: its steepest slope. Rows by the largest error of their channels.
template <class F>
double steepest(const F&, std::int64_t channels)
{
  const auto count = static_cast<double>(channels);
  return std::is_same_v<F, tconv::batch_norm>          ? 2.0 // 1 / sqrt(0.25)
       : std::is_same_v<F, tconv::hardswish>           ? 1.5
       : std::is_same_v<F, tconv::channel_sum>         ? count
       : std::is_same_v<F, tconv::channel_log_softmax> ? 2.0
       : std::is_same_v<F, minus_peak>                 ? 2.0
       : std::is_same_v<F, tconv::channel_layer_norm>  ? 2.0 * (2.0 + std::sqrt(count)) // eps = 0.25
                                                       : 1.2;
}

template <std::uint32_t Seed>
void check_random_chain()
{
  tconv_test::random_stream random(Seed);
  const auto channels         = static_cast<int>(random.integer(1, 9));
  const auto positions        = static_cast<int>(random.integer(1, 4));
  constexpr std::int64_t n    = 1; // of two samples
  const std::size_t of_sample = static_cast<std::size_t>(channels) * static_cast<std::size_t>(positions);
  const random_operands operands(random);
  const auto functors = random_chain<Seed>::make(all_of(operands, channels));
  std::string names;
  for (const std::size_t f : random_chain<Seed>::functors)
  {
    names += ' ' + std::to_string(f);
  }
  SCOPED_TRACE(testing::Message() << "functors" << names << ", " << channels << " channels, " << random.replay());

  std::vector<float> values(of_sample);
  for (float& v : values)
  {
    v = random.real(-4.0f, 4.0f);
  }
  host_tile tile = make_tile(channels, positions, values, n);
  apply(functors, tile);

  std::vector<double> y(2 * of_sample, 0.0);
  std::copy(values.begin(), values.end(), y.begin() + static_cast<std::ptrdiff_t>(of_sample));
  std::vector<double> step_by_step = y;
  const std::int64_t left          = tconv::reference::apply(functors, y.data(), 2, channels, positions);
  ASSERT_EQ(left, functors.output_channels(channels));

  // The same again one functor at a time, with a bound of the error so far: 40 roundings each of the largest value around.
  double error               = 0;
  std::int64_t channels_left = channels;
  functors.for_each([&](const auto& functor) {
    const auto largest = [&step_by_step] {
      double most = 1;
      for (const double v : step_by_step)
      {
        most = std::fmax(most, std::fabs(v));
      }
      return most;
    };
    const double before = largest();
    error *= steepest(functor, channels_left);
    channels_left = tconv::reference::apply(tconv::chain(functor), step_by_step.data(), 2, channels_left, positions);
    error += 40 * 0x1p-24 * (before + largest());
  });
  ASSERT_EQ(channels_left, left);
  ASSERT_LT(error, 0.02) << "too loose to notice anything";

  for (int c = 0; c < channels; ++c)
  {
    for (int p = 0; p < positions; ++p)
    {
      const std::int64_t channel = left == 1 ? 0 : c;
      const auto at              = static_cast<std::size_t>((n * left + channel) * positions + p);
      ASSERT_EQ(y[at], step_by_step[at]) << "a chain is its functors in turn";
      ASSERT_NEAR(static_cast<double>(tile(c, p)), y[at], error) << "channel " << c << ", position " << p;
    }
  }
}

template <std::uint32_t... Seeds>
void check_random_chains(std::integer_sequence<std::uint32_t, Seeds...>)
{
  (check_random_chain<Seeds>(), ...);
}

TEST(chain_reference, agrees_with_the_tile_on_random_chains)
{
  check_random_chains(std::make_integer_sequence<std::uint32_t, 100>{});
}

} // namespace
