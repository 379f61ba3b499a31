// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Stored tensors as kernels see them, and the same tensors pooled on the way in.
///
/// The source concept of kernel::apply_chain_*: `float load(n, channel, position)` for single values, `load_tile(values, piece,
/// vector)` for those of a thread, and `bool channels_last()`.

#include "../detail/math.hpp"
#include "../detail/meta.hpp"
#include "../layout.hpp"
#include "../thread/element.cuh"
#include "../thread/pool.hpp"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// Which values of a tensor a thread takes: channels and positions of one sample.
struct tile_piece
{
  int64_t n;
  int64_t channel;  ///< the first
  int64_t position; ///< the first
  int64_t step;     ///< between positions
  int channels;     ///< how many exist, from 0 or less on
  int positions;    ///< how many exist
};

/// A tensor that a kernel reads or writes.
template <class T>
struct tensor_view
{
  T* data; ///< first channel, of the first sample
  tensor_strides strides;

  TCONV_DEVICE T* at(int64_t n, int64_t channel, int64_t position) const
  {
    return data + n * strides.sample + channel * strides.channel + position * strides.position;
  }
  TCONV_DEVICE float load(int64_t n, int64_t channel, int64_t position) const
  {
    return to_float(*at(n, channel, position));
  }
  /// Values that do not exist become 0. \p vector: those of a thread that are neighbours in memory (channels of a position where
  /// channels come last, else positions of a channel, step 1) are aligned to as many as one access takes.
  template <int Channels, int Positions>
  TCONV_DEVICE void load_tile(float (&values)[Channels][Positions], const tile_piece& piece, bool vector) const
  {
    static_assert(Positions == 4 && Channels % 4 == 0, "tconv: vectors have 8 or 16 bytes");
    using element      = detail::meta::remove_cv_t<T>;
    const T* source    = at(piece.n, piece.channel, piece.position);
    const int64_t step = piece.step * strides.position;
    if (vector && piece.positions == Positions && piece.channels == Channels)
    {
      if (channels_last())
      {
        constexpr int width = vector_width<element, Channels>;
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < Positions; ++p)
        {
          TCONV_PRAGMA_UNROLL
          for (int i = 0; i < Channels; i += width)
          {
            element_vector<element, width> v;
            v.load_streaming(source + p * step + i);
            TCONV_PRAGMA_UNROLL
            for (int j = 0; j < width; ++j)
            {
              values[i + j][p] = to_float(v.values[j]);
            }
          }
        }
      }
      else
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < Channels; ++i)
        {
          element_vector<element, Positions> v;
          v.load_streaming(source + i * strides.channel);
          TCONV_PRAGMA_UNROLL
          for (int p = 0; p < Positions; ++p)
          {
            values[i][p] = to_float(v.values[p]);
          }
        }
      }
      return;
    }
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < Positions; ++p)
    {
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < Channels; ++i)
      {
        values[i][p] = p < piece.positions && i < piece.channels ? to_float(source[i * strides.channel + p * step])
                                                                 : 0.0f;
      }
    }
  }
  TCONV_HOST_DEVICE bool channels_last() const { return strides.channels_last(); }
};

/// How windows are reduced. Totals are fp64 for every operation, which holds a maximum exactly.
template <pool_operation Operation>
struct window_reduction
{
  static constexpr bool takes_maximum = Operation == pool_operation::maximum;

  /// The total of nothing.
  TCONV_DEVICE static float zero()
  {
    if constexpr (takes_maximum)
    {
      return -detail::infinity();
    }
    else
    {
      return 0.0f;
    }
  }
  TCONV_DEVICE float operator()(float a, float b) const
  {
    if constexpr (takes_maximum)
    {
      return detail::max_propagating_nan(a, b);
    }
    else
    {
      return a + b;
    }
  }
  TCONV_DEVICE double operator()(double a, double b) const
  {
    if constexpr (takes_maximum)
    {
      return a > b || a != a ? a : b;
    }
    else
    {
      return a + b;
    }
  }
  /// The result of a window of \p volume values.
  TCONV_DEVICE static float finish(double total, int64_t volume)
  {
    return static_cast<float>(Operation == pool_operation::mean ? total / static_cast<double>(volume) : total);
  }
};

/// A tensor seen through the windows of a pool: each thread reads its windows itself, or where they are large, what
/// kernel::reduce_windows has left of them.
template <pool_operation Operation, class T>
struct pooled_view
{
  using reduction = window_reduction<Operation>;

  tensor_view<const T> x;
  pool_window window;
  int64_t channels;       ///< of x
  const double* partials; ///< [batch][channels][outputs][slices], or null
  int64_t slices;

  /// Windows of up to so many values are summed in fp32 at once, for all values of a thread side by side.
  static constexpr int64_t small_window = 64;

  /// A call, because there are many of it in a kernel for large windows.
  __device__ __noinline__ float load(int64_t n, int64_t channel, int64_t position) const
  {
    double total = static_cast<double>(reduction::zero());
    if (partials != nullptr)
    {
      const double* at = partials + ((n * channels + channel) * window.positions() + position) * slices;
      for (int64_t i = 0; i < slices; ++i)
      {
        total = reduction{}(total, at[i]);
      }
    }
    else
    {
      const T* at = x.at(n, channel, first_of(position));
      for (int64_t i = 0; i < window.size[0]; ++i)
      {
        for (int64_t j = 0; j < window.size[1]; ++j)
        {
          const T* line = at + (i * window.in[1] + j) * window.in[2] * x.strides.position;
          for (int64_t k = 0; k < window.size[2]; k += 16)
          {
            const int64_t end = k + 16 < window.size[2] ? k + 16 : window.size[2];
            float sum         = reduction::zero();
            for (int64_t l = k; l < end; ++l)
            {
              sum = reduction{}(sum, to_float(line[l * x.strides.position]));
            }
            total = reduction{}(total, static_cast<double>(sum));
          }
        }
      }
    }
    return reduction::finish(total, window.volume());
  }
  template <int Channels, int Positions>
  TCONV_DEVICE void load_tile(float (&values)[Channels][Positions], const tile_piece& piece, bool) const
  {
    const auto exists = [&piece](int i, int p) { return p < piece.positions && i < piece.channels; };
    if (partials != nullptr || window.volume() > small_window)
    {
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < Positions; ++p)
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < Channels; ++i)
        {
          values[i][p] = exists(i, p) ? load(piece.n, piece.channel + i, piece.position + p * piece.step) : 0.0f;
        }
      }
      return;
    }
    const T* at[Positions];
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < Positions; ++p)
    {
      at[p] = x.at(piece.n, piece.channel, p < piece.positions ? first_of(piece.position + p * piece.step) : 0);
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < Channels; ++i)
      {
        values[i][p] = exists(i, p) ? reduction::zero() : 0.0f;
      }
    }
    for (int64_t i = 0; i < window.size[0]; ++i)
    {
      for (int64_t j = 0; j < window.size[1]; ++j)
      {
        for (int64_t k = 0; k < window.size[2]; ++k)
        {
          const int64_t offset = ((i * window.in[1] + j) * window.in[2] + k) * x.strides.position;
          TCONV_PRAGMA_UNROLL
          for (int p = 0; p < Positions; ++p)
          {
            TCONV_PRAGMA_UNROLL
            for (int c = 0; c < Channels; ++c)
            {
              values[c][p] = exists(c, p) ? reduction{}(values[c][p], to_float(at[p][offset + c * x.strides.channel]))
                                          : values[c][p];
            }
          }
        }
      }
    }
    if constexpr (Operation == pool_operation::mean)
    {
      const auto volume = static_cast<float>(window.volume());
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < Positions; ++p)
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < Channels; ++i)
        {
          values[i][p] /= volume;
        }
      }
    }
  }
  TCONV_HOST_DEVICE bool channels_last() const { return partials == nullptr && x.channels_last(); }

private:
  /// Position of x where the window of an output begins.
  TCONV_DEVICE int64_t first_of(int64_t position) const
  {
    const int64_t row = position / window.out[2];
    const int64_t d   = row / window.out[1] * window.step[0];
    const int64_t h   = row % window.out[1] * window.step[1];
    return (d * window.in[1] + h) * window.in[2] + position % window.out[2] * window.step[2];
  }
};

} // namespace block

TCONV_CUDA_NAMESPACE_END
