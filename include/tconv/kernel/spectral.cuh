// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Sums of squares of a transposed convolution's outputs around their means, without the outputs.
///
/// Where nothing is cropped and a transform has exactly the output's size N, Parseval's identity gives for each sample and channel
///
///     sum over positions of (y - mean)^2 = 1/N sum over f != 0 of |Y(f)|^2,    Y(f) = sum over ci of X_ci(f) W_ci(f),
///
/// so that no large numbers are subtracted anywhere. Summed over samples this is a quadratic form in the spectra of the weights with
/// the matrices S(f)[i, j] = sum over n of conj(X_i(f)) X_j(f). Taps have no lags beyond +-(k - 1): S may be low-passed to those
/// and resampled on a grid of 2 k - 1 frequencies per axis, by a real kernel that separates into axes,
///
///     S'(g) = sum over f of K_d(g_d, f_d) K_h(g_h, f_h) K_w(g_w, f_w) S(f),    K(g, f) = 1/N sum over |l| < k of cos(2 pi l (f/N - g/G)),
///
/// where the quadratic form needs far fewer matrices. x is real: frequencies f and -f are conjugates, and half of them is formed.
/// All sums have a fixed order.

#include "../block/load_async.cuh"
#include "../block/fourier.cuh"
#include "../block/split_complex.cuh"
#include "../detail/launch.cuh"
#include "../detail/spectral_plan.hpp"
#include "../taps.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// exp(2 pi i turns / size), exact in its argument.
TCONV_DEVICE float2 unit_root(int turns, int size)
{
  float2 root;
  sincospif(2.0f * static_cast<float>(turns % size) / static_cast<float>(size), &root.y, &root.x);
  return root;
}

/// K(g, f) of an axis, see above.
TCONV_DEVICE float resampling_weight(int g, int f, int size, int grid, int kernel)
{
  // f / size - g / grid is a multiple of 1 / (size * grid): angles are reduced as integers.
  const int period = size * grid;
  const int step   = (f * grid - g * size + period) % period;
  float sum        = 1.0f;
  int turns        = 0;
  for (int l = 1; l < kernel; ++l)
  {
    turns += step;
    turns -= turns >= period ? period : 0;
    sum += 2.0f * cospif(2.0f * static_cast<float>(turns) / static_cast<float>(period));
  }
  return sum / static_cast<float>(size);
}

/// The tile (i, j), i <= j, of tile pair \p pair: pairs count along rows.
struct tile_pair
{
  int64_t i;
  int64_t j;

  TCONV_DEVICE static tile_pair of(int64_t pair, int64_t tiles)
  {
    tile_pair result{0, 0};
    while (pair >= tiles - result.i)
    {
      pair -= tiles - result.i;
      ++result.i;
    }
    result.j = result.i + pair;
    return result;
  }
  TCONV_DEVICE int64_t number(int64_t tiles) const { return i * tiles - i * (i - 1) / 2 + (j - i); }
};

/// Frequencies of the small grid up to sign, numbered.
struct grid_frequency
{
  int d;
  int h;
  int w;

  TCONV_DEVICE static grid_frequency of(const spectral_problem& problem, int64_t number)
  {
    // Those with w > 0; then those of the plane w = 0 up to sign: d = 0 with half of h, half of d > 0 with all h.
    const int half      = problem.half_grid() - 1;
    const int64_t above = static_cast<int64_t>(problem.grid[0]) * problem.grid[1] * half;
    if (number < above)
    {
      const int64_t row = number / half;
      return {static_cast<int>(row / problem.grid[1]),
              static_cast<int>(row % problem.grid[1]),
              static_cast<int>(number % half) + 1};
    }
    const int rest = static_cast<int>(number - above) - (problem.grid[1] + 1) / 2;
    return rest < 0 ? grid_frequency{0, rest + (problem.grid[1] + 1) / 2, 0}
                    : grid_frequency{1 + rest / problem.grid[1], rest % problem.grid[1], 0};
  }
};

} // namespace block

namespace kernel
{

/// \p spectra [size h][half w][batch][in d][padded channels]: planes of x, transformed along h and w. Persistent.
template <class Policy, class In>
__global__ __launch_bounds__(Policy::plane_threads, 2) void transform_planes(
  const __grid_constant__ spectral_problem problem, const In* x, bool quads, float2* spectra)
{
  constexpr int threads      = Policy::plane_threads;
  constexpr int rows_held    = 4;                         // of x, by a thread
  constexpr int columns_held = 2;                         // of the lines, by a thread
  constexpr int held         = Policy::plane_frequencies; // by a thread
  extern __shared__ float4 plane_scratch[];
  const detail::plane_layout pitch = detail::plane_layout::of(problem);
  const int channels               = problem.plane_channels;
  const int height                 = problem.in[1];
  const int width                  = problem.in[2];
  const int half                   = problem.half();
  const int pairs                  = problem.pairs(1);
  float2* roots_w                  = reinterpret_cast<float2*>(plane_scratch);     // [in w][half], in whole groups
  float2* roots_h                  = roots_w + pitch.width * pitch.half;           // [in h][pairs], likewise
  float2* lines                    = roots_h + (height * pitch.pairs + 1) / 2 * 2; // [channel][in h][half], padded
  auto* rows                       = reinterpret_cast<float*>(lines + channels * pitch.channel_pitch);
  const int thread                 = static_cast<int>(threadIdx.x);
  for (int i = thread; i < pitch.width * pitch.half; i += threads)
  {
    roots_w[i] = block::unit_root(i / pitch.half * (i % pitch.half), problem.size[2]);
  }
  for (int i = thread; i < height * pitch.pairs; i += threads)
  {
    roots_h[i] = block::unit_root(i / pitch.pairs * (i % pitch.pairs), problem.size[1]);
  }
  runtime::grid_dependency_wait();

  // Items and rows are numbered in 32 bits: the plan sees to it.
  const int padded             = static_cast<int>(problem.padded_channels());
  const int chunks             = padded / channels;
  const int all_rows           = channels * height;
  const int items              = static_cast<int>(problem.batch) * problem.in[0] * chunks;
  const int64_t out_row        = problem.batch * problem.in[0] * padded;
  const int64_t frequency_step = half * out_row;
  // Rows of the next item are copied while this one's frequencies along h are computed. Each thread copies one column of parts:
  // 4 elements, or 1 where they are no vectors.
  const int parts    = quads ? width / 4 : width;
  const int per_turn = threads / parts; // rows
  const auto stage   = [&](int item) {
    if (item < items && thread < per_turn * parts)
    {
      const int first = item % chunks * channels;
      const int nd    = item / chunks;
      const int n     = nd / problem.in[0];
      const In* plane = x + n * problem.x.sample + first * problem.x.channel
                      + static_cast<int64_t>(nd - n * problem.in[0]) * height * width * problem.x.position;
      const int real = static_cast<int>(problem.in_channels - first < channels ? problem.in_channels - first
                                                                                 : channels);
      const int part = thread % parts;
      int row        = thread / parts;
      int c          = row / height;
      int h          = row - c * height;
      for (; row < all_rows; row += per_turn)
      {
        const bool inside = c < real;
        const In* line    = plane + (inside ? c : 0) * problem.x.channel + h * width * problem.x.position;
        float* target     = rows + row * pitch.row_pitch;
        if (quads)
        {
          block::load_async_quad(target + 4 * part, line + 4 * part, inside);
        }
        else
        {
          block::load_async(target + part, line + part * problem.x.position, inside);
        }
        for (h += per_turn; h >= height; h -= height)
        {
          ++c;
        }
      }
    }
    block::copy_async_commit();
  };
  // Rows end on whole vectors of zeros.
  for (int i = thread; i < all_rows * 4; i += threads)
  {
    const int w = width / 4 * 4 + i % 4;
    if (width % 4 != 0 && w >= width)
    {
      rows[i / 4 * pitch.row_pitch + w] = 0.0f;
    }
  }
  stage(static_cast<int>(blockIdx.x));
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x))
  {
    block::copy_async_wait<0>();
    __syncthreads();

    // Along w: X(f) = sum of x conj(root).
    const int row_groups = (all_rows + rows_held - 1) / rows_held;
    for (int i = thread; i < row_groups * ((half + held - 1) / held); i += threads)
    {
      const int group = i % row_groups;
      const int f     = i / row_groups * held;
      const float* at[rows_held];
      const float2* root           = roots_w + f;
      float2 sums[rows_held][held] = {};
      TCONV_PRAGMA_UNROLL
      for (int r = 0; r < rows_held; ++r)
      {
        const int row = group + r * row_groups;
        at[r]         = rows + (row < all_rows ? row : 0) * pitch.row_pitch;
      }
      for (int w = 0; w < pitch.width; w += 4)
      {
        float4 values[rows_held];
        TCONV_PRAGMA_UNROLL
        for (int r = 0; r < rows_held; ++r)
        {
          values[r] = *reinterpret_cast<const float4*>(at[r] + w);
        }
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i)
        {
          TCONV_PRAGMA_UNROLL
          for (int q = 0; q < held; ++q)
          {
            const float2 z = root[i * pitch.half + q];
            TCONV_PRAGMA_UNROLL
            for (int r = 0; r < rows_held; ++r)
            {
              const float v = i == 0 ? values[r].x : (i == 1 ? values[r].y : (i == 2 ? values[r].z : values[r].w));
              sums[r][q].x  = fmaf(v, z.x, sums[r][q].x);
              sums[r][q].y  = fmaf(-v, z.y, sums[r][q].y);
            }
          }
        }
        root += 4 * pitch.half;
      }
      TCONV_PRAGMA_UNROLL
      for (int r = 0; r < rows_held; ++r)
      {
        const int row = group + r * row_groups;
        if (row < all_rows)
        {
          float2* line = lines + row / height * pitch.channel_pitch + row % height * pitch.frequency_pitch;
          TCONV_PRAGMA_UNROLL
          for (int q = 0; q < held; ++q)
          {
            if (f + q < half)
            {
              line[f + q] = sums[r][q];
            }
          }
        }
      }
    }
    __syncthreads();
    stage(item + static_cast<int>(gridDim.x));

    // Along h, frequencies f and -f together: sums with the cosines and with the sines make both.
    const int columns       = channels * half;
    const int column_groups = (columns + columns_held - 1) / columns_held;
    for (int i = thread; i < column_groups * ((pairs + held - 1) / held); i += threads)
    {
      const int group = i % column_groups;
      const int f     = i / column_groups * held;
      const float2* line[columns_held];
      const float2* root                 = roots_h + f;
      float2 cosines[columns_held][held] = {};
      float2 sines[columns_held][held]   = {};
      TCONV_PRAGMA_UNROLL
      for (int r = 0; r < columns_held; ++r)
      {
        const int column = group + r * column_groups < columns ? group + r * column_groups : 0;
        line[r]          = lines + column % channels * pitch.channel_pitch + column / channels;
      }
      TCONV_PRAGMA_UNROLL_4
      for (int h = 0; h < height; ++h)
      {
        float2 values[columns_held];
        TCONV_PRAGMA_UNROLL
        for (int r = 0; r < columns_held; ++r)
        {
          values[r] = *line[r];
          line[r] += pitch.frequency_pitch;
        }
        TCONV_PRAGMA_UNROLL
        for (int q = 0; q < held; ++q)
        {
          const float2 z = root[h * pitch.pairs + q];
          TCONV_PRAGMA_UNROLL
          for (int r = 0; r < columns_held; ++r)
          {
            cosines[r][q].x = fmaf(values[r].x, z.x, cosines[r][q].x);
            cosines[r][q].y = fmaf(values[r].y, z.x, cosines[r][q].y);
            sines[r][q].x   = fmaf(values[r].x, z.y, sines[r][q].x);
            sines[r][q].y   = fmaf(values[r].y, z.y, sines[r][q].y);
          }
        }
      }
      TCONV_PRAGMA_UNROLL
      for (int r = 0; r < columns_held; ++r)
      {
        const int column = group + r * column_groups;
        // (n, d) is the item without its chunk.
        float2* target = spectra + (item / chunks) * static_cast<int64_t>(padded) + item % chunks * channels
                       + column % channels + column / channels * out_row;
        float2* up   = target + f * frequency_step;
        float2* down = target + (problem.size[1] - f) * frequency_step;
        TCONV_PRAGMA_UNROLL
        for (int q = 0; q < held; ++q)
        {
          if (column < columns && f + q < pairs)
          {
            *up = block::forward_frequency(cosines[r][q], sines[r][q]);
            if (f + q != 0 && 2 * (f + q) != problem.size[1])
            {
              *down = block::backward_frequency(cosines[r][q], sines[r][q]);
            }
          }
          up += frequency_step;
          down -= frequency_step;
        }
      }
    }
  }
}

/// \p spectra [size d][half w][pair of frequencies h][batch][padded channels] from \p planes (see transform_planes): the transform along d.
/// A warp takes 32 channels of two lines, those of frequencies h and -h. Persistent.
template <class Policy>
__global__ __launch_bounds__(Policy::threads) void transform_depth(const __grid_constant__ spectral_problem problem,
                                                                   const float2* planes,
                                                                   uint4* spectra)
{
  constexpr int held  = 4;
  constexpr int warps = Policy::threads / 32;
  extern __shared__ float2 depth_scratch[];
  const int pairs = problem.pairs(0);
  const int depth = problem.in[0];
  float2* roots   = depth_scratch; // [in d][pairs]
  const int warp  = static_cast<int>(threadIdx.x) / 32;
  const int lane  = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x); i < depth * pairs; i += Policy::threads)
  {
    roots[i] = block::unit_root(i / pairs * (i % pairs), problem.size[0]);
  }
  runtime::grid_dependency_wait();
  __syncthreads();

  const int tiles            = static_cast<int>(problem.channel_tiles());
  const int batch            = static_cast<int>(problem.batch);
  const int half             = problem.half();
  const int64_t padded       = problem.padded_channels();
  const int64_t line_step    = depth * padded;
  const int64_t frequency_fd = half * problem.spectra.bin;
  const int items            = problem.row_pairs() * half * batch * tiles;
  for (int item = static_cast<int>(blockIdx.x) * warps + warp; item < items;
       item += static_cast<int>(gridDim.x) * warps)
  {
    const int c          = item % tiles * 32 + lane;
    const int n          = item / tiles % batch;
    const int fw         = item / tiles / batch % half;
    const int pair       = item / tiles / batch / half;
    const int opposite   = problem.opposite_row(pair);
    const float2* at     = planes + ((static_cast<int64_t>(pair) * half + fw) * batch + n) * line_step + c;
    const float2* across = planes + ((static_cast<int64_t>(opposite) * half + fw) * batch + n) * line_step + c;
    uint4* target = spectra + fw * problem.spectra.bin + pair * problem.spectra.pair + n * problem.spectra.sample + c;
    for (int f = 0; f < pairs; f += held)
    {
      float2 cosines[held][2] = {};
      float2 sines[held][2]   = {};
      int next[held];
      TCONV_PRAGMA_UNROLL
      for (int q = 0; q < held; ++q)
      {
        next[q] = f + q < pairs ? f + q : 0;
      }
      TCONV_PRAGMA_UNROLL_4
      for (int d = 0; d < depth; ++d)
      {
        const float2 values[2] = {at[d * padded], across[d * padded]};
        TCONV_PRAGMA_UNROLL
        for (int q = 0; q < held; ++q)
        {
          const float2 root = roots[d * pairs + next[q]];
          TCONV_PRAGMA_UNROLL
          for (int r = 0; r < 2; ++r)
          {
            cosines[q][r].x = fmaf(values[r].x, root.x, cosines[q][r].x);
            cosines[q][r].y = fmaf(values[r].y, root.x, cosines[q][r].y);
            sines[q][r].x   = fmaf(values[r].x, root.y, sines[q][r].x);
            sines[q][r].y   = fmaf(values[r].y, root.y, sines[q][r].y);
          }
        }
      }
      const auto store = [&](int fd, float2 v, float2 w) {
        const block::split_complex a = block::split_complex::of(n % 2 == 0 ? v : w);
        const block::split_complex b = block::split_complex::of(n % 2 == 0 ? w : v);
        target[fd * frequency_fd]    = make_uint4(a.high, a.low, b.high, b.low);
      };
      TCONV_PRAGMA_UNROLL
      for (int q = 0; q < held; ++q)
      {
        if (f + q < pairs)
        {
          store(f + q,
                block::forward_frequency(cosines[q][0], sines[q][0]),
                block::forward_frequency(cosines[q][1], sines[q][1]));
          if (f + q != 0 && 2 * (f + q) != problem.size[0])
          {
            store(problem.size[0] - (f + q),
                  block::backward_frequency(cosines[q][0], sines[q][0]),
                  block::backward_frequency(cosines[q][1], sines[q][1]));
          }
        }
      }
    }
  }
}

/// \p matrices [grid h][tile pair][size d][half w][tile][tile]: S(f) without bin 0, resampled along h. A block accumulates the
/// frequencies -+grid_pairs of a chunk of the small grid for one tile pair and one (f_d, f_w); a warp has 16 x 8 elements. Persistent.
///
/// Frequencies f and -f along h come together: with K(g, -f) = K(-g, f) the sum of their matrices counts for S'(g) + S'(-g), their difference
/// for S'(g) - S'(-g), and each needs half of the products.
template <class Policy>
__global__ __launch_bounds__(Policy::threads, 2) void accumulate_matrices(
  const __grid_constant__ spectral_problem problem, const uint4* spectra, float2* matrices)
{
  constexpr int tile    = Policy::tile;
  constexpr int samples = Policy::samples;
  constexpr int pairs   = Policy::grid_pairs;
  constexpr int stages  = Policy::gram_stages;
  constexpr int depth   = Policy::gram_pairs;
  static_assert(tile == 32 && samples == 16 && depth == 2 && Policy::threads == 256,
                "tconv: 2 x 4 warps have 16 x 8 elements each, and threads copy 8 parts of a stage");
  // [pair of frequencies][channel of both tiles][sample], in parts of 16 bytes.
  constexpr int pair_pitch  = 2 * tile * samples + Policy::gram_padding;
  constexpr int stage_pitch = depth * pair_pitch;
  extern __shared__ uint4 gram_scratch[];
  // [pair of frequencies]: weights of sums for grid frequencies 0, 1, ..., then of differences for 1, 2, ...; of pair 0, whose two
  // frequencies are their own opposites: of the first for 0, 1, ..., then of the second.
  constexpr int row_pitch = Policy::gram_weights;
  auto* weights           = reinterpret_cast<float*>(gram_scratch + stages * stage_pitch);
  const int thread        = static_cast<int>(threadIdx.x);
  const int size          = problem.size[1];
  const int count         = problem.row_pairs();
  const int groups        = (count + depth - 1) / depth;
  const int chunks        = problem.grid_chunks();
  for (int i = thread; i < chunks * groups * depth * row_pitch; i += Policy::threads)
  {
    const int slot  = i % row_pitch;
    const int f     = i / row_pitch % (groups * depth);
    const int first = i / row_pitch / (groups * depth) * pairs;
    const bool odd  = slot > pairs;
    const int g     = odd ? slot - pairs - (f == 0 ? 1 : 0) : slot;
    // No frequency is half of an odd size, and grid frequency 0 belongs to the first chunk.
    const bool none   = f >= count || g > pairs || (f == 0 && odd && size % 2 != 0) || (g == 0 && first > 0);
    const int f_one   = f == 0 && odd ? size / 2 : f;
    const int f_other = f == 0 ? f_one : size - f;
    const auto of     = [&](int f_h) {
      return block::resampling_weight(first + g, f_h, size, problem.grid[1], problem.kernel[1]);
    };
    weights[i] = none ? 0.0f : 0.5f * (of(f_one) + (f > 0 && odd ? -1.0f : 1.0f) * of(f_other));
  }
  runtime::grid_dependency_wait();

  const int warp      = thread / 32;
  const int lane      = thread % 32;
  const int row       = warp % 2 * 16 + lane / 4;
  const int column    = warp / 2 * 8;
  const int64_t bins  = static_cast<int64_t>(problem.size[0]) * problem.half();
  const int batch     = static_cast<int>(problem.batch);
  const int steps     = groups * ((batch + samples - 1) / samples);
  const int64_t items = problem.tile_pairs() * bins * chunks;
  // Samples of a channel are permuted so that neither copies nor fragments meet in a bank.
  const auto swizzle = [](int channel) { return (channel & 1) << 2 | (channel & 2) >> 1; };
  // This thread's first fragments are sample lane % 4 of channel row; its second ones 4 samples on.
  const int first_word = 2 * (row * samples + (lane % 4 ^ swizzle(row))) + lane % 2;
  // Re and im of conj(a) b for 16 x 8 channels. Rows 0 to 7 of an instruction are high parts of channels, the others low ones.
  const auto multiply = [](const uint2* a, const uint2* a_next, int to_b, float (&sums)[2][4]) {
    float parts[2][2][4] = {}; // [re, im][8 channels]
    TCONV_PRAGMA_UNROLL
    for (int k = 0; k < samples; k += 8)
    {
      const uint2 b      = a[to_b + 2 * k];
      const uint2 b_next = a_next[to_b + 2 * k];
      TCONV_PRAGMA_UNROLL
      for (int q = 0; q < 2; ++q)
      {
        const uint2 first        = a[2 * (8 * q * samples + k)];
        const uint2 second       = a_next[2 * (8 * q * samples + k)];
        const unsigned factor[4] = {first.x, first.y, second.x, second.y};
        block::multiply_add(parts[0][q], factor, b.y, b_next.y);
        block::multiply_add(parts[1][q], factor, block::quarter_turn(b.y), block::quarter_turn(b_next.y));
        block::multiply_add(parts[0][q], factor, b.x, b_next.x);
        block::multiply_add(parts[1][q], factor, block::quarter_turn(b.x), block::quarter_turn(b_next.x));
      }
    }
    TCONV_PRAGMA_UNROLL
    for (int e = 0; e < 8; ++e)
    {
      const float* part    = parts[e / 4][e % 4 / 2];
      sums[e / 4][e % 4] = part[e % 2] + part[e % 2 + 2];
    }
  };
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x)
  {
    const int64_t pair        = item % problem.tile_pairs();
    const int64_t bin         = item / problem.tile_pairs() % bins;
    const int chunk           = static_cast<int>(item / problem.tile_pairs() / bins);
    const block::tile_pair at = block::tile_pair::of(pair, problem.channel_tiles());
    // This thread copies one of a stage's two pairs, of samples warp and warp + 8 of channels 16 apart.
    const int copied_pair    = lane % 2;
    const int copied_channel = lane / 2;
    const bool two_tiles     = at.i != at.j;
    const int real_i         = static_cast<int>(problem.in_channels - at.i * tile) - copied_channel;
    const int real_j         = static_cast<int>(problem.in_channels - at.j * tile) - copied_channel;
    const int64_t across     = (at.j - at.i) * tile * problem.spectra.channel;
    const uint4* next        = spectra + bin * problem.spectra.bin + copied_pair * problem.spectra.pair
                      + warp * problem.spectra.sample + (at.i * tile + copied_channel) * problem.spectra.channel;
    uint4* const to = gram_scratch + copied_pair * pair_pitch + copied_channel * samples
                    + (warp ^ swizzle(copied_channel));
    uint4* target    = to;
    int copied       = 0; // steps
    int copied_n     = 0; // the first sample of the step that is copied next, and its first pair
    int copied_first = 0;
    const auto stage = [&] {
      if (copied < steps)
      {
        const int left = copied_first + copied_pair < count ? batch - copied_n - warp : 0;
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i)
        {
          const int c         = i / 2 * 16;
          const int n         = i % 2 * 8;
          const uint4* source = next + c * problem.spectra.channel + n * problem.spectra.sample;
          uint4* place        = target + c * samples + n;
          block::copy_async_16_or_zero(
            reinterpret_cast<float*>(place), reinterpret_cast<const float*>(source), c < real_i && n < left);
          if (two_tiles)
          {
            block::copy_async_16_or_zero(reinterpret_cast<float*>(place + tile * samples),
                                         reinterpret_cast<const float*>(source + across),
                                         c < real_j && n < left);
          }
        }
        ++copied;
        target = target == to + (stages - 1) * stage_pitch ? to : target + stage_pitch;
        next += samples * problem.spectra.sample;
        copied_n += samples;
        if (copied_n >= batch)
        {
          next += depth * problem.spectra.pair - copied_n * problem.spectra.sample;
          copied_n = 0;
          copied_first += depth;
        }
      }
      block::copy_async_commit();
    };
    const uint4* values         = gram_scratch;
    const int to_b              = 2 * ((two_tiles ? tile : 0) + column - row + lane / 4) * samples; // from those of a
    float even[pairs + 1][2][4] = {}; // S'(g) + S'(-g) for the chunk's g, and 0; re and im
    float odd[pairs][2][4]      = {}; // S'(g) - S'(-g), likewise halved
    const float* of_pair        = weights + chunk * groups * depth * row_pitch;
    int first_n                 = 0;
    int group                   = 0;
    __syncthreads();
    for (int step = 0; step < stages - 1; ++step)
    {
      stage();
    }
    for (int step = 0; step < steps; ++step)
    {
      block::copy_async_wait<stages - 2>();
      __syncthreads();
      stage();
#pragma unroll 1
      for (int p = 0; p < depth; ++p)
      {
        // Matrices of both frequencies, re and im.
        float here[2][4];
        float opposite[2][4];
        const auto* words = reinterpret_cast<const uint2*>(values + p * pair_pitch);
        multiply(words + first_word, words + (first_word ^ 8), to_b, here);
        multiply(words + (first_word ^ 1), words + (first_word ^ 9), to_b, opposite);
        const float* weight = of_pair + p * row_pitch;
        if (p == 0 && group == 0)
        {
          // Without frequency 0 along all axes.
          TCONV_PRAGMA_UNROLL
          for (int g = 0; g <= pairs; ++g)
          {
            const float first = bin == 0 ? 0.0f : weight[g];
            TCONV_PRAGMA_UNROLL
            for (int e = 0; e < 8; ++e)
            {
              even[g][e / 4][e % 4] = fmaf(
                weight[pairs + 1 + g], opposite[e / 4][e % 4], fmaf(first, here[e / 4][e % 4], even[g][e / 4][e % 4]));
            }
          }
        }
        else
        {
          TCONV_PRAGMA_UNROLL
          for (int e = 0; e < 8; ++e)
          {
            const float sum        = here[e / 4][e % 4] + opposite[e / 4][e % 4];
            const float difference = here[e / 4][e % 4] - opposite[e / 4][e % 4];
            TCONV_PRAGMA_UNROLL
            for (int g = 0; g <= pairs; ++g)
            {
              even[g][e / 4][e % 4] = fmaf(weight[g], sum, even[g][e / 4][e % 4]);
            }
            TCONV_PRAGMA_UNROLL
            for (int g = 0; g < pairs; ++g)
            {
              odd[g][e / 4][e % 4] = fmaf(weight[pairs + 1 + g], difference, odd[g][e / 4][e % 4]);
            }
          }
        }
      }
      values = values == gram_scratch + (stages - 1) * stage_pitch ? gram_scratch : values + stage_pitch;
      first_n += samples;
      if (first_n >= batch)
      {
        first_n = 0;
        ++group;
        of_pair += depth * row_pitch;
      }
    }
    const auto store = [&](int g, const float (&re)[4], const float (&im)[4]) {
      float2* target = matrices + ((g * problem.tile_pairs() + pair) * bins + bin) * (tile * tile) + row * tile + column
                     + lane % 4 * 2;
      *reinterpret_cast<float4*>(target)            = make_float4(re[0], im[0], re[1], im[1]);
      *reinterpret_cast<float4*>(target + 8 * tile) = make_float4(re[2], im[2], re[3], im[3]);
    };
    if (chunk == 0)
    {
      store(0, even[0][0], even[0][1]);
    }
    TCONV_PRAGMA_UNROLL
    for (int g = 1; g <= pairs; ++g)
    {
      const int frequency = chunk * pairs + g;
      if (frequency < problem.kernel[1])
      {
        float sum[2][4];
        float difference[2][4];
        TCONV_PRAGMA_UNROLL
        for (int e = 0; e < 8; ++e)
        {
          sum[e / 4][e % 4]        = even[g][e / 4][e % 4] + odd[g - 1][e / 4][e % 4];
          difference[e / 4][e % 4] = even[g][e / 4][e % 4] - odd[g - 1][e / 4][e % 4];
        }
        store(frequency, sum[0], sum[1]);
        store(problem.grid[1] - frequency, difference[0], difference[1]);
      }
    }
  }
}

/// \p resampled [grid d][grid h][grid w][tile pair][tile][tile] from \p matrices: resampled along w and d. Frequencies along w count
/// for their conjugates, half where they are their own. A thread takes two elements of the matrices.
template <class Policy>
__global__ __launch_bounds__(Policy::resample_elements / 2 * Policy::resample_rows,
                             3) void resample_matrices(const __grid_constant__ spectral_problem problem,
                                                       const float2* matrices,
                                                       float2* resampled)
{
  constexpr int width   = Policy::resample_elements;
  constexpr int rows    = Policy::resample_rows;
  constexpr int threads = width / 2 * rows;
  constexpr int chunk   = Policy::grid_chunk;
  constexpr int stages  = Policy::resample_stages;
  extern __shared__ float4 resample_scratch[];
  const int half   = problem.half();
  const int parts  = half * (width / 2);                                          // of 16 bytes
  auto* weights_w  = reinterpret_cast<float*>(resample_scratch + stages * parts); // [grid w][half w]
  float* weights_d = weights_w + problem.grid[2] * half;                          // [size d][grid d]
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < problem.grid[2] * half; i += threads)
  {
    const int f     = i % half;
    const bool self = f == 0 || 2 * f == problem.size[2];
    weights_w[i]    = (self ? 0.5f : 1.0f)
                 * block::resampling_weight(i / half, f, problem.size[2], problem.grid[2], problem.kernel[2]);
  }
  for (int i = thread; i < problem.grid[0] * problem.size[0]; i += threads)
  {
    weights_d[i] = block::resampling_weight(
      i % problem.grid[0], i / problem.grid[0], problem.size[0], problem.grid[0], problem.kernel[0]);
  }
  runtime::grid_dependency_wait();

  const int element      = thread % (width / 2);
  const int row          = thread / (width / 2);
  const int64_t per_tile = problem.tile_elements() / 2; // of 16 bytes
  const int64_t pieces   = per_tile / (width / 2);
  const int64_t items    = problem.grid[1] * problem.tile_pairs() * pieces;
  const auto add         = [](float4& sum, float weight, const float4& v) {
    sum.x = fmaf(weight, v.x, sum.x);
    sum.y = fmaf(weight, v.y, sum.y);
    sum.z = fmaf(weight, v.z, sum.z);
    sum.w = fmaf(weight, v.w, sum.w);
  };
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x)
  {
    const int64_t piece = item % pieces;
    const int64_t pair  = item / pieces % problem.tile_pairs();
    const int64_t gh    = item / pieces / problem.tile_pairs();
    const float4* from  = reinterpret_cast<const float4*>(matrices)
                       + (gh * problem.tile_pairs() + pair) * problem.size[0] * half * per_tile + piece * (width / 2);
    for (int first_w = 0; first_w < problem.grid[2]; first_w += rows)
    {
      for (int first_d = 0; first_d < problem.grid[0]; first_d += chunk)
      {
        const int gw       = first_w + row;
        float4 sums[chunk] = {};
        const auto stage   = [&](int fd) {
          if (fd < problem.size[0])
          {
            float4* target = resample_scratch + fd % stages * parts;
            for (int f = row; f < half; f += rows)
            {
              block::copy_async_16(reinterpret_cast<float*>(target + f * (width / 2) + element),
                                   reinterpret_cast<const float*>(from + (fd * half + f) * per_tile + element));
            }
          }
          block::copy_async_commit();
        };
        __syncthreads();
        for (int fd = 0; fd < stages - 1; ++fd)
        {
          stage(fd);
        }
        for (int fd = 0; fd < problem.size[0]; ++fd)
        {
          block::copy_async_wait<stages - 2>();
          __syncthreads();
          stage(fd + stages - 1);
          const float4* line = resample_scratch + fd % stages * parts + element;
          if (gw < problem.grid[2])
          {
            const float* of_w = weights_w + gw * half;
            float4 sum        = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            TCONV_PRAGMA_UNROLL_4
            for (int f = 0; f < half; ++f)
            {
              add(sum, of_w[f], line[f * (width / 2)]);
            }
            const float* of_d = weights_d + fd * problem.grid[0] + first_d;
            TCONV_PRAGMA_UNROLL
            for (int g = 0; g < chunk; ++g)
            {
              add(sums[g], first_d + g < problem.grid[0] ? of_d[g] : 0.0f, sum);
            }
          }
        }
        TCONV_PRAGMA_UNROLL
        for (int g = 0; g < chunk; ++g)
        {
          if (gw < problem.grid[2] && first_d + g < problem.grid[0])
          {
            const int64_t place = (static_cast<int64_t>(first_d + g) * problem.grid[1] + gh) * problem.grid[2] + gw;
            reinterpret_cast<float4*>(
              resampled)[(place * problem.tile_pairs() + pair) * per_tile + piece * (width / 2) + element] = sums[g];
          }
        }
      }
    }
  }
}

/// \p spectra [grid d][grid h][half grid w][in channels][out channels]: the taps of each pair of channels, transformed on the small
/// grid, a block per input channel and tap_channels output channels.
template <class Policy, class In>
__global__ __launch_bounds__(Policy::threads) void transform_taps(const __grid_constant__ spectral_problem problem,
                                                                  const In* w,
                                                                  float2* spectra)
{
  extern __shared__ float2 tap_scratch[];
  const int channels = problem.tap_channels;
  const int half     = problem.half_grid();
  const int kd       = problem.kernel[0];
  const int kh       = problem.kernel[1];
  const int kw       = problem.kernel[2];
  const int taps     = kd * kh * kw;
  float2* roots[3];
  roots[0]         = tap_scratch;
  roots[1]         = roots[0] + problem.grid[0];
  roots[2]         = roots[1] + problem.grid[1];
  float2* lines    = roots[2] + problem.grid[2];        // [tap d][tap h][half w][channel]
  float2* rows     = lines + kd * kh * half * channels; // [tap d][grid h][half w][channel]
  auto* values     = reinterpret_cast<float*>(rows + kd * problem.grid[1] * half * channels); // [tap][channel]
  const int thread = static_cast<int>(threadIdx.x);
  for (int a = 0; a < 3; ++a)
  {
    for (int i = thread; i < problem.grid[a]; i += Policy::threads)
    {
      roots[a][i] = block::unit_root(i, problem.grid[a]);
    }
  }
  runtime::grid_dependency_wait();

  // store(f, sum over t of load(t) conj(root^(f t))) for all f of an axis, or those up to sign: frequencies f and -f together.
  const auto transform = [](auto load, auto store, int count, int size, bool upper, const float2* root) {
    for (int f = 0; f <= size / 2; ++f)
    {
      float2 cosines = make_float2(0.0f, 0.0f);
      float2 sines   = make_float2(0.0f, 0.0f);
      int turns      = 0;
      for (int t = 0; t < count; ++t)
      {
        const float2 value = load(t);
        const float2 z     = root[turns];
        cosines.x          = fmaf(value.x, z.x, cosines.x);
        cosines.y          = fmaf(value.y, z.x, cosines.y);
        sines.x            = fmaf(value.x, z.y, sines.x);
        sines.y            = fmaf(value.y, z.y, sines.y);
        turns += f;
        turns -= turns >= size ? size : 0;
      }
      store(f, block::forward_frequency(cosines, sines));
      if (upper && f > 0)
      {
        store(size - f, block::backward_frequency(cosines, sines));
      }
    }
  };
  const int64_t tiles = ceil_div(problem.out_channels, channels);
  for (int64_t item = blockIdx.x; item < problem.in_channels * tiles; item += gridDim.x)
  {
    const int64_t ci    = item / tiles;
    const int64_t first = item % tiles * channels;
    __syncthreads();
    for (int i = thread; i < channels * taps; i += Policy::threads)
    {
      const int c                     = i / taps;
      values[i % taps * channels + c] = first + c < problem.out_channels
                                        ? to_float(w[(ci * problem.out_channels + first) * taps + i])
                                        : 0.0f;
    }
    __syncthreads();
    for (int i = thread; i < kd * kh * channels; i += Policy::threads)
    {
      const int c    = i % channels;
      const int line = i / channels;
      transform([&](int t) { return make_float2(values[(line * kw + t) * channels + c], 0.0f); },
                [&](int f, float2 v) { lines[(line * half + f) * channels + c] = v; },
                kw,
                problem.grid[2],
                false,
                roots[2]);
    }
    __syncthreads();
    const int line_width = half * channels;
    for (int i = thread; i < kd * line_width; i += Policy::threads)
    {
      const int rest = i % line_width;
      const int d    = i / line_width;
      transform([&](int t) { return lines[(d * kh + t) * line_width + rest]; },
                [&](int f, float2 v) { rows[(d * problem.grid[1] + f) * line_width + rest] = v; },
                kh,
                problem.grid[1],
                true,
                roots[1]);
    }
    __syncthreads();
    const int plane = problem.grid[1] * line_width;
    for (int i = thread; i < plane; i += Policy::threads)
    {
      const int c     = i % channels;
      const int place = i / channels;
      if (first + c < problem.out_channels)
      {
        float2* target     = spectra + (place * problem.in_channels + ci) * problem.out_channels + first + c;
        const int64_t step = static_cast<int64_t>(plane / channels) * problem.in_channels * problem.out_channels;
        transform([&](int t) { return rows[t * plane + i]; },
                  [&](int f, float2 v) { target[f * step] = v; },
                  kd,
                  problem.grid[0],
                  true,
                  roots[0]);
      }
    }
  }
}

/// \p squares [out channels][grid frequencies]: the quadratic form of each output channel at each frequency of the small grid, weighted, so
/// that their sum is the sum of squares around the samples' means. A block takes one frequency and form_channels output channels.
template <class Policy>
__global__ __launch_bounds__(Policy::threads, 3) void evaluate_form(const __grid_constant__ spectral_problem problem,
                                                                    const float2* resampled,
                                                                    const float2* tap_spectra,
                                                                    double* squares)
{
  constexpr int tile  = Policy::tile;
  constexpr int width = Policy::form_channels;
  static_assert(Policy::threads == tile / 2 * (width / 4), "tconv: a thread holds 2 x 4 elements");
  __shared__ alignas(16) float2 matrix[tile][tile + 2]; // [j][i]
  __shared__ alignas(16) float2 taps[tile][width];      // [j][co]
  __shared__ float partial[tile / 2][width];
  runtime::grid_dependency_wait();

  const int thread          = static_cast<int>(threadIdx.x);
  const int row             = thread / (width / 4) * 2;
  const int column          = thread % (width / 4) * 2; // and its neighbour, and both again half a tile on
  const int64_t tiles       = ceil_div(problem.out_channels, width);
  const int64_t frequencies = problem.grid_frequencies();
  const int half            = problem.half_grid();
  for (int64_t item = blockIdx.x; item < frequencies * tiles; item += gridDim.x)
  {
    const int64_t number          = item % frequencies;
    const int64_t first           = item / frequencies * width;
    const block::grid_frequency f = block::grid_frequency::of(problem, number);
    const int64_t place           = (static_cast<int64_t>(f.d) * problem.grid[1] + f.h) * half + f.w;
    const auto matrices           = [&](int d, int h, int w) {
      return ((static_cast<int64_t>(d) * problem.grid[1] + h) * problem.grid[2] + w) * problem.tile_pairs()
           * problem.tile_elements();
    };
    const float2* here     = resampled + matrices(f.d, f.h, f.w);
    const float2* opposite = resampled
                           + matrices((problem.grid[0] - f.d) % problem.grid[0],
                                      (problem.grid[1] - f.h) % problem.grid[1],
                                      (problem.grid[2] - f.w) % problem.grid[2]);
    const float2* spectra = tap_spectra + place * problem.in_channels * problem.out_channels + first;
    const auto tap        = [&](int64_t c, int co) {
      return c < problem.in_channels && first + co < problem.out_channels ? spectra[c * problem.out_channels + co]
                                                                                 : make_float2(0.0f, 0.0f);
    };
    float total[4] = {};
    for (int64_t i = 0; i < problem.channel_tiles(); ++i)
    {
      float2 products[2][4] = {};
      for (int64_t j = i; j < problem.channel_tiles(); ++j)
      {
        const int64_t from = block::tile_pair{i, j}.number(problem.channel_tiles()) * problem.tile_elements();
        // Tiles above the diagonal stand for their transposes.
        const float weight = i == j ? 1.0f : 2.0f;
        __syncthreads();
        for (int e = thread; e < tile * tile; e += Policy::threads)
        {
          const float2 a             = here[from + e];
          const float2 b             = opposite[from + e];
          matrix[e % tile][e / tile] = make_float2(weight * (a.x + b.x), weight * (a.y - b.y));
        }
        for (int e = thread; e < tile * width; e += Policy::threads)
        {
          taps[e / width][e % width] = tap(j * tile + e / width, e % width);
        }
        __syncthreads();
        TCONV_PRAGMA_UNROLL
        for (int k = 0; k < tile; ++k)
        {
          const float4 s   = *reinterpret_cast<const float4*>(&matrix[k][row]);
          const float4 w01 = *reinterpret_cast<const float4*>(&taps[k][column]);
          const float4 w23 = *reinterpret_cast<const float4*>(&taps[k][column + width / 2]);
          const auto add   = [](float2& sum, float ar, float ai, float br, float bi) {
            sum.x = fmaf(-ai, bi, fmaf(ar, br, sum.x));
            sum.y = fmaf(ai, br, fmaf(ar, bi, sum.y));
          };
          add(products[0][0], s.x, s.y, w01.x, w01.y);
          add(products[0][1], s.x, s.y, w01.z, w01.w);
          add(products[0][2], s.x, s.y, w23.x, w23.y);
          add(products[0][3], s.x, s.y, w23.z, w23.w);
          add(products[1][0], s.z, s.w, w01.x, w01.y);
          add(products[1][1], s.z, s.w, w01.z, w01.w);
          add(products[1][2], s.z, s.w, w23.x, w23.y);
          add(products[1][3], s.z, s.w, w23.z, w23.w);
        }
      }
      TCONV_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r)
      {
        TCONV_PRAGMA_UNROLL
        for (int q = 0; q < 4; ++q)
        {
          const float2 value = tap(i * tile + row + r, column + q / 2 * (width / 2) + q % 2);
          total[q] += fmaf(value.x, products[r][q].x, value.y * products[r][q].y);
        }
      }
    }
    TCONV_PRAGMA_UNROLL
    for (int q = 0; q < 4; ++q)
    {
      partial[row / 2][column + q / 2 * (width / 2) + q % 2] = total[q];
    }
    __syncthreads();
    if (thread < width && first + thread < problem.out_channels)
    {
      double sum = 0;
      for (int r = 0; r < tile / 2; ++r)
      {
        sum += static_cast<double>(partial[r][thread]);
      }
      // All but frequency 0 stand for their conjugates too.
      squares[(first + thread) * frequencies + number] = sum * (place == 0 ? 1.0 : 2.0)
                                                       / static_cast<double>(problem.grid_positions());
    }
    __syncthreads();
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
