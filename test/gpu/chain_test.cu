// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Chains on the outputs of conv_transpose(): pointwise functors, softmax over channels, functors of a user.
///
/// Inputs are scaled so that softmax is peaked: with default initialisation every output of sigmoid(softmax) is nearly the same
/// number and a softmax over the wrong axis would look like rounding.

#include "common/conv_case.hpp"
#include "common/device.hpp"

#include <tconv/reference/chain.hpp>
#include <tconv/tconv.cuh>

#include <limits>

// Functors as a user writes them.
namespace user
{

/// A user's pointwise functor.
struct cube
{
  TCONV_HOST_DEVICE float operator()(float v) const { return v * v * v; }
  double reference(double v) const { return v * v * v; }
};

/// A user's channel functor: subtracts the mean over the channels.
struct centre_channels
{
  static constexpr bool across_channels = true;
  template <class Row>
  TCONV_HOST_DEVICE void operator()(Row& row) const
  {
    const float sum   = tconv::reduce_row(row, 0.0f, tconv::plus{}, [](float v) { return v; });
    const float count = tconv::reduce_row(row, 0.0f, tconv::plus{}, [](float) { return 1.0f; });
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] -= sum / count;
    }
  }
};
// Found by argument-dependent lookup from tconv::reference::apply.
inline void evaluate(const centre_channels&, std::vector<double>& row)
{
  double sum = 0;
  for (const double v : row)
  {
    sum += v;
  }
  for (double& v : row)
  {
    v -= sum / static_cast<double>(row.size());
  }
}

} // namespace user

namespace
{

using user::centre_channels;
using user::cube;
using namespace tconv_test;
using tconv::chain;

/// Per-channel operands on host and device.
struct operands
{
  std::vector<float> bias, slope, offset, mean, var, gamma, beta;
  device_buffer<float> d_bias, d_slope, d_offset, d_mean, d_var, d_gamma, d_beta;

  operands(std::uint32_t seed, std::int64_t channels)
      : bias(random_values(seed, channels))
      , slope(random_values(seed + 1, channels, 0.5f, 2.0f))
      , offset(random_values(seed + 2, channels))
      , mean(random_values(seed + 3, channels))
      , var(random_values(seed + 4, channels, 0.2f, 3.0f))
      , gamma(random_values(seed + 5, channels, -2.0f, 2.0f))
      , beta(random_values(seed + 6, channels))
      , d_bias(bias)
      , d_slope(slope)
      , d_offset(offset)
      , d_mean(mean)
      , d_var(var)
      , d_gamma(gamma)
      , d_beta(beta)
  {}
};

/// Runs \p on_device on the GPU and \p on_host on the reference, and compares with |err| <= logit_error * sensitivity +
/// relative * |expected|, where logit_error is the contract's bound of each logit and \p sensitivity the chain's Lipschitz
/// constant with the rounding of its own arithmetic.
template <class Device, class Host>
void check_chain(const shape3& shape,
                 float amplitude,
                 const Device& on_device,
                 const Host& on_host,
                 double sensitivity,
                 double relative,
                 std::uint32_t seed = 1,
                 launch_mode mode   = launch_mode::direct)
{
  const auto x = random_values(seed, shape.input_elements());
  const auto w = random_values(seed + 1, shape.weight_elements(), -amplitude, amplitude);
  device_buffer<float> dx(x);
  device_buffer<float> dw(w);
  device_buffer<float> dy(shape.output_elements());
  workspace_buffer space(tconv::conv_transpose_workspace_bytes(shape, on_device));
  ASSERT_TRUE(run(mode,
                  [&](cudaStream_t stream) {
                    return tconv::conv_transpose(
                      dx.data(), dw.data(), dy.data(), shape, on_device, tconv::options{}, space.get(), stream);
                  }))
    << to_string(shape);

  full_reference expected(x, w, shape);
  // A channel functor spreads the error of the worst logit of its row.
  double worst = 0;
  for (std::size_t i = 0; i < expected.value.size(); ++i)
  {
    worst = std::fmax(worst, static_cast<double>(expected.terms[i] + 8) * 0x1p-24 * (expected.magnitude[i] + 4.0));
  }
  tconv::reference::apply(on_host, expected.value.data(), shape.batch, shape.out_channels, shape.output_positions());
  EXPECT_TRUE(compare_values(dy.download().data(),
                             expected.value.data(),
                             extents_of(shape),
                             [&](std::int64_t, double) {
                               return tolerance{worst * sensitivity, relative};
                             }))
    << to_string(shape);
  EXPECT_TRUE(dy.guards_intact() && space.guards_intact());
}

class chain_gpu : public gpu_test
{};

// Every chain type instantiates the engine once more, so the functors share one here; functors_test.cu sweeps them alone.
TEST_F(chain_gpu, linear_functors)
{
  for (const shape3& shape : {make_shape<3>({2, 5, 19, 1}, {2, 3, 7}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
                              make_shape<3>({2, 6, 6, 6}, {1, 9, 21}, {1, 3, 3})})
  {
    operands o(100, shape.out_channels);
    const auto make = [](const float* bias,
                         const float* slope,
                         const float* offset,
                         const float* mean,
                         const float* var,
                         const float* gamma,
                         const float* beta) {
      return chain(tconv::bias(bias),
                   tconv::scale(2.0f),
                   tconv::affine(slope, offset),
                   tconv::scale(slope),
                   tconv::batch_norm(mean, var, gamma, beta, 1e-5f));
    };
    // Slopes up to 2 * 2 * 2 * 2 / sqrt(0.2).
    check_chain(
      shape,
      0.05f,
      make(o.d_bias.data(),
           o.d_slope.data(),
           o.d_offset.data(),
           o.d_mean.data(),
           o.d_var.data(),
           o.d_gamma.data(),
           o.d_beta.data()),
      make(o.bias.data(), o.slope.data(), o.offset.data(), o.mean.data(), o.var.data(), o.gamma.data(), o.beta.data()),
      36.0,
      1e-6);
  }
}

// Lane counts 1 to 32, channels that fill a tile and that do not, tiles of 8, 4 and 1 channels per thread, and rows beyond one
// tile in shared memory (32, 8, 4, 2, 1 columns) and in global memory.
TEST_F(chain_gpu, softmax_over_any_number_of_channels)
{
  for (const std::int64_t channels : {1,   2,   3,   4,   5,   8,   9,   16,  17,  31,   32,   33,   63,   64,   65,
                                      100, 128, 200, 255, 256, 257, 300, 511, 513, 1000, 1025, 2048, 4096, 8192, 30011})
  {
    operands o(200, channels);
    const bool few     = channels > 4096;
    const shape3 shape = few ? make_shape<3>({1, 2, channels, 1}, {1, 1, 3}, {1, 1, 2}, {1, 1, 2})
                             : make_shape<3>({2, 3, channels, 1}, {1, 2, 5}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1});
    check_chain(shape,
                6.0f,
                chain(tconv::bias(o.d_bias.data()), tconv::channel_softmax{}),
                chain(tconv::bias(o.bias.data()), tconv::channel_softmax{}),
                2.0,
                4e-6,
                static_cast<std::uint32_t>(channels));
  }
}

TEST_F(chain_gpu, softmax_with_groups)
{
  for (const std::int64_t per_group : {1, 2, 3, 4, 6, 8, 16, 40, 100})
  {
    const shape3 shape = make_shape<3>({2, 6, 3 * per_group, 3}, {2, 3, 5}, {2, 3, 3}, {1, 2, 2}, {0, 1, 1});
    check_chain(shape,
                6.0f,
                chain(tconv::bias(nullptr), tconv::channel_softmax{}),
                chain(tconv::bias(nullptr), tconv::channel_softmax{}),
                2.0,
                4e-6);
  }
}

TEST_F(chain_gpu, softmax_then_sigmoid_in_every_launch_mode)
{
  const shape3 shape = make_shape<3>({2, 32, 64, 1}, {3, 5, 4}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
  operands o(300, 64);
  for (const launch_mode mode : launch_modes)
  {
    check_chain(shape,
                1.0f,
                chain(tconv::bias(o.d_bias.data()), tconv::channel_softmax{}, tconv::sigmoid{}),
                chain(tconv::bias(o.bias.data()), tconv::channel_softmax{}, tconv::sigmoid{}),
                0.5,
                4e-7,
                3,
                mode);
  }
}

TEST_F(chain_gpu, channel_functor_of_a_user)
{
  for (const std::int64_t channels : {1, 20, 64, 300})
  {
    const shape3 shape = make_shape<3>({1, 3, channels, 1}, {2, 3, 5}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1});
    check_chain(shape, 1.0f, chain(centre_channels{}, cube{}), chain(centre_channels{}, cube{}), 2000.0, 1e-5);
  }
}

/// Softmax of logits that are the bias alone: x = 0.
std::vector<float> softmax_of_bias(const std::vector<float>& logits)
{
  const auto channels = static_cast<std::int64_t>(logits.size());
  const shape3 shape  = make_shape<3>({1, 1, channels, 1}, {1, 1, 2}, {1, 1, 1});
  device_buffer<float> x(std::vector<float>(2, 0.0f));
  device_buffer<float> w(std::vector<float>(logits.size(), 1.0f));
  device_buffer<float> b(logits);
  device_buffer<float> y(shape.output_elements());
  const auto functors = chain(tconv::bias(b.data()), tconv::channel_softmax{});
  workspace_buffer space(tconv::conv_transpose_workspace_bytes(shape, functors));
  EXPECT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::conv_transpose(x.data(), w.data(), y.data(), shape, functors, tconv::options{}, space.get(), stream);
  }));
  std::vector<float> row;
  const auto all = y.download();
  for (std::size_t c = 0; c < logits.size(); ++c)
  {
    row.push_back(all[2 * c]);
  }
  return row;
}

// flagos-ai/FlagGems #330, pytorch #25110: threads or lanes that see nothing but -inf must not poison the row.
TEST_F(chain_gpu, masked_channels_are_exactly_zero)
{
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::size_t channels : {2U, 64U, 256U, 2048U})
  {
    for (const std::size_t pattern : {0U, 1U, 2U})
    {
      std::vector<float> logits(channels, 0.0f);
      for (std::size_t c = 0; c < channels; ++c)
      {
        const bool masked = pattern == 0 ? c < channels / 2 : (pattern == 1 ? c >= channels / 2 : c % 2 == 0);
        logits[c]         = masked ? -inf : 0.0f;
      }
      const auto row = softmax_of_bias(logits);
      for (std::size_t c = 0; c < channels; ++c)
      {
        EXPECT_EQ(row[c], std::isinf(logits[c]) ? 0.0f : 2.0f / static_cast<float>(channels)) << channels << ' ' << c;
      }
    }
    for (const std::size_t survivor : {std::size_t{0}, channels / 2, channels - 1})
    {
      std::vector<float> logits(channels, -inf);
      logits[survivor] = 3.0f;
      const auto row   = softmax_of_bias(logits);
      for (std::size_t c = 0; c < channels; ++c)
      {
        EXPECT_EQ(row[c], c == survivor ? 1.0f : 0.0f);
      }
    }
    for (const float broken : {inf, std::numeric_limits<float>::quiet_NaN()})
    {
      std::vector<float> logits(channels, 0.0f);
      logits[channels - 1] = broken;
      for (const float v : softmax_of_bias(logits))
      {
        EXPECT_TRUE(std::isnan(v));
      }
    }
    for (const float v : softmax_of_bias(std::vector<float>(channels, -inf)))
    {
      EXPECT_TRUE(std::isnan(v));
    }
  }
}

// executorch #20090: a sum that sticks gives rows that do not add up.
TEST_F(chain_gpu, equal_logits_give_the_rounded_reciprocal)
{
  for (const std::size_t channels : {1U, 64U, 512U, 1000U, 1025U, 2048U, 4096U, 8192U})
  {
    for (const float v : softmax_of_bias(std::vector<float>(channels, -3.25f)))
    {
      ASSERT_EQ(v, 1.0f / static_cast<float>(channels)) << channels;
    }
  }
}

// torch/cunn #150, pytorch #2080: more than 65,535 positions.
TEST_F(chain_gpu, softmax_at_more_than_65535_positions)
{
  for (const std::int64_t channels : {1, 2, 300})
  {
    check_chain(make_shape<3>({1, 1, channels, 1}, {1, 1, 70001}, {1, 1, 1}),
                3.0f,
                chain(tconv::bias(nullptr), tconv::channel_softmax{}),
                chain(tconv::bias(nullptr), tconv::channel_softmax{}),
                2.0,
                4e-6);
    check_chain(make_shape<3>({70001, 1, channels < 300 ? channels : 257, 1}, {1, 1, 1}, {1, 1, 1}),
                3.0f,
                chain(tconv::bias(nullptr), tconv::channel_softmax{}),
                chain(tconv::bias(nullptr), tconv::channel_softmax{}),
                2.0,
                4e-6);
  }
}

} // namespace
