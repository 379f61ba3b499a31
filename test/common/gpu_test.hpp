// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The fixture of tests that need a GPU.

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

namespace tconv_test
{

/// Skips its tests where there is no CUDA device. Launch tests derive from it; argument checks, which must work without a
/// device, do not.
class gpu_test : public ::testing::Test
{
protected:
  void SetUp() override
  {
    int devices             = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0)
    {
      GTEST_SKIP() << "no CUDA device: " << (error != cudaSuccess ? cudaGetErrorString(error) : "none present");
    }
  }
};

} // namespace tconv_test
