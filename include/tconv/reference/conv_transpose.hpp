// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Transposed convolution on the CPU in double: the definition, written twice. scatter() follows the definition word by word;
/// gather_at() computes one output from the inputs that reach it, for spot checks of large problems.

#include "../shape.hpp"

#include <algorithm>
#include <cmath>

TCONV_NAMESPACE_BEGIN

namespace reference
{

/// One output of a transposed convolution with what its error bound needs.
struct output_value
{
  double value     = 0; ///< sum of x*w over what lands, without bias
  double magnitude = 0; ///< sum of |x|*|w| over the same
  int64_t terms    = 0; ///< how many products land
};

namespace detail
{

/// visit(x_index, w_index, y_index) for every product that lands, by scattering each input. Flat indices.
template <class Visitor>
void for_each_product(const conv_transpose_shape<3>& s, Visitor visit)
{
  const int64_t in_per_group  = s.in_channels / s.groups;
  const int64_t out_per_group = s.out_channels / s.groups;
  const auto out              = s.output();
  const conv_axis axis[3]     = {s.axis(0), s.axis(1), s.axis(2)};
  const auto target           = [&](int a, int64_t i, int64_t t) {
    return i * axis[a].stride - axis[a].padding + t * axis[a].dilation;
  };

  for (int64_t n = 0; n < s.batch; ++n)
  {
    for (int64_t ci = 0; ci < s.in_channels; ++ci)
    {
      const int64_t group = ci / in_per_group;
      for (int64_t co = 0; co < out_per_group; ++co)
      {
        for (int64_t td = 0; td < axis[0].kernel; ++td)
        {
          for (int64_t th = 0; th < axis[1].kernel; ++th)
          {
            for (int64_t tw = 0; tw < axis[2].kernel; ++tw)
            {
              const int64_t w =
                (((ci * out_per_group + co) * axis[0].kernel + td) * axis[1].kernel + th) * axis[2].kernel + tw;
              for (int64_t id = 0; id < axis[0].in; ++id)
              {
                const int64_t od = target(0, id, td);
                if (od < 0 || od >= out[0])
                {
                  continue;
                }
                for (int64_t ih = 0; ih < axis[1].in; ++ih)
                {
                  const int64_t oh = target(1, ih, th);
                  if (oh < 0 || oh >= out[1])
                  {
                    continue;
                  }
                  for (int64_t iw = 0; iw < axis[2].in; ++iw)
                  {
                    const int64_t ow = target(2, iw, tw);
                    if (ow < 0 || ow >= out[2])
                    {
                      continue;
                    }
                    const int64_t x = (((n * s.in_channels + ci) * axis[0].in + id) * axis[1].in + ih) * axis[2].in
                                    + iw;
                    const int64_t channel = group * out_per_group + co;
                    const int64_t y = (((n * s.out_channels + channel) * out[0] + od) * out[1] + oh) * out[2] + ow;
                    visit(x, w, y);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

} // namespace detail

/// y = conv_transpose(x, w), without bias.
///
/// \p x [batch, in_channels, input...], \p w [in_channels, out_channels / groups, kernel...] of any arithmetic type, \p y
/// [batch, out_channels, output...] in double. The shape must be valid.
template <class X, class W, int Rank>
void conv_transpose(const X* x, const W* w, double* y, const conv_transpose_shape<Rank>& shape)
{
  std::fill(y, y + shape.output_elements(), 0.0);
  detail::for_each_product(tconv::detail::canonical(shape), [&](int64_t xi, int64_t wi, int64_t yi) {
    y[yi] += static_cast<double>(x[xi]) * static_cast<double>(w[wi]);
  });
}

/// Per output: the sum of |x||w| into \p magnitude and the number of products into \p terms, both [batch, out_channels,
/// output...]. They make the error bound of every fp32 engine.
template <class X, class W, int Rank>
void conv_transpose_magnitude(
  const X* x, const W* w, double* magnitude, int64_t* terms, const conv_transpose_shape<Rank>& shape)
{
  std::fill(magnitude, magnitude + shape.output_elements(), 0.0);
  std::fill(terms, terms + shape.output_elements(), int64_t{0});
  detail::for_each_product(tconv::detail::canonical(shape), [&](int64_t xi, int64_t wi, int64_t yi) {
    magnitude[yi] += std::fabs(static_cast<double>(x[xi]) * static_cast<double>(w[wi]));
    terms[yi] += 1;
  });
}

/// One output, by gathering what reaches it: output channel \p co of sample \p n at \p position (slowest axis first).
template <class X, class W, int Rank>
output_value conv_transpose_at(const X* x,
                               const W* w,
                               const conv_transpose_shape<Rank>& shape,
                               int64_t n,
                               int64_t co,
                               const typename conv_transpose_shape<Rank>::extents& position)
{
  const conv_transpose_shape<3> s = tconv::detail::canonical(shape);
  int64_t o[3]                    = {0, 0, 0};
  for (std::size_t a = 0; a < static_cast<std::size_t>(Rank); ++a)
  {
    o[a + 3 - static_cast<std::size_t>(Rank)] = position[a];
  }
  const int64_t in_per_group  = s.in_channels / s.groups;
  const int64_t out_per_group = s.out_channels / s.groups;
  const int64_t group         = co / out_per_group;
  output_value result;
  // The input that tap t of axis a brings to o[a], or -1.
  const auto source = [&](std::size_t a, int64_t t) -> int64_t {
    const int64_t scaled = o[a] + s.padding[a] - t * s.dilation[a];
    if (scaled < 0 || scaled % s.stride[a] != 0 || scaled / s.stride[a] >= s.input[a])
    {
      return -1;
    }
    return scaled / s.stride[a];
  };
  for (int64_t td = 0; td < s.kernel[0]; ++td)
  {
    const int64_t id = source(0, td);
    for (int64_t th = 0; id >= 0 && th < s.kernel[1]; ++th)
    {
      const int64_t ih = source(1, th);
      for (int64_t tw = 0; ih >= 0 && tw < s.kernel[2]; ++tw)
      {
        const int64_t iw = source(2, tw);
        for (int64_t c = 0; iw >= 0 && c < in_per_group; ++c)
        {
          const int64_t ci = group * in_per_group + c;
          const int64_t xi = (((n * s.in_channels + ci) * s.input[0] + id) * s.input[1] + ih) * s.input[2] + iw;
          const int64_t wi =
            (((ci * out_per_group + co % out_per_group) * s.kernel[0] + td) * s.kernel[1] + th) * s.kernel[2] + tw;
          const double product = static_cast<double>(x[xi]) * static_cast<double>(w[wi]);
          result.value += product;
          result.magnitude += std::fabs(product);
          result.terms += 1;
        }
      }
    }
  }
  return result;
}

/// y = x convolved with w: the adjoint of conv_transpose, i.e. <conv_transpose(x), u> = <x, conv(u)> for every u.
///
/// \p u [batch, out_channels, output...], \p x [batch, in_channels, input...] in double.
template <class U, class W, int Rank>
void conv_transpose_adjoint(const U* u, const W* w, double* x, const conv_transpose_shape<Rank>& shape)
{
  std::fill(x, x + shape.input_elements(), 0.0);
  detail::for_each_product(tconv::detail::canonical(shape), [&](int64_t xi, int64_t wi, int64_t yi) {
    x[xi] += static_cast<double>(u[yi]) * static_cast<double>(w[wi]);
  });
}

} // namespace reference

TCONV_NAMESPACE_END
