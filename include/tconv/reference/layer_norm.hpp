// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Layer normalisation over the channels in double, on the row of all channels of one position.

#include "../thread/layer_norm.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

TCONV_NAMESPACE_BEGIN

namespace reference
{

/// gamma * (v - mean) / sqrt(var + eps) + beta; beta where var + eps = 0.
inline void evaluate(const channel_layer_norm& f, std::vector<double>& row)
{
  const auto count = static_cast<double>(row.size());
  double mean      = 0;
  for (const double v : row)
  {
    mean += v / count;
  }
  // The mean of what is left corrects the rounding of the first one; equal channels leave exactly nothing.
  double correction = 0;
  bool constant     = true;
  for (const double v : row)
  {
    constant = constant && v == row.front();
    correction += (v - mean) / count;
  }
  mean            = constant ? row.front() : mean + correction;
  double variance = 0;
  for (const double v : row)
  {
    variance += (v - mean) * (v - mean) / count;
  }
  const double root = std::sqrt(variance + static_cast<double>(f.eps));
  for (std::size_t c = 0; c < row.size(); ++c)
  {
    const double gamma = f.gamma != nullptr ? static_cast<double>(f.gamma[c]) : 1.0;
    const double beta  = f.beta != nullptr ? static_cast<double>(f.beta[c]) : 0.0;
    row[c]             = root == 0.0 ? beta : gamma * (row[c] - mean) / root + beta;
  }
}

} // namespace reference

TCONV_NAMESPACE_END
