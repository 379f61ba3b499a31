// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: a transposed convolution has 1, 2 or 3 spatial axes

#include <tconv/shape.hpp>

tconv::status four_spatial_axes()
{
#if defined(TCONV_MUST_NOT_COMPILE)
  return validate(tconv::conv_transpose_shape<4>{});
#else
  return validate(tconv::conv_transpose_shape<3>{});
#endif
}
