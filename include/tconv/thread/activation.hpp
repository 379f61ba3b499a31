// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Pointwise activations: functors float -> float that need no operands. Called by one thread, for one value.
///
/// All propagate NaN. Errors are against the exact function of the fp32 argument, in units of the last place (ulp), as
/// measured over the tests' sweeps; the formulas are PyTorch's.

#include "../detail/math.hpp"

TCONV_NAMESPACE_BEGIN

/// max(v, 0).
struct relu
{
  TCONV_HOST_DEVICE float operator()(float v) const { return v < 0.0f ? 0.0f : v; }
};

/// v for v >= 0, negative_slope * v below. torch.nn.LeakyReLU.
struct leaky_relu
{
  float negative_slope = 0.01f; ///< factor of negative values

  TCONV_HOST_DEVICE float operator()(float v) const { return v < 0.0f ? v * negative_slope : v; }
};

/// 1 / (1 + exp(-v)). Within 4 ulp on the host (2.0 measured) and 4 + 1.2 |v| ulp on the device, where results below 2^-126 are 0.
struct sigmoid
{
  TCONV_HOST_DEVICE float operator()(float v) const
  {
#if defined(__CUDA_ARCH__)
    // exp(-v) may overflow: the reciprocal of infinity is the right 0. Small results keep their relative accuracy.
    return detail::fast_reciprocal(1.0f + detail::fast_exp(-v));
#else
    // exp of a negative argument only: subnormal results survive.
    const float e = ::expf(-::fabsf(v));
    return (v < 0.0f ? e : 1.0f) / (1.0f + e);
#endif
  }
};

/// Hyperbolic tangent, within 3 ulp (2.1 measured).
struct tanh
{
  TCONV_HOST_DEVICE float operator()(float v) const { return ::tanhf(v); }
};

/// v * Phi(v) with the normal distribution function Phi, by erf: torch.nn.GELU(approximate='none').
///
/// A few ulp where |v| < 2; in the lower tail, where the result is below 1e-30, the rounding of the argument is magnified to
/// 200 ulp (178 measured at -12.7 on the host, 198 at -13.1 on the device). -inf gives its limit -0 (PyTorch: NaN).
struct gelu
{
  TCONV_HOST_DEVICE float operator()(float v) const
  {
    // erfc keeps the lower tail, where 1 + erf would cancel. -inf is its limit 0, not -inf * 0.
    constexpr float sqrt_half = 0.70710678118654752f;
    const float tail          = 0.5f * ::erfcf(-v * sqrt_half);
    return v < -15.0f ? -0.0f : v * tail;
  }
};

/// 0.5 v (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3))): torch.nn.GELU(approximate='tanh'). Accuracy as gelu on the host (175 ulp
/// measured at -9.9); -inf gives -0 (PyTorch: NaN).
struct gelu_tanh
{
  TCONV_HOST_DEVICE float operator()(float v) const
  {
    // 0.5 (1 + tanh(u)) = sigmoid(2u), which does not cancel in the lower tail.
    constexpr float two_sqrt_two_over_pi = 1.5957691216057308f;
    const float gate                     = sigmoid{}(two_sqrt_two_over_pi * (v + 0.044715f * v * v * v));
    return v < -15.0f ? -0.0f : v * gate;
  }
};

/// v * sigmoid(v), also known as swish. torch.nn.SiLU. Accuracy as sigmoid; -inf gives -0 (PyTorch: NaN).
struct silu
{
  TCONV_HOST_DEVICE float operator()(float v) const { return v < -120.0f ? -0.0f : v * sigmoid{}(v); }
};

/// min(max(v + 3, 0), 6) / 6, within 2 ulp (1.4 measured). torch.nn.Hardsigmoid.
struct hardsigmoid
{
  TCONV_HOST_DEVICE float operator()(float v) const
  {
    // v + 3 is exact where it is small. 6 times the rounded 1/6 is 1.
    constexpr float sixth = 0.16666667f;
    const float raised    = v + 3.0f < 0.0f ? 0.0f : v + 3.0f;
    return (raised > 6.0f ? 6.0f : raised) * sixth;
  }
};

/// v * hardsigmoid(v). torch.nn.Hardswish. Within 4 ulp (2.5 measured); v itself from 3 on; -inf gives -0 (PyTorch: NaN).
struct hardswish
{
  TCONV_HOST_DEVICE float operator()(float v) const { return v < -3.0f ? -0.0f : v * hardsigmoid{}(v); }
};

/// log(1 + exp(v)), everywhere: torch.nn.Softplus with beta = 1, whose threshold of 20 changes nothing that fp32 can hold.
///
/// Within 4 ulp on the host (2.8 measured). On the device within 8 ulp for v >= 0 and 8 + 1.2 |v| ulp below, by the errors that
/// NVIDIA documents for the instructions; results below 2^-126 are 0 there.
struct softplus
{
  TCONV_HOST_DEVICE float operator()(float v) const
  {
    // Both terms are positive, so nothing cancels; exp of a negative argument cannot overflow.
    return (v > 0.0f ? v : 0.0f) + detail::log_one_plus(detail::fast_exp(-::fabsf(v)));
  }
};

/// log(sigmoid(v)) = -log(1 + exp(-v)). torch.nn.LogSigmoid. Accuracy of softplus at -v.
struct log_sigmoid
{
  TCONV_HOST_DEVICE float operator()(float v) const { return -softplus{}(-v); }
};

/// v * tanh(log(1 + exp(v))). torch.nn.Mish. Within 6 ulp on the host (4.4 measured) down to v = -87.3, below which the
/// rounding of the subnormal exp(v) is multiplied by v. On the device within 9 ulp for v >= 0 and 9 + 1.2 |v| ulp below, by the
/// errors that NVIDIA documents for the instructions; 0 where exp(v) is below 2^-126. -inf gives -0 (PyTorch: NaN).
struct mish
{
  TCONV_HOST_DEVICE float operator()(float v) const
  {
    // tanh(log(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1) without the difference; 1 to fp32 long before v = 20.
    const float e         = detail::fast_exp(v > 20.0f ? 20.0f : v);
    const float numerator = e * (e + 2.0f);
    const float gate      = numerator * detail::fast_reciprocal(numerator + 2.0f);
    return v < -120.0f ? -0.0f : v * gate;
  }
};

/// v for v > 0, alpha * (exp(v) - 1) below. torch.nn.ELU. Within 3 ulp (1.4 measured).
struct elu
{
  float alpha = 1.0f; ///< the limit at -inf is -alpha

  TCONV_HOST_DEVICE float operator()(float v) const
  {
    // A sum of which one term is 0, for a choice would become a branch around expm1f.
    const float above = v > 0.0f ? v : 0.0f;
    return above + alpha * ::expm1f(v > 0.0f ? 0.0f : v);
  }
};

/// exp(v). Within 1 ulp on the host (0.51 measured), 2 + 1.2 |v| ulp on the device, where results below 2^-126 are 0.
struct exponential
{
  TCONV_HOST_DEVICE float operator()(float v) const { return detail::fast_exp(v); }
};

/// min(v, value). torch.minimum: NaN where either is.
struct minimum
{
  float value = 0.0f; ///< the result is at most this

  TCONV_HOST_DEVICE float operator()(float v) const { return detail::min_propagating_nan(v, value); }
};

/// max(v, value). torch.maximum: NaN where either is.
struct maximum
{
  float value = 0.0f; ///< the result is at least this

  TCONV_HOST_DEVICE float operator()(float v) const { return detail::max_propagating_nan(v, value); }
};

/// min(max(v, low), high). torch.clamp: with low > high the result is high. torch.nn.Hardtanh is clamp{-1, 1}, ReLU6
/// clamp{0, 6}.
struct clamp
{
  float low  = 0.0f; ///< lower limit
  float high = 1.0f; ///< upper limit

  TCONV_HOST_DEVICE float operator()(float v) const
  {
    const float raised = v < low ? low : v;
    return raised > high ? high : raised;
  }
};

TCONV_NAMESPACE_END
