// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The host side of the gather engine: the arithmetic of packed taps by brute force, and what a kernel relies on in its plan -
/// tiles and phases that cover everything once, inputs and weights that fit where they are staged - over awkward and random
/// shapes. And the partition of a workspace.

#include "../common/conv_case.hpp"
#include "../common/random.hpp"

#include <tconv/detail/gather_plan.hpp>
#include <tconv/detail/workspace_layout.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace
{

using tconv::conv_axis;
using tconv::gather_problem;
using tconv::packed_taps;
using tconv::detail::gather_plan;
using tconv::detail::gather_traits;
using tconv::detail::plan_gather;
using tconv::detail::workspace_layout;
using tconv_test::random_stream;
using tconv_test::shape3;

// ---------------------------------------------------------------------------------------------------------------------
// packed_taps

/// Taps of every kind: one or several residue classes, runs that are cut and that are not, taps that form no runs.
std::vector<packed_taps> packings()
{
  std::vector<packed_taps> list;
  for (std::int64_t kernel = 1; kernel <= 23; ++kernel)
  {
    for (const std::int64_t step : {1, 2, 3, 5, 7, 30})
    {
      for (const bool consecutive : {true, false})
      {
        for (const auto& [max_run, cut_run] : {std::pair{5, 4}, std::pair{1, 1}, std::pair{3, 2}, std::pair{8, 4}})
        {
          packed_taps taps;
          taps.kernel[2]   = kernel;
          taps.tap_step    = step;
          taps.consecutive = consecutive;
          taps.max_run     = max_run;
          taps.cut_run     = cut_run;
          list.push_back(taps);
        }
      }
    }
  }
  return list;
}

std::string text(const packed_taps& taps)
{
  return "kernel " + std::to_string(taps.kernel[2]) + " step " + std::to_string(taps.tap_step)
       + (taps.consecutive ? " runs up to " : " no runs, ") + std::to_string(taps.max_run) + " cut to "
       + std::to_string(taps.cut_run);
}

// Residue classes one after the other, each in order of its taps.
TEST(packed_taps, classes_follow_each_other)
{
  for (const packed_taps& taps : packings())
  {
    std::int64_t position = 0;
    for (std::int64_t residue = 0; residue < taps.tap_step; ++residue)
    {
      ASSERT_EQ(taps.class_begin(residue), position) << text(taps) << " residue " << residue;
      std::int64_t size = 0;
      for (std::int64_t t = residue; t < taps.kernel[2]; t += taps.tap_step)
      {
        ASSERT_EQ(taps.class_of(position), residue) << text(taps) << " tap " << t;
        ++position;
        ++size;
      }
      ASSERT_EQ(taps.class_size(residue), size) << text(taps) << " residue " << residue;
    }
    ASSERT_EQ(position, taps.kernel[2]);
  }
}

TEST(packed_taps, runs_follow_each_other_within_a_class)
{
  for (const packed_taps& taps : packings())
  {
    ASSERT_EQ(taps.runs(0), 0) << text(taps);
    for (std::int64_t count = 1; count <= taps.kernel[2]; ++count)
    {
      std::int64_t tap = 0;
      for (std::int64_t run = 0; run < taps.runs(count); ++run)
      {
        ASSERT_EQ(taps.run_begin(run), tap) << text(taps) << " count " << count << " run " << run;
        const std::int64_t size = taps.run_size(run, count);
        ASSERT_GE(size, 1) << text(taps) << " count " << count << " run " << run;
        ASSERT_LE(size, taps.consecutive ? taps.max_run : 1) << text(taps) << " count " << count << " run " << run;
        for (std::int64_t j = 0; j < size; ++j)
        {
          ASSERT_EQ(taps.run_of(tap, count), run) << text(taps) << " count " << count << " tap " << tap;
          ++tap;
        }
      }
      ASSERT_EQ(tap, count) << text(taps) << ": runs must hold every tap once";
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Plans

struct planned
{
  shape3 shape;
  bool whole_rows;
  gather_plan plan;
  gather_traits traits;
  std::string name;

  planned(const shape3& s, bool whole)
      : shape(s)
      , whole_rows(whole)
      , plan(plan_gather(s, whole))
      , traits(tconv::detail::visit_gather_policy(plan.channels_per_thread,
                                                  plan.phases_per_thread,
                                                  [](auto policy) { return gather_traits::of<decltype(policy)>(); }))
      , name(tconv_test::to_string(s) + (whole ? ", whole rows" : ""))
  {}

  const gather_problem& problem() const { return plan.problem; }
};

/// Shapes that fit no memory but are legal: plans of them must not overflow.
std::vector<shape3> huge_shapes()
{
  using tconv_test::make_shape;
  const std::int64_t k = 1024;
  const std::int64_t t = k * k * k * k;
  return {make_shape<3>({1, 1, 1, 1}, {1, 1, 1 << 30}, {1, 1, 3}, {1, 1, 2}),
          make_shape<3>({1 << 20, 1, 1, 1}, {k, k, k}, {2, 2, 2}, {2, 2, 2}),
          make_shape<3>({1, 1 << 20, 1 << 20, 1}, {2, 2, 2}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
          make_shape<3>({1, 1 << 20, 1 << 20, 1 << 20}, {2, 2, 2}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
          make_shape<3>({1, 1, 1, 1}, {1, 1, 9}, {1, 1, 1 << 28}, {1, 1, 1}),
          make_shape<3>({1, 1, 1, 1}, {1, 1, 9}, {1, 1, 1 << 28}, {1, 1, 2}),
          make_shape<3>({1, 1, 1, 1}, {3, 3, 3}, {3, 3, 3}, {k, k, k}),
          make_shape<3>({1, 1, 1, 1}, {3, 3, 3}, {3, 3, 3}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, {k, k * k, k * k}),
          make_shape<3>({1, 1, 1, 1}, {1, 1, 2}, {1, 1, 2}, {1, 1, t}),
          make_shape<3>({1, 1, 1, 1}, {1, 1, 2}, {1, 1, 2}, {1, 1, 2}, {0, 0, 0}, {0, 0, 0}, {1, 1, t}),
          make_shape<3>({1, 1, 1, 1}, {1, 1, t}, {1, 1, 1}, {1, 1, 1}, {0, 0, t / 2 - 1}),
          // Fits an H200: 10 outputs from the middle of 17 GB, shifts beyond 32 bits.
          make_shape<3>({1, 1, 1, 1}, {1, 1, (1LL << 32) + 20}, {1, 1, 1}, {1, 1, 1}, {0, 0, (1LL << 31) + 5})};
}

/// Plans with and without whole rows.
template <class Visitor>
void for_each_plan(const std::vector<shape3>& shapes, Visitor visit)
{
  for (const shape3& shape : shapes)
  {
    ASSERT_TRUE(validate(shape).ok()) << tconv_test::to_string(shape) << ": " << validate(shape).message();
    for (const bool whole : {false, true})
    {
      const planned p(shape, whole);
      SCOPED_TRACE(p.name);
      visit(p);
      if (testing::Test::HasFatalFailure())
      {
        return;
      }
    }
  }
}

std::vector<shape3> random_shapes()
{
  std::vector<shape3> list;
  for (std::uint32_t i = 0; i < 400; ++i)
  {
    random_stream random(i);
    list.push_back(tconv_test::random_shape(random, 100000000));
  }
  return list;
}

/// Awkward and random shapes: small enough to go over every channel, phase and tap.
std::vector<shape3> real_shapes()
{
  std::vector<shape3> list = tconv_test::awkward_shapes();
  const auto more          = random_shapes();
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

std::vector<shape3> all_shapes()
{
  std::vector<shape3> list = real_shapes();
  const auto more          = huge_shapes();
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

TEST(gather_plan, tiles_cover_all_cells)
{
  for_each_plan(all_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    std::int64_t groups_of_cells  = 1;
    for (int a = 0; a < 3; ++a)
    {
      const std::int64_t cells = problem.axis[a].cells();
      ASSERT_EQ(cells,
                (p.shape.output(a) + p.shape.stride[static_cast<std::size_t>(a)] - 1)
                  / p.shape.stride[static_cast<std::size_t>(a)]);
      ASSERT_GE(problem.tile_cells[a], 1);
      ASSERT_GE(problem.tiles[a] * problem.tile_cells[a], cells) << "axis " << a;
      ASSERT_LT((problem.tiles[a] - 1) * problem.tile_cells[a], cells) << "axis " << a << ": a tile without work";
      groups_of_cells *= problem.tile_cells[a];
    }
    ASSERT_EQ(problem.tile_cells[2] % p.traits.cells_per_thread, 0);
    ASSERT_LE(groups_of_cells / p.traits.cells_per_thread * problem.taps.lanes, p.traits.threads);
    ASSERT_EQ(p.traits.threads % 32, 0);
    ASSERT_GT(problem.blocks(), 0);
    // Work items: whole tiles, then the others in splits; the channel tile is the fastest digit of both.
    const std::int64_t rest = problem.all_tiles() - problem.whole_tiles;
    ASSERT_GE(problem.whole_tiles, 0);
    ASSERT_GE(rest, 0);
    ASSERT_EQ(problem.blocks(), problem.whole_tiles + rest * problem.phase_splits);
    ASSERT_EQ(problem.whole_tiles % problem.taps.channel_tiles, 0);
    ASSERT_EQ(rest % problem.taps.channel_tiles, 0);
  });
}

// What a block keeps in shared memory: the policy promises how many blocks fit.
TEST(gather_plan, shared_memory_stays_within_the_policy)
{
  for_each_plan(all_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    ASSERT_GT(p.plan.shared_bytes, 0);
    ASSERT_LE(p.plan.shared_bytes, p.traits.shared_bytes);
    ASSERT_GE(p.plan.shared_bytes, p.traits.ring_bytes + (problem.staged ? 4 * problem.staged_floats() : 0));
    // reduce_moments: count, mean and squares for each warp and channel of the tile, in the same memory.
    ASSERT_GE(p.plan.shared_bytes, std::int64_t{12} * (p.traits.threads / 32) * problem.taps.tile_channels);
  });
}

TEST(gather_plan, staged_inputs_reach_as_far_as_every_tap)
{
  for_each_plan(all_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    if (!problem.staged)
    {
      return;
    }
    ASSERT_GE(problem.pitch, problem.width);
    ASSERT_GE(problem.plane, problem.rows[0] * problem.rows[1] * problem.pitch);
    for (int a = 0; a < 3; ++a)
    {
      const conv_axis& axis     = problem.axis[a];
      const std::int64_t before = a == 2 ? problem.left : axis.max_shift();
      const std::int64_t staged = a == 2 ? problem.width : problem.rows[a];
      // Cell q of the tile reads q - shift, staged at q - shift + before; shifts are monotone in the tap.
      ASSERT_GE(before - axis.max_shift(), 0) << "axis " << a;
      ASSERT_LT(problem.tile_cells[a] - 1 - axis.min_shift() + before, staged) << "axis " << a;
    }
    if (problem.quads)
    {
      for (const std::int64_t v : {problem.axis[2].in,
                                   std::int64_t{problem.width},
                                   std::int64_t{problem.left},
                                   std::int64_t{problem.pitch},
                                   std::int64_t{problem.plane},
                                   std::int64_t{problem.tile_cells[2]}})
      {
        ASSERT_EQ(v % 4, 0) << "16-byte copies need multiples of 4 elements";
      }
    }
    ASSERT_GE(problem.chunk, 1);
    ASSERT_GE(problem.chunks() * problem.chunk, problem.taps.in_per_group);
    ASSERT_LT((problem.chunks() - 1) * problem.chunk, problem.taps.in_per_group) << "a chunk without channels";
    // stage_input() numbers rows with fp32 division, exact below 2^21.
    ASSERT_LT(std::int64_t{problem.tile_groups} * problem.chunk * problem.rows[0] * problem.rows[1], 1 << 21);
  });
}

TEST(gather_plan, weight_stages_hold_every_run_of_a_chunk)
{
  for_each_plan(all_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    if (!problem.staged)
    {
      return;
    }
    ASSERT_EQ(problem.stage_floats, p.traits.stage_floats);
    ASSERT_LE(std::int64_t{8} * problem.stage_floats, p.traits.ring_bytes) << "two stages are in flight";
    for (std::int64_t run = 1; run <= (problem.taps.consecutive ? problem.taps.max_run : 1); ++run)
    {
      ASSERT_GE(problem.stage_channels(run), 1);
      ASSERT_LE(problem.stage_channels(run), std::numeric_limits<short>::max());
      ASSERT_LE(problem.stage_channels(run) * run * problem.taps.tile_channels, problem.stage_floats) << "run " << run;
      ASSERT_GE(problem.pieces(run) * problem.stage_channels(run), problem.chunk) << "run " << run;
      ASSERT_LT((problem.pieces(run) - 1) * problem.stage_channels(run), problem.chunk)
        << "run " << run << ": a stage without channels";
    }
    for (std::int64_t count = 0; count <= std::min<std::int64_t>(problem.taps.kernel[2], 40); ++count)
    {
      std::int64_t stages = 0;
      for (std::int64_t run = 0; run < problem.taps.runs(count); ++run)
      {
        stages += problem.pieces(problem.taps.run_size(run, count));
      }
      ASSERT_EQ(problem.row_stages(count), stages) << count << " taps";
    }
  });
}

/// The taps along w that a thread multiplies in phase \p r of the plan.
std::int64_t taps_along_w(const planned& p, std::int64_t r)
{
  return p.plan.phases_per_thread == 2 ? p.problem().taps.kernel[2] : p.problem().axis[2].phase(r).count;
}

// The list of a phase has room for all its stages and for the entry that ends it.
TEST(gather_plan, lists_of_stages_are_long_enough)
{
  for_each_plan(real_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    ASSERT_EQ(problem.stages(), problem.staged ? problem.total_phases() * problem.phase_stages : 0);
    if (!problem.staged)
    {
      return;
    }
    ASSERT_LE(problem.stages(), tconv::tuning::gather_most_stages);
    std::int64_t longest = 0;
    for (std::int64_t d = 0; d < problem.phases[0]; ++d)
    {
      for (std::int64_t h = 0; h < problem.phases[1]; ++h)
      {
        for (std::int64_t w = 0; w < problem.phases[2]; ++w)
        {
          longest = std::max(
            longest,
            problem.axis[0].phase(d).count * problem.axis[1].phase(h).count * problem.row_stages(taps_along_w(p, w)));
        }
      }
    }
    ASSERT_GE(problem.phase_stages, longest + 1);
  });
}

TEST(gather_plan, splits_take_every_phase_once)
{
  for_each_plan(real_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    std::vector<int> taken(static_cast<std::size_t>(problem.total_phases()), 0);
    for (std::int64_t split = 0; split < problem.phase_splits; ++split)
    {
      // As locate_tile() does.
      const std::int64_t first = split * problem.split_phases;
      const std::int64_t count = std::min(problem.total_phases() - first, problem.split_phases);
      ASSERT_GE(count, 1) << "a block without phases";
      for (std::int64_t i = first; i < first + count; ++i)
      {
        ++taken[static_cast<std::size_t>(i)];
      }
    }
    ASSERT_EQ(std::count(taken.begin(), taken.end(), 1), problem.total_phases());
  });
}

// The last wave of P1 is three quarters full: its tiles are cut, the one phase with four times the taps of another first.
TEST(gather_plan, the_tail_of_p1_is_split)
{
  const planned p(
    tconv_test::make_shape<3>({16, 32, 64, 1}, {16, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}), true);
  const gather_problem& problem = p.problem();
  const std::int64_t wave       = tconv::tuning::gather_multiprocessors * p.traits.min_blocks;
  EXPECT_EQ(problem.whole_tiles % wave, 0);
  EXPECT_GT(problem.whole_tiles, 0);
  EXPECT_LT(problem.all_tiles() - problem.whole_tiles, wave);
  EXPECT_EQ(problem.phase_splits, tconv::tuning::gather_tail_splits);
  EXPECT_TRUE(problem.last_split_first);
}

TEST(gather_plan, splits_of_huge_shapes)
{
  for_each_plan(huge_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    ASSERT_GE(problem.phase_splits, 1);
    ASSERT_GE(problem.split_phases, 1);
    ASSERT_LE((problem.phase_splits - 1) * problem.split_phases, problem.total_phases() - 1);
    ASSERT_GE(problem.phase_splits * problem.split_phases, problem.total_phases());
  });
}

// Output o of an axis is phase o mod stride of cell o / stride; a thread with two phases along w has both.
TEST(gather_plan, phases_cover_every_output)
{
  for_each_plan(real_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    for (int a = 0; a < 3; ++a)
    {
      const int together    = a == 2 ? p.plan.phases_per_thread : 1;
      const conv_axis& axis = problem.axis[a];
      std::vector<int> written(static_cast<std::size_t>(axis.out), 0);
      for (std::int64_t cell = 0; cell < axis.cells(); ++cell)
      {
        for (std::int64_t phase = 0; phase < problem.phases[a] * together; ++phase)
        {
          const std::int64_t o = cell * axis.stride + phase;
          ASSERT_LT(phase, axis.stride + together - 1);
          if (o < axis.out)
          {
            ++written[static_cast<std::size_t>(o)];
          }
        }
      }
      ASSERT_EQ(std::count(written.begin(), written.end(), 1), axis.out) << "axis " << a;
    }
  });
}

// The packed order sorts taps along w by residue class: the taps of a phase must be one of these classes, in order.
TEST(gather_plan, the_taps_of_a_phase_are_a_packed_class)
{
  for_each_plan(real_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    const packed_taps& taps       = problem.taps;
    const conv_axis& axis         = problem.axis[2];
    if (p.plan.phases_per_thread == 2)
    {
      ASSERT_EQ(axis.stride, 2);
      ASSERT_EQ(taps.tap_step, 1);
      ASSERT_TRUE(taps.consecutive);
      ASSERT_EQ(taps.cut_run % 2, 0) << "the pattern of phases repeats from run to run";
      for (std::int64_t t = 0; t < axis.kernel; ++t)
      {
        // Tap t of the packed row: phase (t + parity) mod 2, shift relative to that of tap 0.
        const std::int64_t parity = axis.padding & 1;
        ASSERT_EQ(axis.tap_phase(t), (t + parity) % 2);
        ASSERT_EQ(axis.tap_shift(t) - axis.tap_shift(0), (t + parity) / 2);
      }
      return;
    }
    for (std::int64_t r = 0; r < problem.phases[2]; ++r)
    {
      const tconv::axis_phase phase = axis.phase(r);
      if (phase.count == 0)
      {
        continue;
      }
      ASSERT_EQ(phase.tap_step, taps.tap_step);
      ASSERT_LT(phase.first_tap, taps.tap_step);
      ASSERT_EQ(phase.count, taps.class_size(phase.first_tap));
      ASSERT_EQ(taps.consecutive, phase.shift_step == 1) << "runs slide over neighbouring inputs";
    }
  });
}

TEST(gather_plan, channels_of_a_thread_belong_to_one_group)
{
  for_each_plan(real_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    const packed_taps& taps       = problem.taps;
    const int held                = p.plan.channels_per_thread;
    ASSERT_EQ(taps.tile_channels, taps.lanes * held);
    ASSERT_TRUE(taps.lanes >= 1 && taps.lanes <= 32 && (taps.lanes & (taps.lanes - 1)) == 0) << taps.lanes << " lanes";
    ASSERT_GE(taps.channel_tiles * taps.tile_channels, p.shape.out_channels);
    ASSERT_LT((taps.channel_tiles - 1) * taps.tile_channels, p.shape.out_channels) << "a tile without channels";
    for (std::int64_t tile = 0; tile < taps.channel_tiles; ++tile)
    {
      std::set<std::int64_t> groups;
      for (int lane = 0; lane < taps.lanes; ++lane)
      {
        const std::int64_t first = tile * taps.tile_channels + lane * held;
        const std::int64_t last  = std::min(first + held, p.shape.out_channels) - 1;
        if (first <= last)
        {
          ASSERT_EQ(first / taps.out_per_group, last / taps.out_per_group) << "channels " << first << " to " << last;
          groups.insert(first / taps.out_per_group);
        }
      }
      ASSERT_LE(*groups.rbegin() - *groups.begin() + 1, problem.tile_groups) << "channel tile " << tile;
    }
    ASSERT_EQ(p.plan.whole_rows, taps.tile_channels >= p.shape.out_channels);
    if (p.whole_rows && p.shape.out_channels <= 32)
    {
      ASSERT_TRUE(p.plan.whole_rows) << "promised for up to 32 channels, whatever the groups";
    }
    if (p.whole_rows && p.shape.groups == 1 && p.shape.out_channels <= 256)
    {
      ASSERT_TRUE(p.plan.whole_rows) << "promised for up to 256 channels";
    }
  });
}

TEST(gather_plan, packed_weights_hold_all_weights)
{
  for_each_plan(all_shapes(), [](const planned& p) {
    const gather_problem& problem = p.problem();
    ASSERT_GE(problem.taps.floats() * p.shape.groups, p.shape.weight_elements());
    ASSERT_EQ(problem.taps.row_floats() % p.plan.channels_per_thread, 0);
    ASSERT_GE(problem.weight_blocks, 1);
    ASSERT_LE(problem.weight_blocks, 512);
  });
}

TEST(gather_plan, is_the_same_every_time)
{
  for (const shape3& shape : tconv_test::awkward_shapes())
  {
    const gather_plan a = plan_gather(shape, true);
    const gather_plan b = plan_gather(shape, true);
    EXPECT_EQ(a.shared_bytes, b.shared_bytes);
    EXPECT_EQ(a.problem.blocks(), b.problem.blocks());
    EXPECT_EQ(a.problem.taps.floats(), b.problem.taps.floats());
    EXPECT_EQ(a.problem.stages(), b.problem.stages());
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// workspace_layout

TEST(workspace_layout, pieces_are_aligned_and_disjoint)
{
  for (std::uint32_t i = 0; i < 100; ++i)
  {
    random_stream random(i);
    workspace_layout layout;
    std::int64_t end = 0;
    for (std::int64_t piece = random.integer(0, 8); piece > 0; --piece)
    {
      const std::int64_t count = random.integer(0, 3) == 0 ? 0 : random.magnitude(1, std::int64_t{1} << 40);
      std::int64_t offset      = 0;
      std::int64_t bytes       = 0;
      if (random.integer(0, 1) == 0)
      {
        offset = layout.add<float>(count).offset;
        bytes  = 4 * count;
      }
      else
      {
        offset = layout.add<double>(count).offset;
        bytes  = 8 * count;
      }
      ASSERT_EQ(offset % workspace_layout::alignment, 0);
      ASSERT_GE(offset, end) << random.replay();
      ASSERT_LT(offset - end, workspace_layout::alignment) << "waste";
      end = offset + bytes;
      ASSERT_GE(static_cast<std::int64_t>(layout.bytes()), end);
    }
    ASSERT_EQ(layout.bytes() % workspace_layout::alignment, 0U);
    ASSERT_LT(static_cast<std::int64_t>(layout.bytes()) - end, workspace_layout::alignment);
  }
}

TEST(workspace_layout, pieces_become_pointers_into_the_workspace)
{
  workspace_layout layout;
  const auto first  = layout.add<float>(3);
  const auto second = layout.add<double>(5);
  alignas(256) static char memory[1024];
  const tconv::workspace space{memory, sizeof(memory)};
  EXPECT_EQ(static_cast<void*>(first.get(space)), static_cast<void*>(memory));
  EXPECT_EQ(static_cast<void*>(second.get(space)), static_cast<void*>(memory + 256));
}

TEST(workspace_layout, check_accepts_what_is_large_enough_and_aligned)
{
  alignas(256) static char memory[1024];
  const workspace_layout nothing;
  EXPECT_EQ(nothing.bytes(), 0U);
  EXPECT_TRUE(nothing.check({}).ok()) << "nothing needed: null will do";
  EXPECT_TRUE(nothing.check({memory + 1, 0}).ok());

  workspace_layout layout;
  layout.add<float>(65);
  ASSERT_EQ(layout.bytes(), 512U);
  EXPECT_TRUE(layout.check({memory, 512}).ok());
  EXPECT_TRUE(layout.check({memory + 256, 768}).ok());
  EXPECT_EQ(layout.check({memory, 511}).code(), tconv::status_code::workspace_too_small);
  EXPECT_EQ(layout.check({memory, 0}).code(), tconv::status_code::workspace_too_small);
  EXPECT_EQ(layout.check({nullptr, 512}).code(), tconv::status_code::workspace_too_small);
  for (const int off : {1, 4, 8, 16, 32, 64, 128, 255})
  {
    const tconv::status s = layout.check({memory + off, 512});
    EXPECT_EQ(s.code(), tconv::status_code::workspace_misaligned) << off;
    EXPECT_EQ(std::string(s.message()).find("workspace: "), 0U) << s.message();
  }
  const std::string message = layout.check({memory, 511}).message();
  EXPECT_EQ(message.find("workspace: 511 bytes"), 0U) << message;
  EXPECT_NE(message.find("needs 512"), std::string::npos) << message;
}

} // namespace
