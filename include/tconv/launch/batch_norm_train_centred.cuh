// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Transposed convolution -> linear functors -> BatchNorm in train mode -> minus its own mean over space -> a chain.

#include "conv_batch_norm_train.cuh"
#include "global_mean.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// BatchNorm minus its own means per sample and channel, for conv_batch_norm_plan: means of the convolution by the
/// collapse, and a slope per channel. What precedes BatchNorm cancels but for its slope.
struct sample_centring
{
  collapse_plan collapse;
  detail::workspace_layout::piece<float> means; ///< [batch][out_channels], of the convolution
  detail::workspace_layout::piece<float> slopes;

  sample_centring(detail::workspace_layout& layout, const conv_transpose_shape<3>& shape, const options& opts)
      : collapse(layout, shape, false, opts)
      , means(layout.add<float>(shape.batch * shape.out_channels))
      , slopes(layout.add<float>(shape.out_channels))
  {}

  /// As channel_normalisation's.
  template <class Before, class Functors>
  static auto chain_of(const sample_centring* self,
                       const Before&,
                       const Functors& functors,
                       const batch_norm_arguments&,
                       int64_t out_channels,
                       const workspace& space)
  {
    const sample_centred_scale normalise(self != nullptr ? self->means.get(space) : nullptr,
                                         out_channels,
                                         self != nullptr ? self->slopes.get(space) : nullptr);
    return prepend(normalise, functors);
  }
  /// Where the statistics go.
  [[nodiscard]] kernel::channel_slopes result(const workspace& space) const { return {slopes.get(space)}; }
  /// The means; what is queued behind them may overlap.
  template <class In>
  [[nodiscard]] status
  launch(const In* x, const In* w, const workspace& space, bool& overlap_predecessor, cudaStream_t stream) const
  {
    if (status s = collapse.launch_sums(x, w, space, overlap_predecessor, stream); !s.ok())
    {
      return s;
    }
    overlap_predecessor = true;
    return collapse.launch_product(means.get(space), collapse.problem.out_channels, chain<>{}, space, stream);
  }
};

} // namespace runtime

/// Bytes of workspace that batch_norm_train_centred() needs for the same types, shape, chains and options; 0 for an
/// invalid shape and where nothing is computed.
template <class In = float, class Out = In, int Rank, class... Before, class... Functors>
std::size_t batch_norm_train_centred_workspace_bytes(const conv_transpose_shape<Rank>& shape,
                                                     const chain<Before...>& before,
                                                     const chain<Functors...>& functors = chain<>{},
                                                     const options& opts                = {})
{
  return runtime::conv_batch_norm_workspace_bytes<runtime::sample_centring, In, Out>(shape, before, functors, opts);
}

/// y = functors(v - mean of v over positions), v = batch_norm_train(before(conv_transpose(x, w))): BatchNorm in train
/// mode, then mean-only instance normalisation; running statistics as PyTorch.
///
/// With z = conv_transpose(x, w), a the slope of before, var[c] the variance of z over batch and positions, and mean[n,
/// c] that of z over positions,
///
///     y[n, c] = functors(a[c] * gamma[c] / sqrt(a[c]^2 var[c] + eps) * (z[n, c] - mean[n, c])),
///
/// because BatchNorm's own mean, beta and the offset of before cancel. mean[n, c] is exact and comes without the
/// convolution (see global_mean()); var as batch_norm_train() of a convolution finds it; y from computing the
/// convolution. Nothing larger than y is stored. A constant channel gives exactly 0 where its values are exactly
/// representable.
///
/// \param x          as for conv_transpose(), as are w, y, opts, space and stream
/// \param w          [in_channels, out_channels / groups, kernel...] of the type of x
/// \param y          [batch, out_channels, output...], or what functors make of it; must not overlap an input or the
///                   workspace
/// \param shape      of the convolution; batch * output positions must be >= 2
/// \param before     linear functors between convolution and BatchNorm: chain(bias(b)); chain<>() for nothing
/// \param arguments  gamma, running statistics (updated where not null), eps >= 0, momentum in [0, 1]; beta makes no
///                   difference
/// \param functors   what follows; average pools are folded into the convolution as in conv_transpose(). chain<>() for
///                   nothing
/// \param opts       see options
/// \param space      batch_norm_train_centred_workspace_bytes<In, Out>(shape, before, functors, opts) bytes
/// \param stream     see conv_transpose()
///
/// options.engine, and errors, as for batch_norm_train() of a convolution.
template <int Rank, class In, class Out, class... Before, class... Functors>
[[nodiscard]] status batch_norm_train_centred(const In* x,
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
  return runtime::run_conv_batch_norm<runtime::sample_centring>(
    x, w, y, shape, before, arguments, functors, opts, space, stream);
}

TCONV_CUDA_NAMESPACE_END
