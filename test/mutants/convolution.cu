// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// conv_transpose() with a bias and nothing else: logits before anything squashes them. For faults in taps, operands, bias.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/recipes.hpp"

#include <tconv/launch/conv_transpose.cuh>

namespace
{

using namespace tconv_test;

class convolution : public gpu_test
{};

std::vector<float> run_on_device(const shape3& shape,
                                 const std::vector<float>& x,
                                 const std::vector<float>& w,
                                 const std::vector<float>& b)
{
  device_buffer<float> dx(x);
  device_buffer<float> dw(w);
  device_buffer<float> db(b);
  device_buffer<float> dy(shape.output_elements());
  const auto functors = tconv::chain(tconv::bias(db.data()));
  workspace_buffer space(tconv::conv_transpose_workspace_bytes(shape, functors));
  EXPECT_TRUE(run(launch_mode::direct,
                  [&](cudaStream_t stream) {
                    return tconv::conv_transpose(
                      dx.data(), dw.data(), dy.data(), shape, functors, tconv::options{}, space.get(), stream);
                  }))
    << to_string(shape);
  return dy.download();
}

/// Stride 2 with odd and even padding, stride 1, stride 3, dilation: every way in which runs of taps are laid out.
std::vector<shape3> shapes()
{
  return {make_shape<3>({2, 8, 24, 1}, {2, 3, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
          make_shape<3>({1, 8, 5, 1}, {2, 3, 9}, {1, 3, 4}, {1, 2, 2}, {0, 2, 2}),
          make_shape<3>({1, 4, 12, 1}, {2, 3, 17}, {2, 3, 5}, {1, 1, 1}, {1, 1, 2}),
          make_shape<3>({1, 8, 8, 4}, {1, 5, 7}, {1, 3, 7}, {1, 3, 3}, {0, 1, 2}, {0, 0, 1}),
          make_shape<3>({1, 3, 1, 1}, {1, 5, 20}, {1, 2, 3}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, {1, 3, 2})};
}

// Sums of small integers are exact, so one product in the wrong place shows as a wrong integer.
TEST_F(convolution, every_tap_reads_its_own_input)
{
  for (const shape3& shape : shapes())
  {
    const auto x = recipe_x_values(shape.input_elements());
    const auto w = recipe_w_values(shape.weight_elements());
    const std::vector<float> zero(static_cast<std::size_t>(shape.out_channels), 0.0f);
    const full_reference expected(x, w, shape);
    EXPECT_TRUE(compare_values(run_on_device(shape, x, w, zero).data(),
                               expected.value.data(),
                               extents_of(shape),
                               [](std::int64_t, double) { return tolerance{}; }))
      << to_string(shape);
  }
}

// Stride beyond the kernel: most outputs are their bias and nothing else.
TEST_F(convolution, bias_reaches_every_output)
{
  const shape3 shape = make_shape<3>({2, 3, 10, 1}, {2, 3, 5}, {1, 1, 2}, {2, 1, 3});
  const auto x       = random_values(1, shape.input_elements());
  const auto w       = random_values(2, shape.weight_elements());
  const auto b       = random_values(3, shape.out_channels, 1.0f, 2.0f);
  const full_reference expected(x, w, shape);
  EXPECT_TRUE(
    compare_convolution(run_on_device(shape, x, w, b).data(), expected.with_bias(b.data()), extents_of(shape)));
}

// The contract's bound per output, at few enough products that TF32 (2^-11 per operand) exceeds it by orders of magnitude.
TEST_F(convolution, errors_stay_within_the_precise_bound)
{
  std::uint32_t seed = 10;
  for (const shape3& shape : shapes())
  {
    const auto x = random_values(++seed, shape.input_elements());
    const auto w = random_values(++seed, shape.weight_elements());
    const auto b = random_values(++seed, shape.out_channels);
    const full_reference expected(x, w, shape);
    EXPECT_TRUE(
      compare_convolution(run_on_device(shape, x, w, b).data(), expected.with_bias(b.data()), extents_of(shape)))
      << to_string(shape);
  }
}

} // namespace
