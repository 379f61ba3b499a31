// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The head of a text detector in two fused launches, compared with ONNX Runtime.
///
///   x -> ConvTranspose k2 s2 + bias + BatchNorm + ReLU -> ConvTranspose k2 s2 + bias + sigmoid -> probability of text
///
/// Compiled by nvcc it runs on the GPU, if there is one. Compiled as plain C++ (g++ -x c++) or without a GPU it runs
/// the reference in double, with the very same chains. See README.md.

#include "image.hpp"
#include "npy.hpp"

#include <tconv/reference/chain.hpp>
#include <tconv/reference/conv_transpose.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#if defined(__CUDACC__)
#  include <tconv/launch/conv_transpose.cuh>

#  include <cuda_runtime.h>
#endif

#if !defined(TCONV_EXAMPLE_DATA_DIR)
#  define TCONV_EXAMPLE_DATA_DIR "data"
#endif

namespace
{

using example::tensor;

/// Largest difference that two correct float32 implementations show: five standard deviations of the difference of two
/// results whose roundings are independent, 5 * sqrt(2) * 1.4e-6 (README.md, "Why 1e-5"). The subtlest mistakes leave
/// 2.7e-4.
constexpr double tolerance = 1e-5;

/// What export.py wrote.
struct head_data
{
  tensor head_input;             ///< [batch, channels, height, width]
  tensor w1, b1;                 ///< [channels, hidden, 2, 2], [hidden]
  tensor gamma, beta, mean, var; ///< [hidden]
  tensor eps;                    ///< [1]
  tensor w2, b2;                 ///< [hidden, 1, 2, 2], [1]
  tensor expected;               ///< [batch, 1, 4 height, 4 width], by ONNX Runtime
};

/// The two transposed convolutions.
struct head_shapes
{
  tconv::conv_transpose_shape<2> first, second;
};

/// The operands, in the memory of whoever computes.
struct head_pointers
{
  const float *x, *w1, *b1, *gamma, *beta, *mean, *var, *w2, *b2;
  float eps;
};

/// Who computed, what and how fast.
struct head_result
{
  std::string device;
  std::vector<float> probability;
  double milliseconds = 0;
};

// The epilogues. A chain only holds pointers: on the GPU to device memory, in the reference to host memory.

auto first_chain(const head_pointers& p)
{
  return tconv::chain(tconv::bias(p.b1), tconv::batch_norm(p.mean, p.var, p.gamma, p.beta, p.eps), tconv::relu());
}

auto second_chain(const head_pointers& p)
{
  return tconv::chain(tconv::bias(p.b2), tconv::sigmoid());
}

// ---------------------------------------------------------------------------------------------------------------------
// Data and shapes
// ---------------------------------------------------------------------------------------------------------------------

std::string load(const std::string& directory, head_data& data)
{
  const std::pair<const char*, tensor*> files[] = {{"head_input", &data.head_input},
                                                   {"w1", &data.w1},
                                                   {"b1", &data.b1},
                                                   {"gamma", &data.gamma},
                                                   {"beta", &data.beta},
                                                   {"mean", &data.mean},
                                                   {"var", &data.var},
                                                   {"eps", &data.eps},
                                                   {"w2", &data.w2},
                                                   {"b2", &data.b2},
                                                   {"expected", &data.expected}};
  for (const auto& [name, array] : files)
  {
    if (std::string error = example::read_npy(directory + "/" + name + ".npy", *array); !error.empty())
    {
      return error;
    }
  }
  return "";
}

/// kernel 2, stride 2: every input becomes a 2 x 2 square of outputs that no other input touches.
tconv::conv_transpose_shape<2> doubling(
  std::int64_t batch, std::int64_t in_channels, std::int64_t out_channels, std::int64_t height, std::int64_t width)
{
  tconv::conv_transpose_shape<2> shape;
  shape.batch        = batch;
  shape.in_channels  = in_channels;
  shape.out_channels = out_channels;
  shape.input        = {height, width};
  shape.kernel       = {2, 2};
  shape.stride       = {2, 2};
  return shape;
}

/// Derives the two shapes from the data and makes sure that every array fits them.
std::string make_shapes(const head_data& data, head_shapes& shapes)
{
  const std::vector<std::int64_t>& x = data.head_input.shape;
  if (x.size() != 4 || data.w1.shape.size() != 4)
  {
    return "head_input and w1 must have four dimensions";
  }
  const std::int64_t hidden = data.w1.shape[1];
  shapes.first              = doubling(x[0], x[1], hidden, x[2], x[3]);
  if (const tconv::status s = tconv::validate(shapes.first); !s.ok())
  {
    return std::string("first layer: ") + s.message();
  }
  const auto middle = shapes.first.output();
  shapes.second     = doubling(x[0], hidden, 1, middle[0], middle[1]);
  if (const tconv::status s = tconv::validate(shapes.second); !s.ok())
  {
    return std::string("second layer: ") + s.message();
  }
  const auto out = shapes.second.output();

  struct rule
  {
    const char* name;
    const tensor& array;
    std::vector<std::int64_t> shape;
  };
  const rule rules[] = {{"head_input", data.head_input, {1, x[1], x[2], x[3]}}, // one page: the result is one image
                        {"w1", data.w1, {x[1], hidden, 2, 2}},
                        {"b1", data.b1, {hidden}},
                        {"gamma", data.gamma, {hidden}},
                        {"beta", data.beta, {hidden}},
                        {"mean", data.mean, {hidden}},
                        {"var", data.var, {hidden}},
                        {"eps", data.eps, {1}},
                        {"w2", data.w2, {hidden, 1, 2, 2}},
                        {"b2", data.b2, {1}},
                        {"expected", data.expected, {1, 1, out[0], out[1]}}};
  for (const rule& r : rules)
  {
    if (r.array.shape != r.shape)
    {
      return std::string(r.name) + " is " + example::to_string(r.array.shape) + " where " + example::to_string(r.shape)
           + " is needed";
    }
  }
  return "";
}

// ---------------------------------------------------------------------------------------------------------------------
// On the CPU
// ---------------------------------------------------------------------------------------------------------------------

head_pointers host_pointers(const head_data& d)
{
  return {d.head_input.data.data(),
          d.w1.data.data(),
          d.b1.data.data(),
          d.gamma.data.data(),
          d.beta.data.data(),
          d.mean.data.data(),
          d.var.data.data(),
          d.w2.data.data(),
          d.b2.data.data(),
          d.eps.data[0]};
}

/// One layer by its definition, in double: \p x is float for the first and double for the second.
template <class X, class Chain>
std::vector<double>
reference_layer(const X* x, const float* w, const tconv::conv_transpose_shape<2>& shape, const Chain& chain)
{
  std::vector<double> y(static_cast<std::size_t>(shape.output_elements()));
  tconv::reference::conv_transpose(x, w, y.data(), shape);
  tconv::reference::apply(chain, y.data(), shape.batch, shape.out_channels, shape.output_positions());
  return y;
}

head_result run_on_cpu(const head_data& data, const head_shapes& shapes)
{
  const head_pointers p = host_pointers(data);

  const auto begin                 = std::chrono::steady_clock::now();
  const std::vector<double> hidden = reference_layer(p.x, p.w1, shapes.first, first_chain(p));
  const std::vector<double> output = reference_layer(hidden.data(), p.w2, shapes.second, second_chain(p));
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;

  head_result result;
  result.device       = "CPU reference";
  result.milliseconds = elapsed.count();
  result.probability.reserve(output.size());
  for (const double value : output)
  {
    result.probability.push_back(static_cast<float>(value));
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// On the GPU
// ---------------------------------------------------------------------------------------------------------------------

#if defined(__CUDACC__)

/// "" or what CUDA says about \p what.
std::string check(cudaError_t error, const char* what)
{
  return error == cudaSuccess ? "" : std::string(what) + ": " + cudaGetErrorString(error);
}

/// Device memory, a stream and two events for one run; all of it is released with this object.
class gpu
{
public:
  gpu()                      = default;
  gpu(const gpu&)            = delete;
  gpu& operator=(const gpu&) = delete;

  ~gpu()
  {
    // Nothing is left to tell anyone about an error here; whatever mattered was checked by synchronising before.
    for (void* block : blocks_)
    {
      (void) cudaFree(block);
    }
    for (cudaEvent_t event : {begin_, end_})
    {
      if (event != nullptr)
      {
        (void) cudaEventDestroy(event);
      }
    }
    if (stream_ != nullptr)
    {
      (void) cudaStreamDestroy(stream_);
    }
  }

  std::string open()
  {
    record(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    record(cudaEventCreate(&begin_), "cudaEventCreate");
    record(cudaEventCreate(&end_), "cudaEventCreate");
    return error_;
  }

  /// Room for \p bytes, or null after an error.
  void* allocate(std::size_t bytes)
  {
    void* block = nullptr;
    if (error_.empty() && bytes > 0 && record(cudaMalloc(&block, bytes), "cudaMalloc"))
    {
      blocks_.push_back(block);
    }
    return block;
  }

  /// A copy of \p array, or null after an error.
  const float* upload(const tensor& array)
  {
    const std::size_t bytes = array.data.size() * sizeof(float);
    void* block             = allocate(bytes);
    if (block != nullptr)
    {
      record(cudaMemcpyAsync(block, array.data.data(), bytes, cudaMemcpyHostToDevice, stream_),
             "cudaMemcpyAsync to the device");
    }
    return static_cast<const float*>(block);
  }

  std::string download(const float* source, std::vector<float>& target)
  {
    record(cudaMemcpyAsync(target.data(), source, target.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_),
           "cudaMemcpyAsync to the host");
    record(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return error_;
  }

  void start_clock() { record(cudaEventRecord(begin_, stream_), "cudaEventRecord"); }

  /// Waits for the stream and returns the time since start_clock().
  std::string stop_clock(double& milliseconds)
  {
    float elapsed = 0;
    record(cudaEventRecord(end_, stream_), "cudaEventRecord");
    record(cudaEventSynchronize(end_), "cudaEventSynchronize");
    if (error_.empty())
    {
      record(cudaEventElapsedTime(&elapsed, begin_, end_), "cudaEventElapsedTime");
    }
    milliseconds = static_cast<double>(elapsed);
    return error_;
  }

  cudaStream_t stream() const { return stream_; }
  /// The first error of all calls so far, or "".
  const std::string& error() const { return error_; }

private:
  /// Keeps the first error: later ones are mostly its echo.
  bool record(cudaError_t error, const char* what)
  {
    if (error_.empty())
    {
      error_ = check(error, what);
    }
    return error == cudaSuccess;
  }

  std::vector<void*> blocks_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_   = nullptr;
  cudaEvent_t end_     = nullptr;
  std::string error_;
};

head_pointers upload(const head_data& d, gpu& device)
{
  return {device.upload(d.head_input),
          device.upload(d.w1),
          device.upload(d.b1),
          device.upload(d.gamma),
          device.upload(d.beta),
          device.upload(d.mean),
          device.upload(d.var),
          device.upload(d.w2),
          device.upload(d.b2),
          d.eps.data[0]};
}

/// Queues the head: two launches, and \p hidden is all that passes between them through memory.
std::string launch_head(const head_pointers& p,
                        float* hidden,
                        float* probability,
                        const head_shapes& shapes,
                        const tconv::workspace& space,
                        cudaStream_t stream)
{
  const tconv::options options;
  if (const tconv::status s = tconv::conv_transpose(
        p.x, p.w1, hidden, shapes.first, first_chain(p), options, space, stream);
      !s.ok())
  {
    return std::string("first layer: ") + s.message();
  }
  if (const tconv::status s = tconv::conv_transpose(
        hidden, p.w2, probability, shapes.second, second_chain(p), options, space, stream);
      !s.ok())
  {
    return std::string("second layer: ") + s.message();
  }
  return "";
}

/// The head on the current device. \p result is complete only if "" is returned.
std::string run_on_gpu(const head_data& data, const head_shapes& shapes, head_result& result)
{
  gpu device;
  if (std::string error = device.open(); !error.empty())
  {
    return error;
  }
  const head_pointers p = upload(data, device);

  // Both calls are queued on one stream and never overlap, so that one workspace serves both.
  tconv::workspace space;
  space.bytes = std::max(tconv::conv_transpose_workspace_bytes(shapes.first, first_chain(p)),
                         tconv::conv_transpose_workspace_bytes(shapes.second, second_chain(p)));
  space.data  = device.allocate(space.bytes);

  const auto bytes_of = [](std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(float); };
  auto* const hidden  = static_cast<float*>(device.allocate(bytes_of(shapes.first.output_elements())));
  auto* const output  = static_cast<float*>(device.allocate(bytes_of(shapes.second.output_elements())));
  if (!device.error().empty())
  {
    return device.error();
  }

  // The first call also loads the kernels and is not timed.
  constexpr int repetitions = 20;
  for (int i = 0; i <= repetitions; ++i)
  {
    if (i == 1)
    {
      device.start_clock();
    }
    if (std::string error = launch_head(p, hidden, output, shapes, space, device.stream()); !error.empty())
    {
      return error;
    }
  }
  if (std::string error = device.stop_clock(result.milliseconds); !error.empty())
  {
    return error;
  }
  result.milliseconds /= repetitions;

  result.probability.resize(static_cast<std::size_t>(shapes.second.output_elements()));
  return device.download(output, result.probability);
}

/// Name of the current device, if there is one; else "" and \p reason.
std::string find_gpu(std::string& reason)
{
  int count   = 0;
  int current = 0;
  cudaDeviceProp properties{};
  reason = check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (reason.empty() && count == 0)
  {
    reason = "cudaGetDeviceCount: none";
  }
  if (reason.empty())
  {
    reason = check(cudaGetDevice(&current), "cudaGetDevice");
  }
  if (reason.empty())
  {
    reason = check(cudaGetDeviceProperties(&properties, current), "cudaGetDeviceProperties");
  }
  return reason.empty() ? properties.name : "";
}

#endif // __CUDACC__

/// The head on the GPU if this program has one, else on the CPU.
std::string run(const head_data& data, const head_shapes& shapes, head_result& result)
{
#if defined(__CUDACC__)
  std::string reason;
  result.device = find_gpu(reason);
  if (!result.device.empty())
  {
    return run_on_gpu(data, shapes, result);
  }
  std::printf("no GPU        %s\n", reason.c_str());
#endif
  result = run_on_cpu(data, shapes);
  return "";
}

// ---------------------------------------------------------------------------------------------------------------------
// Judging and showing
// ---------------------------------------------------------------------------------------------------------------------

/// Largest absolute difference; infinite where the sizes differ or either side is not a number.
double largest_difference(const std::vector<float>& actual, const std::vector<float>& expected)
{
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size() || actual.empty())
  {
    return infinity;
  }
  double largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i)
  {
    const double difference = std::fabs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (!std::isfinite(difference))
    {
      return infinity;
    }
    largest = std::max(largest, difference);
  }
  return largest;
}

std::string write_map(const std::string& path, const head_result& result, const head_shapes& shapes)
{
  std::vector<std::uint8_t> pixels;
  pixels.reserve(result.probability.size());
  for (const float p : result.probability)
  {
    // The comparisons are written so that NaN becomes black, and not whatever a cast makes of it.
    const float clamped = p > 0.0f ? (p < 1.0f ? p : 1.0f) : 0.0f;
    pixels.push_back(static_cast<std::uint8_t>(std::lround(clamped * 255.0f)));
  }
  return example::write_png(path, pixels, shapes.second.output(0), shapes.second.output(1));
}

void print_shape(const char* name, const tconv::conv_transpose_shape<2>& s)
{
  std::printf("%-13s [%lld, %lld, %lld, %lld] -> [%lld, %lld, %lld, %lld]\n",
              name,
              static_cast<long long>(s.batch),
              static_cast<long long>(s.in_channels),
              static_cast<long long>(s.input[0]),
              static_cast<long long>(s.input[1]),
              static_cast<long long>(s.batch),
              static_cast<long long>(s.out_channels),
              static_cast<long long>(s.output(0)),
              static_cast<long long>(s.output(1)));
}

int fail(const std::string& error)
{
  std::fprintf(stderr, "error: %s\n", error.c_str());
  return 1;
}

} // namespace

int main(int argument_count, char** arguments)
{
  if (argument_count > 3 || (argument_count > 1 && arguments[1][0] == '-'))
  {
    return fail("usage: text_detection_head [data directory] [output.png]");
  }
  const std::string directory = argument_count > 1 ? arguments[1] : TCONV_EXAMPLE_DATA_DIR;
  const std::string image     = argument_count > 2 ? arguments[2] : "text_probability.png";

  head_data data;
  if (const std::string error = load(directory, data); !error.empty())
  {
    return fail(error);
  }
  head_shapes shapes;
  if (const std::string error = make_shapes(data, shapes); !error.empty())
  {
    return fail(directory + ": " + error);
  }
  print_shape("first layer", shapes.first);
  print_shape("second layer", shapes.second);

  head_result result;
  if (const std::string error = run(data, shapes, result); !error.empty())
  {
    return fail(error);
  }
  const double error = largest_difference(result.probability, data.expected.data);
  std::printf("device        %s\n", result.device.c_str());
  std::printf("time          %.3f ms\n", result.milliseconds);
  std::printf("error         %.2e against ONNX Runtime, below %.0e allowed\n", error, tolerance);

  if (const std::string problem = write_map(image, result, shapes); !problem.empty())
  {
    return fail(problem);
  }
  std::printf("wrote         %s\n", image.c_str());

  // Negated, so that no NaN can pass.
  if (!(error < tolerance))
  {
    return fail("the result differs from ONNX Runtime's");
  }
  return 0;
}
