// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Shapes that tests run over, their inputs, and the reference of a convolution.

#include "compare.hpp"
#include "random.hpp"

#include <tconv/reference/conv_transpose.hpp>
#include <tconv/shape.hpp>

#include <sstream>
#include <string>
#include <vector>

namespace tconv_test
{

using shape1 = tconv::conv_transpose_shape<1>;
using shape2 = tconv::conv_transpose_shape<2>;
using shape3 = tconv::conv_transpose_shape<3>;

/// All fields in one line: {batch, in_channels, out_channels, groups}, input, kernel, stride, padding, output_padding, dilation.
template <int Rank>
tconv::conv_transpose_shape<Rank>
make_shape(const std::array<tconv::int64_t, 4>& channels,
           const std::array<tconv::int64_t, Rank>& input,
           const std::array<tconv::int64_t, Rank>& kernel,
           const std::array<tconv::int64_t, Rank>& stride         = tconv::detail::filled<Rank>(1),
           const std::array<tconv::int64_t, Rank>& padding        = tconv::detail::filled<Rank>(0),
           const std::array<tconv::int64_t, Rank>& output_padding = tconv::detail::filled<Rank>(0),
           const std::array<tconv::int64_t, Rank>& dilation       = tconv::detail::filled<Rank>(1))
{
  tconv::conv_transpose_shape<Rank> s;
  s.batch          = channels[0];
  s.in_channels    = channels[1];
  s.out_channels   = channels[2];
  s.groups         = channels[3];
  s.input          = input;
  s.kernel         = kernel;
  s.stride         = stride;
  s.padding        = padding;
  s.output_padding = output_padding;
  s.dilation       = dilation;
  return s;
}

template <int Rank>
std::string to_string(const tconv::conv_transpose_shape<Rank>& s)
{
  std::ostringstream out;
  const auto list = [&](const char* name, const auto& values) {
    out << ' ' << name << '(';
    for (std::size_t i = 0; i < values.size(); ++i)
    {
      out << (i > 0 ? "," : "") << values[i];
    }
    out << ')';
  };
  out << 'n' << s.batch << ' ' << s.in_channels << "->" << s.out_channels << " g" << s.groups;
  list("in", s.input);
  list("k", s.kernel);
  list("s", s.stride);
  list("p", s.padding);
  list("op", s.output_padding);
  list("d", s.dilation);
  return out.str();
}

template <int Rank>
output_extents extents_of(const tconv::conv_transpose_shape<Rank>& shape)
{
  const auto s = tconv::detail::canonical(shape);
  return {s.batch, s.out_channels, s.output(0), s.output(1), s.output(2)};
}

/// Awkward shapes of every rank, as rank 3: odd, prime and unit extents, every parameter distinct per axis, groups, depthwise,
/// dilation with common factors, strides beyond the kernel (bias where no tap lands), padding that crops whole taps, halos
/// beyond shared memory, one and many channels, few and many tiles.
inline std::vector<shape3> awkward_shapes()
{
  std::vector<shape3> list;
  const auto add1 = [&](const shape1& s) { list.push_back(tconv::detail::canonical(s)); };
  const auto add2 = [&](const shape2& s) { list.push_back(tconv::detail::canonical(s)); };
  const auto add3 = [&](const shape3& s) { list.push_back(s); };

  add1(make_shape<1>({1, 1, 1, 1}, {1}, {1}));
  add1(make_shape<1>({2, 3, 5, 1}, {17}, {4}, {2}, {1}));
  add1(make_shape<1>({3, 7, 9, 1}, {1009}, {16}, {8}, {4}));
  add1(make_shape<1>({1, 5, 33, 1}, {101}, {7}, {3}, {2}, {2}));
  add1(make_shape<1>({1, 2, 3, 1}, {40}, {5}, {1}, {0}, {0}, {3}));
  add1(make_shape<1>({1, 2, 3, 1}, {40}, {6}, {4}, {3}, {1}, {6}));
  add1(make_shape<1>({2, 2, 8, 1}, {9}, {3}, {7}, {0}, {6}));
  add1(make_shape<1>({1, 3, 4, 1}, {50}, {3}, {2}, {5}, {1}, {9000}));
  add1(make_shape<1>({1, 2, 2, 1}, {300}, {40}, {1}, {17}));
  add1(make_shape<1>({1, 2, 2, 1}, {300}, {41}, {2}, {17}, {1}));
  add1(make_shape<1>({1, 1, 16, 1}, {3}, {2}, {1000}, {0}, {999}));
  add1(make_shape<1>({2, 16, 260, 1}, {13}, {3}, {2}, {1}, {1}));

  add2(make_shape<2>({1, 1, 1, 1}, {3, 3}, {3, 3}, {2, 2}, {2, 2}, {0, 0}, {2, 2}));
  add2(make_shape<2>({2, 3, 4, 1}, {5, 7}, {3, 5}, {2, 1}, {1, 2}, {1, 0}, {3, 1}));
  add2(make_shape<2>({1, 24, 24, 1}, {19, 23}, {2, 2}, {2, 2}));
  add2(make_shape<2>({1, 24, 1, 1}, {38, 41}, {2, 2}, {2, 2}));
  add2(make_shape<2>({2, 8, 8, 8}, {9, 11}, {3, 3}, {2, 2}, {1, 1}, {1, 1}));
  add2(make_shape<2>({2, 12, 12, 12}, {6, 37}, {5, 4}, {1, 1}, {2, 1}));
  add2(make_shape<2>({1, 6, 12, 3}, {5, 4}, {3, 2}, {2, 3}, {1, 0}, {1, 2}));
  add2(make_shape<2>({1, 32, 64, 4}, {12, 25}, {3, 5}, {2, 3}, {1, 2}, {0, 0}, {2, 1}));
  add2(make_shape<2>({1, 4, 48, 2}, {7, 9}, {3, 3}, {1, 1}, {1, 1}));
  add2(make_shape<2>({1, 10, 6, 2}, {7, 9}, {3, 3}, {2, 2}, {1, 1}, {1, 0}));
  add2(make_shape<2>({1, 3, 5, 1}, {1, 1}, {4, 4}, {1, 1}));
  add2(make_shape<2>({1, 3, 5, 1}, {4, 4}, {3, 3}, {2, 2}, {4, 4}, {1, 1}));
  add2(make_shape<2>({1, 2, 9, 1}, {33, 65}, {9, 9}, {1, 1}, {4, 4}));
  add2(make_shape<2>({1, 2, 9, 1}, {20, 30}, {3, 3}, {1, 1}, {0, 0}, {0, 0}, {40, 50}));
  add2(make_shape<2>({5, 2, 3, 1}, {64, 64}, {3, 3}, {5, 5}, {1, 1}, {0, 0}, {2, 2}));
  add2(make_shape<2>({1, 70, 72, 1}, {10, 10}, {4, 4}, {2, 2}, {1, 1}));

  add3(make_shape<3>({1, 1, 1, 1}, {1, 1, 1}, {1, 1, 1}));
  add3(make_shape<3>({2, 3, 2, 1}, {3, 4, 5}, {2, 3, 1}, {1, 2, 3}, {0, 1, 0}, {0, 1, 2}, {3, 1, 2}));
  add3(make_shape<3>({1, 1, 1, 1}, {2, 3, 4}, {1, 2, 3}, {3, 2, 1}, {0, 0, 1}, {1, 0, 0}, {1, 2, 1}));
  add3(make_shape<3>({2, 32, 64, 1}, {3, 5, 7}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}));
  add3(make_shape<3>({1, 64, 128, 1}, {2, 3, 4}, {5, 5, 5}));
  add3(make_shape<3>({1, 3, 16, 1}, {4, 8, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}));
  add3(make_shape<3>({1, 8, 8, 4}, {3, 6, 12}, {3, 5, 7}, {2, 2, 2}, {1, 2, 3}, {1, 1, 1}));
  add3(make_shape<3>({1, 4, 6, 1}, {3, 4, 5}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {2, 2, 2}));
  add3(make_shape<3>({1, 2, 3, 1}, {5, 6, 7}, {4, 3, 2}, {3, 4, 2}, {5, 2, 1}, {2, 3, 1}));
  add3(make_shape<3>({3, 5, 7, 1}, {1, 2, 3}, {2, 2, 2}, {2, 2, 2}));
  add3(make_shape<3>({1, 300, 9, 1}, {2, 3, 17}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}));
  return list;
}

/// A legal random shape of rank 3 (leading extents often 1) with at most about \p products products.
inline shape3 random_shape(random_stream& random, std::int64_t products)
{
  while (true)
  {
    shape3 s;
    s.batch                 = random.integer(1, 3);
    s.groups                = random.integer(0, 2) == 0 ? random.integer(1, 6) : 1;
    s.in_channels           = s.groups * random.magnitude(1, 40);
    s.out_channels          = s.groups * random.magnitude(1, 80);
    const std::int64_t rank = random.integer(1, 3);
    for (std::size_t a = 3 - static_cast<std::size_t>(rank); a < 3; ++a)
    {
      s.input[a]          = random.magnitude(1, 50);
      s.kernel[a]         = random.magnitude(1, 9);
      s.stride[a]         = random.integer(1, 4);
      s.dilation[a]       = random.integer(0, 2) == 0 ? random.integer(1, 5) : 1;
      s.padding[a]        = random.integer(0, s.dilation[a] * (s.kernel[a] - 1) / 2 + 1);
      s.output_padding[a] = random.integer(0, std::max(s.stride[a], s.dilation[a]) - 1);
    }
    if (tconv::validate(s).ok() && s.output_elements() > 0
        && s.batch * s.in_channels * (s.out_channels / s.groups) * s.input_positions() * s.taps() < products
        && s.output_elements() < products)
    {
      return s;
    }
  }
}

/// \p count values in [low, high) of the tensor that \p seed names.
inline std::vector<float> random_values(std::uint32_t seed, std::int64_t count, float low = -1.0f, float high = 1.0f)
{
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
  {
    values[i] = uniform(seed, i, low, high);
  }
  return values;
}

/// Value, magnitude and terms of every output, by scattering.
struct full_reference
{
  std::vector<double> value;
  std::vector<double> magnitude;
  std::vector<tconv::int64_t> terms;

  template <int Rank>
  full_reference(const std::vector<float>& x,
                 const std::vector<float>& w,
                 const tconv::conv_transpose_shape<Rank>& shape)
      : value(static_cast<std::size_t>(shape.output_elements()))
      , magnitude(value.size())
      , terms(value.size())
  {
    tconv::reference::conv_transpose(x.data(), w.data(), value.data(), shape);
    tconv::reference::conv_transpose_magnitude(x.data(), w.data(), magnitude.data(), terms.data(), shape);
  }

  convolution_reference with_bias(const float* bias) const
  {
    static_assert(sizeof(tconv::int64_t) == sizeof(std::int64_t), "one 64-bit integer");
    return {value.data(), magnitude.data(), reinterpret_cast<const std::int64_t*>(terms.data()), bias};
  }
};

} // namespace tconv_test
