// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The Hopper tensor-core kernel, and what becomes of its accumulators.

#include "../block/gemm_exchange.cuh"
#include "../block/implicit_gemm.cuh"
#include "../detail/launch.cuh"
#include "../thread/specialise.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// A segment as other warps keep it: uniform, and so not in the registers of each thread.
struct segment_view
{
  int first_plane;
  int exponent;
  int one_by_one;
  int lost;

  segment_view() = default;
  TCONV_DEVICE explicit segment_view(const block::gemm_segment& segment)
      : first_plane(block::uniform(segment.first_plane))
      , exponent(block::uniform(segment.exponent))
      , one_by_one(block::uniform(segment.one_by_one))
      , lost(block::uniform(segment.lost))
  {}
};

/// Where the outputs of \p tile and \p phase stand.
TCONV_DEVICE block::output_places
places_of(const gemm_problem& problem, const block::gemm_tile& tile, const gemm_phase& phase)
{
  const int64_t d = tile.cell[0] * problem.axis[0].stride + phase.along[0];
  const auto h    = tile.cell[1] * static_cast<int>(problem.axis[1].stride) + phase.along[1];
  const auto w    = tile.cell[2] * static_cast<int>(problem.axis[2].stride) + phase.along[2];
  return {d * problem.axis[1].out * problem.axis[2].out,
          {d < problem.axis[0].out ? h : static_cast<int>(problem.axis[1].out), w}};
}

/// Whether the first functor of a chain is a bias.
template <class Chain>
struct starts_with_bias
{
  static constexpr bool value = false; ///< it is not
};
/// A chain that does.
template <class... Rest>
struct starts_with_bias<chain<bias, Rest...>>
{
  static constexpr bool value = true; ///< it is
};

/// Finish by storing: the chain on the outputs, then y.
template <class Chain, class Out>
struct store_gemm_outputs
{
  Chain functors;
  Out* y;
  tensor_strides strides;
  bool vector; ///< every block::store_width() outputs of a row, or channels of a position, may be stored at once

  /// Whether the first functor is a bias, which is added where accumulators leave their registers.
  static constexpr bool biased = starts_with_bias<Chain>::value;

  /// What is added to the channel that \p at says.
  TCONV_DEVICE float offset(const coordinate& at) const
  {
    if constexpr (biased)
    {
      return functors.first.bind(at).value;
    }
    else
    {
      return 0.0f;
    }
  }

  /// Finishes a part. \p correct(tile, output): called, where Careful, before any functor, which have all been left out. Called by
  /// the threads that finish run \p run, \p thread being the calling one.
  template <class Policy, bool Careful, class Correct>
  TCONV_DEVICE void operator()(const gemm_problem& problem,
                               const block::output_places& places,
                               int n,
                               int first_channel,
                               float* exchange,
                               int part,
                               int thread,
                               int run,
                               Correct correct) const
  {
    const auto out_channels = static_cast<int>(problem.out_channels);
    const block::output_target<Out> target{y + n * strides.sample,
                                           strides,
                                           n,
                                           first_channel,
                                           Chain::reduces_channels ? 1 : out_channels,
                                           out_channels,
                                           vector};
    if constexpr (Careful)
    {
      finish_rows<Policy, true, false>(detail::specialise(functors), problem, places, n, first_channel, exchange, part, thread, run, correct);
      block::store_part<Policy>(chain<>(), problem, places, exchange, target, part, thread);
    }
    else if constexpr (Chain::across_channels)
    {
      const auto all = detail::specialise(without_bias(functors));
      // Rows without padding get code of their own; channel functors are most of the work.
      if (out_channels % Policy::channels == 0)
      {
        finish_rows<Policy, false, true>(all, problem, places, n, first_channel, exchange, part, thread, run, correct);
      }
      else
      {
        finish_rows<Policy, false, false>(all, problem, places, n, first_channel, exchange, part, thread, run, correct);
      }
      block::store_part<Policy>(chain<>(), problem, places, exchange, target, part, thread);
    }
    else
    {
      block::store_part<Policy>(without_bias(functors), problem, places, exchange, target, part, thread);
    }
  }

private:
  TCONV_DEVICE static auto without_bias(const Chain& all)
  {
    if constexpr (biased)
    {
      return all.rest;
    }
    else
    {
      return all;
    }
  }

  /// Functors on whole rows, in place in the exchange. On return all have been written.
  template <class Policy, bool Careful, bool Whole, class All, class Correct>
  TCONV_DEVICE static void finish_rows(const All& all,
                                       const gemm_problem& problem,
                                       const block::output_places& places,
                                       int n,
                                       int first_channel,
                                       float* exchange,
                                       int part,
                                       int thread,
                                       int run,
                                       Correct correct)
  {
    using tile_type       = block::exchange_tile<Policy, Whole>;
    constexpr int lanes   = tile_type::lanes;
    static_assert(Policy::finishing_threads / lanes == Policy::part_cells * Policy::sets,
                  "tconv: every thread has 16 channels of an output");
    const block::small_divisor width(problem.width);
    const int share   = thread % lanes * tile_type::hop;
    const auto output = block::part_output::of<Policy>(problem, width, part, thread / lanes);
    float* row        = exchange + output.row * Policy::pitch + share;
    tile_type values;
    values.n              = n;
    values.first_channel  = first_channel + share;
    values.channels_total = static_cast<int>(problem.out_channels);
    values.number         = places.position(problem, output);
    values.load(row);
    if constexpr (Careful)
    {
      correct(values, output);
    }
    apply(all, values);
    values.store(row);
    block::synchronize_finishing<Policy::finishing_threads>(run);
  }
};

/// Where outputs need no correction.
struct nothing_to_correct
{
  template <class Tile>
  TCONV_DEVICE void operator()(Tile&, const block::part_output&) const
  {}
};

#if TCONV_DETAIL_HAS_WGMMA

/// Adds the products of one input and the weights of one tap: \p w_at is the weight of channel 0.
template <class Tile, class In>
TCONV_DEVICE void add_products(Tile& values, float input, const In* w_at, int step)
{
  TCONV_PRAGMA_UNROLL
  for (int c = 0; c < Tile::channels(); ++c)
  {
    const float w = values.valid(c) ? to_float(__ldg(w_at + static_cast<int64_t>(values.channel(c)) * step)) : 0.0f;
    values(c, 0)  = fmaf(input, w, values(c, 0));
  }
}

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
    phase.steps      = block::uniform(phase.steps);
    phase.plane      = block::uniform(phase.plane);
    phase.plane_step = block::uniform(phase.plane_step);
    phase.row        = block::uniform(phase.row);
    phase.row_step   = block::uniform(phase.row_step);
    for (gemm_series& series : phase.series)
    {
      series = {block::uniform(series.count), block::uniform(series.position), block::uniform(series.step)};
    }
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

/// Forms an output in fp32, from global memory: for tiles whose magnitudes the split form cannot hold.
template <class Tile, class In>
TCONV_DEVICE void multiply_one_by_one(Tile& values,
                                      const gemm_problem& problem,
                                      const block::gemm_tile& tile,
                                      const gemm_phase& phase,
                                      const block::part_output& output,
                                      const In* x,
                                      const In* weights)
{
  const conv_axis* axis = problem.axis;
  const auto all        = static_cast<int>(axis[0].kernel * axis[1].kernel * axis[2].kernel);
  const auto in_d       = static_cast<int>(axis[0].in);
  const auto in_h       = static_cast<int>(axis[1].in);
  const auto in_w       = static_cast<int>(axis[2].in);
  TCONV_PRAGMA_UNROLL
  for (int c = 0; c < Tile::channels(); ++c)
  {
    values(c, 0) = 0.0f;
  }
  const In* sample = x + tile.n * problem.x.sample;
#pragma unroll 1
  for (int tap = 0; tap < all; ++tap)
  {
    const int tw = tap % static_cast<int>(axis[2].kernel);
    const int th = tap / static_cast<int>(axis[2].kernel) % static_cast<int>(axis[1].kernel);
    const int td = tap / static_cast<int>(axis[2].kernel) / static_cast<int>(axis[1].kernel);
    int shift[3];
    if (!landing_shift(axis[0], phase.along[0], td, shift[0]) || !landing_shift(axis[1], phase.along[1], th, shift[1])
        || !landing_shift(axis[2], phase.along[2] + output.set, tw, shift[2]))
    {
      continue;
    }
    const int d = tile.cell[0] - shift[0];
    const int h = tile.cell[1] + output.cell[0] - shift[1];
    const int w = tile.cell[2] + output.cell[1] - shift[2];
    if (d < 0 || d >= in_d || h < 0 || h >= in_h || w < 0 || w >= in_w)
    {
      continue;
    }
    const In* input = sample + ((static_cast<int64_t>(d) * in_h + h) * in_w + w) * problem.x.position;
    const In* w_at  = weights + tap;
#pragma unroll 1
    for (int ci = 0; ci < static_cast<int>(problem.in_channels); ++ci)
    {
      add_products(values, to_float(*input), w_at, all);
      input += problem.x.channel;
      w_at += problem.out_channels * all;
    }
  }
}

/// Adds the products of the inputs that were staged as 0. \p first: the first cell of the run in its tile.
template <class Policy, class Tile, class In>
TCONV_DEVICE void add_lost_products(Tile& values,
                                    const gemm_problem& problem,
                                    const gemm_phase& phase,
                                    const int (&first)[3],
                                    const block::part_output& output,
                                    int first_plane,
                                    const In* w)
{
  const conv_axis* axis = problem.axis;
  const auto all        = static_cast<int>(axis[0].kernel * axis[1].kernel * axis[2].kernel);
#pragma unroll 1
  for (int e = 0; e < problem.planes; ++e)
  {
    const int slot = first_plane + e < problem.ring_planes ? first_plane + e : first_plane + e - problem.ring_planes;
#pragma unroll 1
    for (int warp = 0; warp < Policy::staging_warps; ++warp)
    {
      const int count = block::control_data().lost_count[slot][warp];
#pragma unroll 1
      for (int i = 0; i < count; ++i)
      {
        const block::lost_input input = block::lost_list(slot, warp)[i];
        const int td                  = landing_tap(axis[0], phase.along[0], first[0] + problem.most_shift[0] - e);
        const int th = landing_tap(
          axis[1], phase.along[1], first[1] + output.cell[0] + problem.most_shift[1] - input.row);
        const int tw = landing_tap(
          axis[2], phase.along[2] + output.set, first[2] + output.cell[1] + problem.left - input.position);
        if (td >= 0 && th >= 0 && tw >= 0)
        {
          const In* w_at =
            w + input.channel * problem.out_channels * all
            + ((td * static_cast<int>(axis[1].kernel) + th) * static_cast<int>(axis[2].kernel) + tw);
          add_products(values, input.value, w_at, all);
        }
      }
    }
  }
}

/// The warp that streams weights; one lane works.
TCONV_DEVICE void stream_weights(
  const gemm_problem& problem, int first_tile, int last_tile, const unsigned char* packed, const gemm_phase* list)
{
  const int phases = problem.total_phases();
  const int rounds = problem.rounds();
  const int chunks = problem.chunks();
  const int pieces = problem.piece_bytes();
  block::ring_place place;
  bool filled                  = false; // the ring has been filled once
  block::gemm_control& control = block::control_data();
  for (int index = first_tile; index < last_tile; ++index)
  {
    const int channel_tile = block::locate_gemm_tile(problem, index).channel_tile;
    for (int round = 0; round < rounds; ++round)
    {
      const int p = round % phases;
      const unsigned char* source =
        packed + (static_cast<int64_t>(channel_tile) * phases + round) * problem.phase_stages * problem.stage_bytes;
      const gemm_phase& phase = p < gemm_problem::listed ? problem.list[p] : list[p];
      const int rows          = phase.taps[0] * phase.taps[1];
      for (int chunk = 0; chunk < chunks; ++chunk)
      {
        const int stages = gemm_form_traits::of(problem.form).passes * rows
                         * problem.row_stages(phase.steps, problem.blocks_of(chunk));
        // Of the stages of a row, parts of blocks are the faster digit.
        int block = 0;
        int step  = 0;
        for (int stage = 0; stage < stages; ++stage)
        {
          const int rest   = problem.blocks_of(chunk) - block;
          const int blocks = rest < problem.blocks_per_stage ? rest : problem.blocks_per_stage;
          const int end   = step + problem.steps_per_stage < phase.steps ? step + problem.steps_per_stage : phase.steps;
          const int count = phase.pieces_before(end, problem.sets) - phase.pieces_before(step, problem.sets);
          const auto bytes = static_cast<unsigned>(blocks * count * pieces);
          step             = end < phase.steps ? end : 0;
          block            = step > 0 ? block : (rest == blocks ? 0 : block + blocks);
          if (filled)
          {
            block::wait_barrier(&control.empty[place.slot], place.parity ^ 1);
          }
          uint64_t* full = &control.full[place.slot];
          cuda::ptx::mbarrier_arrive_expect_tx(
            cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared, full, bytes);
          cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster,
                                   cuda::ptx::space_global,
                                   block::gemm_memory() + problem.ring_at + place.slot * problem.stage_bytes,
                                   source,
                                   bytes,
                                   full);
          source += problem.stage_bytes;
          place.advance(problem.stages);
          filled = filled || place.slot == 0;
        }
      }
    }
    if (problem.resident)
    {
      return;
    }
  }
}

/// The warps that stage the input, one segment (a tile, or a chunk of its channels for one round) ahead of those that multiply.
template <class Policy, gemm_form Form, class In>
TCONV_DEVICE void stage_tiles(const gemm_problem& problem, int first_tile, int last_tile, const In* x)
{
  constexpr int warps = Policy::staging_warps;
  static_assert(warps <= block::gemm_control::warps, "tconv: one list of lost inputs per staging warp");
  block::gemm_control& control = block::control_data();
  const int warp               = block::uniform(static_cast<int>(threadIdx.x) / 32) - (Policy::threads / 32 - warps);
  const int lane               = static_cast<int>(threadIdx.x) % 32;
  const bool aligned           = reinterpret_cast<unsigned long long>(x) % (4 * sizeof(In)) == 0;
  const bool last              = problem.x.channels_last();
  block::input_vector vector   = block::input_vector::none;
  if (aligned && (last ? problem.x.position % 4 == 0 && problem.in_channels % 4 == 0 : problem.quads))
  {
    vector = last ? block::input_vector::channels : block::input_vector::positions;
  }
  block::plane_stager<Form, warps, In> stager{problem, x, vector, warp, lane};

  const int planes  = problem.planes;
  const int ring    = problem.ring_planes;
  const int chunks  = problem.chunks();
  const int repeats = chunks == 1 ? 1 : problem.rounds() * chunks;
  int first_plane   = 0;
  int exponent      = 13;
  int segment       = 0;
  for (int index = first_tile; index < last_tile; ++index)
  {
#pragma unroll 1
    for (int repeat = 0; repeat < repeats; ++repeat, ++segment)
    {
      const int chunk     = repeat % chunks;
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
      for (int begin = kept;; begin = 0)
      {
#pragma unroll 1
        for (int e = begin; e < planes; ++e)
        {
          const int slot = first_plane + e < ring ? first_plane + e : first_plane + e - ring;
          float peak     = 0.0f;
          const int gone = stager.stage(block::opaque(index), chunk, e, exponent, slot, peak);
          if constexpr (Form == gemm_form::split)
          {
            // Magnitudes are ordered as their bits are.
            peak = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(peak)));
            if (lane == 0)
            {
              control.lost_count[slot][warp]          = gone;
              control.plane_peak[slot][warp] = peak;
            }
          }
        }
        if constexpr (Form != gemm_form::split)
        {
          break;
        }
        block::synchronize_staging<warps * 32>();
        float peak    = 0.0f;
        int most_lost = 0;
#pragma unroll 1
        for (int i = 0; i < planes * warps; ++i)
        {
          const int plane = first_plane + i / warps;
          const int slot  = plane < ring ? plane : plane - ring;
          const int gone  = control.lost_count[slot][i % warps];
          peak            = fmaxf(peak, control.plane_peak[slot][i % warps]);
          most_lost       = most_lost > gone ? most_lost : gone;
        }
        // What is uniform stays out of the registers of each thread.
        peak       = __int_as_float(block::uniform(__float_as_int(peak)));
        most_lost  = block::uniform(most_lost);
        lost       = most_lost > 0;
        one_by_one = most_lost > (chunks == 1 ? block::gemm_control::lost_per_warp : 0);
        // The scale was chosen for the tile before. Where it does not suit this one, everything is staged again. Later chunks of a
        // phase must not scale up what is already accumulated.
        const float scaled = peak * block::power_of_two(exponent);
        if (peak == 0.0f || (scaled < 60000.0f && (scaled >= 2048.0f || chunk > 0)))
        {
          break;
        }
        int wanted = 13 - ilogbf(peak); // the largest in [2^13, 2^14): room for tiles with larger inputs
        wanted     = wanted < -60 ? -60 : (wanted > 60 ? 60 : wanted);
        if (wanted == exponent)
        {
          one_by_one = one_by_one || scaled >= 60000.0f; // beyond every exponent
          break;
        }
        exponent = wanted;
        wait_for(segment - 1);
        block::synchronize_staging<warps * 32>(); // everyone has read the peaks
      }
      if (warp == 0 && lane == 0)
      {
        control.segment[segment & 1] = {first_plane, exponent, one_by_one, lost};
      }
      block::publish();
      block::arrive_barrier(&control.staged[segment & 1]);
    }
  }
}

/// The room of run \p run for its parts, from \p slot on.
template <class Policy>
TCONV_DEVICE float* part_room(const gemm_problem& problem, int run, int slot)
{
  return reinterpret_cast<float*>(block::gemm_memory() + problem.exchange_at)
       + (run * Policy::room + slot) * Policy::part_size;
}

/// Where a warpgroup that multiplies stands.
struct multiply_state
{
  block::ring_place place;
  int number = 0; ///< of the next segment
  int part   = 0; ///< and of the next part
  segment_view segment{};

  TCONV_DEVICE void await_segment()
  {
    block::gemm_control& control = block::control_data();
    block::wait_barrier(&control.staged[number & 1], static_cast<unsigned>(number >> 1) & 1);
    segment = segment_view(control.segment[number & 1]);
  }
  TCONV_DEVICE void release_segment()
  {
    if (block::elected())
    {
      block::arrive_barrier(&block::control_data().used[number & 1]);
    }
    ++number;
  }
  /// Waits until no part of run \p run is waiting to be finished.
  template <int Room>
  TCONV_DEVICE void await_parts(int run) const
  {
#pragma unroll 1
    for (int i = part > Room ? part - Room : 0; i < part; ++i)
    {
      block::wait_barrier(&block::control_data().taken[run][i % Room], static_cast<unsigned>(i / Room) & 1);
    }
  }
};

/// All accumulators of a thread become \p v.
template <class Policy>
TCONV_DEVICE void set_accumulators(block::gemm_accumulators<Policy>& sums, float v)
{
  TCONV_PRAGMA_UNROLL
  for (int b = 0; b < Policy::blocks; ++b)
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < tuning::implicit_gemm_cells / 2; ++i)
    {
      sums[b][i] = v;
    }
  }
}

/// All accumulators of a thread are multiplied by \p factor.
template <class Policy>
TCONV_DEVICE void multiply_accumulators(block::gemm_accumulators<Policy>& sums, float factor)
{
  TCONV_PRAGMA_UNROLL
  for (int b = 0; b < Policy::blocks; ++b)
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < tuning::implicit_gemm_cells / 2; ++i)
    {
      sums[b][i] *= factor;
    }
  }
}

/// Multiplies the rows of a phase with the chunk of channels at hand. On return the products are complete. \p sums: of the outputs,
/// in the units of pass 1. \p products: accumulators of the tensor core, which truncates, where Promote; those of every stage are
/// then added up outside.
template <class Policy, gemm_form Form, int Pass, bool Promote>
TCONV_DEVICE void multiply_rows(block::gemm_accumulators<Policy>& sums,
                                block::gemm_accumulators<Policy>& products,
                                const gemm_problem& problem,
                                const gemm_phase& phase,
                                multiply_state& state,
                                int run,
                                int blocks)
{
  block::gemm_control& control = block::control_data();
  const auto memory            = static_cast<unsigned>(__cvta_generic_to_shared(block::gemm_memory()));
  constexpr float unit         = 1.0f / (1 << block::low_exponent);
  constexpr bool low           = Form == gemm_form::split && Pass == 0;
  auto& accumulators           = Promote ? products : sums;
  int plane                    = state.segment.first_plane + phase.plane + (problem.run_axis == 0 ? run : 0);
  const int begin              = problem.staged_at + phase.row + run * problem.run_bytes();
  int used                     = -1; // the stage whose products may still be under way
#pragma unroll 1
  for (int d = 0; d < phase.taps[0]; ++d)
  {
    // Of the first tap along h; planes follow each other in a ring.
    const int slot = plane >= problem.ring_planes ? plane - problem.ring_planes : plane;
    unsigned row   = (memory + static_cast<unsigned>(begin + slot * problem.plane_bytes())) / 16;
#pragma unroll 1
    for (int h = 0; h < phase.taps[1]; ++h)
    {
      unsigned at = row;
#pragma unroll 1
      for (int block = 0; block < blocks; block += problem.blocks_per_stage)
      {
        const int rest = blocks - block;
#pragma unroll 1
        for (int step = 0; step < phase.steps; step += problem.steps_per_stage)
        {
          block::ring_place& place = state.place;
          block::wait_barrier(&control.full[place.slot], problem.resident ? 0u : place.parity);
          int holds[Policy::sets];
          TCONV_PRAGMA_UNROLL
          for (int set = 0; set < Policy::sets; ++set)
          {
            holds[set] = Promote ? 0 : 1;
          }
          block::multiply_stage<Policy, Form, Pass>(
            accumulators,
            holds,
            problem,
            phase,
            at,
            (memory + static_cast<unsigned>(problem.ring_at + place.slot * problem.stage_bytes)) / 16,
            rest < problem.blocks_per_stage ? rest : problem.blocks_per_stage,
            step);
          block::wgmma::wait<Promote ? 0 : 1>();
          if constexpr (Promote)
          {
            TCONV_PRAGMA_UNROLL
            for (int b = 0; b < Policy::blocks; ++b)
            {
              const bool held = holds[b / (Policy::blocks / Policy::sets)] != 0;
              TCONV_PRAGMA_UNROLL
              for (int i = 0; i < tuning::implicit_gemm_cells / 2; ++i)
              {
                const float sum = ::fmaf(products[b][i], low ? unit : 1.0f, sums[b][i]);
                sums[b][i]      = held ? sum : sums[b][i];
              }
            }
          }
          if (!problem.resident && used >= 0 && block::elected())
          {
            block::arrive_barrier(&control.empty[used]);
          }
          used = place.slot;
          place.advance(problem.stages);
        }
        at += static_cast<unsigned>(problem.blocks_per_stage * problem.block_bytes()) / 16;
      }
      row += static_cast<unsigned>(phase.row_step / 16);
    }
    plane += phase.plane_step;
  }
  block::wgmma::wait<0>();
  if (!problem.resident && used >= 0 && block::elected())
  {
    block::arrive_barrier(&control.empty[used]);
  }
  if constexpr (low && !Promote)
  {
    multiply_accumulators<Policy>(sums, unit);
  }
}

/// Hands the accumulators of run \p run to the warps that finish, from part Part on.
template <class Policy, bool Scaled, bool Biased, int Part = 0>
TCONV_DEVICE void put_parts(const gemm_problem& problem,
                            const block::gemm_accumulators<Policy>& sums,
                            const block::gemm_segment& segment,
                            const float (&scale)[Policy::halves][2],
                            const float (&offset)[Policy::halves][2],
                            multiply_state& state,
                            int run)
{
  if constexpr (Part < Policy::parts)
  {
    block::gemm_control& control = block::control_data();
    const int slot               = state.part % Policy::room;
    if (state.part >= Policy::room)
    {
      block::wait_barrier(&control.taken[run][slot], static_cast<unsigned>(state.part / Policy::room - 1) & 1);
    }
    const int thread = static_cast<int>(threadIdx.x) % 128;
    float* own       = part_room<Policy>(problem, run, slot)
               + thread % 4 * 2 * Policy::pitch + thread / 32 * 16 + thread % 32 / 4;
    block::put_part<Policy, Part, Scaled, Biased>(sums, own, scale, offset);
    if (thread == 0)
    {
      control.of_part[run][slot] = segment;
    }
    __syncwarp();
    if (block::elected())
    {
      block::arrive_barrier(&control.put[run][slot]);
    }
    ++state.part;
    put_parts<Policy, Scaled, Biased, Part + 1>(problem, sums, segment, scale, offset, state, run);
  }
}

/// All rounds of one tile.
template <class Policy, gemm_form Form, class Finish>
TCONV_DEVICE void multiply_tile(const gemm_problem& problem,
                                multiply_state& state,
                                const block::gemm_tile& tile,
                                const gemm_phase* list,
                                const float* inverse_scales,
                                const Finish& finish)
{
  constexpr bool split   = Form == gemm_form::split;
  constexpr bool promote = split && Policy::blocks == 1; // where registers allow
  const int chunks       = problem.chunks();
  const int rounds       = problem.rounds();
  const int run          = block::uniform(static_cast<int>(threadIdx.x)) / 128;
  int channel_tile       = tile.channel_tile;
  int p                  = 0;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
  {
    block::gemm_accumulators<Policy> sums;
    block::gemm_accumulators<Policy> products;
    set_accumulators<Policy>(sums, 0.0f);
    if constexpr (promote)
    {
      set_accumulators<Policy>(products, 0.0f);
    }
    const gemm_phase phase = read_phase(problem, list, p);
    if (chunks > 1)
    {
      state.await_segment();
    }
    bool one_by_one = split && block::uniform(block::control_data().one_by_one) != 0;
    int exponent    = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk)
    {
      if (chunk > 0)
      {
        state.release_segment();
        state.await_segment();
      }
      if constexpr (split)
      {
        // Only downwards: inputs of this chunk are larger. Without a branch: accumulators that are written on one side of it make the
        // compiler wait for every product.
        const int change = chunk == 0 ? 0 : state.segment.exponent - exponent;
        exponent         = state.segment.exponent;
        one_by_one       = one_by_one || state.segment.one_by_one != 0 || change < -60;
        multiply_accumulators<Policy>(
          sums, block::power_of_two((change < -60 ? -60 : change) + (promote ? 0 : block::low_exponent)));
      }
      multiply_rows<Policy, Form, 0, promote>(sums, products, problem, phase, state, run, problem.blocks_of(chunk));
      if constexpr (split)
      {
        multiply_rows<Policy, Form, 1, promote>(sums, products, problem, phase, state, run, problem.blocks_of(chunk));
      }
    }

    const bool lost    = chunks == 1 && state.segment.lost != 0;
    const bool careful = split && (one_by_one || lost);
    float scale[Policy::halves][2];
    float offset[Policy::halves][2];
    const int thread = static_cast<int>(threadIdx.x) % 128;
    TCONV_PRAGMA_UNROLL
    for (int half = 0; half < Policy::halves; ++half)
    {
      TCONV_PRAGMA_UNROLL
      for (int second = 0; second < 2; ++second)
      {
        const int channel = channel_tile * Policy::channels + half * tuning::implicit_gemm_rows + thread / 32 * 16
                          + thread % 32 / 4 + second * 8;
        const auto last       = static_cast<int>(problem.out_channels) - 1;
        scale[half][second]   = split ? inverse_scales[channel] * block::power_of_two(-exponent) : 1.0f;
        const coordinate at{static_cast<int64_t>(tile.n), static_cast<int64_t>(channel < last ? channel : last)};
        offset[half][second] = careful ? 0.0f : finish.offset(at);
      }
    }
    put_parts<Policy, split, Finish::biased>(
      problem, sums, {state.segment.first_plane, exponent, one_by_one, lost}, scale, offset, state, run);
    if (lost)
    {
      state.template await_parts<Policy::room>(run); // whoever finishes reads what belongs to the segment
    }
    if (chunks > 1)
    {
      state.release_segment();
    }
    if (++p == problem.total_phases())
    {
      p = 0;
      ++channel_tile;
    }
  }
}

/// The warpgroups that multiply.
template <class Policy, gemm_form Form, class Finish>
TCONV_DEVICE void multiply_tiles(const gemm_problem& problem,
                                 int first_tile,
                                 int last_tile,
                                 const gemm_phase* list,
                                 const float* inverse_scales,
                                 const Finish& finish)
{
  const bool whole = problem.chunks() == 1;
  multiply_state state;
#pragma unroll 1
  for (int index = first_tile; index < last_tile; ++index)
  {
    if (whole)
    {
      state.await_segment();
    }
    if (problem.resident)
    {
      state.place = block::ring_place{};
    }
    multiply_tile<Policy, Form>(
      problem, state, block::locate_gemm_tile(problem, index), list, inverse_scales, finish);
    if (whole)
    {
      state.release_segment();
    }
  }
}

/// The warps that finish outputs. \p thread: of all that do.
template <class Policy, gemm_form Form, class Finish, class In>
TCONV_DEVICE void finish_tiles(const gemm_problem& problem,
                               int first_tile,
                               int last_tile,
                               const In* x,
                               const In* w,
                               const gemm_phase* list,
                               const Finish& finish,
                               int thread)
{
  block::gemm_control& control = block::control_data();
  const int rounds             = problem.rounds();
  const int total              = problem.total_phases();
  const int run                = block::uniform(thread) / Policy::finishing_threads;
  const int offset             = run * problem.run_box[problem.run_axis];
  const int first[3]           = {
    problem.run_axis == 0 ? offset : 0, problem.run_axis == 1 ? offset : 0, problem.run_axis == 2 ? offset : 0};
  int number = 0; // of the next part
  thread -= run * Policy::finishing_threads;
#pragma unroll 1
  for (int index = first_tile; index < last_tile; ++index)
  {
    block::gemm_tile tile = block::locate_gemm_tile(problem, index);
    TCONV_PRAGMA_UNROLL
    for (int a = 0; a < 3; ++a)
    {
      tile.cell[a] += first[a];
    }
#pragma unroll 1
    for (int round = 0; round < rounds; ++round)
    {
      const int p             = round % total;
      const int first_channel = (tile.channel_tile + round / total) * Policy::channels;
      const gemm_phase& phase = p < gemm_problem::listed ? problem.list[p] : list[p];
      const auto places       = places_of(problem, tile, phase);
#pragma unroll 1
      for (int part = 0; part < Policy::parts; ++part, ++number)
      {
        const int slot  = number % Policy::room;
        float* exchange = part_room<Policy>(problem, run, slot);
        block::wait_barrier(&control.put[run][slot], static_cast<unsigned>(number / Policy::room) & 1);
        bool careful = false;
        if constexpr (Form == gemm_form::split)
        {
          const segment_view segment(control.of_part[run][slot]);
          careful = (segment.one_by_one | segment.lost) != 0;
          if (careful)
          {
            const auto correct = [&](auto& values, const block::part_output& output) {
              if (segment.one_by_one != 0)
              {
                multiply_one_by_one(values, problem, tile, phase, output, x, w);
              }
              else
              {
                add_lost_products<Policy>(values, problem, phase, first, output, segment.first_plane, w);
              }
            };
            finish.template operator()<Policy, true>(
              problem, places, tile.n, first_channel, exchange, part, thread, run, correct);
          }
        }
        if (!careful)
        {
          finish.template operator()<Policy, false>(
            problem, places, tile.n, first_channel, exchange, part, thread, run, nothing_to_correct{});
        }
        __syncwarp();
        if (block::elected())
        {
          block::arrive_barrier(&control.taken[run][slot]);
        }
      }
    }
  }
}

#endif

/// Transposed convolution on the tensor cores, a range of tiles per block; \p Finish says what becomes of the outputs. Follows
/// prepare_implicit_gemm on the stream. \p w: the weights before packing.
template <class Policy, gemm_form Form, class Finish, class In>
__global__ __launch_bounds__(Policy::threads, 1) void implicit_gemm(const __grid_constant__ gemm_problem problem,
                                                                    const In* x,
                                                                    const In* w,
                                                                    const unsigned char* packed,
                                                                    const gemm_phase* phases,
                                                                    const float* inverse_scales,
                                                                    const unsigned* lost_weights,
                                                                    int lost_count,
                                                                    const __grid_constant__ Finish finish)
{
#if TCONV_DETAIL_HAS_WGMMA
  block::gemm_control& control = block::control_data();
  const int first_tile         = static_cast<int>(problem.total_tiles() * blockIdx.x / gridDim.x);
  const int last_tile          = static_cast<int>(problem.total_tiles() * (blockIdx.x + 1) / gridDim.x);
  if (threadIdx.x == 0)
  {
    control.one_by_one = 0;
    for (int i = 0; i < problem.stages; ++i)
    {
      cuda::ptx::mbarrier_init(&control.full[i], 1);
      cuda::ptx::mbarrier_init(&control.empty[i], Policy::runs * 4); // warps that multiply
    }
    for (int i = 0; i < 2; ++i)
    {
      cuda::ptx::mbarrier_init(&control.staged[i], Policy::staging_threads);
      cuda::ptx::mbarrier_init(&control.used[i], Policy::runs * 4);
    }
    for (int i = 0; i < Policy::runs * Policy::room; ++i)
    {
      cuda::ptx::mbarrier_init(&control.put[i / Policy::room][i % Policy::room], 4);
      cuda::ptx::mbarrier_init(&control.taken[i / Policy::room][i % Policy::room], Policy::finishing_warps);
    }
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
  __syncthreads();

  constexpr int multiplying = Policy::runs * 128;
  constexpr int finishing   = Policy::runs * Policy::finishing_threads;
  if (threadIdx.x < multiplying)
  {
    block::wgmma::take_registers<Policy::multiplying_registers>();
    runtime::grid_dependency_wait();
    if constexpr (Form == gemm_form::split)
    {
      for (int i = static_cast<int>(threadIdx.x); i < lost_count; i += multiplying)
      {
        if (lost_weights[i] != 0)
        {
          control.one_by_one = 1; // whoever says so says the same
        }
      }
      block::synchronize_multiplying();
    }
    multiply_tiles<Policy, Form>(problem, first_tile, last_tile, phases, inverse_scales, finish);
    return;
  }
  block::wgmma::release_registers<Policy::other_registers>();
  if (threadIdx.x < multiplying + finishing)
  {
    runtime::grid_dependency_wait();
    finish_tiles<Policy, Form>(
      problem, first_tile, last_tile, x, w, phases, finish, static_cast<int>(threadIdx.x) - multiplying);
  }
  else if (threadIdx.x < multiplying + finishing + 32)
  {
    if (threadIdx.x % 32 == 0)
    {
      runtime::grid_dependency_wait();
      stream_weights(problem, first_tile, last_tile, packed, phases);
    }
  }
  else
  {
    // x was complete before the preparing kernel let this one start.
    stage_tiles<Policy, Form>(problem, first_tile, last_tile, x);
  }
#else
  // Built for another architecture, or without TCONV_ENABLE_SM90A: the launcher must not come here.
  asm volatile("trap;");
#endif
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
