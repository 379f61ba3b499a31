// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The gather engine's description of a problem: how the output is cut into tiles and phases, how weights are packed. Plain
/// numbers, computed once on the host by the launcher's plan and passed to the kernels by value.

#include "../layout.hpp"
#include "../taps.hpp"

TCONV_NAMESPACE_BEGIN

/// Where packed weights stand, and how the taps along w fall into runs.
///
/// Packed order: [channel tile][tap d][tap h][run along w][input channel of the group][tap of the run][channel of the tile].
/// Taps along w are sorted by residue class modulo tap_step (the phases), so that the taps of a phase are neighbours.
struct packed_taps
{
  int64_t kernel[3]     = {1, 1, 1};
  int64_t tap_step      = 1;    ///< taps of one w phase are tap_step apart; 1 where a thread computes all phases
  bool consecutive      = true; ///< neighbouring taps of a phase read neighbouring inputs: runs may be longer than 1
  int64_t in_per_group  = 1;
  int64_t out_per_group = 1;
  int64_t out_channels  = 1;
  int64_t channel_tiles = 1;
  int tile_channels     = 1;
  int lanes             = 1; ///< threads that share a row of channels: tile_channels / channels_per_thread
  int max_run           = 1;
  int cut_run           = 1;

  /// Number of taps of residue class \p residue < tap_step.
  TCONV_HOST_DEVICE constexpr int64_t class_size(int64_t residue) const
  {
    return residue < kernel[2] ? (kernel[2] - 1 - residue) / tap_step + 1 : 0;
  }
  /// Number of taps in the classes before \p residue.
  TCONV_HOST_DEVICE constexpr int64_t class_begin(int64_t residue) const
  {
    const int64_t rest = kernel[2] % tap_step;
    return residue * (kernel[2] / tap_step) + (residue < rest ? residue : rest);
  }
  /// The residue class of packed tap \p tap.
  TCONV_HOST_DEVICE constexpr int64_t class_of(int64_t tap) const
  {
    const int64_t size  = kernel[2] / tap_step; // the first `large` classes hold one tap more
    const int64_t large = kernel[2] % tap_step;
    return tap < large * (size + 1) ? tap / (size + 1) : large + (tap - large * (size + 1)) / size;
  }
  /// Number of runs that \p count taps fall into: runs of cut_run until at most max_run remain.
  TCONV_HOST_DEVICE constexpr int64_t runs(int64_t count) const
  {
    if (!consecutive)
    {
      return count;
    }
    return count <= max_run ? (count > 0 ? 1 : 0) : (count - max_run + cut_run - 1) / cut_run + 1;
  }
  /// First tap (within its class) and length of run \p run of \p count taps.
  TCONV_HOST_DEVICE constexpr int64_t run_begin(int64_t run) const { return consecutive ? run * cut_run : run; }
  TCONV_HOST_DEVICE constexpr int64_t run_size(int64_t run, int64_t count) const
  {
    if (!consecutive)
    {
      return 1;
    }
    return run + 1 < runs(count) ? cut_run : count - run * cut_run;
  }

  /// The run that tap \p tap of a class of \p count taps belongs to.
  TCONV_HOST_DEVICE constexpr int64_t run_of(int64_t tap, int64_t count) const
  {
    const int64_t run = consecutive ? tap / cut_run : tap;
    return run < runs(count) ? run : runs(count) - 1;
  }

  /// Floats of one (channel tile, tap d, tap h) row.
  TCONV_HOST_DEVICE constexpr int64_t row_floats() const { return kernel[2] * in_per_group * tile_channels; }
  /// Floats of all packed weights.
  TCONV_HOST_DEVICE constexpr int64_t floats() const { return channel_tiles * kernel[0] * kernel[1] * row_floats(); }
};

/// One step of the main loop: a piece of weights that is copied to shared memory, and the staged inputs that it meets. The list
/// of a phase is the same for all tiles and all chunks of input channels, so the launcher's first kernel writes it once.
struct gather_stage
{
  int64_t weights = 0; ///< first float within the packed weights of the channel tile, for the first chunk
  int unit        = 0; ///< floats per input channel: taps of the run times channels of the tile
  int strip       = 0; ///< staged input that tap 0 of the run brings to cell 0, relative to that of shift 0
  int shift_d     = 0; ///< shifts along d and h: tiles skip the stage where these bring no input
  int shift_h     = 0;
  int first       = 0;     ///< first input channel within the chunk; in the last entry, its own place in the list
  short channels  = 0;     ///< input channels at most: the last chunk may have fewer
  signed char run = 0;     ///< taps along w
  bool last       = false; ///< ends the list of a phase; carries no work
};

/// Everything a gather kernel needs besides pointers.
struct gather_problem
{
  packed_taps taps;
  conv_axis axis[3];
  static constexpr int tabulated = 4; ///< phases per axis that the launcher tabulates; kernels compute the others
  axis_phase table[3][tabulated];
  tensor_strides x; ///< of the input
  int64_t batch         = 0;
  int64_t in_channels   = 1;
  int64_t out_channels  = 1;
  int64_t groups        = 1;
  int64_t phases[3]     = {1, 1, 1}; ///< phases per axis; the last counts groups of phases_per_thread
  int64_t tiles[3]      = {1, 1, 1}; ///< tiles per axis
  int64_t whole_tiles   = 0;         ///< tiles, the first ones, all of whose phases one block computes
  int64_t phase_splits  = 1;         ///< blocks that share the phases of each of the other tiles
  int64_t split_phases  = 1;         ///< phases per block there
  bool last_split_first = false;     ///< the last phases have more taps than the first: they are started first
  int64_t phase_stages  = 1;         ///< entries in the list of stages of each phase
  bool list_in_shared   = false;     ///< the lists of a block's phases are copied to shared memory
  int tile_cells[3]     = {1, 1, 1}; ///< cells of a tile per axis; the last a multiple of cells_per_thread
  bool staged           = true;      ///< the input tile fits shared memory; else inputs are read through the cache
  int rows[2]           = {1, 1};    ///< staged extents along d and h
  int width             = 1;         ///< staged extent along w
  int left              = 0;         ///< staged elements left of the tile's first cell
  bool quads            = false;     ///< staged rows start and end on multiples of 4 elements of x: copied 4 at a time
  int pitch             = 1;         ///< floats between staged rows
  int plane             = 1;         ///< floats between staged input channels
  int tile_groups       = 1;         ///< convolution groups that one channel tile can touch
  int chunk             = 1;         ///< input channels per group that are staged at a time
  int stage_floats      = 1;         ///< floats that a weight stage holds
  int weight_blocks     = 1; ///< blocks of the preparing kernel that pack weights, each of which leaves one flag

  /// The taps of phase \p r of axis \p a.
  TCONV_HOST_DEVICE constexpr axis_phase phase(int a, int64_t r) const
  {
    return r < tabulated ? table[a][r] : axis[a].phase(r);
  }
  /// Tiles of cells and channels.
  TCONV_HOST_DEVICE constexpr int64_t all_tiles() const
  {
    return batch * tiles[0] * tiles[1] * tiles[2] * taps.channel_tiles;
  }
  /// Work items: a tile with all its phases, or with one split of them. The channel tile is the fastest digit throughout.
  TCONV_HOST_DEVICE constexpr int64_t blocks() const
  {
    return whole_tiles + (all_tiles() - whole_tiles) * phase_splits;
  }
  TCONV_HOST_DEVICE constexpr int64_t total_phases() const { return phases[0] * phases[1] * phases[2]; }
  /// Entries of all lists of stages.
  TCONV_HOST_DEVICE constexpr int64_t stages() const { return staged ? total_phases() * phase_stages : 0; }
  /// Blocks of the preparing kernel that write them.
  TCONV_HOST_DEVICE constexpr int64_t stage_blocks() const
  {
    const int64_t blocks = ceil_div(stages(), 256);
    return blocks < 256 ? blocks : 256;
  }
  /// Chunks of input channels.
  TCONV_HOST_DEVICE constexpr int64_t chunks() const { return ceil_div(taps.in_per_group, chunk); }
  /// The stages that a whole chunk takes for a run of \p run taps, and the input channels of each: as even as possible.
  TCONV_HOST_DEVICE constexpr int64_t pieces(int64_t run) const
  {
    return ceil_div(chunk, stage_floats / (run * taps.tile_channels));
  }
  TCONV_HOST_DEVICE constexpr int64_t stage_channels(int64_t run) const { return ceil_div(chunk, pieces(run)); }
  /// Bytes of the lists of the most phases that one block computes.
  TCONV_HOST_DEVICE constexpr int64_t list_bytes() const
  {
    return (whole_tiles > 0 ? total_phases() : split_phases) * phase_stages
         * static_cast<int64_t>(sizeof(gather_stage));
  }
  /// Stages for one chunk and one row of \p count taps along w.
  TCONV_HOST_DEVICE constexpr int64_t row_stages(int64_t count) const
  {
    const int64_t runs = taps.runs(count);
    return runs == 0 ? 0 : (runs - 1) * pieces(taps.run_size(0, count)) + pieces(taps.run_size(runs - 1, count));
  }

  /// Floats of the staged input.
  TCONV_HOST_DEVICE constexpr int64_t staged_floats() const
  {
    return static_cast<int64_t>(tile_groups) * chunk * plane;
  }
};

TCONV_NAMESPACE_END
