// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Reductions over the channels in double: the row of all channels of one position becomes its result.

#include "../thread/channel_reduction.hpp"

#include <cmath>
#include <limits>
#include <vector>

TCONV_NAMESPACE_BEGIN

namespace reference
{

namespace detail
{

/// NaN if there is one in \p row, else 0.
inline double poison(const std::vector<double>& row)
{
  for (const double v : row)
  {
    if (std::isnan(v))
    {
      return v;
    }
  }
  return 0.0;
}

inline double sum(const std::vector<double>& row)
{
  double total = 0;
  for (const double v : row)
  {
    total += v;
  }
  return total;
}

} // namespace detail

inline void evaluate(const channel_min&, std::vector<double>& row)
{
  double least = row.front();
  for (const double v : row)
  {
    least = std::fmin(least, v);
  }
  row = {least + detail::poison(row)};
}

inline void evaluate(const channel_max&, std::vector<double>& row)
{
  double most = row.front();
  for (const double v : row)
  {
    most = std::fmax(most, v);
  }
  row = {most + detail::poison(row)};
}

inline void evaluate(const channel_sum&, std::vector<double>& row)
{
  row = {detail::sum(row)};
}

inline void evaluate(const channel_mean&, std::vector<double>& row)
{
  row = {detail::sum(row) / static_cast<double>(row.size())};
}

} // namespace reference

TCONV_NAMESPACE_END
