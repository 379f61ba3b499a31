// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Pools and reductions over spatial axes in double, on the CPU.

#include "../tensor_shape.hpp"
#include "../thread/pool.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

TCONV_NAMESPACE_BEGIN

namespace reference
{

/// Applies \p pool in place to \p y [batch, channels, extent...]; the result stands at its front. Returns its shape. Windows must fit.
template <pool_operation Operation, int Rank>
tensor_shape<Rank> apply_pool(const spatial_pool<Operation>& pool, double* y, const tensor_shape<Rank>& shape)
{
  using given               = typename spatial_pool<Operation>::given;
  tensor_shape<Rank> result = shape;
  std::array<int64_t, Rank> size{};
  std::array<int64_t, Rank> step{};
  for (std::size_t a = 0; a < static_cast<std::size_t>(Rank); ++a)
  {
    size[a] = pool.form == given::per_axis ? pool.size[a] : pool.size[0];
    step[a] = pool.form == given::per_axis ? pool.step[a] : pool.step[0];
    if (pool.form == given::axes)
    {
      bool reduced = pool.count == 0;
      for (int i = 0; i < pool.count; ++i)
      {
        reduced = reduced || pool.size[i] == static_cast<int64_t>(a);
      }
      size[a] = reduced ? shape.extent[a] : 1;
      step[a] = size[a];
    }
    result.extent[a] = (shape.extent[a] - size[a]) / step[a] + 1;
  }

  const int64_t in_positions  = shape.positions();
  const int64_t out_positions = result.positions();
  std::vector<double> pooled(static_cast<std::size_t>(out_positions));
  for (int64_t line = 0; line < shape.batch * shape.channels; ++line)
  {
    for (int64_t o = 0; o < out_positions; ++o)
    {
      // Values of the window in order, by counting through it like an odometer.
      std::array<int64_t, Rank> at{};
      double total   = Operation == pool_operation::maximum ? -std::numeric_limits<double>::infinity() : 0.0;
      int64_t volume = 1;
      for (const int64_t s : size)
      {
        volume *= s;
      }
      for (int64_t v = 0; v < volume; ++v)
      {
        int64_t index  = 0;
        int64_t rest_o = o;
        int64_t scale  = 1;
        for (std::size_t a = result.extent.size(); a-- > 0;)
        {
          index += (rest_o % result.extent[a] * step[a] + at[a]) * scale;
          rest_o /= result.extent[a];
          scale *= shape.extent[a];
        }
        const double value = y[line * in_positions + index];
        if (Operation != pool_operation::maximum)
        {
          total += value;
        }
        else if (std::isnan(value) || value > total)
        {
          total = std::isnan(total) ? total : value;
        }
        for (std::size_t a = result.extent.size(); a-- > 0 && ++at[a] == size[a];)
        {
          at[a] = 0;
        }
      }
      pooled[static_cast<std::size_t>(o)] = Operation == pool_operation::mean ? total / static_cast<double>(volume)
                                                                              : total;
    }
    // The result of this line lies at or before where it was read from: no later line is touched.
    for (int64_t o = 0; o < out_positions; ++o)
    {
      y[line * out_positions + o] = pooled[static_cast<std::size_t>(o)];
    }
  }
  return result;
}

} // namespace reference

TCONV_NAMESPACE_END
