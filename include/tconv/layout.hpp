// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The order of a tensor's elements, and the strides that follow from it.

#include "detail/config.hpp"

TCONV_NAMESPACE_BEGIN

/// Order of a tensor's elements. Packed, slowest to fastest: [batch, channels, positions...] or [batch, positions..., channels].
enum class layout : int
{
  channels_first = 0, ///< [batch, channels, positions...], as torch.contiguous_format
  channels_last  = 1  ///< [batch, positions..., channels], as torch.channels_last
};

/// Elements between neighbours; positions are numbered with w fastest.
struct tensor_strides
{
  int64_t sample   = 0; ///< from one sample to the next
  int64_t channel  = 0; ///< from one channel to the next
  int64_t position = 0; ///< from one position to the next

  /// Channels are the fastest digit. (Where both are 1 apart it makes no difference.)
  TCONV_HOST_DEVICE constexpr bool channels_last() const { return position != 1; }

  /// Strides of a packed tensor of \p channels channels and \p positions positions.
  TCONV_HOST_DEVICE static constexpr tensor_strides of(layout order, int64_t channels, int64_t positions)
  {
    return order == layout::channels_first ? tensor_strides{channels * positions, positions, 1}
                                           : tensor_strides{channels * positions, 1, channels};
  }
};

TCONV_NAMESPACE_END
