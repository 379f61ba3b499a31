// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// P1 in every type and layout, and the launchers on existing tensors. Timing protocol: see common/timer.hpp.

#include "common/p1.cuh"

#include <tconv/tconv.cuh>

#include <benchmark/benchmark.h>

namespace
{

using namespace tconv_bench;
using tconv::chain;
using tconv::layout;

/// A launcher on the output of P1's convolution: [16, 64, 32, 64, 64]. call(x, y, shape, options, workspace, stream).
template <class T, class Bytes, class Call>
void on_tensor(benchmark::State& state, layout order, double passes, Bytes workspace_bytes, Call call)
{
  tconv::tensor_shape<3> s;
  s.batch    = 16;
  s.channels = 64;
  s.extent   = {32, 64, 64};
  tconv::options opts;
  opts.input_layout  = order;
  opts.output_layout = order;
  const rotating_buffers<T> x(s.elements(), -2.0f, 2.0f);
  const typed_array<T> y(s.elements());
  const device_array space(static_cast<std::int64_t>(workspace_bytes(s, opts) / 4));
  const work counted{0.0, passes * static_cast<double>(sizeof(T)) * static_cast<double>(s.elements())};
  measure(state, counted, [&](int i, cudaStream_t stream) {
    return call(x[i], y.data(), s, opts, space.as_workspace(), stream);
  });
}

const auto softmax = chain<tconv::channel_softmax>(tconv::channel_softmax{});

template <class T>
void channel_softmax(benchmark::State& state, layout order)
{
  on_tensor<T>(
    state,
    order,
    2.0,
    [](const auto& s, const auto& opts) { return tconv::apply_chain_workspace_bytes(s, softmax, opts); },
    [](auto* x, auto* y, const auto& s, const auto& opts, tconv::workspace space, cudaStream_t stream) {
      return tconv::apply_chain(x, y, s, softmax, opts, space, stream);
    });
}

template <class T>
void global_mean(benchmark::State& state, layout order)
{
  on_tensor<T>(
    state,
    order,
    1.0,
    [](const auto& s, const auto& opts) { return tconv::global_mean_workspace_bytes(s, chain<>{}, opts); },
    [](auto* x, auto* y, const auto& s, const auto& opts, tconv::workspace space, cudaStream_t stream) {
      return tconv::global_mean(x, y, s, chain<>{}, opts, space, stream);
    });
}

template <class T>
void channel_moments(benchmark::State& state, layout order)
{
  const device_array mean(64), variance(64);
  on_tensor<T>(
    state,
    order,
    1.0,
    [](const auto& s, const auto& opts) { return tconv::channel_moments_workspace_bytes(s, opts); },
    [&](auto* x, auto*, const auto& s, const auto& opts, tconv::workspace space, cudaStream_t stream) {
      return tconv::channel_moments(x, mean.data(), variance.data(), s, opts, space, stream);
    });
}

template <class T>
void batch_norm_train(benchmark::State& state, layout order)
{
  const device_array gamma(64, 0.5f, 1.5f), beta(64, -1.0f, 1.0f), mean(64), variance(64);
  const tconv::batch_norm_arguments arguments{gamma.data(), beta.data(), mean.data(), variance.data()};
  on_tensor<T>(
    state,
    order,
    3.0,
    [](const auto& s, const auto& opts) { return tconv::batch_norm_train_workspace_bytes(s, chain<>{}, opts); },
    [&](auto* x, auto* y, const auto& s, const auto& opts, tconv::workspace space, cudaStream_t stream) {
      return tconv::batch_norm_train(x, y, s, arguments, chain<>{}, opts, space, stream);
    });
}

/// apply_chain with \p functors, which read x once and leave \p left of its elements.
template <class Functors>
void pooled(benchmark::State& state, layout order, double left, const Functors& functors)
{
  on_tensor<float>(
    state,
    order,
    1.0 + left,
    [&](const auto& s, const auto& opts) { return tconv::apply_chain_workspace_bytes(s, functors, opts); },
    [&](auto* x, auto* y, const auto& s, const auto& opts, tconv::workspace space, cudaStream_t stream) {
      return tconv::apply_chain(x, y, s, functors, opts, space, stream);
    });
}

void group_norm(benchmark::State& state, layout order)
{
  const device_array gamma(64, 0.5f, 1.5f), beta(64, -1.0f, 1.0f);
  const tconv::group_norm_arguments arguments{8, gamma.data(), beta.data()};
  on_tensor<float>(
    state,
    order,
    3.0,
    [](const auto& s, const auto& opts) { return tconv::group_norm_workspace_bytes(s, 8, chain<>{}, opts); },
    [&](auto* x, auto* y, const auto& s, const auto& opts, tconv::workspace space, cudaStream_t stream) {
      return tconv::group_norm(x, y, s, arguments, chain<>{}, opts, space, stream);
    });
}

constexpr layout first = layout::channels_first;
constexpr layout last  = layout::channels_last;

template <class In, class Out>
void p1_in(benchmark::State& state, layout order)
{
  tconv::options opts;
  opts.input_layout  = order;
  opts.output_layout = order;
  p1<In, Out>(state, opts);
}

} // namespace

int main(int argc, char** argv)
{
  using bf16 = __nv_bfloat16;
  add("L2_49/half/f16", [](benchmark::State& s) { p1_in<__half, __half>(s, first); });
  add("L2_49/half/bf16", [](benchmark::State& s) { p1_in<bf16, bf16>(s, first); });
  add("L2_49_bf16_to_f32/half/bf16", [](benchmark::State& s) { p1_in<bf16, float>(s, first); });
  add("L2_49_ndhwc/precise/f32", [](benchmark::State& s) { p1_in<float, float>(s, last); });
  add("L2_49_ndhwc/half/bf16", [](benchmark::State& s) { p1_in<bf16, bf16>(s, last); });
  add("channel_softmax_16x64x32x64x64/precise/f32", [](benchmark::State& s) { channel_softmax<float>(s, first); });
  add("channel_softmax_16x64x32x64x64_ndhwc/precise/f32", [](benchmark::State& s) { channel_softmax<float>(s, last); });
  add("channel_softmax_16x64x32x64x64/half/bf16", [](benchmark::State& s) { channel_softmax<bf16>(s, first); });
  add("channel_softmax_16x64x32x64x64_ndhwc/half/bf16", [](benchmark::State& s) { channel_softmax<bf16>(s, last); });
  add("global_mean_16x64x32x64x64/precise/f32", [](benchmark::State& s) { global_mean<float>(s, first); });
  add("global_mean_16x64x32x64x64_ndhwc/precise/f32", [](benchmark::State& s) { global_mean<float>(s, last); });
  add("channel_moments_16x64x32x64x64/precise/f32", [](benchmark::State& s) { channel_moments<float>(s, first); });
  add("channel_moments_16x64x32x64x64_ndhwc/precise/f32", [](benchmark::State& s) { channel_moments<float>(s, last); });
  add("channel_moments_16x64x32x64x64/half/bf16", [](benchmark::State& s) { channel_moments<bf16>(s, first); });
  add("batch_norm_train_16x64x32x64x64/precise/f32", [](benchmark::State& s) { batch_norm_train<float>(s, first); });
  add("max_pool_16x64x32x64x64/precise/f32",
      [](benchmark::State& s) { pooled(s, first, 1.0 / 8, chain(tconv::max_pool(2))); });
  add("max_pool_16x64x32x64x64_ndhwc/precise/f32",
      [](benchmark::State& s) { pooled(s, last, 1.0 / 8, chain(tconv::max_pool(2))); });
  add("spatial_mean_over_d_16x64x32x64x64/precise/f32",
      [](benchmark::State& s) { pooled(s, first, 1.0 / 32, chain(tconv::spatial_mean({0}))); });
  add("group_norm_8_16x64x32x64x64/precise/f32", [](benchmark::State& s) { group_norm(s, first); });
  return run_benchmarks(argc, argv);
}
