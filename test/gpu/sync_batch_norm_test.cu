// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// conv_transpose_moments() and sync_batch_norm_global_mean(): a batch in parts, each of which stands for a GPU, against
/// batch_norm_train_global_mean() of the whole batch and against the reference. Checks of arguments need no device.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/train_case.cuh"

#include <tconv/launch/sync_batch_norm_global_mean.cuh>
#include <tconv/reference/batch_norm.hpp>
#include <tconv/reference/chain.hpp>

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>

namespace
{

using namespace tconv_test;
using tconv::chain;
using moments = tconv::moments<double>;

/// Samples of each rank.
using parts = std::vector<std::int64_t>;

/// Ways to spread \p batch samples over ranks: whole, in two and three unequal parts as far as they reach, with empty ones.
std::vector<parts> ways_to_split(std::int64_t batch)
{
  const std::int64_t third = batch / 3;
  return {{batch},
          {batch - third, third},
          {0, batch},
          {third, batch - third - third / 2, third / 2},
          {third, 0, batch - third}};
}

std::string to_string(const parts& split)
{
  std::string text = "ranks of";
  for (const std::int64_t samples : split)
  {
    text += ' ' + std::to_string(samples);
  }
  return text;
}

/// NaN is like NaN.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b)
{
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// What the ranks have in the end.
struct outcome
{
  std::vector<float> y;              ///< [samples of all ranks][channels]
  std::vector<moments> statistics;   ///< [ranks][channels], as gathered
  std::vector<float> mean, variance; ///< running statistics of rank 0
};

/// The ranks of one batch, on one GPU: all memory of theirs, with guards. Parts and arguments are given to steps.
template <class In, class Out>
class simulated_ranks
{
public:
  /// \p how: layouts, slices, engine, and how the calls are made.
  simulated_ranks(const shape3& joined, const arrangement& how, std::size_t ranks, std::uint32_t layer_seed = 7)
      : joined_(joined)
      , how_(how)
  {
    joined_.input_slice  = slice_number(how.input_slice, joined.in_channels);
    joined_.output_slice = slice_number(how.output_slice, joined.out_channels);
    opts_.input_layout   = how.input;
    opts_.engine         = how.engine;
    // Each call may begin while the one before it drains.
    opts_.programmatic_launch = how.mode == launch_mode::side_stream;
    for (std::size_t rank = 0; rank < ranks; ++rank)
    {
      layers_.push_back(std::make_unique<layer>(layer_seed, joined.out_channels));
    }
  }

  layer& layer_of(std::size_t rank) { return *layers_[rank]; }

  /// One step of training; \p x of the joined batch, \p change(gathered statistics) between the halves, on the host.
  template <class Change>
  outcome step(const std::vector<float>& x,
               const std::vector<float>& w,
               const std::vector<float>& b,
               const parts& split,
               float momentum,
               Change change)
  {
    const auto channels = static_cast<std::size_t>(joined_.out_channels);
    device_buffer<float> db(b);
    device_buffer<moments> gathered(static_cast<std::int64_t>(split.size() * channels));
    std::vector<std::unique_ptr<rank_memory>> ranks;
    std::int64_t first = 0;
    for (const std::int64_t samples : split)
    {
      ranks.push_back(std::make_unique<rank_memory>(part(samples), x, first * joined_.in_channels, w, how_, opts_));
      first += samples;
    }
    EXPECT_EQ(first, joined_.batch);

    EXPECT_TRUE(run(how_.mode, [&](cudaStream_t stream) {
      for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      {
        rank_memory& r = *ranks[rank];
        if (tconv::status s = tconv::conv_transpose_moments(r.if_any(r.x),
                                                            r.if_any(r.w),
                                                            r.if_any(r.means),
                                                            gathered.data() + rank * channels,
                                                            r.shape,
                                                            opts_,
                                                            r.space.get(),
                                                            stream);
            !s.ok())
        {
          return s;
        }
      }
      return tconv::status{};
    }));
    outcome result;
    result.statistics                = gathered.download();
    std::vector<moments> changed     = result.statistics;
    const std::int64_t ranks_to_pass = change(changed);
    if (!same_bits(changed, result.statistics))
    {
      gathered.upload(changed);
    }
    const auto before = chain(tconv::bias(static_cast<const float*>(db.data())), tconv::scale(2.0f));
    EXPECT_TRUE(run(how_.mode, [&](cudaStream_t stream) {
      for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      {
        rank_memory& r = *ranks[rank];
        if (tconv::status s = tconv::sync_batch_norm_global_mean(r.if_any(r.means),
                                                                 gathered.data(),
                                                                 ranks_to_pass,
                                                                 r.if_any(r.y),
                                                                 r.shape,
                                                                 before,
                                                                 layers_[rank]->device(momentum),
                                                                 opts_,
                                                                 stream);
            !s.ok())
        {
          return s;
        }
      }
      return tconv::status{};
    }));

    EXPECT_TRUE(gathered.guards_intact() && db.guards_intact());
    for (const auto& r : ranks)
    {
      EXPECT_TRUE(r->guards_intact());
      const std::vector<Out> y = r->y.download();
      EXPECT_TRUE(r->out.others_untouched(y)) << "channels beside the slice were written";
      const std::vector<float> values = r->out.extract(y);
      result.y.insert(result.y.end(), values.begin(), values.end());
    }
    result.mean     = layers_[0]->d_mean.download();
    result.variance = layers_[0]->d_var.download();
    for (std::size_t rank = 0; rank < split.size(); ++rank)
    {
      EXPECT_TRUE(layers_[rank]->guards_intact());
      EXPECT_TRUE(same_bits(layers_[rank]->d_mean.download(), result.mean)) << "rank " << rank;
      EXPECT_TRUE(same_bits(layers_[rank]->d_var.download(), result.variance)) << "rank " << rank;
    }
    return result;
  }
  outcome step(const std::vector<float>& x,
               const std::vector<float>& w,
               const std::vector<float>& b,
               const parts& split,
               float momentum = 1.0f)
  {
    return step(
      x, w, b, split, momentum, [&](const std::vector<moments>&) { return static_cast<std::int64_t>(split.size()); });
  }

  /// The same by one call for the whole batch; running statistics are those of \p bn.
  outcome joined_step(const std::vector<float>& x,
                      const std::vector<float>& w,
                      const std::vector<float>& b,
                      layer& bn,
                      float momentum = 1.0f)
  {
    device_buffer<float> db(b);
    rank_memory all(joined_, x, 0, w, how_, opts_);
    const auto before = chain(tconv::bias(static_cast<const float*>(db.data())), tconv::scale(2.0f));
    workspace_buffer space(tconv::batch_norm_train_global_mean_workspace_bytes(joined_, before, opts_));
    EXPECT_TRUE(run(how_.mode, [&](cudaStream_t stream) {
      return tconv::batch_norm_train_global_mean(
        all.x.data(), all.w.data(), all.y.data(), joined_, before, bn.device(momentum), opts_, space.get(), stream);
    }));
    return {all.out.extract(all.y.download()), {}, bn.d_mean.download(), bn.d_var.download()};
  }

private:
  struct rank_memory
  {
    shape3 shape;
    placement in;
    placement out;
    device_buffer<In> x;
    device_buffer<In> w;
    device_buffer<double> means;
    device_buffer<Out> y;
    workspace_buffer space;

    /// \p first: channel of the joined x, samples counted through, at which this part begins.
    rank_memory(const shape3& s,
                const std::vector<float>& joined_x,
                std::int64_t first,
                const std::vector<float>& weights,
                const arrangement& how,
                const tconv::options& opts)
        : shape(s)
        , in{s.batch, s.in_channels, s.input_positions(), how.input, s.input_slice}
        , out{s.batch, s.out_channels, 1, tconv::layout::channels_first, s.output_slice}
        , x(in.place<In>(std::vector<float>(joined_x.begin() + first * in.positions,
                                            joined_x.begin() + (first + s.batch * s.in_channels) * in.positions)),
            how.misalignment)
        , w(elements_of<In>(weights), how.misalignment)
        , means(s.batch * s.out_channels)
        , y(out.tensor_elements(), how.misalignment)
        , space(tconv::conv_transpose_moments_workspace_bytes(s, opts))
    {}
    /// Null where the rank has no sample: nobody may look at it.
    template <class T>
    T* if_any(device_buffer<T>& buffer)
    {
      return shape.batch > 0 ? buffer.data() : nullptr;
    }
    bool guards_intact() const
    {
      return x.guards_intact() && w.guards_intact() && means.guards_intact() && y.guards_intact()
          && space.guards_intact();
    }
  };

  shape3 part(std::int64_t samples) const
  {
    shape3 s = joined_;
    s.batch  = samples;
    return s;
  }

  shape3 joined_;
  arrangement how_;
  tconv::options opts_;
  std::vector<std::unique_ptr<layer>> layers_; ///< one for each rank, all alike
};

/// One batch in every way of splitting it, against the reference and the one call for the whole batch, which may both be as wrong as
/// they are allowed to be.
template <class In, class Out>
void check_parts(const shape3& s, const convolution_inputs<In>& inputs, const arrangement& how)
{
  layer bn(7, s.out_channels);
  const trained_means expected(s, inputs.expected, inputs.b, bn);
  for (const parts& split : ways_to_split(s.batch))
  {
    SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + tconv_test::to_string(s)
                 + ", " + to_string(how) + ", " + to_string(split));
    simulated_ranks<In, Out> ranks(s, how, split.size());
    const outcome got = ranks.step(inputs.x, inputs.w, inputs.b, split);
    expected.check_running(got.mean, got.variance);
    EXPECT_TRUE(expected.compare<Out>(got.y));
    for (std::size_t i = 0; i < got.statistics.size(); ++i)
    {
      const auto rank = i / static_cast<std::size_t>(s.out_channels);
      ASSERT_EQ(got.statistics[i].count, static_cast<double>(split[rank] * s.output_positions())) << i;
    }
    if (split.size() == 1)
    {
      bn.d_mean.upload(bn.mean);
      bn.d_var.upload(bn.var);
      const outcome joined = ranks.joined_step(inputs.x, inputs.w, inputs.b, bn);
      EXPECT_TRUE(same_bits(got.y, joined.y)) << "one rank is one GPU";
      EXPECT_TRUE(same_bits(got.mean, joined.mean));
      EXPECT_TRUE(same_bits(got.variance, joined.variance));
    }
    else
    {
      const outcome joined = ranks.joined_step(inputs.x, inputs.w, inputs.b, bn);
      const std::vector<double> reference(joined.y.begin(), joined.y.end());
      EXPECT_TRUE(
        compare_values(got.y.data(), reference.data(), {s.batch, s.out_channels}, [&](std::int64_t i, double) {
          return tolerance{2 * expected.y_bound<Out>(i, expected.y()[static_cast<std::size_t>(i)]), 0.0};
        }));
      for (std::size_t c = 0; c < got.mean.size(); ++c)
      {
        EXPECT_NEAR(static_cast<double>(got.mean[c]), static_cast<double>(joined.mean[c]), 2 * expected.mean_bound(c))
          << "channel " << c;
        EXPECT_NEAR(
          static_cast<double>(got.variance[c]), static_cast<double>(joined.variance[c]), 2 * expected.variance_bound(c))
          << "channel " << c;
      }
    }
  }
}

template <class Pair>
class sync_batch_norm_types_gpu : public gpu_test
{};
TYPED_TEST_SUITE(sync_batch_norm_types_gpu, pairs);

// Strides, padding, groups, dilation: moments from a pass over the outputs. Layouts, slices and alignments come round.
TYPED_TEST(sync_batch_norm_types_gpu, awkward_shapes)
{
  using In           = typename TypeParam::in;
  std::uint32_t seed = 1;
  for (shape3 s : awkward_shapes())
  {
    ++seed;
    s.batch += seed % 3 == 0 ? 3 : 1; // something to split
    if (s.batch * s.output_positions() >= 2 && s.output_elements() < 400000)
    {
      check_parts<In, typename TypeParam::out>(
        s, convolution_inputs<In>::of(s, seed), arrangement::number(7 * seed + 13 * TypeParam::number + 1));
    }
  }
}

// Nothing cropped: moments from the spectrum of x. Also sizes with a kernel of their own, which sums x on the way.
TYPED_TEST(sync_batch_norm_types_gpu, by_spectrum)
{
  using In           = typename TypeParam::in;
  std::uint32_t seed = 300;
  for (shape3 s : uncropped_shapes())
  {
    ++seed;
    if (seed % 5 != TypeParam::number)
    {
      continue;
    }
    s.batch += 2;
    auto how   = arrangement::number(7 * seed + 13 * TypeParam::number + 1);
    how.engine = tconv::engine::spectral;
    check_parts<In, typename TypeParam::out>(s, convolution_inputs<In>::of(s, seed), how);
  }
}

TYPED_TEST(sync_batch_norm_types_gpu, whole_volumes)
{
  using In       = typename TypeParam::in;
  const shape3 s = make_shape<3>({4, 8, 6, 1}, {16, 32, 32}, {5, 5, 5});
  for (const std::int64_t number : {0, 5})
  {
    auto how   = arrangement::number(number + TypeParam::number);
    how.engine = tconv::engine::spectral;
    check_parts<In, typename TypeParam::out>(s, convolution_inputs<In>::of(s, 9), how);
  }
}

// The pass over the outputs on CUDA cores and, in builds that have them, on tensor cores.
TYPED_TEST(sync_batch_norm_types_gpu, by_each_pass)
{
  using In       = typename TypeParam::in;
  const shape3 s = make_shape<3>({5, 17, 40, 1}, {4, 5, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  auto how       = arrangement::number(TypeParam::number + 2);
  how.engine     = tconv::engine::gather;
  check_parts<In, typename TypeParam::out>(s, convolution_inputs<In>::of(s, 21), how);
  how.engine = tconv::engine::implicit_gemm;
  tconv::options opts;
  opts.engine = how.engine;
  if (tconv::runtime::output_moments_plan<In>(s, opts).tensor_cores)
  {
    check_parts<In, typename TypeParam::out>(s, convolution_inputs<In>::of(s, 21), how);
  }
}

class sync_batch_norm_gpu : public gpu_test
{};

/// Samples of a channel around means of their own, m, m + step, ...: values are these +- 1/8, and everything about them is exact.
std::vector<float> around(float m, float step, std::int64_t batch, std::int64_t positions)
{
  std::vector<float> x;
  for (std::int64_t i = 0; i < batch * positions; ++i)
  {
    x.push_back(m + step * static_cast<float>(i / positions) + (i % 2 == 0 ? 0.125f : -0.125f));
  }
  return x;
}

// E[y^2] - E[y]^2 has no digit left at these means; between ranks, a merge that forgets their means or weighs them alike is off by far.
TEST_F(sync_batch_norm_gpu, means_far_from_zero)
{
  const shape3 s = tconv::detail::canonical(make_shape<1>({4, 1, 1, 1}, {32}, {1}));
  arrangement by_pass;
  by_pass.engine = tconv::engine::gather;
  for (const float m : {5.0f, 4096.0f, 65536.0f})
  {
    for (const float step : {0.0f, 8.0f})
    {
      for (const parts& split : {parts{1, 3}, parts{3, 0, 1}, parts{1, 1, 2}})
      {
        SCOPED_TRACE(std::to_string(m) + " + n * " + std::to_string(step) + ", " + to_string(split));
        simulated_ranks<float, float> ranks(s, by_pass, split.size());
        const outcome got = ranks.step(around(m, step, 4, 32), {0.5f}, {0.0f}, split); // and times 2
        // 128 deviations of 1/8; samples are 1.5 and 0.5 steps away from the middle.
        const double m2    = 128 * 0.015625 + 2 * 32 * (2.25 + 0.25) * static_cast<double>(step * step);
        const double sigma = std::sqrt(m2 / 128);
        // Where samples of a rank differ, sums in fp32 round means between theirs.
        const double error = 1e-6 + (step > 0.0f ? 0x1p-22 * static_cast<double>(m) / sigma : 0.0);
        EXPECT_EQ(got.mean[0], m + 1.5f * step);
        EXPECT_NEAR(static_cast<double>(got.variance[0]), m2 / 127, error * m2 / 127);
        for (std::size_t n = 0; n < 4; ++n)
        {
          const layer& bn     = ranks.layer_of(0);
          const double scaled = static_cast<double>(bn.gamma[0]) * (static_cast<double>(n) - 1.5)
                              * static_cast<double>(step) / std::sqrt(m2 / 128 + static_cast<double>(layer::eps));
          EXPECT_NEAR(
            static_cast<double>(got.y[n]), scaled + static_cast<double>(bn.beta[0]), 4e-7 + error * std::fabs(scaled))
            << n;
        }
      }
    }
  }
}

/// A batch whose samples differ, so that statistics of a part are not those of the whole.
struct uneven_batch
{
  shape3 shape = make_shape<3>({5, 4, 7, 1}, {3, 4, 5}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  std::vector<float> x;
  std::vector<float> w = random_values(42, shape.weight_elements());
  std::vector<float> b = random_values(43, shape.out_channels);

  explicit uneven_batch(std::uint32_t seed = 41) : x(random_values(seed, shape.input_elements()))
  {
    const std::size_t sample = x.size() / static_cast<std::size_t>(shape.batch);
    for (std::size_t i = 0; i < x.size(); ++i)
    {
      x[i] += 0.5f * static_cast<float>(i / sample);
    }
  }
};

// The comparison of every test here must find what can go wrong with statistics between the halves.
TEST_F(sync_batch_norm_gpu, wrong_merges_are_found)
{
  const uneven_batch batch;
  const shape3& s     = batch.shape;
  const auto channels = static_cast<std::size_t>(s.out_channels);
  const parts split   = {3, 2};
  const layer bn(7, s.out_channels);
  const trained_means expected(s, full_reference(batch.x, batch.w, s), batch.b, bn);
  const auto right = [&](const std::function<std::int64_t(std::vector<moments>&)>& change) {
    simulated_ranks<float, float> ranks(s, {}, split.size());
    const outcome got = ranks.step(batch.x, batch.w, batch.b, split, 1.0f, change);
    return expected.compare<float>(got.y).ok();
  };
  EXPECT_TRUE(right([](std::vector<moments>&) { return 2; }));
  EXPECT_FALSE(right([](std::vector<moments>&) { return 1; })) << "rank 0 alone";
  EXPECT_FALSE(right([&](std::vector<moments>& all) {
    for (std::size_t c = 0; c < channels; ++c)
    {
      all[c].count = all[channels + c].count;
    }
    return 2;
  }))
    << "equal weights";
  EXPECT_FALSE(right([&](std::vector<moments>& all) {
    std::copy_n(all.begin(), channels, all.begin() + static_cast<std::ptrdiff_t>(channels));
    return 2;
  }))
    << "rank 0 twice";
  EXPECT_FALSE(right([&](std::vector<moments>& all) {
    std::vector<moments> transposed(all.size());
    for (std::size_t i = 0; i < all.size(); ++i)
    {
      transposed[i % channels * 2 + i / channels] = all[i];
    }
    all = transposed;
    return 2;
  }))
    << "[channels][ranks]";
  EXPECT_FALSE(right([&](std::vector<moments>& all) {
    for (std::size_t c = 0; c < channels; ++c)
    {
      // What is left of a merge that adds squares but forgets the distance of the means.
      const double share = all[c].count / (all[c].count + all[channels + c].count);
      const double mean  = share * all[c].mean + (1 - share) * all[channels + c].mean;
      all[c].mean = all[channels + c].mean = mean;
    }
    return 2;
  }))
    << "squares added up";
}

// Ten steps with momentum 0.1, other parts in each.
TEST_F(sync_batch_norm_gpu, running_statistics_of_ten_steps)
{
  const std::vector<parts> splits = {{3, 2, 0}, {5, 0, 0}, {1, 0, 4}, {1, 3, 1}, {0, 5, 0}};
  const uneven_batch first;
  const shape3& s     = first.shape;
  const auto channels = static_cast<std::size_t>(s.out_channels);
  simulated_ranks<float, float> ranks(s, {}, 3);
  layer one_gpu(7, s.out_channels);
  std::vector<double> mean(one_gpu.mean.begin(), one_gpu.mean.end());
  std::vector<double> variance(one_gpu.var.begin(), one_gpu.var.end());
  std::vector<double> mean_bound(channels, 0.0), variance_bound(channels, 0.0);
  constexpr auto momentum = static_cast<double>(0.1f);
  for (std::uint32_t step = 0; step < 10; ++step)
  {
    const uneven_batch batch(100 + step);
    const parts& split   = splits[step % splits.size()];
    const outcome got    = ranks.step(batch.x, first.w, first.b, split, 0.1f);
    const outcome joined = ranks.joined_step(batch.x, first.w, first.b, one_gpu, 0.1f);
    const trained_means expected(s, full_reference(batch.x, first.w, s), first.b, one_gpu);
    EXPECT_TRUE(expected.compare<float>(got.y)) << "step " << step;
    for (std::size_t c = 0; c < channels; ++c)
    {
      // Errors move as the statistics do; each step rounds once.
      const auto move = [&](double& running, double& bound, double statistic, double of_statistic) {
        running = (1 - momentum) * running + momentum * statistic;
        bound   = (1 - momentum) * bound + momentum * of_statistic + ulp(running);
      };
      move(mean[c], mean_bound[c], expected.mean(c), expected.mean_bound(c));
      move(variance[c], variance_bound[c], expected.variance(c), expected.variance_bound(c));
      EXPECT_NEAR(static_cast<double>(got.mean[c]), mean[c], mean_bound[c]) << "step " << step << ", channel " << c;
      EXPECT_NEAR(static_cast<double>(got.variance[c]), variance[c], variance_bound[c])
        << "step " << step << ", channel " << c;
      EXPECT_NEAR(static_cast<double>(got.mean[c]), static_cast<double>(joined.mean[c]), 2 * mean_bound[c]);
      EXPECT_NEAR(static_cast<double>(got.variance[c]), static_cast<double>(joined.variance[c]), 2 * variance_bound[c]);
    }
  }
}

// A NaN on one rank poisons its channels on all of them, as it does in one batch.
TEST_F(sync_batch_norm_gpu, nan_reaches_its_channels_on_every_rank)
{
  const shape3 s = make_shape<3>({4, 4, 6, 2}, {3, 4, 5}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  auto x         = random_values(51, s.input_elements());
  x[1]           = std::numeric_limits<float>::quiet_NaN(); // sample 0, first group
  const auto w   = random_values(52, s.weight_elements());
  simulated_ranks<float, float> ranks(s, {}, 2);
  const outcome got = ranks.step(x, w, std::vector<float>(6, 0.0f), {1, 3});
  for (std::size_t i = 0; i < got.y.size(); ++i)
  {
    EXPECT_EQ(std::isnan(got.y[i]), i % 6 < 3) << i;
  }
  for (std::size_t c = 0; c < 6; ++c)
  {
    EXPECT_EQ(std::isnan(got.mean[c]), c < 3) << c;
    EXPECT_EQ(std::isnan(got.variance[c]), c < 3) << c;
  }
}

/// The second half for a rank without samples: what running statistics of one channel become with momentum 1.
struct tracked
{
  float mean, variance;
};
tracked merge_on_device(const std::vector<moments>& statistics)
{
  shape3 s       = make_shape<3>({0, 1, 1, 1}, {1, 1, 1}, {1, 1, 1});
  const auto all = static_cast<std::int64_t>(statistics.size());
  device_buffer<moments> gathered(statistics);
  device_buffer<float> mean(std::vector<float>{-7.0f}), variance(std::vector<float>{-8.0f});
  const tconv::batch_norm_arguments arguments{nullptr, nullptr, mean.data(), variance.data(), 1e-5f, 1.0f};
  EXPECT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::sync_batch_norm_global_mean(
      nullptr, gathered.data(), all, static_cast<float*>(nullptr), s, chain<>{}, arguments, tconv::options{}, stream);
  }));
  return {mean.download()[0], variance.download()[0]};
}

// At these numbers the order shows: 2^60 and -2^60 cancel before 3 comes, or swallow it.
TEST_F(sync_batch_norm_gpu, ranks_are_merged_in_their_order)
{
  const moments high{1, 0x1p60, 0};
  const moments low{1, -0x1p60, 0};
  const moments three{1, 3, 0};
  EXPECT_EQ(merge_on_device({high, low, three}).mean, 1.0f);
  EXPECT_EQ(merge_on_device({low, high, three}).mean, 1.0f);
  EXPECT_NE(merge_on_device({high, three, low}).mean, 1.0f);
  EXPECT_NE(merge_on_device({three, low, high}).mean, 1.0f);
}

TEST_F(sync_batch_norm_gpu, many_ranks)
{
  // Rank r: count r % 4, all values r. Exact up to the merges' fp64.
  std::vector<moments> statistics;
  double count = 0;
  double sum   = 0;
  for (int rank = 0; rank < 1000; ++rank)
  {
    const int n = rank % 4;
    statistics.push_back({static_cast<double>(n), n > 0 ? static_cast<double>(rank) : 0.0, 0.0});
    count += n;
    sum += static_cast<double>(n) * rank;
  }
  double m2 = 0;
  for (const moments& part : statistics)
  {
    m2 += part.count * (part.mean - sum / count) * (part.mean - sum / count);
  }
  const tracked got = merge_on_device(statistics);
  EXPECT_FLOAT_EQ(got.mean, static_cast<float>(sum / count));
  EXPECT_FLOAT_EQ(got.variance, static_cast<float>(m2 / (count - 1)));
}

TEST_F(sync_batch_norm_gpu, no_value_and_one_value_in_total)
{
  const tracked none = merge_on_device({{}, {}});
  EXPECT_EQ(none.mean, -7.0f) << "not touched";
  EXPECT_EQ(none.variance, -8.0f) << "not touched";
  const tracked one = merge_on_device({{}, {1, 3, 0}, {}});
  EXPECT_EQ(one.mean, 3.0f);
  EXPECT_TRUE(std::isnan(one.variance));

  // The rank that has the value: beta.
  const shape3 s = make_shape<3>({1, 1, 1, 1}, {1, 1, 1}, {1, 1, 1});
  simulated_ranks<float, float> ranks(s, {}, 2);
  layer& bn = ranks.layer_of(0);
  device_buffer<moments> gathered(std::vector<moments>{{1, 3, 0}, {}});
  device_buffer<double> means(std::vector<double>{3.0});
  device_buffer<float> y(1);
  tconv::batch_norm_arguments arguments = bn.device(1.0f);
  arguments.running_mean                = nullptr;
  arguments.running_var                 = nullptr;
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::sync_batch_norm_global_mean(
      means.data(), gathered.data(), 2, y.data(), s, chain<>{}, arguments, tconv::options{}, stream);
  }));
  EXPECT_EQ(y.download()[0], bn.beta[0]);
  EXPECT_EQ(bn.d_mean.download(), bn.mean) << "not tracked";
}

// With an empty output there are no values on any rank.
TEST_F(sync_batch_norm_gpu, empty_outputs)
{
  const shape3 empty = make_shape<3>({2, 3, 5, 1}, {1, 1, 2}, {1, 1, 1}, {1, 1, 1}, {0, 0, 1});
  ASSERT_EQ(empty.output_positions(), 0);
  device_buffer<moments> statistics(5);
  ASSERT_TRUE(run(launch_mode::graph, [&](cudaStream_t stream) {
    return tconv::conv_transpose_moments(static_cast<const float*>(nullptr),
                                         static_cast<const float*>(nullptr),
                                         nullptr,
                                         statistics.data(),
                                         empty,
                                         tconv::options{},
                                         {},
                                         stream);
  }));
  for (const moments& m : statistics.download())
  {
    EXPECT_EQ(m.count, 0.0);
    EXPECT_EQ(m.mean, 0.0);
    EXPECT_EQ(m.m2, 0.0);
  }
  EXPECT_TRUE(statistics.guards_intact());
  layer bn(3, 5);
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::sync_batch_norm_global_mean(nullptr,
                                              statistics.data(),
                                              1,
                                              static_cast<float*>(nullptr),
                                              empty,
                                              chain<>{},
                                              bn.device(),
                                              tconv::options{},
                                              stream);
  }));
  EXPECT_EQ(bn.d_mean.download(), bn.mean);
  EXPECT_EQ(bn.d_var.download(), bn.var);
}

/// The same bits, \p launches times.
void expect_the_same_bits(const shape3& s, const parts& split, int launches, tconv::engine engine)
{
  arrangement how;
  how.engine   = engine;
  const auto x = random_values(61, s.input_elements());
  const auto w = random_values(62, s.weight_elements());
  const auto b = random_values(63, s.out_channels);
  outcome first;
  for (int i = 0; i < launches; ++i)
  {
    simulated_ranks<float, float> ranks(s, how, split.size());
    outcome now = ranks.step(x, w, b, split, 0.1f);
    if (i == 0)
    {
      first = now;
    }
    ASSERT_TRUE(same_bits(first.statistics, now.statistics)) << "launch " << i;
    ASSERT_EQ(first.y, now.y) << "launch " << i;
    ASSERT_EQ(first.mean, now.mean) << "launch " << i;
    ASSERT_EQ(first.variance, now.variance) << "launch " << i;
  }
}

TEST_F(sync_batch_norm_gpu, hundreds_of_launches_give_the_same_bits)
{
  expect_the_same_bits(make_shape<3>({5, 8, 24, 1}, {4, 7, 9}, {3, 3, 3}), {2, 3}, 300, tconv::engine::gather);
  expect_the_same_bits(make_shape<3>({5, 8, 24, 1}, {4, 7, 9}, {3, 3, 3}), {2, 0, 3}, 300, tconv::engine::spectral);
  expect_the_same_bits(make_shape<3>({3, 8, 24, 1}, {16, 32, 32}, {5, 5, 5}), {1, 2}, 100, tconv::engine::spectral);
}

// What must be rejected before anything is launched, on addresses that nobody may touch.

/// Arguments of both calls, right until one is spoilt.
struct call
{
  shape2 shape = make_shape<2>({2, 4, 6, 2}, {3, 5}, {3, 2}, {2, 1}, {1, 0}, {1, 0});
  tconv::options options;
  std::uintptr_t x = slot(1), w = slot(2), means = slot(3), statistics = slot(4), y = slot(5);
  std::uintptr_t gamma = slot(6), beta = slot(7), running_mean = slot(8), running_var = slot(9), space = slot(10);
  std::size_t space_bytes = tconv::conv_transpose_moments_workspace_bytes(shape);
  std::int64_t ranks      = 3;
  float eps               = 1e-5f;
  float momentum          = 0.1f;

  static std::uintptr_t slot(std::uintptr_t number) { return (std::uintptr_t{1} << 40) + (number << 20); }
  template <class T>
  static T* at(std::uintptr_t address)
  {
    return reinterpret_cast<T*>(address);
  }

  tconv::status first() const
  {
    return tconv::conv_transpose_moments(at<const float>(x),
                                         at<const float>(w),
                                         at<double>(means),
                                         at<moments>(statistics),
                                         shape,
                                         options,
                                         {at<void>(space), space_bytes},
                                         nullptr);
  }
  tconv::status second() const
  {
    const tconv::batch_norm_arguments arguments{
      at<float>(gamma), at<float>(beta), at<float>(running_mean), at<float>(running_var), eps, momentum};
    return tconv::sync_batch_norm_global_mean(at<const double>(means),
                                              at<const moments>(statistics),
                                              ranks,
                                              at<float>(y),
                                              shape,
                                              chain(tconv::scale(2.0f)),
                                              arguments,
                                              options,
                                              nullptr);
  }
};

using address_in_call = std::uintptr_t call::*;

/// \p change(call) must make \p half fail with a message that begins with \p begins and contains \p contains.
template <class Change>
void expect_rejection(tconv::status (call::*half)() const,
                      Change change,
                      const std::string& begins,
                      const std::string& contains,
                      tconv::status_code code = tconv::status_code::invalid_argument)
{
  call wrong;
  change(wrong);
  const tconv::status s     = (wrong.*half)();
  const std::string message = s.message();
  EXPECT_TRUE(s.code() == code && message.rfind(begins, 0) == 0 && message.find(contains) != std::string::npos)
    << "code " << static_cast<int>(s.code()) << " with \"" << message << "\"\n  should begin with \"" << begins
    << "\" and contain \"" << contains << '"';
}

TEST(sync_batch_norm_arguments, of_the_first_half)
{
  const auto reject = [](auto change, const std::string& begins, const std::string& contains) {
    expect_rejection(&call::first, change, begins, contains);
  };
  struct named
  {
    const char* name;
    address_in_call address;
    std::size_t element;
    bool output;
  };
  const named tensors[] = {{"x", &call::x, 4, false},
                           {"w", &call::w, 4, false},
                           {"means", &call::means, 8, true},
                           {"statistics", &call::statistics, 8, true}};
  for (const named& t : tensors)
  {
    const std::string name = t.name;
    reject([&](call& c) { c.*t.address = 0; }, name + ":", "must not be null");
    for (const std::size_t off : {std::size_t{1}, t.element / 2})
    {
      reject([&](call& c) { c.*t.address += off; },
             name + ":",
             "not a multiple of the element size " + std::to_string(t.element));
    }
    reject([&](call& c) { c.*t.address = c.space; },
           t.output ? name + ":" : "workspace:",
           "must not overlap " + (t.output ? "workspace" : name));
    if (!t.output)
    {
      reject([&](call& c) { c.*t.address = c.means; }, "means:", "must not overlap " + name);
      reject([&](call& c) { c.*t.address = c.statistics; }, "statistics:", "must not overlap " + name);
    }
  }
  reject([](call& c) { c.statistics = c.means; }, "statistics:", "must not overlap means");
  reject([](call& c) { c.shape.stride[0] = 0; }, "shape.stride[h] = 0", "must be >= 1");
  reject([](call& c) { c.shape.batch = -1; }, "shape.batch = -1", "must be >= 0");
  reject([](call& c) { c.shape.output_slice = {6, 1}; }, "shape.output_slice", "");
  // Weights and outputs fit, three doubles of each channel do not.
  reject(
    [](call& c) {
      c.shape = make_shape<2>({1, 1, std::int64_t{1} << 59, 1}, {1, 1}, {1, 1});
    },
    "shape.out_channels = ",
    "must fit 63 bits");
  expect_rejection(
    &call::first,
    [](call& c) { c.options.engine = tconv::engine::spectral; },
    "options.engine = spectral",
    "stride 1",
    tconv::status_code::not_supported);
  const std::string needed = "needs " + std::to_string(call{}.space_bytes);
  expect_rejection(
    &call::first, [](call& c) { --c.space_bytes; }, "workspace:", needed, tconv::status_code::workspace_too_small);
  expect_rejection(
    &call::first, [](call& c) { c.space = 0; }, "workspace:", needed, tconv::status_code::workspace_too_small);
  expect_rejection(
    &call::first,
    [](call& c) { c.space += 128; },
    "workspace:",
    "multiple of 256 bytes",
    tconv::status_code::workspace_misaligned);
  // An empty part looks at statistics alone.
  reject(
    [](call& c) {
      c.shape.batch = 0;
      c.statistics  = 0;
    },
    "statistics:",
    "must not be null");
}

TEST(sync_batch_norm_arguments, of_the_second_half)
{
  const auto reject = [](auto change, const std::string& begins, const std::string& contains) {
    expect_rejection(&call::second, change, begins, contains);
  };
  for (const std::int64_t ranks : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()})
  {
    reject([&](call& c) { c.ranks = ranks; }, "ranks = " + std::to_string(ranks), "must be >= 1");
  }
  reject([](call& c) { c.ranks = std::int64_t{1} << 59; }, "shape.out_channels = 6", "must fit 63 bits");
  reject([](call& c) { c.means = 0; }, "means:", "must not be null");
  reject([](call& c) { c.statistics = 0; }, "statistics:", "must not be null");
  reject([](call& c) { c.y = 0; }, "y:", "must not be null");
  reject([](call& c) { c.means += 4; }, "means:", "not a multiple of the element size 8");
  reject([](call& c) { c.statistics += 4; }, "statistics:", "not a multiple of the element size 8");
  reject([](call& c) { c.y += 2; }, "y:", "not a multiple of the element size 4");
  reject([](call& c) { c.gamma += 2; }, "batch_norm.gamma:", "not a multiple");
  reject([](call& c) { c.running_var += 2; }, "batch_norm.running_var:", "not a multiple");
  reject([](call& c) { c.y = c.means; }, "y:", "must not overlap means");
  // The last of all ranks' statistics.
  reject([](call& c) { c.y = c.statistics + 3 * 6 * 24 - 4; }, "y:", "must not overlap statistics");
  reject([](call& c) { c.running_mean = c.statistics; }, "batch_norm.running_mean:", "must not overlap statistics");
  reject([](call& c) { c.running_var = c.beta; }, "batch_norm.running_var:", "must not overlap batch_norm.beta");
  reject([](call& c) { c.running_var = c.y; }, "batch_norm.running_var:", "must not overlap y");
  reject([](call& c) { c.eps = -1.0f; }, "batch_norm.eps = -1", "must be >= 0");
  reject([](call& c) { c.momentum = 1.5f; }, "batch_norm.momentum = 1.5", "must be in [0, 1]");
  reject([](call& c) { c.shape.kernel[1] = 0; }, "shape.kernel[w] = 0", "must be >= 1");
  reject([](call& c) { c.shape.output_slice = {6, 1}; }, "shape.output_slice", "");
}

// Where there is no device the first launch says so; what is right comes that far.
TEST(sync_batch_norm_arguments, right_ones_pass_every_check)
{
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
  {
    return; // never launch on these addresses
  }
  const auto accept = [](tconv::status (call::*half)() const, const std::function<void(call&)>& change) {
    call right;
    change(right);
    const tconv::status s = (right.*half)();
    EXPECT_EQ(static_cast<int>(s.code()), static_cast<int>(tconv::status_code::cuda_error)) << s.message();
    EXPECT_NE(std::string(s.message()).find("tconv::kernel::"), std::string::npos) << s.message();
  };
  accept(&call::first, [](call&) {});
  accept(&call::first, [](call& c) { c.w = c.x; });
  accept(&call::first, [](call& c) { c.statistics = c.means + 8 * 2 * 6; });
  accept(&call::first, [](call& c) {
    c.shape.batch = 0;
    c.x = c.w = c.means = c.space = 0;
    c.space_bytes                 = 0;
  });
  accept(&call::second, [](call&) {});
  accept(&call::second, [](call& c) { c.gamma = c.beta = c.running_mean = c.running_var = 0; });
  accept(&call::second, [](call& c) { c.y = c.statistics + 3 * 6 * 24; });
  accept(&call::second, [](call& c) {
    c.shape.batch = 0;
    c.means = c.y = 0;
  });
}

} // namespace
