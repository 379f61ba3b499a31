// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The shapes of the two headline pipelines.

#include <tconv/shape.hpp>

namespace tconv_bench
{

using shape3 = tconv::conv_transpose_shape<3>;

/// The convolution of P1 (L2_49).
inline shape3 p1_shape()
{
  shape3 s;
  s.batch          = 16;
  s.in_channels    = 32;
  s.out_channels   = 64;
  s.input          = {16, 32, 32};
  s.kernel         = {3, 3, 3};
  s.stride         = {2, 2, 2};
  s.padding        = {1, 1, 1};
  s.output_padding = {1, 1, 1};
  return s;
}

/// The convolution of P2 (L2_77).
inline shape3 p2_shape()
{
  shape3 s;
  s.batch        = 16;
  s.in_channels  = 64;
  s.out_channels = 128;
  s.input        = {16, 32, 32};
  s.kernel       = {5, 5, 5};
  return s;
}

} // namespace tconv_bench
