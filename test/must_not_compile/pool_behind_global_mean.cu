// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: a mean has one position: there is nothing left to pool

#include <tconv/launch/global_mean.cuh>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/pool.hpp>

tconv::status pool_behind_global_mean(const float* x, const float* w, float* y)
{
#if defined(TCONV_MUST_NOT_COMPILE)
  const tconv::chain functors{tconv::sigmoid{}, tconv::max_pool(2)};
#else
  const tconv::chain functors{tconv::sigmoid{}};
#endif
  return tconv::global_mean(
    x, w, y, tconv::conv_transpose_shape<1>{}, functors, tconv::options{}, tconv::workspace{}, nullptr);
}
