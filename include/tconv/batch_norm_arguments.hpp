// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The arguments of a BatchNorm layer, as launchers and the reference take them.

#include "detail/config.hpp"

TCONV_NAMESPACE_BEGIN

/// Parameters and running statistics of a BatchNorm layer over the channels, PyTorch's semantics.
///
/// Pointers are to fp32 arrays [channels], in device memory for launchers and in host memory for the reference.
struct batch_norm_arguments
{
  const float* gamma  = nullptr; ///< weight; null: 1
  const float* beta   = nullptr; ///< bias; null: 0
  float* running_mean = nullptr; ///< read in eval mode, updated in train mode; null in train mode: not tracked
  float* running_var  = nullptr; ///< likewise; the stored variance is the unbiased one
  float eps           = 1e-5f;   ///< added to the variance under the root, >= 0
  float momentum = 0.1f; ///< new = (1 - momentum) * old + momentum * statistic; pass 1/count for a cumulative average
};

TCONV_NAMESPACE_END
