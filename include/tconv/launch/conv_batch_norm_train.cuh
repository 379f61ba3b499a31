// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Transposed convolution -> linear functors -> BatchNorm in train mode -> a chain, without storing what is normalised:
/// the convolution is computed once for its moments and once more for the result.

#include "../detail/work.hpp"
#include "lagged_moments.cuh"
#include "output_moments.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// BatchNorm behind the convolution: an affine per channel. One of what conv_batch_norm_plan may normalise with.
struct channel_normalisation
{
  detail::workspace_layout::piece<float> centres;
  detail::workspace_layout::piece<float> slopes;

  channel_normalisation(detail::workspace_layout& layout, const conv_transpose_shape<3>& shape, const options&)
      : centres(layout.add<float>(shape.out_channels))
      , slopes(layout.add<float>(shape.out_channels))
  {}

  /// The chain behind the convolution; a null \p self leaves operands out, for its type.
  template <class Before, class Functors>
  static auto chain_of(const channel_normalisation* self,
                       const Before& before,
                       const Functors& functors,
                       const batch_norm_arguments& arguments,
                       int64_t,
                       const workspace& space)
  {
    const centred_affine normalise(self != nullptr ? self->centres.get(space) : nullptr,
                                   self != nullptr ? self->slopes.get(space) : nullptr,
                                   arguments.beta);
    return detail::join(before, prepend(normalise, functors));
  }
  /// Where the statistics go.
  [[nodiscard]] kernel::channel_affines result(const workspace& space) const
  {
    return {centres.get(space), slopes.get(space)};
  }
  /// Nothing goes before the moments.
  template <class In>
  [[nodiscard]] status launch(const In*, const In*, const workspace&, bool&, cudaStream_t) const
  {
    return {};
  }
};

/// Plan and workspace of a convolution whose moments come first, from lagged products of x or from computing it, and
/// which is then computed, normalised, for the result.
template <class Normalisation, class In>
struct conv_batch_norm_plan
{
  int64_t channels;
  detail::lagged_plan lags;
  output_moments_plan<In> pass;
  bool by_lags; ///< moments from lagged products; else from a pass over the outputs
  detail::workspace_layout layout;
  lagged_workspace lag_pieces;
  output_moments_workspace<In> pass_pieces;
  Normalisation normalisation;

  /// \p following: workspace of the second computation.
  conv_batch_norm_plan(const detail::workspace_layout& following,
                       const conv_transpose_shape<3>& shape,
                       const options& opts)
      : channels(shape.out_channels)
      , lags(detail::plan_lagged(shape, opts.input_layout))
      , pass(shape, opts)
      , by_lags(opts.engine == engine::automatic && lags.pays(detail::landing_products(shape))
                && (!pass.tensor_cores || lags.milliseconds() < pass.milliseconds))
      , layout(following)
      , lag_pieces(layout, lags.problem, by_lags)
      , pass_pieces(layout, pass, !by_lags)
      , normalisation(layout, shape, opts)
  {}

  /// All that comes before the convolution for the result: moments and statistics.
  template <class Before>
  [[nodiscard]] status launch(const In* x,
                              const In* w,
                              const Before& before,
                              const batch_norm_arguments& arguments,
                              const options& opts,
                              const workspace& space,
                              cudaStream_t stream) const
  {
    bool overlap_predecessor = opts.programmatic_launch;
    if (status s = normalisation.launch(x, w, space, overlap_predecessor, stream); !s.ok())
    {
      return s;
    }
    const auto finish = [&](const auto& statistics) {
      constexpr int threads = 256;
      const auto result     = normalisation.result(space);
      using statistics_type = std::decay_t<decltype(statistics)>;
      return runtime::launch(
        "tconv::kernel::batch_norm_statistics",
        kernel::batch_norm_statistics<threads, statistics_type, Before, std::decay_t<decltype(result)>>,
        {std::min(channels, max_grid), threads, 0, true},
        stream,
        statistics,
        result,
        channels,
        before,
        arguments);
    };
    if (by_lags)
    {
      if (status s = lag_pieces.launch(lags.problem, x, space, overlap_predecessor, stream); !s.ok())
      {
        return s;
      }
      return finish(
        kernel::lagged_moments<In>{lags.problem, lag_pieces.gram.get(space), lag_pieces.input_sums.get(space), w});
    }
    if (status s = pass_pieces.launch(pass, x, w, space, overlap_predecessor, stream); !s.ok())
    {
      return s;
    }
    return finish(pass_pieces.result(pass, space));
  }
};

/// Bytes of workspace of run_conv_batch_norm() for the same types, shape, chains and options.
template <class Normalisation, class In, class Out, int Rank, class Before, class Functors>
std::size_t conv_batch_norm_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                            const Before& before,
                                            const Functors& functors,
                                            const options& opts)
{
  const auto all   = Normalisation::chain_of(nullptr, before, functors, {}, 0, {});
  using chain_type = std::decay_t<decltype(all)>;
  if (!detail::validate_result(shape, chain_type::output_channels(shape.out_channels)).ok()
      || shape.output_elements() == 0)
  {
    return 0;
  }
  const pool_windows<chain_type> pools(all, shape.output());
  if (!pools.outcome.ok())
  {
    return 0;
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  const auto bytes                 = [&](const auto& plan, const auto&) {
    return conv_batch_norm_plan<Normalisation, In>(plan.layout, s3, opts).layout.bytes();
  };
  return visit_conv_transpose_plan<In, Out>(s3, opts, all, pools, bytes);
}

/// y = functors(\p Normalisation of before(conv_transpose(x, w))); arguments as for batch_norm_train() of a
/// convolution.
template <class Normalisation, int Rank, class In, class Out, class Before, class Functors>
[[nodiscard]] status run_conv_batch_norm(const In* x,
                                         const In* w,
                                         Out* y,
                                         const conv_transpose_shape<Rank>& shape,
                                         const Before& before,
                                         const batch_norm_arguments& arguments,
                                         const Functors& functors,
                                         const options& opts,
                                         const workspace& space,
                                         cudaStream_t stream)
{
  static_assert(is_type_pair<In, Out>::value,
                "tconv: x and w are float, __half or __nv_bfloat16, and y has their type or is float");
  static_assert(Before::linear && !Before::per_sample,
                "tconv: batch_norm_train takes linear functors without operands per sample (bias, scale, affine, "
                "batch_norm) before BatchNorm; anything else needs the convolution's output");
  // The plan depends on the types of the functors alone; where their operands are follows from it.
  const auto without_operands = Normalisation::chain_of(nullptr, before, functors, arguments, shape.out_channels, {});
  using chain_type            = std::decay_t<decltype(without_operands)>;
  const int64_t written       = chain_type::output_channels(shape.out_channels);
  if (status s = detail::validate_result(shape, written); !s.ok())
  {
    return s;
  }
  if (status s = check_batch_norm(arguments); !s.ok())
  {
    return s;
  }
  if (shape.output_positions() == 0)
  {
    return {};
  }
  const pool_windows<chain_type> pools(without_operands, shape.output());
  if (!pools.outcome.ok() || shape.batch == 0)
  {
    return pools.outcome;
  }
  if (shape.batch * shape.output_positions() < 2)
  {
    return status::error(
      status_code::invalid_argument,
      "shape: batch * output positions = 1: BatchNorm in train mode needs at least 2 values per channel");
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  if (status s = check_gather_limits(s3); !s.ok())
  {
    return s;
  }
  const auto optional = [&](const char* name, auto* p) {
    return argument(name, p, p != nullptr ? shape.out_channels : 0);
  };
  const auto run = [&](const auto& plan, const auto&) -> status {
    if (status s = check_engine(opts, plan.tensor_cores); !s.ok())
    {
      return s;
    }
    const conv_batch_norm_plan<Normalisation, In> statistics(plan.layout, s3, opts);
    if (status s = check_call({input_argument(x, shape, opts),
                               {"w", w, shape.weight_elements()},
                               optional("batch_norm.gamma", arguments.gamma),
                               optional("batch_norm.beta", arguments.beta)},
                              {output_argument(y, shape, written, pools.positions(), opts),
                               optional("batch_norm.running_mean", arguments.running_mean),
                               optional("batch_norm.running_var", arguments.running_var)},
                              statistics.layout,
                              opts,
                              space);
        !s.ok())
    {
      return s;
    }
    const In* first_x = first_of_slice(x, shape, opts);
    if (status s = statistics.launch(first_x, w, before, arguments, opts, space, stream); !s.ok())
    {
      return s;
    }
    options behind             = opts;
    behind.programmatic_launch = true;
    const auto result          = [&](const auto& same_plan, const auto& chain_of_run) {
      return same_plan.launch(
        first_x, w, output_view(y, shape, written, pools.positions(), opts), chain_of_run, behind, space, stream);
    };
    return visit_conv_transpose_plan<In, Out>(
      s3,
      opts,
      Normalisation::chain_of(&statistics.normalisation, before, functors, arguments, shape.out_channels, space),
      pools,
      result);
  };
  return visit_conv_transpose_plan<In, Out>(s3, opts, without_operands, pools, run);
}

} // namespace runtime

/// Bytes of workspace that batch_norm_train() of a convolution needs for the same types, shape, chains and options; 0
/// for an invalid shape and where nothing is computed.
template <class In = float, class Out = In, int Rank, class... Before, class... Functors>
std::size_t batch_norm_train_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                             const chain<Before...>& before,
                                             const chain<Functors...>& functors = chain<>{},
                                             const options& opts                = {})
{
  return runtime::conv_batch_norm_workspace_bytes<runtime::channel_normalisation, In, Out>(
    shape, before, functors, opts);
}

/// y = functors(batch_norm_train(before(conv_transpose(x, w)))); running statistics as PyTorch.
///
/// \param x          as for conv_transpose(), as are w, y, opts, space and stream
/// \param w          [in_channels, out_channels / groups, kernel...] of the type of x
/// \param y          [batch, out_channels, output...], or what functors make of it; must not overlap an input or the
///                   workspace
/// \param shape      of the convolution; batch * output positions must be >= 2
/// \param before     linear functors between convolution and BatchNorm: chain(bias(b)); chain<>() for nothing
/// \param arguments  gamma, beta, running statistics (updated where not null), eps >= 0, momentum in [0, 1]
/// \param functors   what follows the normalisation; chain<>() for nothing
/// \param opts       see options
/// \param space      batch_norm_train_workspace_bytes<In, Out>(shape, before, functors, opts) bytes
/// \param stream     see conv_transpose()
///
/// The moments come from lagged products of x (kernel/lagged.cuh) where input channels are few, so that there are fewer
/// of those than products of the convolution, else from a pass over the outputs in registers; both centred, so that
/// nothing cancels. The result comes from computing the convolution with average pools folded into it as
/// conv_transpose() does: nothing larger than the result is stored. options.engine is that of the result and of the pass
/// over the outputs, for which it asks. Errors as for conv_transpose() and batch_norm_train() of a tensor.
template <int Rank, class In, class Out, class... Before, class... Functors>
[[nodiscard]] status batch_norm_train(const In* x,
                                      const In* w,
                                      Out* y,
                                      const conv_transpose_shape<Rank>& shape,
                                      const chain<Before...>& before,
                                      const batch_norm_arguments& arguments,
                                      const chain<Functors...>& functors,
                                      const options& opts,
                                      const workspace& space,
                                      cudaStream_t stream)
{
  return runtime::run_conv_batch_norm<runtime::channel_normalisation>(
    x, w, y, shape, before, arguments, functors, opts, space, stream);
}

TCONV_CUDA_NAMESPACE_END
