// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The spectrum of x for the sizes of tuning::volume_sizes: each thread transforms whole lines in registers.

#include "../block/fourier.cuh"
#include "../block/load_async.cuh"
#include "../block/split_complex.cuh"
#include "../detail/launch.cuh"
#include "../detail/spectral_plan.hpp"

#include <cooperative_groups.h>
#include <cuda/std/type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// \p spectra (see spectral_problem::spectra) of 2 x, and \p x_sums [batch][in channels]: its sums over positions, fp32 within a row
/// and fp64 beyond. A block takes one channel of one sample, a cluster of two blocks two samples, which they share from the
/// transform along d on.
template <class Policy, class Size, class In>
__global__ __launch_bounds__(Policy::volume_threads, 2) void transform_volume(
  const __grid_constant__ spectral_problem problem, const In* x, bool quads, uint4* spectra, double* x_sums)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int threads = Policy::volume_threads;
  constexpr int half    = Size::w / 2 + 1;
  constexpr int pairs   = (Size::h + 1) / 2;
  constexpr int columns = (Size::w + 3) / 4 * 4;
  using pitch           = detail::volume_pitches<Size>;
  extern __shared__ float4 volume_scratch[];
  auto* rows  = reinterpret_cast<float*>(volume_scratch);  // [in d][in h][in w], then
  auto* lines = reinterpret_cast<float2*>(volume_scratch); // [in d][half w][in h, then frequencies h in pairs]
  __shared__ double row_sums[threads / 32];                // of warps
  const auto cluster       = cooperative_groups::this_cluster();
  const int thread         = static_cast<int>(threadIdx.x);
  const int depth          = problem.in[0];
  const int height         = problem.in[1];
  const int width          = problem.in[2];
  const int all            = depth * height;
  const auto rank          = static_cast<int>(cluster.block_rank());
  const int64_t cluster_of = blockIdx.x / 2;
  const int64_t n_pair     = cluster_of / problem.padded_channels();
  const int64_t ci         = cluster_of - n_pair * problem.padded_channels();
  const int64_t n          = 2 * n_pair + rank;

  // Rows end on zeros.
  for (int i = thread; i < all * (columns - width); i += threads)
  {
    rows[i / (columns - width) * pitch::row + width + i % (columns - width)] = 0.0f;
  }
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const bool inside  = ci < problem.in_channels && n < problem.batch;
  const In* volume   = x + (inside ? n * problem.x.sample + ci * problem.x.channel : 0);
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

  // Memory has little else to do until the stores below.
  const int64_t later      = cluster_of + Policy::volumes_ahead / 2;
  const int64_t later_pair = later / problem.padded_channels();
  const int64_t later_ci   = later - later_pair * problem.padded_channels();
  const int64_t later_n    = 2 * later_pair + rank;
  if (problem.x.position == 1 && later_ci < problem.in_channels && later_n < problem.batch)
  {
    constexpr int line = 128 / static_cast<int>(sizeof(In));
    const In* coming   = x + later_n * problem.x.sample + later_ci * problem.x.channel;
    for (int i = line * thread; i < all * width; i += line * threads)
    {
      block::prefetch_line(coming + i);
    }
  }

  // Along w, two rows as one of complex numbers: Z(f) + conj(Z(-f)) is twice x(f) of the first, and so on. Spectra stay doubled.
  const int row_pairs = (all + 1) / 2;
  {
    float2 v[columns];
    if (thread < row_pairs)
    {
      // An odd row is its own partner.
      const int other  = thread + row_pairs < all ? thread + row_pairs : thread;
      const auto* one  = reinterpret_cast<const float4*>(rows + thread * pitch::row);
      const auto* next = reinterpret_cast<const float4*>(rows + other * pitch::row);
      TCONV_PRAGMA_UNROLL
      for (int w = 0; w < columns; w += 4)
      {
        const float4 a = one[w / 4];
        const float4 b = next[w / 4];
        v[w]           = make_float2(a.x, b.x);
        v[w + 1]       = make_float2(a.y, b.y);
        v[w + 2]       = make_float2(a.z, b.z);
        v[w + 3]       = make_float2(a.w, b.w);
      }
    }
    __syncthreads();
    // Lines along h end on zeros.
    for (int i = thread; i < depth * half; i += threads)
    {
      for (int h = height; h < Size::h; ++h)
      {
        lines[i * pitch::line + h] = make_float2(0.0f, 0.0f);
      }
    }
    double share = 0.0;
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
      share = static_cast<double>(z[0].x) + (next != thread ? static_cast<double>(z[0].y) : 0.0);
    }
    TCONV_PRAGMA_UNROLL
    for (int step = 1; step < 32; step *= 2)
    {
      share += __shfl_xor_sync(0xffffffffu, share, step);
    }
    if (thread % 32 == 0)
    {
      row_sums[thread / 32] = share;
    }
  }
  __syncthreads();
  if (thread == 0 && inside)
  {
    double sum = 0.0;
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < threads / 32; ++i)
    {
      sum += row_sums[i];
    }
    x_sums[n * problem.in_channels + ci] = sum;
  }

  // Along h, in place.
  for (int i = thread; i < depth * half; i += threads)
  {
    auto* line = reinterpret_cast<float4*>(lines + i * pitch::line);
    float2 v[Size::h];
    TCONV_PRAGMA_UNROLL
    for (int h = 0; h < Size::h; h += 2)
    {
      const float4 two = line[h / 2];
      v[h]             = make_float2(two.x, two.y);
      if (h + 1 < Size::h)
      {
        v[h + 1] = make_float2(two.z, two.w);
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
  cluster.sync();

  // Along d, half of the lines of both samples: half of a warp has the first sample, the other one the second, and of the
  // result each stores half of the frequencies of both. Places of pairs that do not exist have zeros.
  constexpr int places         = 2 * Policy::gram_pairs; // of a group
  constexpr int groups         = (2 * pairs + places - 1) / places;
  constexpr int all_lines      = half * groups * places;
  constexpr int stored         = Size::d / 2;
  const int64_t group_step     = problem.group_spectra();
  const int64_t frequency_step = half * groups * group_step;
  const int sample             = thread % 32 / 16;
  const float2* from           = cluster.map_shared_rank(lines, sample);
  const int swizzle            = spectral_problem::spectrum_swizzle(n_pair);
  // Halves of (own word, the other's), first sample first.
  const unsigned lower = sample == 0 ? 0x5410u : 0x1054u;
  const unsigned upper = lower | 0x2222u;
  // Inputs with alternating signs have all frequencies shifted by half the size: so v[f] is to be stored by either half.
  static_assert(Size::d % 2 == 0, "tconv: depths of tuning::volume_sizes are even");
  const float sign = sample == 0 ? 1.0f : -1.0f;
  uint4* target    = spectra + problem.spectrum_place(n_pair, ci) + sample * stored * frequency_step;
  const int end    = rank == 0 ? all_lines / 2 : all_lines;
  // Whole warps, as their halves exchange.
  for (int first = end - all_lines / 2 + thread / 32 * 16; first < end; first += threads / 2)
  {
    const int i        = first + thread % 16;
    const int bin      = i / places; // (f_w, group)
    const int place    = bin % groups * places + i % places;
    const int f_w      = bin / groups;
    const float2* at   = from + f_w * pitch::line + place;
    const int existing = i < end && place < 2 * pairs ? depth : 0;
    float2 v[Size::d];
    TCONV_PRAGMA_UNROLL
    for (int d = 0; d < Size::d; ++d)
    {
      v[d] = d < existing ? at[d * half * pitch::line] : make_float2(0.0f, 0.0f);
      if (d % 2 != 0)
      {
        v[d] = make_float2(sign * v[d].x, sign * v[d].y);
      }
    }
    block::transform(v);
    // Of lines that are their own conjugates the second half of the warp has one frequency to store.
    const int last   = i < end ? (sample == 1 && problem.own_conjugate(f_w) ? 1 : stored) : 0;
    uint4* to        = target + bin * group_step + (i % places ^ swizzle);
    const auto store = [&](auto swapped) {
      TCONV_PRAGMA_UNROLL
      for (int f = 0; f < stored; ++f)
      {
        const block::split_complex own  = block::split_complex::of(v[f]);
        const block::split_complex sent = block::split_complex::of(v[f + stored]);
        const unsigned high             = __shfl_xor_sync(0xffffffffu, sent.high, 16);
        const unsigned low              = __shfl_xor_sync(0xffffffffu, sent.low, 16);
        const uint2 h                   = {__byte_perm(own.high, high, lower), __byte_perm(own.high, high, upper)};
        const uint2 l                   = {__byte_perm(own.low, low, lower), __byte_perm(own.low, low, upper)};
        if (f < last)
        {
          *to = decltype(swapped)::value ? make_uint4(l.x, l.y, h.x, h.y) : make_uint4(h.x, h.y, l.x, l.y);
        }
        to += frequency_step;
      }
    };
    if (spectral_problem::swapped_parts(ci))
    {
      store(cuda::std::true_type{});
    }
    else
    {
      store(cuda::std::false_type{});
    }
  }
  // The other block may still read this one's lines.
  cluster.sync();
#else
  // The launcher takes other kernels below compute capability 9.0, which has no clusters.
  asm volatile("trap;");
#endif
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
