// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The model of costs that conv_transpose() chooses an engine by. Its constants stand in tuning/engines.hpp with what they were
/// measured on; only the order of its estimates matters.

#include "../options.hpp"
#include "../tuning/engines.hpp"
#include "gather_plan.hpp"
#include "implicit_gemm_plan.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// Milliseconds that stores cost beyond products, for neither engine can store neighbouring outputs of a row at once where rows are no
/// multiple of a vector, and the gather engine where neighbours belong to different threads.
inline double store_milliseconds(const conv_transpose_shape<3>& shape, double odd_rows, double strided)
{
  const auto outputs = static_cast<double>(shape.output_elements());
  if (shape.stride[2] > 2)
  {
    return outputs * strided;
  }
  return shape.output(2) % 4 != 0 ? outputs * odd_rows : 0.0;
}

/// Milliseconds of the second pass over stored logits.
inline double logits_milliseconds(const conv_transpose_shape<3>& shape)
{
  return static_cast<double>(shape.output_elements()) * tuning::engine_costs::logits;
}

/// Estimate for the gather engine: waves of blocks, each with the products of its tile.
inline double milliseconds(const gather_plan& plan, const conv_transpose_shape<3>& shape, bool across_channels)
{
  using policy            = tuning::engine_costs;
  const gather_problem& p = plan.problem;
  double products         = static_cast<double>(p.all_tiles()) * p.taps.tile_channels
                  * static_cast<double>(p.taps.in_per_group);
  for (std::size_t a = 0; a < 3; ++a)
  {
    products *= static_cast<double>(p.tile_cells[a]) * static_cast<double>(shape.kernel[a]);
  }
  const auto blocks = static_cast<double>(p.blocks());
  const auto waves  = static_cast<double>(ceil_div(p.blocks(), policy::gather_blocks));
  return waves * products / blocks / policy::gather_block_products + policy::gather_launch
       + store_milliseconds(shape, policy::gather_odd_rows, policy::gather_strided)
       + (across_channels && !plan.whole_rows ? logits_milliseconds(shape) : 0.0);
}

/// Estimate for the tensor-core engine: the plan's cycles, and packing.
inline double milliseconds(const gemm_plan& plan, const conv_transpose_shape<3>& shape, bool across_channels)
{
  using policy         = tuning::engine_costs;
  const double packing = plan.problem.form == gemm_form::split ? policy::pack_split
                       : plan.problem.form == gemm_form::tf32  ? policy::pack_tf32
                                                               : policy::pack_half;
  const double slower  = plan.instruction == gemm_instruction::warpgroup ? 1.0
                       : plan.problem.form == gemm_form::split           ? policy::gemm_warp_split
                                                                         : policy::gemm_warp;
  return slower * plan.cycles / policy::gemm_cycles + policy::gemm_launch
       + static_cast<double>(shape.weight_elements()) * packing + store_milliseconds(shape, policy::gemm_odd_rows, 0.0)
       + (across_channels && !plan.whole_rows ? logits_milliseconds(shape) : 0.0);
}

/// Whether \p asked is an engine on the tensor cores.
inline bool asks_for_tensor_cores(engine asked)
{
  return asked == engine::implicit_gemm || asked == engine::implicit_gemm_warp;
}

/// Whether the tensor cores compute \p shape: where they can, and are asked for or estimated to be faster.
inline bool choose_tensor_cores(const gemm_plan& gemm,
                                const gather_plan& gather,
                                const conv_transpose_shape<3>& shape,
                                bool across_channels,
                                engine asked)
{
  return gemm.supported
      && (asks_for_tensor_cores(asked)
          || milliseconds(gemm, shape, across_channels) < milliseconds(gather, shape, across_channels));
}

} // namespace detail

TCONV_NAMESPACE_END
