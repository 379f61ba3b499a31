// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The built-in functors in double, written independently of thread/: an overload evaluate(functor, value) for each.
/// A user's functor brings `double reference(double) const`; without one its fp32 operator() is used.

#include "../thread/activation.hpp"
#include "../thread/affine.hpp"
#include "../thread/chain.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

TCONV_NAMESPACE_BEGIN

namespace reference
{

inline double evaluate(const relu&, double v)
{
  return std::isnan(v) ? v : std::fmax(v, 0.0);
}

inline double evaluate(const leaky_relu& f, double v)
{
  return v >= 0.0 ? v : static_cast<double>(f.negative_slope) * v;
}

inline double evaluate(const sigmoid&, double v)
{
  return 1.0 / (1.0 + std::exp(-v));
}

inline double evaluate(const tanh&, double v)
{
  return std::tanh(v);
}

inline double evaluate(const gelu&, double v)
{
  return v == -std::numeric_limits<double>::infinity() ? -0.0 : 0.5 * v * std::erfc(-v / std::sqrt(2.0));
}

inline double evaluate(const gelu_tanh&, double v)
{
  if (v == -std::numeric_limits<double>::infinity())
  {
    return -0.0;
  }
  const double pi = 3.14159265358979323846;
  const double u  = std::sqrt(2.0 / pi) * (v + 0.044715 * v * v * v);
  return v / (1.0 + std::exp(-2.0 * u)); // 0.5 * (1 + tanh(u)) without its cancellation
}

inline double evaluate(const silu&, double v)
{
  return v == -std::numeric_limits<double>::infinity() ? -0.0 : v / (1.0 + std::exp(-v));
}

inline double evaluate(const hardsigmoid&, double v)
{
  return v <= -3.0 ? 0.0 : v >= 3.0 ? 1.0 : (v + 3.0) / 6.0;
}

inline double evaluate(const hardswish&, double v)
{
  return v <= -3.0 ? -0.0 : v >= 3.0 ? v : v * (v + 3.0) / 6.0;
}

inline double evaluate(const softplus&, double v)
{
  // exp(-40) is below the last digit of 40.
  return v > 40.0 ? v : std::log1p(std::exp(v));
}

inline double evaluate(const log_sigmoid&, double v)
{
  return v < -40.0 ? v : -std::log1p(std::exp(-v));
}

inline double evaluate(const mish&, double v)
{
  return v == -std::numeric_limits<double>::infinity() ? -0.0 : v * std::tanh(std::log1p(std::exp(v)));
}

inline double evaluate(const elu& f, double v)
{
  return v >= 0.0 ? v : static_cast<double>(f.alpha) * std::expm1(v);
}

inline double evaluate(const exponential&, double v)
{
  return std::exp(v);
}

inline double evaluate(const minimum& f, double v)
{
  const auto value = static_cast<double>(f.value);
  return std::isnan(v) || std::isnan(value) ? v + value : std::fmin(v, value);
}

inline double evaluate(const maximum& f, double v)
{
  const auto value = static_cast<double>(f.value);
  return std::isnan(v) || std::isnan(value) ? v + value : std::fmax(v, value);
}

inline double evaluate(const clamp& f, double v)
{
  if (std::isnan(v))
  {
    return v;
  }
  return std::fmin(std::fmax(v, static_cast<double>(f.low)), static_cast<double>(f.high));
}

inline double evaluate(const bias::bound& f, double v)
{
  return v + static_cast<double>(f.value);
}

inline double evaluate(const scale::bound& f, double v)
{
  return v * static_cast<double>(f.factor);
}

inline double evaluate(const affine::bound& f, double v)
{
  return static_cast<double>(f.factor) * v + static_cast<double>(f.offset);
}

inline double evaluate(const centred_affine::bound& f, double v)
{
  return static_cast<double>(f.map.slope) * (v - static_cast<double>(f.map.centre)) + static_cast<double>(f.map.offset);
}

/// batch_norm of one channel in double, from the layer's own parameters and not from the slope that the fp32 form derives.
struct batch_norm_channel
{
  double mean;     ///< stored mean
  double variance; ///< stored variance
  double gamma;    ///< weight, 1 where the layer has none
  double beta;     ///< bias, 0 where the layer has none
  double eps;      ///< added to the variance under the root, >= 0
};

inline double evaluate(const batch_norm_channel& f, double v)
{
  const double radicand = f.variance + f.eps;
  if (radicand == 0.0)
  {
    return std::isnan(v) ? v : f.beta;
  }
  return f.gamma * (v - f.mean) / std::sqrt(radicand) + f.beta;
}

namespace detail
{

template <class F, class = void>
struct has_reference : std::false_type
{};
template <class F>
struct has_reference<F, std::void_t<decltype(std::declval<const F&>().reference(0.0))>> : std::true_type
{};

template <class F, class = void>
struct has_evaluate : std::false_type
{};
template <class F>
struct has_evaluate<F, std::void_t<decltype(evaluate(std::declval<const F&>(), 0.0))>> : std::true_type
{};

/// The functor bound to \p at, in the form that evaluate() takes.
template <class F>
auto bind(const F& functor, const coordinate& at)
{
  return tconv::detail::bind(functor, at);
}
inline batch_norm_channel bind(const batch_norm& f, const coordinate& at)
{
  const auto c       = at.channel;
  const auto element = [c](const float* values, double otherwise) {
    return values != nullptr ? static_cast<double>(values[c]) : otherwise;
  };
  return {element(f.mean, 0.0),
          element(f.variance, 1.0),
          element(f.gamma, 1.0),
          element(f.beta, 0.0),
          static_cast<double>(f.eps)};
}

/// A bound or plain functor in double.
template <class F>
double evaluate_any(const F& functor, double v)
{
  // A functor's own reference first: a user may derive from a built-in.
  if constexpr (has_reference<F>::value)
  {
    return functor.reference(v);
  }
  else if constexpr (has_evaluate<F>::value)
  {
    return evaluate(functor, v);
  }
  else
  {
    return static_cast<double>(functor(static_cast<float>(v)));
  }
}

} // namespace detail

} // namespace reference

TCONV_NAMESPACE_END
