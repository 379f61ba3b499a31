// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: x and w are float, __half or __nv_bfloat16, and y has their type or is float

#include <tconv/launch/global_mean.cuh>

#if defined(TCONV_MUST_NOT_COMPILE)
using element = double;
#else
using element = float;
#endif

tconv::status tensors_of_double(const element* x, const element* w, element* y)
{
  return tconv::global_mean(
    x, w, y, tconv::conv_transpose_shape<1>{}, tconv::chain<>{}, tconv::options{}, tconv::workspace{}, nullptr);
}
