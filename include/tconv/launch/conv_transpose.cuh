// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The fused launcher: transposed convolution and a chain, in one call.

#include "../detail/arguments.cuh"
#include "../detail/gather_plan.hpp"
#include "../detail/workspace_layout.hpp"
#include "../kernel/finish_channels.cuh"
#include "../kernel/gather.cuh"
#include "../kernel/prepare_gather.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// The gather engine's share of a workspace, for any finish.
struct gather_workspace
{
  detail::workspace_layout::piece<float> packed;
  detail::workspace_layout::piece<gather_stage> stages;
  detail::workspace_layout::piece<unsigned> nonfinite;

  gather_workspace(detail::workspace_layout& layout, const gather_problem& problem)
      : packed(layout.add<float>(problem.taps.floats()))
      , stages(layout.add<gather_stage>(problem.stages()))
      , nonfinite(layout.add<unsigned>(problem.weight_blocks))
  {}
};

/// Extents that the kernels index with 32 bits.
[[nodiscard]] inline status check_gather_limits(const conv_transpose_shape<3>& shape)
{
  for (std::size_t a = 0; a < 3; ++a)
  {
    if (shape.kernel[a] > (int64_t{1} << 30))
    {
      return status::error(status_code::not_supported,
                           "shape.kernel[%s] = %lld: must be <= 2^30",
                           detail::axis_name(3, static_cast<int>(a)),
                           static_cast<long long>(shape.kernel[a]));
    }
  }
  return {};
}

/// Packs the weights, then runs the gather kernel of \p plan with \p finish.
template <class Finish>
[[nodiscard]] status launch_gather(const detail::gather_plan& plan,
                                   const gather_workspace& pieces,
                                   const float* x,
                                   const float* w,
                                   const Finish& finish,
                                   const workspace& space,
                                   bool overlap_predecessor,
                                   cudaStream_t stream)
{
  return detail::visit_gather_policy(plan.channels_per_thread, plan.phases_per_thread, [&](auto policy) -> status {
    using policy_type          = decltype(policy);
    constexpr int pack_threads = 256;
    float* packed              = pieces.packed.get(space);
    gather_stage* stages       = pieces.stages.get(space);
    unsigned* nonfinite        = pieces.nonfinite.get(space);
    const gather_problem& p    = plan.problem;
    if (status s = launch("tconv::kernel::prepare_gather",
                          kernel::prepare_gather<policy_type, pack_threads>,
                          {p.weight_blocks + p.stage_blocks(), pack_threads, 0, overlap_predecessor},
                          stream,
                          p,
                          w,
                          packed,
                          stages,
                          nonfinite);
        !s.ok())
    {
      return s;
    }
    return launch(
      "tconv::kernel::gather",
      kernel::gather<policy_type, Finish>,
      {std::min(p.blocks(), max_grid), policy_type::threads, static_cast<std::size_t>(plan.shared_bytes), true},
      stream,
      p,
      x,
      packed,
      stages,
      nonfinite,
      finish);
  });
}

/// How conv_transpose() runs a shape with a chain: the plan and its workspace, for query and run alike.
template <class Chain>
struct conv_transpose_plan
{
  /// The chain runs on the accumulators where a tile holds whole rows; else logits are stored once and finished in place.
  detail::gather_plan gather;
  detail::workspace_layout layout;
  gather_workspace pieces;

  explicit conv_transpose_plan(const conv_transpose_shape<3>& shape)
      : gather(detail::plan_gather(shape, Chain::across_channels))
      , pieces(layout, gather.problem)
  {}

  bool fused() const { return !Chain::across_channels || gather.whole_rows; }
};

} // namespace runtime

/// Bytes of workspace that conv_transpose() needs for the same shape, chain and options; 0 for an invalid shape and where
/// nothing is computed.
template <int Rank, class... Functors>
std::size_t conv_transpose_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                           const chain<Functors...>& = chain<>{},
                                           const options&            = {})
{
  if (!validate(shape).ok() || shape.output_elements() == 0)
  {
    return 0;
  }
  return runtime::conv_transpose_plan<chain<Functors...>>(detail::canonical(shape)).layout.bytes();
}

/// y = functors(conv_transpose(x, w)).
///
/// \param x         [batch, in_channels, input...] fp32, device memory
/// \param w         [in_channels, out_channels / groups, kernel...] fp32, as torch.nn.ConvTranspose*d stores it
/// \param y         [batch, out_channels, output...] fp32; must not overlap x, w or the workspace
/// \param shape     extents and parameters; every rule is checked
/// \param functors  what happens to the outputs: chain(bias(b), channel_softmax(), sigmoid()); chain<>() for nothing
/// \param opts      see options
/// \param space     conv_transpose_workspace_bytes(shape, functors, opts) bytes
/// \param stream    everything is queued here; nothing is allocated, synchronised or read back, so the call can be captured
///
/// Each output is within (K + 8) * 2^-24 * (sum|x||w| + |bias|) of the exact one before the chain, K products landing on it.
/// NaN and infinity in x or w reach exactly the outputs whose taps touch them. Results are bitwise repeatable.
/// Any alignment that float allows is accepted; 16 bytes for y are faster.
///
/// Channel functors run on the accumulators for up to 256 channels (with groups: 256 where a group has a
/// multiple of 8 channels, 128 where a multiple of 4, else 32); beyond,
/// logits are stored to y once and finished in place.
///
/// Errors: invalid_argument (shape or pointer; nothing written), workspace_too_small, workspace_misaligned, not_supported,
/// cuda_error. Batch 0 and empty outputs succeed without a launch.
template <int Rank, class... Functors>
[[nodiscard]] status conv_transpose(const float* x,
                                    const float* w,
                                    float* y,
                                    const conv_transpose_shape<Rank>& shape,
                                    const chain<Functors...>& functors,
                                    const options& opts,
                                    const workspace& space,
                                    cudaStream_t stream)
{
  using chain_type = chain<Functors...>;
  if (status s = validate(shape); !s.ok())
  {
    return s;
  }
  if (shape.output_elements() == 0)
  {
    return {};
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  if (status s = runtime::check_gather_limits(s3); !s.ok())
  {
    return s;
  }

  const runtime::conv_transpose_plan<chain_type> plan(s3);
  if (status s = runtime::check_call({{"x", x, 4 * shape.input_elements()}, {"w", w, 4 * shape.weight_elements()}},
                                     {{"y", y, 4 * shape.output_elements()}},
                                     plan.layout,
                                     opts,
                                     space);
      !s.ok())
  {
    return s;
  }

  const bool vector = reinterpret_cast<std::uintptr_t>(y) % 16 == 0 && s3.output(2) % 4 == 0;
  const auto run    = [&](const auto& finish) {
    return runtime::launch_gather(plan.gather, plan.pieces, x, w, finish, space, opts.programmatic_launch, stream);
  };
  if constexpr (!chain_type::across_channels)
  {
    return run(kernel::store_outputs<chain_type>{functors, y, vector});
  }
  else
  {
    if (plan.fused())
    {
      return run(kernel::store_outputs<chain_type>{functors, y, vector});
    }
    if (status s = run(kernel::store_outputs<chain<>>{chain<>{}, y, vector}); !s.ok())
    {
      return s;
    }
    using policy            = tuning::channels_policy;
    const int columns       = policy::columns(shape.out_channels);
    const int64_t positions = shape.output_positions();
    const int64_t blocks    = shape.batch * ceil_div(positions, std::max(columns, 1));
    return runtime::launch("tconv::kernel::finish_channels",
                           kernel::finish_channels<policy, chain_type>,
                           {std::min(blocks, runtime::max_grid),
                            policy::threads,
                            static_cast<std::size_t>(shape.out_channels * columns * 4),
                            true},
                           stream,
                           y,
                           shape.batch,
                           shape.out_channels,
                           positions,
                           std::max(columns, 1),
                           columns > 0,
                           functors);
  }
}

TCONV_CUDA_NAMESPACE_END
