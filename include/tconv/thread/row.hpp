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
///     int64_t channels() const;              // how many channels the position has, over all threads
///     float all_reduce(float v, Op op);      // op over all threads of the row; every thread gets the result
///
/// all_reduce must be called by all threads of the row together. size() is a constant where the row lives in registers.
/// channel(i) of a padding lane is channels() or more.

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

/// max(a, b), NaN where either is.
struct maximum_propagating_nan
{
  TCONV_HOST_DEVICE float operator()(float a, float b) const { return detail::max_propagating_nan(a, b); }
};

/// min(a, b), NaN where either is.
struct minimum_propagating_nan
{
  TCONV_HOST_DEVICE float operator()(float a, float b) const { return detail::min_propagating_nan(a, b); }
};

namespace detail
{

/// v -> v.
struct identity
{
  TCONV_HOST_DEVICE float operator()(float v) const { return v; }
};

} // namespace detail

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

/// op over all valid channels of \p row, starting from \p initial. Called by all threads of the row.
template <class Row, class Op>
TCONV_HOST_DEVICE float reduce_row(Row& row, float initial, Op op)
{
  return reduce_row(row, initial, op, detail::identity{});
}

/// Every value of this thread, padding lanes included, becomes \p value: how a functor that reduces the channels hands on its
/// result.
template <class Row>
TCONV_HOST_DEVICE void fill_row(Row& row, float value)
{
  TCONV_PRAGMA_UNROLL
  for (int i = 0; i < row.size(); ++i)
  {
    row[i] = value;
  }
}

/// A row held by one thread in an array: the row of the CPU, and of users who test their own channel functor.
class thread_row
{
public:
  /// \p values [size]: the channels of one position, changed in place; \p size >= 1.
  TCONV_HOST_DEVICE thread_row(float* values, int size) : values_(values), size_(size) {}

  TCONV_HOST_DEVICE int size() const { return size_; }
  TCONV_HOST_DEVICE float& operator[](int i) { return values_[i]; }
  TCONV_HOST_DEVICE int64_t channel(int i) const { return i; }
  TCONV_HOST_DEVICE bool valid(int) const { return true; }
  TCONV_HOST_DEVICE int64_t channels() const { return size_; }
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
