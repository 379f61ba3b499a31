// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Reductions of existing tensors over their positions: global_mean(), channel_moments(), batch_norm_train().

#include "common/recipes.hpp"
#include "common/typed_convolution.cuh"

#include <tconv/launch/batch_norm_train.cuh>
#include <tconv/launch/moments.cuh>
#include <tconv/launch/tensor_mean.cuh>
#include <tconv/reference/batch_norm.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/softmax.hpp>

#include <cmath>

namespace
{

using namespace tconv_test;
using tconv::chain;
using tensor3 = tconv::tensor_shape<3>;

tensor3 make_tensor(std::int64_t batch, std::int64_t channels, const std::array<tconv::int64_t, 3>& extent)
{
  tensor3 s;
  s.batch    = batch;
  s.channels = channels;
  s.extent   = extent;
  return s;
}

/// One value, rows shorter than a vector and a warp, channels that fill a tile of 32 and that do not, several slices.
const tensor3 shapes[] = {make_tensor(2, 1, {1, 1, 1}),
                          make_tensor(2, 3, {1, 1, 7}),
                          make_tensor(3, 33, {1, 5, 13}),
                          make_tensor(2, 64, {2, 8, 16}),
                          make_tensor(1, 5, {1, 100, 103}),
                          make_tensor(4, 2, {1, 1, 50001}),
                          make_tensor(2, 40, {4, 16, 64})};

/// x on the device in some arrangement, and room for y.
template <class In, class Out>
struct tensors
{
  tensor3 shape;
  tconv::options opts;
  placement in;
  placement out;
  device_buffer<In> x;
  device_buffer<Out> y;

  tensors(const tensor3& s, const std::vector<float>& values, const arrangement& how, std::int64_t out_positions)
      : shape(with_slices(s, how))
      , opts(options_of(how))
      , in{shape.batch, shape.channels, shape.positions(), how.input, shape.input_slice}
      , out{shape.batch,
            shape.channels,
            out_positions,
            out_positions == 1 ? tconv::layout::channels_first : how.output,
            shape.output_slice}
      , x(in.place<In>(values), how.misalignment)
      , y(out.tensor_elements(), how.misalignment)
  {}
  static tensor3 with_slices(tensor3 s, const arrangement& how)
  {
    s.input_slice  = slice_number(how.input_slice, s.channels);
    s.output_slice = slice_number(how.output_slice, s.channels);
    return s;
  }
  static tconv::options options_of(const arrangement& how)
  {
    tconv::options o;
    o.input_layout  = how.input;
    o.output_layout = how.output;
    return o;
  }
  std::vector<float> result() const
  {
    const std::vector<Out> all = y.download();
    EXPECT_TRUE(out.others_untouched(all));
    EXPECT_TRUE(x.guards_intact() && y.guards_intact());
    return out.extract(all);
  }
};

double half_ulp_of(double v, output_format format)
{
  return ulp(v, format) / 2;
}

/// Per channel: mean, variance, and the largest distance between two values.
struct statistics
{
  std::vector<tconv::moments<double>> channel;
  std::vector<double> range;

  statistics(const std::vector<double>& x, const tensor3& s)
      : channel(tconv::reference::channel_moments(x.data(), s.batch, s.channels, s.positions()))
  {
    for (std::int64_t c = 0; c < s.channels; ++c)
    {
      double low  = std::numeric_limits<double>::infinity();
      double high = -low;
      for (std::int64_t n = 0; n < s.batch; ++n)
      {
        for (std::int64_t p = 0; p < s.positions(); ++p)
        {
          const double v = x[static_cast<std::size_t>((n * s.channels + c) * s.positions() + p)];
          low            = std::fmin(low, v);
          high           = std::fmax(high, v);
        }
      }
      range.push_back(high - low);
    }
  }
  /// Chunks of 16 values are summed in fp32 around the first of them: 16 roundings of at most the range.
  double mean_error(std::size_t c) const { return 16 * 0x1p-24 * range[c]; }
  /// The square of a centred value errs by twice the range times the error of the difference and of the chunk's mean.
  double variance_error(std::size_t c) const { return (2 * 17 + 16) * 0x1p-24 * range[c] * range[c]; }
};

class reduce_space_gpu : public gpu_test
{};

template <class In, class Out>
void check_global_mean(const tensor3& shape, std::uint32_t seed, const arrangement& how)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + std::to_string(seed) + ", "
               + to_string(how));
  const auto values = rounded_to<In>(random_values(seed, shape.elements(), -3.0f, 5.0f));
  tensors<In, Out> t(shape, values, how, 1);
  const auto functors = chain(tconv::scale(2.0f), tconv::relu{});
  workspace_buffer space(tconv::global_mean_workspace_bytes(t.shape, functors, t.opts));
  ASSERT_TRUE(run(how.mode, [&](cudaStream_t stream) {
    return tconv::global_mean(t.x.data(), t.y.data(), t.shape, functors, t.opts, space.get(), stream);
  }));
  EXPECT_TRUE(space.guards_intact());
  const auto y = t.result();
  const std::vector<double> x(values.begin(), values.end());
  const auto mean = tconv::reference::global_mean(x.data(), shape.batch, shape.channels, shape.positions());
  for (std::size_t i = 0; i < mean.size(); ++i)
  {
    const double expected = std::fmax(2 * mean[i], 0.0);
    ASSERT_LE(std::fabs(static_cast<double>(y[i]) - expected),
              2 * 16 * 0x1p-24 * 5.0 + 0x1p-24 * std::fabs(expected) + half_ulp_of(expected, format_of<Out>::value))
      << i;
  }
}

TEST_F(reduce_space_gpu, global_mean)
{
  std::uint32_t seed = 1;
  for (const tensor3& shape : shapes)
  {
    for (std::int64_t i = 0; i < 8; ++i)
    {
      check_global_mean<float, float>(shape, seed, arrangement::number(5 * seed));
      check_global_mean<__half, __half>(shape, seed, arrangement::number(5 * seed + 1));
      check_global_mean<__nv_bfloat16, float>(shape, seed, arrangement::number(5 * seed + 2));
      ++seed;
    }
  }
}

// A softmax over the means: rows of one position, whose reductions go through the workspace.
TEST_F(reduce_space_gpu, global_mean_then_softmax)
{
  const tensor3 shape = make_tensor(3, 70, {2, 3, 9});
  const auto values   = random_values(5, shape.elements(), -4.0f, 4.0f);
  device_buffer<float> x(values);
  device_buffer<float> y(3 * 70);
  const auto functors = chain(tconv::scale(3.0f), tconv::channel_softmax{});
  workspace_buffer space(tconv::global_mean_workspace_bytes(shape, functors));
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::global_mean(x.data(), y.data(), shape, functors, tconv::options{}, space.get(), stream);
  }));
  const std::vector<double> wide(values.begin(), values.end());
  auto expected = tconv::reference::global_mean(wide.data(), 3, 70, shape.positions());
  tconv::reference::apply(functors, expected.data(), 3, 70, 1);
  const auto got = y.download();
  for (std::size_t i = 0; i < expected.size(); ++i)
  {
    ASSERT_NEAR(got[i], expected[i], expected[i] * (2 * 3 * 17 * 0x1p-24 * 4.0 + 100 * 0x1p-24)) << i;
  }
}

template <class In>
void check_moments(const tensor3& shape, std::uint32_t seed, const arrangement& how, float offset)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + ", " + std::to_string(seed) + ", offset " + std::to_string(offset)
               + ", " + to_string(how));
  const auto values = rounded_to<In>(random_values(seed, shape.elements(), offset - 1.0f, offset + 1.0f));
  tensors<In, In> t(shape, values, how, shape.positions());
  device_buffer<float> mean(shape.channels);
  device_buffer<float> variance(shape.channels);
  workspace_buffer space(tconv::channel_moments_workspace_bytes(t.shape, t.opts));
  ASSERT_TRUE(run(how.mode, [&](cudaStream_t stream) {
    return tconv::channel_moments(t.x.data(), mean.data(), variance.data(), t.shape, t.opts, space.get(), stream);
  }));
  EXPECT_TRUE(space.guards_intact() && mean.guards_intact() && variance.guards_intact());
  const std::vector<double> x(values.begin(), values.end());
  const statistics expected(x, shape);
  const auto got_mean     = mean.download();
  const auto got_variance = variance.download();
  for (std::size_t c = 0; c < got_mean.size(); ++c)
  {
    const double m = expected.channel[c].mean;
    const double v = expected.channel[c].biased_variance();
    ASSERT_LE(std::fabs(static_cast<double>(got_mean[c]) - m), expected.mean_error(c) + half_ulp_of(m, float32)) << c;
    ASSERT_LE(std::fabs(static_cast<double>(got_variance[c]) - v), expected.variance_error(c) + half_ulp_of(v, float32))
      << c;
  }
}

TEST_F(reduce_space_gpu, channel_moments)
{
  std::uint32_t seed = 100;
  for (const tensor3& shape : shapes)
  {
    for (const float offset : {0.0f, 4096.0f})
    {
      for (std::int64_t i = 0; i < 4; ++i)
      {
        check_moments<float>(shape, seed, arrangement::number(3 * seed), offset);
        ++seed;
      }
    }
    check_moments<__half>(shape, seed, arrangement::number(3 * seed), 3.0f);
    check_moments<__nv_bfloat16>(shape, seed, arrangement::number(3 * seed + 1), 3.0f);
    ++seed;
  }
}

template <class In, class Out>
void check_train(const tensor3& shape, std::uint32_t seed, const arrangement& how)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + std::to_string(seed) + ", "
               + to_string(how));
  const std::int64_t channels = shape.channels;
  const auto values           = rounded_to<In>(random_values(seed, shape.elements(), 2.0f, 6.0f));
  const auto gamma            = random_values(seed + 1, channels, -2.0f, 2.0f);
  const auto beta             = random_values(seed + 2, channels);
  auto mean                   = random_values(seed + 3, channels);
  auto variance               = random_values(seed + 4, channels, 0.5f, 1.5f);
  tensors<In, Out> t(shape, values, how, shape.positions());
  device_buffer<float> d_gamma(gamma), d_beta(beta), d_mean(mean), d_variance(variance);
  const tconv::batch_norm_arguments on_device{
    d_gamma.data(), d_beta.data(), d_mean.data(), d_variance.data(), 1e-5f, 0.25f};
  const auto functors = chain(tconv::leaky_relu{0.5f});
  workspace_buffer space(tconv::batch_norm_train_workspace_bytes(t.shape, functors, t.opts));
  ASSERT_TRUE(run(how.mode, [&](cudaStream_t stream) {
    return tconv::batch_norm_train(t.x.data(), t.y.data(), t.shape, on_device, functors, t.opts, space.get(), stream);
  }));
  EXPECT_TRUE(space.guards_intact());

  std::vector<double> x(values.begin(), values.end());
  const statistics s(x, shape);
  const tconv::batch_norm_arguments on_host{gamma.data(), beta.data(), mean.data(), variance.data(), 1e-5f, 0.25f};
  auto expected = x;
  tconv::reference::batch_norm_train(expected.data(), shape.batch, channels, shape.positions(), on_host);
  tconv::reference::apply(functors, expected.data(), shape.batch, channels, shape.positions());
  const auto y = t.result();
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    const auto c       = static_cast<std::size_t>(static_cast<std::int64_t>(i) / shape.positions() % channels);
    const double var   = s.channel[c].biased_variance() + 1e-5;
    const double slope = std::fabs(static_cast<double>(gamma[c])) / std::sqrt(var);
    // The centre, the slope (half the variance's relative error), and the roundings of the affine itself.
    const double bound = slope * (s.mean_error(c) + half_ulp_of(s.channel[c].mean, float32))
                       + slope * s.range[c] * (s.variance_error(c) / var / 2 + 4 * 0x1p-24)
                       + 0x1p-24 * (std::fabs(static_cast<double>(beta[c])) + slope * s.range[c]);
    ASSERT_LE(std::fabs(static_cast<double>(y[i]) - expected[i]),
              bound
                + std::fmax(half_ulp_of(expected[i], format_of<Out>::value),
                            half_ulp_of(static_cast<double>(y[i]), format_of<Out>::value)))
      << i;
  }
  const auto got_mean     = d_mean.download();
  const auto got_variance = d_variance.download();
  const auto count        = s.channel[0].count;
  for (std::size_t c = 0; c < got_mean.size(); ++c)
  {
    ASSERT_LE(std::fabs(got_mean[c] - mean[c]), 0.25 * s.mean_error(c) + ulp(mean[c])) << c;
    ASSERT_LE(
      std::fabs(got_variance[c] - variance[c]), 0.25 * s.variance_error(c) * count / (count - 1) + ulp(variance[c]))
      << c;
  }
}

TEST_F(reduce_space_gpu, batch_norm_train)
{
  std::uint32_t seed = 500;
  for (const tensor3& shape : shapes)
  {
    for (std::int64_t i = 0; i < 4; ++i)
    {
      check_train<float, float>(shape, seed, arrangement::number(7 * seed));
      check_train<__half, __half>(shape, seed, arrangement::number(7 * seed + 1));
      check_train<__nv_bfloat16, float>(shape, seed, arrangement::number(7 * seed + 2));
      ++seed;
    }
  }
}

/// batch_norm_train of fp32, channels first, without gamma and beta.
std::vector<float>
train(const std::vector<float>& x, const tensor3& shape, float* mean, float* variance, float eps = 1e-5f)
{
  device_buffer<float> d(x);
  workspace_buffer space(tconv::batch_norm_train_workspace_bytes(shape));
  EXPECT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    // In place.
    return tconv::batch_norm_train(d.data(),
                                   d.data(),
                                   shape,
                                   {nullptr, nullptr, mean, variance, eps},
                                   chain<>{},
                                   tconv::options{},
                                   space.get(),
                                   stream);
  }));
  return d.download();
}

// Case A14 (tt-metal #45968, flax #1491): a large mean and a small variance.
TEST_F(reduce_space_gpu, large_mean_small_variance)
{
  const tensor3 shape = make_tensor(2, 3, {1, 1, 64});
  const float means[] = {5.0f, 4096.0f, 65536.0f};
  std::vector<float> x(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < x.size(); ++i)
  {
    x[i] = means[i / 64 % 3] + (i % 2 == 0 ? 0.125f : -0.125f);
  }
  device_buffer<float> mean(std::vector<float>(3, 0.0f)), variance(std::vector<float>(3, 1.0f));
  const auto y = train(x, shape, mean.data(), variance.data());
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    ASSERT_NEAR(y[i], i % 2 == 0 ? 0.99968015f : -0.99968015f, 2e-7f) << i;
  }
  for (std::size_t c = 0; c < 3; ++c)
  {
    EXPECT_FLOAT_EQ(mean.download()[c], 0.1f * means[c]);
    EXPECT_NEAR(variance.download()[c], 0.9 + 0.1 * 0.015625 * 128 / 127, 1e-7);
  }
}

// caffe #3963, pytorch #5410: a constant channel gives exactly beta, here 0, at any eps.
TEST_F(reduce_space_gpu, constant_channels_give_beta)
{
  for (const float eps : {1e-5f, 0.0f})
  {
    for (const tensor3& shape : shapes)
    {
      if (shape.batch * shape.positions() > 1)
      {
        for (const float v : train(
               std::vector<float>(static_cast<std::size_t>(shape.elements()), 100.1f), shape, nullptr, nullptr, eps))
        {
          ASSERT_EQ(v, 0.0f);
        }
      }
    }
  }
}

// Case A15 (pytorch #60528): the running variance is unbiased, the normalisation biased.
TEST_F(reduce_space_gpu, running_statistics_are_unbiased)
{
  const tensor3 shape = make_tensor(4, 3, {1, 1, 4});
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
  device_buffer<float> mean(std::vector<float>(3, 0.0f)), variance(std::vector<float>(3, 1.0f));
  const auto y             = train(x, shape, mean.data(), variance.data());
  const float expected_y[] = {-1.8973628f, -1.2649085f, -0.6324543f, 0.0f};
  for (std::size_t i = 0; i < 4; ++i)
  {
    EXPECT_NEAR(y[i], expected_y[i], 3e-7f);
  }
  for (std::size_t c = 0; c < 3; ++c)
  {
    EXPECT_FLOAT_EQ(mean.download()[c], 0.4f * static_cast<float>(c + 1));
    EXPECT_FLOAT_EQ(variance.download()[c], 1.16666667f);
  }
}

// Case A16: one value per channel is an error before any write; two are not. Case A07: nothing changes nothing.
TEST_F(reduce_space_gpu, one_value_per_channel)
{
  device_buffer<float> x(std::vector<float>{1.0f, 2.0f, 3.0f}), y(3), mean(3), variance(3);
  workspace_buffer space(4096);
  const auto call = [&](const tensor3& shape) {
    return tconv::batch_norm_train(x.data(),
                                   y.data(),
                                   shape,
                                   {nullptr, nullptr, mean.data(), variance.data()},
                                   chain<>{},
                                   tconv::options{},
                                   space.get(),
                                   nullptr);
  };
  EXPECT_EQ(call(make_tensor(1, 3, {1, 1, 1})).code(), tconv::status_code::invalid_argument);
  EXPECT_TRUE(call(make_tensor(0, 3, {1, 1, 1})).ok());
  EXPECT_TRUE(call(make_tensor(2, 3, {1, 0, 1})).ok());
  ASSERT_TRUE(cuda_ok(cudaDeviceSynchronize(), "nothing"));
  for (const auto* buffer : {&y, &mean, &variance})
  {
    for (const float v : buffer->download())
    {
      EXPECT_TRUE(std::isnan(v)) << "written";
    }
  }
  const auto two = train({1.0f, 3.0f}, make_tensor(1, 1, {1, 1, 2}), nullptr, nullptr);
  EXPECT_NEAR(two[0], -0.999995f, 1e-6f);
  EXPECT_NEAR(two[1], 0.999995f, 1e-6f);
}

// Checked before anything is launched, so without a GPU too: y may be x, and nothing else may overlap it.
TEST(reduce_space_arguments, outputs_of_batch_norm_train_stay_clear_of_x)
{
  const tensor3 shape       = make_tensor(2, 3, {1, 1, 8});
  const std::uintptr_t base = std::uintptr_t{1} << 40;
  const auto at             = [&](std::uintptr_t offset) { return reinterpret_cast<float*>(base + offset); };
  const std::size_t bytes   = tconv::batch_norm_train_workspace_bytes(shape);
  const auto message        = [&](float* y, float* running_mean, std::uintptr_t space) {
    const tconv::status s = tconv::batch_norm_train(at(0),
                                                    y,
                                                    shape,
                                                    {nullptr, nullptr, running_mean, nullptr},
                                                    chain<>{},
                                                    tconv::options{},
                                                    {at(space), bytes},
                                                    nullptr);
    return std::string(s.message());
  };
  EXPECT_EQ(message(at(0), at(64), 1 << 20), "batch_norm.running_mean: must not overlap x");
  EXPECT_EQ(message(at(4), nullptr, 1 << 20), "y: must not overlap x");
  EXPECT_EQ(message(at(0), nullptr, 0), "y: must not overlap workspace");
  EXPECT_EQ(message(at(1 << 16), nullptr, 0), "workspace: must not overlap x");
}

// A NaN in one channel is that channel's, and that sample's mean, alone.
TEST_F(reduce_space_gpu, nan_stays_in_its_channel)
{
  const tensor3 shape = make_tensor(2, 35, {1, 3, 50});
  auto values         = random_values(9, shape.elements());
  values[150 * 40]    = std::numeric_limits<float>::quiet_NaN(); // sample 1, channel 5
  for (const auto order : {tconv::layout::channels_first, tconv::layout::channels_last})
  {
    arrangement how;
    how.input = order;
    tensors<float, float> t(shape, values, how, 1);
    workspace_buffer space(tconv::global_mean_workspace_bytes(t.shape, chain<>{}, t.opts));
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::global_mean(t.x.data(), t.y.data(), t.shape, chain<>{}, t.opts, space.get(), stream);
    }));
    const auto y = t.result();
    for (std::size_t i = 0; i < y.size(); ++i)
    {
      EXPECT_EQ(std::isnan(y[i]), i == 40) << i;
    }
  }
}

// The same call, the same bits: no atomics, and a fixed order of all merges.
TEST_F(reduce_space_gpu, a_thousand_launches_agree)
{
  const tensor3 shape = make_tensor(3, 37, {2, 50, 77});
  device_buffer<__nv_bfloat16> x(elements_of<__nv_bfloat16>(random_values(11, shape.elements())));
  device_buffer<float> mean(37), variance(37);
  workspace_buffer space(tconv::channel_moments_workspace_bytes(shape));
  std::vector<float> first;
  for (int i = 0; i < 1000; ++i)
  {
    ASSERT_TRUE(
      tconv::channel_moments(x.data(), mean.data(), variance.data(), shape, tconv::options{}, space.get(), nullptr)
        .ok());
    if (i == 0)
    {
      first = variance.download();
    }
    else if (i % 10 == 9)
    {
      ASSERT_EQ(variance.download(), first);
    }
  }
}

} // namespace
