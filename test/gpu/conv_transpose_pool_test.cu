// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// conv_transpose() with functors across positions in its chain, which run in passes behind the convolution.
///
/// Bounds follow a value through the chain, see common/pooled_convolution.cuh. Chains are
/// few because each is several kernels of the convolution; apply_chain() is tested with more.

#include "common/pooled_convolution.cuh"

namespace
{

using namespace tconv_test;
using tconv::chain;
using bf16 = __nv_bfloat16;

class conv_transpose_pool_gpu : public gpu_test
{};

// y is bf16, but nothing between the passes is.
TEST_F(conv_transpose_pool_gpu, bias_max_pool_softmax_mean)
{
  const auto behind = chain(tconv::max_pool(2), tconv::channel_softmax{}, tconv::spatial_mean({0}));
  const auto make   = [&](const float* b) {
    return chain(tconv::bias(b), tconv::max_pool(2), tconv::channel_softmax{}, tconv::spatial_mean({0}));
  };
  std::uint32_t seed = 1;
  for (std::int64_t i = 0; i < 4; ++i)
  {
    for (const std::int64_t channels : {5, 64, 300})
    {
      // 5 x 9 x 7 outputs: the last of each axis is in no window.
      check_pooled_convolution<bf16, bf16>(
        make_shape<3>({2, 5, channels, 1}, {3, 5, 4}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
        seed,
        i == 1,
        seed,
        true,
        make,
        behind);
      seed += 3;
    }
    check_pooled_convolution<bf16, bf16>(
      make_shape<2>({2, 6, 12, 3}, {5, 4}, {3, 2}, {2, 3}, {1, 0}, {1, 2}), seed, false, seed, true, make, behind);
    check_pooled_convolution<bf16, bf16>(
      make_shape<1>({3, 7, 9, 1}, {101}, {16}, {8}, {4}), seed + 1, false, seed, true, make, behind);
    seed += 10;
  }
}

// The channels are reduced on the accumulators, or where there are too many for that, from logits in the workspace.
TEST_F(conv_transpose_pool_gpu, channel_max_then_max_pool)
{
  const auto functors = chain(tconv::channel_max{}, tconv::max_pool({2, 1, 3}, {1, 2, 2}));
  const auto make     = [&](const float*) { return functors; };
  std::uint32_t seed  = 100;
  for (std::int64_t i = 0; i < 4; ++i)
  {
    for (const std::int64_t channels : {1, 64, 300})
    {
      check_pooled_convolution<float, float>(
        make_shape<3>({2, 4, channels, 1}, {3, 2, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
        seed,
        i % 2 == 1,
        seed,
        false,
        make,
        functors);
      seed += 3;
    }
  }
}

// Checked before anything is launched, so without a GPU too.
TEST(conv_transpose_pool_arguments, windows_are_those_of_the_output)
{
  const auto shape = make_shape<2>({1, 2, 3, 1}, {3, 4}, {2, 2}, {2, 2}); // 6 x 8 outputs
  const auto at    = [](std::uintptr_t offset) { return reinterpret_cast<float*>((std::uintptr_t{1} << 40) + offset); };
  const auto call  = [&](const auto& functors, std::uintptr_t y, std::size_t missing) {
    const std::size_t bytes = tconv::conv_transpose_workspace_bytes(shape, functors) - missing;
    return tconv::conv_transpose(
      at(0), at(1 << 20), at(y), shape, functors, tconv::options{}, {at(std::uintptr_t{1} << 30), bytes}, nullptr);
  };
  const auto large = chain(tconv::channel_max{}, tconv::max_pool({2, 1, 3}, {1, 2, 2}));
  EXPECT_STREQ(call(large, 1 << 21, 0).message(), "functors: max_pool has windows for 3 axes: the tensor has 2");
  EXPECT_EQ(tconv::conv_transpose_workspace_bytes(shape, large), 0U);
  const auto wide = chain(tconv::channel_max{}, tconv::max_pool({7, 8}, {1, 1}));
  EXPECT_STREQ(
    call(wide, 1 << 21, 0).message(), "functors: max_pool has size 7 along h: must be <= 6, the extent there");
  const auto good = chain(tconv::channel_max{}, tconv::max_pool({6, 8}, {1, 1}));
  EXPECT_EQ(call(good, 1 << 21, 1).code(), tconv::status_code::workspace_too_small);
  EXPECT_STREQ(call(good, 0, 0).message(), "y: must not overlap x");
}

} // namespace
