// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: sync_batch_norm_global_mean takes linear functors without operands per sample

#include <tconv/launch/sync_batch_norm_global_mean.cuh>
#include <tconv/thread/activation.hpp>

tconv::status nonlinear_before_sync_batch_norm(const double* means, const tconv::moments<double>* statistics, float* y)
{
#if defined(TCONV_MUST_NOT_COMPILE)
  const tconv::chain before{tconv::scale(2.0f), tconv::relu{}};
#else
  const tconv::chain before{tconv::scale(2.0f)};
#endif
  return tconv::sync_batch_norm_global_mean(means,
                                            statistics,
                                            2,
                                            y,
                                            tconv::conv_transpose_shape<1>{},
                                            before,
                                            tconv::batch_norm_arguments{},
                                            tconv::options{},
                                            nullptr);
}
