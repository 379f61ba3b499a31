// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Bias, softmax, sigmoid behind conv_transpose() in every type, in channels last and other layouts.
///
/// Bounds follow from the numerical contract: the bound of each logit, what the chain makes of it, and the rounding of the output.

#include "common/logits.cuh"

#include <tconv/thread/activation.hpp>
#include <tconv/thread/softmax.hpp>

#include <limits>

namespace
{

using namespace tconv_test;
using tconv::chain;

constexpr double u = 0x1p-24;

/// Softmax and sigmoid of every \p stride-th value of \p count values from \p begin on.
void softmax_sigmoid(std::vector<double>& values, std::int64_t begin, std::int64_t stride, std::int64_t count)
{
  std::vector<double> row;
  for (std::int64_t i = 0; i < count; ++i)
  {
    row.push_back(values[static_cast<std::size_t>(begin + i * stride)]);
  }
  tconv::reference::evaluate(tconv::channel_softmax{}, row);
  for (std::int64_t i = 0; i < count; ++i)
  {
    values[static_cast<std::size_t>(begin + i * stride)] = tconv::reference::evaluate(
      tconv::sigmoid{}, row[static_cast<std::size_t>(i)]);
  }
}

/// Bias, softmax, sigmoid in every pair of slices that \p arrangements names.
template <class In, class Out>
void check_softmax_sigmoid(const std::vector<arrangement>& arrangements)
{
  for (const std::int64_t channels : {64, 100, 300})
  {
    const shape3 shape = make_shape<3>({2, 32, channels, 1}, {2, 3, 4}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
    const logits<In> in(shape, static_cast<std::uint32_t>(channels), 2.0f, false);
    const std::int64_t positions = shape.output_positions();
    std::vector<double> p        = in.value;
    tconv::reference::apply(chain(tconv::channel_softmax{}), p.data(), shape.batch, channels, positions);
    std::vector<double> expected = p;
    tconv::reference::apply(chain(tconv::sigmoid{}), expected.data(), shape.batch, channels, positions);
    // The largest logit of each position, and the mean of 2.3 |v - max|, the ulps of the sum's terms.
    std::vector<double> peak(in.error.size(), -std::numeric_limits<double>::infinity());
    std::vector<double> mean(in.error.size(), 0.0);
    for (std::size_t i = 0; i < in.value.size(); ++i)
    {
      double& most = peak[in.row_of(static_cast<std::int64_t>(i), channels)];
      most         = std::fmax(most, in.value[i]);
    }
    for (std::size_t i = 0; i < in.value.size(); ++i)
    {
      const std::size_t row = in.row_of(static_cast<std::int64_t>(i), channels);
      mean[row] += 2.3 * p[i] * (peak[row] - in.value[i]);
    }

    const auto bound = [&](std::int64_t flat, double v) {
      const auto i          = static_cast<std::size_t>(flat);
      const std::size_t row = in.row_of(flat, channels);
      const double error    = in.error[row];
      const double distance = std::fmin(peak[row] - in.value[i] + 2 * error, 128.0);
      // Logits off by e: the softmax is off by a factor of at most exp(2 e), and by p (1 - p) 2 e <= e / 2 in all.
      const double of_logits = std::fmin(p[i] * std::expm1(2 * error), error / 2);
      const double of_sum    = (static_cast<double>(channels) + 2 * mean[row]) * u * p[i];
      const double softmax   = of_logits + (4 + 2.3 * distance) * ulp(p[i]) + of_sum + 0x1p-126;
      const double own       = softmax / 4 + 5.2 * ulp(v); // the sigmoid's slope and its own (4 + 1.2 p) ulp
      return tolerance{own + rounding<Out>(v, own), 0.0};
    };
    // The comparison sees a softmax over w instead of the channels, and one over the 8 channels of a thread.
    std::vector<double> over_w       = in.value;
    std::vector<double> over_a_piece = in.value;
    for (std::int64_t row = 0; row < shape.batch * channels * positions / shape.output(2); ++row)
    {
      softmax_sigmoid(over_w, row * shape.output(2), 1, shape.output(2));
    }
    for (std::int64_t n = 0; n < shape.batch; ++n)
    {
      for (std::int64_t c = 0; c < channels; c += 8)
      {
        for (std::int64_t at = 0; at < positions; ++at)
        {
          softmax_sigmoid(
            over_a_piece, (n * channels + c) * positions + at, positions, std::min<std::int64_t>(8, channels - c));
        }
      }
    }
    for (const auto& wrong : {over_w, over_a_piece})
    {
      const std::vector<float> values(wrong.begin(), wrong.end());
      EXPECT_FALSE(compare_values(values.data(), expected.data(), extents_of(shape), bound));
    }

    for (const arrangement& how : arrangements)
    {
      SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(shape) + ", "
                   + to_string(how));
      const auto y = run_convolution<In, Out>(shape, in.x, in.w, in.b, how, channels, [](const float* bias) {
        return chain(tconv::bias(bias), tconv::channel_softmax{}, tconv::sigmoid{});
      });
      ASSERT_FALSE(y.empty());
      EXPECT_TRUE(compare_values(y.data(), expected.data(), extents_of(shape), bound));
    }
  }
}

/// Channels last, in four pairs of slices; all layouts besides where \p all says so.
std::vector<arrangement> arrangements_of(bool all)
{
  std::vector<arrangement> list;
  for (std::int64_t i = 0; i < 4; ++i)
  {
    arrangement how;
    how.input        = tconv::layout::channels_last;
    how.output       = tconv::layout::channels_last;
    how.input_slice  = i;
    how.output_slice = 3 * i;
    how.misalignment = i == 2 ? 1 : 0;
    how.mode         = launch_modes[i % 3];
    list.push_back(how);
    if (all)
    {
      list.push_back(arrangement::number(i + 16));
    }
  }
  return list;
}

class typed_chain_gpu : public gpu_test
{};

TEST_F(typed_chain_gpu, softmax_sigmoid_f32)
{
  check_softmax_sigmoid<float, float>(arrangements_of(false));
}

TEST_F(typed_chain_gpu, softmax_sigmoid_f16)
{
  check_softmax_sigmoid<__half, __half>(arrangements_of(true));
}

TEST_F(typed_chain_gpu, softmax_sigmoid_bf16)
{
  check_softmax_sigmoid<__nv_bfloat16, __nv_bfloat16>(arrangements_of(true));
}

TEST_F(typed_chain_gpu, softmax_sigmoid_bf16_to_f32)
{
  check_softmax_sigmoid<__nv_bfloat16, float>(arrangements_of(true));
}

} // namespace
