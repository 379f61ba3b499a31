// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The main loop of the gather engine: a block computes a tile of cells, phase after phase, on the CUDA cores.
///
/// The input tile is staged in shared memory once for all phases it feeds (in chunks of input channels where it does not fit
/// whole); packed weights stream through two stages. Each thread slides the taps of a run over one strip of inputs in
/// registers. Where the halo does not fit, or a weight is not finite (then the zeros of the halo must not be multiplied),
/// inputs are read through the cache and every product is predicated.

#include "../detail/config.hpp"
#include "../tuning/gather.hpp"
#include "async_copy.cuh"
#include "gather_problem.hpp"
#include "stage_input.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// The taps that one phase of a tile multiplies, per axis; taps that no cell of the tile can reach are left out.
struct gather_phase
{
  axis_phase taps[3];
  index_range landing[2]; ///< which of the taps along d and h land anywhere in the tile
  int64_t packed_begin;   ///< packed position of the first tap along w
};

/// Where a block works.
struct gather_tile
{
  int64_t n;
  int64_t channel_tile;
  int64_t cell[3]; ///< first cell along d, h, w
  int64_t first_phase;
  int phase_count;
  int least_shift[2]; ///< shifts along d and h that bring an input to at least one cell of the tile
  int most_shift[2];
};

/// What a thread computes within the tile of its block.
struct gather_thread
{
  int lane; ///< which channels: lane * channels_per_thread + ...
  int cell
    [3]; ///< first cell relative to the tile; threads without cells repeat cell 0. Further groups: see group_stride()
  bool active;     ///< false for threads without cells
  int64_t channel; ///< first output channel
  int group;       ///< convolution group of the channels, relative to the first group of the tile
};

TCONV_DEVICE int clamp_to_int(int64_t v)
{
  return static_cast<int>(v < -0x7fffffff ? -0x7fffffff : (v > 0x7fffffff ? 0x7fffffff : v));
}

/// Splits \p index into rest * extent + digit; returns the digit.
template <class Index>
TCONV_DEVICE int64_t take_digit(Index& index, int64_t extent)
{
  const auto divisor = static_cast<Index>(extent);
  const Index rest   = index / divisor;
  const auto digit   = static_cast<int64_t>(index - rest * divisor);
  index              = rest;
  return digit;
}

/// The work item \p index of \p problem. \p Index is 32 bits wide where all work items fit: every block begins with this.
template <class Index>
TCONV_DEVICE gather_tile locate_tile(const gather_problem& problem, Index index)
{
  gather_tile tile;
  tile.first_phase = 0;
  tile.phase_count = static_cast<int>(problem.total_phases());
  if (index >= static_cast<Index>(problem.whole_tiles))
  {
    index -= static_cast<Index>(problem.whole_tiles);
    const auto rest      = static_cast<Index>(problem.all_tiles() - problem.whole_tiles);
    const auto number    = static_cast<int64_t>(index / rest);
    const int64_t split  = problem.last_split_first ? problem.phase_splits - 1 - number : number;
    index                = index % rest + static_cast<Index>(problem.whole_tiles);
    tile.first_phase     = split * problem.split_phases;
    const int64_t phases = problem.total_phases() - tile.first_phase;
    tile.phase_count     = static_cast<int>(phases < problem.split_phases ? phases : problem.split_phases);
  }
  tile.channel_tile = take_digit(index, problem.taps.channel_tiles);
  for (int a = 2; a >= 0; --a)
  {
    tile.cell[a] = take_digit(index, problem.tiles[a]) * problem.tile_cells[a];
  }
  tile.n = static_cast<int64_t>(index);
  for (int a = 0; a < 2; ++a)
  {
    tile.least_shift[a] = clamp_to_int(tile.cell[a] - problem.axis[a].in + 1);
    tile.most_shift[a]  = clamp_to_int(tile.cell[a] + problem.tile_cells[a] - 1);
  }
  return tile;
}

/// Cells along w between the groups of a thread.
template <class Policy>
TCONV_DEVICE int group_stride(const gather_problem& problem)
{
  return problem.tile_cells[2] / Policy::cell_groups;
}

/// The part of \p tile that the calling thread computes.
template <class Policy>
TCONV_DEVICE gather_thread locate_thread(const gather_problem& problem, const gather_tile& tile)
{
  gather_thread thread;
  const int lanes = problem.taps.lanes;
  const int slots = problem.tile_cells[2] / Policy::cells_per_thread;
  thread.lane     = static_cast<int>(threadIdx.x) % lanes;
  int slot        = static_cast<int>(threadIdx.x) / lanes;
  thread.active   = slot < slots * problem.tile_cells[1] * problem.tile_cells[0];
  slot            = thread.active ? slot : 0;
  thread.cell[2]  = slot % slots * Policy::cells_per_group;
  slot /= slots;
  thread.cell[1] = slot % problem.tile_cells[1];
  thread.cell[0] = slot / problem.tile_cells[1];

  const int64_t first  = tile.channel_tile * problem.taps.tile_channels;
  thread.channel       = first + thread.lane * Policy::channels_per_thread;
  const int64_t last   = problem.out_channels - 1;
  const int64_t inside = thread.channel < last ? thread.channel : last;
  thread.group         = static_cast<int>(inside / problem.taps.out_per_group - first / problem.taps.out_per_group);
  return thread;
}

/// Phases of the outputs along d, h and w (of the thread's first position along w).
struct phase_number
{
  int64_t along[3];
};

/// The phases along each axis of phase \p index of the problem.
template <class Policy>
TCONV_DEVICE phase_number number_phase(const gather_problem& problem, int64_t index)
{
  phase_number number;
  number.along[2] = index % problem.phases[2] * Policy::phases_per_thread;
  index /= problem.phases[2];
  number.along[1] = index % problem.phases[1];
  number.along[0] = index / problem.phases[1];
  return number;
}

/// The taps of phase number \p index of \p tile.
template <class Policy>
TCONV_DEVICE gather_phase locate_phase(const gather_problem& problem, const gather_tile& tile, int64_t index)
{
  gather_phase phase;
  const phase_number number = number_phase<Policy>(problem, index);
  for (int a = 0; a < 2; ++a)
  {
    const conv_axis& axis = problem.axis[a];
    const axis_phase taps = problem.phase(a, number.along[a]);
    const int64_t first   = tile.cell[a];
    const int64_t last    = first + problem.tile_cells[a] - 1;
    phase.taps[a]         = taps;
    // Tap m reads inputs [first - shift, last - shift] with shift = first_shift + m * shift_step.
    phase.landing[a] = clip(ceil_div(first - axis.in + 1 - taps.first_shift, taps.shift_step),
                            floor_div(last - taps.first_shift, taps.shift_step) + 1,
                            taps.count);
  }
  if constexpr (Policy::phases_per_thread == 1)
  {
    phase.taps[2]      = problem.phase(2, number.along[2]);
    phase.packed_begin = problem.taps.class_begin(phase.taps[2].first_tap);
  }
  else
  {
    // All taps; tap t lands on phase (t + padding) mod 2 with shift floor((t - padding) / 2).
    phase.taps[2]      = {0, 1, problem.axis[2].kernel, problem.axis[2].min_shift(), 1};
    phase.packed_begin = 0;
  }
  return phase;
}

/// What the main loop needs to know of a stage.
struct stage_work
{
  int strip;
  int channels; ///< 0 at the end
  int chunk;
  int run;
};

/// Walks over phases, chunks of input channels and the stages of each phase's list.
class stage_walk
{
public:
  /// \p list: the list of the first of \p phases phases, in shared or global memory.
  TCONV_DEVICE stage_walk(const gather_stage* list, int phases) : at_(list), left_(phases) {}

  /// Phases not yet finished; 0 at the end. The stage that next() returned belongs to the first of them.
  TCONV_DEVICE int phases_left() const { return left_; }

  /// The next stage that meets inputs of \p tile, with its weights.
  TCONV_DEVICE stage_work next(const gather_problem& problem, const gather_tile& tile, int64_t& weights, int& floats)
  {
    while (left_ > 0)
    {
      const gather_stage s = *at_;
      if (s.last)
      {
        if (s.first > 0 && ++chunk_ < static_cast<int>(problem.chunks()))
        {
          at_ -= s.first; // the same list for the next chunk
          continue;
        }
        chunk_ = 0;
        --left_;
        at_ += problem.phase_stages - s.first;
        continue;
      }
      ++at_;
      const int rest     = static_cast<int>(problem.taps.in_per_group) - chunk_ * problem.chunk - s.first;
      const int channels = s.channels < rest ? s.channels : rest;
      const int in_chunk = problem.chunk - s.first;
      if (channels > 0 && s.shift_d >= tile.least_shift[0] && s.shift_d <= tile.most_shift[0]
          && s.shift_h >= tile.least_shift[1] && s.shift_h <= tile.most_shift[1])
      {
        const int held = channels < in_chunk ? channels : in_chunk;
        weights        = s.weights + static_cast<int64_t>(chunk_) * problem.chunk * s.unit;
        floats         = held * s.unit;
        return {s.strip, held, chunk_, s.run};
      }
    }
    return {0, 0, 0, 0};
  }

private:
  const gather_stage* at_;
  int left_;
  int chunk_ = 0;
};

/// Where staged inputs begin in the shared memory of a block: behind two stages of weights.
template <class Policy>
inline constexpr int staged_at = 2 * Policy::weight_stage_floats;

/// Stages chunk \p chunk of the input channels and commits the copies. Called by the whole block.
template <class Policy, class In>
TCONV_DEVICE void
stage_chunk(const gather_problem& problem, const gather_tile& tile, const In* x, int chunk, float* shared)
{
  const int64_t first       = static_cast<int64_t>(chunk) * problem.chunk;
  const int64_t rest        = problem.taps.in_per_group - first;
  const int64_t first_group = tile.channel_tile * problem.taps.tile_channels / problem.taps.out_per_group;
  const int64_t groups      = problem.groups - first_group;

  input_box box;
  for (int a = 0; a < 2; ++a)
  {
    box.begin[a] = tile.cell[a] - problem.axis[a].max_shift();
  }
  box.begin[2] = tile.cell[2] - problem.left;
  box.channels = rest < problem.chunk ? static_cast<int>(rest) : problem.chunk;
  box.groups   = groups < problem.tile_groups ? static_cast<int>(groups) : problem.tile_groups;
  stage_input<Policy::threads>(
    problem,
    box,
    x + tile.n * problem.x.sample + (first_group * problem.taps.in_per_group + first) * problem.x.channel,
    shared + staged_at<Policy>);
  copy_async_commit();
}

/// stage_chunk() while accumulators are live. Not inlined: its addresses would cost the main loop registers.
template <class Policy, class In>
__device__ __noinline__ void
stage_next_chunk(const gather_problem& problem, const gather_tile& tile, const In* x, int chunk, float* shared)
{
  stage_chunk<Policy>(problem, tile, x, chunk, shared);
}

/// Copies \p floats weights from \p begin on. Called by the whole block; asynchronous.
template <class Policy>
TCONV_DEVICE void stage_weights(int64_t begin, int floats, const float* weights, float* target)
{
  const float* source = weights + begin;
  // Tiles of 4 channels and more keep every stage a multiple of 16 bytes.
  if constexpr (Policy::channels_per_thread >= 4)
  {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) * 4; i < floats; i += Policy::threads * 4)
    {
      copy_async_16(target + i, source + i);
    }
  }
  else
  {
    for (int i = static_cast<int>(threadIdx.x); i < floats; i += Policy::threads)
    {
      copy_async_or_zero(target + i, source + i, true);
    }
  }
}

/// Reads the channels_per_thread weights of one tap from a packed row of tile channels.
template <class Policy>
TCONV_DEVICE void load_channels(const float* row, int lane, int lanes, float (&values)[Policy::channels_per_thread])
{
  if constexpr (Policy::channels_per_thread == 1)
  {
    values[0] = row[lane];
  }
  else
  {
    // Quads of neighbouring lanes are neighbours, so that a warp's 16-byte reads have no bank conflicts.
    TCONV_PRAGMA_UNROLL
    for (int quad = 0; quad < Policy::channels_per_thread / 4; ++quad)
    {
      const float4 v       = *reinterpret_cast<const float4*>(row + (quad * lanes + lane) * 4);
      values[quad * 4 + 0] = v.x;
      values[quad * 4 + 1] = v.y;
      values[quad * 4 + 2] = v.z;
      values[quad * 4 + 3] = v.w;
    }
  }
}

/// The channel of a tile whose weight stands in column \p column of a packed row: load_channels() in reverse.
template <class Policy>
TCONV_DEVICE int channel_of_column(int column, int lanes)
{
  if (Policy::channels_per_thread == 1)
  {
    return column;
  }
  const int quad = column / 4;
  return quad % lanes * Policy::channels_per_thread + quad / lanes * 4 + column % 4;
}

template <class Policy>
using accumulators = float[Policy::channels_per_thread][Policy::positions_per_thread];

/// Phase (of the thread's phases) and shift, relative to the run's first, of tap \p j of a run with parity \p Parity.
template <class Policy, int Parity>
struct run_pattern
{
  TCONV_DEVICE static constexpr int phase(int j) { return Policy::phases_per_thread == 2 ? (j + Parity) & 1 : 0; }
  TCONV_DEVICE static constexpr int shift(int j) { return Policy::phases_per_thread == 2 ? (j + Parity) >> 1 : j; }
};

/// Reads the strips of a thread's groups: neighbouring staged inputs from \p at, \p stride apart; 16 bytes at a time where
/// \p Aligned says that every strip starts on a multiple of 16.
template <bool Aligned, int Groups, int Count>
TCONV_DEVICE void load_strips(const float* at, int stride, float (&strips)[Groups][Count])
{
  constexpr int quads = Aligned ? Count / 4 : 0;
  TCONV_PRAGMA_UNROLL
  for (int g = 0; g < Groups; ++g)
  {
    TCONV_PRAGMA_UNROLL
    for (int q = 0; q < quads; ++q)
    {
      const float4 v       = *reinterpret_cast<const float4*>(at + g * stride + 4 * q);
      strips[g][4 * q + 0] = v.x;
      strips[g][4 * q + 1] = v.y;
      strips[g][4 * q + 2] = v.z;
      strips[g][4 * q + 3] = v.w;
    }
    TCONV_PRAGMA_UNROLL
    for (int i = 4 * quads; i < Count; ++i)
    {
      strips[g][i] = at[g * stride + i];
    }
  }
}

/// What a thread reads in the main loop, besides what changes from stage to stage.
struct gather_reader
{
  bool quads; ///< rows, planes and strides are multiples of 4 floats
  int plane;  ///< floats between staged input channels
  int stride; ///< between the strips of its groups
  int lane;
  int lanes;
  int tile_channels;
};

/// Slides \p Taps taps over the strips of each of \p channels input channels.
///
/// \p strip_at: the first of the thread's strips.
template <class Policy, int Taps, int Parity, bool Aligned>
TCONV_DEVICE void accumulate_run(
  accumulators<Policy>& sums, const gather_reader& reader, const float* strip_at, const float* weights, int channels)
{
  using pattern        = run_pattern<Policy, Parity>;
  constexpr int cells  = Policy::cells_per_group;
  constexpr int groups = Policy::cell_groups;
  constexpr int held   = Policy::channels_per_thread;
  constexpr int span   = pattern::shift(Taps - 1);

  // The strips of the next channel and the weights of the next tap are under way while the present ones are multiplied: few
  // warps share a scheduler, and shared memory takes some thirty cycles. Past the end, the last ones are read again.
  float strips[groups][cells + span];
  float w[held];
  load_strips<Aligned>(strip_at, reader.stride, strips);
  load_channels<Policy>(weights, reader.lane, reader.lanes, w);
#pragma unroll Policy::unrolled_channels
  for (int c = 1; c <= channels; ++c)
  {
    const bool more           = c < channels;
    const float* next_strip   = more ? strip_at + reader.plane : strip_at;
    const float* next_weights = more ? weights + Taps * reader.tile_channels : weights;
    float coming[groups][cells + span];
    load_strips<Aligned>(next_strip, reader.stride, coming);
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Taps; ++j)
    {
      float next[held];
      load_channels<Policy>(
        j + 1 < Taps ? weights + (j + 1) * reader.tile_channels : next_weights, reader.lane, reader.lanes, next);
      TCONV_PRAGMA_UNROLL
      for (int v = 0; v < held; ++v)
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < groups * cells; ++i)
        {
          float& sum = sums[v][i * Policy::phases_per_thread + pattern::phase(j)];
          sum        = fmaf(strips[i / cells][i % cells + span - pattern::shift(j)], w[v], sum);
        }
        w[v] = next[v];
      }
    }
    TCONV_PRAGMA_UNROLL
    for (int g = 0; g < groups; ++g)
    {
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < cells + span; ++i)
      {
        strips[g][i] = coming[g][i];
      }
    }
    strip_at = next_strip;
    weights  = next_weights;
  }
}

/// accumulate_run() for a run length known at run time. \p strip_end: the staged input that the first tap of the run brings to the
/// thread's first cell.
template <class Policy, int Parity, int Taps = Policy::max_run>
TCONV_DEVICE void accumulate_run_of(int taps,
                                    accumulators<Policy>& sums,
                                    const gather_reader& reader,
                                    const float* strip_end,
                                    const float* weights,
                                    int channels)
{
  if constexpr (Taps > 1)
  {
    if (taps != Taps)
    {
      accumulate_run_of<Policy, Parity, Taps - 1>(taps, sums, reader, strip_end, weights, channels);
      return;
    }
  }
  // Alike for all threads: in quads, rows, planes and cells are multiples of 4.
  const float* strip_at = strip_end - run_pattern<Policy, Parity>::shift(Taps - 1);
  if constexpr (Policy::aligned_strips)
  {
    if (reader.quads && reinterpret_cast<unsigned long long>(strip_at) % 16 == 0)
    {
      accumulate_run<Policy, Taps, Parity, true>(sums, reader, strip_at, weights, channels);
      return;
    }
  }
  accumulate_run<Policy, Taps, Parity, false>(sums, reader, strip_at, weights, channels);
}

/// One phase without staging: inputs through the cache, each product only where its input exists. Slow and always right.
///
/// Not inlined, and one of the thread's phases along w at a time: its addresses and sums would cost the fast path registers.
/// \p result passes through local memory once a phase.
template <class Policy, class In>
__device__ __noinline__ void accumulate_direct(const gather_problem& problem,
                                               const gather_tile& tile,
                                               const gather_thread& thread,
                                               const gather_phase& phase,
                                               const In* x,
                                               const float* weights,
                                               accumulators<Policy>& result)
{
  constexpr int together    = Policy::phases_per_thread;
  const packed_taps& packed = problem.taps;
  const int64_t first_group = tile.channel_tile * packed.tile_channels / packed.out_per_group;
  const int64_t channel     = (first_group + thread.group) * packed.in_per_group;
  const int64_t parity      = together == 2 ? problem.axis[2].padding & 1 : 0;
  const int stride          = group_stride<Policy>(problem);
  const In* sample          = x + tile.n * problem.x.sample + channel * problem.x.channel;

  // The phases of the thread are told apart at compile time, or the result would be indexed by a variable.
  TCONV_PRAGMA_UNROLL
  for (int q = 0; q < together; ++q)
  {
    float sums[Policy::channels_per_thread][Policy::cells_per_thread] = {};
    for (int64_t d = phase.landing[0].begin; d < phase.landing[0].end; ++d)
    {
      const int64_t id = tile.cell[0] + thread.cell[0] - phase.taps[0].first_shift - d * phase.taps[0].shift_step;
      for (int64_t h = phase.landing[1].begin; h < phase.landing[1].end; ++h)
      {
        const int64_t ih = tile.cell[1] + thread.cell[1] - phase.taps[1].first_shift - h * phase.taps[1].shift_step;
        if (id < 0 || id >= problem.axis[0].in || ih < 0 || ih >= problem.axis[1].in)
        {
          continue;
        }
        const int64_t td = phase.taps[0].first_tap + d * phase.taps[0].tap_step;
        const int64_t th = phase.taps[1].first_tap + h * phase.taps[1].tap_step;
        const float* row = weights + (td * packed.kernel[1] + th) * packed.row_floats();
        for (int64_t tap = together == 2 ? (q + parity) & 1 : 0; tap < phase.taps[2].count; tap += together)
        {
          const int64_t run   = packed.run_of(tap, phase.taps[2].count);
          const int64_t begin = packed.run_begin(run);
          const int64_t size  = packed.run_size(run, phase.taps[2].count);
          const int64_t shift = phase.taps[2].first_shift
                              + (together == 2 ? (tap + parity) / 2 : tap * phase.taps[2].shift_step);
          const int64_t first = tile.cell[2] + thread.cell[2] - shift;
          for (int64_t c = 0; c < packed.in_per_group; ++c)
          {
            const In* line = sample + c * problem.x.channel
                           + (id * problem.axis[1].in + ih) * problem.axis[2].in * problem.x.position;
            float w[Policy::channels_per_thread];
            load_channels<Policy>(
              row
                + ((phase.packed_begin + begin) * packed.in_per_group + c * size + tap - begin) * packed.tile_channels,
              thread.lane,
              packed.lanes,
              w);
            TCONV_PRAGMA_UNROLL
            for (int i = 0; i < Policy::cells_per_thread; ++i)
            {
              const int64_t iw = first + i / Policy::cells_per_group * stride + i % Policy::cells_per_group;
              if (iw >= 0 && iw < problem.axis[2].in)
              {
                const float value = to_float(line[iw * problem.x.position]);
                TCONV_PRAGMA_UNROLL
                for (int v = 0; v < Policy::channels_per_thread; ++v)
                {
                  sums[v][i] = fmaf(value, w[v], sums[v][i]);
                }
              }
            }
          }
        }
      }
    }
    TCONV_PRAGMA_UNROLL
    for (int v = 0; v < Policy::channels_per_thread; ++v)
    {
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < Policy::cells_per_thread; ++i)
      {
        result[v][i * together + q] = sums[v][i];
      }
    }
  }
}

/// Computes the phases of \p tile one after the other and hands each to finish(phase number, sums), where the number counts from
/// the tile's first phase.
///
/// The first chunk of inputs has been staged (stage_chunk), its copies may still be under way. \p stages: the lists of
/// stages. \p shared: 2 * weight_stage_floats + problem.staged_floats() floats, 16-byte
/// aligned. \p scratch: one gather_phase in shared memory. \p finite: whether all weights are finite. Called by the whole block.
template <class Policy, class In, class Finish>
TCONV_DEVICE void gather(const gather_problem& problem,
                         const gather_tile& tile,
                         const gather_thread& thread,
                         const In* x,
                         const float* weights,
                         const gather_stage* stages,
                         bool finite,
                         float* shared,
                         gather_phase* scratch,
                         Finish&& finish)
{
  constexpr int stage_floats = Policy::weight_stage_floats;
  const packed_taps& packed  = problem.taps;
  const float* staged        = shared + staged_at<Policy>;
  const bool direct          = !problem.staged || !finite;
  weights += tile.channel_tile * packed.kernel[0] * packed.kernel[1] * packed.row_floats();

  const gather_stage* list = stages + tile.first_phase * problem.phase_stages;
  if (problem.list_in_shared)
  {
    auto* copy      = reinterpret_cast<int4*>(shared + staged_at<Policy> + (problem.staged_floats() + 3) / 4 * 4);
    const int words = static_cast<int>(tile.phase_count * problem.phase_stages * (sizeof(gather_stage) / sizeof(int4)));
    for (int i = static_cast<int>(threadIdx.x); i < words; i += Policy::threads)
    {
      copy[i] = __ldg(reinterpret_cast<const int4*>(list) + i);
    }
    list = reinterpret_cast<const gather_stage*>(copy);
    __syncthreads();
  }
  stage_walk walk(list, direct ? 0 : tile.phase_count);
  stage_work coming;
  int slot             = 0;
  const auto copy_next = [&](int into) {
    int64_t from = 0;
    int floats   = 0;
    coming       = walk.next(problem, tile, from, floats);
    stage_weights<Policy>(from, floats, weights, shared + into * stage_floats);
    copy_async_commit();
  };
  copy_next(slot);

  const bool odd = Policy::phases_per_thread == 2 && (problem.axis[2].padding & 1) != 0;
  const gather_reader reader{
    problem.quads, problem.plane, group_stride<Policy>(problem), thread.lane, packed.lanes, packed.tile_channels};
  int staged_chunk = 0; // the caller has staged the first chunk
  // The staged element that shift 0 brings to the thread's first cell.
  const float* thread_at = staged + thread.group * problem.chunk * problem.plane
                         + ((thread.cell[0] + static_cast<int>(problem.axis[0].max_shift())) * problem.rows[1]
                            + thread.cell[1] + static_cast<int>(problem.axis[1].max_shift()))
                             * problem.pitch
                         + thread.cell[2] + problem.left;

  for (int i = 0; i < tile.phase_count; ++i)
  {
    accumulators<Policy> sums = {};
    if (direct)
    {
      if (threadIdx.x == 0)
      {
        *scratch = locate_phase<Policy>(problem, tile, tile.first_phase + i);
      }
      __syncthreads();
      accumulators<Policy> result;
      accumulate_direct<Policy>(problem, tile, thread, *scratch, x, weights, result);
      TCONV_PRAGMA_UNROLL
      for (int v = 0; v < Policy::channels_per_thread; ++v)
      {
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < Policy::positions_per_thread; ++p)
        {
          sums[v][p] = result[v][p];
        }
      }
      __syncthreads();
    }
    while (walk.phases_left() == tile.phase_count - i && !direct)
    {
      const float* strip_end = thread_at + coming.strip;
      const int run          = coming.run;
      const int channels     = coming.channels;
      if (coming.chunk != staged_chunk)
      {
        __syncthreads(); // nobody reads the old chunk any more
        staged_chunk = coming.chunk;
        stage_next_chunk<Policy>(problem, tile, x, staged_chunk, shared);
      }
      copy_async_wait<0>();
      __syncthreads(); // the stage has landed for everyone, and everyone is done with the slot that is filled next
      copy_next(slot ^ 1);

      const float* tap = shared + slot * stage_floats;
      if (!odd)
      {
        accumulate_run_of<Policy, 0>(run, sums, reader, strip_end, tap, channels);
      }
      else if constexpr (Policy::phases_per_thread == 2)
      {
        accumulate_run_of<Policy, 1>(run, sums, reader, strip_end, tap, channels);
      }
      slot ^= 1;
    }
    finish(i, sums);
  }
  copy_async_wait<0>();
  __syncthreads(); // shared memory is free for whoever comes next
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
