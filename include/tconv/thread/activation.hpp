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
  float negative_slope = 0.01f;

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
/// 180 ulp (178 measured at -12.7). -inf gives its limit -0 (PyTorch: NaN).
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

/// min(max(v, low), high). torch.clamp: with low > high the result is high.
struct clamp
{
  float low  = 0.0f;
  float high = 1.0f;

  TCONV_HOST_DEVICE float operator()(float v) const
  {
    const float raised = v < low ? low : v;
    return raised > high ? high : raised;
  }
};

TCONV_NAMESPACE_END
