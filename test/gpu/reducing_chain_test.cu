// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Chains behind conv_transpose() that reduce the channels to one, in fp32 and bf16, in every layout.
///
/// Bounds follow from the numerical contract: the bound of each logit, what the chain makes of it, and the rounding of the output.

#include "common/logits.cuh"

#include <tconv/thread/channel_reduction.hpp>
#include <tconv/thread/softmax.hpp>

namespace
{

using namespace tconv_test;
using tconv::chain;

constexpr double u = 0x1p-24;

/// A chain that reduces the channels; both commute with a shift of all logits, so an error of the logits passes as it is.
/// \p own: what the functor adds, with its rounding to fp32.
template <class In, class Out, class Functor, class Own>
void check_reducing(const logits<In>& in, const Functor& functor, const arrangement& how, Own own)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(in.shape) + ", "
               + to_string(how));
  const auto y = run_convolution<In, Out>(
    in.shape, in.x, in.w, in.b, how, 1, [&](const float* bias) { return chain(tconv::bias(bias), functor); });
  ASSERT_FALSE(y.empty());
  std::vector<double> expected = in.value;
  tconv::reference::apply(
    chain(functor), expected.data(), in.shape.batch, in.shape.out_channels, in.shape.output_positions());
  output_extents extents = extents_of(in.shape);
  extents.c              = 1;
  EXPECT_TRUE(compare_values(y.data(), expected.data(), extents, [&](std::int64_t flat, double v) {
    const double error = in.error[in.row_of(flat, 1)] + own(v);
    return tolerance{error + rounding<Out>(v, error), 0.0};
  }));
}

template <class In, class Out>
void check_reducing_chains()
{
  std::vector<shape3> shapes;
  for (const std::int64_t channels : {1, 5, 64, 256, 257, 1000})
  {
    shapes.push_back(make_shape<3>({2, 6, channels, 1}, {1, 3, 7}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {0, 1, 1}));
  }
  // One output channel a thread, four of them, with groups; stride 1.
  shapes.push_back(make_shape<3>({2, 9, 9, 9}, {2, 5, 8}, {1, 3, 3}, {1, 1, 2}, {0, 1, 1}));
  shapes.push_back(make_shape<3>({1, 6, 12, 3}, {2, 3, 5}, {2, 3, 3}));
  shapes.push_back(make_shape<3>({3, 4, 100, 1}, {2, 3, 5}, {2, 3, 3}, {1, 1, 1}, {0, 1, 1}));
  std::uint32_t seed  = 40;
  std::int64_t number = 0;
  for (const shape3& shape : shapes)
  {
    ++seed;
    const logits<In> in(shape, seed, 4.0f, seed % 2 == 0);
    for (int i = 0; i < 4; ++i) // both layouts of both tensors
    {
      check_reducing<In, Out>(in, tconv::channel_max{}, arrangement::number(number), [](double) { return 0.0; });
      // Each chain and type instantiates the engine once more: half types have one of them.
      if constexpr (sizeof(In) == sizeof(float))
      {
        check_reducing<In, Out>(in, tconv::channel_logsumexp{}, arrangement::number(number), [&](double v) {
          const double own = static_cast<double>(shape.out_channels + 8) * u;
          return own + ulp(std::fabs(v) + own) / 2;
        });
      }
      number += 5;
    }
  }
}

class reducing_chain_gpu : public gpu_test
{};

TEST_F(reducing_chain_gpu, f32)
{
  check_reducing_chains<float, float>();
}

TEST_F(reducing_chain_gpu, bf16)
{
  check_reducing_chains<__nv_bfloat16, __nv_bfloat16>();
}

} // namespace
