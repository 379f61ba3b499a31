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

/// What a plan has to know of the device and the build.
struct gemm_machine
{
  gemm_instruction instruction = gemm_instruction::warpgroup;
  int64_t shared_bytes         = tuning::implicit_gemm_shared_bytes; ///< a block may have
};

/// A planned tensor-core kernel.
struct gemm_plan
{
  gemm_problem problem;
  gemm_instruction instruction = gemm_instruction::warpgroup;
  bool supported               = false; ///< else nothing below means anything
  bool whole_rows      = false; ///< one tile holds all channels of a position, so that channel functors can run on it
  int64_t packed_bytes = 0;
  int pack_blocks      = 0;
  int64_t shared_bytes = 0;
  double cycles        = 0; ///< estimate of a multiprocessor's
};

/// Calls visit(policy) for \p columns and \p sets; the only list of instantiations. Tiles do not depend on the instruction.
template <gemm_instruction Instruction = gemm_instruction::warpgroup, class Visitor>
auto visit_gemm_policy(int columns, int sets, Visitor&& visit)
{
  if (sets == 2)
  {
    switch (columns)
    {
      case 32: return visit(tuning::implicit_gemm_policy<32, 2, Instruction>{});
      case 64: return visit(tuning::implicit_gemm_policy<64, 2, Instruction>{});
      default: return visit(tuning::implicit_gemm_policy<128, 2, Instruction>{});
    }
  }
  switch (columns)
  {
    case 32: return visit(tuning::implicit_gemm_policy<32, 1, Instruction>{});
    case 64: return visit(tuning::implicit_gemm_policy<64, 1, Instruction>{});
    default: return visit(tuning::implicit_gemm_policy<128, 1, Instruction>{});
  }
}

/// Which phases have taps at the \p count shifts of a row, as gemm_problem::present has it, where the main loop has code of its own for them (see
/// neighbouring_steps): without dilation kernels of 3, 5 and 7 with stride 1, with stride 2 kernels of 2, and with odd padding of 3 and 4. Else 0.
inline unsigned gemm_neighbours(const gemm_problem& problem, int count)
{
  const conv_axis& axis = problem.axis[2];
  if (problem.sets == 1)
  {
    const bool known = axis.stride == 1 && axis.dilation == 1 && (count == 3 || count == 5 || count == 7);
    return known ? 0x5555U & ((1U << 2 * count) - 1) : 0U;
  }
  for (const unsigned known : {0x3U, 0xeU, 0x1eU})
  {
    if (problem.paired() && problem.present == known)
    {
      return known;
    }
  }
  return 0;
}

/// Warps of a block that multiply.
inline int consumer_warps(const gemm_problem& problem)
{
  return visit_gemm_policy(problem.columns, problem.sets, [](auto policy) { return decltype(policy)::consumers * 4; });
}

/// Bytes before the table of steps, for \p planes planes: control data and lists of lost inputs. A multiple of 128.
constexpr int64_t gemm_control_room(gemm_form form, int planes)
{
  return gemm_control_bytes + (form == gemm_form::split ? int64_t{planes} * gemm_lost_bytes : 0);
}

/// Bytes before the ring of weights: the table of steps comes last. A multiple of 128.
constexpr int64_t gemm_ring_start(const gemm_problem& problem)
{
  const int64_t table = int64_t{problem.phases[2]} * problem.row_steps * static_cast<int64_t>(sizeof(gemm_step));
  return gemm_control_room(problem.form, problem.ring_planes) + ceil_div(table, 128) * 128;
}

/// Most pieces of weights that \p steps neighbouring steps of a row of \p count shifts can have.
inline int most_pieces(const gemm_problem& problem, int steps, int count)
{
  int most = 0;
  for (int first = 0; first < count; ++first)
  {
    most = std::max(most, problem.pieces_of_steps(first + steps, count) - problem.pieces_of_steps(first, count));
  }
  return most;
}

/// Steps per stage and room of a stage for the chunk of \p problem in \p total bytes of shared memory.
inline void plan_stages(gemm_problem& problem, int64_t most_shifts, int64_t total)
{
  const int count   = static_cast<int>(most_shifts);
  const int all     = problem.chunk_blocks * count;
  problem.row_steps = all + 1;
  // Whole blocks at a time where the main loop has code for all shifts of one.
  const bool fits = most_pieces(problem, count, count) * problem.piece_bytes()
                 <= std::min(tuning::implicit_gemm_block_stage_bytes, total / 8);
  problem.neighbours = fits ? gemm_neighbours(problem, count) : 0;
  const int unit     = problem.neighbours != 0 ? count : 1;
  int steps          = unit;
  while (steps + unit <= std::min(all, gemm_most_steps)
         && most_pieces(problem, steps + unit, count) * problem.piece_bytes() <= tuning::implicit_gemm_stage_bytes)
  {
    steps += unit;
  }
  // Stages of about the same size.
  const int stages        = (all + steps - 1) / steps;
  problem.steps_per_stage = ((all + stages - 1) / stages + unit - 1) / unit * unit;
  problem.stage_bytes     = most_pieces(problem, problem.steps_per_stage, count) * problem.piece_bytes();
}

/// Chooses chunks and rings for the box of \p problem in \p total bytes of shared memory; false if it does not fit.
inline bool plan_staging(gemm_problem& problem, int64_t most_rows, int64_t most_shifts, int64_t total)
{
  const int blocks  = problem.blocks();
  const auto stages = [&] {
    return (total - gemm_ring_start(problem) - int64_t{problem.ring_planes} * problem.plane_bytes())
         / problem.stage_bytes;
  };
  // The widest row alone must be addressable.
  const int64_t plane_block = int64_t{problem.rows} * problem.row_bytes();
  if (plane_block > total)
  {
    return false;
  }
  problem.chunk_blocks = blocks;
  plan_stages(problem, most_shifts, total);
  problem.phase_stages  = static_cast<int>(most_rows) * problem.row_stages(static_cast<int>(most_shifts), blocks);
  const bool fits_whole = plane_block * blocks <= total;
  const int chained     = problem.tiles[0] > 1 ? std::min(problem.planes + problem.box[0], 2 * problem.planes)
                                               : 2 * problem.planes;
  const int64_t needed  = int64_t{problem.phase_stages} * problem.total_phases();
  const struct
  {
    int planes;
    int64_t stages;
  } choices[] = {{2 * problem.planes, std::min<int64_t>(needed, 8)},
                 {chained, tuning::implicit_gemm_min_stages},
                 {problem.planes, tuning::implicit_gemm_min_stages}};
  for (const auto& choice : choices)
  {
    problem.ring_planes = choice.planes;
    if (fits_whole && problem.ring_planes <= 32 && stages() >= choice.stages)
    {
      problem.stages = static_cast<int>(std::min<int64_t>(stages(), tuning::implicit_gemm_max_stages));
      return true;
    }
  }
  for (const int planes : {2 * problem.planes, problem.planes})
  {
    problem.ring_planes = planes;
    for (problem.chunk_blocks = blocks - 1; planes <= 32 && problem.chunk_blocks > 0; --problem.chunk_blocks)
    {
      if (plane_block * problem.chunk_blocks > total)
      {
        continue;
      }
      plan_stages(problem, most_shifts, total);
      if (stages() >= tuning::implicit_gemm_min_stages)
      {
        // As few chunks as fit, of about the same size.
        problem.chunk_blocks = (blocks + problem.chunks() - 1) / problem.chunks();
        plan_stages(problem, most_shifts, total);
        problem.phase_stages = problem.chunks() * static_cast<int>(most_rows)
                             * problem.row_stages(static_cast<int>(most_shifts), problem.chunk_blocks);
        problem.stages = static_cast<int>(std::min<int64_t>(stages(), tuning::implicit_gemm_max_stages));
        return problem.stages >= 2;
      }
    }
  }
  return false;
}

/// Plans the tensor-core kernel for a valid canonical shape with at least one output.
///
/// Not supported: groups; the split form below 16 input channels, where fewer
/// products may land on an output than its error bound needs; extents that 32-bit offsets within a tile cannot hold.
inline gemm_plan plan_implicit_gemm(const conv_transpose_shape<3>& shape,
                                    gemm_form form,
                                    layout input_layout         = layout::channels_first,
                                    const gemm_machine& machine = {})
{
  gemm_plan plan;
  plan.instruction              = machine.instruction;
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
  problem.sets = shape.stride[2] == 2 ? 2 : 1;
  if (problem.sets == 2 && problem.shifts(0) > gemm_problem::most_shifts_of_two_sets)
  {
    problem.sets = 1;
  }
  for (int bit = 0; problem.sets == 2 && bit < 2 * problem.shifts(0); ++bit)
  {
    problem.present |= uint64_t{problem.tap(0, bit / 2, bit % 2) >= 0 ? 1U : 0U} << bit;
  }
  problem.phases[2]     = (problem.phases[2] + problem.sets - 1) / problem.sets;
  problem.columns       = shape.out_channels <= 32 ? 32 : (shape.out_channels <= 64 ? 64 : 128);
  problem.channel_tiles = static_cast<int>(ceil_div(shape.out_channels, problem.columns));
  plan.whole_rows       = problem.channel_tiles == 1;
  // The bound on an output's error is (K + 8) 2^-24 sum|x||w|, and K is a multiple of in_channels: a quarter of it for inputs that are
  // not held exactly, and a quarter for weights.
  problem.lost = std::min(static_cast<float>(shape.in_channels + 8) / 4.0f, 64.0f) / 16777216.0f;

  const auto most_taps = [&](int a) {
    return ceil_div(
      problem.axis[a].kernel, problem.axis[a].stride / gcd(problem.axis[a].stride, problem.axis[a].dilation));
  };
  const int64_t most_rows   = most_taps(0) * most_taps(1);
  const int64_t most_shifts = problem.sets == 2 ? problem.shifts(0) : most_taps(2);
  const int rows = visit_gemm_policy(problem.columns, problem.sets, [](auto policy) { return decltype(policy)::rows; });
  const int64_t cells[3] = {problem.axis[0].cells(), problem.axis[1].cells(), problem.axis[2].cells()};
  int64_t span[3];
  for (int a = 0; a < 3; ++a)
  {
    span[a] = problem.axis[a].max_shift() - problem.axis[a].min_shift();
  }
  if (span[0] > 31 || span[1] > 4096 || span[2] > 4096)
  {
    return plan;
  }

  // Products and outputs of one tile, in cycles of a multiprocessor.
  const int count     = form == gemm_form::split ? 3 : gemm_form_traits::of(form).terms;
  const double pieces = static_cast<double>(problem.axis[0].kernel) * static_cast<double>(problem.axis[1].kernel)
                      * static_cast<double>(problem.axis[2].kernel) * problem.blocks();
  const double multiply  = pieces * count * 32.0 * problem.columns / 64.0 * rows / 64.0;
  const double outputs   = static_cast<double>(problem.total_phases()) * problem.sets * rows * problem.columns;
  const bool aligned     = problem.axis[2].in % 4 == 0 && !problem.x.channels_last();
  bool found             = false;
  double best_cost       = 0;
  gemm_problem candidate = problem;
  // Boxes that leave threads without cells only where no other fits.
  for (int64_t most = rows; !found && most >= rows / 4; most /= 2)
  {
    const int64_t most_w = std::min<int64_t>(most, (cells[2] + 1) / 2 * 2);
    for (int64_t w = 2;; w = 2 * w < most_w ? 2 * w : most_w)
    {
      for (int64_t h = 1; h <= std::min(cells[1], most / w); ++h)
      {
        const int64_t d  = std::min(cells[0], most / (w * h));
        candidate.box[0] = static_cast<int>(d);
        candidate.box[1] = static_cast<int>(h);
        candidate.box[2] = static_cast<int>(w);
        int64_t tiles    = problem.batch * problem.channel_tiles;
        for (int a = 0; a < 3; ++a)
        {
          candidate.tiles[a] = static_cast<int>(ceil_div(cells[a], candidate.box[a]));
          tiles *= candidate.tiles[a];
        }
        candidate.quads    = aligned && (w % 4 == 0 || candidate.tiles[2] == 1);
        const int64_t to   = candidate.quads ? 4 : 1;
        const int64_t left = ceil_div(problem.axis[2].max_shift(), to) * to;
        candidate.left     = static_cast<int>(left);
        candidate.width    = static_cast<int>(ceil_div(w + left - problem.axis[2].min_shift(), 4) * 4);
        candidate.rows     = static_cast<int>(h + span[1]);
        candidate.planes   = static_cast<int>(d + span[0]);
        if (candidate.planes > 32 || tiles >= (int64_t{1} << 31)
            || !plan_staging(candidate, most_rows, most_shifts, machine.shared_bytes))
        {
          continue;
        }
        const bool chunked   = candidate.chunks() > 1;
        const int64_t planes = candidate.tiles[0] > 1 && !chunked ? d : candidate.planes;
        const double staged  = static_cast<double>(planes) * candidate.rows * candidate.width * problem.blocks() * 16.0
                            * (chunked ? static_cast<double>(problem.total_phases()) : 1.0);
        const double run       = static_cast<double>(w) * problem.sets * 4.0; // bytes of a run of y, about
        const double late      = candidate.ring_planes < 2 * candidate.planes
                             && (chunked || candidate.ring_planes == candidate.planes)
                                 ? 1.0
                                 : 0.25;
        const double tile_cost = multiply + outputs * 0.2 * std::max(1.0, 128.0 / run) + late * staged * 0.5;
        const auto waves       = static_cast<double>(ceil_div(tiles, tuning::implicit_gemm_multiprocessors));
        const double cost      = waves * tile_cost;
        if (!found || cost < best_cost)
        {
          found       = true;
          best_cost   = cost;
          problem     = candidate;
          plan.cycles = cost;
        }
      }
      if (w >= most_w)
      {
        break;
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
  const int64_t groups      = int64_t{problem.channel_tiles} * problem.columns / tuning::implicit_gemm_pack_columns;
  plan.pack_blocks          = static_cast<int>(groups) * tuning::implicit_gemm_pack_cluster;
  problem.steps_at          = static_cast<int>(gemm_control_room(form, problem.ring_planes));
  problem.block_bytes       = problem.rows * problem.row_bytes();
  problem.first_step        = problem.step(0);
  problem.ring_at           = static_cast<int>(gemm_ring_start(problem));
  problem.staged_at         = problem.ring_at + problem.stages * problem.stage_bytes;
  plan.shared_bytes         = problem.staged_at + problem.ring_planes * problem.plane_bytes();
  plan.supported            = groups < 1 << 20 && plan.packed_bytes <= tuning::implicit_gemm_most_packed_bytes;
  return plan;
}

/// Blocks of the kernel: one for each of \p multiprocessors, or as many fewer as give every block the same number of tiles that follow each
/// other along d, where that is not more than some block would have in any case. The planes that a tile shares with the one before it are
/// staged already; a block that goes on elsewhere in its middle waits for all of them.
inline int64_t gemm_blocks(const gemm_problem& problem, int64_t multiprocessors)
{
  const int64_t most = std::min<int64_t>(problem.total_tiles(), multiprocessors);
  const int64_t each = ceil_div(problem.total_tiles(), most);
  return problem.planes > problem.box[0] && problem.tiles[0] % each == 0 ? problem.total_tiles() / each : most;
}

} // namespace detail

TCONV_NAMESPACE_END
