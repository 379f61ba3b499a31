// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Complex numbers as the sum of two bf16 pairs, and products of their tiles on tensor cores.
///
/// A pair (re, im) is one 32-bit word, and two neighbours of a matrix instruction's summation index: with A and B of
/// such words the instruction sums Re(conj(a) b), and with B turned by a quarter Im(conj(a) b). bf16 has the range of
/// fp32, so nothing is scaled; high and low part together have 16 bits, and products of all four combinations keep
/// those.

#include "../thread/element.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// A complex number, rounded to 16 bits per component: high + low, each (re, im) in bf16.
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

/// (re, im) -> (im, -re), so that re re' + im im' of the result is Im(conj(a) b).
TCONV_DEVICE unsigned quarter_turn(unsigned pair)
{
  return __byte_perm(pair, 0, 0x1032) ^ 0x80000000u;
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
