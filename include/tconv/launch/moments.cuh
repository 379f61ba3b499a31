// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Mean and variance of an existing tensor, per channel and per group.

#include "tensor_reduction.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

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
                             moment_sets::channels(plan.reduce.problem),
                             kernel::store_moments{mean, variance},
                             space,
                             opts.programmatic_launch,
                             stream);
}

/// Bytes of workspace that group_moments() needs for the same shape and options; 0 for an invalid shape and where nothing
/// is computed.
template <int Rank>
std::size_t group_moments_workspace_bytes(const tensor_shape<Rank>& shape, const options& opts = {})
{
  return channel_moments_workspace_bytes(shape, opts);
}

/// Mean and biased variance of each group of neighbouring channels of each sample, over the channels and positions of the group.
///
/// \param x         [batch, channels, extent...], or channels last; may be a channel slice
/// \param mean      [batch, groups] fp32, written; outputs must not overlap x, each other or the workspace
/// \param variance  [batch, groups] fp32, written: the mean of (v - mean)^2; centred throughout, so nothing cancels
/// \param shape     every rule is checked; output_slice is ignored. No elements: nothing is written
/// \param groups    >= 1, divides channels; group g holds channels g * channels / groups and on
/// \param opts      see options; math and output_layout make no difference
/// \param space     group_moments_workspace_bytes(shape, opts) bytes
/// \param stream    see conv_transpose()
///
/// x is f32, f16 or bf16; it is read once. Two launches. Errors as for conv_transpose().
template <int Rank, class In>
[[nodiscard]] status group_moments(const In* x,
                                   float* mean,
                                   float* variance,
                                   const tensor_shape<Rank>& shape,
                                   int64_t groups,
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
  if (status s = runtime::check_groups(groups, shape.channels); !s.ok())
  {
    return s;
  }
  if (shape.elements() == 0)
  {
    return {};
  }
  const runtime::tensor_moments_plan plan(shape, opts);
  const runtime::argument in = runtime::input_argument(x, shape, opts);
  const int64_t count        = shape.batch * groups;
  if (status s = runtime::check_call(runtime::argument_list{in},
                                     runtime::argument_list{{"mean", mean, count}, {"variance", variance, count}},
                                     plan.layout,
                                     opts,
                                     space);
      !s.ok())
  {
    return s;
  }
  return plan.launch_moments(runtime::first_of_slice(x, shape, opts),
                             moment_sets::groups(plan.reduce.problem, groups),
                             kernel::store_moments{mean, variance},
                             space,
                             opts.programmatic_launch,
                             stream);
}

TCONV_CUDA_NAMESPACE_END
