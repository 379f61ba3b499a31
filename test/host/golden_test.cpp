// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// The double reference against PyTorch's float64 results for the two headline pipelines (test/golden), which the GPU tests and
/// the demo rely on: all of the reduced problems, and as much of the full ones as a CPU can do in a second.

#include "../golden/golden_inputs.hpp"

#include <tconv/reference/batch_norm.hpp>
#include <tconv/reference/chain.hpp>
#include <tconv/reference/conv_transpose.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace
{

namespace golden = tconv_test::golden;

using doubles = std::vector<double>;
using shape3  = tconv::conv_transpose_shape<3>;

// The stored values carry 14 digits, 5e-14 relative; the sums of at most 8000 products in another order add far less than the
// rest of this.
constexpr double relative = 1e-12;

TEST(golden_inputs, are_those_of_numpy)
{
  // First elements as printed by test/golden/uniform.py, and the scale of each tensor.
  EXPECT_EQ(golden::make(golden::p1_x, 3), (std::vector<float>{0.5275192f, 0.0062783957f, 0.7718681f}));
  EXPECT_EQ(golden::make(golden::p1_weight, 3), (std::vector<float>{-0.46466577f, 0.07732308f, -0.7577628f}));
  EXPECT_EQ(golden::make(golden::p2_weight, 3), (std::vector<float>{0.0007099528f, 0.0041782223f, -0.009501841f}));
  EXPECT_EQ(golden::make(golden::p2_gamma, 3), (std::vector<float>{0.5686932f, 0.8759346f, 0.9055552f}));
}

TEST(golden_p1, reduced)
{
  const auto in = golden::make_p1_inputs(golden::p1_reduced);
  const auto s  = golden::p1_shape(golden::p1_reduced);
  ASSERT_EQ(s.output_elements(), golden::p1_output_elements(golden::p1_reduced));
  const auto elements = static_cast<std::size_t>(s.output_elements());
  doubles y(elements);
  doubles magnitude(elements);
  std::vector<std::int64_t> terms(elements);
  tconv::reference::conv_transpose(in.x.data(), in.weight.data(), y.data(), s);
  tconv::reference::conv_transpose_magnitude(in.x.data(), in.weight.data(), magnitude.data(), terms.data(), s);
  const auto apply = [&](const auto& functors) {
    tconv::reference::apply(functors, y.data(), s.batch, s.out_channels, s.output_positions());
  };
  apply(tconv::chain(tconv::bias(in.bias.data())));
  const doubles logits = y;
  apply(tconv::chain(tconv::channel_softmax{}, tconv::sigmoid{}));
  for (int j = 0; j < golden::samples; ++j)
  {
    const auto i = static_cast<std::size_t>(tconv_test::sample_index(golden::sample_seed, j, s.output_elements()));
    // A logit can be a small difference of large sums: relative to those. The outputs lie in [0.5, 0.73].
    ASSERT_NEAR(logits[i], golden::p1_reduced_logits[j], relative * (magnitude[i] + 1.0)) << "logit, sample " << j;
    ASSERT_NEAR(y[i], golden::p1_reduced_outputs[j], relative * y[i]) << "output, sample " << j;
  }
}

TEST(golden_p1, full_at_the_samples)
{
  const auto in = golden::make_p1_inputs(golden::p1_full);
  const auto s  = golden::p1_shape(golden::p1_full);
  ASSERT_EQ(s.output_elements(), golden::p1_output_elements(golden::p1_full));
  double largest = 0.0;
  for (int j = 0; j < golden::samples; ++j)
  {
    // The whole row of a sample: all 64 channels of its position, by gathering.
    const std::int64_t flat = tconv_test::sample_index(golden::sample_seed, j, s.output_elements());
    const std::int64_t w    = flat % 64;
    const std::int64_t h    = flat / 64 % 64;
    const std::int64_t d    = flat / 4096 % 32;
    const std::int64_t c    = flat / 131072 % 64;
    const std::int64_t n    = flat / 8388608;
    doubles row;
    double magnitude = 0;
    for (std::int64_t co = 0; co < 64; ++co)
    {
      const auto found = tconv::reference::conv_transpose_at(in.x.data(), in.weight.data(), s, n, co, {d, h, w});
      row.push_back(found.value + static_cast<double>(in.bias[static_cast<std::size_t>(co)]));
      magnitude = found.magnitude > magnitude ? found.magnitude : magnitude;
    }
    const auto at = static_cast<std::size_t>(c);
    ASSERT_NEAR(row[at], golden::p1_full_logits[j], relative * (magnitude + 1.0)) << "logit, sample " << j;
    tconv::reference::apply(tconv::chain(tconv::channel_softmax{}), row.data(), 1, 64, 1);
    for (const double p : row)
    {
      largest = p > largest ? p : largest;
    }
    tconv::reference::apply(tconv::chain(tconv::sigmoid{}), row.data(), 1, 64, 1);
    ASSERT_NEAR(row[at], golden::p1_full_outputs[j], relative * row[at]) << "output, sample " << j;
  }
  EXPECT_GT(largest, 0.99) << "the rows must be peaked, or a softmax over the wrong axis would pass";
}

TEST(golden_p1, outputs_would_reveal_a_wrong_softmax)
{
  // sigmoid of a uniform softmax is 0.5039 everywhere: count the samples far from it.
  int peaked = 0;
  for (const double v : golden::p1_full_outputs)
  {
    peaked += std::fabs(v - 0.5039) > 0.003 ? 1 : 0;
  }
  EXPECT_GT(peaked, golden::samples / 2);
}

/// The arguments of P2's BatchNorm; the running statistics are those of \p in.
tconv::batch_norm_arguments p2_arguments(golden::p2_inputs& in)
{
  tconv::batch_norm_arguments arguments;
  arguments.gamma        = in.gamma.data();
  arguments.beta         = in.beta.data();
  arguments.running_mean = in.running_mean.data();
  arguments.running_var  = in.running_var.data();
  arguments.eps          = golden::eps;
  arguments.momentum     = golden::momentum;
  return arguments;
}

/// The scaled convolution of the reduced problem, before BatchNorm.
doubles p2_reduced_values(const golden::p2_inputs& in, const shape3& s)
{
  doubles y(static_cast<std::size_t>(s.output_elements()));
  tconv::reference::conv_transpose(in.x.data(), in.weight.data(), y.data(), s);
  tconv::reference::apply(tconv::chain(tconv::bias(in.bias.data()), tconv::scale(golden::p2_scale)),
                          y.data(),
                          s.batch,
                          s.out_channels,
                          s.output_positions());
  return y;
}

/// Outputs are means of values around +-1: relative to themselves plus 1.
void expect_outputs(const doubles& got, const double* expected)
{
  for (std::size_t i = 0; i < got.size(); ++i)
  {
    ASSERT_NEAR(got[i], expected[i], relative * (std::fabs(expected[i]) + 1.0))
      << "sample " << i / 128 << ", channel " << i % 128;
  }
}

TEST(golden_p2, reduced_eval)
{
  auto in      = golden::make_p2_inputs(golden::p2_reduced);
  const auto s = golden::p2_shape(golden::p2_reduced);
  doubles y    = p2_reduced_values(in, s);
  tconv::reference::batch_norm_eval(y.data(), s.batch, 128, s.output_positions(), p2_arguments(in));
  expect_outputs(tconv::reference::global_mean(y.data(), s.batch, 128, s.output_positions()), golden::p2_reduced_eval);
}

TEST(golden_p2, reduced_eval_as_a_chain)
{
  auto in      = golden::make_p2_inputs(golden::p2_reduced);
  const auto s = golden::p2_shape(golden::p2_reduced);
  doubles y    = p2_reduced_values(in, s);
  const tconv::batch_norm functor(
    in.running_mean.data(), in.running_var.data(), in.gamma.data(), in.beta.data(), golden::eps);
  tconv::reference::apply(tconv::chain(functor), y.data(), s.batch, 128, s.output_positions());
  expect_outputs(tconv::reference::global_mean(y.data(), s.batch, 128, s.output_positions()), golden::p2_reduced_eval);
}

TEST(golden_p2, reduced_train)
{
  auto in      = golden::make_p2_inputs(golden::p2_reduced);
  const auto s = golden::p2_shape(golden::p2_reduced);
  doubles y    = p2_reduced_values(in, s);
  tconv::reference::batch_norm_train(y.data(), s.batch, 128, s.output_positions(), p2_arguments(in));
  expect_outputs(tconv::reference::global_mean(y.data(), s.batch, 128, s.output_positions()), golden::p2_reduced_train);
  for (std::size_t c = 0; c < 128; ++c)
  {
    // The reference stores fp32: one rounding.
    const double mean = golden::p2_reduced_running_mean[c];
    const double var  = golden::p2_reduced_running_var[c];
    ASSERT_NEAR(static_cast<double>(in.running_mean[c]), mean, (0x1p-24 + relative) * std::fabs(mean))
      << "channel " << c;
    ASSERT_NEAR(static_cast<double>(in.running_var[c]), var, (0x1p-24 + relative) * var) << "channel " << c;
  }
}

/// Means over space of the convolution of the full problem, scaled: without cropping every tap of every input lands, so the sum
/// of a channel's outputs is the sum over input channels of (sum of inputs) * (sum of taps). [16, 128]
doubles p2_full_means(const golden::p2_inputs& in)
{
  doubles x_sums;
  doubles w_sums;
  doubles means;
  for (std::size_t row = 0; row < 16 * 64; ++row)
  {
    double sum = 0;
    for (std::size_t i = 0; i < 16384; ++i)
    {
      sum += static_cast<double>(in.x[row * 16384 + i]);
    }
    x_sums.push_back(sum);
  }
  for (std::size_t row = 0; row < 64 * 128; ++row)
  {
    double sum = 0;
    for (std::size_t t = 0; t < 125; ++t)
    {
      sum += static_cast<double>(in.weight[row * 125 + t]);
    }
    w_sums.push_back(sum);
  }
  for (std::size_t n = 0; n < 16; ++n)
  {
    for (std::size_t co = 0; co < 128; ++co)
    {
      double sum = 0;
      for (std::size_t ci = 0; ci < 64; ++ci)
      {
        sum += x_sums[n * 64 + ci] * w_sums[ci * 128 + co];
      }
      means.push_back((sum / (20 * 36 * 36) + static_cast<double>(in.bias[co])) * 2.0);
    }
  }
  return means;
}

TEST(golden_p2, full_eval)
{
  auto in       = golden::make_p2_inputs(golden::p2_full);
  doubles means = p2_full_means(in);
  const auto s  = golden::p2_shape(golden::p2_full);
  EXPECT_EQ(s.output(), (std::array<std::int64_t, 3>{20, 36, 36}));
  // BatchNorm in eval mode is affine and commutes with the mean.
  tconv::reference::batch_norm_eval(means.data(), 16, 128, 1, p2_arguments(in));
  expect_outputs(means, golden::p2_full_eval);
}

TEST(golden_p2, full_train_is_consistent)
{
  // The variance of the full problem is out of a CPU test's reach, but everything else about it is not: the running mean, and
  // the outputs, given the variance that the running one implies.
  auto in             = golden::make_p2_inputs(golden::p2_full);
  const doubles means = p2_full_means(in);
  const double count  = 16.0 * 20 * 36 * 36;
  const auto momentum = static_cast<double>(golden::momentum);
  doubles expected(16 * 128);
  for (std::size_t co = 0; co < 128; ++co)
  {
    double mean = 0;
    for (std::size_t n = 0; n < 16; ++n)
    {
      mean += means[n * 128 + co] / 16;
    }
    const double running = (1 - momentum) * static_cast<double>(in.running_mean[co]) + momentum * mean;
    ASSERT_NEAR(running, golden::p2_full_running_mean[co], relative) << co;

    const double unbiased = (golden::p2_full_running_var[co] - (1 - momentum) * static_cast<double>(in.running_var[co]))
                          / momentum;
    ASSERT_GT(unbiased, 0.0);
    const double biased = unbiased * (count - 1) / count;
    for (std::size_t n = 0; n < 16; ++n)
    {
      expected[n * 128 + co] = static_cast<double>(in.gamma[co]) * (means[n * 128 + co] - mean)
                               / std::sqrt(biased + static_cast<double>(golden::eps))
                             + static_cast<double>(in.beta[co]);
    }
  }
  expect_outputs(expected, golden::p2_full_train);
}

} // namespace
