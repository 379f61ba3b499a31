// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A tile of accumulators whose rows of channels are held by neighbouring lanes of a warp.

#include "../thread/chain.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// The channels of one output position: Channels in this thread's registers, the others in the same registers of the
/// \p lanes - 1 neighbouring lanes.
///
/// \p FixedLanes: the number of lanes where it is known at compile time and no channel is padding, so that nothing is selected;
/// 0 where neither is known.
template <int Channels, int Positions, int FixedLanes>
class lane_row
{
public:
  TCONV_DEVICE lane_row(float (&values)[Channels][Positions], int position, int64_t first, int64_t channels, int lanes)
      : values_(values)
      , position_(position)
      , first_(first)
      , channels_(channels)
      , valid_(channels - first > Channels ? Channels : static_cast<int>(channels - first))
      , lanes_(lanes)
  {}

  TCONV_DEVICE static constexpr int size() { return Channels; }
  TCONV_DEVICE float& operator[](int i) { return values_[i][position_]; }
  TCONV_DEVICE int64_t channel(int i) const { return first_ + i; }
  TCONV_DEVICE int64_t channels() const { return channels_; }
  TCONV_DEVICE bool valid(int i) const { return FixedLanes != 0 || i < valid_; }

  /// Called by the whole warp. The butterfly adds the same two numbers in both lanes, so all lanes get the same bits.
  template <class Op>
  TCONV_DEVICE float all_reduce(float v, Op op) const
  {
    // No branch: one would keep the reductions of neighbouring positions from overlapping.
    TCONV_PRAGMA_UNROLL
    for (int offset = 1; offset < (FixedLanes != 0 ? FixedLanes : 32); offset *= 2)
    {
      const float other = __shfl_xor_sync(0xffffffffu, v, offset);
      v                 = FixedLanes != 0 || offset < lanes_ ? op(v, other) : v;
    }
    return v;
  }

private:
  float (&values_)[Channels][Positions];
  int position_;
  int64_t first_;
  int64_t channels_;
  int valid_;
  int lanes_;
};

/// Channels x Positions accumulators of one thread, as the chain sees them (tile concept of chain.hpp). \p Locate: position
/// number of output p, negative where there is none.
template <int Channels, int Positions, int FixedLanes, class Locate>
struct lane_tile
{
  float (&values)[Channels][Positions];
  int64_t n;
  int64_t first_channel;  ///< channel of values[0]
  int64_t channels_total; ///< channels beyond it are padding
  int lanes;              ///< a power of two up to 32; FixedLanes where that is not 0
  Locate locate;

  TCONV_DEVICE static constexpr int channels() { return Channels; }
  TCONV_DEVICE static constexpr int positions() { return Positions; }
  TCONV_DEVICE float& operator()(int c, int p) { return values[c][p]; }
  TCONV_DEVICE int64_t position(int p) const { return locate(p); }
  /// Padding channels read the operands of the last real one.
  TCONV_DEVICE coordinate at(int c) const
  {
    const int64_t channel = first_channel + c;
    return {n, channel < channels_total ? channel : channels_total - 1};
  }
  TCONV_DEVICE lane_row<Channels, Positions, FixedLanes> row(int p)
  {
    return {values, p, first_channel, channels_total, lanes};
  }
};

} // namespace block

TCONV_CUDA_NAMESPACE_END
