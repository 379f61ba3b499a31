// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The mean of a transposed convolution's output over all positions, without the convolution.
///
/// Sum over outputs = sum over inputs and landing taps of x * w. Per axis, inputs fall into classes with the same landing taps
/// (taps.hpp), so with class sums of x and of w
///
///     sum[n, co] = sum over ci and classes of X[n, ci, class] * W[ci, class, co]
///
/// which is exact algebra: two passes of additions and one small matrix product. Sums are fp32 within a thread's few values
/// and fp64 beyond.

#include "../block/channel_tile.cuh"
#include "../detail/launch.cuh"
#include "../taps.hpp"
#include "../thread/chain.hpp"
#include "../tuning/collapse.hpp"

#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

TCONV_CUDA_NAMESPACE_BEGIN

/// What the collapse kernels need besides pointers.
struct collapse_problem
{
  conv_axis axis[3];
  int64_t classes[3]             = {1, 1, 1}; ///< tap classes per axis
  int64_t batch                  = 0;
  int64_t in_channels            = 1;
  int64_t out_channels           = 1;
  int64_t in_per_group           = 1;
  int64_t out_per_group          = 1;
  int64_t slices                 = 1; ///< pieces that each box of x is cut into
  int64_t weight_blocks          = 1;
  static constexpr int tabulated = 8; ///< classes per axis that the launcher tabulates; the kernels compute the others
  tap_class table[3][tabulated];

  TCONV_HOST_DEVICE tap_class class_at(int a, int64_t index) const
  {
    return index < tabulated ? table[a][index] : axis[a].class_at(index);
  }
  TCONV_HOST_DEVICE int64_t class_total() const { return classes[0] * classes[1] * classes[2]; }
  TCONV_HOST_DEVICE int64_t input_sums() const { return batch * in_channels * class_total() * slices; }
  TCONV_HOST_DEVICE int64_t weight_sums() const { return in_channels * class_total() * out_per_group; }
};

namespace block
{

/// A box of inputs or taps with its row-major strides.
struct class_box
{
  index_range range[3];
};

/// The box of inputs, or of taps, of class number \p index (w fastest).
TCONV_DEVICE class_box locate_class(const collapse_problem& problem, int64_t index, bool taps)
{
  class_box box;
  for (int a = 2; a >= 0; --a)
  {
    // Most axes have one class or few: no division for those with one.
    const bool one    = problem.classes[a] == 1;
    const tap_class c = problem.class_at(a, one ? 0 : index % problem.classes[a]);
    index             = one ? index : index / problem.classes[a];
    box.range[a]      = taps ? c.taps : c.inputs;
  }
  return box;
}

/// Sum of \p count contiguous quads, \p Threads threads side by side. Called by the whole block; every thread returns its share.
template <int Threads, int Loads>
TCONV_DEVICE double sum_quads(const float4* quads, unsigned count)
{
  double sum = 0;
  unsigned i = threadIdx.x;
  for (; i + (Loads - 1) * Threads < count; i += Loads * Threads)
  {
    float4 v[Loads];
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Loads; ++j)
    {
      v[j] = __ldcs(quads + i + j * Threads);
    }
    float partial = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Loads; ++j)
    {
      partial += (v[j].x + v[j].y) + (v[j].z + v[j].w);
    }
    sum += static_cast<double>(partial);
  }
  for (; i < count; i += Threads)
  {
    const float4 v = __ldcs(quads + i);
    sum += static_cast<double>((v.x + v.y) + (v.z + v.w));
  }
  return sum;
}

/// Sum over rows [first_row, last_row) of the box \p box of one channel; rows are (d, h) pairs. Called by the whole block;
/// every thread returns its share.
template <int Threads>
TCONV_DEVICE double
sum_rows(const float* channel, const conv_axis (&axis)[3], const class_box& box, int64_t first_row, int64_t last_row)
{
  const int64_t length = box.range[2].size();
  const int64_t height = box.range[1].size();
  // Short rows share the block: columns is the least power of two that covers a row, or the block.
  int columns = 1;
  while (columns < Threads && columns < length)
  {
    columns *= 2;
  }
  const int rows   = Threads / columns;
  const int column = static_cast<int>(threadIdx.x) % columns;
  double sum       = 0;
  int64_t row      = first_row + static_cast<int>(threadIdx.x) / columns;
  int64_t d        = row / height;
  int64_t h        = row % height;
  for (; row < last_row; row += rows)
  {
    const float* line = channel + ((box.range[0].begin + d) * axis[1].in + box.range[1].begin + h) * axis[2].in
                      + box.range[2].begin;
    for (int64_t i = column; i < length; i += columns)
    {
      sum += static_cast<double>(line[i]);
    }
    h += rows;
    while (h >= height)
    {
      h -= height;
      ++d;
    }
  }
  return sum;
}

} // namespace block

namespace kernel
{

/// Sums of x per channel and of w per pair of channels, where every axis has one class that all taps land in: both are sums over
/// contiguous memory. Same grid and results as class_sums, which this is the lean form of.
template <class Policy>
__global__ __launch_bounds__(Policy::sum_threads, Policy::sum_blocks) void whole_sums(const unsigned x_sums_count,
                                                                                      const unsigned slices,
                                                                                      const unsigned quads,
                                                                                      const unsigned weight_blocks,
                                                                                      const unsigned weight_rows,
                                                                                      const unsigned taps,
                                                                                      const float* x,
                                                                                      const float* w,
                                                                                      double* x_sums,
                                                                                      double* w_sums)
{
  constexpr int threads = Policy::sum_threads;
  using block_reduce    = cub::BlockReduce<double, threads>;
  using warp_reduce     = cub::WarpReduce<double>;
  __shared__ union
  {
    typename block_reduce::TempStorage block;
    typename warp_reduce::TempStorage warp[threads / 32];
  } scratch;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  if (blockIdx.x < weight_blocks)
  {
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    for (unsigned row = blockIdx.x * (threads / 32) + warp; row < weight_rows; row += weight_blocks * (threads / 32))
    {
      const float* at = w + static_cast<int64_t>(row) * taps;
      double sum      = 0;
      for (unsigned first = lane; first < taps; first += 4 * 32)
      {
        float v[4];
        TCONV_PRAGMA_UNROLL
        for (unsigned j = 0; j < 4; ++j)
        {
          v[j] = first + 32 * j < taps ? __ldg(at + first + 32 * j) : 0.0f;
        }
        sum += static_cast<double>((v[0] + v[1]) + (v[2] + v[3]));
      }
      sum = warp_reduce(scratch.warp[warp]).Sum(sum);
      if (lane == 0)
      {
        w_sums[row] = sum;
      }
      __syncwarp();
    }
    return;
  }
  for (unsigned index = blockIdx.x - weight_blocks; index < x_sums_count; index += gridDim.x - weight_blocks)
  {
    const unsigned slice = index % slices;
    const unsigned begin = static_cast<unsigned>(static_cast<int64_t>(quads) * slice / slices);
    const unsigned end   = static_cast<unsigned>(static_cast<int64_t>(quads) * (slice + 1) / slices);
    double sum           = block::sum_quads<threads, Policy::loads>(
      reinterpret_cast<const float4*>(x) + static_cast<int64_t>(index / slices) * quads + begin, end - begin);
    sum = block_reduce(scratch.block).Sum(sum);
    if (threadIdx.x == 0)
    {
      x_sums[index] = sum;
    }
    __syncthreads();
  }
}

/// Class sums of w, by the first problem.weight_blocks blocks, and of x, by the others.
///
/// \p x_sums [batch][in_channels][class][slice], \p w_sums [in_channels][class][out_channels / groups].
template <class Policy>
__global__ __launch_bounds__(Policy::sum_threads) void class_sums(
  const __grid_constant__ collapse_problem problem, const float* x, const float* w, double* x_sums, double* w_sums)
{
  constexpr int threads = Policy::sum_threads;
  using block_reduce    = cub::BlockReduce<double, threads>;
  using warp_reduce     = cub::WarpReduce<double>;
  __shared__ union
  {
    typename block_reduce::TempStorage block;
    typename warp_reduce::TempStorage warp[threads / 32];
  } scratch;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  const int64_t classes = problem.class_total();
  const int lane        = static_cast<int>(threadIdx.x) % 32;
  const int warp        = static_cast<int>(threadIdx.x) / 32;
  if (blockIdx.x < problem.weight_blocks)
  {
    // One warp per (input channel, output channel): its taps are contiguous.
    const int64_t height = problem.axis[1].kernel;
    const int64_t width  = problem.axis[2].kernel;
    const int64_t taps   = problem.axis[0].kernel * height * width;
    const int64_t rows   = problem.in_channels * problem.out_per_group;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * (threads / 32) + warp; row < rows;
         row += problem.weight_blocks * (threads / 32))
    {
      const int64_t ci = row / problem.out_per_group;
      const int64_t co = row % problem.out_per_group;
      for (int64_t index = 0; index < classes; ++index)
      {
        const block::class_box box = block::locate_class(problem, index, true);
        const bool all             = box.range[0].size() * box.range[1].size() * box.range[2].size() == taps;
        double sum                 = 0;
        // Four loads in flight: the rows of one warp are few, so latency is all that counts.
        for (int64_t first = lane; first < taps; first += 4 * 32)
        {
          float v[4];
          TCONV_PRAGMA_UNROLL
          for (int j = 0; j < 4; ++j)
          {
            const int64_t t   = first + 32 * j;
            const bool inside = t < taps
                             && (all
                                 || (box.range[2].contains(t % width) && box.range[1].contains(t / width % height)
                                     && box.range[0].contains(t / width / height)));
            v[j] = inside ? __ldg(w + row * taps + t) : 0.0f;
          }
          sum += static_cast<double>((v[0] + v[1]) + (v[2] + v[3]));
        }
        sum = warp_reduce(scratch.warp[warp]).Sum(sum);
        if (lane == 0)
        {
          w_sums[(ci * classes + index) * problem.out_per_group + co] = sum;
        }
        __syncwarp();
      }
    }
    return;
  }

  const int64_t x_blocks = gridDim.x - problem.weight_blocks;
  const int64_t size     = problem.axis[0].in * problem.axis[1].in * problem.axis[2].in;
  for (int64_t index = blockIdx.x - problem.weight_blocks; index < problem.input_sums(); index += x_blocks)
  {
    const int64_t slice  = index % problem.slices;
    const int64_t number = index / problem.slices % classes;
    const float* channel = x + index / problem.slices / classes * size;
    double sum           = 0;
    // Inputs that no tap brings anywhere do not count, not even a NaN.
    const block::class_box taps = block::locate_class(problem, number, true);
    if (taps.range[0].empty() || taps.range[1].empty() || taps.range[2].empty())
    {
      sum = 0;
    }
    else
    {
      // Long single rows are cut along w, everything else along its rows.
      block::class_box box = block::locate_class(problem, number, false);
      int64_t rows         = box.range[0].size() * box.range[1].size();
      int64_t first_row    = rows * slice / problem.slices;
      int64_t last_row     = rows * (slice + 1) / problem.slices;
      if (rows == 1)
      {
        const int64_t length = box.range[2].size();
        box.range[2].end     = box.range[2].begin + length * (slice + 1) / problem.slices;
        box.range[2].begin += length * slice / problem.slices;
        first_row = 0;
        last_row  = 1;
      }
      sum = block::sum_rows<threads>(channel, problem.axis, box, first_row, last_row);
    }
    sum = block_reduce(scratch.block).Sum(sum);
    if (threadIdx.x == 0)
    {
      x_sums[index] = sum;
    }
    __syncthreads();
  }
}

/// Applies \p functors to a value in double while they are linear, and from the first other one on in float.
template <class... Functors>
TCONV_DEVICE double apply_to_mean(const chain<Functors...>& functors, double value, const coordinate& at)
{
  functors.for_each([&](const auto& functor) {
    using F          = detail::meta::decay_t<decltype(functor)>;
    const auto bound = detail::bind(functor, at);
    if constexpr (detail::is_linear<F>::value)
    {
      value = bound(value);
    }
    else
    {
      value = static_cast<double>(bound(static_cast<float>(value)));
    }
  });
  return value;
}

/// Means from class sums, then the chain: y [batch, out_channels] of type \p Out (float; double for statistics).
///
/// A block computes one sample, product_channels output channels at a time; with channel functors the row is completed in
/// y itself (float only).
template <class Policy, class Chain, class Out>
__global__ __launch_bounds__(Policy::product_channels* Policy::product_split) void class_product(
  const __grid_constant__ collapse_problem problem,
  const double* x_sums,
  const double* w_sums,
  Out* y,
  const __grid_constant__ Chain functors)
{
  constexpr int width   = Policy::product_channels;
  constexpr int split   = Policy::product_split;
  constexpr int threads = width * split;
  __shared__ double partial[split][width];
  runtime::grid_dependency_wait();

  const int column      = static_cast<int>(threadIdx.x) % width;
  const int part        = static_cast<int>(threadIdx.x) / width;
  const int64_t classes = problem.class_total();
  const int64_t terms   = problem.in_per_group * classes;
  const int64_t tiles   = ceil_div(problem.out_channels, width);
  // With channel functors one block walks over all channels of its sample.
  const int64_t tile_step = Chain::across_channels ? 1 : tiles;
  const double positions  = static_cast<double>(problem.axis[0].out) * static_cast<double>(problem.axis[1].out)
                         * static_cast<double>(problem.axis[2].out);
  const int64_t items = Chain::across_channels ? problem.batch : problem.batch * tiles;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x)
  {
    const int64_t n = Chain::across_channels ? item : item / tiles;
    for (int64_t tile = Chain::across_channels ? 0 : item % tiles; tile < tiles; tile += tile_step)
    {
      const int64_t co = tile * width + column;
      double sum       = 0;
      if (co < problem.out_channels)
      {
        const int64_t group = co / problem.out_per_group;
        const double* x_at  = x_sums
                           + (n * problem.in_channels + group * problem.in_per_group) * classes * problem.slices;
        const double* w_at = w_sums + group * terms * problem.out_per_group + co % problem.out_per_group;
        for (int64_t k = part; k < terms; k += split)
        {
          double total = x_at[k * problem.slices];
          for (int64_t s = 1; s < problem.slices; ++s)
          {
            total += x_at[k * problem.slices + s];
          }
          sum = fma(total, w_at[k * problem.out_per_group], sum);
        }
      }
      partial[part][column] = sum;
      __syncthreads();
      if (part == 0 && co < problem.out_channels)
      {
        for (int i = 1; i < split; ++i)
        {
          sum += partial[i][column];
        }
        double mean = sum / positions;
        if constexpr (!Chain::across_channels)
        {
          mean = apply_to_mean(functors, mean, coordinate{n, co});
        }
        y[n * problem.out_channels + co] = static_cast<Out>(mean);
      }
      __syncthreads();
    }
    if constexpr (Chain::across_channels)
    {
      __shared__ float scratch[threads];
      const block::column_threads column_of = {scratch, threads, 1, static_cast<int>(threadIdx.x), 0};
      block::column_tile row(column_of, y + n * problem.out_channels, 1, n, problem.out_channels);
      apply(functors, row);
      __syncthreads();
    }
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
