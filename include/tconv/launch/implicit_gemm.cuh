// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Runs the tensor-core engine: packs weights, then multiplies. Used by the public launchers.

#include "../detail/implicit_gemm_plan.hpp"
#include "../detail/workspace_layout.hpp"
#include "../kernel/implicit_gemm.cuh"
#include "../kernel/prepare_implicit_gemm.cuh"
#include "../options.hpp"

#include <algorithm>
#include <type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// The tensor-core engine's share of a workspace, for any finish.
struct gemm_workspace
{
  detail::workspace_layout::piece<unsigned char> packed;
  detail::workspace_layout::piece<gemm_phase> phases;
  detail::workspace_layout::piece<gemm_step> steps;
  detail::workspace_layout::piece<float> inverse_scales;
  detail::workspace_layout::piece<unsigned> lost;

  /// Nothing where the engine is not \p used.
  gemm_workspace(detail::workspace_layout& layout, const detail::gemm_plan& plan, bool used = true)
      : packed(layout.add<unsigned char>(used ? plan.packed_bytes : 0))
      , phases(layout.add<gemm_phase>(used ? plan.problem.total_phases() : 0))
      , steps(layout.add<gemm_step>(used ? plan.problem.table_steps() : 0))
      , inverse_scales(layout.add<float>(used ? int64_t{plan.problem.channel_tiles} * plan.problem.columns : 0))
      , lost(layout.add<unsigned>(used ? plan.pack_blocks : 0))
  {}
};

/// What this build and the current device multiply with on tensor cores.
struct gemm_device
{
  bool available = false;
  detail::gemm_machine machine;
};

/// Looks for what \p asked wants: engine::implicit_gemm_warp the instructions of a warp, others wgmma where it is there.
inline gemm_device find_gemm_device(engine asked)
{
  gemm_device result;
  int device = 0;
  int major  = 0;
  int minor  = 0;
  int bytes  = 0;
  if (cudaGetDevice(&device) != cudaSuccess
      || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess
      || cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess
      || cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
  {
    return result;
  }
  result.machine.shared_bytes = std::min(bytes, tuning::implicit_gemm_shared_bytes);
#if defined(TCONV_ENABLE_SM90A)
  if (asked != engine::implicit_gemm_warp && major == 9 && minor == 0)
  {
    result.available = true;
    return result;
  }
#endif
#if TCONV_DETAIL_WARP_MMA
  result.machine.instruction = gemm_instruction::warp;
  result.available           = code_architecture() >= 800;
#endif
  static_cast<void>(asked);
  return result;
}

/// How operands of type In are multiplied.
template <class In>
constexpr gemm_form form_of(math how)
{
  if (std::is_same<In, float>::value)
  {
    return how == math::tf32 ? gemm_form::tf32 : gemm_form::split;
  }
  return std::is_same<In, __half>::value ? gemm_form::fp16 : gemm_form::bf16;
}

/// Plans the engine for operands of type In and the canonical \p shape; not supported either where \p asked leaves it out, or the
/// device or the build has no such kernel. \p how: math::tf32 allows the form; groups are multiplied precisely.
template <class In>
detail::gemm_plan
plan_implicit_gemm(const conv_transpose_shape<3>& shape, math how, engine asked, const detail::gemm_call& call)
{
  const gemm_device device = asked == engine::gather ? gemm_device{} : find_gemm_device(asked);
  return device.available
         ? detail::plan_implicit_gemm(shape, form_of<In>(shape.groups > 1 ? math::precise : how), call, device.machine)
         : detail::gemm_plan{};
}

/// Calls visit(\p instruction, as a constant) if the build has its kernels; else not_supported, which nothing comes to that
/// find_gemm_device() has found.
template <class Visitor>
[[nodiscard]] status visit_gemm_instruction(gemm_instruction instruction, Visitor&& visit)
{
#if defined(TCONV_ENABLE_SM90A)
  if (instruction == gemm_instruction::warpgroup)
  {
    return visit(std::integral_constant<gemm_instruction, gemm_instruction::warpgroup>{});
  }
#endif
#if TCONV_DETAIL_WARP_MMA
  if (instruction == gemm_instruction::warp)
  {
    return visit(std::integral_constant<gemm_instruction, gemm_instruction::warp>{});
  }
#endif
  static_cast<void>(instruction);
  static_cast<void>(visit);
  return status::error(status_code::not_supported, "tensor cores: this build has no kernels for them");
}

/// Packs the weights, then runs the kernel of \p plan, which is supported, with \p finish. \p x: first channel of the slice.
/// \p Form is the plan's. \p blocks: of the kernel; 0 for as many as suit the device.
template <gemm_form Form, class In, class Finish>
[[nodiscard]] status launch_implicit_gemm(const detail::gemm_plan& plan,
                                          const gemm_workspace& pieces,
                                          const In* x,
                                          const In* w,
                                          const Finish& finish,
                                          const workspace& space,
                                          bool overlap_predecessor,
                                          cudaStream_t stream,
                                          int64_t blocks = 0)
{
  const gemm_problem& p = plan.problem;
  unsigned char* packed = pieces.packed.get(space);
  gemm_phase* phases    = pieces.phases.get(space);
  gemm_step* steps      = pieces.steps.get(space);
  float* inverse_scales = pieces.inverse_scales.get(space);
  unsigned* lost        = pieces.lost.get(space);
  int device            = 0;
  int multiprocessors   = 0;
  if (status s = check(cudaGetDevice(&device), "cudaGetDevice"); !s.ok())
  {
    return s;
  }
  if (status s = check(
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
      !s.ok())
  {
    return s;
  }
  return visit_gemm_instruction(plan.instruction, [&](auto constant) -> status {
    constexpr gemm_instruction instruction = decltype(constant)::value;
    const int64_t kernel_extents           = p.axis[0].kernel + p.axis[1].kernel + p.axis[2].kernel;
    if (status s = launch("tconv::kernel::prepare_implicit_gemm",
                          kernel::prepare_implicit_gemm<instruction, Form, In>,
                          {plan.pack_blocks,
                           tuning::implicit_gemm_pack_threads,
                           static_cast<std::size_t>(kernel_extents) * sizeof(kernel::packed_tap),
                           overlap_predecessor,
                           instruction == gemm_instruction::warpgroup ? tuning::implicit_gemm_pack_cluster : 1},
                          stream,
                          p,
                          w,
                          packed,
                          phases,
                          steps,
                          inverse_scales,
                          lost);
        !s.ok())
    {
      return s;
    }
    return detail::visit_gemm_policy<Form, instruction>(p, [&](auto policy) -> status {
      using policy_type = decltype(policy);
      return launch("tconv::kernel::implicit_gemm",
                    kernel::implicit_gemm<policy_type, Form, Finish, In>,
                    {blocks > 0 ? blocks : detail::gemm_blocks(p, multiprocessors),
                     policy_type::threads,
                     static_cast<std::size_t>(plan.shared_bytes),
                     true},
                    stream,
                    p,
                    x,
                    w,
                    packed,
                    phases,
                    steps,
                    inverse_scales,
                    lost,
                    plan.pack_blocks,
                    finish);
    });
  });
}

} // namespace runtime

TCONV_CUDA_NAMESPACE_END
