// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The timing protocol of all benchmarks, device memory for them, and the counters that go with a time.

#include <tconv/detail/work.hpp>
#include <tconv/options.hpp>
#include <tconv/shape.hpp>
#include <tconv/status.hpp>
#include <tconv/thread/element.cuh>

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tconv_bench
{

inline void must(cudaError_t error, const char* what)
{
  if (error != cudaSuccess)
  {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

/// Fills data[0, count) with numbers in [low, high): the leading bits of a mixed counter, random enough to keep zeros and
/// repetitions out of the timed data.
template <class T>
__global__ void fill_random(T* data, std::int64_t count, float low, float high, std::uint32_t seed)
{
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads)
  {
    std::uint64_t bits = (static_cast<std::uint64_t>(i) << 32 | seed) * 0x9e3779b97f4a7c15ULL;
    bits               = (bits ^ (bits >> 32)) * 0xbf58476d1ce4e5b9ULL;
    data[i]            = tconv::from_float<T>(low + (high - low) * (static_cast<float>(bits >> 40) * 0x1p-24f));
  }
}

/// Device memory with reproducible contents.
template <class T>
class typed_array
{
public:
  explicit typed_array(std::int64_t count, float low = 0.0f, float high = 0.0f, std::uint32_t seed = 1)
      : count_(std::max<std::int64_t>(count, 1))
  {
    must(cudaMalloc(&data_, static_cast<std::size_t>(count_) * sizeof(T)), "cudaMalloc");
    if (low == high)
    {
      must(cudaMemset(data_, 0, static_cast<std::size_t>(count_) * sizeof(T)), "cudaMemset");
      return;
    }
    fill_random<<<1024, 256>>>(data_, count_, low, high, seed);
    must(cudaGetLastError(), "fill_random");
  }
  ~typed_array() { (void) cudaFree(data_); }
  typed_array(typed_array&& other) noexcept : count_(other.count_), data_(std::exchange(other.data_, nullptr)) {}
  typed_array(const typed_array&)            = delete;
  typed_array& operator=(const typed_array&) = delete;
  typed_array& operator=(typed_array&&)      = delete;

  T* data() const { return data_; }
  tconv::workspace as_workspace() const { return {data_, static_cast<std::size_t>(count_) * sizeof(T)}; }

private:
  std::int64_t count_;
  T* data_ = nullptr;
};
using device_array = typed_array<float>;

/// Copies of one input that together exceed the L2 cache at least twice over; the first is random, the others equal it.
template <class T = float>
class rotating_buffers
{
public:
  rotating_buffers(std::int64_t count, float low, float high)
  {
    int device = 0;
    int l2     = 0;
    must(cudaGetDevice(&device), "cudaGetDevice");
    must(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "L2 size");
    const std::int64_t wanted = 2 * static_cast<std::int64_t>(l2) / (static_cast<std::int64_t>(sizeof(T)) * count) + 1;
    buffers_.emplace_back(count, low, high);
    for (std::int64_t i = 1; i < std::clamp<std::int64_t>(wanted, 4, 64); ++i)
    {
      buffers_.emplace_back(count);
      must(cudaMemcpy(buffers_.back().data(),
                      buffers_[0].data(),
                      static_cast<std::size_t>(count) * sizeof(T),
                      cudaMemcpyDeviceToDevice),
           "copy");
    }
  }
  const T* operator[](int i) const { return buffers_[static_cast<std::size_t>(i) % buffers_.size()].data(); }

private:
  std::vector<typed_array<T>> buffers_;
};

using tconv::detail::landing_products;
using tconv::detail::products_per_second;
using tconv::detail::work;

/// Milliseconds per call.
struct times
{
  double stream;               ///< on a stream, one call behind the other
  std::optional<double> graph; ///< the same calls in a graph
  std::optional<double> cold;  ///< single calls, each after L2 has been overwritten
};

/// The median of 7 groups, 3 where a call takes more than 50 ms, each of as many calls as fill 20 ms, 2 at least. Calls of
/// up to 1 ms are also timed in a graph and, one by one, behind a cold L2: in longer ones neither launches nor L2 matter.
/// pytorch_compare.py has the same rules.
class group_timer
{
public:
  static constexpr double group_ms          = 20;
  static constexpr double longest_in_7_ms   = 50;
  static constexpr double longest_closer_ms = 1;

  /// \p call(i, stream) queues call number i.
  template <class Call>
  static times measure(Call call)
  {
    cudaStream_t stream = nullptr;
    cudaEvent_t begin   = nullptr;
    cudaEvent_t end     = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    const auto elapsed = [&](auto&& body) {
      must(cudaEventRecord(begin, stream), "record");
      body();
      must(cudaEventRecord(end, stream), "record");
      must(cudaEventSynchronize(end), "synchronize");
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
      return static_cast<double>(ms);
    };
    const auto calls = [&](int count) {
      for (int i = 0; i < count; ++i)
      {
        call(i, stream);
      }
    };
    must(cudaDeviceSynchronize(), "inputs"); // they are there before this stream reads them
    calls(2);
    double once = elapsed([&] { calls(1); });
    if (once < group_ms)
    {
      once = elapsed([&] { calls(5); }) / 5;
    }
    const int count  = std::clamp(static_cast<int>(group_ms / std::max(once, 1e-4)), 2, 400);
    const int groups = once > longest_in_7_ms ? 3 : 7;

    const auto median_of_groups = [&](auto&& body) {
      std::vector<double> values;
      for (int g = 0; g < groups; ++g)
      {
        values.push_back(elapsed(body) / count);
      }
      return median(values);
    };
    times result{median_of_groups([&] { calls(count); }), {}, {}};
    if (once <= longest_closer_ms)
    {
      cudaGraph_t graph         = nullptr;
      cudaGraphExec_t execution = nullptr;
      must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
      calls(count);
      must(cudaStreamEndCapture(stream, &graph), "end capture");
      must(cudaGraphInstantiate(&execution, graph, 0), "instantiate");
      must(cudaGraphLaunch(execution, stream), "graph warm-up");
      result.graph = median_of_groups([&] { must(cudaGraphLaunch(execution, stream), "graph"); });
      must(cudaGraphExecDestroy(execution), "destroy");
      must(cudaGraphDestroy(graph), "destroy");

      int device = 0;
      int l2     = 0;
      must(cudaGetDevice(&device), "cudaGetDevice");
      must(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "L2 size");
      const device_array other(l2 / 2); // twice the bytes of L2
      std::vector<double> cold_times;
      for (int i = 0; i < 3 * groups; ++i)
      {
        must(cudaMemsetAsync(other.data(), i, static_cast<std::size_t>(l2) * 2, stream), "flush");
        cold_times.push_back(elapsed([&] { call(i, stream); }));
      }
      result.cold = median(cold_times);
    }
    must(cudaEventDestroy(begin), "destroy");
    must(cudaEventDestroy(end), "destroy");
    must(cudaStreamDestroy(stream), "destroy");
    return result;
  }

private:
  static double median(std::vector<double>& values)
  {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
};

/// One benchmark: time per call on a stream is its manual time; counters hold the rest.
template <class Call>
void measure(benchmark::State& state, const work& w, Call call)
{
  const auto checked = [&](int i, cudaStream_t stream) {
    if (const tconv::status s = call(i, stream); !s.ok())
    {
      std::fprintf(stderr, "%s\n", s.message());
      std::exit(1);
    }
  };
  for (auto _ : state)
  {
    const times t = group_timer::measure(checked);
    state.SetIterationTime(t.stream * 1e-3);
    if (t.graph && t.cold)
    {
      state.counters["graph_ms"] = *t.graph;
      state.counters["cold_ms"]  = *t.cold;
    }
    state.counters["gmac"]     = w.multiply_adds * 1e-9;
    state.counters["bytes"]    = w.bytes;
    state.counters["floor_ms"] = w.floor_seconds() * 1e3;
    state.counters["of_floor"] = t.stream * 1e-3 / w.floor_seconds();
  }
}

/// Registers \p body(state) under \p name: one iteration, which holds all the repetitions of the protocol.
template <class Body>
void add(const std::string& name, Body body)
{
  benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
}

/// Runs what has been added; returns what main() does.
inline int run_benchmarks(int argc, char** argv)
{
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv))
  {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

} // namespace tconv_bench
