// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The accumulators of a warpgroup matrix instruction as a tile of values: rows of channels lie on the four lanes of a quad.

#include "../detail/math.hpp"
#include "../layout.hpp"
#include "../thread/chain.hpp"
#include "../thread/element.cuh"
#include "../tuning/implicit_gemm.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Which outputs of a thread exist: the i-th of them stands at position first + i * step of its channel.
struct fragment_run
{
  int64_t first;
  int step;
  int count;       ///< 0 where the thread has none
  int sets;        ///< that are held, where there is room for more than two
  float* exchange; ///< of the warp, where the policy has one
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
  /// The number of output \p p in the run. Room for more sets than are held leaves gaps.
  TCONV_DEVICE int number(int p) const { return Sets > 2 ? p / Sets * run.sets + p % Sets : p; }
  TCONV_DEVICE bool exists(int p) const { return (Sets <= 2 || p % Sets < run.sets) && number(p) < run.count; }
  TCONV_DEVICE int64_t position(int p) const { return exists(p) ? run.first + number(p) * run.step : -1; }
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

/// Word i of lane k becomes word k of lane i, among Count neighbouring lanes. \p lane: the calling one. Called by whole warps.
template <int Count>
TCONV_DEVICE void transpose_lanes(unsigned (&words)[Count], int lane)
{
  TCONV_PRAGMA_UNROLL
  for (int distance = 1; distance < Count; distance *= 2)
  {
    const bool upper = (lane & distance) != 0;
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < Count; ++i)
    {
      if ((i & distance) == 0)
      {
        unsigned& low           = words[i];
        unsigned& high          = words[i + distance];
        const unsigned received = __shfl_xor_sync(0xffffffffu, upper ? low : high, distance);
        low                     = upper ? received : low;
        high                    = upper ? high : received;
      }
    }
  }
}

/// Stores Count neighbouring values; the target is aligned to them. Streaming: they are not read again.
template <int Count, class T, class Values>
TCONV_DEVICE void store_run(T* target, Values values)
{
  static_assert(Count == 1 || Count == 2 || Count == 4, "tconv: runs have 1, 2 or 4 outputs");
  if constexpr (Count == 4)
  {
    store_streaming<4>(target, values);
  }
  else if constexpr (Count == 2)
  {
    if constexpr (sizeof(T) == 4)
    {
      __stcs(reinterpret_cast<float2*>(target), make_float2(values(0), values(1)));
    }
    else
    {
      __stcs(reinterpret_cast<unsigned*>(target), pack_pair<T>(values(0), values(1)));
    }
  }
  else if constexpr (sizeof(T) == 4)
  {
    __stcs(target, values(0));
  }
  else
  {
    __stcs(reinterpret_cast<unsigned short*>(target), static_cast<unsigned short>(pack_pair<T>(values(0), values(0))));
  }
}

/// Channels of a fragment in the order of memory, for a pointer that walks over them. Opaque: else every channel's address is formed
/// anew, or kept through the main loop.
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

/// The outputs of one channel of a tile, copied: what functors make of them in registers that one store takes as they are.
template <class Tile>
struct channel_copy
{
  Tile& tile;
  int c;
  float values[Tile::positions()];

  TCONV_DEVICE channel_copy(Tile& of, int channel) : tile(of), c(channel)
  {
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < Tile::positions(); ++p)
    {
      values[p] = of(channel, p);
    }
  }
  TCONV_DEVICE static constexpr int channels() { return 1; }
  TCONV_DEVICE static constexpr int positions() { return Tile::positions(); }
  TCONV_DEVICE float& operator()(int, int p) { return values[p]; }
  TCONV_DEVICE int64_t position(int p) const { return tile.position(p); }
  TCONV_DEVICE coordinate at(int) const { return tile.at(c); }
};

/// Channels first, whole runs at once, finished by \p functors on the way.
template <class Tile, class T, class Chain>
TCONV_DEVICE void
store_whole_runs(Tile& tile, T* base, const tensor_strides& strides, int channels, const Chain& functors)
{
  if (tile.run.count == 0)
  {
    return;
  }
  const int rest = channels - tile.first_channel; // channels from the thread's first on
  channel_walk<T> walk(base + tile.run.first + tile.first_channel * strides.channel, strides.channel);
  const auto store = [&](bool all) {
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < Tile::channels(); ++c)
    {
      if (all || c / 2 * 8 + c % 2 < rest)
      {
        channel_copy<Tile> finished(tile, c);
        apply(functors, finished);
        store_run<Tile::positions()>(walk.at, [&](int p) { return finished.values[p]; });
      }
      walk.advance(c % 2 == 0 ? 1 : 7);
    }
  };
  if (rest >= Tile::channels() * 4 - 6)
  {
    store(true);
  }
  else
  {
    store(false);
  }
}

/// Channels first, any alignment and step. The lanes of a quad exchange channels for outputs, so that a store takes neighbouring
/// outputs on neighbouring lanes, as far as the runs of quads follow each other: without, every sector would be written
/// in as many parts as a thread has outputs. Called by whole warps.
template <class Tile, class T>
TCONV_DEVICE void store_across_lanes(Tile& tile, T* base, const tensor_strides& strides, int channels)
{
  constexpr int held     = Tile::positions();
  const int lane         = own_lane();
  const int output       = lane % held;
  const int64_t position = tile.position(output);
  const int first        = tile.first_channel - 2 * output; // of the 2 * held channels that the lane gets, of each 8
  const int rest         = position >= 0 ? channels - first : 0;
  channel_walk<T> walk(base + position + first * strides.channel, strides.channel);
  TCONV_PRAGMA_UNROLL
  for (int j = 0; j < Tile::channels() / 2; ++j)
  {
    // A word is an output of one channel, or of two.
    constexpr int per_word = 4 / static_cast<int>(sizeof(T));
    unsigned words[2 / per_word][held];
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < held; ++p)
    {
      if constexpr (per_word == 1)
      {
        words[0][p] = opaque_bits(tile(2 * j, p));
        words[1][p] = opaque_bits(tile(2 * j + 1, p));
      }
      else
      {
        words[0][p] = pack_pair<T>(tile(2 * j, p), tile(2 * j + 1, p));
      }
    }
    TCONV_PRAGMA_UNROLL
    for (auto& of_channel : words)
    {
      transpose_lanes(of_channel, lane);
    }
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < 2 * held; ++c)
    {
      if (8 * j + c < rest)
      {
        if constexpr (per_word == 1)
        {
          __stcs(walk.at, __uint_as_float(words[c % 2][c / 2]));
        }
        else
        {
          __stcs(
            reinterpret_cast<unsigned short*>(walk.at), static_cast<unsigned short>(words[0][c / 2] >> (c % 2 * 16)));
        }
      }
      walk.advance(c + 1 < 2 * held ? 1 : 9 - 2 * held);
    }
  }
}

/// Channels first, more than two sets: 8 channels at a time pass through the warp's shared memory, so that a store takes Together (1 or 2)
/// neighbouring outputs on each of neighbouring lanes. Two only where rows of y begin and end on multiples of two. Called by whole warps.
template <int Together, class Tile, class T>
TCONV_DEVICE void store_through_exchange(Tile& tile, T* base, const tensor_strides& strides, int channels)
{
  constexpr int sets    = Tile::positions() / 2;
  constexpr int most    = 16 * sets / (32 * Together); // stores of a lane for a channel
  constexpr int at_once = 16 / (most * Together);      // channels whose values are on their way
  using rows            = fragment_exchange<sets>;
  const int lane        = own_lane();
  const int first       = tile.first_channel - lane % 4 * 2;
  struct
  {
    const float* from[Together];
    T* to;
    int channels; ///< 0 where there are no such outputs
  } stores[most];
  TCONV_PRAGMA_UNROLL
  for (int i = 0; i < most; ++i)
  {
    // Of the warp's 16 cells, which are the runs of its quads.
    const int number    = Together * (lane + 32 * i);
    const int pair      = min(number / (2 * tile.run.sets), 7);
    const int within    = number - pair * 2 * tile.run.sets;
    const int count     = __shfl_sync(0xffffffffu, tile.run.count, 4 * pair);
    const int64_t begin = __shfl_sync(0xffffffffu, tile.run.first, 4 * pair);
    TCONV_PRAGMA_UNROLL
    for (int e = 0; e < Together; ++e)
    {
      const int second  = within + e < tile.run.sets ? 0 : 1; // cell
      const int set     = within + e - second * tile.run.sets;
      stores[i].from[e] = tile.run.exchange + ((2 * pair + second) * sets + min(set, sets - 1));
    }
    stores[i].to       = base + (begin + within + first * strides.channel);
    stores[i].channels = within < count ? channels - first : 0;
  }
  int64_t step = strides.channel;
  asm volatile("" : "+l"(step));
  float4* const own = reinterpret_cast<float4*>(tile.run.exchange + rows::row(2 * (lane % 4)) + lane / 4 * (2 * sets));
  TCONV_PRAGMA_UNROLL
  for (int j = 0; j < Tile::channels() / 2; ++j)
  {
    __syncwarp(); // what was there has been read
    TCONV_PRAGMA_UNROLL
    for (int e = 0; e < 2; ++e)
    {
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < 2 * sets; p += 4)
      {
        own[(rows::row(e) + p) / 4] = make_float4(
          tile(2 * j + e, p), tile(2 * j + e, p + 1), tile(2 * j + e, p + 2), tile(2 * j + e, p + 3));
      }
    }
    __syncwarp();
    TCONV_PRAGMA_UNROLL
    for (int begin = 0; begin < 8; begin += at_once)
    {
      float values[at_once][most][Together];
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < at_once; ++c)
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < most; ++i)
        {
          TCONV_PRAGMA_UNROLL
          for (int e = 0; e < Together; ++e)
          {
            values[c][i][e] = stores[i].from[e][rows::row(begin + c)];
          }
        }
      }
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < at_once; ++c)
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < most; ++i)
        {
          if (8 * j + begin + c < stores[i].channels)
          {
            store_run<Together>(stores[i].to, [&](int e) { return values[c][i][e]; });
          }
          stores[i].to += step;
          asm volatile("" : "+l"(stores[i].to)); // else its address is formed anew for every store
        }
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
          store_run<2>(position + channel, [&](int e) { return tile(2 * j + e, p); });
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

/// Finishes the valid outputs of \p tile below \p channels by \p functors, none of which is one across channels, and stores them. \p base:
/// position 0 of channel 0 of the sample. \p vector: channels first,
/// all rows of y begin and end on multiples of what a store takes (gemm_problem::stored_together()); channels last, all positions begin on multiples of
/// fragment_channel_vector. Called by whole warps.
template <class Tile, class T, class Chain>
TCONV_DEVICE void
store_fragment(Tile& tile, T* base, const tensor_strides& strides, int channels, bool vector, const Chain& functors)
{
  constexpr bool exchanged = Tile::positions() > 4;
  if constexpr (!exchanged)
  {
    if (vector && !strides.channels_last() && tile.run.step == 1)
    {
      store_whole_runs(tile, base, strides, channels, functors);
      return;
    }
  }
  apply(functors, tile);
  if (!strides.channels_last())
  {
    if constexpr (exchanged)
    {
      if (vector)
      {
        store_through_exchange<2>(tile, base, strides, channels);
      }
      else
      {
        store_through_exchange<1>(tile, base, strides, channels);
      }
    }
    else
    {
      store_across_lanes(tile, base, strides, channels);
    }
  }
  else if (vector)
  {
    store_channel_vectors(tile, base, strides, channels);
  }
  else
  {
    store_channels(tile, base, strides, channels);
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
