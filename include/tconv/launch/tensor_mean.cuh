// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Global mean of an existing tensor.

#include "tensor_reduction.cuh"

#include <algorithm>
#include <type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

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
  static_assert(chain<Functors...>::pools == 0, "tconv: a mean has one position: there is nothing left to pool");
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
      block::tensor_view<const float>{rows, tensor_strides::of(layout::channels_first, shape.channels, 1)},
      block::tensor_view<Out>{first_y, tensor_strides::of(layout::channels_first, total, 1)},
      shape.batch,
      shape.channels,
      1,
      functors,
      space,
      true,
      stream);
  }
}

TCONV_CUDA_NAMESPACE_END
