// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Softmax over the channels of one output position.

#include "row.hpp"

TCONV_NAMESPACE_BEGIN

/// exp(v - max) / sum(exp(v - max)) over the channels, in fp32: each within 4 + 1.2 |v - max| ulp, and 0 below 2^-126.
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
    const float peak = reduce_row(row, -detail::infinity(), maximum_ignoring_nan{}, identity{});
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] = detail::fast_exp(row[i] - peak); // padding lanes too: nobody reads them
    }
    // The sum lies between 1 and the number of channels, or is NaN.
    const float inverse = detail::branchless_reciprocal(reduce_row(row, 0.0f, plus{}, identity{}));
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] *= inverse;
    }
  }

private:
  struct identity
  {
    TCONV_HOST_DEVICE float operator()(float v) const { return v; }
  };
};

TCONV_NAMESPACE_END
