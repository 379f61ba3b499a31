// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The headers of thread/ and block/ under NVRTC, as a program would use them that compiles its kernels while it runs. Needs no
/// GPU.

#include "nvrtc_configuration.hpp"

#include <gtest/gtest.h>

#include <nvrtc.h>

#include <cctype>
#include <string>
#include <vector>

namespace
{

/// What NVRTC says about a program: its log, also for success.
testing::AssertionResult compiles(const std::string& source)
{
  std::vector<std::string> arguments = {"--gpu-architecture=compute_90", "--std=c++17"};
  for (const char* folder : configuration::include_folders)
  {
    arguments.push_back(std::string("--include-path=") + folder);
  }
  std::vector<const char*> options;
  options.reserve(arguments.size());
  for (const std::string& argument : arguments)
  {
    options.push_back(argument.c_str());
  }

  nvrtcProgram program = nullptr;
  nvrtcResult result   = nvrtcCreateProgram(&program, source.c_str(), "program.cu", 0, nullptr, nullptr);
  if (result != NVRTC_SUCCESS)
  {
    return testing::AssertionFailure() << "nvrtcCreateProgram: " << nvrtcGetErrorString(result);
  }
  result           = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  std::size_t size = 0;
  std::string log;
  if (nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS && size > 1)
  {
    log.resize(size);
    (void) nvrtcGetProgramLog(program, &log[0]);
    log.pop_back(); // its terminating zero
  }
  (void) nvrtcDestroyProgram(&program);
  // A warning counts: users would see it at every start of their program.
  const bool good = result == NVRTC_SUCCESS && log.empty();
  return (good ? testing::AssertionSuccess() : testing::AssertionFailure()) << nvrtcGetErrorString(result) << '\n'
                                                                            << log;
}

std::string include(const std::string& header)
{
  return "#include <" + header + ">\n";
}

class header : public testing::TestWithParam<const char*>
{};

// Twice: the guard.
TEST_P(header, compiles_alone)
{
  EXPECT_TRUE(compiles(include(GetParam()) + include(GetParam())));
}

std::string test_name(const testing::TestParamInfo<const char*>& header)
{
  std::string name = header.param;
  for (char& c : name)
  {
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(every, header, testing::ValuesIn(configuration::headers), test_name);

TEST(program, all_headers_together)
{
  std::string source;
  for (const char* name : configuration::headers)
  {
    source += include(name);
  }
  EXPECT_TRUE(compiles(source));
}

// Templates are only parsed until somebody uses them.
TEST(program, a_kernel_with_a_chain)
{
  const std::string source = include("tconv/thread/activation.hpp") + include("tconv/thread/chain.hpp")
                           + include("tconv/thread/moments.hpp") + include("tconv/thread/softmax.hpp") + R"(
struct one_thread_tile
{
  float* values;
  int size;

  __device__ int channels() const { return size; }
  __device__ int positions() const { return 1; }
  __device__ tconv::coordinate at(int c) const { return {0, c}; }
  __device__ float& operator()(int c, int) { return values[c]; }
  __device__ tconv::thread_row row(int) { return {values, size}; }
};

extern "C" __global__ void finish(float* values, int channels, const float* bias, const float* mean, const float* variance)
{
  one_thread_tile tile{values, channels};
  const tconv::chain functors{tconv::bias(bias),
                              tconv::scale(2.0f),
                              tconv::batch_norm(mean, variance),
                              tconv::gelu{},
                              tconv::channel_softmax{},
                              tconv::sigmoid{}};
  tconv::apply(functors, tile);
  tconv::moments<double> total;
  for (int c = 0; c < channels; ++c)
  {
    total.merge(tconv::moments<double>::of(values[c]));
  }
  values[0] = static_cast<float>(total.biased_variance());
}
)";
  EXPECT_TRUE(compiles(source));
}

} // namespace
