// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// apply_chain() on existing tensors against the reference: any number of channels, layouts, slices and types, in place, and the
/// published failures of softmax implementations.
///
/// Inputs are exact, so bounds are those that the functors document, with u = 2^-24, and the rounding of the output.

#include "common/typed_convolution.cuh"

#include <tconv/launch/apply_chain.cuh>
#include <tconv/reference/chain.hpp>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/channel_reduction.hpp>
#include <tconv/thread/layer_norm.hpp>
#include <tconv/thread/softmax.hpp>

#include <cfloat>
#include <cstdio>
#include <limits>

namespace
{

using namespace tconv_test;
using tconv::chain;
using tensor3 = tconv::tensor_shape<3>;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr double u  = 0x1p-24;

constexpr tconv::layout layouts[] = {tconv::layout::channels_first, tconv::layout::channels_last};

tensor3 make_tensor(std::int64_t batch, std::int64_t channels, std::int64_t positions)
{
  tensor3 s;
  s.batch    = batch;
  s.channels = channels;
  s.extent   = {1, 1, positions};
  // Extents matter as their product only.
  for (const std::int64_t h : {11, 7, 5, 3})
  {
    if (positions % h == 0)
    {
      s.extent = {1, h, positions / h};
    }
  }
  return s;
}

std::string to_string(const tensor3& s)
{
  return std::to_string(s.batch) + " x " + std::to_string(s.channels) + " channels x " + std::to_string(s.positions())
       + " positions";
}

/// Runs apply_chain on \p x (channels first), and returns y channels first; empty after a failure. Neither x nor what lies beside
/// the slices may change.
template <class In, class Out, class Functors>
std::vector<float> apply_on_device(tensor3 s, const std::vector<float>& x, const Functors& functors, arrangement how)
{
  SCOPED_TRACE(std::string(format_of<In>::name) + " -> " + format_of<Out>::name + ", " + to_string(s) + ", "
               + to_string(how));
  const std::int64_t written = Functors::output_channels(s.channels);
  s.input_slice              = slice_number(how.input_slice, s.channels);
  s.output_slice             = slice_number(how.output_slice, written);
  tconv::options opts;
  opts.input_layout  = how.input;
  opts.output_layout = how.output;
  const placement in{s.batch, s.channels, s.positions(), how.input, s.input_slice};
  const placement out{s.batch, written, s.positions(), how.output, s.output_slice};

  const std::vector<In> source = in.place<In>(x);
  device_buffer<In> dx(source, how.misalignment);
  device_buffer<Out> dy(out.tensor_elements(), how.misalignment);
  workspace_buffer space(tconv::apply_chain_workspace_bytes(s, functors, opts));
  const bool good = run(how.mode, [&](cudaStream_t stream) {
    return tconv::apply_chain(dx.data(), dy.data(), s, functors, opts, space.get(), stream);
  });
  EXPECT_TRUE(good);
  EXPECT_TRUE(dx.guards_intact() && dy.guards_intact() && space.guards_intact());
  const std::vector<In> after = dx.download();
  EXPECT_EQ(std::memcmp(after.data(), source.data(), source.size() * sizeof(In)), 0) << "x was written";
  const std::vector<Out> y = dy.download();
  EXPECT_TRUE(out.others_untouched(y)) << "channels beside the slice were written";
  return good ? out.extract(y) : std::vector<float>{};
}

/// Half of the spacing of Out around \p value, which \p error may carry into the next binade.
template <class Out>
double half_ulp(double value, double error = 0.0)
{
  return ulp(std::fabs(value) + error, format_of<Out>::value) / 2;
}

/// The channels of one position in double.
using row = std::vector<double>;

double largest(const row& v)
{
  return *std::max_element(v.begin(), v.end());
}

/// Calls visit(n, p, row of x) for every position.
template <class Visitor>
void for_each_row(const tensor3& s, const std::vector<float>& x, Visitor visit)
{
  const std::int64_t positions = s.positions();
  row values(static_cast<std::size_t>(s.channels));
  for (std::int64_t n = 0; n < s.batch; ++n)
  {
    for (std::int64_t p = 0; p < positions; ++p)
    {
      for (std::int64_t c = 0; c < s.channels; ++c)
      {
        values[static_cast<std::size_t>(c)] =
          static_cast<double>(x[static_cast<std::size_t>((n * s.channels + c) * positions + p)]);
      }
      visit(n, p, values);
    }
  }
}

/// Expected values and the error that each may have.
struct expectation
{
  std::vector<double> value;
  std::vector<double> error;
};

/// \p bound(row of x, row of expected values, n) -> row of errors, without the rounding to Out, on inputs that are finite.
template <class Out, class Host, class Bound>
expectation expect(const tensor3& s, const std::vector<float>& x, const Host& on_host, Bound bound)
{
  expectation result;
  result.value.assign(x.begin(), x.end());
  const std::int64_t written = tconv::reference::apply(
    on_host, result.value.data(), s.batch, s.channels, s.positions());
  result.value.resize(static_cast<std::size_t>(s.batch * written * s.positions()));
  result.error.resize(result.value.size());
  row expected(static_cast<std::size_t>(written));
  for_each_row(s, x, [&](std::int64_t n, std::int64_t p, const row& values) {
    const auto at = [&](std::int64_t c) { return static_cast<std::size_t>((n * written + c) * s.positions() + p); };
    for (std::int64_t c = 0; c < written; ++c)
    {
      expected[static_cast<std::size_t>(c)] = result.value[at(c)];
    }
    const row errors = bound(values, expected, n);
    for (std::int64_t c = 0; c < written; ++c)
    {
      const auto i     = static_cast<std::size_t>(c);
      const double own = errors[i];
      // What rounds to fp32 on its way to Out is rounded twice.
      result.error[at(c)] = own + (std::is_same<Out, float>::value ? 0.0 : half_ulp<Out>(expected[i], own));
    }
  });
  return result;
}

/// Compares, and returns the worst error in units of its bound.
double compare(const tensor3& s, std::int64_t written, const std::vector<float>& y, const expectation& expected)
{
  const comparison result = compare_values(
    y.data(), expected.value.data(), {s.batch, written, 1, 1, s.positions()}, [&](std::int64_t i, double) {
      return tolerance{expected.error[static_cast<std::size_t>(i)], 0.0};
    });
  EXPECT_TRUE(result);
  return result.worst;
}

/// Every chain in the sweep: how it is made from operands, and its bound.
struct operands
{
  std::int64_t channels;
  std::vector<float> mean, variance, gamma, beta, slopes, offsets;
  device_buffer<float> d_mean, d_variance, d_gamma, d_beta, d_slopes, d_offsets;

  operands(std::uint32_t seed, std::int64_t batch, std::int64_t count)
      : channels(count)
      , mean(random_values(seed, count))
      , variance(random_values(seed + 1, count, 0.2f, 3.0f))
      , gamma(random_values(seed + 2, count, -2.0f, 2.0f))
      , beta(random_values(seed + 3, count))
      , slopes(random_values(seed + 4, batch * count, -2.0f, 2.0f))
      , offsets(random_values(seed + 5, batch * count))
      , d_mean(mean)
      , d_variance(variance)
      , d_gamma(gamma)
      , d_beta(beta)
      , d_slopes(slopes)
      , d_offsets(offsets)
  {}
};

/// The longest chain of additions behind a sum over \p count channels: at most 96 values of one thread where a row fits shared
/// memory (tuning::columns_policy), else one in 256, and a tree over the threads.
double additions(std::size_t count)
{
  return static_cast<double>(std::min(count, std::max<std::size_t>(96, count / 256 + 1) + 8));
}

/// |err| <= (4 + 2.3 |v - max|) ulp, and 0 below 2^-126, as documented for the exponentials and the quotient; and the sum's own
/// error: its additions, and the mean of 2.3 |v - max| ulp over its terms.
row softmax_bound(const row& v, const row& expected)
{
  const double peak = largest(v);
  const auto below  = [&](std::size_t c) { return std::fmin(peak - v[c], 128.0); };
  double mean       = 0;
  for (std::size_t c = 0; c < v.size(); ++c)
  {
    mean += expected[c] * 2.3 * below(c);
  }
  row result;
  for (std::size_t c = 0; c < v.size(); ++c)
  {
    const double of_sum = (additions(v.size()) + 2 * mean) * u * expected[c];
    result.push_back((4 + 2.3 * below(c)) * ulp(expected[c]) + of_sum + 0x1p-126);
  }
  return result;
}

struct softmax_case
{
  static auto device(const operands&) { return chain(tconv::channel_softmax{}); }
  static auto host(const operands&) { return chain(tconv::channel_softmax{}); }
  static row bound(const operands&, const row& v, const row& expected, std::int64_t)
  {
    return softmax_bound(v, expected);
  }
};

struct softmax_sigmoid_case
{
  static auto device(const operands&) { return chain(tconv::channel_softmax{}, tconv::sigmoid{}); }
  static auto host(const operands&) { return chain(tconv::channel_softmax{}, tconv::sigmoid{}); }
  /// A quarter of the softmax's error, and the sigmoid's own (4 + 1.2 p) ulp.
  static row bound(const operands&, const row& v, const row& expected, std::int64_t)
  {
    row p = expected;
    for (double& value : p)
    {
      value = -std::log(1 / value - 1); // back from the sigmoid
    }
    row result = softmax_bound(v, p);
    for (std::size_t c = 0; c < result.size(); ++c)
    {
      result[c] = result[c] / 4 + 5.2 * ulp(expected[c]);
    }
    return result;
  }
};

struct log_softmax_case
{
  static auto device(const operands&) { return chain(tconv::channel_log_softmax{}); }
  static auto host(const operands&) { return chain(tconv::channel_log_softmax{}); }
  /// u |v - max| + (channels + 8) u + half an ulp.
  static row bound(const operands&, const row& v, const row& expected, std::int64_t)
  {
    const double peak = largest(v);
    row result;
    for (std::size_t c = 0; c < v.size(); ++c)
    {
      const double own = u * (peak - v[c]) + static_cast<double>(v.size() + 8) * u;
      result.push_back(own + half_ulp<float>(expected[c], own));
    }
    return result;
  }
};

constexpr float factor = -1.75f;

struct logsumexp_case
{
  static auto device(const operands&) { return chain(tconv::channel_logsumexp{}, tconv::scale(factor)); }
  static auto host(const operands& o) { return device(o); }
  /// (channels + 8) u + half an ulp of the logarithm, times the factor, and one product.
  static row bound(const operands&, const row& v, const row& expected, std::int64_t)
  {
    const double size = std::fabs(static_cast<double>(factor));
    const double own  = static_cast<double>(v.size() + 8) * u;
    const double all  = size * (own + half_ulp<float>(expected[0] / size, own));
    return {all + half_ulp<float>(expected[0], all)};
  }
};

struct max_case
{
  static auto device(const operands&) { return chain(tconv::channel_max{}); }
  static auto host(const operands&) { return chain(tconv::channel_max{}); }
  static row bound(const operands&, const row&, const row&, std::int64_t) { return {0.0}; }
};

struct mean_case
{
  static auto device(const operands&) { return chain(tconv::channel_mean{}); }
  static auto host(const operands&) { return chain(tconv::channel_mean{}); }
  /// (channels + 2) u mean|v|.
  static row bound(const operands&, const row& v, const row&, std::int64_t)
  {
    double total = 0;
    for (const double value : v)
    {
      total += std::fabs(value);
    }
    const auto count = static_cast<double>(v.size());
    return {(count + 2) * u * total / count};
  }
};

constexpr float layer_norm_eps = 1e-3f;

struct layer_norm_case
{
  static auto device(const operands& o)
  {
    return chain(tconv::channel_layer_norm(o.d_gamma.data(), o.d_beta.data(), layer_norm_eps));
  }
  static auto host(const operands& o)
  {
    return chain(tconv::channel_layer_norm(o.gamma.data(), o.beta.data(), layer_norm_eps));
  }
  /// With r = 1 / sqrt(var + eps), D the largest |v - v[0]| and sums of n terms within n u: a centred value is wrong by at most
  /// d = (n + 4) u D, the variance relative to var + eps by 2 d r + (n + 2) u, r by half of that and 3 ulp.
  static row bound(const operands& o, const row& v, const row& expected, std::int64_t)
  {
    const auto n     = static_cast<double>(v.size());
    double mean      = 0;
    double variance  = 0;
    double deviation = 0;
    for (const double value : v)
    {
      mean += value / n;
      deviation = std::fmax(deviation, std::fabs(value - v[0]));
    }
    for (const double value : v)
    {
      variance += (value - mean) * (value - mean) / n;
    }
    const double r    = 1 / std::sqrt(variance + static_cast<double>(layer_norm_eps));
    const double d    = (n + 4) * u * deviation;
    const double of_r = d * r + (n + 2) * u / 2 + 6 * u;
    row result;
    for (std::size_t c = 0; c < v.size(); ++c)
    {
      const double z     = std::fabs(v[c] - mean) * r;
      const double gamma = std::fabs(static_cast<double>(o.gamma[c]));
      const double own   = gamma * (d * r + z * (of_r + 2 * u)) * (1 + 1e-3);
      result.push_back(own + half_ulp<float>(expected[c], own));
    }
    return result;
  }
};

struct pointwise_case
{
  static auto device(const operands& o)
  {
    return chain(tconv::batch_norm(o.d_mean.data(), o.d_variance.data(), o.d_gamma.data(), o.d_beta.data(), 1e-5f),
                 tconv::relu{},
                 tconv::sample_affine(o.d_slopes.data(), o.d_offsets.data(), o.channels));
  }
  static auto host(const operands& o)
  {
    return chain(tconv::batch_norm(o.mean.data(), o.variance.data(), o.gamma.data(), o.beta.data(), 1e-5f),
                 tconv::relu{},
                 tconv::sample_affine(o.slopes.data(), o.offsets.data(), o.channels));
  }
  /// 4 roundings of slope * (v - mean) and one of the normalised value, times the last slope; one of the result.
  static row bound(const operands& o, const row& v, const row& expected, std::int64_t n)
  {
    row result;
    for (std::size_t c = 0; c < v.size(); ++c)
    {
      const double slope  = static_cast<double>(o.gamma[c]) / std::sqrt(static_cast<double>(o.variance[c]) + 1e-5);
      const double moved  = std::fabs(slope * (v[c] - static_cast<double>(o.mean[c])));
      const double normal = moved + std::fabs(static_cast<double>(o.beta[c]));
      const auto last     = static_cast<std::size_t>(n) * v.size() + c;
      const double own    = std::fabs(static_cast<double>(o.slopes[last])) * u * (4 * moved + normal);
      result.push_back(own + half_ulp<float>(expected[c], own));
    }
    return result;
  }
};

/// What shares a chain and an input: sizes, values, expectations for each type of output.
template <class Case, class In, class Out>
double check_size(const tensor3& s, std::uint32_t seed, const std::vector<std::int64_t>& arrangements, bool with_nan)
{
  auto x = rounded_to<In>(random_values(seed, s.elements(), -6.0f, 6.0f));
  // One channel stands out in every row, so that a softmax over anything but the channels is seen.
  const std::int64_t positions = s.positions();
  for (std::int64_t i = 0; i < s.batch * positions; ++i)
  {
    const std::int64_t c = uniform_integer(seed + 1, static_cast<std::uint64_t>(i), 0, s.channels - 1);
    float& v             = x[static_cast<std::size_t>((i / positions * s.channels + c) * positions + i % positions)];
    v                    = tconv::to_float(tconv::from_float<In>(v + 9.0f));
  }
  if (with_nan)
  {
    x[random_bits(seed, 2) % x.size()] = nan;
  }
  const operands o(seed + 2, s.batch, s.channels);
  const auto expected = expect<Out>(
    s, x, Case::host(o), [&](const row& v, const row& e, std::int64_t n) { return Case::bound(o, v, e, n); });
  double worst = 0;
  for (const std::int64_t number : arrangements)
  {
    SCOPED_TRACE(to_string(s) + ", seed " + std::to_string(seed) + ", arrangement " + std::to_string(number));
    const auto functors = Case::device(o);
    const auto y        = apply_on_device<In, Out>(s, x, functors, arrangement::number(number));
    EXPECT_FALSE(y.empty());
    if (!y.empty())
    {
      const std::int64_t written = decltype(functors)::output_channels(s.channels);
      worst                      = std::fmax(worst, compare(s, written, y, expected));
    }
  }
  return worst;
}

/// All sizes; every \p stride-th arrangement, so that layouts and slices come round.
template <class Case, class In, class Out>
void sweep(const char* name, std::int64_t first_arrangement, int arrangements_per_size)
{
  std::uint32_t seed  = 100;
  std::int64_t number = first_arrangement;
  double worst        = 0;
  for (const std::int64_t channels :
       {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 100, 128, 129, 256, 257, 300, 513, 1000, 1025, 4096, 30011})
  {
    for (const std::int64_t positions : {1, 31, 33, 127, 1000})
    {
      const std::int64_t limit = channels > 4096 ? 31 : (channels > 1025 ? 33 : (channels > 129 ? 127 : 1000));
      if (positions > limit)
      {
        continue;
      }
      std::vector<std::int64_t> numbers;
      for (int i = 0; i < arrangements_per_size; ++i)
      {
        numbers.push_back(number);
        number += 5; // odd: the layouts come round
      }
      ++seed;
      const std::int64_t batch = channels * positions < 10000 ? 3 : 1;
      const tensor3 s          = make_tensor(batch, channels, positions);
      worst                    = std::fmax(worst, check_size<Case, In, Out>(s, seed, numbers, seed % 2 == 0));
    }
  }
  std::printf("[ worst    ] %s, %s -> %s: %.2f of its bound\n", name, format_of<In>::name, format_of<Out>::name, worst);
  testing::Test::RecordProperty(
    std::string("worst_of_bound_") + name + '_' + format_of<In>::name + '_' + format_of<Out>::name,
    std::to_string(worst));
}

class apply_chain_gpu : public gpu_test
{};

TEST_F(apply_chain_gpu, softmax)
{
  sweep<softmax_case, float, float>("softmax", 0, 3);
}

TEST_F(apply_chain_gpu, softmax_of_half_types)
{
  sweep<softmax_case, __half, __half>("softmax", 1, 1);
  sweep<softmax_case, __half, float>("softmax", 2, 1);
  sweep<softmax_case, __nv_bfloat16, __nv_bfloat16>("softmax", 3, 1);
  sweep<softmax_case, __nv_bfloat16, float>("softmax", 4, 1);
}

TEST_F(apply_chain_gpu, softmax_then_sigmoid)
{
  sweep<softmax_sigmoid_case, float, float>("softmax, sigmoid", 5, 1);
}

TEST_F(apply_chain_gpu, log_softmax)
{
  sweep<log_softmax_case, float, float>("log_softmax", 6, 1);
}

TEST_F(apply_chain_gpu, logsumexp_then_scale)
{
  sweep<logsumexp_case, float, float>("logsumexp, scale", 7, 1);
}

TEST_F(apply_chain_gpu, max)
{
  sweep<max_case, float, float>("max", 8, 1);
}

TEST_F(apply_chain_gpu, mean)
{
  sweep<mean_case, float, float>("mean", 9, 1);
}

TEST_F(apply_chain_gpu, layer_norm)
{
  sweep<layer_norm_case, float, float>("layer_norm", 10, 1);
}

// No channel functor: tiles of channels, each on its own; operands per channel, and per sample and channel.
TEST_F(apply_chain_gpu, pointwise)
{
  sweep<pointwise_case, float, float>("batch_norm, relu, sample_affine", 11, 1);
}

// Rows that fit no block's shared memory, and more of them than there are blocks with a row of scratch.
TEST_F(apply_chain_gpu, more_long_rows_than_blocks)
{
  check_size<softmax_case, float, float>(make_tensor(2, 24577, 140), 5, {1}, false);
}

// Any alignment that the element allows; vectors of channels at the ends of their range.
TEST_F(apply_chain_gpu, every_alignment)
{
  std::uint32_t seed = 700;
  for (const std::int64_t channels : {4, 64, 160, 512})
  {
    for (std::int64_t number = 0; number < 16; ++number)
    {
      // The layouts, and both slices packed or in a tensor of twice the channels: nothing but the base is unaligned.
      arrangement how   = arrangement::number(number % 4);
      how.input_slice   = number / 4 % 2 * 2;
      how.output_slice  = number / 8 * 2;
      const tensor3 s   = make_tensor(2, channels, 24);
      const auto x      = rounded_to<__nv_bfloat16>(random_values(++seed, s.elements(), -6.0f, 6.0f));
      const auto narrow = expect<__nv_bfloat16>(
        s, x, chain(tconv::channel_softmax{}), [](const row& v, const row& e, std::int64_t) {
          return softmax_bound(v, e);
        });
      const auto wide = expect<float>(
        s, x, chain(tconv::channel_softmax{}), [](const row& v, const row& e, std::int64_t) {
          return softmax_bound(v, e);
        });
      for (const std::int64_t misalignment : {0, 1, 2, 4})
      {
        how.misalignment    = misalignment;
        const auto functors = chain(tconv::channel_softmax{});
        compare(s, channels, apply_on_device<__nv_bfloat16, __nv_bfloat16>(s, x, functors, how), narrow);
        compare(s, channels, apply_on_device<__nv_bfloat16, float>(s, x, functors, how), wide);
        compare(s, channels, apply_on_device<float, float>(s, x, functors, how), wide);
      }
    }
  }
}

/// apply_chain with y = x must give the bits that it gives out of place, and touch nothing beside the slice.
template <class T, class Functors>
void check_in_place(const tensor3& packed, const Functors& functors, std::uint32_t seed)
{
  const auto x = rounded_to<T>(random_values(seed, packed.elements(), -6.0f, 6.0f));
  for (const tconv::layout order : layouts)
  {
    for (std::int64_t slice = 0; slice < 4; ++slice)
    {
      arrangement how;
      how.input           = order;
      how.output          = order;
      how.input_slice     = slice;
      how.output_slice    = slice;
      how.misalignment    = slice % 2;
      how.mode            = launch_modes[slice % 3];
      const auto expected = apply_on_device<T, T>(packed, x, functors, how);

      tensor3 s      = packed;
      s.input_slice  = slice_number(slice, s.channels);
      s.output_slice = s.input_slice;
      tconv::options opts;
      opts.input_layout  = order;
      opts.output_layout = order;
      const placement place{s.batch, s.channels, s.positions(), order, s.input_slice};
      device_buffer<T> d(place.place<T>(x), how.misalignment);
      workspace_buffer space(tconv::apply_chain_workspace_bytes(s, functors, opts));
      ASSERT_TRUE(run(how.mode,
                      [&](cudaStream_t stream) {
                        return tconv::apply_chain(d.data(), d.data(), s, functors, opts, space.get(), stream);
                      }))
        << to_string(s) << ' ' << to_string(how);
      const std::vector<T> y = d.download();
      const auto got         = place.extract(y);
      ASSERT_EQ(got.size(), expected.size());
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
        << to_string(s) << ' ' << to_string(how);
      EXPECT_TRUE(place.others_untouched(y)) << to_string(s) << ' ' << to_string(how);
      EXPECT_TRUE(d.guards_intact() && space.guards_intact());
    }
  }
}

TEST_F(apply_chain_gpu, in_place)
{
  std::uint32_t seed = 800;
  for (const std::int64_t channels : {1, 5, 64, 100, 256, 300, 1000, 30011})
  {
    const tensor3 s = make_tensor(channels > 1000 ? 1 : 2, channels, channels > 1000 ? 5 : 131);
    check_in_place<float>(s, chain(tconv::channel_softmax{}), ++seed);
    check_in_place<__half>(s, chain(tconv::channel_softmax{}), ++seed);
    check_in_place<__nv_bfloat16>(s, chain(tconv::channel_softmax{}), ++seed);
    const operands o(++seed, s.batch, s.channels);
    check_in_place<float>(s, pointwise_case::device(o), ++seed);
  }
}

// The halves of one tensor, as x and y.
TEST_F(apply_chain_gpu, disjoint_slices_of_one_tensor)
{
  for (const std::int64_t channels : {3, 64, 300})
  {
    for (const tconv::layout order : layouts)
    {
      tensor3 s        = make_tensor(2, channels, 35);
      s.input_slice    = {2 * channels + 1, channels + 1};
      s.output_slice   = {2 * channels + 1, 1};
      const auto x     = random_values(4, s.elements(), -6.0f, 6.0f);
      const auto wider = [&](const tconv::channel_slice& slice) {
        return placement{s.batch, channels, s.positions(), order, slice};
      };
      std::vector<float> all = wider(s.input_slice).place<float>(x);
      device_buffer<float> d(all);
      tconv::options opts;
      opts.input_layout   = order;
      opts.output_layout  = order;
      const auto functors = chain(tconv::channel_softmax{});
      ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
        return tconv::apply_chain(d.data(), d.data(), s, functors, opts, {}, stream);
      }));
      const auto got = d.download();
      compare(
        s,
        channels,
        wider(s.output_slice).extract(got),
        expect<float>(s, x, functors, [](const row& v, const row& e, std::int64_t) { return softmax_bound(v, e); }));
      EXPECT_EQ(wider(s.input_slice).extract(got), x);
      // Channel 0 belongs to neither.
      const placement first{s.batch, 1, s.positions(), order, {2 * channels + 1, 0}};
      for (const float v : first.extract(got))
      {
        EXPECT_TRUE(std::isnan(v));
      }
      EXPECT_TRUE(d.guards_intact());
    }
  }
}

// torch/cunn #150, pytorch #2080: more than 65,535 positions, samples or channels.
TEST_F(apply_chain_gpu, more_than_65535_of_anything)
{
  const auto softmax     = chain(tconv::channel_softmax{});
  const auto log_softmax = chain(tconv::channel_log_softmax{});
  for (std::int64_t number = 0; number < 4; ++number)
  {
    arrangement how  = arrangement::number(number);
    how.misalignment = 0;
    for (const tensor3& s : {make_tensor(1, 1, 131073), make_tensor(70001, 1, 1)})
    {
      const auto x = random_values(3, s.elements(), -30.0f, 30.0f);
      EXPECT_EQ((apply_on_device<float, float>(s, x, softmax, how)), std::vector<float>(x.size(), 1.0f));
      EXPECT_EQ((apply_on_device<float, float>(s, x, log_softmax, how)), std::vector<float>(x.size(), 0.0f));
    }
    for (const tensor3& s : {make_tensor(1, 2, 131073), make_tensor(70001, 2, 1), make_tensor(1, 70001, 2)})
    {
      const auto x = random_values(4, s.elements(), -6.0f, 6.0f);
      const auto y = apply_on_device<float, float>(s, x, softmax, how);
      ASSERT_EQ(y.size(), x.size());
      compare(s, s.channels, y, expect<float>(s, x, softmax, [](const row& v, const row& e, std::int64_t) {
                return softmax_bound(v, e);
              }));
      if (s.channels == 2)
      {
        // 1/s, its rounding, and the products: 2.5 u.
        for_each_row(s, y, [&](std::int64_t n, std::int64_t p, const row& values) {
          ASSERT_LE(std::fabs(values[0] + values[1] - 1), 2.5 * u) << n << ' ' << p;
        });
      }
    }
  }
}

/// Each of \p rows (of equal length) as one position of a tensor, in all pairs of layouts: visit(rows of the result).
template <class In, class Out, class Functors, class Visitor>
void on_rows(const std::vector<std::vector<float>>& rows, const Functors& functors, Visitor visit)
{
  const tensor3 s = make_tensor(1, static_cast<std::int64_t>(rows[0].size()), static_cast<std::int64_t>(rows.size()));
  const auto positions = rows.size();
  std::vector<float> x(rows[0].size() * positions);
  for (std::size_t p = 0; p < positions; ++p)
  {
    for (std::size_t c = 0; c < rows[0].size(); ++c)
    {
      x[c * positions + p] = rows[p][c];
    }
  }
  for (std::int64_t number = 0; number < 4; ++number)
  {
    SCOPED_TRACE(number);
    const auto y = apply_on_device<In, Out>(s, x, functors, arrangement::number(number));
    ASSERT_FALSE(y.empty());
    const std::size_t written = y.size() / positions;
    std::vector<std::vector<float>> result(positions, std::vector<float>(written));
    for (std::size_t p = 0; p < positions; ++p)
    {
      for (std::size_t c = 0; c < written; ++c)
      {
        result[p][c] = y[c * positions + p];
      }
    }
    visit(result);
  }
}

// pytorch #38839, #795: the maximum must be taken away before the logarithm is, or it is lost in a large common offset.
TEST_F(apply_chain_gpu, log_softmax_with_a_large_common_offset)
{
  const auto functors = chain(tconv::channel_log_softmax{});
  const auto check    = [&](const std::vector<std::vector<float>>& rows, const auto& results, auto out) {
    using Out = decltype(out);
    for (std::size_t p = 0; p < rows.size(); ++p)
    {
      row v(rows[p].begin(), rows[p].end());
      row expected = v;
      tconv::reference::evaluate(tconv::channel_log_softmax{}, expected);
      const operands none(1, 1, 1);
      const row bound = log_softmax_case::bound(none, v, expected, 0);
      for (std::size_t c = 0; c < v.size(); ++c)
      {
        const double limit = bound[c] + (std::is_same<Out, float>::value ? 0.0 : half_ulp<Out>(expected[c], bound[c]));
        EXPECT_LE(std::fabs(static_cast<double>(results[p][c]) - expected[c]), limit)
          << p << ' ' << c << ": " << results[p][c] << ", expected " << expected[c];
      }
    }
  };
  constexpr float t = -1e7f;
  const std::vector<std::vector<float>> single{{t, t, t}, {t, t, t + 1}, {t, t + 1, t + 1}};
  on_rows<float, float>(single, functors, [&](const auto& results) {
    check(single, results, 0.0f);
    EXPECT_NEAR(static_cast<double>(results[0][0]), -1.0986123, 1e-6);
    EXPECT_NEAR(static_cast<double>(results[1][2]), -0.5514447, 1e-6);
    EXPECT_NEAR(static_cast<double>(results[2][0]), -1.8619948, 1e-6);
  });
  constexpr float h = -30000.0f; // neighbours are 16 apart
  const std::vector<std::vector<float>> half{{h, h, h}, {h, h, h + 16}, {h, h + 16, h + 16}};
  on_rows<__half, __half>(half, functors, [&](const auto& results) { check(half, results, __half{}); });

  std::vector<std::vector<float>> wide(1, std::vector<float>(21, 0.0f));
  wide[0][3]  = -40.11f;
  wide[0][17] = 94.70f;
  on_rows<float, float>(wide, functors, [&](const auto& results) {
    check(wide, results, 0.0f);
    EXPECT_NEAR(static_cast<double>(results[0][3]), -134.81, 1e-4);
    EXPECT_EQ(results[0][17], 0.0f);
  });
}

// flagos-ai/FlagGems #330, pytorch #25110: threads, lanes and chunks that see nothing but -inf must not poison the row. Every
// position has a pattern of its own, so rows that poison their neighbours are seen too.
TEST_F(apply_chain_gpu, masked_channels)
{
  for (const std::size_t channels : {2U, 64U, 128U, 256U, 512U, 2048U})
  {
    const std::size_t half = channels / 2;
    std::vector<std::vector<float>> rows;
    for (int pattern = 0; pattern < 3; ++pattern)
    {
      rows.emplace_back(channels, 0.0f);
      for (std::size_t c = 0; c < channels; ++c)
      {
        const bool masked = pattern == 0 ? c < half : (pattern == 1 ? c >= half : c % 2 == 0);
        rows.back()[c]    = masked ? -inf : 0.0f;
      }
    }
    std::vector<std::size_t> survivors;
    for (const std::size_t survivor : {std::size_t{0}, std::size_t{31}, std::size_t{32}, half - 1, half, channels - 1})
    {
      if (survivor < channels)
      {
        survivors.push_back(survivor);
        rows.emplace_back(channels, -inf);
        rows.back()[survivor] = 3.0f;
      }
    }
    const std::size_t broken = rows.size();
    rows.emplace_back(channels, -inf);
    rows.emplace_back(channels, 0.0f);
    rows.back()[half] = inf;
    rows.emplace_back(channels, 0.0f);
    rows.back()[channels - 1] = nan;
    rows.emplace_back(channels, -inf);
    rows.back()[0] = nan;

    on_rows<float, float>(rows, chain(tconv::channel_softmax{}), [&](const auto& results) {
      for (std::size_t p = 0; p < rows.size(); ++p)
      {
        for (std::size_t c = 0; c < channels; ++c)
        {
          const float got = results[p][c];
          if (p >= broken)
          {
            EXPECT_TRUE(std::isnan(got)) << channels << ' ' << p << ' ' << c;
            continue;
          }
          const float expected = p < 3 ? (rows[p][c] == 0.0f ? 1.0f / static_cast<float>(half) : 0.0f)
                                       : (c == survivors[p - 3] ? 1.0f : 0.0f);
          EXPECT_EQ(got, expected) << channels << ' ' << p << ' ' << c;
        }
      }
    });
    on_rows<float, float>(rows, chain(tconv::channel_log_softmax{}), [&](const auto& results) {
      for (std::size_t p = 0; p < rows.size(); ++p)
      {
        for (std::size_t c = 0; c < channels; ++c)
        {
          const float got = results[p][c];
          if (p >= broken)
          {
            EXPECT_TRUE(std::isnan(got)) << channels << ' ' << p << ' ' << c;
          }
          else if (rows[p][c] == -inf)
          {
            EXPECT_EQ(got, -inf) << channels << ' ' << p << ' ' << c;
          }
          else
          {
            const double expected = p < 3 ? -std::log(static_cast<double>(half)) : 0.0;
            EXPECT_NEAR(
              static_cast<double>(got), expected, static_cast<double>(channels + 8) * u + half_ulp<float>(expected))
              << channels << ' ' << p << ' ' << c;
          }
        }
      }
    });
    // -inf, +inf, NaN, NaN for the last four; the logarithm of the number of survivors for the others.
    on_rows<float, float>(rows, chain(tconv::channel_logsumexp{}, tconv::scale(factor)), [&](const auto& results) {
      for (std::size_t p = 0; p < broken; ++p)
      {
        const double expected = static_cast<double>(factor) * (p < 3 ? std::log(static_cast<double>(half)) : 3.0);
        EXPECT_NEAR(
          static_cast<double>(results[p][0]), expected, 2 * static_cast<double>(channels + 8) * u + 2 * ulp(expected))
          << channels << ' ' << p;
      }
      EXPECT_EQ(results[broken][0], inf) << "factor times -inf";
      EXPECT_EQ(results[broken + 1][0], -inf) << "factor times +inf";
      EXPECT_TRUE(std::isnan(results[broken + 2][0]) && std::isnan(results[broken + 3][0]));
    });
    on_rows<float, float>(rows, chain(tconv::channel_max{}), [&](const auto& results) {
      for (std::size_t p = 0; p < broken; ++p)
      {
        EXPECT_EQ(results[p][0], p < 3 ? 0.0f : 3.0f) << channels << ' ' << p;
      }
      EXPECT_EQ(results[broken][0], -inf);
      EXPECT_EQ(results[broken + 1][0], inf);
      EXPECT_TRUE(std::isnan(results[broken + 2][0]) && std::isnan(results[broken + 3][0]));
    });
  }
}

// executorch #20090: a sum in the type of the tensor sticks at 256 (bf16) or 2048 (f16).
template <class T>
void check_equal_logits()
{
  for (const std::size_t channels : {1U, 3U, 64U, 512U, 1000U, 1025U, 2048U, 4096U, 30011U})
  {
    const float expected = tconv::to_float(tconv::from_float<T>(1.0f / static_cast<float>(channels)));
    on_rows<T, T>({std::vector<float>(channels, -3.25f), std::vector<float>(channels, 1.5f)},
                  chain(tconv::channel_softmax{}),
                  [&](const auto& results) {
                    for (const auto& values : results)
                    {
                      EXPECT_EQ(values, std::vector<float>(channels, expected)) << channels;
                    }
                  });
  }
}

TEST_F(apply_chain_gpu, equal_logits_give_the_rounded_reciprocal)
{
  check_equal_logits<float>();
  check_equal_logits<__half>();
  check_equal_logits<__nv_bfloat16>();
}

// onnxruntime #14727: the sigmoid of half types is computed in fp32, and subnormal results are kept.
TEST_F(apply_chain_gpu, sigmoid_tails_in_half)
{
  const std::vector<float> v{
    -7.84765625f, 7.33203125f, -7.80078125f, 6.6015625f, -12.0f, -17.0f, 12.0f, inf, -inf, 0.0f};
  const double expected[] = {3.9053e-4, 0.99951172, 4.0936e-4, 0.99853516, 6.1393e-6, 5.9605e-8, 1.0, 1.0, 0.0, 0.5};
  on_rows<__half, __half>({v}, chain(tconv::sigmoid{}), [&](const auto& results) {
    for (std::size_t c = 0; c < v.size(); ++c)
    {
      const auto got = static_cast<double>(results[0][c]);
      // The tabulated values are the rounded ones, to 5 digits.
      EXPECT_LE(std::fabs(got - expected[c]), ulp(expected[c], float16)) << v[c] << ": " << got;
      const double exact = 1 / (1 + std::exp(-static_cast<double>(v[c])));
      EXPECT_LE(std::fabs(got - exact), half_ulp<__half>(exact) + (4 + 1.2 * 17) * 0x1p-23 * exact)
        << v[c] << ": " << got;
    }
  });
  std::vector<float> all;
  for (int bits = 0; bits < 0x10000; ++bits)
  {
    const auto word = static_cast<std::uint16_t>(bits);
    __half h;
    std::memcpy(static_cast<void*>(&h), &word, sizeof h);
    all.push_back(tconv::to_float(h));
  }
  // All numbers of the type.
  on_rows<__half, __half>({all}, chain(tconv::sigmoid{}), [&](const auto& results) {
    for (std::size_t c = 0; c < all.size(); ++c)
    {
      const auto value   = static_cast<double>(all[c]);
      const double exact = 1 / (1 + std::exp(-value));
      const auto got     = static_cast<double>(results[0][c]);
      if (std::isnan(value))
      {
        EXPECT_TRUE(std::isnan(got)) << c;
        continue;
      }
      const double own = (4 + 1.2 * std::fmin(std::fabs(value), 128.0)) * ulp(exact) + 0x1p-126;
      EXPECT_LE(std::fabs(got - exact), own + half_ulp<__half>(exact, own)) << value;
    }
  });
}

TEST_F(apply_chain_gpu, a_thousand_launches_give_the_same_bits)
{
  for (const std::int64_t channels : {100, 700})
  {
    const tensor3 s     = make_tensor(3, channels, 67);
    const auto x        = random_values(9, s.elements(), -6.0f, 6.0f);
    const auto functors = chain(tconv::channel_softmax{});
    device_buffer<float> dx(x), dy(s.elements());
    std::vector<float> first;
    for (int i = 0; i < 1000; ++i)
    {
      if (i % 100 == 0)
      {
        dy.poison();
      }
      const tconv::status r = tconv::apply_chain(dx.data(), dy.data(), s, functors, tconv::options{}, {}, nullptr);
      ASSERT_TRUE(r.ok()) << r.message();
      const auto now = dy.download();
      first          = i == 0 ? now : first;
      ASSERT_EQ(std::memcmp(first.data(), now.data(), now.size() * sizeof(float)), 0) << "launch " << i;
    }
  }
}

// Launches that overlap: each must see all that the one before has written, and not the poison.
TEST_F(apply_chain_gpu, programmatic_launches_wait_for_their_input)
{
  for (const std::int64_t channels : {64, 1000})
  {
    const tensor3 s     = make_tensor(4, channels, 500);
    const auto x        = random_values(9, s.elements(), -6.0f, 6.0f);
    const auto functors = chain(tconv::channel_softmax{});
    device_buffer<float> first(x), second(s.elements()), third(s.elements()), last(s.elements());
    std::vector<float> expected;
    for (int i = 0; i < 20; ++i)
    {
      tconv::options opts;
      opts.programmatic_launch = i > 0;
      second.poison();
      third.poison();
      last.poison();
      ASSERT_TRUE(run(launch_modes[i % 3], [&](cudaStream_t stream) {
        tconv::status r = tconv::apply_chain(first.data(), second.data(), s, functors, opts, {}, stream);
        r               = r.ok() ? tconv::apply_chain(second.data(), third.data(), s, functors, opts, {}, stream) : r;
        return r.ok() ? tconv::apply_chain(third.data(), last.data(), s, functors, opts, {}, stream) : r;
      }));
      const auto y = last.download();
      expected     = i == 0 ? y : expected;
      ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0) << channels << ", repeat " << i;
    }
    EXPECT_TRUE(std::none_of(expected.begin(), expected.end(), [](float v) { return std::isnan(v); }));
  }
}

TEST_F(apply_chain_gpu, nothing_to_do_writes_nothing)
{
  const auto functors = chain(tconv::channel_softmax{});
  tensor3 no_rows     = make_tensor(2, 5, 4);
  no_rows.extent      = {3, 0, 4};
  for (const tensor3& s : {make_tensor(0, 5, 4), make_tensor(0, 30011, 4), no_rows})
  {
    device_buffer<float> y(64);
    EXPECT_TRUE(run(launch_mode::graph,
                    [&](cudaStream_t stream) {
                      const float* none = nullptr;
                      return tconv::apply_chain(none, y.data(), s, functors, tconv::options{}, {}, stream);
                    }))
      << to_string(s);
    for (const float v : y.download())
    {
      EXPECT_TRUE(std::isnan(v));
    }
  }
}

// Arguments: rejected before any launch, with or without a device. arguments_test.cu spoils a valid call of apply_chain as those of
// all launchers; here is what it alone has.

/// One call on made-up or real addresses.
struct call
{
  std::uintptr_t x = 0;
  std::uintptr_t y = 0;
  tensor3 shape;
  tconv::options options;
  tconv::workspace space;

  tconv::status operator()() const
  {
    return tconv::apply_chain(reinterpret_cast<const float*>(x),
                              reinterpret_cast<float*>(y),
                              shape,
                              chain(tconv::channel_softmax{}),
                              options,
                              space,
                              nullptr);
  }
};

struct wrong_call
{
  std::string what;
  call with;
  tconv::status_code code;
  std::string begins;
  std::string contains;
};

/// \p base: a multiple of 256, of at least 2 MiB.
std::vector<wrong_call> wrong_calls(std::uintptr_t base)
{
  constexpr std::uintptr_t slot = 1 << 20;
  std::vector<wrong_call> list;
  const auto add = [&](const std::string& what,
                       auto spoil,
                       const std::string& begins,
                       const std::string& contains,
                       tconv::status_code code = tconv::status_code::invalid_argument) {
    wrong_call w{what, {base, base + slot, make_tensor(2, 6, 10), {}, {}}, code, begins, contains};
    spoil(w.with);
    list.push_back(w);
  };
  add(
    "batch", [](call& c) { c.shape.batch = -1; }, "shape.batch = -1", "must be >= 0");
  add(
    "channels 0", [](call& c) { c.shape.channels = 0; }, "shape.channels = 0", "must be >= 1");
  add(
    "extent d", [](call& c) { c.shape.extent[0] = -2; }, "shape.extent[d] = -2", "must be >= 0");
  add(
    "extent h", [](call& c) { c.shape.extent[1] = -1; }, "shape.extent[h] = -1", "must be >= 0");
  add(
    "extent w", [](call& c) { c.shape.extent[2] = -1; }, "shape.extent[w] = -1", "must be >= 0");
  add(
    "bytes", [](call& c) { c.shape.extent[2] = std::int64_t{1} << 60; }, "shape:", "63 bits");
  add(
    "bytes by batch", [](call& c) { c.shape.batch = std::int64_t{1} << 58; }, "shape:", "63 bits");
  add(
    "bytes of x's tensor",
    [](call& c) {
      c.shape.input_slice = {std::int64_t{1} << 60, 0};
    },
    "shape:",
    "63 bits");
  add(
    "bytes of y's tensor",
    [](call& c) {
      c.shape.output_slice = {std::int64_t{1} << 60, 0};
    },
    "shape:",
    "63 bits");
  for (const bool input : {true, false})
  {
    const std::string name = input ? "shape.input_slice" : "shape.output_slice";
    const auto slice       = [&](std::int64_t total, std::int64_t first) {
      return [=](call& c) { (input ? c.shape.input_slice : c.shape.output_slice) = {total, first}; };
    };
    add(name + " before the tensor", slice(20, -1), name + ".first_channel = -1", "must be >= 0");
    add(name + " beyond the tensor", slice(20, 15), name + ": channels 15 to 15 + 6", "tensor of 20 channels");
    add(name + " far beyond", slice(20, std::numeric_limits<std::int64_t>::max()), name + ":", "tensor of 20 channels");
    add(name + " wider than its tensor", slice(5, 0), name + ":", "tensor of 5 channels");
    add(name + " of a negative tensor", slice(-6, 0), name + ":", "tensor of -6 channels");
    add(name + " moved without a tensor", slice(0, 1), name + ":", "tensor of 6 channels");
  }
  add(
    "null x", [](call& c) { c.x = 0; }, "x:", "must not be null");
  add(
    "null y", [](call& c) { c.y = 0; }, "y:", "must not be null");
  add(
    "odd x", [](call& c) { c.x += 2; }, "x:", "not a multiple of the element size 4");
  add(
    "odd y", [](call& c) { c.y += 1; }, "y:", "not a multiple of the element size 4");
  for (const std::uintptr_t off : {4U, 236U, 476U})
  {
    add(
      "y over x, " + std::to_string(off) + " bytes on", [&](call& c) { c.y = c.x + off; }, "y:", "must not overlap x");
    add(
      "x over y, " + std::to_string(off) + " bytes on", [&](call& c) { c.x = c.y + off; }, "y:", "must not overlap x");
  }
  // In place only where every element stays where it is.
  add(
    "in place in two layouts",
    [](call& c) {
      c.y                     = c.x;
      c.options.output_layout = tconv::layout::channels_last;
    },
    "y:",
    "must not overlap x");
  add(
    "in place in another slice",
    [](call& c) {
      c.y                  = c.x;
      c.shape.input_slice  = {20, 3};
      c.shape.output_slice = {20, 4};
    },
    "y:",
    "must not overlap x");
  add(
    "in place in another tensor",
    [](call& c) {
      c.y                  = c.x;
      c.shape.output_slice = {7, 0};
    },
    "y:",
    "must not overlap x");
  add(
    "disjoint slices in two layouts",
    [](call& c) {
      c.y                     = c.x;
      c.shape.input_slice     = {12, 0};
      c.shape.output_slice    = {12, 6};
      c.options.output_layout = tconv::layout::channels_last;
    },
    "y:",
    "must not overlap x");
  // Rows that fit no block: a workspace.
  const auto long_rows     = [](call& c) { c.shape = make_tensor(1, 30011, 2); };
  const std::size_t needed = tconv::apply_chain_workspace_bytes(
    make_tensor(1, 30011, 2), chain(tconv::channel_softmax{}));
  add("no workspace",
      long_rows,
      "workspace: 0 bytes",
      "needs " + std::to_string(needed),
      tconv::status_code::workspace_too_small);
  add(
    "workspace one byte short",
    [&](call& c) {
      long_rows(c);
      c.space = {reinterpret_cast<void*>(base), needed - 1};
    },
    "workspace:",
    "needs " + std::to_string(needed),
    tconv::status_code::workspace_too_small);
  add(
    "workspace off by 128",
    [&](call& c) {
      long_rows(c);
      c.space = {reinterpret_cast<void*>(base + 128), needed};
    },
    "workspace:",
    "multiple of 256 bytes",
    tconv::status_code::workspace_misaligned);
  add(
    "workspace over x",
    [&](call& c) {
      long_rows(c);
      c.space = {reinterpret_cast<void*>(base), needed};
      c.y     = base + (needed + 255) / 256 * 256;
    },
    "workspace:",
    "must not overlap x");
  return list;
}

void expect_rejection(const wrong_call& wrong)
{
  const tconv::status s     = wrong.with();
  const std::string message = s.message();
  EXPECT_TRUE(s.code() == wrong.code && message.rfind(wrong.begins, 0) == 0
              && message.find(wrong.contains) != std::string::npos)
    << wrong.what << "\n  code " << static_cast<int>(s.code()) << " with \"" << message << "\"\n  should be code "
    << static_cast<int>(wrong.code) << " with \"" << wrong.begins << "...\" and in it \"" << wrong.contains << '"';
}

TEST(apply_chain_arguments, are_checked_before_anything_is_launched)
{
  for (const wrong_call& wrong : wrong_calls(std::uintptr_t{1} << 40))
  {
    expect_rejection(wrong);
  }
}

TEST_F(apply_chain_gpu, rejection_leaves_everything_untouched)
{
  device_buffer<float> arena(1 << 19);
  for (const wrong_call& wrong : wrong_calls(reinterpret_cast<std::uintptr_t>(arena.data())))
  {
    expect_rejection(wrong);
  }
  ASSERT_TRUE(cuda_ok(cudaDeviceSynchronize(), "synchronize"));
  const auto all    = arena.download();
  const auto* bytes = reinterpret_cast<const unsigned char*>(all.data());
  EXPECT_TRUE(std::all_of(bytes, bytes + all.size() * sizeof(float), [](unsigned char byte) { return byte == 0xff; }));
  EXPECT_TRUE(arena.guards_intact());
}

// Only rows beyond shared memory need a workspace, and then a row for each block.
TEST(apply_chain_arguments, workspace)
{
  const auto softmax = chain(tconv::channel_softmax{});
  EXPECT_EQ(tconv::apply_chain_workspace_bytes(make_tensor(3, 24576, 9), softmax), 0U);
  EXPECT_EQ(tconv::apply_chain_workspace_bytes(make_tensor(3, 30011, 9), chain(tconv::relu{})), 0U);
  const std::size_t one = tconv::apply_chain_workspace_bytes(make_tensor(3, 30011, 9), softmax);
  EXPECT_GE(one, 30011U * 4);
  EXPECT_EQ(one % 256, 0U);
  tensor3 wrong = make_tensor(3, 30011, 9);
  wrong.batch   = -1;
  EXPECT_EQ(tconv::apply_chain_workspace_bytes(wrong, softmax), 0U);
}

} // namespace
