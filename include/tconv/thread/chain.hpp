// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The epilogue language: a chain of functors, composed at compile time, applied to values while they are in registers.
///
/// - *pointwise*: `float operator()(float) const`, or `bind(const coordinate&) const` that returns such a functor;
/// - *channel*: `static constexpr bool across_channels = true` and `operator()(Row&) const` (see row.hpp). With
///   `static constexpr bool reduces_channels = true` as well it leaves one channel: its result, in every value of the row.
///
/// - *across positions*: window pools and reductions over space (see pool.hpp). What follows sees the pooled tensor; launchers on
///   tensors run such a chain in several passes.
///
/// Behind a functor that reduces the channels the output is [batch, 1, positions]. Functors there are bound to channel 0, once
/// per sample; none of them may be a channel functor, because one channel leaves nothing to reduce or to normalise.
///
/// A user's functor is any copyable struct of one of these forms; it is passed to kernels by value.

#include "../detail/meta.hpp"
#include "affine.hpp"
#include "row.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

template <class F, class = void>
struct across_channels : meta::false_type
{};
template <class F>
struct across_channels<F, meta::enable_if_t<F::across_channels>> : meta::true_type
{};

template <class F, class = void>
struct reduces_channels : meta::false_type
{};
template <class F>
struct reduces_channels<F, meta::enable_if_t<F::reduces_channels>> : meta::true_type
{};

template <class F, class = void>
struct is_per_sample : meta::false_type
{};
template <class F>
struct is_per_sample<F, meta::enable_if_t<F::per_sample>> : meta::true_type
{};

template <class F, class = void>
struct is_per_position : meta::false_type
{};
template <class F>
struct is_per_position<F, meta::enable_if_t<F::per_position>> : meta::true_type
{};

template <class F, class = void>
struct across_positions : meta::false_type
{};
template <class F>
struct across_positions<F, meta::enable_if_t<F::across_positions>> : meta::true_type
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

template <class F, class = void>
struct takes_rows : meta::false_type
{};
template <class F>
struct takes_rows<F, meta::void_t<decltype(meta::declval<const F&>()(meta::declval<thread_row&>()))>> : meta::true_type
{};

/// True if what a functor is bound to takes a float, and the position where it depends on that.
template <class F, class = void>
struct binds_functor : meta::false_type
{};
template <class F>
struct binds_functor<
  F,
  meta::enable_if_t<!is_per_position<F>::value,
                    meta::void_t<decltype(static_cast<float>(meta::declval<const F&>().bind(coordinate{})(0.0f)))>>>
    : meta::true_type
{};
template <class F>
struct binds_functor<F,
                     meta::enable_if_t<is_per_position<F>::value,
                                       meta::void_t<decltype(static_cast<float>(meta::declval<const F&>().bind(
                                         coordinate{})(0.0f, int64_t{})))>>> : meta::true_type
{};

/// A bound functor on one value; \p tile(position) is called where it depends on the position.
template <class F, class Bound, class Tile>
TCONV_HOST_DEVICE float apply_bound(const Bound& bound, float v, Tile& tile, int p)
{
  if constexpr (is_per_position<F>::value)
  {
    return bound(v, tile.position(p));
  }
  else
  {
    return bound(v);
  }
}

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
  static constexpr bool across_channels  = false;
  static constexpr bool reduces_channels = false;
  static constexpr bool linear           = true;
  static constexpr bool per_sample       = false;
  static constexpr bool per_position     = false; ///< no operand is a whole tensor
  static constexpr int length            = 0;     ///< number of functors
  static constexpr int pools             = 0;     ///< number of functors across positions

  /// \p channels: none are reduced.
  TCONV_HOST_DEVICE static constexpr int64_t output_channels(int64_t channels) { return channels; }

  /// Visits nothing.
  template <class Visitor>
  TCONV_HOST_DEVICE void for_each(Visitor&&) const
  {}
};

/// One functor or more: the first, then the chain of the others.
template <class First, class... Rest>
struct chain<First, Rest...>
{
  static_assert(detail::across_channels<First>::value || detail::across_positions<First>::value
                  || detail::has_bind<First>::value || detail::is_plain<First>::value,
                "tconv: a functor in a chain needs float operator()(float) const, or bind(const coordinate&) const, or "
                "across_channels = true with operator()(Row&) const");
  static_assert(!detail::across_channels<First>::value || detail::takes_rows<First>::value,
                "tconv: a functor with across_channels = true needs operator()(Row&) const for any row type");
  static_assert(!detail::has_bind<First>::value || detail::binds_functor<First>::value,
                "tconv: bind(const coordinate&) const must return a functor float operator()(float) const, or with "
                "per_position = true float operator()(float, int64_t) const");
  static_assert(detail::meta::is_trivially_copyable<First>::value,
                "tconv: a functor is passed to kernels by value: it must be trivially copyable, without containers or "
                "owning pointers");
  static_assert(detail::across_channels<First>::value || !detail::reduces_channels<First>::value,
                "tconv: a functor with reduces_channels = true needs across_channels = true as well");
  static_assert(!(detail::reduces_channels<First>::value && chain<Rest...>::across_channels),
                "tconv: no channel functor can follow one that reduces the channels (channel_logsumexp, channel_min, "
                "channel_max, channel_sum, channel_mean): there is only one channel left");

  /// \p first_functor, then \p rest_functors in order. Copies are kept.
  TCONV_HOST_DEVICE explicit chain(const First& first_functor, const Rest&... rest_functors)
      : first(first_functor)
      , rest(rest_functors...)
  {}
  /// \p first_functor before the functors of \p others.
  TCONV_HOST_DEVICE chain(const First& first_functor, const chain<Rest...>& others) : first(first_functor), rest(others)
  {}

  /// True if any functor needs all channels of a position.
  static constexpr bool across_channels = detail::across_channels<First>::value || chain<Rest...>::across_channels;
  /// True if a functor leaves one channel of all.
  static constexpr bool reduces_channels = detail::reduces_channels<First>::value || chain<Rest...>::reduces_channels;
  /// True if every functor is linear in the value, so that the chain commutes with means over the positions of one sample and
  /// channel; with means over the batch only if it is not per_sample.
  static constexpr bool linear = detail::is_linear<First>::value && chain<Rest...>::linear;
  /// True if an operand differs between samples.
  static constexpr bool per_sample = detail::is_per_sample<First>::value || chain<Rest...>::per_sample;
  /// True if an operand is a whole tensor.
  static constexpr bool per_position = detail::is_per_position<First>::value || chain<Rest...>::per_position;
  /// Number of functors.
  static constexpr int length = 1 + chain<Rest...>::length;
  /// Number of functors across positions: pools and reductions over space.
  static constexpr int pools = (detail::across_positions<First>::value ? 1 : 0) + chain<Rest...>::pools;

  /// Channels of the result for \p channels of the convolution.
  TCONV_HOST_DEVICE static constexpr int64_t output_channels(int64_t channels)
  {
    return reduces_channels ? 1 : channels;
  }

  /// visitor(functor) for each functor in order.
  template <class Visitor>
  TCONV_HOST_DEVICE void for_each(Visitor&& visitor) const
  {
    visitor(first);
    rest.for_each(visitor);
  }

  First first;         ///< applied first
  chain<Rest...> rest; ///< applied to the result
};

/// chain(bias(b), sigmoid()) is a chain<bias, sigmoid>.
template <class... Functors>
chain(Functors...) -> chain<Functors...>;

namespace detail
{

/// One functor on a tile. \p Reduced: a functor before it has reduced the channels to one, whose value all channels of the tile
/// hold.
template <bool Reduced, class Tile, class F>
TCONV_HOST_DEVICE void apply_functor(const F& functor, Tile& tile)
{
  if constexpr (across_channels<F>::value)
  {
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < tile.positions(); ++p)
    {
      auto row = tile.row(p);
      functor(row);
    }
  }
  else if constexpr (Reduced)
  {
    if (tile.channels() > 0)
    {
      const auto bound = bind(functor, coordinate{tile.at(0).n, 0});
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < tile.positions(); ++p)
      {
        const float value = apply_bound<F>(bound, tile(0, p), tile, p);
        TCONV_PRAGMA_UNROLL
        for (int c = 0; c < tile.channels(); ++c)
        {
          tile(c, p) = value;
        }
      }
    }
  }
  else
  {
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < tile.channels(); ++c)
    {
      const auto bound = bind(functor, tile.at(c));
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < tile.positions(); ++p)
      {
        tile(c, p) = apply_bound<F>(bound, tile(c, p), tile, p);
      }
    }
  }
}

/// The functors of a chain, first to last.
template <bool Reduced, class Tile>
TCONV_HOST_DEVICE void apply_all(const chain<>&, Tile&)
{}
template <bool Reduced, class Tile, class First, class... Rest>
TCONV_HOST_DEVICE void apply_all(const chain<First, Rest...>& functors, Tile& tile)
{
  apply_functor<Reduced>(functors.first, tile);
  apply_all<Reduced || reduces_channels<First>::value>(functors.rest, tile);
}

} // namespace detail

/// Applies \p functors to a tile of values.
///
/// The tile concept: `channels()`, `positions()` (constants where the tile lives in registers), `coordinate at(int c)`,
/// `float& operator()(int c, int p)`, `int64_t position(int p)`, the number of output position p or a negative one where there is
/// none, and `row(int p)`, its row. Called by all threads that share the tile.
///
/// A chain that reduces the channels leaves its result in every channel of the tile; channel 0 is the one to store.
template <class Tile, class... Functors>
TCONV_HOST_DEVICE void apply(const chain<Functors...>& functors, Tile& tile)
{
  static_assert(chain<Functors...>::pools == 0, "tconv: a tile holds no neighbouring positions to pool");
  detail::apply_all<false>(functors, tile);
}

/// The empty chain leaves a value as it is.
TCONV_HOST_DEVICE double apply_to_mean(const chain<>&, double value, const coordinate&)
{
  return value;
}

/// Applies pointwise \p functors to a mean, or another value that stands for a whole channel, in double while they are linear, and
/// from the first other one on in float.
template <class First, class... Rest>
TCONV_HOST_DEVICE double apply_to_mean(const chain<First, Rest...>& functors, double value, const coordinate& at)
{
  const auto bound = detail::bind(functors.first, at);
  if constexpr (detail::is_linear<First>::value)
  {
    value = bound(value);
  }
  else
  {
    value = static_cast<double>(bound(static_cast<float>(value)));
  }
  return apply_to_mean(functors.rest, value, at);
}

/// chain(functor, then the functors of \p others).
template <class First, class... Rest>
TCONV_HOST_DEVICE chain<First, Rest...> prepend(const First& functor, const chain<Rest...>& others)
{
  return chain<First, Rest...>(functor, others);
}

namespace detail
{

/// The functors of \p first, then those of \p second.
template <class... Second>
TCONV_HOST_DEVICE chain<Second...> join(const chain<>&, const chain<Second...>& second)
{
  return second;
}
template <class First, class... Rest, class... Second>
TCONV_HOST_DEVICE chain<First, Rest..., Second...> join(const chain<First, Rest...>& first,
                                                        const chain<Second...>& second)
{
  return prepend(first.first, join(first.rest, second));
}

/// The functors up to the last one across channels.
TCONV_HOST_DEVICE chain<> through_rows(const chain<>&)
{
  return {};
}
template <class First, class... Rest>
TCONV_HOST_DEVICE auto through_rows(const chain<First, Rest...>& functors)
{
  if constexpr (chain<First, Rest...>::across_channels)
  {
    return prepend(functors.first, through_rows(functors.rest));
  }
  else
  {
    return chain<>{};
  }
}

/// The functors behind the last one across channels.
TCONV_HOST_DEVICE chain<> behind_rows(const chain<>&)
{
  return {};
}
template <class First, class... Rest>
TCONV_HOST_DEVICE auto behind_rows(const chain<First, Rest...>& functors)
{
  if constexpr (chain<First, Rest...>::across_channels)
  {
    return behind_rows(functors.rest);
  }
  else
  {
    return functors;
  }
}

/// The functors before the first that works across positions.
TCONV_HOST_DEVICE chain<> before_pool(const chain<>&)
{
  return {};
}
template <class First, class... Rest>
TCONV_HOST_DEVICE auto before_pool(const chain<First, Rest...>& functors)
{
  if constexpr (across_positions<First>::value)
  {
    return chain<>{};
  }
  else
  {
    return prepend(functors.first, before_pool(functors.rest));
  }
}

/// The functors but the first that works across positions.
TCONV_HOST_DEVICE chain<> without_pool(const chain<>&)
{
  return {};
}
template <class First, class... Rest>
TCONV_HOST_DEVICE auto without_pool(const chain<First, Rest...>& functors)
{
  if constexpr (across_positions<First>::value)
  {
    return functors.rest;
  }
  else
  {
    return prepend(functors.first, without_pool(functors.rest));
  }
}

/// The first functor that works across positions and everything behind it.
TCONV_HOST_DEVICE chain<> from_pool(const chain<>&)
{
  return {};
}
template <class First, class... Rest>
TCONV_HOST_DEVICE auto from_pool(const chain<First, Rest...>& functors)
{
  if constexpr (across_positions<First>::value)
  {
    return functors;
  }
  else
  {
    return from_pool(functors.rest);
  }
}

} // namespace detail

TCONV_NAMESPACE_END
