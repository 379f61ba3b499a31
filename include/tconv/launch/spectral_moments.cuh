// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Sums of squares of a transposed convolution's outputs from the spectrum of its input; see kernel/spectral.cuh.

#include "../detail/spectral_plan.hpp"
#include "../detail/workspace_layout.hpp"
#include "../kernel/spectral.cuh"
#include "../kernel/transform_volume.cuh"
#include "tensor_chain.cuh"

#include <algorithm>
#include <utility>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// Whether kernels can have clusters of blocks: the build is for exactly the current device (code for an older one may be what runs
/// on it otherwise), of compute capability 9.0 or newer.
inline bool clusters_available()
{
#if defined(__CUDA_ARCH_LIST__)
  int device = 0;
  int major  = 0;
  int minor  = 0;
  if (cudaGetDevice(&device) != cudaSuccess
      || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess
      || cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
  {
    return false;
  }
  for (const int built : {__CUDA_ARCH_LIST__})
  {
    if (major >= 9 && built == 100 * major + 10 * minor)
    {
      return true;
    }
  }
#endif
  return false;
}

/// The spectral kernels' share of a workspace. Intermediates that do not live at the same time share their memory.
struct spectral_workspace
{
  detail::workspace_layout::piece<float2> planes;  ///< then the matrices resampled along h
  detail::workspace_layout::piece<float2> spectra; ///< then the resampled matrices
  detail::workspace_layout::piece<float2> taps;
  detail::workspace_layout::piece<double> squares; ///< [out channels][grid frequencies]

  /// Nothing where the spectral kernels are not \p used.
  spectral_workspace(detail::workspace_layout& layout, const spectral_problem& p, bool used)
      : planes(layout.add<float2>(used ? std::max(p.plane_spectra(), p.row_matrices()) : 0))
      , spectra(layout.add<float2>(used ? std::max(2 * p.spectra(), p.matrices()) : 0))
      , taps(layout.add<float2>(used ? p.tap_spectra() : 0))
      , squares(layout.add<double>(used ? p.out_channels * p.grid_frequencies() : 0))
  {}

  /// Whether launch_squares() sums x and w on the way.
  static bool takes_sums(const spectral_problem& problem) { return problem.whole_volumes; }

  /// Computes squares from x (first channel of the slice) and w. Where takes_sums(), also \p x_sums [batch][in channels] and \p w_sums
  /// [in channels][out channels], sums over positions and taps. \p overlap_predecessor: of the first kernel.
  template <class In>
  [[nodiscard]] status launch_squares(const spectral_problem& problem,
                                      const In* x,
                                      const In* w,
                                      double* x_sums,
                                      double* w_sums,
                                      const workspace& space,
                                      bool overlap_predecessor,
                                      cudaStream_t stream) const
  {
    using policy = tuning::spectral_policy;
    // Blocks that compute tables first are as many as are resident, or fewer.
    constexpr int64_t resident = 132 * 2;
    int cluster                = 1;
    const auto start           = [&](
                         const char* name, auto kernel, int64_t blocks, int threads, int64_t bytes, auto... arguments) {
      const bool overlap = std::exchange(overlap_predecessor, true);
      return launch(name,
                    kernel,
                    {std::min(blocks, max_grid), threads, static_cast<std::size_t>(bytes), overlap, cluster},
                    stream,
                    problem,
                    arguments...);
    };
    auto* spectra_of_x   = reinterpret_cast<uint4*>(spectra.get(space));
    float2* row_matrices = planes.get(space);
    float2* resampled    = spectra.get(space);
    // Rows of x in vectors of 4 elements, each copied at once.
    const bool quads = !problem.x.channels_last() && problem.in[2] % 4 == 0
                    && aligned_groups(x, gcd(problem.x.channel, problem.x.sample), 4);
    status s;
    if (problem.whole_volumes)
    {
      detail::with_volume_size(tuning::volume_sizes{}, problem, [&](auto size) {
        using volume_size = decltype(size);
        cluster           = 2;
        s                 = start("tconv::kernel::transform_volume",
                  kernel::transform_volume<policy, volume_size, In>,
                  2 * problem.sample_pairs() * problem.padded_channels(),
                  policy::volume_threads,
                  detail::volume_pitches<volume_size>::bytes(problem),
                  x,
                  quads,
                  spectra_of_x,
                  x_sums);
        cluster           = 1;
      });
    }
    else
    {
      s = start(
        "tconv::kernel::transform_planes",
        kernel::transform_planes<policy, In>,
        std::min(problem.batch * problem.in[0] * (problem.padded_channels() / problem.plane_channels), resident),
        policy::plane_threads,
        detail::plane_layout::of(problem).bytes(problem),
        x,
        quads,
        planes.get(space));
    }
    if (s.ok() && !problem.whole_volumes)
    {
      const int64_t lines = static_cast<int64_t>(problem.row_groups()) * 2 * policy::gram_pairs * problem.half()
                          * problem.sample_pairs() * problem.channel_tiles();
      s = start("tconv::kernel::transform_depth",
                kernel::transform_depth<policy>,
                std::min(ceil_div(lines, policy::threads / 32), resident * 2),
                policy::threads,
                detail::depth_bytes(problem),
                planes.get(space),
                spectra_of_x);
    }
    if (s.ok())
    {
      const int64_t items = problem.tile_pairs() * problem.bins() * problem.grid_chunks();
      s                   = start("tconv::kernel::accumulate_matrices",
                kernel::accumulate_matrices<policy>,
                std::min(items, resident),
                policy::threads,
                detail::gram_bytes(problem),
                spectra_of_x,
                row_matrices);
    }
    if (s.ok())
    {
      // They need nothing of what precedes them: here they fill the multiprocessors that have no matrices left.
      s = start("tconv::kernel::transform_taps",
                kernel::transform_taps<policy, In>,
                problem.in_channels * ceil_div(problem.out_channels, problem.tap_channels),
                policy::threads,
                detail::tap_bytes(problem),
                w,
                taps.get(space),
                takes_sums(problem) ? w_sums : nullptr);
    }
    if (s.ok())
    {
      const auto resample = [&](auto resample_kernel, int constant_depth) {
        s = start("tconv::kernel::resample_matrices",
                  resample_kernel,
                  problem.grid[1] * problem.tile_pairs() * (2 * problem.tile_elements() / policy::resample_threads),
                  policy::resample_threads,
                  detail::resample_bytes(problem, constant_depth),
                  reinterpret_cast<const float*>(row_matrices),
                  reinterpret_cast<float*>(resampled));
      };
      const bool constant = problem.grid[0] == policy::grid_chunk
                         && detail::with_volume_size(tuning::volume_sizes{}, problem, [&](auto size) {
                              resample(kernel::resample_matrices<policy, decltype(size)>, decltype(size)::d);
                            });
      if (!constant)
      {
        resample(kernel::resample_matrices<policy, tuning::volume_size<0, 0, 0>>, 0);
      }
    }
    if (s.ok())
    {
      s = start("tconv::kernel::evaluate_form",
                kernel::evaluate_form<policy>,
                std::min(problem.grid_frequencies() * ceil_div(problem.out_channels, policy::form_channels), resident),
                policy::threads,
                policy::form_stages * static_cast<int64_t>(sizeof(block::form_stage<policy>)),
                resampled,
                taps.get(space),
                squares.get(space));
    }
    return s;
  }
};

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
