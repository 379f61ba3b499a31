// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The CPU reference of the transposed convolution against values worked out by hand or taken from public reports (numbered
/// A01 ... as collected), against itself written another way, and against the adjoint identity.

#include "../common/random.hpp"
#include "../common/recipes.hpp"

#include <tconv/reference/batch_norm.hpp>
#include <tconv/reference/chain.hpp>
#include <tconv/reference/conv_transpose.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace
{

using std::int64_t;
using tconv::conv_transpose_shape;
using tconv_test::checksum;
using tconv_test::counting;
using tconv_test::make_checksum;
using tconv_test::random_stream;
using tconv_test::recipe_w_values;
using tconv_test::recipe_x_values;

using floats  = std::vector<float>;
using doubles = std::vector<double>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan      = std::numeric_limits<float>::quiet_NaN();

/// conv_transpose(x, w) + bias, channels first. The buffer starts out full of NaN, which must not survive.
template <int Rank>
doubles run(const floats& x, const floats& w, const conv_transpose_shape<Rank>& shape, const floats& bias = {})
{
  EXPECT_TRUE(validate(shape).ok()) << validate(shape).message();
  EXPECT_EQ(static_cast<int64_t>(x.size()), shape.input_elements());
  EXPECT_EQ(static_cast<int64_t>(w.size()), shape.weight_elements());
  doubles y(static_cast<std::size_t>(shape.output_elements()), std::numeric_limits<double>::quiet_NaN());
  tconv::reference::conv_transpose(x.data(), w.data(), y.data(), shape);
  if (!bias.empty())
  {
    EXPECT_EQ(static_cast<int64_t>(bias.size()), shape.out_channels);
    tconv::reference::apply(
      tconv::chain(tconv::bias(bias.data())), y.data(), shape.batch, shape.out_channels, shape.output_positions());
  }
  return y;
}

/// The same with recipe R for x and w.
template <int Rank>
doubles run_recipe(const conv_transpose_shape<Rank>& shape, const floats& bias = {})
{
  return run(recipe_x_values(shape.input_elements()), recipe_w_values(shape.weight_elements()), shape, bias);
}

template <int Rank>
conv_transpose_shape<Rank> square(int64_t input, int64_t kernel)
{
  conv_transpose_shape<Rank> s;
  for (std::size_t a = 0; a < static_cast<std::size_t>(Rank); ++a)
  {
    s.input[a]  = input;
    s.kernel[a] = kernel;
  }
  return s;
}

template <int Rank>
void set(typename conv_transpose_shape<Rank>::extents& field, int64_t value)
{
  for (int64_t& v : field)
  {
    v = value;
  }
}

// A01: stride together with dilation.

TEST(reference_cases, a01_centre_delta)
{
  auto s = square<2>(3, 3);
  set<2>(s.stride, 2);
  set<2>(s.padding, 2);
  set<2>(s.dilation, 2);
  EXPECT_EQ(run(counting(9), {0, 0, 0, 0, 1, 0, 0, 0, 0}, s),
            (doubles{1, 0, 2, 0, 3, 0, 0, 0, 0, 0, 4, 0, 5, 0, 6, 0, 0, 0, 0, 0, 7, 0, 8, 0, 9}));
  EXPECT_EQ(run(counting(9), counting(9), s),
            (doubles{26, 0, 56, 0, 54, 0, 0, 0, 0, 0, 84, 0, 165, 0, 144, 0, 0, 0, 0, 0, 134, 0, 236, 0, 186}));
}

TEST(reference_cases, a01_three_axes)
{
  auto s        = square<3>(3, 3);
  s.in_channels = 2;
  set<3>(s.stride, 2);
  set<3>(s.padding, 2);
  set<3>(s.dilation, 3);
  s.output_padding = {1, 1, 1};
  s.out_channels   = 3;
  EXPECT_EQ(s.output(), (std::array<int64_t, 3>{8, 8, 8}));
  s.out_channels = 3;
  EXPECT_EQ(make_checksum(run_recipe(s)), (checksum{1536, -8, -25944, 78424}));
}

TEST(reference_cases, a01_ones)
{
  conv_transpose_shape<2> s;
  s.input          = {50, 50};
  s.kernel         = {3, 5};
  s.stride         = {2, 1};
  s.padding        = {4, 2};
  s.dilation       = {3, 1};
  const checksum c = make_checksum(run(floats(2500, 1.0f), floats(15, 1.0f), s));
  EXPECT_EQ(c.n, 97 * 50);
  EXPECT_EQ(c.sum, 35136);
  EXPECT_EQ(c.sq, 285600);
}

// A02: output padding makes rows of real data, or of bias where no tap lands.

TEST(reference_cases, a02_small)
{
  auto s = square<2>(1, 3);
  set<2>(s.stride, 2);
  set<2>(s.padding, 1);
  set<2>(s.output_padding, 1);
  EXPECT_EQ(run({1}, counting(9), s), (doubles{5, 6, 8, 9}));
  s.input = {2, 2};
  EXPECT_EQ(run(counting(4), counting(9), s), (doubles{5, 14, 10, 12, 14, 36, 24, 30, 15, 34, 20, 24, 24, 55, 32, 36}));
}

TEST(reference_cases, a02_recipe)
{
  auto s         = square<2>(7, 3);
  s.in_channels  = 16;
  s.out_channels = 3;
  set<2>(s.stride, 2);
  set<2>(s.padding, 1);
  set<2>(s.output_padding, 1);
  const doubles y = run_recipe(s);
  EXPECT_EQ(make_checksum(y), (checksum{588, 1, 17217, 436189}));
  EXPECT_EQ(doubles(y.begin(), y.begin() + 8), (doubles{16, -3, -23, 34, 4, 16, -13, -35}));
}

TEST(reference_cases, a02_bias_where_no_tap_lands)
{
  conv_transpose_shape<1> s;
  s.input          = {2};
  s.stride         = {3};
  s.output_padding = {2};
  EXPECT_EQ(run({1, 2}, {5}, s, {7}), (doubles{12, 7, 7, 17, 7, 7}));
}

// A04: groups.

TEST(reference_cases, a04_two_groups)
{
  auto s         = square<2>(2, 3);
  s.in_channels  = 2;
  s.out_channels = 2;
  s.groups       = 2;
  floats w       = counting(9);
  w.insert(w.end(), w.begin(), w.begin() + 9);
  EXPECT_EQ(run(counting(8), w, s), (doubles{1, 4,  7,  6,  7,  23, 33, 24, 19, 53,  63,  42,  21, 52,  59,  36,
                                             5, 16, 27, 18, 27, 71, 97, 60, 63, 149, 175, 102, 49, 112, 127, 72}));
}

TEST(reference_cases, a04_three_groups_with_bias)
{
  conv_transpose_shape<2> s;
  s.batch          = 2;
  s.in_channels    = 6;
  s.out_channels   = 12;
  s.groups         = 3;
  s.input          = {5, 4};
  s.kernel         = {3, 2};
  s.stride         = {2, 3};
  s.padding        = {1, 0};
  s.output_padding = {1, 2};
  EXPECT_EQ(s.output(), (std::array<int64_t, 2>{10, 13}));
  EXPECT_EQ(make_checksum(run_recipe(s, counting(12, -6))), (checksum{3120, -1614, 2307527, 234452}));
}

// A05: BatchNorm in eval mode behind a grouped convolution with bias.

TEST(reference_cases, a05_batch_norm_behind_groups)
{
  conv_transpose_shape<1> s;
  s.in_channels  = 4;
  s.out_channels = 4;
  s.groups       = 2;
  const floats w{11, 12, 21, 22, 31, 32, 41, 42};
  const doubles y = run(counting(4), w, s, {0.5f, -1.0f, 2.0f, 0.0f});
  EXPECT_EQ(y, (doubles{53.5, 55, 259, 264}));

  floats mean{50, 60, 200, 210};
  floats var{4, 16, 25, 100};
  const floats gamma{1, 2, -1, 3};
  const floats beta{0, 1, 2, 3};
  tconv::batch_norm_arguments arguments;
  arguments.gamma        = gamma.data();
  arguments.beta         = beta.data();
  arguments.running_mean = mean.data();
  arguments.running_var  = var.data();
  arguments.eps          = 0.0f;
  doubles normalised     = y;
  tconv::reference::batch_norm_eval(normalised.data(), 1, 4, 1, arguments);
  const double exact[] = {1.75, -1.5, -9.8, 19.2};
  for (std::size_t c = 0; c < 4; ++c)
  {
    EXPECT_NEAR(normalised[c], exact[c], 1e-14) << c;
  }
  arguments.eps = 1e-5f;
  normalised    = y;
  tconv::reference::batch_norm_eval(normalised.data(), 1, 4, 1, arguments);
  const double with_eps[] = {1.7499978, -1.4999992, -9.7999976, 19.1999992};
  for (std::size_t c = 0; c < 4; ++c)
  {
    EXPECT_NEAR(normalised[c], with_eps[c], 6e-8) << c;
  }
}

TEST(reference_cases, a05_grouped_convolution)
{
  auto s         = square<2>(5, 3);
  s.in_channels  = 4;
  s.out_channels = 4;
  s.groups       = 2;
  set<2>(s.padding, 1);
  EXPECT_EQ(make_checksum(run_recipe(s)), (checksum{100, -6, -2836, 117248}));
}

// A06: every parameter different on every axis.

TEST(reference_cases, a06_axes_are_not_mixed_up)
{
  conv_transpose_shape<3> s;
  s.input          = {2, 3, 4};
  s.kernel         = {1, 2, 3};
  s.stride         = {3, 2, 1};
  s.padding        = {0, 0, 1};
  s.output_padding = {1, 0, 0};
  s.dilation       = {1, 2, 1};
  const doubles y  = run(counting(24), counting(6), s);
  EXPECT_EQ(make_checksum(y), (checksum{140, 5214, 419156, 1319338}));
  EXPECT_EQ(doubles(y.begin(), y.begin() + 28), (doubles{4, 10, 16, 17,  0,   0,   0, 0, 29, 62, 83, 75,  0,   0,
                                                         0, 0,  77, 146, 167, 139, 0, 0, 0,  0,  85, 148, 163, 126}));
}

TEST(reference_cases, a06_recipe)
{
  conv_transpose_shape<3> s;
  s.batch          = 2;
  s.in_channels    = 3;
  s.out_channels   = 2;
  s.input          = {3, 4, 5};
  s.kernel         = {2, 3, 1};
  s.stride         = {1, 2, 3};
  s.padding        = {0, 1, 0};
  s.output_padding = {0, 1, 2};
  s.dilation       = {3, 1, 2};
  EXPECT_EQ(make_checksum(run_recipe(s)), (checksum{2880, -48, -118641, 193650}));
}

// A07: nothing in, nothing out.

TEST(reference_cases, a07_empty_output_and_empty_batch_write_nothing)
{
  auto s = square<2>(2, 2);
  set<2>(s.stride, 2);
  set<2>(s.padding, 2);
  double guard   = 42.0;
  const floats x = counting(4);
  const floats w = counting(4);
  tconv::reference::conv_transpose(x.data(), w.data(), &guard, s);
  EXPECT_EQ(guard, 42.0);
  set<2>(s.padding, 0);
  s.batch = 0;
  tconv::reference::conv_transpose(x.data(), w.data(), &guard, s);
  EXPECT_EQ(guard, 42.0);
}

// A08: where the kernel equals the stride every output is one product, at any size. Small here, spot-checked at full size.

TEST(reference_cases, a08_kernel_equal_to_stride)
{
  auto s         = square<3>(3, 2);
  s.out_channels = 8;
  set<3>(s.stride, 2);
  const doubles y = run_recipe(s);
  const floats x  = recipe_x_values(27);
  const floats w  = recipe_w_values(64);
  std::size_t at  = 0;
  for (int64_t co = 0; co < 8; ++co)
  {
    for (int64_t d = 0; d < 6; ++d)
    {
      for (int64_t h = 0; h < 6; ++h)
      {
        for (int64_t v = 0; v < 6; ++v)
        {
          const auto i = static_cast<std::size_t>((d / 2 * 3 + h / 2) * 3 + v / 2);
          const auto j = static_cast<std::size_t>(co * 8 + (d % 2 * 2 + h % 2) * 2 + v % 2);
          ASSERT_EQ(y[at++], static_cast<double>(x[i] * w[j]));
        }
      }
    }
  }

  // The full-size variant has 4.3e9 outputs: single ones by gathering.
  auto big         = square<3>(512, 2);
  big.input[0]     = 257;
  big.out_channels = 8;
  set<3>(big.stride, 2);
  std::vector<std::int8_t> bytes(static_cast<std::size_t>(big.input_elements()));
  for (std::size_t i = 0; i < bytes.size(); ++i)
  {
    bytes[i] = static_cast<std::int8_t>(tconv_test::recipe_x(static_cast<int64_t>(i)));
  }
  // Around flat outputs 2^31 and 2^32, and the last one, taken apart by hand: 514 * 1024 * 1024 outputs per channel.
  for (const int64_t flat : {int64_t{1} << 31, (int64_t{1} << 32) - 1, int64_t{1} << 32, int64_t{4311744511}})
  {
    const int64_t co   = flat / 538968064;
    const int64_t rest = flat % 538968064;
    const std::array<int64_t, 3> o{rest / 1048576, rest / 1024 % 1024, rest % 1024};
    const int64_t i  = (o[0] / 2 * 512 + o[1] / 2) * 512 + o[2] / 2;
    const int64_t j  = co * 8 + (o[0] % 2 * 2 + o[1] % 2) * 2 + o[2] % 2;
    const auto found = tconv::reference::conv_transpose_at(bytes.data(), w.data(), big, 0, co, o);
    EXPECT_EQ(found.terms, 1) << flat;
    EXPECT_EQ(found.value, static_cast<double>(tconv_test::recipe_x(i) * tconv_test::recipe_w(j))) << flat;
  }
}

// A17: the mean of a cropped output, and of one with output padding.

TEST(reference_cases, a17_mean_of_a_cropped_output)
{
  conv_transpose_shape<1> s;
  s.input         = {3};
  s.kernel        = {3};
  s.stride        = {2};
  s.padding       = {1};
  const doubles y = run({1, 2, 3}, {1, 10, 100}, s);
  EXPECT_EQ(y, (doubles{10, 102, 20, 203, 30}));
  EXPECT_EQ(tconv::reference::global_mean(y.data(), 1, 1, 5), (doubles{73}));
}

TEST(reference_cases, a17_mean_with_bias)
{
  auto s         = square<2>(3, 4);
  s.batch        = 2;
  s.in_channels  = 2;
  s.out_channels = 3;
  set<2>(s.stride, 2);
  set<2>(s.padding, 1);
  set<2>(s.output_padding, 1);
  EXPECT_EQ(s.output(), (std::array<int64_t, 2>{7, 7}));
  const doubles means = tconv::reference::global_mean(
    run_recipe(s, {1, 2, 3}).data(), s.batch, s.out_channels, s.output_positions());
  const double sums[] = {90, 35, 204, 36, 124, 100}; // 5/7 = 35/49
  ASSERT_EQ(means.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i)
  {
    EXPECT_DOUBLE_EQ(means[i], sums[i] / 49) << i;
  }
}

// A18: infinities and NaN reach exactly the outputs that their taps touch.

TEST(reference_cases, a18_infinite_weights_stay_infinite)
{
  const doubles y = run(floats(16, 1.0f), floats(9, infinity), square<2>(4, 3));
  ASSERT_EQ(y.size(), 36U);
  for (const double v : y)
  {
    EXPECT_EQ(v, std::numeric_limits<double>::infinity());
  }
}

TEST(reference_cases, a18_nan_stays_where_its_taps_land)
{
  auto s = square<2>(4, 3);
  set<2>(s.stride, 2);
  floats x(16, 1.0f);
  x[2 * 4 + 1]    = nan;
  const doubles y = run(x, counting(9), s);
  ASSERT_EQ(y.size(), 81U);
  for (int row = 0; row < 9; ++row)
  {
    for (int column = 0; column < 9; ++column)
    {
      const bool touched = row >= 4 && row <= 6 && column >= 2 && column <= 4;
      EXPECT_EQ(std::isnan(y[static_cast<std::size_t>(row * 9 + column)]), touched) << row << ", " << column;
    }
  }
}

// A20: identity weights reproduce the input.

TEST(reference_cases, a20_identity)
{
  conv_transpose_shape<1> s;
  s.in_channels  = 40;
  s.out_channels = 40;
  s.input        = {3};
  floats w(1600, 0.0f);
  floats x(120);
  random_stream random(0);
  for (std::size_t i = 0; i < 40; ++i)
  {
    w[i * 40 + i] = 1.0f;
  }
  for (float& v : x)
  {
    v = random.real(-3.0f, 3.0f);
  }
  EXPECT_EQ(run(x, w, s), doubles(x.begin(), x.end()));
}

// The definition once more, by hand.

TEST(reference, the_weight_is_not_flipped)
{
  conv_transpose_shape<1> s;
  s.kernel = {3};
  EXPECT_EQ(run({1}, {1, 2, 3}, s), (doubles{1, 2, 3})) << "one input paints the kernel";
  s.input = {2};
  EXPECT_EQ(run({1, 10}, {1, 2, 3}, s), (doubles{1, 12, 23, 30}));
}

TEST(reference, weights_are_input_channel_major)
{
  conv_transpose_shape<1> s;
  s.in_channels  = 2;
  s.out_channels = 3;
  // w [C_in, C_out, 1]: channel 0 gives 1, 2, 3 and channel 1 gives 10, 20, 30 per unit of input.
  EXPECT_EQ(run({1, 2}, {1, 2, 3, 10, 20, 30}, s), (doubles{21, 42, 63}));
}

TEST(reference, accepts_other_arithmetic_types)
{
  conv_transpose_shape<1> s;
  s.input          = {2};
  s.kernel         = {2};
  const int x[]    = {1, 2};
  const double w[] = {0.5, 0.25};
  double y[3];
  tconv::reference::conv_transpose(x, w, y, s);
  EXPECT_EQ(y[0], 0.5);
  EXPECT_EQ(y[1], 1.25);
  EXPECT_EQ(y[2], 0.5);
}

TEST(reference, multiplies_in_double)
{
  conv_transpose_shape<1> s;
  const float third = 1.0f / 3.0f;
  EXPECT_EQ(run({third}, {third}, s)[0], static_cast<double>(third) * static_cast<double>(third));
}

// Properties over random shapes.

/// A random legal shape of any rank; small, but every parameter away from its default often.
template <int Rank>
conv_transpose_shape<Rank> random_shape(random_stream& random)
{
  for (;;)
  {
    conv_transpose_shape<Rank> s;
    s.batch        = random.integer(1, 2);
    s.groups       = random.integer(1, 3);
    s.in_channels  = s.groups * random.integer(1, 3);
    s.out_channels = s.groups * random.integer(1, 3);
    for (std::size_t a = 0; a < static_cast<std::size_t>(Rank); ++a)
    {
      s.input[a]          = random.integer(1, 4);
      s.kernel[a]         = random.integer(1, 3);
      s.stride[a]         = random.integer(1, 3);
      s.dilation[a]       = random.integer(1, 3);
      s.padding[a]        = random.integer(0, 2);
      s.output_padding[a] = random.integer(0, std::max(s.stride[a], s.dilation[a]) - 1);
    }
    if (validate(s).ok() && s.output_elements() > 0)
    {
      return s;
    }
  }
}

floats random_values(random_stream& random, int64_t count)
{
  floats result(static_cast<std::size_t>(count));
  for (float& v : result)
  {
    v = random.real(-1.0f, 1.0f);
  }
  return result;
}

template <int Rank>
std::string text(const conv_transpose_shape<Rank>& s)
{
  std::string result = "batch " + std::to_string(s.batch) + ", channels " + std::to_string(s.in_channels) + " -> "
                     + std::to_string(s.out_channels) + ", groups " + std::to_string(s.groups);
  for (std::size_t a = 0; a < static_cast<std::size_t>(Rank); ++a)
  {
    result += "; in " + std::to_string(s.input[a]) + " k" + std::to_string(s.kernel[a]) + " s"
            + std::to_string(s.stride[a]) + " p" + std::to_string(s.padding[a]) + " op"
            + std::to_string(s.output_padding[a]) + " d" + std::to_string(s.dilation[a]);
  }
  return result;
}

template <class Rank>
class reference_properties : public testing::Test
{};
template <int Rank>
struct rank_of
{
  static constexpr int value = Rank;
};
using all_ranks = testing::Types<rank_of<1>, rank_of<2>, rank_of<3>>;
TYPED_TEST_SUITE(reference_properties, all_ranks);

constexpr std::uint32_t cases = 300;

/// The third way of writing it, in this file and for any rank: for each output, search all inputs and taps.
template <int Rank>
double search(const floats& x,
              const floats& w,
              const conv_transpose_shape<Rank>& s,
              int64_t flat,
              double& magnitude,
              int64_t& terms)
{
  const int64_t positions = s.output_positions();
  const int64_t n         = flat / positions / s.out_channels;
  const int64_t co        = flat / positions % s.out_channels;
  const int64_t per_group = s.out_channels / s.groups;
  double sum              = 0;
  magnitude               = 0;
  terms                   = 0;
  for (int64_t ci = 0; ci < s.in_channels; ++ci)
  {
    if (ci / (s.in_channels / s.groups) != co / per_group)
    {
      continue;
    }
    for (int64_t i = 0; i < s.input_positions(); ++i)
    {
      for (int64_t t = 0; t < s.taps(); ++t)
      {
        bool lands     = true;
        int64_t o_rest = flat % positions;
        int64_t i_rest = i;
        int64_t t_rest = t;
        for (int axis = Rank - 1; axis >= 0; --axis)
        {
          const auto a    = static_cast<std::size_t>(axis);
          const int64_t o = o_rest % s.output(axis);
          lands = lands && i_rest % s.input[a] * s.stride[a] + t_rest % s.kernel[a] * s.dilation[a] == o + s.padding[a];
          o_rest /= s.output(axis);
          i_rest /= s.input[a];
          t_rest /= s.kernel[a];
        }
        if (lands)
        {
          const auto xi        = static_cast<std::size_t>((n * s.in_channels + ci) * s.input_positions() + i);
          const auto wi        = static_cast<std::size_t>((ci * per_group + co % per_group) * s.taps() + t);
          const double product = static_cast<double>(x[xi]) * static_cast<double>(w[wi]);
          sum += product;
          magnitude += std::fabs(product);
          ++terms;
        }
      }
    }
  }
  return sum;
}

TYPED_TEST(reference_properties, scatter_gather_and_search_agree)
{
  constexpr int rank             = TypeParam::value;
  constexpr std::uint32_t count  = cases / (rank == 3 ? 4 : 1);
  std::uint32_t without_products = 0;
  for (std::uint32_t number = 0; number < count; ++number)
  {
    random_stream random(number);
    const auto s = random_shape<rank>(random);
    SCOPED_TRACE(text(s) + ", " + random.replay());
    const floats x  = random_values(random, s.input_elements());
    const floats w  = random_values(random, s.weight_elements());
    const doubles y = run(x, w, s);
    doubles magnitude(y.size(), -1.0);
    std::vector<int64_t> terms(y.size(), -1);
    tconv::reference::conv_transpose_magnitude(x.data(), w.data(), magnitude.data(), terms.data(), s);

    int64_t total = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
    {
      const auto flat = static_cast<int64_t>(i);
      typename conv_transpose_shape<rank>::extents position{};
      int64_t rest = flat;
      for (int axis = rank - 1; axis >= 0; --axis)
      {
        position[static_cast<std::size_t>(axis)] = rest % s.output(axis);
        rest /= s.output(axis);
      }
      const auto gathered = tconv::reference::conv_transpose_at(
        x.data(), w.data(), s, rest / s.out_channels, rest % s.out_channels, position);
      double expected_magnitude = 0;
      int64_t expected_terms    = 0;
      const double expected     = search(x, w, s, flat, expected_magnitude, expected_terms);
      // Sums of the same few products in another order.
      const double bound = static_cast<double>(expected_terms) * 0x1p-52 * expected_magnitude;
      ASSERT_NEAR(y[i], expected, bound) << "scatter, output " << i;
      ASSERT_NEAR(gathered.value, expected, bound) << "gather, output " << i;
      ASSERT_NEAR(magnitude[i], expected_magnitude, bound) << "output " << i;
      ASSERT_NEAR(gathered.magnitude, expected_magnitude, bound) << "output " << i;
      ASSERT_EQ(terms[i], expected_terms) << "output " << i;
      ASSERT_EQ(gathered.terms, expected_terms) << "output " << i;
      total += expected_terms;
    }
    without_products += total == 0 ? 1 : 0;
  }
  // Legal (everything may be cropped away between two outputs), but such cases test little.
  EXPECT_LT(without_products, count / 4);
}

TYPED_TEST(reference_properties, adjoint_identity)
{
  constexpr int rank = TypeParam::value;
  for (std::uint32_t number = 0; number < cases; ++number)
  {
    random_stream random(number);
    const auto s = random_shape<rank>(random);
    SCOPED_TRACE(text(s) + ", " + random.replay());
    const floats x  = random_values(random, s.input_elements());
    const floats w  = random_values(random, s.weight_elements());
    const floats u  = random_values(random, s.output_elements());
    const doubles y = run(x, w, s);
    doubles back(x.size(), std::numeric_limits<double>::quiet_NaN());
    tconv::reference::conv_transpose_adjoint(u.data(), w.data(), back.data(), s);
    double left      = 0;
    double right     = 0;
    double magnitude = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
    {
      left += y[i] * static_cast<double>(u[i]);
    }
    for (std::size_t i = 0; i < x.size(); ++i)
    {
      right += back[i] * static_cast<double>(x[i]);
      magnitude += std::fabs(back[i] * static_cast<double>(x[i]));
    }
    ASSERT_NEAR(left, right, 1e-13 * (magnitude + 1.0));
  }
}

TYPED_TEST(reference_properties, the_adjoint_is_the_strided_convolution)
{
  // One input channel, one output channel, integers: conv(u)[i] = sum over t of u[i*stride - padding + t*dilation] * w[t] along
  // each axis, zero outside.
  constexpr int rank = TypeParam::value;
  conv_transpose_shape<rank> s;
  for (std::size_t a = 0; a < static_cast<std::size_t>(rank); ++a)
  {
    s.input[a]    = 3;
    s.kernel[a]   = 2;
    s.stride[a]   = 2;
    s.padding[a]  = 1;
    s.dilation[a] = 2; // out = 4 - 2 + 2 + 1 = 5, o = 2i - 1 + 2t
  }
  const floats u = counting(s.output_elements());
  floats w(static_cast<std::size_t>(s.taps()), 1.0f);
  doubles back(static_cast<std::size_t>(s.input_elements()));
  tconv::reference::conv_transpose_adjoint(u.data(), w.data(), back.data(), s);
  if (rank == 1)
  {
    EXPECT_EQ(back, (doubles{2, 6, 4})) << "u = 1..5: o = {1}, {1, 3}, {3}";
  }
  else
  {
    EXPECT_EQ(back[0], rank == 2 ? 7 : 32) << "u at o = (1, ..., 1)";
  }
}

TYPED_TEST(reference_properties, groups_are_ungrouped_calls_side_by_side)
{
  constexpr int rank = TypeParam::value;
  for (std::uint32_t number = 0; number < cases; ++number)
  {
    random_stream random(number);
    const auto s = random_shape<rank>(random);
    SCOPED_TRACE(text(s) + ", " + random.replay());
    const floats x  = recipe_x_values(s.input_elements());
    const floats w  = recipe_w_values(s.weight_elements());
    const doubles y = run(x, w, s);

    auto part         = s;
    part.groups       = 1;
    part.in_channels  = s.in_channels / s.groups;
    part.out_channels = s.out_channels / s.groups;
    doubles joined(y.size(), std::numeric_limits<double>::quiet_NaN());
    for (int64_t n = 0; n < s.batch; ++n)
    {
      for (int64_t g = 0; g < s.groups; ++g)
      {
        part.batch          = 1;
        const auto x_begin  = x.begin() + (n * s.groups + g) * part.input_elements();
        const auto w_begin  = w.begin() + g * part.weight_elements();
        const doubles piece = run(
          floats(x_begin, x_begin + part.input_elements()), floats(w_begin, w_begin + part.weight_elements()), part);
        std::copy(piece.begin(), piece.end(), joined.begin() + (n * s.groups + g) * part.output_elements());
      }
    }
    ASSERT_EQ(y, joined) << "bit for bit, with integers";
  }
}

template <int Rank>
conv_transpose_shape<3> with_leading_ones(const conv_transpose_shape<Rank>& s)
{
  conv_transpose_shape<3> result;
  result.batch        = s.batch;
  result.in_channels  = s.in_channels;
  result.out_channels = s.out_channels;
  result.groups       = s.groups;
  constexpr auto skip = static_cast<std::size_t>(3 - Rank);
  for (std::size_t a = 0; a < static_cast<std::size_t>(Rank); ++a)
  {
    result.input[skip + a]          = s.input[a];
    result.kernel[skip + a]         = s.kernel[a];
    result.stride[skip + a]         = s.stride[a];
    result.padding[skip + a]        = s.padding[a];
    result.output_padding[skip + a] = s.output_padding[a];
    result.dilation[skip + a]       = s.dilation[a];
  }
  return result;
}

TYPED_TEST(reference_properties, lower_ranks_are_rank_3_with_leading_ones)
{
  constexpr int rank = TypeParam::value;
  for (std::uint32_t number = 0; number < cases; ++number)
  {
    random_stream random(number);
    const auto s = random_shape<rank>(random);
    SCOPED_TRACE(text(s) + ", " + random.replay());
    const auto wide = with_leading_ones(s);
    ASSERT_EQ(wide.output_elements(), s.output_elements());
    ASSERT_EQ(run_recipe(wide), run_recipe(s));
    // What the launchers use to get there.
    const auto canonical = tconv::detail::canonical(s);
    ASSERT_EQ(canonical.input, wide.input);
    ASSERT_EQ(canonical.kernel, wide.kernel);
    ASSERT_EQ(canonical.stride, wide.stride);
    ASSERT_EQ(canonical.padding, wide.padding);
    ASSERT_EQ(canonical.output_padding, wide.output_padding);
    ASSERT_EQ(canonical.dilation, wide.dilation);
    ASSERT_EQ(canonical.batch, s.batch);
    ASSERT_EQ(canonical.in_channels, s.in_channels);
    ASSERT_EQ(canonical.out_channels, s.out_channels);
    ASSERT_EQ(canonical.groups, s.groups);
  }
}

} // namespace
