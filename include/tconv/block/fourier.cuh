// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Discrete Fourier transforms of one thread, of sizes known at compile time: X(f) = sum over t of x(t) exp(-2 pi i f t
/// / size).

#include "../detail/config.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// X(f) = C - i S, where C and S are the sums of x(t) cos(2 pi f t / size) and x(t) sin(2 pi f t / size).
TCONV_DEVICE float2 forward_frequency(float2 cosines, float2 sines)
{
  return make_float2(cosines.x + sines.y, cosines.y - sines.x);
}

/// X(-f) = C + i S.
TCONV_DEVICE float2 backward_frequency(float2 cosines, float2 sines)
{
  return make_float2(cosines.x - sines.y, cosines.y + sines.x);
}

/// exp(2 pi i turns / size) for 0 <= turns < size, by plain arithmetic: a constant where its arguments are.
TCONV_DEVICE float2 constant_root(int turns, int size)
{
  if (4 * turns % size == 0)
  {
    const int quarter = 4 * turns / size;
    return make_float2(
      quarter == 0 ? 1.0f : (quarter == 2 ? -1.0f : 0.0f), quarter == 1 ? 1.0f : (quarter == 3 ? -1.0f : 0.0f));
  }
  // Power series of an angle below pi, to the precision of double.
  const bool upper = 2 * turns > size;
  const double x   = 6.283185307179586476925 * (upper ? size - turns : turns) / size;
  double cosine    = 1.0;
  double sine      = 1.0;
  TCONV_PRAGMA_UNROLL
  for (int k = 28; k > 0; k -= 2)
  {
    cosine = 1.0 - x * x / (k * (k - 1)) * cosine;
    sine   = 1.0 - x * x / (k * (k + 1)) * sine;
  }
  return make_float2(static_cast<float>(cosine), static_cast<float>(upper ? -x * sine : x * sine));
}

/// \p v times exp(-2 pi i turns / size).
TCONV_DEVICE float2 turn_back(float2 v, int turns, int size)
{
  const float2 z = constant_root(turns, size);
  return make_float2(fmaf(v.y, z.y, v.x * z.x), fmaf(-v.x, z.y, v.y * z.x));
}

/// How a size is split into two factors.
struct transform_factors
{
  /// The smallest prime factor of size > 1.
  TCONV_HOST_DEVICE static constexpr int prime(int size)
  {
    int p = 2;
    while (size % p != 0)
    {
      ++p;
    }
    return p;
  }
  /// The power of it that divides size; where that is size itself, a proper factor of it, if there is one.
  TCONV_HOST_DEVICE static constexpr int of(int size)
  {
    const int p = prime(size);
    int power   = p;
    while (size % (power * p) == 0)
    {
      power *= p;
    }
    return power < size ? power : (size % 8 == 0 ? 4 : p);
  }
};

/// Transforms the thread's values in place.
template <int Size>
TCONV_DEVICE void transform(float2 (&v)[Size])
{
  if constexpr (Size > 1)
  {
    constexpr int p = transform_factors::of(Size);
    constexpr int q = Size / p;
    if constexpr (Size == 2)
    {
      const float2 difference = make_float2(v[0].x - v[1].x, v[0].y - v[1].y);
      v[0]                    = make_float2(v[0].x + v[1].x, v[0].y + v[1].y);
      v[1]                    = difference;
    }
    else if constexpr (q == 1)
    {
      // A prime: values t and -t together, and frequencies f and -f.
      float2 result[Size];
      result[0] = v[0];
      TCONV_PRAGMA_UNROLL
      for (int t = 1; t <= Size / 2; ++t)
      {
        const float2 sum        = make_float2(v[t].x + v[Size - t].x, v[t].y + v[Size - t].y);
        const float2 difference = make_float2(v[t].x - v[Size - t].x, v[t].y - v[Size - t].y);
        v[t]                    = sum;
        v[Size - t]             = difference;
        result[0]               = make_float2(result[0].x + sum.x, result[0].y + sum.y);
      }
      TCONV_PRAGMA_UNROLL
      for (int f = 1; f <= Size / 2; ++f)
      {
        float2 cosines = v[0];
        float2 sines   = make_float2(0.0f, 0.0f);
        TCONV_PRAGMA_UNROLL
        for (int t = 1; t <= Size / 2; ++t)
        {
          const float2 z = constant_root(f * t % Size, Size);
          cosines        = make_float2(fmaf(v[t].x, z.x, cosines.x), fmaf(v[t].y, z.x, cosines.y));
          sines          = t == 1 ? make_float2(v[Size - t].x * z.y, v[Size - t].y * z.y)
                                  : make_float2(fmaf(v[Size - t].x, z.y, sines.x), fmaf(v[Size - t].y, z.y, sines.y));
        }
        result[f]        = forward_frequency(cosines, sines);
        result[Size - f] = backward_frequency(cosines, sines);
      }
      TCONV_PRAGMA_UNROLL
      for (int f = 0; f < Size; ++f)
      {
        v[f] = result[f];
      }
    }
    else
    {
      // Coprime factors (Good and Thomas) need no twiddles: times are q * i + p * j, frequencies are known by their
      // remainders. Powers of one prime (Cooley and Tukey): times are q * i + j, frequencies i + p * j.
      constexpr bool coprime = q % transform_factors::prime(p) != 0;
      float2 values[q][p];
      TCONV_PRAGMA_UNROLL
      for (int j = 0; j < q; ++j)
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < p; ++i)
        {
          values[j][i] = v[(q * i + (coprime ? p : 1) * j) % Size];
        }
        transform(values[j]);
      }
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < p; ++i)
      {
        float2 column[q];
        TCONV_PRAGMA_UNROLL
        for (int j = 0; j < q; ++j)
        {
          column[j] = coprime || i * j == 0 ? values[j][i] : turn_back(values[j][i], i * j, Size);
        }
        transform(column);
        TCONV_PRAGMA_UNROLL
        for (int j = 0; j < q; ++j)
        {
          values[j][i] = column[j];
        }
      }
      TCONV_PRAGMA_UNROLL
      for (int f = 0; f < Size; ++f)
      {
        v[f] = coprime ? values[f % q][f % p] : values[f / p][f % p];
      }
    }
  }
}

} // namespace block

TCONV_CUDA_NAMESPACE_END
