// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The tensor-core engine's description of a problem: how outputs become matrix products, tiles and stages of weights. Plain
/// numbers, computed once on the host by the launcher's plan and passed to the kernels by value.
///
/// For every phase the outputs are a matrix product: rows are output channels, columns are cells, and the sum runs over the landing
/// taps and the input channels. A run of cells is one of neighbouring positions of the staged input: rows with what lies
/// between them in shared memory, which is multiplied as well and then left out.
///
/// A *step* is one shift of the input along w with 16 input channels; it has one piece of weights, 16 x the channels of a tile, per phase
/// along w that a thread holds (a *set*), where that phase has a tap with the shift. A *row* of steps belongs to the
/// same taps along d and h: blocks of 16 channels, and in them the shifts along w, in three *series*: those that the odd set alone has
/// taps for, both sets, the even set alone. A *stage* is a few whole blocks of a row, or a part of one, copied to shared memory at once.
/// The split form takes the rows twice, in two *passes*: low parts of the weights, then high parts.
/// Packed order, outer to inner: [channel tile][phase][stage: chunk of input channels, pass, tap d, tap h, blocks, part].

#include "../layout.hpp"
#include "../taps.hpp"

TCONV_NAMESPACE_BEGIN

/// Input channels of a step.
inline constexpr int gemm_block_channels = 16;

/// Bytes of shared memory for barriers and other control data.
inline constexpr int gemm_control_bytes = 4096;

/// How operands of a product are formed.
enum class gemm_form : int
{
  fp16  = 0, ///< fp16 tensors
  bf16  = 1, ///< bf16 tensors
  tf32  = 2, ///< fp32 tensors rounded to TF32
  split = 3  ///< fp32 tensors as sums of two fp16 numbers: three products
};

/// What a form means for planning, staging and packing.
///
/// Staged input of 16 channels is a few *slabs*: 16 bytes of every staged position, one behind the other, as the matrix instructions want
/// it. 16-bit tensors: 8 channels a slab. tf32: 4 channels. split: 8 channels, of the high parts, then of the low parts.
struct gemm_form_traits
{
  int slabs;  ///< of a block of 16 input channels
  int terms;  ///< 32-byte rows of packed weights per output channel and step
  int passes; ///< over the rows of steps

  TCONV_HOST_DEVICE static constexpr gemm_form_traits of(gemm_form form)
  {
    return form == gemm_form::split  ? gemm_form_traits{4, 1, 2}
           : form == gemm_form::tf32 ? gemm_form_traits{4, 2, 1}
                                     : gemm_form_traits{2, 1, 1};
  }
};

/// Bytes of a staged position in a slab.
inline constexpr int gemm_position_bytes = 16;

/// Steps along w that follow each other at the same distance, for the same sets.
struct gemm_series
{
  int count;
  int position; ///< staged position that the first shift brings to the tile's first cell
  int step;     ///< to that of the next
};
inline constexpr int gemm_series_count = 3;

/// Where a tap along w belongs.
struct gemm_tap_place
{
  int group; ///< of phases
  int step;  ///< of a block of channels
  int set;
};

/// What the main loop needs to know of a phase; of the first most_phases the
/// launcher makes a list, of others the packing kernel. Taps along d and h (rows of steps) are
/// numbered with h fastest; staged planes and rows of neighbouring taps are the same distance apart.
struct alignas(16) gemm_phase
{
  int along[3];    ///< phase per axis; the last: of the first set
  int taps[2];     ///< landing taps along d and h; none where nothing lands
  int steps;       ///< along w, of all series
  int stages;      ///< of a whole chunk, all passes
  int last_stages; ///< of the last chunk
  int plane;       ///< staged plane that the first tap along d brings to the tile's first cell
  int plane_step;  ///< to that of the next tap
  int row;         ///< bytes to the staged row that the first tap along h brings to the tile's first cell
  int row_step;    ///< to that of the next tap
  gemm_series series[gemm_series_count];
  int unused;

  /// Pieces of weights of the first \p step steps of a block.
  TCONV_HOST_DEVICE constexpr int pieces_before(int step, int sets) const
  {
    const int lead = series[0].count;
    const int both = series[1].count;
    return step + (sets == 1 || step <= lead ? 0 : (step < lead + both ? step - lead : both));
  }
};

/// Everything the tensor-core kernels need besides pointers.
struct gemm_problem
{
  conv_axis axis[3];
  static constexpr int tabulated = 4; ///< phases per axis that the launcher tabulates; kernels compute the others
  axis_phase table[3][tabulated];
  static constexpr int listed = 16; ///< phases that the launcher lists
  gemm_phase list[listed];
  tensor_strides x;
  gemm_form form       = gemm_form::split;
  int64_t batch        = 0;
  int64_t in_channels  = 1;
  int64_t out_channels = 1;
  int phases[3]        = {1, 1, 1}; ///< phases per axis; the last counts groups of sets
  int tiles[3]         = {1, 1, 1}; ///< tiles per axis
  int channel_tiles    = 1;
  int channel_groups   = 1;  ///< tiles that the channel tiles of the same cells are shared out to: 1, or as many as there are
  int tile_channels    = 64; ///< output channels of a channel tile
  int sets             = 1;
  int box[3]           = {1, 1, 2}; ///< cells of a tile: two runs next to each other
  int run_axis         = 2;         ///< along this axis
  int run_box[3]       = {1, 1, 2}; ///< cells of a run; one along d
  int most_shift[3]    = {0, 0, 0}; ///< of all taps, per axis
  int planes           = 1;         ///< staged extents of a tile
  int rows             = 1;
  int width            = 4;     ///< a multiple of 4
  int left             = 0;     ///< staged elements left of the tile's first cell
  bool quads           = false; ///< staged rows start and end on multiples of 4 elements of x
  int ring_planes      = 1;     ///< planes that shared memory holds
  int chunk_blocks     = 1;     ///< blocks of 16 input channels that are staged at a time
  int blocks_per_stage = 1;     ///< 1 where a stage is a part of a block
  int steps_per_stage  = 1;     ///< of a block
  int stage_bytes      = 0;     ///< room of a stage
  int stages           = 1;     ///< of the ring
  int phase_stages     = 0;     ///< room of a phase in packed weights, in stages
  bool resident        = false; ///< the stages of all phases fit the ring: they are loaded once
  float lost           = 0.0f;  ///< split form: relative error of an operand that the error bound lets through
  int ring_at          = 0;     ///< bytes of shared memory before the ring of weights,
  int staged_at        = 0;     ///< before the staged input,
  int exchange_at      = 0;     ///< and before the room for outputs

  TCONV_HOST_DEVICE constexpr axis_phase phase(int a, int64_t r) const
  {
    return r < tabulated ? table[a][r] : axis[a].phase(r);
  }
  TCONV_HOST_DEVICE constexpr int total_phases() const { return phases[0] * phases[1] * phases[2]; }
  /// What a tile is multiplied with, one after the other: phases of its channel tiles. Number r is phase r mod total_phases() of channel
  /// tile r / total_phases() of those.
  TCONV_HOST_DEVICE constexpr int rounds() const { return channel_tiles / channel_groups * total_phases(); }
  TCONV_HOST_DEVICE constexpr int64_t total_tiles() const
  {
    return channel_groups * batch * tiles[0] * tiles[1] * tiles[2];
  }
  TCONV_HOST_DEVICE constexpr int blocks() const
  {
    return static_cast<int>((in_channels + gemm_block_channels - 1) / gemm_block_channels);
  }
  TCONV_HOST_DEVICE constexpr int chunks() const { return (blocks() + chunk_blocks - 1) / chunk_blocks; }
  TCONV_HOST_DEVICE constexpr int blocks_of(int chunk) const
  {
    const int rest = blocks() - chunk * chunk_blocks;
    return rest < chunk_blocks ? rest : chunk_blocks;
  }
  /// Bytes of one piece of weights.
  TCONV_HOST_DEVICE constexpr int piece_bytes() const { return gemm_form_traits::of(form).terms * tile_channels * 32; }
  /// Bytes of one staged row of a slab, of a slab, of a block of 16 channels, of a plane. Slabs lie 16 bytes beside multiples of 128,
  /// so that writes to several of them meet different banks.
  TCONV_HOST_DEVICE constexpr int row_bytes() const { return width * gemm_position_bytes; }
  TCONV_HOST_DEVICE constexpr int slab_bytes() const { return (rows * row_bytes() + 127) / 128 * 128 + 16; }
  /// Bytes from the first run of a tile to the second, in the same plane.
  TCONV_HOST_DEVICE constexpr int run_bytes() const
  {
    return run_axis == 2   ? run_box[2] * gemm_position_bytes
           : run_axis == 1 ? run_box[1] * row_bytes()
                           : 0;
  }
  TCONV_HOST_DEVICE constexpr int block_bytes() const { return gemm_form_traits::of(form).slabs * slab_bytes(); }
  TCONV_HOST_DEVICE constexpr int plane_bytes() const { return chunk_blocks * block_bytes(); }

  /// The sets that series \p which has taps for, as bits.
  TCONV_HOST_DEVICE static constexpr int sets_of(int sets, int which)
  {
    return which == 1 ? (1 << sets) - 1 : (sets == 1 ? 0 : (which == 0 ? 2 : 1));
  }
  /// Taps along w of phase group \p r. Phases of stride 2 share shifts where the dilation is 1: tap t has phase (t - padding) mod 2.
  TCONV_HOST_DEVICE constexpr axis_phase taps_of(int64_t r, int which) const
  {
    axis_phase none;
    if (sets == 1)
    {
      return which == 1 ? phase(2, r) : none;
    }
    if (axis[2].dilation != 1)
    {
      return which == 1 ? none : phase(2, which == 0 ? 1 : 0);
    }
    const int64_t lead  = axis[2].padding % 2;
    const int64_t pairs = (axis[2].kernel - lead) / 2;
    axis_phase result;
    result.tap_step    = 2;
    result.first_tap   = which == 0 ? 0 : (which == 1 ? lead : axis[2].kernel - 1);
    result.count       = which == 0 ? lead : (which == 1 ? pairs : axis[2].kernel - lead - 2 * pairs);
    result.first_shift = axis[2].tap_shift(result.first_tap);
    return result;
  }
  /// Steps of a block of channels.
  TCONV_HOST_DEVICE constexpr int steps(int64_t r) const
  {
    return static_cast<int>(taps_of(r, 0).count + taps_of(r, 1).count + taps_of(r, 2).count);
  }
  /// The tap along w of step number \p j and \p set, or -1.
  TCONV_HOST_DEVICE constexpr int64_t tap(int64_t r, int64_t j, int set) const
  {
    for (int which = 0; which < gemm_series_count; ++which)
    {
      const axis_phase taps = taps_of(r, which);
      if (j < taps.count)
      {
        const int first = which == 0 ? 1 : 0; // of the sets that the series has
        return (sets_of(sets, which) >> set & 1) != 0 ? taps.first_tap + j * taps.tap_step + set - first : -1;
      }
      j -= taps.count;
    }
    return -1;
  }
  /// Inverse of tap(): where tap \p t belongs.
  TCONV_HOST_DEVICE constexpr gemm_tap_place place(int64_t t) const
  {
    const auto r    = static_cast<int>(axis[2].tap_phase(t));
    const int set   = r % sets;
    const int group = r / sets;
    int64_t before  = 0; // steps of series
    for (int which = 0; which < gemm_series_count; ++which)
    {
      const axis_phase taps = taps_of(int64_t{group} * sets, which);
      const int64_t along   = t - taps.first_tap - (which == 0 ? 0 : set);
      if ((sets_of(sets, which) >> set & 1) != 0 && along >= 0 && along < taps.count * taps.tap_step)
      {
        return {group, static_cast<int>(before + along / taps.tap_step), set};
      }
      before += taps.count;
    }
    return {};
  }
  /// Stages of one row (taps along d and h fixed) of \p steps steps a block and \p channels blocks of channels.
  TCONV_HOST_DEVICE constexpr int row_stages(int steps, int channels) const
  {
    return (channels + blocks_per_stage - 1) / blocks_per_stage * ((steps + steps_per_stage - 1) / steps_per_stage);
  }
};

/// Phase number \p index of \p problem.
TCONV_HOST_DEVICE constexpr gemm_phase make_gemm_phase(const gemm_problem& problem, int index)
{
  gemm_phase result{};
  const int w = index % problem.phases[2];
  index /= problem.phases[2];
  result.along[0]    = index / problem.phases[1];
  result.along[1]    = index % problem.phases[1];
  result.along[2]    = w * problem.sets;
  result.steps       = problem.steps(result.along[2]);
  const axis_phase d = problem.phase(0, result.along[0]);
  const axis_phase h = problem.phase(1, result.along[1]);
  result.plane       = static_cast<int>(problem.most_shift[0] - d.first_shift);
  result.plane_step  = -static_cast<int>(d.shift_step);
  result.row         = static_cast<int>(problem.most_shift[1] - h.first_shift) * problem.row_bytes();
  result.row_step    = -static_cast<int>(h.shift_step) * problem.row_bytes();
  for (int which = 0; which < gemm_series_count; ++which)
  {
    const axis_phase taps = problem.taps_of(result.along[2], which);
    result.series[which]  = {static_cast<int>(taps.count),
                             problem.left - static_cast<int>(taps.first_shift),
                             -static_cast<int>(taps.shift_step)};
  }
  if (d.count > 0 && h.count > 0 && result.steps > 0)
  {
    result.taps[0]     = static_cast<int>(d.count);
    result.taps[1]     = static_cast<int>(h.count);
    const int rows     = result.taps[0] * result.taps[1] * gemm_form_traits::of(problem.form).passes;
    result.stages      = rows * problem.row_stages(result.steps, problem.chunk_blocks);
    result.last_stages = rows * problem.row_stages(result.steps, problem.blocks_of(problem.chunks() - 1));
  }
  return result;
}

TCONV_NAMESPACE_END
