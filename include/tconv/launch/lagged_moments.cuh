// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Lagged products of x, for moments of a transposed convolution's outputs: workspace and launches.

#include "../detail/arguments.cuh"
#include "../detail/workspace_layout.hpp"
#include "../kernel/lagged.cuh"

#include <algorithm>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// The share of a workspace of the moments from lagged products.
struct lagged_workspace
{
  detail::workspace_layout::piece<float> centres;
  detail::workspace_layout::piece<float> partials;
  detail::workspace_layout::piece<double> sums;
  detail::workspace_layout::piece<double> gram;
  detail::workspace_layout::piece<double> input_sums;

  /// Nothing where they are not \p used.
  lagged_workspace(detail::workspace_layout& layout, const lagged_problem& problem, bool used)
      : centres(layout.add<float>(used ? problem.in_channels : 0))
      , partials(layout.add<float>(used ? problem.sums() * problem.pieces() : 0))
      , sums(layout.add<double>(used ? problem.sums() : 0))
      , gram(layout.add<double>(used ? problem.gram_elements() : 0))
      , input_sums(layout.add<double>(used ? problem.pairs() * problem.in_channels : 0))
  {}

  /// Four kernels; kernel::lagged_moments of the result follow. \p x: first channel of the slice.
  template <class In>
  [[nodiscard]] status launch(const lagged_problem& problem,
                              const In* x,
                              const workspace& space,
                              bool overlap_predecessor,
                              cudaStream_t stream) const
  {
    using policy = tuning::lagged_policy;
    if (status s = runtime::launch(
          "tconv::kernel::sample_means",
          kernel::sample_means<policy, In>,
          {std::min(problem.in_channels, max_grid), policy::small_threads, 0, overlap_predecessor},
          stream,
          problem,
          x,
          centres.get(space));
        !s.ok())
    {
      return s;
    }
    const auto products = [&](auto tile) {
      return runtime::launch(
        "tconv::kernel::lagged_products",
        kernel::lagged_products<policy, decltype(tile)::value, In>,
        {std::min(problem.pieces(), max_grid), policy::threads, static_cast<std::size_t>(problem.staged_bytes()), true},
        stream,
        problem,
        x,
        centres.get(space),
        partials.get(space));
    };
    status formed;
    switch (problem.tile)
    {
      case 1: formed = products(std::integral_constant<int, 1>{}); break;
      case 2: formed = products(std::integral_constant<int, 2>{}); break;
      case 3: formed = products(std::integral_constant<int, 3>{}); break;
      default: formed = products(std::integral_constant<int, 4>{}); break;
    }
    if (!formed.ok())
    {
      return formed;
    }
    constexpr int warps = policy::small_threads / 32;
    if (status s = runtime::launch("tconv::kernel::sum_pieces",
                                   kernel::sum_pieces<policy>,
                                   {ceil_div(problem.sums(), warps), policy::small_threads, 0, true},
                                   stream,
                                   problem,
                                   partials.get(space),
                                   sums.get(space));
        !s.ok())
    {
      return s;
    }
    return runtime::launch("tconv::kernel::gram_matrix",
                           kernel::gram_matrix<policy>,
                           {ceil_div(problem.gram_elements(), warps), policy::small_threads, 0, true},
                           stream,
                           problem,
                           sums.get(space),
                           centres.get(space),
                           gram.get(space),
                           input_sums.get(space));
  }
};

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
