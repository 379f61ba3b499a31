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
#include "../layout.hpp"
#include "../taps.hpp"
#include "../thread/chain.hpp"
#include "../thread/element.cuh"
#include "../tuning/collapse.hpp"

#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

/// What the collapse kernels need besides pointers.
struct collapse_problem
{
  conv_axis axis[3];
  tensor_strides x;                           ///< of the input
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

/// Sum of \p count neighbouring vectors of 16 bytes, \p Threads threads side by side, from \p first on. Every thread returns its
/// share.
template <int Threads, int Loads, class In>
TCONV_DEVICE double sum_vectors(const In* first, unsigned count)
{
  constexpr int width = 16 / static_cast<int>(sizeof(In));
  const auto sum_of   = [](const element_vector<In, width>& v) {
    float sum = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < width; i += 4)
    {
      sum += (to_float(v.values[i]) + to_float(v.values[i + 1]))
           + (to_float(v.values[i + 2]) + to_float(v.values[i + 3]));
    }
    return sum;
  };
  double sum = 0;
  unsigned i = threadIdx.x;
  for (; i + (Loads - 1) * Threads < count; i += Loads * Threads)
  {
    element_vector<In, width> v[Loads];
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Loads; ++j)
    {
      v[j].load_streaming(first + static_cast<int64_t>(i + j * Threads) * width);
    }
    float partial = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Loads; ++j)
    {
      partial += sum_of(v[j]);
    }
    sum += static_cast<double>(partial);
  }
  for (; i < count; i += Threads)
  {
    element_vector<In, width> v;
    v.load_streaming(first + static_cast<int64_t>(i) * width);
    sum += static_cast<double>(sum_of(v));
  }
  return sum;
}

/// Sum of those of \p taps neighbouring weights for which \p lands(tap). Called by a warp; every lane returns its share.
template <class Index, class In, class Lands>
TCONV_DEVICE double sum_taps(const In* first, Index taps, Lands lands)
{
  double sum = 0;
  // Four loads in flight: the rows of one warp are few, so latency is all that counts.
  for (Index t = threadIdx.x % 32; t < taps; t += 4 * 32)
  {
    float v[4];
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j)
    {
      const Index tap = t + 32 * j;
      v[j]            = tap < taps && lands(tap) ? to_float(first[tap]) : 0.0f;
    }
    sum += static_cast<double>((v[0] + v[1]) + (v[2] + v[3]));
  }
  return sum;
}

/// Sum of \p channel over rows [first_row, last_row) of the box \p box; rows are (d, h) pairs. \p columns threads stand side by side
/// along w and \p rows behind each other, of which the caller is number \p column and \p row. Every thread returns its share.
template <class In>
TCONV_DEVICE double sum_rows(const collapse_problem& problem,
                             const In* channel,
                             const class_box& box,
                             int64_t first_row,
                             int64_t last_row,
                             int row,
                             int rows,
                             int column,
                             int columns)
{
  const conv_axis* axis = problem.axis;
  const int64_t length  = box.range[2].size();
  const int64_t height  = box.range[1].size();
  double sum            = 0;
  int64_t at            = first_row + row;
  int64_t d             = at / height;
  int64_t h             = at % height;
  for (; at < last_row; at += rows)
  {
    const In* line =
      channel
      + (((box.range[0].begin + d) * axis[1].in + box.range[1].begin + h) * axis[2].in + box.range[2].begin)
          * problem.x.position;
    for (int64_t i = column; i < length; i += columns)
    {
      sum += static_cast<double>(to_float(line[i * problem.x.position]));
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

/// The rows of slice \p slice of a box, and the box itself where a long single row is cut along w.
struct box_slice
{
  class_box box;
  int64_t first_row;
  int64_t last_row;

  TCONV_DEVICE box_slice(const class_box& whole, int64_t slice, int64_t slices) : box(whole)
  {
    const int64_t rows = box.range[0].size() * box.range[1].size();
    first_row          = rows * slice / slices;
    last_row           = rows * (slice + 1) / slices;
    if (rows == 1)
    {
      const int64_t length = box.range[2].size();
      box.range[2].end     = box.range[2].begin + length * (slice + 1) / slices;
      box.range[2].begin += length * slice / slices;
      first_row = 0;
      last_row  = 1;
    }
  }
};

} // namespace block

namespace kernel
{

/// Sums of x per channel and of w per pair of channels, where every axis has one class that all taps land in, and channels come
/// first: both are sums over contiguous memory. Same grid and results as class_sums, which this is the lean form of.
///
/// \p vectors: of 16 bytes, per channel of x. All sizes fit 31 bits.
template <class Policy, class In>
__global__ __launch_bounds__(Policy::sum_threads,
                             Policy::sum_blocks) void whole_sums(const __grid_constant__ collapse_problem problem,
                                                                 unsigned vectors,
                                                                 unsigned taps,
                                                                 const In* x,
                                                                 const In* w,
                                                                 double* x_sums,
                                                                 double* w_sums)
{
  constexpr int threads = Policy::sum_threads;
  constexpr int width   = 16 / static_cast<int>(sizeof(In));
  using block_reduce    = cub::BlockReduce<double, threads>;
  using warp_reduce     = cub::WarpReduce<double>;
  __shared__ union
  {
    typename block_reduce::TempStorage block;
    typename warp_reduce::TempStorage warp[threads / 32];
  } scratch;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  const auto weight_blocks = static_cast<unsigned>(problem.weight_blocks);
  if (blockIdx.x < weight_blocks)
  {
    const unsigned warp = threadIdx.x / 32;
    const auto rows     = static_cast<unsigned>(problem.weight_sums());
    for (unsigned row = blockIdx.x * (threads / 32) + warp; row < rows; row += weight_blocks * (threads / 32))
    {
      const double share = block::sum_taps(w + static_cast<int64_t>(row) * taps, taps, [](unsigned) { return true; });
      const double sum   = warp_reduce(scratch.warp[warp]).Sum(share);
      if (threadIdx.x % 32 == 0)
      {
        w_sums[row] = sum;
      }
      __syncwarp();
    }
    return;
  }
  const auto slices   = static_cast<unsigned>(problem.slices);
  const auto channels = static_cast<unsigned>(problem.in_channels);
  const auto count    = static_cast<unsigned>(problem.input_sums());
  for (unsigned index = blockIdx.x - weight_blocks; index < count; index += gridDim.x - weight_blocks)
  {
    const unsigned number = index / slices;
    const unsigned slice  = index - number * slices;
    const unsigned n      = number / channels;
    const auto begin      = static_cast<unsigned>(static_cast<int64_t>(vectors) * slice / slices);
    const auto end        = static_cast<unsigned>(static_cast<int64_t>(vectors) * (slice + 1) / slices);
    const In* channel     = x + n * problem.x.sample + (number - n * channels) * problem.x.channel;
    const double share    = block::sum_vectors<threads, Policy::loads>(
      channel + static_cast<int64_t>(begin) * width, end - begin);
    const double sum = block_reduce(scratch.block).Sum(share);
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
template <class Policy, class In>
__global__ __launch_bounds__(Policy::sum_threads) void class_sums(
  const __grid_constant__ collapse_problem problem, const In* x, const In* w, double* x_sums, double* w_sums)
{
  constexpr int threads = Policy::sum_threads;
  constexpr int warps   = threads / 32;
  using block_reduce    = cub::BlockReduce<double, threads>;
  using warp_reduce     = cub::WarpReduce<double>;
  __shared__ union
  {
    typename block_reduce::TempStorage block;
    typename warp_reduce::TempStorage warp[warps];
    double rows[warps][32];
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
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * warps + warp; row < rows;
         row += problem.weight_blocks * warps)
    {
      const int64_t ci = row / problem.out_per_group;
      const int64_t co = row % problem.out_per_group;
      for (int64_t index = 0; index < classes; ++index)
      {
        const block::class_box box = block::locate_class(problem, index, true);
        const bool all             = box.range[0].size() * box.range[1].size() * box.range[2].size() == taps;
        const double share         = block::sum_taps(w + row * taps, taps, [&](int64_t t) {
          return all
              || (box.range[2].contains(t % width) && box.range[1].contains(t / width % height)
                  && box.range[0].contains(t / width / height));
        });
        const double sum           = warp_reduce(scratch.warp[warp]).Sum(share);
        if (lane == 0)
        {
          w_sums[(ci * classes + index) * problem.out_per_group + co] = sum;
        }
        __syncwarp();
      }
    }
    return;
  }

  // Work items: (sample, channel, class, slice); channels last, 32 neighbouring channels at a time.
  const bool last        = problem.x.channels_last();
  const int64_t tiles    = last ? ceil_div(problem.in_channels, int64_t{32}) : problem.in_channels;
  const int64_t items    = problem.batch * tiles * classes * problem.slices;
  const int64_t x_blocks = gridDim.x - problem.weight_blocks;
  for (int64_t item = blockIdx.x - problem.weight_blocks; item < items; item += x_blocks)
  {
    const int64_t slice         = item % problem.slices;
    const int64_t number        = item / problem.slices % classes;
    const int64_t tile          = item / problem.slices / classes % tiles;
    const int64_t n             = item / problem.slices / classes / tiles;
    const block::class_box taps = block::locate_class(problem, number, true);
    // Inputs that no tap brings anywhere do not count, not even a NaN.
    const bool lands = !taps.range[0].empty() && !taps.range[1].empty() && !taps.range[2].empty();
    const block::box_slice part(block::locate_class(problem, number, false), slice, problem.slices);
    const auto sum_at = [&](int64_t c) -> double& {
      return x_sums[((n * problem.in_channels + c) * classes + number) * problem.slices + slice];
    };
    double sum = 0;
    if (last)
    {
      const int64_t c = tile * 32 + lane;
      if (lands && c < problem.in_channels)
      {
        // A warp takes a whole row at a time, or a part of the only one.
        const bool single = part.last_row - part.first_row == 1;
        sum               = block::sum_rows(problem,
                              x + n * problem.x.sample + c,
                              part.box,
                              part.first_row,
                              part.last_row,
                              single ? 0 : warp,
                              single ? 1 : warps,
                              single ? warp : 0,
                              single ? warps : 1);
      }
      scratch.rows[warp][lane] = sum;
      __syncthreads();
      if (warp == 0 && c < problem.in_channels)
      {
        for (int i = 1; i < warps; ++i)
        {
          sum += scratch.rows[i][lane];
        }
        sum_at(c) = sum;
      }
    }
    else
    {
      if (lands)
      {
        // Short rows share the block: columns is the least power of two that covers a row, or the block.
        int columns = 1;
        while (columns < threads && columns < part.box.range[2].size())
        {
          columns *= 2;
        }
        const int thread = static_cast<int>(threadIdx.x);
        sum              = block::sum_rows(problem,
                              x + n * problem.x.sample + tile * problem.x.channel,
                              part.box,
                              part.first_row,
                              part.last_row,
                              thread / columns,
                              threads / columns,
                              thread % columns,
                              columns);
      }
      sum = block_reduce(scratch.block).Sum(sum);
      if (threadIdx.x == 0)
      {
        sum_at(tile) = sum;
      }
    }
    __syncthreads();
  }
}

/// Means from class sums, then the chain: y[n * y_stride + channel] of type \p Out (double for statistics).
///
/// A block computes one sample, product_channels output channels at a time; with channel functors the row is completed in
/// \p rows [batch][out_channels] first.
template <class Policy, class Chain, class Out>
__global__ __launch_bounds__(Policy::product_channels* Policy::product_split) void class_product(
  const __grid_constant__ collapse_problem problem,
  const double* x_sums,
  const double* w_sums,
  Out* y,
  int64_t y_stride,
  float* rows,
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
        const double mean = sum / positions;
        if constexpr (Chain::across_channels)
        {
          rows[n * problem.out_channels + co] = static_cast<float>(mean);
        }
        else if constexpr (std::is_same<Out, double>::value)
        {
          y[n * y_stride + co] = apply_to_mean(functors, mean, coordinate{n, co});
        }
        else
        {
          y[n * y_stride + co] = from_float<Out>(static_cast<float>(apply_to_mean(functors, mean, coordinate{n, co})));
        }
      }
      __syncthreads();
    }
    if constexpr (Chain::across_channels)
    {
      __shared__ float scratch[threads];
      const int thread                      = static_cast<int>(threadIdx.x);
      const block::column_threads column_of = {scratch, threads, 1, thread, 0};
      float* row                            = rows + n * problem.out_channels;
      block::column_tile values             = {block::column_row(column_of, row, 1, problem.out_channels), n, 0};
      apply(functors, values);
      // Each thread stores what it has written itself.
      const int64_t written = Chain::output_channels(problem.out_channels);
      for (int64_t c = thread; c < written; c += threads)
      {
        y[n * y_stride + c] = from_float<Out>(row[c]);
      }
      __syncthreads();
    }
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
