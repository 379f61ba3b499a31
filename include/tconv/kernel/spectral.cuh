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

#include "../block/fourier.cuh"
#include "../block/load_async.cuh"
#include "../block/mma.cuh"
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

/// K(g, f) of an axis, see above: sin(pi grid t) / (size sin(pi t)) with t = f / size - g / grid, as kernel = (grid +
/// 1) / 2.
TCONV_DEVICE float resampling_weight(int g, int f, int size, int grid)
{
  // t is a multiple of 1 / (size * grid), and counts up to sign and whole turns: angles are reduced as integers.
  const int period = size * grid;
  int step         = (f * grid - g * size + period) % period;
  step             = 2 * step > period ? period - step : step;
  if (step == 0)
  {
    return static_cast<float>(grid) / static_cast<float>(size);
  }
  int half_turns   = step % (2 * size); // of the numerator's sine, over size
  const bool below = half_turns > size;
  half_turns       = below ? 2 * size - half_turns : half_turns;
  half_turns       = 2 * half_turns > size ? size - half_turns : half_turns;
  const float sine = sinpif(static_cast<float>(half_turns) / static_cast<float>(size));
  return (below ? -sine : sine)
       / (static_cast<float>(size) * sinpif(static_cast<float>(step) / static_cast<float>(period)));
}

/// The same in parts that are even (cosines) and odd (sines) in both, by plain arithmetic: a constant where its
/// arguments are.
TCONV_DEVICE float2 constant_resampling_weight(int g, int f, int size, int grid)
{
  float2 sum = make_float2(1.0f, 0.0f);
  TCONV_PRAGMA_UNROLL
  for (int l = 1; l <= grid / 2; ++l)
  {
    const float2 a = constant_root(l * f % size, size);
    const float2 b = constant_root(l * g % grid, grid);
    sum.x += 2.0f * a.x * b.x;
    sum.y += 2.0f * a.y * b.y;
  }
  return make_float2(sum.x / static_cast<float>(size), sum.y / static_cast<float>(size));
}

/// result(g) = sum over f of K(g, f) values(f) for one axis, frequencies f and -f together.
template <int Size, int Grid>
TCONV_DEVICE void resample(const float (&values)[Size], float (&result)[Grid])
{
  float even[Grid / 2 + 1] = {};
  float odd[Grid / 2 + 1]  = {};
  TCONV_PRAGMA_UNROLL
  for (int f = 0; f <= Size / 2; ++f)
  {
    const int opposite     = (Size - f) % Size;
    const float sum        = opposite == f ? values[f] : values[f] + values[opposite];
    const float difference = values[f] - values[opposite];
    TCONV_PRAGMA_UNROLL
    for (int g = 0; g <= Grid / 2; ++g)
    {
      const float2 weight = constant_resampling_weight(g, f, Size, Grid);
      even[g]             = fmaf(weight.x, sum, even[g]);
      if (opposite != f && g > 0)
      {
        odd[g] = fmaf(weight.y, difference, odd[g]);
      }
    }
  }
  result[0] = even[0];
  TCONV_PRAGMA_UNROLL
  for (int g = 1; g <= Grid / 2; ++g)
  {
    result[g]        = even[g] + odd[g];
    result[Grid - g] = even[g] - odd[g];
  }
}

/// store(f, sum over t < count of load(t) conj(root^(f t))) for all f of an axis of the small grid, or those up to
/// sign: frequencies f and -f together. \p roots: exp(2 pi i t / (2 count - 1)).
template <class Load, class Store>
TCONV_DEVICE void transform_taps(Load load, Store store, int count, bool upper, const float2* roots)
{
  const int size = 2 * count - 1;
  for (int f = 0; f <= size / 2; ++f)
  {
    float2 cosines = make_float2(0.0f, 0.0f);
    float2 sines   = make_float2(0.0f, 0.0f);
    int turns      = 0;
    for (int t = 0; t < count; ++t)
    {
      const float2 value = load(t);
      const float2 z     = roots[turns];
      cosines.x          = fmaf(value.x, z.x, cosines.x);
      cosines.y          = fmaf(value.y, z.x, cosines.y);
      sines.x            = fmaf(value.x, z.y, sines.x);
      sines.y            = fmaf(value.y, z.y, sines.y);
      turns += f;
      turns -= turns >= size ? size : 0;
    }
    store(f, forward_frequency(cosines, sines));
    if (upper && f > 0)
    {
      store(size - f, backward_frequency(cosines, sines));
    }
  }
}

/// The same where the roots are constants.
template <int Count, class Load, class Store>
TCONV_DEVICE void transform_few_taps(Load load, Store store, bool upper)
{
  constexpr int size = 2 * Count - 1;
  float2 values[Count];
  TCONV_PRAGMA_UNROLL
  for (int t = 0; t < Count; ++t)
  {
    values[t] = load(t);
  }
  TCONV_PRAGMA_UNROLL
  for (int f = 0; f <= size / 2; ++f)
  {
    float2 cosines = values[0];
    float2 sines   = make_float2(0.0f, 0.0f);
    TCONV_PRAGMA_UNROLL
    for (int t = 1; t < Count; ++t)
    {
      const float2 z = constant_root(f * t % size, size);
      cosines        = make_float2(fmaf(values[t].x, z.x, cosines.x), fmaf(values[t].y, z.x, cosines.y));
      sines          = make_float2(fmaf(values[t].x, z.y, sines.x), fmaf(values[t].y, z.y, sines.y));
    }
    store(f, forward_frequency(cosines, sines));
    if (upper && f > 0)
    {
      store(size - f, backward_frequency(cosines, sines));
    }
  }
}

/// The same of real values, for the frequencies up to sign.
template <int Count, class Load, class Store>
TCONV_DEVICE void transform_few_real_taps(Load load, Store store)
{
  constexpr int size = 2 * Count - 1;
  float values[Count];
  TCONV_PRAGMA_UNROLL
  for (int t = 0; t < Count; ++t)
  {
    values[t] = load(t);
  }
  TCONV_PRAGMA_UNROLL
  for (int f = 0; f <= size / 2; ++f)
  {
    float cosines = values[0];
    float sines   = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int t = 1; t < Count; ++t)
    {
      const float2 z = constant_root(f * t % size, size);
      cosines        = fmaf(values[t], z.x, cosines);
      sines          = fmaf(values[t], z.y, sines);
    }
    store(f, make_float2(cosines, -sines));
  }
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

/// What a block of kernel::evaluate_form holds of a pair of channel tiles: S' at a frequency and at its opposite, and taps.
/// Fragments are 16 bytes of two rows, or 8 bytes of four: pitches keep their banks apart.
template <class Policy>
struct form_stage
{
  static constexpr int matrix_pitch = Policy::tile + 8;
  static constexpr int taps_pitch   = Policy::form_channels + 4;
  float2 here[Policy::tile][matrix_pitch]; // [i][j]
  float2 opposite[Policy::tile][matrix_pitch];
  float2 taps[Policy::tile][taps_pitch]; // [j][co]
};

/// Frequencies of the small grid up to sign, numbered.
struct grid_frequency
{
  int d;
  int h;
  int w;

  TCONV_DEVICE static grid_frequency of(const spectral_problem& problem, int number)
  {
    // Those with w > 0; then those of the plane w = 0 up to sign: d = 0 with half of h, half of d > 0 with all h.
    const int half  = problem.half_grid() - 1;
    const int above = problem.grid[0] * problem.grid[1] * half;
    if (number < above)
    {
      const int row = number / half;
      return {row / problem.grid[1], row % problem.grid[1], number % half + 1};
    }
    const int rest = number - above - (problem.grid[1] + 1) / 2;
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

/// \p spectra (see spectral_problem::spectra) from \p planes (see transform_planes): the transform along d. A warp
/// takes 32 channels of one line of two samples. Persistent.
template <class Policy>
__global__ __launch_bounds__(Policy::threads) void transform_depth(const __grid_constant__ spectral_problem problem,
                                                                   const float2* planes,
                                                                   uint4* spectra)
{
  constexpr int held   = 4;
  constexpr int warps  = Policy::threads / 32;
  constexpr int places = 2 * Policy::gram_pairs; // of a group
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
  const auto sample_pairs    = static_cast<int>(problem.sample_pairs());
  const int half             = problem.half();
  const int64_t padded       = problem.padded_channels();
  const int64_t line_step    = depth * padded;
  const int64_t frequency_fd = half * problem.row_groups() * problem.group_spectra();
  const int all_places       = problem.row_groups() * places;
  const int items            = all_places * half * sample_pairs * tiles;
  for (int item = static_cast<int>(blockIdx.x) * warps + warp; item < items;
       item += static_cast<int>(gridDim.x) * warps)
  {
    const int c      = item % tiles * 32 + lane;
    const int n_pair = item / tiles % sample_pairs;
    const int fw     = item / tiles / sample_pairs % half;
    const int place  = item / tiles / sample_pairs / half;
    const int pair   = place / 2;
    // A pair that does not exist counts for nothing; it is some other one. So is a sample, but with zeros.
    const int existing    = pair < problem.row_pairs() ? pair : 0;
    const int fh          = place % 2 == 0 ? existing : problem.opposite_row(existing);
    const int n           = 2 * n_pair;
    const bool two        = n + 1 < batch;
    const float2* at      = planes + ((static_cast<int64_t>(fh) * half + fw) * batch + n) * line_step + c;
    const float2* next_at = at + (two ? line_step : 0);
    const int64_t group   = static_cast<int64_t>(fw) * problem.row_groups() + place / places;
    uint4* target         = spectra + group * problem.group_spectra() + problem.spectrum_place(n_pair, c)
                  + (place % places ^ spectral_problem::spectrum_swizzle(n_pair));
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
        const float2 values[2] = {at[d * padded], next_at[d * padded]};
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
      const auto store = [&](int fd, float2 first, float2 second) {
        target[fd * frequency_fd] = block::join_samples(
          block::split_complex::of(first),
          two ? block::split_complex::of(second) : block::split_complex{0u, 0u},
          spectral_problem::swapped_parts(c));
      };
      TCONV_PRAGMA_UNROLL
      for (int q = 0; q < held; ++q)
      {
        if (f + q < pairs)
        {
          store(f + q,
                block::forward_frequency(cosines[q][0], sines[q][0]),
                block::forward_frequency(cosines[q][1], sines[q][1]));
          if (f + q != 0 && 2 * (f + q) != problem.size[0] && !problem.own_conjugate(fw))
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

/// \p matrices [grid h][tile pair][size d][half w][tile][tile]: S(f) without bin 0, resampled along h, for the bins (f_d, f_w) that are
/// formed. Those that are their own opposites count half; spectra of whole volumes are doubled. S is Hermitian: of tiles on the
/// diagonal the lower left quarter is left out. Columns t and t + 4 of each eight are neighbours in memory.
///
/// A block accumulates the frequencies -+grid_pairs of a chunk of the small grid for one tile pair and one bin; a warp has 16 x 8
/// elements. Persistent.
///
/// Frequencies f and -f along h come together: with K(g, -f) = K(-g, f) the sum of their matrices counts for S'(g) +
/// S'(-g), their difference for S'(g) - S'(-g), and each needs half of the products.
template <class Policy>
__global__ __launch_bounds__(Policy::threads,
                             2) void accumulate_matrices(const __grid_constant__ spectral_problem problem,
                                                         const uint4* spectra,
                                                         float2* matrices)
{
  constexpr int tile    = Policy::tile;
  constexpr int samples = Policy::samples;
  constexpr int pairs   = Policy::grid_pairs;
  constexpr int stages  = Policy::gram_stages;
  constexpr int depth   = Policy::gram_pairs;
  static_assert(tile == 32 && samples == 16 && depth == 2 && Policy::threads == 256,
                "tconv: 2 x 4 warps have 16 x 8 elements each");
  constexpr int places      = 2 * depth;                 // of a channel's frequencies in a group
  constexpr int sample_step = tile * places;             // between pairs of samples
  constexpr int stage_tile  = samples / 2 * sample_step; // [pair of samples][channel][place]
  constexpr int stage_pitch = 2 * stage_tile;
  extern __shared__ uint4 gram_scratch[];
  uint4* const values = gram_scratch;
  // [pair of frequencies]: weights of sums for grid frequencies 0, 1, ..., then of differences for 1, 2, ...; of pair
  // 0, whose two frequencies are their own opposites: of the first for 0, 1, ..., then of the second.
  constexpr int row_pitch = Policy::gram_weights;
  auto* weights           = reinterpret_cast<float*>(values + stages * stage_pitch);
  const int thread        = static_cast<int>(threadIdx.x);
  const int size          = problem.size[1];
  const int count         = problem.row_pairs();
  const int groups        = problem.row_groups();
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
    const auto of     = [&](int f_h) { return block::resampling_weight(first + g, f_h, size, problem.grid[1]); };
    weights[i]        = none ? 0.0f : 0.5f * (of(f_one) + (f > 0 && odd ? -1.0f : 1.0f) * of(f_other));
  }
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  const int warp = thread / 32;
  const int lane = thread % 32;
  // Blocks of both halves of the grid share a multiprocessor; their warps that have nothing to do on the diagonal do not
  // share a scheduler.
  const bool swap         = 2 * blockIdx.x >= gridDim.x;
  const int row           = (swap ? 1 - warp % 2 : warp % 2) * 16 + lane / 4;
  const int column        = warp / 2 * 8;
  const int bins          = problem.bins();
  const int all_bins      = problem.size[0] * problem.half();
  const auto sample_pairs = static_cast<int>(problem.sample_pairs());
  const auto pairs_of     = static_cast<int>(problem.tile_pairs());
  const int items         = pairs_of * bins * chunks; // the plan sees to it that they are counted in 32 bits
  // This thread's fragments are pairs of samples lane % 4 and lane % 4 + 4 of channels row and row + 8, and of one component of
  // channels column + lane / 8 and column + 4 + lane / 8.
  const int swizzle = spectral_problem::spectrum_swizzle(lane % 4);
  const int first_a = (lane % 4 * sample_step + row * places) * 2 + (spectral_problem::swapped_parts(lane / 4) ? 1 : 0);
  const int first_b = (lane % 4 * sample_step + (column + lane / 8) * places) * 4
                    + (spectral_problem::swapped_parts(lane / 8) ? 2 : 0) + lane / 4 % 2;
  const int low_a = spectral_problem::swapped_parts(lane / 4) ? -1 : 1; // from the high part
  const int low_b = spectral_problem::swapped_parts(lane / 8) ? -2 : 2;
  // conj(a) b, re and im, of channels row, column + lane % 4; row, column + lane % 4 + 4; then of row + 8.
  const auto multiply = [low_a, low_b](const uint2* a, const unsigned* b, float(&sums)[2][4]) {
    block::component_columns of_b[2];
    TCONV_PRAGMA_UNROLL
    for (int r = 0; r < 2; ++r)
    {
      TCONV_PRAGMA_UNROLL
      for (int k = 0; k < 2; ++k)
      {
        of_b[r].high[k] = b[(r * places + k * sample_step) * 16];
        of_b[r].low[k]  = b[(r * places + k * sample_step) * 16 + low_b];
      }
    }
    TCONV_PRAGMA_UNROLL
    for (int q = 0; q < 2; ++q)
    {
      block::component_rows of_a;
      TCONV_PRAGMA_UNROLL
      for (int k = 0; k < 2; ++k)
      {
        of_a.high[k] = a[(2 * q * places + k * sample_step) * 8];
        of_a.low[k]  = a[(2 * q * places + k * sample_step) * 8 + low_a];
      }
      TCONV_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r)
      {
        float parts[4] = {};
        block::multiply_components(parts, of_a, of_b[r]);
        sums[0][2 * q + r] = parts[0] + parts[3];
        sums[1][2 * q + r] = parts[1] - parts[2];
      }
    }
  };
  // Tile pairs change places from round to round, so that multiprocessors get as many of the lighter ones on the diagonal.
  const int resident_bins = static_cast<int>(gridDim.x) / (2 * pairs_of);
  const int rotation      = resident_bins > 0 ? resident_bins : 1;
  struct place
  {
    int pair;
    int bin;
    int chunk;
    block::tile_pair at;
  };
  const auto place_of = [&](int item) {
    const int number = item / pairs_of % bins;
    const int pair   = (item % pairs_of + number / rotation) % pairs_of;
    return place{
      pair, problem.bin(number), item / pairs_of / bins, block::tile_pair::of(pair, problem.channel_tiles())};
  };
  // Copies run ahead of the products, on into the next item, so that memory is not idle while results are stored. They are of 16 bytes,
  // counted in 32 bits: the plan sees to it.
  constexpr int parts    = stage_tile;
  const auto tile_parts  = sample_pairs * sample_step;
  const auto group_parts = static_cast<int>(problem.group_spectra());
  int copied_item        = static_cast<int>(blockIdx.x);
  int copied_group       = 0; // of that item
  int copied_n           = 0; // the first pair of samples of the step that is copied next
  int next               = 0; // where it is
  int across             = 0; // to the second tile; 0 where it is the first
  const auto stage       = [&](int free_stage) {
    if (copied_item < items)
    {
      if (copied_group == 0 && copied_n == 0)
      {
        const place of = place_of(copied_item);
        next           = of.bin * groups * group_parts + static_cast<int>(of.at.i) * tile_parts;
        across         = static_cast<int>(of.at.j - of.at.i) * tile_parts;
      }
      uint4* target     = values + free_stage * stage_pitch + thread;
      const uint4* from = spectra + next + thread;
      const int limit   = (sample_pairs - copied_n) * sample_step - thread;
      const auto copy   = [&](uint4* to, const uint4* of) {
        // Bounds cost more than the copies.
        if (sample_pairs - copied_n >= samples / 2)
        {
          TCONV_PRAGMA_UNROLL
          for (int i = 0; i < parts; i += Policy::threads)
          {
            block::copy_async_16(reinterpret_cast<float*>(to + i), reinterpret_cast<const float*>(of + i));
          }
        }
        else
        {
          TCONV_PRAGMA_UNROLL
          for (int i = 0; i < parts; i += Policy::threads)
          {
            block::copy_async_16_or_zero(
              reinterpret_cast<float*>(to + i), reinterpret_cast<const float*>(of + i), i < limit);
          }
        }
      };
      copy(target, from);
      if (across != 0)
      {
        copy(target + parts, from + across);
      }
      copied_n += samples / 2;
      next += parts;
      if (copied_n >= sample_pairs)
      {
        next += group_parts - copied_n * sample_step;
        copied_n = 0;
        if (++copied_group == groups)
        {
          copied_group = 0;
          copied_item += static_cast<int>(gridDim.x);
        }
      }
    }
    block::copy_async_commit();
  };
  for (int ahead = 0; ahead < stages - 1; ++ahead)
  {
    stage(ahead);
  }
  int read_stage = 0;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x))
  {
    const place of              = place_of(item);
    const int bin               = of.bin;
    const bool two_tiles        = of.at.i != of.at.j;
    const bool idle             = !two_tiles && row >= 16 && column < 16;
    const int to_b              = two_tiles ? stage_tile : 0;
    float even[pairs + 1][2][4] = {}; // S'(g) + S'(-g) for the chunk's g, and 0; re and im
    float odd[pairs][2][4]      = {}; // S'(g) - S'(-g), likewise halved
    const float* of_pair        = weights + of.chunk * groups * depth * row_pitch;
    int group                   = 0;
    int first_n                 = 0; // pair of samples
    while (group < groups)
    {
      block::copy_async_wait<stages - 2>();
      __syncthreads();
      stage(read_stage == 0 ? stages - 1 : read_stage - 1);
      const uint4* stage_at = values + read_stage * stage_pitch;
      read_stage            = read_stage + 1 == stages ? 0 : read_stage + 1;
#pragma unroll 1
      for (int p = 0; p < depth && !idle; ++p)
      {
        // Matrices of both frequencies, re and im.
        float here[2][4];
        float opposite[2][4];
        const auto* of_a = reinterpret_cast<const uint2*>(stage_at) + first_a;
        const auto* of_b = reinterpret_cast<const unsigned*>(stage_at + to_b) + first_b;
        multiply(of_a + 2 * (2 * p ^ swizzle), of_b + 4 * (2 * p ^ swizzle), here);
        multiply(of_a + 2 * ((2 * p + 1) ^ swizzle), of_b + 4 * ((2 * p + 1) ^ swizzle), opposite);
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
      first_n += samples / 2;
      if (first_n >= sample_pairs)
      {
        first_n = 0;
        ++group;
        of_pair += depth * row_pitch;
      }
    }
    if (idle)
    {
      continue;
    }
    const int f_d     = bin / problem.half();
    const bool halved = problem.own_conjugate(bin % problem.half()) && (f_d == 0 || 2 * f_d == problem.size[0]);
    const float scale = (halved ? 0.5f : 1.0f) * (problem.whole_volumes ? 0.25f : 1.0f);
    const auto store  = [&](int g, const float(&re)[4], const float(&im)[4]) {
      float2* target = matrices + ((g * problem.tile_pairs() + of.pair) * all_bins + bin) * (tile * tile) + row * tile
                     + column + lane % 4 * 2;
      *reinterpret_cast<float4*>(target) = make_float4(scale * re[0], scale * im[0], scale * re[1], scale * im[1]);
      *reinterpret_cast<float4*>(target + 8 * tile) = make_float4(
        scale * re[2], scale * im[2], scale * re[3], scale * im[3]);
    };
    if (of.chunk == 0)
    {
      store(0, even[0][0], even[0][1]);
    }
    TCONV_PRAGMA_UNROLL
    for (int g = 1; g <= pairs; ++g)
    {
      const int frequency = of.chunk * pairs + g;
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

/// \p resampled [grid d][grid h][grid w][tile pair][tile][tile, as in matrices] from \p matrices (see accumulate_matrices): resampled
/// along d and w. A thread takes one number of the matrices, and grid_chunk^2 frequencies.
///
/// \p Size: one of tuning::volume_sizes, where weights along d are constants (grid_chunk grid frequencies), or of
/// zeros.
template <class Policy, class Size>
__global__ __launch_bounds__(Policy::resample_threads, 512 / Policy::resample_threads) void resample_matrices(
  const __grid_constant__ spectral_problem problem, const float* matrices, float* resampled)
{
  constexpr int threads = Policy::resample_threads;
  constexpr int chunk   = Policy::grid_chunk;
  constexpr bool known  = Size::d > 0;
  constexpr int batch   = known ? Size::d : Policy::resample_batch;
  constexpr int pitch   = Policy::resample_weights;
  constexpr int stages  = Policy::resample_stages;
  constexpr int row     = 32 / 4; // copies of a warp's numbers
  static_assert(batch % (32 / row) == 0, "tconv: each lane of a warp copies as many vectors of a stage");
  extern __shared__ float4 resample_scratch[];
  const int half     = known ? Size::w / 2 + 1 : problem.half();
  const int size     = known ? Size::d : problem.size[0];
  const int batches  = (size + batch - 1) / batch;
  const int chunks_w = (problem.grid[2] + chunk - 1) / chunk;
  const int chunks_d = known ? 1 : (problem.grid[0] + chunk - 1) / chunk;
  auto* const of_w   = reinterpret_cast<float*>(resample_scratch); // [chunk][half w][grid w]
  float* const of_d  = of_w + chunks_w * half * pitch;             // [chunk][size d, in whole batches][grid d]
  const int thread   = static_cast<int>(threadIdx.x);
  const int lane     = thread % 32;
  // Values of each warp: [stage][size d, or a part of it][number].
  float* const staged  = of_d + (known ? 0 : chunks_d * batches * batch * pitch) + (thread - lane) * stages * batch;
  const auto set_table = [&](float* table, int axis, int chunks, int frequencies, auto weight) {
    for (int i = thread; i < chunks * frequencies * pitch; i += threads)
    {
      const int f = i / pitch % frequencies;
      const int g = i / pitch / frequencies * chunk + i % pitch;
      table[i]    = i % pitch < chunk && g < problem.grid[axis]
                    ? weight(f) * block::resampling_weight(g, f, problem.size[axis], problem.grid[axis])
                    : 0.0f;
    }
  };
  set_table(of_w, 2, chunks_w, half, [](int) { return 1.0f; });
  if constexpr (!known)
  {
    set_table(of_d, 0, chunks_d, batches * batch, [&](int f) { return f < size ? 1.0f : 0.0f; });
  }
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  __syncthreads();

  constexpr int64_t numbers = 2 * spectral_problem::tile_elements();
  constexpr int64_t pieces  = numbers / threads;
  const int64_t piece       = blockIdx.x % pieces;
  const int64_t pair        = blockIdx.x / pieces % problem.tile_pairs();
  const int64_t gh          = blockIdx.x / pieces / problem.tile_pairs();
  const int64_t step_d      = half * numbers;
  // Of tiles on the diagonal the lower left quarter is left out.
  const block::tile_pair at = block::tile_pair::of(pair, problem.channel_tiles());
  const auto element        = static_cast<int>(piece * threads + thread) / 2;
  if (at.i == at.j && element / Policy::tile >= Policy::tile / 2 && element % Policy::tile < Policy::tile / 2)
  {
    return;
  }
  // This lane copies numbers 4 (lane % row) and so on of every fourth row; all of a warp goes on, or none.
  const float* from = matrices + (gh * problem.tile_pairs() + pair) * size * step_d + piece * threads + (thread - lane)
                    + lane % row * 4 + lane / row * step_d;
  int copied = 0; // stages
  for (int chunk_w = 0; chunk_w < chunks_w; ++chunk_w)
  {
    for (int chunk_d = 0; chunk_d < chunks_d; ++chunk_d)
    {
      float sums[chunk][chunk] = {};
      float column[chunk]      = {}; // of one f_w
      const int steps          = half * batches;
      const int first          = copied;
      int next_w               = 0;
      int next_d               = 0;
      const auto stage         = [&] {
        if (copied < first + steps)
        {
          float* target   = staged + copied % stages * (32 * batch) + 4 * lane;
          const bool own  = problem.own_conjugate(next_w);
          const int limit = (own ? size / 2 + 1 : size) - next_d - lane / row;
          const float* at = from + next_w * numbers + next_d * step_d;
          TCONV_PRAGMA_UNROLL
          for (int i = 0; i < batch; i += 32 / row)
          {
            const bool formed = i < limit;
            block::copy_async_16_or_zero(target + 32 * i, formed ? at : from, formed);
            at += 32 / row * step_d;
          }
          ++copied;
          next_d += batch;
          if (next_d >= size)
          {
            next_d = 0;
            ++next_w;
          }
        }
        block::copy_async_commit();
      };
      const float* weight_d = of_d + chunk_d * batches * batch * pitch;
      const float* weight_w = of_w + chunk_w * half * pitch;
      for (int step = 1; step < stages; ++step)
      {
        stage();
      }
      for (int step = 1; step <= steps; ++step)
      {
        block::copy_async_wait<stages - 2>();
        __syncwarp();
        stage();
        float values[batch];
        const float* at = staged + (first + step - 1) % stages * (32 * batch) + lane;
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < batch; ++i)
        {
          values[i] = at[32 * i];
        }
        if constexpr (known)
        {
          block::resample<Size::d, chunk>(values, column);
        }
        else
        {
          TCONV_PRAGMA_UNROLL
          for (int i = 0; i < batch; ++i)
          {
            TCONV_PRAGMA_UNROLL
            for (int g = 0; g < chunk; ++g)
            {
              column[g] = fmaf(weight_d[i * pitch + g], values[i], column[g]);
            }
          }
          weight_d += batch * pitch;
        }
        if (known || step % batches == 0)
        {
          weight_d = of_d + chunk_d * batches * batch * pitch;
          TCONV_PRAGMA_UNROLL
          for (int d = 0; d < chunk; ++d)
          {
            TCONV_PRAGMA_UNROLL
            for (int w = 0; w < chunk; ++w)
            {
              sums[d][w] = fmaf(weight_w[w], column[d], sums[d][w]);
            }
            column[d] = 0.0f;
          }
          weight_w += pitch;
        }
      }
      const int64_t place_step = problem.tile_pairs() * numbers;
      TCONV_PRAGMA_UNROLL
      for (int d = 0; d < chunk; ++d)
      {
        const int gd = chunk_d * chunk + d;
        float* to    = resampled + pair * numbers + piece * threads + thread
                  + ((static_cast<int64_t>(gd) * problem.grid[1] + gh) * problem.grid[2] + chunk_w * chunk)
                      * place_step;
        TCONV_PRAGMA_UNROLL
        for (int w = 0; w < chunk; ++w)
        {
          if (gd < problem.grid[0] && chunk_w * chunk + w < problem.grid[2])
          {
            *to = sums[d][w];
          }
          to += place_step;
        }
      }
    }
  }
}

/// \p spectra [grid d][grid h][half grid w][in channels][out channels, see tap_pitch]: the taps of each pair of channels, transformed on
/// the small grid, a block per input channel and tap_channels output channels. \p w_sums [in channels][out channels]: their sums, in
/// fp64; nothing where null. Does not wait for its predecessor, of which it needs nothing, before it ends.
template <class Policy, class In>
__global__ __launch_bounds__(Policy::threads, Policy::tap_blocks) void transform_taps(
  const __grid_constant__ spectral_problem problem, const In* w, float2* spectra, double* w_sums)
{
  extern __shared__ float2 tap_scratch[];
  __shared__ double shares[Policy::threads];
  const int channels = problem.tap_channels;
  const int bits     = 31 - __clz(channels);
  const int pitch    = channels | 1; // lanes that store neighbouring taps meet different banks
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
  auto* values     = reinterpret_cast<float*>(rows + kd * problem.grid[1] * half * channels); // [tap][channel], padded
  const int thread = static_cast<int>(threadIdx.x);
  for (int a = 0; a < 3; ++a)
  {
    for (int i = thread; i < problem.grid[a]; i += Policy::threads)
    {
      roots[a][i] = block::unit_root(i, problem.grid[a]);
    }
  }
  runtime::grid_dependency_release();

  const auto transform = [](auto load, auto store, int count, bool upper, const float2* root) {
    switch (count)
    {
      case 3: return block::transform_few_taps<3>(load, store, upper);
      case 5: return block::transform_few_taps<5>(load, store, upper);
      default: return block::transform_taps(load, store, count, upper, root);
    }
  };
  const int step_c    = Policy::threads / taps;
  const int step_t    = Policy::threads % taps;
  const int64_t tiles = ceil_div(problem.out_channels, channels);
  for (int64_t item = blockIdx.x; item < problem.in_channels * tiles; item += gridDim.x)
  {
    const int64_t ci    = item / tiles;
    const int64_t first = item % tiles * channels;
    __syncthreads();
    const In* rows_of_w = w + (ci * problem.out_channels + first) * taps;
    const int real      = static_cast<int>(problem.out_channels - first < channels ? problem.out_channels - first
                                                                                   : channels);
    int c               = thread / taps;
    int t               = thread % taps;
    for (int i = thread; i < channels * taps; i += Policy::threads)
    {
      values[t * pitch + c] = c < real ? to_float(rows_of_w[i]) : 0.0f;
      c += step_c;
      t += step_t;
      if (t >= taps)
      {
        t -= taps;
        ++c;
      }
    }
    __syncthreads();
    if (w_sums != nullptr)
    {
      double share = 0.0;
      for (int tap = thread >> bits; tap < taps; tap += Policy::threads >> bits)
      {
        share += static_cast<double>(values[tap * pitch + thread % channels]);
      }
      shares[thread] = share;
    }
    for (int i = thread; i < kd * kh * channels; i += Policy::threads)
    {
      const int c       = i & (channels - 1);
      const float* from = values + (i >> bits) * kw * pitch + c;
      float2* to        = lines + (i >> bits) * half * channels + c;
      const auto load   = [&](int t) { return from[t * pitch]; };
      const auto store  = [&](int f, float2 v) { to[f << bits] = v; };
      switch (kw)
      {
        case 3: block::transform_few_real_taps<3>(load, store); break;
        case 5: block::transform_few_real_taps<5>(load, store); break;
        default: block::transform_taps([&](int t) { return make_float2(load(t), 0.0f); }, store, kw, false, roots[2]);
      }
    }
    __syncthreads();
    if (w_sums != nullptr && thread < channels && first + thread < problem.out_channels)
    {
      double sum = 0.0;
      for (int i = thread; i < Policy::threads; i += channels)
      {
        sum += shares[i];
      }
      w_sums[ci * problem.out_channels + first + thread] = sum;
    }
    const int line_width = half * channels;
    for (int i = thread; i < kd * line_width; i += Policy::threads)
    {
      const int rest = i % line_width;
      const int d    = i / line_width;
      transform([&](int t) { return lines[(d * kh + t) * line_width + rest]; },
                [&](int f, float2 v) { rows[(d * problem.grid[1] + f) * line_width + rest] = v; },
                kh,
                true,
                roots[1]);
    }
    __syncthreads();
    const int plane = problem.grid[1] * line_width;
    for (int i = thread; i < plane; i += Policy::threads)
    {
      const int c     = i & (channels - 1);
      const int place = i >> bits;
      if (first + c < problem.tap_pitch())
      {
        float2* target     = spectra + (place * problem.in_channels + ci) * problem.tap_pitch() + first + c;
        const int64_t step = static_cast<int64_t>(plane >> bits) * problem.in_channels * problem.tap_pitch();
        transform([&](int t) { return rows[t * plane + i]; },
                  [&](int f, float2 v) { target[f * step] = v; },
                  kd,
                  true,
                  roots[0]);
      }
    }
  }
  // Kernels to come rely on this one having waited.
  runtime::grid_dependency_wait();
}

/// \p squares [out channels][grid frequencies]: the quadratic form of each output channel at each frequency of the small grid, weighted, so
/// that their sum is the sum of squares around the samples' means. A block takes one frequency and form_channels output
/// channels at a time, a warp 8 of them. Persistent.
///
/// S' is Hermitian: tiles above the diagonal count twice, and so do quarters of tiles on it.
template <class Policy>
__global__ __launch_bounds__(Policy::threads, 2) void evaluate_form(const __grid_constant__ spectral_problem problem,
                                                                    const float2* resampled,
                                                                    const float2* tap_spectra,
                                                                    double* squares)
{
  constexpr int tile    = Policy::tile;
  constexpr int width   = Policy::form_channels;
  constexpr int threads = Policy::threads;
  constexpr int stages  = Policy::form_stages;
  static_assert(threads == 32 * width / 8 && tile == 32, "tconv: a warp has 8 output channels");
  using stage_type = block::form_stage<Policy>;
  extern __shared__ float4 form_scratch[];
  auto* const staged = reinterpret_cast<stage_type*>(form_scratch);
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();

  const int thread       = static_cast<int>(threadIdx.x);
  const int lane         = thread % 32;
  const int column       = thread / 32 * 8;
  const auto out_tiles   = static_cast<int>(ceil_div(problem.out_channels, width));
  const auto frequencies = static_cast<int>(problem.grid_frequencies());
  const auto tiles       = static_cast<int>(problem.channel_tiles());
  const int items        = frequencies * out_tiles; // the plan sees to it that they are counted in 32 bits
  const auto tap_pitch   = static_cast<int>(problem.tap_pitch());
  const auto in_channels = static_cast<int>(problem.in_channels);
  // Each item takes tile pairs (i, j) in the order of i, and of falling j: tile i comes last, as its taps are needed again.
  struct step_type
  {
    int item;
    int i;
    int j;
    const float2* here; // the pair of tiles (i, i)
    const float2* opposite;
    const float2* taps; // of tile 0
    int first;          // output channel
  };
  const auto find_item = [&](step_type& step) {
    const block::grid_frequency f = block::grid_frequency::of(problem, step.item / out_tiles);
    const auto matrices           = [&](int d, int h, int w) {
      return resampled
           + ((static_cast<int64_t>(d) * problem.grid[1] + h) * problem.grid[2] + w) * problem.tile_pairs()
               * problem.tile_elements();
    };
    step.i        = 0;
    step.j        = tiles - 1;
    step.here     = matrices(f.d, f.h, f.w);
    step.opposite = matrices(
      f.d == 0 ? 0 : problem.grid[0] - f.d, f.h == 0 ? 0 : problem.grid[1] - f.h, f.w == 0 ? 0 : problem.grid[2] - f.w);
    step.first = step.item % out_tiles * width;
    step.taps  = tap_spectra
              + ((static_cast<int64_t>(f.d) * problem.grid[1] + f.h) * problem.half_grid() + f.w) * in_channels
                  * tap_pitch
              + step.first;
  };
  const auto advance = [&](step_type& step) {
    if (step.j > step.i)
    {
      --step.j;
      return;
    }
    const auto row = (tiles - step.i) * spectral_problem::tile_elements();
    step.here += row;
    step.opposite += row;
    step.j = tiles - 1;
    if (++step.i == tiles)
    {
      step.item += static_cast<int>(gridDim.x);
      if (step.item < items)
      {
        find_item(step);
      }
    }
  };
  const auto stage = [&](const step_type& step, stage_type& target) {
    if (step.item < items)
    {
      // Each thread has two neighbours of some rows.
      constexpr int matrix_rows = 2 * threads / tile; // at a time
      constexpr int taps_rows   = 2 * threads / width;
      const int matrix_row      = 2 * thread / tile;
      const int matrix_column   = 2 * thread % tile;
      const int taps_row        = 2 * thread / width;
      const int taps_column     = 2 * thread % width;
      const bool skipped        = step.i == step.j && matrix_column < tile / 2;
      const auto copy_matrix    = [&](const float2* from, float2* to) {
        from += (step.j - step.i) * spectral_problem::tile_elements() + 2 * thread;
        TCONV_PRAGMA_UNROLL
        for (int row = 0; row < tile; row += matrix_rows)
        {
          if (row < tile / 2 || !skipped)
          {
            block::copy_async_16(reinterpret_cast<float*>(to + row * stage_type::matrix_pitch),
                                 reinterpret_cast<const float*>(from + row * tile));
          }
        }
      };
      static_assert(matrix_rows == tile / 2, "tconv: a thread copies one row of each half of a tile");
      copy_matrix(step.here, &target.here[matrix_row][matrix_column]);
      copy_matrix(step.opposite, &target.opposite[matrix_row][matrix_column]);
      const bool column_exists = taps_column < tap_pitch - step.first;
      const int rows           = column_exists ? in_channels - step.j * tile - taps_row : 0;
      const float2* taps       = step.taps + static_cast<int64_t>(step.j * tile + taps_row) * tap_pitch + taps_column;
      float2* to               = &target.taps[taps_row][taps_column];
      TCONV_PRAGMA_UNROLL
      for (int row = 0; row < tile; row += taps_rows)
      {
        block::copy_async_16_or_zero(reinterpret_cast<float*>(to + row * stage_type::taps_pitch),
                                     reinterpret_cast<const float*>(row < rows ? taps + row * tap_pitch : tap_spectra),
                                     row < rows);
      }
    }
    block::copy_async_commit();
  };

  step_type next{static_cast<int>(blockIdx.x), 0, 0, nullptr, nullptr, nullptr, 0};
  find_item(next);
  int item = next.item; // of this step, and its tiles
  int i    = 0;
  int j    = tiles - 1;
  for (int s = 0; s < stages - 1; ++s)
  {
    stage(next, staged[s]);
    advance(next);
  }
  int staged_next         = stages - 1;
  int read_next           = 0;
  float products[2][2][4] = {}; // re, im; 16 rows each
  float total[2]          = {};
  while (item < items)
  {
    block::copy_async_wait<stages - 2>();
    __syncthreads();
    stage(next, staged[staged_next]);
    advance(next);
    staged_next              = staged_next + 1 == stages ? 0 : staged_next + 1;
    const stage_type& values = staged[read_next];
    read_next                = read_next + 1 == stages ? 0 : read_next + 1;
    const bool diagonal      = i == j;
    TCONV_PRAGMA_UNROLL
    for (int k_half = 0; k_half < 2; ++k_half)
    {
      float parts[2][2][4] = {};
      TCONV_PRAGMA_UNROLL
      for (int k = 16 * k_half; k < 16 * k_half + 16; k += 8)
      {
        // The instruction's summation index is 4 real parts, then their imaginary parts.
        block::split_float w_re[2];
        block::split_float w_im[2];
        TCONV_PRAGMA_UNROLL
        for (int r = 0; r < 2; ++r)
        {
          const float2 w = values.taps[k + 4 * r + lane % 4][column + lane / 4];
          w_re[r]        = block::split_float::of(w.x);
          w_im[r]        = block::split_float::of(w.y);
        }
        TCONV_PRAGMA_UNROLL
        for (int q = 0; q < 2; ++q)
        {
          if (q == 1 && k_half == 0 && diagonal)
          {
            continue;
          }
          // Columns k + lane % 4 and k + 4 + lane % 4 are neighbours in memory.
          float4 s[2];
          TCONV_PRAGMA_UNROLL
          for (int e = 0; e < 2; ++e)
          {
            const int row      = 16 * q + 8 * e + lane / 4;
            const float4 one   = *reinterpret_cast<const float4*>(&values.here[row][k + lane % 4 * 2]);
            const float4 other = *reinterpret_cast<const float4*>(&values.opposite[row][k + lane % 4 * 2]);
            s[e]               = make_float4(one.x + other.x, one.y - other.y, one.z + other.z, one.w - other.w);
          }
          TCONV_PRAGMA_UNROLL
          for (int r = 0; r < 2; ++r)
          {
            const block::split_float split[4] = {block::split_float::of(r == 0 ? s[0].x : s[0].z),
                                                 block::split_float::of(r == 0 ? s[1].x : s[1].z),
                                                 block::split_float::of(r == 0 ? s[0].y : s[0].w),
                                                 block::split_float::of(r == 0 ? s[1].y : s[1].w)};
            const unsigned high[4]            = {split[0].high, split[1].high, split[2].high, split[3].high};
            const unsigned low[4]             = {split[0].low, split[1].low, split[2].low, split[3].low};
            constexpr unsigned sign           = 0x80000000u;
            block::multiply_add_tf32(parts[0][q], low, w_re[r].high, w_im[r].high ^ sign);
            block::multiply_add_tf32(parts[1][q], low, w_im[r].high, w_re[r].high);
            block::multiply_add_tf32(parts[0][q], high, w_re[r].low, w_im[r].low ^ sign);
            block::multiply_add_tf32(parts[1][q], high, w_im[r].low, w_re[r].low);
            block::multiply_add_tf32(parts[0][q], high, w_re[r].high, w_im[r].high ^ sign);
            block::multiply_add_tf32(parts[1][q], high, w_im[r].high, w_re[r].high);
          }
        }
      }
      TCONV_PRAGMA_UNROLL
      for (int e = 0; e < 16; ++e)
      {
        // What is above the diagonal stands for its transpose too.
        const float weight                = !diagonal || (k_half == 1 && e / 4 % 2 == 0) ? 2.0f : 1.0f;
        products[e / 8][e / 4 % 2][e % 4] = fmaf(
          weight, parts[e / 8][e / 4 % 2][e % 4], products[e / 8][e / 4 % 2][e % 4]);
      }
    }
    if (diagonal)
    {
      TCONV_PRAGMA_UNROLL
      for (int e = 0; e < 8; ++e)
      {
        const float2 w = values.taps[e / 2 * 8 + lane / 4][column + lane % 4 * 2 + e % 2];
        total[e % 2] += fmaf(w.x, products[0][e / 4][e % 4], w.y * products[1][e / 4][e % 4]);
        products[0][e / 4][e % 4] = 0.0f;
        products[1][e / 4][e % 4] = 0.0f;
      }
      if (i == tiles - 1)
      {
        const int number = item / out_tiles;
        TCONV_PRAGMA_UNROLL
        for (int c = 0; c < 2; ++c)
        {
          // Over the rows of the fragments.
          auto sum = static_cast<double>(total[c]);
          TCONV_PRAGMA_UNROLL
          for (int step = 4; step < 32; step *= 2)
          {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
          }
          const int64_t channel = item % out_tiles * width + column + lane % 4 * 2 + c;
          if (lane < 4 && channel < problem.out_channels)
          {
            // All but frequency 0 stand for their conjugates too.
            const block::grid_frequency at          = block::grid_frequency::of(problem, number);
            squares[channel * frequencies + number] = sum * (at.d == 0 && at.h == 0 && at.w == 0 ? 1.0 : 2.0)
                                                    / static_cast<double>(problem.grid_positions());
          }
          total[c] = 0.0f;
        }
      }
    }
    if (j > i)
    {
      --j;
      continue;
    }
    j = tiles - 1;
    if (++i == tiles)
    {
      i = 0;
      item += static_cast<int>(gridDim.x);
    }
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
