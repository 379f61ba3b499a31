// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// conv_transpose() with each engine asked for by name: the same contract, and refusals.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/typed_convolution.cuh"

#include <tconv/reference/chain.hpp>
#include <tconv/tconv.cuh>

#include <algorithm>
#include <cmath>

namespace
{

using namespace tconv_test;
using tconv::chain;
using tconv::engine;

class engines_gpu : public gpu_test
{
protected:
  void SetUp() override
  {
    gpu_test::SetUp();
    if (!IsSkipped() && !tconv::runtime::find_gemm_device(engine::implicit_gemm).available)
    {
      GTEST_SKIP() << "needs a device and a build that have the kernels";
    }
  }
};

constexpr engine both[] = {engine::gather, engine::implicit_gemm, engine::automatic};

// Layouts, slices, alignments and launch modes behind the launcher; more channels than one tile.
TEST_F(engines_gpu, every_arrangement_obeys_the_contract)
{
  const shape3 shapes[] = {
    make_shape<3>({2, 32, 64, 1}, {3, 5, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
    make_shape<3>({1, 17, 5, 1}, {2, 3, 37}, {3, 1, 5}, {1, 2, 3}, {1, 0, 2}, {0, 1, 1}),
    make_shape<3>({1, 64, 300, 1}, {1, 7, 9}, {1, 2, 2}, {1, 2, 2}),
    make_shape<3>({1, 48, 70, 1}, {1, 1, 333}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}),
  };
  std::int64_t number = 0;
  for (const shape3& s : shapes)
  {
    for (std::int64_t i = 0; i < 6; ++i)
    {
      for (const engine e : both)
      {
        auto how   = arrangement::number(11 * number);
        how.engine = e;
        check_convolution<float, float>(s, 5, how);
      }
      ++number;
    }
  }
}

// Groups are multiplied precisely in every math mode: the engine's TF32 products would bring what is not finite to other groups.
TEST_F(engines_gpu, groups_are_precise_in_tf32)
{
  const shape3 shapes[] = {make_shape<3>({2, 32, 64, 4}, {1, 8, 35}, {1, 3, 5}, {1, 2, 3}, {0, 1, 2}, {}, {1, 2, 1}),
                           make_shape<3>({1, 32, 32, 4}, {3, 4, 12}, {3, 5, 7}, {2, 2, 2}, {1, 2, 3}, {1, 1, 1})};
  for (const shape3& s : shapes)
  {
    for (const engine e : {engine::implicit_gemm, engine::automatic})
    {
      auto how   = arrangement::number(2);
      how.engine = e;
      how.math   = tconv::math::tf32;
      check_convolution<float, float>(s, 5, how);
    }
  }
}

// Channel functors on the accumulators, and behind stored logits where a tile does not hold all channels. A softmax differs by at most
// half of what its logits differ by, and its own arithmetic by a few 1e-6.
TEST_F(engines_gpu, channel_functors)
{
  for (const std::int64_t channels : {5, 64, 128, 150, 300})
  {
    const shape3 s     = make_shape<3>({2, 32, channels, 1}, {2, 3, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
    const auto& inputs = convolution_inputs<__nv_bfloat16>::of(s, 3);
    std::vector<double> expected = inputs.expected.value;
    tconv::reference::apply(chain(tconv::bias(inputs.b.data()), tconv::channel_softmax{}),
                            expected.data(),
                            s.batch,
                            channels,
                            s.output_positions());
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
    {
      worst = std::fmax(
        worst, (static_cast<double>(inputs.expected.terms[i]) + 8) * 0x1p-24 * (inputs.expected.magnitude[i] + 1));
    }
    for (std::int64_t i = 0; i < 4; ++i)
    {
      for (const engine e : both)
      {
        auto how     = arrangement::number(i);
        how.engine   = e;
        const auto y = run_convolution<__nv_bfloat16, float>(
          s, inputs.x, inputs.w, inputs.b, how, channels, [](const float* b) {
            return chain(tconv::bias(b), tconv::channel_softmax{});
          });
        ASSERT_FALSE(y.empty());
        EXPECT_TRUE(compare_values(y.data(),
                                   expected.data(),
                                   extents_of(s),
                                   [&](std::int64_t, double) {
                                     return tolerance{0.5 * worst + 1e-6, 4e-6};
                                   }))
          << channels << " channels, " << to_string(how);
      }
    }
  }
}

// The engines round differently, so that equal bits tell which one ran.
TEST_F(engines_gpu, describe_names_the_engine_that_runs)
{
  const shape3 shapes[] = {
    make_shape<3>({2, 32, 64, 1}, {8, 16, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
    make_shape<3>({1, 64, 128, 1}, {1, 32, 64}, {1, 3, 3}),
    make_shape<3>({2, 16, 4, 1}, {1, 16, 32}, {1, 3, 3}),
    make_shape<3>({1, 6, 32, 2}, {2, 9, 16}, {3, 3, 3}),
  };
  int on_tensor_cores = 0;
  for (const shape3& s : shapes)
  {
    const auto told = tconv::describe(s, chain(tconv::bias(nullptr)));
    ASSERT_TRUE(told.outcome.ok()) << told.text;
    SCOPED_TRACE(told.text);
    on_tensor_cores += told.engine == engine::implicit_gemm;
    EXPECT_EQ(
      told.engine == engine::implicit_gemm, told.implicit_gemm_ms > 0 && told.implicit_gemm_ms < told.gather_ms);
    const auto& inputs = convolution_inputs<float>::of(s, 9);
    const auto outputs = [&](engine e) {
      arrangement how;
      how.engine = e;
      return run_convolution<float, float>(
        s, inputs.x, inputs.w, inputs.b, how, s.out_channels, [](const float* b) { return chain(tconv::bias(b)); });
    };
    const auto chosen = outputs(engine::automatic);
    EXPECT_EQ(chosen, outputs(told.engine));
    if (told.implicit_gemm_ms > 0)
    {
      EXPECT_NE(chosen, outputs(told.engine == engine::gather ? engine::implicit_gemm : engine::gather));
    }
  }
  EXPECT_TRUE(on_tensor_cores > 0 && on_tensor_cores < 4) << on_tensor_cores;
}

TEST_F(engines_gpu, what_an_engine_does_not_have_is_refused)
{
  const auto code = [](const shape3& s, engine e) {
    tconv::options opts;
    opts.engine = e;
    device_buffer<float> x(s.input_elements()), w(s.weight_elements()), y(s.output_elements()), b(s.out_channels);
    const auto functors = chain(tconv::bias(b.data()));
    workspace_buffer space(tconv::conv_transpose_workspace_bytes(s, functors, opts));
    return tconv::conv_transpose(x.data(), w.data(), y.data(), s, functors, opts, space.get(), nullptr).code();
  };
  const shape3 dense  = make_shape<3>({1, 32, 32, 1}, {2, 3, 4}, {3, 3, 3});
  const shape3 groups = make_shape<3>({1, 32, 32, 2}, {2, 3, 4}, {3, 3, 3});
  const shape3 narrow = make_shape<3>({1, 32, 32, 16}, {2, 3, 4}, {3, 3, 3});
  const shape3 few    = make_shape<3>({1, 3, 32, 1}, {2, 3, 4}, {3, 3, 3});
  EXPECT_EQ(code(dense, engine::implicit_gemm), tconv::status_code::success);
  EXPECT_EQ(code(groups, engine::implicit_gemm), tconv::status_code::success);
  EXPECT_EQ(code(narrow, engine::implicit_gemm), tconv::status_code::not_supported);
  EXPECT_EQ(code(few, engine::implicit_gemm), tconv::status_code::not_supported);
  EXPECT_EQ(code(dense, engine::spectral), tconv::status_code::not_supported);
  EXPECT_EQ(code(dense, engine::implicit_gemm_warp), tconv::status_code::not_supported); // not in this build
  EXPECT_EQ(code(narrow, engine::automatic), tconv::status_code::success);
  EXPECT_EQ(code(few, engine::gather), tconv::status_code::success);
}

} // namespace
