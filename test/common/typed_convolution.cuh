// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// One call of conv_transpose() with any types, layouts and slices, with guards everywhere, against the reference.

#include "conv_case.hpp"
#include "tensors.cuh"

#include <tconv/launch/conv_transpose.cuh>
#include <tconv/reference/chain.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tconv_test
{

/// How the tensors of a call stand in memory.
struct arrangement
{
  tconv::layout input       = tconv::layout::channels_first;
  tconv::layout output      = tconv::layout::channels_first;
  std::int64_t input_slice  = 0; ///< see slice_number()
  std::int64_t output_slice = 0;
  std::int64_t misalignment = 0; ///< elements
  launch_mode mode          = launch_mode::direct;
  tconv::engine engine      = tconv::engine::automatic;
  tconv::math math          = tconv::math::precise;

  /// Combination number \p i: every pair of layouts and slices comes round in 64 of them.
  static arrangement number(std::int64_t i)
  {
    const auto order = [](std::int64_t bit) {
      return bit % 2 == 0 ? tconv::layout::channels_first : tconv::layout::channels_last;
    };
    arrangement result;
    result.input        = order(i);
    result.output       = order(i / 2);
    result.input_slice  = i / 4;
    result.output_slice = i / 4 + i / 16;
    result.misalignment = i / 3 % 3;
    result.mode         = launch_modes[i % 3];
    return result;
  }
};

inline std::string to_string(const arrangement& a)
{
  std::ostringstream out;
  out << (a.input == tconv::layout::channels_first ? "channels first" : "channels last") << " -> "
      << (a.output == tconv::layout::channels_first ? "channels first" : "channels last") << ", slices "
      << a.input_slice % 4 << " and " << a.output_slice % 4 << ", misalignment " << a.misalignment << ", "
      << name_of(a.mode) << ", engine " << static_cast<int>(a.engine);
  return out.str();
}

/// Runs conv_transpose with \p make_chain(bias on the device) on values rounded to In, and returns the outputs channels first;
/// empty after a failure. \p written: channels of the result.
template <class In, class Out, class MakeChain>
std::vector<float> run_convolution(shape3 shape,
                                   const std::vector<float>& x,
                                   const std::vector<float>& w,
                                   const std::vector<float>& b,
                                   const arrangement& how,
                                   std::int64_t written,
                                   MakeChain make_chain)
{
  shape.input_slice  = slice_number(how.input_slice, shape.in_channels);
  shape.output_slice = slice_number(how.output_slice, written);
  tconv::options opts;
  opts.input_layout  = how.input;
  opts.output_layout = how.output;
  opts.engine        = how.engine;
  opts.math          = how.math;
  const placement in{shape.batch, shape.in_channels, shape.input_positions(), how.input, shape.input_slice};
  const placement out{shape.batch, written, shape.output_positions(), how.output, shape.output_slice};

  device_buffer<In> dx(in.place<In>(x), how.misalignment);
  device_buffer<In> dw(elements_of<In>(w), how.misalignment);
  device_buffer<float> db(b);
  device_buffer<Out> dy(out.tensor_elements(), how.misalignment);
  const auto functors = make_chain(db.data());
  workspace_buffer space(tconv::conv_transpose_workspace_bytes<In, Out>(shape, functors, opts));
  const bool good = run(how.mode, [&](cudaStream_t stream) {
    return tconv::conv_transpose(dx.data(), dw.data(), dy.data(), shape, functors, opts, space.get(), stream);
  });
  EXPECT_TRUE(good);
  EXPECT_TRUE(dx.guards_intact() && dw.guards_intact() && db.guards_intact() && dy.guards_intact()
              && space.guards_intact());
  const std::vector<Out> y = dy.download();
  EXPECT_TRUE(out.others_untouched(y)) << "channels beside the slice were written";
  return good ? out.extract(y) : std::vector<float>{};
}

/// Random inputs rounded to In, and what the reference says about them.
template <class In>
struct convolution_inputs
{
  std::vector<float> x;
  std::vector<float> w;
  std::vector<float> b;
  full_reference expected;

  convolution_inputs(const shape3& shape, std::uint32_t seed)
      : x(rounded_to<In>(random_values(seed, shape.input_elements())))
      , w(rounded_to<In>(random_values(seed + 1000, shape.weight_elements())))
      , b(random_values(seed + 2000, shape.out_channels))
      , expected(x, w, shape)
  {}

  /// The same for the same arguments: the reference is computed once, for all output types and arrangements.
  static const convolution_inputs& of(const shape3& shape, std::uint32_t seed)
  {
    static std::map<std::string, std::unique_ptr<convolution_inputs>> known;
    auto& found = known[to_string(shape) + ' ' + std::to_string(seed)];
    if (found == nullptr)
    {
      found = std::make_unique<convolution_inputs>(shape, seed);
    }
    return *found;
  }
};

/// A convolution with bias, of random values, against the bound of the numerical contract.
template <class In, class Out>
void check_convolution(const shape3& shape, std::uint32_t seed, const arrangement& how)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(shape) + ", "
               + to_string(how));
  const auto& inputs = convolution_inputs<In>::of(shape, seed);
  const auto y       = run_convolution<In, Out>(
    shape, inputs.x, inputs.w, inputs.b, how, shape.out_channels, [](const float* bias) {
      return tconv::chain(tconv::bias(bias));
    });
  ASSERT_FALSE(y.empty());
  comparison_options options;
  options.format = format_of<Out>::value;
  EXPECT_TRUE(compare_convolution(y.data(), inputs.expected.with_bias(inputs.b.data()), extents_of(shape), options));
}

} // namespace tconv_test
