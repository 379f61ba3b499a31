// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A chain on an existing tensor: channel softmax and its family, BatchNorm with given statistics, activations, pools.

#include "tensor_chain.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

/// Bytes of workspace that apply_chain() needs for the same shape, chain and options: 0 but for rows of more than some ten
/// thousand channels, for pools behind other functors or with large windows, and for an invalid shape.
template <int Rank, class... Functors>
std::size_t apply_chain_workspace_bytes(const tensor_shape<Rank>& shape,
                                        const chain<Functors...>& functors,
                                        const options& opts = {})
{
  using chain_type = chain<Functors...>;
  if (!validate(shape, chain_type::output_channels(shape.channels)).ok() || shape.elements() == 0)
  {
    return 0;
  }
  const runtime::pool_windows<chain_type> pools(functors, shape.extent);
  if (!pools.outcome.ok())
  {
    return 0;
  }
  detail::workspace_layout layout;
  runtime::tensor_chain_plan<chain_type>(layout, shape, opts, pools);
  return layout.bytes();
}

/// y = functors(x), for an existing tensor.
///
/// \param x         [batch, channels, extent...], or channels last; may be a channel slice (shape.input_slice)
/// \param y         like x, in its own layout and slice; [batch, 1, extent...] where the chain reduces the channels; with the
///                  extents that the chain's pools leave. May be x where type, layout and slice are the same and there is no
///                  pool, else it must not overlap x or the workspace
/// \param shape     every rule is checked
/// \param functors  what happens to x: chain(channel_softmax(), sigmoid()); chain<>() copies and converts
/// \param opts      see options; math makes no difference
/// \param space     apply_chain_workspace_bytes(shape, functors, opts) bytes
/// \param stream    see conv_transpose()
///
/// Types: f32 -> f32, f16 -> f16, bf16 -> bf16, f16 -> f32, bf16 -> f32; arithmetic is fp32. Errors as for conv_transpose().
template <int Rank, class In, class Out, class... Functors>
[[nodiscard]] status apply_chain(const In* x,
                                 Out* y,
                                 const tensor_shape<Rank>& shape,
                                 const chain<Functors...>& functors,
                                 const options& opts,
                                 const workspace& space,
                                 cudaStream_t stream)
{
  static_assert(
    is_type_pair<In, Out>::value, "tconv: x is float, __half or __nv_bfloat16, and y has the type of x or is float");
  using chain_type      = chain<Functors...>;
  const int64_t written = chain_type::output_channels(shape.channels);
  if (status s = validate(shape, written); !s.ok())
  {
    return s;
  }
  if (shape.positions() == 0)
  {
    return {};
  }
  const runtime::pool_windows<chain_type> pools(functors, shape.extent);
  if (!pools.outcome.ok() || shape.batch == 0)
  {
    return pools.outcome;
  }
  detail::workspace_layout layout;
  const runtime::tensor_chain_plan<chain_type> plan(layout, shape, opts, pools);
  if (status s = runtime::check_call(
        runtime::argument_list{runtime::chain_input<chain_type>(x, shape, opts)},
        runtime::argument_list{runtime::output_argument(y, shape, written, pools.positions(), opts)},
        layout,
        opts,
        space);
      !s.ok())
  {
    return s;
  }
  return plan.launch(runtime::input_view(x, shape, opts),
                     runtime::output_view(y, shape, written, pools.positions(), opts),
                     functors,
                     space,
                     opts.programmatic_launch,
                     stream);
}

TCONV_CUDA_NAMESPACE_END
