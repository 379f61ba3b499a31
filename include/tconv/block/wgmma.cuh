// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Warpgroup matrix instructions of sm_90a, which CUDA's headers do not wrap: D += A * B with D and A in registers, B in shared
/// memory. A warpgroup is 4 consecutive warps, the first of which is a multiple of 4; all of it calls every function here.
///
/// Fragments of D (64 rows x Columns): warp i of the group holds rows 16 i ... 16 i + 15; its lane holds in sums[4 j + 2 r + e] row
/// lane / 4 + 8 r, column 8 j + 2 (lane % 4) + e.
/// Fragments of A (64 x K, 4 registers of 32 bits): register 2 q + r holds row lane / 4 + 8 r, and of K, in 16-bit elements, numbers
/// 8 q + 2 (lane % 4) + {0, 1}, in 32-bit elements number 4 q + lane % 4.
/// B (K x Columns) lies in core matrices of 8 columns x 16 bytes of K, a column's 16 bytes together: [Columns / 8][2][8][16 bytes].
///
/// The products are asynchronous: between multiply_... and wait() neither sums nor a may be touched.

#include "../detail/config.hpp"

// Only the machine code of sm_90a has these instructions; host code has to be told by TCONV_ENABLE_SM90A that it is there.
#if defined(TCONV_ENABLE_SM90A) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#  define TCONV_DETAIL_HAS_WGMMA 1
#else
#  define TCONV_DETAIL_HAS_WGMMA 0
#endif

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

namespace wgmma
{

#if TCONV_DETAIL_HAS_WGMMA

/// Orders this thread's accesses to registers before the products that follow.
TCONV_DEVICE void fence()
{
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes the group of products since the last commit.
TCONV_DEVICE void commit()
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most \p Pending groups are under way.
template <int Pending>
TCONV_DEVICE void wait()
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Gives registers back: at most Registers per thread of this warpgroup from here on.
template <int Registers>
TCONV_DEVICE void release_registers()
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

/// Takes registers: Registers per thread of this warpgroup from here on.
template <int Registers>
TCONV_DEVICE void take_registers()
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

/// Describes B at \p address in shared memory, a multiple of 16: core matrices that follow each other along K are 128 bytes apart,
/// along the columns 256.
TCONV_DEVICE uint64_t describe(unsigned address)
{
  constexpr uint64_t strides = (uint64_t{128 / 16} << 16) | (uint64_t{256 / 16} << 32);
  return strides | ((address >> 4) & 0x3fffu);
}

#  define TCONV_WGMMA_QUAD(i) "+f"(sums[i]), "+f"(sums[(i) + 1]), "+f"(sums[(i) + 2]), "+f"(sums[(i) + 3])
#  define TCONV_WGMMA_ROW(i)                                                                                           \
    TCONV_WGMMA_QUAD(i), TCONV_WGMMA_QUAD((i) + 4), TCONV_WGMMA_QUAD((i) + 8), TCONV_WGMMA_QUAD((i) + 12)

// The operands of an instruction with 32 columns: its accumulators, then A, the descriptor of B and whether D is added.
#  define TCONV_WGMMA_32(shape_and_types, immediates)                                                                  \
    asm volatile("{\n"                                                                                                 \
                 ".reg .pred accumulate;\n"                                                                            \
                 "setp.ne.b32 accumulate, %21, 0;\n"                                                                   \
                 "wgmma.mma_async.sync.aligned." shape_and_types " {"                                                  \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "                             \
                 "{%16, %17, %18, %19}, %20, accumulate, " immediates ";\n"                                            \
                 "}\n"                                                                                                 \
                 : TCONV_WGMMA_ROW(0)                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))

// The operands of an instruction with 64 columns: its accumulators, then A, the descriptor of B and whether D is added.
#  define TCONV_WGMMA_64(shape_and_types, immediates)                                                                  \
    asm volatile("{\n"                                                                                                 \
                 ".reg .pred accumulate;\n"                                                                            \
                 "setp.ne.b32 accumulate, %37, 0;\n"                                                                   \
                 "wgmma.mma_async.sync.aligned." shape_and_types " {"                                                  \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                              \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                   \
                 "{%32, %33, %34, %35}, %36, accumulate, " immediates ";\n"                                            \
                 "}\n"                                                                                                 \
                 : TCONV_WGMMA_ROW(0), TCONV_WGMMA_ROW(16)                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))

// The operands of an instruction with 128 columns: its accumulators, then A, the descriptor of B and whether D is added.
#  define TCONV_WGMMA_128(shape_and_types, immediates)                                                                 \
    asm volatile("{\n"                                                                                                 \
                 ".reg .pred accumulate;\n"                                                                            \
                 "setp.ne.b32 accumulate, %69, 0;\n"                                                                   \
                 "wgmma.mma_async.sync.aligned." shape_and_types " {"                                                  \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                              \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                    \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                    \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                   \
                 "{%64, %65, %66, %67}, %68, accumulate, " immediates ";\n"                                            \
                 "}\n"                                                                                                 \
                 : TCONV_WGMMA_ROW(0), TCONV_WGMMA_ROW(16), TCONV_WGMMA_ROW(32), TCONV_WGMMA_ROW(48)                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))

/// sums += A * B for fp16 operands, K = 16.
template <int Columns>
TCONV_DEVICE void multiply_fp16(float (&sums)[Columns / 2], const unsigned (&a)[4], uint64_t b)
{
  static_assert(Columns == 32 || Columns == 64 || Columns == 128, "tconv: no instruction with so many columns");
  if constexpr (Columns == 32)
  {
    TCONV_WGMMA_32("m64n32k16.f32.f16.f16", "1, 1, 0");
  }
  else if constexpr (Columns == 64)
  {
    TCONV_WGMMA_64("m64n64k16.f32.f16.f16", "1, 1, 0");
  }
  else if constexpr (Columns == 128)
  {
    TCONV_WGMMA_128("m64n128k16.f32.f16.f16", "1, 1, 0");
  }
}

/// sums += A * B for bf16 operands, K = 16.
template <int Columns>
TCONV_DEVICE void multiply_bf16(float (&sums)[Columns / 2], const unsigned (&a)[4], uint64_t b)
{
  static_assert(Columns == 32 || Columns == 64 || Columns == 128, "tconv: no instruction with so many columns");
  if constexpr (Columns == 32)
  {
    TCONV_WGMMA_32("m64n32k16.f32.bf16.bf16", "1, 1, 0");
  }
  else if constexpr (Columns == 64)
  {
    TCONV_WGMMA_64("m64n64k16.f32.bf16.bf16", "1, 1, 0");
  }
  else if constexpr (Columns == 128)
  {
    TCONV_WGMMA_128("m64n128k16.f32.bf16.bf16", "1, 1, 0");
  }
}

/// sums += A * B for tf32 operands, K = 8.
template <int Columns>
TCONV_DEVICE void multiply_tf32(float (&sums)[Columns / 2], const unsigned (&a)[4], uint64_t b)
{
  static_assert(Columns == 32 || Columns == 64 || Columns == 128, "tconv: no instruction with so many columns");
  if constexpr (Columns == 32)
  {
    TCONV_WGMMA_32("m64n32k8.f32.tf32.tf32", "1, 1");
  }
  else if constexpr (Columns == 64)
  {
    TCONV_WGMMA_64("m64n64k8.f32.tf32.tf32", "1, 1");
  }
  else if constexpr (Columns == 128)
  {
    TCONV_WGMMA_128("m64n128k8.f32.tf32.tf32", "1, 1");
  }
}

#  undef TCONV_WGMMA_32
#  undef TCONV_WGMMA_64
#  undef TCONV_WGMMA_128
#  undef TCONV_WGMMA_ROW
#  undef TCONV_WGMMA_QUAD

#endif

} // namespace wgmma

} // namespace block

TCONV_CUDA_NAMESPACE_END
