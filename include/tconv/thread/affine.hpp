// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Linear functors with operands: bias, scale, affine and BatchNorm in eval mode, with one value per channel; sample_bias,
/// sample_scale, sample_affine and sample_centred_scale with one per sample and channel.
///
/// A functor with operands is *bound* to a channel first: bind(coordinate) reads its operands once and returns a plain
/// functor float -> float, which is then applied to every position of that channel. Operands are fp32 arrays in device memory
/// (in host memory when the chain runs on the CPU), of out_channels elements or of [batch, out_channels]. Behind a functor
/// that reduces the channels, out_channels is 1.
///
/// Two traits say what an algebra on whole tensors may assume: `linear`, that the functor commutes with means over the
/// positions of one sample and channel; `per_sample`, that the map differs between samples, so that it does not commute with
/// statistics over the batch.

#include "../detail/math.hpp"

TCONV_NAMESPACE_BEGIN

/// What a functor may depend on: the sample and the output channel.
struct coordinate
{
  int64_t n       = 0; ///< sample, in [0, batch)
  int64_t channel = 0; ///< in [0, out_channels); behind a functor that reduces the channels 0
};

/// v -> slope * (v - centre) + offset. The centred form keeps a value equal to the centre at exactly offset.
struct linear_map
{
  float centre = 0.0f; ///< subtracted first
  float slope  = 1.0f; ///< factor of the difference
  float offset = 0.0f; ///< added last; the result for centre

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

  /// One \p factor for all channels.
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

namespace detail
{

/// An operand of [batch, out_channels].
struct sample_operand
{
  const float* values;
  int64_t sample_stride;

  TCONV_HOST_DEVICE float at(const coordinate& c) const { return values[c.n * sample_stride + c.channel]; }
};

} // namespace detail

/// v + b[n, channel].
struct sample_bias
{
  static constexpr bool linear     = true;
  static constexpr bool per_sample = true;

  /// \p values [batch, out_channels], not null; \p sample_stride: elements from one sample to the next, out_channels where
  /// nothing lies between.
  TCONV_HOST_DEVICE sample_bias(const float* values, int64_t sample_stride) : values_{values, sample_stride} {}

  using bound = bias::bound;
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const { return {values_.at(at)}; }

private:
  detail::sample_operand values_;
};

/// v * factors[n, channel]: the excitation of a squeeze-and-excitation block.
struct sample_scale
{
  static constexpr bool linear     = true;
  static constexpr bool per_sample = true;

  /// \p factors [batch, out_channels], not null; \p sample_stride as for sample_bias.
  TCONV_HOST_DEVICE sample_scale(const float* factors, int64_t sample_stride) : factors_{factors, sample_stride} {}

  using bound = scale::bound;
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const { return {factors_.at(at)}; }

private:
  detail::sample_operand factors_;
};

/// v * slopes[n, channel] + offsets[n, channel]: feature-wise linear modulation (FiLM), conditional normalisation.
struct sample_affine
{
  static constexpr bool linear     = true;
  static constexpr bool per_sample = true;

  /// Both [batch, out_channels], not null; \p sample_stride of both, as for sample_bias: 2 * out_channels for the two halves
  /// of one tensor.
  TCONV_HOST_DEVICE sample_affine(const float* slopes, const float* offsets, int64_t sample_stride)
      : slopes_{slopes, sample_stride}
      , offsets_{offsets, sample_stride}
  {}

  using bound = affine::bound;
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const { return {slopes_.at(at), offsets_.at(at)}; }

private:
  detail::sample_operand slopes_;
  detail::sample_operand offsets_;
};

/// slopes[channel] * (v - centres[channel]) + offsets[channel]: a normalisation whose slope has been computed.
struct centred_affine
{
  static constexpr bool linear = true;

  /// \p centres, \p slopes [out_channels], not null; \p offsets [out_channels], or null for 0.
  TCONV_HOST_DEVICE centred_affine(const float* centres, const float* slopes, const float* offsets)
      : centres_(centres)
      , slopes_(slopes)
      , offsets_(offsets)
  {}

  /// The functor of one channel.
  struct bound
  {
    linear_map map;
    TCONV_HOST_DEVICE float operator()(float v) const { return map(v); }
    TCONV_HOST_DEVICE double operator()(double v) const { return map(v); }
    TCONV_HOST_DEVICE double slope() const { return static_cast<double>(map.slope); }
  };
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const
  {
    return {{centres_[at.channel], slopes_[at.channel], offsets_ != nullptr ? offsets_[at.channel] : 0.0f}};
  }

private:
  const float* centres_;
  const float* slopes_;
  const float* offsets_;
};

/// slopes[channel] * (v - centres[n, channel]): values around a mean of their sample and channel.
struct sample_centred_scale
{
  static constexpr bool linear     = true;
  static constexpr bool per_sample = true;

  /// \p centres [batch, out_channels], not null, \p sample_stride as for sample_bias; \p slopes [out_channels], not null.
  TCONV_HOST_DEVICE sample_centred_scale(const float* centres, int64_t sample_stride, const float* slopes)
      : centres_{centres, sample_stride}
      , slopes_(slopes)
  {}

  using bound = centred_affine::bound;
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const { return {{centres_.at(at), slopes_[at.channel], 0.0f}}; }

private:
  detail::sample_operand centres_;
  const float* slopes_;
};

/// slopes[n, group] * gamma[channel] * (v - centres[n, group]) + beta[channel]: a normalisation by groups of neighbouring channels.
struct group_affine
{
  static constexpr bool linear     = true;
  static constexpr bool per_sample = true;

  const float* centres   = nullptr; ///< [batch, groups]
  const float* slopes    = nullptr; ///< [batch, groups]
  const float* gamma     = nullptr; ///< [out_channels], or null for 1
  const float* beta      = nullptr; ///< [out_channels], or null for 0
  int64_t groups         = 1;       ///< of a sample
  int64_t group_channels = 1;       ///< out_channels / groups

  using bound = centred_affine::bound;
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const
  {
    const int64_t group = at.n * groups + at.channel / group_channels;
    const float scale   = gamma != nullptr ? gamma[at.channel] : 1.0f;
    const float shift   = beta != nullptr ? beta[at.channel] : 0.0f;
    return {{centres[group], slopes[group] * scale, shift}};
  }
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

  const float* mean;     ///< [out_channels], stored means
  const float* variance; ///< [out_channels], stored variances
  const float* gamma;    ///< [out_channels], or null for 1
  const float* beta;     ///< [out_channels], or null for 0
  float eps;             ///< added to the variance under the root, >= 0
};

TCONV_NAMESPACE_END
