// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The host core in small, so that the machinery of mutants runs for real without a GPU.

#include "common/random.hpp"

#include <tconv/reference/conv_transpose.hpp>
#include <tconv/taps.hpp>
#include <tconv/thread/moments.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace
{

using std::int64_t;
using tconv::conv_axis;

/// Small axes of every kind: strides and dilations with and without common factors, padding that crops whole taps.
std::vector<conv_axis> axes()
{
  std::vector<conv_axis> list;
  for (std::uint32_t i = 0; i < 200; ++i)
  {
    tconv_test::random_stream random(i);
    tconv::conv_transpose_shape<1> s;
    s.input[0]    = random.integer(1, 9);
    s.kernel[0]   = random.integer(1, 6);
    s.stride[0]   = random.integer(1, 5);
    s.dilation[0] = random.integer(1, 5);
    s.padding[0]  = random.integer(0, 8);
    if (validate(s).ok())
    {
      list.push_back(s.axis(0));
    }
  }
  return list;
}

/// Calls visit(input, tap, output) for everything that lands, by the definition.
template <class Visitor>
void for_each_landing(const conv_axis& a, Visitor visit)
{
  for (int64_t i = 0; i < a.in; ++i)
  {
    for (int64_t t = 0; t < a.kernel; ++t)
    {
      const int64_t o = i * a.stride - a.padding + t * a.dilation;
      if (o >= 0 && o < a.out)
      {
        visit(i, t, o);
      }
    }
  }
}

TEST(taps, cell_minus_shift_is_the_input)
{
  for (const conv_axis& a : axes())
  {
    for_each_landing(a, [&](int64_t i, int64_t t, int64_t o) {
      ASSERT_EQ(a.tap_phase(t), o % a.stride);
      ASSERT_EQ(o / a.stride - a.tap_shift(t), i)
        << "tap " << t << ", padding " << a.padding << ", stride " << a.stride;
    });
  }
}

TEST(taps, landing_taps_are_those_that_land)
{
  for (const conv_axis& a : axes())
  {
    std::vector<int64_t> landed(static_cast<std::size_t>(a.in), 0);
    for_each_landing(a, [&](int64_t i, int64_t t, int64_t) {
      ++landed[static_cast<std::size_t>(i)];
      ASSERT_TRUE(a.landing_taps(i).contains(t));
    });
    for (int64_t i = 0; i < a.in; ++i)
    {
      ASSERT_EQ(a.landing_taps(i).size(), landed[static_cast<std::size_t>(i)]) << "input " << i;
    }
  }
}

// One input, so the output is the kernel itself, not its mirror image.
TEST(reference, weights_are_not_flipped)
{
  tconv::conv_transpose_shape<1> s;
  s.kernel = {3};
  s.stride = {2};
  const std::vector<float> x{2.0f};
  const std::vector<float> w{1.0f, 10.0f, 100.0f};
  std::vector<double> y(3, std::nan(""));
  tconv::reference::conv_transpose(x.data(), w.data(), y.data(), s);
  EXPECT_EQ(y, (std::vector<double>{2.0, 20.0, 200.0}));
}

// E[y^2] - E[y]^2 loses everything here: 4096^2 leaves no bit of fp32 for 1/64. Merging one by one rounds the mean 128 times,
// which costs 2e-4.
TEST(moments, variance_survives_a_large_mean)
{
  tconv::moments<float> total;
  for (int i = 0; i < 128; ++i)
  {
    total.merge(tconv::moments<float>::of(4096.0f + (i % 2 == 0 ? 0.125f : -0.125f)));
  }
  EXPECT_EQ(total.count, 128.0f);
  EXPECT_NEAR(static_cast<double>(total.biased_variance()), 0.015625, 1e-3 * 0.015625);
}

} // namespace
