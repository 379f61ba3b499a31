// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The pipelines of pipeline.hpp, compiled once for the benchmarks and bench_dump_outputs.

#include "pipeline.hpp"

#include <tconv/detail/work.hpp>
#include <tconv/tconv.cuh>

#include <array>
#include <cstring>

namespace
{

using namespace tconv_bench;
using tconv::chain;
using tconv::options;

using extents = std::array<std::int64_t, 3>;

/// The convolution of a problem, without groups and dilation.
shape3 make_shape(std::int64_t batch,
                  std::int64_t in_channels,
                  std::int64_t out_channels,
                  const extents& input,
                  const extents& kernel,
                  std::int64_t stride  = 1,
                  std::int64_t padding = 0,
                  std::int64_t more    = 0)
{
  shape3 s;
  s.batch        = batch;
  s.in_channels  = in_channels;
  s.out_channels = out_channels;
  s.input        = {input[0], input[1], input[2]};
  s.kernel       = {kernel[0], kernel[1], kernel[2]};
  for (std::size_t a = 0; a < 3; ++a)
  {
    const bool there    = kernel[a] > 1; // a leading axis of extent 1 is none
    s.stride[a]         = there ? stride : 1;
    s.padding[a]        = there ? padding : 0;
    s.output_padding[a] = there ? more : 0;
  }
  return s;
}

/// Positions of \p s that windows of \p size, side by side, leave.
std::int64_t pooled_positions(const shape3& s, std::int64_t size)
{
  return s.output(0) / size * (s.output(1) / size) * (s.output(2) / size);
}

tconv::batch_norm_arguments batch_norm_of(const pipeline_tensors& t)
{
  return {t.gamma, t.beta, t.mean, t.var, 1e-5f, t.momentum};
}

// Launchers: what a pipeline P calls, of P::shape() and the chains that P makes of the operands.

/// What is the same wherever the convolution is computed, with BatchNorm in train mode behind it or without.
template <class P, bool BatchNorm>
struct computes
{
  static constexpr bool batch_norm = BatchNorm;
  static constexpr bool train      = BatchNorm;
  static double products(const options&) { return tconv::detail::landing_products(P::shape()); }
};

/// conv_transpose() with P::functors().
template <class P>
struct convolves : computes<P, false>
{
  static std::size_t bytes(const options& opts)
  {
    return tconv::conv_transpose_workspace_bytes(P::shape(), P::functors({}), opts);
  }
  static tconv::status
  run(const pipeline_tensors& t, const options& opts, const tconv::workspace& space, cudaStream_t stream)
  {
    return tconv::conv_transpose(t.x, t.w, t.y, P::shape(), P::functors(t), opts, space, stream);
  }
};

/// The same with an average behind linear functors, whose windows are P::window(): the products are those of the sums.
template <class P>
struct convolves_folded : convolves<P>
{
  static double products(const options&)
  {
    const shape3 s = P::shape();
    tconv::pool_window window;
    for (std::size_t a = 0; a < 3; ++a)
    {
      window.in[a]   = s.output(static_cast<int>(a));
      window.size[a] = P::window()[a] == 0 ? window.in[a] : P::window()[a];
      window.step[a] = window.size[a];
    }
    return tconv::detail::landing_products(tconv::detail::fold_average_pool(s, window).shape);
  }
};

/// global_mean() with P::functors(), which hold a BatchNorm or do not: no product but the small matrix.
template <class P, bool BatchNorm = false>
struct averages
{
  static constexpr bool batch_norm = BatchNorm;
  static constexpr bool train      = false;
  static double products(const options&)
  {
    const shape3 s = P::shape();
    return static_cast<double>(s.batch * s.in_channels) * static_cast<double>(s.out_channels);
  }
  static std::size_t bytes(const options& opts)
  {
    return tconv::global_mean_workspace_bytes(P::shape(), P::functors({}), opts);
  }
  static tconv::status
  run(const pipeline_tensors& t, const options& opts, const tconv::workspace& space, cudaStream_t stream)
  {
    return tconv::global_mean(t.x, t.w, t.y, P::shape(), P::functors(t), opts, space, stream);
  }
};

/// batch_norm_train() of a convolution with P::before() and P::functors().
template <class P>
struct normalises : computes<P, true>
{
  static std::size_t bytes(const options& opts)
  {
    return tconv::batch_norm_train_workspace_bytes(P::shape(), P::before({}), P::functors({}), opts);
  }
  static tconv::status
  run(const pipeline_tensors& t, const options& opts, const tconv::workspace& space, cudaStream_t stream)
  {
    return tconv::batch_norm_train(
      t.x, t.w, t.y, P::shape(), P::before(t), batch_norm_of(t), P::functors(t), opts, space, stream);
  }
};

/// batch_norm_train_centred() with P::before().
template <class P>
struct centres : computes<P, true>
{
  static std::size_t bytes(const options& opts)
  {
    return tconv::batch_norm_train_centred_workspace_bytes(P::shape(), P::before({}), chain<>{}, opts);
  }
  static tconv::status
  run(const pipeline_tensors& t, const options& opts, const tconv::workspace& space, cudaStream_t stream)
  {
    return tconv::batch_norm_train_centred(
      t.x, t.w, t.y, P::shape(), P::before(t), batch_norm_of(t), chain<>{}, opts, space, stream);
  }
};

/// batch_norm_train_global_mean() with P::before().
template <class P>
struct normalises_and_averages : computes<P, true>
{
  /// Those of the convolution, or of the kernels that work on spectra instead.
  static double products(const options& opts)
  {
    return opts.engine == tconv::engine::gather || tconv::detail::asks_for_tensor_cores(opts.engine)
           ? computes<P, true>::products(opts)
           : tconv::detail::plan_spectral(P::shape(), tconv::layout{}).macs;
  }
  static std::size_t bytes(const options& opts)
  {
    return tconv::batch_norm_train_global_mean_workspace_bytes(P::shape(), P::before({}), opts);
  }
  static tconv::status
  run(const pipeline_tensors& t, const options& opts, const tconv::workspace& space, cudaStream_t stream)
  {
    return tconv::batch_norm_train_global_mean(
      t.x, t.w, t.y, P::shape(), P::before(t), batch_norm_of(t), opts, space, stream);
  }
};

// Problems.

/// 3D, the mean over D, a bias, softmax over channels, tanh, times 2.
struct l2_13 : convolves_folded<l2_13>
{
  static constexpr bool offset = true;
  static shape3 shape() { return make_shape(16, 16, 64, {32, 128, 128}, {3, 3, 3}, 1, 1); }
  static std::int64_t outputs() { return shape().batch * shape().out_channels * shape().output(1) * shape().output(2); }
  static extents window() { return {0, 1, 1}; }
  static auto functors(const pipeline_tensors& t)
  {
    return chain(tconv::bias(t.b),
                 tconv::spatial_mean({0}),
                 tconv::bias(t.offset),
                 tconv::channel_softmax{},
                 tconv::tanh{},
                 tconv::scale(2.0f));
  }
};

/// 3D, BatchNorm in train mode, minus its own mean over space.
struct l2_15 : centres<l2_15>
{
  static constexpr bool offset = false;
  static shape3 shape() { return make_shape(16, 16, 32, {16, 32, 32}, {3, 3, 3}, 2, 1); }
  static std::int64_t outputs() { return shape().output_elements(); }
  static auto before(const pipeline_tensors& t) { return chain(tconv::bias(t.b)); }
};

/// 2D, the mean over space, a bias, logsumexp over channels, times 10.
struct l2_42 : averages<l2_42>
{
  static constexpr bool offset = true;
  static shape3 shape() { return make_shape(16, 64, 128, {1, 512, 512}, {1, 3, 3}); }
  static std::int64_t outputs() { return shape().batch; }
  static auto functors(const pipeline_tensors& t)
  {
    return chain(tconv::bias(t.b), tconv::bias(t.offset), tconv::channel_logsumexp{}, tconv::scale(10.0f));
  }
};

/// 2D, times 0.5, the mean over space.
struct l2_44 : averages<l2_44>
{
  static constexpr bool offset = false;
  static shape3 shape() { return make_shape(16, 64, 128, {1, 128, 128}, {1, 3, 3}, 2, 1, 1); }
  static std::int64_t outputs() { return shape().batch * shape().out_channels; }
  static auto functors(const pipeline_tensors& t) { return chain(tconv::bias(t.b), tconv::scale(0.5f)); }
};

/// P1: 3D, softmax over channels, sigmoid.
struct l2_49 : convolves<l2_49>
{
  static constexpr bool offset = false;
  static shape3 shape() { return p1_shape(); }
  static std::int64_t outputs() { return shape().output_elements(); }
  static auto functors(const pipeline_tensors& t)
  {
    return chain(tconv::bias(t.b), tconv::channel_softmax{}, tconv::sigmoid{});
  }
};

/// 3D, times 0.5, averages over windows of 2, a bias, times 1.
struct l2_50 : convolves_folded<l2_50>
{
  static constexpr bool offset = true;
  static shape3 shape() { return make_shape(128, 3, 16, {16, 32, 32}, {3, 3, 3}, 2, 1); }
  static std::int64_t outputs() { return shape().batch * shape().out_channels * pooled_positions(shape(), 2); }
  static extents window() { return {2, 2, 2}; }
  static auto functors(const pipeline_tensors& t)
  {
    return chain(
      tconv::bias(t.b), tconv::scale(0.5f), tconv::average_pool(2), tconv::bias(t.offset), tconv::scale(1.0f));
  }
};

/// 3D, BatchNorm in train mode, averages over windows of 2, twice.
struct l2_72 : normalises<l2_72>
{
  static constexpr bool offset = false;
  static shape3 shape() { return make_shape(64, 3, 16, {32, 32, 32}, {3, 3, 3}, 2, 1); }
  static std::int64_t outputs() { return shape().batch * shape().out_channels * pooled_positions(shape(), 4); }
  static auto before(const pipeline_tensors& t) { return chain(tconv::bias(t.b)); }
  static auto functors(const pipeline_tensors&) { return chain(tconv::average_pool(2), tconv::average_pool(2)); }
};

/// P2: 3D, times 2, BatchNorm in train mode, the mean over space.
struct l2_77 : normalises_and_averages<l2_77>
{
  static constexpr bool offset = false;
  static shape3 shape() { return p2_shape(); }
  static std::int64_t outputs() { return shape().batch * shape().out_channels; }
  static auto before(const pipeline_tensors& t) { return chain(tconv::bias(t.b), tconv::scale(2.0f)); }
};

/// The same with BatchNorm in eval mode.
struct p2_eval : averages<p2_eval, true>
{
  static constexpr bool offset = false;
  static shape3 shape() { return p2_shape(); }
  static std::int64_t outputs() { return shape().batch * shape().out_channels; }
  static auto functors(const pipeline_tensors& t)
  {
    return chain(tconv::bias(t.b), tconv::scale(2.0f), tconv::batch_norm(t.mean, t.var, t.gamma, t.beta));
  }
};

template <class P>
pipeline entry(const char* problem)
{
  const shape3 s          = P::shape();
  const std::int64_t axes = s.kernel[0] > 1 ? 3 : 2;
  return {problem, axes, s, P::offset, P::batch_norm, P::train, P::outputs(), P::products, P::bytes, P::run};
}

} // namespace

namespace tconv_bench
{

const std::vector<pipeline>& pipelines()
{
  static const std::vector<pipeline> all{entry<l2_13>("L2_13"),
                                         entry<l2_15>("L2_15"),
                                         entry<l2_42>("L2_42"),
                                         entry<l2_44>("L2_44"),
                                         entry<l2_49>("L2_49"),
                                         entry<l2_50>("L2_50"),
                                         entry<l2_72>("L2_72"),
                                         entry<l2_77>("L2_77"),
                                         entry<p2_eval>("P2_eval")};
  return all;
}

const pipeline* find_pipeline(const char* problem)
{
  for (const pipeline& p : pipelines())
  {
    if (std::strcmp(p.problem, problem) == 0)
    {
      return &p;
    }
  }
  return nullptr;
}

} // namespace tconv_bench
