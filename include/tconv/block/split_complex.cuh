// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Complex numbers as sums of two bf16 pairs, and products of their tiles on tensor cores.
///
/// A word holds one component of two samples, two neighbours of a matrix instruction's summation index, which runs over samples. With
/// real and imaginary parts as rows and columns of their own, one instruction has all four products of the components of 8 by 4
/// numbers, and a lane the four that belong together: conj(a) b is two additions away. bf16 has the range of fp32, so nothing is
/// scaled; high and low part together have 16 bits, and products of all four combinations keep those.

#include "../thread/element.cuh"
#include "mma.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// A complex number of one sample, rounded to 16 bits per component: high + low, each (re, im) in bf16.
struct split_complex
{
  unsigned high;
  unsigned low;

  TCONV_DEVICE static split_complex of(float2 v)
  {
    const unsigned high = pack_pair<__nv_bfloat16>(v.x, v.y);
    // A bf16 is the upper half of a float.
    return {
      high, pack_pair<__nv_bfloat16>(v.x - __uint_as_float(high << 16), v.y - __uint_as_float(high & 0xffff0000u))};
  }
};

/// Words of two samples, the first in their lower halves: re and im of the high parts, then of the low ones, or where \p
/// swapped the low ones first.
TCONV_DEVICE uint4 join_samples(const split_complex& first, const split_complex& second, bool swapped)
{
  constexpr unsigned lower = 0x5410u;
  constexpr unsigned upper = 0x7632u;
  const uint2 high         = {__byte_perm(first.high, second.high, lower), __byte_perm(first.high, second.high, upper)};
  const uint2 low          = {__byte_perm(first.low, second.low, lower), __byte_perm(first.low, second.low, upper)};
  return swapped ? make_uint4(low.x, low.y, high.x, high.y) : make_uint4(high.x, high.y, low.x, low.y);
}

/// Fragments of multiply_components(): lane 4 g + t has of number g re and im of samples 2 t and 2 t + 1, then of samples 2 t + 8 and
/// 2 t + 9.
struct component_rows
{
  uint2 high[2];
  uint2 low[2];
};
/// Likewise component g % 2 of number g / 2.
struct component_columns
{
  unsigned high[2];
  unsigned low[2];
};

/// sums += the products of the components of 8 numbers by 4, over 16 samples: lane 4 g + t gets of numbers g and t re re, re im,
/// im re and im im. Called by a warp.
TCONV_DEVICE void multiply_components(float (&sums)[4], const component_rows& a, const component_columns& b)
{
  const unsigned high[4] = {a.high[0].x, a.high[0].y, a.high[1].x, a.high[1].y};
  const unsigned low[4]  = {a.low[0].x, a.low[0].y, a.low[1].x, a.low[1].y};
  // Small products first: the instruction truncates what it adds to.
  multiply_add_bf16(sums, low, b.low[0], b.low[1]);
  multiply_add_bf16(sums, low, b.high[0], b.high[1]);
  multiply_add_bf16(sums, high, b.low[0], b.low[1]);
  multiply_add_bf16(sums, high, b.high[0], b.high[1]);
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
