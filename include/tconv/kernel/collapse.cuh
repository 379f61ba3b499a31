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

#include <type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

/// A class of inputs over all axes: its taps, and its inputs in one channel as rows of neighbours.
struct class_box
{
  index_range taps[3];
  int64_t first       = 0; ///< position of the first input
  int64_t length      = 0; ///< inputs of a row; 0 where no tap lands
  int64_t height      = 0; ///< rows
  int64_t depth       = 0; ///< planes of rows
  int64_t row_pitch   = 0; ///< positions from one row to the next
  int64_t plane_pitch = 0; ///< and from plane to plane

  /// The class that is \p d, \p h and \p w along the axes of \p extent inputs.
  TCONV_HOST_DEVICE static class_box
  of(const tap_class& d, const tap_class& h, const tap_class& w, const int64_t (&extent)[3])
  {
    class_box box;
    box.taps[0]     = d.taps;
    box.taps[1]     = h.taps;
    box.taps[2]     = w.taps;
    box.row_pitch   = extent[2];
    box.plane_pitch = extent[1] * extent[2];
    box.first       = d.inputs.begin * box.plane_pitch + h.inputs.begin * box.row_pitch + w.inputs.begin;
    box.length      = w.inputs.size();
    box.height      = h.inputs.size();
    box.depth       = d.inputs.size();
    // Rows that fill those of the input are one long row, and planes of one row leave rows along d.
    for (int merged = 0; merged < 2 && (box.height == 1 || box.length == box.row_pitch); ++merged)
    {
      box.length *= box.height;
      box.row_pitch = box.plane_pitch;
      box.height    = box.depth;
      box.depth     = 1;
    }
    // Inputs that no tap brings anywhere do not count, not even a NaN.
    if (w.taps.empty() || h.taps.empty() || d.taps.empty())
    {
      box.length = 0;
      box.height = 1;
      box.depth  = 1;
    }
    return box;
  }

  /// Part \p number of 1 << \p bits: whole planes where they are enough, else rows of all planes; of a single row, pieces. \p Rows:
  /// there may be more than one row.
  template <bool Rows>
  TCONV_HOST_DEVICE class_box slice(int64_t number, int bits) const
  {
    class_box part = *this;
    const auto cut = [&](int64_t& extent, int64_t pitch) {
      const int64_t begin = extent * number >> bits;
      extent              = (extent * (number + 1) >> bits) - begin;
      part.first += begin * pitch;
    };
    if (!Rows || height == 1)
    {
      cut(part.length, 1);
    }
    else if (depth >> bits > 0)
    {
      cut(part.depth, plane_pitch);
    }
    else
    {
      cut(part.height, row_pitch);
    }
    return part;
  }
};

/// What the collapse kernels need besides pointers.
///
/// The inputs of each class are cut into 1 << slice_bits slices, which are work for a warp.
struct collapse_problem
{
  conv_axis axis[3];
  tensor_strides x;                  ///< of the input
  int64_t classes[3]    = {1, 1, 1}; ///< tap classes per axis
  int64_t batch         = 0;
  int64_t in_channels   = 1;
  int64_t out_channels  = 1;
  int64_t in_per_group  = 1;
  int64_t out_per_group = 1;
  int64_t weight_blocks = 1;
  bool all_taps         = false; ///< one class, and all taps land in it
  int slice_bits        = 0;
  int64_t slices        = 1; ///< of all classes
  int64_t channel_tiles = 1; ///< of the channels that a warp takes at once
  /// 1 << channel_bits lanes of a warp stand for neighbouring channels, the others share positions.
  int channel_bits = 0;

  TCONV_HOST_DEVICE int64_t class_total() const { return classes[0] * classes[1] * classes[2]; }
  /// Class number \p index (w fastest), computed.
  TCONV_HOST_DEVICE class_box find_class(int64_t index) const
  {
    return class_box::of(axis[0].class_at(index / classes[2] / classes[1]),
                         axis[1].class_at(index / classes[2] % classes[1]),
                         axis[2].class_at(index % classes[2]),
                         {axis[0].in, axis[1].in, axis[2].in});
  }
  TCONV_HOST_DEVICE int64_t input_sums() const { return batch * in_channels * slices; }
  TCONV_HOST_DEVICE int64_t weight_sums() const { return in_channels * class_total() * out_per_group; }
};

/// All classes of a problem: the launcher's, or where they are many kernel::list_classes' in device memory.
struct class_list
{
  static constexpr int tabulated = 27; ///< three along each axis
  class_box table[tabulated];
  const class_box* list = nullptr;

  TCONV_DEVICE class_box operator[](int64_t index) const
  {
    // Not one pointer: the table lies among the kernel's parameters, which have loads of their own.
    if (list != nullptr)
    {
      return list[index];
    }
    return table[index];
  }
};

namespace block
{

/// Sum of one row of \p length elements, \p first elements behind \p channel and \p stride apart. \p lanes lanes share it, of
/// which the caller is number \p lane, and each returns its share: fp32 over its Loads loads, fp64 beyond.
///
/// Loads are vectors of Width elements, to which \p channel is aligned; elements before the first and behind the last of them are
/// taken one by one.
template <int Width, int Loads, class In>
TCONV_DEVICE double sum_row(const In* channel, int64_t first, int64_t stride, int length, int lane, int lanes)
{
  const In* row = channel + first * stride;
  float edges   = 0.0f;
  if constexpr (Width > 1)
  {
    const int to_vector = -static_cast<int>(first) & (Width - 1);
    const int head      = to_vector < length ? to_vector : length;
    const int tail      = (length - head) % Width;
    edges = (lane < head ? to_float(row[lane]) : 0.0f) + (lane < tail ? to_float(row[length - tail + lane]) : 0.0f);
    row += head;
    length -= head + tail;
  }
  const int vectors = length / Width;
  double sum        = static_cast<double>(edges);
  const In* next    = row + lane * Width * stride;
  int v             = lane;
  const auto add    = [&](auto all_exist) {
    element_vector<In, Width> loaded[Loads] = {};
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Loads; ++j)
    {
      if (decltype(all_exist)::value || v + j * lanes < vectors)
      {
        loaded[j].load_streaming(next + j * lanes * Width * stride);
      }
    }
    next += Loads * lanes * Width * stride;
    float partial = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Loads; ++j)
    {
      TCONV_PRAGMA_UNROLL
      for (int e = 0; e < Width; ++e)
      {
        partial += to_float(loaded[j].values[e]);
      }
    }
    sum += static_cast<double>(partial);
  };
  for (; v + (Loads - 1) * lanes < vectors; v += Loads * lanes)
  {
    add(std::true_type{});
  }
  if (v < vectors)
  {
    add(std::false_type{});
  }
  return sum;
}

/// The same for a box of rows, which all start alike. Each lane goes down columns of vectors, and drops at their ends what
/// sticks out of the rows.
template <int Width, int Loads, class In>
TCONV_DEVICE double sum_rows(const In* channel, const class_box& box, int64_t stride, int lane, int lanes)
{
  const int lead    = static_cast<int>(box.first % Width);
  const auto length = static_cast<int>(box.length);
  const auto height = static_cast<int>(box.height);
  const int vectors = (lead + length - 1) / Width + 1;
  int bits          = 0; // 1 << bits lanes side by side along a row, the others behind each other
  while (1 << bits < lanes && 1 << bits < vectors)
  {
    ++bits;
  }
  const int row          = lane >> bits;
  const int step         = lanes >> bits;
  const int64_t row_step = step * box.row_pitch * stride;
  double sum             = 0;
  for (int column = lane - (row << bits); column < vectors; column += 1 << bits)
  {
    double sums[Width] = {};
    for (int64_t d = 0; d < box.depth; ++d)
    {
      const In* next = channel
                     + (box.first - lead + d * box.plane_pitch + row * box.row_pitch + column * Width) * stride;
      int h          = row;
      const auto add = [&](auto all_exist) {
        element_vector<In, Width> loaded[Loads] = {};
        TCONV_PRAGMA_UNROLL
        for (int j = 0; j < Loads; ++j)
        {
          if (decltype(all_exist)::value || h + j * step < height)
          {
            loaded[j].load_streaming(next);
          }
          next += row_step;
        }
        TCONV_PRAGMA_UNROLL
        for (int e = 0; e < Width; ++e)
        {
          float partial = 0.0f;
          TCONV_PRAGMA_UNROLL
          for (int j = 0; j < Loads; ++j)
          {
            partial += to_float(loaded[j].values[e]);
          }
          sums[e] += static_cast<double>(partial);
        }
      };
      for (; h + (Loads - 1) * step < height; h += Loads * step)
      {
        add(std::true_type{});
      }
      if (h < height)
      {
        add(std::false_type{});
      }
    }
    TCONV_PRAGMA_UNROLL
    for (int e = 0; e < Width; ++e)
    {
      sum += static_cast<unsigned>(column * Width - lead + e) < static_cast<unsigned>(length) ? sums[e] : 0.0;
    }
  }
  return sum;
}

/// Sum of a channel over a box of inputs, shared by lanes as in sum_row(). \p Rows: boxes may have more than one row.
template <bool Rows, int Width, int Loads, class In>
TCONV_DEVICE double sum_box(const In* channel, const class_box& box, int64_t position_stride, int lane, int lanes)
{
  // Known to the compiler where it matters.
  const int64_t stride = Width > 1 ? 1 : position_stride;
  const int sharing    = Width > 1 ? 32 : lanes;
  if constexpr (Rows)
  {
    if (box.height != 1 || box.depth != 1)
    {
      return sum_rows<Width, Loads>(channel, box, stride, lane, sharing);
    }
  }
  return sum_row<Width, Loads>(channel, box.first, stride, static_cast<int>(box.length), lane, sharing);
}

/// Sum over the \p lanes lanes that are a power of two \p step apart, in the first of them.
TCONV_DEVICE double sum_lanes(double share, int step = 1)
{
  for (int offset = step; offset < 32; offset *= 2)
  {
    share += __shfl_down_sync(0xffffffffu, share, static_cast<unsigned>(offset));
  }
  return share;
}

/// Sum of \p taps neighbouring weights. Called by a warp; lane 0 holds it.
template <class In>
TCONV_DEVICE double sum_taps(const In* first, int64_t taps)
{
  double sum = 0;
  // Four loads in flight: the rows of one warp are few, so latency is all that counts.
  for (int64_t t = threadIdx.x % 32; t < taps; t += 4 * 32)
  {
    float v[4];
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j)
    {
      const int64_t tap = t + 32 * j;
      v[j]              = tap < taps ? to_float(first[tap]) : 0.0f;
    }
    sum += static_cast<double>((v[0] + v[1]) + (v[2] + v[3]));
  }
  return sum_lanes(sum);
}

/// Sum of a box of neighbouring weights [kernel...], by one thread.
template <class In>
TCONV_DEVICE double sum_taps(const collapse_problem& problem, const In* first, const index_range (&box)[3])
{
  double sum = 0;
  for (int64_t d = box[0].begin; d < box[0].end; ++d)
  {
    for (int64_t h = box[1].begin; h < box[1].end; ++h)
    {
      const In* row = first + (d * problem.axis[1].kernel + h) * problem.axis[2].kernel;
      for (int64_t w = box[2].begin; w < box[2].end; ++w)
      {
        sum += static_cast<double>(to_float(row[w]));
      }
    }
  }
  return sum;
}

/// Class sums of the weights that warp \p warp of \p warps takes.
template <class In>
TCONV_DEVICE void sum_weights(const collapse_problem& problem,
                              const class_list& classes_of,
                              const In* w,
                              double* w_sums,
                              int64_t warp,
                              int64_t warps,
                              int lane)
{
  const int64_t classes = problem.class_total();
  const int64_t rows    = problem.in_channels * problem.out_per_group;
  const int64_t taps    = problem.axis[0].kernel * problem.axis[1].kernel * problem.axis[2].kernel;
  if (problem.all_taps)
  {
    for (int64_t row = warp; row < rows; row += warps)
    {
      const double sum = sum_taps(w + row * taps, taps);
      if (lane == 0)
      {
        w_sums[row] = sum;
      }
    }
    return;
  }
  // Neighbouring lanes take the classes of one row, whose taps they share through the cache.
  for (int64_t item = warp * 32 + lane; item < rows * classes; item += warps * 32)
  {
    const int64_t row   = item / classes;
    const int64_t index = item % classes;
    w_sums[(row / problem.out_per_group * classes + index) * problem.out_per_group + row % problem.out_per_group] =
      sum_taps(problem, w + row * taps, classes_of[index].taps);
  }
}

/// totals[i] = sum of the 1 << \p bits neighbours from (i << bits) on, for the i < \p count. By \p warps warps, a few totals at a time
/// each.
TCONV_DEVICE void
sum_slices(const double* slices, int bits, double* totals, int64_t count, int warp, int warps, int lane)
{
  const int shared_bits = bits < 5 ? bits : 5; // 1 << shared_bits lanes share a total
  const int side        = 32 >> shared_bits;
  const int first       = lane & ((1 << shared_bits) - 1);
  for (int64_t start = warp * side; start < count; start += warps * side)
  {
    const int64_t i = start + (lane >> shared_bits);
    double sum      = 0;
    for (int s = first; s < 1 << bits && i < count; s += 32)
    {
      sum += slices[(i << bits) + s];
    }
    for (int offset = 1; offset < 1 << shared_bits; offset *= 2)
    {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (first == 0 && i < count)
    {
      totals[i] = sum;
    }
  }
}

} // namespace block

namespace kernel
{

/// All classes of \p problem.
template <int Threads>
__global__ __launch_bounds__(Threads) void list_classes(const __grid_constant__ collapse_problem problem,
                                                        class_box* list)
{
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * Threads + threadIdx.x; i < problem.class_total();
       i += static_cast<int64_t>(gridDim.x) * Threads)
  {
    list[i] = problem.find_class(i);
  }
}

/// Class sums of w, by the first problem.weight_blocks blocks, and sums of x over slices of classes, by the others: a warp each.
///
/// \p x_sums [batch][in_channels][class][slice], \p w_sums [in_channels][class][out_channels / groups]. \p Width: elements of
/// x that are loaded at once, see block::sum_row(). \p Rows: not all classes are single rows, as they are where nothing is
/// cropped.
template <class Policy, bool Rows, int Width, class In>
__global__ __launch_bounds__(Policy::sum_threads, Rows ? Policy::row_blocks : Policy::sum_blocks) void class_sums(
  const __grid_constant__ collapse_problem problem,
  const __grid_constant__ class_list classes_of,
  const In* x,
  const In* w,
  double* x_sums,
  double* w_sums)
{
  constexpr int warps = Policy::sum_threads / 32;
  constexpr int loads = Width > 1 ? Policy::vector_elements / Width : Policy::scalar_elements;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t item   = static_cast<int64_t>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / 32;
  if (blockIdx.x < problem.weight_blocks)
  {
    block::sum_weights(problem, classes_of, w, w_sums, item, problem.weight_blocks * warps, lane);
    return;
  }

  // Work items: (sample, tile of channels, class, slice).
  const int side         = 1 << problem.channel_bits;
  const int lane_channel = lane & (side - 1);
  const int64_t slices   = problem.slices;
  const int64_t tiles    = problem.channel_tiles;
  const int64_t items    = problem.batch * tiles * slices;
  for (item -= problem.weight_blocks * warps; item < items; item += (gridDim.x - problem.weight_blocks) * warps)
  {
    const int64_t tile   = slices == 1 ? item : item / slices;
    const int64_t number = item - tile * slices;
    const int64_t n      = tile / tiles;
    const int64_t c      = (tile - n * tiles) * side + lane_channel;
    double share         = 0;
    if (c < problem.in_channels)
    {
      const int64_t slice = number & ((1 << problem.slice_bits) - 1);
      share               = block::sum_box<Rows, Width, loads>(
        x + n * problem.x.sample + c * problem.x.channel,
        classes_of[number >> problem.slice_bits].template slice<Rows>(slice, problem.slice_bits),
        problem.x.position,
        lane >> problem.channel_bits,
        32 >> problem.channel_bits);
    }
    const double sum = block::sum_lanes(share, side);
    if (lane < side && c < problem.in_channels)
    {
      x_sums[(n * problem.in_channels + c) * slices + number] = sum;
    }
  }
}

/// Means from class sums, then the chain: y[n * y_stride + channel] of type \p Out (double for statistics).
///
/// A block computes one sample, 32 output channels at a time; with channel functors the row is completed in \p rows
/// [batch][out_channels] first.
template <class Policy, class Chain, class Out>
__global__
  __launch_bounds__(32 * Policy::product_warps) void class_product(const __grid_constant__ collapse_problem problem,
                                                                   const double* x_sums,
                                                                   const double* w_sums,
                                                                   Out* y,
                                                                   int64_t y_stride,
                                                                   float* rows,
                                                                   const __grid_constant__ Chain functors)
{
  constexpr int width   = 32;
  constexpr int warps   = Policy::product_warps;
  constexpr int threads = width * warps;
  constexpr int held    = Policy::product_terms;
  __shared__ double totals[held];
  __shared__ double partial[warps][width];
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  const int thread      = static_cast<int>(threadIdx.x);
  const int lane        = thread % 32;
  const int warp        = thread / 32;
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
      // The groups that the tile's channels belong to; all take the same range of terms at a time.
      const auto group_of = [&](int64_t c) {
        return problem.out_per_group == problem.out_channels ? 0 : c / problem.out_per_group;
      };
      const int64_t co          = tile * width + lane;
      const int64_t end         = (tile + 1) * width < problem.out_channels ? (tile + 1) * width : problem.out_channels;
      const int64_t first_group = group_of(tile * width);
      const int64_t groups      = group_of(end - 1) - first_group + 1;
      const int64_t chunk       = terms < held / groups ? terms : held / groups;
      const int64_t group       = group_of(co < end ? co : end - 1);
      const double* w_at        = w_sums + group * terms * problem.out_per_group + co - group * problem.out_per_group;
      double sum                = 0;
      for (int64_t first = 0; first < terms; first += chunk)
      {
        const int64_t count = terms - first < chunk ? terms - first : chunk;
        // Weights of the first terms are under way while the slices are added.
        constexpr int ahead = 4;
        double first_w[ahead];
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < ahead; ++i)
        {
          const int64_t k = warp + i * warps;
          first_w[i]      = co < end && k < count ? w_at[(first + k) * problem.out_per_group] : 0.0;
        }
        for (int64_t g = 0; g < groups; ++g)
        {
          const int64_t term = (n * problem.in_channels + (first_group + g) * problem.in_per_group) * classes + first;
          block::sum_slices(
            x_sums + (term << problem.slice_bits), problem.slice_bits, totals + g * chunk, count, warp, warps, lane);
        }
        __syncthreads();
        if (co < end)
        {
          const double* total = totals + (group - first_group) * chunk;
          TCONV_PRAGMA_UNROLL
          for (int i = 0; i < ahead; ++i)
          {
            const int64_t k = warp + i * warps;
            sum             = k < count ? fma(total[k], first_w[i], sum) : sum;
          }
          TCONV_PRAGMA_UNROLL_4
          for (int64_t k = warp + ahead * warps; k < count; k += warps)
          {
            sum = fma(total[k], w_at[(first + k) * problem.out_per_group], sum);
          }
        }
        __syncthreads();
      }
      partial[warp][lane] = sum;
      __syncthreads();
      if (warp == 0 && co < problem.out_channels)
      {
        for (int i = 1; i < warps; ++i)
        {
          sum += partial[i][lane];
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
