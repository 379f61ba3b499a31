// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Loads of input tiles into shared memory: [group][channel][d][h][w] floats, zeros outside the input, from either layout and
/// any element type.

#include "../thread/element.cuh"
#include "async_copy.cuh"
#include "gather_problem.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Which inputs a block stages; the extents along d, h and w are those of the problem.
struct input_box
{
  int64_t begin[3]; ///< first position per axis; may lie outside the input, as may the last
  int channels;     ///< per group
  int groups;       ///< convolution groups side by side
};

/// Which of \p extent staged positions of an axis, the first of which is position \p begin, lie inside [0, in).
struct staged_range
{
  int begin;
  int end;

  TCONV_DEVICE staged_range(int64_t first, int extent, int64_t in)
      : begin(first < 0 ? static_cast<int>(-first < extent ? -first : extent) : 0)
      , end(static_cast<int>(in - first < extent ? in - first : extent))
  {}
  TCONV_DEVICE bool contains(int i) const { return i >= begin && i < end; }
};

/// Division of numbers below 2^21 by one divisor, by a reciprocal: exact, because (n + 1/2) / d is at least 1/(2d) away from any
/// integer, far beyond the rounding of the product.
class small_divisor
{
public:
  TCONV_DEVICE explicit small_divisor(int divisor) : reciprocal_(1.0f / static_cast<float>(divisor)) {}
  TCONV_DEVICE int quotient(int n) const { return static_cast<int>((static_cast<float>(n) + 0.5f) * reciprocal_); }

private:
  float reciprocal_;
};

/// Copies 4 elements to 16-byte aligned shared memory, or zeros without reading; the source is aligned to 4 elements.
TCONV_DEVICE void copy_quad(float* target, const float* source, bool inside)
{
  copy_async_16_or_zero(target, source, inside);
}
template <class In>
TCONV_DEVICE void copy_quad(float* target, const In* source, bool inside)
{
  element_vector<In, 4> v{};
  if (inside)
  {
    v.load(source);
  }
  *reinterpret_cast<float4*>(target) = make_float4(
    to_float(v.values[0]), to_float(v.values[1]), to_float(v.values[2]), to_float(v.values[3]));
}

/// Copies one element, or a zero without reading.
TCONV_DEVICE void copy_element(float* target, const float* source, bool inside)
{
  copy_async_or_zero(target, source, inside);
}
template <class In>
TCONV_DEVICE void copy_element(float* target, const In* source, bool inside)
{
  *target = inside ? to_float(*source) : 0.0f;
}

/// Stages \p box of a channels-first input: a warp copies one row, or several short ones side by side.
template <int Threads, class In>
TCONV_DEVICE void stage_rows(const gather_problem& problem, const input_box& box, const In* x, float* staged)
{
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const staged_range inside_d(box.begin[0], problem.rows[0], problem.axis[0].in);
  const staged_range inside_h(box.begin[1], problem.rows[1], problem.axis[1].in);
  const staged_range inside_w(box.begin[2], problem.width, problem.axis[2].in);
  // Rows of whole quads of an aligned tensor lie in it with whole quads or not at all. A channel slice starts on a channel.
  const bool quads = problem.quads && reinterpret_cast<unsigned long long>(x) % (4 * sizeof(In)) == 0;

  // Rows are numbered (group, channel, d, h).
  const int width          = quads ? 4 : 1;
  const int columns        = (problem.width + width - 1) / width;
  const int at_once        = columns < 32 ? 32 / columns : 1;
  const int sub_row        = at_once > 1 ? lane / columns : 0;
  const int column         = (at_once > 1 ? lane % columns : lane) * width;
  const int64_t row_step   = problem.axis[2].in;
  const int64_t plane_step = problem.axis[1].in * row_step;
  const int plane_rows     = problem.rows[0] * problem.rows[1];
  const int rows           = box.groups * box.channels * plane_rows;
  const small_divisor by_plane(plane_rows);
  const small_divisor by_height(problem.rows[1]);
  const In* corner = x + (box.begin[0] * plane_step + box.begin[1] * row_step + box.begin[2] + column);
  for (int row = static_cast<int>(threadIdx.x) / 32 * at_once + sub_row; sub_row < at_once && row < rows;
       row += Threads / 32 * at_once)
  {
    int c       = by_plane.quotient(row);
    const int p = row - c * plane_rows;
    const int d = by_height.quotient(p);
    const int h = p - d * problem.rows[1];
    int target  = c * problem.plane + p * problem.pitch + column;
    if (box.groups > 1)
    {
      const int g = c / box.channels;
      c += g * static_cast<int>(problem.taps.in_per_group - box.channels);
      target += g * (problem.chunk - box.channels) * problem.plane;
    }
    const In* source      = corner + c * problem.x.channel + d * plane_step + h * row_step;
    const bool row_inside = inside_h.contains(h) && inside_d.contains(d);
    for (int w = 0; w + column < problem.width; w += 32 * width)
    {
      const bool inside = row_inside && inside_w.contains(w + column);
      if (quads)
      {
        copy_quad(staged + target + w, inside ? source + w : x, inside);
      }
      else
      {
        copy_element(staged + target + w, inside ? source + w : x, inside);
      }
    }
  }
}

/// Stages \p box of a channels-last input: neighbouring threads take neighbouring channels, each Width positions along w.
template <int Threads, int Width, class In>
TCONV_DEVICE void stage_positions(const gather_problem& problem, const input_box& box, const In* x, float* staged)
{
  const staged_range inside_d(box.begin[0], problem.rows[0], problem.axis[0].in);
  const staged_range inside_h(box.begin[1], problem.rows[1], problem.axis[1].in);
  const staged_range inside_w(box.begin[2], problem.width, problem.axis[2].in);
  const int channels = box.groups * box.channels;
  const int columns  = (problem.width + Width - 1) / Width;
  const int total    = channels * problem.rows[0] * problem.rows[1] * columns;
  const small_divisor by_channels(channels);
  const small_divisor by_columns(columns);
  const small_divisor by_height(problem.rows[1]);
  for (int i = static_cast<int>(threadIdx.x); i < total; i += Threads)
  {
    // Numbered (d, h, w, group, channel).
    int rest   = by_channels.quotient(i);
    int c      = i - rest * channels;
    int row    = by_columns.quotient(rest);
    int w      = (rest - row * columns) * Width;
    int d      = by_height.quotient(row);
    int h      = row - d * problem.rows[1];
    int target = c * problem.plane + row * problem.pitch + w;
    if (box.groups > 1)
    {
      const int g = c / box.channels;
      c += g * static_cast<int>(problem.taps.in_per_group - box.channels);
      target += g * (problem.chunk - box.channels) * problem.plane;
    }
    const bool row_inside = inside_h.contains(h) && inside_d.contains(d);
    const int64_t first   = ((box.begin[0] + d) * problem.axis[1].in + box.begin[1] + h) * problem.axis[2].in
                        + box.begin[2] + w;
    float values[Width];
    TCONV_PRAGMA_UNROLL
    for (int j = 0; j < Width; ++j)
    {
      values[j] = row_inside && inside_w.contains(w + j) ? to_float(x[(first + j) * problem.x.position + c]) : 0.0f;
    }
    if constexpr (Width == 4)
    {
      *reinterpret_cast<float4*>(staged + target) = make_float4(values[0], values[1], values[2], values[3]);
    }
    else
    {
      staged[target] = values[0];
    }
  }
}

/// Stages \p box. \p x: first channel of the first group, of the sample. Called by the whole block; the copies may be
/// asynchronous: the caller commits and waits, then synchronises.
template <int Threads, class In>
TCONV_DEVICE void stage_input(const gather_problem& problem, const input_box& box, const In* x, float* staged)
{
  if (!problem.x.channels_last())
  {
    stage_rows<Threads>(problem, box, x, staged);
  }
  else if (problem.quads)
  {
    stage_positions<Threads, 4>(problem, box, x, staged);
  }
  else
  {
    stage_positions<Threads, 1>(problem, box, x, staged);
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
