// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The tensor-core engine by itself, on the instructions that the build has, against the reference and the bounds of the numerical contract.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/recipes.hpp"
#include "common/tensors.cuh"

#include <tconv/launch/implicit_gemm.cuh>
#include <tconv/reference/chain.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/affine.hpp>
#include <tconv/thread/softmax.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

namespace
{

using namespace tconv_test;
using tconv::bias;
using tconv::chain;
using tconv::gemm_form;

// Two programs have these tests: this file with wgmma, implicit_gemm_warp_test.cu with mma.sync.
#if !defined(TCONV_TEST_SUITE)
#  define TCONV_TEST_SUITE implicit_gemm_gpu
#endif

/// What the build multiplies with on the device at hand.
tconv::runtime::gemm_device device()
{
  return tconv::runtime::find_gemm_device(tconv::engine::implicit_gemm);
}

class TCONV_TEST_SUITE : public gpu_test
{
protected:
  void SetUp() override
  {
    gpu_test::SetUp();
    if (!IsSkipped() && !device().available)
    {
      GTEST_SKIP() << "needs a device and a build that have the kernels";
    }
  }
};

/// One call of the engine with guards everywhere.
template <gemm_form Form, class In, class Out>
struct engine_call
{
  shape3 shape;
  tconv::layout order;
  tconv::detail::gemm_plan plan;
  tconv::detail::workspace_layout layout;
  tconv::runtime::gemm_workspace pieces;
  device_buffer<In> x;
  device_buffer<In> w;
  device_buffer<float> b;
  device_buffer<Out> y;
  workspace_buffer space;
  std::int64_t misalignment;
  std::int64_t blocks = 0; ///< of the kernel; 0 for as many as suit the device

  engine_call(const shape3& s,
              const std::vector<float>& x_values,
              const std::vector<float>& w_values,
              const std::vector<float>& b_values,
              std::int64_t off                           = 0,
              tconv::layout tensors                      = tconv::layout::channels_first,
              const tconv::detail::gemm_machine& machine = device().machine,
              int most_sets                              = tconv::gemm_problem::most_sets,
              bool across_channels                       = false)
      : shape(s)
      , order(tensors)
      , plan(tconv::detail::plan_implicit_gemm(s, Form, {tensors, tensors, across_channels, most_sets}, machine))
      , pieces(layout, plan)
      , x(placement{s.batch, s.in_channels, s.input_positions(), tensors, {}}.template place<In>(x_values), off)
      , w(elements_of<In>(w_values), off)
      , b(b_values)
      , y(s.output_elements(), off)
      , space(layout.bytes())
      , misalignment(off)
  {}

  template <class Chain>
  bool run(const Chain& functors, launch_mode mode = launch_mode::direct)
  {
    const auto strides = tconv::tensor_strides::of(order, shape.out_channels, shape.output_positions());
    const bool vector  = strides.channels_last()
                         ? shape.out_channels % tconv::block::fragment_channel_vector<Out> == 0 && misalignment % 8 == 0
                         : shape.output(2) % plan.problem.stored_together() == 0
                            && misalignment % plan.problem.stored_together() == 0;
    return tconv_test::run(mode, [&](cudaStream_t stream) {
      return tconv::runtime::launch_implicit_gemm<Form>(
        plan,
        pieces,
        static_cast<const In*>(x.data()),
        static_cast<const In*>(w.data()),
        tconv::kernel::store_gemm_outputs<Chain, Out>{functors, y.data(), strides, vector},
        space.get(),
        false,
        stream,
        blocks);
    });
  }
  bool guards_intact() const
  {
    return x.guards_intact() && w.guards_intact() && b.guards_intact() && y.guards_intact() && space.guards_intact();
  }
  std::vector<float> result() const
  {
    return placement{shape.batch, shape.out_channels, shape.output_positions(), order, {}}.extract(y.download());
  }
};

/// The reference of the inputs at hand; kept for the forms that share them.
const full_reference& reference_of(const std::vector<float>& x, const std::vector<float>& w, const shape3& shape)
{
  static std::vector<float> last_x;
  static std::vector<float> last_w;
  static shape3 last_shape;
  static std::unique_ptr<full_reference> last;
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  if (last == nullptr || to_string(shape) != to_string(last_shape) || !same(x, last_x) || !same(w, last_w))
  {
    last       = std::make_unique<full_reference>(x, w, shape);
    last_x     = x;
    last_w     = w;
    last_shape = shape;
  }
  return *last;
}

/// Runs \p shape if the engine supports it; true if so. \p variant: every third plan is for the shared memory of other devices if there is one,
/// every other call has few blocks, so that they have several tiles, and of every four two give a thread a single phase along w where it might have more.
template <gemm_form Form, class In, class Out>
bool check_values(const shape3& shape,
                  const std::vector<float>& x,
                  const std::vector<float>& w,
                  std::uint32_t variant,
                  std::int64_t misalignment = 0,
                  tconv::layout order       = tconv::layout::channels_first,
                  launch_mode mode          = launch_mode::direct)
{
  const int most_sets = variant / 2 % 2 == 0 ? tconv::gemm_problem::most_sets : 1;
  auto machine        = device().machine;
  if (variant % 3 == 0)
  {
    machine.shared_bytes = std::int64_t{99} * 1024;
    const tconv::detail::gemm_call small{order, order, false, most_sets};
    machine = tconv::detail::plan_implicit_gemm(shape, Form, small, machine).supported ? machine : device().machine;
  }
  const auto b = random_values(77, shape.out_channels);
  engine_call<Form, In, Out> call(shape, x, w, b, misalignment, order, machine, most_sets);
  if (!call.plan.supported)
  {
    return false;
  }
  call.blocks   = variant % 2 == 0 ? std::min<std::int64_t>(3, call.plan.problem.total_tiles()) : 0;
  const auto& p = call.plan.problem;
  SCOPED_TRACE(to_string(shape) + " form " + std::to_string(static_cast<int>(Form)) + " misalignment "
               + std::to_string(misalignment) + " columns " + std::to_string(p.columns) + " sets "
               + std::to_string(p.sets) + " box " + std::to_string(p.box[0]) + "," + std::to_string(p.box[1]) + ","
               + std::to_string(p.box[2]) + " planes " + std::to_string(p.ring_planes) + " chunks "
               + std::to_string(p.chunks()) + " stages " + std::to_string(p.stages) + " resident "
               + std::to_string(p.resident));
  EXPECT_TRUE(call.run(chain(bias(call.b.data())), mode));
  EXPECT_TRUE(call.guards_intact());
  const full_reference& expected = reference_of(x, w, shape);
  comparison_options options;
  options.format              = format_of<Out>::value;
  options.extra               = Form == gemm_form::tf32 ? 0x1p-10 : 0.0;
  options.infinity_may_change = true;
  const comparison result     = compare_convolution(
    call.result().data(), expected.with_bias(b.data()), extents_of(shape), options);
  EXPECT_TRUE(result);
  return true;
}

/// Values that In holds; the same for both types of 16 bits, so that they share a reference.
template <class In>
std::vector<float> inputs_for(const std::vector<float>& values)
{
  return sizeof(In) == 4 ? values : rounded_to<__half>(rounded_to<__nv_bfloat16>(values));
}

template <gemm_form Form, class In, class Out>
bool check_random(const shape3& shape,
                  std::uint32_t seed,
                  std::int64_t misalignment = 0,
                  tconv::layout order       = tconv::layout::channels_first)
{
  return check_values<Form, In, Out>(shape,
                                     inputs_for<In>(random_values(seed, shape.input_elements())),
                                     inputs_for<In>(random_values(seed + 1, shape.weight_elements())),
                                     seed,
                                     misalignment,
                                     order);
}

/// What the device's own shared memory makes of \p shape, channels first.
template <gemm_form Form>
tconv::detail::gemm_plan plan_on_device(const shape3& shape)
{
  return tconv::detail::plan_implicit_gemm(
    shape, Form, {tconv::layout::channels_first, tconv::layout::channels_first}, device().machine);
}

template <class Check>
void for_each_form(Check check)
{
  check(std::integral_constant<gemm_form, gemm_form::split>{}, float{}, float{});
  check(std::integral_constant<gemm_form, gemm_form::tf32>{}, float{}, float{});
  check(std::integral_constant<gemm_form, gemm_form::fp16>{}, __half{}, __half{});
  check(std::integral_constant<gemm_form, gemm_form::bf16>{}, __nv_bfloat16{}, float{});
}

/// Several groups in a tile of columns, whole or in parts, one group in several tiles; input channels that are a multiple of 4 and not; all numbers
/// of phases in a thread; channels in chunks.
std::vector<shape3> shapes_in_groups()
{
  std::vector<shape3> list;
  list.push_back(make_shape<3>({1, 32, 32, 4}, {3, 4, 12}, {3, 5, 7}, {2, 2, 2}, {1, 2, 3}, {1, 1, 1}));
  list.push_back(make_shape<3>({2, 32, 64, 4}, {1, 8, 35}, {1, 3, 5}, {1, 2, 3}, {0, 1, 2}, {0, 0, 0}, {1, 2, 1}));
  list.push_back(make_shape<3>({1, 36, 90, 6}, {1, 9, 21}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}));
  list.push_back(make_shape<3>({2, 48, 60, 3}, {1, 1, 77}, {1, 1, 4}, {1, 1, 2}, {0, 0, 1}));
  list.push_back(make_shape<3>({1, 64, 400, 2}, {1, 5, 19}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}));
  list.push_back(make_shape<3>({1, 1026, 30, 3}, {1, 3, 17}, {1, 3, 3}));
  list.push_back(make_shape<3>({1, 85, 35, 5}, {1, 3, 9}, {1, 2, 9}, {1, 2, 8}));
  return list;
}

/// Sums that leave the tensor core on their way, for all numbers of phases in a thread, and rows that the main loop has code of its own for.
std::vector<shape3> shapes_of_long_sums()
{
  std::vector<shape3> list;
  list.push_back(make_shape<3>({1, 160, 40, 1}, {1, 1, 77}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}));
  list.push_back(make_shape<3>({2, 72, 33, 1}, {1, 3, 36}, {1, 3, 8}, {1, 1, 8}, {0, 1, 0}));
  list.push_back(make_shape<3>({1, 80, 24, 1}, {1, 4, 19}, {1, 3, 10}, {1, 1, 5}, {0, 1, 2}));
  list.push_back(make_shape<3>({1, 100, 20, 1}, {2, 3, 15}, {2, 2, 13}, {2, 1, 6}, {0, 0, 3}));
  list.push_back(make_shape<3>({1, 128, 70, 1}, {1, 3, 35}, {1, 3, 8}, {1, 1, 4}, {0, 1, 2}));
  list.push_back(make_shape<3>({1, 96, 32, 1}, {2, 3, 20}, {2, 2, 4}, {1, 1, 4}));
  list.push_back(make_shape<3>({2, 50, 31, 1}, {1, 5, 21}, {1, 5, 3}, {1, 1, 3}, {0, 2, 0}));
  list.push_back(make_shape<3>({1, 128, 64, 1}, {1, 3, 68}, {1, 3, 4}, {1, 1, 2}, {0, 1, 1}));
  list.push_back(make_shape<3>({1, 90, 50, 1}, {2, 3, 20}, {3, 3, 5}, {1, 1, 2}, {1, 1, 1}, {0, 0, 0}, {1, 1, 3}));
  return list;
}

std::vector<shape3> more_shapes()
{
  std::vector<shape3> list = shapes_of_long_sums();
  list.push_back(make_shape<3>({2, 32, 64, 1}, {3, 3, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}));
  list.push_back(make_shape<3>({1, 17, 5, 1}, {2, 3, 37}, {3, 1, 5}, {1, 2, 3}, {1, 0, 2}, {0, 1, 1}));
  list.push_back(make_shape<3>({1, 64, 100, 1}, {4, 5, 7}, {2, 2, 2}, {2, 2, 2}));
  list.push_back(make_shape<3>({1, 64, 128, 1}, {2, 2, 5}, {5, 5, 5}));
  list.push_back(make_shape<3>({1, 16, 1, 1}, {1, 19, 23}, {1, 5, 4}, {1, 1, 2}, {0, 2, 1}));
  list.push_back(make_shape<3>({1, 32, 33, 1}, {7, 9, 11}, {3, 3, 3}, {3, 2, 2}, {1, 1, 1}, {2, 0, 1}, {2, 2, 1}));
  list.push_back(make_shape<3>({1, 32, 24, 1}, {5, 9, 11}, {3, 3, 3}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1}, {2, 2, 2}));
  list.push_back(make_shape<3>({1, 48, 70, 1}, {1, 1, 333}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}));
  list.push_back(make_shape<3>({1, 256, 130, 1}, {1, 5, 9}, {1, 4, 4}, {1, 2, 2}, {0, 1, 1}));
  list.push_back(make_shape<3>({1, 512, 64, 1}, {1, 4, 12}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}));
  list.push_back(make_shape<3>({1, 700, 40, 1}, {2, 3, 5}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}));
  list.push_back(make_shape<3>({3, 24, 31, 1}, {1, 1, 1}, {3, 3, 3}, {2, 2, 2}));
  list.push_back(make_shape<3>({1, 20, 20, 1}, {1, 30, 30}, {1, 3, 3}, {1, 5, 5}, {0, 1, 1}, {0, 0, 0}, {1, 2, 2}));
  for (const shape3& shape : shapes_in_groups())
  {
    list.push_back(shape);
  }
  return list;
}

TEST_F(TCONV_TEST_SUITE, awkward_shapes)
{
  int supported      = 0;
  std::uint32_t seed = 100;
  auto shapes        = awkward_shapes();
  for (const shape3& s : more_shapes())
  {
    shapes.push_back(s);
  }
  for (const shape3& shape : shapes)
  {
    ++seed;
    for_each_form([&](auto form, auto in, auto out) {
      supported += check_random<decltype(form)::value, decltype(in), decltype(out)>(shape, seed) ? 1 : 0;
    });
  }
  std::printf("[          ] %d calls\n", supported);
}

// Each kind of tile that keeps sums beside the tensor core is among those shapes, and each known row.
TEST_F(TCONV_TEST_SUITE, long_sums_in_all_tiles)
{
  std::array<bool, 9> promoted{}; // by phases in a thread
  std::vector<std::pair<int, unsigned>> rows;
  std::uint32_t seed = 600;
  for (const shape3& shape : shapes_of_long_sums())
  {
    seed += 4; // all phases in a thread
    for_each_form([&](auto form, auto in, auto out) {
      constexpr gemm_form how = decltype(form)::value;
      const auto plan         = plan_on_device<how>(shape);
      ASSERT_TRUE(plan.supported) << to_string(shape);
      if (plan.problem.promoted)
      {
        promoted.at(static_cast<std::size_t>(plan.problem.set_room())) = true;
      }
      rows.emplace_back(plan.problem.unit, plan.problem.neighbours);
      EXPECT_TRUE((check_random<how, decltype(in), decltype(out)>(shape, seed)));
    });
  }
  for (const std::size_t room : {2, 4, 8})
  {
    EXPECT_TRUE(promoted.at(room)) << room;
  }
  // By phases of a unit.
  const std::pair<int, unsigned> known[] = {{1, tconv::gemm_present(2, 2, 4, 1)},
                                            {1, tconv::gemm_present(4, 3, 3, 0)},
                                            {1, tconv::gemm_present(4, 4, 4, 0)},
                                            {1, tconv::gemm_present(4, 4, 8, 2)},
                                            {1, tconv::gemm_present(8, 5, 10, 2)},
                                            {4, tconv::gemm_present(2, 2, 2, 0)},
                                            {4, tconv::gemm_present(2, 2, 4, 1)}};
  for (const auto& row : known)
  {
    EXPECT_NE(std::count(rows.begin(), rows.end(), row), 0) << row.first << " " << row.second;
  }
}

// Pairs of groups of products, a group more and a block of channels more, in tiles of 128 columns and of 4 x 32.
TEST_F(TCONV_TEST_SUITE, operands_loaded_ahead)
{
  const shape3 shapes[] = {make_shape<3>({1, 88, 100, 1}, {1, 1, 9000}, {1, 1, 2}, {1, 1, 2}),
                           make_shape<3>({1, 72, 100, 1}, {1, 1, 9002}, {1, 1, 2}, {1, 1, 2}),
                           make_shape<3>({1, 72, 100, 1}, {1, 1, 9001}, {1, 1, 4}, {1, 1, 2}, {0, 0, 1}),
                           make_shape<3>({1, 64, 100, 1}, {1, 2, 4504}, {1, 2, 4}, {1, 1, 2}, {0, 0, 1}),
                           make_shape<3>({1, 72, 100, 1}, {1, 1, 9000}, {1, 1, 3}, {1, 1, 2}, {0, 0, 1}, {0, 0, 1}),
                           make_shape<3>({1, 176, 64, 1}, {1, 3, 200}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}),
                           make_shape<3>({2, 72, 33, 1}, {1, 3, 36}, {1, 3, 8}, {1, 1, 8}, {0, 1, 0})};
  std::array<int, 4> ahead{}; // by form
  std::uint32_t seed = 692;
  for (const shape3& shape : shapes)
  {
    seed += 12; // all phases in a thread, and the shared memory that the plan below is for
    for_each_form([&](auto form, auto in, auto out) {
      constexpr gemm_form how = decltype(form)::value;
      const auto plan         = plan_on_device<how>(shape);
      ASSERT_TRUE(plan.supported) << to_string(shape);
      const tconv::gemm_problem& p = plan.problem;
      ahead.at(static_cast<std::size_t>(how)) += p.neighbours != 0
                                              && tconv::detail::visit_gemm_policy(p, [&](auto policy) {
                                                   return tconv::gemm_group<decltype(policy)>(how, p.neighbours).ahead;
                                                 });
      EXPECT_TRUE((check_random<how, decltype(in), decltype(out)>(shape, seed)));
      EXPECT_TRUE((check_random<how, decltype(in), decltype(out)>(shape, seed, 0, tconv::layout::channels_last)));
    });
  }
  EXPECT_EQ(ahead.at(static_cast<std::size_t>(gemm_form::fp16)), 7);
  EXPECT_EQ(ahead.at(static_cast<std::size_t>(gemm_form::bf16)), 7);
  EXPECT_EQ(ahead.at(static_cast<std::size_t>(gemm_form::tf32)), 3);
}

// Rows that are runs of 8 elements, of all lengths of what a warp stages at once, and tensors that begin on 8 elements, on 4 and on any; channels that fill
// their blocks and channels that do not; one plane and several.
TEST_F(TCONV_TEST_SUITE, rows_of_runs_of_eight)
{
  int runs           = 0;
  std::uint32_t seed = 800;
  for (const std::int64_t width : {8, 16, 24, 32, 40, 72, 136, 520})
  {
    for (const std::int64_t channels : {8, 16, 17, 40})
    {
      for (const std::int64_t stride : {1, 2, 3})
      {
        const shape3 shape = make_shape<3>({2, channels, 24, 1},
                                           {width < 70 ? 3 : 1, width < 500 ? 5 : 1, width},
                                           {width < 70 ? 2 : 1, width < 500 ? 3 : 1, 3},
                                           {1, 1, stride},
                                           {0, 0, 1});
        ++seed;
        const auto check = [&](auto form, auto in, auto out) {
          constexpr gemm_form how = decltype(form)::value;
          runs += plan_on_device<how>(shape).problem.run == 8 ? 1 : 0;
          for (const auto order : {tconv::layout::channels_first, tconv::layout::channels_last})
          {
            for (const std::int64_t misalignment : {0, 4, 1})
            {
              EXPECT_TRUE((check_random<how, decltype(in), decltype(out)>(shape, seed, misalignment, order)));
            }
          }
        };
        check(std::integral_constant<gemm_form, gemm_form::fp16>{}, __half{}, __half{});
        check(std::integral_constant<gemm_form, gemm_form::bf16>{}, __nv_bfloat16{}, float{});
      }
    }
  }
  EXPECT_EQ(runs, 2 * 8 * 4 * 3);
}

TEST_F(TCONV_TEST_SUITE, unaligned_and_channels_last)
{
  std::uint32_t seed = 300;
  for (const shape3& shape : more_shapes())
  {
    ++seed;
    for_each_form([&](auto form, auto in, auto out) {
      check_random<decltype(form)::value, decltype(in), decltype(out)>(shape, seed, 1 + seed % 3);
      check_random<decltype(form)::value, decltype(in), decltype(out)>(
        shape, seed, seed % 2, tconv::layout::channels_last);
    });
  }
}

// Rows that end within a vector and begin on any multiple of an element, both layouts, from one to eight phases of a thread, all widths of
// tiles, with channels that fill them and channels that do not.
TEST_F(TCONV_TEST_SUITE, stores_and_loads_of_any_alignment)
{
  int supported      = 0;
  std::uint32_t seed = 500;
  for (const std::int64_t channels : {16, 20, 40, 64, 127})
  {
    for (const std::int64_t stride : {1, 2, 3, 4, 5, 8})
    {
      for (const std::int64_t width : {33, 36})
      {
        const shape3 shape = make_shape<3>(
          {2, (channels + width) % 2 == 0 ? 18 : 20, channels, 1}, {1, 5, width}, {1, 3, 3}, {1, 1, stride}, {0, 1, 1});
        ++seed;
        for_each_form([&](auto form, auto in, auto out) {
          for (const auto order : {tconv::layout::channels_first, tconv::layout::channels_last})
          {
            for (const std::int64_t misalignment : {0, 1, 2})
            {
              supported +=
                check_random<decltype(form)::value, decltype(in), decltype(out)>(shape, seed, misalignment, order) ? 1
                                                                                                                   : 0;
            }
          }
        });
      }
    }
  }
  EXPECT_EQ(supported, 5 * 6 * 2 * 4 * 2 * 3);
}

TEST_F(TCONV_TEST_SUITE, random_shapes)
{
  int supported = 0;
  for (std::uint32_t i = 0; i < 60; ++i)
  {
    random_stream random(i);
    shape3 shape = random_shape(random, 1000000);
    if (i % 2 == 0)
    {
      shape.in_channels /= shape.groups;
      shape.out_channels /= shape.groups;
      shape.groups = 1;
    }
    SCOPED_TRACE(random.replay());
    for_each_form([&](auto form, auto in, auto out) {
      supported += check_random<decltype(form)::value, decltype(in), decltype(out)>(shape, 9000 + i, i % 5) ? 1 : 0;
    });
  }
  std::printf("[          ] %d calls\n", supported);
}

TEST_F(TCONV_TEST_SUITE, integers_are_exact)
{
  for (const shape3& shape : more_shapes())
  {
    const auto x = recipe_x_values(shape.input_elements());
    const auto w = recipe_w_values(shape.weight_elements());
    const full_reference expected(x, w, shape);
    for_each_form([&](auto form, auto in, auto) {
      engine_call<decltype(form)::value, decltype(in), float> call(shape, x, w, {});
      if (!call.plan.supported)
      {
        return;
      }
      ASSERT_TRUE(call.run(chain(bias(nullptr))));
      const auto y = call.result();
      for (std::size_t i = 0; i < y.size(); ++i)
      {
        ASSERT_EQ(static_cast<double>(y[i]), expected.value[i]) << i << to_string(shape);
      }
    });
  }
}

// The split form: magnitudes that do not fit it, in all mixtures.
// Sums of a sign: the tensor core truncates what it adds, always towards zero, and of 3136 products the bound of the contract would let
// errors of 1.9e-4 pass. Where registers allow, sums are kept outside of it; what is left is a few roundings.
TEST_F(TCONV_TEST_SUITE, split_sums_of_a_sign_do_not_drift)
{
  // What a thread would hold in 64 accumulators is cut for that.
  const shape3 shapes[] = {
    make_shape<3>({1, 64, 32, 1}, {1, 12, 36}, {1, 7, 7}),
    make_shape<3>({1, 64, 64, 1}, {1, 12, 36}, {1, 7, 7}),
    make_shape<3>({1, 64, 128, 1}, {1, 12, 36}, {1, 7, 7}),
    make_shape<3>({1, 32, 64, 1}, {5, 6, 20}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {2, 2, 2}),
    make_shape<3>({1, 32, 32, 1}, {5, 6, 20}, {5, 5, 5}, {2, 2, 2}),
    make_shape<3>({1, 512, 48, 1}, {1, 1, 300}, {1, 1, 8}, {1, 1, 4}, {0, 0, 2}),
    make_shape<3>({1, 512, 48, 1}, {1, 1, 300}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4})};
  for (const shape3& s : shapes)
  {
    SCOPED_TRACE(to_string(s));
    const auto x = random_values(51, s.input_elements(), 0.5f, 1.0f);
    const auto w = random_values(52, s.weight_elements(), 0.5f, 1.0f);
    engine_call<gemm_form::split, float, float> call(
      s, x, w, std::vector<float>(static_cast<std::size_t>(s.out_channels)));
    ASSERT_TRUE(call.plan.supported);
    ASSERT_TRUE(call.run(chain<>{}));
    const auto got             = call.result();
    const full_reference& full = reference_of(x, w, s);
    double drift               = 0;
    double largest             = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
    {
      if (full.value[i] == 0.0)
      {
        EXPECT_EQ(got[i], 0.0f); // no tap lands there
        continue;
      }
      const double relative = (static_cast<double>(got[i]) - full.value[i]) / full.value[i];
      drift += relative / static_cast<double>(got.size());
      largest = std::fmax(largest, std::fabs(relative));
    }
    EXPECT_LT(std::fabs(drift), 1e-6);
    EXPECT_LT(largest, 3e-6);
  }
}

TEST_F(TCONV_TEST_SUITE, split_range)
{
  const shape3 shapes[] = {make_shape<3>({1, 32, 64, 1}, {4, 5, 8}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
                           make_shape<3>({1, 32, 20, 1}, {1, 9, 13}, {1, 3, 3}, {1, 1, 1}),
                           make_shape<3>({1, 600, 20, 1}, {1, 5, 7}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}),
                           make_shape<3>({1, 32, 20, 1}, {1, 9, 37}, {1, 3, 9}, {1, 1, 4}, {0, 1, 2}),
                           make_shape<3>({1, 600, 20, 1}, {1, 3, 19}, {1, 1, 7}, {1, 1, 5}, {0, 0, 1}),
                           make_shape<3>({1, 34, 60, 2}, {2, 5, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1})};
  for (const shape3& shape : shapes)
  {
    const auto plain_x = random_values(1, shape.input_elements());
    const auto plain_w = random_values(2, shape.weight_elements());
    const auto edit    = [](std::vector<float> values, auto f) {
      for (std::size_t i = 0; i < values.size(); ++i)
      {
        values[i] = f(values[i], i);
      }
      return values;
    };
    std::uint32_t variant = 0;
    const auto check      = [&](const char* what, const std::vector<float>& x, const std::vector<float>& w) {
      SCOPED_TRACE(what);
      check_values<gemm_form::split, float, float>(shape, x, w, variant++);
    };
    check("small", edit(plain_x, [](float v, std::size_t) { return v * 1e-30f; }), plain_w);
    check("large", edit(plain_x, [](float v, std::size_t) { return v * 1e30f; }), plain_w);
    check("tiny", edit(plain_x, [](float v, std::size_t) { return v * 1e-12f; }), plain_w);
    check("big", edit(plain_x, [](float v, std::size_t) { return v * 1e12f; }), plain_w);
    check("small weights", plain_x, edit(plain_w, [](float v, std::size_t) { return v * 1e-30f; }));
    check("large weights", plain_x, edit(plain_w, [](float v, std::size_t) { return v * 1e30f; }));
    check("mixed",
          edit(plain_x, [](float v, std::size_t i) { return i % 97 == 0 ? v * 1e30f : (i % 7 == 0 ? v * 1e-30f : v); }),
          plain_w);
    check("few tiny", edit(plain_x, [](float v, std::size_t i) { return i % 997 == 0 ? v * 1e-9f : v; }), plain_w);
    check("one large", edit(plain_x, [](float v, std::size_t i) { return i == 1000 ? 1e30f : v; }), plain_w);
    check("one tiny", edit(plain_x, [](float v, std::size_t i) { return i == 1000 ? 1e-30f : v; }), plain_w);
    check("mixed weights", plain_x, edit(plain_w, [](float v, std::size_t i) { return i % 5 == 0 ? v * 1e-20f : v; }));
    check("tiny inputs alone",
          edit(plain_x, [](float v, std::size_t i) { return i < 20 ? v : (i % 499 == 0 ? v * 1e-7f : 0.0f); }),
          plain_w);
    check("planes apart",
          edit(plain_x,
               [&](float v, std::size_t i) {
                 const auto plane = i / static_cast<std::size_t>(shape.input[1] * shape.input[2])
                                  % static_cast<std::size_t>(shape.input[0]);
                 return plane % 2 == 0 ? v * 1e-20f : v * 1e3f;
               }),
          plain_w);
    check("channels apart",
          edit(plain_x,
               [&](float v, std::size_t i) {
                 const auto channel = i / static_cast<std::size_t>(shape.input_positions());
                 return channel < 300 ? v * 1e-6f : v * 1e6f;
               }),
          plain_w);
    // Zeros everywhere but for one tiny input: its error must be relative to itself.
    check("tiny next to zero weights",
          edit(plain_x, [](float v, std::size_t i) { return i % 2 == 0 ? v : v * 1e-8f; }),
          edit(plain_w, [&](float v, std::size_t i) {
            return static_cast<std::int64_t>(i) / (shape.out_channels * shape.taps()) % 2 == 0 ? 0.0f : v;
          }));
  }
}

// Blocks with many tiles, staged by all warps at first and by a few from the second tile on: each tile with a scale of its own, with inputs that are lost in
// some, and with nothing but zeros.
TEST_F(TCONV_TEST_SUITE, magnitudes_change_from_tile_to_tile)
{
  const shape3 shapes[] = {make_shape<3>({1, 32, 40, 1}, {1, 3, 1001}, {1, 1, 3}),
                           make_shape<3>({2, 20, 33, 1}, {1, 9, 250}, {1, 3, 4}, {1, 2, 2}, {0, 1, 1}),
                           make_shape<3>({1, 24, 20, 1}, {19, 8, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
                           make_shape<3>({1, 48, 30, 3}, {1, 5, 500}, {1, 3, 3})};
  std::uint32_t variant = 0;
  for (const shape3& shape : shapes)
  {
    const auto plain = random_values(11, shape.input_elements());
    const auto w     = random_values(12, shape.weight_elements());
    for (const float step : {1.0f, 1e4f, 1e-5f, 0.0f})
    {
      for (const std::size_t rare : {std::size_t{0}, std::size_t{911}})
      {
        auto x = plain;
        for (std::size_t i = 0; i < x.size(); ++i)
        {
          // Along d where there is one, else along w.
          const auto w_at = i % static_cast<std::size_t>(shape.input[2]);
          const auto d_at = i / static_cast<std::size_t>(shape.input[1] * shape.input[2])
                          % static_cast<std::size_t>(shape.input[0]);
          const auto place = shape.input[0] > 1 ? d_at : w_at / 97;
          x[i] *= std::pow(step, static_cast<float>(place % 5));
          if (rare != 0 && i % rare == 0)
          {
            x[i] = i % 2 == 0 ? x[i] * 1e-6f : std::numeric_limits<float>::infinity();
          }
        }
        SCOPED_TRACE("step " + std::to_string(step) + ", rare " + std::to_string(rare));
        for (const tconv::layout order : {tconv::layout::channels_first, tconv::layout::channels_last})
        {
          // Even variants have few blocks.
          const bool supported = check_values<gemm_form::split, float, float>(shape, x, w, 2 * variant, 0, order);
          EXPECT_TRUE(supported);
          ++variant;
        }
      }
    }
  }
}

TEST_F(TCONV_TEST_SUITE, not_finite)
{
  const float nan       = std::numeric_limits<float>::quiet_NaN();
  const float inf       = std::numeric_limits<float>::infinity();
  std::uint32_t variant = 0;
  for (const shape3& shape : more_shapes())
  {
    if (shape.in_channels > 100)
    {
      continue;
    }
    auto x          = random_values(5, shape.input_elements());
    x[0]            = nan;
    x[x.size() / 2] = inf;
    x[x.size() - 1] = -inf;
    x[x.size() / 3] = nan;
    for_each_form([&](auto form, auto in, auto out) {
      using element = decltype(in);
      check_values<decltype(form)::value, element, decltype(out)>(
        shape, inputs_for<element>(x), inputs_for<element>(random_values(6, shape.weight_elements())), variant++);
    });
  }
}

// A tile of columns multiplies inputs of other groups by zeros: by all of these but what is not finite.
TEST_F(TCONV_TEST_SUITE, groups_keep_to_themselves)
{
  std::uint32_t variant = 0;
  for (const shape3& shape : shapes_in_groups())
  {
    const auto plane = static_cast<std::size_t>(shape.input_positions());
    const auto x     = random_values(8, shape.input_elements());
    const auto w     = random_values(9, shape.weight_elements());
    for (const float v :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f, 1e-30f})
    {
      for (const std::int64_t channel : {std::int64_t{0}, shape.in_channels / shape.groups, shape.in_channels - 1})
      {
        SCOPED_TRACE(std::to_string(v) + " in channel " + std::to_string(channel));
        // A few, which are listed, then more than a list has room for.
        for (const std::size_t count : {std::size_t{2}, plane})
        {
          auto values = x;
          for (std::size_t i = 0; i < count; ++i)
          {
            values[static_cast<std::size_t>(channel) * plane + i * (plane / count)] = v;
          }
          const bool supported = check_values<gemm_form::split, float, float>(
            shape,
            values,
            w,
            variant,
            0,
            variant % 3 == 1 ? tconv::layout::channels_last : tconv::layout::channels_first);
          EXPECT_TRUE(supported);
          ++variant;
        }
      }
    }
    // Other forms would not.
    EXPECT_FALSE((check_random<gemm_form::tf32, float, float>(shape, 1)));
    EXPECT_FALSE((check_random<gemm_form::fp16, __half, __half>(shape, 1)));
  }
}

TEST_F(TCONV_TEST_SUITE, channel_functors)
{
  for (const shape3& shape : more_shapes())
  {
    if (shape.out_channels > 128)
    {
      continue;
    }
    const auto x = random_values(8, shape.input_elements());
    const auto w = random_values(9, shape.weight_elements());
    const auto b = random_values(10, shape.out_channels);
    engine_call<gemm_form::split, float, float> call(
      shape, x, w, b, 0, tconv::layout::channels_first, device().machine, tconv::gemm_problem::most_sets, true);
    if (!call.plan.supported)
    {
      continue;
    }
    ASSERT_TRUE(call.plan.whole_rows);
    ASSERT_TRUE(call.run(chain(bias(call.b.data()), tconv::channel_softmax(), tconv::sigmoid())));
    full_reference expected(x, w, shape);
    tconv::reference::apply(chain(bias(b.data()), tconv::channel_softmax(), tconv::sigmoid()),
                            expected.value.data(),
                            shape.batch,
                            shape.out_channels,
                            shape.output_positions());
    EXPECT_TRUE(compare_values(call.result().data(),
                               expected.value.data(),
                               extents_of(shape),
                               [](auto, double) {
                                 return tolerance{2e-5, 0.0};
                               }))
      << to_string(shape);
  }
}

template <gemm_form Form, class In, class Out>
void repeat(const shape3& shape, int launches)
{
  const auto x = rounded_to<In>(random_values(21, shape.input_elements()));
  const auto w = rounded_to<In>(random_values(22, shape.weight_elements()));
  engine_call<Form, In, Out> call(shape, x, w, random_values(23, shape.out_channels));
  ASSERT_TRUE(call.plan.supported);
  ASSERT_TRUE(call.run(chain(bias(call.b.data()))));
  const auto first = call.y.download();
  for (int i = 0; i < launches; ++i)
  {
    ASSERT_TRUE(call.run(chain(bias(call.b.data()))));
    if (i % 10 == 0 || i + 1 == launches)
    {
      const auto again = call.y.download();
      ASSERT_EQ(std::memcmp(first.data(), again.data(), first.size() * sizeof(Out)), 0) << "launch " << i;
    }
  }
}

TEST_F(TCONV_TEST_SUITE, a_thousand_launches_give_the_same_bits)
{
  const shape3 p1 = make_shape<3>({3, 32, 64, 1}, {5, 11, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
  const shape3 s1 = make_shape<3>({2, 64, 128, 1}, {4, 9, 17}, {3, 3, 3});
  repeat<gemm_form::split, float, float>(p1, 1000);
  repeat<gemm_form::tf32, float, float>(p1, 1000);
  repeat<gemm_form::fp16, __half, __half>(p1, 1000);
  repeat<gemm_form::bf16, __nv_bfloat16, float>(p1, 1000);
  repeat<gemm_form::split, float, float>(s1, 300);
  repeat<gemm_form::tf32, float, float>(s1, 300);
  repeat<gemm_form::bf16, __nv_bfloat16, float>(s1, 300);
}

} // namespace
