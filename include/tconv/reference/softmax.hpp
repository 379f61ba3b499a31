// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The softmax family in double, on the row of all channels of one position.

#include "../thread/softmax.hpp"

#include <cmath>
#include <cstddef>
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

namespace detail
{

/// log(e^v[0] + e^v[1] + ...) of one row with the largest value taken out: log1p keeps what is small beside it.
struct log_total
{
  double peak   = -std::numeric_limits<double>::infinity();
  double above  = 0.0;   ///< log of the total - peak, where the peak is finite
  bool poisoned = false; ///< a NaN

  explicit log_total(const std::vector<double>& row)
  {
    std::size_t at = 0;
    for (std::size_t c = 0; c < row.size(); ++c)
    {
      poisoned = poisoned || std::isnan(row[c]);
      at       = row[c] > row[at] ? c : at;
    }
    peak          = row[at];
    double others = 0;
    for (std::size_t c = 0; c < row.size(); ++c)
    {
      others += c == at ? 0.0 : std::exp(row[c] - peak);
    }
    above = std::log1p(others);
  }
};

} // namespace detail

/// Log-softmax of one row. NaN, +inf or nothing but -inf: the row is NaN.
inline void evaluate(const channel_log_softmax&, std::vector<double>& row)
{
  const detail::log_total total(row);
  const bool broken = total.poisoned || std::isinf(total.peak);
  for (double& v : row)
  {
    v = broken ? std::numeric_limits<double>::quiet_NaN() : (v - total.peak) - total.above;
  }
}

/// Logsumexp of one row, which becomes its only element. NaN: NaN; +inf: +inf; nothing but -inf: -inf.
inline void evaluate(const channel_logsumexp&, std::vector<double>& row)
{
  const detail::log_total total(row);
  row = {total.poisoned           ? std::numeric_limits<double>::quiet_NaN()
         : std::isinf(total.peak) ? total.peak
                                  : total.peak + total.above};
}

} // namespace reference

TCONV_NAMESPACE_END
