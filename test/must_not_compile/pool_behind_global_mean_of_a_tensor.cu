// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: a mean has one position: there is nothing left to pool

#include <tconv/launch/tensor_mean.cuh>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/pool.hpp>

tconv::status pool_behind_global_mean_of_a_tensor(const float* x, float* y)
{
#if defined(TCONV_MUST_NOT_COMPILE)
  const tconv::chain functors{tconv::sigmoid{}, tconv::spatial_mean()};
#else
  const tconv::chain functors{tconv::sigmoid{}};
#endif
  return tconv::global_mean(x, y, tconv::tensor_shape<1>{}, functors, tconv::options{}, tconv::workspace{}, nullptr);
}
