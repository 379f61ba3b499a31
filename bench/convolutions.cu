// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The plain transposed convolutions of common/convolution.hpp. Timing protocol: see common/timer.hpp.

#include "common/convolution.hpp"
#include "common/timer.hpp"

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>

namespace
{

using namespace tconv_bench;

/// \p row on elements of T, of which only the size and the random values matter here.
template <class T>
void convolve(benchmark::State& state, const tconv_bench_convolution& row)
{
  const shape3 s = shape_of(row);
  const rotating_buffers<T> x(s.input_elements(), 0.0f, 1.0f);
  const typed_array<T> w(s.weight_elements(), -0.05f, 0.05f, 2);
  const typed_array<T> y(s.output_elements());
  const device_array space(static_cast<std::int64_t>(tconv_bench_workspace_bytes(&row) / 4));
  const work counted{
    landing_products(s),
    static_cast<double>(sizeof(T))
      * static_cast<double>(s.input_elements() + s.weight_elements() + s.output_elements()),
    products_per_second<T>(std::strcmp(row.math, "tf32") == 0 ? tconv::math::tf32 : tconv::math::precise)};
  const tconv::workspace scratch = space.as_workspace();
  measure(state, counted, [&](int i, cudaStream_t stream) {
    const char* error = tconv_bench_convolve(&row, x[i], w.data(), y.data(), scratch.data, scratch.bytes, stream);
    return error == nullptr ? tconv::status{} : tconv::status::error(tconv::status_code::invalid_argument, "%s", error);
  });
}

} // namespace

int main(int argc, char** argv)
{
  const tconv_bench_convolution* rows = nullptr;
  const std::int64_t count            = tconv_bench_convolutions(&rows);
  for (const tconv_bench_convolution* row = rows; row != rows + count; ++row)
  {
    add(std::string(row->problem) + '/' + row->math + '/' + row->dtype, [row](benchmark::State& state) {
      std::strcmp(row->dtype, "bf16") == 0 ? convolve<__nv_bfloat16>(state, *row) : convolve<float>(state, *row);
    });
  }
  return run_benchmarks(argc, argv);
}
