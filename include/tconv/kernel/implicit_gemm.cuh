// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The tensor-core kernel, and what becomes of its accumulators.

#include "../block/fragment_tile.cuh"
#include "../block/implicit_gemm.cuh"
#include "../detail/launch.cuh"
#include "../thread/specialise.hpp"

#include <type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// What accumulators are to be multiplied by, powers of two: per column of the thread, where Scaled.
template <int Columns, int Sets, bool Scaled>
struct gemm_scale
{
  float of_inputs         = 1.0f;
  const float* of_weights = nullptr; ///< of the thread's first column; null for 1

  /// sums[.][4 j + 2 r + e] belongs to column 8 j + e.
  TCONV_DEVICE float2 factors(int j) const
  {
    if (!Scaled || of_weights == nullptr)
    {
      return make_float2(1.0f, 1.0f);
    }
    const float2 w = *reinterpret_cast<const float2*>(of_weights + 8 * j);
    return make_float2(w.x * of_inputs, w.y * of_inputs);
  }
  /// sums = scale * sums.
  TCONV_DEVICE void apply(float (&sums)[Sets][Columns / 2]) const
  {
    if (Scaled && of_weights != nullptr)
    {
      TCONV_PRAGMA_UNROLL
      for (int j = 0; j < Columns / 8; ++j)
      {
        const float2 f = factors(j);
        TCONV_PRAGMA_UNROLL
        for (int set = 0; set < Sets; ++set)
        {
          sums[set][4 * j] *= f.x;
          sums[set][4 * j + 1] *= f.y;
          sums[set][4 * j + 2] *= f.x;
          sums[set][4 * j + 3] *= f.y;
        }
      }
    }
  }
};

/// Finish by storing: the chain on the accumulators, then y.
template <class Chain, class Out>
struct store_gemm_outputs
{
  Chain functors;
  Out* y;
  tensor_strides strides;
  bool vector; ///< see store_fragment()

  /// What a thread keeps from phase to phase: nothing.
  template <class Policy>
  struct state
  {
    template <class... Arguments>
    TCONV_DEVICE void add(const store_gemm_outputs& self, Arguments&&... arguments)
    {
      self.store(static_cast<Arguments&&>(arguments)...);
    }
    TCONV_DEVICE void done(const store_gemm_outputs&, int, int) const {}
  };

private:
  /// \p locate(): the fragment_run of the thread's outputs.
  template <int Columns, int Sets, bool Scaled, class Locate>
  TCONV_DEVICE void store(int n,
                          int out_channels,
                          int first_channel,
                          Locate locate,
                          const gemm_scale<Columns, Sets, Scaled>& scale,
                          float (&sums)[Sets][Columns / 2]) const
  {
    // Rows without padding get code of their own; channel functors are most of an epilogue.
    if (out_channels % Columns == 0)
    {
      finish<Columns, Sets, true>(n, out_channels, first_channel, locate, scale, sums);
    }
    else
    {
      finish<Columns, Sets, false>(n, out_channels, first_channel, locate, scale, sums);
    }
  }

  template <int Columns, int Sets, bool Whole, class Locate, class Scale>
  TCONV_DEVICE void finish(int n,
                           int out_channels,
                           int first_channel,
                           Locate locate,
                           const Scale& scale,
                           float (&sums)[Sets][Columns / 2]) const
  {
    // Opaque, lest addresses of operands are kept in registers through the main loop.
    asm volatile("" : "+r"(first_channel));
    block::fragment_tile<Columns, Sets, Whole> values{sums, n, first_channel, out_channels, {}};
    // Positions are found out when they are needed: as late as possible.
    if constexpr (Chain::per_position)
    {
      values.run = locate();
    }
    const auto all   = detail::specialise(functors);
    const auto store = [&](const auto& rest) {
      if constexpr (!Chain::per_position)
      {
        values.run = locate();
      }
      // A chain that reduces the channels leaves one.
      block::store_fragment(
        values, y + n * strides.sample, strides, Chain::reduces_channels ? 1 : out_channels, vector, rest);
    };
    if constexpr (Chain::across_channels && !Chain::reduces_channels)
    {
      // What follows the channels is applied as outputs leave: there it may write where a store reads.
      finish_values(detail::through_rows(all), scale, values);
      store(detail::behind_rows(all));
    }
    else
    {
      finish_values(all, scale, values);
      store(chain<>());
    }
  }

  template <class Scale, class Tile, class... Functors>
  TCONV_DEVICE static void finish_values(const chain<Functors...>& all, const Scale& scale, Tile& values)
  {
    scale.apply(values.sums);
    apply(all, values);
  }
  /// Scales are powers of two: one multiply-add gives the same bits.
  template <class Scale, class Tile, class... Rest>
  TCONV_DEVICE static void finish_values(const chain<bias, Rest...>& all, const Scale& scale, Tile& values)
  {
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < Tile::channels(); ++c)
    {
      const float2 f     = scale.factors(c / 2);
      const float factor = c % 2 == 0 ? f.x : f.y;
      const float offset = all.first.bind(values.at(c)).value;
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < Tile::positions(); ++p)
      {
        values(c, p) = ::fmaf(values(c, p), factor, offset);
      }
    }
    apply(all.rest, values);
  }
};

#if TCONV_DETAIL_HAS_GEMM

/// Adds the products of two inputs of channel \p input and the weights of tap \p tap to those columns of the thread, from \p first_channel on, that
/// have weights for it.
template <class Policy, class In>
TCONV_DEVICE void add_products(float (&sums)[Policy::columns / 2],
                               const gemm_problem& problem,
                               float first,
                               float second,
                               const In* w,
                               int taps,
                               int input,
                               int tap,
                               int first_channel)
{
  // Of the output channels of the input's group, from the thread's first on.
  const int begin = input / problem.in_per_group * problem.out_per_group - first_channel;
  const int end   = begin + problem.out_per_group;
  const In* w_at  = w + (static_cast<int64_t>(input) * problem.out_per_group - begin) * taps
                 + tap; // of the thread's first
  // Opaque, lest all multiples of it are kept in registers through the main loop.
  asm volatile("" : "+r"(taps));
  TCONV_PRAGMA_UNROLL
  for (int c = 0; c < Policy::columns / 4; ++c)
  {
    const int channel = c / 2 * 8 + c % 2;
    if (channel >= begin && channel < end)
    {
      const float weight = to_float(__ldg(w_at + channel * taps));
      float& a           = sums[c / 2 * 4 + c % 2];
      float& b           = sums[c / 2 * 4 + c % 2 + 2];
      a                  = fmaf(first, weight, a);
      b                  = fmaf(second, weight, b);
    }
  }
}

/// A segment as consumers keep it: uniform, and so not in the registers of each thread.
struct tile_view
{
  int channel_tile;
  int n;
  int cell[3];
  int first_plane;
  int exponent;
  int one_by_one;
  int lost;

  tile_view() = default;
  TCONV_DEVICE explicit tile_view(const block::gemm_segment& segment)
      : channel_tile(block::uniform(segment.channel_tile))
      , n(block::uniform(segment.n))
      , cell{block::uniform(segment.cell[0]), block::uniform(segment.cell[1]), block::uniform(segment.cell[2])}
      , first_plane(block::uniform(segment.first_plane))
      , exponent(block::uniform(segment.exponent))
      , one_by_one(block::uniform(segment.one_by_one))
      , lost(block::uniform(segment.lost))
  {}
};

/// Phase number \p index, by all lanes alike: a parameter of the kernel, or an entry of the list in global memory.
TCONV_DEVICE gemm_phase read_phase(const gemm_problem& problem, const gemm_phase* list, int index)
{
  gemm_phase phase = problem.list[index < gemm_problem::listed ? index : 0];
  if (index >= gemm_problem::listed)
  {
    phase            = list[index];
    phase.along[0]   = block::uniform(phase.along[0]);
    phase.along[1]   = block::uniform(phase.along[1]);
    phase.along[2]   = block::uniform(phase.along[2]);
    phase.taps[0]    = block::uniform(phase.taps[0]);
    phase.taps[1]    = block::uniform(phase.taps[1]);
    phase.shifts     = block::uniform(phase.shifts);
    phase.plane      = block::uniform(phase.plane);
    phase.plane_step = block::uniform(phase.plane_step);
    phase.row        = block::uniform(phase.row);
    phase.row_step   = block::uniform(phase.row_step);
    phase.first_step = block::uniform(phase.first_step);
  }
  return phase;
}

/// The tap that brings the input \p shift cells before it to an output of phase \p along, or -1.
TCONV_DEVICE int landing_tap(const conv_axis& axis, int along, int shift)
{
  const int64_t scaled = static_cast<int64_t>(shift) * axis.stride + along + axis.padding;
  if (scaled < 0 || scaled > (axis.kernel - 1) * axis.dilation)
  {
    return -1;
  }
  // Fits 32 bits: a kernel reaches no further.
  const auto t = static_cast<unsigned>(scaled) / static_cast<unsigned>(axis.dilation);
  return t * static_cast<unsigned>(axis.dilation) == static_cast<unsigned>(scaled) ? static_cast<int>(t) : -1;
}

/// The input shift of tap \p t on outputs of phase \p along; false where the tap does not land there.
TCONV_DEVICE bool landing_shift(const conv_axis& axis, int along, int t, int& shift)
{
  const auto stride = static_cast<int>(axis.stride);
  const int origin  = t * static_cast<int>(axis.dilation) - static_cast<int>(axis.padding) - along;
  shift             = origin / stride;
  return shift * stride == origin;
}

/// All accumulators of a thread become \p v.
template <class Policy>
TCONV_DEVICE void set_accumulators(block::gemm_accumulators<Policy>& sums, float v)
{
  TCONV_PRAGMA_UNROLL
  for (int set = 0; set < Policy::sets; ++set)
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < Policy::columns / 2; ++i)
    {
      sums[set][i] = v;
    }
  }
}

/// All outputs of the thread in fp32, from global memory: for tiles whose magnitudes the split form cannot hold.
template <class Policy, class In>
TCONV_DEVICE void multiply_one_by_one(block::gemm_accumulators<Policy>& sums,
                                      const gemm_problem& problem,
                                      const tile_view& tile,
                                      const block::gemm_cells& thread,
                                      const gemm_phase& phase,
                                      int first_channel,
                                      const In* x,
                                      const In* w)
{
  const conv_axis* axis = problem.axis;
  const auto all        = static_cast<int>(axis[0].kernel * axis[1].kernel * axis[2].kernel);
  const int first_input = problem.first_input(tile.channel_tile);
  const int last_input  = min(first_input + problem.tile_inputs, static_cast<int>(problem.in_channels));
  const auto in_d       = static_cast<int>(axis[0].in);
  const auto in_h       = static_cast<int>(axis[1].in);
  const auto in_w       = static_cast<int>(axis[2].in);
  set_accumulators<Policy>(sums, 0.0f);
  const In* sample = x + tile.n * problem.x.sample;
#  pragma unroll 1
  for (int tap = 0; tap < all; ++tap)
  {
    const int tw = tap % static_cast<int>(axis[2].kernel);
    const int th = tap / static_cast<int>(axis[2].kernel) % static_cast<int>(axis[1].kernel);
    const int td = tap / static_cast<int>(axis[2].kernel) / static_cast<int>(axis[1].kernel);
    int shift[3];
    if (!landing_shift(axis[0], phase.along[0], td, shift[0]) || !landing_shift(axis[1], phase.along[1], th, shift[1]))
    {
      continue;
    }
    const int xd      = tile.cell[0] + thread.cell[0] - shift[0];
    const int xh      = tile.cell[1] + thread.cell[1] - shift[1];
    const bool inside = xd >= 0 && xd < in_d && xh >= 0 && xh < in_h;
    TCONV_PRAGMA_UNROLL
    for (int set = 0; set < Policy::sets; ++set)
    {
      if (!landing_shift(axis[2], phase.along[2] + set, tw, shift[2]))
      {
        continue;
      }
      const int xw    = tile.cell[2] + thread.cell[2] - shift[2];
      const bool in_a = inside && xw >= 0 && xw < in_w;
      const bool in_b = inside && xw + 1 >= 0 && xw + 1 < in_w;
      const In* at    = sample + ((static_cast<int64_t>(xd) * in_h + xh) * in_w + xw) * problem.x.position
                   + first_input * problem.x.channel;
#  pragma unroll 1
      for (int ci = first_input; ci < last_input; ++ci)
      {
        const float a = in_a ? to_float(at[0]) : 0.0f;
        const float b = in_b ? to_float(at[problem.x.position]) : 0.0f;
        add_products<Policy>(sums[set], problem, a, b, w, all, ci, tap, first_channel);
        at += problem.x.channel;
      }
    }
  }
}

/// Adds the products of the inputs that were staged as 0. \p turn: of the lists, where there are chunks.
template <class Policy, class In>
TCONV_DEVICE void add_lost_products(block::gemm_accumulators<Policy>& sums,
                                    const gemm_problem& problem,
                                    const block::gemm_cells& thread,
                                    const gemm_phase& phase,
                                    int first_plane,
                                    int turn,
                                    int first_channel,
                                    const In* w)
{
  const conv_axis* axis = problem.axis;
  const auto all        = static_cast<int>(axis[0].kernel * axis[1].kernel * axis[2].kernel);
  const bool whole      = problem.chunks() == 1;
  const block::lost_lists lists(problem);
#  pragma unroll 1
  for (int e = 0; e < (whole ? problem.planes : 1); ++e)
  {
    const int slot = first_plane + e < problem.ring_planes ? first_plane + e : first_plane + e - problem.ring_planes;
#  pragma unroll 1
    for (int warp = 0; warp < Policy::staging_warps; ++warp)
    {
      const int list  = whole ? slot : turn;
      const int count = block::control_data().lost_count[list][warp];
#  pragma unroll 1
      for (int i = 0; i < count; ++i)
      {
        const block::lost_input input = lists.at(list, warp)[i];
        const int plane               = whole ? e : input.plane;
        const int td = landing_tap(axis[0], phase.along[0], thread.cell[0] + problem.most_shift[0] - plane);
        const int th = landing_tap(axis[1], phase.along[1], thread.cell[1] + problem.most_shift[1] - input.row);
        if (td < 0 || th < 0)
        {
          continue;
        }
        TCONV_PRAGMA_UNROLL
        for (int set = 0; set < Policy::sets; ++set)
        {
          TCONV_PRAGMA_UNROLL
          for (int cell = 0; cell < 2; ++cell)
          {
            const int tw = landing_tap(
              axis[2], phase.along[2] + set, thread.cell[2] + cell + problem.left - input.position);
            if (tw >= 0)
            {
              const int tap = (td * static_cast<int>(axis[1].kernel) + th) * static_cast<int>(axis[2].kernel) + tw;
              add_products<Policy>(sums[set],
                                   problem,
                                   cell == 0 ? input.value : 0.0f,
                                   cell == 1 ? input.value : 0.0f,
                                   w,
                                   all,
                                   input.channel,
                                   tap,
                                   first_channel);
            }
          }
        }
      }
    }
  }
}

/// What the warp that streams weights does, by its copying threads.
template <class Products>
TCONV_DEVICE void stream_weights(
  const gemm_problem& problem, int first_tile, int last_tile, const unsigned char* packed, const gemm_phase* list)
{
  const int phases  = problem.total_phases();
  const int chunks  = problem.chunks();
  const int pieces  = problem.piece_bytes();
  const int at_once = problem.steps_per_stage;
  block::ring_place place;
  bool filled                  = false; // the ring has been filled once
  block::gemm_control& control = block::control_data();
  for (int index = first_tile; index < last_tile; ++index)
  {
    const int channel_tile = block::locate_gemm_tile(problem, index).channel_tile;
    for (int p = 0; p < phases; ++p)
    {
      const unsigned char* source =
        packed + (static_cast<int64_t>(channel_tile) * phases + p) * problem.phase_stages * problem.stage_bytes;
      const gemm_phase& phase = p < gemm_problem::listed ? problem.list[p] : list[p];
      const int rows          = phase.taps[0] * phase.taps[1];
      const int shifts        = phase.shifts;
      // This warp must keep up with all others: stages of whole blocks of channels, as most are, have as many pieces as each
      // other.
      const auto pieces_at = [&](int shift) {
        const int room = problem.unit_room();
        return __popc(static_cast<unsigned>(problem.present >> (room * shift)) & ((1U << room) - 1));
      };
      int common = 0;
      if (problem.sets > 1 && shifts > 0 && at_once % shifts == 0)
      {
        for (int j = 0; j < shifts; ++j)
        {
          common += at_once / shifts * pieces_at(j);
        }
      }
      for (int chunk = 0; chunk < chunks; ++chunk)
      {
        const int steps = problem.blocks_of(chunk) * shifts;
        for (int row = 0; row < rows; ++row)
        {
          for (int step = 0; step < steps; step += at_once)
          {
            const int end = step + at_once < steps ? step + at_once : steps;
            int count     = problem.sets == 1 ? end - step : common;
            if (problem.sets > 1 && (step + at_once > steps || common == 0))
            {
              count     = 0;
              int shift = step % shifts;
              for (int i = step; i < end; ++i)
              {
                count += pieces_at(shift);
                shift = shift + 1 < shifts ? shift + 1 : 0;
              }
            }
            const auto bytes = static_cast<unsigned>(count * pieces);
            if (filled)
            {
              block::wait_barrier(&control.empty[place.slot], place.parity ^ 1);
            }
            Products::copy(block::gemm_memory() + problem.ring_at + place.slot * problem.stage_bytes,
                           source,
                           bytes,
                           &control.full[place.slot]);
            source += problem.stage_bytes;
            place.advance(problem.stages);
            filled = filled || place.slot == 0;
          }
        }
      }
    }
    if (problem.resident)
    {
      return;
    }
  }
}

/// What stage_first_tile() returns where it has staged nothing.
inline constexpr int not_staged = 1 << 20;

/// The slot of plane \p e of a tile whose first plane is in slot \p first_plane of the ring.
TCONV_DEVICE int slot_of_plane(const gemm_problem& problem, int first_plane, int e)
{
  return first_plane + e < problem.ring_planes ? first_plane + e : first_plane + e - problem.ring_planes;
}

/// Whether inputs of which \p peak is the largest magnitude are fp16 numbers when they have been multiplied by 2^exponent.
TCONV_DEVICE bool fits_scaled(float peak, int exponent)
{
  return peak * block::power_of_two(exponent) < 60000.0f;
}

/// The exponent for inputs of which \p peak is the largest magnitude, where \p exponent does not suit them. It does where they fit and, unless
/// \p growing, are not much smaller.
TCONV_DEVICE int suitable_exponent(float peak, int exponent, bool growing)
{
  const bool small = peak * block::power_of_two(exponent) < 2048.0f;
  if (peak == 0.0f || (fits_scaled(peak, exponent) && (!small || growing)))
  {
    return exponent;
  }
  // The largest in [2^13, 2^14): room for tiles with larger inputs.
  const int wanted = block::first_exponent - ilogbf(peak);
  return wanted < -60 ? -60 : (wanted > 60 ? 60 : wanted);
}

/// Stages the input of a block's first tile by all its warps, for which nobody has anything else to do. Returns the exponent of its inputs. Where
/// they need more care, or come in chunks, it leaves them to the staging warps and returns not_staged. Called by the whole block.
template <class Policy, gemm_form Form, class In>
TCONV_DEVICE int stage_first_tile(const gemm_problem& problem, int tile, const In* x)
{
  constexpr int warps = Policy::threads / 32;
  if (problem.chunks() > 1)
  {
    return not_staged;
  }
  block::gemm_control& control = block::control_data();
  const int warp               = block::uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane               = static_cast<int>(threadIdx.x) % 32;
  block::plane_stager<Form, warps, In> stager(problem, x, block::find_input_vector(problem, x), warp, lane);
  stager.aim(tile, 0);
  const int first_plane = problem.planes % problem.ring_planes;
  int exponent          = block::first_exponent;
  for (int attempt = 0; attempt < 2; ++attempt)
  {
    if constexpr (Form == gemm_form::split)
    {
      for (int i = static_cast<int>(threadIdx.x); i < problem.planes * Policy::staging_warps; i += Policy::threads)
      {
        const int slot = slot_of_plane(problem, first_plane, i / Policy::staging_warps);
        control.plane_peak[slot][i % Policy::staging_warps] = 0.0f;
        control.lost_count[slot][i % Policy::staging_warps] = 0;
      }
      __syncthreads();
    }
#  pragma unroll 1
    for (int e = 0; e < problem.planes; ++e)
    {
      stager.copy_plane(e, slot_of_plane(problem, first_plane, e));
    }
    stager.await_copies();
    int lost = 0;
#  pragma unroll 1
    for (int e = 0; e < problem.planes; ++e)
    {
      const int slot = slot_of_plane(problem, first_plane, e);
      float peak     = 0.0f;
      lost += stager.convert_plane(e, slot, exponent, peak, nullptr, 0, 0);
      if constexpr (Form == gemm_form::split)
      {
        // Magnitudes are ordered as their bits are.
        const unsigned most = __reduce_max_sync(0xffffffffu, __float_as_uint(peak));
        if (lane == 0)
        {
          atomicMax(reinterpret_cast<unsigned*>(&control.plane_peak[slot][0]), most);
        }
      }
    }
    if (__syncthreads_or(lost) != 0)
    {
      return not_staged;
    }
    if constexpr (Form != gemm_form::split)
    {
      return exponent;
    }
    float peak = 0.0f;
    for (int e = 0; e < problem.planes; ++e)
    {
      peak = fmaxf(peak, control.plane_peak[slot_of_plane(problem, first_plane, e)][0]);
    }
    __syncthreads(); // everyone has read the peaks
    const int wanted = suitable_exponent(peak, exponent, false);
    if (wanted == exponent)
    {
      return fits_scaled(peak, exponent) ? exponent : not_staged; // beyond every exponent
    }
    exponent = wanted;
  }
  return not_staged;
}

/// The warps that stage the input, one segment (a tile, or a chunk of its channels for one phase) ahead of the consumers. \p first_exponent: of the first
/// tile, where it is staged.
template <class Policy, gemm_form Form, class In>
TCONV_DEVICE void
stage_tiles(const gemm_problem& problem, int first_tile, int last_tile, const In* x, int first_exponent)
{
  constexpr int warps = Policy::staging_warps;
  static_assert(warps <= block::gemm_control::warps, "tconv: one list of lost inputs per staging warp");
  block::gemm_control& control = block::control_data();
  const int warp               = block::uniform(static_cast<int>(threadIdx.x) / 32) - (Policy::threads / 32 - warps);
  const int lane               = static_cast<int>(threadIdx.x) % 32;
  block::plane_stager<Form, warps, In> stager(problem, x, block::find_input_vector(problem, x), warp, lane);

  const int planes  = problem.planes;
  const int ring    = problem.ring_planes;
  const int chunks  = problem.chunks();
  const int repeats = chunks == 1 ? 1 : problem.total_phases() * chunks;
  const block::lost_lists lists(problem);
  int first_plane = 0;
  int exponent    = first_exponent != not_staged ? first_exponent : block::first_exponent;
  int segment     = 0;
  int listed      = 0; // lost inputs of this warp in earlier chunks
  for (int index = first_tile; index < last_tile; ++index)
  {
#  pragma unroll 1
    for (int repeat = 0; repeat < repeats; ++repeat, ++segment)
    {
      const int chunk     = repeat % chunks;
      const int turn      = segment / chunks & 1; // of lists, where there are chunks
      const auto wait_for = [&](int other) {
        if (other >= 0)
        {
          block::wait_barrier(&control.used[other & 1], static_cast<unsigned>(other >> 1) & 1);
        }
      };
      wait_for(segment - 2);
      // Planes that the tile before it has staged already.
      const bool follows = chunks == 1 && index > first_tile && planes > problem.box[0]
                        && index % problem.tiles[0] != 0;
      const int kept = follows ? planes - problem.box[0] : 0;
      first_plane    = (first_plane + planes - kept) % ring;
      if (2 * planes - kept > ring)
      {
        wait_for(segment - 1);
      }

      bool one_by_one = false;
      bool lost       = false;
      listed          = chunk == 0 ? 0 : listed;
      for (int begin = kept;; begin = 0)
      {
        if (segment == 0 && first_exponent != not_staged)
        {
          break;
        }
        const auto slot_of = [&](int e) { return slot_of_plane(problem, first_plane, e); };
        stager.aim(block::opaque(index), chunk);
        // All planes are under way at once.
#  pragma unroll 1
        for (int e = begin; e < planes; ++e)
        {
          stager.copy_plane(e, slot_of(e));
        }
        stager.await_copies();
        int gone = listed;
#  pragma unroll 1
        for (int e = begin; e < planes; ++e)
        {
          const int slot = slot_of(e);
          const int list = chunks == 1 ? slot : turn;
          float peak     = 0.0f;
          gone           = chunks == 1 ? 0 : gone;
          gone           = stager.convert_plane(e, slot, exponent, peak, lists.at(list, warp), lists.room, gone);
          if constexpr (Form == gemm_form::split)
          {
            peak = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(peak)));
            if (lane == 0)
            {
              control.lost_count[list][warp] = gone;
              control.plane_peak[slot][warp] = peak;
            }
          }
        }
        if constexpr (Form != gemm_form::split)
        {
          break;
        }
        block::synchronize_staging<warps * 32>();
        // Magnitudes are ordered as their bits are.
        unsigned most      = 0;
        unsigned most_lost = 0;
#  pragma unroll 1
        for (int i = lane; i < planes * warps; i += 32)
        {
          const int slot = slot_of(i / warps);
          most           = max(most, __float_as_uint(control.plane_peak[slot][i % warps]));
          most_lost = max(most_lost, static_cast<unsigned>(control.lost_count[chunks == 1 ? slot : turn][i % warps]));
        }
        const float peak = __uint_as_float(__reduce_max_sync(0xffffffffu, most));
        most_lost        = __reduce_max_sync(0xffffffffu, most_lost);
        lost             = most_lost > 0;
        one_by_one       = most_lost > static_cast<unsigned>(lists.room);
        // The scale was chosen for the tile before. Where it does not suit this one, everything is staged again. Later chunks of a
        // phase must not scale up what is already accumulated.
        const int wanted = suitable_exponent(peak, exponent, chunk > 0);
        if (wanted == exponent)
        {
          one_by_one = one_by_one || !fits_scaled(peak, exponent); // beyond every exponent
          break;
        }
        exponent = wanted;
        wait_for(segment - 1);
        block::synchronize_staging<warps * 32>(); // everyone has read the peaks
      }
      if constexpr (Form == gemm_form::split)
      {
        listed = chunks == 1 ? 0 : control.lost_count[turn][warp];
      }
      if (warp == 0 && lane == 0)
      {
        const block::gemm_tile tile  = block::locate_gemm_tile(problem, block::opaque(index));
        control.segment[segment & 1] = {tile.channel_tile,
                                        tile.n,
                                        {tile.cell[0], tile.cell[1], tile.cell[2]},
                                        first_plane,
                                        exponent,
                                        one_by_one,
                                        lost};
      }
      block::arrive_barrier(&control.staged[segment & 1]);
    }
  }
}

/// The channel tile of tile \p index.
TCONV_DEVICE int tile_of_channels(const gemm_problem& problem, int index)
{
  return problem.channel_tiles == 1
         ? 0
         : index / (static_cast<int>(problem.batch) * problem.tiles[0] * problem.tiles[1] * problem.tiles[2]);
}

/// Where a consumer warpgroup stands.
template <class Products>
struct consumer_state
{
  block::ring_place place;
  int segment = 0; ///< number of the next one
  tile_view tile{};

  TCONV_DEVICE void await_segment()
  {
    block::gemm_control& control = block::control_data();
    block::wait_barrier(&control.staged[segment & 1], static_cast<unsigned>(segment >> 1) & 1);
    tile = tile_view(control.segment[segment & 1]);
  }
  TCONV_DEVICE void release_segment()
  {
    Products::release(&block::control_data().used[segment & 1]);
    ++segment;
  }
};

/// Adds the products of the next stages of \p walk, an even number of them; returns how many of \p steps steps are left. Two groups of products are under
/// way at a time, of one stage each.
template <class Policy, gemm_form Form, class Steps>
TCONV_DEVICE int multiply_ahead(
  block::gemm_accumulators<Policy>& sums, const gemm_problem& problem, int steps, Steps& walk, block::ring_place& place)
{
  using products               = block::gemm_products<Policy::instruction>;
  block::gemm_control& control = block::control_data();
  if (problem.steps_per_stage != Steps::group || steps < 2 * Steps::group)
  {
    return steps;
  }
  int before       = -1; // slot of the stage that is under way
  const auto start = [&](auto& fragments) {
    block::wait_barrier(&control.full[place.slot], place.parity);
    walk.start(sums,
               problem,
               fragments,
               products::template locate<Form, Policy::unit_columns>(block::gemm_memory() + problem.ring_at
                                                                     + place.slot * problem.stage_bytes));
    products::template await<1>();
    if (before >= 0)
    {
      products::release(&control.empty[before]);
    }
    before = place.slot;
    place.advance(problem.stages);
  };
  block::gemm_fragment<Form> even[Steps::group];
  block::gemm_fragment<Form> odd[Steps::group];
#  pragma unroll 1
  for (; steps >= 2 * Steps::group; steps -= 2 * Steps::group)
  {
    start(even);
    start(odd);
  }
  products::template await<0>();
  products::release(&control.empty[before]);
  return steps;
}

/// Adds the products of one phase with \p blocks staged blocks of input channels. \p first_plane: slot of the tile's first plane.
/// \p place: of the next stage of weights, moves on.
template <class Policy, gemm_form Form, class Steps>
TCONV_DEVICE void multiply_rows(block::gemm_accumulators<Policy>& sums,
                                const gemm_problem& problem,
                                const gemm_phase& phase,
                                int blocks,
                                int first_plane,
                                block::ring_place& place)
{
  using products               = block::gemm_products<Policy::instruction>;
  block::gemm_control& control = block::control_data();
  const block::gemm_pair pair  = control.pair[block::own_pair()];
  // Of the first tap along h; planes follow each other in a ring.
  const auto offset =
    static_cast<unsigned>(phase.row + pair.offset + block::own_thread() % 4 * gemm_form_traits::of(Form).lane_bytes);
  const int steps = blocks * phase.shifts;
  int plane       = first_plane + block::gemm_cells(pair).cell[0] + phase.plane;
#  pragma unroll 1
  for (int d = 0; d < phase.taps[0]; ++d)
  {
    const int slot           = plane >= problem.ring_planes ? plane - problem.ring_planes : plane;
    const unsigned char* row = block::gemm_memory()
                             + (problem.staged_at + static_cast<unsigned>(slot * problem.plane_bytes()) + offset);
#  pragma unroll 1
    for (int h = 0; h < phase.taps[1]; ++h)
    {
      Steps walk(problem, phase, row);
      int rest = steps;
      if constexpr (Steps::ahead)
      {
        rest = multiply_ahead<Policy, Form>(sums, problem, rest, walk, place);
      }
#  pragma unroll 1
      for (; rest > 0; rest -= problem.steps_per_stage)
      {
        block::wait_barrier(&control.full[place.slot], place.parity);
        const auto weights = products::template locate<Form, Policy::unit_columns>(
          block::gemm_memory() + problem.ring_at + place.slot * problem.stage_bytes);
        const int now = rest < problem.steps_per_stage ? rest : problem.steps_per_stage;
        if constexpr (Form == gemm_form::split && Policy::promoted && !Policy::promoted_steps)
        {
          // The tensor core truncates: what it adds up is a stage, no more.
          block::gemm_accumulators<Policy> stage;
          set_accumulators<Policy>(stage, 0.0f);
          walk.multiply(stage, problem, phase, now, weights);
          TCONV_PRAGMA_UNROLL
          for (int set = 0; set < Policy::sets; ++set)
          {
            TCONV_PRAGMA_UNROLL
            for (int i = 0; i < Policy::columns / 2; ++i)
            {
              sums[set][i] += stage[set][i];
            }
          }
        }
        else
        {
          walk.multiply(sums, problem, phase, now, weights);
        }
        products::release(&control.empty[place.slot]); // nobody waits where weights are resident
        place.advance(problem.stages);
      }
      row += phase.row_step;
    }
    plane += phase.plane_step;
  }
}

/// All phases of one tile. \p Careful: with what only a few tiles of the split form need; apart from the others, whose registers it
/// would cost. \p new_channels: the tile is the first of the block with its channels. \p result: what \p finish keeps.
template <class Policy, gemm_form Form, bool Careful, class Finish, class Result, class In>
TCONV_DEVICE void multiply_tile(const gemm_problem& problem,
                                consumer_state<block::gemm_products<Policy::instruction>>& state,
                                bool new_channels,
                                const In* x,
                                const In* w,
                                const gemm_phase* list,
                                const float* inverse_scales,
                                const Finish& finish,
                                Result& result)
{
  using block::uniform;
  constexpr int threads        = Policy::consumers * 128;
  block::gemm_control& control = block::control_data();
  const int chunks             = problem.chunks();
  const int phases             = problem.total_phases();
#  pragma unroll 1
  for (int p = 0; p < phases; ++p)
  {
    block::gemm_accumulators<Policy> sums;
    set_accumulators<Policy>(sums, 0.0f);
    const gemm_phase phase = read_phase(problem, list, p);
    int exponent           = 0;
    bool one_by_one        = Careful && uniform(control.one_by_one) != 0;
#  pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk)
    {
      if (chunks > 1)
      {
        state.await_segment();
      }
      if constexpr (Careful)
      {
        one_by_one       = one_by_one || state.tile.one_by_one != 0;
        const int change = state.tile.exponent - exponent;
        if (chunk > 0 && change != 0)
        {
          // Only downwards: inputs of this chunk are larger.
          one_by_one         = one_by_one || change < -60;
          const float factor = block::power_of_two(change < -60 ? -60 : change);
          TCONV_PRAGMA_UNROLL
          for (int set = 0; set < Policy::sets; ++set)
          {
            TCONV_PRAGMA_UNROLL
            for (int i = 0; i < Policy::columns / 2; ++i)
            {
              sums[set][i] *= factor;
            }
          }
        }
      }
      exponent            = state.tile.exponent;
      const auto multiply = [&](auto steps) {
        multiply_rows<Policy, Form, typename decltype(steps)::type>(
          sums, problem, phase, problem.blocks_of(chunk), state.tile.first_plane, state.place);
      };
      using known_rows = std::conditional_t<gemm_row_pays(Policy::units, Form, Policy::promoted),
                                            typename gemm_known_rows<Policy::units>::list,
                                            unsigned_list<>>;
      block::visit_steps<Policy, Form>(problem, multiply, known_rows{});
      if (chunks > 1 && chunk + 1 < chunks)
      {
        state.release_segment();
      }
    }

    const tile_view& tile   = state.tile;
    const int lane          = block::own_thread() % 32;
    const int first_channel = tile.channel_tile * Policy::columns + lane % 4 * 2;
    gemm_scale<Policy::columns, Policy::sets, Form == gemm_form::split> scale{};
    if constexpr (Form == gemm_form::split)
    {
      if (p == 0 && new_channels)
      {
        block::synchronize_consumers<threads>(); // nobody uses the old ones
        for (int i = static_cast<int>(threadIdx.x); i < Policy::columns; i += threads)
        {
          control.inverse_scale[i] = inverse_scales[tile.channel_tile * Policy::columns + i];
        }
        block::synchronize_consumers<threads>();
      }
      scale.of_inputs  = block::power_of_two(-exponent);
      scale.of_weights = control.inverse_scale + lane % 4 * 2;
      if constexpr (Careful)
      {
        const block::gemm_cells own(control.pair[block::own_pair()]);
        if (one_by_one)
        {
          scale = {};
          multiply_one_by_one<Policy>(sums, problem, tile, own, phase, first_channel, x, w);
        }
        else if (tile.lost != 0)
        {
          scale.apply(sums);
          scale = {};
          add_lost_products<Policy>(
            sums, problem, own, phase, tile.first_plane, state.segment / chunks & 1, first_channel, w);
        }
      }
    }

    const auto locate_outputs = [&] {
      const block::gemm_cells cells(control.pair[block::own_pair()]);
      int o[3];
      for (int a = 0; a < 3; ++a)
      {
        o[a] = (tile.cell[a] + cells.cell[a]) * static_cast<int>(problem.axis[a].stride) + phase.along[a];
      }
      const auto out_d = static_cast<int>(problem.axis[0].out);
      const auto out_h = static_cast<int>(problem.axis[1].out);
      const auto out_w = static_cast<int>(problem.axis[2].out);
      block::fragment_run run;
      run.step          = Policy::sets > 1 ? 1 : static_cast<int>(problem.axis[2].stride);
      run.first         = (static_cast<int64_t>(o[0]) * out_h + o[1]) * out_w + o[2];
      const bool inside = cells.active && o[0] < out_d && o[1] < out_h && o[2] < out_w;
      // Of the two cells.
      const int present = Policy::sets > 1 ? out_w - o[2] : (o[2] + run.step < out_w ? 2 : 1);
      run.sets          = Policy::sets > 2 ? problem.sets : Policy::sets;
      run.count         = inside ? (present < 2 * run.sets ? present : 2 * run.sets) : 0;
      if constexpr (Policy::exchange_bytes > 0)
      {
        run.exchange = reinterpret_cast<float*>(block::gemm_memory() + problem.exchange_at
                                                + block::own_thread() / 32 * Policy::exchange_bytes);
      }
      return run;
    };
    result.add(finish, tile.n, static_cast<int>(problem.out_channels), first_channel, locate_outputs, scale, sums);
    if (chunks > 1)
    {
      state.release_segment();
    }
  }
}

/// The warpgroups that multiply and finish.
template <class Policy, gemm_form Form, class Finish, class In>
TCONV_DEVICE void multiply_tiles(const gemm_problem& problem,
                                 int first_tile,
                                 int last_tile,
                                 const In* x,
                                 const In* w,
                                 const gemm_phase* list,
                                 const float* inverse_scales,
                                 const Finish& finish)
{
  const bool whole       = problem.chunks() == 1;
  const bool all_careful = Form == gemm_form::split && block::uniform(block::control_data().one_by_one) != 0;
  consumer_state<block::gemm_products<Policy::instruction>> state;
  typename Finish::template state<Policy> result;
#  pragma unroll 1
  for (int index = first_tile; index < last_tile; ++index)
  {
    if (whole)
    {
      state.await_segment();
    }
    if (problem.resident)
    {
      state.place = block::ring_place{}; // filled once, so that the parity stays
    }
    const bool new_channels = index == first_tile
                           || tile_of_channels(problem, index) != tile_of_channels(problem, index - 1);
    if (new_channels && index != first_tile)
    {
      result.done(finish, tile_of_channels(problem, index - 1), static_cast<int>(problem.out_channels));
    }
    bool careful = false;
    if constexpr (Form == gemm_form::split)
    {
      careful = all_careful || !whole || (state.tile.one_by_one | state.tile.lost) != 0;
      if (careful)
      {
        multiply_tile<Policy, Form, true>(problem, state, new_channels, x, w, list, inverse_scales, finish, result);
      }
    }
    if (!careful)
    {
      multiply_tile<Policy, Form, false>(problem, state, new_channels, x, w, list, inverse_scales, finish, result);
    }
    if (whole)
    {
      state.release_segment();
    }
  }
  // The last, and the channels of which the block had no tile.
  const int last = tile_of_channels(problem, last_tile - 1);
  result.done(finish, last, static_cast<int>(problem.out_channels));
#  pragma unroll 1
  for (int i = 0; i < problem.channel_tiles; ++i)
  {
    if (i < tile_of_channels(problem, first_tile) || i > last)
    {
      result.done(finish, i, static_cast<int>(problem.out_channels));
    }
  }
}

#endif

/// Transposed convolution on the tensor cores, a range of tiles per block; \p Finish says what becomes of the outputs: its state<Policy>
/// gets those of every tile and phase by add(), and by done() the channel tiles that no more come of, which it leaves empty. Follows
/// prepare_implicit_gemm on the stream. \p w: the weights before packing.
template <class Policy, gemm_form Form, class Finish, class In>
__global__ __launch_bounds__(Policy::threads, 1) void implicit_gemm(const __grid_constant__ gemm_problem problem,
                                                                    const In* x,
                                                                    const In* w,
                                                                    const unsigned char* packed,
                                                                    const gemm_phase* phases,
                                                                    const gemm_step* steps,
                                                                    const float* inverse_scales,
                                                                    const unsigned* lost_weights,
                                                                    int lost_count,
                                                                    const __grid_constant__ Finish finish)
{
#if TCONV_DETAIL_HAS_GEMM
  using products = block::gemm_products<Policy::instruction>;
  if constexpr (products::exist)
  {
    block::gemm_control& control = block::control_data();
    const int first_tile         = static_cast<int>(problem.total_tiles() * blockIdx.x / gridDim.x);
    const int last_tile          = static_cast<int>(problem.total_tiles() * (blockIdx.x + 1) / gridDim.x);
    if (threadIdx.x < Policy::rows / 2)
    {
      control.pair[threadIdx.x] = block::gemm_cells::pack(problem, static_cast<int>(threadIdx.x));
    }
    if (threadIdx.x == 0)
    {
      control.one_by_one = 0;
      for (int i = 0; i < problem.stages; ++i)
      {
        cuda::ptx::mbarrier_init(&control.full[i], products::copying_threads);
        cuda::ptx::mbarrier_init(&control.empty[i], Policy::consumers * 4);
      }
      for (int i = 0; i < 2; ++i)
      {
        cuda::ptx::mbarrier_init(&control.staged[i], Policy::staging_threads);
        cuda::ptx::mbarrier_init(&control.used[i], Policy::consumers * 4);
      }
      products::publish_barriers();
    }
    __syncthreads();

    // x was complete before the preparing kernel let this one start.
    const int first_exponent = stage_first_tile<Policy, Form>(problem, first_tile, x);
    if (threadIdx.x >= Policy::consumers * 128)
    {
      products::template release_registers<Policy>();
      if (threadIdx.x / 32 == Policy::consumers * 4)
      {
        if (threadIdx.x % 32 < products::copying_threads)
        {
          runtime::grid_dependency_wait();
          stream_weights<products>(problem, first_tile, last_tile, packed, phases);
          products::finish_copies();
        }
      }
      else
      {
        stage_tiles<Policy, Form>(problem, first_tile, last_tile, x, first_exponent);
      }
    }
    else
    {
      products::template take_registers<Policy>();
      runtime::grid_dependency_wait();
      for (int i = static_cast<int>(threadIdx.x); i < problem.table_steps(); i += Policy::consumers * 128)
      {
        block::step_table(problem)[i] = steps[i];
      }
      if constexpr (Form == gemm_form::split)
      {
        for (int i = static_cast<int>(threadIdx.x); i < lost_count; i += Policy::consumers * 128)
        {
          if (lost_weights[i] != 0)
          {
            control.one_by_one = 1; // whoever says so says the same
          }
        }
      }
      block::synchronize_consumers<Policy::consumers * 128>();
      multiply_tiles<Policy, Form>(problem, first_tile, last_tile, x, w, phases, inverse_scales, finish);
    }
  }
  else
#endif
  {
    // Built for an architecture without the instruction, or without TCONV_ENABLE_SM90A: the launcher must not come here.
    asm volatile("trap;");
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
