// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// Shapes: the output extent, every rule of validation with its message, and the status that carries it.

#include <tconv/shape.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

namespace
{

using std::int64_t;
using tconv::conv_transpose_shape;

constexpr int64_t max64 = std::numeric_limits<int64_t>::max();
constexpr int64_t min64 = std::numeric_limits<int64_t>::min();

/// True if \p s is an invalid_argument whose message contains each of \p parts; says so otherwise.
template <class... Parts>
testing::AssertionResult names(const tconv::status& s, const Parts&... parts)
{
  if (s.ok() || s.code() != tconv::status_code::invalid_argument)
  {
    return testing::AssertionFailure() << "expected invalid_argument, got code " << static_cast<int>(s.code()) << " \""
                                       << s.message() << '"';
  }
  if (s.cuda_error() != 0)
  {
    return testing::AssertionFailure() << "a CUDA error (" << s.cuda_error() << ") without CUDA";
  }
  for (const std::string& part : {std::string(parts)...})
  {
    if (std::string(s.message()).find(part) == std::string::npos)
    {
      return testing::AssertionFailure() << "the message does not name \"" << part << "\": " << s.message();
    }
  }
  return testing::AssertionSuccess();
}

/// The name of an axis in messages: the last one is w whatever the rank.
std::string axis_name(int rank, int axis)
{
  return std::string(1, "dhw"[3 - rank + axis]);
}

testing::AssertionResult accepted(const tconv::status& s)
{
  if (!s.ok())
  {
    return testing::AssertionFailure() << "rejected: " << s.message();
  }
  return testing::AssertionSuccess();
}

// The output extent. Expected values worked out by hand or quoted from the reports in the comments.

TEST(shape_output, follows_the_formula_by_hand)
{
  conv_transpose_shape<1> s;
  EXPECT_EQ(s.output(0), 1) << "all defaults: one element in, one out";

  s.input = {5};
  EXPECT_EQ(s.output(0), 5) << "a 1-tap kernel keeps the extent";

  s.kernel = {3};
  EXPECT_EQ(s.output(0), 7) << "5 + 3 - 1";

  s.stride = {2};
  EXPECT_EQ(s.output(0), 11) << "(5 - 1)*2 + 3";

  s.padding = {1};
  EXPECT_EQ(s.output(0), 9) << "padding crops both ends";

  s.output_padding = {1};
  EXPECT_EQ(s.output(0), 10) << "output padding adds at one end: doubles the extent";

  s.dilation = {4};
  EXPECT_EQ(s.output(0), 16) << "4*2 - 2 + 4*2 + 1 + 1";
}

TEST(shape_output, of_the_headline_problems)
{
  conv_transpose_shape<3> p1;
  p1.batch          = 16;
  p1.in_channels    = 32;
  p1.out_channels   = 64;
  p1.input          = {16, 32, 32};
  p1.kernel         = {3, 3, 3};
  p1.stride         = {2, 2, 2};
  p1.padding        = {1, 1, 1};
  p1.output_padding = {1, 1, 1};
  EXPECT_TRUE(accepted(validate(p1)));
  EXPECT_EQ(p1.output(), (std::array<int64_t, 3>{32, 64, 64}));
  EXPECT_EQ(p1.input_positions(), 16384);
  EXPECT_EQ(p1.output_positions(), 131072);
  EXPECT_EQ(p1.taps(), 27);
  EXPECT_EQ(p1.input_elements(), 8388608);
  EXPECT_EQ(p1.weight_elements(), 55296);
  EXPECT_EQ(p1.output_elements(), 134217728);

  conv_transpose_shape<3> p2;
  p2.batch        = 16;
  p2.in_channels  = 64;
  p2.out_channels = 128;
  p2.input        = {16, 32, 32};
  p2.kernel       = {5, 5, 5};
  EXPECT_TRUE(accepted(validate(p2)));
  EXPECT_EQ(p2.output(), (std::array<int64_t, 3>{20, 36, 36}));
}

TEST(shape_output, onnxruntime_2518_is_97_by_50)
{
  conv_transpose_shape<2> s;
  s.input    = {50, 50};
  s.kernel   = {3, 5};
  s.stride   = {2, 1};
  s.padding  = {4, 2};
  s.dilation = {3, 1};
  EXPECT_TRUE(accepted(validate(s)));
  EXPECT_EQ(s.output(), (std::array<int64_t, 2>{97, 50})) << "95 was returned there";
}

TEST(shape_output, does_not_mix_up_the_axes)
{
  // Two shapes of the collected cases (A06) in which every parameter differs between the axes.
  conv_transpose_shape<3> s;
  s.input          = {2, 3, 4};
  s.kernel         = {1, 2, 3};
  s.stride         = {3, 2, 1};
  s.padding        = {0, 0, 1};
  s.output_padding = {1, 0, 0};
  s.dilation       = {1, 2, 1};
  EXPECT_TRUE(accepted(validate(s)));
  EXPECT_EQ(s.output(), (std::array<int64_t, 3>{5, 7, 4}));
  EXPECT_EQ(s.output_elements(), 140);

  s.batch          = 2;
  s.in_channels    = 3;
  s.out_channels   = 2;
  s.input          = {3, 4, 5};
  s.kernel         = {2, 3, 1};
  s.stride         = {1, 2, 3};
  s.padding        = {0, 1, 0};
  s.output_padding = {0, 1, 2};
  s.dilation       = {3, 1, 2};
  EXPECT_TRUE(accepted(validate(s)));
  EXPECT_EQ(s.output(), (std::array<int64_t, 3>{6, 8, 15}));
}

TEST(shape_output, counts_past_32_bits)
{
  // pytorch #32866 and a variant whose output crosses 2^32 elements.
  conv_transpose_shape<3> s;
  s.in_channels    = 64;
  s.out_channels   = 128;
  s.input          = {8, 128, 172};
  s.kernel         = {5, 5, 5};
  s.stride         = {2, 2, 2};
  s.padding        = {2, 2, 2};
  s.output_padding = {1, 1, 1};
  EXPECT_TRUE(accepted(validate(s)));
  EXPECT_EQ(s.output(), (std::array<int64_t, 3>{16, 256, 344}));
  EXPECT_EQ(s.output_elements(), 180355072);

  conv_transpose_shape<3> big;
  big.out_channels = 8;
  big.input        = {257, 512, 512};
  big.kernel       = {2, 2, 2};
  big.stride       = {2, 2, 2};
  EXPECT_TRUE(accepted(validate(big, 2)));
  EXPECT_EQ(big.output(), (std::array<int64_t, 3>{514, 1024, 1024}));
  EXPECT_EQ(big.output_elements(), 4311744512);
}

TEST(shape_output, weights_are_counted_per_group)
{
  conv_transpose_shape<2> s;
  s.in_channels  = 6;
  s.out_channels = 12;
  s.groups       = 3;
  s.kernel       = {3, 2};
  EXPECT_EQ(s.weight_elements(), 6 * 4 * 3 * 2);
}

TEST(shape_output, is_constexpr)
{
  constexpr conv_transpose_shape<2> s{};
  static_assert(s.output(0) == 1 && s.output_elements() == 1 && s.taps() == 1);
  static_assert(conv_transpose_shape<3>::rank == 3);
}

// The rules, for every rank and axis. Each legal neighbour is checked too, so that no rule is stricter than stated.

template <class Shape>
class shape_rules : public testing::Test
{
protected:
  static constexpr int rank = Shape::rank;

  /// A legal shape whose fields all differ from their defaults.
  static Shape legal()
  {
    Shape s;
    s.batch        = 2;
    s.in_channels  = 6;
    s.out_channels = 12;
    s.groups       = 3;
    for (std::size_t a = 0; a < static_cast<std::size_t>(rank); ++a)
    {
      const auto i        = static_cast<int64_t>(a);
      s.input[a]          = 4 + i;
      s.kernel[a]         = 3;
      s.stride[a]         = 2 + i;
      s.padding[a]        = 1;
      s.output_padding[a] = 1;
      s.dilation[a]       = 2;
    }
    return s;
  }
};

using all_ranks = testing::Types<conv_transpose_shape<1>, conv_transpose_shape<2>, conv_transpose_shape<3>>;
TYPED_TEST_SUITE(shape_rules, all_ranks);

TYPED_TEST(shape_rules, the_starting_point_is_legal)
{
  EXPECT_TRUE(accepted(validate(this->legal())));
  EXPECT_TRUE(accepted(validate(TypeParam{})));
}

TYPED_TEST(shape_rules, batch_may_be_zero_but_not_negative)
{
  TypeParam s = this->legal();
  s.batch     = 0;
  EXPECT_TRUE(accepted(validate(s)));
  EXPECT_EQ(s.output_elements(), 0);
  for (const int64_t bad : {int64_t{-1}, min64})
  {
    s.batch = bad;
    EXPECT_TRUE(names(validate(s), "batch", std::to_string(bad), ">= 0"));
  }
}

TYPED_TEST(shape_rules, channels_and_groups_are_positive)
{
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, min64})
  {
    TypeParam s   = this->legal();
    s.in_channels = bad;
    EXPECT_TRUE(names(validate(s), "in_channels", std::to_string(bad), ">= 1"));
    s              = this->legal();
    s.out_channels = bad;
    EXPECT_TRUE(names(validate(s), "out_channels", std::to_string(bad), ">= 1"));
    s        = this->legal();
    s.groups = bad;
    EXPECT_TRUE(names(validate(s), "groups", std::to_string(bad), ">= 1"));
  }
}

TYPED_TEST(shape_rules, channels_are_divisible_by_groups)
{
  TypeParam s   = this->legal();
  s.in_channels = 7;
  EXPECT_TRUE(names(validate(s), "in_channels", "7", "divisible by groups", "3"));
  s              = this->legal();
  s.out_channels = 13;
  EXPECT_TRUE(names(validate(s), "out_channels", "13", "divisible by groups", "3"));
  s              = this->legal();
  s.in_channels  = 3;
  s.out_channels = 3;
  EXPECT_TRUE(accepted(validate(s))) << "depthwise";
  s.in_channels = 2;
  EXPECT_TRUE(names(validate(s), "in_channels", "divisible by groups")) << "fewer channels than groups";
}

TYPED_TEST(shape_rules, every_axis_has_its_lower_limits)
{
  struct field
  {
    const char* name;
    typename TypeParam::extents TypeParam::*member;
    int64_t least;
  };
  const field fields[] = {{"input", &TypeParam::input, 1},
                          {"kernel", &TypeParam::kernel, 1},
                          {"stride", &TypeParam::stride, 1},
                          {"dilation", &TypeParam::dilation, 1},
                          {"padding", &TypeParam::padding, 0},
                          {"output_padding", &TypeParam::output_padding, 0}};
  for (const field& f : fields)
  {
    for (int axis = 0; axis < TypeParam::rank; ++axis)
    {
      const auto a = static_cast<std::size_t>(axis);
      for (const int64_t bad : {f.least - 1, int64_t{-1}, min64})
      {
        TypeParam s      = this->legal();
        (s.*f.member)[a] = bad;
        EXPECT_TRUE(names(validate(s),
                          std::string(".") + f.name + "[" + axis_name(TypeParam::rank, axis) + "]",
                          std::to_string(bad),
                          ">= " + std::to_string(f.least)));
      }
      // A padding of 0 alone is legal; for the others the whole axis is set so that the output extent stays positive.
      TypeParam s         = this->legal();
      s.output_padding[a] = 0;
      s.padding[a]        = 0;
      (s.*f.member)[a]    = f.least;
      EXPECT_TRUE(accepted(validate(s))) << f.name << " at its limit";
    }
  }
}

TYPED_TEST(shape_rules, output_padding_is_below_the_larger_of_stride_and_dilation)
{
  struct row
  {
    int64_t stride, dilation, output_padding;
    bool legal;
  };
  // Case A03.
  const row table[] = {{1, 1, 0, true},
                       {1, 1, 1, false},
                       {2, 1, 1, true},
                       {2, 1, 2, false},
                       {1, 3, 2, true},
                       {1, 3, 3, false},
                       {2, 3, 2, true},
                       {2, 2, 2, false}};
  for (int axis = 0; axis < TypeParam::rank; ++axis)
  {
    for (const row& r : table)
    {
      TypeParam s;
      const auto a        = static_cast<std::size_t>(axis);
      s.input[a]          = 5;
      s.kernel[a]         = 3;
      s.stride[a]         = r.stride;
      s.dilation[a]       = r.dilation;
      s.output_padding[a] = r.output_padding;
      if (r.legal)
      {
        EXPECT_TRUE(accepted(validate(s)));
      }
      else
      {
        EXPECT_TRUE(names(validate(s),
                          "output_padding[" + axis_name(TypeParam::rank, axis) + "]",
                          std::to_string(r.output_padding),
                          "< max(stride, dilation)",
                          std::to_string(r.stride > r.dilation ? r.stride : r.dilation)));
      }
    }
  }
}

TYPED_TEST(shape_rules, an_empty_output_is_legal_and_a_negative_one_is_not)
{
  for (int axis = 0; axis < TypeParam::rank; ++axis)
  {
    TypeParam s;
    const auto a = static_cast<std::size_t>(axis);
    s.input[a]   = 2;
    s.kernel[a]  = 2;
    s.stride[a]  = 2;
    s.padding[a] = 2; // pytorch #88647: 2 -> 0
    EXPECT_TRUE(accepted(validate(s)));
    EXPECT_EQ(s.output(axis), 0);
    EXPECT_EQ(s.output_elements(), 0);

    s.padding[a] = 3;
    EXPECT_TRUE(names(validate(s), "output extent", "axis " + axis_name(TypeParam::rank, axis), "-2", ">= 0"));
  }
}

TYPED_TEST(shape_rules, one_bad_axis_is_enough)
{
  TypeParam s            = this->legal();
  constexpr auto last    = static_cast<std::size_t>(TypeParam::rank - 1);
  s.output_padding[last] = 100;
  EXPECT_TRUE(names(validate(s), "output_padding[w]"));
}

// Sizes. 63 bits are 2^63 - 1; the fp32 default makes that 2^61 - 1 elements.

TYPED_TEST(shape_rules, the_bytes_of_x_fit_63_bits)
{
  TypeParam s;
  s.batch     = int64_t{1} << 31;
  s.input[0]  = (int64_t{1} << 30) - 1;
  s.stride[0] = 1;
  // Keep y small: crop everything but one output.
  s.padding[0] = (s.input[0] - 1) / 2;
  EXPECT_TRUE(accepted(validate(s)));
  s.input[0] = int64_t{1} << 30;
  EXPECT_TRUE(names(validate(s), "bytes of x", "63 bits"));
  EXPECT_TRUE(accepted(validate(s, 2))) << "half the bytes in fp16";
  s.input[0]   = int64_t{1} << 31;
  s.padding[0] = s.input[0] / 2 - 1;
  EXPECT_TRUE(names(validate(s, 2), "bytes of x", "63 bits"));
}

TYPED_TEST(shape_rules, the_bytes_of_w_fit_63_bits)
{
  TypeParam s;
  s.in_channels  = int64_t{1} << 31;
  s.out_channels = (int64_t{1} << 30) - 1;
  s.padding[0]   = 0;
  EXPECT_TRUE(accepted(validate(s)));
  s.out_channels = int64_t{1} << 30;
  EXPECT_TRUE(names(validate(s), "bytes of w", "63 bits"));
  s.groups = 2;
  EXPECT_TRUE(accepted(validate(s))) << "groups halve the weights";
  s.groups       = 1;
  s.out_channels = int64_t{1} << 27;
  s.kernel[0]    = 8;
  EXPECT_TRUE(names(validate(s), "bytes of w", "63 bits")) << "the kernel counts";
}

TYPED_TEST(shape_rules, the_bytes_of_y_fit_63_bits)
{
  TypeParam s;
  s.batch     = int64_t{1} << 20;
  s.input[0]  = 2;
  s.stride[0] = (int64_t{1} << 41) - 2; // out = 2^41 - 1
  EXPECT_TRUE(accepted(validate(s)));
  s.stride[0] += 1;
  EXPECT_TRUE(names(validate(s), "bytes of y", "63 bits"));
  s.stride[0]    = int64_t{1} << 20;
  s.out_channels = int64_t{1} << 22;
  EXPECT_TRUE(names(validate(s), "bytes of y", "63 bits")) << "channels count";
}

TYPED_TEST(shape_rules, the_last_legal_byte)
{
  // 2^63 - 1 = (7 * 7 * 73 * 127 * 337) * (92737 * 649657), so a tensor of bytes can fill the range exactly.
  TypeParam s;
  s.batch    = 60247241209;
  s.input[0] = 153092023;
  EXPECT_TRUE(accepted(validate(s, 1)));
  EXPECT_EQ(s.input_elements(), max64);
  s.input[0] += 1;
  EXPECT_TRUE(names(validate(s, 1), "bytes of x", "63 bits"));
}

TYPED_TEST(shape_rules, an_extent_that_overflows_names_its_axis)
{
  for (int axis = 0; axis < TypeParam::rank; ++axis)
  {
    const auto a                = static_cast<std::size_t>(axis);
    const std::string name      = "axis " + axis_name(TypeParam::rank, axis);
    const int64_t three_billion = 3000000000;

    TypeParam s;
    s.input[a]  = three_billion + 1;
    s.stride[a] = 4 * three_billion; // 3.6e19 > 2^63
    EXPECT_TRUE(names(validate(s), name, "63 bits"));

    s             = TypeParam{};
    s.kernel[a]   = three_billion + 1;
    s.dilation[a] = 4 * three_billion;
    EXPECT_TRUE(names(validate(s), name, "63 bits"));

    // Each product fits, the sum does not.
    constexpr int64_t limit = int64_t{1} << 60;
    s                       = TypeParam{};
    s.input[a]              = 5;
    s.stride[a]             = limit;
    s.kernel[a]             = 5;
    s.dilation[a]           = limit;
    EXPECT_TRUE(names(validate(s), name, "63 bits"));

    // A single field beyond its limit.
    s            = TypeParam{};
    s.padding[a] = max64;
    EXPECT_TRUE(names(validate(s), "shape.padding", "must be <= 2^60"));
  }
}

TYPED_TEST(shape_rules, batch_zero_does_not_hide_an_overflow)
{
  TypeParam s;
  s.batch       = 0;
  s.in_channels = int64_t{1} << 61;
  EXPECT_TRUE(names(validate(s), "63 bits"));
}

// A stride that is never taken (one input) or a dilation that is never taken (one tap) is legal up to the documented limit of
// every field of an axis, 2^60.
TYPED_TEST(shape_rules, a_step_that_is_never_taken_is_legal_up_to_the_limit)
{
  constexpr int64_t limit = int64_t{1} << 60;
  for (std::size_t a = 0; a < static_cast<std::size_t>(TypeParam::rank); ++a)
  {
    TypeParam s;
    s.stride[a] = limit;
    EXPECT_TRUE(accepted(validate(s))) << "one input";
    s             = TypeParam{};
    s.dilation[a] = limit;
    EXPECT_TRUE(accepted(validate(s))) << "one tap";
    s.stride[a] = limit;
    EXPECT_TRUE(accepted(validate(s))) << "one input and one tap";
    EXPECT_EQ(s.output_elements(), 1);
    s.stride[a] = limit + 1;
    EXPECT_TRUE(names(validate(s), "shape.stride", "must be <= 2^60"));
  }
}

TYPED_TEST(shape_rules, no_message_is_cut)
{
  // The longest messages: 19 digits and more everywhere. A cut message would lose its last words.
  constexpr int64_t limit = int64_t{1} << 60;
  for (int axis = 0; axis < TypeParam::rank; ++axis)
  {
    const auto a = static_cast<std::size_t>(axis);
    TypeParam s;
    s.padding[a] = limit;
    EXPECT_TRUE(names(validate(s), "too large)", std::to_string(limit)));
    s                   = TypeParam{};
    s.output_padding[a] = limit;
    s.stride[a]         = limit;
    EXPECT_TRUE(names(validate(s), "max(stride, dilation) = " + std::to_string(limit)));
    s                   = TypeParam{};
    s.output_padding[a] = min64;
    EXPECT_TRUE(names(validate(s), "must be >= 0"));
  }
  TypeParam s;
  s.in_channels = max64;
  s.groups      = max64 - 1;
  EXPECT_TRUE(names(validate(s), "groups = " + std::to_string(max64 - 1)));
}

// Status.

static_assert(std::is_trivially_copyable_v<tconv::status>, "a status is handed around by value, without allocation");
static_assert(std::is_nothrow_default_constructible_v<tconv::status>);

TEST(status, default_is_success)
{
  const tconv::status s;
  EXPECT_TRUE(s.ok());
  EXPECT_TRUE(static_cast<bool>(s));
  EXPECT_EQ(s.code(), tconv::status_code::success);
  EXPECT_EQ(s.cuda_error(), 0);
  EXPECT_STREQ(s.message(), "");
}

TEST(status, carries_a_formatted_message)
{
  const tconv::status s = tconv::status::error(tconv::status_code::workspace_too_small, "%d of %s", 3, "five");
  EXPECT_FALSE(s.ok());
  EXPECT_FALSE(static_cast<bool>(s));
  EXPECT_EQ(s.code(), tconv::status_code::workspace_too_small);
  EXPECT_EQ(s.cuda_error(), 0);
  EXPECT_STREQ(s.message(), "3 of five");
}

TEST(status, carries_a_cuda_error)
{
  const tconv::status s = tconv::status::cuda(700, "cudaErrorIllegalAddress", "gather kernel");
  EXPECT_FALSE(s.ok());
  EXPECT_EQ(s.code(), tconv::status_code::cuda_error);
  EXPECT_EQ(s.cuda_error(), 700);
  for (const char* part : {"gather kernel", "cudaErrorIllegalAddress", "700"})
  {
    EXPECT_NE(std::strstr(s.message(), part), nullptr) << s.message();
  }
}

TEST(status, cuts_a_message_that_is_too_long)
{
  const std::string text(5000, 'x');
  const tconv::status s  = tconv::status::error(tconv::status_code::invalid_argument, "%s", text.c_str());
  const std::size_t kept = std::strlen(s.message());
  EXPECT_LT(kept, sizeof(tconv::status)) << "terminated inside the object";
  EXPECT_GE(kept, 200U) << "room for a sentence";
  EXPECT_EQ(std::string(s.message()), text.substr(0, kept)) << "the beginning of the text and nothing else";

  // One character less than what was kept, and exactly that, must come through whole.
  for (const std::size_t size : {kept - 1, kept})
  {
    const std::string fits = std::string(size - 1, 'y') + "!";
    EXPECT_EQ(
      std::string(tconv::status::error(tconv::status_code::invalid_argument, "%s", fits.c_str()).message()), fits);
  }
}

TEST(status, a_shorter_message_leaves_nothing_of_a_longer_one)
{
  tconv::status s = tconv::status::error(tconv::status_code::invalid_argument, "%s", std::string(150, 'x').c_str());
  s               = tconv::status::error(tconv::status_code::not_supported, "short");
  EXPECT_STREQ(s.message(), "short");
  s = tconv::status{};
  EXPECT_TRUE(s.ok());
  EXPECT_STREQ(s.message(), "");
}

TEST(status, copies_are_independent)
{
  tconv::status a       = tconv::status::error(tconv::status_code::not_supported, "a");
  const tconv::status b = a;
  a                     = tconv::status::error(tconv::status_code::invalid_argument, "c");
  EXPECT_STREQ(b.message(), "a");
  EXPECT_EQ(b.code(), tconv::status_code::not_supported);
}

} // namespace
