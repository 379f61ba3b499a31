// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Compiler glue shared by every header: host/device annotations, unrolling, fixed-width integers that also exist under
/// NVRTC, and the two inline namespaces.

#include "../version.hpp"

#if defined(__CUDACC_RTC__)
#  include <cuda/std/cstdint>
#else
#  include <cstdint>
#endif

// Functions that run on the host and on the device, inlined on the device.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#  define TCONV_HOST_DEVICE __host__ __device__ __forceinline__
#  define TCONV_DEVICE __device__ __forceinline__
#else
#  define TCONV_HOST_DEVICE inline
#endif

// The host pass of nvcc sees these loops too, and host compilers warn about a pragma they do not know.
#if defined(__CUDA_ARCH__)
#  define TCONV_PRAGMA_UNROLL _Pragma("unroll")
#  define TCONV_PRAGMA_UNROLL_4 _Pragma("unroll 4")
#else
#  define TCONV_PRAGMA_UNROLL
#  define TCONV_PRAGMA_UNROLL_4
#endif

#define TCONV_DETAIL_CAT_(a, b) a##b
#define TCONV_DETAIL_CAT(a, b) TCONV_DETAIL_CAT_(a, b)
#define TCONV_DETAIL_VERSION_NAME_(major, minor, patch) v##major##_##minor##_##patch
#define TCONV_DETAIL_VERSION_NAME(major, minor, patch) TCONV_DETAIL_VERSION_NAME_(major, minor, patch)

// Everything lives in an inline namespace with the version, so that two versions can be linked into one program. Host-only
// types (.hpp) stop there: a shape built in a .cpp file can be handed to a function in a .cu file. Kernels and launchers
// (.cuh) also carry the list of architectures, because the linker would otherwise merge kernels that two translation units
// compiled for different targets.
#define TCONV_NAMESPACE_BEGIN                                                                                          \
  namespace tconv                                                                                                      \
  {                                                                                                                    \
  inline namespace TCONV_DETAIL_VERSION_NAME(TCONV_VERSION_MAJOR, TCONV_VERSION_MINOR, TCONV_VERSION_PATCH)            \
  {
#define TCONV_NAMESPACE_END                                                                                            \
  }                                                                                                                    \
  }

#if defined(__CUDA_ARCH_LIST__)
// __CUDA_ARCH_LIST__ is a comma-separated list such as 800,900: join its first eight entries.
#  define TCONV_DETAIL_JOIN_(a, b, c, d, e, f, g, h, ...) sm_##a##_##b##_##c##_##d##_##e##_##f##_##g##_##h
#  define TCONV_DETAIL_JOIN(...) TCONV_DETAIL_JOIN_(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0, 0)
#  define TCONV_DETAIL_ARCH_NAME TCONV_DETAIL_JOIN(__CUDA_ARCH_LIST__)
#else
#  define TCONV_DETAIL_ARCH_NAME sm_unknown
#endif
// Launchers know the tensor-core engine on wgmma where TCONV_ENABLE_SM90A is defined, and on mma.sync but where that is all the build is
// for: sm_90a runs on no other device. (PTX for compute_90 beside it, for newer devices, looks the same here.) TCONV_WARP_MMA, defined as 0
// or 1, says otherwise: 0 leaves it out, and compiles faster.
#define TCONV_DETAIL_SECOND_(first, second, ...) second
#define TCONV_DETAIL_SECOND(...) TCONV_DETAIL_SECOND_(__VA_ARGS__, 0, 0)
#if defined(TCONV_WARP_MMA)
#  define TCONV_DETAIL_WARP_MMA TCONV_WARP_MMA
#elif defined(TCONV_ENABLE_SM90A) && TCONV_DETAIL_SECOND(__CUDA_ARCH_LIST__) == 0
#  define TCONV_DETAIL_WARP_MMA 0
#else
#  define TCONV_DETAIL_WARP_MMA 1
#endif
#if TCONV_DETAIL_WARP_MMA || defined(TCONV_ENABLE_SM90A)
#  define TCONV_DETAIL_TENSOR_CORES 1
#else
#  define TCONV_DETAIL_TENSOR_CORES 0
#endif
#if TCONV_DETAIL_WARP_MMA
#  define TCONV_DETAIL_WARP_NAME TCONV_DETAIL_CAT(TCONV_DETAIL_ARCH_NAME, _mma)
#else
#  define TCONV_DETAIL_WARP_NAME TCONV_DETAIL_ARCH_NAME
#endif
#if defined(TCONV_ENABLE_SM90A)
#  define TCONV_DETAIL_CUDA_NAME TCONV_DETAIL_CAT(TCONV_DETAIL_WARP_NAME, _wgmma)
#else
#  define TCONV_DETAIL_CUDA_NAME TCONV_DETAIL_WARP_NAME
#endif

#define TCONV_CUDA_NAMESPACE_BEGIN                                                                                     \
  TCONV_NAMESPACE_BEGIN                                                                                                \
  inline namespace TCONV_DETAIL_CUDA_NAME                                                                              \
  {
#define TCONV_CUDA_NAMESPACE_END                                                                                       \
  }                                                                                                                    \
  TCONV_NAMESPACE_END

TCONV_NAMESPACE_BEGIN

#if defined(__CUDACC_RTC__)
using int64_t  = cuda::std::int64_t;
using uint32_t = cuda::std::uint32_t;
using uint64_t = cuda::std::uint64_t;
#else
using int64_t  = std::int64_t;
using uint32_t = std::uint32_t;
using uint64_t = std::uint64_t;
#endif

TCONV_NAMESPACE_END
