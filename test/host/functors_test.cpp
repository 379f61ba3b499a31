// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The pointwise functors: their fp32 form and their double reference, each against values tabulated with mpmath; the fp32 form
/// also over a sweep of all exponents, against formulas of this file in long double.

#include "../tables/functor_tables.hpp"

#include <tconv/reference/batch_norm.hpp>
#include <tconv/reference/chain.hpp>
#include <tconv/reference/functors.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/affine.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace
{

namespace tables = tconv_test::tables;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Distance of neighbouring floats at \p v.
double ulp(double v)
{
  int exponent = 0;
  std::frexp(v, &exponent);
  return v == 0.0 || exponent < -125 ? 0x1p-149 : std::ldexp(1.0, exponent - 24);
}

// Bounds of the fp32 forms in ulp of the exact result, derived from the formulas and from the C library's documented errors
// (expf 1, tanhf 2, erfcf 4 ulp: the larger of glibc's and CUDA's). u = 2^-24 is the relative error of one rounding; one ulp is
// at least u relative.

/// relu and clamp return one of their inputs.
double exact(double, double)
{
  return 0.0;
}

/// One product.
double one_rounding(double, double value)
{
  return 0.5 * ulp(value);
}

/// As documented at the functor.
double four_ulp(double, double value)
{
  return 4 * ulp(value);
}

/// tanhf and the rounding of what it approximates.
double tanh_bound(double, double value)
{
  return 3 * ulp(value);
}

/// The argument -v * sqrt(1/2) carries two roundings, 2u. Where v < 0, erfc multiplies a relative error of its argument z by
/// at most 2 z^2 + 1 = v^2 + 1; elsewhere by less than 1. Then erfcf and one product. Where erfc is subnormal its absolute
/// error counts, times v.
double gelu_bound(double v, double value)
{
  const double amplified = v < 0 ? 2 * (v * v + 1) : 2;
  return (amplified + 4 + 0.5) * ulp(value) + std::fmin(std::fabs(v), 16.0) * 4 * 0x1p-149;
}

/// The argument a of the sigmoid carries at most 7 roundings (two constants, three products of the cube, sum, product); the
/// sigmoid multiplies a relative error by |a| where v < 0, and by at most 0.28 elsewhere. Then sigmoid and one product.
double gelu_tanh_bound(double v, double value)
{
  const double a         = 1.5957691216057308 * (v + 0.044715 * v * v * v);
  const double amplified = v < 0 ? 7 * std::fabs(a) : 2;
  return (amplified + 4 + 0.5) * ulp(value) + std::fmin(std::fabs(v), 16.0) * 4 * 0x1p-149;
}

/// sigmoid and one product; where the sigmoid is subnormal its absolute error counts, times v.
double silu_bound(double v, double value)
{
  return 4.5 * ulp(value) + (v < -80 ? std::fmin(-v, 128.0) * 4 * 0x1p-149 : 0.0);
}

/// v + 3 (exact where it is small), the constant 1/6 and one product.
double hardsigmoid_bound(double, double value)
{
  return 3.001 * 0x1p-24 * std::fabs(value);
}

/// hardsigmoid and one product.
double hardswish_bound(double, double value)
{
  return 4.001 * 0x1p-24 * std::fabs(value) + 0.5 * 0x1p-149;
}

/// As documented at the functor.
double mish_bound(double v, double value)
{
  return 6 * ulp(value) + (v < -80 ? std::fmin(-v, 128.0) * 2 * 0x1p-149 : 0.0);
}

/// expm1f, and one product.
double elu_bound(double, double value)
{
  return 3 * ulp(value);
}

/// expf.
double one_ulp(double, double value)
{
  return ulp(value);
}

/// What fp32 makes of a value beyond its range.
double in_range(double value)
{
  return value >= 0x1.ffffffp127 ? static_cast<double>(tables::inf) : value;
}

/// The infinities are exact; a NaN is a NaN.
testing::AssertionResult within(double got, double expected, double bound)
{
  const bool good = std::isnan(expected) ? std::isnan(got)
                  : std::isinf(expected) ? got == expected
                                         : std::fabs(got - expected) <= bound;
  if (good)
  {
    return testing::AssertionSuccess();
  }
  testing::Message text;
  text << std::hexfloat << "got " << got << ", expected " << expected << std::defaultfloat << " (" << got << ", "
       << expected << "), error " << std::fabs(got - expected) / ulp(expected) << " ulp, bound "
       << bound / ulp(expected) << " ulp";
  return testing::AssertionFailure() << text;
}

/// The double references: 1e-14 relative.
double reference_bound(double, double value)
{
  return 1e-14 * std::fabs(value);
}

/// gelu's argument carries two roundings of 2^-53, amplified as above: more than 1e-14 below v = -6.
double gelu_reference_bound(double v, double value)
{
  return std::fmax(1e-14, v < 0 ? (v * v + 4) * 0x1p-52 : 0.0) * std::fabs(value);
}

template <class Functor>
void check_table(const Functor& functor,
                 double tables::pointwise_row::*column,
                 double (*bound)(double, double),
                 double (*reference_bound_of)(double, double) = reference_bound)
{
  for (const tables::pointwise_row& row : tables::pointwise)
  {
    const double expected = row.*column;
    const auto v          = static_cast<double>(row.v);
    EXPECT_TRUE(
      within(static_cast<double>(functor(row.v)), in_range(expected), std::isinf(v) ? 0.0 : bound(v, expected)))
      << "fp32 form at " << row.v;
    // Relative down to where fp32 has no more numbers.
    const double slack = std::isinf(v) ? 0.0 : std::fmax(reference_bound_of(v, expected), 1e-14 * 0x1p-149);
    EXPECT_TRUE(within(tconv::reference::evaluate(functor, v), expected, slack)) << "double reference at " << row.v;
  }
}

TEST(functors_table, relu)
{
  check_table(tconv::relu{}, &tables::pointwise_row::relu, exact);
}

TEST(functors_table, leaky_relu)
{
  check_table(tconv::leaky_relu{}, &tables::pointwise_row::leaky_relu, one_rounding);
  check_table(tconv::leaky_relu{0.2f}, &tables::pointwise_row::leaky_relu_02, one_rounding);
}

TEST(functors_table, sigmoid)
{
  check_table(tconv::sigmoid{}, &tables::pointwise_row::sigmoid, four_ulp);
}

TEST(functors_table, tanh)
{
  check_table(tconv::tanh{}, &tables::pointwise_row::tanh, tanh_bound);
}

TEST(functors_table, gelu)
{
  check_table(tconv::gelu{}, &tables::pointwise_row::gelu, gelu_bound, gelu_reference_bound);
}

TEST(functors_table, gelu_tanh)
{
  check_table(tconv::gelu_tanh{}, &tables::pointwise_row::gelu_tanh, gelu_tanh_bound);
}

TEST(functors_table, silu)
{
  check_table(tconv::silu{}, &tables::pointwise_row::silu, silu_bound);
}

TEST(functors_table, clamp)
{
  check_table(tconv::clamp{}, &tables::pointwise_row::clamp_0_1, exact);
  check_table(tconv::clamp{-2.0f, 2.5f}, &tables::pointwise_row::clamp_m2_25, exact);
  check_table(tconv::clamp{2.0f, 1.0f}, &tables::pointwise_row::clamp_2_1, exact);
}

TEST(functors_table, hardsigmoid)
{
  check_table(tconv::hardsigmoid{}, &tables::pointwise_row::hardsigmoid, hardsigmoid_bound);
}

TEST(functors_table, hardswish)
{
  check_table(tconv::hardswish{}, &tables::pointwise_row::hardswish, hardswish_bound);
}

TEST(functors_table, softplus)
{
  check_table(tconv::softplus{}, &tables::pointwise_row::softplus, four_ulp);
}

TEST(functors_table, log_sigmoid)
{
  check_table(tconv::log_sigmoid{}, &tables::pointwise_row::log_sigmoid, four_ulp);
}

TEST(functors_table, mish)
{
  check_table(tconv::mish{}, &tables::pointwise_row::mish, mish_bound);
}

TEST(functors_table, elu)
{
  check_table(tconv::elu{}, &tables::pointwise_row::elu, elu_bound);
  check_table(tconv::elu{1.7f}, &tables::pointwise_row::elu_17, elu_bound);
}

TEST(functors_table, exponential)
{
  check_table(tconv::exponential{}, &tables::pointwise_row::exponential, one_ulp);
}

TEST(functors_table, minimum_and_maximum)
{
  check_table(tconv::minimum{-1.5f}, &tables::pointwise_row::minimum_m15, exact);
  check_table(tconv::maximum{-1.5f}, &tables::pointwise_row::maximum_m15, exact);
}

// Sweeps: floats 4099 bit patterns apart, both signs, all exponents, against formulas in long double (64 bits: 2^-40 of an fp32
// ulp). A bound that only holds at the tabulated points would fail here.

template <class Functor, class Exact>
void check_sweep(const Functor& functor, Exact exact_value, double (*bound)(double, double))
{
  double worst = 0;
  float at     = 0;
  int failures = 0;
  for (std::uint32_t bits = 0; bits < 0xff800000U; bits += 4099U)
  {
    float v = 0.0f;
    std::memcpy(&v, &bits, sizeof v);
    if (std::isnan(v) || std::isinf(v))
    {
      continue;
    }
    const double expected = in_range(static_cast<double>(exact_value(static_cast<long double>(v))));
    const auto got        = static_cast<double>(functor(v));
    const double limit    = bound(static_cast<double>(v), expected);
    // The exact value itself was rounded to double.
    if (!within(got, expected, limit * (1 + 1e-12) + 1e-300) && ++failures <= 3)
    {
      ADD_FAILURE() << "at " << v << ": " << within(got, expected, limit).message();
    }
    const double error = got == expected ? 0.0 : std::fabs(got - expected) / ulp(expected);
    if (error > worst)
    {
      worst = error;
      at    = v;
    }
  }
  EXPECT_EQ(failures, 0);
  testing::Test::RecordProperty("worst_ulp", std::to_string(worst) + " at " + std::to_string(at));
}

TEST(functors_sweep, sigmoid)
{
  check_sweep(
    tconv::sigmoid{}, [](long double v) { return 1 / (1 + std::exp(-v)); }, four_ulp);
}

TEST(functors_sweep, tanh)
{
  check_sweep(
    tconv::tanh{}, [](long double v) { return std::tanh(v); }, tanh_bound);
}

TEST(functors_sweep, gelu)
{
  check_sweep(
    tconv::gelu{},
    [](long double v) { return v / 2 * std::erfc(-v * 0.70710678118654752440084436210484903928L); },
    gelu_bound);
}

TEST(functors_sweep, gelu_tanh)
{
  check_sweep(
    tconv::gelu_tanh{},
    [](long double v) {
      const long double u = 0.79788456080286535587989211986876373695L * (v + 0.044715L * v * v * v);
      return v / (1 + std::exp(-2 * u));
    },
    gelu_tanh_bound);
}

TEST(functors_sweep, silu)
{
  check_sweep(
    tconv::silu{}, [](long double v) { return v / (1 + std::exp(-v)); }, silu_bound);
}

TEST(functors_sweep, relu_leaky_relu_clamp)
{
  check_sweep(
    tconv::relu{}, [](long double v) { return v > 0 ? v : 0; }, exact);
  check_sweep(
    tconv::leaky_relu{0.01f},
    [](long double v) { return v > 0 ? v : v * static_cast<long double>(0.01f); },
    one_rounding);
  check_sweep(
    tconv::clamp{-0.5f, 3.0f}, [](long double v) { return v < -0.5L ? -0.5L
                                                        : v > 3     ? 3
                                                                    : v; }, exact);
}

TEST(functors_sweep, hardsigmoid_and_hardswish)
{
  const auto gate = [](long double v) { return v < -3 ? 0.0L : v > 3 ? 1.0L : (v + 3) / 6; };
  check_sweep(tconv::hardsigmoid{}, gate, hardsigmoid_bound);
  check_sweep(
    tconv::hardswish{}, [gate](long double v) { return v * gate(v); }, hardswish_bound);
}

TEST(functors_sweep, softplus_and_log_sigmoid)
{
  const auto exact_value = [](long double v) { return std::fmax(v, 0.0L) + std::log1p(std::exp(-std::fabs(v))); };
  check_sweep(tconv::softplus{}, exact_value, four_ulp);
  check_sweep(
    tconv::log_sigmoid{}, [exact_value](long double v) { return -exact_value(-v); }, four_ulp);
}

TEST(functors_sweep, mish)
{
  check_sweep(
    tconv::mish{}, [](long double v) { return v * std::tanh(std::log1p(std::exp(v))); }, mish_bound);
}

TEST(functors_sweep, elu_and_exponential)
{
  check_sweep(
    tconv::elu{}, [](long double v) { return v > 0 ? v : std::expm1(v); }, elu_bound);
  check_sweep(
    tconv::elu{0.3f},
    [](long double v) { return v > 0 ? v : static_cast<long double>(0.3f) * std::expm1(v); },
    elu_bound);
  check_sweep(
    tconv::exponential{}, [](long double v) { return std::exp(v); }, one_ulp);
}

TEST(functors_sweep, minimum_and_maximum)
{
  check_sweep(
    tconv::minimum{0.75f}, [](long double v) { return v < 0.75L ? v : 0.75L; }, exact);
  check_sweep(
    tconv::maximum{-0.75f}, [](long double v) { return v > -0.75L ? v : -0.75L; }, exact);
}

TEST(functors_sweep, log_one_plus)
{
  // The polynomial alone, over its whole domain: its fit is below 6e-9, the rest are four roundings.
  double worst = 0;
  for (std::uint32_t bits = 0; bits <= 0x3f800000U; bits += 257U)
  {
    float e = 0.0f;
    std::memcpy(&e, &bits, sizeof e);
    const auto expected = static_cast<double>(std::log1p(static_cast<long double>(e)));
    const auto got      = static_cast<double>(tconv::detail::log_one_plus(e));
    worst               = std::fmax(worst, std::fabs(got - expected) / ulp(expected));
  }
  EXPECT_LE(worst, 3.0);
  EXPECT_EQ(tconv::detail::log_one_plus(0.0f), 0.0f);
  testing::Test::RecordProperty("worst_ulp", std::to_string(worst));
}

// What the tables cannot say.

TEST(functors, nan_comes_out_of_every_functor)
{
  const float b[]    = {2.0f};
  const float zero[] = {0.0f};
  const tconv::coordinate at{};
  for (const float v : {nan, -nan})
  {
    EXPECT_TRUE(std::isnan(tconv::relu{}(v)));
    EXPECT_TRUE(std::isnan(tconv::leaky_relu{}(v)));
    EXPECT_TRUE(std::isnan(tconv::leaky_relu{0.0f}(v)));
    EXPECT_TRUE(std::isnan(tconv::sigmoid{}(v)));
    EXPECT_TRUE(std::isnan(tconv::tanh{}(v)));
    EXPECT_TRUE(std::isnan(tconv::gelu{}(v)));
    EXPECT_TRUE(std::isnan(tconv::gelu_tanh{}(v)));
    EXPECT_TRUE(std::isnan(tconv::silu{}(v)));
    EXPECT_TRUE(std::isnan(tconv::clamp{}(v)));
    EXPECT_TRUE(std::isnan((tconv::clamp{2.0f, 1.0f}(v))));
    EXPECT_TRUE(std::isnan(tconv::hardsigmoid{}(v)));
    EXPECT_TRUE(std::isnan(tconv::hardswish{}(v)));
    EXPECT_TRUE(std::isnan(tconv::softplus{}(v)));
    EXPECT_TRUE(std::isnan(tconv::log_sigmoid{}(v)));
    EXPECT_TRUE(std::isnan(tconv::mish{}(v)));
    EXPECT_TRUE(std::isnan(tconv::elu{}(v)));
    EXPECT_TRUE(std::isnan(tconv::elu{0.0f}(v)));
    EXPECT_TRUE(std::isnan(tconv::exponential{}(v)));
    EXPECT_TRUE(std::isnan(tconv::minimum{1.0f}(v)));
    EXPECT_TRUE(std::isnan(tconv::maximum{1.0f}(v)));
    EXPECT_TRUE(std::isnan(tconv::minimum{v}(1.0f))) << "a constant of NaN, as torch.minimum";
    EXPECT_TRUE(std::isnan(tconv::maximum{v}(1.0f)));
    EXPECT_TRUE(std::isnan(tconv::sample_bias(b, 1).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::sample_scale(zero, 1).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::sample_affine(zero, b, 1).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::sample_centred_scale(b, 1, zero).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::bias(b).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::bias(nullptr).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::scale(b).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::scale(0.0f).bind(at)(v))) << "0 * NaN";
    EXPECT_TRUE(std::isnan(tconv::affine(b, b).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::affine(zero, b).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::batch_norm(b, b).bind(at)(v)));
    EXPECT_TRUE(std::isnan(tconv::batch_norm(b, zero, b, b, 0.0f).bind(at)(v))) << "also where var + eps = 0";
  }
}

TEST(functors, nan_comes_out_of_every_reference)
{
  const float b[]    = {2.0f};
  const float zero[] = {0.0f};
  const auto apply   = [](const auto& functor) {
    double y = std::numeric_limits<double>::quiet_NaN();
    tconv::reference::apply(tconv::chain(functor), &y, 1, 1, 1);
    return y;
  };
  EXPECT_TRUE(std::isnan(apply(tconv::relu{})));
  EXPECT_TRUE(std::isnan(apply(tconv::leaky_relu{})));
  EXPECT_TRUE(std::isnan(apply(tconv::sigmoid{})));
  EXPECT_TRUE(std::isnan(apply(tconv::tanh{})));
  EXPECT_TRUE(std::isnan(apply(tconv::gelu{})));
  EXPECT_TRUE(std::isnan(apply(tconv::gelu_tanh{})));
  EXPECT_TRUE(std::isnan(apply(tconv::silu{})));
  EXPECT_TRUE(std::isnan(apply(tconv::clamp{})));
  EXPECT_TRUE(std::isnan(apply(tconv::clamp{2.0f, 1.0f})));
  EXPECT_TRUE(std::isnan(apply(tconv::hardsigmoid{})));
  EXPECT_TRUE(std::isnan(apply(tconv::hardswish{})));
  EXPECT_TRUE(std::isnan(apply(tconv::softplus{})));
  EXPECT_TRUE(std::isnan(apply(tconv::log_sigmoid{})));
  EXPECT_TRUE(std::isnan(apply(tconv::mish{})));
  EXPECT_TRUE(std::isnan(apply(tconv::elu{})));
  EXPECT_TRUE(std::isnan(apply(tconv::exponential{})));
  EXPECT_TRUE(std::isnan(apply(tconv::minimum{1.0f})));
  EXPECT_TRUE(std::isnan(apply(tconv::maximum{1.0f})));
  EXPECT_TRUE(std::isnan(tconv::reference::evaluate(tconv::minimum{nan}, 1.0)));
  EXPECT_TRUE(std::isnan(tconv::reference::evaluate(tconv::maximum{nan}, 1.0)));
  EXPECT_TRUE(std::isnan(apply(tconv::sample_bias(b, 1))));
  EXPECT_TRUE(std::isnan(apply(tconv::sample_scale(zero, 1))));
  EXPECT_TRUE(std::isnan(apply(tconv::sample_affine(zero, b, 1))));
  EXPECT_TRUE(std::isnan(apply(tconv::sample_centred_scale(b, 1, zero))));
  EXPECT_TRUE(std::isnan(apply(tconv::bias(b))));
  EXPECT_TRUE(std::isnan(apply(tconv::scale(0.0f))));
  EXPECT_TRUE(std::isnan(apply(tconv::affine(zero, b))));
  EXPECT_TRUE(std::isnan(apply(tconv::batch_norm(b, b))));
  EXPECT_TRUE(std::isnan(apply(tconv::batch_norm(b, zero, b, b, 0.0f))));
}

TEST(functors, nan_comes_out_of_eval_mode_batch_norm)
{
  // Also where var + eps = 0, which gives beta for numbers.
  for (const float eps : {1e-5f, 0.0f})
  {
    float mean = 1.0f;
    float var  = 0.0f;
    tconv::batch_norm_arguments arguments;
    arguments.running_mean = &mean;
    arguments.running_var  = &var;
    arguments.eps          = eps;
    double y[]             = {std::numeric_limits<double>::quiet_NaN(), 1.0};
    tconv::reference::batch_norm_eval(y, 1, 1, 2, arguments);
    EXPECT_TRUE(std::isnan(y[0])) << "eps = " << eps;
    EXPECT_EQ(y[1], 0.0);
  }
}

TEST(functors, relu_of_negative_zero_is_zero)
{
  // Of either sign: torch.relu(-0.0) is -0.0, max(-0, +0) is +0, and both compare equal.
  EXPECT_EQ(tconv::relu{}(-0.0f), 0.0f);
  EXPECT_EQ(tconv::reference::evaluate(tconv::relu{}, -0.0), 0.0);
  EXPECT_EQ(tconv::leaky_relu{}(-0.0f), 0.0f);
  EXPECT_EQ(tconv::clamp{}(-0.0f), 0.0f);
}

TEST(functors, odd_and_symmetric_where_the_function_is)
{
  // sigmoid(v) + sigmoid(-v) = 1 and tanh(-v) = -tanh(v): a wrong branch for negative arguments would show.
  for (float v = 0.0f; v < 20.0f; v += 0.37f)
  {
    EXPECT_NEAR(tconv::sigmoid{}(v) + tconv::sigmoid{}(-v), 1.0f, 4 * 0x1p-24f) << v;
    EXPECT_EQ(tconv::tanh{}(-v), -tconv::tanh{}(v)) << v;
  }
  EXPECT_EQ(tconv::sigmoid{}(0.0f), 0.5f);
}

TEST(functors, sigmoid_tails_of_fp16_inputs)
{
  // onnxruntime #14727: 0.0 and 0.9990 were returned. Arguments are fp16 numbers, results compared as fp16 would store them.
  struct row
  {
    float v = 0.0f;
    double value;
    double fp16_ulp;
  };
  const row rows[] = {{-7.84765625f, 3.9053e-4, 0x1p-22},
                      {7.33203125f, 0.99951172, 0x1p-11},
                      {-7.80078125f, 4.0936e-4, 0x1p-22},
                      {6.6015625f, 0.99853516, 0x1p-11},
                      {-12.0f, 6.1393e-6, 0x1p-24},
                      {-17.0f, 5.9605e-8, 0x1p-24},
                      {12.0f, 1.0, 0x1p-11}};
  for (const row& r : rows)
  {
    EXPECT_NEAR(static_cast<double>(tconv::sigmoid{}(r.v)), r.value, r.fp16_ulp) << r.v;
  }
}

// Linear functors.

TEST(linear_functors, against_the_table)
{
  const tconv::coordinate at{};
  for (const tables::linear_row& row : tables::linear)
  {
    const auto v      = static_cast<double>(row.v);
    const auto factor = static_cast<double>(row.factor);
    const auto f32    = [](float value) { return static_cast<double>(value); };
    SCOPED_TRACE(testing::Message() << row.v << ", " << row.factor << ", " << row.offset);
    // One rounding each: a sum, a product, a fused multiply-add.
    EXPECT_TRUE(within(f32(tconv::bias(&row.offset).bind(at)(row.v)), row.bias, 0.5 * ulp(row.bias)));
    EXPECT_TRUE(within(f32(tconv::scale(&row.factor).bind(at)(row.v)), row.scale, 0.5 * ulp(row.scale)));
    EXPECT_TRUE(within(f32(tconv::scale(row.factor).bind(at)(row.v)), row.scale, 0.5 * ulp(row.scale)));
    EXPECT_TRUE(
      within(f32(tconv::affine(&row.factor, &row.offset).bind(at)(row.v)), row.affine, 0.5 * ulp(row.affine)));
    EXPECT_EQ(tconv::bias(nullptr).bind(at)(row.v), row.v) << "no bias";

    // The double form and the reference: products of two floats are exact, so at most one rounding of a sum.
    const double scale_of_sum = std::fabs(factor * v) + std::fabs(static_cast<double>(row.offset));
    EXPECT_TRUE(within(tconv::bias(&row.offset).bind(at)(v), row.bias, 0x1p-52 * std::fabs(row.bias)));
    EXPECT_TRUE(within(tconv::scale(row.factor).bind(at)(v), row.scale, 0x1p-52 * std::fabs(row.scale)));
    EXPECT_TRUE(within(tconv::affine(&row.factor, &row.offset).bind(at)(v), row.affine, 0x1p-52 * scale_of_sum));
    const auto reference = [&](const auto& functor) { return tconv::reference::evaluate(functor.bind(at), v); };
    EXPECT_TRUE(within(reference(tconv::bias(&row.offset)), row.bias, 1e-14 * std::fabs(row.bias)));
    EXPECT_TRUE(within(reference(tconv::scale(row.factor)), row.scale, 1e-14 * std::fabs(row.scale)));
    EXPECT_TRUE(within(reference(tconv::affine(&row.factor, &row.offset)), row.affine, 1e-14 * scale_of_sum));
  }
}

TEST(linear_functors, operands_are_read_per_channel)
{
  const float values[] = {1.0f, 10.0f, 100.0f};
  const float others[] = {-1.0f, -2.0f, -3.0f};
  for (std::int64_t c = 0; c < 3; ++c)
  {
    const tconv::coordinate at{7, c};
    EXPECT_EQ(tconv::bias(values).bind(at)(0.5f), 0.5f + values[c]);
    EXPECT_EQ(tconv::scale(values).bind(at)(0.5f), 0.5f * values[c]);
    EXPECT_EQ(tconv::scale(3.0f).bind(at)(0.5f), 1.5f) << "one factor for all channels";
    EXPECT_EQ(tconv::affine(values, others).bind(at)(2.0f), 2.0f * values[c] + others[c]);
    const float one[] = {1.0f, 1.0f, 1.0f};
    EXPECT_EQ(tconv::batch_norm(values, one, nullptr, others, 0.0f).bind(at)(values[c] + 1.0f), others[c] + 1.0f);
    EXPECT_EQ(tconv::batch_norm(values, one, others, nullptr, 0.0f).bind(at)(values[c] + 1.0f), others[c]);
  }
}

TEST(linear_functors, operands_are_read_per_sample_and_channel)
{
  // Three samples of two channels; rows of five, as if they were part of a wider tensor.
  float values[15];
  float others[15];
  for (int i = 0; i < 15; ++i)
  {
    values[i] = static_cast<float>(i + 1);
    others[i] = static_cast<float>(-10 * i);
  }
  for (const std::int64_t stride : {2, 5, 0})
  {
    for (std::int64_t n = 0; n < 3; ++n)
    {
      for (std::int64_t c = 0; c < 2; ++c)
      {
        const tconv::coordinate at{n, c};
        const std::int64_t i = n * stride + c;
        EXPECT_EQ(tconv::sample_bias(values, stride).bind(at)(0.5f), 0.5f + values[i]);
        EXPECT_EQ(tconv::sample_scale(values, stride).bind(at)(0.5f), 0.5f * values[i]);
        EXPECT_EQ(tconv::sample_affine(values, others, stride).bind(at)(2.0f), 2.0f * values[i] + others[i]);
        EXPECT_EQ(tconv::sample_centred_scale(others, stride, values).bind(at)(2.0f), values[c] * (2.0f - others[i]));
        EXPECT_EQ(tconv::sample_centred_scale(others, stride, values).bind(at)(others[i]), 0.0f);
      }
    }
  }
  double y[] = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0};
  tconv::reference::apply(tconv::chain(tconv::sample_affine(values, others, 5)), y, 3, 2, 1);
  for (int i = 0; i < 6; ++i)
  {
    const int at = i / 2 * 5 + i % 2;
    EXPECT_EQ(y[i], static_cast<double>(values[at] + others[at])) << "reference, element " << i;
  }
}

TEST(linear_functors, batch_norm_against_the_table)
{
  const tconv::coordinate at{};
  for (const tables::batch_norm_row& r : tables::batch_norm)
  {
    SCOPED_TRACE(testing::Message() << "v " << r.v << " mean " << r.mean << " var " << r.variance << " gamma "
                                    << r.gamma << " beta " << r.beta << " eps " << r.eps);
    const tconv::batch_norm functor(&r.mean, &r.variance, &r.gamma, &r.beta, r.eps);
    const double beta   = static_cast<double>(r.beta);
    const double change = std::fabs(r.value - beta);
    // var + eps, root and quotient round (1/2 + 1 + 1 u), so does v - mean; the last rounding is that of the result. One more
    // half u for the second order and for r.value - beta in double.
    EXPECT_TRUE(within(static_cast<double>(functor.bind(at)(r.v)), r.value, 4 * 0x1p-24 * change + 0.5 * ulp(r.value)));

    // The references know nothing of the fp32 form: what they are told are fp32 numbers, what they compute is double.
    const double slack = 1e-14 * (change + std::fabs(beta));
    double y           = static_cast<double>(r.v);
    tconv::reference::apply(tconv::chain(functor), &y, 1, 1, 1);
    EXPECT_TRUE(within(y, r.value, slack)) << "reference of the chain";

    y              = static_cast<double>(r.v);
    float mean     = r.mean;
    float variance = r.variance;
    tconv::batch_norm_arguments arguments;
    arguments.gamma        = &r.gamma;
    arguments.beta         = &r.beta;
    arguments.running_mean = &mean;
    arguments.running_var  = &variance;
    arguments.eps          = r.eps;
    tconv::reference::batch_norm_eval(&y, 1, 1, 1, arguments);
    EXPECT_TRUE(within(y, r.value, slack)) << "reference of the layer";
    EXPECT_EQ(mean, r.mean) << "eval mode leaves the statistics alone";
    EXPECT_EQ(variance, r.variance);
  }
}

TEST(linear_functors, batch_norm_at_the_mean_is_exactly_beta)
{
  const float mean  = 0.1f;
  const float var   = 0.3f;
  const float gamma = 1234.5f;
  const float beta  = -0.7f;
  const auto bound  = tconv::batch_norm(&mean, &var, &gamma, &beta).bind({});
  EXPECT_EQ(bound(mean), beta);
  EXPECT_EQ(bound(static_cast<double>(mean)), static_cast<double>(beta));
}

TEST(linear_functors, batch_norm_defaults)
{
  // No gamma, no beta, eps = 1e-5 as torch.nn.BatchNorm3d.
  const float mean = 1.0f;
  const float var  = 4.0f;
  EXPECT_NEAR(static_cast<double>(tconv::batch_norm(&mean, &var).bind({})(3.0f)),
              2.0 / std::sqrt(4.0 + static_cast<double>(1e-5f)),
              4 * 0x1p-24);
}

TEST(linear_functors, batch_norm_without_variance_and_eps_is_beta)
{
  const float mean  = 5.0f;
  const float var   = 0.0f;
  const float gamma = 3.0f;
  const float beta  = 0.125f;
  const auto bound  = tconv::batch_norm(&mean, &var, &gamma, &beta, 0.0f).bind({});
  for (const float v : {5.0f, 0.0f, -1e30f, 3e38f})
  {
    EXPECT_EQ(bound(v), beta) << v;
  }
  float m = mean;
  float s = var;
  tconv::batch_norm_arguments arguments;
  arguments.gamma        = &gamma;
  arguments.beta         = &beta;
  arguments.running_mean = &m;
  arguments.running_var  = &s;
  arguments.eps          = 0.0f;
  double y[]             = {5.0, 0.0, -1e30};
  tconv::reference::batch_norm_eval(y, 1, 1, 3, arguments);
  for (const double v : y)
  {
    EXPECT_EQ(v, static_cast<double>(beta));
  }
}

TEST(linear_functors, slope_is_the_derivative)
{
  // What passes a mean through a chain relies on it.
  const float b[]  = {2.5f};
  const float c[]  = {0.75f};
  const float d[]  = {0.5f};
  const auto check = [](const auto& bound) { EXPECT_NEAR(bound(2.0) - bound(1.0), bound.slope(), 1e-15); };
  check(tconv::bias(b).bind({}));
  check(tconv::scale(b).bind({}));
  check(tconv::affine(b, c).bind({}));
  check(tconv::batch_norm(b, c, d, b).bind({}));
  check(tconv::sample_bias(b, 1).bind({}));
  check(tconv::sample_scale(c, 1).bind({}));
  check(tconv::sample_affine(b, c, 1).bind({}));
  check(tconv::sample_centred_scale(b, 1, c).bind({}));
}

} // namespace
