// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// conv_transpose() with functors across positions in its chain, which run in passes behind the convolution.
///
/// Bounds begin with those of the numerical contract and follow a value through the chain, see common/bounded_tensor.cuh. Chains are
/// few because each is several kernels of the convolution; apply_chain() is tested with more.

#include "common/bounded_tensor.cuh"

#include <limits>

namespace
{

using namespace tconv_test;
using tconv::chain;
using bf16 = __nv_bfloat16;

/// What the convolution and \p bias (or null) leave, with the bound of the contract.
template <int Rank>
bounded_tensor<Rank> convolve(const std::vector<float>& x,
                              const std::vector<float>& w,
                              const float* bias,
                              const tconv::conv_transpose_shape<Rank>& shape)
{
  const full_reference full(x, w, shape);
  tconv::tensor_shape<Rank> s;
  s.batch                   = shape.batch;
  s.channels                = shape.out_channels;
  s.extent                  = shape.output();
  std::vector<double> value = full.value;
  std::vector<double> error(value.size());
  for (std::size_t i = 0; i < value.size(); ++i)
  {
    const auto c     = static_cast<std::int64_t>(i) / s.positions() % s.channels;
    const double b   = bias != nullptr ? static_cast<double>(bias[c]) : 0.0;
    const auto terms = static_cast<double>(full.terms[i]);
    value[i] += b;
    const double sums = (terms + 8) * 0x1p-24 * (full.magnitude[i] + std::fabs(b)) + terms * 0x1p-149;
    error[i]          = sums + ulp(std::fabs(value[i]) + sums) / 2;
  }
  return {s, std::move(value), std::move(error)};
}

/// \p make(bias) -> chain; \p has_bias: it begins with bias(), which is the contract's b.
template <class In, class Out, int Rank, class Make, class Rest>
void check(tconv::conv_transpose_shape<Rank> shape,
           std::uint32_t seed,
           bool with_nan,
           std::int64_t number,
           bool has_bias,
           Make make,
           const Rest& behind_the_bias)
{
  const arrangement how = arrangement::number(number);
  SCOPED_TRACE(to_string(shape) + ", seed " + std::to_string(seed) + ", " + to_string(how));
  auto x       = rounded_to<In>(random_values(seed, shape.input_elements()));
  const auto w = rounded_to<In>(random_values(seed + 1, shape.weight_elements()));
  const auto b = random_values(seed + 2, shape.out_channels);
  if (with_nan)
  {
    x[random_bits(seed, 3) % x.size()] = std::numeric_limits<float>::quiet_NaN();
  }
  bounded_tensor<Rank> expected = convolve(x, w, has_bias ? b.data() : nullptr, shape);
  expected.follow(behind_the_bias);

  const std::int64_t written = expected.shape.channels;
  shape.input_slice          = slice_number(how.input_slice, shape.in_channels);
  shape.output_slice         = slice_number(how.output_slice, written);
  tconv::options opts;
  opts.input_layout        = how.input;
  opts.output_layout       = how.output;
  opts.programmatic_launch = how.misalignment == 1;
  const placement in{shape.batch, shape.in_channels, shape.input_positions(), how.input, shape.input_slice};
  const placement out{shape.batch, written, expected.shape.positions(), how.output, shape.output_slice};
  device_buffer<In> dx(in.place<In>(x), how.misalignment);
  device_buffer<In> dw(elements_of<In>(w));
  device_buffer<float> db(b);
  device_buffer<Out> dy(out.tensor_elements(), how.misalignment);
  const auto functors = make(db.data());
  workspace_buffer space(tconv::conv_transpose_workspace_bytes<In, Out>(shape, functors, opts));
  ASSERT_TRUE(run(how.mode, [&](cudaStream_t stream) {
    return tconv::conv_transpose(dx.data(), dw.data(), dy.data(), shape, functors, opts, space.get(), stream);
  }));
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && db.guards_intact() && dy.guards_intact()
              && space.guards_intact());
  const auto y = dy.download();
  EXPECT_TRUE(out.others_untouched(y)) << "channels beside the slice were written";
  EXPECT_TRUE(expected.template compare<Out>(out.extract(y)));
}

class conv_transpose_pool_gpu : public gpu_test
{};

// y is bf16, but nothing between the passes is.
TEST_F(conv_transpose_pool_gpu, bias_max_pool_softmax_mean)
{
  const auto behind = chain(tconv::max_pool(2), tconv::channel_softmax{}, tconv::spatial_mean({0}));
  const auto make   = [&](const float* b) {
    return chain(tconv::bias(b), tconv::max_pool(2), tconv::channel_softmax{}, tconv::spatial_mean({0}));
  };
  std::uint32_t seed = 1;
  for (std::int64_t i = 0; i < 4; ++i)
  {
    for (const std::int64_t channels : {5, 64, 300})
    {
      // 5 x 9 x 7 outputs: the last of each axis is in no window.
      check<bf16, bf16>(make_shape<3>({2, 5, channels, 1}, {3, 5, 4}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
                        seed,
                        i == 1,
                        seed,
                        true,
                        make,
                        behind);
      seed += 3;
    }
    check<bf16, bf16>(
      make_shape<2>({2, 6, 12, 3}, {5, 4}, {3, 2}, {2, 3}, {1, 0}, {1, 2}), seed, false, seed, true, make, behind);
    check<bf16, bf16>(make_shape<1>({3, 7, 9, 1}, {101}, {16}, {8}, {4}), seed + 1, false, seed, true, make, behind);
    seed += 10;
  }
}

// The channels are reduced on the accumulators, or where there are too many for that, from logits in the workspace.
TEST_F(conv_transpose_pool_gpu, channel_max_then_max_pool)
{
  const auto functors = chain(tconv::channel_max{}, tconv::max_pool({2, 1, 3}, {1, 2, 2}));
  const auto make     = [&](const float*) { return functors; };
  std::uint32_t seed  = 100;
  for (std::int64_t i = 0; i < 4; ++i)
  {
    for (const std::int64_t channels : {1, 64, 300})
    {
      check<float, float>(make_shape<3>({2, 4, channels, 1}, {3, 2, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
                          seed,
                          i % 2 == 1,
                          seed,
                          false,
                          make,
                          functors);
      seed += 3;
    }
  }
}

// Checked before anything is launched, so without a GPU too.
TEST(conv_transpose_pool_arguments, windows_are_those_of_the_output)
{
  const auto shape = make_shape<2>({1, 2, 3, 1}, {3, 4}, {2, 2}, {2, 2}); // 6 x 8 outputs
  const auto at    = [](std::uintptr_t offset) { return reinterpret_cast<float*>((std::uintptr_t{1} << 40) + offset); };
  const auto call  = [&](const auto& functors, std::uintptr_t y, std::size_t missing) {
    const std::size_t bytes = tconv::conv_transpose_workspace_bytes(shape, functors) - missing;
    return tconv::conv_transpose(
      at(0), at(1 << 20), at(y), shape, functors, tconv::options{}, {at(std::uintptr_t{1} << 30), bytes}, nullptr);
  };
  const auto large = chain(tconv::channel_max{}, tconv::max_pool({2, 1, 3}, {1, 2, 2}));
  EXPECT_STREQ(call(large, 1 << 21, 0).message(), "functors: max_pool has windows for 3 axes: the tensor has 2");
  EXPECT_EQ(tconv::conv_transpose_workspace_bytes(shape, large), 0U);
  const auto wide = chain(tconv::channel_max{}, tconv::max_pool({7, 8}, {1, 1}));
  EXPECT_STREQ(
    call(wide, 1 << 21, 0).message(), "functors: max_pool has size 7 along h: must be <= 6, the extent there");
  const auto good = chain(tconv::channel_max{}, tconv::max_pool({6, 8}, {1, 1}));
  EXPECT_EQ(call(good, 1 << 21, 1).code(), tconv::status_code::workspace_too_small);
  EXPECT_STREQ(call(good, 0, 0).message(), "y: must not overlap x");
}

} // namespace
