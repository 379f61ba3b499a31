// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The accumulators of a warpgroup matrix instruction as a tile of values: rows of channels lie on the four lanes of a quad.

#include "../detail/math.hpp"
#include "../layout.hpp"
#include "../thread/chain.hpp"
#include "../thread/element.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Which outputs of a thread exist, and where: set s of cell r stands at position first + r * cell_step + s of its channel.
struct fragment_run
{
  int64_t first;
  int64_t cell_step;
  int count[2]; ///< sets of each cell that exist; 0 where there are none

  TCONV_DEVICE bool empty() const { return count[0] + count[1] == 0; }
};

/// Sets x Columns / 2 accumulators of one thread, as the chain sees them (tile concept of chain.hpp). Output p is set p % Sets of
/// cell p / Sets; channel c of the thread is 8 (c / 2) + 2 quad + c % 2 of the tile. Cells are the two rows of the fragment.
///
/// \p Whole: the tile has no padding channels.
template <int Columns, int Sets, bool Whole>
struct fragment_tile
{
  float (&sums)[Sets][Columns / 2];
  int n;
  int first_channel; ///< of the thread
  int channels_total;
  fragment_run run;

  TCONV_DEVICE static constexpr int channels() { return Columns / 4; }
  TCONV_DEVICE static constexpr int positions() { return 2 * Sets; }
  TCONV_DEVICE static constexpr int place(int c, int cell) { return c / 2 * 4 + c % 2 + 2 * cell; }
  TCONV_DEVICE float& operator()(int c, int p) { return sums[p % Sets][place(c, p / Sets)]; }
  TCONV_DEVICE int64_t position(int p) const
  {
    return p % Sets < run.count[p / Sets] ? run.first + p / Sets * run.cell_step + p % Sets : -1;
  }
  TCONV_DEVICE int channel(int c) const { return first_channel + c / 2 * 8 + c % 2; }
  TCONV_DEVICE bool valid(int c) const { return Whole || channel(c) < channels_total; }
  /// Padding channels read the operands of the last real one.
  TCONV_DEVICE coordinate at(int c) const { return {n, valid(c) ? channel(c) : channels_total - 1}; }

  /// The channels of one position (row concept of row.hpp).
  struct fragment_row
  {
    fragment_tile& tile;
    int p;

    TCONV_DEVICE static constexpr int size() { return Columns / 4; }
    TCONV_DEVICE float& operator[](int i) { return tile(i, p); }
    TCONV_DEVICE int64_t channel(int i) const { return tile.channel(i); }
    TCONV_DEVICE int64_t channels() const { return tile.channels_total; }
    TCONV_DEVICE bool valid(int i) const { return tile.valid(i); }

    /// Called by the whole warp. The butterfly adds the same two numbers in both lanes, so all lanes get the same bits.
    template <class Op>
    TCONV_DEVICE float all_reduce(float v, Op op) const
    {
      v = op(v, __shfl_xor_sync(0xffffffffu, v, 1));
      return op(v, __shfl_xor_sync(0xffffffffu, v, 2));
    }
  };
  TCONV_DEVICE fragment_row row(int p) { return {*this, p}; }
};

/// Stores Count neighbouring values; the target is aligned to them. Streaming: they are not read again.
template <int Count, class T, class Values>
TCONV_DEVICE void store_run(T* target, Values values)
{
  if constexpr (Count == 2 && sizeof(T) == 4)
  {
    __stcs(reinterpret_cast<float2*>(target), make_float2(values(0), values(1)));
  }
  else if constexpr (Count == 2)
  {
    __stcs(reinterpret_cast<unsigned*>(target), pack_pair<T>(values(0), values(1)));
  }
  else
  {
    static_assert(Count == 1, "tconv: runs have 1 or 2 outputs");
    *target = from_float<T>(values(0));
  }
}

/// Stores the valid outputs of \p tile below \p channels. \p base: position 0 of channel 0 of the sample.
/// \p vector: whole runs (channels first) may be stored at once. Called by each thread for itself.
template <int Columns, int Sets, bool Whole, class T>
TCONV_DEVICE void store_fragment(
  fragment_tile<Columns, Sets, Whole>& tile, T* base, const tensor_strides& strides, int channels, bool vector)
{
  using tile_type = fragment_tile<Columns, Sets, Whole>;
  const int rest  = channels - tile.first_channel; // channels from the thread's first on
  TCONV_PRAGMA_UNROLL
  for (int cell = 0; cell < 2; ++cell)
  {
    const int count = tile.run.count[cell];
    T* target       = base + (tile.run.first + cell * tile.run.cell_step) * strides.position
              + tile.first_channel * strides.channel;
    // A pointer that walks, opaque: else every channel's address is formed anew, or kept through the main loop.
    int64_t step = strides.channel;
    asm volatile("" : "+l"(step), "+l"(target));
    const auto walk = [&](auto store, bool all) {
      T* at = target;
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < tile_type::channels(); ++c)
      {
        if (all || c / 2 * 8 + c % 2 < rest)
        {
          store(at, c);
        }
        at += c % 2 == 0 ? step : 7 * step;
        asm volatile("" : "+l"(at));
      }
    };
    if (vector && count == Sets)
    {
      const auto store = [&](T* at, int c) { store_run<Sets>(at, [&](int s) { return tile(c, cell * Sets + s); }); };
      if (rest >= tile_type::channels() * 4 - 6)
      {
        walk(store, true);
      }
      else
      {
        walk(store, false);
      }
    }
    else if (count > 0)
    {
      walk(
        [&](T* at, int c) {
          TCONV_PRAGMA_UNROLL
          for (int s = 0; s < Sets; ++s)
          {
            if (s < count)
            {
              at[s * strides.position] = from_float<T>(tile(c, cell * Sets + s));
            }
          }
        },
        false);
    }
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
