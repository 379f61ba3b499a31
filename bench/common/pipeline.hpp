// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Pipelines of the suite's level 2, one entry per problem: shape, operands and call, for whatever times or checks
/// them. pytorch_compare.py has their counterparts and takes the shapes from here, through bench_dump_outputs.

#include "problems.hpp"

#include <tconv/options.hpp>
#include <tconv/status.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tconv_bench
{

/// What a pipeline reads and writes, fp32 in device memory, channels first; null where it has no such tensor.
struct pipeline_tensors
{
  const float* x      = nullptr; ///< [batch, in_channels, input...]
  const float* w      = nullptr; ///< [in_channels, out_channels, kernel...]
  const float* b      = nullptr; ///< [out_channels], of the convolution
  const float* offset = nullptr; ///< [out_channels], added further on
  const float* gamma  = nullptr; ///< [out_channels], of BatchNorm, as are the next three
  const float* beta   = nullptr;
  float* mean         = nullptr; ///< running statistics
  float* var          = nullptr;
  float* y            = nullptr; ///< the result
  float momentum      = 0.1f;    ///< of the running statistics
};

/// A problem of the suite.
struct pipeline
{
  const char* problem; ///< as the suite calls it
  std::int64_t axes;   ///< of PyTorch's layers; leading ones of extent 1 are none
  shape3 shape;        ///< of the convolution
  bool offset;         ///< operands beside x, w and b
  bool batch_norm;
  bool train;
  std::int64_t outputs; ///< elements of y
  /// Multiply-adds of an engine that does no more than it must.
  double (*products)(const tconv::options& opts);
  std::size_t (*workspace_bytes)(const tconv::options& opts);
  /// Queues the pipeline on \p stream.
  tconv::status (*run)(const pipeline_tensors& t,
                       const tconv::options& opts,
                       const tconv::workspace& space,
                       cudaStream_t stream);

  /// Bytes of inputs, weights and the result, once each.
  double bytes() const { return 4.0 * static_cast<double>(shape.input_elements() + shape.weight_elements() + outputs); }
};

/// All of them.
const std::vector<pipeline>& pipelines();

/// The one that is called \p problem, or null.
const pipeline* find_pipeline(const char* problem);

} // namespace tconv_bench
