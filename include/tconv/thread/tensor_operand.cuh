// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Pointwise functors with a whole tensor as operand: residual connections, gates, masks.
///
/// The operand has the shape of the result, in a layout and slice of its own. It is read where an output exists, and nowhere
/// else. It must not overlap y; in apply_chain() it may be y itself, in y's layout and slice. Such a functor is *bound* to a sample and channel like the ones with operands per channel; the bound functor takes the
/// number of the output position (w fastest) as well.

#include "../layout.hpp"
#include "affine.hpp"
#include "element.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

/// A tensor of the shape of the result.
template <class T>
struct tensor_operand
{
  const T* data          = nullptr; ///< its first element, of the slice if it is one
  tensor_strides strides = {};      ///< tensor_strides::of(layout, channels of the tensor, output positions)
};

/// v op tensor, element by element; made by add_tensor(), subtract_tensor() and multiply_tensor().
template <class T, class Op>
struct tensor_functor
{
  static constexpr bool per_position = true; ///< see thread/chain.hpp

  tensor_operand<T> operand; ///< the right-hand side

  /// The functor of one sample and channel.
  struct bound
  {
    const T* line; ///< position 0
    int64_t step;  ///< elements between positions

    /// Positions below 0 have no output and no operand.
    TCONV_HOST_DEVICE float operand_at(int64_t position) const
    {
      return position >= 0 ? to_float(line[position * step]) : 0.0f;
    }
    TCONV_HOST_DEVICE float operator()(float v, int64_t position) const { return Op{}(v, operand_at(position)); }
    TCONV_HOST_DEVICE double reference(double v, int64_t position) const
    {
      return Op{}(v, static_cast<double>(operand_at(position)));
    }
  };
  TCONV_HOST_DEVICE bound bind(const coordinate& at) const
  {
    return {
      operand.data + at.n * operand.strides.sample + at.channel * operand.strides.channel, operand.strides.position};
  }
};

/// a + b in float and double.
struct add_operation
{
  /// a + b.
  template <class V>
  TCONV_HOST_DEVICE V operator()(V a, V b) const
  {
    return a + b;
  }
};
/// a - b in float and double.
struct subtract_operation
{
  /// a - b.
  template <class V>
  TCONV_HOST_DEVICE V operator()(V a, V b) const
  {
    return a - b;
  }
};
/// a * b in float and double.
struct multiply_operation
{
  /// a * b.
  template <class V>
  TCONV_HOST_DEVICE V operator()(V a, V b) const
  {
    return a * b;
  }
};

/// v + tensor: a residual connection.
template <class T>
TCONV_HOST_DEVICE tensor_functor<T, add_operation> add_tensor(const T* data, const tensor_strides& strides)
{
  return {{data, strides}};
}
/// v - tensor.
template <class T>
TCONV_HOST_DEVICE tensor_functor<T, subtract_operation> subtract_tensor(const T* data, const tensor_strides& strides)
{
  return {{data, strides}};
}
/// v * tensor: a gate or a mask.
template <class T>
TCONV_HOST_DEVICE tensor_functor<T, multiply_operation> multiply_tensor(const T* data, const tensor_strides& strides)
{
  return {{data, strides}};
}

TCONV_CUDA_NAMESPACE_END
