// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The arithmetic of one axis against the definition o = i*stride - padding + t*dilation: by brute force on small random axes,
/// by direct evaluation at sampled indices on huge ones, and by hand.

#include "../common/random.hpp"

#include <tconv/shape.hpp>
#include <tconv/taps.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace
{

using std::int64_t;
using tconv::axis_phase;
using tconv::conv_axis;
using tconv::index_range;
using tconv::tap_class;
using tconv_test::random_stream;

// Products of two 63-bit numbers, for the tests' own arithmetic.
__extension__ typedef __int128 wide; // NOLINT(modernize-use-using): no __extension__ there

std::string text(const conv_axis& a)
{
  return "axis in=" + std::to_string(a.in) + " out=" + std::to_string(a.out) + " kernel=" + std::to_string(a.kernel)
       + " stride=" + std::to_string(a.stride) + " padding=" + std::to_string(a.padding)
       + " dilation=" + std::to_string(a.dilation);
}

/// The definition.
wide target(const conv_axis& a, int64_t i, int64_t t)
{
  return static_cast<wide>(i) * a.stride - a.padding + static_cast<wide>(t) * a.dilation;
}

bool lands(const conv_axis& a, int64_t i, int64_t t)
{
  const wide o = target(a, i, t);
  return o >= 0 && o < a.out;
}

/// A legal axis with random parameters up to the given limits, as validate() sees it.
conv_axis random_axis(random_stream& random, int64_t extent, int64_t kernel, int64_t step)
{
  for (;;)
  {
    tconv::conv_transpose_shape<1> s;
    s.input          = {random.magnitude(1, extent)};
    s.kernel         = {random.magnitude(1, kernel)};
    s.stride         = {random.magnitude(1, step)};
    s.dilation       = {random.magnitude(1, step)};
    s.output_padding = {random.integer(0, 1) == 0 ? 0 : random.magnitude(1, std::max(s.stride[0], s.dilation[0])) - 1};
    // Half of the axes have no padding, a few are cropped to next to nothing.
    const wide reach = static_cast<wide>(s.input[0] - 1) * s.stride[0]
                     + static_cast<wide>(s.kernel[0] - 1) * s.dilation[0];
    const int64_t most = static_cast<int64_t>(std::min<wide>(reach / 2 + 2, int64_t{1} << 61));
    s.padding          = {random.integer(0, 1) == 0 ? 0 : random.magnitude(1, most)};
    if (random.integer(0, 9) == 0)
    {
      s.padding = {most};
    }
    if (validate(s).ok())
    {
      return s.axis(0);
    }
  }
}

// Integer helpers.

TEST(tap_integers, divisions_round_as_named)
{
  for (int64_t b = 1; b <= 7; ++b)
  {
    for (int64_t a = -40; a <= 40; ++a)
    {
      // floor is the one q with q*b <= a < (q + 1)*b, ceil the one with (q - 1)*b < a <= q*b.
      const int64_t f = tconv::floor_div(a, b);
      EXPECT_TRUE(f * b <= a && a < (f + 1) * b) << a << " / " << b;
      const int64_t c = tconv::ceil_div(a, b);
      EXPECT_TRUE((c - 1) * b < a && a <= c * b) << a << " / " << b;
      const int64_t m = tconv::floor_mod(a, b);
      EXPECT_TRUE(0 <= m && m < b && (a - m) % b == 0) << a << " mod " << b;
    }
  }
}

TEST(tap_integers, divisions_at_the_ends_of_the_range)
{
  constexpr int64_t most  = std::numeric_limits<int64_t>::max();
  constexpr int64_t least = std::numeric_limits<int64_t>::min();
  for (const int64_t a : {most, most - 1, least + 1, least + 2, least})
  {
    for (const int64_t b : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1} << 62, most})
    {
      const wide f = tconv::floor_div(a, b);
      EXPECT_TRUE(f * b <= a && a < (f + 1) * b) << "floor " << a << " / " << b;
      const wide c = tconv::ceil_div(a, b);
      EXPECT_TRUE((c - 1) * b < a && a <= c * b) << "ceil " << a << " / " << b;
      const int64_t m = tconv::floor_mod(a, b);
      EXPECT_TRUE(0 <= m && m < b && (static_cast<wide>(a) - m) % b == 0) << a << " mod " << b;
    }
  }
}

TEST(tap_integers, gcd_and_inverse)
{
  for (int64_t m = 1; m <= 40; ++m)
  {
    for (int64_t a = 1; a <= 60; ++a)
    {
      int64_t divisor = 1;
      for (int64_t d = 1; d <= std::min(a, m); ++d)
      {
        divisor = a % d == 0 && m % d == 0 ? d : divisor;
      }
      EXPECT_EQ(tconv::gcd(a, m), divisor) << a << ", " << m;
      if (divisor == 1)
      {
        const int64_t inverse = tconv::inverse_mod(a, m);
        EXPECT_TRUE(0 <= inverse && inverse < m) << a << " mod " << m;
        EXPECT_EQ(a * inverse % m, 1 % m) << a << " mod " << m;
      }
    }
  }
  EXPECT_EQ(tconv::inverse_mod(0, 1), 0);
}

TEST(tap_integers, modular_product_does_not_overflow)
{
  for (std::uint32_t number = 0; number < 2000; ++number)
  {
    random_stream random(number);
    const int64_t m = random.magnitude(1, (int64_t{1} << 62) - 1);
    // The largest residues first, then any.
    const int64_t a = number % 4 == 0 ? m - 1 : random.magnitude(1, m) % m;
    const int64_t b = number % 8 == 0 ? m - 1 : random.magnitude(1, m) % m;
    ASSERT_EQ(conv_axis::multiply_mod(a, b, m), static_cast<int64_t>(static_cast<wide>(a) * b % m))
      << a << " * " << b << " mod " << m << ", " << random.replay();
  }
  for (const int64_t m : {(int64_t{1} << 31) - 1, int64_t{1} << 31, (int64_t{1} << 31) + 1})
  {
    EXPECT_EQ(conv_axis::multiply_mod(m - 1, m - 1, m), 1 % m) << "(-1)^2, where the short cut ends: " << m;
  }
}

TEST(tap_integers, ranges)
{
  constexpr index_range some{2, 5};
  static_assert(some.size() == 3 && !some.empty());
  static_assert(!some.contains(1) && some.contains(2) && some.contains(4) && !some.contains(5));
  static_assert(index_range{}.empty() && !index_range{}.contains(0));

  constexpr auto same = [](const index_range& a, int64_t begin, int64_t end) {
    return a.begin == begin && a.end == end;
  };
  static_assert(same(tconv::clip(-3, 4, 10), 0, 4));
  static_assert(same(tconv::clip(3, 14, 10), 3, 10));
  static_assert(same(tconv::clip(-3, 14, 10), 0, 10));
  static_assert(same(tconv::clip(3, 3, 10), 0, 0), "empty ranges are {0, 0}");
  static_assert(same(tconv::clip(12, 14, 10), 0, 0));
  static_assert(same(tconv::clip(-4, -2, 10), 0, 0));
  static_assert(same(tconv::clip(0, 0, 0), 0, 0));
}

// Brute force: everything that conv_axis says, against loops over all inputs, taps and outputs.

void check_phases(const conv_axis& a)
{
  // Scatter: what reaches each output.
  std::vector<std::set<std::pair<int64_t, int64_t>>> reaching(static_cast<std::size_t>(a.out));
  std::set<int64_t> phases;
  for (int64_t o = 0; o < a.out; ++o)
  {
    phases.insert(o % a.stride);
  }
  for (int64_t i = 0; i < a.in; ++i)
  {
    for (int64_t t = 0; t < a.kernel; ++t)
    {
      if (lands(a, i, t))
      {
        const auto o = static_cast<int64_t>(target(a, i, t));
        reaching[static_cast<std::size_t>(o)].insert({i, t});
        ASSERT_EQ(a.tap_phase(t), o % a.stride) << "tap " << t;
        ASSERT_EQ(a.tap_shift(t), o / a.stride - i) << "tap " << t;
      }
    }
  }
  ASSERT_EQ(a.phases(), static_cast<int64_t>(phases.size()));
  ASSERT_EQ(a.cells(), a.out == 0 ? 0 : (a.out - 1) / a.stride + 1);

  int64_t least = a.tap_shift(0);
  int64_t most  = a.tap_shift(0);
  for (int64_t t = 0; t < a.kernel; ++t)
  {
    ASSERT_TRUE(0 <= a.tap_phase(t) && a.tap_phase(t) < a.stride) << "tap " << t;
    // Also for taps that land nowhere: phase and shift are the digits of t*dilation - padding.
    ASSERT_EQ(a.tap_shift(t) * a.stride + a.tap_phase(t), t * a.dilation - a.padding) << "tap " << t;
    least = std::min(least, a.tap_shift(t));
    most  = std::max(most, a.tap_shift(t));
  }
  ASSERT_EQ(a.min_shift(), least);
  ASSERT_EQ(a.max_shift(), most);

  for (int64_t r = 0; r < a.stride; ++r)
  {
    std::vector<int64_t> expected;
    for (int64_t t = 0; t < a.kernel; ++t)
    {
      if (((t * a.dilation - a.padding - r) % a.stride) == 0)
      {
        expected.push_back(t);
      }
    }
    const axis_phase phase = a.phase(r);
    ASSERT_EQ(phase.count, static_cast<int64_t>(expected.size())) << "phase " << r;
    for (int64_t m = 0; m < phase.count; ++m)
    {
      const int64_t t = expected[static_cast<std::size_t>(m)];
      ASSERT_EQ(phase.first_tap + m * phase.tap_step, t) << "phase " << r << ", tap number " << m;
      ASSERT_EQ(phase.first_shift + m * phase.shift_step, a.tap_shift(t)) << "phase " << r << ", tap number " << m;
    }
    // Gather through the phase must see exactly what scatter brought.
    for (int64_t o = r, q = 0; o < a.out; o += a.stride, ++q)
    {
      std::set<std::pair<int64_t, int64_t>> gathered;
      for (int64_t m = 0; m < phase.count; ++m)
      {
        const int64_t i = q - (phase.first_shift + m * phase.shift_step);
        if (i >= 0 && i < a.in)
        {
          gathered.insert({i, phase.first_tap + m * phase.tap_step});
        }
      }
      ASSERT_EQ(gathered, reaching[static_cast<std::size_t>(o)]) << "output " << o;
    }
  }
}

void expect_range(const index_range& range, const std::vector<int64_t>& indices, const std::string& what)
{
  ASSERT_EQ(range.empty(), indices.empty()) << what;
  if (indices.empty())
  {
    ASSERT_TRUE(range.begin == 0 && range.end == 0) << what << ": empty ranges are {0, 0}";
    return;
  }
  ASSERT_EQ(range.begin, indices.front()) << what;
  ASSERT_EQ(range.end, indices.back() + 1) << what;
  ASSERT_EQ(range.size(), static_cast<int64_t>(indices.size())) << what;
}

void check_landing(const conv_axis& a)
{
  for (int64_t i = 0; i < a.in; ++i)
  {
    std::vector<int64_t> taps;
    for (int64_t t = 0; t < a.kernel; ++t)
    {
      if (lands(a, i, t))
      {
        taps.push_back(t);
      }
    }
    expect_range(a.landing_taps(i), taps, "taps of input " + std::to_string(i));
  }
  for (int64_t t = 0; t < a.kernel; ++t)
  {
    std::vector<int64_t> inputs;
    for (int64_t i = 0; i < a.in; ++i)
    {
      if (lands(a, i, t))
      {
        inputs.push_back(i);
      }
    }
    expect_range(a.landing_inputs(t), inputs, "inputs of tap " + std::to_string(t));
  }
}

void check_classes(const conv_axis& a)
{
  const auto landing = [&](int64_t i) {
    std::vector<int64_t> taps;
    for (int64_t t = 0; t < a.kernel; ++t)
    {
      if (lands(a, i, t))
      {
        taps.push_back(t);
      }
    }
    return taps;
  };
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < a.in; ++i)
  {
    const auto taps = landing(i);
    if (i == 0 || taps != landing(i - 1))
    {
      starts.push_back(i);
    }
    // The run that starts here, also in the middle of a class.
    int64_t end = i + 1;
    while (end < a.in && landing(end) == taps)
    {
      ++end;
    }
    const tap_class found = a.class_from(i);
    ASSERT_EQ(found.inputs.begin, i);
    ASSERT_EQ(found.inputs.end, end) << "class from input " << i;
    expect_range(found.taps, taps, "taps of the class from input " + std::to_string(i));
  }
  ASSERT_EQ(a.class_count(), static_cast<int64_t>(starts.size()));
  ASSERT_LE(a.class_count(), 2 * a.kernel + 1);
  for (int64_t c = 0; c < a.class_count(); ++c)
  {
    const auto at         = static_cast<std::size_t>(c);
    const tap_class found = a.class_at(c);
    ASSERT_EQ(found.inputs.begin, starts[at]) << "class " << c;
    ASSERT_EQ(found.inputs.end, at + 1 < starts.size() ? starts[at + 1] : a.in) << "class " << c;
  }
  if (a.padding == 0)
  {
    ASSERT_EQ(a.class_count(), 1) << "nothing is cropped: output padding only adds";
    ASSERT_EQ(a.class_at(0).taps.size(), a.kernel);
  }
}

TEST(taps, random_small_axes_by_brute_force)
{
  int empty_outputs  = 0;
  int shared_divisor = 0;
  for (std::uint32_t number = 0; number < 20000; ++number)
  {
    random_stream random(number);
    const conv_axis a = random_axis(random, 14, 7, 9);
    SCOPED_TRACE(text(a) + ", " + random.replay());
    check_phases(a);
    check_landing(a);
    check_classes(a);
    if (HasFatalFailure())
    {
      return;
    }
    empty_outputs += a.out == 0 ? 1 : 0;
    shared_divisor += tconv::gcd(a.stride, a.dilation) > 1 ? 1 : 0;
  }
  // The sweep must contain what is easily forgotten.
  EXPECT_GT(empty_outputs, 20);
  EXPECT_GT(shared_divisor, 2000);
}

TEST(taps, every_tiny_axis_by_brute_force)
{
  for (int64_t in = 1; in <= 4; ++in)
  {
    for (int64_t kernel = 1; kernel <= 4; ++kernel)
    {
      for (int64_t stride = 1; stride <= 4; ++stride)
      {
        for (int64_t dilation = 1; dilation <= 4; ++dilation)
        {
          for (int64_t output_padding = 0; output_padding < std::max(stride, dilation); ++output_padding)
          {
            for (int64_t padding = 0;; ++padding)
            {
              const int64_t out = (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1;
              if (out < 0)
              {
                break;
              }
              const conv_axis a{in, out, kernel, stride, padding, dilation};
              SCOPED_TRACE(text(a));
              check_phases(a);
              check_landing(a);
              check_classes(a);
              if (HasFatalFailure())
              {
                return;
              }
            }
          }
        }
      }
    }
  }
}

// Huge axes: the same statements at sampled indices.

void check_samples(const conv_axis& a, random_stream& random)
{
  const auto any = [&](int64_t extent) { return random.magnitude(1, extent) - 1; };
  for (int sample = 0; sample < 20; ++sample)
  {
    // Indices near both ends as well as in the middle.
    const int64_t t     = random.integer(0, 1) == 0 ? any(a.kernel) : a.kernel - 1 - any(a.kernel);
    const int64_t i     = random.integer(0, 1) == 0 ? any(a.in) : a.in - 1 - any(a.in);
    const int64_t r     = a.tap_phase(t);
    const int64_t shift = a.tap_shift(t);
    ASSERT_TRUE(0 <= r && r < a.stride);
    ASSERT_TRUE(static_cast<wide>(shift) * a.stride + r == static_cast<wide>(t) * a.dilation - a.padding)
      << "tap " << t;

    // The phase of a tap contains that tap, at its place and with its shift; both ends of the progression are ends.
    const axis_phase phase = a.phase(r);
    ASSERT_GE(phase.count, 1) << "tap " << t;
    ASSERT_EQ((t - phase.first_tap) % phase.tap_step, 0) << "tap " << t;
    const int64_t m = (t - phase.first_tap) / phase.tap_step;
    ASSERT_TRUE(0 <= m && m < phase.count) << "tap " << t;
    ASSERT_TRUE(static_cast<wide>(m) * phase.shift_step + phase.first_shift == shift) << "tap " << t;
    ASSERT_TRUE(phase.first_tap >= 0 && static_cast<wide>(phase.first_tap) - phase.tap_step < 0)
      << "first of phase " << r;
    const wide last = phase.first_tap + static_cast<wide>(phase.count - 1) * phase.tap_step;
    ASSERT_TRUE(last < a.kernel && last + phase.tap_step >= a.kernel) << "last of phase " << r;
    // Two neighbours of the progression have the same phase, and nothing between them has: stride / gcd apart.
    ASSERT_EQ(phase.tap_step, a.stride / tconv::gcd(a.stride, a.dilation));

    // A phase without taps: its residue must be out of reach of every tap.
    const int64_t other    = any(a.stride);
    const axis_phase empty = a.phase(other);
    if (empty.count == 0)
    {
      for (int k = 0; k < 5; ++k)
      {
        ASSERT_NE(a.tap_phase(any(a.kernel)), other);
      }
    }

    // Landing intervals: their members land, their neighbours do not.
    const auto check_range = [&](const index_range& range, int64_t extent, auto is_landing) {
      if (range.empty())
      {
        for (int k = 0; k < 5; ++k)
        {
          ASSERT_FALSE(is_landing(any(extent)));
        }
        return;
      }
      ASSERT_TRUE(range.begin >= 0 && range.end <= extent);
      ASSERT_TRUE(is_landing(range.begin) && is_landing(range.end - 1));
      ASSERT_TRUE(range.begin == 0 || !is_landing(range.begin - 1));
      ASSERT_TRUE(range.end == extent || !is_landing(range.end));
    };
    check_range(a.landing_taps(i), a.kernel, [&](int64_t tap) { return lands(a, i, tap); });
    check_range(a.landing_inputs(t), a.in, [&](int64_t input) { return lands(a, input, t); });
  }
}

TEST(taps, huge_axes_at_sampled_indices)
{
  for (std::uint32_t number = 0; number < 5000; ++number)
  {
    random_stream random(number);
    const conv_axis a = random_axis(random, 1000000000000, 1000000000, 1000000000);
    SCOPED_TRACE(text(a) + ", " + random.replay());
    check_samples(a, random);
    if (HasFatalFailure())
    {
      return;
    }
  }
}

TEST(taps, classes_of_huge_axes_partition_the_input)
{
  int tested = 0;
  for (std::uint32_t number = 0; number < 2000; ++number)
  {
    random_stream random(number);
    // Few taps, so that few classes are expected; everything else is huge. Dilations that step over the whole output for many
    // inputs are left to the test below.
    const conv_axis a = random_axis(random, 1000000000000, 6, 1000000000);
    if (a.dilation > a.out && a.in > 100000)
    {
      continue;
    }
    ++tested;
    SCOPED_TRACE(text(a) + ", " + random.replay());
    int64_t begin = 0;
    int64_t count = 0;
    while (begin < a.in)
    {
      const tap_class c = a.class_from(begin);
      ASSERT_EQ(c.inputs.begin, begin);
      ASSERT_TRUE(c.inputs.end > begin && c.inputs.end <= a.in);
      for (int64_t t = 0; t < a.kernel; ++t)
      {
        ASSERT_EQ(lands(a, begin, t), c.taps.contains(t)) << "input " << begin << ", tap " << t;
        ASSERT_EQ(lands(a, c.inputs.end - 1, t), c.taps.contains(t)) << "input " << c.inputs.end - 1 << ", tap " << t;
      }
      begin = c.inputs.end;
      ++count;
      ASSERT_LE(count, 2 * a.kernel + 1);
    }
    ASSERT_EQ(a.class_count(), count);
  }
  EXPECT_GT(tested, 1500);
}

TEST(taps, a_dilation_wider_than_the_output_steps_over_it_at_once)
{
  // The first tap falls short of the output and the second passes it, for every input: one class without taps. There are a
  // million million inputs, so the class must come from arithmetic and not from a walk over them; the smaller extents are
  // there to fail in seconds where it does not.
  for (const int64_t in : {int64_t{1000}, int64_t{1000000}, int64_t{1000000000}, int64_t{1000000000000}})
  {
    tconv::conv_transpose_shape<1> s;
    s.input    = {in};
    s.kernel   = {2};
    s.dilation = {in + 1000000};
    s.padding  = {(in + s.dilation[0]) / 2 - 5};
    ASSERT_TRUE(validate(s).ok());
    const conv_axis a = s.axis(0);
    ASSERT_EQ(a.out, 10);
    SCOPED_TRACE(text(a));

    const auto start                            = std::chrono::steady_clock::now();
    const tap_class c                           = a.class_from(0);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(c.inputs.begin, 0);
    EXPECT_EQ(c.inputs.end, in);
    EXPECT_TRUE(c.taps.empty());
    // A few divisions take nanoseconds; a walk over 1e9 inputs takes several seconds.
    ASSERT_LT(elapsed.count(), 1.0) << "walks over the inputs";
  }
}

TEST(taps, strides_as_large_as_validation_allows)
{
  // One input, so that a stride of any size is legal, and an output padding that makes phases beyond the first. Tap t lands on
  // phase 3t only.
  constexpr int64_t two_to_60 = int64_t{1} << 60;
  for (const int64_t stride : {two_to_60 - 5, two_to_60 - 1, two_to_60})
  {
    tconv::conv_transpose_shape<1> s;
    s.stride         = {stride};
    s.kernel         = {2};
    s.dilation       = {3};
    s.output_padding = {1000};
    ASSERT_TRUE(validate(s).ok());
    const conv_axis a = s.axis(0);
    SCOPED_TRACE(text(a));
    for (int64_t r = 0; r < a.phases(); ++r)
    {
      ASSERT_EQ(a.phase(r).count, r == 0 || r == 3 ? 1 : 0) << "phase " << r;
    }
    ASSERT_EQ(a.phase(3).first_tap, 1);
    ASSERT_EQ(a.phase(3).first_shift, 0);
    expect_range(a.landing_taps(0), {0, 1}, "taps of the only input");
    ASSERT_EQ(a.class_count(), 1);
  }
}

// By hand.

TEST(taps, kernel_3_stride_2_padding_1_doubles_the_extent)
{
  // o = 2i - 1 + t: even outputs take tap 1 of their own cell, odd ones tap 0 of the next cell and tap 2 of their own.
  constexpr conv_axis a{16, 32, 3, 2, 1, 1};
  static_assert(a.cells() == 16 && a.phases() == 2);
  static_assert(a.tap_phase(0) == 1 && a.tap_phase(1) == 0 && a.tap_phase(2) == 1);
  static_assert(a.tap_shift(0) == -1 && a.tap_shift(1) == 0 && a.tap_shift(2) == 0);
  static_assert(a.min_shift() == -1 && a.max_shift() == 0);
  static_assert(a.phase(0).first_tap == 1 && a.phase(0).count == 1 && a.phase(0).first_shift == 0);
  static_assert(a.phase(1).first_tap == 0 && a.phase(1).count == 2 && a.phase(1).tap_step == 2);
  static_assert(a.phase(1).first_shift == -1 && a.phase(1).shift_step == 1);
  // Only the first input loses a tap.
  static_assert(a.class_count() == 2);
  static_assert(a.class_at(0).inputs.end == 1 && a.class_at(0).taps.begin == 1 && a.class_at(0).taps.end == 3);
  static_assert(a.class_at(1).inputs.begin == 1 && a.class_at(1).inputs.end == 16 && a.class_at(1).taps.size() == 3);
  // 47 of 48 pairs land, as the operation count of the headline problem says.
  static_assert(a.landing_inputs(0).size() == 15 && a.landing_inputs(1).size() == 16
                && a.landing_inputs(2).size() == 16);
}

TEST(taps, stride_1_without_padding_is_one_phase_and_one_class)
{
  constexpr conv_axis a{32, 36, 5, 1, 0, 1};
  static_assert(a.phases() == 1 && a.cells() == 36);
  static_assert(a.phase(0).first_tap == 0 && a.phase(0).count == 5 && a.phase(0).tap_step == 1);
  static_assert(a.phase(0).first_shift == 0 && a.phase(0).shift_step == 1);
  static_assert(a.class_count() == 1 && a.class_at(0).inputs.size() == 32 && a.class_at(0).taps.size() == 5);
}

TEST(taps, a_dilation_that_shares_a_divisor_with_the_stride_leaves_phases_empty)
{
  // stride 4, dilation 6: t*6 mod 4 is 0 or 2, so phases 1 and 3 receive nothing.
  constexpr conv_axis a{5, 4 * 4 + 6 * 4 + 1, 5, 4, 0, 6};
  static_assert(a.phase(1).count == 0 && a.phase(3).count == 0);
  static_assert(a.phase(0).first_tap == 0 && a.phase(0).tap_step == 2 && a.phase(0).count == 3);
  static_assert(a.phase(2).first_tap == 1 && a.phase(2).tap_step == 2 && a.phase(2).count == 2);
  // Neighbouring taps of a phase are 12 outputs, so 3 cells, apart.
  static_assert(a.phase(0).shift_step == 3 && a.phase(2).first_shift == 1);
}

TEST(taps, stride_wider_than_the_kernel_leaves_gaps)
{
  // x = [1, 2], k1 s3 op2: outputs 0 and 3 are reached, the others hold the bias alone (case A02).
  constexpr conv_axis a{2, 6, 1, 3, 0, 1};
  static_assert(a.phase(0).count == 1 && a.phase(1).count == 0 && a.phase(2).count == 0);
  static_assert(a.class_count() == 1);
}

TEST(taps, cropping_both_ends_makes_a_class_for_each)
{
  // in 5, k3 s1 p1: out 5. Input 0 loses tap 0, input 4 loses tap 2.
  constexpr conv_axis a{5, 5, 3, 1, 1, 1};
  static_assert(a.class_count() == 3);
  static_assert(a.class_at(0).inputs.end == 1 && a.class_at(0).taps.begin == 1 && a.class_at(0).taps.end == 3);
  static_assert(a.class_at(1).inputs.end == 4 && a.class_at(1).taps.begin == 0 && a.class_at(1).taps.end == 3);
  static_assert(a.class_at(2).inputs.end == 5 && a.class_at(2).taps.begin == 0 && a.class_at(2).taps.end == 2);
}

TEST(taps, inputs_that_are_cropped_away_form_classes_without_taps)
{
  // in 7, k1 s1 p2: outputs 0..2 come from inputs 2..4.
  constexpr conv_axis a{7, 3, 1, 1, 2, 1};
  static_assert(a.class_count() == 3);
  static_assert(a.class_at(0).inputs.end == 2 && a.class_at(0).taps.empty());
  static_assert(a.class_at(1).inputs.end == 5 && a.class_at(1).taps.size() == 1);
  static_assert(a.class_at(2).inputs.end == 7 && a.class_at(2).taps.empty());
}

TEST(taps, a_class_without_taps_can_lie_between_two_that_have_some)
{
  // in 6, k2 d5 p5: out 1. Input 0 lands by tap 1, input 5 by tap 0, those between by none.
  constexpr conv_axis a{6, 1, 2, 1, 5, 5};
  static_assert(a.class_count() == 3);
  static_assert(a.class_at(0).inputs.end == 1 && a.class_at(0).taps.begin == 1 && a.class_at(0).taps.end == 2);
  static_assert(a.class_at(1).inputs.end == 5 && a.class_at(1).taps.empty());
  static_assert(a.class_at(2).inputs.end == 6 && a.class_at(2).taps.begin == 0 && a.class_at(2).taps.end == 1);
}

TEST(taps, an_empty_output_has_no_phases_and_no_landing_taps)
{
  // pytorch #88647 per axis: in 2, k2 s2 p2.
  constexpr conv_axis a{2, 0, 2, 2, 2, 1};
  static_assert(a.cells() == 0 && a.phases() == 0);
  static_assert(a.landing_taps(0).empty() && a.landing_taps(1).empty() && a.landing_inputs(0).empty());
  static_assert(a.class_count() == 1 && a.class_at(0).taps.empty() && a.class_at(0).inputs.size() == 2);
}

} // namespace
