// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// How chains are applied to stored tensors, for every launcher that does: rows in registers, columns in shared memory, pools
/// pass by pass.

#include "../detail/arguments.cuh"
#include "../detail/resolve_pool.hpp"
#include "../detail/workspace_layout.hpp"
#include "../kernel/apply_chain.cuh"
#include "../kernel/reduce_windows.cuh"
#include "../tensor_shape.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

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
  template <class Chain, class Source, class Out>
  [[nodiscard]] status launch(const Source& x,
                              const block::tensor_view<Out>& y,
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
                           kernel::apply_chain_columns<policy, Chain, Source, Out>,
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

/// True if the elements of a thread of kernel::apply_chain_rows that are neighbours in memory are aligned to as many as one access
/// takes.
template <int Channels, class T>
[[nodiscard]] bool aligned_tiles(const block::tensor_view<T>& view)
{
  const tensor_strides& to = view.strides;
  const int64_t sample     = std::max<int64_t>(to.sample, 1);
  return to.channels_last() ? to.channel == 1 && aligned_groups(view.data, gcd(to.position, sample), Channels)
                            : aligned_groups(view.data, gcd(to.channel, sample), tuning::rows_policy::positions);
}
/// Windows are read value by value.
template <int Channels, pool_operation Operation, class T>
[[nodiscard]] bool aligned_tiles(const block::pooled_view<Operation, T>&)
{
  return false;
}

/// Launches the kernel for rows in registers with \p Channels channels a thread.
template <int Channels, class Chain, class Source, class Out>
[[nodiscard]] status launch_rows(const Source& x,
                                 const block::tensor_view<Out>& y,
                                 int64_t batch,
                                 int64_t channels,
                                 int64_t positions,
                                 int lanes,
                                 const Chain& functors,
                                 bool overlap_predecessor,
                                 cudaStream_t stream)
{
  constexpr int threads = tuning::rows_policy::threads;
  constexpr int held    = tuning::rows_policy::positions;
  const int64_t tiles   = ceil_div(channels, static_cast<int64_t>(Channels) * lanes);
  const int64_t blocks  = batch * tiles * ceil_div(positions, threads / lanes * held);
  return runtime::launch("tconv::kernel::apply_chain_rows",
                         kernel::apply_chain_rows<threads, Channels, held, Chain, Source, Out>,
                         {std::min(blocks, max_grid), threads, 0, overlap_predecessor},
                         stream,
                         x,
                         y,
                         batch,
                         channels,
                         positions,
                         lanes,
                         tiles,
                         aligned_tiles<Channels>(x),
                         aligned_tiles<Channels>(y),
                         functors);
}

/// How a chain without pools is applied to a tensor: rows in registers, or columns in shared memory; the same for query and run.
struct rows_plan
{
  int64_t batch;
  int64_t channels;
  int64_t positions;
  tuning::rows_policy rows;
  columns_plan columns;

  /// \p channels_last: of the tensor that is read.
  rows_plan(detail::workspace_layout& layout,
            int64_t batch_size,
            int64_t channel_count,
            int64_t position_count,
            bool across_channels,
            bool channels_last)
      : batch(batch_size)
      , channels(channel_count)
      , positions(position_count)
      // Without channel functors tiles of channels are independent: at most 16 channels a thread, and any number of tiles.
      , rows(tuning::rows_policy::of(
          across_channels ? channels : std::min<int64_t>(channels, channels_last ? 256 : 16), channels_last))
      , columns(layout, batch, rows.lanes > 0 ? 1 : channels, positions)
  {}

  /// target = functors(source); see block/tensor_view.cuh for sources.
  template <class Source, class Out, class... Functors>
  [[nodiscard]] status launch(const Source& source,
                              const block::tensor_view<Out>& target,
                              const chain<Functors...>& functors,
                              const workspace& space,
                              bool overlap_predecessor,
                              cudaStream_t stream) const
  {
    const auto by_rows = [&](auto per_thread) {
      return launch_rows<decltype(per_thread)::value>(
        source, target, batch, channels, positions, rows.lanes, functors, overlap_predecessor, stream);
    };
    if constexpr (chain<Functors...>::across_channels)
    {
      if (rows.lanes == 0)
      {
        return columns.launch(source, target, batch, channels, positions, functors, space, overlap_predecessor, stream);
      }
    }
    switch (rows.channels)
    {
      case 4: return by_rows(std::integral_constant<int, 4>{});
      case 8: return by_rows(std::integral_constant<int, 8>{});
      default: return by_rows(std::integral_constant<int, 16>{});
    }
  }
};

/// The pools of a chain on a tensor of given extents, in order.
template <class Chain>
struct pool_windows
{
  std::array<pool_window, static_cast<std::size_t>(Chain::pools)> windows; ///< with axes merged
  std::array<pool_window, static_cast<std::size_t>(Chain::pools)> given;   ///< as they are
  pool_window first;                                                       ///< the first of these
  int64_t extent[3] = {1, 1, 1};                                           ///< of the result, canonical
  status outcome;                                                          ///< the first rule that a pool breaks

  template <std::size_t Rank>
  pool_windows(const Chain& functors, const std::array<int64_t, Rank>& input)
  {
    for (std::size_t a = 0; a < Rank; ++a)
    {
      extent[3 - Rank + a] = input[a];
    }
    resolve(functors, static_cast<int>(Rank), 0);
  }
  /// Positions of the result.
  int64_t positions() const { return extent[0] * extent[1] * extent[2]; }

private:
  void resolve(const chain<>&, int, std::size_t) {}
  template <class First, class... Rest>
  void resolve(const chain<First, Rest...>& functors, int rank, std::size_t index)
  {
    if constexpr (detail::across_positions<First>::value)
    {
      pool_window& window = windows[index];
      std::copy_n(extent, 3, window.in);
      outcome = detail::resolve_pool(functors.first, rank, window);
      std::copy_n(window.out, 3, extent);
      first        = index == 0 ? window : first;
      given[index] = window;
      window       = detail::merge_axes(window);
      ++index;
    }
    if (outcome.ok())
    {
      resolve(functors.rest, rank, index);
    }
  }
};

/// The functors of a chain up to its first pool, and from there.
template <class Chain>
using before_pool_t = decltype(detail::before_pool(std::declval<const Chain&>()));
template <class Chain>
using from_pool_t = decltype(detail::from_pool(std::declval<const Chain&>()));

/// A chain that begins with a pool, as passes over stored tensors: each takes one pool and the functors up to the next. What lies
/// between two passes is fp32, channels first.
template <class Chain>
struct pool_passes;

/// No pass.
template <>
struct pool_passes<chain<>>
{
  pool_passes(detail::workspace_layout&, int64_t, int64_t, bool, const pool_window*) {}
};

template <class Pool, class... Rest>
struct pool_passes<chain<Pool, Rest...>>
{
  using segment = before_pool_t<chain<Rest...>>;
  using others  = from_pool_t<chain<Rest...>>;

  pool_window window;
  int64_t slices = 0; ///< blocks that share a window; 0: threads read windows themselves
  detail::workspace_layout::piece<double> partials;
  rows_plan rows;
  detail::workspace_layout::piece<float> result; ///< what the next pass reads
  pool_passes<others> next;

  /// \p windows: those of the passes, this one's first. \p channels_last: of the tensor that is read.
  pool_passes(
    detail::workspace_layout& layout, int64_t batch, int64_t channels, bool channels_last, const pool_window* windows)
      : window(windows[0])
      , slices(tuning::reduce_policy::window_slices(batch * channels * window.positions(), window.volume()))
      , partials(layout.add<double>(batch * channels * window.positions() * slices))
      , rows(layout, batch, channels, window.positions(), segment::across_channels, channels_last && slices == 0)
      , result(
          layout.add<float>(others::pools > 0 ? batch * segment::output_channels(channels) * window.positions() : 0))
      , next(layout, batch, segment::output_channels(channels), false, windows + 1)
  {}

  /// target = functors(source).
  template <class In, class Out>
  [[nodiscard]] status launch(const block::tensor_view<const In>& source,
                              const block::tensor_view<Out>& target,
                              const chain<Pool, Rest...>& functors,
                              const workspace& space,
                              bool overlap_predecessor,
                              cudaStream_t stream) const
  {
    constexpr pool_operation operation = Pool::operation;
    if (slices > 0)
    {
      using policy = tuning::reduce_policy;
      if (status s = runtime::launch("tconv::kernel::reduce_windows",
                                     kernel::reduce_windows<policy, operation, In>,
                                     {std::min(rows.batch * rows.channels * rows.positions * slices, max_grid),
                                      policy::threads,
                                      0,
                                      overlap_predecessor},
                                     stream,
                                     source,
                                     window,
                                     rows.batch,
                                     rows.channels,
                                     slices,
                                     partials.get(space));
          !s.ok())
      {
        return s;
      }
    }
    const block::pooled_view<operation, In> pooled{
      source, window, rows.channels, slices > 0 ? partials.get(space) : nullptr, slices};
    const bool overlap      = slices > 0 || overlap_predecessor;
    const segment following = detail::before_pool(functors.rest);
    if constexpr (others::pools == 0)
    {
      return rows.launch(pooled, target, following, space, overlap, stream);
    }
    else
    {
      const int64_t left = segment::output_channels(rows.channels);
      const block::tensor_view<float> between{
        result.get(space), tensor_strides::of(layout::channels_first, left, rows.positions)};
      if (status s = rows.launch(pooled, between, following, space, overlap, stream); !s.ok())
      {
        return s;
      }
      return next.launch(block::tensor_view<const float>{between.data, between.strides},
                         target,
                         detail::from_pool(functors.rest),
                         space,
                         true,
                         stream);
    }
  }
};

/// How any chain is applied to a tensor: the functors before the first pool, then pass by pass.
template <class Chain>
struct tensor_chain_plan
{
  using head                   = before_pool_t<Chain>;
  using tail                   = from_pool_t<Chain>;
  static constexpr bool pooled = Chain::pools > 0;
  /// The first pool reads x itself.
  static constexpr bool pool_first = pooled && head::length == 0;

  rows_plan rows;
  detail::workspace_layout::piece<float> result; ///< of the head
  pool_passes<tail> passes;

  /// \p pools: of the chain on this tensor.
  template <int Rank>
  tensor_chain_plan(detail::workspace_layout& layout,
                    const tensor_shape<Rank>& shape,
                    const options& opts,
                    const pool_windows<Chain>& pools)
      : tensor_chain_plan(layout,
                          shape.batch,
                          shape.channels,
                          shape.positions(),
                          opts.input_layout == tconv::layout::channels_last,
                          pools)
  {}
  tensor_chain_plan(detail::workspace_layout& layout,
                    int64_t batch,
                    int64_t channels,
                    int64_t positions,
                    bool channels_last,
                    const pool_windows<Chain>& pools)
      : rows(layout, batch, channels, positions, head::across_channels, channels_last)
      , result(layout.add<float>(pooled && !pool_first ? batch * head::output_channels(channels) * positions : 0))
      , passes(layout, batch, head::output_channels(channels), pool_first && channels_last, pools.windows.data())
  {}

  /// target = functors(source), of which everything has been checked.
  template <class In, class Out>
  [[nodiscard]] status launch(const block::tensor_view<const In>& source,
                              const block::tensor_view<Out>& target,
                              const Chain& functors,
                              const workspace& space,
                              bool overlap_predecessor,
                              cudaStream_t stream) const
  {
    if constexpr (!pooled)
    {
      return rows.launch(source, target, functors, space, overlap_predecessor, stream);
    }
    else if constexpr (pool_first)
    {
      return passes.launch(source, target, functors, space, overlap_predecessor, stream);
    }
    else
    {
      const block::tensor_view<float> between{
        result.get(space),
        tensor_strides::of(layout::channels_first, head::output_channels(rows.channels), rows.positions)};
      if (status s = rows.launch(source, between, detail::before_pool(functors), space, overlap_predecessor, stream);
          !s.ok())
      {
        return s;
      }
      return passes.launch(block::tensor_view<const float>{between.data, between.strides},
                           target,
                           detail::from_pool(functors),
                           space,
                           true,
                           stream);
    }
  }
};

/// The slice x of a tensor.
template <class In, int Rank>
[[nodiscard]] block::tensor_view<const In> input_view(const In* x, const tensor_shape<Rank>& shape, const options& opts)
{
  return {first_of_slice(x, shape, opts), input_strides(shape, opts)};
}

/// The slice y of \p written channels and \p positions.
template <class Out, class Shape>
[[nodiscard]] block::tensor_view<Out>
output_view(Out* y, const Shape& shape, int64_t written, int64_t positions, const options& opts)
{
  const tensor_strides strides = tensor_strides::of(opts.output_layout, shape.output_slice.total(written), positions);
  return {y + shape.output_slice.first_channel * strides.channel, strides};
}

/// x of apply_chain() and its like; y may be x where no pool comes between.
template <class Chain, class In, int Rank>
[[nodiscard]] argument chain_input(const In* x, const tensor_shape<Rank>& shape, const options& opts)
{
  argument result = input_argument(x, shape, opts);
  result.in_place = Chain::pools == 0;
  return result;
}

/// y of apply_chain() and its like, a slice of \p written channels and \p positions.
template <class Out, class Shape>
[[nodiscard]] argument
output_argument(Out* y, const Shape& shape, int64_t written, int64_t positions, const options& opts)
{
  const int64_t elements = shape.batch * shape.output_slice.total(written) * positions;
  return {"y", y, elements, shape.output_slice, written, opts.output_layout};
}

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
