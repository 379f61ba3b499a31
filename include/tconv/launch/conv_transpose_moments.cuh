// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Moments of a transposed convolution's outputs per channel, and their means per sample and channel, without storing an output.

#include "global_mean.cuh"
#include "output_moments.cuh"
#include "spectral_moments.cuh"

#include <algorithm>
#include <limits>
#include <type_traits>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// Plan and workspace of conv_transpose_moments(), for query and run: means from sums of x and w, squares around them from the
/// spectrum of x or from a pass over the outputs.
template <class In>
struct conv_transpose_moments_plan
{
  detail::spectral_plan spectrum;
  output_moments_plan<In> pass;
  /// Variances come from the spectrum of x; else from a pass over the outputs.
  bool spectral;
  /// The spectral kernels sum x and w, so that x is read once.
  bool sums_on_the_way;
  int64_t batch;
  int64_t channels;
  int64_t positions; ///< of the output
  detail::workspace_layout layout;
  collapse_plan collapse;
  spectral_workspace squares;
  output_moments_workspace<In> pass_pieces;

  /// For the canonical \p shape.
  conv_transpose_moments_plan(const conv_transpose_shape<3>& shape, const options& opts)
      : spectrum(detail::plan_spectral(shape, opts.input_layout, clusters_available()))
      , pass(shape, opts)
      , spectral(spectrum.possible
                 && (opts.engine == engine::spectral
                     || (opts.engine == engine::automatic && spectrum.milliseconds() < pass.milliseconds)))
      , sums_on_the_way(spectral && spectral_workspace::takes_sums(spectrum.problem))
      , batch(shape.batch)
      , channels(shape.out_channels)
      , positions(shape.output_positions())
      , collapse(layout, shape, false, opts, !sums_on_the_way)
      , squares(layout, spectrum.problem, spectral)
      , pass_pieces(layout, pass, !spectral)
  {}

  /// Rejects an engine that this problem or build does not have.
  [[nodiscard]] status check_engine(const options& opts) const
  {
    if (opts.engine == engine::spectral && !spectral)
    {
      return status::error(
        status_code::not_supported,
        "options.engine = spectral: needs stride 1, no padding, output_padding, dilation or groups, and "
        "planes and kernels that fit shared memory");
    }
    if (detail::asks_for_tensor_cores(opts.engine) && !pass.tensor_cores)
    {
      return status::error(
        status_code::not_supported,
        "options.engine: implicit_gemm and implicit_gemm_warp need a device and a build that have the kernels, for fp32, which is "
        "precise here, 16 products on every output, and else no groups");
    }
    return {};
  }

  /// All that comes before the last kernel, which \p finish(statistics) launches: statistics are kernel::exact_moments, and what they
  /// leave in \p means is complete once their total() is. \p x: first channel of the slice.
  template <class Finish>
  [[nodiscard]] status launch(const In* x,
                              const In* w,
                              double* means,
                              const options& opts,
                              const workspace& space,
                              cudaStream_t stream,
                              Finish finish) const
  {
    const auto around_means = [&](const auto& spread) {
      return kernel::exact_moments<std::decay_t<decltype(spread)>>{spread, means, batch, channels};
    };
    if (!sums_on_the_way)
    {
      if (status s = collapse.launch_sums(x, w, space, opts.programmatic_launch, stream); !s.ok())
      {
        return s;
      }
      if (status s = collapse.launch_product(means, channels, chain<>{}, space, stream); !s.ok())
      {
        return s;
      }
    }
    if (!spectral)
    {
      if (status s = pass_pieces.launch(pass, x, w, space, true, stream); !s.ok())
      {
        return s;
      }
      return finish(around_means(pass_pieces.result(pass, space)));
    }
    const spectral_problem& problem = spectrum.problem;
    if (status s = squares.launch_squares(problem,
                                          x,
                                          w,
                                          collapse.x_sums.get(space),
                                          collapse.w_sums.get(space),
                                          space,
                                          !sums_on_the_way || opts.programmatic_launch,
                                          stream);
        !s.ok())
    {
      return s;
    }
    const kernel::sample_squares of_samples{
      squares.squares.get(space), problem.grid_frequencies(), means, batch, channels, static_cast<double>(positions)};
    if (sums_on_the_way)
    {
      return finish(around_means(kernel::collapsed_squares{
        of_samples, means, collapse.x_sums.get(space), collapse.w_sums.get(space), collapse.problem.in_channels}));
    }
    return finish(around_means(of_samples));
  }
};

/// Bytes of workspace of \p Plan, whatever x is made of, which a query does not know; 0 for an invalid shape and where nothing is
/// computed.
template <template <class> class Plan, int Rank>
std::size_t moments_workspace_bytes(const conv_transpose_shape<Rank>& shape, const options& opts)
{
  if (!validate(shape).ok() || shape.output_elements() == 0)
  {
    return 0;
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  return std::max(Plan<float>(s3, opts).layout.bytes(), Plan<__half>(s3, opts).layout.bytes());
}

/// Rejects shapes of which the means [batch, out_channels] or the moments [ranks, out_channels] do not fit 63 bits of bytes.
template <int Rank>
[[nodiscard]] status check_moments_bytes(const conv_transpose_shape<Rank>& shape, int64_t ranks)
{
  constexpr int64_t most = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(sizeof(moments<double>));
  if (shape.out_channels > most / std::max(shape.batch, ranks))
  {
    return status::error(status_code::invalid_argument,
                         "shape.out_channels = %lld: the bytes of means and statistics must fit 63 bits",
                         static_cast<long long>(shape.out_channels));
  }
  return {};
}

/// Threads of the kernels that have a block for a channel.
inline constexpr int channel_threads = 256;

} // namespace runtime

/// Bytes of workspace that conv_transpose_moments() needs; 0 for an invalid shape and where nothing is computed.
template <int Rank>
std::size_t conv_transpose_moments_workspace_bytes(const conv_transpose_shape<Rank>& shape, const options& opts = {})
{
  return runtime::moments_workspace_bytes<runtime::conv_transpose_moments_plan>(shape, opts);
}

/// Count, mean and centred sum of squares of each channel of conv_transpose(x, w), over batch and output positions, and the means of
/// each sample: the part of BatchNorm in train mode and a global mean that comes before statistics are exchanged. Where a batch is
/// spread over GPUs, or over calls, sync_batch_norm_global_mean() takes the moments of all parts from here.
///
/// \param x           [batch, in_channels, input...], device memory; layout and slice as for conv_transpose()
/// \param w           [in_channels, out_channels / groups, kernel...] of the type of x
/// \param means       [batch, out_channels] fp64, written: means over the output positions; outputs must not overlap an input, each
///                    other or the workspace
/// \param statistics  [out_channels], written: three doubles each, mergeable in any way that moments<double>::merge() is. Moments of
///                    the convolution itself: a bias or scale between it and BatchNorm is applied behind the merge
/// \param shape       of the convolution; every rule is checked, output_slice is not used
/// \param opts        see options; math and output_layout make no difference
/// \param space       conv_transpose_moments_workspace_bytes(shape, opts) bytes
/// \param stream      see conv_transpose()
///
/// As exact as batch_norm_train_global_mean(), with as many launches, and nothing is stored of the convolution. Batch 0 and an empty output leave empty moments (count 0), which change nothing that they are merged with; only
/// statistics is looked at then. Errors as for conv_transpose().
template <int Rank, class In>
[[nodiscard]] status conv_transpose_moments(const In* x,
                                            const In* w,
                                            double* means,
                                            moments<double>* statistics,
                                            const conv_transpose_shape<Rank>& shape,
                                            const options& opts,
                                            const workspace& space,
                                            cudaStream_t stream)
{
  static_assert(is_tensor_type<In>::value, "tconv: x and w are float, __half or __nv_bfloat16");
  if (status s = validate(shape); !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_moments_bytes(shape, 1); !s.ok())
  {
    return s;
  }
  const runtime::argument of_channels("statistics", statistics, shape.out_channels);
  const auto store = [&](const auto& totals, bool overlap_predecessor = true) {
    using statistics_type = std::decay_t<decltype(totals)>;
    return runtime::launch(
      "tconv::kernel::store_moments_of_channels",
      kernel::store_moments_of_channels<runtime::channel_threads, statistics_type>,
      {std::min(shape.out_channels, runtime::max_grid), runtime::channel_threads, 0, overlap_predecessor},
      stream,
      totals,
      statistics,
      shape.out_channels);
  };
  if (shape.output_elements() == 0)
  {
    if (status s = runtime::check_argument(of_channels, opts); !s.ok())
    {
      return s;
    }
    // Of no part at all.
    return store(kernel::rank_moments{nullptr, 0, shape.out_channels}, opts.programmatic_launch);
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  if (status s = runtime::check_gather_limits(s3); !s.ok())
  {
    return s;
  }
  const runtime::conv_transpose_moments_plan<In> plan(s3, opts);
  if (status s = plan.check_engine(opts); !s.ok())
  {
    return s;
  }
  if (status s = runtime::check_call({runtime::input_argument(x, shape, opts), {"w", w, shape.weight_elements()}},
                                     {{"means", means, shape.batch * shape.out_channels}, of_channels},
                                     plan.layout,
                                     opts,
                                     space);
      !s.ok())
  {
    return s;
  }
  return plan.launch(runtime::first_of_slice(x, shape, opts), w, means, opts, space, stream, store);
}

TCONV_CUDA_NAMESPACE_END
