// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Applies a chain to a stored tensor: the second pass of convolutions with more channels than one tile holds, and the
/// launchers on existing tensors.

#include "../block/channel_tile.cuh"
#include "../block/lane_tile.cuh"
#include "../block/store.cuh"
#include "../detail/launch.cuh"
#include "../taps.hpp"
#include "../tuning/channels.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// A tensor that a chain reads or writes.
template <class T>
struct tensor_view
{
  T* data; ///< first channel, of the first sample
  tensor_strides strides;

  TCONV_DEVICE T* at(int64_t n, int64_t channel, int64_t position) const
  {
    return data + n * strides.sample + channel * strides.channel + position * strides.position;
  }
};

/// y [batch, channels, positions] = functors(x), for any number of channels; y may be x.
///
/// A block takes \p columns neighbouring positions of one sample; their values lie in dynamic shared memory ([channels][pitch]) or,
/// where \p scratch is not null, in scratch[blockIdx.x][channels] with one column.
template <class Policy, class Chain, class In, class Out>
__global__ __launch_bounds__(Policy::threads) void apply_chain_columns(const tensor_view<const In> x,
                                                                       const tensor_view<Out> y,
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

  // visit(channel, column) for all values of the block, neighbouring threads along the fastest digit of \p strides.
  const auto each = [&](int64_t count, const tensor_strides& strides, auto visit) {
    if (strides.channels_last())
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
    each(channels, x.strides, [&](int64_t c, int column) {
      // Columns beyond the last position repeat it, and are not written.
      const int64_t position     = first + column < last ? first + column : last;
      values[c * pitch + column] = to_float(*x.at(n, c, position));
    });
    __syncthreads();
    block::column_tile tile = {block::column_row(threads, values + threads.column, pitch, channels),
                               n,
                               first + threads.column < last ? first + threads.column : last};
    apply(functors, tile);
    __syncthreads();
    each(written, y.strides, [&](int64_t c, int column) {
      if (first + column <= last)
      {
        *y.at(n, c, first + column) = from_float<Out>(values[c * pitch + column]);
      }
    });
    __syncthreads(); // the values are overwritten
  }
}

/// As apply_chain_columns, for rows that fit the registers of \p lanes neighbouring lanes, Channels each; or, without channel
/// functors, for any number of channels in \p tiles tiles of that size.
///
/// \p vector_x, \p vector_y: the channels of a position are neighbours, and those of each thread are aligned to as many elements
/// as one access takes.
template <int Threads, int Channels, class Chain, class In, class Out>
__global__ __launch_bounds__(Threads) void apply_chain_rows(const tensor_view<const In> x,
                                                            const tensor_view<Out> y,
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
  const int per_block           = Threads / lanes;
  const int lane                = static_cast<int>(threadIdx.x) % lanes;
  const int64_t blocks_per_tile = ceil_div(positions, per_block);
  for (int64_t index = blockIdx.x; index < batch * tiles * blocks_per_tile; index += gridDim.x)
  {
    const int64_t n       = index / blocks_per_tile / tiles;
    const int64_t channel = (index / blocks_per_tile % tiles * lanes + lane) * Channels;
    const int64_t number  = index % blocks_per_tile * per_block + static_cast<int>(threadIdx.x) / lanes;
    // Threads beyond the last position repeat it, for the reductions of the warp, and write nothing.
    const bool inside      = number < positions;
    const int64_t position = inside ? number : positions - 1;

    float values[Channels][1];
    const In* source    = x.at(n, channel, position);
    constexpr int width = vector_width<In, Channels>;
    if (vector_x && channel + Channels <= channels)
    {
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < Channels; i += width)
      {
        element_vector<In, width> v;
        v.load_streaming(source + i);
        TCONV_PRAGMA_UNROLL
        for (int j = 0; j < width; ++j)
        {
          values[i + j][0] = to_float(v.values[j]);
        }
      }
    }
    else
    {
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < Channels; ++i)
      {
        values[i][0] = channel + i < channels ? to_float(source[i * x.strides.channel]) : 0.0f;
      }
    }
    const auto locate                                       = [position](int) { return position; };
    block::lane_tile<Channels, 1, 0, decltype(locate)> tile = {values, n, channel, channels, lanes, locate};
    apply(functors, tile);

    const int64_t rest               = (Chain::reduces_channels ? 1 : channels) - channel;
    const block::output_runs<1> runs = {position, 0, 1, {inside ? 1 : 0}};
    block::store_tile(
      values, y.at(n, channel, 0), y.strides, runs, static_cast<int>(rest < Channels ? rest : Channels), vector_y);
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
