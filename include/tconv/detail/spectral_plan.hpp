// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// How the second moments of a transposed convolution are computed from the spectrum of its input, and when that pays.

#include "../layout.hpp"
#include "../shape.hpp"
#include "../taps.hpp"
#include "../tuning/spectral.hpp"

#include <algorithm>

TCONV_NAMESPACE_BEGIN

/// Everything the spectral kernels need besides pointers. Axes are canonical (d, h, w); complex numbers are pairs of floats.
struct spectral_problem
{
  tensor_strides x;
  int64_t batch        = 0;
  int64_t in_channels  = 1;
  int64_t out_channels = 1;
  int in[3]            = {1, 1, 1};
  int kernel[3]        = {1, 1, 1};
  int size[3]          = {1, 1, 1}; ///< of the transform: the output's extents
  int grid[3]          = {1, 1, 1}; ///< of the resampled spectrum: 2 * kernel - 1
  bool whole_volumes   = false;     ///< one of tuning::volume_sizes
  int plane_channels   = 1;         ///< channels whose planes a block transforms at a time, a power of two
  int tap_channels     = 1;         ///< output channels whose taps a block transforms at a time, a power of two

  /// Frequencies along w that are not conjugates of others.
  TCONV_HOST_DEVICE constexpr int half() const { return size[2] / 2 + 1; }
  TCONV_HOST_DEVICE constexpr int half_grid() const { return (grid[2] + 1) / 2; }
  /// Frequencies along \p a up to sign.
  TCONV_HOST_DEVICE constexpr int pairs(int a) const { return size[a] / 2 + 1; }
  /// Pairs of frequencies h and -h; where the size is odd, the second of pair 0 does not count.
  TCONV_HOST_DEVICE constexpr int row_pairs() const { return (size[1] + 1) / 2; }
  TCONV_HOST_DEVICE constexpr int opposite_row(int pair) const { return pair == 0 ? size[1] / 2 : size[1] - pair; }
  /// Groups of pairs that are multiplied at a time.
  TCONV_HOST_DEVICE constexpr int row_groups() const
  {
    return (row_pairs() + tuning::spectral_policy::gram_pairs - 1) / tuning::spectral_policy::gram_pairs;
  }
  /// Chunks of grid frequencies along h that blocks accumulate: the first has frequency 0 besides its pairs.
  TCONV_HOST_DEVICE constexpr int grid_chunks() const
  {
    constexpr int held = tuning::spectral_policy::grid_pairs;
    return kernel[1] <= held + 1 ? 1 : (kernel[1] - 1 + held - 1) / held;
  }
  /// Input channels in whole tiles, and tiles.
  TCONV_HOST_DEVICE constexpr int64_t channel_tiles() const
  {
    return (in_channels + tuning::spectral_policy::tile - 1) / tuning::spectral_policy::tile;
  }
  TCONV_HOST_DEVICE constexpr int64_t padded_channels() const
  {
    return channel_tiles() * tuning::spectral_policy::tile;
  }
  /// Tiles on and above the diagonal of the channel-by-channel matrices.
  TCONV_HOST_DEVICE constexpr int64_t tile_pairs() const { return channel_tiles() * (channel_tiles() + 1) / 2; }
  TCONV_HOST_DEVICE static constexpr int64_t tile_elements()
  {
    return static_cast<int64_t>(tuning::spectral_policy::tile) * tuning::spectral_policy::tile;
  }
  /// Complex numbers of each intermediate.
  TCONV_HOST_DEVICE constexpr int64_t plane_spectra() const
  {
    return whole_volumes ? 0 : static_cast<int64_t>(size[1]) * half() * batch * in[0] * padded_channels();
  }
  /// Samples, two by two; the second of the last pair is zero where they are odd in number.
  TCONV_HOST_DEVICE constexpr int64_t sample_pairs() const { return (batch + 1) / 2; }
  /// Of the spectrum of x, in pairs of samples: [size d][half w][group][channel tile][sample pair][channel][pair of the
  /// group][h, -h], see block/split_complex.cuh.
  TCONV_HOST_DEVICE constexpr int64_t group_spectra() const
  {
    return sample_pairs() * padded_channels() * 2 * tuning::spectral_policy::gram_pairs;
  }
  TCONV_HOST_DEVICE constexpr int64_t spectra() const
  {
    return static_cast<int64_t>(size[0]) * half() * row_groups() * group_spectra();
  }
  /// Place of one channel of one pair of samples in those of a group.
  TCONV_HOST_DEVICE constexpr int64_t spectrum_place(int64_t sample_pair, int64_t channel) const
  {
    constexpr int tile = tuning::spectral_policy::tile;
    return ((channel / tile * sample_pairs() + sample_pair) * tile + channel % tile) * 2
         * tuning::spectral_policy::gram_pairs;
  }
  /// The four frequencies of a group are permuted by xor with this, so that threads that read the same one of four
  /// neighbouring pairs of samples meet different banks.
  TCONV_HOST_DEVICE static constexpr int spectrum_swizzle(int64_t sample_pair)
  {
    return static_cast<int>(sample_pair % 4);
  }
  /// Likewise high and low parts change places in every other pair of channels.
  TCONV_HOST_DEVICE static constexpr bool swapped_parts(int64_t channel) { return channel / 2 % 2 != 0; }
  /// Whether f_w is its own opposite, so that of frequencies (d, w) those of d > size / 2 are conjugates of others.
  TCONV_HOST_DEVICE constexpr bool own_conjugate(int f_w) const { return f_w == 0 || 2 * f_w == size[2]; }
  /// Frequencies (d, w) up to sign, which are formed.
  TCONV_HOST_DEVICE constexpr int bins() const
  {
    return size[0] * half() - (size[0] - 1 - size[0] / 2) * (size[2] % 2 == 0 ? 2 : 1);
  }
  /// f_d * half() + f_w of the one that is \p number-th.
  TCONV_HOST_DEVICE constexpr int bin(int number) const
  {
    const int whole = (size[0] / 2 + 1) * half();
    if (number < whole)
    {
      return number;
    }
    const int inner = half() - (size[2] % 2 == 0 ? 2 : 1);
    return whole + (number - whole) / inner * half() + (number - whole) % inner + 1;
  }
  TCONV_HOST_DEVICE constexpr int64_t row_matrices() const
  {
    return static_cast<int64_t>(grid[1]) * tile_pairs() * size[0] * half() * tile_elements();
  }
  TCONV_HOST_DEVICE constexpr int64_t grid_positions() const
  {
    return static_cast<int64_t>(grid[0]) * grid[1] * grid[2];
  }
  TCONV_HOST_DEVICE constexpr int64_t half_grid_positions() const
  {
    return static_cast<int64_t>(grid[0]) * grid[1] * half_grid();
  }
  /// Frequencies of the small grid up to sign.
  TCONV_HOST_DEVICE constexpr int64_t grid_frequencies() const { return (grid_positions() + 1) / 2; }
  TCONV_HOST_DEVICE constexpr int64_t matrices() const { return grid_positions() * tile_pairs() * tile_elements(); }
  /// Output channels of a row of the taps' spectra: whole vectors of two.
  TCONV_HOST_DEVICE constexpr int64_t tap_pitch() const { return (out_channels + 1) / 2 * 2; }
  TCONV_HOST_DEVICE constexpr int64_t tap_spectra() const { return half_grid_positions() * in_channels * tap_pitch(); }
};

namespace detail
{

/// Shared memory of kernel::transform_planes, in bytes; complex pitches as there.
struct plane_layout
{
  int row_pitch;       ///< floats between rows of x
  int frequency_pitch; ///< complex numbers between rows of frequencies along w
  int channel_pitch;   ///< complex numbers between channels of them
  int width;           ///< of x, in whole vectors
  int half;            ///< frequencies along w, and pairs of them along h, in whole groups of a thread
  int pairs;

  TCONV_HOST_DEVICE static constexpr plane_layout of(const spectral_problem& p)
  {
    // Vectors of rows of neighbouring lanes in different banks; channels of neighbouring lanes two complex numbers apart.
    const int quads     = (p.in[2] + 3) / 4;
    const int row       = 4 * (quads | 1);
    const int frequency = p.half() | 1;
    constexpr int held  = tuning::spectral_policy::plane_frequencies;
    return {row,
            frequency,
            (p.in[1] * frequency + 13) / 16 * 16 + 2,
            4 * quads,
            (p.half() + held - 1) / held * held,
            (p.pairs(1) + held - 1) / held * held};
  }
  TCONV_HOST_DEVICE constexpr int64_t bytes(const spectral_problem& p) const
  {
    const int64_t twiddles = static_cast<int64_t>(width) * half + (static_cast<int64_t>(p.in[1]) * pairs + 1) / 2 * 2;
    return 8 * (twiddles + static_cast<int64_t>(p.plane_channels) * channel_pitch)
         + 4 * static_cast<int64_t>(p.plane_channels) * p.in[1] * row_pitch;
  }
};

/// Pitches of kernel::transform_volume in shared memory: 16 bytes of neighbouring rows and lines lie in different
/// banks.
template <class Size>
struct volume_pitches
{
  static constexpr int row  = 4 * ((Size::w + 3) / 4 | 1); ///< of x, in floats
  static constexpr int line = 2 * ((Size::h + 1) / 2 | 1); ///< of frequencies along w, in complex numbers

  /// Shared memory in bytes.
  static constexpr int64_t bytes(const spectral_problem& p)
  {
    const int64_t rows = int64_t{4} * row * p.in[1];
    return p.in[0] * std::max(rows, int64_t{8} * line * p.half());
  }
};

/// \p of_size(tuning::volume_size<...>{}) where a kernel for the problem's sizes exists and its blocks can hold a
/// channel; whether it does.
template <class... Sizes, class OfSize>
constexpr bool with_volume_size(tuning::volume_size_list<Sizes...>, const spectral_problem& p, OfSize of_size)
{
  const auto fits = [&](auto size) {
    using candidate = decltype(size);
    return p.size[0] == candidate::d && p.size[1] == candidate::h && p.size[2] == candidate::w
        && (p.in[0] * p.in[1] + 1) / 2 <= tuning::spectral_policy::volume_threads
        && volume_pitches<candidate>::bytes(p) <= tuning::spectral_policy::shared_bytes;
  };
  return ((fits(Sizes{}) && (of_size(Sizes{}), true)) || ...);
}

/// Shared memory of kernel::transform_taps.
constexpr int64_t tap_bytes(const spectral_problem& p)
{
  const int64_t taps  = static_cast<int64_t>(p.kernel[0]) * p.kernel[1] * p.kernel[2];
  const int64_t lines = static_cast<int64_t>(p.kernel[0]) * p.kernel[1] * p.half_grid();
  const int64_t rows  = static_cast<int64_t>(p.kernel[0]) * p.grid[1] * p.half_grid();
  return 4 * taps * (p.tap_channels | 1) + int64_t{8} * p.tap_channels * (lines + rows)
       + int64_t{8} * (p.grid[0] + p.grid[1] + p.grid[2]);
}

/// Shared memory of kernel::transform_depth, accumulate_matrices and resample_matrices.
constexpr int64_t depth_bytes(const spectral_problem& p)
{
  return 8 * static_cast<int64_t>(p.in[0]) * p.pairs(0);
}
constexpr int64_t gram_bytes(const spectral_problem& p)
{
  using policy        = tuning::spectral_policy;
  const int64_t stage = int64_t{16} * policy::gram_pairs * 2 * policy::tile * policy::samples;
  return policy::gram_stages * stage
       + int64_t{4} * p.grid_chunks() * p.row_groups() * policy::gram_pairs * policy::gram_weights;
}
constexpr int64_t resample_bytes(const spectral_problem& p)
{
  using policy        = tuning::spectral_policy;
  const auto chunks   = [](int grid) { return ceil_div(grid, int64_t{policy::grid_chunk}); };
  const int64_t depth = ceil_div(p.size[0], int64_t{policy::resample_batch}) * policy::resample_batch;
  return int64_t{4} * policy::resample_weights * (chunks(p.grid[2]) * p.half() + chunks(p.grid[0]) * depth);
}

/// The plan, and whether there is one.
struct spectral_plan
{
  spectral_problem problem;
  /// Nothing is cropped, every axis has one phase, and what blocks hold fits their shared memory.
  bool possible = false;
  /// Estimates.
  double macs  = 0;
  double bytes = 0;

  double milliseconds() const
  {
    return macs / tuning::spectral_macs_per_ms + bytes / tuning::spectral_bytes_per_ms + tuning::spectral_launch_ms;
  }
};

/// Second moments of \p shape, everything else of which has been checked. \p clusters: the device has clusters of blocks, which
/// whole volumes need.
[[nodiscard]] inline spectral_plan
plan_spectral(const conv_transpose_shape<3>& shape, layout input_layout, bool clusters = true)
{
  using policy = tuning::spectral_policy;
  spectral_plan plan;
  spectral_problem& p = plan.problem;
  plan.possible       = shape.groups == 1;
  for (std::size_t a = 0; a < 3; ++a)
  {
    constexpr int64_t longest = 1024;
    plan.possible             = plan.possible && shape.stride[a] == 1 && shape.padding[a] == 0 && shape.dilation[a] == 1
                 && shape.output_padding[a] == 0 && shape.input[a] + shape.kernel[a] <= longest;
    if (!plan.possible)
    {
      return plan;
    }
    p.in[a]     = static_cast<int>(shape.input[a]);
    p.kernel[a] = static_cast<int>(shape.kernel[a]);
    p.size[a]   = p.in[a] + p.kernel[a] - 1;
    p.grid[a]   = 2 * p.kernel[a] - 1;
  }
  p.x           = tensor_strides::of(input_layout, shape.input_slice.total(shape.in_channels), shape.input_positions());
  p.batch       = shape.batch;
  p.in_channels = shape.in_channels;
  p.out_channels   = shape.out_channels;
  p.whole_volumes  = clusters && with_volume_size(tuning::volume_sizes{}, p, [](auto) {});
  p.plane_channels = policy::plane_channels;
  while (p.plane_channels > 1 && plane_layout::of(p).bytes(p) > policy::shared_bytes)
  {
    p.plane_channels /= 2;
  }
  p.tap_channels = policy::tap_channels;
  while (p.tap_channels > 1 && tap_bytes(p) > policy::shared_bytes)
  {
    p.tap_channels /= 2;
  }
  plan.possible =
    std::max({plane_layout::of(p).bytes(p), tap_bytes(p), depth_bytes(p), gram_bytes(p), resample_bytes(p)})
    <= policy::shared_bytes;
  // Kernels number lines and matrices with 32 bits.
  constexpr int64_t most = 0x7fffffff;
  plan.possible          = plan.possible && p.plane_spectra() / p.padded_channels() * p.channel_tiles() <= most
               && p.batch * p.in[0] * p.padded_channels() <= most && p.spectra() <= most
               && p.tile_pairs() * p.size[0] * p.half() * p.grid_chunks() <= most
               && p.grid_frequencies() * ceil_div(p.out_channels, policy::form_channels) <= most
               && p.tap_spectra() <= most;

  const auto count   = [](int64_t v) { return static_cast<double>(v); };
  const double rows  = count(p.batch) * count(p.padded_channels()) * p.in[0] * p.in[1] * p.in[2] * p.half() * 2;
  const double cols  = count(p.batch) * count(p.padded_channels()) * p.in[0] * p.in[1] * p.half() * p.size[1] * 2;
  const double depth = count(2 * p.spectra()) * p.in[0] * 2;
  // On tensor cores; the rate counts products of numbers, not of their parts.
  const double samples = count(ceil_div(p.batch, int64_t{policy::samples}) * policy::samples);
  const double gram    = count(p.size[0]) * p.half() * p.size[1]
                    * count(p.tile_pairs() * spectral_problem::tile_elements()) * p.grid_chunks()
                    * (samples + 2.0 * policy::grid_pairs);
  const double resample = count(p.row_matrices()) * p.grid[2] * 2 + count(p.matrices()) * p.size[0] * 2;
  const double form     = count(p.grid_frequencies()) * count(p.tile_pairs() * spectral_problem::tile_elements())
                    * count(p.out_channels) * 4;
  const double taps = count(p.tap_spectra()) * 4 * (p.kernel[0] + p.kernel[1]);
  plan.macs         = rows + cols + depth + gram + resample + form + taps;
  plan.bytes        = 8
             * (2 * count(p.plane_spectra()) + 6 * count(p.spectra()) + 2 * count(p.row_matrices())
                + 2 * count(p.matrices()) + 2 * count(p.tap_spectra()));
  return plan;
}

} // namespace detail

TCONV_NAMESPACE_END
