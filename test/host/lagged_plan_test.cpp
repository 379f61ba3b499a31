// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Moments of a convolution from lagged products of its input: the sums that the plan names, worked out on the host,
/// against the moments of the convolution in full.

#include "../common/conv_case.hpp"

#include <tconv/detail/lagged_plan.hpp>
#include <tconv/reference/batch_norm.hpp>
#include <tconv/reference/conv_transpose.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace
{

using std::int64_t;
using tconv::lagged_problem;
using namespace tconv_test;

/// Sums over all pieces as kernel::lagged_products walks over them; NaN for cells that are not summed.
std::vector<double> lagged_sums(const lagged_problem& p, const std::vector<float>& x, const std::vector<float>& centres)
{
  std::vector<double> sums(static_cast<std::size_t>(p.sums()), std::nan(""));
  const int64_t positions = int64_t{p.axis[0].in} * p.axis[1].in * p.axis[2].in;
  const auto sum          = [&](int cell, int first, int second, int number) -> double& {
    return sums[static_cast<std::size_t>(p.sum_of(cell, first, second, number))];
  };
  const int parts = p.parts[0] * p.parts[1] * p.parts[2];
  for (int64_t index = 0; index < p.pieces(); ++index)
  {
    const int64_t n  = index / parts;
    const auto piece = tconv::lagged_piece::of(p, static_cast<int>(index % parts));
    EXPECT_LE(int64_t{16} * p.tiles * piece.positions(), p.staged_bytes());
    std::vector<double> staged;
    for (int c = 0; c < p.tiles * p.tile; ++c)
    {
      for (int i = 0; i < piece.positions(); ++i)
      {
        const int64_t d  = piece.origin[0] + i / piece.extent[2] / piece.extent[1];
        const int64_t h  = piece.origin[1] + i / piece.extent[2] % piece.extent[1];
        const int64_t at = (d * p.axis[1].in + h) * p.axis[2].in + piece.origin[2] + i % piece.extent[2];
        staged.push_back(c < p.in_channels
                           ? static_cast<double>(x[static_cast<std::size_t>((n * p.in_channels + c) * positions + at)])
                               - static_cast<double>(centres[static_cast<std::size_t>(c)])
                           : 0.0);
      }
    }
    const auto value = [&](int c, int at) {
      EXPECT_TRUE(at >= 0 && at < piece.positions());
      return staged[static_cast<std::size_t>(c * piece.positions() + at)];
    };
    for (int item = 0; item < p.items(); ++item)
    {
      const int cell   = item / (p.tiles * p.tiles);
      const int first  = item / p.tiles % p.tiles;
      const int second = item % p.tiles;
      if (!p.summed(cell))
      {
        continue;
      }
      for (int number = 0; index == 0 && number < p.sums_per_item(); ++number)
      {
        sum(cell, first, second, number) = 0.0;
      }
      for (int lane = 0; lane < 32; ++lane)
      {
        for (auto walk = tconv::lagged_walk::of(p, piece, cell, lane); walk.left > 0; walk.advance())
        {
          for (int i = 0; i < p.tile; ++i)
          {
            const double a = value(first * p.tile + i, walk.at);
            for (int j = 0; j < p.tile; ++j)
            {
              sum(cell, first, second, i * p.tile + j) += a * value(second * p.tile + j, walk.at + walk.further);
            }
            sum(cell, first, second, p.tile * p.tile + i) += a;
            sum(cell, first, second, p.tile * (p.tile + 1) + i) += value(second * p.tile + i, walk.at + walk.further);
          }
        }
      }
    }
  }
  return sums;
}

/// True if the plan takes \p s.
bool check(const shape3& s, std::uint32_t seed)
{
  SCOPED_TRACE(to_string(s));
  const auto plan = tconv::detail::plan_lagged(s, tconv::layout::channels_first);
  if (!plan.possible)
  {
    return false;
  }
  const lagged_problem& p = plan.problem;
  const auto x            = random_values(seed, s.input_elements(), 0.0f, 1.0f);
  const auto w            = random_values(seed + 1, s.weight_elements());
  const auto centres      = random_values(seed + 2, s.in_channels);
  const auto sums         = lagged_sums(p, x, centres);
  std::vector<double> y(static_cast<std::size_t>(s.output_elements()));
  tconv::reference::conv_transpose(x.data(), w.data(), y.data(), s);
  const auto expected = tconv::reference::channel_moments(y.data(), s.batch, s.out_channels, s.output_positions());
  for (int64_t c = 0; c < s.out_channels; ++c)
  {
    double sum     = 0;
    double squares = 0;
    for (int pair = 0; pair < p.pairs(); ++pair)
    {
      const int64_t first  = p.tap_of(pair, false);
      const int64_t second = p.tap_of(pair, true);
      for (int i = 0; i < p.in_channels; ++i)
      {
        const auto weight = [&](int channel, int64_t tap) {
          return static_cast<double>(w[static_cast<std::size_t>((channel * s.out_channels + c) * s.taps() + tap)]);
        };
        if (first == second)
        {
          for (int number = 0; number < p.cells_of(pair); ++number)
          {
            sum += weight(i, first) * p.input_sum(sums.data(), centres.data(), pair, i, number);
          }
        }
        for (int j = 0; j < p.in_channels; ++j)
        {
          for (int number = 0; number < p.cells_of(pair); ++number)
          {
            squares += weight(i, first) * weight(j, second) * p.gram(sums.data(), centres.data(), pair, i, j, number);
          }
        }
      }
    }
    const auto& exact = expected[static_cast<std::size_t>(c)];
    EXPECT_NEAR(sum / p.outputs, exact.mean, 1e-11 * (1 + std::fabs(exact.mean))) << "channel " << c;
    EXPECT_NEAR(squares - sum * sum / p.outputs, exact.m2, 1e-10 * (squares + 1)) << "channel " << c;
  }
  return true;
}

TEST(lagged_plan, moments_over_awkward_shapes)
{
  std::uint32_t seed = 1;
  int taken          = 0;
  for (const shape3& s : awkward_shapes())
  {
    taken += check(s, seed += 10) ? 1 : 0;
  }
  EXPECT_GE(taken, 15);
}

TEST(lagged_plan, moments_over_random_shapes)
{
  int taken = 0;
  for (std::uint32_t i = 0; i < 200; ++i)
  {
    random_stream random(5000 + i);
    const shape3 s = random_shape(random, 20000);
    SCOPED_TRACE(random.replay());
    taken += check(s, 10 * i) ? 1 : 0;
  }
  EXPECT_GE(taken, 30);
}

// Samples in many pieces, along every axis, and whole ones.
TEST(lagged_plan, pieces)
{
  const auto parts = [](const shape3& s) {
    const auto plan = tconv::detail::plan_lagged(s, tconv::layout::channels_first);
    return plan.problem.parts[0] * plan.problem.parts[1] * plan.problem.parts[2];
  };
  const shape3 deep = make_shape<3>({1, 2, 2, 1}, {9, 40, 70}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  EXPECT_GT(parts(deep), 8);
  EXPECT_TRUE(check(deep, 1));
  const shape3 flat = tconv::detail::canonical(make_shape<2>({1, 5, 2, 1}, {70, 90}, {4, 3}, {2, 1}, {1, 0}));
  EXPECT_GT(parts(flat), 2);
  EXPECT_TRUE(check(flat, 2));
  const shape3 row = tconv::detail::canonical(make_shape<1>({2, 3, 2, 1}, {5000}, {5}, {2}, {2}, {1}));
  EXPECT_GT(parts(row), 2);
  EXPECT_TRUE(check(row, 3));
  EXPECT_EQ(parts(make_shape<3>({2, 3, 2, 1}, {4, 5, 6}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1})), 1);
}

// k3 s2 p1: five pairs of taps and five segments along each axis; half of the cells are summed, the one of no lag in
// full.
TEST(lagged_plan, few_input_channels)
{
  const auto plan = tconv::detail::plan_lagged(
    make_shape<3>({64, 3, 16, 1}, {32, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}), tconv::layout::channels_first);
  ASSERT_TRUE(plan.possible);
  EXPECT_EQ(plan.problem.pairs(), 125);
  EXPECT_EQ(plan.problem.cells(), 125);
  int summed = 0;
  for (int cell = 0; cell < 125; ++cell)
  {
    summed += plan.problem.summed(cell) ? 1 : 0;
  }
  EXPECT_EQ(summed, 27 + 49);
  EXPECT_EQ(plan.problem.tile, 3);
  EXPECT_EQ(plan.problem.tiles, 1);
}

// Nobody may notice an input that no tap brings anywhere.
TEST(lagged_plan, inputs_that_do_not_land_are_refused)
{
  EXPECT_FALSE(tconv::detail::plan_lagged(tconv::detail::canonical(make_shape<1>({1, 2, 3, 1}, {9}, {3}, {2}, {3})),
                                          tconv::layout::channels_first)
                 .possible);
}

} // namespace
