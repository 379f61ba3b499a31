// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// BatchNorm in train mode. For faults in how the variance is formed.

#include "common/conv_case.hpp"
#include "common/device.hpp"

#include <tconv/launch/batch_norm_train_global_mean.cuh>

namespace
{

using namespace tconv_test;

class batch_norm_train : public gpu_test
{};

// With momentum 1 the running variance is the batch's unbiased one. A channel's values are m +- 1/8, whose deviations from the
// mean are exact; in fp32 the squares of m leave no bit for them.
TEST_F(batch_norm_train, variance_survives_a_large_mean)
{
  const std::int64_t channels = 3;
  const std::int64_t samples  = 2;
  const std::int64_t width    = 256;
  const shape3 shape  = tconv::detail::canonical(make_shape<1>({samples, channels, channels, channels}, {width}, {1}));
  const float means[] = {64.0f, 4096.0f, 65536.0f};
  std::vector<float> x;
  for (std::int64_t i = 0; i < shape.input_elements(); ++i)
  {
    // One of each in every pair, in random order.
    const bool above = (random_bits(1, static_cast<std::uint64_t>(i / 2)) + static_cast<std::uint32_t>(i)) % 2 == 0;
    x.push_back(means[i / width % channels] + (above ? 0.125f : -0.125f));
  }
  device_buffer<float> dx(x);
  device_buffer<float> dw(std::vector<float>(channels, 1.0f));
  device_buffer<float> dy(samples * channels);
  device_buffer<float> mean(std::vector<float>(channels, 0.0f));
  device_buffer<float> variance(std::vector<float>(channels, 0.0f));
  const tconv::batch_norm_arguments arguments{nullptr, nullptr, mean.data(), variance.data(), 1e-5f, 1.0f};
  workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(shape));
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(
      dx.data(), dw.data(), dy.data(), shape, tconv::chain<>{}, arguments, tconv::options{}, space.get(), stream);
  }));

  const double count    = samples * width;
  const double unbiased = 0.015625 * count / (count - 1);
  for (std::size_t c = 0; c < channels; ++c)
  {
    EXPECT_NEAR(static_cast<double>(variance.download()[c]), unbiased, 1e-5 * unbiased) << "at a mean of " << means[c];
  }
}

} // namespace
