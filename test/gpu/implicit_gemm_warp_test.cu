// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The tests of implicit_gemm_test.cu for the engine on mma.sync: built without TCONV_ENABLE_SM90A.

#define TCONV_TEST_SUITE implicit_gemm_warp_gpu
#include "implicit_gemm_test.cu"
