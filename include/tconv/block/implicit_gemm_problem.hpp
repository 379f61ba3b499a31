// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The tensor-core engine's description of a problem: how outputs become matrix products, tiles and stages of weights. Plain
/// numbers, computed once on the host by the launcher's plan and passed to the kernels by value.
///
/// For every phase the outputs are a matrix product: rows are cells, columns are output channels, and the sum runs over the landing
/// taps and the input channels. A *step* is one shift of the input along w with 16 input channels; it has one 16 x columns piece of
/// weights per phase along w that a thread holds (a *set*), where that phase has a tap with the shift; or one for several phases that have
/// taps at the same shifts (a *unit*), whose columns follow each other. A *row* of steps holds all
/// shifts along w for the same taps along d and h; a *stage* is a run of steps of a row, copied to shared memory at once.
/// Packed order, outer to inner: [channel tile][phase][stage: chunk of input channels, tap d, tap h, run of steps].

#include "../detail/bits.hpp"
#include "../layout.hpp"
#include "../taps.hpp"

TCONV_NAMESPACE_BEGIN

/// Input channels of a step.
inline constexpr int gemm_block_channels = 16;

/// Bytes of shared memory for barriers and other control data.
inline constexpr int gemm_control_bytes = 4096;

/// Split form: room for the lists of lost inputs of 7 staging warps, 8 entries each, bytes per plane of the ring.
inline constexpr int gemm_lost_bytes = 7 * 8 * 16;

/// How operands of a product are formed.
enum class gemm_form : int
{
  fp16  = 0, ///< fp16 tensors
  bf16  = 1, ///< bf16 tensors
  tf32  = 2, ///< fp32 tensors rounded to TF32
  split = 3  ///< fp32 tensors as sums of two fp16 numbers: three products
};

/// What a form means for planning and packing.
struct gemm_form_traits
{
  int lane_bytes; ///< of one position and 4 input channels in shared memory
  int terms;      ///< 32-byte rows of packed weights per column and step

  TCONV_HOST_DEVICE static constexpr gemm_form_traits of(gemm_form form)
  {
    return form == gemm_form::fp16 || form == gemm_form::bf16 ? gemm_form_traits{8, 1} : gemm_form_traits{16, 2};
  }
  /// Bytes of one position and gemm_block_channels input channels.
  TCONV_HOST_DEVICE constexpr int position_bytes() const { return 4 * lane_bytes; }
  /// Registers of a thread for the left operand of a step.
  TCONV_HOST_DEVICE static constexpr int registers(gemm_form form)
  {
    return form == gemm_form::split ? 12 : 4 * of(form).terms;
  }
};

/// Which phases have taps at the shifts of a row: bit \p room * j + r is set where shift number j has a tap of phase r, counted from the smallest shift of an
/// axis without dilation. \p room: at least \p stride.
TCONV_HOST_DEVICE constexpr unsigned gemm_present(int room, int stride, int kernel, int padding)
{
  const int first  = -((padding + stride - 1) / stride);
  unsigned present = 0;
  for (int j = 0; stride * (first + j) + padding < kernel; ++j)
  {
    for (int r = 0; r < stride; ++r)
    {
      const int tap = stride * (first + j) + padding + r;
      present |= (tap >= 0 && tap < kernel ? 1U : 0U) << (room * j + r);
    }
  }
  return present;
}

/// Whether code of its own pays for rows with \p room phases: where several steps are multiplied at once, or added to sums at once.
TCONV_HOST_DEVICE constexpr bool gemm_row_pays(int room, gemm_form form, bool promoted)
{
  return room < 4 || gemm_form_traits::of(form).terms == 1 || (room == 4 && promoted);
}

/// How the main loop of \p Policy multiplies a row that it has code of its own for.
template <class Policy>
struct gemm_group
{
  int blocks = 1;     ///< of channels that are multiplied at once
  bool ahead = false; ///< operands are loaded while the products of the group before are under way

  TCONV_HOST_DEVICE constexpr gemm_group(gemm_form form, uint64_t present)
  {
    const int registers = gemm_form_traits::registers(form) * detail::count_digits(present, Policy::units);
    const int both      = Policy::registers_ahead / (2 * registers);
    ahead               = both > 0 && form != gemm_form::split; // which then spills 200 bytes
    // As many as there are registers for, and no more than 16 pieces of weights, each of which takes a descriptor. Two at most where they are loaded ahead, for
    // most layers have an even number.
    const int room = ahead ? (both < 2 ? both : 2)
                           : Policy::steps_at_once(gemm_form_traits::registers(form))
                               / detail::count_digits(present, Policy::units);
    const int fit  = 16 / detail::count_bits(present);
    blocks         = room < fit ? room : fit;
    blocks         = blocks < 1 ? 1 : blocks;
  }
};

/// A list of numbers.
template <unsigned... Values>
struct unsigned_list
{};

/// Rows that the main loop has code of its own for, where a thread holds Room units, as gemm_problem::present has them, or one: kernels of 3, 5 and 7;
/// with stride 2 kernels of 2, and with odd padding of 3 and 4; with larger strides kernels as long as the stride or twice, as vocoders have them, which with
/// units of 4 phases are as those with stride 2.
template <int Room>
struct gemm_known_rows;
template <>
struct gemm_known_rows<1>
{
  using list = unsigned_list<0x7, 0x1f, 0x7f>;
};
template <>
struct gemm_known_rows<2>
{
  using list = unsigned_list<gemm_present(2, 2, 2, 0), gemm_present(2, 2, 3, 1), gemm_present(2, 2, 4, 1)>;
};
template <>
struct gemm_known_rows<4>
{
  using list = unsigned_list<gemm_present(4, 3, 3, 0), gemm_present(4, 4, 4, 0), gemm_present(4, 4, 8, 2)>;
};
template <>
struct gemm_known_rows<8>
{
  using list = unsigned_list<gemm_present(8, 5, 10, 2)>;
};

/// Most steps of a stage.
inline constexpr int gemm_most_steps = 16;

/// What a step reads, relative to the staged row and the cells of a thread. The steps of a row are tabulated by the packing kernel and
/// kept in shared memory: the main loop is short of instructions.
struct alignas(8) gemm_step
{
  int first;  ///< bytes to the input of the thread's first cell
  int second; ///< and to that of its second cell
};

/// Where a tap along w belongs.
struct gemm_tap_place
{
  int group; ///< of phases
  int shift; ///< number of its shift in the group
  int set;
};

/// What the main loop needs to know of a phase; of the first most_phases the
/// launcher makes a list, of others the packing kernel. Taps along d and h (rows of steps) are
/// numbered with h fastest; staged planes and rows of neighbouring taps are the same distance apart.
struct alignas(16) gemm_phase
{
  int along[3];    ///< phase per axis; the last: of the first set
  int taps[2];     ///< landing taps along d and h; none where nothing lands
  int shifts;      ///< along w
  int stages;      ///< of a whole chunk
  int last_stages; ///< of the last chunk
  int plane;       ///< staged plane that the first tap along d brings to the tile's first cell
  int plane_step;  ///< to that of the next tap
  int row;         ///< bytes to the staged row that the first tap along h brings to the tile's first cell
  int row_step;    ///< to that of the next tap
  int first_step;  ///< in the table of steps
  int unused[3];
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
  gemm_form form                 = gemm_form::split;
  int64_t batch                  = 0;
  int64_t in_channels            = 1;
  int64_t out_channels           = 1;
  int groups                     = 1;
  int in_per_group               = 1; ///< channels
  int out_per_group              = 1;
  int tile_inputs                = 1;         ///< input channels that the columns of a tile have weights for, at most
  int phases[3]                  = {1, 1, 1}; ///< phases per axis; the last counts groups of sets
  int tiles[3]                   = {1, 1, 1}; ///< tiles per axis
  int channel_tiles              = 1;
  int columns                    = 64;    ///< output channels of a tile
  static constexpr int most_sets = 8;     ///< phases along w
  int sets                       = 1;     ///< phases along w that a thread holds: 1 or all of them
  int unit                       = 1;     ///< of them that share pieces of weights: they have taps at the same shifts
  bool promoted                  = false; ///< the sums are long; see implicit_gemm_policy
  uint64_t present  = 0; ///< several sets: bit unit_room() j + u is set where shift number j has taps of unit number u
  int box[3]        = {1, 1, 2}; ///< cells of a tile; even along w
  int most_shift[3] = {0, 0, 0}; ///< of all taps, per axis
  int planes        = 1;         ///< staged extents of a tile
  int rows          = 1;
  int width         = 2; ///< even
  int left          = 0; ///< staged elements left of the tile's first cell
  int run           = 1; ///< staged rows start and end on multiples of so many elements of x
  int ring_planes   = 1; ///< planes that shared memory holds
  int chunk_blocks  = 1; ///< blocks of 16 input channels that are staged at a time
  int steps_per_stage = 1;
  int stage_bytes     = 0; ///< room of a stage
  int stages          = 1; ///< of the ring
  /// Of gemm_known_rows, where a stage holds whole blocks of channels; else 0.
  unsigned neighbours = 0;
  gemm_step first_step{0, 0}; ///< of a row
  int block_bytes  = 0;       ///< of all rows that a block of channels has in a staged plane
  int phase_stages = 0;       ///< room of a phase in packed weights, in stages
  bool resident    = false;   ///< the stages of all phases fit the ring: they are loaded once
  float lost       = 0.0f;    ///< split form: relative error of an operand that the error bound lets through
  int ring_at      = 0;       ///< bytes of shared memory before the ring of weights
  int staged_at    = 0;       ///< before the staged input
  int steps_at     = 0;       ///< before the table of steps
  int exchange_at  = 0;       ///< and before what warps exchange outputs in
  int row_steps    = 1;       ///< room of a row of steps in that table

  TCONV_HOST_DEVICE constexpr axis_phase phase(int a, int64_t r) const
  {
    return r < tabulated ? table[a][r] : axis[a].phase(r);
  }
  TCONV_HOST_DEVICE constexpr int total_phases() const { return phases[0] * phases[1] * phases[2]; }
  TCONV_HOST_DEVICE constexpr int64_t total_tiles() const
  {
    return channel_tiles * batch * tiles[0] * tiles[1] * tiles[2];
  }
  /// Blocks of input channels of a tile.
  TCONV_HOST_DEVICE constexpr int blocks() const
  {
    return (tile_inputs + gemm_block_channels - 1) / gemm_block_channels;
  }
  /// The first input channel that columns of channel tile \p tile have weights for: a tile reads those of all groups that it has columns of.
  TCONV_HOST_DEVICE constexpr int first_input(int tile) const
  {
    return groups == 1 ? 0 : tile * columns / out_per_group * in_per_group;
  }
  TCONV_HOST_DEVICE constexpr int chunks() const { return (blocks() + chunk_blocks - 1) / chunk_blocks; }
  TCONV_HOST_DEVICE constexpr int blocks_of(int chunk) const
  {
    const int rest = blocks() - chunk * chunk_blocks;
    return rest < chunk_blocks ? rest : chunk_blocks;
  }
  /// Bytes of one piece of weights, and of each of its terms.
  TCONV_HOST_DEVICE constexpr int piece_bytes() const { return gemm_form_traits::of(form).terms * term_bytes(); }
  TCONV_HOST_DEVICE constexpr int term_bytes() const { return unit * columns * 32; }
  TCONV_HOST_DEVICE constexpr int position_bytes() const { return gemm_form_traits::of(form).position_bytes(); }
  /// Bytes of one staged row of a block of channels, of one plane.
  TCONV_HOST_DEVICE constexpr int row_bytes() const { return width * position_bytes(); }
  TCONV_HOST_DEVICE constexpr int plane_bytes() const { return chunk_blocks * rows * row_bytes(); }

  /// Sets that the accumulators of a thread have room for.
  TCONV_HOST_DEVICE constexpr int set_room() const { return sets <= 2 ? sets : (sets <= 4 ? 4 : 8); }
  /// The same in units.
  TCONV_HOST_DEVICE constexpr int unit_room() const { return set_room() / unit; }
  /// Outputs along w that one store takes where the rows of a channels-first tensor let it.
  TCONV_HOST_DEVICE constexpr int stored_together() const { return sets == 2 ? 4 : 2; }
  /// Most shifts of several sets.
  TCONV_HOST_DEVICE constexpr int most_shifts() const { return 64 / set_room(); }
  /// Whether a step serves all sets: phases share shifts where the dilation is 1. Else a step has one tap.
  TCONV_HOST_DEVICE constexpr bool paired() const { return sets > 1 && axis[2].dilation == 1; }
  /// Shifts along w that taps of phase group \p r have, repeated where two taps have the same and are not paired: one step each.
  TCONV_HOST_DEVICE constexpr int shifts(int64_t r) const
  {
    if (sets > 1)
    {
      return static_cast<int>(paired() ? axis[2].max_shift() - axis[2].min_shift() + 1 : axis[2].kernel);
    }
    return static_cast<int>(phase(2, r).count);
  }
  TCONV_HOST_DEVICE constexpr int64_t shift(int64_t r, int j) const
  {
    if (sets > 1)
    {
      return paired() ? axis[2].min_shift() + j : axis[2].tap_shift(j);
    }
    const axis_phase taps = phase(2, r);
    return taps.first_shift + j * taps.shift_step;
  }
  /// The tap along w of shift number \p j and \p set, or -1. (Paired: tap t has phase (t - padding) mod stride.)
  TCONV_HOST_DEVICE constexpr int64_t tap(int64_t r, int j, int set) const
  {
    if (sets > 1 && !paired())
    {
      return axis[2].tap_phase(j) == set ? j : -1;
    }
    if (sets > 1)
    {
      const int64_t t = axis[2].stride * (axis[2].min_shift() + j) + axis[2].padding + set;
      return t >= 0 && t < axis[2].kernel ? t : -1;
    }
    const axis_phase taps = phase(2, r);
    return taps.first_tap + j * taps.tap_step;
  }
  /// Inverse of tap(): the phase group, shift number and set of tap \p t along w.
  TCONV_HOST_DEVICE constexpr gemm_tap_place place(int64_t t) const
  {
    const auto r = static_cast<int>(axis[2].tap_phase(t));
    if (sets > 1)
    {
      return {0, static_cast<int>(paired() ? axis[2].tap_shift(t) - axis[2].min_shift() : t), r};
    }
    const axis_phase taps = phase(2, r);
    return {r, static_cast<int>((t - taps.first_tap) / taps.tap_step), 0};
  }
  /// Pieces of weights before that of unit number \p u at shift number \p j.
  TCONV_HOST_DEVICE constexpr int pieces_before(int j, int u = 0) const
  {
    if (sets == 1)
    {
      return j;
    }
    const int end = unit_room() * j + u;
    return detail::count_bits(detail::low_bits(present, end));
  }
  /// Pieces of weights of the first \p step steps of a row with \p count shifts.
  TCONV_HOST_DEVICE constexpr int pieces_of_steps(int step, int count) const
  {
    return step / count * pieces_before(count) + pieces_before(step % count);
  }
  /// Stages of one row (taps along d and h fixed) of \p count shifts and \p channels blocks of channels.
  TCONV_HOST_DEVICE constexpr int row_stages(int count, int channels) const
  {
    return (channels * count + steps_per_stage - 1) / steps_per_stage;
  }

  /// Bytes from the thread's first cell to staged position \p position: even positions come first, then the odd ones.
  TCONV_HOST_DEVICE constexpr int staged_position(int position) const
  {
    return (position & 1) * (width >> 1) * position_bytes() + (position >> 1) * position_bytes();
  }
  /// Entries of the table of steps. Every row has room for one more than there are, which may be read ahead.
  TCONV_HOST_DEVICE constexpr int table_steps() const { return phases[2] * row_steps; }
  /// Entry number \p index of the table of steps. A row holds shifts along w, then blocks of input channels.
  TCONV_HOST_DEVICE constexpr gemm_step step(int index) const
  {
    const int64_t r = static_cast<int64_t>(index / row_steps) * sets;
    const int count = shifts(r);
    index %= row_steps;
    if (index >= chunk_blocks * count)
    {
      return {0, 0};
    }
    const int j        = index % count;
    const int block    = index / count * rows * row_bytes();
    const int position = left - static_cast<int>(shift(r, j));
    return {block + staged_position(position), block + staged_position(position + 1)};
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
  result.shifts      = problem.shifts(result.along[2]);
  const axis_phase d = problem.phase(0, result.along[0]);
  const axis_phase h = problem.phase(1, result.along[1]);
  result.plane       = static_cast<int>(problem.most_shift[0] - d.first_shift);
  result.plane_step  = -static_cast<int>(d.shift_step);
  result.row         = static_cast<int>(problem.most_shift[1] - h.first_shift) * problem.row_bytes();
  result.row_step    = -static_cast<int>(h.shift_step) * problem.row_bytes();
  result.first_step  = w * problem.row_steps;
  if (d.count > 0 && h.count > 0 && result.shifts > 0)
  {
    result.taps[0]     = static_cast<int>(d.count);
    result.taps[1]     = static_cast<int>(h.count);
    const int rows     = result.taps[0] * result.taps[1];
    result.stages      = rows * problem.row_stages(result.shifts, problem.chunk_blocks);
    result.last_stages = rows * problem.row_stages(result.shifts, problem.blocks_of(problem.chunks() - 1));
  }
  return result;
}

TCONV_NAMESPACE_END
