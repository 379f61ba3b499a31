// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Prepares the Hopper tensor-core engine: packs weights [in_channels, out_channels, taps...] into stages, and writes the
/// list of phases that the main loop follows.

#include "../block/implicit_gemm.cuh"
#include "../detail/launch.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// One stage: which taps, blocks of input channels and steps it holds.
struct packed_stage
{
  int first_block; ///< of all input channels
  int blocks;
  int first_step; ///< of each block
  int steps;
  int tap[2]; ///< along d and h

  /// Stage \p index of \p phase.
  TCONV_DEVICE packed_stage(const gemm_problem& problem, const gemm_phase& phase, int index)
  {
    const int chunk = index / phase.stages;
    const int all   = problem.blocks_of(chunk);
    index -= chunk * phase.stages;
    const int in_row = problem.row_stages(phase.steps, all);
    const int row    = index / in_row;
    index -= row * in_row;
    const int parts = (phase.steps + problem.steps_per_stage - 1) / problem.steps_per_stage;
    const int at    = index / parts * problem.blocks_per_stage;
    first_block     = chunk * problem.chunk_blocks + at;
    blocks          = all - at < problem.blocks_per_stage ? all - at : problem.blocks_per_stage;
    first_step      = index % parts * problem.steps_per_stage;
    const int rest  = phase.steps - first_step;
    steps           = rest < problem.steps_per_stage ? rest : problem.steps_per_stage;
    const int taps_at[2] = {row / phase.taps[1], row % phase.taps[1]};
    for (int a = 0; a < 2; ++a)
    {
      const axis_phase taps = problem.phase(a, phase.along[a]);
      tap[a]                = static_cast<int>(taps.first_tap) + taps_at[a] * static_cast<int>(taps.tap_step);
    }
  }
};

/// The input channel, within its block, of the weight that a thread packs.
template <gemm_form Form>
TCONV_DEVICE int packed_channel(int thread, int half)
{
  if constexpr (Form == gemm_form::tf32)
  {
    // Core matrices of 8 columns x 4 channels; k = thread % 8 / 2 + 4 half of instruction thread / 64; pairs of threads share it.
    return 8 * (thread / 64) + 4 * half + thread % 8 / 2;
  }
  else
  {
    // Core matrices of 8 columns x 8 channels; k = thread % 8 + 8 (thread / 64).
    return 8 * (thread / 64) + thread % 8;
  }
}

/// Packs 8 columns of a slice of the stages.
///
/// \p exponents [channel_tiles * columns]: 2^-e of the power of two that the split form multiplied a channel's weights by.
/// \p lost [blocks]: whether a weight of the split form lost more than the error bound lets through.
template <gemm_form Form, int Threads, class In>
__global__ __launch_bounds__(Threads) void prepare_implicit_gemm(const __grid_constant__ gemm_problem problem,
                                                                 const In* w,
                                                                 unsigned char* packed,
                                                                 gemm_phase* phases,
                                                                 float* inverse_scales,
                                                                 unsigned* lost)
{
  constexpr int columns = 8;
  constexpr int teams = Threads / (columns * gemm_block_channels); // each packs a piece at a time, a weight per thread
  static_assert(Threads % (columns * gemm_block_channels) == 0, "tconv: whole teams");
  __shared__ float peaks[Threads / 32];
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release();
  const int groups      = static_cast<int>(problem.channel_tiles) * problem.columns / columns;
  const int group       = static_cast<int>(blockIdx.x) % groups;
  const int slice       = static_cast<int>(blockIdx.x) / groups;
  const int in_channels = static_cast<int>(problem.in_channels);
  const int taps        = static_cast<int>(problem.axis[0].kernel * problem.axis[1].kernel * problem.axis[2].kernel);
  const int team        = static_cast<int>(threadIdx.x) / (columns * gemm_block_channels);
  const int thread      = static_cast<int>(threadIdx.x) % (columns * gemm_block_channels);

  float scale  = 1.0f;
  const int n  = thread / 8 % 8; // column and k within a piece, so that neighbouring threads write neighbouring bytes
  const int co = group * columns + n;
  if constexpr (Form == gemm_form::split)
  {
    // Several warps share a column.
    constexpr int sharers = Threads / 32 / columns;
    static_assert(sharers * columns * 32 == Threads, "tconv: every column has as many warps");
    const int lane    = static_cast<int>(threadIdx.x) % 32;
    const int warp    = static_cast<int>(threadIdx.x) / 32;
    const auto count  = static_cast<unsigned>(in_channels) * static_cast<unsigned>(taps);
    const int channel = group * columns + warp / sharers;
    float peak        = 0.0f;
    if (channel < problem.out_channels)
    {
      const In* column = w + static_cast<int64_t>(channel) * taps;
      const auto step  = static_cast<unsigned>(problem.out_channels) * static_cast<unsigned>(taps);
#pragma unroll 7
      for (unsigned i = static_cast<unsigned>(warp % sharers * 32 + lane); i < count; i += sharers * 32)
      {
        const unsigned ci = i / static_cast<unsigned>(taps);
        peak              = fmaxf(
          peak, block::finite_magnitude(to_float(column[ci * step + (i - ci * static_cast<unsigned>(taps))])));
      }
    }
    // Magnitudes are ordered as their bits are.
    const unsigned most = __reduce_max_sync(0xffffffffu, __float_as_uint(peak));
    if (lane == 0)
    {
      peaks[warp] = __uint_as_float(most);
    }
    __syncthreads();
    float largest = 0.0f;
    for (int i = 0; i < sharers; ++i)
    {
      largest = fmaxf(largest, peaks[n * sharers + i]);
    }
    int exponent = largest > 0.0f ? 14 - ilogbf(largest) : 0; // the largest in [2^14, 2^15)
    exponent     = exponent < -60 ? -60 : (exponent > 60 ? 60 : exponent);
    scale        = block::power_of_two(exponent);
    if (slice == 0 && threadIdx.x < 64 && thread % 8 == 0)
    {
      inverse_scales[co] = block::power_of_two(-exponent);
    }
  }

  const int tile    = group * columns / problem.columns;
  const int in_tile = group * columns % problem.columns / columns;
  bool broken       = false;
  // Phases that the launcher has not listed.
  for (int p = gemm_problem::listed + static_cast<int>(blockIdx.x * Threads + threadIdx.x); p < problem.total_phases();
       p += static_cast<int>(gridDim.x) * Threads)
  {
    phases[p] = make_gemm_phase(problem, p);
  }

  const int kernel_h = static_cast<int>(problem.axis[1].kernel);
  const int kernel_w = static_cast<int>(problem.axis[2].kernel);
  const int rows     = problem.total_phases() * problem.phase_stages;
  for (int index = slice; index < rows; index += problem.pack_slices)
  {
    const int p            = index / problem.phase_stages;
    const int number       = index - p * problem.phase_stages;
    const gemm_phase phase = p < gemm_problem::listed ? problem.list[p] : make_gemm_phase(problem, p);
    if (number >= phase.stages * (problem.chunks() - 1) + phase.last_stages)
    {
      continue;
    }
    const packed_stage stage(problem, phase, number);
    unsigned char* target = packed + (static_cast<int64_t>(tile) * rows + index) * problem.stage_bytes + in_tile * 256;
    const int row         = (stage.tap[0] * kernel_h + stage.tap[1]) * kernel_w;
    int in_stage          = 0; // block of channels
    int step              = 0; // of the block
    int set               = 0;
    // Of the next piece: weight of the first channel of its block at tap 0 of the row, tap; negative at the end.
    const auto next = [&](int& block) {
      while (in_stage < stage.blocks)
      {
        block          = stage.first_block + in_stage;
        const auto tap = static_cast<int>(problem.tap(phase.along[2], stage.first_step + step, set));
        if (++set == problem.sets)
        {
          set = 0;
          if (++step == stage.steps)
          {
            step = 0;
            ++in_stage;
          }
        }
        if (tap >= 0)
        {
          return row + tap;
        }
      }
      return -1;
    };
    for (int piece = 0;; ++piece)
    {
      int block      = 0;
      const int flat = next(block);
      if (flat < 0)
      {
        break;
      }
      if (piece % teams != team)
      {
        continue;
      }
      unsigned char* to = target + piece * problem.piece_bytes();
      In values[2];
      TCONV_PRAGMA_UNROLL
      for (int half = 0; half < (Form == gemm_form::tf32 ? 2 : 1); ++half)
      {
        const int ci = block * gemm_block_channels + packed_channel<Form>(thread, half);
        values[half] = from_float<In>(0.0f);
        if (ci < in_channels && co < problem.out_channels)
        {
          values[half] = w[(static_cast<int64_t>(ci) * problem.out_channels + co) * taps + flat];
        }
      }
      if constexpr (Form == gemm_form::tf32)
      {
        if (thread % 2 == 0)
        {
          TCONV_PRAGMA_UNROLL
          for (int half = 0; half < 2; ++half)
          {
            unsigned char* at = to + thread / 64 * problem.columns * 32 + half * 128 + n * 16 + thread % 8 / 2 * 4;
            *reinterpret_cast<unsigned*>(at) = block::round_tf32(to_float(values[half]));
          }
        }
      }
      else
      {
        unsigned char* at = to + thread / 64 * 128 + n * 16 + thread % 8 * 2;
        if constexpr (Form == gemm_form::split)
        {
          const float original = to_float(values[0]);
          const float v        = original * scale;
          const __half hi      = __float2half_rn(v);
          const __half lo      = __float2half_rn((v - __half2float(hi)) * block::power_of_two(block::low_exponent));
          const float rest = fabsf(v - __half2float(hi) - __half2float(lo) * block::power_of_two(-block::low_exponent));
          broken           = broken || (original != 0.0f && !(v != 0.0f && rest <= problem.lost * fabsf(v)));
          *reinterpret_cast<__half*>(at)                        = hi;
          *reinterpret_cast<__half*>(at + problem.columns * 32) = lo;
        }
        else
        {
          *reinterpret_cast<In*>(at) = values[0];
        }
      }
    }
  }
  if constexpr (Form == gemm_form::split)
  {
    broken = __syncthreads_or(broken);
    if (threadIdx.x == 0)
    {
      lost[blockIdx.x] = broken ? 1u : 0u;
    }
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
