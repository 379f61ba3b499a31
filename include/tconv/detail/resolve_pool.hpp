// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The windows of a pool on a tensor of known extents.

#include "../shape.hpp"
#include "../status.hpp"
#include "../thread/pool.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// Name of a pool in messages.
template <pool_operation Operation>
constexpr const char* pool_name(bool axes)
{
  switch (Operation)
  {
    case pool_operation::maximum: return axes ? "spatial_max" : "max_pool";
    case pool_operation::sum: return axes ? "spatial_sum" : "sum_pool";
    default: return axes ? "spatial_mean" : "average_pool";
  }
}

/// Windows of \p pool on a tensor of \p rank spatial axes whose canonical extents are \p window.in, all >= 1; fills the rest of
/// \p window. invalid_argument where the axes do not match or a window does not fit.
template <pool_operation Operation>
[[nodiscard]] status resolve_pool(const spatial_pool<Operation>& pool, int rank, pool_window& window)
{
  using given      = typename spatial_pool<Operation>::given;
  const bool axes  = pool.form == given::axes;
  const char* name = pool_name<Operation>(axes);
  if (pool.form == given::per_axis && pool.count != rank)
  {
    return status::error(
      status_code::invalid_argument, "functors: %s has windows for %d axes: the tensor has %d", name, pool.count, rank);
  }
  bool whole[3] = {axes && pool.count == 0, axes && pool.count == 0, axes && pool.count == 0};
  for (int i = 0; axes && i < pool.count; ++i)
  {
    if (pool.size[i] < 0 || pool.size[i] >= rank || whole[pool.size[i]])
    {
      return status::error(status_code::invalid_argument,
                           "functors: %s over axis %lld: must be in [0, %d), each once",
                           name,
                           static_cast<long long>(pool.size[i]),
                           rank);
    }
    whole[pool.size[i]] = true;
  }
  for (int a = 0; a < rank; ++a)
  {
    const int canonical_axis = 3 - rank + a;
    const int64_t in         = window.in[canonical_axis];
    const int64_t size       = axes ? (whole[a] ? in : 1) : pool.size[a];
    const int64_t step       = axes ? 1 : pool.step[a];
    if (size < 1 || step < 1)
    {
      return status::error(status_code::invalid_argument,
                           "functors: %s has size %lld and step %lld along %s: both must be >= 1",
                           name,
                           static_cast<long long>(size),
                           static_cast<long long>(step),
                           axis_name(rank, a));
    }
    if (size > in)
    {
      return status::error(status_code::invalid_argument,
                           "functors: %s has size %lld along %s: must be <= %lld, the extent there",
                           name,
                           static_cast<long long>(size),
                           axis_name(rank, a),
                           static_cast<long long>(in));
    }
    window.size[canonical_axis] = size;
    window.step[canonical_axis] = step;
    window.out[canonical_axis]  = (in - size) / step + 1;
  }
  return {};
}

/// The same windows with axes merged whose windows are contiguous: a reduction over all positions has one row. Numbers of outputs
/// stay as they are.
inline pool_window merge_axes(pool_window window)
{
  for (int merged = 0; merged < 2 && window.size[2] == window.in[2]; ++merged)
  {
    window.step[2] = window.step[1] * window.in[2];
    window.size[2] = window.size[1] * window.in[2];
    window.out[2]  = window.out[1];
    window.in[2]   = window.in[1] * window.in[2];
    window.in[1]   = window.in[0];
    window.out[1]  = window.out[0];
    window.size[1] = window.size[0];
    window.step[1] = window.step[0];
    window.in[0] = window.out[0] = window.size[0] = window.step[0] = 1;
  }
  return window;
}

} // namespace detail

TCONV_NAMESPACE_END
