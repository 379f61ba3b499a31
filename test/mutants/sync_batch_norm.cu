// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// BatchNorm in train mode with the statistics of several ranks. For faults in how these are brought together.

#include "common/conv_case.hpp"
#include "common/device.hpp"

#include <tconv/launch/sync_batch_norm_global_mean.cuh>

namespace
{

using namespace tconv_test;

class sync_batch_norm : public gpu_test
{};

// Two channels of two ranks with three and one values: with momentum 1 the running statistics are those of all four.
TEST_F(sync_batch_norm, statistics_are_those_of_all_ranks)
{
  const shape3 shape = make_shape<3>({0, 1, 2, 1}, {1, 1, 1}, {1, 1, 1});
  using moments      = tconv::moments<double>;
  // {1, 2, 3} and {10}; {0, 0, 0} and {-4}.
  device_buffer<moments> gathered(std::vector<moments>{{3, 2, 2}, {3, 0, 0}, {1, 10, 0}, {1, -4, 0}});
  device_buffer<float> mean(std::vector<float>(2, 0.0f));
  device_buffer<float> variance(std::vector<float>(2, 0.0f));
  const tconv::batch_norm_arguments arguments{nullptr, nullptr, mean.data(), variance.data(), 1e-5f, 1.0f};
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::sync_batch_norm_global_mean(nullptr,
                                              gathered.data(),
                                              2,
                                              static_cast<float*>(nullptr),
                                              shape,
                                              tconv::chain<>{},
                                              arguments,
                                              tconv::options{},
                                              stream);
  }));
  EXPECT_FLOAT_EQ(mean.download()[0], 4.0f);
  EXPECT_FLOAT_EQ(mean.download()[1], -1.0f);
  EXPECT_FLOAT_EQ(variance.download()[0], 50.0f / 3);
  EXPECT_FLOAT_EQ(variance.download()[1], 4.0f);
}

} // namespace
