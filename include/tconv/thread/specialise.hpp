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

/// sigmoid of a probability: a polynomial (odd minimax around 1/2), within 1.1e-7, which is 2 ulp, in place of two special functions.
struct probability_sigmoid
{
  /// \p v in [0, 1], or NaN.
  TCONV_HOST_DEVICE float operator()(float v) const
  {
    const float z = v * v;
    float p       = ::fmaf(-0.000169424f, z, 0.00205393f);
    p             = ::fmaf(p, z, -0.0208254f);
    p             = ::fmaf(p, z, 0.2499994f);
    return ::fmaf(p, v, 0.5f);
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
  return prepend(channel_softmax{}, prepend(probability_sigmoid{}, functors.rest.rest));
}
template <class First, class Second, class... Rest>
TCONV_HOST_DEVICE auto specialise(const chain<First, Second, Rest...>& functors)
{
  return prepend(functors.first, specialise(functors.rest));
}

} // namespace detail

TCONV_NAMESPACE_END
