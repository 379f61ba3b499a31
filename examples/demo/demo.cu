// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// The two pipelines that lead, end to end, against values that PyTorch computed in float64 (test/golden/).
///
///     P1  ConvTranspose3d(32->64, k3, s2, p1, op1, bias) -> softmax over channels -> sigmoid
///     P2  ConvTranspose3d(64->128, k5, bias) -> * 2 -> BatchNorm3d (eval and train) -> global average pool
///
/// With a GPU: full extents through the launchers. Without: reduced extents through the CPU reference. Compiles as CUDA and,
/// without the GPU part, as plain C++17.

#include "golden/golden_inputs.hpp"

#include <tconv/reference/batch_norm.hpp>
#include <tconv/reference/chain.hpp>
#include <tconv/reference/conv_transpose.hpp>

#if defined(__CUDACC__)
#  include <tconv/tconv.cuh>
#endif

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace
{

namespace golden = tconv_test::golden;
using tconv::chain;
using shape3 = tconv::conv_transpose_shape<3>;

/// What one pipeline came to.
struct outcome
{
  double error        = 0; ///< largest absolute error against PyTorch
  double milliseconds = 0;
};

/// The larger of two errors; a NaN counts as infinite, so that it cannot be overlooked.
double worse(double a, double b)
{
  return std::isnan(b) ? HUGE_VAL : std::fmax(a, b);
}

double largest_error(const std::vector<float>& got, const double* expected)
{
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
  {
    worst = worse(worst, std::fabs(static_cast<double>(got[i]) - expected[i]));
  }
  return worst;
}

/// Error at the golden samples of an output of \p elements values, which read(flat index) returns.
template <class Read>
double largest_sampled_error(const double* expected, tconv::int64_t elements, Read read)
{
  double worst = 0;
  for (int j = 0; j < golden::samples; ++j)
  {
    worst = worse(worst, std::fabs(read(tconv_test::sample_index(golden::sample_seed, j, elements)) - expected[j]));
  }
  return worst;
}

/// Prints a line of the report; false where the error exceeds \p limit.
bool report(const char* name, const shape3& s, const outcome& o, double limit)
{
  const auto out = s.output();
  std::printf(
    "  %-9s x[%lld,%lld,%lld,%lld,%lld] -> conv [%lld,%lld,%lld,%lld,%lld]   largest error %.2e (limit %.0e)   %.3f ms\n",
    name,
    static_cast<long long>(s.batch),
    static_cast<long long>(s.in_channels),
    static_cast<long long>(s.input[0]),
    static_cast<long long>(s.input[1]),
    static_cast<long long>(s.input[2]),
    static_cast<long long>(s.batch),
    static_cast<long long>(s.out_channels),
    static_cast<long long>(out[0]),
    static_cast<long long>(out[1]),
    static_cast<long long>(out[2]),
    o.error,
    limit,
    o.milliseconds);
  std::fflush(stdout);
  return o.error <= limit;
}

// Limits: a logit error of d moves softmax by at most d/2 and the sigmoid behind it by an eighth of d; fp32 rounding of 256
// products leaves logits within 1e-4 at the very worst. P2's outputs are of order 1 and rounded to fp32 once.
constexpr double p1_limit       = 3e-6;
constexpr double p2_eval_limit  = 2e-6;
constexpr double p2_train_limit = 1e-5;

double seconds_since(std::chrono::steady_clock::time_point start)
{
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool run_reference()
{
  std::printf("no GPU: the CPU reference, in double, at reduced extents\n");
  bool good = true;
  {
    const shape3 s    = golden::p1_shape(golden::p1_reduced);
    const auto inputs = golden::make_p1_inputs(golden::p1_reduced);
    const auto start  = std::chrono::steady_clock::now();
    std::vector<double> y(static_cast<std::size_t>(s.output_elements()));
    tconv::reference::conv_transpose(inputs.x.data(), inputs.weight.data(), y.data(), s);
    tconv::reference::apply(chain(tconv::bias(inputs.bias.data()), tconv::channel_softmax{}, tconv::sigmoid{}),
                            y.data(),
                            s.batch,
                            s.out_channels,
                            s.output_positions());
    const double ms    = 1e3 * seconds_since(start);
    const double error = largest_sampled_error(golden::p1_reduced_outputs, s.output_elements(), [&](tconv::int64_t i) {
      return y[static_cast<std::size_t>(i)];
    });
    good               = report("P1", s, {error, ms}, p1_limit) && good;
  }
  const shape3 s = golden::p2_shape(golden::p2_reduced);
  for (const bool train : {false, true})
  {
    auto inputs      = golden::make_p2_inputs(golden::p2_reduced);
    const auto start = std::chrono::steady_clock::now();
    std::vector<double> y(static_cast<std::size_t>(s.output_elements()));
    tconv::reference::conv_transpose(inputs.x.data(), inputs.weight.data(), y.data(), s);
    tconv::reference::apply(chain(tconv::bias(inputs.bias.data()), tconv::scale(golden::p2_scale)),
                            y.data(),
                            s.batch,
                            s.out_channels,
                            s.output_positions());
    const tconv::batch_norm_arguments layer{inputs.gamma.data(),
                                            inputs.beta.data(),
                                            inputs.running_mean.data(),
                                            inputs.running_var.data(),
                                            golden::eps,
                                            golden::momentum};
    if (train)
    {
      tconv::reference::batch_norm_train(y.data(), s.batch, s.out_channels, s.output_positions(), layer);
    }
    else
    {
      tconv::reference::batch_norm_eval(y.data(), s.batch, s.out_channels, s.output_positions(), layer);
    }
    const auto means = tconv::reference::global_mean(y.data(), s.batch, s.out_channels, s.output_positions());
    const double ms  = 1e3 * seconds_since(start);
    const std::vector<float> rounded(means.begin(), means.end());
    const double error = largest_error(rounded, train ? golden::p2_reduced_train : golden::p2_reduced_eval);
    good = report(train ? "P2 train" : "P2 eval", s, {error, ms}, train ? p2_train_limit : p2_eval_limit) && good;
  }
  return good;
}

#if defined(__CUDACC__)

/// Prints what went wrong and ends the program: a demo has nothing to clean up.
void must(cudaError_t error, const char* what)
{
  if (error != cudaSuccess)
  {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

void must(const tconv::status& s)
{
  if (!s.ok())
  {
    std::fprintf(stderr, "%s\n", s.message());
    std::exit(1);
  }
}

/// fp32 device memory.
class device_array
{
public:
  explicit device_array(std::size_t count) : count_(count)
  {
    must(cudaMalloc(&data_, count * sizeof(float)), "cudaMalloc");
  }
  explicit device_array(const std::vector<float>& values) : device_array(values.size())
  {
    must(cudaMemcpy(data_, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice), "upload");
  }
  ~device_array() { (void) cudaFree(data_); }
  device_array(const device_array&)            = delete;
  device_array& operator=(const device_array&) = delete;

  float* data() { return data_; }
  tconv::workspace as_workspace() { return {data_, count_ * sizeof(float)}; }
  std::vector<float> download() const
  {
    std::vector<float> values(count_);
    must(cudaMemcpy(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost), "download");
    return values;
  }

private:
  std::size_t count_;
  float* data_ = nullptr;
};

/// Milliseconds of one call, after one to warm up.
template <class Call>
double time_call(Call call)
{
  cudaEvent_t begin = nullptr;
  cudaEvent_t end   = nullptr;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  must(call());
  must(cudaEventRecord(begin), "record");
  must(call());
  must(cudaEventRecord(end), "record");
  must(cudaEventSynchronize(end), "run");
  float ms = 0;
  must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
  must(cudaEventDestroy(begin), "event");
  must(cudaEventDestroy(end), "event");
  return static_cast<double>(ms);
}

bool run_gpu(const char* device)
{
  std::printf("on %s, full extents\n", device);
  bool good = true;
  {
    const shape3 s    = golden::p1_shape(golden::p1_full);
    const auto inputs = golden::make_p1_inputs(golden::p1_full);
    device_array x(inputs.x), w(inputs.weight), b(inputs.bias), y(static_cast<std::size_t>(s.output_elements()));
    const auto functors = chain(tconv::bias(b.data()), tconv::channel_softmax{}, tconv::sigmoid{});
    device_array space(tconv::conv_transpose_workspace_bytes(s, functors) / sizeof(float));
    const double ms    = time_call([&] {
      return tconv::conv_transpose(
        x.data(), w.data(), y.data(), s, functors, tconv::options{}, space.as_workspace(), nullptr);
    });
    const double error = largest_sampled_error(golden::p1_full_outputs, s.output_elements(), [&](tconv::int64_t i) {
      float v = 0;
      must(cudaMemcpy(&v, y.data() + i, sizeof(float), cudaMemcpyDeviceToHost), "sample");
      return static_cast<double>(v);
    });
    good               = report("P1", s, {error, ms}, p1_limit) && good;
  }
  const shape3 s    = golden::p2_shape(golden::p2_full);
  const auto inputs = golden::make_p2_inputs(golden::p2_full);
  device_array x(inputs.x), w(inputs.weight), b(inputs.bias), gamma(inputs.gamma), beta(inputs.beta);
  device_array mean(inputs.running_mean), var(inputs.running_var);
  device_array y(static_cast<std::size_t>(s.batch * s.out_channels));
  {
    const auto functors = chain(tconv::bias(b.data()),
                                tconv::scale(golden::p2_scale),
                                tconv::batch_norm(mean.data(), var.data(), gamma.data(), beta.data(), golden::eps));
    device_array space(tconv::global_mean_workspace_bytes(s, functors) / sizeof(float));
    const double ms = time_call([&] {
      return tconv::global_mean(
        x.data(), w.data(), y.data(), s, functors, tconv::options{}, space.as_workspace(), nullptr);
    });
    good = report("P2 eval", s, {largest_error(y.download(), golden::p2_full_eval), ms}, p2_eval_limit) && good;
  }
  {
    const auto before = chain(tconv::bias(b.data()), tconv::scale(golden::p2_scale));
    device_array space(tconv::batch_norm_train_global_mean_workspace_bytes(s, before) / sizeof(float));
    const tconv::batch_norm_arguments layer{
      gamma.data(), beta.data(), mean.data(), var.data(), golden::eps, golden::momentum};
    // The outputs depend on the batch alone, so the two calls of the timing give the same.
    const double ms = time_call([&] {
      return tconv::batch_norm_train_global_mean(
        x.data(), w.data(), y.data(), s, before, layer, tconv::options{}, space.as_workspace(), nullptr);
    });
    good = report("P2 train", s, {largest_error(y.download(), golden::p2_full_train), ms}, p2_train_limit) && good;
  }
  return good;
}

#endif

} // namespace

int main()
{
  std::printf("tconv demo: errors are against PyTorch in float64\n");
#if defined(__CUDACC__)
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
  {
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, 0), "device");
    return run_gpu(properties.name) ? 0 : 1;
  }
#endif
  return run_reference() ? 0 : 1;
}
