// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// global_mean(), fold_batch_norm() and batch_norm_train_global_mean() against a convolution that is computed in full.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/recipes.hpp"
#include "common/train_case.cuh"

#include <tconv/reference/batch_norm.hpp>
#include <tconv/reference/chain.hpp>
#include <tconv/tconv.cuh>

#include <array>
#include <limits>
#include <numeric>

namespace
{

using namespace tconv_test;
using tconv::chain;

/// Values of y and the exact means of the convolution's outputs with their magnitude.
struct mean_reference
{
  std::vector<double> mean;
  std::vector<double> magnitude;

  mean_reference(const std::vector<float>& x, const std::vector<float>& w, const shape3& s)
  {
    const full_reference full(x, w, s);
    mean      = tconv::reference::global_mean(full.value.data(), s.batch, s.out_channels, s.output_positions());
    magnitude = tconv::reference::global_mean(full.magnitude.data(), s.batch, s.out_channels, s.output_positions());
  }
};

template <class Functors>
std::vector<float> global_mean_on_device(const shape3& s,
                                         const std::vector<float>& x,
                                         const std::vector<float>& w,
                                         const Functors& functors,
                                         launch_mode mode          = launch_mode::direct,
                                         std::int64_t misalignment = 0)
{
  device_buffer<float> dx(x, misalignment);
  device_buffer<float> dw(w, misalignment);
  device_buffer<float> dy(s.batch * s.out_channels, misalignment);
  workspace_buffer space(tconv::global_mean_workspace_bytes(s, functors));
  EXPECT_TRUE(run(mode,
                  [&](cudaStream_t stream) {
                    return tconv::global_mean(
                      dx.data(), dw.data(), dy.data(), s, functors, tconv::options{}, space.get(), stream);
                  }))
    << to_string(s);
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && dy.guards_intact() && space.guards_intact()) << to_string(s);
  return dy.download();
}

/// Sums are exact to fp64 beyond a thread's few values, so a mean is as good as the rounding of those: 64 of them at most.
void check_mean(const shape3& s, std::uint32_t seed, launch_mode mode, std::int64_t misalignment)
{
  const auto x = random_values(seed, s.input_elements(), -0.5f, 1.0f);
  const auto w = random_values(seed + 1, s.weight_elements());
  const auto b = random_values(seed + 2, s.out_channels);
  device_buffer<float> db(b);
  const auto y = global_mean_on_device(s, x, w, chain(tconv::bias(db.data()), tconv::scale(2.0f)), mode, misalignment);
  mean_reference expected(x, w, s);
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    const auto bias       = static_cast<double>(b[i % b.size()]);
    expected.mean[i]      = 2.0 * (expected.mean[i] + bias);
    expected.magnitude[i] = 2.0 * (expected.magnitude[i] + std::fabs(bias));
  }
  EXPECT_TRUE(compare_values(y.data(),
                             expected.mean.data(),
                             {s.batch, s.out_channels},
                             [&](std::int64_t i, double) {
                               return tolerance{8 * 0x1p-24 * expected.magnitude[static_cast<std::size_t>(i)], 0x1p-23};
                             }))
    << to_string(s);
}

class global_mean_gpu : public gpu_test
{};

TEST_F(global_mean_gpu, awkward_shapes)
{
  std::uint32_t seed = 1;
  for (const shape3& s : awkward_shapes())
  {
    for (const launch_mode mode : launch_modes)
    {
      ++seed;
      check_mean(s, seed, mode, seed % 4);
    }
  }
}

TEST_F(global_mean_gpu, random_shapes)
{
  for (std::uint32_t i = 0; i < 200; ++i)
  {
    random_stream random(1000 + i);
    const shape3 s = random_shape(random, 1000000);
    SCOPED_TRACE(random.replay());
    check_mean(s, i, launch_modes[i % 3], i % 4);
  }
}

// Long rows are cut into slices along w, deep boxes along their rows.
TEST_F(global_mean_gpu, slices)
{
  check_mean(tconv::detail::canonical(make_shape<1>({1, 1, 3, 1}, {100003}, {4}, {2}, {1})), 3, launch_mode::direct, 1);
  check_mean(tconv::detail::canonical(make_shape<1>({1, 1, 3, 1}, {100000}, {1})), 4, launch_mode::direct, 0);
  check_mean(make_shape<3>({1, 2, 3, 1}, {20, 50, 41}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}), 5, launch_mode::direct, 0);
}

// Cropped taps must be left out: sum(x) * sum(w) / positions would give 133.2.
TEST_F(global_mean_gpu, cropped_taps_do_not_count)
{
  const shape3 s = tconv::detail::canonical(make_shape<1>({1, 1, 1, 1}, {3}, {3}, {2}, {1}));
  EXPECT_EQ(global_mean_on_device(s, {1, 2, 3}, {1, 10, 100}, chain<>{}), std::vector<float>{73.0f});
}

TEST_F(global_mean_gpu, recipe_with_bias)
{
  const shape3 s = tconv::detail::canonical(make_shape<2>({2, 2, 3, 1}, {3, 3}, {4, 4}, {2, 2}, {1, 1}, {1, 1}));
  device_buffer<float> b(std::vector<float>{1, 2, 3});
  const auto y = global_mean_on_device(
    s, recipe_x_values(s.input_elements()), recipe_w_values(s.weight_elements()), chain(tconv::bias(b.data())));
  const double expected[] = {90.0 / 49, 5.0 / 7, 204.0 / 49, 36.0 / 49, 124.0 / 49, 100.0 / 49};
  for (std::size_t i = 0; i < 6; ++i)
  {
    EXPECT_EQ(y[i], static_cast<float>(expected[i]));
  }
}

// An input that no tap brings anywhere does not count, not even a NaN; one that lands poisons its sample.
TEST_F(global_mean_gpu, nan_counts_exactly_where_it_lands)
{
  std::uint32_t seed = 60;
  for (const shape3& s : awkward_shapes())
  {
    auto x                             = random_values(++seed, s.input_elements());
    x[random_bits(seed, 1) % x.size()] = std::numeric_limits<float>::quiet_NaN();
    const auto w                       = random_values(seed + 1, s.weight_elements());
    const auto y                       = global_mean_on_device(s, x, w, chain<>{});
    const mean_reference expected(x, w, s);
    for (std::size_t i = 0; i < y.size(); ++i)
    {
      EXPECT_EQ(std::isnan(y[i]), std::isnan(expected.mean[i])) << to_string(s) << ' ' << i;
    }
  }
}

TEST_F(global_mean_gpu, channel_functors_after_the_mean)
{
  for (const std::int64_t channels : {1, 7, 32, 33, 128, 1000})
  {
    const shape3 s   = make_shape<3>({3, 4, channels, 1}, {2, 3, 5}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
    const auto x     = random_values(1, s.input_elements());
    const auto w     = random_values(2, s.weight_elements(), -20.0f, 20.0f);
    const auto funcs = chain(tconv::scale(3.0f), tconv::channel_softmax{}, tconv::tanh{});
    const auto y     = global_mean_on_device(s, x, w, funcs);
    mean_reference expected(x, w, s);
    double worst = 0;
    for (const double m : expected.magnitude)
    {
      worst = std::fmax(worst, 3 * 8 * 0x1p-24 * m);
    }
    tconv::reference::apply(funcs, expected.mean.data(), s.batch, channels, 1);
    EXPECT_TRUE(compare_values(y.data(), expected.mean.data(), {s.batch, channels}, [&](std::int64_t, double) {
      return tolerance{worst, 4e-6};
    }));
  }
}

class batch_norm_gpu : public gpu_test
{};

// pytorch #180995, ultralytics #25364: with groups the output channel is the second axis of the weights within its group.
TEST_F(batch_norm_gpu, folding_with_groups)
{
  const shape3 s = make_shape<3>({1, 4, 4, 2}, {1, 1, 1}, {1, 1, 1});
  const std::vector<float> x{1, 2, 3, 4};
  std::vector<float> w;
  for (int ci = 0; ci < 4; ++ci)
  {
    w.push_back(static_cast<float>(10 * (ci + 1) + 1));
    w.push_back(static_cast<float>(10 * (ci + 1) + 2));
  }
  const std::vector<float> bias{0.5f, -1, 2, 0};
  layer bn(1, 4);
  bn.d_mean.upload({50, 60, 200, 210});
  bn.d_var.upload({4, 16, 25, 100});
  bn.d_gamma.upload({1, 2, -1, 3});
  bn.d_beta.upload({0, 1, 2, 3});
  for (const float eps : {0.0f, 1e-5f})
  {
    tconv::batch_norm_arguments arguments = bn.device();
    arguments.eps                         = eps;
    device_buffer<float> dx(x), dw(w), db(bias), folded(8), slopes(4), offsets(4), y(4);
    workspace_buffer space(tconv::conv_transpose_workspace_bytes(s));
    ASSERT_TRUE(run(launch_mode::graph, [&](cudaStream_t stream) {
      if (tconv::status r = tconv::fold_batch_norm(
            dw.data(), db.data(), arguments, folded.data(), slopes.data(), offsets.data(), s, tconv::options{}, stream);
          !r.ok())
      {
        return r;
      }
      return tconv::conv_transpose(dx.data(),
                                   folded.data(),
                                   y.data(),
                                   s,
                                   chain(tconv::bias(offsets.data())),
                                   tconv::options{},
                                   space.get(),
                                   stream);
    }));
    const std::vector<double> expected = eps == 0.0f
                                         ? std::vector<double>{1.75, -1.5, -9.8, 19.2}
                                         : std::vector<double>{1.7499978, -1.4999992, -9.7999976, 19.1999992};
    const auto got                     = y.download();
    for (std::size_t c = 0; c < 4; ++c)
    {
      EXPECT_NEAR(static_cast<double>(got[c]), expected[c], 2e-5) << c; // offsets of 60 and more are rounded to fp32
    }
    // The functor normalises around the mean and does better.
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::conv_transpose(
        dx.data(),
        dw.data(),
        y.data(),
        s,
        chain(tconv::bias(db.data()),
              tconv::batch_norm(arguments.running_mean, arguments.running_var, arguments.gamma, arguments.beta, eps)),
        tconv::options{},
        space.get(),
        stream);
    }));
    const auto exact = y.download();
    for (std::size_t c = 0; c < 4; ++c)
    {
      EXPECT_NEAR(static_cast<double>(exact[c]), expected[c], 4e-7 * std::fabs(expected[c]) + 1e-7) << c;
    }
  }
}

TEST_F(batch_norm_gpu, folding_where_variance_and_eps_are_zero_gives_beta)
{
  device_buffer<float> zero(std::vector<float>{0.0f}), three(std::vector<float>{3.0f}), slopes(1), offsets(1);
  tconv::batch_norm_arguments arguments{three.data(), three.data(), three.data(), zero.data(), 0.0f};
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::fold_batch_norm(nullptr, arguments, slopes.data(), offsets.data(), 1, tconv::options{}, stream);
  }));
  EXPECT_EQ(slopes.download()[0], 0.0f);
  EXPECT_EQ(offsets.download()[0], 3.0f);
}

/// Largest relative error of the variance, from running_var with momentum 1 (which is then the unbiased variance).
void check_train(const shape3& s,
                 const std::vector<float>& x,
                 const std::vector<float>& w,
                 double variance_error,
                 launch_mode mode          = launch_mode::direct,
                 std::int64_t misalignment = 0,
                 tconv::engine engine      = tconv::engine::automatic)
{
  tconv::options opts;
  opts.engine = engine;
  layer bn(7, s.out_channels);
  const auto bias = random_values(11, s.out_channels);
  device_buffer<float> dx(x, misalignment), dw(w, misalignment), db(bias), dy(s.batch * s.out_channels, misalignment);
  const auto before = chain(tconv::bias(db.data()), tconv::scale(2.0f));
  workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s, before, opts));
  auto arguments     = bn.device();
  arguments.momentum = 1.0f;
  arguments.eps      = 1e-3f;
  ASSERT_TRUE(run(mode,
                  [&](cudaStream_t stream) {
                    return tconv::batch_norm_train_global_mean(
                      dx.data(), dw.data(), dy.data(), s, before, arguments, opts, space.get(), stream);
                  }))
    << to_string(s);
  EXPECT_TRUE(bn.guards_intact() && dy.guards_intact() && space.guards_intact() && dx.guards_intact());

  full_reference full(x, w, s);
  tconv::reference::apply(chain(tconv::bias(bias.data()), tconv::scale(2.0f)),
                          full.value.data(),
                          s.batch,
                          s.out_channels,
                          s.output_positions());
  auto host          = bn.host();
  host.momentum      = 1.0f;
  host.eps           = 1e-3f;
  const auto moments = tconv::reference::batch_norm_train(
    full.value.data(), s.batch, s.out_channels, s.output_positions(), host);
  const auto expected = tconv::reference::global_mean(full.value.data(), s.batch, s.out_channels, s.output_positions());
  const auto var      = bn.d_var.download();
  const auto mean     = bn.d_mean.download();
  for (std::size_t c = 0; c < var.size(); ++c)
  {
    const double exact = moments[c].unbiased_variance();
    // Rounding of each output adds at most (K + 8) 2^-24 S to it, hence 2 * that * |y| to the sum of squares where the variance
    // itself is tiny; values here have variances of the order of their squares.
    EXPECT_NEAR(static_cast<double>(var[c]), exact, variance_error * exact + 1e-12) << to_string(s) << " channel " << c;
    EXPECT_NEAR(
      static_cast<double>(mean[c]), moments[c].mean, 1e-6 * (std::fabs(moments[c].mean) + std::sqrt(exact)) + 1e-9)
      << to_string(s) << " channel " << c;
  }
  EXPECT_TRUE(compare_values(dy.download().data(),
                             expected.data(),
                             {s.batch, s.out_channels},
                             [&](std::int64_t, double) {
                               return tolerance{2e-6, variance_error};
                             }))
    << to_string(s);
}

TEST_F(batch_norm_gpu, train_over_awkward_shapes)
{
  std::uint32_t seed = 5;
  for (const shape3& s : awkward_shapes())
  {
    if (s.batch * s.output_positions() < 2)
    {
      continue;
    }
    ++seed;
    check_train(s,
                random_values(seed, s.input_elements()),
                random_values(seed + 1, s.weight_elements()),
                1e-5,
                launch_modes[seed % 3],
                seed % 4);
  }
}

TEST_F(batch_norm_gpu, train_over_random_shapes)
{
  for (std::uint32_t i = 0; i < 100; ++i)
  {
    random_stream random(3000 + i);
    const shape3 s = random_shape(random, 1000000);
    if (s.batch * s.output_positions() < 2)
    {
      continue;
    }
    SCOPED_TRACE(random.replay());
    check_train(s, random_values(i, s.input_elements()), random_values(i + 1, s.weight_elements()), 1e-5);
  }
}

// The sum of squares from the spectrum of x, the pass over the outputs and the reference agree.
TEST_F(batch_norm_gpu, train_by_spectrum)
{
  std::uint32_t seed = 1;
  for (const shape3& s : uncropped_shapes())
  {
    ++seed;
    const auto x = random_values(seed, s.input_elements());
    const auto w = random_values(seed + 1, s.weight_elements());
    // Spectra have 16 bits: 2^-16 in a product, of which small shapes have few. Larger ones are next.
    check_train(s, x, w, 0x1p-16, launch_modes[seed % 3], seed % 4, tconv::engine::spectral);
    check_train(s, x, w, 1e-5, launch_modes[seed % 3], seed % 4, tconv::engine::gather);
  }
}

// Where the spectral kernels sum x and w themselves, means are those of the numbers, not of spectra of 16 bits: integers have exact
// ones, far from 0 too, with and without a second sample.
TEST_F(batch_norm_gpu, means_of_whole_volumes_are_exact)
{
  for (const std::int64_t batch : {1, 4})
  {
    const shape3 s = make_shape<3>({batch, 3, 5, 1}, {16, 32, 32}, {5, 5, 5});
    tconv::options opts;
    opts.engine = tconv::engine::spectral;
    ASSERT_TRUE(tconv::runtime::batch_norm_train_plan<float>(s, opts).sums_on_the_way);
    std::vector<float> x(static_cast<std::size_t>(s.input_elements())),
      w(static_cast<std::size_t>(s.weight_elements()));
    for (std::size_t i = 0; i < x.size(); ++i)
    {
      x[i] = static_cast<float>(4000 + i * 7919 % 4093);
    }
    for (std::size_t i = 0; i < w.size(); ++i)
    {
      w[i] = static_cast<float>(static_cast<int>(i * 31 % 17) - 5);
    }
    const auto sum = [](const std::vector<float>& v, std::int64_t first, std::int64_t count) {
      return std::accumulate(v.begin() + first, v.begin() + first + count, 0.0);
    };
    device_buffer<float> dx(x), dw(w), dy(s.batch * s.out_channels);
    layer bn(3, s.out_channels);
    auto arguments     = bn.device();
    arguments.momentum = 1.0f;
    workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s, chain<>{}, opts));
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::batch_norm_train_global_mean(
        dx.data(), dw.data(), dy.data(), s, chain<>{}, arguments, opts, space.get(), stream);
    }));
    const auto mean          = bn.d_mean.download();
    const std::int64_t taps  = 125;
    const std::int64_t input = s.input_positions();
    for (std::int64_t c = 0; c < s.out_channels; ++c)
    {
      double exact = 0.0;
      for (std::int64_t n = 0; n < s.batch; ++n)
      {
        for (std::int64_t i = 0; i < s.in_channels; ++i)
        {
          exact += sum(x, (n * s.in_channels + i) * input, input) * sum(w, (i * s.out_channels + c) * taps, taps);
        }
      }
      EXPECT_FLOAT_EQ(mean[static_cast<std::size_t>(c)],
                      static_cast<float>(exact / static_cast<double>(s.batch * s.output_positions())))
        << "batch " << batch << ", channel " << c;
    }
  }
}

// Ranges: spectra of 1e3, 1e-3 and of values far from 0.
TEST_F(batch_norm_gpu, train_by_spectrum_over_ranges)
{
  struct range
  {
    float low;
    float high;
    double error;
  };
  for (const shape3& s :
       {make_shape<3>({4, 20, 12, 1}, {6, 16, 20}, {5, 5, 5}), make_shape<3>({4, 16, 6, 1}, {16, 32, 32}, {5, 5, 5})})
  {
    for (const range& r : {range{0.0f, 1.0f, 2e-6}, {0.0f, 1e3f, 1e-5}, {0.0f, 1e-2f, 1e-5}, {4.0f, 6.0f, 1e-5}})
    {
      check_train(s,
                  random_values(3, s.input_elements(), r.low, r.high),
                  random_values(4, s.weight_elements(), -0.1f, 0.1f),
                  r.error,
                  launch_mode::direct,
                  0,
                  tconv::engine::spectral);
    }
  }
}

TEST_F(batch_norm_gpu, spectrum_where_outputs_are_cropped_is_refused)
{
  const auto refused = [](shape3 s) {
    tconv::options opts;
    opts.engine = tconv::engine::spectral;
    device_buffer<float> x(s.input_elements()), w(s.weight_elements()), y(s.batch * s.out_channels);
    workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s, chain<>{}, opts));
    const tconv::status status = tconv::batch_norm_train_global_mean(
      x.data(), w.data(), y.data(), s, chain<>{}, tconv::batch_norm_arguments{}, opts, space.get(), nullptr);
    return status.code() == tconv::status_code::not_supported;
  };
  const shape3 whole = make_shape<3>({2, 4, 4, 1}, {3, 4, 5}, {3, 3, 3});
  EXPECT_FALSE(refused(whole));
  shape3 s  = whole;
  s.padding = {0, 0, 1};
  EXPECT_TRUE(refused(s));
  s        = whole;
  s.stride = {1, 2, 1};
  EXPECT_TRUE(refused(s));
  s          = whole;
  s.dilation = {2, 1, 1};
  EXPECT_TRUE(refused(s));
  s        = whole;
  s.groups = 2;
  EXPECT_TRUE(refused(s));
  s       = whole;
  s.input = {3, 4, 5000};
  EXPECT_TRUE(refused(s));
}

// tt-metal #45968, flax #1491: E[y^2] - E[y]^2 in fp32 gives 0 or less at a mean of 4096.
TEST_F(batch_norm_gpu, train_with_a_large_mean)
{
  for (const float m : {5.0f, 4096.0f, 65536.0f})
  {
    const shape3 s = tconv::detail::canonical(make_shape<1>({1, 1, 1, 1}, {128}, {1}));
    std::vector<float> x;
    for (int i = 0; i < 128; ++i)
    {
      x.push_back(m + (i % 2 == 0 ? 0.125f : -0.125f));
    }
    layer bn(1, 1);
    device_buffer<float> dx(x), dw(std::vector<float>{1.0f}), dy(1);
    tconv::batch_norm_arguments arguments{nullptr, nullptr, bn.d_mean.data(), bn.d_var.data(), 1e-5f, 1.0f};
    workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s));
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::batch_norm_train_global_mean(
        dx.data(), dw.data(), dy.data(), s, chain<>{}, arguments, tconv::options{}, space.get(), stream);
    }));
    EXPECT_EQ(bn.d_mean.download()[0], m);
    EXPECT_EQ(bn.d_var.download()[0], static_cast<float>(0.015625 * 128 / 127)) << m;
    EXPECT_EQ(dy.download()[0], 0.0f);
  }
}

TEST_F(batch_norm_gpu, constant_channels_give_beta_exactly)
{
  const shape3 s = make_shape<3>({3, 2, 5, 1}, {2, 3, 4}, {1, 1, 1});
  layer bn(3, 5);
  device_buffer<float> dx(std::vector<float>(static_cast<std::size_t>(s.input_elements()), 3.0f));
  device_buffer<float> dw(random_values(1, s.weight_elements(), 1.0f, 1.0f)), dy(15);
  workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s));
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(
      dx.data(), dw.data(), dy.data(), s, chain<>{}, bn.device(), tconv::options{}, space.get(), stream);
  }));
  const auto y = dy.download();
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    EXPECT_EQ(y[i], bn.beta[i % 5]);
  }
}

// pytorch #60528: the running variance is unbiased, the normalisation biased; x = (n + 1) + l + 4c through identity weights.
TEST_F(batch_norm_gpu, running_statistics)
{
  const shape3 s = tconv::detail::canonical(make_shape<1>({4, 3, 3, 1}, {4}, {1}));
  std::vector<float> x;
  for (int n = 0; n < 4; ++n)
  {
    for (int c = 0; c < 3; ++c)
    {
      for (int l = 0; l < 4; ++l)
      {
        x.push_back(static_cast<float>(n + 1 + l + 4 * c));
      }
    }
  }
  device_buffer<float> dx(x), dw(std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1}), dy(12);
  device_buffer<float> mean(std::vector<float>(3, 0.0f)), var(std::vector<float>(3, 1.0f));
  tconv::batch_norm_arguments arguments{nullptr, nullptr, mean.data(), var.data()};
  workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s));
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(
      dx.data(), dw.data(), dy.data(), s, chain<>{}, arguments, tconv::options{}, space.get(), stream);
  }));
  const auto m           = mean.download();
  const auto v           = var.download();
  const float expected[] = {0.4f, 0.8f, 1.2f};
  for (std::size_t c = 0; c < 3; ++c)
  {
    EXPECT_FLOAT_EQ(m[c], expected[c]);
    EXPECT_FLOAT_EQ(v[c], 1.16666667f);
  }
  // Mean over l of the first sample: 2.5 against a mean of 4 and a biased variance of 2.5.
  EXPECT_NEAR(static_cast<double>(dy.download()[0]), -1.5 / std::sqrt(2.5 + 1e-5), 1e-6);
}

TEST_F(batch_norm_gpu, untracked_statistics_and_batch_zero)
{
  shape3 s = make_shape<3>({2, 2, 3, 1}, {2, 2, 2}, {2, 2, 2}, {2, 2, 2});
  device_buffer<float> dx(random_values(1, s.input_elements())), dw(random_values(2, s.weight_elements())), dy(6);
  workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s));
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(dx.data(),
                                               dw.data(),
                                               dy.data(),
                                               s,
                                               chain<>{},
                                               tconv::batch_norm_arguments{},
                                               tconv::options{},
                                               space.get(),
                                               stream);
  }));
  for (const float v : dy.download())
  {
    EXPECT_FALSE(std::isnan(v));
  }
  s.batch = 0;
  layer bn(3, 3);
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(
      dx.data(), dw.data(), dy.data(), s, chain<>{}, bn.device(), tconv::options{}, {}, stream);
  }));
  EXPECT_EQ(bn.d_mean.download(), bn.mean);
  EXPECT_EQ(bn.d_var.download(), bn.var);
}

void expect_the_same_bits(const shape3& s, int launches, tconv::engine engine)
{
  layer bn(3, s.out_channels);
  tconv::options opts;
  opts.engine = engine;
  device_buffer<float> dx(random_values(1, s.input_elements())), dw(random_values(2, s.weight_elements()));
  device_buffer<float> dy(s.batch * s.out_channels);
  workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(s, chain<>{}, opts));
  std::vector<float> first;
  for (int i = 0; i < launches; ++i)
  {
    bn.d_mean.upload(bn.mean);
    bn.d_var.upload(bn.var);
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::batch_norm_train_global_mean(
        dx.data(), dw.data(), dy.data(), s, chain<>{}, bn.device(), opts, space.get(), stream);
    }));
    auto now       = dy.download();
    const auto var = bn.d_var.download();
    now.insert(now.end(), var.begin(), var.end());
    first = i == 0 ? now : first;
    ASSERT_EQ(std::memcmp(first.data(), now.data(), now.size() * sizeof(float)), 0) << "launch " << i;
  }
}

TEST_F(batch_norm_gpu, a_thousand_launches_give_the_same_bits)
{
  expect_the_same_bits(make_shape<3>({4, 8, 24, 1}, {4, 7, 9}, {3, 3, 3}), 1000, tconv::engine::gather);
}

TEST_F(batch_norm_gpu, a_thousand_launches_by_spectrum_give_the_same_bits)
{
  expect_the_same_bits(make_shape<3>({4, 8, 24, 1}, {4, 7, 9}, {3, 3, 3}), 1000, tconv::engine::spectral);
  // Blocks of clusters read each other's shared memory.
  expect_the_same_bits(make_shape<3>({6, 40, 24, 1}, {16, 32, 32}, {5, 5, 5}), 200, tconv::engine::spectral);
}

// Half types, channels last, and slices.

template <class Pair>
class mean_types_gpu : public gpu_test
{};
TYPED_TEST_SUITE(mean_types_gpu, pairs);

/// y of a launcher with everything placed as \p how says, channels first; empty after a failure. \p launcher: bytes(shape,
/// functors, options) and launch(x, w, y, shape, functors, options, workspace, stream); \p make_chain(bias on the device).
template <class In, class Out, class Launcher, class MakeChain>
std::vector<float> run_mean(shape3 s,
                            const std::vector<float>& x,
                            const std::vector<float>& w,
                            const std::vector<float>& b,
                            const arrangement& how,
                            std::int64_t written,
                            const Launcher& launcher,
                            MakeChain make_chain)
{
  s.input_slice  = slice_number(how.input_slice, s.in_channels);
  s.output_slice = slice_number(how.output_slice, written);
  tconv::options opts;
  opts.input_layout  = how.input;
  opts.engine        = how.engine;
  opts.output_layout = how.output; // means nothing: there are no positions
  const placement in{s.batch, s.in_channels, s.input_positions(), how.input, s.input_slice};
  const placement out{s.batch, written, 1, tconv::layout::channels_first, s.output_slice};
  device_buffer<In> dx(in.place<In>(x), how.misalignment);
  device_buffer<In> dw(elements_of<In>(w), how.misalignment);
  device_buffer<float> db(b);
  device_buffer<Out> dy(out.tensor_elements(), how.misalignment);
  const auto functors = make_chain(static_cast<const float*>(db.data()));
  workspace_buffer space(launcher.bytes(s, functors, opts));
  const bool good = run(how.mode, [&](cudaStream_t stream) {
    return launcher.launch(dx.data(), dw.data(), dy.data(), s, functors, opts, space.get(), stream);
  });
  EXPECT_TRUE(good);
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && db.guards_intact() && dy.guards_intact()
              && space.guards_intact());
  const std::vector<Out> y = dy.download();
  EXPECT_TRUE(out.others_untouched(y)) << "channels beside the slice were written";
  return good ? out.extract(y) : std::vector<float>{};
}

struct mean_launcher
{
  template <class Chain>
  static std::size_t bytes(const shape3& s, const Chain& functors, const tconv::options& opts)
  {
    return tconv::global_mean_workspace_bytes(s, functors, opts);
  }
  template <class In, class Out, class Chain>
  static tconv::status launch(const In* x,
                              const In* w,
                              Out* y,
                              const shape3& s,
                              const Chain& functors,
                              const tconv::options& opts,
                              const tconv::workspace& space,
                              cudaStream_t stream)
  {
    return tconv::global_mean(x, w, y, s, functors, opts, space, stream);
  }
};

struct train_launcher
{
  tconv::batch_norm_arguments arguments;

  template <class Chain>
  static std::size_t bytes(const shape3& s, const Chain& functors, const tconv::options& opts)
  {
    return tconv::batch_norm_train_global_mean_workspace_bytes(s, functors, opts);
  }
  template <class In, class Out, class Chain>
  tconv::status launch(const In* x,
                       const In* w,
                       Out* y,
                       const shape3& s,
                       const Chain& functors,
                       const tconv::options& opts,
                       const tconv::workspace& space,
                       cudaStream_t stream) const
  {
    return tconv::batch_norm_train_global_mean(x, w, y, s, functors, arguments, opts, space, stream);
  }
};

template <class In, class Out, class MakeChain>
std::vector<float> typed_mean(const shape3& s,
                              const std::vector<float>& x,
                              const std::vector<float>& w,
                              const std::vector<float>& b,
                              const arrangement& how,
                              std::int64_t written,
                              MakeChain make_chain)
{
  return run_mean<In, Out>(s, x, w, b, how, written, mean_launcher{}, make_chain);
}

TYPED_TEST(mean_types_gpu, awkward_shapes)
{
  using In           = typename TypeParam::in;
  using Out          = typename TypeParam::out;
  std::uint32_t seed = 1;
  for (const shape3& s : awkward_shapes())
  {
    ++seed;
    const auto& inputs = convolution_inputs<In>::of(s, seed);
    const auto how     = arrangement::number(7 * seed + 13 * TypeParam::number);
    SCOPED_TRACE(to_string(s) + ", " + to_string(how));
    const auto y = typed_mean<In, Out>(s, inputs.x, inputs.w, inputs.b, how, s.out_channels, [](const float* b) {
      return chain(tconv::bias(b), tconv::scale(2.0f));
    });
    ASSERT_FALSE(y.empty());
    auto mean = tconv::reference::global_mean(
      inputs.expected.value.data(), s.batch, s.out_channels, s.output_positions());
    auto magnitude = tconv::reference::global_mean(
      inputs.expected.magnitude.data(), s.batch, s.out_channels, s.output_positions());
    for (std::size_t i = 0; i < mean.size(); ++i)
    {
      mean[i] = 2.0 * (mean[i] + static_cast<double>(inputs.b[i % inputs.b.size()]));
    }
    EXPECT_TRUE(compare_values(y.data(), mean.data(), {s.batch, s.out_channels}, [&](std::int64_t i, double v) {
      return tolerance{2 * mean_error * magnitude[static_cast<std::size_t>(i)] + ulp(v) + rounding<Out>(v), 0.0};
    }));
  }
}

// As for fp32, channels first: an input that no tap brings anywhere does not count, not even a NaN. Channels beside the slice are
// NaN, and so is what lies behind the tensors.
TYPED_TEST(mean_types_gpu, nan_counts_exactly_where_it_lands)
{
  using In           = typename TypeParam::in;
  using Out          = typename TypeParam::out;
  std::uint32_t seed = 160;
  for (const shape3& s : awkward_shapes())
  {
    ++seed;
    if (s.weight_elements() * s.input_positions() > 4000000)
    {
      continue; // the others have all kinds of crops
    }
    auto x                             = rounded_to<In>(random_values(seed, s.input_elements()));
    x[random_bits(seed, 1) % x.size()] = std::numeric_limits<float>::quiet_NaN();
    const auto w                       = rounded_to<In>(random_values(seed + 1, s.weight_elements()));
    arrangement how                    = arrangement::number(5 * seed + TypeParam::number);
    how.input                          = seed % 4 == 0 ? tconv::layout::channels_first : tconv::layout::channels_last;
    SCOPED_TRACE(to_string(s) + ", " + to_string(how));
    const auto y = typed_mean<In, Out>(
      s, x, w, random_values(seed, s.out_channels), how, s.out_channels, [](const float*) { return chain<>{}; });
    const mean_reference expected(x, w, s);
    ASSERT_EQ(y.size(), expected.mean.size());
    for (std::size_t i = 0; i < y.size(); ++i)
    {
      EXPECT_EQ(std::isnan(y[i]), std::isnan(expected.mean[i])) << i;
    }
  }
}

/// Channel functors behind the mean: [batch, channels] and [batch, 1].
template <class In, class Out>
void check_channel_functors()
{
  std::int64_t number = 0;
  for (const std::int64_t channels : {1, 7, 33, 128, 1000})
  {
    const shape3 s = make_shape<3>({3, 4, channels, 1}, {2, 3, 5}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
    const auto x   = rounded_to<In>(random_values(1, s.input_elements()));
    const auto w   = rounded_to<In>(random_values(2, s.weight_elements(), -20.0f, 20.0f));
    const auto b   = random_values(3, s.out_channels);
    const mean_reference full(x, w, s);
    // Logits 3 (mean + bias) in fp32: the mean's error, its rounding, and two more.
    std::vector<double> value = full.mean;
    std::vector<double> error(static_cast<std::size_t>(s.batch), 0.0);
    std::vector<double> peak(error.size(), -std::numeric_limits<double>::infinity());
    const auto sample = [&](std::size_t i) { return i / b.size(); };
    for (std::size_t i = 0; i < value.size(); ++i)
    {
      const double mean = std::fabs(value[i]);
      const auto bias   = static_cast<double>(b[i % b.size()]);
      value[i]          = 3 * (value[i] + bias);
      error[sample(i)]  = std::fmax(
        error[sample(i)], 3 * mean_error * full.magnitude[i] + 3 * 0x1p-24 * (mean + 2 * std::fabs(bias) + 2 * mean));
      peak[sample(i)] = std::fmax(peak[sample(i)], value[i]);
    }
    std::vector<double> softmax = value;
    tconv::reference::apply(chain(tconv::channel_softmax{}), softmax.data(), s.batch, channels, 1);
    std::vector<double> terms(error.size(), 0.0); // the mean of 2.3 |v - max|, the ulps of an exponential
    for (std::size_t i = 0; i < value.size(); ++i)
    {
      terms[sample(i)] += 2.3 * softmax[i] * (peak[sample(i)] - value[i]);
    }
    std::vector<double> reduced = value;
    tconv::reference::apply(
      chain(tconv::channel_logsumexp{}, tconv::scale(0.75f)), reduced.data(), s.batch, channels, 1);
    std::vector<double> most = value;
    tconv::reference::apply(chain(tconv::channel_max{}), most.data(), s.batch, channels, 1);

    for (int i = 0; i < 6; ++i)
    {
      const auto how = arrangement::number(number);
      number += 5;
      SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(s) + ", "
                   + to_string(how));
      const auto y = typed_mean<In, Out>(s, x, w, b, how, channels, [](const float* bias) {
        return chain(tconv::bias(bias), tconv::scale(3.0f), tconv::channel_softmax{});
      });
      ASSERT_FALSE(y.empty());
      EXPECT_TRUE(compare_values(y.data(), softmax.data(), {s.batch, channels}, [&](std::int64_t flat, double p) {
        const auto at         = static_cast<std::size_t>(flat);
        const double e        = error[sample(at)];
        const double distance = std::fmin(peak[sample(at)] - value[at] + 2 * e, 128.0);
        // The sum's error: its additions, and the mean error of its terms.
        const double of_sum = (static_cast<double>(channels) + 2 * terms[sample(at)]) * 0x1p-24 * p;
        const double own    = p * std::expm1(2 * e) + (4 + 2.3 * distance) * ulp(p) + of_sum + 0x1p-126;
        return tolerance{own + rounding<Out>(p + own), 0.0};
      }));
      const auto z = typed_mean<In, Out>(s, x, w, b, how, 1, [](const float* bias) {
        return chain(tconv::bias(bias), tconv::scale(3.0f), tconv::channel_logsumexp{}, tconv::scale(0.75f));
      });
      ASSERT_FALSE(z.empty());
      EXPECT_TRUE(compare_values(z.data(), reduced.data(), {s.batch, 1}, [&](std::int64_t flat, double v) {
        const double own = error[static_cast<std::size_t>(flat)] + static_cast<double>(channels + 8) * 0x1p-24;
        return tolerance{0.75 * (own + ulp(v / 0.75)) + ulp(v) + rounding<Out>(std::fabs(v) + own), 0.0};
      }));
      const auto m = typed_mean<In, Out>(s, x, w, b, how, 1, [](const float* bias) {
        return chain(tconv::bias(bias), tconv::scale(3.0f), tconv::channel_max{});
      });
      ASSERT_FALSE(m.empty());
      EXPECT_TRUE(compare_values(m.data(), most.data(), {s.batch, 1}, [&](std::int64_t flat, double v) {
        const double own = error[static_cast<std::size_t>(flat)];
        return tolerance{own + rounding<Out>(std::fabs(v) + own), 0.0};
      }));
    }
  }
}

TEST_F(global_mean_gpu, channel_functors_after_typed_means)
{
  check_channel_functors<float, float>();
  check_channel_functors<__half, __half>();
  check_channel_functors<__nv_bfloat16, __nv_bfloat16>();
}

// candle #3719, ncnn #2698, pytorch #52719: sums beyond what half types hold, or stick at.
TYPED_TEST(mean_types_gpu, large_sums_of_constants_are_exact)
{
  using In  = typename TypeParam::in;
  using Out = typename TypeParam::out;
  struct constant
  {
    std::int64_t input;
    float w;
  };
  for (const constant& c : {constant{32, 1.0f}, constant{128, 1.5f}})
  {
    const shape3 s = tconv::detail::canonical(make_shape<2>({1, 1, 1, 1}, {c.input, c.input}, {2, 2}, {2, 2}));
    for (std::int64_t i = 0; i < 16; ++i)
    {
      const auto y = typed_mean<In, Out>(s,
                                         std::vector<float>(static_cast<std::size_t>(s.input_elements()), 1.0f),
                                         std::vector<float>(4, c.w),
                                         {0.0f},
                                         arrangement::number(i),
                                         1,
                                         [](const float*) { return chain<>{}; });
      EXPECT_EQ(y, std::vector<float>{c.w}) << to_string(arrangement::number(i));
    }
  }
}

/// batch_norm_train_global_mean against the reference.
template <class In, class Out>
void check_typed_train(const shape3& s, const convolution_inputs<In>& inputs, const arrangement& how)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(s) + ", "
               + to_string(how));
  layer bn(7, s.out_channels);
  const auto y = run_mean<In, Out>(
    s, inputs.x, inputs.w, inputs.b, how, s.out_channels, train_launcher{bn.device(1.0f)}, [](const float* b) {
      return chain(tconv::bias(b), tconv::scale(2.0f));
    });
  ASSERT_FALSE(y.empty());
  EXPECT_TRUE(bn.guards_intact());
  const trained_means expected(s, inputs.expected, inputs.b, bn);
  expected.check_running(bn.d_mean.download(), bn.d_var.download());
  EXPECT_TRUE(expected.compare<Out>(y));
}

template <class Pair>
class batch_norm_types_gpu : public gpu_test
{};
TYPED_TEST_SUITE(batch_norm_types_gpu, pairs);

TYPED_TEST(batch_norm_types_gpu, train_over_awkward_shapes)
{
  std::uint32_t seed = 1;
  for (const shape3& s : awkward_shapes())
  {
    ++seed;
    if (s.batch * s.output_positions() < 2)
    {
      continue;
    }
    check_typed_train<typename TypeParam::in, typename TypeParam::out>(
      s,
      convolution_inputs<typename TypeParam::in>::of(s, seed),
      arrangement::number(7 * seed + 13 * TypeParam::number + 1));
  }
}

TYPED_TEST(batch_norm_types_gpu, train_by_spectrum)
{
  std::uint32_t seed = 300;
  for (const shape3& s : uncropped_shapes())
  {
    ++seed;
    if (seed % 4 == 0)
    {
      auto how   = arrangement::number(7 * seed + 13 * TypeParam::number + 1);
      how.engine = tconv::engine::spectral;
      check_typed_train<typename TypeParam::in, typename TypeParam::out>(
        s, convolution_inputs<typename TypeParam::in>::of(s, seed), how);
    }
  }
}

TYPED_TEST(batch_norm_types_gpu, constant_channels_give_beta)
{
  using In  = typename TypeParam::in;
  using Out = typename TypeParam::out;
  // Constant channels, exactly representable: beta, rounded.
  const shape3 s = make_shape<3>({3, 2, 5, 1}, {2, 3, 4}, {1, 1, 1});
  for (std::int64_t i = 0; i < 16; ++i)
  {
    layer bn(3, 5);
    const auto y    = run_mean<In, Out>(s,
                                     std::vector<float>(static_cast<std::size_t>(s.input_elements()), 3.0f),
                                     std::vector<float>(10, 1.0f),
                                     {0.0f},
                                     arrangement::number(i),
                                     5,
                                     train_launcher{bn.device()},
                                     [](const float*) { return chain<>{}; });
    const auto beta = rounded_to<Out>(bn.beta);
    ASSERT_EQ(y.size(), 15U);
    for (std::size_t j = 0; j < y.size(); ++j)
    {
      EXPECT_EQ(y[j], beta[j % 5]) << to_string(arrangement::number(i));
    }
  }
}

} // namespace
