// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Exact-integer inputs and the checksum that goes with them ("recipe R" of the collected cases): products and sums are small
/// integers, so every correct engine reproduces them bit for bit and no tolerance is needed. Independent of tconv.

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <vector>

namespace tconv_test
{

/// x_i = ((7 i + 3) mod 11) - 5, i the flat index in N, C, spatial order: integers in [-5, 5].
constexpr float recipe_x(std::int64_t i)
{
  return static_cast<float>((7 * i + 3) % 11 - 5);
}

/// w_j = ((5 j + 1) mod 7) - 3, j the flat index in C_in, C_out / groups, kernel order: integers in [-3, 3].
constexpr float recipe_w(std::int64_t j)
{
  return static_cast<float>((5 * j + 1) % 7 - 3);
}

/// f(0), f(1), ..., f(count - 1).
template <class Function>
std::vector<float> filled(std::int64_t count, Function f)
{
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
  {
    result.push_back(static_cast<float>(f(i)));
  }
  return result;
}

/// The first \p count values of recipe_x.
inline std::vector<float> recipe_x_values(std::int64_t count)
{
  return filled(count, recipe_x);
}

/// The first \p count values of recipe_w.
inline std::vector<float> recipe_w_values(std::int64_t count)
{
  return filled(count, recipe_w);
}

/// first, first + 1, ..., count values.
inline std::vector<float> counting(std::int64_t count, std::int64_t first = 1)
{
  return filled(count, [first](std::int64_t i) { return static_cast<float>(first + i); });
}

/// Number of elements, sum, sum of (i + 1) * y_i and sum of y_i^2 of a flat tensor in N, C, spatial order. The third number
/// moves when values are permuted or shifted. Exact, and so compared with ==, while the values are integers and the sums stay
/// below 2^53.
struct checksum
{
  std::int64_t n = 0;
  double sum     = 0;
  double pos     = 0;
  double sq      = 0;

  friend bool operator==(const checksum& a, const checksum& b)
  {
    return a.n == b.n && a.sum == b.sum && a.pos == b.pos && a.sq == b.sq;
  }
  friend std::ostream& operator<<(std::ostream& out, const checksum& c)
  {
    const auto precision = out.precision(17);
    out << 'n' << c.n << " sum" << c.sum << " pos" << c.pos << " sq" << c.sq;
    out.precision(precision);
    return out;
  }
};

/// The checksum of \p count values.
template <class T>
checksum make_checksum(const T* values, std::int64_t count)
{
  checksum result;
  result.n = count;
  for (std::int64_t i = 0; i < count; ++i)
  {
    const auto v = static_cast<double>(values[i]);
    result.sum += v;
    result.pos += static_cast<double>(i + 1) * v;
    result.sq += v * v;
  }
  return result;
}

template <class T>
checksum make_checksum(const std::vector<T>& values)
{
  return make_checksum(values.data(), static_cast<std::int64_t>(values.size()));
}

} // namespace tconv_test
