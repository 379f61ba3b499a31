// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// group_moments() and group_norm() against a definition in double that stands here, and batch_norm_train() with a pool behind it.
///
/// With u = 2^-24. Chunks of 16 values are taken around the first of them: a mean is wrong by 16 u times the range of the group, a
/// variance by (2 * 17 + 16) u times its square, as in reduce_space_test.cu.

#include "common/bounded_tensor.cuh"

#include <tconv/launch/batch_norm_train.cuh>
#include <tconv/launch/group_norm.cuh>
#include <tconv/launch/moments.cuh>
#include <tconv/reference/batch_norm.hpp>

#include <cmath>
#include <limits>

namespace
{

using namespace tconv_test;
using tconv::chain;
using bf16    = __nv_bfloat16;
using tensor3 = tconv::tensor_shape<3>;

constexpr double u = 0x1p-24;

tensor3 make_tensor(std::int64_t batch, std::int64_t channels, const std::array<tconv::int64_t, 3>& extent)
{
  tensor3 s;
  s.batch    = batch;
  s.channels = channels;
  s.extent   = extent;
  return s;
}

/// One value, odd rows, channels that fill a tile of 32 and that do not, several slices.
const tensor3 shapes[] = {make_tensor(2, 1, {1, 1, 1}),
                          make_tensor(2, 6, {1, 1, 7}),
                          make_tensor(3, 36, {1, 5, 13}),
                          make_tensor(2, 64, {2, 8, 16}),
                          make_tensor(1, 12, {1, 100, 103}),
                          make_tensor(2, 2, {1, 1, 50001})};

/// 1, as many as channels, and two in between where there are any.
std::vector<std::int64_t> groups_of(std::int64_t channels)
{
  std::vector<std::int64_t> result{1};
  for (const std::int64_t g : {channels / 3, channels / 2, channels})
  {
    if (g > result.back() && channels % g == 0)
    {
      result.push_back(g);
    }
  }
  return result;
}

/// Mean, biased variance and range of neighbouring values.
struct statistics
{
  double mean;
  double variance;
  double range;

  statistics(const float* values, std::int64_t count)
  {
    double sum  = 0;
    double low  = std::numeric_limits<double>::infinity();
    double high = -low;
    for (std::int64_t i = 0; i < count; ++i)
    {
      const auto v = static_cast<double>(values[i]);
      sum += v;
      low  = std::fmin(low, v);
      high = std::fmax(high, v);
    }
    range          = high - low;
    mean           = range == 0.0 ? low : sum / static_cast<double>(count);
    double squares = 0;
    for (std::int64_t i = 0; i < count; ++i)
    {
      const double centred = static_cast<double>(values[i]) - mean;
      squares += centred * centred;
    }
    variance = squares / static_cast<double>(count);
  }
  double mean_error() const { return 16 * u * range; }
  double variance_error() const { return (2 * 17 + 16) * u * range * range; }

  /// Error of slope * (v - mean) + shift, |slope| = |gamma| / sqrt(variance + eps): the centre and its rounding, the slope (its own
  /// error and 4 roundings), the last operation. Nothing where all values are equal: their difference from the mean is 0.
  double normalised_error(double gamma, double shift, double eps, double value) const
  {
    if (range == 0.0)
    {
      return 0.0;
    }
    const double var      = variance + eps;
    const double slope    = std::fabs(gamma) / std::sqrt(var);
    const double of_slope = 1 / std::sqrt(1 - std::fmin(variance_error() / var, 0.99)) - 1;
    const double own      = slope * (mean_error() + ulp(mean) / 2) + slope * range * (of_slope + 4 * u)
                     + u * (std::fabs(shift) + slope * range);
    return own + ulp(std::fabs(value) + own) / 2;
  }
};

/// gamma and beta on both sides; none where \p present is false.
struct parameters
{
  std::vector<float> gamma, beta;
  device_buffer<float> d_gamma, d_beta;
  bool present;

  parameters(std::uint32_t seed, std::int64_t channels, bool given)
      : gamma(given ? random_values(seed, channels, -2.0f, 2.0f) : std::vector<float>(channels, 1.0f))
      , beta(given ? random_values(seed + 1, channels) : std::vector<float>(channels, 0.0f))
      , d_gamma(gamma)
      , d_beta(beta)
      , present(given)
  {}
  tconv::group_norm_arguments arguments(std::int64_t groups, float eps) const
  {
    return {groups, present ? d_gamma.data() : nullptr, present ? d_beta.data() : nullptr, eps};
  }
};

bounded_tensor<3>
group_norm(const tensor3& s, const std::vector<float>& x, std::int64_t groups, const parameters& p, float eps)
{
  std::vector<double> value(x.size());
  std::vector<double> error(x.size());
  const std::int64_t count = s.channels / groups * s.positions();
  for (std::int64_t set = 0; set < s.batch * groups; ++set)
  {
    const statistics of_set(x.data() + set * count, count);
    const double var = of_set.variance + static_cast<double>(eps);
    for (std::int64_t k = set * count; k < (set + 1) * count; ++k)
    {
      const auto i     = static_cast<std::size_t>(k);
      const auto c     = static_cast<std::size_t>(k / s.positions() % s.channels);
      const auto gamma = static_cast<double>(p.gamma[c]);
      const auto beta  = static_cast<double>(p.beta[c]);
      const double z   = var == 0.0 ? 0.0 : (static_cast<double>(x[i]) - of_set.mean) / std::sqrt(var);
      value[i]         = gamma * z + beta;
      error[i]         = of_set.normalised_error(gamma, beta, static_cast<double>(eps), value[i]);
    }
  }
  return {s, std::move(value), std::move(error)};
}

template <class In, class Out, class Functors>
std::vector<float> on_device(const tensor3& s,
                             const std::vector<float>& x,
                             const tensor3& result,
                             const tconv::group_norm_arguments& arguments,
                             const Functors& functors,
                             const arrangement& how)
{
  return call_on_tensor<In, Out>(
    s,
    x,
    result,
    how,
    [&](const auto& shape, const auto& opts) {
      return tconv::group_norm_workspace_bytes(shape, arguments.groups, functors, opts);
    },
    [&](const In* from, Out* to, const auto& shape, const auto& opts, tconv::workspace space, cudaStream_t stream) {
      return tconv::group_norm(from, to, shape, arguments, functors, opts, space, stream);
    });
}

template <class In, class Out, class Functors>
void check_norm(const tensor3& s,
                std::int64_t groups,
                std::uint32_t seed,
                float low,
                float high,
                float eps,
                const Functors& functors,
                std::int64_t number)
{
  const arrangement how = arrangement::number(number);
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(s) + ", "
               + std::to_string(groups) + " groups, seed " + std::to_string(seed) + ", " + to_string(how));
  const auto x = rounded_to<In>(random_values(seed, s.elements(), low, high));
  const parameters p(seed + 1, s.channels, seed % 3 != 0);
  auto expected = group_norm(s, x, groups, p, eps);
  // The comparison sees a variance that has lost the digits of a common offset.
  if (std::is_same<Out, float>::value && s.positions() > 100)
  {
    EXPECT_LT(*std::max_element(expected.error.begin(), expected.error.end()), 2e-3);
  }
  expected.follow(functors);
  const auto y = on_device<In, Out>(s, x, expected.shape, p.arguments(groups, eps), functors, how);
  EXPECT_TRUE(expected.template compare<Out>(y));
}

class group_norm_gpu : public gpu_test
{};

TEST_F(group_norm_gpu, float32_then_leaky_relu)
{
  std::uint32_t seed = 1;
  for (const tensor3& s : shapes)
  {
    for (const std::int64_t groups : groups_of(s.channels))
    {
      for (std::int64_t i = 0; i < 4; ++i)
      {
        const auto functors = chain(tconv::leaky_relu{0.5f});
        check_norm<float, float>(s, groups, seed, -1.0f, 4.0f, i == 3 ? 0.0f : 1e-5f, functors, 5 * seed + i);
        ++seed;
      }
      // A standard deviation of 1 around 10000.
      check_norm<float, float>(
        s, groups, seed, 1e4f - 1.75f, 1e4f + 1.75f, 1e-5f, chain(tconv::leaky_relu{0.5f}), 3 * seed);
      ++seed;
    }
  }
}

TEST_F(group_norm_gpu, bfloat16)
{
  std::uint32_t seed = 200;
  for (const tensor3& s : shapes)
  {
    for (const std::int64_t groups : groups_of(s.channels))
    {
      check_norm<bf16, bf16>(s, groups, seed, -1.0f, 4.0f, 1e-5f, chain<>{}, seed);
      ++seed;
    }
  }
}

TEST_F(group_norm_gpu, then_max_pool)
{
  std::uint32_t seed = 300;
  for (const tensor3& s : {make_tensor(2, 6, {3, 5, 7}), make_tensor(1, 40, {2, 4, 33})})
  {
    for (const std::int64_t groups : groups_of(s.channels))
    {
      check_norm<float, float>(s, groups, seed, -1.0f, 1.0f, 1e-5f, chain(tconv::max_pool({1, 2, 3}, {1, 2, 2})), seed);
      ++seed;
    }
  }
}

// Values that are all equal, and not exact in binary: beta, whatever eps is.
TEST_F(group_norm_gpu, constant_groups_give_beta)
{
  const tensor3 s = make_tensor(2, 12, {1, 50, 103});
  for (const float eps : {0.0f, 1e-5f})
  {
    for (const std::int64_t groups : {1, 4, 12})
    {
      for (const bool given : {false, true})
      {
        const parameters p(7, s.channels, given);
        for (std::int64_t number = 0; number < 4; ++number)
        {
          const auto y = on_device<float, float>(s,
                                                 std::vector<float>(static_cast<std::size_t>(s.elements()), 100.1f),
                                                 s,
                                                 p.arguments(groups, eps),
                                                 chain(tconv::leaky_relu{1.0f}),
                                                 arrangement::number(number));
          ASSERT_EQ(static_cast<std::int64_t>(y.size()), s.elements());
          for (std::size_t i = 0; i < y.size(); ++i)
          {
            const auto c = static_cast<std::size_t>(static_cast<std::int64_t>(i) / s.positions() % s.channels);
            ASSERT_EQ(y[i], p.beta[c]) << i << ", eps " << eps << ", " << groups << " groups";
          }
        }
      }
    }
  }
}

// Hand values: torch.nn.GroupNorm(2, 4) of 0 to 7 as [1, 4, 2] normalises 0 to 3 and 4 to 7 alike.
TEST_F(group_norm_gpu, by_hand)
{
  const tensor3 s = make_tensor(1, 4, {1, 1, 2});
  const auto y    = on_device<float, float>(
    s, {0, 1, 2, 3, 4, 5, 6, 7}, s, {2, nullptr, nullptr, 0.0f}, chain(tconv::leaky_relu{1.0f}), {});
  const double expected[] = {-1.5, -0.5, 0.5, 1.5};
  ASSERT_EQ(y.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i)
  {
    EXPECT_NEAR(y[i], expected[i % 4] / std::sqrt(1.25), 3e-7) << i;
  }
}

TEST_F(group_norm_gpu, in_place)
{
  const tensor3 s = make_tensor(2, 6, {1, 9, 31});
  const auto x    = random_values(9, s.elements());
  const parameters p(10, 6, true);
  const auto functors  = chain(tconv::leaky_relu{0.5f});
  const auto arguments = p.arguments(3, 1e-5f);
  for (const auto order : {tconv::layout::channels_first, tconv::layout::channels_last})
  {
    arrangement how;
    how.input           = order;
    how.output          = order;
    const auto expected = on_device<float, float>(s, x, s, arguments, functors, how);
    tconv::options opts;
    opts.input_layout  = order;
    opts.output_layout = order;
    const placement place{s.batch, s.channels, s.positions(), order, {}};
    device_buffer<float> d(place.place<float>(x));
    workspace_buffer space(tconv::group_norm_workspace_bytes(s, 3, functors, opts));
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::group_norm(d.data(), d.data(), s, arguments, functors, opts, space.get(), stream);
    }));
    EXPECT_EQ(place.extract(d.download()), expected);
    EXPECT_TRUE(d.guards_intact() && space.guards_intact());
  }
}

// A NaN is its group's, in its sample, and nobody else's.
TEST_F(group_norm_gpu, nan_stays_in_its_group)
{
  const tensor3 s = make_tensor(2, 6, {1, 3, 50});
  auto x          = random_values(11, s.elements());
  x[150 * 9 + 77] = std::numeric_limits<float>::quiet_NaN(); // sample 1, channel 3: group 1 of 3
  for (std::int64_t number = 0; number < 4; ++number)
  {
    const auto y = on_device<float, float>(
      s, x, s, {3, nullptr, nullptr, 1e-5f}, chain(tconv::leaky_relu{0.5f}), arrangement::number(number));
    ASSERT_EQ(static_cast<std::int64_t>(y.size()), s.elements());
    for (std::size_t i = 0; i < y.size(); ++i)
    {
      EXPECT_EQ(std::isnan(y[i]), i / 300 == 4) << i;
    }
  }
}

template <class In>
void check_moments(const tensor3& shape, std::int64_t groups, std::uint32_t seed, float low, float high)
{
  const arrangement how = arrangement::number(seed);
  SCOPED_TRACE(std::string(format_of<In>::name) + ", " + to_string(shape) + ", " + std::to_string(groups)
               + " groups, seed " + std::to_string(seed) + ", " + to_string(how));
  const auto x  = rounded_to<In>(random_values(seed, shape.elements(), low, high));
  tensor3 s     = shape;
  s.input_slice = slice_number(how.input_slice, s.channels);
  tconv::options opts;
  opts.input_layout = how.input;
  const placement in{s.batch, s.channels, s.positions(), how.input, s.input_slice};
  device_buffer<In> dx(in.place<In>(x), how.misalignment);
  device_buffer<float> mean(s.batch * groups), variance(s.batch * groups);
  workspace_buffer space(tconv::group_moments_workspace_bytes(s, opts));
  ASSERT_TRUE(run(how.mode, [&](cudaStream_t stream) {
    return tconv::group_moments(dx.data(), mean.data(), variance.data(), s, groups, opts, space.get(), stream);
  }));
  EXPECT_TRUE(dx.guards_intact() && mean.guards_intact() && variance.guards_intact() && space.guards_intact());
  const auto got_mean      = mean.download();
  const auto got_variance  = variance.download();
  const std::int64_t count = s.channels / groups * s.positions();
  for (std::size_t set = 0; set < got_mean.size(); ++set)
  {
    const statistics e(x.data() + static_cast<std::int64_t>(set) * count, count);
    ASSERT_LE(std::fabs(static_cast<double>(got_mean[set]) - e.mean), e.mean_error() + ulp(e.mean) / 2) << set;
    ASSERT_LE(std::fabs(static_cast<double>(got_variance[set]) - e.variance),
              e.variance_error() + ulp(e.variance + e.variance_error()) / 2)
      << set;
  }
}

TEST_F(group_norm_gpu, group_moments)
{
  std::uint32_t seed = 500;
  for (const tensor3& s : shapes)
  {
    for (const std::int64_t groups : groups_of(s.channels))
    {
      for (int i = 0; i < 4; ++i)
      {
        check_moments<float>(s, groups, seed++, -1.0f, 2.0f);
      }
      check_moments<float>(s, groups, seed++, 1e4f - 1.75f, 1e4f + 1.75f);
      check_moments<bf16>(s, groups, seed++, 2.0f, 5.0f);
    }
  }
}

// The normalisation of all of x comes before the pool, and running statistics do not see it.
TEST_F(group_norm_gpu, batch_norm_train_then_max_pool)
{
  const tensor3 s = make_tensor(3, 5, {2, 7, 9});
  const parameters p(21, s.channels, true);
  const auto functors = chain(tconv::max_pool({2, 2, 2}, {1, 2, 3}));
  for (std::int64_t number = 0; number < 4; ++number)
  {
    const auto x = random_values(20, s.elements(), 2.0f, 6.0f);
    std::vector<float> mean(5, 0.5f), variance(5, 1.5f);
    device_buffer<float> d_mean(mean), d_variance(variance);
    const tconv::batch_norm_arguments there{
      p.d_gamma.data(), p.d_beta.data(), d_mean.data(), d_variance.data(), 1e-5f, 0.25f};
    const tconv::batch_norm_arguments here{p.gamma.data(), p.beta.data(), mean.data(), variance.data(), 1e-5f, 0.25f};

    // The values of a channel, side by side.
    std::vector<statistics> of_channel;
    for (std::int64_t c = 0; c < s.channels; ++c)
    {
      std::vector<float> values;
      for (std::int64_t n = 0; n < s.batch; ++n)
      {
        const auto line = x.begin() + (n * s.channels + c) * s.positions();
        values.insert(values.end(), line, line + s.positions());
      }
      of_channel.emplace_back(values.data(), static_cast<std::int64_t>(values.size()));
    }
    std::vector<double> value(x.begin(), x.end());
    tconv::reference::batch_norm_train(value.data(), s.batch, s.channels, s.positions(), here);
    std::vector<double> error(value.size());
    for (std::size_t i = 0; i < value.size(); ++i)
    {
      const auto c = static_cast<std::size_t>(static_cast<std::int64_t>(i) / s.positions() % s.channels);
      error[i]     = of_channel[c].normalised_error(
        static_cast<double>(p.gamma[c]), static_cast<double>(p.beta[c]), 1e-5, value[i]);
    }
    bounded_tensor<3> expected(s, std::move(value), std::move(error));
    expected.follow(functors);
    const auto y = call_on_tensor<float, float>(
      s,
      x,
      expected.shape,
      arrangement::number(number),
      [&](
        const auto& shape, const auto& opts) { return tconv::batch_norm_train_workspace_bytes(shape, functors, opts); },
      [&](const float* from,
          float* to,
          const auto& shape,
          const auto& opts,
          tconv::workspace space,
          cudaStream_t stream) {
        return tconv::batch_norm_train(from, to, shape, there, functors, opts, space, stream);
      });
    EXPECT_TRUE(expected.compare<float>(y));
    const auto got_mean     = d_mean.download();
    const auto got_variance = d_variance.download();
    const auto count        = static_cast<double>(s.batch * s.positions());
    for (std::size_t c = 0; c < 5; ++c)
    {
      EXPECT_NEAR(got_mean[c], mean[c], 0.25 * of_channel[c].mean_error() + ulp(static_cast<double>(mean[c])));
      EXPECT_NEAR(got_variance[c],
                  variance[c],
                  0.25 * of_channel[c].variance_error() * count / (count - 1) + ulp(static_cast<double>(variance[c])));
    }
  }
}

// Checked before anything is launched, so without a GPU too.
struct group_norm_arguments : testing::Test
{
  static float* at(std::uintptr_t offset) { return reinterpret_cast<float*>((std::uintptr_t{1} << 40) + offset); }
  template <class Functors>
  static tconv::status call(const tensor3& s,
                            const tconv::group_norm_arguments& arguments,
                            const Functors& functors,
                            std::uintptr_t y,
                            std::size_t missing = 0)
  {
    const std::size_t bytes = tconv::group_norm_workspace_bytes(s, arguments.groups, functors) - missing;
    return tconv::group_norm(
      at(0), at(y), s, arguments, functors, tconv::options{}, {at(std::uintptr_t{1} << 30), bytes}, nullptr);
  }
};

TEST_F(group_norm_arguments, groups_and_eps)
{
  const tensor3 s     = make_tensor(2, 6, {1, 2, 4});
  const auto functors = chain(tconv::leaky_relu{0.5f});
  const auto message  = [&](std::int64_t groups, float eps) {
    const tconv::status result = call(s, {groups, nullptr, nullptr, eps}, functors, 1 << 20);
    EXPECT_EQ(result.code(), tconv::status_code::invalid_argument);
    return std::string(result.message());
  };
  EXPECT_EQ(message(0, 0.0f), "groups = 0: must be >= 1 and divide shape.channels = 6");
  EXPECT_EQ(message(-2, 0.0f), "groups = -2: must be >= 1 and divide shape.channels = 6");
  EXPECT_EQ(message(4, 0.0f), "groups = 4: must be >= 1 and divide shape.channels = 6");
  EXPECT_EQ(message(12, 0.0f), "groups = 12: must be >= 1 and divide shape.channels = 6");
  EXPECT_EQ(message(3, -1e-5f), "group_norm.eps = -1e-05: must be >= 0");
  EXPECT_EQ(message(3, std::numeric_limits<float>::quiet_NaN()), "group_norm.eps = nan: must be >= 0");
  EXPECT_EQ(tconv::group_norm_workspace_bytes(s, 4, functors), 0U);
  for (const std::int64_t groups : {0, 4})
  {
    const tconv::status result = tconv::group_moments(
      at(0), at(4096), at(8192), s, groups, tconv::options{}, {at(std::uintptr_t{1} << 30), 1 << 20}, nullptr);
    EXPECT_EQ(result.code(), tconv::status_code::invalid_argument);
  }
  // Also where there is nothing to do, and then nothing else is.
  EXPECT_EQ(call(make_tensor(0, 6, {1, 2, 4}), {4, nullptr, nullptr, 0.0f}, functors, 0).code(),
            tconv::status_code::invalid_argument);
  EXPECT_TRUE(call(make_tensor(0, 6, {1, 2, 4}), {3, nullptr, nullptr, 0.0f}, functors, 0).ok());
  EXPECT_TRUE(call(make_tensor(2, 6, {1, 0, 4}), {3, nullptr, nullptr, 0.0f}, functors, 0).ok());
}

TEST_F(group_norm_arguments, memory)
{
  const tensor3 s     = make_tensor(2, 6, {1, 2, 4}); // 384 bytes
  const auto functors = chain(tconv::leaky_relu{0.5f});
  EXPECT_STREQ(call(s, {3}, functors, 4).message(), "y: must not overlap x");
  EXPECT_STREQ(call(s, {3, at(1 << 20)}, functors, 1 << 20).message(), "y: must not overlap group_norm.gamma");
  EXPECT_STREQ(
    call(s, {3, nullptr, at(1 << 20)}, functors, (1 << 20) - 380).message(), "y: must not overlap group_norm.beta");
  EXPECT_EQ(call(s, {3}, functors, 1 << 20, 1).code(), tconv::status_code::workspace_too_small);
  // Where a pool follows, not in place.
  const auto pooled = chain(tconv::max_pool({1, 1, 1}, {1, 1, 1}));
  EXPECT_STREQ(call(s, {3}, pooled, 0).message(), "y: must not overlap x");
  EXPECT_STREQ(call(s, {3}, chain(tconv::max_pool(2)), 1 << 20).message(),
               "functors: max_pool has size 2 along d: must be <= 1, the extent there");
}

} // namespace
