// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Minimum, maximum, sum and mean over the channels of one output position: functors that reduce the channels to one.
///
/// All propagate NaN. The result is left in every value of the row.

#include "row.hpp"

TCONV_NAMESPACE_BEGIN

/// The smallest channel, exactly. torch.amin over the channels.
struct channel_min
{
  static constexpr bool across_channels  = true;
  static constexpr bool reduces_channels = true;

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    fill_row(row, reduce_row(row, detail::infinity(), minimum_propagating_nan{}));
  }
};

/// The largest channel, exactly. torch.amax over the channels.
struct channel_max
{
  static constexpr bool across_channels  = true;
  static constexpr bool reduces_channels = true;

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    fill_row(row, reduce_row(row, -detail::infinity(), maximum_propagating_nan{}));
  }
};

/// The sum of the channels in fp32, within (channels - 1) 2^-24 sum|v|. Infinities of both signs give NaN.
struct channel_sum
{
  static constexpr bool across_channels  = true;
  static constexpr bool reduces_channels = true;

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    fill_row(row, reduce_row(row, 0.0f, plus{}));
  }
};

/// The sum of the channels divided by their number, in fp32, within (channels + 2) 2^-24 mean|v|; infinite where the sum is.
struct channel_mean
{
  static constexpr bool across_channels  = true;
  static constexpr bool reduces_channels = true;

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    const float inverse = detail::branchless_reciprocal(static_cast<float>(row.channels()));
    fill_row(row, reduce_row(row, 0.0f, plus{}) * inverse);
  }
};

TCONV_NAMESPACE_END
