// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The gather kernel, and what becomes of its accumulators: stored through a chain, or reduced to moments.

#include "../block/gather.cuh"
#include "../block/lane_tile.cuh"
#include "../block/store.cuh"
#include "../detail/launch.cuh"
#include "../thread/moments.hpp"
#include "../thread/specialise.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace kernel
{

/// The outputs of the calling thread in \p phase.
template <class Policy>
TCONV_DEVICE block::output_runs<Policy::cell_groups> locate_outputs(const gather_problem& problem,
                                                                    const block::gather_tile& tile,
                                                                    const block::gather_thread& thread,
                                                                    const block::phase_number& phase)
{
  constexpr int held = Policy::cells_per_group * Policy::phases_per_thread;
  int64_t o[3];
  for (int a = 0; a < 3; ++a)
  {
    o[a] = (tile.cell[a] + thread.cell[a]) * problem.axis[a].stride + phase.along[a];
  }
  const conv_axis* axis = problem.axis;
  block::output_runs<Policy::cell_groups> runs;
  runs.first        = (o[0] * axis[1].out + o[1]) * axis[2].out + o[2];
  runs.group_step   = block::group_stride<Policy>(problem) * axis[2].stride;
  runs.step         = Policy::phases_per_thread == 1 ? axis[2].stride : 1;
  const bool inside = thread.active && o[0] < axis[0].out && o[1] < axis[1].out;
  TCONV_PRAGMA_UNROLL
  for (int g = 0; g < Policy::cell_groups; ++g)
  {
    const int64_t rest = axis[2].out - o[2] - g * runs.group_step;
    const int64_t fit  = runs.step == 1 ? rest : ceil_div(rest, runs.step);
    runs.count[g]      = inside && rest > 0 ? static_cast<int>(fit < held ? fit : held) : 0;
  }
  return runs;
}

/// Finish by storing: the chain on the accumulators, then y.
template <class Chain, class Out>
struct store_outputs
{
  Chain functors;
  Out* y;
  tensor_strides strides;
  bool vector; ///< see store_tile()

  /// Per-thread state over the phases of a tile: none.
  template <class Policy>
  struct state
  {
    TCONV_DEVICE void add(const store_outputs& self,
                          const gather_problem& problem,
                          const block::gather_tile& tile,
                          const block::gather_thread& thread,
                          const block::phase_number& phase,
                          block::accumulators<Policy>& sums)
    {
      constexpr int held = Policy::channels_per_thread;
      const auto runs    = locate_outputs<Policy>(problem, tile, thread, phase);
      // Rows of a common width get code of their own; channel functors are most of an epilogue.
      constexpr int common_lanes = Policy::common_lanes;
      if (!Chain::across_channels
          || (problem.taps.lanes == common_lanes && problem.out_channels % problem.taps.tile_channels == 0))
      {
        apply_chain<common_lanes>(self, problem, tile, thread, runs, sums);
      }
      else
      {
        apply_chain<0>(self, problem, tile, thread, runs, sums);
      }

      // A chain that reduces the channels leaves one.
      const int64_t total    = Chain::reduces_channels ? 1 : problem.out_channels;
      const int64_t channels = total - thread.channel;
      Out* base              = self.y + tile.n * self.strides.sample + thread.channel * self.strides.channel;
      block::store_tile(
        sums, base, self.strides, runs, static_cast<int>(channels < held ? channels : held), self.vector);
    }
    template <int FixedLanes>
    TCONV_DEVICE static void apply_chain(const store_outputs& self,
                                         const gather_problem& problem,
                                         const block::gather_tile& tile,
                                         const block::gather_thread& thread,
                                         const block::output_runs<Policy::cell_groups>& runs,
                                         block::accumulators<Policy>& sums)
    {
      const auto locate = [&runs](int p) { return runs.template position<Policy::positions_per_thread>(p); };
      block::lane_tile<Policy::channels_per_thread, Policy::positions_per_thread, FixedLanes, decltype(locate)> values =
        {sums, tile.n, thread.channel, problem.out_channels, problem.taps.lanes, locate};
      apply(detail::specialise(self.functors), values);
    }
    TCONV_DEVICE void done(const store_outputs&,
                           const gather_problem&,
                           const block::gather_tile&,
                           const block::gather_thread&,
                           int64_t,
                           float*)
    {}
  };
};

/// Finish by reducing: per channel the moments of the tile's outputs, into partials[channel][work item].
///
/// Within a thread the mean of a phase is taken first and then the squares around it; everything else merges moments. The
/// order of all merges is fixed.
struct reduce_moments
{
  moments<float>* partials; ///< [out_channels][partials_per_channel]
  int64_t partials_per_channel;

  template <class Policy>
  struct state
  {
    static constexpr int held = Policy::channels_per_thread;
    moments<float> totals[held];

    TCONV_DEVICE void add(const reduce_moments&,
                          const gather_problem& problem,
                          const block::gather_tile& tile,
                          const block::gather_thread& thread,
                          const block::phase_number& phase,
                          block::accumulators<Policy>& sums)
    {
      constexpr int per_group = Policy::positions_per_thread / Policy::cell_groups;
      const auto runs         = locate_outputs<Policy>(problem, tile, thread, phase);
      const int count         = runs.total();
      const float inverse     = count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < held; ++c)
      {
        float sum = 0.0f;
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < Policy::positions_per_thread; ++p)
        {
          sum += p % per_group < runs.count[p / per_group] ? sums[c][p] : 0.0f;
        }
        const float mean = sum * inverse;
        float m2         = 0.0f;
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < Policy::positions_per_thread; ++p)
        {
          const float centred = p % per_group < runs.count[p / per_group] ? sums[c][p] - mean : 0.0f;
          m2                  = fmaf(centred, centred, m2);
        }
        totals[c].merge({static_cast<float>(count), mean, m2});
      }
    }

    /// \p shared: room for one moments<float> per channel of the tile and warp. Called by the whole block.
    TCONV_DEVICE void done(const reduce_moments& self,
                           const gather_problem& problem,
                           const block::gather_tile& tile,
                           const block::gather_thread& thread,
                           int64_t slot,
                           float* shared)
    {
      constexpr int warps = Policy::threads / 32;
      auto* partial       = reinterpret_cast<moments<float>*>(shared);
      const int width     = problem.taps.tile_channels;
      const int warp      = static_cast<int>(threadIdx.x) / 32;
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < held; ++c)
      {
        for (int offset = problem.taps.lanes; offset < 32; offset *= 2)
        {
          moments<float> other;
          other.count = __shfl_down_sync(0xffffffffu, totals[c].count, static_cast<unsigned>(offset));
          other.mean  = __shfl_down_sync(0xffffffffu, totals[c].mean, static_cast<unsigned>(offset));
          other.m2    = __shfl_down_sync(0xffffffffu, totals[c].m2, static_cast<unsigned>(offset));
          totals[c].merge(other);
        }
        if (static_cast<int>(threadIdx.x) % 32 < problem.taps.lanes)
        {
          partial[warp * width + thread.lane * held + c] = totals[c];
        }
      }
      __syncthreads();
      for (int c = static_cast<int>(threadIdx.x); c < width; c += Policy::threads)
      {
        const int64_t channel = tile.channel_tile * width + c;
        if (channel < problem.out_channels)
        {
          moments<float> total = partial[c];
          for (int i = 1; i < warps; ++i)
          {
            total.merge(partial[i * width + c]);
          }
          self.partials[channel * self.partials_per_channel + slot] = total;
        }
      }
      __syncthreads();
    }
  };
};

/// Transposed convolution tile by tile; \p Finish says what becomes of the outputs. Follows prepare_gather on the stream.
template <class Policy, class Finish, class In>
__global__ __launch_bounds__(Policy::threads,
                             Policy::min_blocks) void gather(const __grid_constant__ gather_problem problem,
                                                             const In* x,
                                                             const float* weights,
                                                             const gather_stage* stages,
                                                             const unsigned* nonfinite,
                                                             const __grid_constant__ Finish finish)
{
  extern __shared__ float4 shared[];
  // Raw storage: shared variables cannot have initialised members.
  __shared__ alignas(block::gather_phase) unsigned char scratch[sizeof(block::gather_phase)];
  // One copy for the block: registers are for accumulators.
  __shared__ block::gather_tile tile;

  for (int64_t index = blockIdx.x; index < problem.blocks(); index += gridDim.x)
  {
    if (threadIdx.x == 0)
    {
      tile = problem.blocks() <= 0x7fffffff ? block::locate_tile(problem, static_cast<unsigned>(index))
                                            : block::locate_tile(problem, index);
    }
    __syncthreads();
    if (problem.staged)
    {
      block::stage_chunk<Policy>(problem, tile, x, 0, reinterpret_cast<float*>(shared));
    }
    // x was complete before the preparing kernel let this one start; its results are not.
    runtime::grid_dependency_wait();
    bool broken = false;
    for (int i = static_cast<int>(threadIdx.x); i < problem.weight_blocks; i += Policy::threads)
    {
      broken = broken || nonfinite[i] != 0;
    }
    const bool finite                 = !__syncthreads_or(broken);
    const block::gather_thread thread = block::locate_thread<Policy>(problem, tile);
    typename Finish::template state<Policy> state;
    block::gather<Policy>(
      problem,
      tile,
      thread,
      x,
      weights,
      stages,
      finite,
      reinterpret_cast<float*>(shared),
      reinterpret_cast<block::gather_phase*>(scratch),
      [&](int phase, block::accumulators<Policy>& sums) {
        state.add(finish, problem, tile, thread, block::number_phase<Policy>(problem, tile.first_phase + phase), sums);
      });
    __syncthreads();
    // The work item without its channel tile: which part of the positions this was.
    const int64_t slot = index / problem.taps.channel_tiles;
    state.done(finish, problem, tile, thread, slot, reinterpret_cast<float*>(shared));
    __syncthreads(); // the tile is read by everyone until here
  }
}

} // namespace kernel

TCONV_CUDA_NAMESPACE_END
