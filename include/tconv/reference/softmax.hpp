// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Channel functors in double.

#include "../thread/softmax.hpp"

#include <cmath>
#include <limits>
#include <vector>

TCONV_NAMESPACE_BEGIN

namespace reference
{

/// Softmax of one row. NaN, +inf or nothing but -inf: the row is NaN.
inline void evaluate(const channel_softmax&, std::vector<double>& row)
{
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double peak               = -infinity;
  bool broken               = false;
  for (const double v : row)
  {
    broken = broken || std::isnan(v) || v == infinity;
    peak   = v > peak ? v : peak;
  }
  broken       = broken || peak == -infinity;
  double total = 0;
  for (const double v : row)
  {
    total += std::exp(v - peak);
  }
  for (double& v : row)
  {
    v = broken ? std::numeric_limits<double>::quiet_NaN() : std::exp(v - peak) / total;
  }
}

} // namespace reference

TCONV_NAMESPACE_END
