// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The pipelines of common/pipeline.hpp, P1 and P2 among them, pieces, and a text detector. Timing protocol: see
/// common/timer.hpp.

#include "common/pipeline.hpp"
#include "common/timer.hpp"

#include <tconv/tconv.cuh>

#include <benchmark/benchmark.h>

namespace
{

using namespace tconv_bench;
using tconv::chain;

/// Operands of \p channels channels.
struct layer_operands
{
  device_array b;
  device_array offset;
  device_array mean;
  device_array var;
  device_array gamma;
  device_array beta;

  explicit layer_operands(std::int64_t channels)
      : b(channels, -0.05f, 0.05f, 3)
      , offset(channels, -1.0f, 1.0f, 9)
      , mean(channels, -1.0f, 1.0f, 4)
      , var(channels, 0.5f, 1.5f, 5)
      , gamma(channels, 0.5f, 1.5f, 6)
      , beta(channels, -1.0f, 1.0f, 7)
  {}
};

/// A pipeline of the suite on random tensors; x rotates.
void run_pipeline(benchmark::State& state, const char* problem, const tconv::options& opts)
{
  const pipeline& p = *find_pipeline(problem);
  const rotating_buffers<> x(p.shape.input_elements(), 0.0f, 1.0f);
  const device_array w(p.shape.weight_elements(), -0.05f, 0.05f, 2);
  const layer_operands operands(p.shape.out_channels);
  const device_array y(p.outputs);
  pipeline_tensors t;
  t.w      = w.data();
  t.b      = operands.b.data();
  t.offset = operands.offset.data();
  t.gamma  = operands.gamma.data();
  t.beta   = operands.beta.data();
  t.mean   = operands.mean.data();
  t.var    = operands.var.data();
  t.y      = y.data();
  const device_array space(static_cast<std::int64_t>(p.workspace_bytes(opts) / 4));
  measure(state, {p.products(opts), p.bytes(), products_per_second<float>(opts.math)}, [&](int i, cudaStream_t stream) {
    t.x = x[i];
    return p.run(t, opts, space.as_workspace(), stream);
  });
}

void fold_batch_norm(benchmark::State& state)
{
  const std::int64_t channels = p2_shape().out_channels;
  const layer_operands t(channels);
  device_array slopes(channels), offsets(channels);
  const tconv::batch_norm_arguments arguments{t.gamma.data(), t.beta.data(), t.mean.data(), t.var.data()};
  measure(state, work{0.0, 4.0 * 7 * static_cast<double>(channels)}, [&](int, cudaStream_t stream) {
    return tconv::fold_batch_norm(
      t.b.data(), arguments, slopes.data(), offsets.data(), channels, tconv::options{}, stream);
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
  const layer_operands t(first.out_channels);
  const rotating_buffers<> x(first.input_elements(), 0.0f, 1.0f);
  const device_array w1(first.weight_elements(), -0.05f, 0.05f, 2), y1(first.output_elements());
  const device_array w2(second.weight_elements(), -0.05f, 0.05f, 9), y2(second.output_elements());
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
          x[i], w1.data(), y1.data(), first, one, tconv::options{}, space.as_workspace(), stream);
        !s.ok())
    {
      return s;
    }
    return tconv::conv_transpose(
      y1.data(), w2.data(), y2.data(), second, two, tconv::options{}, space.as_workspace(), stream);
  });
}

} // namespace

int main(int argc, char** argv)
{
  using tconv::engine;
  const auto add_pipeline = [](const std::string& row, const char* problem, engine e, tconv::math m) {
    tconv::options opts;
    opts.engine = e;
    opts.math   = m;
    add(row, [=](benchmark::State& s) { run_pipeline(s, problem, opts); });
  };
  for (const pipeline& p : pipelines())
  {
    add_pipeline(p.problem + std::string("/precise/f32"), p.problem, engine::automatic, tconv::math::precise);
  }
  add_pipeline("L2_49/tf32/f32", "L2_49", engine::automatic, tconv::math::tf32);
  add_pipeline("L2_49_gather/precise/f32", "L2_49", engine::gather, tconv::math::precise);
  add_pipeline("L2_49_implicit_gemm/precise/f32", "L2_49", engine::implicit_gemm, tconv::math::precise);
  add_pipeline("L2_77_gather/precise/f32", "L2_77", engine::gather, tconv::math::precise);
  add_pipeline("L2_77_implicit_gemm/precise/f32", "L2_77", engine::implicit_gemm, tconv::math::precise);
  add_pipeline("L2_77_spectral/precise/f32", "L2_77", engine::spectral, tconv::math::precise);
  add("fold_batch_norm_128/precise/f32", fold_batch_norm);
  add("text_detection_head_1280x960/precise/f32", text_detection_head);
  return run_benchmarks(argc, argv);
}
