// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Chains of functors on a tile of values and on a whole tensor in double.

#include <tconv/reference/chain.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/affine.hpp>
#include <tconv/thread/chain.hpp>
#include <tconv/thread/softmax.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
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

} // namespace
