// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Logits of a convolution in any type with the bound of the numerical contract, for tests of channel functors behind it.

#include "typed_convolution.cuh"

#include <type_traits>

namespace tconv_test
{

/// Inputs of a convolution with peaked logits, the logits in double, and the largest error that one of a position may have.
template <class In>
struct logits
{
  shape3 shape;
  std::vector<float> x;
  std::vector<float> w;
  std::vector<float> b;
  std::vector<double> value; ///< [batch, channels, positions], bias included
  std::vector<double> error; ///< [batch, positions]

  logits(const shape3& s, std::uint32_t seed, float amplitude, bool with_nan)
      : shape(s)
      , x(rounded_to<In>(random_values(seed, s.input_elements())))
      , w(rounded_to<In>(random_values(seed + 1, s.weight_elements(), -amplitude, amplitude)))
      , b(random_values(seed + 2, s.out_channels))
      , error(static_cast<std::size_t>(s.batch * s.output_positions()), 0.0)
  {
    if (with_nan)
    {
      x[random_bits(seed, 3) % x.size()] = std::numeric_limits<float>::quiet_NaN();
    }
    full_reference full(x, w, s);
    value         = full.value;
    std::size_t i = 0;
    for (std::int64_t n = 0; n < s.batch; ++n)
    {
      for (const float bias : b)
      {
        for (std::int64_t p = 0; p < s.output_positions(); ++p)
        {
          value[i] += static_cast<double>(bias);
          const auto terms   = static_cast<double>(full.terms[i]);
          const double bound = (terms + 8) * 0x1p-24 * (full.magnitude[i] + std::fabs(static_cast<double>(bias)))
                             + ulp(value[i]) / 2 + terms * 0x1p-149;
          double& most = error[static_cast<std::size_t>(n * s.output_positions() + p)];
          most         = std::fmax(most, bound);
          ++i;
        }
      }
    }
  }

  std::size_t row_of(std::int64_t flat, std::int64_t channels) const
  {
    const std::int64_t positions = shape.output_positions();
    return static_cast<std::size_t>(flat / (channels * positions) * positions + flat % positions);
  }
};

/// What rounding to Out adds to an fp32 value near \p value that is wrong by \p error.
template <class Out>
double rounding(double value, double error)
{
  return std::is_same<Out, float>::value ? 0.0 : ulp(std::fabs(value) + error, format_of<Out>::value) / 2;
}

} // namespace tconv_test
