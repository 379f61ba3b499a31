// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The mean of a transposed convolution over all output positions, collapsed: no convolution is computed.

#include "../detail/arguments.cuh"
#include "../detail/workspace_layout.hpp"
#include "../kernel/collapse.cuh"
#include "../shape.hpp"
#include "conv_transpose.cuh"

#include <algorithm>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// How class sums are taken and where they lie; the same for query and run.
struct collapse_plan
{
  collapse_problem problem;
  class_list classes;
  detail::workspace_layout::piece<class_box> list; ///< of the classes, where they are too many for the table
  detail::workspace_layout::piece<double> x_sums;
  detail::workspace_layout::piece<double> w_sums;
  detail::workspace_layout::piece<float> rows; ///< means before the chain, where that needs all channels
  int64_t input_positions;
  bool single_rows; ///< each class is one row of neighbours in a channel

  /// \p sliced: launch_sums() takes the sums; else somebody else, and those of x are one for each class.
  collapse_plan(detail::workspace_layout& layout,
                const conv_transpose_shape<3>& shape,
                bool across_channels,
                const options& opts,
                bool sliced = true)
      : input_positions(shape.input_positions())
  {
    using policy          = tuning::collapse_policy;
    problem.x             = input_strides(shape, opts);
    problem.batch         = shape.batch;
    problem.in_channels   = shape.in_channels;
    problem.out_channels  = shape.out_channels;
    problem.in_per_group  = shape.in_channels / shape.groups;
    problem.out_per_group = shape.out_channels / shape.groups;
    for (int a = 0; a < 3; ++a)
    {
      problem.axis[a]    = shape.axis(a);
      problem.classes[a] = problem.axis[a].class_count();
    }
    const int64_t total = problem.class_total();
    for (int64_t i = 0; total <= class_list::tabulated && i < total; ++i)
    {
      classes.table[i] = problem.find_class(i);
    }
    problem.all_taps = total == 1;
    single_rows      = total <= class_list::tabulated;
    for (int64_t i = 0; single_rows && i < total; ++i)
    {
      single_rows = classes.table[i].height == 1 && classes.table[i].depth == 1;
    }
    for (int a = 0; a < 3; ++a)
    {
      problem.all_taps = problem.all_taps && classes.table[0].taps[a].size() == problem.axis[a].kernel;
    }
    while (problem.x.channels_last() && problem.channel_bits < 5 && 1 << problem.channel_bits < shape.in_channels)
    {
      ++problem.channel_bits;
    }
    problem.channel_tiles = ceil_div(shape.in_channels, int64_t{1} << problem.channel_bits);
    // Until there are enough slices of the largest class, which is nearly all of a channel, unless they get too small on average.
    const int64_t items = shape.batch * problem.channel_tiles;
    const auto size     = [&](int bits) { return (input_positions << problem.channel_bits) >> bits; };
    while (sliced
           && (size(problem.slice_bits) > policy::most_slice
               || (items << problem.slice_bits < policy::wanted_slices
                   && size(problem.slice_bits + 1) / total >= policy::least_slice)))
    {
      ++problem.slice_bits;
    }
    problem.slices        = total << problem.slice_bits;
    problem.weight_blocks = std::min(
      policy::weight_blocks, ceil_div(problem.weight_sums(), policy::weight_rows * policy::sum_threads / 32));
    list   = layout.add<class_box>(total > class_list::tabulated ? total : 0);
    x_sums = layout.add<double>(problem.input_sums());
    w_sums = layout.add<double>(problem.weight_sums());
    rows   = layout.add<float>(across_channels ? shape.batch * shape.out_channels : 0);
  }

  /// Class sums of x (first channel of the slice) and w into the workspace.
  template <class In>
  [[nodiscard]] status
  launch_sums(const In* x, const In* w, const workspace& space, bool overlap_predecessor, cudaStream_t stream) const
  {
    using policy         = tuning::collapse_policy;
    const int64_t items  = problem.batch * problem.channel_tiles * problem.slices;
    const int64_t blocks = problem.weight_blocks
                         + std::min(ceil_div(items, policy::sum_threads / 32), max_grid - problem.weight_blocks);
    class_list listed = classes;
    if (problem.class_total() > class_list::tabulated)
    {
      constexpr int threads = 128;
      listed.list           = list.get(space);
      if (status s = launch(
            "tconv::kernel::list_classes",
            kernel::list_classes<threads>,
            {std::min(ceil_div(problem.class_total(), threads), max_grid), threads, 0, overlap_predecessor},
            stream,
            problem,
            list.get(space));
          !s.ok())
      {
        return s;
      }
      overlap_predecessor = true;
    }
    const auto sum = [&](auto rows_of, auto width) {
      return launch("tconv::kernel::class_sums",
                    kernel::class_sums<policy, decltype(rows_of)::value, decltype(width)::value, In>,
                    {blocks, policy::sum_threads, 0, overlap_predecessor},
                    stream,
                    problem,
                    listed,
                    x,
                    w,
                    x_sums.get(space),
                    w_sums.get(space));
    };
    constexpr int width = 16 / static_cast<int>(sizeof(In));
    using single        = std::integral_constant<int, 1>;
    using vector        = std::integral_constant<int, width>;
    if (!problem.x.channels_last() && aligned_groups(x, input_positions, width))
    {
      if (single_rows)
      {
        return sum(std::false_type{}, vector{});
      }
      if (problem.axis[2].in % width == 0) // rows start alike
      {
        return sum(std::true_type{}, vector{});
      }
    }
    return sum(std::true_type{}, single{});
  }

  /// Means through \p functors into y[n * y_stride + channel]; follows launch_sums().
  template <class Chain, class Out>
  [[nodiscard]] status
  launch_product(Out* y, int64_t y_stride, const Chain& functors, const workspace& space, cudaStream_t stream) const
  {
    using policy         = tuning::collapse_policy;
    const int64_t tiles  = Chain::across_channels ? 1 : ceil_div(problem.out_channels, 32);
    const int64_t blocks = std::min(problem.batch * tiles, max_grid);
    return launch("tconv::kernel::class_product",
                  kernel::class_product<policy, Chain, Out>,
                  {blocks, 32 * policy::product_warps, 0, true},
                  stream,
                  problem,
                  x_sums.get(space),
                  w_sums.get(space),
                  y,
                  y_stride,
                  rows.get(space),
                  functors);
  }
};

} // namespace runtime

/// Bytes of workspace that global_mean() needs; 0 for an invalid shape and where nothing is computed.
template <int Rank, class... Functors>
std::size_t global_mean_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                        const chain<Functors...>& = chain<>{},
                                        const options& opts       = {})
{
  using chain_type = chain<Functors...>;
  if (!detail::validate_result(shape, chain_type::output_channels(shape.out_channels)).ok()
      || shape.output_elements() == 0)
  {
    return 0;
  }
  detail::workspace_layout layout;
  runtime::collapse_plan(layout, detail::canonical(shape), chain_type::across_channels, opts);
  return layout.bytes();
}

/// y = functors(mean over all output positions of conv_transpose(x, w)), without computing the convolution.
///
/// Exact for any stride, padding, output_padding, dilation and groups; costs one read of x and w. Linear functors (bias, scale,
/// affine, batch_norm) commute with the mean, so a pipeline that applies them before pooling is the same chain after it.
///
/// \param x         [batch, in_channels, input...], device memory; layout and slice as for conv_transpose()
/// \param w         [in_channels, out_channels / groups, kernel...] of the type of x
/// \param y         [batch, out_channels], or [batch, 1] where the chain reduces the channels; may be a slice of a wider
///                  [batch, tensor_channels]; must not overlap x, w or the workspace
/// \param shape     of the convolution
/// \param functors  applied to the means; linear ones in double up to the first that is not, or all in fp32 where one needs all
///                  channels
/// \param opts      see options
/// \param space     global_mean_workspace_bytes(shape, functors, opts) bytes
/// \param stream    see conv_transpose()
///
/// Types as for conv_transpose(); sums are fp32 within a few values of a thread and fp64 beyond. Two launches, three beyond 27 tap
/// classes. Errors as for
/// conv_transpose().
template <int Rank, class In, class Out, class... Functors>
[[nodiscard]] status global_mean(const In* x,
                                 const In* w,
                                 Out* y,
                                 const conv_transpose_shape<Rank>& shape,
                                 const chain<Functors...>& functors,
                                 const options& opts,
                                 const workspace& space,
                                 cudaStream_t stream)
{
  static_assert(is_type_pair<In, Out>::value,
                "tconv: x and w are float, __half or __nv_bfloat16, and y has their type or is float");
  static_assert(chain<Functors...>::pools == 0, "tconv: a mean has one position: there is nothing left to pool");
  static_assert(
    !chain<Functors...>::per_position,
    "tconv: functors with a whole tensor as operand (add_tensor and the like) need positions; a mean has none");
  using chain_type      = chain<Functors...>;
  const int64_t written = chain_type::output_channels(shape.out_channels);
  if (status s = detail::validate_result(shape, written); !s.ok())
  {
    return s;
  }
  if (shape.output_elements() == 0)
  {
    return {};
  }
  detail::workspace_layout layout;
  const runtime::collapse_plan plan(layout, detail::canonical(shape), chain_type::across_channels, opts);
  const int64_t total = shape.output_slice.total(written);
  if (status s = runtime::check_call({runtime::input_argument(x, shape, opts), {"w", w, shape.weight_elements()}},
                                     {{"y", y, shape.batch * total}},
                                     layout,
                                     opts,
                                     space);
      !s.ok())
  {
    return s;
  }
  if (status s = plan.launch_sums(runtime::first_of_slice(x, shape, opts), w, space, opts.programmatic_launch, stream);
      !s.ok())
  {
    return s;
  }
  return plan.launch_product(y + shape.output_slice.first_channel, total, functors, space, stream);
}

TCONV_CUDA_NAMESPACE_END
