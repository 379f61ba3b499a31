// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: batch_norm_train_global_mean takes linear functors (bias, scale, affine, batch_norm) before BatchNorm

#include <tconv/launch/batch_norm_train_global_mean.cuh>
#include <tconv/thread/activation.hpp>

tconv::status nonlinear_before_batch_norm(const float* x, const float* w, float* y)
{
#if defined(TCONV_MUST_NOT_COMPILE)
  const tconv::chain before{tconv::scale(2.0f), tconv::relu{}};
#else
  const tconv::chain before{tconv::scale(2.0f)};
#endif
  return tconv::batch_norm_train_global_mean(x,
                                             w,
                                             y,
                                             tconv::conv_transpose_shape<1>{},
                                             before,
                                             tconv::batch_norm_arguments{},
                                             tconv::options{},
                                             tconv::workspace{},
                                             nullptr);
}
