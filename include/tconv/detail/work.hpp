// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// What a transposed convolution must do at least, whoever computes it: products, bytes, and the time that they take.

#include "../options.hpp"
#include "../shape.hpp"
#include "../tuning/roofline.hpp"

#include <algorithm>

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// Products whose tap lands inside the output, of a valid shape.
template <int Rank>
double landing_products(const conv_transpose_shape<Rank>& shape)
{
  double products = static_cast<double>(shape.batch) * static_cast<double>(shape.in_channels)
                  * static_cast<double>(shape.out_channels / shape.groups);
  for (int a = 0; a < Rank; ++a)
  {
    const conv_axis axis = shape.axis(a);
    double pairs         = 0;
    for (int64_t t = 0; t < axis.kernel; ++t)
    {
      pairs += static_cast<double>(axis.landing_inputs(t).size());
    }
    products *= pairs;
  }
  return products;
}

/// The highest rate of products of tensors of In.
template <class In>
constexpr double products_per_second(math how = math::precise)
{
  using ceilings = tuning::roofline;
  return sizeof(In) == 2   ? ceilings::half_products_per_second
       : how == math::tf32 ? ceilings::tf32_products_per_second
                           : ceilings::precise_products_per_second;
}

/// Multiply-adds, and bytes of inputs, weights and outputs once each.
struct work
{
  double multiply_adds;
  double bytes;
  double highest_rate = products_per_second<float>(); ///< of products

  /// Seconds that the products alone take, and the bytes alone.
  double product_seconds() const { return multiply_adds / highest_rate; }
  double byte_seconds() const { return bytes / tuning::roofline::bytes_per_second; }
  /// The roofline: whichever is longer.
  double floor_seconds() const { return std::max(product_seconds(), byte_seconds()); }
};

} // namespace detail

TCONV_NAMESPACE_END
