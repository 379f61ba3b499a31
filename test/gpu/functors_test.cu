// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Every pointwise functor on the device against its double reference: sweeps over all exponents with the bounds that the
/// functors document, and the special values. Each sweep reports its worst error per range of the argument, in ulp of the result.

#include "common/conv_case.hpp"
#include "common/device.hpp"

#include <tconv/reference/functors.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/affine.hpp>
#include <tconv/thread/chain.hpp>

#include <cfloat>
#include <cstdio>
#include <limits>
#include <string>

namespace
{

using namespace tconv_test;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class F>
__global__ void apply_each(const F functor, float* values, int count)
{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count)
  {
    values[i] = functor(values[i]);
  }
}

template <class F>
std::vector<float> apply_on_device(const F& functor, const std::vector<float>& x)
{
  device_buffer<float> d(x);
  const int count = static_cast<int>(x.size());
  apply_each<<<(count + 255) / 256, 256>>>(functor, d.data(), count);
  EXPECT_TRUE(cuda_ok(cudaGetLastError(), "launch") && cuda_ok(cudaDeviceSynchronize(), "kernel"));
  EXPECT_TRUE(d.guards_intact());
  return d.download();
}

/// What a functor documents: its error in ulp of the result, and an absolute one where a factor below 2^-126 may be flushed to 0.
struct error_bound
{
  double units    = 0;
  double absolute = 0;
};

/// A range of arguments: of both signs, or of one.
struct argument_range
{
  float low;
  float high;
  bool by_exponent; ///< spread over the orders of magnitude, else uniform

  float value(std::uint32_t seed, std::uint64_t i) const
  {
    if (!by_exponent)
    {
      return uniform(seed, i, low, high);
    }
    const float from = std::fmin(std::fabs(low), std::fabs(high));
    const float to   = std::fmax(std::fabs(low), std::fabs(high));
    // exp2 of a uniform exponent, in double: the least subnormal is 2^-149.
    const double bottom = from == 0.0f ? -149.0 : std::log2(static_cast<double>(from));
    const double power = bottom + (std::log2(static_cast<double>(to)) - bottom) * static_cast<double>(uniform(seed, i));
    const auto size    = static_cast<float>(std::exp2(power));
    return low < 0.0f ? -size : size;
  }
};

constexpr argument_range ranges[] = {{-FLT_MAX, -128.0f, true},
                                     {-128.0f, -87.0f, false},
                                     {-87.0f, -30.0f, false},
                                     {-30.0f, -8.0f, false},
                                     {-8.0f, -2.0f, false},
                                     {-2.0f, -0x1p-10f, false},
                                     {-0x1p-10f, 0.0f, true},
                                     {0.0f, 0x1p-10f, true},
                                     {0x1p-10f, 2.0f, false},
                                     {2.0f, 8.0f, false},
                                     {8.0f, 30.0f, false},
                                     {30.0f, 87.0f, false},
                                     {87.0f, 128.0f, false},
                                     {128.0f, FLT_MAX, true}};

/// Whether \p got is \p expected within \p bound; the infinities, and a NaN, must be where they are expected. An exact value
/// beyond FLT_MAX may be rounded to infinity, and must be where its error cannot keep it below.
bool within(double got, double expected, double bound)
{
  constexpr auto most = static_cast<double>(FLT_MAX);
  if (std::isnan(expected) || std::isnan(got))
  {
    return std::isnan(expected) && std::isnan(got);
  }
  if (std::isinf(expected))
  {
    return got == expected;
  }
  if (std::isinf(got))
  {
    return std::signbit(got) == std::signbit(expected) && std::fabs(expected) + bound >= most;
  }
  return std::fabs(got - expected) <= bound;
}

/// The bound in absolute terms. References are double: a part in 2^50 is theirs.
double limit_of(const error_bound& bound, double expected)
{
  return bound.units * ulp(expected) + bound.absolute + 0x1p-50 * std::fabs(expected);
}

/// Sweeps all ranges and looks at the special values. \p documented(v) -> error_bound.
template <class F, class Documented>
void check_functor(const std::string& name, const F& functor, Documented documented)
{
  constexpr std::uint64_t per_range = 100000;
  std::vector<float> x;
  std::uint32_t seed = 17;
  for (const argument_range& range : ranges)
  {
    ++seed;
    for (std::uint64_t i = 0; i < per_range; ++i)
    {
      x.push_back(range.value(seed, i));
    }
    x.push_back(range.low);
    x.push_back(range.high);
  }
  const std::size_t swept = x.size();
  // Where exp over- and underflows, and where branches are.
  for (const float v : {0.0f,       -0.0f,      0x1p-149f, -0x1p-149f, 88.72283f, 88.72284f, 89.0f, -87.33654f,
                        -87.33655f, -103.9721f, -104.0f,   -15.0f,     15.0f,     -3.0f,     3.0f,  -120.0f,
                        20.0f,      -20.0f,     40.0f,     -40.0f,     1e30f,     -1e30f,    inf,   -inf})
  {
    x.push_back(v);
  }
  x.push_back(nan);
  x.push_back(-nan);
  const auto y = apply_on_device(functor, x);
  ASSERT_EQ(y.size(), x.size());

  std::string report;
  int failures = 0;
  double worst = 0;
  float at     = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
  {
    const auto v          = static_cast<double>(x[i]);
    const double expected = tconv::reference::detail::evaluate_any(functor, v);
    const auto got        = static_cast<double>(y[i]);
    const auto bound      = documented(v);
    const double limit    = std::isfinite(v) && std::isfinite(expected) ? limit_of(bound, expected) : 0.0;
    if (!within(got, expected, limit) && ++failures <= 5)
    {
      ADD_FAILURE() << name << '(' << x[i] << ") = " << y[i] << ", expected " << expected << ": "
                    << std::fabs(got - expected) / ulp(expected) << " ulp, documented " << bound.units;
    }
    if (i >= swept)
    {
      continue;
    }
    // Flushed results have a documented error of their own, and say nothing about ulps.
    const double error = std::fabs(got - expected);
    if (std::isfinite(got) && std::isfinite(expected) && error > bound.absolute && error / ulp(expected) > worst)
    {
      worst = error / ulp(expected);
      at    = x[i];
    }
    if ((i + 1) % (per_range + 2) == 0)
    {
      const argument_range& range = ranges[i / (per_range + 2)];
      char text[96];
      std::snprintf(text,
                    sizeof text,
                    " [%.4g, %.4g]: %.2f at %.7g;",
                    static_cast<double>(range.low),
                    static_cast<double>(range.high),
                    worst,
                    static_cast<double>(at));
      report += worst > 0 ? text : "";
      worst = 0;
    }
  }
  EXPECT_EQ(failures, 0) << name;
  std::printf("[ worst    ] %s, ulp:%s\n", name.c_str(), report.empty() ? " exact" : report.c_str());
  testing::Test::RecordProperty("worst_ulp_" + name, report.empty() ? "exact" : report);
}

class functors_gpu : public gpu_test
{};

/// 1.2 ulp for each unit of |v|: what fast_exp makes of its argument. Beyond 128 its result is 0 or infinite.
double of_exponent(double v)
{
  return 1.2 * std::fmin(std::fabs(v), 128.0);
}

auto constant(double units)
{
  return [=](double) { return error_bound{units, 0.0}; };
}

/// What may be lost where a gate below 2^-126 is flushed and multiplied by v.
double flushed_times(double v)
{
  return std::fmax(1.0, std::fmin(std::fabs(v), 128.0)) * 0x1p-126;
}

/// 4 + 1.2 |v| ulp; for v > 0 the error of exp(-v) counts as much as exp(-v) does beside 1.
double logistic(double v)
{
  return 4 + of_exponent(v) * (v > 0 ? std::exp(-v) : 1.0);
}

TEST_F(functors_gpu, relu)
{
  check_functor("relu", tconv::relu{}, constant(0));
}

TEST_F(functors_gpu, leaky_relu)
{
  check_functor("leaky_relu", tconv::leaky_relu{}, constant(0.5));
  check_functor("leaky_relu_0.2", tconv::leaky_relu{0.2f}, constant(0.5));
}

TEST_F(functors_gpu, minimum_maximum_clamp)
{
  check_functor("minimum", tconv::minimum{-1.5f}, constant(0));
  check_functor("maximum", tconv::maximum{-1.5f}, constant(0));
  check_functor("minimum_of_nan", tconv::minimum{nan}, constant(0));
  check_functor("maximum_of_nan", tconv::maximum{nan}, constant(0));
  check_functor("clamp", tconv::clamp{-0.5f, 0.75f}, constant(0));
  check_functor("clamp_low_above_high", tconv::clamp{2.0f, 1.0f}, constant(0));
}

TEST_F(functors_gpu, sigmoid)
{
  check_functor("sigmoid", tconv::sigmoid{}, [](double v) { return error_bound{logistic(v), 0x1p-126}; });
}

TEST_F(functors_gpu, tanh)
{
  check_functor("tanh", tconv::tanh{}, constant(3));
}

// "A few ulp where |v| < 2", 200 in the lower tail; in between the roundings of erfc's argument, 2u, times 2 z^2 + 1 = v^2 + 1,
// and erfcf's 4 ulp. Where erfc is subnormal its absolute error counts, times v.
TEST_F(functors_gpu, gelu)
{
  check_functor("gelu", tconv::gelu{}, [](double v) {
    const double amplified = v < 0 ? 2 * (v * v + 1) : 2;
    return error_bound{std::fmin(200.0, amplified + 4.5), std::fmin(std::fabs(v), 16.0) * 4 * 0x1p-149};
  });
}

// The sigmoid's documented error, and the 7 roundings of its argument a, which it multiplies by |a| where v < 0.
TEST_F(functors_gpu, gelu_tanh)
{
  check_functor("gelu_tanh", tconv::gelu_tanh{}, [](double v) {
    const double a         = std::fmax(std::fmin(1.5957691216057308 * (v + 0.044715 * v * v * v), 128.0), -128.0);
    const double amplified = v < 0 ? -7 * a : 2;
    return error_bound{logistic(a) + amplified + 0.5, flushed_times(v)};
  });
}

TEST_F(functors_gpu, silu)
{
  check_functor("silu", tconv::silu{}, [](double v) { return error_bound{4 + 1.2 * std::fabs(v), flushed_times(v)}; });
}

TEST_F(functors_gpu, hardsigmoid)
{
  check_functor("hardsigmoid", tconv::hardsigmoid{}, constant(2));
}

TEST_F(functors_gpu, hardswish)
{
  check_functor("hardswish", tconv::hardswish{}, constant(4));
}

TEST_F(functors_gpu, softplus)
{
  check_functor("softplus", tconv::softplus{}, [](double v) {
    return error_bound{8 + (v < 0 ? of_exponent(v) : 0.0), 0x1p-126};
  });
}

TEST_F(functors_gpu, log_sigmoid)
{
  check_functor("log_sigmoid", tconv::log_sigmoid{}, [](double v) {
    return error_bound{8 + (v > 0 ? of_exponent(v) : 0.0), 0x1p-126};
  });
}

TEST_F(functors_gpu, mish)
{
  check_functor("mish", tconv::mish{}, [](double v) {
    return error_bound{9 + (v < 0 ? of_exponent(v) : 0.0), v < 0 ? flushed_times(v) : 0.0};
  });
}

TEST_F(functors_gpu, elu)
{
  check_functor("elu", tconv::elu{}, constant(3));
  check_functor("elu_1.7", tconv::elu{1.7f}, constant(3));
}

TEST_F(functors_gpu, exponential)
{
  check_functor("exponential", tconv::exponential{}, [](double v) {
    return error_bound{2 + of_exponent(v), 0x1p-126};
  });
}

// -inf * 0 would be NaN, which is what PyTorch returns.
TEST_F(functors_gpu, limits_at_minus_infinity_are_minus_zero)
{
  const auto expect = [](const char* name, const auto& functor) {
    for (const float v : apply_on_device(functor, {-inf, -FLT_MAX}))
    {
      EXPECT_EQ(v, 0.0f) << name;
      EXPECT_TRUE(std::signbit(v)) << name;
    }
  };
  expect("gelu", tconv::gelu{});
  expect("gelu_tanh", tconv::gelu_tanh{});
  expect("silu", tconv::silu{});
  expect("hardswish", tconv::hardswish{});
  expect("mish", tconv::mish{});
}

/// One value of sample n and channel c, and the functor bound to it.
template <class F>
__global__ void apply_bound(const F functor, float* values, int channels, int per_channel, int count)
{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count)
  {
    const auto bound = tconv::detail::bind(
      functor, tconv::coordinate{i / per_channel / channels, i / per_channel % channels});
    values[i] = bound(values[i]);
  }
}

/// Functors with operands, over [samples, channels, per_channel] values. \p magnitude(n, c, v): what half-ulp roundings in between
/// are relative to.
template <class Device, class Host, class Magnitude>
void check_bound(const char* name, const Device& on_device, const Host& on_host, double roundings, Magnitude magnitude)
{
  constexpr int samples     = 3;
  constexpr int channels    = 37;
  constexpr int per_channel = 100;
  constexpr int count       = samples * channels * per_channel;
  auto x                    = random_values(3, count, -20.0f, 20.0f);
  x[5]                      = nan;
  x[205]                    = inf;
  x[305]                    = -0.0f;
  device_buffer<float> d(x);
  apply_bound<<<(count + 255) / 256, 256>>>(on_device, d.data(), channels, per_channel, count);
  ASSERT_TRUE(cuda_ok(cudaDeviceSynchronize(), name));
  const auto y = d.download();
  double worst = 0;
  for (int i = 0; i < count; ++i)
  {
    const tconv::coordinate at{i / per_channel / channels, i / per_channel % channels};
    const auto v          = static_cast<double>(x[static_cast<std::size_t>(i)]);
    const auto bound      = tconv::reference::detail::bind(on_host, at);
    const double expected = tconv::reference::detail::evaluate_any(bound, v);
    const auto got        = static_cast<double>(y[static_cast<std::size_t>(i)]);
    const double units    = 0.5 * ulp(expected) + roundings * 0x1p-24 * magnitude(at.n, at.channel, v)
                       + 0x1p-50 * (std::fabs(expected) + std::fabs(v));
    ASSERT_TRUE(within(got, expected, std::isfinite(v) ? units : 0.0))
      << name << '(' << v << ") of sample " << at.n << ", channel " << at.channel << " = " << got << ", expected "
      << expected;
    worst = std::isfinite(expected) ? std::fmax(worst, std::fabs(got - expected) / units) : worst;
  }
  std::printf("[ worst    ] %s: %.2f of its bound\n", name, worst);
}

TEST_F(functors_gpu, with_operands)
{
  constexpr std::int64_t channels = 37;
  constexpr std::int64_t stride   = 2 * channels + 3;
  const auto none                 = [](std::int64_t, std::int64_t, double) { return 0.0; };
  const auto a                    = random_values(1, channels, 0.5f, 2.0f);
  const auto b                    = random_values(2, channels);
  auto variance                   = random_values(3, channels, 0.1f, 4.0f);
  const auto gamma                = random_values(4, channels, -2.0f, 2.0f);
  const auto table                = random_values(5, 3 * stride, -3.0f, 3.0f);
  device_buffer<float> da(a), db(b), dv(variance), dg(gamma), dt(table);

  check_bound("bias", tconv::bias(db.data()), tconv::bias(b.data()), 0, none);
  check_bound("no bias", tconv::bias(nullptr), tconv::bias(nullptr), 0, none);
  check_bound("scale", tconv::scale(da.data()), tconv::scale(a.data()), 0, none);
  check_bound("scale by a number", tconv::scale(-1.7f), tconv::scale(-1.7f), 0, none);
  check_bound("affine", tconv::affine(da.data(), db.data()), tconv::affine(a.data(), b.data()), 0, none);
  check_bound("sample_bias", tconv::sample_bias(dt.data(), stride), tconv::sample_bias(table.data(), stride), 0, none);
  check_bound(
    "sample_scale", tconv::sample_scale(dt.data(), stride), tconv::sample_scale(table.data(), stride), 0, none);
  check_bound("sample_affine",
              tconv::sample_affine(dt.data(), dt.data() + channels, stride),
              tconv::sample_affine(table.data(), table.data() + channels, stride),
              0,
              none);
  for (const float eps : {1e-5f, 0.0f})
  {
    // v - mean, var + eps, root and quotient: 4 roundings of slope * (v - mean), the root's counted once.
    const auto magnitude = [&](std::int64_t, std::int64_t c, double v) {
      const auto i          = static_cast<std::size_t>(c);
      const double radicand = static_cast<double>(variance[i]) + static_cast<double>(eps);
      return radicand == 0.0
             ? 0.0
             : std::fabs(static_cast<double>(gamma[i]) * (v - static_cast<double>(b[i]))) / std::sqrt(radicand);
    };
    check_bound("batch_norm",
                tconv::batch_norm(db.data(), dv.data(), dg.data(), da.data(), eps),
                tconv::batch_norm(b.data(), variance.data(), gamma.data(), a.data(), eps),
                4,
                magnitude);
    // var + eps = 0 gives beta.
    variance[7] = 0.0f;
    dv.upload(variance);
  }
}

} // namespace
