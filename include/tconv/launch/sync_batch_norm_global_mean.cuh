// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// BatchNorm in train mode and global average pool of a part of a batch, with the statistics of all parts.

#include "batch_norm_train_global_mean.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

static_assert(sizeof(moments<double>) == 3 * sizeof(double), "an exchange may send moments as doubles");

/// y = mean over positions of batch_norm_train(before(convolution)), with the statistics of a batch of which y is a part: what
/// batch_norm_train_global_mean() of the joined batch gives for these samples. Running statistics as PyTorch's SyncBatchNorm.
///
/// Every rank calls conv_transpose_moments() on its samples, all-gathers the statistics (3 * out_channels doubles of each rank, NCCL or
/// anything else), and calls this with its own means and everybody's statistics. Moments are merged by Chan's formula in the order of
/// ranks, in fp64: every rank gets the same bits, so that running statistics that are equal before are equal after.
///
/// \param means       [batch, out_channels] fp64, of these samples, as conv_transpose_moments() leaves them
/// \param statistics  [ranks, out_channels], those of each rank, also of this one. A rank with count 0 changes nothing
/// \param ranks       >= 1 and <= 2^60; parts of the batch, on as many GPUs or one after the other
/// \param y           [batch, out_channels] fp32, fp16 or bf16, may be a slice of a wider [batch, tensor_channels]; outputs must not
///                    overlap an input or each other
/// \param shape       that of conv_transpose_moments(): batch is of this rank; output_slice is where y stands
/// \param before      linear functors between convolution and BatchNorm: chain(bias(b), scale(2.0f)), the same on each rank
/// \param arguments   gamma, beta, running statistics (updated where not null), eps >= 0, momentum in [0, 1]
/// \param opts        see options; math, engine and layouts make no difference
/// \param stream      see conv_transpose()
///
/// One launch, no workspace. Batch 0 writes no y, and means and y may be null, but running statistics move as everywhere else; with an
/// empty output nothing happens. What is in statistics is not known when this is called: with no value in all of a channel's parts its
/// running statistics stay; with one value in total, which batch_norm_train_global_mean() rejects, y is that of variance 0 and
/// running_var becomes NaN, 0 / 0 in PyTorch's formula. Errors: invalid_argument (nothing written), cuda_error.
template <int Rank, class Out, class... Functors>
[[nodiscard]] status sync_batch_norm_global_mean(const double* means,
                                                 const moments<double>* statistics,
                                                 int64_t ranks,
                                                 Out* y,
                                                 const conv_transpose_shape<Rank>& shape,
                                                 const chain<Functors...>& before,
                                                 const batch_norm_arguments& arguments,
                                                 const options& opts,
                                                 cudaStream_t stream)
{
  static_assert(
    chain<Functors...>::linear && !chain<Functors...>::per_sample,
    "tconv: sync_batch_norm_global_mean takes linear functors without operands per sample (bias, scale, affine, "
    "batch_norm) before BatchNorm; anything else needs the convolution's output");
  static_assert(is_tensor_type<Out>::value, "tconv: y is float, __half or __nv_bfloat16");
  if (status s = validate(shape); !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_batch_norm(arguments); !s.ok())
  {
    return s;
  }
  if (ranks < 1 || ranks > detail::field_limit)
  {
    return status::error(
      status_code::invalid_argument, "ranks = %lld: must be >= 1 and <= 2^60", static_cast<long long>(ranks));
  }
  if (status s = runtime::check_moments_bytes(shape, ranks); !s.ok())
  {
    return s;
  }
  if (shape.output_positions() == 0)
  {
    return {};
  }
  if (status s = runtime::check_call(
        {{"means", means, shape.batch * shape.out_channels},
         {"statistics", statistics, ranks * shape.out_channels},
         runtime::optional_argument("batch_norm.gamma", arguments.gamma, shape),
         runtime::optional_argument("batch_norm.beta", arguments.beta, shape)},
        {{"y", y, shape.batch * shape.output_slice.total(shape.out_channels)},
         runtime::optional_argument("batch_norm.running_mean", arguments.running_mean, shape),
         runtime::optional_argument("batch_norm.running_var", arguments.running_var, shape)},
        detail::workspace_layout{},
        opts,
        workspace{});
      !s.ok())
  {
    return s;
  }
  return runtime::launch_batch_norm_means(kernel::rank_moments{statistics, ranks, shape.out_channels},
                                          means,
                                          y,
                                          shape,
                                          before,
                                          arguments,
                                          opts.programmatic_launch,
                                          stream);
}

TCONV_CUDA_NAMESPACE_END
