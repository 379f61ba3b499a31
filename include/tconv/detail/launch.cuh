// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Launch and check: the only place where kernels are started and CUDA errors become a status.

#include "../options.hpp"
#include "../status.hpp"

#include <cuda_runtime_api.h>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// Waits until the memory of the previous kernel on the stream is visible; what kernels do before rests on nothing newer than what that
/// kernel had waited for.
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
  /// The kernel waits by itself (grid_dependency_wait), so it may start while its predecessor drains.
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
  if (configuration.overlap_predecessor)
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
