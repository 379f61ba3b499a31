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

  reduce_plan(
    detail::workspace_layout& layout, int64_t batch, int64_t channels, int64_t positions, const tensor_strides& strides)
  {
    using policy       = tuning::reduce_policy;
    problem.x          = strides;
    problem.batch      = batch;
    problem.channels   = channels;
    problem.positions  = positions;
    const int64_t rows = batch * (strides.channels_last() ? ceil_div(channels, int64_t{32}) : channels);
    problem.slices     = std::max<int64_t>(
      1, std::min(ceil_div(policy::wanted_blocks, std::max<int64_t>(rows, 1)), positions / policy::least_slice));
    partials = layout.add<typename Reduction::state>(problem.states());
  }

  /// Partial states of x (first channel of the slice).
  template <class In>
  [[nodiscard]] status
  launch_slices(const In* x, const workspace& space, bool overlap_predecessor, cudaStream_t stream) const
  {
    using policy        = tuning::reduce_policy;
    const int64_t tiles = problem.x.channels_last() ? ceil_div(problem.channels, int64_t{32}) : problem.channels;
    const int64_t width = 16 / static_cast<int64_t>(sizeof(In));
    const bool vector   = !problem.x.channels_last()
                     && aligned_groups(x, gcd(problem.x.channel, problem.x.sample), width);
    return launch("tconv::kernel::reduce_slices",
                  kernel::reduce_slices<policy, Reduction, In>,
                  {std::min(problem.batch * tiles * problem.slices, max_grid), policy::threads, 0, overlap_predecessor},
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
      : reduce(layout,
               shape.batch,
               shape.channels,
               shape.positions(),
               tensor_strides::of(opts.input_layout, shape.input_slice.total(shape.channels), shape.positions()))
      , rows(layout.add<float>(across_channels ? shape.batch * shape.channels : 0))
      , columns(layout, shape.batch, across_channels ? shape.channels : 1, 1)
  {}
};

/// Plan and workspace of channel_moments() and batch_norm_train().
struct tensor_moments_plan
{
  detail::workspace_layout layout;
  reduce_plan<block::moments_reduction> reduce;
  detail::workspace_layout::piece<float> centres;
  detail::workspace_layout::piece<float> slopes;

  template <int Rank>
  tensor_moments_plan(const tensor_shape<Rank>& shape, bool normalise, const options& opts)
      : reduce(layout,
               shape.batch,
               shape.channels,
               shape.positions(),
               tensor_strides::of(opts.input_layout, shape.input_slice.total(shape.channels), shape.positions()))
      , centres(layout.add<float>(normalise ? shape.channels : 0))
      , slopes(layout.add<float>(normalise ? shape.channels : 0))
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

/// x as an argument: all of the tensor that it is a slice of.
template <class In, int Rank>
[[nodiscard]] argument input_argument(const In* x, const tensor_shape<Rank>& shape, const options& opts)
{
  return {"x",
          x,
          shape.batch * shape.input_slice.total(shape.channels) * shape.positions(),
          shape.input_slice,
          shape.channels,
          opts.input_layout};
}

/// The first channel of the slice x.
template <class In, int Rank>
[[nodiscard]] const In* first_of_slice(const In* x, const tensor_shape<Rank>& shape, const options& opts)
{
  return x
       + shape.input_slice.first_channel
           * tensor_strides::of(opts.input_layout, shape.input_slice.total(shape.channels), shape.positions()).channel;
}

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
  return runtime::tensor_moments_plan(shape, false, opts).layout.bytes();
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
  const runtime::tensor_moments_plan plan(shape, false, opts);
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
  return runtime::tensor_moments_plan(shape, true, opts).layout.bytes()
       + runtime::apply_chain_plan(shape.batch,
                                   shape.channels,
                                   shape.positions(),
                                   chain_type::across_channels,
                                   opts.input_layout == layout::channels_last)
           .layout.bytes();
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
  const runtime::tensor_moments_plan plan(shape, true, opts);
  const auto optional = [&](const char* name, auto* p) {
    return runtime::argument(name, p, p != nullptr ? shape.channels : 0);
  };
  const runtime::argument out("y",
                              y,
                              shape.batch * shape.output_slice.total(written) * shape.positions(),
                              shape.output_slice,
                              written,
                              opts.output_layout);
  // What x and y may share is checked by apply_chain(), which follows; so everything is checked before the first launch here too.
  const workspace rest{
    static_cast<char*>(space.data) + plan.layout.bytes(), space.bytes - std::min(space.bytes, plan.layout.bytes())};
  const chain_type normalise = prepend(
    centred_affine(plan.centres.get(space), plan.slopes.get(space), arguments.beta), functors);
  if (status s = runtime::check_call(
        {optional("batch_norm.gamma", arguments.gamma), optional("batch_norm.beta", arguments.beta)},
        {out,
         optional("batch_norm.running_mean", arguments.running_mean),
         optional("batch_norm.running_var", arguments.running_var)},
        plan.layout,
        opts,
        space);
      !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_apply_chain(x, y, shape, normalise, opts, rest); !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_disjoint(
        runtime::argument("workspace", static_cast<const char*>(space.data), static_cast<int64_t>(plan.layout.bytes())),
        runtime::input_argument(x, shape, opts));
      !s.ok())
  {
    return s;
  }
  if (status s = plan.launch_moments(
        runtime::first_of_slice(x, shape, opts),
        kernel::prepare_batch_norm{arguments, plan.centres.get(space), plan.slopes.get(space)},
        space,
        opts.programmatic_launch,
        stream);
      !s.ok())
  {
    return s;
  }
  options following             = opts;
  following.programmatic_launch = true;
  return apply_chain(x, y, shape, normalise, following, rest, stream);
}

TCONV_CUDA_NAMESPACE_END
