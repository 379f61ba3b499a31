// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// How accumulators of the tensor cores become outputs. The warpgroups that multiply leave them in shared memory, a part at a
/// time, and other warps finish them: there, channels of an output are neighbours, for functors across
/// channels, and lanes take neighbouring outputs, for stores of whole lines.

#include "../layout.hpp"
#include "../thread/chain.hpp"
#include "../thread/element.cuh"
#include "implicit_gemm_problem.hpp"
#include "lane_tile.cuh"
#include "stage_input.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Accumulators of a thread: blocks are sets or halves of the channels. See wgmma.cuh for which output is where.
template <class Policy>
using gemm_accumulators = float[Policy::blocks][tuning::implicit_gemm_cells / 2];

/// Writes part Part of the accumulators, scaled and, where Biased, with an offset per channel, to \p own: the place of the thread's first
/// channel and cell. \p scale, \p offset: of the thread's two channels in each half.
template <class Policy, int Part, bool Scaled, bool Biased>
TCONV_DEVICE void put_part(const gemm_accumulators<Policy>& sums,
                           float* own,
                           const float (&scale)[Policy::halves][2],
                           const float (&offset)[Policy::halves][2])
{
  constexpr int first = Part * Policy::part_cells / 2; // accumulator of a block
  constexpr int rest  = tuning::implicit_gemm_cells / 2 - first;
  constexpr int count = rest < Policy::part_cells / 2 ? rest : Policy::part_cells / 2;
  TCONV_PRAGMA_UNROLL
  for (int b = 0; b < Policy::blocks; ++b)
  {
    const int half = Policy::halves == 2 ? b : 0;
    float* at = own + (Policy::halves == 2 ? b * tuning::implicit_gemm_rows : b * Policy::set_rows * Policy::pitch);
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < count; ++i)
    {
      const int second = i % 4 / 2; // of the two channels
      float v          = sums[b][first + i];
      if constexpr (Scaled && Biased)
      {
        // Scales are powers of two: the same bits as one after the other.
        v = ::fmaf(v, scale[half][second], offset[half][second]);
      }
      else if constexpr (Scaled)
      {
        v *= scale[half][second];
      }
      else if constexpr (Biased)
      {
        v += offset[half][second];
      }
      at[(i / 4 * 8 + i % 2) * Policy::pitch + second * 8] = v;
    }
  }
}

/// One of the outputs of a part.
struct part_output
{
  int cell[2]; ///< along h and w, from the first of the run
  int set;
  int row;     ///< of the exchange
  bool exists; ///< it is a cell of the run

  /// Output \p number of part \p part, which has part_cells * sets. Neighbours are neighbours in memory.
  template <class Policy>
  TCONV_DEVICE static part_output of(const gemm_problem& problem, const small_divisor& width, int part, int number)
  {
    const int in_part = number / Policy::sets;
    const int column  = part * Policy::part_cells + in_part;
    part_output result;
    result.set     = number % Policy::sets;
    result.cell[0] = width.quotient(column);
    result.cell[1] = column - result.cell[0] * problem.width;
    result.row     = in_part + result.set * Policy::set_rows;
    result.exists  = result.cell[0] < problem.run_box[1] && result.cell[1] < problem.run_box[2]
                 && column < tuning::implicit_gemm_cells;
    return result;
  }
};

/// Where the outputs of a run and phase stand. Uniform.
struct output_places
{
  int64_t plane; ///< first position of the plane
  int first[2];  ///< output of the run's first cell and set, along h and w; beyond all outputs where the plane does not exist

  /// Its position; negative where there is no such output.
  TCONV_DEVICE int64_t position(const gemm_problem& problem, const part_output& output) const
  {
    const auto out_h = static_cast<int>(problem.axis[1].out);
    const auto out_w = static_cast<int>(problem.axis[2].out);
    const int h      = first[0] + output.cell[0] * static_cast<int>(problem.axis[1].stride);
    const int w      = first[1] + output.cell[1] * static_cast<int>(problem.axis[2].stride) + output.set;
    return output.exists && h < out_h && w < out_w ? plane + (static_cast<int64_t>(h) * out_w + w) : -1;
  }
};

/// 16 channels of one output of a part, the others on neighbouring lanes. A lane takes a few neighbouring channels, then as many further
/// on: so that lanes meet different banks. \p Whole: the tile has no padding channels.
template <class Policy, bool Whole>
struct exchange_tile
{
  static constexpr int held  = 16;
  static constexpr int lanes = Policy::channels / held; ///< of an output
  static constexpr int hop   = Policy::sets == 2 || lanes == 8 ? 4 : 8;

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

/// Elements of T that one store takes: neighbouring outputs of a channel, or with channels last neighbouring channels.
template <class T>
TCONV_HOST_DEVICE constexpr int store_width(bool channels_last)
{
  return channels_last ? 16 / static_cast<int>(sizeof(T)) : 2;
}

/// What is stored of the outputs of a part.
template <class T>
struct output_target
{
  T* sample; ///< position 0 of channel 0
  tensor_strides strides;
  int n;
  int first_channel;  ///< of the tile
  int channels;       ///< that y has
  int channels_total; ///< that the chain has operands for
  bool vector;        ///< every store_width() outputs or channels may be stored at once
};

/// Loads \p Run neighbouring outputs, from \p number on, of \p Channels channels, the first of which is \p channel of the tile, from the
/// exchange, finishes and stores them.
template <class Policy, int Channels, int Run, class Chain, class T>
TCONV_DEVICE void finish_outputs(const Chain& functors,
                                 const gemm_problem& problem,
                                 const small_divisor& width,
                                 const output_places& places,
                                 const float* exchange,
                                 const output_target<T>& to,
                                 int part,
                                 int number,
                                 int channel)
{
  float values[Channels][Run];
  int64_t position[Run];
  TCONV_PRAGMA_UNROLL
  for (int p = 0; p < Run; ++p)
  {
    const auto output = part_output::of<Policy>(problem, width, part, number + p);
    const float* row  = exchange + output.row * Policy::pitch + channel;
    position[p]       = places.position(problem, output);
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
  channel += to.first_channel;
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
    if (to.vector && rest >= Channels)
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

/// Finishes and stores a part. Called by the threads that finish a run, \p thread being the calling one.
template <class Policy, class Chain, class T>
TCONV_DEVICE void store_part(const Chain& functors,
                             const gemm_problem& problem,
                             const output_places& places,
                             const float* exchange,
                             const output_target<T>& to,
                             int part,
                             int thread)
{
  constexpr int threads = Policy::finishing_threads;
  constexpr int outputs = Policy::part_cells * Policy::sets;
  const small_divisor width(problem.width);
  if (to.strides.channels_last())
  {
    constexpr int together = store_width<T>(true);
    constexpr int lanes    = Policy::channels / together;
#pragma unroll 1
    for (int number = thread / lanes; number < outputs; number += threads / lanes)
    {
      finish_outputs<Policy, together, 1>(
        functors, problem, width, places, exchange, to, part, number, thread % lanes * together);
    }
  }
  else if (to.vector)
  {
    // Lanes take neighbouring outputs, as many as there are, then other channels.
    constexpr int pairs = outputs / 2;
    static_assert(threads / pairs * 8 == Policy::channels, "tconv: every thread has 8 channels of a pair");
    finish_outputs<Policy, 8, 2>(
      functors, problem, width, places, exchange, to, part, thread % pairs * 2, thread / pairs * 8);
  }
  else
  {
    static_assert(threads / outputs * 16 == Policy::channels, "tconv: every thread has 16 channels of an output");
    finish_outputs<Policy, 16, 1>(
      functors, problem, width, places, exchange, to, part, thread % outputs, thread / outputs * 16);
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
