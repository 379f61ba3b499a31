// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Plans a tensor-core kernel: columns, tile of cells, staging, stages of weights. Host only, and the same for query and run.

#include "../block/implicit_gemm_problem.hpp"
#include "../shape.hpp"
#include "../tuning/engines.hpp"
#include "../tuning/implicit_gemm.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// What a plan has to know of the device and the build.
struct gemm_machine
{
  gemm_instruction instruction = gemm_instruction::warpgroup;
  int64_t shared_bytes         = tuning::implicit_gemm_shared_bytes; ///< a block may have
};

/// What a plan has to know of a call besides its shape.
struct gemm_call
{
  layout input         = layout::channels_first;
  layout output        = layout::channels_first;
  bool across_channels = false;                   ///< a tile is to hold all channels of a position, if a tile can
  int most_sets        = gemm_problem::most_sets; ///< phases along w that a thread may hold
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

/// Calls visit(policy) for the tiles of \p problem; the only list of instantiations. Tiles do not depend on the instruction.
template <gemm_form Form = gemm_form::split, gemm_instruction Instruction = gemm_instruction::warpgroup, class Visitor>
auto visit_gemm_policy(const gemm_problem& problem, Visitor&& visit)
{
  if constexpr (Form == gemm_form::split)
  {
    if (problem.promoted)
    {
      switch (problem.columns * problem.set_room())
      {
        case 256: return visit(tuning::implicit_gemm_policy<32, 8, Instruction, true>{});
        case 128:
          return problem.columns == 64 ? visit(tuning::implicit_gemm_policy<64, 2, Instruction, true>{})
                                       : visit(tuning::implicit_gemm_policy<32, 4, Instruction, true>{});
        default: break; // promoted in any case
      }
    }
  }
  switch (problem.set_room())
  {
    case 8:
      return problem.unit == 4 ? visit(tuning::implicit_gemm_policy<32, 8, Instruction, false, 4>{})
                               : visit(tuning::implicit_gemm_policy<32, 8, Instruction>{});
    case 4: return visit(tuning::implicit_gemm_policy<32, 4, Instruction>{});
    case 2:
      switch (problem.columns)
      {
        case 32: return visit(tuning::implicit_gemm_policy<32, 2, Instruction>{});
        case 64: return visit(tuning::implicit_gemm_policy<64, 2, Instruction>{});
        default: return visit(tuning::implicit_gemm_policy<128, 2, Instruction>{});
      }
    default:
      switch (problem.columns)
      {
        case 32: return visit(tuning::implicit_gemm_policy<32, 1, Instruction>{});
        case 64: return visit(tuning::implicit_gemm_policy<64, 1, Instruction>{});
        default: return visit(tuning::implicit_gemm_policy<128, 1, Instruction>{});
      }
  }
}

/// The one of \p Known that \p row is, or 0.
template <unsigned... Known>
constexpr unsigned find_known_row(unsigned_list<Known...> /*known*/, uint64_t row)
{
  return ((row == Known ? Known : 0U) | ...);
}

/// Which phases have taps at the \p count shifts of a row, where the main loop has code of its own for them (see gemm_known_rows); else 0.
inline unsigned gemm_neighbours(const gemm_problem& problem, int count)
{
  const conv_axis& axis = problem.axis[2];
  const uint64_t row    = problem.sets == 1 ? low_bits(~uint64_t{0}, count) : problem.present;
  if (axis.dilation != 1 || (problem.sets == 1 && axis.stride != 1)
      || !gemm_row_pays(problem.unit_room(), problem.form, problem.promoted))
  {
    return 0;
  }
  switch (problem.unit_room())
  {
    case 1: return find_known_row(gemm_known_rows<1>::list{}, row);
    case 2: return find_known_row(gemm_known_rows<2>::list{}, row);
    case 4: return find_known_row(gemm_known_rows<4>::list{}, row);
    default: return find_known_row(gemm_known_rows<8>::list{}, row);
  }
}

/// Warps of a block that multiply.
inline int consumer_warps(const gemm_problem& problem)
{
  return visit_gemm_policy(problem, [](auto policy) { return decltype(policy)::consumers * 4; });
}

/// Bytes before the table of steps, for \p planes planes: control data and lists of lost inputs. A multiple of 128.
constexpr int64_t gemm_control_room(gemm_form form, int planes)
{
  return gemm_control_bytes + (form == gemm_form::split ? int64_t{planes} * gemm_lost_bytes : 0);
}

/// Bytes in which the warps that multiply exchange outputs. A multiple of 128.
inline int64_t gemm_exchange_room(const gemm_problem& problem)
{
  const int bytes = visit_gemm_policy(
    problem, [](auto policy) { return decltype(policy)::exchange_bytes * decltype(policy)::consumers * 4; });
  return ceil_div(int64_t{bytes}, 128) * 128;
}

/// Bytes before the room for exchanged outputs: the table of steps comes before it. A multiple of 128.
constexpr int64_t gemm_exchange_start(const gemm_problem& problem)
{
  const int64_t table = int64_t{problem.phases[2]} * problem.row_steps * static_cast<int64_t>(sizeof(gemm_step));
  return gemm_control_room(problem.form, problem.ring_planes) + ceil_div(table, 128) * 128;
}

/// Bytes before the ring of weights. A multiple of 128.
inline int64_t gemm_ring_start(const gemm_problem& problem)
{
  return gemm_exchange_start(problem) + gemm_exchange_room(problem);
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

/// Steps per stage and room of a stage, which follow from the blocks of a chunk and the size that stages may have alone while boxes of cells are tried: each
/// is found once.
class stage_planner
{
public:
  /// \p most_shifts: of a row; \p total: bytes of shared memory.
  stage_planner(int64_t most_shifts, int64_t total) : count_(static_cast<int>(most_shifts)), total_(total) {}

  /// Plans the stages of \p problem for its chunk_blocks, of no more than \p bytes unless one step has more.
  void plan(gemm_problem& problem, int64_t bytes)
  {
    const std::size_t size = bytes == tuning::implicit_gemm_stage_bytes ? 0 : 1;
    entry& known           = known_.at(size).at(static_cast<std::size_t>(problem.chunk_blocks) % known_[0].size());
    if (known.chunk_blocks != problem.chunk_blocks)
    {
      known = find(problem, std::min(bytes, total_ / (size == 0 ? 8 : 16)));
    }
    problem.row_steps       = known.row_steps;
    problem.neighbours      = known.neighbours;
    problem.steps_per_stage = known.steps_per_stage;
    problem.stage_bytes     = known.stage_bytes;
  }

private:
  struct entry
  {
    int chunk_blocks    = 0;
    int row_steps       = 0;
    unsigned neighbours = 0;
    int steps_per_stage = 0;
    int stage_bytes     = 0;
  };

  [[nodiscard]] entry find(const gemm_problem& problem, int64_t most) const
  {
    const int all  = problem.chunk_blocks * count_;
    const auto fit = [&](int steps, int64_t bytes) {
      return static_cast<int64_t>(most_pieces(problem, steps, count_)) * problem.piece_bytes() <= bytes;
    };
    // Whole blocks at a time where the main loop has code for all shifts of one, even if that is more than asked.
    const unsigned neighbours = fit(count_, std::min(tuning::implicit_gemm_stage_bytes, total_ / 8))
                                ? gemm_neighbours(problem, count_)
                                : 0;
    const int unit            = neighbours != 0 ? count_ : 1;
    int steps                 = unit;
    while (steps + unit <= std::min(all, gemm_most_steps) && fit(steps + unit, most))
    {
      steps += unit;
    }
    // Stages are groups of products where the operands of the next one are loaded ahead.
    const int group = neighbours == 0 ? 0 : visit_gemm_policy(problem, [&](auto policy) {
      const gemm_group<decltype(policy)> at_once(problem.form, neighbours);
      return at_once.ahead ? at_once.blocks * unit : 0;
    });
    if (group > 0 && fit(group, tuning::implicit_gemm_stage_bytes))
    {
      steps = std::min(all, group);
    }
    // Stages of about the same size.
    const int stages   = (all + steps - 1) / steps;
    const int of_stage = ((all + stages - 1) / stages + unit - 1) / unit * unit;
    return {problem.chunk_blocks,
            all + 1,
            neighbours,
            of_stage,
            most_pieces(problem, of_stage, count_) * problem.piece_bytes()};
  }

  int count_;
  int64_t total_;
  std::array<std::array<entry, 64>, 2> known_;
};

/// Chooses chunks and rings for the box of \p problem in \p total bytes of shared memory; false if it does not fit.
inline bool
plan_staging(gemm_problem& problem, stage_planner& planner, int64_t most_rows, int64_t most_shifts, int64_t total)
{
  const int blocks  = problem.blocks();
  const auto stages = [&] {
    return (total - gemm_ring_start(problem) - int64_t{problem.ring_planes} * problem.plane_bytes())
         / problem.stage_bytes;
  };
  const auto row_stages = [&] {
    return most_rows * problem.row_stages(static_cast<int>(most_shifts), problem.chunk_blocks);
  };
  constexpr int64_t sizes[2] = {tuning::implicit_gemm_stage_bytes, tuning::implicit_gemm_small_stage_bytes};
  // The widest row alone must be addressable.
  const int64_t plane_block = int64_t{problem.rows} * problem.row_bytes();
  if (plane_block > total)
  {
    return false;
  }
  const bool fits_whole = plane_block * blocks <= total;
  // All channels at a time, where that leaves room for at least so many bytes of weights, or for all.
  const auto whole = [&](int planes, int64_t least) {
    problem.chunk_blocks = blocks;
    problem.ring_planes  = planes;
    for (const int64_t size : sizes)
    {
      planner.plan(problem, size);
      problem.phase_stages = static_cast<int>(row_stages());
      problem.stages       = static_cast<int>(std::min<int64_t>(stages(), tuning::implicit_gemm_max_stages));
      const int64_t most   = std::max<int64_t>(tuning::implicit_gemm_min_stages, least / problem.stage_bytes);
      const int64_t needed = row_stages() * problem.total_phases();
      // Weights that stay are waited for once: the smaller their stages, the sooner the first ones are there.
      const bool kept = problem.form != gemm_form::split && problem.channel_tiles == 1 && needed <= stages();
      if (fits_whole && planes <= 32 && stages() >= (least > 0 ? std::min(needed, most) : most)
          && !(kept && size == sizes[0]))
      {
        return true;
      }
    }
    return false;
  };
  // As few chunks of them as fit, of about the same size, with stages of two steps if there are such.
  const auto chunked = [&](int planes) {
    problem.ring_planes = planes;
    // More than these leave no room for stages of one piece.
    const int64_t most =
      (total - gemm_control_bytes - int64_t{tuning::implicit_gemm_min_stages} * problem.piece_bytes())
      / (planes * plane_block);
    for (const int least_steps : {2, 1})
    {
      const auto fits = [&] {
        return std::any_of(std::begin(sizes), std::end(sizes), [&](int64_t size) {
          planner.plan(problem, size);
          return problem.steps_per_stage >= least_steps && stages() >= tuning::implicit_gemm_min_stages;
        });
      };
      for (problem.chunk_blocks = static_cast<int>(std::min<int64_t>(blocks - 1, most));
           planes <= 32 && problem.chunk_blocks > 0;
           --problem.chunk_blocks)
      {
        if (fits())
        {
          problem.chunk_blocks = (blocks + problem.chunks() - 1) / problem.chunks();
          const bool found     = fits();
          problem.phase_stages = problem.chunks() * static_cast<int>(row_stages());
          problem.stages       = static_cast<int>(std::min<int64_t>(stages(), tuning::implicit_gemm_max_stages));
          return found;
        }
      }
    }
    return false;
  };
  const int twice   = 2 * problem.planes;
  const int chained = problem.tiles[0] > 1 ? std::min(problem.planes + problem.box[0], twice) : twice;
  // A tile without room for the next one's input beside its own waits for it; chunks do not, and with one phase they are staged once.
  return whole(twice, tuning::implicit_gemm_ring_bytes) || whole(chained, 0)
      || (problem.total_phases() == 1 && chunked(twice)) || whole(problem.planes, 0) || chunked(twice)
      || chunked(problem.planes);
}

/// Fewest taps along \p axis that bring an input to an output that any does.
inline int64_t fewest_landing_taps(const conv_axis& axis)
{
  const int64_t span = (axis.kernel - 1) * axis.dilation + axis.stride;
  int64_t fewest     = axis.kernel;
  // Outputs that lie further from both ends have as many as those of their phase there.
  for (int64_t o = 0; o < axis.out; o = o == 2 * span ? std::max(o + 1, axis.out - 2 * span) : o + 1)
  {
    int64_t landing = 0;
    for (int64_t t = 0; t < axis.kernel; ++t)
    {
      const int64_t scaled = o + axis.padding - t * axis.dilation;
      landing += scaled >= 0 && scaled % axis.stride == 0 && scaled / axis.stride < axis.in ? 1 : 0;
    }
    fewest = landing > 0 ? std::min(fewest, landing) : fewest;
  }
  return fewest;
}

/// Whether so many products meet in every output that the bound on its error has room for the split form.
inline bool has_products_for_split(const conv_transpose_shape<3>& shape)
{
  constexpr int64_t least     = 16;
  constexpr int64_t most_span = 64; // it would take long
  int64_t products            = shape.in_channels / shape.groups;
  for (int a = 0; a < 3 && products < least; ++a)
  {
    const conv_axis axis = shape.axis(a);
    products *= (axis.kernel - 1) * axis.dilation + axis.stride <= most_span ? fewest_landing_taps(axis) : 1;
  }
  return products >= least;
}

/// Whether the engine has numbers for \p shape; see plan_implicit_gemm().
inline bool fits_gemm_problem(const conv_transpose_shape<3>& shape, gemm_form form)
{
  constexpr int64_t most_extent = int64_t{1} << 24;
  bool fits                     = shape.in_channels <= (int64_t{1} << 20) && shape.batch < (int64_t{1} << 31)
           && shape.out_channels <= (int64_t{1} << 20)
           && (form == gemm_form::split ? shape.in_channels / shape.groups >= 4 && has_products_for_split(shape)
                                        : shape.groups == 1);
  for (int a = 0; a < 3; ++a)
  {
    const conv_axis axis = shape.axis(a);
    fits                 = fits && axis.in <= most_extent && axis.out <= most_extent && axis.kernel <= 1024
        && axis.stride <= most_extent && axis.dilation <= most_extent && axis.padding <= most_extent;
  }
  // Offsets within a sample and within the weights are 32 bits wide, as is the number of phases.
  const double phases = static_cast<double>(shape.axis(0).phases()) * static_cast<double>(shape.axis(1).phases())
                      * static_cast<double>(shape.axis(2).phases());
  const double sample = static_cast<double>(shape.input_slice.total(shape.in_channels))
                      * static_cast<double>(shape.input_positions());
  return fits && phases <= 65536.0 && sample < 2147483648.0 && shape.weight_elements() < (int64_t{1} << 31)
      && shape.taps() <= 1 << 20;
}

/// The numbers of \p shape that follow from it alone.
inline gemm_problem make_gemm_problem(const conv_transpose_shape<3>& shape, gemm_form form, layout input)
{
  gemm_problem problem;
  problem.form         = form;
  problem.x            = tensor_strides::of(input, shape.input_slice.total(shape.in_channels), shape.input_positions());
  problem.batch        = shape.batch;
  problem.in_channels  = shape.in_channels;
  problem.out_channels = shape.out_channels;
  problem.groups       = static_cast<int>(shape.groups);
  problem.in_per_group = static_cast<int>(shape.in_channels / shape.groups);
  problem.out_per_group = static_cast<int>(shape.out_channels / shape.groups);
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
  // The bound on an output's error is (K + 8) 2^-24 sum|x||w|, and K is a multiple of a group's input channels: a quarter of it for inputs that
  // are not held exactly, and a quarter for weights.
  problem.lost = std::min(static_cast<float>(problem.in_per_group + 8) / 4.0f, 64.0f) / 16777216.0f;
  return problem;
}

/// Most taps along axis \p a that land on an output.
constexpr int64_t most_landing_taps(const gemm_problem& problem, int a)
{
  const conv_axis& axis = problem.axis[a];
  return ceil_div(axis.kernel, axis.stride / gcd(axis.stride, axis.dilation));
}

/// Gives each thread \p sets phases along w, 1 or all of them; false if their shifts do not fit.
inline bool assign_sets(gemm_problem& problem, int sets)
{
  problem.sets = sets;
  if (sets == 1)
  {
    return true;
  }
  problem.phases[2] = 1;
  return problem.shifts(0) <= problem.most_shifts();
}

/// Gives the sets of \p problem units of \p unit phases, and says where these have taps; false where the phases of one differ.
inline bool assign_units(gemm_problem& problem, int unit)
{
  problem.unit    = unit;
  problem.present = 0;
  bool same       = problem.sets % unit == 0;
  for (int j = 0; problem.sets > 1 && j < problem.shifts(0); ++j)
  {
    for (int set = 0; set < problem.sets; ++set)
    {
      const bool lands = problem.tap(0, j, set) >= 0;
      same             = same && lands == (problem.tap(0, j, set / unit * unit) >= 0);
      problem.present |= uint64_t{lands ? 1U : 0U} << (problem.unit_room() * j + set / unit);
    }
  }
  return same;
}

/// Most products that meet in an output.
inline int64_t most_products(const gemm_problem& problem)
{
  return problem.in_per_group * most_landing_taps(problem, 0) * most_landing_taps(problem, 1)
       * most_landing_taps(problem, 2);
}

/// Gives the tiles of \p problem \p columns output channels each, and the input channels that these have weights for. Tiles that are to hold all channels are
/// not made narrower or shorter for the sake of long sums.
inline void assign_columns(gemm_problem& problem, int columns, bool across_channels)
{
  problem.columns       = columns;
  problem.channel_tiles = static_cast<int>(ceil_div(problem.out_channels, columns));
  problem.tile_inputs   = problem.in_per_group;
  problem.promoted      = problem.form == gemm_form::split && !across_channels
                  && most_products(problem) > tuning::implicit_gemm_longest_sum(columns);
  constexpr int unit = 4;
  if (problem.set_room() < 2 * unit || problem.promoted || !assign_units(problem, unit))
  {
    assign_units(problem, 1);
  }
  for (int64_t first = 0; problem.groups > 1 && first < problem.out_channels; first += columns)
  {
    const int64_t last   = std::min(first + columns, problem.out_channels) - 1;
    const int64_t groups = last / problem.out_per_group - first / problem.out_per_group + 1;
    problem.tile_inputs  = std::max(problem.tile_inputs, static_cast<int>(groups) * problem.in_per_group);
  }
}

/// Columns of the widest tiles that suit the channels and sets of \p problem: 32, 64 or 128.
inline int most_columns(const gemm_problem& problem, bool across_channels)
{
  const bool wide = problem.form != gemm_form::split || across_channels
                 || most_products(problem) <= tuning::implicit_gemm_longest_sum(128);
  const int most = problem.sets > 2 ? 32 : (wide ? 128 : 64);
  return std::min(most, problem.out_channels <= 32 ? 32 : (problem.out_channels <= 64 ? 64 : 128));
}

/// Chooses the box of cells of a tile for \p problem, and with it chunks and rings, in \p total bytes of shared memory. Returns the estimate of
/// a multiprocessor's cycles; infinity if no box fits.
inline double plan_tiles(gemm_problem& problem, const gemm_call& call, int64_t total)
{
  const double none         = std::numeric_limits<double>::infinity();
  const int64_t most_rows   = most_landing_taps(problem, 0) * most_landing_taps(problem, 1);
  const int64_t most_shifts = problem.sets > 1 ? problem.shifts(0) : most_landing_taps(problem, 2);
  const int rows            = visit_gemm_policy(problem, [](auto policy) { return decltype(policy)::rows; });
  const int64_t cells[3]    = {problem.axis[0].cells(), problem.axis[1].cells(), problem.axis[2].cells()};
  int64_t span[3];
  for (int a = 0; a < 3; ++a)
  {
    span[a] = problem.axis[a].max_shift() - problem.axis[a].min_shift();
  }
  if (span[0] > 31 || span[1] > 4096 || span[2] > 4096)
  {
    return none;
  }

  // Products and outputs of one tile, in cycles of a multiprocessor.
  using costs         = tuning::engine_costs;
  const int count     = problem.form == gemm_form::split ? 3 : gemm_form_traits::of(problem.form).terms;
  const double pieces = static_cast<double>(problem.axis[0].kernel) * static_cast<double>(problem.axis[1].kernel)
                      * static_cast<double>(problem.axis[2].kernel) * problem.blocks();
  const double products = pieces * count * 32.0 * problem.columns / 64.0 * rows / 64.0;
  const double steps    = static_cast<double>(problem.axis[0].kernel) * static_cast<double>(problem.axis[1].kernel)
                     * static_cast<double>(most_shifts) * problem.blocks();
  const bool known      = problem.unit_room() == 8 && gemm_neighbours(problem, static_cast<int>(most_shifts)) != 0;
  const double multiply = problem.unit_room() <= 2 ? products
                        : known                    ? products + steps * costs::gemm_known_step
                                : products * costs::gemm_many_sets + steps * costs::gemm_many_sets_step;
  const double outputs  = static_cast<double>(problem.total_phases()) * problem.sets * rows * problem.columns;
  const bool single     = problem.form == gemm_form::split || problem.form == gemm_form::tf32;
  const bool exchanged  = problem.sets > 2 && call.output != layout::channels_last;
  const double stage    = !single                          ? costs::gemm_stage_half
                        : exchanged                        ? costs::gemm_stage_exchanged
                        : problem.form == gemm_form::split ? costs::gemm_stage_split
                                                           : costs::gemm_stage_tf32;
  // Both ends of a run of outputs are parts of sectors where rows are no whole ones.
  const double element = gemm_form_traits::of(problem.form).lane_bytes / 4.0; // a lane has 4 of them
  const double odd     = problem.sets > 1 && problem.axis[2].out % 8 != 0 ? costs::gemm_run_ends : 0.0;
  // Outputs whose neighbours belong to other threads are stored one by one.
  const bool scattered = problem.sets == 1 && problem.axis[2].stride > 2 && call.output != layout::channels_last;
  const auto divides   = [&](int elements) { return problem.axis[2].in % elements == 0 && !problem.x.channels_last(); };
  const int longest_run  = !single && divides(8) ? 8 : (divides(4) ? 4 : 1);
  double best            = none;
  gemm_problem candidate = problem;
  stage_planner planner(most_shifts, total);
  // Boxes that leave threads without cells only where no other fits.
  for (int64_t most = rows; !std::isfinite(best) && most >= rows / 4; most /= 2)
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
        candidate.run = longest_run;
        while (w % candidate.run != 0 && candidate.tiles[2] > 1)
        {
          candidate.run = candidate.run == 8 ? 4 : 1;
        }
        const int64_t to   = candidate.run;
        const int64_t left = ceil_div(problem.axis[2].max_shift(), to) * to;
        candidate.left     = static_cast<int>(left);
        candidate.width    = static_cast<int>(ceil_div(w + left - problem.axis[2].min_shift(), std::max<int64_t>(to, 4))
                                           * std::max<int64_t>(to, 4));
        candidate.rows     = static_cast<int>(h + span[1]);
        candidate.planes   = static_cast<int>(d + span[0]);
        const double run   = static_cast<double>(std::min(w * problem.sets, problem.axis[2].out))
                         * element; // bytes of a run of y
        const double finished = multiply + outputs * 0.2 * (std::max(1.0, 128.0 / run) + odd / run)
                              + (scattered ? outputs * costs::gemm_scattered : 0.0);
        const auto waves = static_cast<double>(ceil_div(tiles, tuning::implicit_gemm_multiprocessors));
        // What no staging can make better need not be planned.
        if (candidate.planes > 32 || tiles >= (int64_t{1} << 31) || waves * finished > best
            || !plan_staging(candidate, planner, most_rows, most_shifts, total))
        {
          continue;
        }
        const bool chunked   = candidate.chunks() > 1;
        const int64_t planes = candidate.tiles[0] > 1 && !chunked ? d : candidate.planes;
        const double staged  = static_cast<double>(planes) * candidate.rows * candidate.width * problem.blocks() * 16.0
                            * (chunked ? static_cast<double>(problem.total_phases()) : 1.0);
        const double late      = candidate.ring_planes < 2 * candidate.planes
                             && (chunked || candidate.ring_planes == candidate.planes)
                                 ? 1.0
                                 : 0.25;
        const double tile_cost = std::max(finished + late * staged * 0.5, staged * stage);
        const double cost      = waves * tile_cost;
        // Of equal ones the widest: the outputs of a tile lie closest to each other.
        if (cost <= best)
        {
          best    = cost;
          problem = candidate;
        }
      }
      if (w >= most_w)
      {
        break;
      }
    }
  }
  return best;
}

/// Plans the tensor-core kernel for a valid canonical shape with at least one output.
///
/// Groups: the weights of a tile of columns are a matrix of blocks, zero outside of them. What is not finite must not meet a zero, which the split
/// form alone sees to; others do not have groups. Not supported either: the split form where fewer than 16 products may land on an output,
/// or 4 input channels, which its error bound needs; extents that 32-bit offsets within a tile cannot hold.
inline gemm_plan plan_implicit_gemm(const conv_transpose_shape<3>& shape,
                                    gemm_form form,
                                    const gemm_call& call       = {},
                                    const gemm_machine& machine = {})
{
  gemm_plan plan;
  plan.instruction = machine.instruction;
  if (!fits_gemm_problem(shape, form))
  {
    return plan;
  }
  const gemm_problem base = make_gemm_problem(shape, form, call.input);
  plan.cycles             = std::numeric_limits<double>::infinity();
  // All phases along w in a thread, or one. With stride 2 all of them are always better; more leave room for 32 columns only.
  const auto all = static_cast<int>(std::min<int64_t>(shape.stride[2], gemm_problem::most_sets + 1));
  for (const int sets : {all, 1})
  {
    const bool allowed    = sets <= call.most_sets && !(sets > 2 && call.across_channels && shape.out_channels > 32);
    const bool settled    = sets == 1 && (all == 1 || plan.problem.sets == 2) && std::isfinite(plan.cycles);
    gemm_problem assigned = base;
    if (!allowed || settled || !assign_sets(assigned, sets))
    {
      continue;
    }
    // Narrow tiles stage their input more often, but there are more of them.
    double best = std::numeric_limits<double>::infinity();
    for (int columns = most_columns(assigned, call.across_channels); columns >= 32; columns /= 2)
    {
      gemm_problem candidate = assigned;
      assign_columns(candidate, columns, call.across_channels);
      const double cycles = plan_tiles(candidate, call, machine.shared_bytes);
      if (!(cycles < best * tuning::engine_costs::gemm_narrower))
      {
        continue;
      }
      best = cycles;
      if (cycles < plan.cycles)
      {
        plan.cycles  = cycles;
        plan.problem = candidate;
      }
      if (call.across_channels)
      {
        break;
      }
    }
  }
  gemm_problem& problem = plan.problem;
  if (!std::isfinite(plan.cycles))
  {
    return plan;
  }
  plan.whole_rows = problem.channel_tiles == 1;

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
  problem.exchange_at       = static_cast<int>(gemm_exchange_start(problem));
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
