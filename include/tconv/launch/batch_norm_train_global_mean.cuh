// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Transposed convolution -> linear functors -> BatchNorm in train mode -> global average pool, without storing the
/// convolution's output.

#include "conv_transpose_moments.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// Plan and workspace of batch_norm_train_global_mean(), for query and run: moments, and where the samples' means stand.
template <class In>
struct batch_norm_train_plan : conv_transpose_moments_plan<In>
{
  detail::workspace_layout::piece<double> means;

  batch_norm_train_plan(const conv_transpose_shape<3>& shape, const options& opts)
      : conv_transpose_moments_plan<In>(shape, opts)
      , means(this->layout.template add<double>(shape.batch * shape.out_channels))
  {}
};

/// Launches kernel::batch_norm_means; \p y is the tensor that the slice of \p shape is of.
template <int Rank, class Statistics, class Out, class Chain>
[[nodiscard]] status launch_batch_norm_means(const Statistics& statistics,
                                             const double* means,
                                             Out* y,
                                             const conv_transpose_shape<Rank>& shape,
                                             const Chain& before,
                                             const batch_norm_arguments& arguments,
                                             bool overlap_predecessor,
                                             cudaStream_t stream)
{
  return launch("tconv::kernel::batch_norm_means",
                kernel::batch_norm_means<channel_threads, Statistics, Chain, Out>,
                {std::min(shape.out_channels, max_grid), channel_threads, 0, overlap_predecessor},
                stream,
                statistics,
                means,
                y + shape.output_slice.first_channel,
                shape.output_slice.total(shape.out_channels),
                shape.batch,
                shape.out_channels,
                before,
                arguments);
}

/// A BatchNorm array that may be null.
template <class T, int Rank>
[[nodiscard]] argument optional_argument(const char* name, T* values, const conv_transpose_shape<Rank>& shape)
{
  return {name, values, values != nullptr ? shape.out_channels : 0};
}

} // namespace runtime

/// Bytes of workspace that batch_norm_train_global_mean() needs; 0 for an invalid shape and where nothing is computed.
template <int Rank, class... Functors>
std::size_t batch_norm_train_global_mean_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                                         const chain<Functors...>& = chain<>{},
                                                         const options& opts       = {})
{
  return runtime::moments_workspace_bytes<runtime::batch_norm_train_plan>(shape, opts);
}

/// y = mean over positions of batch_norm_train(before(conv_transpose(x, w))); running statistics as PyTorch.
///
/// Means are exact (collapsed, see global_mean()). The variance comes from the spectrum of x where nothing is cropped (stride 1, no
/// padding, output_padding, dilation or groups; see kernel/spectral.cuh) and that is estimated to be faster, else from a pass that
/// computes the convolution and reduces it in registers. Both are centred, so nothing cancels, and neither stores the
/// convolution's output. The relative error of a variance is a few 1e-7.
///
/// \param x          [batch, in_channels, input...], device memory; layout and slice as for conv_transpose()
/// \param w          [in_channels, out_channels / groups, kernel...] of the type of x
/// \param y          [batch, out_channels], may be a slice of a wider [batch, tensor_channels]; must not overlap an input or the
///                   workspace. Types as for conv_transpose(); statistics are fp32 whatever they are
/// \param shape      of the convolution; batch * output positions must be >= 2
/// \param before     linear functors between convolution and BatchNorm: chain(bias(b), scale(2.0f))
/// \param arguments  gamma, beta, running statistics (updated where not null), eps >= 0, momentum in [0, 1]
/// \param opts       see options
/// \param space      batch_norm_train_global_mean_workspace_bytes(shape, before, opts) bytes
/// \param stream     see conv_transpose()
///
/// Errors as for conv_transpose(); with one value per channel invalid_argument before anything is written. Batch 0 and
/// an empty output leave the running statistics alone.
template <int Rank, class In, class Out, class... Functors>
[[nodiscard]] status batch_norm_train_global_mean(const In* x,
                                                  const In* w,
                                                  Out* y,
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
  static_assert(
    !chain<Functors...>::per_sample,
    "tconv: functors with operands per sample cannot come before BatchNorm in train mode here: its variance would "
    "need the convolution's output");
  static_assert(is_type_pair<In, Out>::value,
                "tconv: x and w are float, __half or __nv_bfloat16, and y has their type or is float");
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
  const runtime::batch_norm_train_plan<In> plan(s3, opts);
  if (status s = plan.check_engine(opts); !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_call(
        {runtime::input_argument(x, shape, opts),
         {"w", w, shape.weight_elements()},
         runtime::optional_argument("batch_norm.gamma", arguments.gamma, shape),
         runtime::optional_argument("batch_norm.beta", arguments.beta, shape)},
        {{"y", y, shape.batch * shape.output_slice.total(shape.out_channels)},
         runtime::optional_argument("batch_norm.running_mean", arguments.running_mean, shape),
         runtime::optional_argument("batch_norm.running_var", arguments.running_var, shape)},
        plan.layout,
        opts,
        space);
      !s.ok())
  {
    return s;
  }
  double* means = plan.means.get(space);
  return plan.launch(
    runtime::first_of_slice(x, shape, opts), w, means, opts, space, stream, [&](const auto& statistics) {
      return runtime::launch_batch_norm_means(statistics, means, y, shape, before, arguments, true, stream);
    });
}

TCONV_CUDA_NAMESPACE_END
