// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// fold_average_pool(), and conv_transpose() with an average pool behind linear functors, whose windows are folded into
/// the taps, and with a mean along one axis, along which x is summed first: against the convolution in full.

#include "common/pooled_convolution.cuh"

#include <tconv/launch/fold_average_pool.cuh>

namespace
{

using namespace tconv_test;
using tconv::chain;

class average_pool_fold_gpu : public gpu_test
{};

// Windows equal to the stride, a divisor, a multiple, with a divisor in common, none; overlapping; other steps than
// sizes.
TEST_F(average_pool_fold_gpu, windows_of_every_kind)
{
  std::uint32_t seed = 1;
  for (const auto& [size, step] :
       {std::pair<tconv::int64_t, tconv::int64_t>{2, 2}, {4, 4}, {1, 2}, {3, 3}, {3, 2}, {2, 1}})
  {
    const auto pool   = tconv::average_pool({size, 2, size}, {step, 2, step});
    const auto behind = chain(tconv::scale(0.5f), pool, tconv::sigmoid{});
    const auto make = [&](const float* b) { return chain(tconv::bias(b), tconv::scale(0.5f), pool, tconv::sigmoid{}); };
    for (const tconv::int64_t stride : {1, 2, 4})
    {
      for (const tconv::int64_t dilation : {1, 2})
      {
        seed += 4;
        check_pooled_convolution<float, float>(
          make_shape<3>(
            {2, 3, 16, 1}, {5, 5, 4}, {3, 3, 4}, {stride, 2, stride}, {1, 1, 0}, {0, 1, 0}, {dilation, 1, 1}),
          seed,
          seed % 3 == 0,
          seed,
          true,
          make,
          behind);
      }
    }
  }
}

// Groups, and a second pool behind the folded one.
TEST_F(average_pool_fold_gpu, groups_and_two_pools)
{
  const auto behind = chain(tconv::average_pool(2), tconv::average_pool(2));
  const auto make   = [&](const float* b) {
    return chain(tconv::bias(b), tconv::average_pool(2), tconv::average_pool(2));
  };
  std::uint32_t seed = 300;
  for (const tconv::int64_t stride : {1, 2, 4})
  {
    for (int i = 0; i < 3; ++i)
    {
      seed += 5;
      check_pooled_convolution<float, float>(
        make_shape<2>({2, 6, 12, 3}, {5, 9}, {3, 4}, {stride, 2}, {1, 0}), seed, i == 1, seed, true, make, behind);
      check_pooled_convolution<float, float>(
        make_shape<1>({3, 7, 9, 1}, {101}, {16}, {stride}, {4}), seed + 1, i == 2, seed, true, make, behind);
    }
  }
}

// Few input channels: averages are formed from x at once, several pools in a row included; inside x and beyond its
// borders, more output channels than a thread holds, more positions than a block, and functors before and behind.
TEST_F(average_pool_fold_gpu, averages_from_x_at_once)
{
  const auto two_pools = chain(tconv::average_pool(2), tconv::average_pool(2));
  const auto one_pool  = chain(tconv::scale(0.5f), tconv::average_pool(2), tconv::sigmoid{});
  for (std::int64_t number = 0; number < 16; ++number)
  {
    const auto seed      = static_cast<std::uint32_t>(1000 + 10 * number);
    const bool with_nan  = number % 3 == 0;
    const auto one_wider = [&](const float* b) {
      return chain(tconv::bias(b), tconv::scale(0.5f), tconv::average_pool(2), tconv::sigmoid{});
    };
    check_pooled_convolution<float, float>(
      make_shape<3>({2, 3, 16, 1}, {9, 8, 10}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}),
      seed,
      with_nan,
      number,
      true,
      [&](const float* b) { return prepend(tconv::bias(b), two_pools); },
      two_pools);
    check_pooled_convolution<float, float>(
      make_shape<3>({1, 2, 20, 1}, {7, 13, 17}, {4, 3, 3}, {2, 2, 2}, {2, 0, 1}, {1, 0, 1}),
      seed + 1,
      with_nan,
      number,
      true,
      one_wider,
      one_pool);
    check_pooled_convolution<float, float>(
      make_shape<2>({2, 1, 3, 1}, {40, 50}, {5, 4}, {1, 2}, {3, 1}, {0, 1}, {1, 2}),
      seed + 2,
      with_nan,
      number,
      true,
      one_wider,
      one_pool);
  }
}

/// Weights folded once, then a call with them, against the pooled outputs; the bound of the contract for the folded
/// convolution, whose weights are rounded once more, on the magnitude before folding.
template <int Rank>
void check_fold_once(tconv::conv_transpose_shape<Rank> s, const tconv::average_pool& pool, std::uint32_t seed)
{
  SCOPED_TRACE(to_string(s));
  tconv::conv_transpose_shape<Rank> pooled;
  ASSERT_TRUE(tconv::fold_average_pool_shape(s, pool, pooled).ok());
  ASSERT_TRUE(tconv::validate(pooled).ok());
  const auto x                  = random_values(seed, s.input_elements());
  const auto w                  = random_values(seed + 1, s.weight_elements());
  const auto b                  = random_values(seed + 2, s.out_channels);
  bounded_tensor<Rank> expected = convolve(x, w, b.data(), s);
  for (std::size_t i = 0; i < expected.error.size(); ++i)
  {
    expected.error[i] *= 2;
  }
  expected.follow(chain(pool));
  device_buffer<float> dx(x), dw(w, 1), db(b), folded(pooled.weight_elements(), 1), dy(pooled.output_elements());
  const auto functors = chain(tconv::bias(db.data()));
  workspace_buffer space(tconv::conv_transpose_workspace_bytes(pooled, functors));
  ASSERT_TRUE(run(launch_mode::graph, [&](cudaStream_t stream) {
    if (tconv::status r = tconv::fold_average_pool(dw.data(), folded.data(), s, pool, tconv::options{}, stream);
        !r.ok())
    {
      return r;
    }
    return tconv::conv_transpose(
      dx.data(), folded.data(), dy.data(), pooled, functors, tconv::options{}, space.get(), stream);
  }));
  EXPECT_TRUE(dw.guards_intact() && folded.guards_intact() && dy.guards_intact());
  EXPECT_TRUE(expected.template compare<float>(dy.download()));
}

TEST_F(average_pool_fold_gpu, folded_once_for_many_calls)
{
  check_fold_once(
    make_shape<3>({2, 3, 16, 1}, {4, 5, 6}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}), tconv::average_pool(2), 900);
  check_fold_once(make_shape<2>({2, 6, 8, 2}, {5, 9}, {4, 4}, {2, 2}, {1, 1}), tconv::average_pool(2), 910);
  check_fold_once(make_shape<2>({1, 4, 5, 1}, {7, 6}, {4, 3}, {4, 2}, {0, 1}), tconv::average_pool({4, 2}), 920);
  check_fold_once(make_shape<1>({3, 2, 9, 1}, {50}, {5}, {4}, {2}, {2}), tconv::average_pool({3}, {2}), 930);
}

TEST_F(average_pool_fold_gpu, folding_what_does_not_fold)
{
  device_buffer<float> w(1000), folded(1000);
  const auto fold = [&](const tconv::conv_transpose_shape<2>& s, const tconv::average_pool& pool, float* to) {
    return tconv::fold_average_pool(w.data(), to, s, pool, tconv::options{}, nullptr);
  };
  const auto s = make_shape<2>({1, 2, 3, 1}, {5, 5}, {3, 3}, {2, 2}, {1, 1});
  EXPECT_EQ(fold(s, tconv::average_pool(3), folded.data()).code(), tconv::status_code::not_supported);
  EXPECT_EQ(fold(s, tconv::average_pool(20), folded.data()).code(), tconv::status_code::invalid_argument);
  EXPECT_EQ(fold(s, tconv::average_pool({2}), folded.data()).code(), tconv::status_code::invalid_argument);
  EXPECT_EQ(fold(s, tconv::average_pool(2), nullptr).code(), tconv::status_code::invalid_argument);
  EXPECT_EQ(fold(s, tconv::average_pool(2), w.data()).code(), tconv::status_code::invalid_argument);
  auto uneven           = s;
  uneven.output_padding = {0, 1};
  const auto outcome    = fold(uneven, tconv::average_pool(2), folded.data());
  EXPECT_EQ(outcome.code(), tconv::status_code::not_supported);
  EXPECT_NE(std::string(outcome.message()).find("along w"), std::string::npos) << outcome.message();
}

// Rows along the fastest, the middle and the slowest axis; classes that land nowhere; more classes than are kept.
TEST_F(average_pool_fold_gpu, mean_along_one_axis)
{
  std::uint32_t seed = 600;
  for (const tconv::int64_t axis : {0, 1, 2})
  {
    const auto mean   = tconv::spatial_mean({axis});
    const auto behind = chain(mean, tconv::channel_softmax{});
    const auto make   = [&](const float* b) { return chain(tconv::bias(b), mean, tconv::channel_softmax{}); };
    for (const tconv::int64_t padding : {0, 1, 3})
    {
      for (const tconv::int64_t stride : {1, 2})
      {
        seed += 6;
        check_pooled_convolution<float, float>(make_shape<3>({2, 4, 20, 2},
                                                             {6, 8, 12},
                                                             {5, 3, 4},
                                                             {stride, stride, stride},
                                                             {padding, padding, padding},
                                                             {stride - 1, 0, 0}),
                                               seed,
                                               seed % 4 == 0,
                                               seed,
                                               true,
                                               make,
                                               behind);
      }
    }
  }
}

} // namespace
