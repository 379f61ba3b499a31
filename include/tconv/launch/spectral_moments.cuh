// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Sums of squares of a transposed convolution's outputs from the spectrum of its input; see kernel/spectral.cuh.

#include "../detail/spectral_plan.hpp"
#include "../detail/workspace_layout.hpp"
#include "../kernel/spectral.cuh"
#include "tensor_chain.cuh"

#include <algorithm>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

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
      , spectra(layout.add<float2>(used ? std::max(p.spectra(), p.matrices()) : 0))
      , taps(layout.add<float2>(used ? p.tap_spectra() : 0))
      , squares(layout.add<double>(used ? p.out_channels * p.grid_frequencies() : 0))
  {}

  /// Computes squares from x (first channel of the slice) and w; follows a kernel of the same call on the stream.
  template <class In>
  [[nodiscard]] status launch_squares(
    const spectral_problem& problem, const In* x, const In* w, const workspace& space, cudaStream_t stream) const
  {
    using policy       = tuning::spectral_policy;
    constexpr int tile = policy::tile;
    constexpr int held = policy::resample_elements / 2 * policy::resample_rows;
    // Blocks that compute tables first are as many as are resident, or fewer.
    constexpr int64_t resident = 132 * 2;
    const auto bytes           = [](int64_t b) { return static_cast<std::size_t>(b); };
    // Rows of x in vectors of 4 elements, each copied at once.
    const bool quads = !problem.x.channels_last() && problem.in[2] % 4 == 0
                    && aligned_groups(x, gcd(problem.x.channel, problem.x.sample), 4);
    const int64_t plane_items = problem.batch * problem.in[0] * (problem.padded_channels() / problem.plane_channels);
    if (status s = launch("tconv::kernel::transform_planes",
                          kernel::transform_planes<policy, In>,
                          {std::min(plane_items, resident),
                           policy::plane_threads,
                           bytes(detail::plane_layout::of(problem).bytes(problem)),
                           true},
                          stream,
                          problem,
                          x,
                          quads,
                          planes.get(space));
        !s.ok())
    {
      return s;
    }
    const int64_t depth_items = static_cast<int64_t>(problem.size[1]) * problem.half() * problem.batch
                              * problem.channel_tiles();
    if (status s = launch("tconv::kernel::transform_depth",
                          kernel::transform_depth<policy>,
                          {std::min(ceil_div(depth_items, policy::threads / 32), resident * 2),
                           policy::threads,
                           bytes(detail::depth_bytes(problem)),
                           true},
                          stream,
                          problem,
                          planes.get(space),
                          spectra.get(space));
        !s.ok())
    {
      return s;
    }
    const int64_t chunks     = ceil_div(problem.grid[1], policy::grid_chunk);
    const int64_t gram_items = problem.tile_pairs() * static_cast<int64_t>(problem.size[0]) * problem.half() * chunks;
    if (status s = launch("tconv::kernel::accumulate_matrices",
                          kernel::accumulate_matrices<policy>,
                          {std::min(gram_items, resident), policy::threads, bytes(detail::gram_bytes(problem)), true},
                          stream,
                          problem,
                          spectra.get(space),
                          planes.get(space));
        !s.ok())
    {
      return s;
    }
    if (status s = launch(
          "tconv::kernel::resample_matrices",
          kernel::resample_matrices<policy>,
          {std::min(problem.grid[1] * problem.tile_pairs() * (tile * tile / policy::resample_elements), max_grid),
           held,
           bytes(detail::resample_bytes(problem)),
           true},
          stream,
          problem,
          planes.get(space),
          spectra.get(space));
        !s.ok())
    {
      return s;
    }
    if (status s = launch(
          "tconv::kernel::transform_taps",
          kernel::transform_taps<policy, In>,
          {std::min(problem.in_channels * ceil_div(problem.out_channels, problem.tap_channels), max_grid),
           policy::threads,
           bytes(detail::tap_bytes(problem)),
           true},
          stream,
          problem,
          w,
          taps.get(space));
        !s.ok())
    {
      return s;
    }
    return launch(
      "tconv::kernel::evaluate_form",
      kernel::evaluate_form<policy>,
      {std::min(problem.grid_frequencies() * ceil_div(problem.out_channels, policy::form_channels), max_grid),
       policy::threads,
       0,
       true},
      stream,
      problem,
      spectra.get(space),
      taps.get(space),
      squares.get(space));
  }
};

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
