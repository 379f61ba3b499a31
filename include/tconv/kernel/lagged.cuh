// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Moments of a transposed convolution's outputs from lagged products of its input, see detail/lagged_plan.hpp.
///
/// sample_means -> lagged_products -> sum_pieces -> gram_matrix, and lagged_moments for whoever needs moments. Products
/// are of x minus a number near the channel's mean, so that fp32 sums lose nothing to it; what that leaves out is put
/// back in fp64, where sums of squares minus squares of sums cost 2^-53 of the former.

#include "../detail/lagged_plan.hpp"
#include "../detail/launch.cuh"
#include "../thread/element.cuh"
#include "../thread/moments.hpp"

#include <cub/block/block_reduce.cuh>

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Copies a piece of sample \p x, centred, to \p staged [tile][position][4]; channels that do not exist become 0. By
/// the block.
template <int Threads, int Tile, class In>
TCONV_DEVICE void stage_centred(
  const lagged_problem& problem, const lagged_piece& piece, const In* x, const float* centres, float4* staged)
{
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = piece.extent[0] * piece.extent[1];
  for (int tile = 0; tile < problem.tiles; ++tile)
  {
    const In* channel[Tile];
    float centre[Tile];
    bool there[Tile];
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < Tile; ++i)
    {
      const int64_t c = static_cast<int64_t>(tile) * Tile + i;
      there[i]        = c < problem.in_channels;
      channel[i]      = x + (there[i] ? c : 0) * problem.x.channel;
      centre[i]       = centres[there[i] ? c : 0];
    }
    for (int row = static_cast<int>(threadIdx.x) / 32; row < rows; row += Threads / 32)
    {
      const int d          = row / piece.extent[1];
      const int h          = row - d * piece.extent[1];
      const int64_t source = (static_cast<int64_t>(piece.origin[0] + d) * problem.axis[1].in + piece.origin[1] + h)
                             * problem.axis[2].in
                           + piece.origin[2];
      float4* target = staged + tile * piece.positions() + row * piece.extent[2];
      for (int w = lane; w < piece.extent[2]; w += 32)
      {
        const int64_t offset = (source + w) * problem.x.position;
        float values[4]      = {};
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < Tile; ++i)
        {
          values[i] = there[i] ? to_float(channel[i][offset]) - centre[i] : 0.0f;
        }
        target[w] = make_float4(values[0], values[1], values[2], values[3]);
      }
    }
  }
}

/// The \p Values sums of all lanes of a warp, each in one lane or more: returns that of number_of_lane(). Halves of the
/// values change sides in each step. \p Offset: 16 for the caller.
template <int Values, int Offset = 16>
TCONV_DEVICE float sum_over_lanes(const float (&values)[Values], int lane)
{
  if constexpr (Values == 1)
  {
    float sum = values[0];
    TCONV_PRAGMA_UNROLL
    for (int offset = Offset; offset > 0; offset /= 2)
    {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    return sum;
  }
  else
  {
    static_assert(Values % 2 == 0 && Offset > 0, "a power of two up to the lanes of a warp");
    const bool upper = (lane & Offset) != 0;
    float kept[Values / 2];
    TCONV_PRAGMA_UNROLL
    for (int k = 0; k < Values / 2; ++k)
    {
      const float keep = upper ? values[k + Values / 2] : values[k];
      const float send = upper ? values[k] : values[k + Values / 2];
      kept[k]          = keep + __shfl_xor_sync(0xffffffffu, send, Offset);
    }
    return sum_over_lanes<Values / 2, Offset / 2>(kept, lane);
  }
}
/// The number of the value whose sum \p lane has.
template <int Values>
TCONV_DEVICE int number_of_lane(int lane)
{
  return lane / (32 / Values);
}

} // namespace block

namespace kernel
{

/// centres[c]: the mean of up to Policy::sampled values of channel c of x, spread evenly. A channel per block.
template <class Policy, class In>
__global__ __launch_bounds__(Policy::small_threads) void sample_means(const __grid_constant__ lagged_problem problem,
                                                                      const In* x,
                                                                      float* centres)
{
  using block_sum = cub::BlockReduce<double, Policy::small_threads>;
  __shared__ typename block_sum::TempStorage scratch;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int64_t positions = static_cast<int64_t>(problem.axis[0].in) * problem.axis[1].in * problem.axis[2].in;
  const int64_t values    = problem.batch * positions;
  const int64_t count     = values < Policy::sampled ? values : Policy::sampled;
  for (int64_t c = blockIdx.x; c < problem.in_channels; c += gridDim.x)
  {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += Policy::small_threads)
    {
      const int64_t at = values / count * i;
      sum += static_cast<double>(
        to_float(x[at / positions * problem.x.sample + c * problem.x.channel + at % positions * problem.x.position]));
    }
    sum = block_sum(scratch).Sum(sum); // the order of the tree is fixed
    if (threadIdx.x == 0)
    {
      centres[c] = static_cast<float>(sum / static_cast<double>(count));
    }
    __syncthreads();
  }
}

/// Sums over the part of each cell that lies in one piece of x, a piece per block, whose warps share the cells.
///
/// \p partials [problem.sum_of()][piece]; cells that are not summed keep what they hold. fp32 over the few thousand
/// positions of a piece, by 32 lanes, fp64 beyond. Shared memory: problem.staged_bytes().
template <class Policy, int Tile, class In>
__global__ __launch_bounds__(Policy::threads, Policy::min_blocks) void lagged_products(
  const __grid_constant__ lagged_problem problem, const In* x, const float* centres, float* partials)
{
  extern __shared__ float4 staged[];
  __shared__ int next_item;
  constexpr int held   = Tile * (Tile + 2);
  constexpr int values = Tile == 1 ? 4 : Tile == 2 ? 8 : Tile == 3 ? 16 : 32;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int lane          = static_cast<int>(threadIdx.x) % 32;
  const int parts         = problem.parts[0] * problem.parts[1] * problem.parts[2];
  const int tile_pairs    = problem.tiles * problem.tiles;
  const int items         = problem.items();
  const int64_t all_parts = problem.pieces();
  for (int64_t index = blockIdx.x; index < all_parts; index += gridDim.x)
  {
    const int64_t n          = index / parts;
    const lagged_piece piece = lagged_piece::of(problem, static_cast<int>(index - n * parts));
    if (threadIdx.x == 0)
    {
      next_item = 0;
    }
    block::stage_centred<Policy::threads, Tile>(problem, piece, x + n * problem.x.sample, centres, staged);
    __syncthreads();
    while (true)
    {
      // Cells differ in size: a warp takes the next when it has done one. Which warp does not matter to the sums.
      int item = lane == 0 ? atomicAdd(&next_item, 1) : 0;
      item     = __shfl_sync(0xffffffffu, item, 0);
      if (item >= items)
      {
        break;
      }
      const int cell      = item / tile_pairs;
      const int tile_pair = item - cell * tile_pairs;
      if (!problem.summed(cell))
      {
        continue;
      }
      const int first_tile  = tile_pair / problem.tiles;
      const int second_tile = tile_pair - first_tile * problem.tiles;
      const float4* first   = staged + first_tile * piece.positions();
      const float4* second  = staged + second_tile * piece.positions();
      float* target         = partials + problem.sum_of(cell, first_tile, second_tile, 0) * all_parts + index;
      auto walk             = lagged_walk::of(problem, piece, cell, lane);
      if (!walk.any) // a cell at a border, in a piece inside
      {
        if (lane < held)
        {
          target[lane * all_parts] = 0.0f;
        }
        continue;
      }
      float sums[values] = {};
      for (; walk.left > 0; walk.advance())
      {
        const float4 here  = first[walk.at];
        const float4 there = second[walk.at + walk.further];
        const float a[4]   = {here.x, here.y, here.z, here.w};
        const float b[4]   = {there.x, there.y, there.z, there.w};
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < Tile; ++i)
        {
          TCONV_PRAGMA_UNROLL
          for (int j = 0; j < Tile; ++j)
          {
            sums[i * Tile + j] = fmaf(a[i], b[j], sums[i * Tile + j]);
          }
          sums[Tile * Tile + i] += a[i];
          sums[Tile * Tile + Tile + i] += b[i];
        }
      }
      __syncwarp();
      const float sum  = block::sum_over_lanes(sums, lane);
      const int number = block::number_of_lane<values>(lane);
      if (number < held && lane % (32 / values) == 0)
      {
        target[number * all_parts] = sum;
      }
    }
    __syncthreads();
  }
}

/// sums[i] = sum over the pieces of partials[i][piece], of the cells that are summed; a warp each.
template <class Policy>
__global__ __launch_bounds__(Policy::small_threads) void sum_pieces(const __grid_constant__ lagged_problem problem,
                                                                    const float* partials,
                                                                    double* sums)
{
  constexpr int warps = Policy::small_threads / 32;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int lane      = static_cast<int>(threadIdx.x) % 32;
  const int per_cell  = problem.tiles * problem.tiles * problem.sums_per_item();
  const int64_t total = static_cast<int64_t>(problem.cells()) * per_cell;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / 32; i < total;
       i += static_cast<int64_t>(gridDim.x) * warps)
  {
    if (!problem.summed(static_cast<int>(i / per_cell)))
    {
      continue;
    }
    double sum = 0;
    TCONV_PRAGMA_UNROLL_4
    for (int64_t piece = lane; piece < problem.pieces(); piece += 32)
    {
      sum += static_cast<double>(partials[i * problem.pieces() + piece]);
    }
    for (int offset = 16; offset > 0; offset /= 2)
    {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (lane == 0)
    {
      sums[i] = sum;
    }
  }
}

/// gram [pair][in_channels][in_channels]: sums of products of x; input_sums [pair][in_channels]: of x, where a pair is
/// a tap twice. A warp each, its lanes the cells of a box.
template <class Policy>
__global__ __launch_bounds__(Policy::small_threads) void gram_matrix(const __grid_constant__ lagged_problem problem,
                                                                     const double* sums,
                                                                     const float* centres,
                                                                     double* gram,
                                                                     double* input_sums)
{
  constexpr int warps = Policy::small_threads / 32;
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int channels = static_cast<int>(problem.in_channels);
  const int lane     = static_cast<int>(threadIdx.x) % 32;
  const int step     = static_cast<int>(gridDim.x) * warps;
  for (int k = static_cast<int>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / 32; k < problem.gram_elements();
       k += step)
  {
    const int j      = k % channels;
    const int i      = k / channels % channels;
    const int pair   = k / channels / channels;
    const bool twice = i == j && problem.tap_of(pair, false) == problem.tap_of(pair, true);
    double product   = 0;
    double input     = 0;
    for (int number = lane; number < problem.cells_of(pair); number += 32)
    {
      product += problem.gram(sums, centres, pair, i, j, number);
      input += twice ? problem.input_sum(sums, centres, pair, i, number) : 0.0;
    }
    for (int offset = 16; offset > 0; offset /= 2)
    {
      product += __shfl_xor_sync(0xffffffffu, product, offset);
      input += __shfl_xor_sync(0xffffffffu, input, offset);
    }
    if (lane == 0)
    {
      gram[k] = product;
      if (twice)
      {
        input_sums[static_cast<int64_t>(pair) * channels + i] = input;
      }
    }
  }
}

/// Statistics of batch_norm_statistics(): quadratic and linear forms of the weights in what gram_matrix() leaves.
template <class In>
struct lagged_moments
{
  lagged_problem problem;
  const double* gram;
  const double* input_sums;
  const In* w; ///< [in_channels][out_channels][kernel...]

  /// Moments of channel \p c, in thread 0. Called by the block.
  template <int Threads>
  TCONV_DEVICE moments<double> total(int64_t c) const
  {
    using block_sum = cub::BlockReduce<double, Threads>;
    __shared__ typename block_sum::TempStorage square_scratch;
    __shared__ typename block_sum::TempStorage sum_scratch;
    const int channels = static_cast<int>(problem.in_channels);
    const int64_t taps = static_cast<int64_t>(problem.axis[0].kernel) * problem.axis[1].kernel * problem.axis[2].kernel;
    const auto weight  = [&](int channel, int64_t tap) {
      return static_cast<double>(to_float(w[(channel * problem.out_channels + c) * taps + tap]));
    };
    double squares = 0;
    double sum     = 0;
    for (int k = static_cast<int>(threadIdx.x); k < problem.gram_elements(); k += Threads)
    {
      const int j          = k % channels;
      const int i          = k / channels % channels;
      const int pair       = k / channels / channels;
      const int64_t first  = problem.tap_of(pair, false);
      const int64_t second = problem.tap_of(pair, true);
      squares += weight(i, first) * weight(j, second) * gram[k];
      if (i == j && first == second)
      {
        sum += weight(i, first) * input_sums[static_cast<int64_t>(pair) * channels + i];
      }
    }
    // The order of the trees is fixed.
    squares         = block_sum(square_scratch).Sum(squares);
    sum             = block_sum(sum_scratch).Sum(sum);
    const double m2 = squares - sum * sum / problem.outputs;
    return {problem.outputs, sum / problem.outputs, m2 < 0.0 ? 0.0 : m2}; // NaN stays
  }
};

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
