// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// BatchNorm in train mode on an existing tensor.

#include "../batch_norm_arguments.hpp"
#include "tensor_reduction.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// Plan and workspace of batch_norm_train(); the layout is that of the moments, continued.
template <class Chain>
struct tensor_batch_norm_plan
{
  tensor_moments_plan moments;
  detail::workspace_layout::piece<float> centres;
  detail::workspace_layout::piece<float> slopes;
  tensor_chain_plan<Chain> apply;

  template <int Rank>
  tensor_batch_norm_plan(const tensor_shape<Rank>& shape, const options& opts, const pool_windows<Chain>& pools)
      : moments(shape, opts)
      , centres(moments.layout.add<float>(shape.channels))
      , slopes(moments.layout.add<float>(shape.channels))
      , apply(moments.layout, shape, opts, pools)
  {}
};

} // namespace runtime

/// Bytes of workspace that batch_norm_train() needs for the same shape, chain and options; 0 for an invalid shape and
/// where nothing is computed.
template <int Rank, class... Functors>
std::size_t batch_norm_train_workspace_bytes(const tensor_shape<Rank>& shape,
                                             const chain<Functors...>& functors = chain<>{},
                                             const options& opts                = {})
{
  using chain_type = chain<centred_affine, Functors...>;
  if (!validate(shape, chain_type::output_channels(shape.channels)).ok() || shape.elements() == 0)
  {
    return 0;
  }
  const runtime::pool_windows<chain_type> pools(
    prepend(centred_affine(nullptr, nullptr, nullptr), functors), shape.extent);
  return pools.outcome.ok() ? runtime::tensor_batch_norm_plan<chain_type>(shape, opts, pools).moments.layout.bytes()
                            : 0;
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
  if (shape.positions() == 0)
  {
    return {};
  }
  const runtime::pool_windows<chain_type> pools(
    prepend(centred_affine(nullptr, nullptr, nullptr), functors), shape.extent);
  if (!pools.outcome.ok() || shape.batch == 0)
  {
    return pools.outcome;
  }
  if (shape.batch * shape.positions() < 2)
  {
    return status::error(status_code::invalid_argument,
                         "shape: batch * positions = 1: BatchNorm in train mode needs at least 2 values per channel");
  }
  const runtime::tensor_batch_norm_plan<chain_type> plan(shape, opts, pools);
  const auto optional = [&](const char* name, auto* p) {
    return runtime::argument(name, p, p != nullptr ? shape.channels : 0);
  };
  if (status s = runtime::check_call({runtime::chain_input<chain_type>(x, shape, opts),
                                      optional("batch_norm.gamma", arguments.gamma),
                                      optional("batch_norm.beta", arguments.beta)},
                                     {runtime::output_argument(y, shape, written, pools.positions(), opts),
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
                                             moment_sets::channels(plan.moments.reduce.problem),
                                             kernel::prepare_batch_norm{arguments, centres, slopes},
                                             space,
                                             opts.programmatic_launch,
                                             stream);
      !s.ok())
  {
    return s;
  }
  const chain_type normalise = prepend(centred_affine(centres, slopes, arguments.beta), functors);
  return plan.apply.launch(runtime::input_view(x, shape, opts),
                           runtime::output_view(y, shape, written, pools.positions(), opts),
                           normalise,
                           space,
                           true,
                           stream);
}

TCONV_CUDA_NAMESPACE_END
