// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// conv_transpose() in every element type, layout and slice. References depend on the type of the inputs alone, and are computed
/// once for all output types and arrangements of a process.

#include "common/recipes.hpp"
#include "common/train_case.cuh"

namespace
{

using namespace tconv_test;

template <class Pair>
class types_gpu : public gpu_test
{};

TYPED_TEST_SUITE(types_gpu, pairs);

TYPED_TEST(types_gpu, awkward_shapes)
{
  std::uint32_t seed = 10;
  for (const shape3& shape : awkward_shapes())
  {
    // Odd steps: neighbouring shapes, and the pairs of types at one shape, meet different layouts and slices.
    check_convolution<typename TypeParam::in, typename TypeParam::out>(
      shape, seed, arrangement::number(7 * seed + 13 * TypeParam::number));
    ++seed;
  }
}

// 64 arrangements are all pairs of layouts and slices.
TYPED_TEST(types_gpu, random_shapes_in_every_arrangement)
{
  for (std::uint32_t i = 0; i < 64; ++i)
  {
    random_stream random(i + 5000);
    const shape3 shape = random_shape(random, 1000000);
    SCOPED_TRACE(random.replay());
    check_convolution<typename TypeParam::in, typename TypeParam::out>(shape, 9000 + i, arrangement::number(i));
  }
}

// Sizes that take the aligned paths: rows of quads, vectors of channels, more than one chunk of input channels.
TYPED_TEST(types_gpu, aligned_shapes)
{
  const shape3 shapes[] = {make_shape<3>({2, 32, 64, 1}, {4, 8, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
                           make_shape<3>({1, 64, 128, 1}, {1, 4, 32}, {1, 5, 5}),
                           make_shape<3>({1, 128, 64, 2}, {1, 16, 16}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}),
                           make_shape<3>({1, 16, 16, 16}, {1, 16, 16}, {1, 4, 4}, {1, 2, 2}, {0, 1, 1}),
                           make_shape<3>({1, 3, 16, 1}, {4, 8, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
                           make_shape<3>({1, 256, 8, 1}, {1, 1, 64}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4})};
  std::uint32_t seed    = 900;
  for (const shape3& shape : shapes)
  {
    for (std::int64_t i = 0; i < 4; ++i)
    {
      // The four pairs of layouts, the slices different for each type: all of them keep the alignment of 16 bytes here but for
      // those that start at channel 3.
      arrangement how  = arrangement::number(i + 4 * ((seed + TypeParam::number) % 16));
      how.misalignment = 0;
      check_convolution<typename TypeParam::in, typename TypeParam::out>(shape, seed, how);
      how              = arrangement::number(i);
      how.misalignment = 0;
      check_convolution<typename TypeParam::in, typename TypeParam::out>(shape, seed, how);
    }
    ++seed;
  }
}

// A NaN reaches exactly the outputs that its taps touch, in either layout.
TYPED_TEST(types_gpu, nan_stays_where_it_belongs)
{
  const shape3 shape = make_shape<3>({1, 5, 9, 1}, {3, 4, 8}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 0, 1});
  auto x             = rounded_to<typename TypeParam::in>(random_values(1, shape.input_elements()));
  const auto w       = rounded_to<typename TypeParam::in>(random_values(2, shape.weight_elements()));
  const auto b       = random_values(3, shape.out_channels);
  x[77]              = std::numeric_limits<float>::quiet_NaN();
  x[300]             = std::numeric_limits<float>::infinity();
  const full_reference expected(x, w, shape);
  for (std::int64_t i = 0; i < 8; ++i)
  {
    const auto y = run_convolution<typename TypeParam::in, typename TypeParam::out>(
      shape, x, w, b, arrangement::number(i), shape.out_channels, [](const float* bias) {
        return tconv::chain(tconv::bias(bias));
      });
    ASSERT_FALSE(y.empty());
    comparison_options options;
    options.format              = format_of<typename TypeParam::out>::value;
    options.infinity_may_change = true;
    EXPECT_TRUE(compare_convolution(y.data(), expected.with_bias(b.data()), extents_of(shape), options));
  }
}

// The collected cases (A01 stride with dilation, A02 output padding, A04 groups, A05 grouped, A06 parameters distinct per axis)
// with integers that every type holds: outputs are the exact sums, rounded once.
TYPED_TEST(types_gpu, integers_are_exact)
{
  const shape3 shapes[] = {
    make_shape<3>({1, 2, 3, 1}, {3, 3, 3}, {3, 3, 3}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1}, {3, 3, 3}),
    make_shape<3>({1, 1, 1, 1}, {1, 50, 50}, {1, 3, 5}, {1, 2, 1}, {0, 4, 2}, {0, 0, 0}, {1, 3, 1}),
    make_shape<3>({1, 16, 3, 1}, {1, 7, 7}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {0, 1, 1}),
    make_shape<3>({2, 6, 12, 3}, {1, 5, 4}, {1, 3, 2}, {1, 2, 3}, {0, 1, 0}, {0, 1, 2}),
    make_shape<3>({1, 4, 4, 2}, {1, 5, 5}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}),
    make_shape<3>({1, 1, 1, 1}, {2, 3, 4}, {1, 2, 3}, {3, 2, 1}, {0, 0, 1}, {1, 0, 0}, {1, 2, 1}),
    make_shape<3>({2, 3, 2, 1}, {3, 4, 5}, {2, 3, 1}, {1, 2, 3}, {0, 1, 0}, {0, 1, 2}, {3, 1, 2}),
    make_shape<3>({1, 32, 64, 1}, {2, 4, 8}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1})};
  using out      = typename TypeParam::out;
  std::int64_t i = 0;
  for (const shape3& shape : shapes)
  {
    SCOPED_TRACE(to_string(shape));
    const auto x = recipe_x_values(shape.input_elements());
    const auto w = recipe_w_values(shape.weight_elements());
    const auto b = filled(shape.out_channels, [](std::int64_t c) { return c % 13 - 6; });
    const full_reference exact(x, w, shape);
    for (int repeat = 0; repeat < 8; ++repeat)
    {
      const arrangement how = arrangement::number(i++);
      const auto y          = run_convolution<typename TypeParam::in, out>(
        shape, x, w, b, how, shape.out_channels, [](const float* bias) { return tconv::chain(tconv::bias(bias)); });
      ASSERT_EQ(y.size(), exact.value.size());
      for (std::size_t at = 0; at < y.size(); ++at)
      {
        const auto c =
          static_cast<std::size_t>(static_cast<std::int64_t>(at) / shape.output_positions() % shape.out_channels);
        const double sum = exact.value[at] + static_cast<double>(b[c]);
        ASSERT_EQ(y[at], tconv::to_float(tconv::from_float<out>(static_cast<float>(sum))))
          << at << ", " << to_string(how);
      }
    }
  }
}

} // namespace
