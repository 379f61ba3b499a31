// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Warpgroup matrix instructions of sm_90a, which CUDA's headers do not wrap: D += A * B with D in registers, A and B in shared
/// memory. A warpgroup is 4 consecutive warps, the first of which is a multiple of 4; all of it calls every function here.
///
/// Fragments of D (64 rows x 104 columns): warp i of the group holds rows 16 i ... 16 i + 15; its lane holds in sums[4 j + 2 r + e] row
/// lane / 4 + 8 r, column 8 j + 2 (lane % 4) + e.
/// A (64 rows x K) and B (K x Columns) lie in core matrices of 8 rows (columns) x 16 bytes of K, a row's 16 bytes together and the
/// rows one behind the other. Where the next core matrices are, along K and along the rows, is up to the descriptor.
///
/// The products are asynchronous: between multiply_... and wait() neither sums nor the operands may be touched. Operands that threads
/// have written must have been made visible to the asynchronous proxy.

#include "../detail/config.hpp"
#include "../tuning/implicit_gemm.hpp"

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

/// Describes an operand at \p address in shared memory, a multiple of 16: core matrices that follow each other along K are \p along_k
/// bytes apart, along rows (columns) \p along_rows, multiples of 16 below 2^18. Adding n to a descriptor moves it by 16 n bytes.
TCONV_DEVICE uint64_t describe(unsigned address, unsigned along_k, unsigned along_rows)
{
  return static_cast<uint64_t>(address >> 4 | along_k >> 4 << 16) | static_cast<uint64_t>(along_rows >> 4) << 32;
}

#  define TCONV_WGMMA_QUAD(i) "+f"(sums[i]), "+f"(sums[(i) + 1]), "+f"(sums[(i) + 2]), "+f"(sums[(i) + 3])
#  define TCONV_WGMMA_ROW(i)                                                                                           \
    TCONV_WGMMA_QUAD(i), TCONV_WGMMA_QUAD((i) + 4), TCONV_WGMMA_QUAD((i) + 8), TCONV_WGMMA_QUAD((i) + 12)

// An instruction with 104 columns: its accumulators, the descriptors of A and B, whether D is added.
#  define TCONV_WGMMA_104(shape_and_types, immediates)                                                                 \
    asm volatile("{\n"                                                                                                 \
                 ".reg .pred accumulate;\n"                                                                            \
                 "setp.ne.b32 accumulate, %54, 0;\n"                                                                   \
                 "wgmma.mma_async.sync.aligned." shape_and_types " {"                                                  \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "                                             \
                 "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "                                   \
                 "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, "                                   \
                 "%39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51}, "                                  \
                 "%52, %53, accumulate, " immediates ";\n"                                                             \
                 "}\n"                                                                                                 \
                 : TCONV_WGMMA_ROW(0), TCONV_WGMMA_ROW(16), TCONV_WGMMA_ROW(32), TCONV_WGMMA_QUAD(48)                  \
                 : "l"(a), "l"(b), "r"(accumulate))

/// sums += A * B for fp16 operands, K = 16; without sums where \p accumulate is 0.
TCONV_DEVICE void multiply_fp16(float (&sums)[tuning::implicit_gemm_cells / 2], uint64_t a, uint64_t b, int accumulate = 1)
{
  TCONV_WGMMA_104("m64n104k16.f32.f16.f16", "1, 1, 0, 0");
}

/// The same for bf16 operands.
TCONV_DEVICE void multiply_bf16(float (&sums)[tuning::implicit_gemm_cells / 2], uint64_t a, uint64_t b, int accumulate = 1)
{
  TCONV_WGMMA_104("m64n104k16.f32.bf16.bf16", "1, 1, 0, 0");
}

/// The same for tf32 operands, K = 8.
TCONV_DEVICE void multiply_tf32(float (&sums)[tuning::implicit_gemm_cells / 2], uint64_t a, uint64_t b, int accumulate = 1)
{
  TCONV_WGMMA_104("m64n104k8.f32.tf32.tf32", "1, 1");
}

#  undef TCONV_WGMMA_104
#  undef TCONV_WGMMA_ROW
#  undef TCONV_WGMMA_QUAD

#endif

} // namespace wgmma

} // namespace block

TCONV_CUDA_NAMESPACE_END
