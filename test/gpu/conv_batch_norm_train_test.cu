// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// batch_norm_train() of a convolution, alone and with average pools behind it, against the convolution in full.

#include "common/conv_case.hpp"
#include "common/device.hpp"

#include <tconv/launch/conv_batch_norm_train.cuh>
#include <tconv/reference/batch_norm.hpp>

namespace
{

using namespace tconv_test;
using tconv::chain;

/// Means over windows of 2 along every axis; \p extent becomes that of the result.
std::vector<double> halve(const std::vector<double>& y, std::array<tconv::int64_t, 3>& extent, tconv::int64_t rows)
{
  const std::array<tconv::int64_t, 3> out{extent[0] / 2, extent[1] / 2, extent[2] / 2};
  std::vector<double> means;
  for (tconv::int64_t row = 0; row < rows; ++row)
  {
    for (tconv::int64_t o = 0; o < out[0] * out[1] * out[2]; ++o)
    {
      double sum = 0;
      for (tconv::int64_t i = 0; i < 8; ++i)
      {
        const tconv::int64_t d = o / out[2] / out[1] * 2 + i / 4;
        const tconv::int64_t h = o / out[2] % out[1] * 2 + i / 2 % 2;
        const tconv::int64_t w = o % out[2] * 2 + i % 2;
        sum += y[static_cast<std::size_t>(((row * extent[0] + d) * extent[1] + h) * extent[2] + w)];
      }
      means.push_back(sum / 8);
    }
  }
  extent = out;
  return means;
}

class conv_batch_norm_train_gpu : public gpu_test
{};

/// \p functors behind the normalisation are \p pools average pools of 2.
template <class Functors>
void check(const shape3& s, std::uint32_t seed, launch_mode mode, const Functors& functors, int pools)
{
  SCOPED_TRACE(to_string(s));
  const auto x     = random_values(seed, s.input_elements(), -0.5f, 1.0f);
  const auto w     = random_values(seed + 1, s.weight_elements());
  const auto b     = random_values(seed + 2, s.out_channels);
  const auto gamma = random_values(seed + 3, s.out_channels, -2.0f, 2.0f);
  const auto beta  = random_values(seed + 4, s.out_channels);
  auto mean        = random_values(seed + 5, s.out_channels);
  auto var         = random_values(seed + 6, s.out_channels, 0.1f, 4.0f);

  device_buffer<float> dx(x), dw(w), db(b), d_gamma(gamma), d_beta(beta), d_mean(mean), d_var(var);
  full_reference expected(x, w, s);
  std::vector<double> y = expected.value;
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    const auto c = i / static_cast<std::size_t>(s.output_positions()) % b.size();
    y[i]         = 2.0 * (y[i] + static_cast<double>(b[c]));
  }
  tconv::reference::batch_norm_train(
    y.data(), s.batch, s.out_channels, s.output_positions(), {gamma.data(), beta.data(), mean.data(), var.data()});
  std::array<tconv::int64_t, 3> extent = s.output();
  for (int i = 0; i < pools; ++i)
  {
    y = halve(y, extent, s.batch * s.out_channels);
  }

  const auto before = chain(tconv::bias(db.data()), tconv::scale(2.0f));
  device_buffer<float> dy(static_cast<std::int64_t>(y.size()));
  workspace_buffer space(tconv::batch_norm_train_workspace_bytes(s, before, functors));
  ASSERT_TRUE(run(mode, [&](cudaStream_t stream) {
    return tconv::batch_norm_train(dx.data(),
                                   dw.data(),
                                   dy.data(),
                                   s,
                                   before,
                                   {d_gamma.data(), d_beta.data(), d_mean.data(), d_var.data()},
                                   functors,
                                   tconv::options{},
                                   space.get(),
                                   stream);
  }));
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && dy.guards_intact() && space.guards_intact()
              && d_mean.guards_intact() && d_var.guards_intact());
  const auto got = dy.download();
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    ASSERT_NEAR(static_cast<double>(got[i]), y[i], 2e-5 * (1.0 + std::fabs(y[i]))) << i;
  }
  const auto got_mean = d_mean.download();
  const auto got_var  = d_var.download();
  for (std::size_t c = 0; c < mean.size(); ++c)
  {
    EXPECT_NEAR(got_mean[c], mean[c], 1e-5f * (1.0f + std::fabs(mean[c])));
    EXPECT_NEAR(got_var[c], var[c], 1e-5f * (1.0f + std::fabs(var[c])));
  }
}

TEST_F(conv_batch_norm_train_gpu, alone)
{
  check(make_shape<3>({2, 3, 16, 1}, {4, 5, 6}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}), 1, launch_mode::direct, chain<>{}, 0);
  check(make_shape<3>({3, 6, 9, 3}, {1, 7, 11}, {1, 4, 3}, {1, 1, 2}, {0, 2, 1}), 20, launch_mode::graph, chain<>{}, 0);
  check(make_shape<3>({2, 5, 300, 1}, {1, 3, 9}, {1, 3, 3}, {1, 2, 2}), 40, launch_mode::side_stream, chain<>{}, 0);
}

// The first is folded into the taps where the stride allows it.
TEST_F(conv_batch_norm_train_gpu, two_average_pools)
{
  const auto pools = chain(tconv::average_pool(2), tconv::average_pool(2));
  check(make_shape<3>({2, 3, 16, 1}, {4, 5, 6}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}), 60, launch_mode::graph, pools, 2);
  check(make_shape<3>({2, 4, 6, 2}, {4, 5, 6}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}), 80, launch_mode::direct, pools, 2);
  check(make_shape<3>({2, 4, 6, 1}, {3, 4, 5}, {4, 5, 3}, {4, 4, 4}), 100, launch_mode::side_stream, pools, 2);
}

// Exactly representable constants give beta bit for bit; one value per channel is an error before anything is written.
TEST_F(conv_batch_norm_train_gpu, constant_channels)
{
  const shape3 s  = make_shape<3>({2, 2, 5, 1}, {2, 3, 4}, {1, 1, 1});
  const auto beta = random_values(1, 5);
  device_buffer<float> x(std::vector<float>(static_cast<std::size_t>(s.input_elements()), 3.0f));
  device_buffer<float> w(std::vector<float>(10, 1.0f)), d_beta(beta), y(s.output_elements());
  workspace_buffer space(tconv::batch_norm_train_workspace_bytes(s, chain<>{}));
  const auto call = [&](const shape3& shape, cudaStream_t stream) {
    return tconv::batch_norm_train(x.data(),
                                   w.data(),
                                   y.data(),
                                   shape,
                                   chain<>{},
                                   {nullptr, d_beta.data()},
                                   chain<>{},
                                   tconv::options{},
                                   space.get(),
                                   stream);
  };
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) { return call(s, stream); }));
  const auto got = y.download();
  for (std::size_t i = 0; i < got.size(); ++i)
  {
    EXPECT_EQ(got[i], beta[i / 24 % 5]);
  }
  EXPECT_EQ(
    call(make_shape<3>({1, 2, 5, 1}, {1, 1, 1}, {1, 1, 1}), nullptr).code(), tconv::status_code::invalid_argument);
}

} // namespace
