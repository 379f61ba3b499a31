// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Layer normalisation over the channels of one output position.

#include "row.hpp"

TCONV_NAMESPACE_BEGIN

/// gamma[channel] * (v - mean) / sqrt(var + eps) + beta[channel] with the mean and the biased variance over the channels:
/// torch.nn.LayerNorm over the channels alone, "channels-first LayerNorm".
///
/// In fp32, from centred values: a common offset of the channels costs no more digits than the channels themselves have lost
/// to it, and equal channels give exactly beta. var + eps = 0 gives beta. A NaN or an infinity makes the whole row NaN, and that
/// row only. Differences between channels must lie below 2^60 (their squares are added up).
struct channel_layer_norm
{
  static constexpr bool across_channels = true;

  /// \p gamma_values (null: 1) and \p beta_values (null: 0) [out_channels]; \p epsilon >= 0.
  TCONV_HOST_DEVICE explicit channel_layer_norm(const float* gamma_values = nullptr,
                                                const float* beta_values  = nullptr,
                                                float epsilon             = 1e-5f)
      : gamma(gamma_values)
      , beta(beta_values)
      , eps(epsilon)
  {}

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    const float inverse = detail::branchless_reciprocal(static_cast<float>(row.channels()));
    // Relative to a value of the row first: the mean of the differences is small, so its rounding is.
    subtract(row, first_channel(row));
    subtract(row, reduce_row(row, 0.0f, plus{}) * inverse);
    const float radicand = ::fmaf(reduce_row(row, 0.0f, plus{}, square{}), inverse, eps);
    const float slope    = radicand == 0.0f ? 0.0f : detail::reciprocal_square_root(radicand);
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      const float scale = gamma != nullptr && row.valid(i) ? gamma[row.channel(i)] : 1.0f;
      const float shift = beta != nullptr && row.valid(i) ? beta[row.channel(i)] : 0.0f;
      row[i]            = ::fmaf(row[i] * slope, scale, shift);
    }
  }

  const float* gamma; ///< [out_channels], or null for 1
  const float* beta;  ///< [out_channels], or null for 0
  float eps;          ///< added to the variance under the root, >= 0

private:
  struct square
  {
    TCONV_HOST_DEVICE float operator()(float v) const { return v * v; }
  };

  /// The value of channel 0, in all threads.
  template <class Row>
  TCONV_HOST_DEVICE static float first_channel(Row& row)
  {
    float first = 0.0f;
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      first = row.channel(i) == 0 ? row[i] : first;
    }
    return row.all_reduce(first, plus{});
  }

  template <class Row>
  TCONV_HOST_DEVICE static void subtract(Row& row, float value)
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] -= value; // padding lanes too: nobody reads them
    }
  }
};

TCONV_NAMESPACE_END
