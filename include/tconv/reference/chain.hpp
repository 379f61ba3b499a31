// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A chain applied to a whole tensor in double. Operands of the functors are read on the CPU: build the chain from host
/// pointers.

#include "functors.hpp"
#include "softmax.hpp"

#include <cstddef>

TCONV_NAMESPACE_BEGIN

namespace reference
{

namespace detail
{

/// One functor on a whole tensor.
template <class F>
void apply_functor(const F& functor, double* y, int64_t batch, int64_t channels, int64_t positions)
{
  for (int64_t n = 0; n < batch; ++n)
  {
    double* sample = y + n * channels * positions;
    if constexpr (tconv::detail::across_channels<F>::value)
    {
      std::vector<double> row(static_cast<std::size_t>(channels));
      for (int64_t p = 0; p < positions; ++p)
      {
        for (int64_t c = 0; c < channels; ++c)
        {
          row[static_cast<std::size_t>(c)] = sample[c * positions + p];
        }
        evaluate(functor, row);
        for (int64_t c = 0; c < channels; ++c)
        {
          sample[c * positions + p] = row[static_cast<std::size_t>(c)];
        }
      }
    }
    else
    {
      for (int64_t c = 0; c < channels; ++c)
      {
        const auto bound = detail::bind(functor, coordinate{n, c});
        for (int64_t p = 0; p < positions; ++p)
        {
          sample[c * positions + p] = evaluate_any(bound, sample[c * positions + p]);
        }
      }
    }
  }
}

} // namespace detail

/// The empty chain changes nothing.
inline void apply(const chain<>&, double*, int64_t, int64_t, int64_t) {}

/// Applies \p functors in place to \p y [batch, channels, positions], with reference definitions throughout.
///
/// A user's channel functor needs an overload evaluate(const Functor&, std::vector<double>& row) beside it.
template <class First, class... Rest>
void apply(const chain<First, Rest...>& functors, double* y, int64_t batch, int64_t channels, int64_t positions)
{
  detail::apply_functor(functors.first, y, batch, channels, positions);
  apply(functors.rest, y, batch, channels, positions);
}

} // namespace reference

TCONV_NAMESPACE_END
