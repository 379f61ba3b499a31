// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// conv_transpose() with an average pool behind linear functors, whose windows are folded into the taps, and with a mean along one
/// axis, along which x is summed first: against the convolution in full.

#include "common/pooled_convolution.cuh"

namespace
{

using namespace tconv_test;
using tconv::chain;

class average_pool_fold_gpu : public gpu_test
{};

// Windows equal to the stride, a divisor, a multiple, with a divisor in common, none; overlapping; other steps than sizes.
TEST_F(average_pool_fold_gpu, windows_of_every_kind)
{
  std::uint32_t seed = 1;
  for (const auto& [size, step] :
       {std::pair<tconv::int64_t, tconv::int64_t>{2, 2}, {4, 4}, {1, 2}, {3, 3}, {3, 2}, {2, 1}})
  {
    const auto pool   = tconv::average_pool({size, 2, size}, {step, 2, step});
    const auto behind = chain(tconv::scale(0.5f), pool, tconv::sigmoid{});
    const auto make = [&](const float* b) { return chain(tconv::bias(b), tconv::scale(0.5f), pool, tconv::sigmoid{}); };
    for (const tconv::int64_t stride : {1, 2, 4})
    {
      for (const tconv::int64_t dilation : {1, 2})
      {
        seed += 4;
        check_pooled_convolution<float, float>(
          make_shape<3>(
            {2, 3, 16, 1}, {5, 5, 4}, {3, 3, 4}, {stride, 2, stride}, {1, 1, 0}, {0, 1, 0}, {dilation, 1, 1}),
          seed,
          seed % 3 == 0,
          seed,
          true,
          make,
          behind);
      }
    }
  }
}

// Groups, and a second pool behind the folded one.
TEST_F(average_pool_fold_gpu, groups_and_two_pools)
{
  const auto behind = chain(tconv::average_pool(2), tconv::average_pool(2));
  const auto make   = [&](const float* b) {
    return chain(tconv::bias(b), tconv::average_pool(2), tconv::average_pool(2));
  };
  std::uint32_t seed = 300;
  for (const tconv::int64_t stride : {1, 2, 4})
  {
    for (int i = 0; i < 3; ++i)
    {
      seed += 5;
      check_pooled_convolution<float, float>(
        make_shape<2>({2, 6, 12, 3}, {5, 9}, {3, 4}, {stride, 2}, {1, 0}), seed, i == 1, seed, true, make, behind);
      check_pooled_convolution<float, float>(
        make_shape<1>({3, 7, 9, 1}, {101}, {16}, {stride}, {4}), seed + 1, i == 2, seed, true, make, behind);
    }
  }
}

// Rows along the fastest, the middle and the slowest axis; classes that land nowhere; more classes than are kept.
TEST_F(average_pool_fold_gpu, mean_along_one_axis)
{
  std::uint32_t seed = 600;
  for (const tconv::int64_t axis : {0, 1, 2})
  {
    const auto mean   = tconv::spatial_mean({axis});
    const auto behind = chain(mean, tconv::channel_softmax{});
    const auto make   = [&](const float* b) { return chain(tconv::bias(b), mean, tconv::channel_softmax{}); };
    for (const tconv::int64_t padding : {0, 1, 3})
    {
      for (const tconv::int64_t stride : {1, 2})
      {
        seed += 6;
        check_pooled_convolution<float, float>(make_shape<3>({2, 4, 20, 2},
                                                             {6, 8, 12},
                                                             {5, 3, 4},
                                                             {stride, stride, stride},
                                                             {padding, padding, padding},
                                                             {stride - 1, 0, 0}),
                                               seed,
                                               seed % 4 == 0,
                                               seed,
                                               true,
                                               make,
                                               behind);
      }
    }
  }
}

} // namespace
