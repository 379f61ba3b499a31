// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// A program of somebody else that is built by one nvcc command: ConvTranspose2d, bias, softmax over channels, sigmoid.
///
/// With a GPU the result must be right. Without one the launcher must come back with the CUDA error, and the program must not
/// crash. Both end with status 0 and say which it was. Exit status 77, which ctest shows as Skipped, where the launcher says
/// that it was built for other GPUs than this one; anything else ends with status 1.

#include <tconv/reference/chain.hpp>
#include <tconv/reference/conv_transpose.hpp>
#include <tconv/tconv.cuh>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace
{

int fail(const char* message)
{
  std::fprintf(stderr, "pipeline: %s\n", message);
  return 1;
}

/// Memory for a call: on the device if there is one, else on the host, where nobody reads it.
template <class T>
T* allocate(std::size_t bytes, bool device)
{
  void* memory = nullptr;
  if (!device)
  {
    memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  else if (cudaMalloc(&memory, bytes) != cudaSuccess)
  {
    memory = nullptr;
  }
  return static_cast<T*>(memory);
}

/// Small integers, so that no logit depends on an order of summation.
std::vector<float> values(std::int64_t count, int step)
{
  std::vector<float> result;
  for (std::int64_t i = 0; i < count; ++i)
  {
    result.push_back(static_cast<float>(i * step % 5 - 2));
  }
  return result;
}

} // namespace

int main()
{
  constexpr int built_for_other_gpus = 77;

  tconv::conv_transpose_shape<2> shape;
  shape.batch          = 2;
  shape.in_channels    = 3;
  shape.out_channels   = 5;
  shape.input          = {4, 6};
  shape.kernel         = {3, 3};
  shape.stride         = {2, 2};
  shape.padding        = {1, 1};
  shape.output_padding = {1, 1};

  const std::vector<float> x = values(shape.input_elements(), 3);
  const std::vector<float> w = values(shape.weight_elements(), 2);
  const std::vector<float> b = values(shape.out_channels, 1);
  std::vector<float> y(static_cast<std::size_t>(shape.output_elements()));

  int devices           = 0;
  const bool device     = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  float* const device_x = allocate<float>(x.size() * sizeof(float), device);
  float* const device_w = allocate<float>(w.size() * sizeof(float), device);
  float* const device_b = allocate<float>(b.size() * sizeof(float), device);
  float* const device_y = allocate<float>(y.size() * sizeof(float), device);

  const auto functors = tconv::chain(tconv::bias(device_b), tconv::channel_softmax(), tconv::sigmoid());
  tconv::workspace space{nullptr, tconv::conv_transpose_workspace_bytes(shape, functors)};
  space.data = allocate<char>(space.bytes, device);
  if (device
      && (cudaMemcpy(device_x, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess
          || cudaMemcpy(device_w, w.data(), w.size() * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess
          || cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess))
  {
    return fail("cannot set up the device memory");
  }

  const tconv::status s = tconv::conv_transpose(
    device_x, device_w, device_y, shape, functors, tconv::options{}, space, nullptr);
  if (!device)
  {
    if (s.code() != tconv::status_code::cuda_error || s.cuda_error() == 0)
    {
      return fail(s.ok() ? "success without a GPU" : s.message());
    }
    std::printf("pipeline: no GPU, and the launcher says so: %s\n", s.message());
    return 0;
  }
  if (s.cuda_error() == cudaErrorNoKernelImageForDevice)
  {
    std::printf("pipeline: built for other GPUs, and the launcher says so: %s\n", s.message());
    return built_for_other_gpus;
  }
  if (!s.ok())
  {
    return fail(s.message());
  }
  if (cudaMemcpy(y.data(), device_y, y.size() * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess)
  {
    return fail(cudaGetErrorString(cudaGetLastError()));
  }

  std::vector<double> expected(y.size());
  tconv::reference::conv_transpose(x.data(), w.data(), expected.data(), shape);
  tconv::reference::apply(tconv::chain(tconv::bias(b.data()), tconv::channel_softmax(), tconv::sigmoid()),
                          expected.data(),
                          shape.batch,
                          shape.out_channels,
                          shape.output_positions());
  for (std::size_t i = 0; i < y.size(); ++i)
  {
    // Written so that a NaN fails. The logits are exact; softmax and sigmoid of them are good to a few ulp.
    if (!(std::fabs(static_cast<double>(y[i]) - expected[i]) <= 1e-5))
    {
      std::fprintf(stderr, "pipeline: y[%zu] = %.9g, expected %.9g\n", i, static_cast<double>(y[i]), expected[i]);
      return 1;
    }
  }
  std::printf("pipeline: right result, tconv %d\n", TCONV_VERSION);
  return 0;
}
