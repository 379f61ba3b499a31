// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Per-channel moments of a transposed convolution's outputs from a pass that computes them and stores none.

#include "../kernel/batch_norm.cuh"
#include "../kernel/gemm_moments.cuh"
#include "conv_transpose.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// How the pass runs for inputs of type In: on the tensor cores where that is estimated to be faster or options.engine asks for
/// implicit_gemm or implicit_gemm_warp, on CUDA cores where it asks for gather. Precise whatever options.math allows: a statistic has many readers.
template <class In>
struct output_moments_plan
{
  static constexpr gemm_form form = form_of<In>(math::precise);
  /// Outputs are not stored, so that it does not matter where they would go: options.output_layout must not reach the plan.
  static constexpr layout nothing_is_scattered = layout::channels_last;

  detail::gather_plan gather;
  detail::gemm_plan gemm;
  bool tensor_cores;
  double milliseconds; ///< estimate
  int64_t blocks; ///< on the tensor cores: the same, as is the order of all sums, on devices with as much shared memory
  int64_t partials; ///< moments that the pass leaves for a channel

  /// For the canonical \p shape.
  output_moments_plan(const conv_transpose_shape<3>& shape, const options& opts)
      : gather(detail::plan_gather(shape, false, opts.input_layout))
      , gemm(plan_implicit_gemm<In>(shape, math::precise, opts.engine, {opts.input_layout, nothing_is_scattered}))
      , tensor_cores(detail::choose_tensor_cores(gemm, gather, shape, false, opts.engine))
      , milliseconds(tensor_cores ? detail::milliseconds(gemm, shape, false)
                                  : detail::milliseconds(gather, shape, false))
      , blocks(tensor_cores ? detail::gemm_blocks(gemm.problem, tuning::implicit_gemm_multiprocessors) : 0)
      , partials(tensor_cores ? blocks * detail::consumer_warps(gemm.problem)
                              : gather.problem.blocks() / gather.problem.taps.channel_tiles)
  {}
};

/// The share of a workspace that the pass has.
template <class In>
struct output_moments_workspace
{
  gather_workspace pieces;
  gemm_workspace gemm_pieces;
  detail::workspace_layout::piece<moments<float>> partials;

  /// Nothing where the pass is not \p used.
  output_moments_workspace(detail::workspace_layout& layout, const output_moments_plan<In>& plan, bool used)
      : pieces(layout, plan.gather.problem, used && !plan.tensor_cores)
      , gemm_pieces(layout, plan.gemm, used && plan.tensor_cores)
      , partials(layout.add<moments<float>>(used ? plan.gather.problem.out_channels * plan.partials : 0))
  {}

  /// What launch() leaves.
  [[nodiscard]] kernel::partial_moments result(const output_moments_plan<In>& plan, const workspace& space) const
  {
    return {partials.get(space), plan.partials};
  }

  /// \p x: first channel of the slice.
  [[nodiscard]] status launch(const output_moments_plan<In>& plan,
                              const In* x,
                              const In* w,
                              const workspace& space,
                              bool overlap_predecessor,
                              cudaStream_t stream) const
  {
#if TCONV_DETAIL_TENSOR_CORES
    if (plan.tensor_cores)
    {
      const kernel::reduce_gemm_moments reduce{partials.get(space), plan.partials};
      return launch_implicit_gemm<output_moments_plan<In>::form, In>(
        plan.gemm, gemm_pieces, x, w, reduce, space, overlap_predecessor, stream, plan.blocks);
    }
#endif
    const kernel::reduce_moments reduce{partials.get(space), plan.partials};
    return launch_gather(plan.gather, pieces, x, w, reduce, space, overlap_predecessor, stream);
  }
};

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
