// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The row: all channels of one output position, spread over the threads that hold them.
///
/// A channel functor takes a row and nothing else, so it runs in every engine. The concept:
///
///     int size() const;                      // how many values this thread holds
///     float& operator[](int i);              // the i-th of them
///     int64_t channel(int i) const;          // its channel
///     bool valid(int i) const;               // false for padding lanes, whose value is ignored
///     float all_reduce(float v, Op op);      // op over all threads of the row; every thread gets the result
///
/// all_reduce must be called by all threads of the row together. size() is a constant where the row lives in registers.

#include "../detail/math.hpp"

TCONV_NAMESPACE_BEGIN

/// a + b, for row reductions.
struct plus
{
  TCONV_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};

/// max(a, b) that drops a NaN operand; rows that must report a NaN do so by other means (see channel_softmax).
struct maximum_ignoring_nan
{
  TCONV_HOST_DEVICE float operator()(float a, float b) const { return detail::max_ignoring_nan(a, b); }
};

/// op over f(value) of all valid channels of \p row, starting from \p initial. Called by all threads of the row.
template <class Row, class Op, class Map>
TCONV_HOST_DEVICE float reduce_row(Row& row, float initial, Op op, Map map)
{
  float result = initial;
  TCONV_PRAGMA_UNROLL
  for (int i = 0; i < row.size(); ++i)
  {
    // A select, not a branch: rows in registers stay straight-line code.
    const float next = op(result, map(row[i]));
    result           = row.valid(i) ? next : result;
  }
  return row.all_reduce(result, op);
}

/// A row held by one thread in an array: the row of the CPU, and of users who test their own channel functor.
class thread_row
{
public:
  TCONV_HOST_DEVICE thread_row(float* values, int size) : values_(values), size_(size) {}

  TCONV_HOST_DEVICE int size() const { return size_; }
  TCONV_HOST_DEVICE float& operator[](int i) { return values_[i]; }
  TCONV_HOST_DEVICE int64_t channel(int i) const { return i; }
  TCONV_HOST_DEVICE bool valid(int) const { return true; }
  template <class Op>
  TCONV_HOST_DEVICE float all_reduce(float v, Op) const
  {
    return v;
  }

private:
  float* values_;
  int size_;
};

TCONV_NAMESPACE_END
