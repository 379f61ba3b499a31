// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The spectrum of x for the sizes of tuning::volume_sizes: each thread transforms whole lines in registers.

#include "../block/fourier.cuh"
#include "../block/load_async.cuh"
#include "../block/split_complex.cuh"
#include "../detail/launch.cuh"
#include "../detail/spectral_plan.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// \p spectra (see spectral_problem::spectra) of x. A block takes one channel of one sample.
template <class Policy, class Size, class In>
__global__ __launch_bounds__(Policy::volume_threads, 2) void transform_volume(
  const __grid_constant__ spectral_problem problem, const In* x, bool quads, uint2* spectra)
{
  constexpr int threads   = Policy::volume_threads;
  constexpr int half      = Size::w / 2 + 1;
  constexpr int pairs     = (Size::h + 1) / 2;
  constexpr int columns   = (Size::w + 3) / 4 * 4;
  using pitch             = detail::volume_pitches<Size>;
  constexpr auto scale_by = [](float4 v, float s) { return make_float4(v.x * s, v.y * s, v.z * s, v.w * s); };
  extern __shared__ float4 volume_scratch[];
  auto* rows       = reinterpret_cast<float*>(volume_scratch);  // [in d][in h][in w], then
  auto* lines      = reinterpret_cast<float2*>(volume_scratch); // [in d][half w][in h, then frequencies h in pairs]
  const int thread = static_cast<int>(threadIdx.x);
  const int depth  = problem.in[0];
  const int height = problem.in[1];
  const int width  = problem.in[2];
  const int all    = depth * height;
  const int64_t n  = blockIdx.x / problem.padded_channels();
  const int64_t ci = blockIdx.x - n * problem.padded_channels();

  // Rows end on zeros.
  for (int i = thread; i < all * (columns - width); i += threads)
  {
    rows[i / (columns - width) * pitch::row + width + i % (columns - width)] = 0.0f;
  }
  runtime::grid_dependency_wait();
  const bool inside  = ci < problem.in_channels;
  const In* volume   = x + n * problem.x.sample + (inside ? ci : 0) * problem.x.channel;
  const int parts    = quads ? width / 4 : width;
  const int per_turn = threads / parts;
  if (thread < per_turn * parts)
  {
    const int part = thread % parts;
    for (int row = thread / parts; row < all; row += per_turn)
    {
      if (quads)
      {
        block::load_async_quad(rows + row * pitch::row + 4 * part, volume + row * width + 4 * part, inside);
      }
      else
      {
        block::load_async(rows + row * pitch::row + part,
                          volume + (static_cast<int64_t>(row) * width + part) * problem.x.position,
                          inside);
      }
    }
  }
  block::copy_async_commit();
  block::copy_async_wait<0>();
  __syncthreads();

  // Along w, two rows as one of complex numbers: x(f) of the first is the mean of Z(f) and conj(Z(-f)).
  const int row_pairs = (all + 1) / 2;
  {
    float2 v[columns];
    if (thread < row_pairs)
    {
      const bool two   = thread + row_pairs < all;
      const auto* one  = reinterpret_cast<const float4*>(rows + thread * pitch::row);
      const auto* next = reinterpret_cast<const float4*>(rows + (two ? thread + row_pairs : thread) * pitch::row);
      TCONV_PRAGMA_UNROLL
      for (int w = 0; w < columns; w += 4)
      {
        const float4 a = scale_by(one[w / 4], 0.5f);
        const float4 b = scale_by(next[w / 4], two ? 0.5f : 0.0f);
        v[w]           = make_float2(a.x, b.x);
        v[w + 1]       = make_float2(a.y, b.y);
        v[w + 2]       = make_float2(a.z, b.z);
        v[w + 3]       = make_float2(a.w, b.w);
      }
    }
    __syncthreads();
    if (thread < row_pairs)
    {
      float2 z[Size::w];
      TCONV_PRAGMA_UNROLL
      for (int w = 0; w < Size::w; ++w)
      {
        z[w] = v[w];
      }
      block::transform(z);
      const int next = thread + row_pairs < all ? thread + row_pairs : thread;
      float2* a      = lines + thread / height * half * pitch::line + thread % height;
      float2* b      = lines + next / height * half * pitch::line + next % height;
      TCONV_PRAGMA_UNROLL
      for (int f = 0; f < half; ++f)
      {
        const float2 c = z[(Size::w - f) % Size::w];
        if (next != thread)
        {
          b[f * pitch::line] = make_float2(z[f].y + c.y, c.x - z[f].x);
        }
        a[f * pitch::line] = make_float2(z[f].x + c.x, z[f].y - c.y);
      }
    }
  }
  __syncthreads();

  // Along h, in place.
  for (int i = thread; i < depth * half; i += threads)
  {
    auto* line = reinterpret_cast<float4*>(lines + i * pitch::line);
    float2 v[Size::h];
    TCONV_PRAGMA_UNROLL
    for (int h = 0; h < Size::h; h += 2)
    {
      const float4 two = line[h / 2];
      v[h]             = h < height ? make_float2(two.x, two.y) : make_float2(0.0f, 0.0f);
      if (h + 1 < Size::h)
      {
        v[h + 1] = h + 1 < height ? make_float2(two.z, two.w) : make_float2(0.0f, 0.0f);
      }
    }
    block::transform(v);
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < pairs; ++p)
    {
      const int opposite = p == 0 ? Size::h / 2 : Size::h - p;
      line[p]            = make_float4(v[p].x, v[p].y, v[opposite].x, v[opposite].y);
    }
  }
  __syncthreads();

  // Along d. Places of pairs that do not exist have zeros.
  constexpr int places         = 2 * Policy::gram_pairs; // of a group
  constexpr int groups         = (2 * pairs + places - 1) / places;
  const int64_t group_step     = problem.group_spectra();
  const int64_t frequency_step = half * groups * group_step;
  uint2* target                = spectra + problem.spectrum_place(n, ci);
  const int swizzle            = spectral_problem::spectrum_swizzle(n);
  for (int i = thread; i < half * groups * places; i += threads)
  {
    const int bin      = i / places; // (f_w, group)
    const int place    = bin % groups * places + i % places;
    const float2* line = lines + bin / groups * pitch::line + place;
    float2 v[Size::d];
    TCONV_PRAGMA_UNROLL
    for (int d = 0; d < Size::d; ++d)
    {
      v[d] = d < depth && place < 2 * pairs ? line[d * half * pitch::line] : make_float2(0.0f, 0.0f);
    }
    block::transform(v);
    uint2* at = target + bin * group_step + (i % places ^ swizzle);
    TCONV_PRAGMA_UNROLL
    for (int f = 0; f < Size::d; ++f)
    {
      const block::split_complex s = block::split_complex::of(v[f]);
      *at                          = make_uint2(s.high, s.low);
      at += frequency_step;
    }
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
