// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A row of channels held by a column of threads of a block, its values in shared or global memory.

#include "../thread/chain.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Reductions over the \p rows threads (a power of two) that share a position; \p columns positions side by side.
struct column_threads
{
  float* scratch; ///< [rows * columns] in shared memory
  int rows;
  int columns;
  int row; ///< of the calling thread
  int column;

  /// op over the column; every thread gets the same result. Called by the whole block.
  template <class Op>
  TCONV_DEVICE float all_reduce(float v, Op op) const
  {
    scratch[row * columns + column] = v;
    for (int half = rows / 2; half > 0; half /= 2)
    {
      __syncthreads();
      if (row < half)
      {
        scratch[row * columns + column] = op(scratch[row * columns + column], scratch[(row + half) * columns + column]);
      }
    }
    __syncthreads();
    const float result = scratch[column];
    __syncthreads(); // the next reduction may overwrite it
    return result;
  }
};

/// The channels of one output position: thread r of the column holds channels r, r + rows, ...
class column_row
{
public:
  /// \p values: channel c at values[c * stride].
  TCONV_DEVICE column_row(const column_threads& threads, float* values, int64_t stride, int64_t channels)
      : threads_(threads)
      , values_(values)
      , stride_(stride)
      , channels_(channels)
      , count_(threads.row < channels ? static_cast<int>((channels - 1 - threads.row) / threads.rows + 1) : 0)
  {}

  TCONV_DEVICE int size() const { return count_; }
  TCONV_DEVICE float& operator[](int i) const { return values_[channel(i) * stride_]; }
  TCONV_DEVICE int64_t channel(int i) const { return threads_.row + static_cast<int64_t>(i) * threads_.rows; }
  TCONV_DEVICE int64_t channels() const { return channels_; }
  TCONV_DEVICE static constexpr bool valid(int) { return true; }
  template <class Op>
  TCONV_DEVICE float all_reduce(float v, Op op) const
  {
    return threads_.all_reduce(v, op);
  }

private:
  column_threads threads_;
  float* values_;
  int64_t stride_;
  int64_t channels_;
  int count_;
};

/// A tile of one output position of sample \p n.
struct column_tile
{
  column_row values;
  int64_t n;
  int64_t number; ///< of the position

  TCONV_DEVICE int channels() const { return values.size(); }
  TCONV_DEVICE static constexpr int positions() { return 1; }
  TCONV_DEVICE float& operator()(int c, int) const { return values[c]; }
  TCONV_DEVICE coordinate at(int c) const { return {n, values.channel(c)}; }
  TCONV_DEVICE int64_t position(int) const { return number; }
  TCONV_DEVICE column_row row(int) const { return values; }
};

} // namespace block

TCONV_CUDA_NAMESPACE_END
