// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Policies of the gather engine: one thread computes channels_per_thread x (cells_per_thread * phases_per_thread) outputs.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// The register tile and launch bounds of one gather kernel.
template <int ChannelsPerThread, int PhasesPerThread, int Threads, int MinBlocks>
struct gather_policy
{
  /// Output channels a thread computes: 8 for dense problems, 4 for 2 to 4 channels (a group), 1 for depthwise.
  static constexpr int channels_per_thread = ChannelsPerThread;
  /// Phases along w that a thread computes together; 2 for stride 2, so that its outputs are contiguous in memory.
  static constexpr int phases_per_thread = PhasesPerThread;
  /// Cells along w per thread: neighbours share the input values that the taps slide over.
  static constexpr int cells_per_thread = 8;
  /// They lie in groups of neighbours half a tile row apart: the groups of neighbouring lanes are then neighbours too, and a
  /// warp's stores fill whole lines.
  static constexpr int cell_groups     = 2;
  static constexpr int cells_per_group = cells_per_thread / cell_groups;
  /// Outputs along w per thread.
  static constexpr int positions_per_thread = cells_per_thread * phases_per_thread;
  /// Lanes that hold a row in the instance of channel functors that knows their number: 64 channels where threads hold 8.
  static constexpr int common_lanes = 8;
  static constexpr int threads      = Threads;
  static constexpr int min_blocks   = MinBlocks;

  /// The main loop's extra code, which pays where threads hold 8 channels (P1 1.35 -> 1.29 ms, 1.21 -> 1.13 ms) and only
  /// costs compile time elsewhere: input channels per turn, and a form for strips that start on 16 bytes.
  static constexpr int unrolled_channels = ChannelsPerThread == 8 ? 2 : 1;
  static constexpr bool aligned_strips   = ChannelsPerThread == 8;

  /// Longest run of taps along w that is unrolled over one strip of inputs.
  static constexpr int max_run = 5;
  /// Taps per run where a kernel row is cut into several (even, so that the phase pattern repeats).
  static constexpr int cut_run = 4;
  /// Floats of one stage of weights; two are in flight.
  static constexpr int weight_stage_floats = 6144;
  static_assert(weight_stage_floats >= max_run * 32 * ChannelsPerThread,
                "tconv: a stage holds at least one input channel");
  /// Bytes for the lists of stages of a block's phases; longer ones stay in global memory.
  static constexpr int list_bytes = 3 * 1024;
  /// Dynamic shared memory of a block: min_blocks fit on sm_90 (227 KB); one or two on sm_80 (163 KB), one on sm_86 and sm_89
  /// (99 KB).
  static constexpr int shared_bytes = PhasesPerThread == 2 ? 96 * 1024 : 74 * 1024;
};

/// Small blocks, so that one block's epilogue runs under another's main loop. With stride 2 a thread holds 128 accumulators and
/// two blocks fit (P1 1.35 ms; 64 accumulators and three blocks: 1.55 ms), else 64 and three.
template <int ChannelsPerThread, int PhasesPerThread>
struct gather_default
{
  using type = gather_policy<ChannelsPerThread, PhasesPerThread, 128, PhasesPerThread == 2 ? 2 : 3>;
};

/// Entries of the list of stages beyond which inputs are read through the cache instead: the list would rival the weights.
inline constexpr int64_t gather_most_stages = int64_t{1} << 18;

/// Multiprocessors of the device that the policies are tuned for: tiles that do not fill a wave of blocks there spread their
/// phases over more blocks. On other devices only the balance of the last wave differs.
inline constexpr int64_t gather_multiprocessors = 132;

/// Blocks that share the phases of a tile of the last wave, at most.
inline constexpr int64_t gather_tail_splits = 4;

} // namespace tuning

TCONV_NAMESPACE_END
