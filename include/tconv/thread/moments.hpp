// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Count, mean and centred sum of squares of a set of values, as a mergeable value.

#include "../detail/math.hpp"

TCONV_NAMESPACE_BEGIN

/// Moments of a set: never a sum of squares minus a squared sum, so nothing cancels.
///
/// merge() is Chan, Golub and LeVeque's pairwise update ("Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979). \p T is float for a few values in registers, double for totals.
template <class T>
struct moments
{
  T count = 0; ///< number of values
  T mean  = 0; ///< their mean; 0 for the empty set
  T m2    = 0; ///< sum of (value - mean)^2

  /// One value.
  TCONV_HOST_DEVICE static moments of(T value) { return {1, value, 0}; }

  /// Adds the values of \p other; either side may be empty.
  TCONV_HOST_DEVICE void merge(const moments& other)
  {
    const T total = count + other.count;
    if (other.count == 0)
    {
      return;
    }
    const T delta  = other.mean - mean;
    const T weight = other.count / total;
    mean += delta * weight;
    m2 += other.m2 + delta * delta * (count * weight);
    count = total;
  }

  /// m2 / count: what normalisation uses.
  TCONV_HOST_DEVICE T biased_variance() const { return m2 / count; }
  /// m2 / (count - 1): what running statistics store.
  TCONV_HOST_DEVICE T unbiased_variance() const { return m2 / (count - 1); }
};

TCONV_NAMESPACE_END
