// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Functors with a whole tensor as operand: in conv_transpose(), fused and finished in place, and in apply_chain().

#include "common/recipes.hpp"
#include "common/typed_convolution.cuh"

#include <tconv/launch/apply_chain.cuh>
#include <tconv/thread/softmax.hpp>
#include <tconv/thread/tensor_operand.cuh>

namespace
{

using namespace tconv_test;
using tconv::chain;

class tensor_operand_gpu : public gpu_test
{};

/// y = softmax((conv + b + r) * m): r in bf16, in \p operand order and a slice of a wider tensor full of NaN; m packed like y.
void check(const shape3& shape, std::uint32_t seed, const arrangement& how, tconv::layout operand)
{
  SCOPED_TRACE(to_string(shape) + ", " + to_string(how));
  const std::int64_t count     = shape.output_elements();
  const std::int64_t positions = shape.output_positions();
  const auto x                 = random_values(seed, shape.input_elements());
  const auto w                 = random_values(seed + 1, shape.weight_elements());
  const auto b                 = random_values(seed + 2, shape.out_channels);
  const auto r                 = rounded_to<__nv_bfloat16>(random_values(seed + 3, count, -2.0f, 2.0f));
  const auto m                 = random_values(seed + 4, count, 0.5f, 1.5f);

  const tconv::channel_slice slice = slice_number(1, shape.out_channels);
  const placement place_r{shape.batch, shape.out_channels, positions, operand, slice};
  const placement place_m{shape.batch, shape.out_channels, positions, how.output, {}};
  const device_buffer<__nv_bfloat16> dr(place_r.place<__nv_bfloat16>(r));
  const device_buffer<float> dm(place_m.place<float>(m));
  const auto r_strides = tconv::tensor_strides::of(operand, slice.total(shape.out_channels), positions);
  const auto m_strides = tconv::tensor_strides::of(how.output, shape.out_channels, positions);
  const auto y         = run_convolution<float, float>(shape, x, w, b, how, shape.out_channels, [&](const float* bias) {
    return chain(tconv::bias(bias),
                 tconv::add_tensor(dr.data() + slice.first_channel * r_strides.channel, r_strides),
                 tconv::multiply_tensor(dm.data(), m_strides),
                 tconv::channel_softmax{});
  });
  ASSERT_FALSE(y.empty());

  full_reference expected(x, w, shape);
  double worst = 0.0;
  for (std::size_t i = 0; i < expected.value.size(); ++i)
  {
    // The logit's bound, and the roundings of the sum and the product.
    worst = std::fmax(
      worst, static_cast<double>(expected.terms[i] + 12) * 0x1p-24 * (expected.magnitude[i] + 4.0) * 1.5);
  }
  const auto packed = tconv::tensor_strides::of(tconv::layout::channels_first, shape.out_channels, positions);
  tconv::reference::apply(chain(tconv::bias(b.data()),
                                tconv::add_tensor(r.data(), packed),
                                tconv::multiply_tensor(m.data(), packed),
                                tconv::channel_softmax{}),
                          expected.value.data(),
                          shape.batch,
                          shape.out_channels,
                          positions);
  // A shift of all logits by at most worst changes a softmax by a factor within exp(2 worst).
  EXPECT_TRUE(compare_values(y.data(), expected.value.data(), extents_of(shape), [&](std::int64_t, double) {
    return tolerance{0.0, 2.1 * worst + 4e-6};
  }));
}

TEST_F(tensor_operand_gpu, in_conv_transpose)
{
  std::uint32_t seed = 1;
  for (const shape3& shape : {make_shape<3>({2, 3, 5, 1}, {2, 3, 7}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
                              make_shape<3>({1, 8, 64, 1}, {2, 4, 8}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
                              make_shape<3>({2, 4, 300, 1}, {1, 3, 5}, {1, 3, 3}, {1, 1, 3}),
                              make_shape<3>({1, 2, 9, 1}, {1, 5, 11}, {1, 3, 4}, {1, 3, 1}, {0, 0, 1}, {0, 2, 0})})
  {
    for (std::int64_t i = 0; i < 4; ++i)
    {
      const auto operand = i % 3 == 0 ? tconv::layout::channels_first : tconv::layout::channels_last;
      check(shape, seed, arrangement::number(seed), operand);
      check(shape, seed + 50, arrangement::number(seed + 2), operand);
      ++seed;
    }
  }
}

// y = x - r, exactly, where the operand is y's own memory too: every element is read before it is written.
TEST_F(tensor_operand_gpu, in_apply_chain_in_place)
{
  for (const std::int64_t channels : {3, 64, 70})
  {
    tconv::tensor_shape<2> shape;
    shape.batch    = 2;
    shape.channels = channels;
    shape.extent   = {5, 27};
    const auto x   = counting(shape.elements());
    device_buffer<float> y(x);
    const auto strides  = tconv::tensor_strides::of(tconv::layout::channels_first, channels, shape.positions());
    const auto functors = chain(tconv::scale(3.0f), tconv::subtract_tensor(y.data(), strides));
    workspace_buffer space(tconv::apply_chain_workspace_bytes(shape, functors));
    ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::apply_chain(y.data(), y.data(), shape, functors, tconv::options{}, space.get(), stream);
    }));
    const auto got = y.download();
    for (std::size_t i = 0; i < x.size(); ++i)
    {
      ASSERT_EQ(got[i], 2.0f * x[i]);
    }
    EXPECT_TRUE(y.guards_intact());
  }
}

} // namespace
