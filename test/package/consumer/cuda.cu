// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// A call of the fused launcher. Exit status 77, which ctest shows as Skipped, where there is no GPU.

#include <tconv/tconv.cuh>

#include <cstdio>

namespace
{

int fail(const char* message)
{
  std::fprintf(stderr, "%s\n", message);
  return 1;
}

} // namespace

int main()
{
  constexpr int no_gpu = 77;

  tconv::conv_transpose_shape<1> shape;
  shape.input               = {3};
  shape.kernel              = {2};
  shape.stride              = {2};
  const float x[]           = {1, 2, 3};
  const float w[]           = {1, 10};
  const float expected[]    = {1, 10, 2, 20, 3, 30};
  const auto functors       = tconv::chain<>{};
  const std::size_t scratch = tconv::conv_transpose_workspace_bytes(shape, functors);

  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
  {
    // Arguments are checked on the host: an error, not a crash.
    float* const none     = nullptr;
    const tconv::status s = tconv::conv_transpose(
      none, none, none, shape, functors, tconv::options{}, tconv::workspace{}, nullptr);
    return s.ok() ? fail("null pointers were accepted") : no_gpu;
  }

  float* device_x    = nullptr;
  float* device_w    = nullptr;
  float* device_y    = nullptr;
  void* device_space = nullptr;
  if (cudaMalloc(&device_x, sizeof(x)) != cudaSuccess || cudaMalloc(&device_w, sizeof(w)) != cudaSuccess
      || cudaMalloc(&device_y, sizeof(expected)) != cudaSuccess || cudaMalloc(&device_space, scratch) != cudaSuccess
      || cudaMemcpy(device_x, x, sizeof(x), cudaMemcpyHostToDevice) != cudaSuccess
      || cudaMemcpy(device_w, w, sizeof(w), cudaMemcpyHostToDevice) != cudaSuccess)
  {
    return fail("cannot set up the device memory");
  }
  const tconv::status s = tconv::conv_transpose(
    device_x, device_w, device_y, shape, functors, tconv::options{}, tconv::workspace{device_space, scratch}, nullptr);
  if (!s.ok())
  {
    return fail(s.message());
  }
  float y[6] = {};
  if (cudaMemcpy(y, device_y, sizeof(y), cudaMemcpyDeviceToHost) != cudaSuccess)
  {
    return fail(cudaGetErrorString(cudaGetLastError()));
  }
  for (int i = 0; i < 6; ++i)
  {
    if (y[i] != expected[i])
    {
      return fail("wrong values");
    }
  }
  std::printf("tconv %d: all right\n", TCONV_VERSION);
}
