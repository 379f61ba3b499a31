// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// P1, P2 and their pieces. Timing protocol: see common/timer.hpp.

#include "common/problems.hpp"
#include "common/timer.hpp"

#include <tconv/tconv.cuh>

#include <benchmark/benchmark.h>

namespace
{

using namespace tconv_bench;
using tconv::chain;

/// Device copies of a problem's tensors: x rotates, everything else is shared.
struct tensors
{
  rotating_buffers<> x;
  device_array w;
  device_array b;
  device_array mean;
  device_array var;
  device_array gamma;
  device_array beta;
  device_array y;

  tensors(const shape3& s, std::int64_t outputs)
      : x(s.input_elements(), 0.0f, 1.0f)
      , w(s.weight_elements(), -0.05f, 0.05f, 2)
      , b(s.out_channels, -0.05f, 0.05f, 3)
      , mean(s.out_channels, -1.0f, 1.0f, 4)
      , var(s.out_channels, 0.5f, 1.5f, 5)
      , gamma(s.out_channels, 0.5f, 1.5f, 6)
      , beta(s.out_channels, -1.0f, 1.0f, 7)
      , y(outputs, 0.0f, 0.0f, 8)
  {}
};

/// A convolution with \p make_chain(tensors) behind it.
template <class MakeChain>
void conv_transpose_benchmark(benchmark::State& state,
                              const shape3& s,
                              const tconv::options& opts,
                              MakeChain make_chain)
{
  tensors t(s, s.output_elements());
  const auto functors = make_chain(t);
  device_array space(static_cast<std::int64_t>(tconv::conv_transpose_workspace_bytes(s, functors, opts) / 4));
  const work w{landing_products(s),
               4.0 * static_cast<double>(s.input_elements() + s.weight_elements() + s.output_elements()),
               products_per_second<float>(opts.math)};
  measure(state, w, [&](int i, cudaStream_t stream) {
    return tconv::conv_transpose(t.x[i], t.w.data(), t.y.data(), s, functors, opts, space.as_workspace(), stream);
  });
}

void p1(benchmark::State& state, tconv::engine engine, tconv::math math = tconv::math::precise)
{
  tconv::options opts;
  opts.engine = engine;
  opts.math   = math;
  conv_transpose_benchmark(state, p1_shape(), opts, [](const tensors& t) {
    return chain(tconv::bias(t.b.data()), tconv::channel_softmax{}, tconv::sigmoid{});
  });
}

void p2_eval(benchmark::State& state)
{
  const shape3 s = p2_shape();
  tensors t(s, s.batch * s.out_channels);
  const auto functors = chain(tconv::bias(t.b.data()),
                              tconv::scale(2.0f),
                              tconv::batch_norm(t.mean.data(), t.var.data(), t.gamma.data(), t.beta.data()));
  device_array space(static_cast<std::int64_t>(tconv::global_mean_workspace_bytes(s, functors) / 4));
  // No product but the small matrix: the work is one read of x and w.
  const work w{static_cast<double>(s.batch * s.in_channels * s.out_channels),
               4.0 * static_cast<double>(s.input_elements() + s.weight_elements() + s.batch * s.out_channels)};
  measure(state, w, [&](int i, cudaStream_t stream) {
    return tconv::global_mean(
      t.x[i], t.w.data(), t.y.data(), s, functors, tconv::options{}, space.as_workspace(), stream);
  });
}

void p2_train(benchmark::State& state, tconv::engine engine)
{
  const shape3 s = p2_shape();
  tensors t(s, s.batch * s.out_channels);
  const auto before = chain(tconv::bias(t.b.data()), tconv::scale(2.0f));
  tconv::options opts;
  opts.engine = engine;
  device_array space(
    static_cast<std::int64_t>(tconv::batch_norm_train_global_mean_workspace_bytes(s, before, opts) / 4));
  const tconv::batch_norm_arguments arguments{t.gamma.data(), t.beta.data(), t.mean.data(), t.var.data()};
  // The products of the convolution, or those of the kernels that work on spectra instead.
  const double products = engine == tconv::engine::gather ? landing_products(s)
                                                          : tconv::detail::plan_spectral(s, tconv::layout{}).macs;
  const work w{
    products, 4.0 * static_cast<double>(s.input_elements() + s.weight_elements() + s.batch * s.out_channels)};
  measure(state, w, [&](int i, cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(
      t.x[i], t.w.data(), t.y.data(), s, before, arguments, opts, space.as_workspace(), stream);
  });
}

void fold_batch_norm(benchmark::State& state)
{
  const shape3 s = p2_shape();
  tensors t(s, s.batch * s.out_channels);
  device_array slopes(s.out_channels), offsets(s.out_channels);
  const tconv::batch_norm_arguments arguments{t.gamma.data(), t.beta.data(), t.mean.data(), t.var.data()};
  measure(state, work{0.0, 4.0 * 7 * static_cast<double>(s.out_channels)}, [&](int, cudaStream_t stream) {
    return tconv::fold_batch_norm(
      t.b.data(), arguments, slopes.data(), offsets.data(), s.out_channels, tconv::options{}, stream);
  });
}

/// The text detector's head on a page of 1280 x 960: k2 s2 24 -> 24, BatchNorm, ReLU, k2 s2 24 -> 1, sigmoid.
void text_detection_head(benchmark::State& state)
{
  shape3 first;
  first.in_channels   = 24;
  first.out_channels  = 24;
  first.input         = {1, 320, 240};
  first.kernel        = {1, 2, 2};
  first.stride        = {1, 2, 2};
  shape3 second       = first;
  second.out_channels = 1;
  second.input        = {1, 640, 480};
  tensors t(first, first.output_elements());
  device_array w2(second.weight_elements(), -0.05f, 0.05f, 9), y2(second.output_elements());
  const auto one = chain(tconv::bias(t.b.data()),
                         tconv::batch_norm(t.mean.data(), t.var.data(), t.gamma.data(), t.beta.data()),
                         tconv::relu{});
  const auto two = chain(tconv::bias(t.b.data()), tconv::sigmoid{});
  device_array space(static_cast<std::int64_t>(
    std::max(tconv::conv_transpose_workspace_bytes(first, one), tconv::conv_transpose_workspace_bytes(second, two))
    / 4));
  const work w{
    landing_products(first) + landing_products(second),
    4.0 * static_cast<double>(first.input_elements() + 2 * first.output_elements() + second.output_elements())};
  measure(state, w, [&](int i, cudaStream_t stream) {
    if (tconv::status s = tconv::conv_transpose(
          t.x[i], t.w.data(), t.y.data(), first, one, tconv::options{}, space.as_workspace(), stream);
        !s.ok())
    {
      return s;
    }
    return tconv::conv_transpose(
      t.y.data(), w2.data(), y2.data(), second, two, tconv::options{}, space.as_workspace(), stream);
  });
}

} // namespace

int main(int argc, char** argv)
{
  using tconv::engine;
  add("L2_49/precise/f32", [](benchmark::State& s) { p1(s, engine::automatic); });
  add("L2_49/tf32/f32", [](benchmark::State& s) { p1(s, engine::automatic, tconv::math::tf32); });
  add("L2_49_gather/precise/f32", [](benchmark::State& s) { p1(s, engine::gather); });
  add("L2_49_implicit_gemm/precise/f32", [](benchmark::State& s) { p1(s, engine::implicit_gemm); });
  add("P2_eval/precise/f32", p2_eval);
  add("L2_77/precise/f32", [](benchmark::State& s) { p2_train(s, engine::automatic); });
  add("L2_77_gather/precise/f32", [](benchmark::State& s) { p2_train(s, engine::gather); });
  add("L2_77_spectral/precise/f32", [](benchmark::State& s) { p2_train(s, engine::spectral); });
  add("fold_batch_norm_128/precise/f32", fold_batch_norm);
  add("text_detection_head_1280x960/precise/f32", text_detection_head);
  return run_benchmarks(argc, argv);
}
