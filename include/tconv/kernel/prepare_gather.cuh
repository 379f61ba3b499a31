// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Prepares the gather engine: packs weights [in_channels, out_channels / groups, taps...] into the order in which they are
/// streamed, and writes the list of stages that the main loop follows.

#include "../block/gather.cuh"
#include "../detail/launch.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// Entry \p index of the lists of stages.
TCONV_DEVICE gather_stage make_stage(const gather_problem& problem, bool all_phases_of_w, int64_t index)
{
  const packed_taps& packed = problem.taps;
  int64_t phase             = index / problem.phase_stages;
  int64_t rest              = index % problem.phase_stages;
  axis_phase taps[3];
  taps[2] = all_phases_of_w ? axis_phase{0, 1, packed.kernel[2], problem.axis[2].min_shift(), 1}
                            : problem.phase(2, phase % problem.phases[2]);
  phase /= problem.phases[2];
  taps[1] = problem.phase(1, phase % problem.phases[1]);
  taps[0] = problem.phase(0, phase / problem.phases[1]);

  gather_stage stage;
  const int64_t runs  = packed.runs(taps[2].count);
  const int64_t row   = problem.row_stages(taps[2].count);
  const int64_t total = taps[0].count * taps[1].count * row;
  if (rest >= total)
  {
    stage.last  = true;
    stage.first = static_cast<int>(rest);
    return stage;
  }
  // Outer to inner: tap d, tap h, run, piece of the chunk.
  const int64_t in_row  = rest % row;
  const int64_t h       = rest / row % taps[1].count;
  const int64_t d       = rest / row / taps[1].count;
  const int64_t whole   = problem.pieces(packed.run_size(0, taps[2].count));
  const int64_t run     = in_row / whole < runs - 1 ? in_row / whole : runs - 1;
  const int64_t size    = packed.run_size(run, taps[2].count);
  const int64_t most    = problem.stage_channels(size);
  const int64_t first   = (in_row - run * whole) * most;
  const int64_t td      = taps[0].first_tap + d * taps[0].tap_step;
  const int64_t th      = taps[1].first_tap + h * taps[1].tap_step;
  const int64_t tap     = (all_phases_of_w ? 0 : packed.class_begin(taps[2].first_tap)) + packed.run_begin(run);
  const int64_t shift_d = taps[0].first_shift + d * taps[0].shift_step;
  const int64_t shift_h = taps[1].first_shift + h * taps[1].shift_step;
  // With both phases of w in one thread, neighbouring taps alternate between the phases and shift every other time.
  const int64_t shift_w = taps[2].first_shift
                        + (all_phases_of_w ? packed.run_begin(run) / 2 : packed.run_begin(run) * taps[2].shift_step);

  stage.weights = (td * packed.kernel[1] + th) * packed.row_floats()
                + (tap * packed.in_per_group + first * size) * packed.tile_channels;
  stage.unit = static_cast<int>(size * packed.tile_channels);
  stage.strip =
    static_cast<int>(first * problem.plane - (shift_d * problem.rows[1] + shift_h) * problem.pitch - shift_w);
  stage.shift_d  = static_cast<int>(shift_d);
  stage.shift_h  = static_cast<int>(shift_h);
  stage.first    = static_cast<int>(first);
  stage.channels = static_cast<short>(most);
  stage.run      = static_cast<signed char>(size);
  return stage;
}

/// Where packed weight \p index comes from in w, or -1 for a padding channel. \p Index is 32 bits wide where that is enough: a
/// 64-bit division costs several times as much.
template <class Policy, class Index>
TCONV_DEVICE int64_t find_weight(const packed_taps& taps, Index index)
{
  // Outer to inner: channel tile, tap d, tap h, residue class and run along w, input channel, tap of the run, column.
  const auto columns    = static_cast<Index>(taps.tile_channels);
  const auto unit       = static_cast<Index>(taps.in_per_group) * columns;
  const auto row_floats = static_cast<Index>(taps.row_floats());
  const auto kernel_h   = static_cast<Index>(taps.kernel[1]);
  const auto kernel_d   = static_cast<Index>(taps.kernel[0]);
  const Index row       = index / row_floats;
  Index rest            = index % row_floats;
  const auto column     = static_cast<int>(rest % columns);
  const Index th        = row % kernel_h;
  const Index td        = row / kernel_h % kernel_d;
  const int64_t tile    = static_cast<int64_t>(row / kernel_h / kernel_d);
  const auto tap        = static_cast<int64_t>(rest / unit); // lies in the right run, which is all that is needed
  const int64_t residue = taps.tap_step == 1 ? 0 : taps.class_of(tap);
  const int64_t count   = taps.class_size(residue);
  const int64_t run     = taps.run_of(tap - taps.class_begin(residue), count);
  const auto size       = static_cast<Index>(taps.run_size(run, count));
  rest                  = (rest - static_cast<Index>(taps.class_begin(residue) + taps.run_begin(run)) * unit) / columns;
  const Index ci        = rest / size;
  const Index j         = rest % size;
  const int64_t tw      = residue + (taps.run_begin(run) + static_cast<int64_t>(j)) * taps.tap_step;

  const int64_t co = tile * taps.tile_channels + block::channel_of_column<Policy>(column, taps.lanes);
  if (co >= taps.out_channels)
  {
    return -1;
  }
  const bool grouped             = taps.out_per_group != taps.out_channels;
  const int64_t group            = grouped ? co / taps.out_per_group : 0;
  const int64_t channel_in_group = grouped ? co % taps.out_per_group : co;
  return ((((group * taps.in_per_group + static_cast<int64_t>(ci)) * taps.out_per_group + channel_in_group)
             * taps.kernel[0]
           + static_cast<int64_t>(td))
            * taps.kernel[1]
          + static_cast<int64_t>(th))
         * taps.kernel[2]
       + tw;
}

/// The first problem.weight_blocks blocks fill \p packed (packed_taps::floats() of them, zeros for padding channels) and leave in
/// nonfinite[blockIdx.x] whether they met a weight that is not finite; the others fill \p stages.
template <class Policy, int Threads, class In>
__global__ __launch_bounds__(Threads) void prepare_gather(
  const __grid_constant__ gather_problem problem, const In* w, float* packed, gather_stage* stages, unsigned* nonfinite)
{
  runtime::grid_dependency_wait();
  runtime::grid_dependency_release(); // the gather kernel waits for the end of this one before it reads anything
  bool broken = false;
  if (blockIdx.x < problem.weight_blocks)
  {
    const int64_t total = problem.taps.floats();
    for (int64_t index = static_cast<int64_t>(blockIdx.x) * Threads + threadIdx.x; index < total;
         index += static_cast<int64_t>(problem.weight_blocks) * Threads)
    {
      const int64_t from = total <= 0x7fffffff ? find_weight<Policy>(problem.taps, static_cast<unsigned>(index))
                                               : find_weight<Policy>(problem.taps, index);
      const float value  = from >= 0 ? to_float(w[from]) : 0.0f;
      broken             = broken || !isfinite(value);
      packed[index]      = value;
    }
  }
  else
  {
    for (int64_t index = static_cast<int64_t>(blockIdx.x - problem.weight_blocks) * Threads + threadIdx.x;
         index < problem.stages();
         index += static_cast<int64_t>(gridDim.x - problem.weight_blocks) * Threads)
    {
      stages[index] = make_stage(problem, Policy::phases_per_thread == 2, index);
    }
    return;
  }
  const bool any = __syncthreads_or(broken);
  if (threadIdx.x == 0)
  {
    nonfinite[blockIdx.x] = any ? 1u : 0u;
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
