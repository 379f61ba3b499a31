// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The epilogue language: a chain of functors, composed at compile time, applied to values while they are in registers.
///
/// - *pointwise*: `float operator()(float) const`, or `bind(const coordinate&) const` that returns such a functor;
/// - *channel*: `static constexpr bool across_channels = true` and `operator()(Row&) const` (see row.hpp).
///
/// A user's functor is any copyable struct of one of these forms; it is passed to kernels by value.

#include "affine.hpp"
#include "row.hpp"

#if !defined(__CUDACC_RTC__)
#  include <type_traits>
#else
#  include <cuda/std/type_traits>
#endif

TCONV_NAMESPACE_BEGIN

namespace detail
{

#if !defined(__CUDACC_RTC__)
namespace meta = std;
#else
namespace meta = cuda::std;
#endif

template <class F, class = void>
struct across_channels : meta::false_type
{};
template <class F>
struct across_channels<F, meta::enable_if_t<F::across_channels>> : meta::true_type
{};

template <class F, class = void>
struct is_linear : meta::false_type
{};
template <class F>
struct is_linear<F, meta::enable_if_t<F::linear>> : meta::true_type
{};

template <class F, class = void>
struct has_bind : meta::false_type
{};
template <class F>
struct has_bind<F, meta::void_t<decltype(meta::declval<const F&>().bind(coordinate{}))>> : meta::true_type
{};

template <class F, class = void>
struct is_plain : meta::false_type
{};
template <class F>
struct is_plain<F, meta::void_t<decltype(static_cast<float>(meta::declval<const F&>()(0.0f)))>> : meta::true_type
{};

/// The functor bound to \p at, or itself when it has no operands.
template <class F>
TCONV_HOST_DEVICE auto bind(const F& functor, const coordinate& at)
{
  if constexpr (has_bind<F>::value)
  {
    return functor.bind(at);
  }
  else
  {
    return functor;
  }
}

} // namespace detail

/// A sequence of functors, applied first to last.
template <class... Functors>
struct chain;

/// The empty chain: the plain convolution.
template <>
struct chain<>
{
  static constexpr bool across_channels = false;
  static constexpr bool linear          = true;
  static constexpr int length           = 0;

  template <class Visitor>
  TCONV_HOST_DEVICE void for_each(Visitor&&) const
  {}
};

template <class First, class... Rest>
struct chain<First, Rest...>
{
  static_assert(detail::across_channels<First>::value || detail::has_bind<First>::value
                  || detail::is_plain<First>::value,
                "tconv: a functor in a chain needs float operator()(float) const, or bind(const coordinate&) const, or "
                "across_channels = true with operator()(Row&) const");

  TCONV_HOST_DEVICE explicit chain(const First& first_functor, const Rest&... rest_functors)
      : first(first_functor)
      , rest(rest_functors...)
  {}

  /// True if any functor needs all channels of a position.
  static constexpr bool across_channels = detail::across_channels<First>::value || chain<Rest...>::across_channels;
  /// True if every functor is linear in the value, so that the chain commutes with means.
  static constexpr bool linear = detail::is_linear<First>::value && chain<Rest...>::linear;
  /// Number of functors.
  static constexpr int length = 1 + chain<Rest...>::length;

  /// visitor(functor) for each functor in order.
  template <class Visitor>
  TCONV_HOST_DEVICE void for_each(Visitor&& visitor) const
  {
    visitor(first);
    rest.for_each(visitor);
  }

  First first;
  chain<Rest...> rest;
};

template <class... Functors>
chain(Functors...) -> chain<Functors...>;

/// Applies \p functors to a tile of values.
///
/// The tile concept: `channels()`, `positions()` (constants where the tile lives in registers), `coordinate at(int c)`,
/// `float& operator()(int c, int p)` and `row(int p)`, the row of position p. Called by all threads that share the tile.
template <class Tile, class... Functors>
TCONV_HOST_DEVICE void apply(const chain<Functors...>& functors, Tile& tile)
{
  functors.for_each([&tile](const auto& functor) {
    using F = detail::meta::decay_t<decltype(functor)>;
    if constexpr (detail::across_channels<F>::value)
    {
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < tile.positions(); ++p)
      {
        auto row = tile.row(p);
        functor(row);
      }
    }
    else
    {
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < tile.channels(); ++c)
      {
        const auto bound = detail::bind(functor, tile.at(c));
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < tile.positions(); ++p)
        {
          tile(c, p) = bound(tile(c, p));
        }
      }
    }
  });
}

TCONV_NAMESPACE_END
