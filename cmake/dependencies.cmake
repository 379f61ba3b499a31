# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# GoogleTest and Google Benchmark: the installed package if there is one (Debian: libgtest-dev, libbenchmark-dev), else
# the release archive by tag and hash.

include(FetchContent)

# Provides GTest::gtest.
macro(tconv_require_googletest)
  set(INSTALL_GTEST OFF)
  FetchContent_Declare(
    googletest
    URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
    URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
    DOWNLOAD_EXTRACT_TIMESTAMP ON
    SYSTEM
    FIND_PACKAGE_ARGS NAMES GTest)
  FetchContent_MakeAvailable(googletest)
endmacro()

# Provides benchmark::benchmark.
macro(tconv_require_benchmark)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  FetchContent_Declare(
    benchmark
    URL https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
    URL_HASH SHA256=6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce
    DOWNLOAD_EXTRACT_TIMESTAMP ON
    SYSTEM
    FIND_PACKAGE_ARGS)
  FetchContent_MakeAvailable(benchmark)
endmacro()
