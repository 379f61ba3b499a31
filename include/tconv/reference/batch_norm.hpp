// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Moments, BatchNorm and the global mean on the CPU in double, two passes each.

#include "../batch_norm_arguments.hpp"
#include "../thread/moments.hpp"

#include <cmath>
#include <vector>

TCONV_NAMESPACE_BEGIN

namespace reference
{

/// Moments of each channel of \p y [batch, channels, positions], over batch and positions.
inline std::vector<moments<double>> channel_moments(const double* y, int64_t batch, int64_t channels, int64_t positions)
{
  std::vector<moments<double>> result(static_cast<std::size_t>(channels));
  const auto count = static_cast<double>(batch * positions);
  for (int64_t c = 0; c < channels; ++c)
  {
    double sum = 0;
    for (int64_t n = 0; n < batch; ++n)
    {
      for (int64_t p = 0; p < positions; ++p)
      {
        sum += y[(n * channels + c) * positions + p];
      }
    }
    const double mean = count > 0 ? sum / count : 0.0;
    double m2         = 0;
    for (int64_t n = 0; n < batch; ++n)
    {
      for (int64_t p = 0; p < positions; ++p)
      {
        const double centred = y[(n * channels + c) * positions + p] - mean;
        m2 += centred * centred;
      }
    }
    result[static_cast<std::size_t>(c)] = {count, mean, m2};
  }
  return result;
}

/// BatchNorm with given per-channel \p mean and \p variance, in place on \p y [batch, channels, positions].
inline void batch_norm_apply(double* y,
                             int64_t batch,
                             int64_t channels,
                             int64_t positions,
                             const std::vector<double>& mean,
                             const std::vector<double>& variance,
                             const batch_norm_arguments& arguments)
{
  for (int64_t n = 0; n < batch; ++n)
  {
    for (int64_t c = 0; c < channels; ++c)
    {
      const auto i          = static_cast<std::size_t>(c);
      const double gamma    = arguments.gamma != nullptr ? static_cast<double>(arguments.gamma[c]) : 1.0;
      const double beta     = arguments.beta != nullptr ? static_cast<double>(arguments.beta[c]) : 0.0;
      const double radicand = variance[i] + static_cast<double>(arguments.eps);
      for (int64_t p = 0; p < positions; ++p)
      {
        double& v = y[(n * channels + c) * positions + p];
        v         = radicand != 0.0 ? gamma * (v - mean[i]) / std::sqrt(radicand) + beta : (std::isnan(v) ? v : beta);
      }
    }
  }
}

/// BatchNorm in eval mode: with the running statistics.
inline void
batch_norm_eval(double* y, int64_t batch, int64_t channels, int64_t positions, const batch_norm_arguments& arguments)
{
  const std::vector<double> mean(arguments.running_mean, arguments.running_mean + channels);
  const std::vector<double> variance(arguments.running_var, arguments.running_var + channels);
  batch_norm_apply(y, batch, channels, positions, mean, variance, arguments);
}

/// BatchNorm in train mode: with the batch's own statistics; updates the running ones (fp32) where they are given.
/// Needs at least two values per channel; an empty batch changes nothing. Returns the statistics that were used.
inline std::vector<moments<double>>
batch_norm_train(double* y, int64_t batch, int64_t channels, int64_t positions, const batch_norm_arguments& arguments)
{
  std::vector<moments<double>> statistics = channel_moments(y, batch, channels, positions);
  if (batch * positions == 0)
  {
    return statistics; // nothing to learn from
  }
  std::vector<double> mean;
  std::vector<double> variance;
  for (int64_t c = 0; c < channels; ++c)
  {
    const moments<double>& m = statistics[static_cast<std::size_t>(c)];
    mean.push_back(m.mean);
    variance.push_back(m.m2 / m.count);
    const auto momentum = static_cast<double>(arguments.momentum);
    const auto update   = [momentum](float& running, double value) {
      running = static_cast<float>((1.0 - momentum) * static_cast<double>(running) + momentum * value);
    };
    if (arguments.running_mean != nullptr)
    {
      update(arguments.running_mean[c], m.mean);
    }
    if (arguments.running_var != nullptr)
    {
      update(arguments.running_var[c], m.m2 / (m.count - 1.0));
    }
  }
  batch_norm_apply(y, batch, channels, positions, mean, variance, arguments);
  return statistics;
}

/// Mean over all positions: \p y [batch, channels, positions] -> result [batch, channels].
inline std::vector<double> global_mean(const double* y, int64_t batch, int64_t channels, int64_t positions)
{
  std::vector<double> result;
  for (int64_t row = 0; row < batch * channels; ++row)
  {
    double sum = 0;
    for (int64_t p = 0; p < positions; ++p)
    {
      sum += y[row * positions + p];
    }
    result.push_back(sum / static_cast<double>(positions));
  }
  return result;
}

} // namespace reference

TCONV_NAMESPACE_END
