// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The first call of a process is captured in a graph: no kernel of the library has been loaded, no attribute been set and
/// nothing been cached before. Hence an executable of its own with one test.

#include "common/compare.hpp"
#include "common/device.hpp"
#include "common/recipes.hpp"

#include <tconv/reference/chain.hpp>
#include <tconv/reference/conv_transpose.hpp>
#include <tconv/tconv.cuh>

#include <cmath>

namespace
{

using namespace tconv_test;

class first_call : public gpu_test
{};

TEST_F(first_call, in_a_capture)
{
  tconv::conv_transpose_shape<3> shape;
  shape.batch          = 2;
  shape.in_channels    = 32;
  shape.out_channels   = 64;
  shape.input          = {3, 5, 4};
  shape.kernel         = {3, 3, 3};
  shape.stride         = {2, 2, 2};
  shape.padding        = {1, 1, 1};
  shape.output_padding = {1, 1, 1};

  // Integers over 32: logits are exact in any order of summation, and the softmax of them is peaked, but not saturated.
  const auto x = filled(shape.input_elements(), [](std::int64_t i) { return recipe_x(i) / 32; });
  const auto w = recipe_w_values(shape.weight_elements());
  const auto b = filled(shape.out_channels, [](std::int64_t c) { return c % 5 - 2; });

  device_buffer<float> dx(x);
  device_buffer<float> dw(w);
  device_buffer<float> db(b);
  device_buffer<float> dy(shape.output_elements());
  const auto functors = tconv::chain(tconv::bias(db.data()), tconv::channel_softmax{}, tconv::sigmoid{});
  workspace_buffer space(tconv::conv_transpose_workspace_bytes(shape, functors));

  cudaStream_t stream = nullptr;
  ASSERT_TRUE(cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream"));
  ASSERT_TRUE(cuda_ok(cudaDeviceSynchronize(), "uploads"));

  cudaGraph_t graph = nullptr;
  ASSERT_TRUE(cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture"));
  const tconv::status s = tconv::conv_transpose(
    dx.data(), dw.data(), dy.data(), shape, functors, tconv::options{}, space.get(), stream);
  const bool captured = cuda_ok(cudaStreamEndCapture(stream, &graph), "end capture");
  ASSERT_TRUE(s.ok()) << s.message();
  ASSERT_TRUE(captured);
  for (const float v : dy.download())
  {
    ASSERT_TRUE(std::isnan(v)) << "a captured call has run";
  }

  cudaGraphExec_t execution = nullptr;
  ASSERT_TRUE(cuda_ok(cudaGraphInstantiate(&execution, graph, 0), "instantiate"));
  ASSERT_TRUE(cuda_ok(cudaGraphLaunch(execution, stream), "launch"));
  ASSERT_TRUE(cuda_ok(cudaStreamSynchronize(stream), "run"));

  std::vector<double> expected(static_cast<std::size_t>(shape.output_elements()));
  tconv::reference::conv_transpose(x.data(), w.data(), expected.data(), shape);
  tconv::reference::apply(tconv::chain(tconv::bias(b.data()), tconv::channel_softmax{}, tconv::sigmoid{}),
                          expected.data(),
                          shape.batch,
                          shape.out_channels,
                          shape.output_positions());
  const output_extents extents{shape.batch, shape.out_channels, shape.output(0), shape.output(1), shape.output(2)};
  // An error of (4 + 1.2 |v|) ulp in exp(-|v|) is less than 5 ulp of 1, twice in a quotient; sigmoid divides it by 4 and adds
  // 5 ulp of its own.
  EXPECT_TRUE(compare_values(dy.download().data(), expected.data(), extents, [](std::int64_t, double) {
    return tolerance{1e-6, 0.0};
  }));
  EXPECT_TRUE(dy.guards_intact());
  EXPECT_TRUE(space.guards_intact());

  (void) cudaGraphExecDestroy(execution);
  (void) cudaGraphDestroy(graph);
  (void) cudaStreamDestroy(stream);
}

} // namespace
