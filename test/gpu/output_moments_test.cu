// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Moments of a convolution's outputs from the pass that computes them, on CUDA cores and on tensor cores, by way of
/// batch_norm_train_global_mean() with momentum 1: running statistics are then those of the batch.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/recipes.hpp"
#include "common/typed_convolution.cuh"

#include <tconv/launch/batch_norm_train_global_mean.cuh>
#include <tconv/reference/batch_norm.hpp>

namespace
{

using namespace tconv_test;
using tconv::chain;

class output_moments_gpu : public gpu_test
{};

/// What a call leaves.
struct statistics
{
  std::vector<float> mean;
  std::vector<float> variance; ///< unbiased
  std::vector<float> y;
};

/// \p x and \p w are representable in In.
template <class In>
statistics train(const shape3& s, const std::vector<float>& x, const std::vector<float>& w, const arrangement& how)
{
  tconv::options opts;
  opts.engine        = how.engine;
  opts.input_layout  = how.input;
  opts.output_layout = how.output;
  const placement in{s.batch, s.in_channels, s.input_positions(), how.input, {}};
  device_buffer<In> dx(in.place<In>(x), how.misalignment);
  device_buffer<In> dw(elements_of<In>(w), how.misalignment);
  device_buffer<float> y(s.batch * s.out_channels);
  const auto channels = static_cast<std::size_t>(s.out_channels);
  device_buffer<float> mean(std::vector<float>(channels, 0.0f)), variance(std::vector<float>(channels, 1.0f));
  workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s, chain<>{}, opts));
  const tconv::batch_norm_arguments arguments{nullptr, nullptr, mean.data(), variance.data(), 1e-5f, 1.0f};
  EXPECT_TRUE(run(how.mode, [&](cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(
      dx.data(), dw.data(), y.data(), s, chain<>{}, arguments, opts, space.get(), stream);
  }));
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && y.guards_intact() && space.guards_intact()
              && mean.guards_intact() && variance.guards_intact());
  return {mean.download(), variance.download(), y.download()};
}

/// Against moments in double precision. Outputs have the error e of the contract, which moves a variance by up to
/// 4 e sqrt(variance) + 4 e^2; sums in fp32 add \p summing of it.
template <class In>
void check(const shape3& s, std::uint32_t seed, const arrangement& how, double summing)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + ", " + to_string(s) + ", " + to_string(how));
  const auto x = rounded_to<In>(random_values(seed, s.input_elements(), -0.5f, 1.0f));
  const auto w = rounded_to<In>(random_values(seed + 1, s.weight_elements()));
  full_reference full(x, w, s);
  const auto positions = static_cast<std::size_t>(s.output_positions());
  std::vector<double> worst(static_cast<std::size_t>(s.out_channels), 0.0);
  for (std::size_t i = 0; i < full.value.size(); ++i)
  {
    double& channel = worst[i / positions % worst.size()];
    channel = std::fmax(channel, (static_cast<double>(full.terms[i]) + 8) * 0x1p-24 * full.magnitude[i] + 0x1p-126);
  }
  const auto exact = tconv::reference::channel_moments(
    full.value.data(), s.batch, s.out_channels, s.output_positions());
  const statistics got = train<In>(s, x, w, how);
  for (std::size_t c = 0; c < exact.size(); ++c)
  {
    const double variance = exact[c].unbiased_variance();
    const double e        = worst[c];
    EXPECT_NEAR(
      static_cast<double>(got.variance[c]), variance, summing * variance + 4 * e * std::sqrt(variance) + 4 * e * e)
      << "channel " << c;
    EXPECT_NEAR(static_cast<double>(got.mean[c]), exact[c].mean, e) << "channel " << c;
  }
}

/// \p f(engine) for each way that the device has.
template <class F>
void for_each_way(F f)
{
  f(tconv::engine::gather);
  if (tconv::runtime::find_gemm_device(tconv::engine::implicit_gemm).available)
  {
    f(tconv::engine::implicit_gemm);
  }
}

// One and two phases in a thread, 32 to 128 columns and several tiles of channels, rows and channels that fill no tile, input channels in
// chunks, more and fewer tiles than blocks.
TEST_F(output_moments_gpu, both_ways_agree_with_the_reference)
{
  const shape3 shapes[] = {
    make_shape<3>({2, 16, 5, 1}, {5, 6, 7}, {3, 3, 3}),
    make_shape<3>({1, 17, 1, 1}, {1, 1, 2}, {1, 1, 1}),
    make_shape<3>({2, 17, 40, 1}, {4, 5, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
    make_shape<3>({3, 24, 32, 1}, {9, 10, 11}, {2, 3, 2}, {2, 1, 2}),
    make_shape<3>({1, 40, 100, 1}, {1, 9, 33}, {1, 4, 4}, {1, 2, 2}, {0, 1, 1}),
    make_shape<3>({3, 16, 200, 1}, {1, 1, 301}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}),
    make_shape<3>({1, 20, 300, 1}, {3, 4, 5}, {2, 2, 2}, {2, 2, 2}),
    make_shape<3>({1, 600, 33, 1}, {2, 9, 20}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}),
    make_shape<3>({2, 16, 65, 1}, {3, 17, 19}, {1, 3, 5}, {1, 3, 3}, {0, 1, 0}),
    make_shape<3>({1, 16, 24, 1}, {24, 30, 70}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}),
    make_shape<3>({1, 80, 40, 1}, {3, 5, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
  };
  std::int64_t number = 0;
  for (const shape3& s : shapes)
  {
    const auto seed = static_cast<std::uint32_t>(20 * ++number);
    for_each_way([&](tconv::engine way) {
      arrangement how = arrangement::number(number);
      how.engine      = way;
      check<float>(s, seed, how, 2e-6);
      how        = arrangement::number(number + 1);
      how.engine = way;
      check<__half>(s, seed, how, 2e-6);
      how        = arrangement::number(number + 2);
      how.engine = way;
      check<__nv_bfloat16>(s, seed, how, 2e-6);
    });
  }
}

// Means of 10,000 deviations: a squared mean taken from a mean square would have no digit left in fp32. On tensor cores what varies lies in the
// low parts of x, and an instruction truncates what it adds, towards zero, at about 2^-25 of the sum: small addends shrink. A simulation of
// these very numbers gives 1.3e-4 for 64 products (4e-6 with exact sums), and less for more where sums are kept outside of it.
TEST_F(output_moments_gpu, variance_far_from_zero)
{
  for (const std::int64_t products : {64, 448})
  {
    const shape3 s       = make_shape<3>({8, products, 24, 1}, {8, 18, 70}, {1, 1, 1});
    const auto amplitude = 1.7e-4f * std::sqrt(static_cast<float>(products));
    auto x               = random_values(31, s.input_elements(), -amplitude, amplitude);
    for (float& v : x)
    {
      v += 1.0f;
    }
    const auto w = random_values(32, s.weight_elements(), 0.5f, 1.0f);
    full_reference full(x, w, s);
    const auto exact = tconv::reference::channel_moments(
      full.value.data(), s.batch, s.out_channels, s.output_positions());
    ASSERT_NEAR(exact[0].mean / std::sqrt(exact[0].biased_variance()), 1e4, 2e3);
    for_each_way([&](tconv::engine way) {
      arrangement how;
      how.engine           = way;
      const double bound   = way == tconv::engine::implicit_gemm && products == 64 ? 1.5e-4 : 1e-4;
      const statistics got = train<float>(s, x, w, how);
      double worst         = 0;
      for (std::size_t c = 0; c < exact.size(); ++c)
      {
        const double variance = exact[c].unbiased_variance();
        worst                 = std::fmax(worst, std::fabs(static_cast<double>(got.variance[c]) - variance) / variance);
      }
      EXPECT_LE(worst, bound) << products << " products, engine " << static_cast<int>(way);
      RecordProperty("relative_error_" + std::to_string(products) + "_engine_" + std::to_string(static_cast<int>(way)),
                     std::to_string(worst));
    });
  }
}

// Integers, so that every output is exact in both engines, and only the sums of moments round: a warp, a tile or a chunk that is missing
// shows, however many products an output has.
TEST_F(output_moments_gpu, moments_of_integers)
{
  const shape3 shapes[] = {
    make_shape<3>({1, 600, 33, 1}, {2, 9, 20}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}),
    make_shape<3>({2, 17, 40, 1}, {4, 5, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
    make_shape<3>({3, 16, 200, 1}, {1, 1, 301}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}),
    make_shape<3>({2, 34, 100, 2}, {3, 5, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
  };
  for (const shape3& s : shapes)
  {
    SCOPED_TRACE(to_string(s));
    const auto x = recipe_x_values(s.input_elements());
    const auto w = recipe_w_values(s.weight_elements());
    full_reference full(x, w, s);
    const auto exact = tconv::reference::channel_moments(
      full.value.data(), s.batch, s.out_channels, s.output_positions());
    for_each_way([&](tconv::engine way) {
      arrangement how;
      how.engine           = way;
      const statistics got = train<float>(s, x, w, how);
      for (std::size_t c = 0; c < exact.size(); ++c)
      {
        const double variance = exact[c].unbiased_variance();
        EXPECT_NEAR(static_cast<double>(got.variance[c]), variance, 2e-6 * variance) << c;
        EXPECT_NEAR(
          static_cast<double>(got.mean[c]), exact[c].mean, 2e-6 * std::sqrt(variance) + 1e-7 * std::fabs(exact[c].mean))
          << c;
      }
    });
  }
}

// Nothing is stored: where outputs would go must not choose another order of the sums. Convolutions of this shape have four phases a thread with
// channels first, and one with channels last.
TEST_F(output_moments_gpu, layout_of_outputs_makes_no_difference)
{
  const shape3 s = make_shape<3>({3, 32, 20, 1}, {1, 9, 37}, {1, 3, 9}, {1, 1, 4}, {0, 1, 2});
  const auto x   = random_values(71, s.input_elements());
  const auto w   = random_values(72, s.weight_elements());
  for_each_way([&](tconv::engine way) {
    arrangement how;
    how.engine             = way;
    how.output             = tconv::layout::channels_first;
    const statistics first = train<float>(s, x, w, how);
    how.output             = tconv::layout::channels_last;
    const statistics last  = train<float>(s, x, w, how);
    EXPECT_EQ(first.mean, last.mean);
    EXPECT_EQ(first.variance, last.variance);
  });
}

// Values of every output: their mean and variance are exact whatever the order of the sums.
TEST_F(output_moments_gpu, constant_outputs_have_no_variance)
{
  const shape3 s = make_shape<3>({3, 16, 40, 1}, {2, 5, 9}, {1, 1, 1});
  const std::vector<float> x(static_cast<std::size_t>(s.input_elements()), 1.0f);
  const std::vector<float> w(static_cast<std::size_t>(s.weight_elements()), 0.25f);
  for_each_way([&](tconv::engine way) {
    arrangement how;
    how.engine           = way;
    const statistics got = train<float>(s, x, w, how);
    for (std::size_t c = 0; c < got.mean.size(); ++c)
    {
      EXPECT_EQ(got.mean[c], 4.0f) << c;
      EXPECT_EQ(got.variance[c], 0.0f) << c;
    }
  });
}

TEST_F(output_moments_gpu, a_thousand_launches_give_the_same_bits)
{
  const shape3 s = make_shape<3>({4, 32, 48, 1}, {4, 9, 35}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  const auto x   = random_values(61, s.input_elements());
  const auto w   = random_values(62, s.weight_elements());
  for_each_way([&](tconv::engine way) {
    arrangement how;
    how.engine             = way;
    const statistics first = train<float>(s, x, w, how);
    for (int i = 0; i < 1000; ++i)
    {
      const statistics again = train<float>(s, x, w, how);
      ASSERT_EQ(again.variance, first.variance) << i;
      ASSERT_EQ(again.y, first.y) << i;
    }
  });
}

TEST_F(output_moments_gpu, what_an_engine_does_not_have_is_refused)
{
  const shape3 s = make_shape<3>({1, 32, 32, 16}, {1, 2, 3}, {1, 3, 3});
  tconv::options opts;
  opts.engine = tconv::engine::implicit_gemm;
  device_buffer<float> x(s.input_elements()), w(s.weight_elements()), y(s.out_channels);
  workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s, chain<>{}, opts));
  EXPECT_EQ(tconv::batch_norm_train_global_mean(
              x.data(), w.data(), y.data(), s, chain<>{}, tconv::batch_norm_arguments{}, opts, space.get(), nullptr)
              .code(),
            tconv::status_code::not_supported);
}

} // namespace
