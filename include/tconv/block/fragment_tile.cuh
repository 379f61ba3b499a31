// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The accumulators of a warpgroup matrix instruction as tiles of values, and how they get from there to memory.
///
/// A thread holds two channels of many outputs. Functors that look at one value at a time are applied to them there, so that operands of
/// a channel are read twice and not once per output. Then the outputs pass through shared memory, where the channels of an
/// output are neighbours: for functors across channels, and for stores of whole lines.

#include "../layout.hpp"
#include "../thread/chain.hpp"
#include "../thread/element.cuh"
#include "implicit_gemm_problem.hpp"
#include "lane_tile.cuh"
#include "stage_input.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Accumulators of a thread; see wgmma.cuh for which output is where.
template <class Policy>
using gemm_accumulators = float[Policy::sets][tuning::implicit_gemm_cells / 2];

/// The accumulators of one thread as the chain sees them (tile concept of chain.hpp), but for rows and positions: functors that ask for
/// either see their tile later.
template <class Policy>
struct fragment_tile
{
  gemm_accumulators<Policy>& sums;
  int n;
  int first_channel; ///< of the thread; the other one is 8 beyond
  int channels_total;

  TCONV_DEVICE static constexpr int channels() { return 2; }
  TCONV_DEVICE static constexpr int positions() { return Policy::sets * tuning::implicit_gemm_cells / 4; }
  TCONV_DEVICE float& operator()(int c, int p)
  {
    const int cell = p / Policy::sets;
    return sums[p % Policy::sets][cell / 2 * 4 + 2 * c + cell % 2];
  }
  /// Padding channels read the operands of the last real one.
  TCONV_DEVICE coordinate at(int c) const
  {
    const int channel = first_channel + 8 * c;
    return {n, channel < channels_total ? channel : channels_total - 1};
  }
};

/// Room for the outputs of Policy::finished_cells cells.
template <class Policy>
inline constexpr gemm_exchange exchange_of{Policy::channels, Policy::finished_cells, Policy::sets};

/// Writes the accumulators of Policy::finished_cells cells, from cell First on, for the exchange. \p own: the place of the thread's first
/// channel and first cell.
template <class Policy, int First>
TCONV_DEVICE void put_outputs(const gemm_accumulators<Policy>& sums, float* own)
{
  constexpr gemm_exchange room = exchange_of<Policy>;
  TCONV_PRAGMA_UNROLL
  for (int set = 0; set < Policy::sets; ++set)
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < Policy::finished_cells / 2; ++i)
    {
      const int row                                               = set * room.set_rows() + i / 4 * 8 + i % 2;
      own[row * room.pitch() + i % 4 / 2 * 8] = sums[set][First / 2 + i];
    }
  }
}

/// The outputs that are exchanged at a time: those of cells [first, first + count) among the cells of the warpgroup's tile, counted row
/// after row. Uniform.
struct exchanged_cells
{
  int column; ///< first staged position that was multiplied for them, from the first position of the tile
  int first;
  int count;

  /// \p begin: first column of Cells, from the first position of the tile.
  TCONV_DEVICE exchanged_cells(const gemm_problem& problem, int begin, int cells) : column(begin)
  {
    const int wide    = problem.box[2];
    const int all     = wide * problem.box[1];
    const auto before = [&](int at) {
      const int row  = at / problem.width;
      const int rest = at - row * problem.width;
      const int here = row * wide + (rest < wide ? rest : wide);
      return here < all ? here : all;
    };
    first = before(begin);
    count = before(begin + cells) - first;
  }
};

/// One of the outputs that are exchanged.
struct exchanged_output
{
  int cell[2]; ///< along h and w, from the first of the tile
  int set;
  int row; ///< of the exchange

  /// \p number: in [0, cells.count * sets).
  template <class Policy>
  TCONV_DEVICE static exchanged_output
  of(const gemm_problem& problem, const exchanged_cells& cells, const small_divisor& wide, int number)
  {
    const int index = cells.first + number / Policy::sets;
    exchanged_output result;
    result.set     = number % Policy::sets;
    result.cell[0] = wide.quotient(index);
    result.cell[1] = index - result.cell[0] * problem.box[2];
    result.row     = result.set * exchange_of<Policy>.set_rows()
               + (result.cell[0] * problem.width + result.cell[1] - cells.column);
    return result;
  }
};

/// Where the outputs of a tile and phase stand. Uniform.
struct output_places
{
  int64_t plane; ///< first position of the plane
  int first[2];  ///< output of the tile's first cell and set, along h and w
  int step[2];   ///< from cell to cell
  int end[2];    ///< outputs along h and w; none in a plane that does not exist

  /// Its position; negative where there is no such output.
  TCONV_DEVICE int64_t position(const exchanged_output& output) const
  {
    const int h = first[0] + output.cell[0] * step[0];
    const int w = first[1] + output.cell[1] * step[1] + output.set;
    return h < end[0] && w < end[1] ? plane + (static_cast<int64_t>(h) * end[1] + w) : -1;
  }
};

/// 32 channels of one exchanged output, the others on neighbouring lanes. A lane takes a few neighbouring channels, then as many further
/// on: so that the lanes of an output meet different banks. \p Whole: the tile has no padding channels.
template <class Policy, bool Whole>
struct exchange_tile
{
  static constexpr int held  = 32;
  static constexpr int lanes = Policy::channels / held; ///< of an output
  static constexpr int hop   = 32 / (lanes * Policy::sets);

  float values[held];
  int n;
  int first_channel; ///< of the thread
  int channels_total;
  int64_t number; ///< of the position

  TCONV_DEVICE static constexpr int place(int i) { return i / hop * hop * lanes + i % hop; }

  TCONV_DEVICE static constexpr int channels() { return held; }
  TCONV_DEVICE static constexpr int positions() { return 1; }
  TCONV_DEVICE float& operator()(int c, int) { return values[c]; }
  TCONV_DEVICE int64_t position(int) const { return number; }
  TCONV_DEVICE int channel(int i) const { return first_channel + place(i); }
  TCONV_DEVICE bool valid(int i) const { return Whole || channel(i) < channels_total; }
  /// Padding channels read the operands of the last real one.
  TCONV_DEVICE coordinate at(int c) const { return {n, valid(c) ? channel(c) : channels_total - 1}; }

  /// From and to the exchange; \p row: the thread's first channel.
  TCONV_DEVICE void load(const float* row)
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < held; i += 4)
    {
      const float4 v = *reinterpret_cast<const float4*>(row + place(i));
      values[i]      = v.x;
      values[i + 1]  = v.y;
      values[i + 2]  = v.z;
      values[i + 3]  = v.w;
    }
  }
  TCONV_DEVICE void store(float* row) const
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < held; i += 4)
    {
      *reinterpret_cast<float4*>(row + place(i)) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  }

  /// The channels of the output (row concept of row.hpp).
  struct exchange_row
  {
    exchange_tile& tile;

    TCONV_DEVICE static constexpr int size() { return held; }
    TCONV_DEVICE float& operator[](int i) { return tile.values[i]; }
    TCONV_DEVICE int64_t channel(int i) const { return tile.channel(i); }
    TCONV_DEVICE int64_t channels() const { return tile.channels_total; }
    TCONV_DEVICE bool valid(int i) const { return tile.valid(i); }

    /// Called by the whole warp. The butterfly adds the same two numbers in both lanes, so all lanes get the same bits.
    template <class Op>
    TCONV_DEVICE float all_reduce(float v, Op op) const
    {
      TCONV_PRAGMA_UNROLL
      for (int distance = 1; distance < lanes; distance *= 2)
      {
        v = op(v, __shfl_xor_sync(0xffffffffu, v, distance));
      }
      return v;
    }
  };
  TCONV_DEVICE exchange_row row(int) { return {*this}; }
};

/// Channels of a fragment that a warp holds: what it stores as well, so that nobody else waits for it.
inline constexpr int warp_channels = 16;

/// Elements of T that one store takes: neighbouring outputs of a channel, or with channels last neighbouring channels.
template <class T>
TCONV_HOST_DEVICE constexpr int store_width(bool channels_last)
{
  return channels_last ? 16 / static_cast<int>(sizeof(T)) : 2;
}

/// What a warp stores of the exchanged outputs.
template <class T>
struct output_target
{
  T* sample;              ///< position 0 of channel 0
  tensor_strides strides;
  int n;
  int first_channel;      ///< of the warp
  int channels;           ///< that y has
  int channels_total;     ///< that the chain has operands for
  bool vector;            ///< every store_width() outputs or channels may be stored at once
};

/// Loads \p Run neighbouring outputs of \p Channels channels from the exchange, from the channel at \p exchange on, finishes them and
/// stores them. \p number: of the first output; clamped where \p exists is false.
template <class Policy, int Channels, int Run, class Chain, class T>
TCONV_DEVICE void finish_outputs(const Chain& functors,
                                 const gemm_problem& problem,
                                 const exchanged_cells& cells,
                                 const small_divisor& wide,
                                 const output_places& places,
                                 const float* exchange,
                                 const output_target<T>& to,
                                 int channel,
                                 int number,
                                 bool vector)
{
  constexpr int pitch = exchange_of<Policy>.pitch();
  float values[Channels][Run];
  int64_t position[Run];
  TCONV_PRAGMA_UNROLL
  for (int p = 0; p < Run; ++p)
  {
    const auto output = exchanged_output::of<Policy>(problem, cells, wide, number + p);
    const float* row  = exchange + output.row * pitch;
    position[p]       = places.position(output);
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < Channels; c += 4)
    {
      const float4 v   = *reinterpret_cast<const float4*>(row + c);
      values[c][p]     = v.x;
      values[c + 1][p] = v.y;
      values[c + 2][p] = v.z;
      values[c + 3][p] = v.w;
    }
  }
  if constexpr (Chain::length > 0)
  {
    const auto locate = [&](int p) { return position[p]; };
    lane_tile<Channels, Run, 0, decltype(locate)> tile{values, to.n, channel, to.channels_total, 1, locate};
    apply(functors, tile);
  }
  const int rest = position[0] < 0 ? 0 : to.channels - channel;
  if (to.strides.channels_last())
  {
    T* at = to.sample + position[0] * to.strides.position + channel;
    if (vector && rest >= Channels)
    {
      store_streaming<Channels>(at, [&](int c) { return values[c][0]; });
      return;
    }
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < Channels; ++c)
    {
      if (c < rest)
      {
        at[c] = from_float<T>(values[c][0]);
      }
    }
    return;
  }
  T* at = to.sample + position[0] + channel * to.strides.channel;
  TCONV_PRAGMA_UNROLL
  for (int c = 0; c < Channels; ++c)
  {
    if (c < rest)
    {
      store_streaming<Run>(at, [&](int p) { return values[c][p]; });
    }
    at += to.strides.channel;
  }
}

/// Finishes and stores what the calling warp has put into the exchange; \p exchange: its first channel. Called by whole warps.
template <class Policy, class Chain, class T>
TCONV_DEVICE void store_outputs(const Chain& functors,
                                const gemm_problem& problem,
                                const exchanged_cells& cells,
                                const output_places& places,
                                const float* exchange,
                                const output_target<T>& to)
{
  const small_divisor wide(problem.box[2]);
  const int lane  = static_cast<int>(threadIdx.x) % 32;
  const int count = cells.count * Policy::sets;
  if (to.strides.channels_last())
  {
    constexpr int together = store_width<T>(true);
    constexpr int lanes    = warp_channels / together;
    const int channel      = lane % lanes * together;
#pragma unroll 1
    for (int number = lane / lanes; number < count; number += 32 / lanes)
    {
      finish_outputs<Policy, together, 1>(functors,
                                          problem,
                                          cells,
                                          wide,
                                          places,
                                          exchange + channel,
                                          to,
                                          to.first_channel + channel,
                                          number,
                                          to.vector);
    }
  }
  else if (to.vector)
  {
    constexpr int run = store_width<T>(false);
#pragma unroll 1
    for (int number = lane * run; number < count; number += 32 * run)
    {
      finish_outputs<Policy, warp_channels, run>(
        functors, problem, cells, wide, places, exchange, to, to.first_channel, number, true);
    }
  }
  else
  {
#pragma unroll 1
    for (int number = lane; number < count; number += 32)
    {
      finish_outputs<Policy, warp_channels, 1>(
        functors, problem, cells, wide, places, exchange, to, to.first_channel, number, false);
    }
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
