// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Transposed convolution -> linear functors -> BatchNorm in train mode -> global average pool, without storing the
/// convolution's output.

#include "../kernel/batch_norm.cuh"
#include "conv_transpose.cuh"
#include "global_mean.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// eps and momentum, which every BatchNorm launcher takes.
[[nodiscard]] inline status check_batch_norm(const batch_norm_arguments& arguments)
{
  if (!(arguments.eps >= 0.0f))
  {
    return status::error(
      status_code::invalid_argument, "batch_norm.eps = %g: must be >= 0", static_cast<double>(arguments.eps));
  }
  if (!(arguments.momentum >= 0.0f && arguments.momentum <= 1.0f))
  {
    return status::error(status_code::invalid_argument,
                         "batch_norm.momentum = %g: must be in [0, 1]",
                         static_cast<double>(arguments.momentum));
  }
  return {};
}

/// Plan and workspace of batch_norm_train_global_mean(), for query and run.
struct batch_norm_train_plan
{
  detail::workspace_layout layout;
  collapse_plan collapse;
  detail::gather_plan gather;
  gather_workspace pieces;
  int64_t partials_per_channel;
  detail::workspace_layout::piece<double> means;
  detail::workspace_layout::piece<moments<float>> partials;

  explicit batch_norm_train_plan(const conv_transpose_shape<3>& shape)
      : collapse(layout, shape)
      , gather(detail::plan_gather(shape, false))
      , pieces(layout, gather.problem)
      , partials_per_channel(gather.problem.blocks() / gather.problem.taps.channel_tiles)
      , means(layout.add<double>(shape.batch * shape.out_channels))
      , partials(layout.add<moments<float>>(shape.out_channels * partials_per_channel))
  {}
};

} // namespace runtime

/// Bytes of workspace that batch_norm_train_global_mean() needs; 0 for an invalid shape and where nothing is computed.
template <int Rank, class... Functors>
std::size_t batch_norm_train_global_mean_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                                         const chain<Functors...>& = chain<>{},
                                                         const options&            = {})
{
  if (!validate(shape).ok() || shape.output_elements() == 0)
  {
    return 0;
  }
  return runtime::batch_norm_train_plan(detail::canonical(shape)).layout.bytes();
}

/// y = mean over positions of batch_norm_train(before(conv_transpose(x, w))); running statistics as PyTorch.
///
/// Means are exact (collapsed, see global_mean()); the variance comes from a pass that computes the convolution and reduces it
/// in registers, centred, so nothing cancels. The convolution's output is never stored.
///
/// \param x          [batch, in_channels, input...] fp32, device memory
/// \param w          [in_channels, out_channels / groups, kernel...] fp32
/// \param y          [batch, out_channels] fp32; must not overlap an input or the workspace
/// \param shape      of the convolution; batch * output positions must be >= 2
/// \param before     linear functors between convolution and BatchNorm: chain(bias(b), scale(2.0f))
/// \param arguments  gamma, beta, running statistics (updated where not null), eps >= 0, momentum in [0, 1]
/// \param opts       see options
/// \param space      batch_norm_train_global_mean_workspace_bytes(shape, before, opts) bytes
/// \param stream     see conv_transpose()
///
/// Errors as for conv_transpose(); with one value per channel invalid_argument before anything is written. Batch 0 leaves the
/// running statistics alone.
template <int Rank, class... Functors>
[[nodiscard]] status batch_norm_train_global_mean(const float* x,
                                                  const float* w,
                                                  float* y,
                                                  const conv_transpose_shape<Rank>& shape,
                                                  const chain<Functors...>& before,
                                                  const batch_norm_arguments& arguments,
                                                  const options& opts,
                                                  const workspace& space,
                                                  cudaStream_t stream)
{
  static_assert(
    chain<Functors...>::linear,
    "tconv: batch_norm_train_global_mean takes linear functors (bias, scale, affine, batch_norm) before BatchNorm; "
    "anything else needs the convolution's output");
  if (status s = validate(shape); !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_batch_norm(arguments); !s.ok())
  {
    return s;
  }
  if (shape.output_elements() == 0)
  {
    return {};
  }
  if (shape.batch * shape.output_positions() < 2)
  {
    return status::error(
      status_code::invalid_argument,
      "shape: batch * output positions = 1: BatchNorm in train mode needs at least 2 values per channel");
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  if (status s = runtime::check_gather_limits(s3); !s.ok())
  {
    return s;
  }
  const runtime::batch_norm_train_plan plan(s3);
  const int64_t channel_bytes = 4 * shape.out_channels;
  const auto optional         = [&](const float* p) { return p != nullptr ? channel_bytes : 0; };
  if (status s = runtime::check_call(
        {{"x", x, 4 * shape.input_elements()},
         {"w", w, 4 * shape.weight_elements()},
         {"batch_norm.gamma", arguments.gamma, optional(arguments.gamma)},
         {"batch_norm.beta", arguments.beta, optional(arguments.beta)}},
        {{"y", y, channel_bytes * shape.batch},
         {"batch_norm.running_mean", arguments.running_mean, optional(arguments.running_mean)},
         {"batch_norm.running_var", arguments.running_var, optional(arguments.running_var)}},
        plan.layout,
        opts,
        space);
      !s.ok())
  {
    return s;
  }

  if (status s = plan.collapse.launch_sums(x, w, space, opts.programmatic_launch, stream); !s.ok())
  {
    return s;
  }
  double* means            = plan.means.get(space);
  moments<float>* partials = plan.partials.get(space);
  if (status s = plan.collapse.launch_product(means, chain<>{}, space, stream); !s.ok())
  {
    return s;
  }
  if (status s = runtime::launch_gather(plan.gather,
                                        plan.pieces,
                                        x,
                                        w,
                                        kernel::reduce_moments{partials, plan.partials_per_channel},
                                        space,
                                        true,
                                        stream);
      !s.ok())
  {
    return s;
  }
  constexpr int threads = 256;
  return runtime::launch("tconv::kernel::batch_norm_means",
                         kernel::batch_norm_means<threads, chain<Functors...>>,
                         {std::min(shape.out_channels, runtime::max_grid), threads, 0, true},
                         stream,
                         partials,
                         plan.partials_per_channel,
                         means,
                         y,
                         shape.batch,
                         shape.out_channels,
                         before,
                         arguments);
}

TCONV_CUDA_NAMESPACE_END
