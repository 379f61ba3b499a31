// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Transposed convolution -> linear functors -> BatchNorm in train mode -> global average pool, without storing the
/// convolution's output.

#include "global_mean.cuh"
#include "output_moments.cuh"
#include "spectral_moments.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// Plan and workspace of batch_norm_train_global_mean(), for query and run.
template <class In>
struct batch_norm_train_plan
{
  detail::spectral_plan spectrum;
  output_moments_plan<In> pass;
  /// Variances come from the spectrum of x; else from a pass over the outputs.
  bool spectral;
  /// The spectral kernels sum x and w, so that x is read once.
  bool sums_on_the_way;
  detail::workspace_layout layout;
  collapse_plan collapse;
  detail::workspace_layout::piece<double> means;
  spectral_workspace squares;
  output_moments_workspace<In> pass_pieces;

  batch_norm_train_plan(const conv_transpose_shape<3>& shape, const options& opts)
      : spectrum(detail::plan_spectral(shape, opts.input_layout, clusters_available()))
      , pass(shape, opts)
      , spectral(spectrum.possible
                 && (opts.engine == engine::spectral
                     || (opts.engine == engine::automatic && spectrum.milliseconds() < pass.milliseconds)))
      , sums_on_the_way(spectral && spectral_workspace::takes_sums(spectrum.problem))
      , collapse(layout, shape, false, opts, !sums_on_the_way)
      , means(layout.add<double>(shape.batch * shape.out_channels))
      , squares(layout, spectrum.problem, spectral)
      , pass_pieces(layout, pass, !spectral)
  {}
};

} // namespace runtime

/// Bytes of workspace that batch_norm_train_global_mean() needs; 0 for an invalid shape and where nothing is computed.
template <int Rank, class... Functors>
std::size_t batch_norm_train_global_mean_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                                         const chain<Functors...>& = chain<>{},
                                                         const options& opts       = {})
{
  if (!validate(shape).ok() || shape.output_elements() == 0)
  {
    return 0;
  }
  // What x is made of is not known here.
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  return std::max(runtime::batch_norm_train_plan<float>(s3, opts).layout.bytes(),
                  runtime::batch_norm_train_plan<__half>(s3, opts).layout.bytes());
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
  if (opts.engine == engine::spectral && !plan.spectral)
  {
    return status::error(
      status_code::not_supported,
      "options.engine = spectral: needs stride 1, no padding, output_padding, dilation or groups, and "
      "planes and kernels that fit shared memory");
  }
  if (opts.engine == engine::implicit_gemm && !plan.pass.tensor_cores)
  {
    return status::error(
      status_code::not_supported,
      "options.engine = implicit_gemm: needs a build with TCONV_ENABLE_SM90A, a device of compute capability "
      "9.0, no groups, and for fp32 tensors in precise mode 16 input channels");
  }
  const int64_t total = shape.output_slice.total(shape.out_channels);
  const auto optional = [&](const char* name, auto* p) {
    return runtime::argument(name, p, p != nullptr ? shape.out_channels : 0);
  };
  if (status s = runtime::check_call({runtime::input_argument(x, shape, opts),
                                      {"w", w, shape.weight_elements()},
                                      optional("batch_norm.gamma", arguments.gamma),
                                      optional("batch_norm.beta", arguments.beta)},
                                     {{"y", y, shape.batch * total},
                                      optional("batch_norm.running_mean", arguments.running_mean),
                                      optional("batch_norm.running_var", arguments.running_var)},
                                     plan.layout,
                                     opts,
                                     space);
      !s.ok())
  {
    return s;
  }

  const In* first_x = runtime::first_of_slice(x, shape, opts);
  double* means     = plan.means.get(space);
  if (!plan.sums_on_the_way)
  {
    if (status s = plan.collapse.launch_sums(first_x, w, space, opts.programmatic_launch, stream); !s.ok())
    {
      return s;
    }
    if (status s = plan.collapse.launch_product(means, shape.out_channels, chain<>{}, space, stream); !s.ok())
    {
      return s;
    }
  }
  const auto finish = [&](const auto& statistics) {
    constexpr int threads = 256;
    using statistics_type = std::decay_t<decltype(statistics)>;
    return runtime::launch("tconv::kernel::batch_norm_means",
                           kernel::batch_norm_means<threads, statistics_type, chain<Functors...>, Out>,
                           {std::min(shape.out_channels, runtime::max_grid), threads, 0, true},
                           stream,
                           statistics,
                           means,
                           y + shape.output_slice.first_channel,
                           total,
                           shape.batch,
                           shape.out_channels,
                           before,
                           arguments);
  };
  if (plan.spectral)
  {
    const spectral_problem& problem = plan.spectrum.problem;
    if (status s = plan.squares.launch_squares(problem,
                                               first_x,
                                               w,
                                               plan.collapse.x_sums.get(space),
                                               plan.collapse.w_sums.get(space),
                                               space,
                                               !plan.sums_on_the_way || opts.programmatic_launch,
                                               stream);
        !s.ok())
    {
      return s;
    }
    const kernel::sample_squares squares{plan.squares.squares.get(space),
                                         problem.grid_frequencies(),
                                         means,
                                         shape.batch,
                                         shape.out_channels,
                                         static_cast<double>(shape.output_positions())};
    if (plan.sums_on_the_way)
    {
      return finish(kernel::collapsed_squares{
        squares, means, plan.collapse.x_sums.get(space), plan.collapse.w_sums.get(space), shape.in_channels});
    }
    return finish(squares);
  }
  if (status s = plan.pass_pieces.launch(plan.pass, first_x, w, space, true, stream); !s.ok())
  {
    return s;
  }
  return finish(plan.pass_pieces.result(plan.pass, space));
}

TCONV_CUDA_NAMESPACE_END
