// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The host side of the tensor-core engine: what packing, streaming and multiplying must agree on. For random shapes, the steps of a
/// row are compared with the taps that their weights belong to, and with the room that stages and staged input have.

#include "../common/conv_case.hpp"
#include "../common/random.hpp"

#include <tconv/detail/implicit_gemm_plan.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace
{

using tconv::gemm_form;
using tconv::gemm_phase;
using tconv::gemm_problem;
using tconv_test::random_stream;
using tconv_test::shape3;

void check_phase(const gemm_problem& problem, int index)
{
  const gemm_phase phase = tconv::make_gemm_phase(problem, index);
  const int rows         = phase.taps[0] * phase.taps[1];
  ASSERT_LE((problem.chunks() - 1) * phase.stages + phase.last_stages, problem.phase_stages);
  ASSERT_EQ(phase.last_stages, rows * problem.row_stages(phase.shifts, problem.blocks_of(problem.chunks() - 1)));
  ASSERT_LE(problem.chunk_blocks * phase.shifts, problem.row_steps - 1);
  // Steps: shifts along w, then blocks of channels.
  const int steps = problem.chunk_blocks * phase.shifts;
  for (int s = 0; s < steps; ++s)
  {
    const tconv::gemm_step step = problem.step(phase.first_step + s);
    const int block             = s / phase.shifts;
    int pieces                  = 0;
    for (int set = 0; set < problem.sets; ++set)
    {
      const std::int64_t tap = problem.tap(phase.along[2], s % phase.shifts, set);
      if (tap < 0)
      {
        continue;
      }
      ++pieces;
      ASSERT_EQ(problem.axis[2].tap_phase(tap), phase.along[2] + set);
      const auto position = static_cast<int>(problem.left - problem.axis[2].tap_shift(tap));
      ASSERT_GE(position, 0);
      ASSERT_LE(position + problem.box[2], problem.width);
      ASSERT_EQ(step.first, block * problem.rows * problem.row_bytes() + problem.staged_position(position));
      ASSERT_EQ(step.second, block * problem.rows * problem.row_bytes() + problem.staged_position(position + 1));
    }
    ASSERT_EQ(pieces, problem.pieces_of_steps(s + 1, phase.shifts) - problem.pieces_of_steps(s, phase.shifts));
    const int end = std::min(s + problem.steps_per_stage, steps);
    ASSERT_LE(
      (problem.pieces_of_steps(end, phase.shifts) - problem.pieces_of_steps(s, phase.shifts)) * problem.piece_bytes(),
      problem.stage_bytes);
  }
  // Every tap of the phase has a place of its own.
  std::int64_t taps = 0;
  for (std::int64_t t = 0; t < problem.axis[2].kernel; ++t)
  {
    const tconv::gemm_tap_place place = problem.place(t);
    if (place.group * problem.sets == phase.along[2])
    {
      ASSERT_EQ(problem.tap(phase.along[2], place.shift, place.set), t);
      ++taps;
    }
  }
  if (rows > 0)
  {
    ASSERT_EQ(taps, problem.pieces_before(phase.shifts));
  }
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
