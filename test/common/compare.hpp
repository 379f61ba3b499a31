// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Compares an fp32 output with a double reference, element by element. Independent of tconv; needs GoogleTest.
///
///     EXPECT_TRUE(compare_convolution(y, {value, magnitude, terms, bias}, {n, c, d, h, w}));
///     EXPECT_TRUE(compare_values(y, expected, {n, c, d, h, w}, [](auto, double) { return tolerance{1e-7, 1e-6}; }));
///
/// One element outside its bound fails the comparison; so does a NaN or an infinity that the reference does not have at that
/// place, or the reverse, and so does comparing nothing at all. A failure names the first bad element, the worst one and how
/// many there are.

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>

namespace tconv_test
{

/// Order of the elements of an output in memory. References are always channels first.
enum class layout
{
  channels_first, ///< N, C, D, H, W
  channels_last   ///< N, D, H, W, C
};

/// Extents of an output; ranks 1 and 2 have leading spatial extents of 1.
struct output_extents
{
  std::int64_t n = 1;
  std::int64_t c = 1;
  std::int64_t d = 1;
  std::int64_t h = 1;
  std::int64_t w = 1;

  constexpr std::int64_t elements() const { return n * c * d * h * w; }
};

/// One element of an output.
struct element_index
{
  std::int64_t n = 0;
  std::int64_t c = 0;
  std::int64_t d = 0;
  std::int64_t h = 0;
  std::int64_t w = 0;

  friend bool operator==(const element_index& a, const element_index& b)
  {
    return a.n == b.n && a.c == b.c && a.d == b.d && a.h == b.h && a.w == b.w;
  }
  friend std::ostream& operator<<(std::ostream& out, const element_index& i)
  {
    return out << "(n=" << i.n << ", c=" << i.c << ", d=" << i.d << ", h=" << i.h << ", w=" << i.w << ')';
  }
};

/// The type that an output was rounded to; outputs of 16 bits are widened to float before they are compared.
struct output_format
{
  int significand_bits; ///< with the implicit one
  int least_exponent;   ///< the smallest subnormal is 2^least_exponent
};
inline constexpr output_format float32{24, -149};
inline constexpr output_format float16{11, -24};
inline constexpr output_format bfloat16{8, -133};

/// Distance of neighbouring numbers of \p format at the finite value \p v; at a power of two, that of the larger side.
inline double ulp(double v, output_format format = float32)
{
  int exponent = 0;
  std::frexp(v, &exponent);
  const int last = exponent - format.significand_bits;
  return std::ldexp(1.0, v == 0.0 || last < format.least_exponent ? format.least_exponent : last);
}

/// How to compare.
struct comparison_options
{
  layout order         = layout::channels_first; ///< of the output that is compared
  output_format format = float32;                ///< of the output that is compared
  /// Added to the bound of compare_convolution, times the magnitude: 2^-10 for math::tf32.
  double extra = 0.0;
  /// Where the reference has an infinity, any infinity or NaN will do (split and collapsed paths). A NaN must stay a NaN.
  bool infinity_may_change = false;
};

/// What came of a comparison.
struct comparison
{
  std::int64_t count = 0;   ///< elements that were compared
  std::int64_t bad   = 0;   ///< elements outside their bound
  double worst       = 0.0; ///< largest |error| / bound; infinite where a NaN or an infinity is out of place
  element_index worst_at;   ///< where
  element_index first_bad;  ///< the first bad element in N, C, D, H, W order
  std::string first_reason; ///< what is wrong there

  bool ok() const { return count > 0 && bad == 0; }

  std::string message() const
  {
    std::ostringstream out;
    if (count == 0)
    {
      out << "nothing was compared: the output has no elements";
    }
    else if (bad == 0)
    {
      out << "all " << count << " elements are right, the worst error is " << worst << " of its bound at " << worst_at;
    }
    else
    {
      out << bad << " of " << count << " elements are wrong\n  first at " << first_bad << ": " << first_reason
          << "\n  worst at " << worst_at << ": " << worst << " times its bound";
    }
    return out.str();
  }

  /// For EXPECT_FALSE.
  bool operator!() const { return !ok(); }
  /// So that EXPECT_TRUE(compare_...(...)) prints the message.
  operator testing::AssertionResult() const // NOLINT(google-explicit-constructor)
  {
    return (ok() ? testing::AssertionSuccess() : testing::AssertionFailure()) << message();
  }
};

namespace detail
{

/// Why an element is bad.
inline std::string describe(double got, double expected, double limit)
{
  std::ostringstream out;
  out.precision(17);
  out << "got " << got << ", expected " << expected;
  if (std::isfinite(expected) && limit < 0.0)
  {
    out << " (outside the contract: S + |b| reaches FLT_MAX / 2 here; choose smaller inputs)";
  }
  else if (std::isfinite(expected) && std::isfinite(got))
  {
    out << ", error " << std::fabs(got - expected) << " exceeds " << limit;
  }
  return out.str();
}

/// expected(flat, c) -> double and bound(flat, c, expected, got) -> double, flat the channels-first index. A negative bound
/// says that the element should not have been compared at all.
template <class Expected, class Bound>
comparison compare_elements(
  const float* got, const output_extents& e, const comparison_options& options, Expected expected, Bound bound)
{
  comparison result;
  result.count          = e.elements();
  std::int64_t flat     = 0;
  const auto check_next = [&](const element_index& i) {
    const std::int64_t at = options.order == layout::channels_first
                            ? flat
                            : (((i.n * e.d + i.d) * e.h + i.h) * e.w + i.w) * e.c + i.c;
    const auto value      = static_cast<double>(got[at]);
    const double wanted   = expected(flat, i.c);
    double units          = std::numeric_limits<double>::infinity();
    double limit          = 0.0;
    if (std::isnan(wanted))
    {
      units = std::isnan(value) ? 0.0 : units;
    }
    else if (std::isinf(wanted))
    {
      units = value == wanted || (options.infinity_may_change && !std::isfinite(value)) ? 0.0 : units;
    }
    else
    {
      limit = bound(flat, i.c, wanted, value);
      if (std::isfinite(value) && limit >= 0.0)
      {
        const double error = std::fabs(value - wanted);
        units              = error == 0.0 ? 0.0 : error / limit;
      }
    }

    if (units > result.worst)
    {
      result.worst    = units;
      result.worst_at = i;
    }
    if (units > 1.0)
    {
      if (result.bad == 0)
      {
        result.first_bad    = i;
        result.first_reason = describe(value, wanted, limit);
      }
      ++result.bad;
    }
    ++flat;
  };

  element_index i;
  for (i.n = 0; i.n < e.n; ++i.n)
  {
    for (i.c = 0; i.c < e.c; ++i.c)
    {
      for (i.d = 0; i.d < e.d; ++i.d)
      {
        for (i.h = 0; i.h < e.h; ++i.h)
        {
          for (i.w = 0; i.w < e.w; ++i.w)
          {
            check_next(i);
          }
        }
      }
    }
  }
  return result;
}

} // namespace detail

/// What tconv::reference says about every output, channels first.
struct convolution_reference
{
  const double* value;         ///< sum of x*w over the terms that land, without bias
  const double* magnitude;     ///< S: sum of |x||w| over the same
  const std::int64_t* terms;   ///< K: how many
  const float* bias = nullptr; ///< [c], or null
};

/// A transposed convolution plus bias before any epilogue, against the numerical contract:
/// |error| <= (K + 8) * 2^-24 * (S + |b|) + ulp_out / 2 + K * 2^-149, plus extra * S.
///
/// The contract ends where S + |b| reaches FLT_MAX / 2; a finite element there is reported as bad, so that a test cannot go
/// beyond it unnoticed.
inline comparison compare_convolution(const float* got,
                                      const convolution_reference& reference,
                                      const output_extents& e,
                                      const comparison_options& options = {})
{
  const auto bias_of = [&](std::int64_t c) {
    return reference.bias != nullptr ? static_cast<double>(reference.bias[c]) : 0.0;
  };
  return detail::compare_elements(
    got,
    e,
    options,
    [&](std::int64_t flat, std::int64_t c) { return reference.value[flat] + bias_of(c); },
    [&](std::int64_t flat, std::int64_t c, double expected, double value) {
      const double magnitude = reference.magnitude[flat];
      const double weight    = magnitude + std::fabs(bias_of(c));
      if (!(weight < static_cast<double>(FLT_MAX) / 2))
      {
        return -1.0;
      }
      const auto terms = static_cast<double>(reference.terms[flat]);
      // The error may carry the value into the next binade, whose spacing is that of the output then.
      const double spacing = std::isfinite(value) ? std::fmax(ulp(expected, options.format), ulp(value, options.format))
                                                  : 0.0;
      return (terms + 8) * 0x1p-24 * weight + spacing / 2 + terms * 0x1p-149 + options.extra * magnitude;
    });
}

/// |error| <= absolute + relative * |expected|.
struct tolerance
{
  double absolute = 0.0;
  double relative = 0.0;
};

/// Values after an epilogue, against \p expected in channels-first order and a bound per element:
/// \p bound (flat channels-first index, expected value) -> tolerance. Rounding of the output is part of that bound.
template <class Bound>
comparison compare_values(const float* got,
                          const double* expected,
                          const output_extents& e,
                          Bound bound,
                          const comparison_options& options = {})
{
  return detail::compare_elements(
    got,
    e,
    options,
    [&](std::int64_t flat, std::int64_t) { return expected[flat]; },
    [&](std::int64_t flat, std::int64_t, double wanted, double) {
      const tolerance t = bound(flat, wanted);
      // A negative or NaN tolerance accepts the exact value only.
      return std::fmax(t.absolute + t.relative * std::fabs(wanted), 0.0);
    });
}

} // namespace tconv_test
