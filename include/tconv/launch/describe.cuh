// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Tells how conv_transpose() runs a problem, without running it.

#include "../detail/work.hpp"
#include "conv_transpose.cuh"

#include <cstdio>

TCONV_CUDA_NAMESPACE_BEGIN

/// What describe() tells, in numbers and as text.
struct description
{
  status outcome; ///< why conv_transpose() would refuse; then only text says more
  tconv::engine engine = tconv::engine::
    automatic; ///< gather, implicit_gemm (by wgmma) or implicit_gemm_warp; automatic where nothing is computed
  /// What a block computes at a time: cells along d, h and w, one output of each stride phase, by output channels.
  int64_t tile_cells[3] = {0, 0, 0};
  int64_t tile_channels = 0; ///< see tile_cells
  int64_t tiles         = 0; ///< tiles of the problem
  int64_t phases        = 0; ///< turns of a tile: its stride phases; those of stride 2 along w share one
  bool correlates =
    false; ///< average pools are formed from x at once; positions of the result are the tile's cells along w
  bool fused              = false; ///< functors before the first pool run on the accumulators, else on stored logits
  std::size_t workspace   = 0;     ///< bytes, as conv_transpose_workspace_bytes()
  double gather_ms        = 0;     ///< estimate of the model of costs; only the order of estimates matters
  double implicit_gemm_ms = 0;     ///< likewise; 0 where the engine was not considered or cannot run the problem here
  double multiply_adds    = 0;     ///< whose tap lands inside the output
  double bytes            = 0;     ///< of x, w and y, once each
  double roofline_ms      = 0;  ///< products or bytes, whichever takes longer, at the highest rates measured on an H200
  char text[512]          = ""; ///< all of it in a few lines; the message of outcome where that is an error
};

namespace runtime
{

/// The lines of result.text, of which everything else is set.
inline void write_text(description& result, const detail::work& least, const options& opts)
{
  const char* name = result.engine == engine::gather        ? "gather"
                   : result.engine == engine::implicit_gemm ? "implicit_gemm"
                                                            : "implicit_gemm_warp";
  char rule[96]    = "asked for by options.engine";
  if (opts.engine == engine::automatic && result.implicit_gemm_ms > 0)
  {
    std::snprintf(rule,
                  sizeof(rule),
                  "model of costs: gather %.3g ms, implicit_gemm %.3g ms",
                  result.gather_ms,
                  result.implicit_gemm_ms);
  }
  else if (result.correlates)
  {
    std::snprintf(rule, sizeof(rule), "average pools from x at once: few products an output");
  }
  else if (opts.engine == engine::automatic)
  {
    std::snprintf(rule,
                  sizeof(rule),
                  "implicit_gemm %s",
                  find_gemm_device(opts.engine).available ? "does not take the problem"
                                                          : "needs a device and a build that have its kernels");
  }
  std::snprintf(result.text,
                sizeof(result.text),
                "engine: %s (%s)\n"
                "tile: %lld x %lld x %lld cells, %lld channels, %lld phases; %lld tiles\n"
                "functors: on %s\n"
                "workspace: %zu bytes\n"
                "work: %.4g GMAC, %.4g MB; the %s take %.4g ms of an H200 at least\n",
                name,
                rule,
                static_cast<long long>(result.tile_cells[0]),
                static_cast<long long>(result.tile_cells[1]),
                static_cast<long long>(result.tile_cells[2]),
                static_cast<long long>(result.tile_channels),
                static_cast<long long>(result.phases),
                static_cast<long long>(result.tiles),
                result.fused ? "the accumulators" : "stored logits",
                result.workspace,
                result.multiply_adds * 1e-9,
                result.bytes * 1e-6,
                least.product_seconds() > least.byte_seconds() ? "products" : "bytes",
                result.roofline_ms);
}

/// The checks of conv_transpose(), then its plan: describe() but for the text of errors.
template <class In, class Out, int Rank, class Chain>
[[nodiscard]] status
describe_plan(description& result, const conv_transpose_shape<Rank>& shape, const Chain& functors, const options& opts)
{
  const int64_t written = Chain::output_channels(shape.out_channels);
  if (status s = detail::validate_result(shape, written); !s.ok())
  {
    return s;
  }
  if (shape.output_positions() == 0)
  {
    return {};
  }
  const pool_windows<Chain> pools(functors, shape.output());
  if (!pools.outcome.ok() || shape.batch == 0)
  {
    return pools.outcome;
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  if (status s = check_gather_limits(s3); !s.ok())
  {
    return s;
  }
  const auto describe_engine = [&](const auto& plan, const auto&) -> status {
    if (status s = check_engine(opts, plan.tensor_cores); !s.ok())
    {
      return s;
    }
    const auto set_tile = [&](const auto& cells, int64_t channels, int64_t tiles, int64_t phases) {
      std::copy_n(cells, 3, result.tile_cells);
      result.tile_channels = channels;
      result.tiles         = tiles;
      result.phases        = phases;
    };
    using plan_type  = std::decay_t<decltype(plan)>;
    result.workspace = plan.layout.bytes();
    result.engine    = engine::gather;
    if constexpr (plan_type::correlates)
    {
      using policy            = tuning::pooled_correlation_policy;
      constexpr int64_t along = policy::threads * policy::positions;
      const int64_t tile[]    = {1, 1, along};
      const int64_t tiles     = ceil_div(plan.problem.positions(), along) * plan.problem.channel_tiles();
      set_tile(tile, policy::channels, shape.batch * tiles, 1);
      result.correlates = true;
      result.fused      = true;
    }
    else
    {
      if (plan.tensor_cores)
      {
        result.engine         = plan.gemm.instruction == gemm_instruction::warpgroup ? engine::implicit_gemm
                                                                                     : engine::implicit_gemm_warp;
        const gemm_problem& p = plan.gemm.problem;
        set_tile(p.box, p.columns, p.total_tiles(), p.total_phases());
      }
      else
      {
        const gather_problem& p = plan.gather.problem;
        set_tile(p.tile_cells, p.taps.tile_channels, p.all_tiles(), p.total_phases());
      }
      constexpr bool across   = plan_type::head::across_channels;
      result.fused            = plan.fused;
      result.gather_ms        = detail::milliseconds(plan.gather, plan.shape, across);
      result.implicit_gemm_ms = plan.gemm.supported ? detail::milliseconds(plan.gemm, plan.shape, across) : 0.0;
    }
    return {};
  };
  if (status s = visit_conv_transpose_plan<In, Out>(s3, opts, functors, pools, describe_engine); !s.ok())
  {
    return s;
  }

  const auto input_elements  = static_cast<double>(shape.input_elements() + shape.weight_elements());
  const auto output_elements = static_cast<double>(shape.batch * written * pools.positions());
  const detail::work least{detail::landing_products(shape),
                           sizeof(In) * input_elements + sizeof(Out) * output_elements,
                           detail::products_per_second<In>(opts.math)};
  result.multiply_adds = least.multiply_adds;
  result.bytes         = least.bytes;
  result.roofline_ms   = least.floor_seconds() * 1e3;
  write_text(result, least, opts);
  return {};
}

} // namespace runtime

/// Tells how conv_transpose() runs the same types, shape, chain and options on the current device: engine, tile, the
/// rule that chose them, work and roofline. Nothing is launched; without a device the engine is gather.
///
/// \param shape     see conv_transpose(); every rule is checked
/// \param functors  see conv_transpose(); pointers are not looked at
/// \param opts      see options
template <class In = float, class Out = In, int Rank, class... Functors>
[[nodiscard]] description describe(const conv_transpose_shape<Rank>& shape,
                                   const chain<Functors...>& functors = chain<>{},
                                   const options& opts                = {})
{
  static_assert(is_type_pair<In, Out>::value,
                "tconv: x and w are float, __half or __nv_bfloat16, and y has their type or is float");
  description result;
  result.outcome = runtime::describe_plan<In, Out>(result, shape, functors, opts);
  if (result.engine == engine::automatic)
  {
    std::snprintf(
      result.text, sizeof(result.text), "%s\n", result.outcome.ok() ? "nothing to compute" : result.outcome.message());
  }
  return result;
}

TCONV_CUDA_NAMESPACE_END
