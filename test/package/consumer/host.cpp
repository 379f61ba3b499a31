// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// What tconv gives to a program without a GPU: shapes, their rules, and the reference.

#include <tconv/reference/conv_transpose.hpp>
#include <tconv/shape.hpp>
#include <tconv/status.hpp>

#include <cstdio>
#include <vector>

int main()
{
  tconv::conv_transpose_shape<1> shape;
  shape.input  = {3};
  shape.kernel = {2};
  shape.stride = {2};
  if (const tconv::status s = tconv::validate(shape); !s.ok())
  {
    std::fprintf(stderr, "%s\n", s.message());
    return 1;
  }

  const float x[] = {1, 2, 3};
  const float w[] = {1, 10};
  std::vector<double> y(static_cast<std::size_t>(shape.output_elements()));
  tconv::reference::conv_transpose(x, w, y.data(), shape);
  if (y != std::vector<double>{1, 10, 2, 20, 3, 30})
  {
    std::fprintf(stderr, "wrong values\n");
    return 1;
  }

  shape.stride = {0};
  if (tconv::validate(shape).code() != tconv::status_code::invalid_argument)
  {
    std::fprintf(stderr, "a stride of 0 was accepted\n");
    return 1;
  }
  std::printf("tconv %d: all right\n", TCONV_VERSION);
}
