// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Both instructions of the tensor-core engine in one build, asked for by name: mma.sync and wgmma give the same bits.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/typed_convolution.cuh"

#include <tconv/tconv.cuh>

namespace
{

using namespace tconv_test;
using tconv::chain;
using tconv::engine;

class warp_engine_gpu : public gpu_test
{
protected:
  void SetUp() override
  {
    gpu_test::SetUp();
    if (!IsSkipped() && !tconv::runtime::find_gemm_device(engine::implicit_gemm_warp).available)
    {
      GTEST_SKIP() << "needs a device of compute capability 8.0 or newer";
    }
  }
};

/// One, two and more phases in a thread, 32, 64 and 128 columns, tiles that channels and rows do not fill, input channels in chunks, kernels whose
/// shifts have code of their own and others.
std::vector<shape3> shapes()
{
  return {
    make_shape<3>({2, 32, 64, 1}, {3, 5, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}),
    make_shape<3>({1, 17, 5, 1}, {2, 3, 37}, {3, 1, 5}, {1, 2, 3}, {1, 0, 2}, {0, 1, 1}),
    make_shape<3>({1, 64, 300, 1}, {1, 7, 9}, {1, 2, 2}, {1, 2, 2}),
    make_shape<3>({1, 48, 70, 1}, {1, 1, 333}, {1, 1, 16}, {1, 1, 8}, {0, 0, 4}),
    make_shape<3>({1, 700, 40, 1}, {2, 3, 5}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}),
    make_shape<3>({1, 40, 33, 1}, {1, 9, 40}, {1, 4, 4}, {1, 2, 2}, {0, 1, 1}),
    make_shape<3>({1, 40, 33, 1}, {1, 9, 40}, {1, 4, 4}, {1, 2, 4}, {0, 1, 0}),
    make_shape<3>({2, 20, 35, 1}, {1, 5, 23}, {1, 3, 9}, {1, 2, 5}, {0, 1, 1}),
    make_shape<3>({1, 32, 24, 1}, {5, 9, 11}, {3, 3, 3}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1}, {2, 2, 2}),
  };
}

template <class In>
std::vector<float> outputs(const shape3& s, engine e, tconv::math how_exact, std::int64_t number)
{
  const auto& inputs = convolution_inputs<In>::of(s, 9);
  auto how           = arrangement::number(number);
  how.engine         = e;
  how.math           = how_exact;
  return run_convolution<In, In>(
    s, inputs.x, inputs.w, inputs.b, how, s.out_channels, [](const float* b) { return chain(tconv::bias(b)); });
}

TEST_F(warp_engine_gpu, has_the_bits_of_wgmma)
{
  if (tconv::runtime::find_gemm_device(engine::implicit_gemm).machine.instruction != tconv::gemm_instruction::warpgroup)
  {
    GTEST_SKIP() << "needs an sm_90a device and build";
  }
  std::int64_t number = 0;
  for (const shape3& s : shapes())
  {
    SCOPED_TRACE(to_string(s));
    const auto same = [&](auto element, tconv::math how) {
      using in = decltype(element);
      EXPECT_EQ(
        outputs<in>(s, engine::implicit_gemm, how, number), outputs<in>(s, engine::implicit_gemm_warp, how, number));
      ++number;
    };
    same(float{}, tconv::math::precise);
    same(float{}, tconv::math::tf32);
    same(__nv_bfloat16{}, tconv::math::precise);
    same(__half{}, tconv::math::precise);
  }
  // Groups in a tile of columns: of fp32 tensors alone.
  const shape3 grouped = make_shape<3>({2, 32, 64, 4}, {1, 8, 35}, {1, 3, 5}, {1, 2, 3}, {0, 1, 2}, {}, {1, 2, 1});
  for (const tconv::math how : {tconv::math::precise, tconv::math::tf32})
  {
    EXPECT_EQ(outputs<float>(grouped, engine::implicit_gemm, how, number),
              outputs<float>(grouped, engine::implicit_gemm_warp, how, number));
  }
}

TEST_F(warp_engine_gpu, has_the_moments_of_wgmma)
{
  if (tconv::runtime::find_gemm_device(engine::implicit_gemm).machine.instruction != tconv::gemm_instruction::warpgroup)
  {
    GTEST_SKIP() << "needs an sm_90a device and build";
  }
  for (const shape3& s : shapes())
  {
    SCOPED_TRACE(to_string(s));
    const auto& inputs = convolution_inputs<float>::of(s, 9);
    const device_buffer<float> x(inputs.x);
    const device_buffer<float> w(inputs.w);
    const auto moments = [&](engine e) {
      tconv::options opts;
      opts.engine = e;
      device_buffer<double> means(s.batch * s.out_channels);
      device_buffer<tconv::moments<double>> statistics(s.out_channels);
      workspace_buffer space(tconv::conv_transpose_moments_workspace_bytes(s, opts));
      const auto status = tconv::conv_transpose_moments(
        x.data(), w.data(), means.data(), statistics.data(), s, opts, space.get(), nullptr);
      EXPECT_TRUE(status.ok()) << status.message();
      std::vector<double> result;
      for (const auto& m : statistics.download())
      {
        result.insert(result.end(), {m.count, m.mean, m.m2});
      }
      return result;
    };
    EXPECT_EQ(moments(engine::implicit_gemm), moments(engine::implicit_gemm_warp));
  }
}

// A stage of weights is read by loads that are under way while the warp says it is done: without a fence the next one overwrites it, rarely.
TEST_F(warp_engine_gpu, a_thousand_launches_give_the_same_bits)
{
  const shape3 s = make_shape<3>({4, 32, 64, 1}, {4, 9, 35}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
  const auto run = [&](auto element, tconv::math how) {
    using in         = decltype(element);
    const auto first = outputs<in>(s, engine::implicit_gemm_warp, how, 0);
    for (int i = 0; i < 1000; ++i)
    {
      ASSERT_EQ(outputs<in>(s, engine::implicit_gemm_warp, how, 0), first) << i;
    }
  };
  run(float{}, tconv::math::precise);
  run(float{}, tconv::math::tf32);
  run(__nv_bfloat16{}, tconv::math::precise);
}

TEST_F(warp_engine_gpu, describe_tells_it_apart)
{
  tconv::options opts;
  opts.engine     = engine::implicit_gemm_warp;
  const auto told = tconv::describe(shapes().front(), chain(tconv::bias(nullptr)), opts);
  ASSERT_TRUE(told.outcome.ok()) << told.text;
  EXPECT_EQ(told.engine, engine::implicit_gemm_warp);
  EXPECT_NE(std::string(told.text).find("implicit_gemm_warp"), std::string::npos) << told.text;
  opts.engine       = engine::implicit_gemm;
  const auto widest = tconv::describe(shapes().front(), chain(tconv::bias(nullptr)), opts);
  EXPECT_LE(widest.implicit_gemm_ms, told.implicit_gemm_ms);
}

TEST_F(warp_engine_gpu, refuses_what_it_does_not_have)
{
  tconv::options opts;
  opts.engine = engine::implicit_gemm_warp;
  for (const shape3& s :
       {make_shape<3>({1, 32, 32, 16}, {2, 3, 4}, {3, 3, 3}), make_shape<3>({1, 3, 32, 1}, {2, 3, 4}, {3, 3, 3})})
  {
    const auto told = tconv::describe(s, chain(tconv::bias(nullptr)), opts);
    EXPECT_EQ(told.outcome.code(), tconv::status_code::not_supported);
    EXPECT_NE(std::string(told.outcome.message()).find("16 products on every output)"), std::string::npos)
      << "cut: " << told.text;
  }
}

} // namespace
