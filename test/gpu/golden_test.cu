// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// P1 and P2 at full extents against values that PyTorch computed in float64 (test/golden/).

#include "common/compare.hpp"
#include "common/device.hpp"
#include "golden/golden_inputs.hpp"

#include <tconv/tconv.cuh>

#include <cmath>

namespace
{

using namespace tconv_test;
using tconv::chain;

class golden_gpu : public gpu_test
{};

/// Largest error of \p y at the golden samples.
double largest_error(const float* y, const double* expected, std::int64_t elements)
{
  double worst = 0;
  for (int j = 0; j < golden::samples; ++j)
  {
    float got = 0;
    (void) cuda_ok(
      cudaMemcpy(&got, y + sample_index(golden::sample_seed, j, elements), sizeof(float), cudaMemcpyDeviceToHost),
      "sample");
    const double error = std::fabs(static_cast<double>(got) - expected[j]);
    worst              = error > worst || std::isnan(error) ? error : worst;
  }
  return worst;
}

void check_p1(const golden::extents& e, const double* logits, const double* outputs)
{
  const auto s      = golden::p1_shape(e);
  const auto inputs = golden::make_p1_inputs(e);
  device_buffer<float> x(inputs.x), w(inputs.weight), b(inputs.bias), y(s.output_elements());
  const auto call = [&](const auto& functors) {
    y.poison();
    workspace_buffer space(tconv::conv_transpose_workspace_bytes(s, functors));
    EXPECT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::conv_transpose(x.data(), w.data(), y.data(), s, functors, tconv::options{}, space.get(), stream);
    }));
    EXPECT_TRUE(space.guards_intact() && y.guards_intact());
  };
  // Before anything squashes them: K = 256 products of at most 1, sum|x||w| below 256 / 2 on average; bound of the contract.
  call(chain(tconv::bias(b.data())));
  EXPECT_LE(largest_error(y.data(), logits, s.output_elements()), 264 * 0x1p-24 * 200);
  // A logit error of d moves a softmax by at most d/2 and the sigmoid of it by a quarter of that.
  call(chain(tconv::bias(b.data()), tconv::channel_softmax{}, tconv::sigmoid{}));
  EXPECT_LE(largest_error(y.data(), outputs, s.output_elements()), 3e-6);
}

TEST_F(golden_gpu, p1_reduced)
{
  check_p1(golden::p1_reduced, golden::p1_reduced_logits, golden::p1_reduced_outputs);
}

TEST_F(golden_gpu, p1_full)
{
  check_p1(golden::p1_full, golden::p1_full_logits, golden::p1_full_outputs);
}

void check_p2(const golden::extents& e,
              const double* eval,
              const double* train,
              const double* running_mean,
              const double* running_var)
{
  const auto s      = golden::p2_shape(e);
  const auto inputs = golden::make_p2_inputs(e);
  device_buffer<float> x(inputs.x), w(inputs.weight), b(inputs.bias), gamma(inputs.gamma), beta(inputs.beta);
  device_buffer<float> mean(inputs.running_mean), var(inputs.running_var), y(s.batch * s.out_channels);
  const output_extents extents{s.batch, s.out_channels};

  const auto functors = chain(tconv::bias(b.data()),
                              tconv::scale(golden::p2_scale),
                              tconv::batch_norm(mean.data(), var.data(), gamma.data(), beta.data(), golden::eps));
  workspace_buffer eval_space(tconv::global_mean_workspace_bytes(s, functors));
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::global_mean(x.data(), w.data(), y.data(), s, functors, tconv::options{}, eval_space.get(), stream);
  }));
  EXPECT_TRUE(compare_values(y.download().data(), eval, extents, [](std::int64_t, double) {
    return tolerance{1e-6, 4e-7};
  }));

  y.poison();
  const auto before = chain(tconv::bias(b.data()), tconv::scale(golden::p2_scale));
  workspace_buffer train_space(tconv::batch_norm_train_global_mean_workspace_bytes(s, before));
  const tconv::batch_norm_arguments arguments{
    gamma.data(), beta.data(), mean.data(), var.data(), golden::eps, golden::momentum};
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(
      x.data(), w.data(), y.data(), s, before, arguments, tconv::options{}, train_space.get(), stream);
  }));
  EXPECT_TRUE(compare_values(y.download().data(), train, extents, [](std::int64_t, double) {
    return tolerance{2e-6, 5e-6};
  }));
  EXPECT_TRUE(compare_values(mean.download().data(), running_mean, {1, s.out_channels}, [](std::int64_t, double) {
    return tolerance{1e-7, 2e-7};
  }));
  EXPECT_TRUE(compare_values(var.download().data(), running_var, {1, s.out_channels}, [](std::int64_t, double) {
    return tolerance{0, 1e-5};
  }));
}

TEST_F(golden_gpu, p2_reduced)
{
  check_p2(golden::p2_reduced,
           golden::p2_reduced_eval,
           golden::p2_reduced_train,
           golden::p2_reduced_running_mean,
           golden::p2_reduced_running_var);
}

TEST_F(golden_gpu, p2_full)
{
  check_p2(golden::p2_full,
           golden::p2_full_eval,
           golden::p2_full_train,
           golden::p2_full_running_mean,
           golden::p2_full_running_var);
}

} // namespace
