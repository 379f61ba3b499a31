// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// How stored tensors are reduced over their positions, for every launcher that does.

#include "../detail/arguments.cuh"
#include "../kernel/reduce_space.cuh"
#include "tensor_chain.cuh"

#include <algorithm>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// How a tensor is reduced over its positions, and where the partial states lie; the same for query and run.
template <class Reduction>
struct reduce_plan
{
  space_problem problem;
  detail::workspace_layout::piece<typename Reduction::state> partials;

  template <int Rank>
  reduce_plan(detail::workspace_layout& layout, const tensor_shape<Rank>& shape, const options& opts)
  {
    using policy       = tuning::reduce_policy;
    problem.x          = input_strides(shape, opts);
    problem.batch      = shape.batch;
    problem.channels   = shape.channels;
    problem.positions  = shape.positions();
    const int64_t rows = std::max<int64_t>(shape.batch * problem.channel_tiles(), 1);
    problem.slices     = std::max<int64_t>(
      1, std::min(ceil_div(policy::wanted_blocks, rows), problem.positions / policy::least_slice));
    partials = layout.add<typename Reduction::state>(problem.states());
  }

  /// Partial states of x (first channel of the slice).
  template <class In>
  [[nodiscard]] status
  launch_slices(const In* x, const workspace& space, bool overlap_predecessor, cudaStream_t stream) const
  {
    using policy        = tuning::reduce_policy;
    const int64_t items = problem.batch * problem.channel_tiles() * problem.slices;
    const int64_t width = 16 / static_cast<int64_t>(sizeof(In));
    const bool vector   = !problem.x.channels_last()
                     && aligned_groups(x, gcd(problem.x.channel, problem.x.sample), width);
    return launch("tconv::kernel::reduce_slices",
                  kernel::reduce_slices<policy, Reduction, In>,
                  {std::min(items, max_grid), policy::threads, 0, overlap_predecessor},
                  stream,
                  problem,
                  x,
                  vector,
                  partials.get(space));
  }
};

/// Plan and workspace of channel_moments() and group_moments(), and the first part of batch_norm_train() and group_norm().
struct tensor_moments_plan
{
  detail::workspace_layout layout;
  reduce_plan<block::moments_reduction> reduce;

  template <int Rank>
  tensor_moments_plan(const tensor_shape<Rank>& shape, const options& opts) : reduce(layout, shape, opts)
  {}

  /// Moments of x, handed to \p finish set by set.
  template <class In, class Finish>
  [[nodiscard]] status launch_moments(const In* x,
                                      const moment_sets& sets,
                                      const Finish& finish,
                                      const workspace& space,
                                      bool overlap_predecessor,
                                      cudaStream_t stream) const
  {
    using policy = tuning::reduce_policy;
    if (status s = reduce.launch_slices(x, space, overlap_predecessor, stream); !s.ok())
    {
      return s;
    }
    return launch("tconv::kernel::finish_moments",
                  kernel::finish_moments<policy, Finish>,
                  {std::min(sets.count, max_grid), policy::threads, 0, true},
                  stream,
                  sets,
                  reduce.partials.get(space),
                  finish);
  }
};

/// The number of groups of \p channels channels.
[[nodiscard]] inline status check_groups(int64_t groups, int64_t channels)
{
  if (groups < 1 || channels % groups != 0)
  {
    return status::error(status_code::invalid_argument,
                         "groups = %lld: must be >= 1 and divide shape.channels = %lld",
                         static_cast<long long>(groups),
                         static_cast<long long>(channels));
  }
  return {};
}

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
