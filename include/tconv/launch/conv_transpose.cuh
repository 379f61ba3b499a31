// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The fused launcher: transposed convolution and a chain, in one call.

#include "../detail/arguments.cuh"
#include "../detail/choose_engine.hpp"
#include "../detail/fold_average_pool.hpp"
#include "../detail/workspace_layout.hpp"
#include "../kernel/fold_average_pool.cuh"
#include "../kernel/gather.cuh"
#include "../kernel/pooled_correlation.cuh"
#include "../kernel/prepare_gather.cuh"
#include "../tuning/collapse.hpp"
#include "implicit_gemm.cuh"
#include "tensor_chain.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// The gather engine's share of a workspace, for any finish.
struct gather_workspace
{
  detail::workspace_layout::piece<float> packed;
  detail::workspace_layout::piece<gather_stage> stages;
  detail::workspace_layout::piece<unsigned> nonfinite;

  /// Nothing where the engine is not \p used.
  gather_workspace(detail::workspace_layout& layout, const gather_problem& problem, bool used = true)
      : packed(layout.add<float>(used ? problem.taps.floats() : 0))
      , stages(layout.add<gather_stage>(used ? problem.stages() : 0))
      , nonfinite(layout.add<unsigned>(used ? problem.weight_blocks : 0))
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

/// Whether a plan that uses \p tensor_cores is what \p opts ask for.
[[nodiscard]] inline status check_engine(const options& opts, bool tensor_cores)
{
  const bool asked = detail::asks_for_tensor_cores(opts.engine);
  if (opts.engine == engine::automatic || (tensor_cores ? asked : opts.engine == engine::gather))
  {
    return {};
  }
  return status::error(
    status_code::not_supported,
    "options.engine: conv_transpose has gather and, where device and build have the kernels, implicit_gemm and "
    "implicit_gemm_warp (groups: fp32 alone; where fp32 is precise: 16 products on every output)");
}

/// Packs the weights, then runs the gather kernel of \p plan with \p finish. \p x: first channel of the slice.
template <class In, class Finish>
[[nodiscard]] status launch_gather(const detail::gather_plan& plan,
                                   const gather_workspace& pieces,
                                   const In* x,
                                   const In* w,
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
                          kernel::prepare_gather<policy_type, pack_threads, In>,
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
      kernel::gather<policy_type, Finish, In>,
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

/// The tensors that a convolution runs with where its outputs are averaged: taps summed over windows, and where one window covers an
/// axis, inputs summed along that.
struct folded_tensors
{
  tap_windows taps;
  axis_classes inputs;
  bool any = false; ///< else the tensors are the user's
  detail::workspace_layout::piece<float> w;
  detail::workspace_layout::piece<float> x;

  folded_tensors() = default;
  /// Of \p shape, as \p fold says.
  folded_tensors(detail::workspace_layout& layout,
                 const conv_transpose_shape<3>& shape,
                 const detail::average_pool_fold& fold,
                 const options& opts)
      : any(fold.any())
  {
    if (!any)
    {
      return;
    }
    taps = tap_windows::of(shape, fold);
    for (int a = 0; a < 3; ++a)
    {
      inputs.outer *= a < fold.collapsed ? taps.axis[a].in : 1;
      inputs.extent = a == fold.collapsed ? taps.axis[a].in : inputs.extent;
      inputs.inner *= a > fold.collapsed ? taps.axis[a].in : 1;
    }
    inputs.x        = input_strides(shape, opts);
    inputs.batch    = shape.batch;
    inputs.channels = shape.in_channels;
    inputs.classes  = fold.classes;
    for (int i = 0; i < fold.classes; ++i)
    {
      inputs.inputs[i] = fold.table[i].inputs;
    }
    w = layout.add<float>(taps.sums());
    x = layout.add<float>(fold.collapsed >= 0 ? fold.shape.input_elements() : 0);
  }

  /// An axis is summed away.
  [[nodiscard]] bool collapsed() const { return taps.collapsed >= 0; }

  /// Sums \p user_x where an axis is collapsed, and \p user_w.
  [[nodiscard]] status launch(const float* user_x,
                              const float* user_w,
                              const workspace& space,
                              bool overlap_predecessor,
                              cudaStream_t stream) const
  {
    using policy = tuning::collapse_policy;
    if (collapsed())
    {
      const auto sum = [&](auto width) {
        const int64_t threads = inputs.batch * inputs.channels * inputs.outer * (inputs.inner / decltype(width)::value);
        return runtime::launch(
          "tconv::kernel::sum_along_axis",
          kernel::sum_along_axis<policy, decltype(width)::value, float>,
          {std::min(ceil_div(threads, policy::axis_threads), max_grid), policy::axis_threads, 0, overlap_predecessor},
          stream,
          inputs,
          user_x,
          x.get(space));
      };
      const bool vectors = !inputs.x.channels_last() && aligned_groups(user_x, inputs.inner, 4);
      if (status s = vectors ? sum(std::integral_constant<int, 4>{}) : sum(std::integral_constant<int, 1>{}); !s.ok())
      {
        return s;
      }
      overlap_predecessor = true;
    }
    constexpr int threads = 128;
    return runtime::launch("tconv::kernel::sum_tap_windows",
                           kernel::sum_tap_windows<threads, float>,
                           {std::min(ceil_div(taps.sums(), threads), max_grid), threads, 0, overlap_predecessor},
                           stream,
                           taps,
                           user_w,
                           w.get(space));
  }
};

/// How conv_transpose() runs a shape with a chain: the plan and its workspace, for query and run alike. The functors before the
/// first pool are the convolution's; behind them what they leave is fp32 in the workspace, and the pools follow pass by pass.
template <class Chain, class In, class Out>
struct conv_transpose_plan
{
  using head                       = before_pool_t<Chain>;
  using tail                       = from_pool_t<Chain>;
  static constexpr bool pooled     = Chain::pools > 0;
  static constexpr bool correlates = false;                                  ///< else a correlation_plan
  using head_out                   = std::conditional_t<pooled, float, Out>; ///< what the convolution writes

  conv_transpose_shape<3> shape;
  detail::gather_plan gather;
  detail::gemm_plan gemm;
  bool tensor_cores; ///< the products are formed by gemm, else by gather
  detail::workspace_layout layout;
  gather_workspace pieces;
  gemm_workspace gemm_pieces;
  /// The head runs on the accumulators; else fp32 logits are stored once and a second kernel finishes.
  bool fused;
  /// Logits are stored where the head's result goes, which has room for them.
  bool in_place;
  columns_plan columns;
  detail::workspace_layout::piece<float> logits;
  detail::workspace_layout::piece<float> head_result; ///< where pools follow: channels first
  pool_passes<tail> passes;

  folded_tensors folded;

  /// \p windows: of the pools of the chain.
  conv_transpose_plan(const conv_transpose_shape<3>& convolution, const options& opts, const pool_window* windows)
      : shape(convolution)
      , gather(detail::plan_gather(shape, head::across_channels, opts.input_layout))
      , gemm(plan_implicit_gemm<In>(
          shape, opts.math, opts.engine, {opts.input_layout, opts.output_layout, head::across_channels}))
      , tensor_cores(detail::choose_tensor_cores(gemm, gather, shape, head::across_channels, opts.engine))
      , pieces(layout, gather.problem, !tensor_cores)
      , gemm_pieces(layout, gemm, tensor_cores)
      , fused(!head::across_channels || (tensor_cores ? gemm.whole_rows : gather.whole_rows))
      , in_place(std::is_same<head_out, float>::value && !head::reduces_channels)
      , columns(layout, shape.batch, fused ? 1 : shape.out_channels, shape.output_positions())
      , logits(layout.add<float>(fused || in_place ? 0 : shape.output_elements()))
      , head_result(layout.add<float>(
          pooled ? shape.batch * head::output_channels(shape.out_channels) * shape.output_positions() : 0))
      , passes(layout, shape.batch, head::output_channels(shape.out_channels), false, windows)
  {}

  /// y = functors(conv_transpose(x, w)), of which everything has been checked. \p x: first channel of the slice.
  [[nodiscard]] status launch(const In* x,
                              const In* w,
                              const block::tensor_view<Out>& y,
                              const Chain& functors,
                              const options& opts,
                              const workspace& space,
                              cudaStream_t stream) const
  {
    if constexpr (std::is_same<In, float>::value)
    {
      if (folded.any)
      {
        if (status s = folded.launch(x, w, space, opts.programmatic_launch, stream); !s.ok())
        {
          return s;
        }
        options behind             = opts;
        behind.programmatic_launch = true;
        return launch_convolution(
          folded.collapsed() ? folded.x.get(space) : x, folded.w.get(space), y, functors, behind, space, stream);
      }
    }
    return launch_convolution(x, w, y, functors, opts, space, stream);
  }

private:
  /// y = functors(conv_transpose(x, w)).
  [[nodiscard]] status launch_convolution(const In* x,
                                          const In* w,
                                          const block::tensor_view<Out>& y,
                                          const Chain& functors,
                                          const options& opts,
                                          const workspace& space,
                                          cudaStream_t stream) const
  {
    if constexpr (!pooled)
    {
      return launch_head(x, w, y, functors, opts, space, stream);
    }
    else
    {
      const block::tensor_view<float> between{
        head_result.get(space),
        tensor_strides::of(
          tconv::layout::channels_first, head::output_channels(shape.out_channels), shape.output_positions())};
      if (status s = launch_head(x, w, between, detail::before_pool(functors), opts, space, stream); !s.ok())
      {
        return s;
      }
      return passes.launch(block::tensor_view<const float>{between.data, between.strides},
                           y,
                           detail::from_pool(functors),
                           space,
                           true,
                           stream);
    }
  }

#if TCONV_DETAIL_TENSOR_CORES
  /// Runs the tensor-core kernel of the plan's form.
  template <class Finish>
  [[nodiscard]] status launch_gemm(const In* x,
                                   const In* w,
                                   const Finish& finish,
                                   const options& opts,
                                   const workspace& space,
                                   cudaStream_t stream) const
  {
    const auto run = [&](auto form) {
      return launch_implicit_gemm<decltype(form)::value, In>(
        gemm, gemm_pieces, x, w, finish, space, opts.programmatic_launch, stream);
    };
    if constexpr (std::is_same<In, float>::value)
    {
      if (gemm.problem.form == gemm_form::tf32)
      {
        return run(std::integral_constant<gemm_form, gemm_form::tf32>{});
      }
    }
    return run(std::integral_constant<gemm_form, form_of<In>(math::precise)>{});
  }
#endif

  /// target = functors(conv_transpose(x, w)), for the functors before the first pool.
  [[nodiscard]] status launch_head(const In* x,
                                   const In* w,
                                   const block::tensor_view<head_out>& target,
                                   const head& functors,
                                   const options& opts,
                                   const workspace& space,
                                   cudaStream_t stream) const
  {
    const auto run = [&](const auto& functors_of_run, const auto& to) {
      using chain_of_run = std::decay_t<decltype(functors_of_run)>;
      using element      = std::remove_pointer_t<decltype(to.data)>;
      const bool last    = to.channels_last();
      // Outputs of a thread that one store takes, neighbours along w or channels, lie \p together from step to step.
      const auto vector = [&](int64_t together) {
        const int64_t step = last ? gcd(to.strides.position, to.strides.sample)
                                  : gcd(shape.output(2), to.strides.sample);
        return aligned_groups(to.data, step, together);
      };
#if TCONV_DETAIL_TENSOR_CORES
      if (tensor_cores)
      {
        const kernel::store_gemm_outputs<chain_of_run, element> finish{
          functors_of_run,
          to.data,
          to.strides,
          vector(last ? block::fragment_channel_vector<element> : gemm.problem.stored_together())};
        return launch_gemm(x, w, finish, opts, space, stream);
      }
#endif
      constexpr int cells = 4;
      return launch_gather(gather,
                           pieces,
                           x,
                           w,
                           kernel::store_outputs<chain_of_run, element>{
                             functors_of_run,
                             to.data,
                             to.strides,
                             vector(last ? gather.channels_per_thread : cells * gather.phases_per_thread)},
                           space,
                           opts.programmatic_launch,
                           stream);
    };
    if constexpr (!head::across_channels)
    {
      return run(functors, target);
    }
    else
    {
      if (fused)
      {
        return run(functors, target);
      }
      const int64_t positions   = shape.output_positions();
      const tconv::layout order = target.channels_last() ? tconv::layout::channels_last : tconv::layout::channels_first;
      block::tensor_view<float> rows{logits.get(space), tensor_strides::of(order, shape.out_channels, positions)};
      if constexpr (std::is_same<head_out, float>::value)
      {
        rows = in_place ? target : rows;
      }
      if (status s = run(chain<>{}, rows); !s.ok())
      {
        return s;
      }
      return columns.launch(block::tensor_view<const float>{rows.data, rows.strides},
                            target,
                            shape.batch,
                            shape.out_channels,
                            positions,
                            functors,
                            space,
                            true,
                            stream);
    }
  }
};

/// True if the taps can be summed over the windows of the first pool of \p Chain: an average behind linear functors, which commute
/// with it, and weights of fp32, because sums are not rounded to less.
template <class Chain, class In, class = void>
struct folds_average_pool : std::false_type
{};
template <class Chain>
struct folds_average_pool<Chain, float, std::enable_if_t<(Chain::pools > 0)>>
    : std::bool_constant<
        before_pool_t<Chain>::linear&& decltype(detail::from_pool(std::declval<const Chain&>()).first)::operation
        == pool_operation::mean>
{};

/// How conv_transpose() runs a convolution and average pools behind it as a correlation with few products, for query and run alike.
/// \p Chain: what remains without the pools.
template <class Chain, class Out>
struct correlation_plan
{
  static constexpr bool correlates   = true;
  static constexpr bool tensor_cores = false;

  correlation_problem problem;
  detail::workspace_layout layout;
  detail::workspace_layout::piece<float> weights;

  explicit correlation_plan(const correlation_problem& correlation)
      : problem(correlation)
      , weights(layout.add<float>(problem.weights()))
  {}

  /// y = functors(averages of conv_transpose(x, w)), of which everything has been checked. \p x: first channel of the slice.
  [[nodiscard]] status launch(const float* x,
                              const float* w,
                              const block::tensor_view<Out>& y,
                              const Chain& functors,
                              const options& opts,
                              const workspace& space,
                              cudaStream_t stream) const
  {
    using policy = tuning::pooled_correlation_policy;
    if (status s = runtime::launch(
          "tconv::kernel::pack_correlation",
          kernel::pack_correlation<policy>,
          {ceil_div(problem.weights(), policy::weight_threads), policy::weight_threads, 0, opts.programmatic_launch},
          stream,
          problem,
          w,
          weights.get(space));
        !s.ok())
    {
      return s;
    }
    const int64_t blocks = problem.batch * problem.channel_tiles()
                         * ceil_div(problem.positions(), policy::threads * policy::positions);
    const auto run = [&](auto inside) {
      return runtime::launch("tconv::kernel::pooled_correlation",
                             kernel::pooled_correlation<policy, decltype(inside)::value, Chain, Out>,
                             {std::min(blocks, max_grid),
                              policy::threads,
                              static_cast<std::size_t>(problem.products()) * (4 * policy::channels + 8),
                              true},
                             stream,
                             problem,
                             x,
                             weights.get(space),
                             y,
                             functors);
    };
    return problem.inside() ? run(std::true_type{}) : run(std::false_type{});
  }
};

/// Average pools in a row at the front of a chain.
template <class Chain>
struct leading_means : std::integral_constant<int, 0>
{};
template <class First, class... Rest>
struct leading_means<chain<First, Rest...>>
{
  static constexpr int count()
  {
    if constexpr (detail::across_positions<First>::value)
    {
      return First::operation == pool_operation::mean ? 1 + leading_means<chain<Rest...>>::value : 0;
    }
    else
    {
      return 0;
    }
  }
  static constexpr int value = count();
};

/// \p functors without the first \p Count pools.
template <int Count, class Chain>
auto without_pools(const Chain& functors)
{
  if constexpr (Count == 0)
  {
    return functors;
  }
  else
  {
    return without_pools<Count - 1>(detail::without_pool(functors));
  }
}

/// visit(plan, chain) with the plan of conv_transpose() and the chain that it runs, which may be another than \p functors.
template <class In, class Out, class Chain, class Visit>
auto visit_conv_transpose_plan(const conv_transpose_shape<3>& shape,
                               const options& opts,
                               const Chain& functors,
                               const pool_windows<Chain>& pools,
                               Visit visit)
{
  if constexpr (folds_average_pool<Chain, In>::value)
  {
    constexpr int means  = leading_means<from_pool_t<Chain>>::value;
    const auto remaining = without_pools<means>(functors);
    using remaining_type = std::decay_t<decltype(remaining)>;
    if constexpr (remaining_type::pools == 0 && !remaining_type::across_channels)
    {
      pool_window window = pools.given[0];
      bool one           = opts.engine == engine::automatic;
      for (std::size_t i = 1; one && i < static_cast<std::size_t>(means); ++i)
      {
        pool_window merged;
        one    = detail::merge_windows(window, pools.given[i], merged);
        window = merged;
      }
      correlation_problem problem;
      if (one && detail::plan_pooled_correlation(shape, window, opts.input_layout, problem))
      {
        return visit(correlation_plan<remaining_type, Out>(problem), remaining);
      }
    }
    const detail::average_pool_fold fold = detail::fold_average_pool(shape, pools.first);
    const scale mean(static_cast<float>(fold.factor()));
    options behind = opts;
    if (fold.collapsed >= 0)
    {
      behind.input_layout = layout::channels_first;
    }
    const auto run = [&](const auto& chain_of_run, const pool_window* windows) {
      conv_transpose_plan<std::decay_t<decltype(chain_of_run)>, In, Out> plan(fold.shape, behind, windows);
      plan.folded = folded_tensors(plan.layout, shape, fold, opts);
      return visit(plan, chain_of_run);
    };
    if (fold.whole())
    {
      return run(prepend(mean, detail::without_pool(functors)), pools.windows.data() + 1);
    }
    auto windows = pools.windows;
    windows[0]   = detail::merge_axes(fold.rest);
    return run(prepend(mean, functors), windows.data());
  }
  else
  {
    return visit(conv_transpose_plan<Chain, In, Out>(shape, opts, pools.windows.data()), functors);
  }
}

} // namespace runtime

/// Bytes of workspace that conv_transpose() needs for the same types, shape, chain and options; 0 for an invalid shape and where
/// nothing is computed.
template <class In = float, class Out = In, int Rank, class... Functors>
std::size_t conv_transpose_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                           const chain<Functors...>& functors = chain<>{},
                                           const options& opts                = {})
{
  using chain_type = chain<Functors...>;
  if (!detail::validate_result(shape, chain_type::output_channels(shape.out_channels)).ok()
      || shape.output_elements() == 0)
  {
    return 0;
  }
  const runtime::pool_windows<chain_type> pools(functors, shape.output());
  if (!pools.outcome.ok())
  {
    return 0;
  }
  const auto bytes = [](const auto& plan, const auto&) { return plan.layout.bytes(); };
  return runtime::visit_conv_transpose_plan<In, Out>(detail::canonical(shape), opts, functors, pools, bytes);
}

/// y = functors(conv_transpose(x, w)).
///
/// \param x         [batch, in_channels, input...], device memory; channels last where opts says so; may be a channel slice
/// \param w         [in_channels, out_channels / groups, kernel...] of the type of x, as torch.nn.ConvTranspose*d stores it
/// \param y         [batch, out_channels, output...], in its own layout; may be a channel slice; [batch, 1, output...] where the
///                  chain reduces the channels, and with the extents that its pools leave. Must not overlap x, w or the workspace, but x and y may be slices of one tensor
///                  that have no channel in common
/// \param shape     extents and parameters; every rule is checked
/// \param functors  what happens to the outputs: chain(bias(b), channel_softmax(), sigmoid()); chain<>() for nothing
/// \param opts      see options
/// \param space     conv_transpose_workspace_bytes<In, Out>(shape, functors, opts) bytes
/// \param stream    everything is queued here; nothing is allocated, synchronised or read back, so the call can be captured
///
/// Types of x and w, and of y: f32 -> f32, f16 -> f16, bf16 -> bf16, f16 -> f32, bf16 -> f32. Products are summed in fp32.
/// Each output is within (K + 8) * 2^-24 * (sum|x||w| + |bias|) of the exact one before the chain, K products landing on it, and is
/// rounded to the type of y once, after the chain.
/// NaN and infinity in x or w reach exactly the outputs whose taps touch them. Results are bitwise repeatable.
/// Any alignment that the element type allows is accepted; 16 bytes for y are faster.
///
/// Two engines form the products, see options.engine: tensor cores where device and build have the kernels and they are
/// estimated to be faster, else CUDA cores.
///
/// Channel functors run on the accumulators for up to 128 channels on tensor cores, else 256 channels (with groups: 256 where a group has a
/// multiple of 8 channels, 128 where a multiple of 4, else 32); beyond, fp32 logits are stored once (in y, or in the workspace
/// where y has no room for them) and finished by a second kernel.
///
/// Pools and reductions over space run behind the convolution, on fp32 values in the workspace: what precedes the first is
/// stored there once, and each pool with the functors up to the next is a pass. But where the first is an average behind linear
/// functors and tensors are fp32, taps that meet in a window are added beforehand, as far as windows are a divisor of the
/// stride apart or have one in common with it; and where a window covers an axis, as with spatial_mean({0}), x is summed along
/// that first. Where such windows are multiples of the stride apart and few products make an output (few input channels), they are
/// formed from x at once, without the outputs that are averaged, average pools in a row included. See docs/algebra.md.
///
/// Errors: invalid_argument (shape, pool or pointer; nothing written), workspace_too_small, workspace_misaligned, not_supported,
/// cuda_error. Batch 0 and empty outputs succeed without a launch.
template <int Rank, class In, class Out, class... Functors>
[[nodiscard]] status conv_transpose(const In* x,
                                    const In* w,
                                    Out* y,
                                    const conv_transpose_shape<Rank>& shape,
                                    const chain<Functors...>& functors,
                                    const options& opts,
                                    const workspace& space,
                                    cudaStream_t stream)
{
  static_assert(is_type_pair<In, Out>::value,
                "tconv: x and w are float, __half or __nv_bfloat16, and y has their type or is float");
  using chain_type = chain<Functors...>;
  if (status s = detail::validate_result(shape, chain_type::output_channels(shape.out_channels)); !s.ok())
  {
    return s;
  }
  if (shape.output_positions() == 0)
  {
    return {};
  }
  const runtime::pool_windows<chain_type> pools(functors, shape.output());
  if (!pools.outcome.ok() || shape.batch == 0)
  {
    return pools.outcome;
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  if (status s = runtime::check_gather_limits(s3); !s.ok())
  {
    return s;
  }

  const int64_t written = chain_type::output_channels(shape.out_channels);
  const auto run        = [&](const auto& plan, const auto& chain_of_run) -> status {
    if (status s = runtime::check_engine(opts, plan.tensor_cores); !s.ok())
    {
      return s;
    }
    if (status s = runtime::check_call(
          {runtime::input_argument(x, shape, opts), {"w", w, shape.weight_elements()}},
          runtime::argument_list{runtime::output_argument(y, shape, written, pools.positions(), opts)},
          plan.layout,
          opts,
          space);
        !s.ok())
    {
      return s;
    }
    return plan.launch(runtime::first_of_slice(x, shape, opts),
                       w,
                       runtime::output_view(y, shape, written, pools.positions(), opts),
                       chain_of_run,
                       opts,
                       space,
                       stream);
  };
  return runtime::visit_conv_transpose_plan<In, Out>(s3, opts, functors, pools, run);
}

TCONV_CUDA_NAMESPACE_END
