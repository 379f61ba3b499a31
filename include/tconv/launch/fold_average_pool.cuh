// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// An average pool behind a convolution, folded into its weights once for many calls.

#include "../detail/arguments.cuh"
#include "../detail/resolve_pool.hpp"
#include "../kernel/fold_average_pool.cuh"

#include <algorithm>

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

/// How \p pool folds into the convolution of the canonical \p shape with \p rank axes of its own.
[[nodiscard]] inline status
resolve_fold(const conv_transpose_shape<3>& shape, int rank, const average_pool& pool, detail::average_pool_fold& fold)
{
  pool_window window;
  for (int a = 0; a < 3; ++a)
  {
    window.in[a]  = shape.output(a);
    window.out[a] = shape.output(a);
  }
  if (status s = detail::resolve_pool(pool, rank, window); !s.ok())
  {
    return s;
  }
  return detail::fold_whole_average_pool(shape, window, rank, fold);
}

} // namespace runtime

/// The convolution whose outputs are those of \p shape averaged by \p pool: kernel, stride, padding, output_padding and
/// dilation change, everything else stays.
///
/// \param shape   of the convolution; every rule is checked
/// \param pool    its windows; trailing partial ones are dropped
/// \param folded  the result, for conv_transpose() with weights of fold_average_pool()
///
/// Host only. Errors: invalid_argument (shape, pool), and not_supported where an axis does not fold: the step of its
/// windows must divide its stride, their size be at least its dilation, its taps not become more, and its ends be
/// cropped as a conv_transpose_shape can say (k3 s2 p1 with windows of 2 is, with output_padding 1 not).
/// conv_transpose() with average_pool in its chain has no such limits.
template <int Rank>
[[nodiscard]] status fold_average_pool_shape(const conv_transpose_shape<Rank>& shape,
                                             const average_pool& pool,
                                             conv_transpose_shape<Rank>& folded)
{
  if (status s = validate(shape); !s.ok())
  {
    return s;
  }
  detail::average_pool_fold fold;
  if (status s = runtime::resolve_fold(detail::canonical(shape), Rank, pool, fold); !s.ok())
  {
    return s;
  }
  folded = shape;
  for (std::size_t a = 0; a < static_cast<std::size_t>(Rank); ++a)
  {
    const std::size_t canonical_axis = 3 - static_cast<std::size_t>(Rank) + a;
    folded.kernel[a]                 = fold.shape.kernel[canonical_axis];
    folded.stride[a]                 = fold.shape.stride[canonical_axis];
    folded.padding[a]                = fold.shape.padding[canonical_axis];
    folded.output_padding[a]         = fold.shape.output_padding[canonical_axis];
    folded.dilation[a]               = fold.shape.dilation[canonical_axis];
  }
  return {};
}

/// folded = means of the taps of w that meet in a window: conv_transpose(x, folded) with the shape of
/// fold_average_pool_shape() is average_pool(conv_transpose(x, w)). Bias and other linear functors before the pool
/// stand behind it unchanged.
///
/// \param w       [in_channels, out_channels / groups, kernel...] fp32, as for conv_transpose()
/// \param folded  [in_channels, out_channels / groups, kernel... of the folded shape] fp32, written: summed in fp64,
///                rounded once; must not overlap w
/// \param shape   of the convolution that is pooled; every rule is checked
/// \param pool    the windows
/// \param opts    see options; math and layouts make no difference
/// \param stream  see conv_transpose()
///
/// conv_transpose() with average_pool in its chain does the same in each call; this is for who folds once and runs
/// often. Sums are not offered in 16 bits, where they would be rounded. One launch, no workspace. Errors as for
/// fold_average_pool_shape(), and those of the pointers (nothing written), cuda_error.
template <int Rank>
[[nodiscard]] status fold_average_pool(const float* w,
                                       float* folded,
                                       const conv_transpose_shape<Rank>& shape,
                                       const average_pool& pool,
                                       const options& opts,
                                       cudaStream_t stream)
{
  if (status s = validate(shape); !s.ok())
  {
    return s;
  }
  const conv_transpose_shape<3> s3 = detail::canonical(shape);
  detail::average_pool_fold fold;
  if (status s = runtime::resolve_fold(s3, Rank, pool, fold); !s.ok())
  {
    return s;
  }
  tap_windows windows = tap_windows::of(s3, fold);
  windows.factor      = fold.factor();
  if (status s = runtime::check_call(runtime::argument_list{{"w", w, shape.weight_elements()}},
                                     runtime::argument_list{{"folded", folded, windows.sums()}},
                                     detail::workspace_layout{},
                                     opts,
                                     workspace{});
      !s.ok())
  {
    return s;
  }
  constexpr int threads = 128;
  return runtime::launch(
    "tconv::kernel::sum_tap_windows",
    kernel::sum_tap_windows<threads, float>,
    {std::min(ceil_div(windows.sums(), threads), runtime::max_grid), threads, 0, opts.programmatic_launch},
    stream,
    windows,
    w,
    folded);
}

TCONV_CUDA_NAMESPACE_END
