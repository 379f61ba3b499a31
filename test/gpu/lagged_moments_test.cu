// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Moments of a convolution from lagged products of its input, for every shape that the plan takes, against the
/// convolution in full.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/typed_convolution.cuh"

#include <tconv/kernel/batch_norm.cuh>
#include <tconv/launch/lagged_moments.cuh>
#include <tconv/reference/batch_norm.hpp>

#include <limits>

namespace
{

using namespace tconv_test;

/// Mean and unbiased variance of each channel, by running statistics with momentum 1.
struct channel_statistics
{
  std::vector<float> mean;
  std::vector<float> variance;
};

/// Of conv_transpose(x, w), which the plan takes; empty after a failure.
template <class In>
channel_statistics
lagged_statistics(shape3 s, const std::vector<float>& x, const std::vector<float>& w, const arrangement& how)
{
  s.input_slice = slice_number(how.input_slice, s.in_channels);
  const placement in{s.batch, s.in_channels, s.input_positions(), how.input, s.input_slice};
  device_buffer<In> dx(in.place<In>(x), how.misalignment);
  device_buffer<In> dw(elements_of<In>(w), how.misalignment);
  device_buffer<float> mean(std::vector<float>(static_cast<std::size_t>(s.out_channels), 0.0f));
  device_buffer<float> variance(std::vector<float>(static_cast<std::size_t>(s.out_channels), 0.0f));
  device_buffer<float> centres(s.out_channels), slopes(s.out_channels);

  const auto plan = tconv::detail::plan_lagged(s, how.input);
  tconv::detail::workspace_layout layout;
  const tconv::runtime::lagged_workspace pieces(layout, plan.problem, true);
  workspace_buffer space(layout.bytes());
  tconv::options opts;
  opts.input_layout = how.input;
  const bool good   = run(how.mode, [&](cudaStream_t stream) {
    if (tconv::status outcome = pieces.launch(
          plan.problem, tconv::runtime::first_of_slice(dx.data(), s, opts), space.get(), false, stream);
        !outcome.ok())
    {
      return outcome;
    }
    using statistics  = tconv::kernel::lagged_moments<In>;
    constexpr int all = 128;
    return tconv::runtime::launch(
      "batch_norm_statistics",
      tconv::kernel::batch_norm_statistics<all, statistics, tconv::chain<>, tconv::kernel::channel_affines>,
      {s.out_channels, all, 0, true},
      stream,
      statistics{plan.problem, pieces.gram.get(space.get()), pieces.input_sums.get(space.get()), dw.data()},
      tconv::kernel::channel_affines{centres.data(), slopes.data()},
      s.out_channels,
      tconv::chain<>{},
      tconv::batch_norm_arguments{nullptr, nullptr, mean.data(), variance.data(), 1e-5f, 1.0f});
  });
  EXPECT_TRUE(good);
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && space.guards_intact() && mean.guards_intact()
              && variance.guards_intact() && centres.guards_intact() && slopes.guards_intact());
  return good ? channel_statistics{mean.download(), variance.download()} : channel_statistics{};
}

/// Sums in fp32 of up to 4096 products by 32 lanes, each product rounded once, are off by (128 + 16) 2^-24 of the
/// products' magnitudes at most, and so is the variance, with S the convolution of |x - mean| and |w|, of the mean of
/// S^2. Where that is of the size of the variance itself and sums are many, their errors average out: \p relative,
/// where it is not 0.
template <class In>
void check(const shape3& s, std::uint32_t seed, const arrangement& how, float offset, double relative)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + ", " + to_string(s) + ", " + to_string(how));
  const auto x = rounded_to<In>(random_values(seed, s.input_elements(), offset - 1.0f, offset + 1.0f));
  const auto w = rounded_to<In>(random_values(seed + 1, s.weight_elements()));
  std::vector<double> y(static_cast<std::size_t>(s.output_elements()));
  tconv::reference::conv_transpose(x.data(), w.data(), y.data(), s);
  const auto expected = tconv::reference::channel_moments(y.data(), s.batch, s.out_channels, s.output_positions());
  auto centred        = x;
  for (float& v : centred)
  {
    v -= offset;
  }
  const full_reference magnitudes(centred, w, s);
  std::vector<double> squares(expected.size());
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    squares[i / static_cast<std::size_t>(s.output_positions()) % squares.size()] += magnitudes.magnitude[i]
                                                                                  * magnitudes.magnitude[i];
  }
  const auto got = lagged_statistics<In>(s, x, w, how);
  ASSERT_EQ(got.variance.size(), expected.size());
  for (std::size_t c = 0; c < expected.size(); ++c)
  {
    const double variance = expected[c].unbiased_variance();
    // Samples of x may have a mean that is off by its deviation: squares up to four times as large.
    const double worst = 4 * 144 * 0x1p-24 * squares[c] / (expected[c].count - 1);
    EXPECT_NEAR(static_cast<double>(got.mean[c]),
                expected[c].mean,
                1e-6 * (std::fabs(expected[c].mean) + std::sqrt(squares[c] / expected[c].count)) + 1e-12)
      << "channel " << c;
    EXPECT_NEAR(static_cast<double>(got.variance[c]),
                variance,
                (relative > 0.0 ? relative * variance : worst) + 2e-7 * variance + 1e-12)
      << "channel " << c;
  }
}

bool takes(const shape3& s)
{
  return s.batch * s.output_positions() >= 2 && tconv::detail::plan_lagged(s, tconv::layout::channels_first).possible;
}

class lagged_moments_gpu : public gpu_test
{};

TEST_F(lagged_moments_gpu, awkward_shapes)
{
  std::int64_t number = 0;
  for (const shape3& s : awkward_shapes())
  {
    if (takes(s))
    {
      const auto seed = static_cast<std::uint32_t>(10 * ++number);
      check<float>(s, seed, arrangement::number(number), 0.5f, 0.0);
      check<__half>(s, seed, arrangement::number(number + 1), 0.5f, 0.0);
      check<__nv_bfloat16>(s, seed, arrangement::number(number + 2), 0.5f, 0.0);
    }
  }
  EXPECT_GE(number, 15);
}

TEST_F(lagged_moments_gpu, random_shapes)
{
  for (std::uint32_t i = 0; i < 200; ++i)
  {
    random_stream random(5000 + i);
    const shape3 s = random_shape(random, 300000);
    SCOPED_TRACE(random.replay());
    if (takes(s))
    {
      check<float>(s, 10 * i, arrangement::number(i), 0.5f, 0.0);
    }
  }
}

// Many pieces, cut along every axis; and enough values for a tight bound.
TEST_F(lagged_moments_gpu, pieces)
{
  std::int64_t number = 0;
  for (const shape3& s : {make_shape<3>({4, 3, 16, 1}, {32, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
                          make_shape<3>({1, 2, 3, 1}, {9, 40, 70}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
                          make_shape<3>({2, 9, 5, 1}, {6, 17, 33}, {2, 4, 3}, {2, 2, 2}, {0, 1, 1}),
                          tconv::detail::canonical(make_shape<2>({3, 1, 4, 1}, {120, 90}, {5, 5}, {3, 2}, {2, 1})),
                          tconv::detail::canonical(make_shape<1>({2, 4, 7, 1}, {20011}, {5}, {2}, {2}, {1}))})
  {
    ASSERT_TRUE(takes(s)) << to_string(s);
    ++number;
    check<float>(s, static_cast<std::uint32_t>(number), arrangement::number(number), 0.5f, 1e-6);
    check<float>(s, static_cast<std::uint32_t>(number), arrangement::number(number + 1), 0.0f, 1e-6);
  }
}

// Means a thousand times the deviations: x is centred before it is multiplied.
TEST_F(lagged_moments_gpu, large_mean)
{
  const shape3 s = make_shape<3>({2, 3, 8, 1}, {16, 16, 32}, {2, 2, 2}, {2, 2, 2});
  const auto how = arrangement::number(0);
  const auto x   = random_values(1, s.input_elements(), 999.0f, 1001.0f);
  // Weights of each phase sum to the same, so that the output has one mean.
  auto w = random_values(2, s.weight_elements());
  for (std::int64_t i = 0; i < s.weight_elements(); ++i)
  {
    w[static_cast<std::size_t>(i)] = w[static_cast<std::size_t>(i / s.taps() * s.taps())];
  }
  std::vector<double> y(static_cast<std::size_t>(s.output_elements()));
  tconv::reference::conv_transpose(x.data(), w.data(), y.data(), s);
  const auto expected = tconv::reference::channel_moments(y.data(), s.batch, s.out_channels, s.output_positions());
  const auto got      = lagged_statistics<float>(s, x, w, how);
  ASSERT_EQ(got.variance.size(), expected.size());
  for (std::size_t c = 0; c < expected.size(); ++c)
  {
    const double variance = expected[c].unbiased_variance();
    EXPECT_NEAR(static_cast<double>(got.variance[c]), variance, 1e-5 * variance) << "channel " << c;
  }
}

// A NaN that lands makes every channel NaN, wherever it stands.
TEST_F(lagged_moments_gpu, nan)
{
  const shape3 s = make_shape<3>({2, 3, 4, 1}, {3, 5, 7}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  const auto w   = random_values(1, s.weight_elements());
  for (const std::size_t at : {std::size_t{0}, std::size_t{104}, std::size_t{629}})
  {
    auto x   = random_values(2, s.input_elements());
    x[at]    = std::numeric_limits<float>::quiet_NaN();
    auto got = lagged_statistics<float>(s, x, w, arrangement::number(0));
    ASSERT_EQ(got.mean.size(), 4u);
    for (std::size_t c = 0; c < 4; ++c)
    {
      EXPECT_TRUE(std::isnan(got.mean[c]) && std::isnan(got.variance[c])) << at << ' ' << c;
    }
  }
}

// The same bits every time, whichever warp takes which cell.
TEST_F(lagged_moments_gpu, repeatable)
{
  const shape3 s = make_shape<3>({8, 3, 16, 1}, {16, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  const auto x   = random_values(1, s.input_elements());
  const auto w   = random_values(2, s.weight_elements());
  const auto one = lagged_statistics<float>(s, x, w, arrangement::number(0));
  for (int i = 0; i < 20; ++i)
  {
    const auto other = lagged_statistics<float>(s, x, w, arrangement::number(0));
    EXPECT_EQ(one.mean, other.mean);
    EXPECT_EQ(one.variance, other.variance);
  }
}

} // namespace
