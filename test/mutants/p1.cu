// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// P1 in small: conv_transpose() with bias, softmax over channels, sigmoid. For faults in how rows of channels are formed.

#include "common/conv_case.hpp"
#include "common/device.hpp"

#include <tconv/launch/conv_transpose.cuh>
#include <tconv/reference/chain.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/softmax.hpp>

#include <algorithm>

namespace
{

using namespace tconv_test;
using tconv::chain;

class p1 : public gpu_test
{};

/// With default initialisation every output is nearly sigmoid(1 / channels) and a softmax over the wrong 64 neighbours looks
/// like rounding, so the logits are spread until one channel of most rows stands out.
void check(const shape3& shape, float amplitude)
{
  const auto x = random_values(1, shape.input_elements());
  const auto w = random_values(2, shape.weight_elements(), -amplitude, amplitude);
  const auto b = random_values(3, shape.out_channels, -2.0f, 2.0f);
  device_buffer<float> dx(x);
  device_buffer<float> dw(w);
  device_buffer<float> db(b);
  device_buffer<float> dy(shape.output_elements());
  const auto functors = [](const float* bias) {
    return chain(tconv::bias(bias), tconv::channel_softmax{}, tconv::sigmoid{});
  };
  workspace_buffer space(tconv::conv_transpose_workspace_bytes(shape, functors(nullptr)));
  ASSERT_TRUE(
    run(launch_mode::direct,
        [&](cudaStream_t stream) {
          return tconv::conv_transpose(
            dx.data(), dw.data(), dy.data(), shape, functors(db.data()), tconv::options{}, space.get(), stream);
        }))
    << to_string(shape);

  full_reference expected(x, w, shape);
  double logit_error = 0;
  for (std::size_t i = 0; i < expected.value.size(); ++i)
  {
    const auto factor = static_cast<double>(expected.terms[i] + 8) * 0x1p-24;
    logit_error       = std::fmax(logit_error, factor * (expected.magnitude[i] + 2.0));
  }
  tconv::reference::apply(
    functors(b.data()), expected.value.data(), shape.batch, shape.out_channels, shape.output_positions());

  // sigmoid(1/2) = 0.62: in at least half of the rows one channel has more than all the others together.
  const auto peaks = std::count_if(expected.value.begin(), expected.value.end(), [](double v) { return v > 0.6224; });
  ASSERT_GT(2 * peaks, shape.batch * shape.output_positions()) << "the logits are too flat to see anything";

  // Softmax halves the largest logit error at most, the sigmoid quarters it; the rest is the rounding of both.
  EXPECT_TRUE(compare_values(dy.download().data(),
                             expected.value.data(),
                             extents_of(shape),
                             [&](std::int64_t, double) {
                               return tolerance{logit_error / 8 * 2, 4e-7};
                             }))
    << to_string(shape);
}

TEST_F(p1, softmax_is_taken_over_the_channels)
{
  // P1's own channels, and as many channels as a thread holds.
  check(make_shape<3>({2, 32, 64, 1}, {2, 3, 12}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}), 1.5f);
  check(make_shape<3>({2, 32, 8, 1}, {2, 3, 12}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}), 1.5f);
}

} // namespace
