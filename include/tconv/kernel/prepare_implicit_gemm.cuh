// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Prepares the tensor-core engine: packs weights [in_channels, out_channels / groups, taps...] into stages, and writes the
/// list of phases and the table of steps that the main loop follows.

#include "../block/implicit_gemm.cuh"
#include "../detail/launch.cuh"

#include <cooperative_groups.h>

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// Where the weights of a tap along one axis are packed.
struct alignas(16) packed_tap
{
  int phase; ///< phase, along w group of phases
  int index; ///< number of the tap among those of its phase, along w of its shift
  int count; ///< how many there are
  int bytes; ///< along w: of a row before its first column
};

/// Tap \p t along axis \p a of \p problem.
TCONV_DEVICE packed_tap locate_tap(const gemm_problem& problem, int a, int t)
{
  if (a < 2)
  {
    const auto r          = static_cast<int>(problem.axis[a].tap_phase(t));
    const axis_phase taps = problem.phase(a, r);
    return {r, static_cast<int>((t - taps.first_tap) / taps.tap_step), static_cast<int>(taps.count), 0};
  }
  const gemm_tap_place place = problem.place(t);
  const int64_t first        = static_cast<int64_t>(place.group) * problem.sets;
  return {place.group,
          place.shift,
          problem.shifts(first),
          problem.pieces_before(place.shift, place.set / problem.unit) * problem.piece_bytes()
            + place.set % problem.unit * problem.columns * 32};
}

/// The input channel, within its block, of number \p k of half \p half of K: the order that staged input has.
template <gemm_form Form>
TCONV_DEVICE constexpr int packed_channel(int half, int k)
{
  return 2 * half + (Form == gemm_form::tf32 ? 4 * (k % 4) + k / 4 : 4 * (k / 2) + k % 2);
}

/// The weights of one output channel and tap with gemm_block_channels input channels: what a thread packs at once.
template <gemm_form Form, class In>
struct weight_column
{
  In of[gemm_block_channels];

  /// \p source: the weight of the first of the input channels, which are \p step apart; those from \p begin to \p end have one.
  TCONV_DEVICE void load(const In* source, unsigned step, int begin, int end)
  {
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < gemm_block_channels; ++c)
    {
      of[c] = c >= begin && c < end ? source[c * static_cast<int64_t>(step)] : from_float<In>(0.0f);
    }
  }

  /// The largest finite magnitude.
  TCONV_DEVICE float peak() const
  {
    float result = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < gemm_block_channels; ++c)
    {
      result = fmaxf(result, block::finite_magnitude(to_float(of[c])));
    }
    return result;
  }

  /// Stores to the column's 16 bytes in the core matrices of a piece (see wgmma.cuh), the first of which begins at \p at and the
  /// others 128 bytes apart, those of the second term \p term bytes from there. \p scale and \p tolerance: split form; true if a weight
  /// loses more than that relative to itself.
  TCONV_DEVICE bool store(unsigned char* at, int term, float scale, float tolerance) const
  {
    bool broken = false;
    TCONV_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half)
    {
      if constexpr (Form == gemm_form::tf32)
      {
        // A half is an instruction, of two core matrices.
        const auto word = [&](int k) { return block::round_tf32(to_float(of[packed_channel<Form>(half, k)])); };
        *reinterpret_cast<uint4*>(at + half * term)       = make_uint4(word(0), word(1), word(2), word(3));
        *reinterpret_cast<uint4*>(at + half * term + 128) = make_uint4(word(4), word(5), word(6), word(7));
      }
      else if constexpr (Form == gemm_form::split)
      {
        __half hi[8];
        __half lo[8];
        TCONV_PRAGMA_UNROLL
        for (int k = 0; k < 8; ++k)
        {
          const float original = to_float(of[packed_channel<Form>(half, k)]);
          const float v        = original * scale;
          hi[k]                = __float2half_rn(v);
          lo[k]                = __float2half_rn((v - __half2float(hi[k])) * block::power_of_two(block::low_exponent));
          const float rest =
            fabsf(v - __half2float(hi[k]) - __half2float(lo[k]) * block::power_of_two(-block::low_exponent));
          broken = broken || (original != 0.0f && !(v != 0.0f && rest <= tolerance * fabsf(v)));
        }
        *reinterpret_cast<uint4*>(at + half * 128)        = joined(hi);
        *reinterpret_cast<uint4*>(at + half * 128 + term) = joined(lo);
      }
      else
      {
        In values[8];
        TCONV_PRAGMA_UNROLL
        for (int k = 0; k < 8; ++k)
        {
          values[k] = of[packed_channel<Form>(half, k)];
        }
        *reinterpret_cast<uint4*>(at + half * 128) = joined(values);
      }
    }
    return broken;
  }

private:
  template <class T>
  TCONV_DEVICE static uint4 joined(const T (&values)[8])
  {
    return make_uint4(block::join(values[0], values[1]),
                      block::join(values[2], values[3]),
                      block::join(values[4], values[5]),
                      block::join(values[6], values[7]));
  }
};

#if TCONV_DETAIL_HAS_GEMM

/// What blocks that pack the same columns find out together. Without clusters every one finds it out by itself: it looks at all items of its
/// columns.
template <gemm_instruction Instruction>
struct packing_blocks
{
  static constexpr bool together = false;

  /// The largest of \p shared, one of the block's numbers, once all its threads have come here; in the blocks of a cluster, of all of them.
  TCONV_DEVICE static unsigned largest(const unsigned* shared)
  {
    __syncthreads();
    return *shared;
  }
  /// Before a block ends whose numbers another one may still read.
  TCONV_DEVICE static void leave() {}
};

#  if TCONV_DETAIL_HAS_WGMMA

template <>
struct packing_blocks<gemm_instruction::warpgroup>
{
  static constexpr bool together = true;

  TCONV_DEVICE static unsigned largest(unsigned* shared)
  {
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    unsigned most = 0;
    for (int i = 0; i < tuning::implicit_gemm_pack_cluster; ++i)
    {
      most = max(most, *cluster.map_shared_rank(shared, i));
    }
    cluster.barrier_arrive();
    return most;
  }
  TCONV_DEVICE static void leave() { cooperative_groups::this_cluster().barrier_wait(); }
};

#  endif

#endif

/// Packs the weights of some columns by several blocks, a cluster where wgmma is to multiply. The lanes of a warp take all columns of a few neighbouring taps: so they write whole
/// lines, and neighbouring warps read the rest of the sectors. Dynamic shared memory: a packed_tap for every tap along each axis.
///
/// \p inverse_scales [channel_tiles * columns]: 2^-e of the power of two that the split form multiplied a channel's weights by.
/// \p lost [blocks]: whether a weight of the split form lost more than the error bound lets through.
template <gemm_instruction Instruction, gemm_form Form, class In>
__global__ __launch_bounds__(tuning::implicit_gemm_pack_threads) void prepare_implicit_gemm(
  const __grid_constant__ gemm_problem problem,
  const In* w,
  unsigned char* packed,
  gemm_phase* phases,
  gemm_step* steps,
  float* inverse_scales,
  unsigned* lost)
{
#if TCONV_DETAIL_HAS_GEMM
  using team            = packing_blocks<Instruction>;
  constexpr int columns = tuning::implicit_gemm_pack_columns;
  constexpr int blocks  = tuning::implicit_gemm_pack_cluster;
  constexpr int threads = tuning::implicit_gemm_pack_threads;
  constexpr int teams   = threads / columns; // of a block; each packs an item of every column at a time
  extern __shared__ packed_tap tap_table[];
  __shared__ unsigned peaks[columns]; // magnitudes are ordered as their bits are
  const int thread           = static_cast<int>(threadIdx.x);
  const int column           = thread % columns;
  const int rank             = static_cast<int>(blockIdx.x) % blocks;
  const int group            = static_cast<int>(blockIdx.x) / blocks;
  const int channel          = group * columns + column;
  const int extent[3]        = {static_cast<int>(problem.axis[0].kernel),
                                static_cast<int>(problem.axis[1].kernel),
                                static_cast<int>(problem.axis[2].kernel)};
  const int taps             = extent[0] * extent[1] * extent[2];
  const packed_tap* table[3] = {tap_table, tap_table + extent[0], tap_table + extent[0] + extent[1]};

  // What follows from the problem alone need not wait for anybody.
  for (int i = thread; i < extent[0] + extent[1] + extent[2]; i += threads)
  {
    const int a  = i < extent[0] ? 0 : (i < extent[0] + extent[1] ? 1 : 2);
    tap_table[i] = locate_tap(problem, a, i - static_cast<int>(table[a] - tap_table));
  }
  if (thread < columns)
  {
    peaks[thread] = 0;
  }
  __syncthreads();
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  // Phases that the launcher has not listed. By the last blocks first, which have the least to pack.
  const int all    = static_cast<int>(gridDim.x) * threads;
  const int number = all - 1 - (static_cast<int>(blockIdx.x) * threads + thread);
  for (int p = gemm_problem::listed + number; p < problem.total_phases(); p += all)
  {
    phases[p] = make_gemm_phase(problem, p);
  }
  for (int i = number; i < problem.table_steps(); i += all)
  {
    steps[i] = problem.step(i);
  }

  // Items of a column: blocks of input channels, and taps, which are the faster digit.
  const auto row   = static_cast<unsigned>(problem.out_per_group) * static_cast<unsigned>(taps);
  const int items  = problem.blocks() * taps;
  const int stride = blocks * teams;
  const int first  = rank * teams + thread / columns;
  int item         = items > first ? first + (items - 1 - first) / stride * stride : -1; // the last one
  const int tile   = group * columns / problem.columns;
  // Input channels of the column's group.
  const int group_of_channel = channel / problem.out_per_group;
  const int in_group         = channel - group_of_channel * problem.out_per_group;
  const int first_input      = group_of_channel * problem.in_per_group;
  const int last_input       = channel < problem.out_channels ? first_input + problem.in_per_group : first_input;
  weight_column<Form, In> weights;
  const auto load = [&](int of) {
    const int block  = of / taps;
    const int input  = problem.first_input(tile) + block * gemm_block_channels;
    const In* source = w + input * static_cast<int64_t>(row)
                     + (static_cast<int64_t>(in_group) * taps + (of - block * taps));
    weights.load(source, row, first_input - input, last_input - input);
  };

  float scale = 1.0f;
  if constexpr (Form == gemm_form::split)
  {
    float peak     = 0.0f;
    const int last = team::together ? item : items - 1;
    for (int i = team::together ? first : thread / columns; i <= last; i += team::together ? stride : teams)
    {
      load(i);
      peak = fmaxf(peak, weights.peak());
    }
    atomicMax(&peaks[column], __float_as_uint(peak));
    peak         = __uint_as_float(team::largest(peaks + column));
    int exponent = peak > 0.0f ? 14 - ilogbf(peak) : 0; // the largest in [2^14, 2^15)
    exponent     = exponent < -60 ? -60 : (exponent > 60 ? 60 : exponent);
    scale        = block::power_of_two(exponent);
    if (rank == 0 && thread < columns)
    {
      inverse_scales[channel] = block::power_of_two(-exponent);
    }
  }

  const int in_tile = group * columns % problem.columns / columns;
  bool at_hand      = Form == gemm_form::split && team::together; // the last item is
  bool broken       = false;
  for (; item >= 0; item -= stride)
  {
    if (!at_hand)
    {
      load(item);
    }
    at_hand            = false;
    const int block    = item / taps;
    const int tap      = item - block * taps;
    const int plane    = tap / (extent[1] * extent[2]);
    const int in_plane = tap - plane * extent[1] * extent[2];
    const packed_tap d = table[0][plane];
    const packed_tap h = table[1][in_plane / extent[2]];
    const packed_tap v = table[2][in_plane % extent[2]];
    if (d.phase >= problem.phases[0] || h.phase >= problem.phases[1] || v.phase >= problem.phases[2])
    {
      continue; // no output has the phase
    }
    const int chunk    = block / problem.chunk_blocks;
    const int in_chunk = block - chunk * problem.chunk_blocks;
    const int run      = (in_chunk * v.count + v.index) / problem.steps_per_stage;
    const int p        = (d.phase * problem.phases[1] + h.phase) * problem.phases[2] + v.phase;
    const int stage    = chunk * d.count * h.count * problem.row_stages(v.count, problem.chunk_blocks)
                    + (d.index * h.count + h.index) * problem.row_stages(v.count, problem.blocks_of(chunk)) + run;
    // Of the chunk's blocks before it, less those of earlier stages.
    const int pieces = in_chunk * problem.pieces_before(v.count)
                     - problem.pieces_of_steps(run * problem.steps_per_stage, v.count);
    unsigned char* at = packed
                      + ((static_cast<int64_t>(tile) * problem.total_phases() + p) * problem.phase_stages + stage)
                          * problem.stage_bytes
                      + (pieces * problem.piece_bytes() + v.bytes + in_tile * 256 + column * 16);
    broken = weights.store(at, problem.term_bytes(), scale, problem.lost) || broken;
  }
  if constexpr (Form == gemm_form::split)
  {
    broken = __syncthreads_or(broken);
    if (thread == 0)
    {
      lost[blockIdx.x] = broken ? 1u : 0u;
    }
    team::leave();
  }
#else
  // Built for another architecture: the launcher must not come here.
  asm volatile("trap;");
#endif
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
