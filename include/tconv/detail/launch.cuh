// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Launch and check: the only place where kernels are started and CUDA errors become a status.

#include "../options.hpp"
#include "../status.hpp"

#include <cuda_runtime_api.h>

#include <atomic>

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// Never launched, but asked what it was compiled for.
template <class>
__global__ void compiled()
{}

} // namespace kernel

namespace runtime
{

/// 10 times the compute capability that the code which runs on the current device was written for, in PTX or before it was made machine code;
/// 0 where there is no such code. The list of architectures of the build does not tell: some may be there as PTX alone, some not.
inline int code_architecture()
{
  constexpr int most = 64;
  static std::atomic<int> known[most];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess)
  {
    return 0;
  }
  const int before = device < most ? known[device].load(std::memory_order_relaxed) : 0;
  if (before != 0)
  {
    return before;
  }
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&kernel::compiled<void>)) != cudaSuccess)
  {
    return 0;
  }
  const int found = 10 * attributes.ptxVersion;
  if (device < most)
  {
    known[device].store(found, std::memory_order_relaxed);
  }
  return found;
}

/// Waits until the memory of the previous kernel on the stream is visible; the first statement of every kernel.
TCONV_DEVICE void grid_dependency_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// Lets the next kernel on the stream start its blocks as soon as all blocks of this one have called this or ended.
TCONV_DEVICE void grid_dependency_release()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// A CUDA error as a status; success passes.
[[nodiscard]] inline status check(cudaError_t error, const char* where)
{
  return error == cudaSuccess ? status{} : status::cuda(static_cast<int>(error), cudaGetErrorName(error), where);
}

/// How to launch one kernel.
struct launch_configuration
{
  int64_t blocks           = 1; ///< in x; at most 2^31 - 1
  int threads              = 1;
  std::size_t shared_bytes = 0;
  /// The kernel waits by itself (grid_dependency_wait), so it may start while its predecessor drains, from compute capability 9.0 on.
  bool overlap_predecessor = false;
  int cluster              = 1; ///< blocks of a cluster; more than 1 from compute capability 9.0 on
};

/// The largest grid in x.
inline constexpr int64_t max_grid = 0x7fffffff;

/// Launches \p kernel and reports what the runtime says about it. \p name appears in the message.
template <class... Parameters, class... Arguments>
[[nodiscard]] status launch(const char* name,
                            void (*kernel)(Parameters...),
                            const launch_configuration& configuration,
                            cudaStream_t stream,
                            const Arguments&... arguments)
{
  // 48 KB are free of charge, but the kernel's static shared memory counts towards them.
  constexpr std::size_t free_bytes = 32 * 1024;
  if (configuration.shared_bytes > free_bytes)
  {
    if (status s = check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(configuration.shared_bytes)),
                         name);
        !s.ok())
    {
      return s;
    }
  }
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  // Code for older architectures does not wait: grid_dependency_wait() is nothing there.
  if (configuration.overlap_predecessor && code_architecture() >= 900)
  {
    attributes[count].id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  if (configuration.cluster > 1)
  {
    attributes[count].id               = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(configuration.cluster);
    attributes[count].val.clusterDim.y = 1;
    attributes[count].val.clusterDim.z = 1;
    ++count;
  }

  cudaLaunchConfig_t config{};
  config.gridDim          = dim3(static_cast<unsigned>(configuration.blocks));
  config.blockDim         = dim3(static_cast<unsigned>(configuration.threads));
  config.dynamicSmemBytes = configuration.shared_bytes;
  config.stream           = stream;
  config.attrs            = attributes;
  config.numAttrs         = count;
  return check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
