// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Applies a chain to a stored tensor: the second pass of convolutions with more channels than one tile holds, and the
/// launchers on existing tensors.

#include "../block/channel_tile.cuh"
#include "../block/lane_tile.cuh"
#include "../block/store.cuh"
#include "../block/tensor_view.cuh"
#include "../detail/launch.cuh"
#include "../taps.hpp"
#include "../tuning/channels.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// y [batch, channels, positions] = functors(x), for any number of channels; y may be x.
///
/// A block takes \p columns neighbouring positions of one sample; their values lie in dynamic shared memory ([channels][pitch]) or,
/// where \p scratch is not null, in scratch[blockIdx.x][channels] with one column.
template <class Policy, class Chain, class Source, class Out>
__global__ __launch_bounds__(Policy::threads) void apply_chain_columns(const __grid_constant__ Source x,
                                                                       const block::tensor_view<Out> y,
                                                                       int64_t batch,
                                                                       int64_t channels,
                                                                       int64_t positions,
                                                                       int columns,
                                                                       float* scratch,
                                                                       const __grid_constant__ Chain functors)
{
  extern __shared__ float column_values[];
  __shared__ float reduction[Policy::threads];
  runtime::grid_dependency_wait();

  const int thread                    = static_cast<int>(threadIdx.x);
  const int rows                      = Policy::threads / columns;
  const block::column_threads threads = {reduction, rows, columns, thread / columns, thread % columns};
  const int pitch                     = Policy::pitch(columns);
  float* values                       = scratch != nullptr ? scratch + blockIdx.x * channels : column_values;
  const int64_t written               = Chain::reduces_channels ? 1 : channels;

  // visit(channel, column) for all values of the block, neighbouring threads along the fastest digit.
  const auto each = [&](int64_t count, bool channels_last, auto visit) {
    if (channels_last)
    {
      for (int column = thread / 32; column < columns; column += Policy::threads / 32)
      {
        for (int64_t c = thread % 32; c < count; c += 32)
        {
          visit(c, column);
        }
      }
    }
    else
    {
      for (int64_t c = threads.row; c < count; c += rows)
      {
        visit(c, threads.column);
      }
    }
  };

  const int64_t blocks_per_sample = ceil_div(positions, columns);
  for (int64_t index = blockIdx.x; index < batch * blocks_per_sample; index += gridDim.x)
  {
    const int64_t n     = index / blocks_per_sample;
    const int64_t first = index % blocks_per_sample * columns;
    const int64_t last  = positions - 1;
    each(channels, x.channels_last(), [&](int64_t c, int column) {
      // Columns beyond the last position repeat it, and are not written.
      const int64_t position     = first + column < last ? first + column : last;
      values[c * pitch + column] = x.load(n, c, position);
    });
    __syncthreads();
    block::column_tile tile = {block::column_row(threads, values + threads.column, pitch, channels),
                               n,
                               first + threads.column < last ? first + threads.column : last};
    apply(functors, tile);
    __syncthreads();
    each(written, y.channels_last(), [&](int64_t c, int column) {
      if (first + column <= last)
      {
        *y.at(n, c, first + column) = from_float<Out>(values[c * pitch + column]);
      }
    });
    __syncthreads(); // the values are overwritten
  }
}

/// As apply_chain_columns, for rows that fit the registers of \p lanes neighbouring lanes, Channels each; or, without channel
/// functors, for any number of channels in \p tiles tiles of that size. A thread takes Positions positions.
///
/// \p x: see block/tensor_view.cuh. \p vector_x, \p vector_y: the elements of a thread that are neighbours in memory (channels of a
/// position where channels come last, else positions of a channel) are aligned to as many as one access takes.
template <int Threads, int Channels, int Positions, class Chain, class Source, class Out>
__global__ __launch_bounds__(Threads) void apply_chain_rows(const __grid_constant__ Source x,
                                                            const block::tensor_view<Out> y,
                                                            int64_t batch,
                                                            int64_t channels,
                                                            int64_t positions,
                                                            int lanes,
                                                            int64_t tiles,
                                                            bool vector_x,
                                                            bool vector_y,
                                                            const __grid_constant__ Chain functors)
{
  runtime::grid_dependency_wait();
  const int groups = Threads / lanes;
  const int lane   = static_cast<int>(threadIdx.x) % lanes;
  const int group  = static_cast<int>(threadIdx.x) / lanes;
  // Neighbouring positions where a vector takes them, else neighbouring threads take neighbouring positions.
  const bool neighbours         = (vector_x && !x.channels_last()) || (vector_y && !y.channels_last());
  const int step                = neighbours ? 1 : groups;
  const int64_t blocks_per_tile = ceil_div(positions, groups * Positions);
  for (int64_t index = blockIdx.x; index < batch * tiles * blocks_per_tile; index += gridDim.x)
  {
    const int64_t n       = index / blocks_per_tile / tiles;
    const int64_t channel = (index / blocks_per_tile % tiles * lanes + lane) * Channels;
    const int64_t first   = index % blocks_per_tile * (groups * Positions) + group * (neighbours ? Positions : 1);
    const int64_t rest    = positions - first;
    const int64_t fit     = rest <= 0 ? 0 : (neighbours ? rest : ceil_div(rest, groups));
    const int count       = static_cast<int>(fit < Positions ? fit : Positions);
    const int held        = static_cast<int>(channels - channel < Channels ? channels - channel : Channels);

    float values[Channels][Positions];
    x.load_tile(values, {n, channel, first, step, held, count}, vector_x);
    const auto locate = [&](int p) { return p < count ? first + p * step : -1; };
    block::lane_tile<Channels, Positions, 0, decltype(locate)> tile = {values, n, channel, channels, lanes, locate};
    apply(functors, tile);

    const int64_t left               = (Chain::reduces_channels ? 1 : channels) - channel;
    const block::output_runs<1> runs = {first, 0, step, {count}};
    block::store_tile(
      values, y.at(n, channel, 0), y.strides, runs, static_cast<int>(left < Channels ? left : Channels), vector_y);
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
