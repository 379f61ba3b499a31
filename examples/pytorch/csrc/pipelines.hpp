// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The seam: ops.cpp fills in a call and includes no kernel, the .cu files run it and include nothing of PyTorch.

#include <tconv/batch_norm_arguments.hpp>
#include <tconv/options.hpp>
#include <tconv/shape.hpp>

#include <cuda_runtime_api.h>
#include <functional>
#include <map>
#include <string>

namespace tconv_torch
{

/// Type of x, w and y.
enum class element
{
  f32,
  f16,
  bf16
};

/// One call of a launcher, its types erased. Ranks 1 and 2 come as rank 3 with leading extents 1.
struct call
{
  element type      = element::f32;
  const void* x     = nullptr;
  const void* w     = nullptr;
  const float* bias = nullptr; ///< [out_channels] or null
  void* y           = nullptr;
  tconv::conv_transpose_shape<3> shape;
  tconv::options options;
  float scale = 1.0f;                     ///< before BatchNorm
  tconv::batch_norm_arguments batch_norm; ///< of the pipelines that have one
  tconv::workspace space;
  cudaStream_t stream = nullptr;
};

/// A launcher with its chain.
struct pipeline
{
  std::function<std::size_t(const call&)> workspace_bytes;
  std::function<tconv::status(const call&)> run;
};

/// conv_transpose() by the name of what follows it. Every file of epilogues/ adds itself when the library is loaded.
std::map<std::string, pipeline>& epilogues();

/// y [batch, out_channels] = mean(conv_transpose(x, w)) + bias.
pipeline global_mean();
/// y [batch, out_channels] = mean(batch_norm(scale * (conv_transpose(x, w) + bias))), eval mode.
pipeline batch_norm_eval_global_mean();
/// The same in train mode; updates running statistics.
pipeline batch_norm_train_global_mean();

} // namespace tconv_torch
