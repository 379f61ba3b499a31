// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The host side of the tensor-core engine: what packing, streaming and multiplying must agree on. For random shapes, the pieces
/// of weights in the order in which a stage holds them are compared with the order in which the main loop takes them, and with the
/// place where the packing kernel puts a weight.

#include "../common/conv_case.hpp"
#include "../common/random.hpp"

#include <tconv/detail/implicit_gemm_plan.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace
{

using tconv::gemm_form;
using tconv::gemm_phase;
using tconv::gemm_problem;
using tconv_test::random_stream;
using tconv_test::shape3;

/// A piece of weights as a stage holds it.
struct piece
{
  int block; ///< of the chunk
  std::int64_t tap;
  int set;
};

/// Rows of steps of a chunk, in all passes.
int rows_of(const gemm_problem& problem, const gemm_phase& phase)
{
  return tconv::gemm_form_traits::of(problem.form).passes * phase.taps[0] * phase.taps[1];
}

/// The stages of chunk \p chunk of \p phase: [pass][tap d][tap h][blocks][part], a piece after the other.
std::vector<std::vector<piece>> stages_of(const gemm_problem& problem, const gemm_phase& phase, int chunk)
{
  std::vector<std::vector<piece>> stages;
  const int blocks = problem.blocks_of(chunk);
  for (int row = 0; row < rows_of(problem, phase); ++row)
  {
    for (int block = 0; block < blocks; block += problem.blocks_per_stage)
    {
      for (int step = 0; step < phase.steps; step += problem.steps_per_stage)
      {
        std::vector<piece> stage;
        for (int b = block; b < std::min(block + problem.blocks_per_stage, blocks); ++b)
        {
          for (int s = step; s < std::min(step + problem.steps_per_stage, phase.steps); ++s)
          {
            for (int set = 0; set < problem.sets; ++set)
            {
              const std::int64_t tap = problem.tap(phase.along[2], s, set);
              if (tap >= 0)
              {
                stage.push_back({b, tap, set});
              }
            }
          }
        }
        stages.push_back(stage);
      }
    }
  }
  return stages;
}

/// The main loop's walk over the stage that begins at block \p block and step \p step, as block::multiply_stage() does it.
void check_main_loop(const gemm_problem& problem,
                     const gemm_phase& phase,
                     int blocks,
                     int block,
                     int step,
                     const std::vector<piece>& stage)
{
  std::size_t next = 0;
  for (int b = block; b < std::min(block + problem.blocks_per_stage, blocks); ++b)
  {
    int first = step;
    int rest  = problem.steps_per_stage;
    for (int which = 0; which < tconv::gemm_series_count; ++which)
    {
      const int sets = gemm_problem::sets_of(problem.sets, which);
      if (sets == 0)
      {
        continue;
      }
      const tconv::gemm_series& series = phase.series[which];
      const int count                  = std::min(series.count - first, rest);
      for (int i = 0; i < count; ++i)
      {
        const int position = series.position + (first + i) * series.step;
        for (int set = 0; set < problem.sets; ++set)
        {
          if ((sets >> set & 1) == 0)
          {
            continue;
          }
          ASSERT_LT(next, stage.size());
          const piece& expected = stage[next++];
          ASSERT_EQ(b, expected.block);
          ASSERT_EQ(set, expected.set);
          ASSERT_EQ(position, problem.left - problem.axis[2].tap_shift(expected.tap));
          ASSERT_EQ(problem.axis[2].tap_phase(expected.tap), phase.along[2] + set);
          // All positions that cells of the tile read are staged.
          ASSERT_GE(position, 0);
          ASSERT_LE(position + problem.box[2], problem.width);
        }
      }
      first = std::max(first - series.count, 0);
      rest -= std::max(count, 0);
    }
  }
  ASSERT_EQ(next, stage.size());
}

void check_phase(const gemm_problem& problem, int index)
{
  const gemm_phase phase = tconv::make_gemm_phase(problem, index);
  int total              = 0;
  for (int chunk = 0; chunk < problem.chunks(); ++chunk)
  {
    const int blocks  = problem.blocks_of(chunk);
    const auto stages = stages_of(problem, phase, chunk);
    ASSERT_EQ(static_cast<int>(stages.size()), chunk + 1 < problem.chunks() ? phase.stages : phase.last_stages);
    ASSERT_EQ(static_cast<int>(stages.size()), rows_of(problem, phase) * problem.row_stages(phase.steps, blocks));
    total += static_cast<int>(stages.size());
    std::size_t at = 0;
    for (int row = 0; row < rows_of(problem, phase); ++row)
    {
      for (int block = 0; block < blocks; block += problem.blocks_per_stage)
      {
        for (int step = 0; step < phase.steps; step += problem.steps_per_stage)
        {
          const int end    = std::min(step + problem.steps_per_stage, phase.steps);
          const int pieces = phase.pieces_before(end, problem.sets) - phase.pieces_before(step, problem.sets);
          ASSERT_EQ(static_cast<int>(stages[at].size()), pieces * std::min(problem.blocks_per_stage, blocks - block));
          ASSERT_LE(static_cast<int>(stages[at].size()) * problem.piece_bytes(), problem.stage_bytes);
          ASSERT_NO_FATAL_FAILURE(check_main_loop(problem, phase, blocks, block, step, stages[at]));
          ++at;
        }
      }
    }
  }
  ASSERT_LE(total, problem.phase_stages);
  // Every tap of the phase has a place of its own.
  std::int64_t taps = 0;
  for (std::int64_t t = 0; t < problem.axis[2].kernel; ++t)
  {
    const tconv::gemm_tap_place place = problem.place(t);
    if (place.group * problem.sets == phase.along[2])
    {
      ASSERT_EQ(problem.tap(phase.along[2], place.step, place.set), t);
      ++taps;
    }
  }
  ASSERT_EQ(taps, phase.pieces_before(phase.steps, problem.sets));
  for (int d = 0; d < phase.taps[0]; ++d)
  {
    const int plane = phase.plane + d * phase.plane_step;
    ASSERT_GE(plane, 0);
    ASSERT_LE(plane + problem.box[0], problem.planes);
  }
  for (int h = 0; h < phase.taps[1]; ++h)
  {
    const int row = (phase.row + h * phase.row_step) / problem.row_bytes();
    ASSERT_GE(row, 0);
    ASSERT_LE(row + problem.box[1], problem.rows);
  }
}

TEST(implicit_gemm_plan, packing_streaming_and_multiplying_agree)
{
  random_stream random(4711);
  int supported = 0;
  for (int i = 0; i < 3000; ++i)
  {
    const bool flat = random.integer(1, 6) == 1;
    shape3 shape;
    shape.batch        = random.integer(1, 3);
    shape.in_channels  = random.integer(1, 3) == 1 ? random.integer(1, 300) : random.integer(1, 40);
    shape.out_channels = random.integer(1, 200);
    for (std::size_t a = 0; a < 3; ++a)
    {
      const bool one          = flat && a < 2;
      shape.input[a]          = one ? 1 : random.integer(1, a == 2 ? 70 : 20);
      shape.kernel[a]         = one ? 1 : random.integer(1, a == 2 ? 9 : 4);
      shape.stride[a]         = one ? 1 : random.integer(1, a == 2 ? 6 : 3);
      shape.padding[a]        = one ? 0 : random.integer(0, 3);
      shape.dilation[a]       = one ? 1 : random.integer(1, 4);
      shape.output_padding[a] = one ? 0 : random.integer(0, 1);
    }
    if (flat)
    {
      shape.kernel[2] = random.integer(1, 100);
      shape.input[2]  = random.integer(1, 3000);
    }
    const auto form = static_cast<gemm_form>(random.integer(0, 3));
    if (!validate(shape).ok() || shape.output_elements() == 0)
    {
      continue;
    }
    const auto plan = tconv::detail::plan_implicit_gemm(
      shape, form, random.integer(0, 1) == 0 ? tconv::layout::channels_last : tconv::layout::channels_first);
    if (!plan.supported)
    {
      continue;
    }
    ++supported;
    SCOPED_TRACE(tconv_test::to_string(shape) + " form " + std::to_string(static_cast<int>(form)));
    const gemm_problem& problem = plan.problem;
    ASSERT_LE(plan.shared_bytes, tconv::tuning::implicit_gemm_shared_bytes);
    ASSERT_GE(problem.stages, 2);
    ASSERT_GE(problem.ring_planes, problem.planes);
    // What a warpgroup multiplies reaches the last cell of its run, and ends in shared memory.
    const int last = (problem.run_box[1] - 1) * problem.width + problem.run_box[2];
    ASSERT_LE(last, tconv::tuning::implicit_gemm_cells);
    ASSERT_LE(problem.staged_at + problem.ring_planes * problem.plane_bytes(), problem.exchange_at);
    ASSERT_LE(problem.exchange_at + tconv::tuning::implicit_gemm_cells * tconv::gemm_position_bytes, plan.shared_bytes);
    for (int a = 0; a < 3; ++a)
    {
      ASSERT_EQ(problem.box[a], problem.run_box[a] * (a == problem.run_axis ? 2 : 1));
    }
    for (int a = 0; a < 3; ++a)
    {
      ASSERT_GE(static_cast<std::int64_t>(problem.tiles[a]) * problem.box[a], problem.axis[a].cells());
    }
    for (int p = 0; p < problem.total_phases(); ++p)
    {
      ASSERT_NO_FATAL_FAILURE(check_phase(problem, p)) << "phase " << p;
    }
  }
  EXPECT_GT(supported, 1500);
}

} // namespace
