// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Linear functors with per-channel operands: bias, scale, affine and BatchNorm in eval mode.
///
/// A functor with operands is *bound* to a channel first: bind(coordinate) reads its operands once and returns a plain
/// functor float -> float, which is then applied to every position of that channel. Operands are fp32 arrays of out_channels
/// elements in device memory (in host memory when the chain runs on the CPU).

#include "../detail/math.hpp"

TCONV_NAMESPACE_BEGIN

/// What a functor may depend on: the sample and the output channel.
struct coordinate
{
  int64_t n       = 0;
  int64_t channel = 0;
};

/// v -> slope * (v - centre) + offset. The centred form keeps a value equal to the centre at exactly offset.
struct linear_map
{
  float centre = 0.0f;
  float slope  = 1.0f;
  float offset = 0.0f;

  TCONV_HOST_DEVICE float operator()(float v) const { return ::fmaf(slope, v - centre, offset); }
  /// The same in double: how a pooled or averaged value passes through the chain without rounding in between.
  TCONV_HOST_DEVICE double operator()(double v) const
  {
    return static_cast<double>(slope) * (v - static_cast<double>(centre)) + static_cast<double>(offset);
  }
};

/// v + b[channel].
struct bias
{
  static constexpr bool linear = true;

  /// \p values [out_channels], or null for no bias.
  TCONV_HOST_DEVICE explicit bias(const float* values) : values_(values) {}

  struct bound
  {
    float value;
    TCONV_HOST_DEVICE float operator()(float v) const { return v + value; }
    TCONV_HOST_DEVICE double operator()(double v) const { return v + static_cast<double>(value); }
    TCONV_HOST_DEVICE double slope() const { return 1.0; }
  };
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const { return {values_ != nullptr ? values_[at.channel] : 0.0f}; }

private:
  const float* values_;
};

/// v * factor, or v * factors[channel].
struct scale
{
  static constexpr bool linear = true;

  TCONV_HOST_DEVICE explicit scale(float factor) : factor_(factor) {}
  /// \p factors [out_channels], not null.
  TCONV_HOST_DEVICE explicit scale(const float* factors) : factors_(factors) {}

  struct bound
  {
    float factor;
    TCONV_HOST_DEVICE float operator()(float v) const { return v * factor; }
    TCONV_HOST_DEVICE double operator()(double v) const { return v * static_cast<double>(factor); }
    TCONV_HOST_DEVICE double slope() const { return static_cast<double>(factor); }
  };
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const
  {
    return {factors_ != nullptr ? factors_[at.channel] : factor_};
  }

private:
  const float* factors_ = nullptr;
  float factor_         = 1.0f;
};

/// v * slopes[channel] + offsets[channel]; what fold_batch_norm() writes.
struct affine
{
  static constexpr bool linear = true;

  /// Both [out_channels], not null.
  TCONV_HOST_DEVICE affine(const float* slopes, const float* offsets) : slopes_(slopes), offsets_(offsets) {}

  struct bound
  {
    float factor;
    float offset;
    TCONV_HOST_DEVICE float operator()(float v) const { return ::fmaf(factor, v, offset); }
    TCONV_HOST_DEVICE double operator()(double v) const
    {
      return static_cast<double>(factor) * v + static_cast<double>(offset);
    }
    TCONV_HOST_DEVICE double slope() const { return static_cast<double>(factor); }
  };
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const { return {slopes_[at.channel], offsets_[at.channel]}; }

private:
  const float* slopes_;
  const float* offsets_;
};

/// gamma / sqrt(var + eps), the slope of a normalisation; 0 where var + eps = 0, so that the result there is beta.
template <class T>
TCONV_HOST_DEVICE T batch_norm_slope(T variance, T eps, T gamma)
{
  const T radicand = variance + eps;
  return radicand == T(0) ? T(0) : gamma / detail::square_root(radicand);
}

/// BatchNorm in eval mode: gamma * (v - mean) / sqrt(var + eps) + beta, with stored statistics.
struct batch_norm
{
  static constexpr bool linear = true;

  /// \p mean_values, \p variance_values [out_channels], not null; \p gamma_values (null: 1) and \p beta_values (null: 0)
  /// [out_channels]; \p epsilon >= 0.
  TCONV_HOST_DEVICE batch_norm(const float* mean_values,
                               const float* variance_values,
                               const float* gamma_values = nullptr,
                               const float* beta_values  = nullptr,
                               float epsilon             = 1e-5f)
      : mean(mean_values)
      , variance(variance_values)
      , gamma(gamma_values)
      , beta(beta_values)
      , eps(epsilon)
  {}

  struct bound
  {
    linear_map map;
    TCONV_HOST_DEVICE float operator()(float v) const { return map(v); }
    TCONV_HOST_DEVICE double operator()(double v) const { return map(v); }
    TCONV_HOST_DEVICE double slope() const { return static_cast<double>(map.slope); }
  };
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const
  {
    const float scale = gamma != nullptr ? gamma[at.channel] : 1.0f;
    const float shift = beta != nullptr ? beta[at.channel] : 0.0f;
    return {{mean[at.channel], batch_norm_slope(variance[at.channel], eps, scale), shift}};
  }

  const float* mean;
  const float* variance;
  const float* gamma;
  const float* beta;
  float eps;
};

TCONV_NAMESPACE_END
