// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// BatchNorm in train mode over several GPUs, one process: each has a part of the batch, and what they exchange is count, mean and
/// centred sum of squares of each channel.
///
///     P2  ConvTranspose3d(64->128, k5, bias) -> * 2 -> BatchNorm3d (train) -> global average pool
///
/// Compared with one GPU on the whole batch, and with values that PyTorch computed in float64 (test/golden/). See README.md.

#include "golden/golden_inputs.hpp"

#include <tconv/launch/sync_batch_norm_global_mean.cuh>

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace
{

namespace golden = tconv_test::golden;
using shape3     = tconv::conv_transpose_shape<3>;
using moments    = tconv::moments<double>;

/// Exit status where there are too few GPUs; ctest calls that Skipped.
constexpr int skipped = 77;

// ---------------------------------------------------------------------------------------------------------------------
// Errors: an example has nothing to clean up, so the first one ends the program.
// ---------------------------------------------------------------------------------------------------------------------

void must(cudaError_t error, const char* what)
{
  if (error != cudaSuccess)
  {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

void must(ncclResult_t result, const char* what)
{
  if (result != ncclSuccess)
  {
    std::fprintf(stderr, "%s: %s\n", what, ncclGetErrorString(result));
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

// ---------------------------------------------------------------------------------------------------------------------
// One GPU with a part of the batch
// ---------------------------------------------------------------------------------------------------------------------

/// Memory of the device that is current when it is made.
template <class T>
class device_array
{
public:
  explicit device_array(std::size_t count) : count_(count)
  {
    if (count > 0)
    {
      must(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    }
  }
  explicit device_array(const std::vector<T>& values) : device_array(values.size()) { upload(values.data()); }
  ~device_array() { (void) cudaFree(data_); }
  device_array(const device_array&)            = delete;
  device_array& operator=(const device_array&) = delete;

  T* data() const { return data_; }
  void upload(const T* values)
  {
    must(cudaMemcpy(data_, values, count_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<T> download() const
  {
    std::vector<T> values(count_);
    must(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return values;
  }

private:
  std::size_t count_;
  T* data_ = nullptr;
};

/// A GPU, its share of the samples, and a layer of its own, which stays equal to everybody else's.
class rank
{
public:
  /// Makes \p device the current one. Samples \p first to \p first + \p samples of \p inputs; \p ranks: how many GPUs exchange statistics.
  rank(int device, int number, int ranks, const golden::p2_inputs& inputs, std::int64_t first, std::int64_t samples)
      : device_(made_current(device))
      , number_(number)
      , shape_(shape_of(samples))
      , w_(inputs.weight)
      , b_(inputs.bias)
      , gamma_(inputs.gamma)
      , beta_(inputs.beta)
      , mean_(inputs.running_mean)
      , variance_(inputs.running_var)
      , means_(count(shape_.batch * shape_.out_channels))
      , y_(count(shape_.batch * shape_.out_channels))
      , gathered_(count(ranks * shape_.out_channels))
      , space_bytes_(std::max(tconv::conv_transpose_moments_workspace_bytes(shape_),
                              tconv::batch_norm_train_global_mean_workspace_bytes(shape_, before())))
      , space_(space_bytes_)
  {
    // Copies of x to take turns with, so that none is in the cache when its turn comes.
    int cache = 0;
    must(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "L2 size");
    const std::int64_t elements = shape_.input_elements();
    const float* samples_of_x   = inputs.x.data() + first * (shape_of(1).input_elements());
    std::int64_t bytes          = 0;
    do
    {
      x_.push_back(std::make_unique<device_array<float>>(count(elements)));
      x_.back()->upload(samples_of_x);
      bytes += elements * static_cast<std::int64_t>(sizeof(float));
    } while (elements > 0 && bytes < 2 * static_cast<std::int64_t>(cache));
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    must(cudaEventCreate(&begin_), "event");
    must(cudaEventCreate(&end_), "event");
    must(cudaDeviceSynchronize(), "upload"); // which went to another stream
  }
  ~rank()
  {
    (void) cudaEventDestroy(begin_);
    (void) cudaEventDestroy(end_);
    (void) cudaStreamDestroy(stream_);
  }
  rank(const rank&)            = delete;
  rank& operator=(const rank&) = delete;

  /// The first half of BatchNorm: statistics of these samples, where an all-gather in place expects them.
  void take_moments(int turn)
  {
    use();
    must(tconv::conv_transpose_moments(
      x(turn), w_.data(), means_.data(), own_statistics(), shape_, tconv::options{}, space(), stream_));
  }
  /// Queues this rank's share of the exchange: a moments<double> is three doubles.
  void exchange(ncclComm_t communicator)
  {
    must(ncclAllGather(own_statistics(),
                       gathered_.data(),
                       count(shape_.out_channels) * sizeof(moments) / sizeof(double),
                       ncclDouble,
                       communicator,
                       stream_),
         "ncclAllGather");
  }
  /// The second half, with the statistics of \p ranks ranks.
  void finish(int ranks) { finish(gathered_.data(), ranks); }
  /// The second half as it would be without an exchange.
  void finish_alone() { finish(own_statistics(), 1); }
  /// Both halves at once, for a GPU that has the whole batch.
  void whole(int turn)
  {
    use();
    must(tconv::batch_norm_train_global_mean(
      x(turn), w_.data(), y_.data(), shape_, before(), layer(), tconv::options{}, space(), stream_));
  }

  void start_clock()
  {
    use();
    must(cudaEventRecord(begin_, stream_), "record");
  }
  void stop_clock()
  {
    use();
    must(cudaEventRecord(end_, stream_), "record");
  }
  /// Milliseconds from start to stop; waits for it.
  double milliseconds() const
  {
    float elapsed = 0;
    must(cudaEventSynchronize(end_), "run");
    must(cudaEventElapsedTime(&elapsed, begin_, end_), "elapsed");
    return static_cast<double>(elapsed);
  }
  void wait() const { must(cudaStreamSynchronize(stream_), "run"); }

  std::vector<float> y() const { return y_.download(); }
  std::vector<float> running_mean() const { return mean_.download(); }
  std::vector<float> running_variance() const { return variance_.download(); }

private:
  static std::size_t count(std::int64_t elements) { return static_cast<std::size_t>(elements); }
  static shape3 shape_of(std::int64_t samples)
  {
    golden::extents part = golden::p2_full;
    part.batch           = samples;
    return golden::p2_shape(part);
  }
  static int made_current(int device)
  {
    must(cudaSetDevice(device), "cudaSetDevice");
    return device;
  }
  void use() const { (void) made_current(device_); }

  const float* x(int turn) const { return x_[static_cast<std::size_t>(turn) % x_.size()]->data(); }
  moments* own_statistics() const { return gathered_.data() + number_ * shape_.out_channels; }
  tconv::workspace space() const { return {space_.data(), space_bytes_}; }
  tconv::chain<tconv::bias, tconv::scale> before() const
  {
    return tconv::chain(tconv::bias(b_.data()), tconv::scale(golden::p2_scale));
  }
  tconv::batch_norm_arguments layer() const
  {
    return {gamma_.data(), beta_.data(), mean_.data(), variance_.data(), golden::eps, golden::momentum};
  }
  void finish(const moments* statistics, int ranks)
  {
    use();
    must(tconv::sync_batch_norm_global_mean(
      means_.data(), statistics, ranks, y_.data(), shape_, before(), layer(), tconv::options{}, stream_));
  }

  int device_;
  int number_;
  shape3 shape_;
  device_array<float> w_, b_, gamma_, beta_, mean_, variance_;
  device_array<double> means_;
  device_array<float> y_;
  device_array<moments> gathered_; ///< [ranks][channels]
  std::size_t space_bytes_;
  device_array<unsigned char> space_;
  std::vector<std::unique_ptr<device_array<float>>> x_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_   = nullptr;
  cudaEvent_t end_     = nullptr;
};

// ---------------------------------------------------------------------------------------------------------------------
// All GPUs
// ---------------------------------------------------------------------------------------------------------------------

/// A communicator of each GPU.
class communicators
{
public:
  explicit communicators(int ranks) : handles_(static_cast<std::size_t>(ranks))
  {
    must(ncclCommInitAll(handles_.data(), ranks, nullptr), "ncclCommInitAll"); // devices 0 to ranks - 1
  }
  ~communicators()
  {
    for (ncclComm_t handle : handles_)
    {
      (void) ncclCommDestroy(handle);
    }
  }
  communicators(const communicators&)            = delete;
  communicators& operator=(const communicators&) = delete;

  ncclComm_t operator[](std::size_t number) const { return handles_[number]; }

private:
  std::vector<ncclComm_t> handles_;
};

using ranks_of_batch = std::vector<std::unique_ptr<rank>>;

/// The batch spread as \p split says, rank r on GPU r.
ranks_of_batch spread(const golden::p2_inputs& inputs, const std::vector<std::int64_t>& split)
{
  ranks_of_batch ranks;
  std::int64_t first = 0;
  for (const std::int64_t samples : split)
  {
    const int number = static_cast<int>(ranks.size());
    ranks.push_back(std::make_unique<rank>(number, number, static_cast<int>(split.size()), inputs, first, samples));
    first += samples;
  }
  return ranks;
}

/// All ranks at once: one thread queues for all of them, so their calls belong together for NCCL.
void exchange(const ranks_of_batch& ranks, const communicators& comms)
{
  must(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t r = 0; r < ranks.size(); ++r)
  {
    ranks[r]->exchange(comms[r]);
  }
  must(ncclGroupEnd(), "ncclGroupEnd");
}

/// One step of training, queued.
void step(const ranks_of_batch& ranks, const communicators& comms, int turn)
{
  for (const auto& r : ranks)
  {
    r->take_moments(turn);
  }
  exchange(ranks, comms);
  for (const auto& r : ranks)
  {
    r->finish(static_cast<int>(ranks.size()));
  }
}

/// Milliseconds of one call(turn), on the GPU that takes longest: median of groups of calls between two events.
template <class Call>
double time_of(const ranks_of_batch& ranks, Call call)
{
  constexpr int calls  = 100;
  constexpr int groups = 7;
  for (int turn = 0; turn < calls; ++turn) // warm up
  {
    call(turn);
  }
  std::vector<double> times;
  for (int group = 0; group < groups; ++group)
  {
    for (const auto& r : ranks)
    {
      r->wait();
    }
    for (const auto& r : ranks)
    {
      r->start_clock();
    }
    for (int turn = 0; turn < calls; ++turn)
    {
      call(turn);
    }
    double longest = 0;
    for (const auto& r : ranks)
    {
      r->stop_clock();
    }
    for (const auto& r : ranks)
    {
      longest = std::max(longest, r->milliseconds());
    }
    times.push_back(longest / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// ---------------------------------------------------------------------------------------------------------------------
// Results
// ---------------------------------------------------------------------------------------------------------------------

/// |error| <= absolute + relative * |expected|.
struct tolerance
{
  double absolute;
  double relative;
};

// What is asked of a result against PyTorch in float64; gpu.golden demands the same. A variance is within 1e-5 of its value,
// relative, which moves y - beta by half of that; means are sums in fp32 of a few values each, and in fp64 beyond. Two results
// that are both within this may be twice as far from each other (README.md, "The bound").
constexpr tolerance y_tolerance{2e-6, 5e-6};
constexpr tolerance mean_tolerance{1e-7, 2e-7};
constexpr tolerance variance_tolerance{0, 1e-5};

/// y [batch][channels] of all samples, and running statistics after a step.
struct outcome
{
  std::vector<float> y, mean, variance;
};

/// Waits. \p alike: whether all ranks have the same running statistics, bit for bit.
outcome collect(const ranks_of_batch& ranks, bool& alike)
{
  outcome all;
  alike = true;
  for (const auto& r : ranks)
  {
    r->wait();
    const std::vector<float> y = r->y();
    all.y.insert(all.y.end(), y.begin(), y.end());
    const std::vector<float> mean     = r->running_mean();
    const std::vector<float> variance = r->running_variance();
    if (all.mean.empty())
    {
      all.mean     = mean;
      all.variance = variance;
    }
    alike = alike && mean == all.mean && variance == all.variance; // NaN is not alike
  }
  return all;
}

/// The largest error as a share of its bound; infinite where a value is NaN or missing.
template <class T>
double share(const std::vector<float>& got, const T* expected, std::size_t count, tolerance allowed)
{
  double worst = got.size() == count ? 0.0 : HUGE_VAL;
  for (std::size_t i = 0; i < got.size() && i < count; ++i)
  {
    const auto value   = static_cast<double>(expected[i]);
    const double error = std::fabs(static_cast<double>(got[i]) - value);
    const double part  = error / (allowed.absolute + allowed.relative * std::fabs(value));
    worst              = std::isnan(part) ? HUGE_VAL : std::max(worst, part);
  }
  return worst;
}

struct shares
{
  double y, mean, variance;

  bool good() const { return y <= 1 && mean <= 1 && variance <= 1; }
};

shares against_pytorch(const outcome& got)
{
  return {share(got.y, golden::p2_full_train, std::size(golden::p2_full_train), y_tolerance),
          share(got.mean, golden::p2_full_running_mean, std::size(golden::p2_full_running_mean), mean_tolerance),
          share(got.variance, golden::p2_full_running_var, std::size(golden::p2_full_running_var), variance_tolerance)};
}

shares against(const outcome& got, const outcome& expected)
{
  const auto twice = [](tolerance t) { return tolerance{2 * t.absolute, 2 * t.relative}; };
  return {share(got.y, expected.y.data(), expected.y.size(), twice(y_tolerance)),
          share(got.mean, expected.mean.data(), expected.mean.size(), twice(mean_tolerance)),
          share(got.variance, expected.variance.data(), expected.variance.size(), twice(variance_tolerance))};
}

/// Prints a line; passes on whether all is within its bound.
bool report(const std::string& what, const char* reference, const shares& s)
{
  std::printf("  %-24s against %-8s: y %.3g, running mean %.3g, running variance %.3g of the bound\n",
              what.c_str(),
              reference,
              s.y,
              s.mean,
              s.variance);
  return s.good();
}

// ---------------------------------------------------------------------------------------------------------------------
// Ways to spread the batch
// ---------------------------------------------------------------------------------------------------------------------

/// As even as it goes.
std::vector<std::int64_t> evenly(std::int64_t batch, std::int64_t ranks)
{
  std::vector<std::int64_t> split;
  for (std::int64_t r = 0; r < ranks; ++r)
  {
    split.push_back((r + 1) * batch / ranks - r * batch / ranks);
  }
  return split;
}

/// Two thirds of what is left, rounded up, to each rank but the last.
std::vector<std::int64_t> unevenly(std::int64_t batch, std::int64_t ranks)
{
  std::vector<std::int64_t> split;
  for (std::int64_t r = 0; r + 1 < ranks; ++r)
  {
    split.push_back((2 * batch + 2) / 3);
    batch -= split.back();
  }
  split.push_back(batch);
  return split;
}

/// The first rank has no sample.
std::vector<std::int64_t> with_an_empty_rank(std::int64_t batch, std::int64_t ranks)
{
  std::vector<std::int64_t> split = evenly(batch, ranks - 1);
  split.insert(split.begin(), 0);
  return split;
}

std::string to_string(const std::vector<std::int64_t>& split)
{
  std::string text;
  for (const std::int64_t samples : split)
  {
    text += (text.empty() ? "" : " + ") + std::to_string(samples);
  }
  return text + " samples";
}

bool run(int devices)
{
  cudaDeviceProp properties{};
  int version = 0;
  must(cudaGetDeviceProperties(&properties, 0), "device");
  must(ncclGetVersion(&version), "ncclGetVersion");
  std::printf(
    "%d x %s, NCCL %d.%d.%d\n", devices, properties.name, version / 10000, version / 100 % 100, version % 100);
  std::fflush(stdout);

  const auto inputs        = golden::make_p2_inputs(golden::p2_full);
  const std::int64_t batch = golden::p2_full.batch;
  const communicators comms(devices);
  bool good  = true;
  bool alike = false;

  const ranks_of_batch one_gpu = spread(inputs, {batch});
  one_gpu[0]->whole(0);
  const outcome joined = collect(one_gpu, alike);
  good                 = report("one GPU, " + to_string({batch}), "PyTorch", against_pytorch(joined)) && good;

  double milliseconds = 0;
  double of_exchange  = 0;
  for (const auto& split : {evenly(batch, devices), unevenly(batch, devices), with_an_empty_rank(batch, devices)})
  {
    const ranks_of_batch ranks = spread(inputs, split);
    step(ranks, comms, 0);
    const outcome got = collect(ranks, alike);
    good              = report(to_string(split), "PyTorch", against_pytorch(got)) && good;
    good              = report("", "one GPU", against(got, joined)) && good;
    if (!alike)
    {
      std::printf("  running statistics differ between GPUs\n");
      good = false;
    }
    if (split == evenly(batch, devices))
    {
      // A comparison is worth something only if it sees that an exchange is missing.
      for (const auto& r : ranks)
      {
        r->finish_alone();
      }
      bool alone_alike  = false;
      const double of_y = against(collect(ranks, alone_alike), joined).y;
      const bool seen   = of_y > 1 && !alone_alike;
      std::printf("  without the exchange y would be off by %.3g times the bound%s\n",
                  of_y,
                  seen ? "" : ": the comparison does not see it");
      good         = good && seen;
      milliseconds = time_of(ranks, [&](int turn) { step(ranks, comms, turn); });
      of_exchange  = time_of(ranks, [&](int) { exchange(ranks, comms); });
    }
    std::fflush(stdout);
  }
  const double of_one = time_of(one_gpu, [&](int turn) { one_gpu[0]->whole(turn); });
  std::printf(
    "  one GPU %.4f ms, %d GPUs %.4f ms, the exchange alone %.4f ms\n", of_one, devices, milliseconds, of_exchange);
  std::puts(good ? "all right" : "WRONG");
  return good;
}

} // namespace

int main()
{
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2)
  {
    std::printf("skipped: needs two GPUs or more in this machine, and sees %d\n", devices);
    return skipped;
  }
  return run(devices) ? 0 : 1;
}
