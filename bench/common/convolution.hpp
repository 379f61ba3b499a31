// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Plain transposed convolutions, level 1 of the suite and batch-4 upsampling layers, one row per problem, precision and
/// layout, behind a C interface: the benchmark and, through ctypes, pytorch_convolutions.py run the same rows with the
/// same code. The structures are mirrored there.

#include "problems.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

extern "C"
{
  /// A transposed convolution over three axes; leading ones of extent 1 belong to none of PyTorch's \p axes.
  struct tconv_bench_shape
  {
    std::int64_t axes;
    std::int64_t batch;
    std::int64_t in_channels;
    std::int64_t out_channels;
    std::int64_t groups;
    std::array<std::int64_t, 3> input;
    std::array<std::int64_t, 3> kernel;
    std::array<std::int64_t, 3> stride         = {1, 1, 1};
    std::array<std::int64_t, 3> padding        = {0, 0, 0};
    std::array<std::int64_t, 3> output_padding = {0, 0, 0};
    std::array<std::int64_t, 3> dilation       = {1, 1, 1};
  };

  /// A row of bench.json and pytorch.json.
  struct tconv_bench_convolution
  {
    char problem[64];
    char math[8];               ///< "precise", "tf32" or "half"
    char dtype[8];              ///< of x, w and y: "f32" or "bf16"
    std::int64_t channels_last; ///< x and y are
    tconv_bench_shape shape;
  };

  /// Points \p rows at all rows; returns their number.
  std::int64_t tconv_bench_convolutions(const tconv_bench_convolution** rows);

  /// Bytes of workspace of \p row.
  std::size_t tconv_bench_workspace_bytes(const tconv_bench_convolution* row);

  /// Queues y = conv_transpose(x, w) on \p stream, a cudaStream_t. Returns null or what was wrong, which lasts until the
  /// thread's next call.
  const char* tconv_bench_convolve(const tconv_bench_convolution* row,
                                   const void* x,
                                   const void* w,
                                   void* y,
                                   void* workspace,
                                   std::size_t workspace_bytes,
                                   void* stream);
}

namespace tconv_bench
{

/// The shape of \p row as the library takes it.
inline shape3 shape_of(const tconv_bench_convolution& row)
{
  const tconv_bench_shape& from = row.shape;
  shape3 s;
  s.batch          = from.batch;
  s.in_channels    = from.in_channels;
  s.out_channels   = from.out_channels;
  s.groups         = from.groups;
  s.input          = from.input;
  s.kernel         = from.kernel;
  s.stride         = from.stride;
  s.padding        = from.padding;
  s.output_padding = from.output_padding;
  s.dilation       = from.dilation;
  return s;
}

} // namespace tconv_bench
