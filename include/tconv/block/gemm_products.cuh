// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Both kinds of matrix instructions behind one interface, gemm_products: accumulators += operand in registers * packed weights in
/// shared memory. Fragments and packed weights are those of wgmma.cuh; a warp's part of them is what an instruction of a warp takes, so that
/// whatever stands around the products is the same code, and all sums have the same bits.
///
/// How weights come to shared memory, how registers are dealt out and how a block's barriers are waited for goes with the instruction, too:
/// gemm_products<warp> needs compute capability 8.0, no more.

#include "../tuning/implicit_gemm.hpp"
#include "implicit_gemm_problem.hpp"
#include "mma.cuh"
#include "wgmma.cuh"

#include <cuda/ptx>

// Device code that has barriers in shared memory and asynchronous copies.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#  define TCONV_DETAIL_HAS_GEMM 1
#else
#  define TCONV_DETAIL_HAS_GEMM 0
#endif

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// The primary template: of an instruction that the code at hand cannot have.
template <gemm_instruction Instruction>
struct gemm_products
{
  static constexpr bool exist = false;
};

#if TCONV_DETAIL_HAS_GEMM

/// Waits for phase \p parity of a barrier. Called by any thread.
TCONV_DEVICE void wait_barrier(uint64_t* barrier, unsigned parity)
{
#  if __CUDA_ARCH__ >= 900
  while (!cuda::ptx::mbarrier_try_wait_parity(barrier, parity))
#  else
  while (!cuda::ptx::mbarrier_test_wait_parity(barrier, parity))
#  endif
  {}
}

/// Arrives without transactions.
TCONV_DEVICE void arrive_barrier(uint64_t* barrier)
{
  cuda::ptx::mbarrier_arrive(barrier);
}

/// True for one lane of the calling warp, always the same. Cheaper than to ask for the lane's number, where that can be.
TCONV_DEVICE bool elected()
{
#  if __CUDA_ARCH__ >= 900
  unsigned result;
  asm volatile("{\n"
               ".reg .pred chosen;\n"
               "elect.sync _|chosen, 0xffffffff;\n"
               "selp.u32 %0, 1, 0, chosen;\n"
               "}\n"
               : "=r"(result)
               :
               : "memory");
  return result != 0;
#  else
  return threadIdx.x % 32 == 0;
#  endif
}

/// Products by mma.sync.
template <>
struct gemm_products<gemm_instruction::warp>
{
  static constexpr bool exist = true;
  /// Where the lane's row of a piece of weights lies: an address in shared memory divided by 16.
  using weights = unsigned;

  /// The stage of packed weights at \p shared. A lane's row is of what load_matrices() takes at once: 8 columns of both terms, or 16 of one.
  template <gemm_form Form, int Columns>
  TCONV_DEVICE static weights locate(const unsigned char* shared)
  {
    const unsigned lane = threadIdx.x % 32;
    const unsigned row  = gemm_form_traits::of(Form).terms == 2 ? lane % 16 + lane / 16 * (Columns * 2) : lane;
    return static_cast<unsigned>(__cvta_generic_to_shared(shared)) / 16 + row;
  }

  /// The compiler orders these instructions as it likes: they wait for their operands.
  template <class Fragments>
  TCONV_DEVICE static void begin(Fragments&)
  {}
  TCONV_DEVICE static void commit() {}
  template <int>
  TCONV_DEVICE static void await()
  {}

  /// sums += a * piece, for one step of \p Form.
  template <gemm_form Form, int Columns, int Count>
  TCONV_DEVICE static void multiply(float (&sums)[Columns / 2], const unsigned (&a)[Count][4], weights b)
  {
    // An 8 x 8 matrix is 8 columns and half of K.
    constexpr int columns = gemm_form_traits::of(Form).terms == 2 ? 8 : 16;
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Columns / columns; ++j)
    {
      unsigned matrices[4];
      load_matrices(matrices, (b + 2 * columns * j) * 16);
      float* at = sums + columns / 2 * j;
      if constexpr (Form == gemm_form::split)
      {
        multiply_add_fp16(at, a[1], matrices[0], matrices[1]);
        multiply_add_fp16(at, a[2], matrices[2], matrices[3]);
        multiply_add_fp16(at, a[0], matrices[0], matrices[1]);
      }
      else if constexpr (Form == gemm_form::tf32)
      {
        multiply_add_tf32(at, a[0], matrices[0], matrices[1]);
        multiply_add_tf32(at, a[1], matrices[2], matrices[3]);
      }
      else if constexpr (Form == gemm_form::bf16)
      {
        multiply_add_bf16(at, a[0], matrices[0], matrices[1]);
        multiply_add_bf16(at + 4, a[0], matrices[2], matrices[3]);
      }
      else
      {
        multiply_add_fp16(at, a[0], matrices[0], matrices[1]);
        multiply_add_fp16(at + 4, a[0], matrices[2], matrices[3]);
      }
    }
  }

  /// Says at \p barrier that the calling warp has read what it waited for. The fence: ptxas moves the arrival before products whose operands
  /// are on their way, and loads are not ordered before it by themselves.
  TCONV_DEVICE static void release(uint64_t* barrier)
  {
    __threadfence_block();
    __syncwarp();
    if (elected())
    {
      arrive_barrier(barrier);
    }
  }

  /// Threads of the warp that copies weights, and what arrives at the barrier of a stage.
  static constexpr int copying_threads = 32;
  /// Copies \p bytes, a multiple of 16, so that \p barrier completes when they are there. Called by the copying threads.
  TCONV_DEVICE static void copy(unsigned char* target, const unsigned char* source, unsigned bytes, uint64_t* barrier)
  {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(target));
    for (unsigned i = threadIdx.x % 32 * 16; i < bytes; i += 32 * 16)
    {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"(source + i) : "memory");
    }
    asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier)))
      : "memory");
  }

  /// By the copying threads, before they leave.
  TCONV_DEVICE static void finish_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

  /// Called by the thread that has initialised the barriers, before the block synchronises.
  TCONV_DEVICE static void publish_barriers() {}

  /// Registers are dealt out evenly.
  template <class Policy>
  TCONV_DEVICE static void release_registers()
  {}
  template <class Policy>
  TCONV_DEVICE static void take_registers()
  {}
};

#endif

#if TCONV_DETAIL_HAS_WGMMA

/// Products by wgmma.
template <>
struct gemm_products<gemm_instruction::warpgroup>
{
  static constexpr bool exist = true;
  /// Descriptor of a piece of weights; counts in 16 bytes.
  using weights = uint64_t;

  template <gemm_form, int>
  TCONV_DEVICE static weights locate(const unsigned char* shared)
  {
    return wgmma::describe(static_cast<unsigned>(__cvta_generic_to_shared(shared)));
  }

  /// Before products with \p fragments: everything is in registers from here on.
  template <class Fragments>
  TCONV_DEVICE static void begin(Fragments& fragments)
  {
    TCONV_PRAGMA_UNROLL
    for (auto& fragment : fragments)
    {
      TCONV_PRAGMA_UNROLL
      for (auto& a : fragment.a)
      {
        asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
      }
    }
    wgmma::fence();
  }
  /// Behind them: they are a group.
  TCONV_DEVICE static void commit() { wgmma::commit(); }
  /// Until all groups but the last \p Pending are complete. Before that neither sums nor fragments may be touched.
  template <int Pending>
  TCONV_DEVICE static void await()
  {
    wgmma::wait<Pending>();
  }

  /// sums += a * piece, for one step of \p Form. Small products first.
  template <gemm_form Form, int Columns, int Count>
  TCONV_DEVICE static void multiply(float (&sums)[Columns / 2], const unsigned (&a)[Count][4], weights b)
  {
    constexpr uint64_t term = Columns * 32 / 16;
    if constexpr (Form == gemm_form::split)
    {
      wgmma::multiply_fp16<Columns>(sums, a[1], b);
      wgmma::multiply_fp16<Columns>(sums, a[2], b + term);
      wgmma::multiply_fp16<Columns>(sums, a[0], b);
    }
    else if constexpr (Form == gemm_form::tf32)
    {
      wgmma::multiply_tf32<Columns>(sums, a[0], b);
      wgmma::multiply_tf32<Columns>(sums, a[1], b + term);
    }
    else if constexpr (Form == gemm_form::bf16)
    {
      wgmma::multiply_bf16<Columns>(sums, a[0], b);
    }
    else
    {
      wgmma::multiply_fp16<Columns>(sums, a[0], b);
    }
  }

  /// Says at \p barrier that the calling warp has read what it waited for: await() has seen to it.
  TCONV_DEVICE static void release(uint64_t* barrier)
  {
    if (elected())
    {
      arrive_barrier(barrier);
    }
  }

  /// See gemm_products<warp>. One bulk copy.
  static constexpr int copying_threads = 1;
  TCONV_DEVICE static void copy(unsigned char* target, const unsigned char* source, unsigned bytes, uint64_t* barrier)
  {
    cuda::ptx::mbarrier_arrive_expect_tx(
      cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared, barrier, bytes);
    cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, target, source, bytes, barrier);
  }

  TCONV_DEVICE static void finish_copies() {}

  TCONV_DEVICE static void publish_barriers()
  {
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }

  template <class Policy>
  TCONV_DEVICE static void release_registers()
  {
    wgmma::release_registers<Policy::producer_registers>();
  }
  template <class Policy>
  TCONV_DEVICE static void take_registers()
  {
    wgmma::take_registers<Policy::consumer_registers>();
  }
};

#endif

} // namespace block

TCONV_CUDA_NAMESPACE_END
