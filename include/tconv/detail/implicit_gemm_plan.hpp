// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Plans a tensor-core kernel: columns, tile of cells, staging, stages of weights. Host only, and the same for query and run.

#include "../block/implicit_gemm_problem.hpp"
#include "../shape.hpp"
#include "../tuning/implicit_gemm.hpp"

#include <algorithm>

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// A planned tensor-core kernel.
struct gemm_plan
{
  gemm_problem problem;
  bool supported       = false; ///< else nothing below means anything
  bool whole_rows      = false; ///< one tile holds all channels of a position, so that channel functors can run on it
  int64_t packed_bytes = 0;
  int pack_blocks      = 0;
  int64_t shared_bytes = 0;
  double cycles        = 0; ///< estimate of a multiprocessor's
};

/// Calls visit(policy) for what a plan of \p Form has chosen; the only list of instantiations. The split form keeps its sums beside the
/// accumulators, where one phase along w is multiplied at a time.
template <gemm_form Form, class Visitor>
auto visit_gemm_policy(const gemm_problem& problem, Visitor&& visit)
{
  if (problem.sets == 2)
  {
    return visit(tuning::implicit_gemm_policy<2, 1>{});
  }
  if constexpr (Form != gemm_form::split)
  {
    if (problem.tile_channels == 128)
    {
      return visit(tuning::implicit_gemm_policy<1, 2>{});
    }
  }
  return visit(tuning::implicit_gemm_policy<1, 1>{});
}

/// Bytes of the room for the parts of both runs.
template <class Policy>
inline constexpr int64_t gemm_exchange_bytes = int64_t{Policy::runs} * Policy::room * Policy::part_size * 4;

/// Bytes before the ring of weights, for \p planes planes: control data and lists of lost inputs. A multiple of 128.
constexpr int64_t gemm_control_room(gemm_form form, int planes)
{
  return gemm_control_bytes + (form == gemm_form::split ? int64_t{planes} * 7 * 8 * 16 : 0);
}

/// Stages: as many whole blocks of channels as \p most_bytes hold, or one, or a part of one. \p phase: one with the most taps along w.
inline void plan_stages(gemm_problem& problem, const gemm_phase& phase, int64_t most_bytes)
{
  const int steps         = std::max(phase.steps, 1);
  const int64_t block     = int64_t{phase.pieces_before(steps, problem.sets)} * problem.piece_bytes();
  problem.steps_per_stage = steps;
  if (block <= most_bytes)
  {
    const auto blocks = std::clamp<int>(
      static_cast<int>(most_bytes / std::max<int64_t>(block, 1)), 1, problem.chunk_blocks);
    const int stages         = (problem.chunk_blocks + blocks - 1) / blocks;
    problem.blocks_per_stage = (problem.chunk_blocks + stages - 1) / stages; // of about the same size
    problem.stage_bytes      = problem.blocks_per_stage * static_cast<int>(block);
    return;
  }
  problem.blocks_per_stage = 1;
  const int parts          = static_cast<int>(ceil_div(block, most_bytes));
  problem.steps_per_stage  = (steps + parts - 1) / parts;
  int most                 = 0;
  for (int first = 0; first < steps; first += problem.steps_per_stage)
  {
    const int end = std::min(first + problem.steps_per_stage, steps);
    most          = std::max(most, phase.pieces_before(end, problem.sets) - phase.pieces_before(first, problem.sets));
  }
  problem.stage_bytes = most * problem.piece_bytes();
}

/// Chooses chunks, rings and stages for the box of \p problem in \p total bytes of shared memory; false if it does not fit. \p phase:
/// see plan_stages().
inline bool plan_staging(gemm_problem& problem, int64_t total, int64_t most_rows, const gemm_phase& phase)
{
  const int blocks = problem.blocks();
  if (problem.block_bytes() > total)
  {
    return false;
  }
  const int chained = problem.tiles[0] > 1 ? std::min(problem.planes + problem.box[0], 2 * problem.planes)
                                           : 2 * problem.planes;
  // Tries a number of blocks and planes that are staged at once.
  const auto fits = [&](int chunk_blocks, int planes) {
    problem.ring_planes  = planes;
    problem.chunk_blocks = chunk_blocks;
    // Smaller stages rather than few: a warpgroup may be ahead of another by so many.
    const int64_t room  = total - gemm_control_room(problem.form, planes) - int64_t{planes} * problem.plane_bytes();
    const int64_t step  = int64_t{problem.piece_bytes()} * problem.sets;
    const int64_t stage = std::min(
      std::max<int64_t>(tuning::implicit_gemm_stage_bytes, step), room / tuning::implicit_gemm_min_stages);
    if (planes > 32 || stage < step)
    {
      return false;
    }
    plan_stages(problem, phase, stage);
    if (room < int64_t{problem.stage_bytes} * tuning::implicit_gemm_min_stages)
    {
      return false;
    }
    problem.stages = static_cast<int>(std::min<int64_t>(room / problem.stage_bytes, tuning::implicit_gemm_max_stages));
    problem.phase_stages = problem.chunks() * gemm_form_traits::of(problem.form).passes * static_cast<int>(most_rows)
                         * problem.row_stages(phase.steps, problem.chunk_blocks);
    return true;
  };
  // The next tile is staged while this one is multiplied, where possible. Chunks are staged once per phase.
  if (fits(blocks, chained))
  {
    return true;
  }
  const bool once = problem.rounds() == 1;
  if (!once && fits(blocks, problem.planes))
  {
    return true;
  }
  for (const int planes : {2 * problem.planes, problem.planes})
  {
    for (int chunk = blocks - 1; chunk > 0; --chunk)
    {
      if (fits(chunk, planes))
      {
        // As few chunks as fit, of about the same size.
        return fits((blocks + problem.chunks() - 1) / problem.chunks(), planes);
      }
    }
  }
  return fits(blocks, problem.planes);
}

/// Plans the tensor-core kernel for a valid canonical shape with at least one output.
///
/// Not supported: groups; the split form below 16 input channels, where fewer
/// products may land on an output than its error bound needs; extents that 32-bit offsets within a tile cannot hold.
inline gemm_plan
plan_implicit_gemm(const conv_transpose_shape<3>& shape, gemm_form form, layout input_layout = layout::channels_first)
{
  gemm_plan plan;
  gemm_problem& problem         = plan.problem;
  constexpr int64_t most_extent = int64_t{1} << 24;
  bool possible = shape.groups == 1 && shape.in_channels <= (int64_t{1} << 20) && shape.batch < (int64_t{1} << 31)
               && shape.out_channels <= (int64_t{1} << 20) && (form != gemm_form::split || shape.in_channels >= 16);
  for (int a = 0; a < 3; ++a)
  {
    const conv_axis axis = shape.axis(a);
    possible             = possible && axis.in <= most_extent && axis.out <= most_extent && axis.kernel <= 1024
            && axis.stride <= most_extent && axis.dilation <= most_extent && axis.padding <= most_extent;
  }
  // Offsets within a sample and within the weights are 32 bits wide, as is the number of phases.
  const double phases = static_cast<double>(shape.axis(0).phases()) * static_cast<double>(shape.axis(1).phases())
                      * static_cast<double>(shape.axis(2).phases());
  const double sample = static_cast<double>(shape.input_slice.total(shape.in_channels))
                      * static_cast<double>(shape.input_positions());
  possible = possible && phases <= 65536.0 && sample < 2147483648.0 && shape.weight_elements() < (int64_t{1} << 31)
          && shape.taps() <= 1 << 20;
  if (!possible)
  {
    return plan;
  }

  problem.form  = form;
  problem.x     = tensor_strides::of(input_layout, shape.input_slice.total(shape.in_channels), shape.input_positions());
  problem.batch = shape.batch;
  problem.in_channels  = shape.in_channels;
  problem.out_channels = shape.out_channels;
  for (int a = 0; a < 3; ++a)
  {
    problem.axis[a]       = shape.axis(a);
    problem.phases[a]     = static_cast<int>(problem.axis[a].phases());
    problem.most_shift[a] = static_cast<int>(problem.axis[a].max_shift());
    for (int64_t r = 0; r < std::min<int64_t>(problem.axis[a].stride, gemm_problem::tabulated); ++r)
    {
      problem.table[a][r] = problem.axis[a].phase(r);
    }
  }
  problem.sets         = shape.stride[2] == 2 ? 2 : 1;
  problem.phases[2]    = (problem.phases[2] + problem.sets - 1) / problem.sets;
  const auto most_taps = [&](int a) {
    return ceil_div(
      problem.axis[a].kernel, problem.axis[a].stride / gcd(problem.axis[a].stride, problem.axis[a].dilation));
  };
  const bool halves     = problem.sets == 1 && form != gemm_form::split && shape.out_channels > tuning::implicit_gemm_rows;
  problem.tile_channels = tuning::implicit_gemm_rows * (halves ? 2 : 1);
  problem.channel_tiles = static_cast<int>(ceil_div(shape.out_channels, problem.tile_channels));
  plan.whole_rows       = problem.channel_tiles == 1;
  // The bound on an output's error is (K + 8) 2^-24 sum|x||w|, and K is a multiple of in_channels: a quarter of it for inputs that are
  // not held exactly, and a quarter for weights.
  problem.lost = std::min(static_cast<float>(shape.in_channels + 8) / 4.0f, 64.0f) / 16777216.0f;

  const int64_t most_rows = most_taps(0) * most_taps(1);
  gemm_phase longest      = make_gemm_phase(problem, 0);
  for (int w = 1; w < problem.phases[2]; ++w)
  {
    const gemm_phase phase = make_gemm_phase(problem, w);
    longest                = phase.steps > longest.steps ? phase : longest;
  }
  // Of the parts of both runs.
  const int64_t exchange = problem.sets == 2 ? gemm_exchange_bytes<tuning::implicit_gemm_policy<2, 1>>
                         : halves            ? gemm_exchange_bytes<tuning::implicit_gemm_policy<1, 2>>
                                             : gemm_exchange_bytes<tuning::implicit_gemm_policy<1, 1>>;
  const int64_t cells[3] = {problem.axis[0].cells(), problem.axis[1].cells(), problem.axis[2].cells()};
  int64_t span[3];
  for (int a = 0; a < 3; ++a)
  {
    span[a] = problem.axis[a].max_shift() - problem.axis[a].min_shift();
  }
  const int64_t most_cells = tuning::implicit_gemm_cells; // of a run
  if (span[0] > 31 || span[1] > 4096 || span[2] > 4096)
  {
    return plan;
  }

  // Products and outputs of one tile, in cycles of a multiprocessor.
  const int count     = form == gemm_form::split ? 3 : gemm_form_traits::of(form).terms;
  const double pieces = static_cast<double>(problem.axis[0].kernel) * static_cast<double>(problem.axis[1].kernel)
                      * static_cast<double>(problem.axis[2].kernel) * problem.blocks();
  const double multiply  = pieces * count * tuning::implicit_gemm_cells * problem.tile_channels / 64;
  const double results   = static_cast<double>(problem.total_phases()) * problem.sets * problem.tile_channels;
  const bool aligned     = problem.axis[2].in % 4 == 0 && !problem.x.channels_last();
  bool found             = false;
  gemm_problem candidate = problem;
  // Tiles as wide as the rows, or as a part of them that comes to multiples of 4; as high as the run of cells allows, or so that tiles
  // of the same number come out about the same.
  const int64_t widest = std::min(cells[2], most_cells);
  int64_t last_width   = 0;
  for (int64_t parts = ceil_div(cells[2], most_cells); parts <= ceil_div(cells[2], 4); ++parts)
  {
    const int64_t wide = parts == 1 ? widest : ceil_div(ceil_div(cells[2], parts), 4) * 4;
    if (wide == last_width || wide > most_cells)
    {
      continue;
    }
    if (last_width != 0 && wide < 8)
    {
      break;
    }
    last_width         = wide;
    candidate.quads    = aligned;
    const int64_t to   = candidate.quads ? 4 : 1;
    candidate.left     = static_cast<int>(ceil_div(problem.axis[2].max_shift(), to) * to);
    const int64_t most = ceil_div(wide + candidate.left - problem.axis[2].min_shift(), 4) * 4;
    const int64_t high = std::min(cells[1], (most_cells - wide) / most + 1);
    // Rows of a run, and along which axis the second run follows.
    for (int number = 0; number < 6; ++number)
    {
      const int64_t rows   = number % 2 == 0 ? high : ceil_div(cells[1], ceil_div(cells[1], high));
      candidate.run_axis   = number / 2;
      candidate.run_box[0] = 1;
      candidate.run_box[1] = static_cast<int>(rows);
      candidate.run_box[2] = static_cast<int>(wide);
      std::copy_n(candidate.run_box, 3, candidate.box);
      candidate.box[candidate.run_axis] *= 2;
      if (candidate.run_axis == 2 && wide % 4 != 0 && candidate.quads)
      {
        continue; // the second run would begin where no tile may
      }
      int64_t tiles = problem.batch;
      for (int a = 0; a < 3; ++a)
      {
        candidate.tiles[a] = static_cast<int>(ceil_div(cells[a], candidate.box[a]));
        tiles *= candidate.tiles[a];
      }
      // All channels of a tile are multiplied one after the other, unless there is work for few multiprocessors only.
      candidate.channel_groups = tiles < 2 * tuning::implicit_gemm_multiprocessors ? problem.channel_tiles : 1;
      tiles *= candidate.channel_groups;
      const int64_t columns = candidate.box[2] + candidate.left - problem.axis[2].min_shift();
      candidate.width       = static_cast<int>(ceil_div(columns, 4) * 4);
      if ((rows - 1) * candidate.width + wide > most_cells)
      {
        continue; // runs side by side have longer rows between them
      }
      candidate.rows   = static_cast<int>(candidate.box[1] + span[1]);
      candidate.planes = static_cast<int>(candidate.box[0] + span[0]);
      if (tiles >= (int64_t{1} << 31)
          || !plan_staging(
               candidate, (tuning::implicit_gemm_shared_bytes - exchange) / 128 * 128, most_rows, longest))
      {
        continue;
      }
      const bool chunked  = candidate.chunks() > 1;
      const int planes    = candidate.tiles[0] > 1 && !chunked ? candidate.box[0] : candidate.planes;
      const double staged = static_cast<double>(planes) * candidate.rows * candidate.width * problem.blocks() * 16.0
                          * (chunked ? static_cast<double>(candidate.rounds()) : 1.0);
      const bool late = candidate.ring_planes < 2 * candidate.planes
                     && (chunked || candidate.ring_planes == candidate.planes);
      const double outputs   = results * static_cast<double>(2 * rows * wide);
      const double tile_cost = (multiply + outputs * 0.2) * (problem.channel_tiles / candidate.channel_groups)
                             + (late ? 0.5 : 0.125) * staged;
      const double cost      = static_cast<double>(ceil_div(tiles, tuning::implicit_gemm_multiprocessors)) * tile_cost;
      if (!found || cost < plan.cycles)
      {
        found       = true;
        problem     = candidate;
        plan.cycles = cost;
      }
    }
  }
  if (!found)
  {
    return plan;
  }

  // Stages of all phases.
  int64_t used = 0;
  for (int p = 0; p < std::min(problem.total_phases(), gemm_problem::listed); ++p)
  {
    problem.list[p] = make_gemm_phase(problem, p);
    used += problem.list[p].last_stages;
  }
  problem.resident = problem.chunks() == 1 && problem.channel_tiles == 1
                  && problem.total_phases() <= gemm_problem::listed && used <= problem.stages;
  const int64_t stage_count = int64_t{problem.channel_tiles} * problem.total_phases() * problem.phase_stages;
  plan.packed_bytes         = stage_count * problem.stage_bytes;
  const int64_t groups = int64_t{problem.channel_tiles} * problem.tile_channels / tuning::implicit_gemm_pack_columns;
  plan.pack_blocks          = static_cast<int>(groups) * tuning::implicit_gemm_pack_cluster;
  problem.ring_at           = static_cast<int>(gemm_control_room(form, problem.ring_planes));
  problem.staged_at         = problem.ring_at + problem.stages * problem.stage_bytes;
  // What is multiplied beyond the last staged position is read from there as well.
  problem.exchange_at       = (problem.staged_at + problem.ring_planes * problem.plane_bytes() + 127) / 128 * 128;
  plan.shared_bytes         = problem.exchange_at + exchange;
  plan.supported            = groups < 1 << 20 && plan.packed_bytes <= tuning::implicit_gemm_most_packed_bytes;
  return plan;
}

} // namespace detail

TCONV_NAMESPACE_END
