// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Matrix instructions of one warp, compute capability 8.0 and newer. Lane 4 g + t has of the sums columns 2 t and 2 t + 1 of row g (sums[0], sums[1])
/// and of row g + 8.

#include "../detail/config.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// sums[16][8] += a[16][16] b[16][8] in bf16, two neighbours of the summation index in a word: the lane has of a words
/// t of rows g and g + 8 (a[0], a[1]) and words t + 4 of both (a[2], a[3]), of b the same words of column g. Called by
/// a warp.
TCONV_DEVICE void multiply_add_bf16(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same in fp16. Called by a warp.
TCONV_DEVICE void multiply_add_fp16(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// sums[16][8] += a[16][8] b[8][8] in TF32, one number a word; else the same. Called by a warp.
TCONV_DEVICE void multiply_add_tf32(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8 x 8 matrices of 16 bits (or 8 x 4 of 32), 128 bytes each and behind each other: of matrix i the lane gets word lane % 4 of row
/// lane / 4 in words[i]. \p address: in shared memory, of row lane % 8 of matrix lane / 8. Called by a warp.
TCONV_DEVICE void load_matrices(unsigned (&words)[4], unsigned address)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address));
}

/// A float as the sum of two TF32 numbers, 22 bits of it; the low one is rounded towards zero by the instruction that
/// reads it.
struct split_float
{
  unsigned high;
  unsigned low;

  TCONV_DEVICE static split_float of(float v)
  {
    const unsigned high = __float_as_uint(v) & 0xffffe000u;
    return {high, __float_as_uint(v - __uint_as_float(high))};
  }
};

} // namespace block

TCONV_CUDA_NAMESPACE_END
