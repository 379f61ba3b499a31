// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// batch_norm_train() of a convolution, alone and with average pools behind it, and batch_norm_train_centred(), against
/// the convolution in full.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/typed_convolution.cuh"

#include <tconv/launch/batch_norm_train_centred.cuh>
#include <tconv/launch/conv_batch_norm_train.cuh>
#include <tconv/reference/batch_norm.hpp>

namespace
{

using namespace tconv_test;
using tconv::chain;

/// Means over windows of 2 along every axis; \p extent becomes that of the result.
std::vector<double> halve(const std::vector<double>& y, std::array<tconv::int64_t, 3>& extent, tconv::int64_t rows)
{
  const std::array<tconv::int64_t, 3> out{extent[0] / 2, extent[1] / 2, extent[2] / 2};
  std::vector<double> means;
  for (tconv::int64_t row = 0; row < rows; ++row)
  {
    for (tconv::int64_t o = 0; o < out[0] * out[1] * out[2]; ++o)
    {
      double sum = 0;
      for (tconv::int64_t i = 0; i < 8; ++i)
      {
        const tconv::int64_t d = o / out[2] / out[1] * 2 + i / 4;
        const tconv::int64_t h = o / out[2] % out[1] * 2 + i / 2 % 2;
        const tconv::int64_t w = o % out[2] * 2 + i % 2;
        sum += y[static_cast<std::size_t>(((row * extent[0] + d) * extent[1] + h) * extent[2] + w)];
      }
      means.push_back(sum / 8);
    }
  }
  extent = out;
  return means;
}

class conv_batch_norm_train_gpu : public gpu_test
{};

/// \p functors behind the normalisation are \p pools average pools of 2.
template <class Functors>
void check(const shape3& s, std::uint32_t seed, launch_mode mode, const Functors& functors, int pools)
{
  SCOPED_TRACE(to_string(s));
  const auto x     = random_values(seed, s.input_elements(), -0.5f, 1.0f);
  const auto w     = random_values(seed + 1, s.weight_elements());
  const auto b     = random_values(seed + 2, s.out_channels);
  const auto gamma = random_values(seed + 3, s.out_channels, -2.0f, 2.0f);
  const auto beta  = random_values(seed + 4, s.out_channels);
  auto mean        = random_values(seed + 5, s.out_channels);
  auto var         = random_values(seed + 6, s.out_channels, 0.1f, 4.0f);

  device_buffer<float> dx(x), dw(w), db(b), d_gamma(gamma), d_beta(beta), d_mean(mean), d_var(var);
  full_reference expected(x, w, s);
  std::vector<double> y = expected.value;
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    const auto c = i / static_cast<std::size_t>(s.output_positions()) % b.size();
    y[i]         = 2.0 * (y[i] + static_cast<double>(b[c]));
  }
  tconv::reference::batch_norm_train(
    y.data(), s.batch, s.out_channels, s.output_positions(), {gamma.data(), beta.data(), mean.data(), var.data()});
  std::array<tconv::int64_t, 3> extent = s.output();
  for (int i = 0; i < pools; ++i)
  {
    y = halve(y, extent, s.batch * s.out_channels);
  }

  const auto before = chain(tconv::bias(db.data()), tconv::scale(2.0f));
  device_buffer<float> dy(static_cast<std::int64_t>(y.size()));
  workspace_buffer space(tconv::batch_norm_train_workspace_bytes(s, before, functors));
  ASSERT_TRUE(run(mode, [&](cudaStream_t stream) {
    return tconv::batch_norm_train(dx.data(),
                                   dw.data(),
                                   dy.data(),
                                   s,
                                   before,
                                   {d_gamma.data(), d_beta.data(), d_mean.data(), d_var.data()},
                                   functors,
                                   tconv::options{},
                                   space.get(),
                                   stream);
  }));
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && dy.guards_intact() && space.guards_intact()
              && d_mean.guards_intact() && d_var.guards_intact());
  const auto got = dy.download();
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    ASSERT_NEAR(static_cast<double>(got[i]), y[i], 2e-5 * (1.0 + std::fabs(y[i]))) << i;
  }
  const auto got_mean = d_mean.download();
  const auto got_var  = d_var.download();
  for (std::size_t c = 0; c < mean.size(); ++c)
  {
    EXPECT_NEAR(got_mean[c], mean[c], 1e-5f * (1.0f + std::fabs(mean[c])));
    EXPECT_NEAR(got_var[c], var[c], 1e-5f * (1.0f + std::fabs(var[c])));
  }
}

TEST_F(conv_batch_norm_train_gpu, alone)
{
  check(make_shape<3>({2, 3, 16, 1}, {4, 5, 6}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}), 1, launch_mode::direct, chain<>{}, 0);
  check(make_shape<3>({3, 6, 9, 3}, {1, 7, 11}, {1, 4, 3}, {1, 1, 2}, {0, 2, 1}), 20, launch_mode::graph, chain<>{}, 0);
  check(make_shape<3>({2, 5, 300, 1}, {1, 3, 9}, {1, 3, 3}, {1, 2, 2}), 40, launch_mode::side_stream, chain<>{}, 0);
  check(
    make_shape<3>({4, 2, 48, 1}, {8, 16, 16}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}), 50, launch_mode::graph, chain<>{}, 0);
}

// The first is folded into the taps where the stride allows it.
TEST_F(conv_batch_norm_train_gpu, two_average_pools)
{
  const auto pools = chain(tconv::average_pool(2), tconv::average_pool(2));
  check(make_shape<3>({2, 3, 16, 1}, {4, 5, 6}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}), 60, launch_mode::graph, pools, 2);
  check(make_shape<3>({2, 4, 6, 2}, {4, 5, 6}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}), 80, launch_mode::direct, pools, 2);
  check(make_shape<3>({2, 4, 6, 1}, {3, 4, 5}, {4, 5, 3}, {4, 4, 4}), 100, launch_mode::side_stream, pools, 2);
}

// Exactly representable constants give beta bit for bit; one value per channel is an error before anything is written.
TEST_F(conv_batch_norm_train_gpu, constant_channels)
{
  const shape3 s  = make_shape<3>({2, 2, 5, 1}, {2, 3, 4}, {1, 1, 1});
  const auto beta = random_values(1, 5);
  device_buffer<float> x(std::vector<float>(static_cast<std::size_t>(s.input_elements()), 3.0f));
  device_buffer<float> w(std::vector<float>(10, 1.0f)), d_beta(beta), y(s.output_elements());
  workspace_buffer space(tconv::batch_norm_train_workspace_bytes(s, chain<>{}));
  const auto call = [&](const shape3& shape, cudaStream_t stream) {
    return tconv::batch_norm_train(x.data(),
                                   w.data(),
                                   y.data(),
                                   shape,
                                   chain<>{},
                                   {nullptr, d_beta.data()},
                                   chain<>{},
                                   tconv::options{},
                                   space.get(),
                                   stream);
  };
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) { return call(s, stream); }));
  const auto got = y.download();
  for (std::size_t i = 0; i < got.size(); ++i)
  {
    EXPECT_EQ(got[i], beta[i / 24 % 5]);
  }
  EXPECT_EQ(
    call(make_shape<3>({1, 2, 5, 1}, {1, 1, 1}, {1, 1, 1}), nullptr).code(), tconv::status_code::invalid_argument);
}

class conv_batch_norm_train_centred_gpu : public gpu_test
{};

/// Of random values behind chain(bias, scale(-3)), with \p pools average pools of 2 as \p functors.
///
/// Bounds: z has the error e of the contract and its mean that of global_mean(). n values that are each off by e move a
/// variance by up to 4 e sqrt(var) + 4 e^2, and sums in fp32 a few of them after each other by 1e-6 of it; the slope
/// follows from that.
template <class In, class Out, class Functors>
void check_centred(shape3 s, std::uint32_t seed, const arrangement& how, const Functors& functors, int pools)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(s) + ", "
               + to_string(how));
  const auto x         = rounded_to<In>(random_values(seed, s.input_elements(), -0.5f, 1.0f));
  const auto w         = rounded_to<In>(random_values(seed + 1, s.weight_elements()));
  const auto b         = random_values(seed + 2, s.out_channels, -50.0f, 50.0f);
  const auto gamma     = random_values(seed + 3, s.out_channels, -2.0f, 2.0f);
  const auto beta      = random_values(seed + 4, s.out_channels, -50.0f, 50.0f);
  auto mean            = random_values(seed + 5, s.out_channels);
  auto var             = random_values(seed + 6, s.out_channels, 0.1f, 4.0f);
  const auto positions = static_cast<std::size_t>(s.output_positions());
  device_buffer<float> db(b), d_gamma(gamma), d_beta(beta), d_mean(mean), d_var(var);

  const full_reference full(x, w, s);
  std::vector<double> error(full.value.size());
  std::vector<double> worst(b.size());
  for (std::size_t i = 0; i < error.size(); ++i)
  {
    error[i]        = (static_cast<double>(full.terms[i]) + 16) * 0x1p-24 * full.magnitude[i] + 0x1p-126;
    double& channel = worst[i / positions % b.size()];
    channel         = std::fmax(channel, error[i]);
  }
  std::vector<double> y = full.value;
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    y[i] = -3.0 * (y[i] + static_cast<double>(b[i / positions % b.size()]));
  }
  const auto statistics = tconv::reference::batch_norm_train(
    y.data(), s.batch, s.out_channels, s.output_positions(), {gamma.data(), beta.data(), mean.data(), var.data()});
  const auto means          = tconv::reference::global_mean(y.data(), s.batch, s.out_channels, s.output_positions());
  const auto variance_error = [&](std::size_t c) {
    const double exact = statistics[c].biased_variance();
    const double e     = 3 * worst[c];
    return 1e-6 * exact + 4 * e * std::sqrt(exact) + 4 * e * e;
  };
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    const std::size_t c = i / positions % b.size();
    y[i] -= means[i / positions];
    const auto slope = [&](double change) {
      const double v = std::fmax(statistics[c].biased_variance() + change, 0.0);
      return 3.0 * std::fabs(static_cast<double>(gamma[c])) / std::sqrt(v + static_cast<double>(1e-5f));
    };
    const double steepest = slope(-variance_error(c));
    // y is the slope times a distance from the mean.
    const double relative = steepest / std::fmax(slope(0.0), 1e-300) - 1.0 + 4 * 0x1p-24;
    error[i]              = steepest * (error[i] + worst[c]) + relative * std::fabs(y[i]) + 0x1p-126;
  }
  std::array<tconv::int64_t, 3> extent = s.output();
  for (int i = 0; i < pools; ++i)
  {
    auto same = extent;
    error     = halve(error, same, s.batch * s.out_channels);
    y         = halve(y, extent, s.batch * s.out_channels);
  }

  s.input_slice  = slice_number(how.input_slice, s.in_channels);
  s.output_slice = slice_number(how.output_slice, s.out_channels);
  tconv::options opts;
  opts.input_layout        = how.input;
  opts.output_layout       = how.output;
  opts.engine              = how.engine;
  opts.programmatic_launch = how.misalignment == 1;
  const placement in{s.batch, s.in_channels, s.input_positions(), how.input, s.input_slice};
  const placement out{s.batch, s.out_channels, extent[0] * extent[1] * extent[2], how.output, s.output_slice};
  device_buffer<In> dx(in.place<In>(x), how.misalignment);
  device_buffer<In> dw(elements_of<In>(w), how.misalignment);
  device_buffer<Out> dy(out.tensor_elements(), how.misalignment);
  const auto before = chain(tconv::bias(db.data()), tconv::scale(-3.0f));
  workspace_buffer space(tconv::batch_norm_train_centred_workspace_bytes<In, Out>(s, before, functors, opts));
  ASSERT_TRUE(run(how.mode, [&](cudaStream_t stream) {
    return tconv::batch_norm_train_centred(dx.data(),
                                           dw.data(),
                                           dy.data(),
                                           s,
                                           before,
                                           {d_gamma.data(), d_beta.data(), d_mean.data(), d_var.data()},
                                           functors,
                                           opts,
                                           space.get(),
                                           stream);
  }));
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && dy.guards_intact() && space.guards_intact()
              && d_gamma.guards_intact() && d_mean.guards_intact() && d_var.guards_intact());
  const std::vector<Out> stored = dy.download();
  EXPECT_TRUE(out.others_untouched(stored)) << "channels beside the slice were written";
  EXPECT_TRUE(compare_values(out.extract(stored).data(),
                             y.data(),
                             {s.batch, s.out_channels, extent[0], extent[1], extent[2]},
                             [&](std::int64_t i, double wanted) {
                               const double own = error[static_cast<std::size_t>(i)];
                               return tolerance{own + ulp(std::fabs(wanted) + own, format_of<Out>::value), 0.0};
                             }));
  const auto got_mean = d_mean.download();
  const auto got_var  = d_var.download();
  for (std::size_t c = 0; c < mean.size(); ++c)
  {
    const auto count = static_cast<double>(s.batch) * static_cast<double>(positions);
    EXPECT_NEAR(static_cast<double>(got_mean[c]),
                static_cast<double>(mean[c]),
                0.3 * worst[c] + 1e-6 * std::fabs(static_cast<double>(mean[c])) + 2e-6);
    EXPECT_NEAR(static_cast<double>(got_var[c]),
                static_cast<double>(var[c]),
                0.1 * variance_error(c) * count / (count - 1) + 1e-6 * static_cast<double>(var[c]));
  }
}

TEST_F(conv_batch_norm_train_centred_gpu, awkward_shapes)
{
  std::int64_t number = 0;
  for (const shape3& s : awkward_shapes())
  {
    if (s.batch * s.output_positions() < 2)
    {
      continue;
    }
    const auto seed = static_cast<std::uint32_t>(10 * ++number);
    check_centred<float, float>(s, seed, arrangement::number(number), chain<>{}, 0);
    check_centred<__half, __half>(s, seed, arrangement::number(number + 1), chain<>{}, 0);
    check_centred<__nv_bfloat16, float>(s, seed, arrangement::number(number + 2), chain<>{}, 0);
  }
}

TEST_F(conv_batch_norm_train_centred_gpu, random_shapes)
{
  for (std::uint32_t i = 0; i < 60; ++i)
  {
    random_stream random(7000 + i);
    const shape3 s = random_shape(random, 300000);
    if (s.batch * s.output_positions() < 2)
    {
      continue;
    }
    SCOPED_TRACE(random.replay());
    check_centred<float, float>(s, 10 * i, arrangement::number(i), chain<>{}, 0);
  }
}

// Few input channels and many output channels, so that moments come from lagged products; and by the pass over the
// outputs.
TEST_F(conv_batch_norm_train_centred_gpu, both_ways_to_moments)
{
  const shape3 s = make_shape<3>({4, 2, 48, 1}, {8, 16, 16}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  ASSERT_TRUE(tconv::detail::plan_lagged(s, tconv::layout::channels_first).pays(tconv::detail::landing_products(s)));
  arrangement how = arrangement::number(5);
  for (const tconv::engine e : {tconv::engine::automatic, tconv::engine::gather})
  {
    how.engine = e;
    check_centred<float, float>(s, 11, how, chain<>{}, 0);
    check_centred<__half, __half>(s, 12, how, chain<>{}, 0);
  }
}

// A mean per sample and channel commutes with averages over windows: the pool is folded into the taps.
TEST_F(conv_batch_norm_train_centred_gpu, average_pool)
{
  const auto pool = chain(tconv::average_pool(2));
  const shape3 s  = make_shape<3>({2, 3, 16, 1}, {4, 5, 6}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  check_centred<float, float>(s, 5, arrangement::number(3), pool, 1);
  check_centred<float, float>(
    make_shape<3>({3, 4, 6, 2}, {4, 5, 6}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}), 6, arrangement::number(0), pool, 1);
}

// Exactly representable constants per sample give 0 bit for bit although the samples differ, whatever bias and beta
// are.
TEST_F(conv_batch_norm_train_centred_gpu, constant_samples)
{
  const shape3 s = make_shape<3>({2, 2, 5, 1}, {2, 3, 4}, {1, 1, 1});
  std::vector<float> values(static_cast<std::size_t>(s.input_elements()), 3.0f);
  std::fill(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end(), 5.0f);
  device_buffer<float> x(values), w(std::vector<float>(10, 1.0f)), b(random_values(1, 5)), y(s.output_elements());
  const auto before = chain(tconv::bias(b.data()));
  workspace_buffer space(tconv::batch_norm_train_centred_workspace_bytes(s, before));
  const auto call = [&](const shape3& shape, float eps, cudaStream_t stream) {
    return tconv::batch_norm_train_centred(x.data(),
                                           w.data(),
                                           y.data(),
                                           shape,
                                           before,
                                           {nullptr, b.data(), nullptr, nullptr, eps},
                                           chain<>{},
                                           tconv::options{},
                                           space.get(),
                                           stream);
  };
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) { return call(s, 0.0f, stream); }));
  for (const float v : y.download())
  {
    EXPECT_EQ(v, 0.0f);
  }
  EXPECT_EQ(call(make_shape<3>({1, 2, 5, 1}, {1, 1, 1}, {1, 1, 1}), 0.0f, nullptr).code(),
            tconv::status_code::invalid_argument);
  EXPECT_EQ(call(s, -1.0f, nullptr).code(), tconv::status_code::invalid_argument);
}

} // namespace
