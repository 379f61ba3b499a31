// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Neighbouring functors that one functor does in fewer instructions: what launchers apply in place of a chain. Channel functors are
/// most of an epilogue, and special functions are what a multiprocessor has least of.

#include "activation.hpp"
#include "chain.hpp"
#include "softmax.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// channel_softmax, then sigmoid. A sigmoid of a probability is a polynomial (odd minimax around 1/2), within 1.1e-7, which is 2 ulp, in
/// place of two special functions.
struct channel_softmax_sigmoid
{
  static constexpr bool across_channels = true;

  /// Called by all threads of \p row.
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    // As in channel_softmax: what the maximum drops comes back with the sum.
    const float peak = reduce_row(row, -infinity(), maximum_ignoring_nan{});
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] = fast_exp(row[i] - peak);
    }
    const float inverse = branchless_reciprocal(reduce_row(row, 0.0f, plus{}));
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < row.size(); ++i)
    {
      const float v = row[i] * inverse; // in the coefficients it would cost registers
      const float z = v * v;
      float p       = ::fmaf(-0.000169424f, z, 0.00205393f);
      p             = ::fmaf(p, z, -0.0208254f);
      p             = ::fmaf(p, z, 0.2499994f);
      row[i]        = ::fmaf(p, v, 0.5f);
    }
  }
};

/// The functors as they are applied.
template <class... Functors>
TCONV_HOST_DEVICE chain<Functors...> specialise(const chain<Functors...>& functors)
{
  return functors;
}
template <class... Rest>
TCONV_HOST_DEVICE auto specialise(const chain<channel_softmax, sigmoid, Rest...>& functors)
{
  return prepend(channel_softmax_sigmoid{}, functors.rest.rest);
}
template <class First, class Second, class... Rest>
TCONV_HOST_DEVICE auto specialise(const chain<First, Second, Rest...>& functors)
{
  return prepend(functors.first, specialise(functors.rest));
}

} // namespace detail

TCONV_NAMESPACE_END
