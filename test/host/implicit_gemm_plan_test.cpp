// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The host side of the tensor-core engine: what packing, streaming and multiplying must agree on. For random shapes, the steps of a
/// row are compared with the taps that their weights belong to, and with the room that stages and staged input have.

#include "../common/conv_case.hpp"
#include "../common/random.hpp"

#include <tconv/detail/implicit_gemm_plan.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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
      pieces += set % problem.unit == 0 ? 1 : 0; // the others of the unit land with it
      ASSERT_GE(problem.tap(phase.along[2], s % phase.shifts, set / problem.unit * problem.unit), 0);
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
  // Where the main loop counts on it, shifts follow each other and stages hold whole blocks of channels.
  if (problem.neighbours != 0)
  {
    ASSERT_EQ(problem.steps_per_stage % phase.shifts, 0);
    ASSERT_EQ(problem.first_step.first, problem.step(phase.first_step).first);
    ASSERT_EQ(problem.first_step.second, problem.step(phase.first_step).second);
    const int room = problem.unit_room();
    ASSERT_EQ(problem.neighbours >> (room * phase.shifts), 0U);
    for (int s = 0; s < phase.shifts; ++s)
    {
      for (int set = 0; set < problem.sets; ++set)
      {
        ASSERT_EQ(
          (problem.neighbours >> (room * s + set / problem.unit) & 1U) != 0, problem.tap(phase.along[2], s, set) >= 0);
      }
      if (s > 0)
      {
        ASSERT_EQ(problem.step(phase.first_step + s).second, problem.step(phase.first_step + s - 1).first);
      }
      if (s > 1)
      {
        ASSERT_EQ(problem.step(phase.first_step + s).first + problem.position_bytes(),
                  problem.step(phase.first_step + s - 2).first);
      }
    }
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
    ASSERT_EQ(taps, problem.pieces_before(phase.shifts) * problem.unit);
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
  std::array<int, gemm_problem::most_sets + 1> sets{};
  std::array<int, 9> runs{};
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
      shape.stride[a]         = one ? 1 : random.integer(1, a == 2 ? 10 : 3);
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
    tconv::detail::gemm_machine machine;
    machine.shared_bytes = std::int64_t{1024} * (i % 3 == 0 ? 227 : i % 3 == 1 ? 163 : 99);
    tconv::detail::gemm_call call;
    call.input           = random.integer(0, 1) == 0 ? tconv::layout::channels_last : tconv::layout::channels_first;
    call.output          = random.integer(0, 1) == 0 ? tconv::layout::channels_last : tconv::layout::channels_first;
    call.across_channels = random.integer(0, 1) == 0;
    call.most_sets       = random.integer(0, 3) == 0 ? 1 : gemm_problem::most_sets;
    const auto plan      = tconv::detail::plan_implicit_gemm(shape, form, call, machine);
    if (!plan.supported)
    {
      continue;
    }
    ++supported;
    ++sets.at(static_cast<std::size_t>(plan.problem.sets));
    ASSERT_LE(plan.problem.sets, call.most_sets);
    ASSERT_EQ(plan.whole_rows, plan.problem.columns >= shape.out_channels);
    // With less shared memory narrower tiles may be all that fits.
    ASSERT_TRUE(plan.whole_rows || !call.across_channels || shape.out_channels > 128 || i % 3 != 0);
    SCOPED_TRACE(tconv_test::to_string(shape) + " form " + std::to_string(static_cast<int>(form)));
    const gemm_problem& problem = plan.problem;
    ASSERT_LE(plan.shared_bytes, machine.shared_bytes);
    ASSERT_GE(problem.stages, 2);
    ASSERT_GE(problem.ring_planes, problem.planes);
    // Runs of x are staged as a whole, or are none of it.
    ASSERT_EQ(problem.axis[2].in % problem.run, 0);
    ASSERT_EQ(problem.left % problem.run, 0);
    ASSERT_EQ(problem.width % std::max(problem.run, 4), 0);
    ASSERT_TRUE(problem.box[2] % problem.run == 0 || problem.tiles[2] == 1);
    ++runs.at(static_cast<std::size_t>(problem.run));
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
  for (const std::size_t run : {1U, 4U, 8U})
  {
    EXPECT_GT(runs.at(run), 20) << run;
  }
  for (int i = 1; i <= gemm_problem::most_sets; ++i)
  {
    EXPECT_GT(sets.at(static_cast<std::size_t>(i)), 20) << i;
  }
}

TEST(implicit_gemm_plan, words_as_sets_of_bits)
{
  using namespace tconv::detail;
  EXPECT_EQ(count_bits(0), 0);
  EXPECT_EQ(count_bits(0x8000000000000001U), 2);
  EXPECT_EQ(count_bits(~std::uint64_t{0}), 64);
  EXPECT_EQ(count_bits(0x0123456789abcdefU), 32);
  EXPECT_EQ(low_bits(0xffU, 0), 0U);
  EXPECT_EQ(low_bits(0xffU, 3), 7U);
  EXPECT_EQ(low_bits(~std::uint64_t{0}, 64), ~std::uint64_t{0});
  EXPECT_EQ(repeat_bits(0x5, 4, 3), 0x555U);
  EXPECT_EQ(repeat_bits(0x5, 4, 0), 0U);
  EXPECT_EQ(count_digits(0x0ffff0, 8), 3);
  EXPECT_EQ(count_digits(0xff, 8), 1);
  EXPECT_EQ(count_digits(0, 2), 0);
}

TEST(implicit_gemm_plan, usual_kernels_have_main_loops_of_their_own)
{
  struct expected
  {
    std::int64_t kernel;
    std::int64_t stride;
    std::int64_t padding;
    std::int64_t dilation;
    unsigned neighbours; ///< see gemm_problem
    int unit;
  };
  const expected table[] = {{2, 2, 0, 1, 0x3, 1},  {3, 2, 0, 1, 0, 1},        {3, 2, 1, 1, 0xe, 1},
                            {4, 2, 1, 1, 0x1e, 1}, {5, 2, 2, 1, 0, 1},        {3, 2, 1, 2, 0, 1},
                            {1, 1, 0, 1, 0, 1},    {3, 1, 1, 1, 0x7, 1},      {5, 1, 0, 1, 0x1f, 1},
                            {7, 1, 3, 1, 0x7f, 1}, {3, 1, 0, 2, 0, 1},        {3, 3, 0, 1, 0x7, 1},
                            {4, 4, 0, 1, 0xf, 1},  {8, 4, 2, 1, 0x3fc, 1},    {8, 4, 2, 2, 0, 1},
                            {8, 8, 0, 1, 0x3, 4},  {10, 5, 2, 1, 0x71f18, 1}, {16, 8, 4, 1, 0x1e, 4},
                            {16, 8, 0, 1, 0, 4},   {12, 8, 2, 1, 0, 1},       {16, 8, 3, 1, 0, 1}};
  for (const expected& row : table)
  {
    shape3 shape;
    shape.batch        = 2;
    shape.in_channels  = 32;
    shape.out_channels = 32;
    shape.input        = {1, 40, 40};
    shape.kernel       = {1, 3, row.kernel};
    shape.stride       = {1, 1, row.stride};
    shape.padding      = {0, 0, row.padding};
    shape.dilation     = {1, 1, row.dilation};
    const auto plan    = tconv::detail::plan_implicit_gemm(shape, gemm_form::bf16);
    ASSERT_TRUE(plan.supported) << row.kernel << " " << row.stride;
    EXPECT_EQ(plan.problem.neighbours, row.neighbours) << row.kernel << " " << row.stride << " " << row.padding;
    EXPECT_EQ(plan.problem.unit, row.unit) << row.kernel << " " << row.stride << " " << row.padding;
  }
}

// Where the operands of a group of products are loaded ahead, a stage is one.
TEST(implicit_gemm_plan, stages_are_groups_of_products_that_are_loaded_ahead)
{
  struct expected
  {
    std::int64_t out_channels;
    std::int64_t kernel;
    std::int64_t stride;
    std::int64_t padding;
    gemm_form form;
    int steps;
  };
  const expected table[] = {{128, 2, 2, 0, gemm_form::bf16, 2},
                            {128, 2, 2, 0, gemm_form::tf32, 1},
                            {128, 3, 2, 1, gemm_form::fp16, 2},
                            {128, 4, 2, 1, gemm_form::bf16, 3},
                            {32, 8, 8, 0, gemm_form::bf16, 2},
                            {32, 16, 8, 4, gemm_form::fp16, 3}};
  for (const expected& row : table)
  {
    shape3 shape;
    shape.batch        = 4;
    shape.in_channels  = 96;
    shape.out_channels = row.out_channels;
    shape.input        = {1, 1, 100000};
    shape.kernel       = {1, 1, row.kernel};
    shape.stride       = {1, 1, row.stride};
    shape.padding      = {0, 0, row.padding};
    const auto plan    = tconv::detail::plan_implicit_gemm(shape, row.form);
    ASSERT_TRUE(plan.supported) << row.kernel << " " << row.stride;
    EXPECT_EQ(plan.problem.columns, row.out_channels);
    EXPECT_EQ(plan.problem.steps_per_stage, row.steps) << row.kernel << " " << row.stride;
    EXPECT_TRUE(tconv::detail::visit_gemm_policy(
      plan.problem,
      [&](auto policy) { return tconv::gemm_group<decltype(policy)>(row.form, plan.problem.neighbours).ahead; }))
      << row.kernel << " " << row.stride;
  }
}

// Devices of compute capability 8.6, 8.9 and 12.0: 99 KB. Kernels whose shifts have code of their own must not ask for stages that leave no
// room for four of them.
TEST(implicit_gemm_plan, common_layers_fit_small_shared_memory)
{
  tconv::detail::gemm_machine machine;
  machine.instruction  = tconv::gemm_instruction::warp;
  machine.shared_bytes = std::int64_t{99} * 1024;
  for (const std::int64_t rank : {2, 3})
  {
    for (const std::int64_t kernel : {2, 3, 4, 5, 7})
    {
      for (const std::int64_t stride : {1, 2})
      {
        for (const std::int64_t channels : {64, 256})
        {
          shape3 shape;
          shape.batch        = 2;
          shape.in_channels  = channels;
          shape.out_channels = channels / 2;
          for (std::size_t a = rank == 2 ? 1 : 0; a < 3; ++a)
          {
            shape.input[a]   = 32;
            shape.kernel[a]  = kernel;
            shape.stride[a]  = stride;
            shape.padding[a] = (kernel - 1) / 2;
          }
          for (const gemm_form form : {gemm_form::split, gemm_form::tf32, gemm_form::bf16})
          {
            // 64 cells with 6 more along each axis are 90 KB for 16 channels.
            const bool too_wide = rank == 3 && kernel == 7 && stride == 1 && form != gemm_form::bf16;
            const auto plan     = tconv::detail::plan_implicit_gemm(shape, form, {}, machine);
            EXPECT_TRUE(plan.supported || too_wide)
              << tconv_test::to_string(shape) << " form " << static_cast<int>(form);
          }
        }
      }
    }
  }
}

/// A layer along w; \p h rows of its input.
shape3 layer(std::int64_t in_channels,
             std::int64_t out_channels,
             std::int64_t h,
             std::int64_t w,
             std::int64_t kernel,
             std::int64_t stride,
             std::int64_t padding  = 0,
             std::int64_t dilation = 1)
{
  shape3 shape;
  shape.batch        = 16;
  shape.in_channels  = in_channels;
  shape.out_channels = out_channels;
  shape.input        = {1, h, w};
  shape.kernel       = {1, 1, kernel};
  shape.stride       = {1, 1, stride};
  shape.padding      = {0, 0, padding};
  shape.dilation     = {1, 1, dilation};
  return shape;
}

TEST(implicit_gemm_plan, strides_up_to_eight_are_held_by_one_thread)
{
  struct expected
  {
    shape3 shape;
    int sets;
  };
  const expected table[] = {{layer(512, 256, 1, 100000, 16, 8, 4), 8},
                            {layer(64, 32, 128, 128, 4, 4), 4},
                            {layer(32, 64, 64, 128, 3, 3), 3},
                            {layer(32, 64, 64, 128, 3, 5, 1, 2), 5},
                            {layer(32, 64, 64, 128, 9, 9), 1},
                            {layer(32, 64, 64, 128, 64, 8), 8}, // 8 shifts
                            {layer(32, 64, 64, 128, 65, 8), 1},
                            {layer(32, 64, 64, 128, 64, 2), 2},
                            {layer(32, 64, 64, 128, 65, 2), 1}};
  for (const expected& row : table)
  {
    for (const gemm_form form : {gemm_form::split, gemm_form::bf16})
    {
      const auto plan = tconv::detail::plan_implicit_gemm(row.shape, form);
      ASSERT_TRUE(plan.supported);
      EXPECT_EQ(plan.problem.sets, row.sets) << tconv_test::to_string(row.shape);
    }
  }
  // Outputs of channels-last tensors are stored in vectors of channels, whatever the phases.
  tconv::detail::gemm_call last;
  last.output = tconv::layout::channels_last;
  EXPECT_EQ(tconv::detail::plan_implicit_gemm(layer(64, 32, 128, 128, 4, 4), gemm_form::bf16, last).problem.sets, 1);
  // Tiles of more than two sets have 32 columns: what runs across more channels wants wider ones.
  tconv::detail::gemm_call across;
  across.across_channels = true;
  const auto few         = tconv::detail::plan_implicit_gemm(layer(64, 32, 128, 128, 4, 4), gemm_form::split, across);
  EXPECT_EQ(few.problem.sets, 4);
  EXPECT_TRUE(few.whole_rows);
  const auto many = tconv::detail::plan_implicit_gemm(layer(64, 33, 128, 128, 4, 4), gemm_form::split, across);
  EXPECT_EQ(many.problem.sets, 1);
  EXPECT_TRUE(many.whole_rows);
}

// Tiles of columns read the input channels of all groups that they have columns of, and phases are those of any shape.
TEST(implicit_gemm_plan, groups_have_their_inputs_in_the_tile)
{
  random_stream random(815);
  int supported = 0;
  int straddled = 0;
  for (int i = 0; i < 600; ++i)
  {
    shape3 shape;
    shape.batch        = random.integer(1, 2);
    shape.groups       = random.integer(2, 9);
    shape.in_channels  = shape.groups * random.integer(1, 70);
    shape.out_channels = shape.groups * random.integer(1, 90);
    for (std::size_t a = 0; a < 3; ++a)
    {
      shape.input[a]  = random.integer(1, a == 2 ? 40 : 9);
      shape.kernel[a] = random.integer(1, 4);
      shape.stride[a] = random.integer(1, a == 2 ? 5 : 2);
    }
    if (!validate(shape).ok())
    {
      continue;
    }
    SCOPED_TRACE(tconv_test::to_string(shape));
    for (const gemm_form form : {gemm_form::fp16, gemm_form::bf16, gemm_form::tf32})
    {
      ASSERT_FALSE(tconv::detail::plan_implicit_gemm(shape, form).supported);
    }
    const auto plan             = tconv::detail::plan_implicit_gemm(shape, gemm_form::split);
    const gemm_problem& problem = plan.problem;
    // Without padding an output at a corner has the products of one tap.
    ASSERT_TRUE(!plan.supported || shape.in_channels / shape.groups >= 16);
    if (!plan.supported)
    {
      continue;
    }
    ++supported;
    for (int p = 0; p < problem.total_phases(); ++p)
    {
      ASSERT_NO_FATAL_FAILURE(check_phase(problem, p)) << "phase " << p;
    }
    ASSERT_LE(problem.tile_inputs, shape.in_channels);
    for (std::int64_t c = 0; c < shape.out_channels; ++c)
    {
      const auto tile           = static_cast<int>(c / problem.columns);
      const std::int64_t inputs = shape.in_channels / shape.groups;
      const std::int64_t first  = c / (shape.out_channels / shape.groups) * inputs;
      ASSERT_GE(first, problem.first_input(tile));
      ASSERT_LE(first + inputs, problem.first_input(tile) + problem.tile_inputs);
      straddled += first > problem.first_input(tile) && c % problem.columns != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(supported, 250);
  EXPECT_GT(straddled, 1000);
}

// The bound on an output's error grows with the products that meet in it, at the edges of the tensor, too.
TEST(implicit_gemm_plan, fewest_products_of_an_output)
{
  random_stream random(4712);
  for (int i = 0; i < 2000; ++i)
  {
    tconv::conv_transpose_shape<3> shape = layer(
      16, 16, 1, random.integer(1, 60), random.integer(1, 9), random.integer(1, 6));
    shape.dilation[2]       = random.integer(1, 4);
    shape.padding[2]        = random.integer(0, 9);
    shape.output_padding[2] = random.integer(0, shape.stride[2] - 1);
    if (!validate(shape).ok() || shape.output_elements() == 0)
    {
      continue;
    }
    const tconv::conv_axis axis = shape.axis(2);
    std::int64_t fewest         = axis.kernel;
    for (std::int64_t o = 0; o < axis.out; ++o)
    {
      std::int64_t landing = 0;
      for (std::int64_t in = 0; in < axis.in; ++in)
      {
        for (std::int64_t t = 0; t < axis.kernel; ++t)
        {
          landing += in * axis.stride - axis.padding + t * axis.dilation == o ? 1 : 0;
        }
      }
      fewest = landing > 0 ? std::min(fewest, landing) : fewest;
    }
    ASSERT_EQ(tconv::detail::fewest_landing_taps(axis), fewest) << tconv_test::to_string(shape);
  }
  const auto supported = [](std::int64_t channels, std::int64_t groups, std::int64_t kernel, std::int64_t padding) {
    shape3 shape     = layer(channels, 32, 32, 32, kernel, 1);
    shape.groups     = groups;
    shape.kernel[1]  = kernel;
    shape.padding[1] = padding;
    shape.padding[2] = padding;
    return tconv::detail::plan_implicit_gemm(shape, gemm_form::split).supported;
  };
  EXPECT_TRUE(supported(16, 1, 3, 0));
  EXPECT_FALSE(supported(15, 1, 3, 0)); // one tap at the corners
  EXPECT_TRUE(supported(15, 1, 3, 1));  // four
  EXPECT_TRUE(supported(32, 8, 3, 1));
  EXPECT_FALSE(supported(32, 16, 5, 2)); // 18 products, but of two channels
  EXPECT_FALSE(supported(32, 4, 3, 0));
}

// The tensor core truncates: long sums are kept beside its accumulators, of which there must be few enough.
TEST(implicit_gemm_plan, long_sums_have_room_outside_the_tensor_core)
{
  const auto expect = [](const shape3& shape, gemm_form form, bool across_channels, int columns, bool promoted) {
    SCOPED_TRACE(shape.in_channels);
    tconv::detail::gemm_call call;
    call.across_channels = across_channels;
    const auto plan      = tconv::detail::plan_implicit_gemm(shape, form, call);
    ASSERT_TRUE(plan.supported);
    EXPECT_EQ(plan.problem.columns, columns);
    EXPECT_EQ(plan.problem.promoted, promoted);
    const int held = tconv::detail::visit_gemm_policy(plan.problem, [](auto policy) {
      using type = decltype(policy);
      return type::accumulators * (type::promoted && !type::promoted_steps ? 2 : 1);
    });
    EXPECT_LE(held, 128);
    EXPECT_EQ(tconv::detail::visit_gemm_policy(plan.problem, [](auto policy) { return decltype(policy)::promoted; }),
              promoted || columns * plan.problem.set_room() <= 64);
  };
  // One phase: 384 and 640 products.
  expect(layer(128, 128, 64, 64, 3, 1), gemm_form::split, false, 128, false);
  expect(layer(128, 128, 64, 64, 5, 1), gemm_form::split, false, 64, true);
  expect(layer(128, 128, 64, 64, 5, 1), gemm_form::split, true, 128, false);
  expect(layer(128, 128, 64, 64, 5, 1), gemm_form::tf32, false, 128, false);
  // Two: 192 and 256.
  expect(layer(96, 64, 64, 64, 4, 2), gemm_form::split, false, 64, false);
  expect(layer(128, 64, 64, 64, 4, 2), gemm_form::split, false, 64, true);
  expect(layer(128, 64, 64, 64, 4, 2), gemm_form::bf16, false, 64, false);
  expect(layer(192, 128, 64, 64, 4, 2), gemm_form::split, false, 128, false);
  expect(layer(256, 128, 64, 64, 4, 2), gemm_form::split, false, 64, true);
  // Four and eight.
  expect(layer(64, 32, 64, 64, 8, 4), gemm_form::split, false, 32, false);
  expect(layer(256, 32, 64, 64, 8, 4), gemm_form::split, false, 32, true);
  expect(layer(512, 32, 64, 64, 16, 8), gemm_form::split, false, 32, true);
  expect(layer(512, 32, 64, 64, 16, 8), gemm_form::bf16, false, 32, false);
}

// L1_65: with all channels at a time no second tile fits beside the first; with half of them the next half is on its way, and as there is one
// phase, nothing is staged twice.
TEST(implicit_gemm_plan, inputs_are_staged_ahead)
{
  shape3 shape    = layer(64, 64, 512, 512, 7, 1);
  shape.kernel[1] = 3;
  const auto one  = tconv::detail::plan_implicit_gemm(shape, gemm_form::split);
  ASSERT_TRUE(one.supported);
  EXPECT_EQ(one.problem.chunks(), 2);
  EXPECT_EQ(one.problem.ring_planes, 2 * one.problem.planes);
}

TEST(implicit_gemm_plan, blocks_keep_tiles_that_share_planes)
{
  // P1: 1024 tiles, 16 of them along d. 8 a block are as many as 132 blocks would need.
  shape3 shape;
  shape.batch          = 16;
  shape.in_channels    = 32;
  shape.out_channels   = 64;
  shape.input          = {16, 32, 32};
  shape.kernel         = {3, 3, 3};
  shape.stride         = {2, 2, 2};
  shape.padding        = {1, 1, 1};
  shape.output_padding = {1, 1, 1};
  tconv::detail::gemm_call call;
  call.across_channels = true;
  const auto plan      = tconv::detail::plan_implicit_gemm(shape, gemm_form::split, call);
  ASSERT_TRUE(plan.supported);
  ASSERT_EQ(plan.problem.total_tiles(), 1024);
  ASSERT_EQ(plan.problem.tiles[0], 16);
  EXPECT_EQ(tconv::detail::gemm_blocks(plan.problem, 132), 128);
  EXPECT_EQ(tconv::detail::gemm_blocks(plan.problem, 128), 128);
  // 9 tiles a block do not divide 16: all blocks are used.
  EXPECT_EQ(tconv::detail::gemm_blocks(plan.problem, 114), 114);
  EXPECT_EQ(tconv::detail::gemm_blocks(plan.problem, 2000), 1024);
  // Nothing is shared where taps do not overlap along d.
  shape.kernel         = {2, 2, 2};
  shape.padding        = {0, 0, 0};
  shape.output_padding = {0, 0, 0};
  const auto apart     = tconv::detail::plan_implicit_gemm(shape, gemm_form::bf16);
  ASSERT_TRUE(apart.supported);
  EXPECT_EQ(tconv::detail::gemm_blocks(apart.problem, 132), std::min<std::int64_t>(apart.problem.total_tiles(), 132));
}

} // namespace
