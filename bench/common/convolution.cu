// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The rows of convolution.hpp and their one chain, none, in two types: what all of them share is compiled once.

#include "convolution.hpp"

#include <tconv/tconv.cuh>

#include <cstdio>
#include <cstring>
#include <vector>

namespace
{

using tconv_bench::shape_of;

struct problem
{
  const char* name;
  tconv_bench_shape shape;
};

/// Level 1 of the suite: no bias, nothing behind the convolution.
/// axes, batch, in_channels, out_channels, groups, input, kernel, stride, padding, output_padding, dilation
constexpr problem level1[] = {
  {"L1_57", {2, 8, 64, 64, 1, {1, 1024, 1024}, {1, 3, 3}}},
  {"L1_58", {3, 16, 32, 16, 1, {16, 32, 64}, {3, 5, 7}}},
  {"L1_61", {3, 8, 48, 48, 1, {64, 64, 64}, {3, 3, 3}}},
  {"L1_64", {1, 64, 128, 128, 1, {1, 1, 65536}, {1, 1, 3}}},
  {"L1_65", {2, 8, 64, 64, 1, {1, 512, 512}, {1, 3, 7}}},
  {"L1_68", {3, 16, 32, 64, 1, {64, 64, 64}, {3, 5, 5}}},
  {"L1_69", {2, 64, 64, 128, 1, {1, 128, 256}, {1, 3, 5}}},
  {"L1_70", {3, 8, 48, 24, 1, {96, 96, 96}, {3, 3, 3}}},
  {"L1_71", {2, 8, 32, 32, 1, {1, 512, 1024}, {1, 3, 3}}},
  {"L1_72", {3, 8, 32, 32, 4, {12, 24, 48}, {3, 5, 7}, {2, 2, 2}, {1, 2, 3}, {1, 1, 1}}},
  {"L1_73", {3, 4, 32, 32, 1, {32, 64, 128}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}}},
  {"L1_74", {1, 32, 32, 64, 1, {1, 1, 131072}, {1, 1, 5}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, {1, 1, 3}}},
  {"L1_75", {2, 16, 32, 64, 4, {1, 128, 256}, {1, 3, 5}, {1, 2, 3}, {0, 1, 2}, {0, 0, 0}, {1, 2, 1}}},
  {"L1_77", {3, 16, 32, 64, 1, {16, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {2, 2, 2}}},
  {"L1_78", {2, 8, 32, 32, 1, {1, 512, 1024}, {1, 3, 7}, {1, 1, 1}, {0, 1, 3}}},
  {"L1_79", {1, 16, 32, 64, 1, {1, 1, 131072}, {1, 1, 3}, {1, 1, 2}, {0, 0, 1}, {0, 0, 0}, {1, 1, 2}}},
  {"L1_81", {2, 16, 32, 64, 1, {1, 64, 128}, {1, 3, 3}, {1, 5, 5}, {0, 1, 1}, {0, 0, 0}, {1, 2, 2}}},
};

/// Upsampling layers of segmenters, generators and vocoders, four samples at a time.
constexpr problem batch4[] = {
  {"up3d_256_128_16x20x24_k2s2", {3, 4, 256, 128, 1, {16, 20, 24}, {2, 2, 2}, {2, 2, 2}}},
  {"up3d_64_32_64x80x96_k2s2", {3, 4, 64, 32, 1, {64, 80, 96}, {2, 2, 2}, {2, 2, 2}}},
  {"up2d_512_256_32x32_k4s2p1", {2, 4, 512, 256, 1, {1, 32, 32}, {1, 4, 4}, {1, 2, 2}, {0, 1, 1}}},
  {"up2d_64_32_128x128_k4s4", {2, 4, 64, 32, 1, {1, 128, 128}, {1, 4, 4}, {1, 4, 4}}},
  {"up1d_256_128_20000_k8s4p2", {1, 4, 256, 128, 1, {1, 1, 20000}, {1, 1, 8}, {1, 1, 4}, {0, 0, 2}}},
  {"up1d_512_256_1000_k16s8p4", {1, 4, 512, 256, 1, {1, 1, 1000}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}}},
  {"up1d_512_256_1009_k16s8p4", {1, 4, 512, 256, 1, {1, 1, 1009}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}}},
  {"up1d_512_256_100000_k16s8p4", {1, 4, 512, 256, 1, {1, 1, 100000}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}}},
  {"up1d_512_256_100003_k16s8p4", {1, 4, 512, 256, 1, {1, 1, 100003}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}}},
  {"up1d_128_64_1000_k4s2p1", {1, 4, 128, 64, 1, {1, 1, 1000}, {1, 1, 4}, {1, 1, 2}, {0, 0, 1}}},
  {"up1d_128_64_1009_k4s2p1", {1, 4, 128, 64, 1, {1, 1, 1009}, {1, 1, 4}, {1, 1, 2}, {0, 0, 1}}},
  {"up1d_128_64_100000_k4s2p1", {1, 4, 128, 64, 1, {1, 1, 100000}, {1, 1, 4}, {1, 1, 2}, {0, 0, 1}}},
  {"up1d_128_64_100003_k4s2p1", {1, 4, 128, 64, 1, {1, 1, 100003}, {1, 1, 4}, {1, 1, 2}, {0, 0, 1}}},
};

tconv_bench_convolution
make_row(const char* name, const char* math, const char* dtype, bool last, const tconv_bench_shape& shape)
{
  tconv_bench_convolution row{};
  std::snprintf(row.problem, sizeof(row.problem), "%s", name);
  std::snprintf(row.math, sizeof(row.math), "%s", math);
  std::snprintf(row.dtype, sizeof(row.dtype), "%s", dtype);
  row.channels_last = last;
  row.shape         = shape;
  return row;
}

/// The row of \p p whose name says the layout, and the type where \p dtype_in_name.
tconv_bench_convolution make_row(const problem& p, const char* math, const char* dtype, bool last, bool dtype_in_name)
{
  const char* axes = "dhw" + 3 - p.shape.axes;
  char name[sizeof(tconv_bench_convolution::problem)];
  std::snprintf(name,
                sizeof(name),
                last ? "%s%s%s_n%sc" : "%s%s%s_nc%s",
                p.name,
                dtype_in_name ? "_" : "",
                dtype_in_name ? dtype : "",
                axes);
  return make_row(name, math, dtype, last, p.shape);
}

/// Level 1 in every precision, channels first, and in TF32 channels last as well, as PyTorch is fastest; batch 4 in precise and bf16, both layouts,
/// spelled out in the name.
std::vector<tconv_bench_convolution> make_rows()
{
  constexpr struct
  {
    const char* math;
    const char* dtype;
  } modes[] = {{"precise", "f32"}, {"half", "bf16"}, {"tf32", "f32"}};
  std::vector<tconv_bench_convolution> rows;
  for (const problem& p : level1)
  {
    for (const auto& mode : modes)
    {
      rows.push_back(make_row(p.name, mode.math, mode.dtype, false, p.shape));
    }
    rows.push_back(make_row(p, "tf32", "f32", true, false));
  }
  for (const problem& p : batch4)
  {
    for (const auto& mode : {modes[0], modes[1]})
    {
      for (const bool last : {false, true})
      {
        rows.push_back(make_row(p, mode.math, mode.dtype, last, true));
      }
    }
  }
  return rows;
}

tconv::options options_of(const tconv_bench_convolution& row)
{
  const tconv::layout order = row.channels_last != 0 ? tconv::layout::channels_last : tconv::layout::channels_first;
  tconv::options opts;
  opts.math          = std::strcmp(row.math, "tf32") == 0 ? tconv::math::tf32 : tconv::math::precise;
  opts.input_layout  = order;
  opts.output_layout = order;
  return opts;
}

/// Calls visit(T{}) with the element type of \p row.
template <class Visitor>
auto visit_type(const tconv_bench_convolution& row, Visitor visit)
{
  return std::strcmp(row.dtype, "bf16") == 0 ? visit(__nv_bfloat16{}) : visit(float{});
}

} // namespace

std::int64_t tconv_bench_convolutions(const tconv_bench_convolution** rows)
{
  static const auto all = make_rows();
  *rows                 = all.data();
  return static_cast<std::int64_t>(all.size());
}

std::size_t tconv_bench_workspace_bytes(const tconv_bench_convolution* row)
{
  return visit_type(*row, [&](auto zero) {
    using element = decltype(zero);
    return tconv::conv_transpose_workspace_bytes<element>(shape_of(*row), tconv::chain<>{}, options_of(*row));
  });
}

const char* tconv_bench_convolve(const tconv_bench_convolution* row,
                                 const void* x,
                                 const void* w,
                                 void* y,
                                 void* workspace,
                                 std::size_t workspace_bytes,
                                 void* stream)
{
  thread_local tconv::status outcome;
  outcome = visit_type(*row, [&](auto zero) {
    using element = decltype(zero);
    return tconv::conv_transpose(static_cast<const element*>(x),
                                 static_cast<const element*>(w),
                                 static_cast<element*>(y),
                                 shape_of(*row),
                                 tconv::chain<>{},
                                 options_of(*row),
                                 tconv::workspace{workspace, workspace_bytes},
                                 static_cast<cudaStream_t>(stream));
  });
  return outcome.ok() ? nullptr : outcome.message();
}
