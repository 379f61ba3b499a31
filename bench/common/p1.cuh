// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// P1 as a benchmark, in any type and layout and on any engine.

#include "problems.hpp"
#include "timer.hpp"

#include <tconv/tconv.cuh>

#include <benchmark/benchmark.h>

namespace tconv_bench
{

/// P1 with elements of In and Out.
template <class In, class Out>
void p1(benchmark::State& state, const tconv::options& opts = {})
{
  const shape3 s = p1_shape();
  const rotating_buffers<In> x(s.input_elements(), 0.0f, 1.0f);
  const typed_array<In> w(s.weight_elements(), -0.05f, 0.05f, 2);
  const device_array b(s.out_channels, -0.05f, 0.05f, 3);
  const typed_array<Out> y(s.output_elements());
  const auto functors = tconv::chain(tconv::bias(b.data()), tconv::channel_softmax{}, tconv::sigmoid{});
  const device_array space(
    static_cast<std::int64_t>(tconv::conv_transpose_workspace_bytes<In, Out>(s, functors, opts) / 4));
  const work counted{landing_products(s),
                     static_cast<double>(sizeof(In)) * static_cast<double>(s.input_elements() + s.weight_elements())
                       + static_cast<double>(sizeof(Out)) * static_cast<double>(s.output_elements()),
                     products_per_second<In>(opts.math)};
  measure(state, counted, [&](int i, cudaStream_t stream) {
    return tconv::conv_transpose(x[i], w.data(), y.data(), s, functors, opts, space.as_workspace(), stream);
  });
}

} // namespace tconv_bench
