// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// GroupNorm on an existing tensor.

#include "../group_norm_arguments.hpp"
#include "tensor_reduction.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// Plan and workspace of group_norm(); the layout is that of the moments, continued.
template <class Chain>
struct group_norm_plan
{
  tensor_moments_plan moments;
  detail::workspace_layout::piece<float> centres; ///< [batch][groups]
  detail::workspace_layout::piece<float> slopes;
  tensor_chain_plan<Chain> apply;

  template <int Rank>
  group_norm_plan(const tensor_shape<Rank>& shape,
                  int64_t groups,
                  const options& opts,
                  const pool_windows<Chain>& pools)
      : moments(shape, opts)
      , centres(moments.layout.add<float>(shape.batch * groups))
      , slopes(moments.layout.add<float>(shape.batch * groups))
      , apply(moments.layout, shape, opts, pools)
  {}
};

} // namespace runtime

/// Bytes of workspace that group_norm() needs for the same shape, groups, chain and options; 0 for an invalid shape and where
/// nothing is computed.
template <int Rank, class... Functors>
std::size_t group_norm_workspace_bytes(const tensor_shape<Rank>& shape,
                                       int64_t groups,
                                       const chain<Functors...>& functors = chain<>{},
                                       const options& opts                = {})
{
  using chain_type = chain<group_affine, Functors...>;
  if (!validate(shape, chain_type::output_channels(shape.channels)).ok()
      || !runtime::check_groups(groups, shape.channels).ok() || shape.elements() == 0)
  {
    return 0;
  }
  const runtime::pool_windows<chain_type> pools(prepend(group_affine{}, functors), shape.extent);
  return pools.outcome.ok() ? runtime::group_norm_plan<chain_type>(shape, groups, opts, pools).moments.layout.bytes()
                            : 0;
}

/// y = functors(group_norm(x)): gamma[c] * (x - mean) / sqrt(var + eps) + beta[c] with the mean and biased variance of each group of
/// neighbouring channels of each sample, as torch.nn.GroupNorm. One group is LayerNorm over channels and positions, as many
/// groups as channels is InstanceNorm.
///
/// \param x          [batch, channels, extent...], or channels last; may be a channel slice
/// \param y          as for apply_chain(): may be x where type, layout and slice are the same and the chain has no pool
/// \param shape      every rule is checked; no elements: nothing is written
/// \param arguments  groups >= 1 divides channels; gamma, beta; eps >= 0. var + eps = 0 gives beta
/// \param functors   what follows the normalisation; chain<>() for nothing
/// \param opts       see options; math makes no difference
/// \param space      group_norm_workspace_bytes(shape, arguments.groups, functors, opts) bytes
/// \param stream     see conv_transpose()
///
/// Two reads of x and one write of y. Variances are centred, so nothing cancels. Errors as for apply_chain().
template <int Rank, class In, class Out, class... Functors>
[[nodiscard]] status group_norm(const In* x,
                                Out* y,
                                const tensor_shape<Rank>& shape,
                                const group_norm_arguments& arguments,
                                const chain<Functors...>& functors,
                                const options& opts,
                                const workspace& space,
                                cudaStream_t stream)
{
  static_assert(
    is_type_pair<In, Out>::value, "tconv: x is float, __half or __nv_bfloat16, and y has the type of x or is float");
  using chain_type      = chain<group_affine, Functors...>;
  const int64_t written = chain_type::output_channels(shape.channels);
  if (status s = validate(shape, written); !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_groups(arguments.groups, shape.channels); !s.ok())
  {
    return s;
  }
  if (!(arguments.eps >= 0.0f))
  {
    return status::error(
      status_code::invalid_argument, "group_norm.eps = %g: must be >= 0", static_cast<double>(arguments.eps));
  }
  if (shape.positions() == 0)
  {
    return {};
  }
  const runtime::pool_windows<chain_type> pools(prepend(group_affine{}, functors), shape.extent);
  if (!pools.outcome.ok() || shape.batch == 0)
  {
    return pools.outcome;
  }
  const runtime::group_norm_plan<chain_type> plan(shape, arguments.groups, opts, pools);
  const auto optional = [&](const char* name, const float* p) {
    return runtime::argument(name, p, p != nullptr ? shape.channels : 0);
  };
  if (status s = runtime::check_call(
        runtime::argument_list{runtime::chain_input<chain_type>(x, shape, opts),
                               optional("group_norm.gamma", arguments.gamma),
                               optional("group_norm.beta", arguments.beta)},
        runtime::argument_list{runtime::output_argument(y, shape, written, pools.positions(), opts)},
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
                                             moment_sets::groups(plan.moments.reduce.problem, arguments.groups),
                                             kernel::prepare_group_norm{arguments.eps, centres, slopes},
                                             space,
                                             opts.programmatic_launch,
                                             stream);
      !s.ok())
  {
    return s;
  }
  const group_affine normalise{
    centres, slopes, arguments.gamma, arguments.beta, arguments.groups, shape.channels / arguments.groups};
  return plan.apply.launch(runtime::input_view(x, shape, opts),
                           runtime::output_view(y, shape, written, pools.positions(), opts),
                           prepend(normalise, functors),
                           space,
                           true,
                           stream);
}

TCONV_CUDA_NAMESPACE_END
