// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policies of the spectral moments, and the rates that the choice between them and the convolution rests on.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// Extents (d, h, w) of a transform.
template <int D, int H, int W>
struct volume_size
{
  static constexpr int d = D; ///< planes
  static constexpr int h = H; ///< rows
  static constexpr int w = W; ///< columns
};

/// Volumes whose spectra have a kernel of their own, kernel::transform_volume, in builds for the very device if it has compute capability 9.0 or more (P2's: 81 us under ncu on an
/// H200, instead of 246 by tables of roots). Depths are even. Any other size is transformed by tables.
template <class... Sizes>
struct volume_size_list
{};
using volume_sizes = volume_size_list<volume_size<20, 36, 36>>; ///< all of them

/// Block shapes of kernel/spectral.cuh.
struct spectral_policy
{
  static constexpr int threads = 256;
  /// Shared memory of a block: two or three fit an sm_90 multiprocessor, one or two an sm_80's.
  static constexpr int shared_bytes = 112 * 1024;
  /// Threads of a block that transforms a volume, two of which a multiprocessor holds; one for each two rows of x.
  static constexpr int volume_threads = 320;
  /// Threads of a block that transforms planes.
  static constexpr int plane_threads     = 320;
  static constexpr int plane_frequencies = 5; ///< of a thread
  /// Channels whose planes a block transforms at a time, at most: 64 bytes of each frequency.
  static constexpr int plane_channels = 8;
  /// Channels of one side of a tile of the channel-by-channel matrices.
  static constexpr int tile = 32;
  /// Samples, and pairs of frequencies h and -h, whose spectra a stage of shared memory holds, and stages.
  static constexpr int samples     = 16;
  static constexpr int gram_pairs  = 2;
  static constexpr int gram_stages = 3;
  /// Pairs of frequencies of the small grid along h that a block accumulates, besides 0: k taps need k - 1.
  static constexpr int grid_pairs = 4;
  /// Weights of a pair of frequencies for them, in whole vectors.
  static constexpr int gram_weights = (2 * grid_pairs + 2 + 3) / 4 * 4;
  /// Frequencies of the small grid along d, and along w, that a thread resamples: 81 accumulators. Weights lie in whole
  /// vectors.
  static constexpr int grid_chunk       = 9;
  static constexpr int resample_weights = 12;
  /// Threads of a block that resamples, and values that each of them loads ahead.
  static constexpr int resample_threads = 64;
  static constexpr int resample_batch   = 10; ///< where weights are no constants
  /// Output channels of a block that evaluates the quadratic form.
  static constexpr int form_channels = 64;
  /// Pairs of channel tiles that it holds at a time: one under way. 37 KB each.
  static constexpr int form_stages = 2;
  /// Output channels whose taps a block transforms, at most.
  static constexpr int tap_channels = 16;
  /// Blocks of them on a multiprocessor, as registers go.
  static constexpr int tap_blocks = 5;
};

/// Multiply-adds and bytes of a millisecond of the spectral kernels, and what their launches and latencies cost.
/// Cautious: the rates are those of sizes without a kernel of their own (P2, which has one: 0.39 ms estimated, 0.27
/// measured on an H200).
inline constexpr double spectral_macs_per_ms  = 20.0e9;
inline constexpr double spectral_bytes_per_ms = 4.0e9;
inline constexpr double spectral_launch_ms    = 0.05;

} // namespace tuning

TCONV_NAMESPACE_END
