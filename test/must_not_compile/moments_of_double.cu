// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: x and w are float, __half or __nv_bfloat16

#include <tconv/launch/conv_transpose_moments.cuh>

#if defined(TCONV_MUST_NOT_COMPILE)
using element = double;
#else
using element = float;
#endif

tconv::status moments_of_double(const element* x, const element* w, double* means, tconv::moments<double>* statistics)
{
  return tconv::conv_transpose_moments(
    x, w, means, statistics, tconv::conv_transpose_shape<1>{}, tconv::options{}, tconv::workspace{}, nullptr);
}
