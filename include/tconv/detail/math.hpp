// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// fp32 mathematics that reads the same on the host, on the device and under NVRTC.

#include "config.hpp"

#if !defined(__CUDACC_RTC__)
#  include <cmath>
#endif

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// +infinity without a host-only header.
TCONV_HOST_DEVICE float infinity()
{
#if defined(__CUDA_ARCH__)
  return __int_as_float(0x7f800000);
#else
  return HUGE_VALF;
#endif
}

/// 1 / v within 1 ulp, 0 where that is below 2^-126: one instruction on the device instead of the eight of an IEEE division.
TCONV_HOST_DEVICE float fast_reciprocal(float v)
{
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
#else
  return 1.0f / v;
#endif
}

/// 1 / v for normal v and 1/v, rounded to nearest but for rare last bits: an approximation and one Newton step, without the
/// branch of an IEEE division, which would keep neighbouring rows from overlapping.
TCONV_HOST_DEVICE float branchless_reciprocal(float v)
{
#if defined(__CUDA_ARCH__)
  const float r = fast_reciprocal(v);
  return ::fmaf(::fmaf(-v, r, 1.0f), r, r);
#else
  return 1.0f / v;
#endif
}

/// exp(v) within 2 + 1.2 |v| ulp, 0 where that is below 2^-126: two instructions on the device instead of the eight of expf.
TCONV_HOST_DEVICE float fast_exp(float v)
{
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v * 1.4426950408889634f));
  return result;
#else
  return ::expf(v);
#endif
}

/// log(1 + e) for 0 <= e <= 1, within 3 ulp also where e is tiny: 2 atanh(e / (2 + e)) by a polynomial, a third of the
/// instructions of log1pf and no branch.
TCONV_HOST_DEVICE float log_one_plus(float e)
{
  // The series of 2 atanh(q / 2) = q + q^3 / 12 + q^5 / 80 + ... with coefficients fitted for 0 <= q <= 2/3: the polynomial is
  // within 6e-9 of it, relative.
  const float q = e * fast_reciprocal(::fmaf(0.5f, e, 1.0f));
  const float z = q * q;
  float tail    = ::fmaf(5.471091e-4f, z, 2.187641e-3f);
  tail          = ::fmaf(tail, z, 1.2506727e-2f);
  tail          = ::fmaf(tail, z, 8.333302e-2f);
  return ::fmaf(q * z, tail, q);
}

TCONV_HOST_DEVICE float square_root(float v)
{
  return ::sqrtf(v);
}
TCONV_HOST_DEVICE double square_root(double v)
{
  return ::sqrt(v);
}

/// 1 / sqrt(v) within 2 ulp, infinite at 0.
TCONV_HOST_DEVICE float reciprocal_square_root(float v)
{
#if defined(__CUDA_ARCH__)
  return ::rsqrtf(v);
#else
  return 1.0f / ::sqrtf(v);
#endif
}

/// The larger value, or the other operand where one is NaN: for running maxima whose row is poisoned by other means.
TCONV_HOST_DEVICE float max_ignoring_nan(float a, float b)
{
  return ::fmaxf(a, b);
}

/// The larger value, NaN where one is: one instruction on the device.
TCONV_HOST_DEVICE float max_propagating_nan(float a, float b)
{
#if defined(__CUDA_ARCH__)
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a > b || a != a ? a : b;
#endif
}

/// The smaller value, NaN where one is: one instruction on the device.
TCONV_HOST_DEVICE float min_propagating_nan(float a, float b)
{
#if defined(__CUDA_ARCH__)
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a < b || a != a ? a : b;
#endif
}

} // namespace detail

TCONV_NAMESPACE_END
