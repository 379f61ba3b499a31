// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Softmax over the channels of one output position, its logarithm, and the logarithm of its denominator.

#include "row.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// v -> exp(v - peak).
struct exponential_below
{
  float peak;

  TCONV_HOST_DEVICE float operator()(float v) const { return fast_exp(v - peak); }
};

} // namespace detail

/// exp(v - max) / sum(exp(v - max)) over the channels, in fp32: each within 4 + 2.3 |v - max| ulp, plus channels 2^-24 of itself
/// for the sum, and 0 below 2^-126. (The roundings of v - max, of log2(e) and of their product are relative errors of the
/// exponential, |v - max| 2^-24 each at most.)
///
/// A NaN, a +inf or nothing but -inf makes the whole row NaN, and that row only; a single -inf gives exactly 0. Equal logits
/// give 1/channels, rounded to nearest.
struct channel_softmax
{
  static constexpr bool across_channels = true;

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    // The maximum may drop a NaN: exp(NaN - peak) brings it back into the sum, and through the sum to the whole row. The
    // same holds for +inf (inf - inf) and for a row of -inf (-inf - -inf).
    const float peak = reduce_row(row, -detail::infinity(), maximum_ignoring_nan{});
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] = detail::fast_exp(row[i] - peak); // padding lanes too: nobody reads them
    }
    // The sum lies between 1 and the number of channels, or is NaN.
    const float inverse = detail::branchless_reciprocal(reduce_row(row, 0.0f, plus{}));
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] *= inverse;
    }
  }
};

/// (v - max) - log(sum(exp(v - max))) over the channels, in fp32; torch.nn.functional.log_softmax over the channels.
///
/// With u = 2^-24: each within u |v - max| + (channels + 8) u + half an ulp. A common offset of the logits costs nothing, one
/// channel gives exactly 0. A NaN, a +inf or nothing but -inf makes the whole row NaN, and that row only; a single -inf gives
/// -inf.
struct channel_log_softmax
{
  static constexpr bool across_channels = true;

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    // The maximum may drop a NaN, as in channel_softmax.
    const float peak      = reduce_row(row, -detail::infinity(), maximum_ignoring_nan{});
    const float total     = reduce_row(row, 0.0f, plus{}, detail::exponential_below{peak});
    const float log_total = ::logf(total);
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      // In this grouping: max + log(sum) would round the logarithm away where the logits are large.
      row[i] = (row[i] - peak) - log_total;
    }
  }
};

/// log(sum(exp(v))) over the channels, without overflow; torch.logsumexp. Reduces the channels to one.
///
/// With u = 2^-24: within (channels + 8) u + half an ulp. Nothing but -inf gives -inf; a +inf gives +inf unless there is a NaN,
/// which gives NaN.
struct channel_logsumexp
{
  static constexpr bool across_channels  = true;
  static constexpr bool reduces_channels = true;

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    // Without a finite maximum the plain sum is right: 0, +inf or NaN.
    const float peak  = reduce_row(row, -detail::infinity(), maximum_ignoring_nan{});
    const float shift = ::fabsf(peak) < detail::infinity() ? peak : 0.0f;
    const float total = reduce_row(row, 0.0f, plus{}, detail::exponential_below{shift});
    fill_row(row, shift + ::logf(total));
  }
};

TCONV_NAMESPACE_END
