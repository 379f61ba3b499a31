// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Plans a gather kernel: register tile, block tile, staging, phases. Host only, and the same for query and run.

#include "../block/gather_problem.hpp"
#include "../shape.hpp"
#include "../tuning/gather.hpp"

#include <algorithm>

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// A planned gather kernel.
struct gather_plan
{
  gather_problem problem;
  int channels_per_thread = 8; ///< which policy: 8, 4 or 1
  int phases_per_thread   = 1; ///< 1 or 2
  int64_t shared_bytes    = 0;
  /// All channels of a position are held by one group of lanes, so that channel functors can run on the accumulators.
  bool whole_rows = false;
};

/// What a policy means for planning.
struct gather_traits
{
  int channels_per_thread;
  int phases_per_thread;
  int cells_per_thread;
  int threads;
  int min_blocks;
  int max_run;
  int cut_run;
  int64_t ring_bytes;
  int64_t list_bytes;
  int64_t shared_bytes;
  int stage_floats;

  template <class Policy>
  static constexpr gather_traits of()
  {
    return {Policy::channels_per_thread,
            Policy::phases_per_thread,
            Policy::cells_per_thread,
            Policy::threads,
            Policy::min_blocks,
            Policy::max_run,
            Policy::cut_run,
            int64_t{4} * 2 * Policy::weight_stage_floats,
            Policy::list_bytes,
            Policy::shared_bytes,
            Policy::weight_stage_floats};
  }
};

/// Calls visit(policy) with the default policy for a register tile; the only list of instantiations.
template <class Visitor>
auto visit_gather_policy(int channels_per_thread, int phases_per_thread, Visitor&& visit)
{
  if (phases_per_thread == 2)
  {
    switch (channels_per_thread)
    {
      case 8: return visit(tuning::gather_default<8, 2>::type{});
      case 4: return visit(tuning::gather_default<4, 2>::type{});
      default: return visit(tuning::gather_default<1, 2>::type{});
    }
  }
  switch (channels_per_thread)
  {
    case 8: return visit(tuning::gather_default<8, 1>::type{});
    case 4: return visit(tuning::gather_default<4, 1>::type{});
    default: return visit(tuning::gather_default<1, 1>::type{});
  }
}

/// Channels per thread: as many as fill the registers, never across a group.
constexpr int gather_channels_per_thread(int64_t out_channels, int64_t groups)
{
  const int64_t per_group = out_channels / groups;
  if (groups == 1)
  {
    return per_group > 4 ? 8 : (per_group > 1 ? 4 : 1);
  }
  return per_group % 8 == 0 ? 8 : (per_group % 4 == 0 ? 4 : 1);
}

/// Lanes that share a row. With \p whole_row: enough for all channels, or 32. Otherwise the number with the least padding; a
/// narrow tile stages the input more often, which one lane of work stands for.
constexpr int gather_lanes(int64_t out_channels, int channels_per_thread, bool whole_row)
{
  int best         = 1;
  double best_cost = 0;
  for (int lanes = 1; lanes <= 32; lanes *= 2)
  {
    const int64_t tile = static_cast<int64_t>(lanes) * channels_per_thread;
    if (whole_row)
    {
      best = lanes;
      if (tile >= out_channels)
      {
        break;
      }
      continue;
    }
    const double cost = static_cast<double>(ceil_div(out_channels, tile) * tile) * (1.0 + 1.0 / lanes);
    if (lanes == 1 || cost < best_cost)
    {
      best      = lanes;
      best_cost = cost;
    }
  }
  return best;
}

/// Floats between staged channels for whole rows of the problem's pitch: odd where rows are, so that channels lie in different
/// banks; in quads, where threads stage neighbouring channels side by side, 4 more than a multiple of 32.
inline int plane_floats(const gather_problem& problem)
{
  const int floats = problem.rows[0] * problem.rows[1] * problem.pitch;
  if (!problem.quads)
  {
    return floats | 1;
  }
  return problem.x.channels_last() ? floats + (36 - floats % 32) % 32 : floats;
}

/// Cuts \p problem into tiles: the shape with the least estimated work among those whose input fits shared memory.
inline void plan_tiles(gather_problem& problem, const gather_traits& traits)
{
  const int slots        = traits.threads / problem.taps.lanes; // groups of cells per block
  const int64_t cells[3] = {std::max<int64_t>(problem.axis[0].cells(), 1),
                            std::max<int64_t>(problem.axis[1].cells(), 1),
                            ceil_div(std::max<int64_t>(problem.axis[2].cells(), 1), traits.cells_per_thread)};
  int64_t span[3];
  for (int a = 0; a < 3; ++a)
  {
    span[a] = problem.axis[a].max_shift() - problem.axis[a].min_shift();
  }
  // Rows of 4k elements are staged in quads, from a multiple of 4 on.
  problem.quads      = problem.axis[2].in % 4 == 0;
  const int64_t step = problem.quads ? 4 : 1;
  const int64_t left = ceil_div(problem.axis[2].max_shift(), step) * step;
  span[2]            = left - problem.axis[2].min_shift();
  const int64_t room = (traits.shared_bytes - traits.ring_bytes - traits.list_bytes) / 4;
  const double taps  = static_cast<double>(problem.taps.kernel[0]) * static_cast<double>(problem.taps.kernel[1])
                    * static_cast<double>(problem.taps.kernel[2]);

  // The main loop holds shifts and staged addresses in 32 bits.
  constexpr int64_t limit = int64_t{1} << 16;
  bool small              = true;
  for (const conv_axis& axis : problem.axis)
  {
    small = small && axis.max_shift() < limit && axis.min_shift() > -limit;
  }

  double best_cost = -1;
  for (int w = 1; w <= slots && w <= cells[2]; ++w)
  {
    for (int h = 1; h * w <= slots && h <= cells[1]; ++h)
    {
      // Along d only what is left, cut evenly.
      const int most        = static_cast<int>(std::min<int64_t>(slots / (w * h), cells[0]));
      const int d           = static_cast<int>(ceil_div(cells[0], ceil_div(cells[0], most)));
      const int64_t tile[3] = {d, h, static_cast<int64_t>(w) * traits.cells_per_thread};
      int64_t floats        = problem.tile_groups;
      int64_t extent[3];
      for (int a = 0; a < 3; ++a)
      {
        // Shared memory is far below 2^20 floats, so larger halos are out before any product can overflow.
        extent[a] = tile[a] + std::min<int64_t>(span[a], int64_t{1} << 20);
      }
      extent[2] = ceil_div(extent[2], step) * step;
      for (int a = 0; a < 3; ++a)
      {
        floats = std::min<int64_t>(floats * (a == 2 ? extent[a] + 1 : extent[a]), int64_t{1} << 40);
      }
      floats += problem.tile_groups * (problem.x.channels_last() ? int64_t{32} : int64_t{1}); // padding of planes
      const bool fits = floats <= room && small;

      const double tiles = static_cast<double>(ceil_div(cells[0], d)) * static_cast<double>(ceil_div(cells[1], h))
                         * static_cast<double>(ceil_div(cells[2], w));
      // Per input channel and warp: one FMA per tap, channel and cell, and about 40 instructions per pass over rows.
      const double products = taps * traits.channels_per_thread * traits.cells_per_thread;
      const int64_t columns = extent[2] / step; // short rows share a pass
      const int64_t at_once = columns < 32 ? 32 / columns : 1;
      const auto passes =
        static_cast<double>(ceil_div(extent[0] * extent[1] * ceil_div(columns, 32), traits.threads / 32 * at_once));
      const double copies = fits ? 40.0 * passes * problem.tile_groups : 16.0 * products;
      // About 5 instructions per output where a row of the tile is 256 bytes of y; stores of shorter runs cost in proportion.
      const double run     = 4.0 * traits.cells_per_thread * traits.phases_per_thread * w;
      const double outputs = static_cast<double>(problem.phases[0]) * static_cast<double>(problem.phases[1])
                           * static_cast<double>(problem.phases[2]) * traits.channels_per_thread
                           * traits.cells_per_thread * traits.phases_per_thread;
      const double stores = 5.0 * outputs * std::max(1.0, 256.0 / run) / static_cast<double>(problem.taps.in_per_group);
      const double cost   = tiles * (products + copies + stores);
      // Of equals the last, the least deep one: its outputs lie closer together.
      if (best_cost < 0 || cost <= best_cost)
      {
        best_cost             = cost;
        problem.tile_cells[0] = d;
        problem.tile_cells[1] = h;
        problem.tile_cells[2] = w * traits.cells_per_thread;
        problem.staged        = fits;
        for (int a = 0; a < 3; ++a)
        {
          problem.tiles[a] = ceil_div(cells[a], a == 0 ? d : (a == 1 ? h : w));
        }
        if (fits)
        {
          problem.rows[0] = static_cast<int>(extent[0]);
          problem.rows[1] = static_cast<int>(extent[1]);
          problem.width   = static_cast<int>(extent[2]);
          problem.left    = static_cast<int>(left);
          // Odd where it may be, so that the rows and the planes that the lanes of a warp read at once lie in different banks.
          problem.pitch = problem.quads ? problem.width : problem.width | 1;
          problem.plane = plane_floats(problem);
          // As few chunks as fit, of about the same size.
          const int64_t fit = room / (static_cast<int64_t>(problem.plane) * problem.tile_groups);
          const int64_t all = problem.taps.in_per_group;
          problem.chunk     = static_cast<int>(ceil_div(all, ceil_div(all, fit)));
        }
      }
    }
  }
}

/// Spreads phases over blocks: those of the tiles that do not fill a wave of \p resident blocks, which are all tiles where
/// there are few.
inline void plan_splits(gather_problem& problem, int64_t resident)
{
  const int64_t tiles = problem.all_tiles();
  const int64_t total = problem.total_phases();
  // Whole groups of channel tiles, so that work items number positions the same way on both sides.
  const int64_t rest  = tiles < resident ? tiles
                                         : tiles % resident / problem.taps.channel_tiles * problem.taps.channel_tiles;
  problem.whole_tiles = tiles - rest;
  // Every split stages the input again, so a tail is cut into a few pieces only.
  problem.phase_splits = std::min(
    total, problem.whole_tiles > 0 ? tuning::gather_tail_splits : ceil_div(resident, std::max<int64_t>(rest, 1)));
  problem.split_phases = ceil_div(total, problem.phase_splits);
  problem.phase_splits = ceil_div(total, problem.split_phases);

  const auto products = [&](const int64_t(&phase)[3]) {
    return problem.axis[0].phase(phase[0]).count * problem.axis[1].phase(phase[1]).count;
  };
  problem.last_split_first = products({problem.phases[0] - 1, problem.phases[1] - 1, 0}) > products({0, 0, 0});
}

/// Plans the gather kernel for a valid canonical shape with at least one output. \p whole_rows: channel functors follow.
inline gather_plan
plan_gather(const conv_transpose_shape<3>& shape, bool whole_rows, layout input_layout = layout::channels_first)
{
  gather_plan plan;
  gather_problem& problem    = plan.problem;
  plan.channels_per_thread   = gather_channels_per_thread(shape.out_channels, shape.groups);
  plan.phases_per_thread     = shape.stride[2] == 2 && shape.dilation[2] == 1 ? 2 : 1;
  const gather_traits traits = visit_gather_policy(plan.channels_per_thread, plan.phases_per_thread, [](auto policy) {
    return gather_traits::of<decltype(policy)>();
  });

  problem.x     = tensor_strides::of(input_layout, shape.input_slice.total(shape.in_channels), shape.input_positions());
  problem.batch = shape.batch;
  problem.in_channels  = shape.in_channels;
  problem.out_channels = shape.out_channels;
  problem.groups       = shape.groups;
  for (int a = 0; a < 3; ++a)
  {
    problem.axis[a]        = shape.axis(a);
    problem.taps.kernel[a] = problem.axis[a].kernel;
    problem.phases[a]      = problem.axis[a].phases();
    for (int64_t r = 0; r < std::min<int64_t>(problem.axis[a].stride, gather_problem::tabulated); ++r)
    {
      problem.table[a][r] = problem.axis[a].phase(r);
    }
  }
  problem.phases[2] = ceil_div(problem.phases[2], plan.phases_per_thread);

  packed_taps& taps  = problem.taps;
  taps.in_per_group  = shape.in_channels / shape.groups;
  taps.out_per_group = shape.out_channels / shape.groups;
  taps.out_channels  = shape.out_channels;
  taps.lanes         = gather_lanes(shape.out_channels, plan.channels_per_thread, whole_rows);
  taps.tile_channels = taps.lanes * plan.channels_per_thread;
  taps.channel_tiles = ceil_div(shape.out_channels, taps.tile_channels);
  taps.max_run       = traits.max_run;
  taps.cut_run       = traits.cut_run;
  if (plan.phases_per_thread == 1)
  {
    const int64_t common = gcd(shape.dilation[2], shape.stride[2]);
    taps.tap_step        = shape.stride[2] / common;
    taps.consecutive     = shape.dilation[2] == common;
  }
  plan.whole_rows = taps.channel_tiles == 1;
  if (taps.out_per_group % taps.tile_channels != 0)
  {
    problem.tile_groups = static_cast<int>(
      std::min<int64_t>(shape.groups, (taps.tile_channels + taps.out_per_group - 2) / taps.out_per_group + 1));
  }

  plan_tiles(problem, traits);

  problem.stage_floats = traits.stage_floats;
  if (problem.staged)
  {
    // The longest list of a phase, and the entry that ends it.
    const auto most = [&](int a) {
      return ceil_div(taps.kernel[a], problem.axis[a].stride / gcd(problem.axis[a].stride, problem.axis[a].dilation));
    };
    int64_t entries = problem.row_stages(ceil_div(taps.kernel[2], taps.tap_step));
    problem.staged  = taps.in_per_group < (int64_t{1} << 30) && multiply_checked(entries, most(0))
                  && multiply_checked(entries, most(1)) && add_checked(entries, 1);
    problem.phase_stages = entries;
    problem.staged       = problem.staged && multiply_checked(entries, problem.total_phases())
                  && entries <= tuning::gather_most_stages;
  }

  plan_splits(problem, tuning::gather_multiprocessors * traits.min_blocks);

  problem.list_in_shared = problem.staged && problem.list_bytes() <= traits.list_bytes;
  problem.weight_blocks  = static_cast<int>(std::min<int64_t>(ceil_div(taps.floats(), 256), 512));
  plan.shared_bytes      = traits.ring_bytes + (problem.list_in_shared ? problem.list_bytes() : 0)
                    + (problem.staged ? 16 * ceil_div(problem.staged_floats(), 4) : 0);
  return plan;
}

} // namespace detail

TCONV_NAMESPACE_END
