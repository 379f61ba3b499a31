// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Applies a chain to a stored tensor, in place: for channel functors over more channels than one tile holds.

#include "../block/channel_tile.cuh"
#include "../detail/launch.cuh"
#include "../tuning/channels.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// y [batch, channels, positions] <- functors(y).
///
/// A block takes \p columns neighbouring positions of one sample; \p in_shared: their values are copied to shared memory
/// ([channels][columns]) and written back once, else the chain works on y itself.
template <class Policy, class Chain>
__global__ __launch_bounds__(Policy::threads) void finish_channels(float* y,
                                                                   int64_t batch,
                                                                   int64_t channels,
                                                                   int64_t positions,
                                                                   int columns,
                                                                   bool in_shared,
                                                                   const __grid_constant__ Chain functors)
{
  extern __shared__ float values[];
  __shared__ float scratch[Policy::threads];
  runtime::grid_dependency_wait();

  const int thread                    = static_cast<int>(threadIdx.x);
  const block::column_threads threads = {
    scratch, Policy::threads / columns, columns, thread / columns, thread % columns};
  const int64_t blocks_per_sample = (positions + columns - 1) / columns;
  for (int64_t index = blockIdx.x; index < batch * blocks_per_sample; index += gridDim.x)
  {
    const int64_t n        = index / blocks_per_sample;
    const int64_t position = index % blocks_per_sample * columns + threads.column;
    const bool inside      = position < positions;
    // Threads beyond the last position repeat it in shared memory and never write; in global memory there is one column.
    float* column = y + n * channels * positions + (inside ? position : positions - 1);
    if (in_shared)
    {
      for (int64_t c = threads.row; c < channels; c += threads.rows)
      {
        values[c * columns + threads.column] = column[c * positions];
      }
      // Each thread reads back only what it wrote itself: no barrier.
      block::column_tile tile(threads, values + threads.column, columns, n, channels);
      apply(functors, tile);
      for (int64_t c = threads.row; inside && c < channels; c += threads.rows)
      {
        column[c * positions] = values[c * columns + threads.column];
      }
    }
    else
    {
      block::column_tile tile(threads, column, positions, n, channels);
      apply(functors, tile);
    }
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
