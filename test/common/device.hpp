// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Device memory with guard zones, and the ways in which a launcher is called: directly, on a side stream, from a graph.

#include "gpu_test.hpp"

#include <tconv/options.hpp>
#include <tconv/status.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tconv_test
{

/// Fails the running test with the CUDA error's name.
inline bool cuda_ok(cudaError_t error, const char* what)
{
  if (error != cudaSuccess)
  {
    ADD_FAILURE() << what << ": " << cudaGetErrorName(error);
  }
  return error == cudaSuccess;
}

/// \p count elements of device memory between two guard zones.
///
/// Guards and contents start as bytes of 0xff, a NaN in every element type, so that reads beyond the ends show in results and
/// writes beyond the ends show in guards_intact(). \p misalignment: elements by which data() is off a 256-byte boundary.
template <class T>
class device_buffer
{
public:
  explicit device_buffer(std::int64_t count, std::int64_t misalignment = 0)
      : count_(count)
      , front_(guard_bytes + misalignment * size_of)
      , total_(front_ + count * size_of + guard_bytes)
  {
    if (cuda_ok(cudaMalloc(&memory_, static_cast<std::size_t>(total_)), "cudaMalloc"))
    {
      poison();
    }
  }
  explicit device_buffer(const std::vector<T>& values, std::int64_t misalignment = 0)
      : device_buffer(static_cast<std::int64_t>(values.size()), misalignment)
  {
    upload(values);
  }
  ~device_buffer() { (void) cudaFree(memory_); }
  device_buffer(const device_buffer&)            = delete;
  device_buffer& operator=(const device_buffer&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + front_); }
  const T* data() const { return reinterpret_cast<const T*>(memory_ + front_); }
  std::int64_t size() const { return count_; }

  /// Everything, guards included, becomes the poison.
  void poison() { (void) cuda_ok(cudaMemset(memory_, 0xff, static_cast<std::size_t>(total_)), "cudaMemset"); }
  void upload(const std::vector<T>& values)
  {
    (void) cuda_ok(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<T> download() const
  {
    std::vector<T> result(static_cast<std::size_t>(count_));
    (void) cuda_ok(cudaMemcpy(result.data(), data(), result.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return result;
  }
  /// True if no byte outside the contents has changed.
  bool guards_intact() const
  {
    std::vector<unsigned char> all(static_cast<std::size_t>(front_ + guard_bytes));
    (void) cuda_ok(
      cudaMemcpy(all.data(), memory_, static_cast<std::size_t>(front_), cudaMemcpyDeviceToHost), "download guards");
    (void) cuda_ok(cudaMemcpy(all.data() + front_,
                              memory_ + front_ + count_ * size_of,
                              static_cast<std::size_t>(guard_bytes),
                              cudaMemcpyDeviceToHost),
                   "download guards");
    return std::all_of(all.begin(), all.end(), [](unsigned char byte) { return byte == 0xff; });
  }

private:
  static constexpr std::int64_t size_of     = sizeof(T);
  static constexpr std::int64_t guard_bytes = 4096;

  std::int64_t count_;
  std::int64_t front_;
  std::int64_t total_;
  unsigned char* memory_ = nullptr;
};

/// A poisoned workspace of exactly \p bytes, with guards.
class workspace_buffer
{
public:
  explicit workspace_buffer(std::size_t bytes) : bytes_(bytes), memory_(static_cast<std::int64_t>(bytes)) {}
  tconv::workspace get() { return {bytes_ == 0 ? nullptr : memory_.data(), bytes_}; }
  bool guards_intact() const { return memory_.guards_intact(); }

private:
  std::size_t bytes_;
  device_buffer<unsigned char> memory_;
};

/// How a launcher is called.
enum class launch_mode
{
  direct,
  side_stream,
  graph
};
inline constexpr launch_mode launch_modes[] = {launch_mode::direct, launch_mode::side_stream, launch_mode::graph};

inline const char* name_of(launch_mode mode)
{
  return mode == launch_mode::direct ? "direct" : (mode == launch_mode::side_stream ? "side stream" : "graph");
}

/// Calls \p launcher(stream) in the given way and waits. True if the launcher succeeded and the device reports no error.
template <class Launcher>
bool run(launch_mode mode, Launcher launcher)
{
  cudaStream_t stream = nullptr;
  if (mode != launch_mode::direct
      && !cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"))
  {
    return false;
  }
  if (!cuda_ok(cudaDeviceSynchronize(), "before")) // uploads went to the default stream
  {
    return false;
  }
  bool good = true;
  if (mode == launch_mode::graph)
  {
    cudaGraph_t graph         = nullptr;
    cudaGraphExec_t execution = nullptr;
    good                      = cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
    const tconv::status s     = launcher(stream);
    good                      = cuda_ok(cudaStreamEndCapture(stream, &graph), "end capture") && good;
    if (!s.ok())
    {
      ADD_FAILURE() << s.message();
      good = false;
    }
    good = good && cuda_ok(cudaGraphInstantiate(&execution, graph, 0), "instantiate")
        && cuda_ok(cudaGraphLaunch(execution, stream), "graph launch")
        && cuda_ok(cudaStreamSynchronize(stream), "graph run");
    (void) cudaGraphExecDestroy(execution);
    (void) cudaGraphDestroy(graph);
  }
  else
  {
    const tconv::status s = launcher(stream);
    if (!s.ok())
    {
      ADD_FAILURE() << s.message();
      good = false;
    }
    good = cuda_ok(cudaStreamSynchronize(stream), "run") && good;
  }
  if (stream != nullptr)
  {
    (void) cudaStreamDestroy(stream);
  }
  return cuda_ok(cudaGetLastError(), "last error") && good;
}

} // namespace tconv_test
