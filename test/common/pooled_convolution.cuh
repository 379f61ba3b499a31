// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// conv_transpose() with functors across positions in its chain, against the reference. Bounds begin with those of the numerical
/// contract and follow a value through the chain, see bounded_tensor.cuh.

#include "bounded_tensor.cuh"

#include <limits>

namespace tconv_test
{

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
void check_pooled_convolution(tconv::conv_transpose_shape<Rank> shape,
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
  // What the library chooses, and every other time the general way.
  opts.engine = number / 4 % 2 == 0 ? tconv::engine::automatic : tconv::engine::gather;
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

} // namespace tconv_test
