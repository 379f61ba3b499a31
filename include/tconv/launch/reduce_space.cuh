// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Reductions of an existing tensor over its positions: global mean, moments per channel, BatchNorm in train mode.

#include "../batch_norm_arguments.hpp"
#include "../kernel/reduce_space.cuh"
#include "apply_chain.cuh"

#include <algorithm>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// How a tensor is reduced over its positions, and where the partial states lie; the same for query and run.
template <class Reduction>
struct reduce_plan
{
  space_problem problem;
  detail::workspace_layout::piece<typename Reduction::state> partials;

  template <int Rank>
  reduce_plan(detail::workspace_layout& layout, const tensor_shape<Rank>& shape, const options& opts)
  {
    using policy       = tuning::reduce_policy;
    problem.x          = input_strides(shape, opts);
    problem.batch      = shape.batch;
    problem.channels   = shape.channels;
    problem.positions  = shape.positions();
    const int64_t rows = std::max<int64_t>(shape.batch * problem.channel_tiles(), 1);
    problem.slices     = std::max<int64_t>(
      1, std::min(ceil_div(policy::wanted_blocks, rows), problem.positions / policy::least_slice));
    partials = layout.add<typename Reduction::state>(problem.states());
  }

  /// Partial states of x (first channel of the slice).
  template <class In>
  [[nodiscard]] status
  launch_slices(const In* x, const workspace& space, bool overlap_predecessor, cudaStream_t stream) const
  {
    using policy        = tuning::reduce_policy;
    const int64_t items = problem.batch * problem.channel_tiles() * problem.slices;
    const int64_t width = 16 / static_cast<int64_t>(sizeof(In));
    const bool vector   = !problem.x.channels_last()
                     && aligned_groups(x, gcd(problem.x.channel, problem.x.sample), width);
    return launch("tconv::kernel::reduce_slices",
                  kernel::reduce_slices<policy, Reduction, In>,
                  {std::min(items, max_grid), policy::threads, 0, overlap_predecessor},
                  stream,
                  problem,
                  x,
                  vector,
                  partials.get(space));
  }
};

/// Plan and workspace of the global mean of a tensor.
struct tensor_mean_plan
{
  detail::workspace_layout layout;
  reduce_plan<block::sum_reduction> reduce;
  detail::workspace_layout::piece<float> rows; ///< means before the chain, where that needs all channels
  columns_plan columns;

  template <int Rank>
  tensor_mean_plan(const tensor_shape<Rank>& shape, bool across_channels, const options& opts)
      : reduce(layout, shape, opts)
      , rows(layout.add<float>(across_channels ? shape.batch * shape.channels : 0))
      , columns(layout, shape.batch, across_channels ? shape.channels : 1, 1)
  {}
};

/// Plan and workspace of channel_moments(), and the first part of batch_norm_train().
struct tensor_moments_plan
{
  detail::workspace_layout layout;
  reduce_plan<block::moments_reduction> reduce;

  template <int Rank>
  tensor_moments_plan(const tensor_shape<Rank>& shape, const options& opts) : reduce(layout, shape, opts)
  {}

  /// Moments of x, handed to \p finish channel by channel.
  template <class In, class Finish>
  [[nodiscard]] status launch_moments(
    const In* x, const Finish& finish, const workspace& space, bool overlap_predecessor, cudaStream_t stream) const
  {
    using policy = tuning::reduce_policy;
    if (status s = reduce.launch_slices(x, space, overlap_predecessor, stream); !s.ok())
    {
      return s;
    }
    return launch("tconv::kernel::finish_moments",
                  kernel::finish_moments<policy, Finish>,
                  {std::min(reduce.problem.channels, max_grid), policy::threads, 0, true},
                  stream,
                  reduce.problem,
                  reduce.partials.get(space),
                  finish);
  }
};

/// Plan and workspace of batch_norm_train(); the layout is that of the moments, continued.
struct tensor_batch_norm_plan
{
  tensor_moments_plan moments;
  detail::workspace_layout::piece<float> centres;
  detail::workspace_layout::piece<float> slopes;
  apply_chain_plan apply;

  template <int Rank>
  tensor_batch_norm_plan(const tensor_shape<Rank>& shape, bool across_channels, const options& opts)
      : moments(shape, opts)
      , centres(moments.layout.add<float>(shape.channels))
      , slopes(moments.layout.add<float>(shape.channels))
      , apply(moments.layout, shape, across_channels, opts)
  {}
};

} // namespace runtime

/// Bytes of workspace that global_mean() of a tensor needs for the same shape, chain and options; 0 for an invalid
/// shape and where nothing is computed.
template <int Rank, class... Functors>
std::size_t global_mean_workspace_bytes(const tensor_shape<Rank>& shape,
                                        const chain<Functors...>& = chain<>{},
                                        const options& opts       = {})
{
  using chain_type = chain<Functors...>;
  if (!validate(shape, chain_type::output_channels(shape.channels)).ok() || shape.elements() == 0)
  {
    return 0;
  }
  return runtime::tensor_mean_plan(shape, chain_type::across_channels, opts).layout.bytes();
}

/// y = functors(mean of x over its positions), for an existing tensor.
///
/// \param x         [batch, channels, extent...], or channels last; may be a channel slice
/// \param y         [batch, channels], or [batch, 1] where the chain reduces the channels; may be a slice of a wider [batch,
///                  tensor_channels]; must not overlap x or the workspace
/// \param shape     every rule is checked; no positions: nothing is written
/// \param functors  applied to the means; linear ones in double up to the first that is not, or all in fp32 where one needs all
///                  channels
/// \param opts      see options; math and output_layout make no difference
/// \param space     global_mean_workspace_bytes(shape, functors, opts) bytes
/// \param stream    see conv_transpose()
///
/// Types as for apply_chain(); sums are fp32 over 16 values of a thread and fp64 beyond. Errors as for conv_transpose().
template <int Rank, class In, class Out, class... Functors>
[[nodiscard]] status global_mean(const In* x,
                                 Out* y,
                                 const tensor_shape<Rank>& shape,
                                 const chain<Functors...>& functors,
                                 const options& opts,
                                 const workspace& space,
                                 cudaStream_t stream)
{
  static_assert(
    is_type_pair<In, Out>::value, "tconv: x is float, __half or __nv_bfloat16, and y has the type of x or is float");
  static_assert(
    !chain<Functors...>::per_position,
    "tconv: functors with a whole tensor as operand (add_tensor and the like) need positions; a mean has none");
  using chain_type      = chain<Functors...>;
  using policy          = tuning::reduce_policy;
  const int64_t written = chain_type::output_channels(shape.channels);
  if (status s = validate(shape, written); !s.ok())
  {
    return s;
  }
  if (shape.elements() == 0)
  {
    return {};
  }
  const runtime::tensor_mean_plan plan(shape, chain_type::across_channels, opts);
  const int64_t total        = shape.output_slice.total(written);
  const runtime::argument in = runtime::input_argument(x, shape, opts);
  const runtime::argument out("y", y, shape.batch * total);
  if (status s = runtime::check_call(runtime::argument_list{in}, runtime::argument_list{out}, plan.layout, opts, space);
      !s.ok())
  {
    return s;
  }
  if (status s = plan.reduce.launch_slices(
        runtime::first_of_slice(x, shape, opts), space, opts.programmatic_launch, stream);
      !s.ok())
  {
    return s;
  }
  Out* first_y      = y + shape.output_slice.first_channel;
  const auto finish = [&](auto* means, int64_t stride, const auto& of_mean) {
    using chain_of_mean = std::decay_t<decltype(of_mean)>;
    using element       = std::remove_pointer_t<decltype(means)>;
    const int64_t rows  = shape.batch * shape.channels;
    return runtime::launch(
      "tconv::kernel::finish_means",
      kernel::finish_means<policy, chain_of_mean, element>,
      {std::min(ceil_div(rows, policy::threads / 32), runtime::max_grid), policy::threads, 0, true},
      stream,
      plan.reduce.problem,
      plan.reduce.partials.get(space),
      means,
      stride,
      of_mean);
  };
  if constexpr (!chain_type::across_channels)
  {
    return finish(first_y, total, functors);
  }
  else
  {
    float* rows = plan.rows.get(space);
    if (status s = finish(rows, shape.channels, chain<>{}); !s.ok())
    {
      return s;
    }
    // Rows of one position.
    return plan.columns.launch(
      kernel::tensor_view<const float>{rows, tensor_strides::of(layout::channels_first, shape.channels, 1)},
      kernel::tensor_view<Out>{first_y, tensor_strides::of(layout::channels_first, total, 1)},
      shape.batch,
      shape.channels,
      1,
      functors,
      space,
      true,
      stream);
  }
}

/// Bytes of workspace that channel_moments() needs for the same shape and options; 0 for an invalid shape and where
/// nothing is computed.
template <int Rank>
std::size_t channel_moments_workspace_bytes(const tensor_shape<Rank>& shape, const options& opts = {})
{
  tensor_shape<Rank> checked = shape;
  checked.output_slice       = {};
  if (!validate(checked, shape.channels).ok() || shape.elements() == 0)
  {
    return 0;
  }
  return runtime::tensor_moments_plan(shape, opts).layout.bytes();
}

/// Mean and biased variance of each channel of a tensor, over samples and positions.
///
/// \param x         [batch, channels, extent...], or channels last; may be a channel slice
/// \param mean      [channels] fp32, written; outputs must not overlap x, each other or the workspace
/// \param variance  [channels] fp32, written: the mean of (v - mean)^2; centred throughout, so nothing cancels
/// \param shape     every rule is checked; output_slice is ignored. No elements: nothing is written
/// \param opts      see options; math and output_layout make no difference
/// \param space     channel_moments_workspace_bytes(shape, opts) bytes
/// \param stream    see conv_transpose()
///
/// x is f32, f16 or bf16; it is read once. Two launches. Errors as for conv_transpose().
template <int Rank, class In>
[[nodiscard]] status channel_moments(const In* x,
                                     float* mean,
                                     float* variance,
                                     const tensor_shape<Rank>& shape,
                                     const options& opts,
                                     const workspace& space,
                                     cudaStream_t stream)
{
  static_assert(is_tensor_type<In>::value, "tconv: x is float, __half or __nv_bfloat16");
  tensor_shape<Rank> checked = shape;
  checked.output_slice       = {};
  if (status s = validate(checked, shape.channels); !s.ok())
  {
    return s;
  }
  if (shape.elements() == 0)
  {
    return {};
  }
  const runtime::tensor_moments_plan plan(shape, opts);
  const runtime::argument in = runtime::input_argument(x, shape, opts);
  if (status s = runtime::check_call(
        runtime::argument_list{in},
        runtime::argument_list{{"mean", mean, shape.channels}, {"variance", variance, shape.channels}},
        plan.layout,
        opts,
        space);
      !s.ok())
  {
    return s;
  }
  return plan.launch_moments(runtime::first_of_slice(x, shape, opts),
                             kernel::store_moments{mean, variance},
                             space,
                             opts.programmatic_launch,
                             stream);
}

/// Bytes of workspace that batch_norm_train() needs for the same shape, chain and options; 0 for an invalid shape and
/// where nothing is computed.
template <int Rank, class... Functors>
std::size_t batch_norm_train_workspace_bytes(const tensor_shape<Rank>& shape,
                                             const chain<Functors...>& = chain<>{},
                                             const options& opts       = {})
{
  using chain_type = chain<centred_affine, Functors...>;
  if (!validate(shape, chain_type::output_channels(shape.channels)).ok() || shape.elements() == 0)
  {
    return 0;
  }
  return runtime::tensor_batch_norm_plan(shape, chain_type::across_channels, opts).moments.layout.bytes();
}

/// y = functors(batch_norm(x)) with the statistics of x; running statistics as PyTorch.
///
/// \param x          [batch, channels, extent...], or channels last; may be a channel slice
/// \param y          as for apply_chain(): may be x where type, layout and slice are the same
/// \param shape      batch * positions must be >= 2
/// \param arguments  gamma, beta, running statistics (updated where not null), eps >= 0, momentum in [0, 1]
/// \param functors   what follows the normalisation; chain<>() for nothing
/// \param opts       see options; math makes no difference
/// \param space      batch_norm_train_workspace_bytes(shape, functors, opts) bytes
/// \param stream     see conv_transpose()
///
/// Two reads of x and one write of y. Variances are centred, so nothing cancels; a constant channel gives exactly beta. Errors as
/// for apply_chain(); with one value per channel invalid_argument before anything is written. Batch 0 and empty extents leave the
/// running statistics alone.
template <int Rank, class In, class Out, class... Functors>
[[nodiscard]] status batch_norm_train(const In* x,
                                      Out* y,
                                      const tensor_shape<Rank>& shape,
                                      const batch_norm_arguments& arguments,
                                      const chain<Functors...>& functors,
                                      const options& opts,
                                      const workspace& space,
                                      cudaStream_t stream)
{
  static_assert(
    is_type_pair<In, Out>::value, "tconv: x is float, __half or __nv_bfloat16, and y has the type of x or is float");
  using chain_type      = chain<centred_affine, Functors...>;
  const int64_t written = chain_type::output_channels(shape.channels);
  if (status s = validate(shape, written); !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_batch_norm(arguments); !s.ok())
  {
    return s;
  }
  if (shape.elements() == 0)
  {
    return {};
  }
  if (shape.batch * shape.positions() < 2)
  {
    return status::error(status_code::invalid_argument,
                         "shape: batch * positions = 1: BatchNorm in train mode needs at least 2 values per channel");
  }
  const runtime::tensor_batch_norm_plan plan(shape, chain_type::across_channels, opts);
  const auto optional = [&](const char* name, auto* p) {
    return runtime::argument(name, p, p != nullptr ? shape.channels : 0);
  };
  if (status s = runtime::check_call({runtime::in_place_argument(x, shape, opts),
                                      optional("batch_norm.gamma", arguments.gamma),
                                      optional("batch_norm.beta", arguments.beta)},
                                     {runtime::output_argument(y, shape, written, opts),
                                      optional("batch_norm.running_mean", arguments.running_mean),
                                      optional("batch_norm.running_var", arguments.running_var)},
                                     plan.moments.layout,
                                     opts,
                                     space);
      !s.ok())
  {
    return s;
  }
  float* centres = plan.centres.get(space);
  float* slopes  = plan.slopes.get(space);
  if (status s = plan.moments.launch_moments(runtime::first_of_slice(x, shape, opts),
                                             kernel::prepare_batch_norm{arguments, centres, slopes},
                                             space,
                                             opts.programmatic_launch,
                                             stream);
      !s.ok())
  {
    return s;
  }
  const chain_type normalise = prepend(centred_affine(centres, slopes, arguments.beta), functors);
  return plan.apply.launch(x, y, shape, normalise, opts, space, true, stream);
}

TCONV_CUDA_NAMESPACE_END
