// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A chain applied to a whole tensor in double. Operands of the functors are read on the CPU: build the chain from host
/// pointers.

#include "../tensor_shape.hpp"
#include "channel_reduction.hpp"
#include "functors.hpp"
#include "layer_norm.hpp"
#include "pool.hpp"
#include "softmax.hpp"

#include <cstddef>
#include <vector>

TCONV_NAMESPACE_BEGIN

namespace reference
{

namespace detail
{

/// One channel functor on a whole tensor; one that reduces the channels leaves [batch, 1, positions] at the front of \p y.
template <class F>
void apply_to_rows(const F& functor, double* y, int64_t batch, int64_t channels, int64_t positions)
{
  std::vector<double> row;
  const auto at = [&](int64_t n, int64_t count, int64_t c, int64_t p) { return (n * count + c) * positions + p; };
  for (int64_t n = 0; n < batch; ++n)
  {
    for (int64_t p = 0; p < positions; ++p)
    {
      row.clear();
      for (int64_t c = 0; c < channels; ++c)
      {
        row.push_back(y[at(n, channels, c, p)]);
      }
      evaluate(functor, row);
      // What is written lies at or before the row that was read: no later row is touched.
      const auto count = static_cast<int64_t>(row.size());
      for (int64_t c = 0; c < count; ++c)
      {
        y[at(n, count, c, p)] = row[static_cast<std::size_t>(c)];
      }
    }
  }
}

/// One pointwise functor on a whole tensor.
template <class F>
void apply_to_values(const F& functor, double* y, int64_t batch, int64_t channels, int64_t positions)
{
  for (int64_t n = 0; n < batch; ++n)
  {
    for (int64_t c = 0; c < channels; ++c)
    {
      const auto bound = detail::bind(functor, coordinate{n, c});
      double* values   = y + (n * channels + c) * positions;
      for (int64_t p = 0; p < positions; ++p)
      {
        if constexpr (tconv::detail::is_per_position<F>::value)
        {
          values[p] = bound.reference(values[p], p);
        }
        else
        {
          values[p] = evaluate_any(bound, values[p]);
        }
      }
    }
  }
}

} // namespace detail

/// The empty chain changes nothing.
template <int Rank>
tensor_shape<Rank> apply(const chain<>&, double*, const tensor_shape<Rank>& shape)
{
  return shape;
}

/// Applies \p functors in place to \p y [batch, channels, extent...], with reference definitions throughout. Returns the shape of the
/// result, which stands at the front of y: one channel behind a functor that reduces them, fewer positions behind pools.
///
/// A user's channel functor needs an overload evaluate(const Functor&, std::vector<double>& row) beside it; one that reduces
/// the channels leaves one element in the row.
template <class First, class... Rest, int Rank>
tensor_shape<Rank> apply(const chain<First, Rest...>& functors, double* y, const tensor_shape<Rank>& shape)
{
  tensor_shape<Rank> left = shape;
  if constexpr (tconv::detail::across_positions<First>::value)
  {
    left = apply_pool(functors.first, y, shape);
  }
  else if constexpr (tconv::detail::across_channels<First>::value)
  {
    detail::apply_to_rows(functors.first, y, shape.batch, shape.channels, shape.positions());
    left.channels = tconv::detail::reduces_channels<First>::value ? 1 : shape.channels;
  }
  else
  {
    detail::apply_to_values(functors.first, y, shape.batch, shape.channels, shape.positions());
  }
  return apply(functors.rest, y, left);
}

/// The same for \p y [batch, channels, positions] and a chain without pools. Returns how many channels are left.
template <class... Functors>
int64_t apply(const chain<Functors...>& functors, double* y, int64_t batch, int64_t channels, int64_t positions)
{
  static_assert(chain<Functors...>::pools == 0, "tconv: pools need the extents: pass a tensor_shape");
  tensor_shape<1> shape;
  shape.batch     = batch;
  shape.channels  = channels;
  shape.extent[0] = positions;
  return apply(functors, y, shape).channels;
}

} // namespace reference

TCONV_NAMESPACE_END
