// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A chain on an existing tensor: channel softmax and its family, BatchNorm with given statistics, activations.

#include "../detail/arguments.cuh"
#include "../detail/workspace_layout.hpp"
#include "../kernel/apply_chain.cuh"
#include "../tensor_shape.hpp"

#include <algorithm>
#include <type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// True if groups of \p count elements of a tensor start on multiples of their size (at most 16 bytes): its first element, and
/// whatever lies a multiple of \p step elements from it.
template <class T>
[[nodiscard]] bool aligned_groups(const T* data, int64_t step, int64_t count)
{
  const int64_t width = std::min<int64_t>(count, 16 / static_cast<int64_t>(sizeof(T)));
  return reinterpret_cast<std::uintptr_t>(data) % (static_cast<std::size_t>(width) * sizeof(T)) == 0
      && step % width == 0;
}

/// How a tensor is worked on in columns of all channels; the same for query and run.
struct columns_plan
{
  int columns;
  detail::workspace_layout::piece<float> scratch; ///< rows of the blocks where not even one column fits shared memory

  columns_plan(detail::workspace_layout& layout, int64_t batch, int64_t channels, int64_t positions)
      : columns(tuning::columns_policy::columns(channels))
  {
    // A block has no use for more columns than there are positions.
    while (columns > 1 && columns / 2 >= positions)
    {
      columns /= 2;
    }
    scratch = layout.add<float>(
      columns > 0 ? 0 : std::min(tuning::columns_policy::scratch_blocks, batch * positions) * channels);
  }

  /// y = functors(x); y may be x.
  template <class Chain, class In, class Out>
  [[nodiscard]] status launch(const kernel::tensor_view<const In>& x,
                              const kernel::tensor_view<Out>& y,
                              int64_t batch,
                              int64_t channels,
                              int64_t positions,
                              const Chain& functors,
                              const workspace& space,
                              bool overlap_predecessor,
                              cudaStream_t stream) const
  {
    using policy         = tuning::columns_policy;
    const int side       = std::max(columns, 1);
    const int64_t blocks = batch * ceil_div(positions, side);
    const int64_t bytes  = columns > 0 ? channels * policy::pitch(side) * 4 : 0;
    return runtime::launch("tconv::kernel::apply_chain_columns",
                           kernel::apply_chain_columns<policy, Chain, In, Out>,
                           {std::min(blocks, columns > 0 ? max_grid : policy::scratch_blocks),
                            policy::threads,
                            static_cast<std::size_t>(bytes),
                            overlap_predecessor},
                           stream,
                           x,
                           y,
                           batch,
                           channels,
                           positions,
                           side,
                           columns > 0 ? nullptr : scratch.get(space),
                           functors);
  }
};

/// Launches the kernel for rows in registers with \p Channels channels a thread.
template <int Channels, class Chain, class In, class Out>
[[nodiscard]] status launch_rows(const kernel::tensor_view<const In>& x,
                                 const kernel::tensor_view<Out>& y,
                                 int64_t batch,
                                 int64_t channels,
                                 int64_t positions,
                                 int lanes,
                                 const Chain& functors,
                                 bool overlap_predecessor,
                                 cudaStream_t stream)
{
  constexpr int threads = tuning::rows_policy::threads;
  const int64_t tiles   = ceil_div(channels, static_cast<int64_t>(Channels) * lanes);
  const int64_t blocks  = batch * tiles * ceil_div(positions, threads / lanes);
  const auto vector     = [](const auto& view) {
    return view.strides.channel == 1
        && aligned_groups(view.data, gcd(view.strides.position, std::max<int64_t>(view.strides.sample, 1)), Channels);
  };
  return runtime::launch("tconv::kernel::apply_chain_rows",
                         kernel::apply_chain_rows<threads, Channels, Chain, In, Out>,
                         {std::min(blocks, max_grid), threads, 0, overlap_predecessor},
                         stream,
                         x,
                         y,
                         batch,
                         channels,
                         positions,
                         lanes,
                         tiles,
                         vector(x),
                         vector(y),
                         functors);
}

/// Which kernel applies a chain to a tensor.
struct apply_chain_plan
{
  tuning::rows_policy rows;
  columns_plan columns;

  template <int Rank>
  apply_chain_plan(detail::workspace_layout& layout,
                   const tensor_shape<Rank>& shape,
                   bool across_channels,
                   const options& opts)
      : rows(rows_of(shape.channels, across_channels, opts.input_layout == tconv::layout::channels_last))
      , columns(layout, shape.batch, rows.lanes > 0 ? 1 : shape.channels, shape.positions())
  {}

  /// y = functors(x), of which everything has been checked.
  template <int Rank, class In, class Out, class... Functors>
  [[nodiscard]] status launch(const In* x,
                              Out* y,
                              const tensor_shape<Rank>& shape,
                              const chain<Functors...>& functors,
                              const options& opts,
                              const workspace& space,
                              bool overlap_predecessor,
                              cudaStream_t stream) const
  {
    using chain_type         = chain<Functors...>;
    const int64_t positions  = shape.positions();
    const int64_t y_channels = shape.output_slice.total(chain_type::output_channels(shape.channels));
    const tensor_strides to  = tensor_strides::of(opts.output_layout, y_channels, positions);
    const kernel::tensor_view<const In> source{first_of_slice(x, shape, opts), input_strides(shape, opts)};
    const kernel::tensor_view<Out> target{y + shape.output_slice.first_channel * to.channel, to};
    const auto by_rows = [&](auto channels) {
      return launch_rows<decltype(channels)::value>(
        source, target, shape.batch, shape.channels, positions, rows.lanes, functors, overlap_predecessor, stream);
    };
    if constexpr (!chain_type::across_channels)
    {
      // Tiles of channels are independent: at most 16 channels a thread, and any number of tiles.
      return rows.channels == 4 ? by_rows(std::integral_constant<int, 4>{})
                                : by_rows(std::integral_constant<int, 16>{});
    }
    else if (rows.lanes == 0)
    {
      return columns.launch(
        source, target, shape.batch, shape.channels, positions, functors, space, overlap_predecessor, stream);
    }
    else
    {
      switch (rows.channels)
      {
        case 4: return by_rows(std::integral_constant<int, 4>{});
        case 16: return by_rows(std::integral_constant<int, 16>{});
        default: return by_rows(std::integral_constant<int, 64>{});
      }
    }
  }

private:
  static tuning::rows_policy rows_of(int64_t channels, bool across_channels, bool channels_last)
  {
    return tuning::rows_policy::of(
      across_channels ? channels : std::min<int64_t>(channels, channels_last ? 128 : 16), channels_last);
  }
};

/// x of apply_chain() and its like, which y may be.
template <class In, int Rank>
[[nodiscard]] argument in_place_argument(const In* x, const tensor_shape<Rank>& shape, const options& opts)
{
  argument result = input_argument(x, shape, opts);
  result.in_place = true;
  return result;
}

/// y of apply_chain() and its like, a slice of \p written channels.
template <class Out, int Rank>
[[nodiscard]] argument output_argument(Out* y, const tensor_shape<Rank>& shape, int64_t written, const options& opts)
{
  const int64_t elements = shape.batch * shape.output_slice.total(written) * shape.positions();
  return {"y", y, elements, shape.output_slice, written, opts.output_layout};
}

} // namespace runtime

/// Bytes of workspace that apply_chain() needs for the same shape, chain and options: 0 but for rows of more than some ten
/// thousand channels, and for an invalid shape.
template <int Rank, class... Functors>
std::size_t
apply_chain_workspace_bytes(const tensor_shape<Rank>& shape, const chain<Functors...>&, const options& opts = {})
{
  using chain_type = chain<Functors...>;
  if (!validate(shape, chain_type::output_channels(shape.channels)).ok() || shape.elements() == 0)
  {
    return 0;
  }
  detail::workspace_layout layout;
  runtime::apply_chain_plan(layout, shape, chain_type::across_channels, opts);
  return layout.bytes();
}

/// y = functors(x), for an existing tensor.
///
/// \param x         [batch, channels, extent...], or channels last; may be a channel slice (shape.input_slice)
/// \param y         like x, in its own layout and slice; [batch, 1, extent...] where the chain reduces the channels. May be x
///                  where type, layout and slice are the same, else it must not overlap x or the workspace
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
  if (shape.elements() == 0)
  {
    return {};
  }
  detail::workspace_layout layout;
  const runtime::apply_chain_plan plan(layout, shape, chain_type::across_channels, opts);
  if (status s = runtime::check_call(runtime::argument_list{runtime::in_place_argument(x, shape, opts)},
                                     runtime::argument_list{runtime::output_argument(y, shape, written, opts)},
                                     layout,
                                     opts,
                                     space);
      !s.ok())
  {
    return s;
  }
  return plan.launch(x, y, shape, functors, opts, space, opts.programmatic_launch, stream);
}

TCONV_CUDA_NAMESPACE_END
