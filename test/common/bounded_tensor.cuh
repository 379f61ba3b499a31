// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A tensor in double with the error that each value may have in fp32, followed through a chain functor by functor; and calls of
/// launchers on tensors whose result has other positions than x.
///
/// With u = 2^-24. A functor takes the errors of its inputs with it (the largest of a window, their sum or mean, times the slope of
/// a pointwise functor) and adds its own, which its docstring gives, and the rounding of its result.

#include "typed_convolution.cuh"

#include <tconv/reference/chain.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/channel_reduction.hpp>
#include <tconv/thread/pool.hpp>
#include <tconv/thread/softmax.hpp>
#include <tconv/thread/tensor_operand.cuh>

#include <type_traits>
#include <utility>

namespace tconv_test
{

template <int Rank>
struct bounded_tensor
{
  tconv::tensor_shape<Rank> shape;
  std::vector<double> value; ///< [batch, channels, positions]
  std::vector<double> error; ///< of each value; 0 where it is not finite, which nothing may change

  bounded_tensor(const tconv::tensor_shape<Rank>& s, const std::vector<float>& exact)
      : shape(s)
      , value(exact.begin(), exact.end())
      , error(exact.size(), 0.0)
  {}
  bounded_tensor(const tconv::tensor_shape<Rank>& s, std::vector<double> values, std::vector<double> errors)
      : shape(s)
      , value(std::move(values))
      , error(std::move(errors))
  {
    finish([](std::size_t) { return 0.0; });
  }

  /// Through all functors of a chain whose operands are on the host.
  template <class First, class... Rest>
  bounded_tensor& follow(const tconv::chain<First, Rest...>& functors)
  {
    take(functors.first);
    return follow(functors.rest);
  }
  bounded_tensor& follow(const tconv::chain<>&) { return *this; }

  output_extents extents() const
  {
    output_extents e{shape.batch, shape.channels, 1, 1, shape.extent[Rank - 1]};
    e.h = Rank >= 2 ? shape.extent[Rank >= 2 ? Rank - 2 : 0] : 1;
    e.d = Rank >= 3 ? shape.extent[0] : 1;
    return e;
  }
  /// \p y, channels first, against this; what is rounded to fp32 on its way to Out is rounded twice.
  template <class Out>
  comparison compare(const std::vector<float>& y) const
  {
    if (y.size() != value.size())
    {
      return {};
    }
    return compare_values(y.data(), value.data(), extents(), [&](std::int64_t i, double wanted) {
      const double own = error[static_cast<std::size_t>(i)];
      if (!std::isfinite(own)) // bounds nothing: the exact value only
      {
        return tolerance{};
      }
      return tolerance{
        own + (std::is_same<Out, float>::value ? 0.0 : ulp(std::fabs(wanted) + own, format_of<Out>::value) / 2), 0.0};
    });
  }

private:
  static constexpr double u = 0x1p-24;

  std::size_t flat(std::int64_t n, std::int64_t c, std::int64_t p) const
  {
    return static_cast<std::size_t>((n * shape.channels + c) * shape.positions() + p);
  }
  /// Cuts off what a functor has left behind the result, and adds own(i) to the error of each finite value, and its rounding.
  template <class Own>
  void finish(Own own)
  {
    value.resize(static_cast<std::size_t>(shape.elements()));
    error.resize(value.size());
    for (std::size_t i = 0; i < value.size(); ++i)
    {
      error[i] = std::isfinite(value[i]) ? error[i] + own(i) : 0.0;
    }
  }
  double rounding(std::size_t i, double more = 0.0) const { return ulp(std::fabs(value[i]) + error[i] + more) / 2; }
  template <class F>
  void apply(const F& functor)
  {
    shape = tconv::reference::apply(tconv::chain<F>(functor), value.data(), shape);
  }

  /// A maximum is exact. Sums: 16 values in fp32 from 0 on are 15 roundings of at most u times the sum of magnitudes; the sixteenth
  /// pays for second orders and for everything in fp64 (2^29 additions of 2^-53 each). One rounding to fp32.
  template <tconv::pool_operation Operation>
  void take(const tconv::spatial_pool<Operation>& pool)
  {
    std::vector<double> magnitude(value.size());
    for (std::size_t i = 0; i < value.size(); ++i)
    {
      magnitude[i] = std::fabs(value[i]) + error[i];
    }
    tconv::reference::apply_pool(pool, magnitude.data(), shape);
    tconv::reference::apply_pool(pool, error.data(), shape);
    shape = tconv::reference::apply_pool(pool, value.data(), shape);
    finish([&](std::size_t i) {
      const double sums = Operation == tconv::pool_operation::maximum ? 0.0 : 16 * u * magnitude[i];
      return sums == 0.0 ? 0.0 : sums + rounding(i, sums);
    });
  }
  void take(const tconv::bias& functor)
  {
    apply(functor);
    finish([&](std::size_t i) { return rounding(i); });
  }
  template <class T>
  void take(const tconv::tensor_functor<T, tconv::add_operation>& functor)
  {
    apply(functor);
    finish([&](std::size_t i) { return rounding(i); });
  }
  void take(const tconv::relu& functor)
  {
    apply(functor);
    finish([](std::size_t) { return 0.0; });
  }
  void take(const tconv::leaky_relu& functor)
  {
    apply(functor);
    finish([&](std::size_t i) { return value[i] < 0.0 ? rounding(i) : 0.0; });
  }
  void take(const tconv::scale& functor)
  {
    for (std::int64_t i = 0; i < shape.elements(); ++i)
    {
      const std::int64_t line = i / shape.positions();
      error[static_cast<std::size_t>(i)] *=
        std::fabs(static_cast<double>(functor.bind({line / shape.channels, line % shape.channels}).factor));
    }
    apply(functor);
    finish([&](std::size_t i) { return rounding(i); });
  }
  /// A slope of at most 1/4, and (4 + 1.2 |v|) ulp; beyond 128 the result is 0 or 1.
  void take(const tconv::sigmoid& functor)
  {
    const std::vector<double> before = value;
    for (double& e : error)
    {
      e /= 4;
    }
    apply(functor);
    finish([&](std::size_t i) {
      return (4 + 1.2 * std::fmin(std::fabs(before[i]) + 4 * error[i], 128.0)) * ulp(value[i] + error[i]) + 0x1p-126;
    });
  }
  /// visit(sample, position, largest error in that row).
  template <class Visitor>
  void for_each_row(Visitor visit) const
  {
    for (std::int64_t n = 0; n < shape.batch; ++n)
    {
      for (std::int64_t p = 0; p < shape.positions(); ++p)
      {
        double most = 0;
        for (std::int64_t c = 0; c < shape.channels; ++c)
        {
          most = std::fmax(most, error[flat(n, c, p)]);
        }
        visit(n, p, most);
      }
    }
  }
  /// Errors e of the logits are factors exp(+-2e). Then (4 + 2.3 |v - max|) ulp, and what the sum adds: its additions and the mean of
  /// 2.3 |v - max| ulp over its terms; below 2^-126 a result is 0.
  void take(const tconv::channel_softmax& functor)
  {
    const bounded_tensor before = *this;
    apply(functor);
    before.for_each_row([&](std::int64_t n, std::int64_t p, double most) {
      double peak = -std::numeric_limits<double>::infinity();
      for (std::int64_t c = 0; c < shape.channels; ++c)
      {
        peak = std::fmax(peak, before.value[flat(n, c, p)]);
      }
      const auto below = [&](std::int64_t c) {
        return std::fmin(peak - before.value[flat(n, c, p)] + 2 * most, 128.0);
      };
      double mean = 0;
      for (std::int64_t c = 0; c < shape.channels; ++c)
      {
        mean += value[flat(n, c, p)] * 2.3 * below(c);
      }
      const double grown = std::exp(2 * most);
      for (std::int64_t c = 0; c < shape.channels; ++c)
      {
        const double high    = value[flat(n, c, p)] * grown;
        error[flat(n, c, p)] = value[flat(n, c, p)] * std::expm1(2 * most) + (4 + 2.3 * below(c)) * ulp(high)
                             + (static_cast<double>(shape.channels + 8) + 2 * mean) * u * high + 0x1p-126;
      }
    });
    finish([](std::size_t) { return 0.0; });
  }
  /// The largest error of the row.
  void take(const tconv::channel_max& functor)
  {
    std::vector<double> errors(error.size());
    for_each_row([&](std::int64_t n, std::int64_t p, double most) {
      errors[static_cast<std::size_t>(n * shape.positions() + p)] = most;
    });
    apply(functor);
    error = errors;
    finish([](std::size_t) { return 0.0; });
  }
};

/// Calls a launcher on \p x (channels first) in an arrangement, and returns y channels first; empty after a failure. Neither x nor
/// what lies beside the slices may change.
///
/// \p result: shape of y. \p bytes(shape, options) -> workspace; \p call(x, y, shape, options, workspace, stream) -> status.
template <class In, class Out, int Rank, class Bytes, class Call>
std::vector<float> call_on_tensor(tconv::tensor_shape<Rank> s,
                                  const std::vector<float>& x,
                                  const tconv::tensor_shape<Rank>& result,
                                  const arrangement& how,
                                  Bytes bytes,
                                  Call call)
{
  s.input_slice  = slice_number(how.input_slice, s.channels);
  s.output_slice = slice_number(how.output_slice, result.channels);
  tconv::options opts;
  opts.input_layout        = how.input;
  opts.output_layout       = how.output;
  opts.programmatic_launch = how.misalignment == 1;
  const placement in{s.batch, s.channels, s.positions(), how.input, s.input_slice};
  const placement out{s.batch, result.channels, result.positions(), how.output, s.output_slice};

  const std::vector<In> source = in.place<In>(x);
  device_buffer<In> dx(source, how.misalignment);
  device_buffer<Out> dy(out.tensor_elements(), how.misalignment);
  workspace_buffer space(bytes(s, opts));
  const bool good = run(
    how.mode, [&](cudaStream_t stream) { return call(dx.data(), dy.data(), s, opts, space.get(), stream); });
  EXPECT_TRUE(good);
  EXPECT_TRUE(dx.guards_intact() && dy.guards_intact() && space.guards_intact());
  const std::vector<In> after = dx.download();
  EXPECT_EQ(std::memcmp(after.data(), source.data(), source.size() * sizeof(In)), 0) << "x was written";
  const std::vector<Out> y = dy.download();
  EXPECT_TRUE(out.others_untouched(y)) << "channels beside the slice were written";
  return good ? out.extract(y) : std::vector<float>{};
}

template <int Rank>
std::string to_string(const tconv::tensor_shape<Rank>& s)
{
  std::string text = std::to_string(s.batch) + " x " + std::to_string(s.channels) + " channels";
  for (const auto e : s.extent)
  {
    text += " x " + std::to_string(e);
  }
  return text;
}

} // namespace tconv_test
