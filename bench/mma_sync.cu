// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// P1 by mma.sync, as devices compute it that have no wgmma. Built without TCONV_ENABLE_SM90A. Timing protocol: see common/timer.hpp.

#include "common/problems.hpp"
#include "common/timer.hpp"

#include <tconv/tconv.cuh>

#include <benchmark/benchmark.h>

namespace
{

using namespace tconv_bench;

template <class T>
void p1(benchmark::State& state, tconv::math how)
{
  const shape3 s = p1_shape();
  tconv::options opts;
  opts.math   = how;
  opts.engine = tconv::engine::implicit_gemm_warp;
  const rotating_buffers<T> x(s.input_elements(), 0.0f, 1.0f);
  const typed_array<T> w(s.weight_elements(), -0.05f, 0.05f, 2);
  const device_array b(s.out_channels, -0.05f, 0.05f, 3);
  const typed_array<T> y(s.output_elements());
  const auto functors = tconv::chain(tconv::bias(b.data()), tconv::channel_softmax{}, tconv::sigmoid{});
  const device_array space(
    static_cast<std::int64_t>(tconv::conv_transpose_workspace_bytes<T, T>(s, functors, opts) / 4));
  const auto elements = static_cast<double>(s.input_elements() + s.weight_elements() + s.output_elements());
  const work counted{
    landing_products(s), static_cast<double>(sizeof(T)) * elements, tconv::detail::products_per_second<T>(how)};
  measure(state, counted, [&](int i, cudaStream_t stream) {
    return tconv::conv_transpose(x[i], w.data(), y.data(), s, functors, opts, space.as_workspace(), stream);
  });
}

} // namespace

int main(int argc, char** argv)
{
  add("L2_49_mma_sync/precise/f32", [](benchmark::State& s) { p1<float>(s, tconv::math::precise); });
  add("L2_49_mma_sync/tf32/f32", [](benchmark::State& s) { p1<float>(s, tconv::math::tf32); });
  add("L2_49_mma_sync/half/bf16", [](benchmark::State& s) { p1<__nv_bfloat16>(s, tconv::math::precise); });
  return run_benchmarks(argc, argv);
}
