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

/// Elements of T, neighbouring channels, that one store of store_fragment() takes in tensors with channels last: then every sector
/// that a quad reaches is written as a whole.
template <class T>
inline constexpr int fragment_channel_vector = sizeof(T) == 4 ? 2 : 8;

/// The calling thread's lane, asked for anew: what is derived from it would else be kept through the main loop.
TCONV_DEVICE int own_lane()
{
  auto thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread % 32;
}

/// The bits of an accumulator. Opaque: else the compiler keeps accumulators as words in the main loop, with moves between products.
TCONV_DEVICE unsigned opaque_bits(float v)
{
  asm volatile("" : "+f"(v));
  return __float_as_uint(v);
}

/// Word i of lane k becomes word k of lane i, among Count lanes that are \p Distance apart. \p lane: the calling one. Called by whole
/// warps.
template <int Count, int Distance = 1>
TCONV_DEVICE void transpose_lanes(unsigned (&words)[Count], int lane)
{
  TCONV_PRAGMA_UNROLL
  for (int bit = 1; bit < Count; bit *= 2)
  {
    const bool upper = (lane & bit * Distance) != 0;
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < Count; ++i)
    {
      if ((i & bit) == 0)
      {
        unsigned& low           = words[i];
        unsigned& high          = words[i + bit];
        const unsigned received = __shfl_xor_sync(0xffffffffu, upper ? low : high, bit * Distance);
        low                     = upper ? received : low;
        high                    = upper ? high : received;
      }
    }
  }
}

/// Stores Count words; the target is aligned to them. Streaming: they are not read again.
template <int Count, class T, class Words>
TCONV_DEVICE void store_words(T* target, Words words)
{
  static_assert(Count == 1 || Count == 2 || Count == 4, "tconv: a store takes 1, 2 or 4 words");
  if constexpr (Count == 4)
  {
    __stcs(reinterpret_cast<uint4*>(target), make_uint4(words(0), words(1), words(2), words(3)));
  }
  else if constexpr (Count == 2)
  {
    __stcs(reinterpret_cast<uint2*>(target), make_uint2(words(0), words(1)));
  }
  else
  {
    __stcs(reinterpret_cast<unsigned*>(target), words(0));
  }
}

/// A pointer that walks over channels. Opaque: else every channel's address is formed anew, or kept through the main loop.
template <class T>
struct channel_walk
{
  T* at;
  int64_t step;

  TCONV_DEVICE channel_walk(T* first, int64_t channel) : at(first), step(channel)
  {
    asm volatile("" : "+l"(step), "+l"(at));
  }
  TCONV_DEVICE void advance(int channels)
  {
    at += channels * step;
    asm volatile("" : "+l"(at));
  }
};

/// Channels first, rows that begin and end on multiples of 2 Sets outputs. Lanes of neighbouring cells exchange one of two channels,
/// so that a store takes the outputs of both cells. Called by whole warps.
template <int Columns, int Sets, bool Whole, class T>
TCONV_DEVICE void
store_runs(fragment_tile<Columns, Sets, Whole>& tile, T* base, const tensor_strides& strides, int channels)
{
  constexpr int neighbour = 4; // lane of the next cell
  const int lane          = own_lane();
  const int odd           = lane / neighbour % 2; // takes the second channel, and begins at the cell before it
  const int rest          = channels - tile.first_channel - odd;
  TCONV_PRAGMA_UNROLL
  for (int cell = 0; cell < 2; ++cell)
  {
    const bool exists = tile.run.count[cell] != 0;
    channel_walk<T> walk(
      base + (tile.run.first + cell * tile.run.cell_step - odd * Sets) + (tile.first_channel + odd) * strides.channel,
      strides.channel);
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Columns / 8; ++j)
    {
      const auto value = [&](int e, int set) -> float& { return tile(2 * j + e, cell * Sets + set); };
      // of[.][k] is of lane k's cell.
      constexpr int words = sizeof(T) == 4 || Sets == 1 ? Sets : 1; // that are exchanged for a channel
      unsigned of[words][2];
      TCONV_PRAGMA_UNROLL
      for (int e = 0; e < 2; ++e)
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < words; ++i)
        {
          if constexpr (words == Sets)
          {
            of[i][e] = opaque_bits(value(e, i));
          }
          else
          {
            of[i][e] = pack_pair<T>(value(e, 0), value(e, 1));
          }
        }
      }
      TCONV_PRAGMA_UNROLL
      for (auto& word : of)
      {
        transpose_lanes<2, neighbour>(word, lane);
      }
      if (exists && 8 * j < rest)
      {
        if constexpr (sizeof(T) == 2 && Sets == 1)
        {
          store_words<1>(
            walk.at, [&](int) { return pack_pair<T>(__uint_as_float(of[0][0]), __uint_as_float(of[0][1])); });
        }
        else
        {
          store_words<2 * words>(walk.at, [&](int i) { return of[i % words][i / words]; });
        }
      }
      walk.advance(8);
    }
  }
}

/// Channels first, any alignment. Where a lane holds two neighbouring outputs, two lanes exchange channels for outputs, so that
/// a store takes neighbouring outputs on neighbouring lanes: else every sector would be written in two parts. Called by whole warps.
template <int Columns, int Sets, bool Whole, class T>
TCONV_DEVICE void
store_outputs(fragment_tile<Columns, Sets, Whole>& tile, T* base, const tensor_strides& strides, int channels)
{
  const int lane  = own_lane();
  const int set   = lane % Sets;
  const int first = tile.first_channel - 2 * set; // of the 2 Sets channels that the lane stores, of each 8
  TCONV_PRAGMA_UNROLL
  for (int cell = 0; cell < 2; ++cell)
  {
    const int rest = set < tile.run.count[cell] ? channels - first : 0;
    channel_walk<T> walk(
      base + (tile.run.first + cell * tile.run.cell_step + set) + first * strides.channel, strides.channel);
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Columns / 8; ++j)
    {
      // A word is an output of one channel, or of two.
      constexpr int per_word = 4 / static_cast<int>(sizeof(T));
      unsigned of[2 / per_word][Sets];
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < Sets; ++i)
      {
        const float v = tile(2 * j, cell * Sets + i);
        const float w = tile(2 * j + 1, cell * Sets + i);
        if constexpr (per_word == 1)
        {
          of[0][i] = opaque_bits(v);
          of[1][i] = opaque_bits(w);
        }
        else
        {
          of[0][i] = pack_pair<T>(v, w);
        }
      }
      TCONV_PRAGMA_UNROLL
      for (auto& word : of)
      {
        transpose_lanes(word, lane);
      }
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < 2 * Sets; ++c)
      {
        if (8 * j + c < rest)
        {
          if constexpr (per_word == 1)
          {
            store_words<1>(walk.at, [&](int) { return of[c % 2][c / 2]; });
          }
          else
          {
            __stcs(
              reinterpret_cast<unsigned short*>(walk.at), static_cast<unsigned short>(of[0][c / 2] >> (c % 2 * 16)));
          }
        }
        walk.advance(c + 1 < 2 * Sets ? 1 : 9 - 2 * Sets);
      }
    }
  }
}

/// Channels last, fragment_channel_vector channels at once. Called by whole warps.
template <class Tile, class T>
TCONV_DEVICE void store_channel_vectors(Tile& tile, T* base, const tensor_strides& strides, int channels)
{
  constexpr int together = fragment_channel_vector<T>;
  const int lane         = own_lane();
  TCONV_PRAGMA_UNROLL
  for (int p = 0; p < Tile::positions(); ++p)
  {
    const int64_t at  = tile.position(p);
    const bool exists = at >= 0;
    T* position       = base + at * strides.position;
    if constexpr (together == 2)
    {
      TCONV_PRAGMA_UNROLL
      for (int j = 0; j < Tile::channels() / 2; ++j)
      {
        const int channel = tile.first_channel + 8 * j;
        if (exists && channel + 1 < channels)
        {
          store_words<2>(position + channel, [&](int e) { return opaque_bits(tile(2 * j + e, p)); });
        }
        else if (exists && channel < channels)
        {
          position[channel] = tile(2 * j, p);
        }
      }
    }
    else
    {
      // Lanes exchange pairs of channels for vectors.
      TCONV_PRAGMA_UNROLL
      for (int j = 0; j < Tile::channels() / 2; j += 4)
      {
        unsigned words[4];
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i)
        {
          words[i] = pack_pair<T>(tile(2 * (j + i), p), tile(2 * (j + i) + 1, p));
        }
        transpose_lanes(words, lane);
        const int channel = tile.first_channel + 6 * (lane % 4) + 8 * j;
        if (exists && channel + together <= channels)
        {
          __stcs(reinterpret_cast<uint4*>(position + channel), make_uint4(words[0], words[1], words[2], words[3]));
        }
        else if (exists)
        {
          TCONV_PRAGMA_UNROLL
          for (int c = 0; c < together; ++c)
          {
            if (channel + c < channels)
            {
              reinterpret_cast<unsigned short*>(position)[channel + c] = static_cast<unsigned short>(words[c / 2]
                                                                                                     >> (c % 2 * 16));
            }
          }
        }
      }
    }
  }
}

/// Channels last, one by one.
template <class Tile, class T>
TCONV_DEVICE void store_channels(Tile& tile, T* base, const tensor_strides& strides, int channels)
{
  TCONV_PRAGMA_UNROLL
  for (int p = 0; p < Tile::positions(); ++p)
  {
    const int64_t at = tile.position(p);
    T* position      = base + at * strides.position;
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < Tile::channels(); ++c)
    {
      if (at >= 0 && tile.channel(c) < channels)
      {
        position[tile.channel(c)] = from_float<T>(tile(c, p));
      }
    }
  }
}

/// Stores the valid outputs of \p tile below \p channels. \p base: position 0 of channel 0 of the sample. \p vector: channels first,
/// neighbouring cells have neighbouring outputs, and all rows of y begin and end on multiples of 2 Sets; channels last, all
/// positions begin on multiples of fragment_channel_vector. Called by whole warps.
template <int Columns, int Sets, bool Whole, class T>
TCONV_DEVICE void store_fragment(
  fragment_tile<Columns, Sets, Whole>& tile, T* base, const tensor_strides& strides, int channels, bool vector)
{
  if (strides.channels_last())
  {
    if (vector)
    {
      store_channel_vectors(tile, base, strides, channels);
    }
    else
    {
      store_channels(tile, base, strides, channels);
    }
  }
  else if (vector)
  {
    store_runs(tile, base, strides, channels);
  }
  else
  {
    store_outputs(tile, base, strides, channels);
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
