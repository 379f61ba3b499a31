// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The inputs of the golden problems as std::vector, bit for bit what make_golden.py fed to PyTorch.

#include "golden.hpp"

#include <tconv/shape.hpp>

#include <cstddef>
#include <vector>

namespace tconv_test
{
namespace golden
{

/// The first \p count elements of the tensor that \p from makes.
inline std::vector<float> make(const source& from, std::int64_t count)
{
  std::vector<float> result(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < result.size(); ++i)
  {
    result[i] = from(i);
  }
  return result;
}

/// batch * depth * height * width.
constexpr std::int64_t positions(const extents& e)
{
  return e.batch * e.depth * e.height * e.width;
}

/// ConvTranspose3d(32 -> 64, k3, s2, p1, op1, bias) -> softmax over channels -> sigmoid.
struct p1_inputs
{
  std::vector<float> x;      ///< [batch, 32, depth, height, width]
  std::vector<float> weight; ///< [32, 64, 3, 3, 3]
  std::vector<float> bias;   ///< [64]
};

/// For p1_full or p1_reduced.
inline p1_inputs make_p1_inputs(const extents& e)
{
  return {make(p1_x, 32 * positions(e)), make(p1_weight, 32 * 64 * 27), make(p1_bias, 64)};
}

/// Elements of P1's output [batch, 64, 2 * depth, 2 * height, 2 * width].
constexpr std::int64_t p1_output_elements(const extents& e)
{
  return 64 * 8 * positions(e);
}

/// ConvTranspose3d(64 -> 128, k5, bias) -> * p2_scale -> BatchNorm3d(eps, momentum) -> mean over space.
struct p2_inputs
{
  std::vector<float> x;            ///< [batch, 64, depth, height, width]
  std::vector<float> weight;       ///< [64, 128, 5, 5, 5]
  std::vector<float> bias;         ///< [128]
  std::vector<float> gamma;        ///< [128]
  std::vector<float> beta;         ///< [128]
  std::vector<float> running_mean; ///< [128], before the step
  std::vector<float> running_var;  ///< [128], before the step
};

/// P1's convolution over extents \p e.
inline tconv::conv_transpose_shape<3> p1_shape(const extents& e)
{
  tconv::conv_transpose_shape<3> s;
  s.batch          = e.batch;
  s.in_channels    = 32;
  s.out_channels   = 64;
  s.input          = {e.depth, e.height, e.width};
  s.kernel         = {3, 3, 3};
  s.stride         = {2, 2, 2};
  s.padding        = {1, 1, 1};
  s.output_padding = {1, 1, 1};
  return s;
}

/// P2's convolution over extents \p e.
inline tconv::conv_transpose_shape<3> p2_shape(const extents& e)
{
  tconv::conv_transpose_shape<3> s;
  s.batch        = e.batch;
  s.in_channels  = 64;
  s.out_channels = 128;
  s.input        = {e.depth, e.height, e.width};
  s.kernel       = {5, 5, 5};
  return s;
}

/// For p2_full or p2_reduced.
inline p2_inputs make_p2_inputs(const extents& e)
{
  return {make(p2_x, 64 * positions(e)),
          make(p2_weight, 64 * 128 * 125),
          make(p2_bias, 128),
          make(p2_gamma, 128),
          make(p2_beta, 128),
          make(p2_running_mean, 128),
          make(p2_running_var, 128)};
}

} // namespace golden
} // namespace tconv_test
