// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Arguments of GroupNorm.

#include "detail/config.hpp"

TCONV_NAMESPACE_BEGIN

/// Parameters of a GroupNorm layer, PyTorch's semantics. Pointers are to fp32 arrays [channels] in device memory.
struct group_norm_arguments
{
  int64_t groups     = 1;       ///< >= 1, divides channels
  const float* gamma = nullptr; ///< weight; null: 1
  const float* beta  = nullptr; ///< bias; null: 0
  float eps          = 1e-5f;   ///< added to the variance under the root, >= 0
};

TCONV_NAMESPACE_END
