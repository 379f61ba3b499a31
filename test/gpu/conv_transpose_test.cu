// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// conv_transpose() without a nonlinear epilogue, against the reference and the bound of the numerical contract.

#include "common/conv_case.hpp"
#include "common/device.hpp"
#include "common/recipes.hpp"

#include <tconv/tconv.cuh>

#include <limits>

namespace
{

using namespace tconv_test;
using tconv::bias;
using tconv::chain;

/// Buffers of one call with guards everywhere.
struct convolution
{
  shape3 shape;
  device_buffer<float> x;
  device_buffer<float> w;
  device_buffer<float> b;
  device_buffer<float> y;
  workspace_buffer space;

  convolution(const shape3& s,
              const std::vector<float>& x_values,
              const std::vector<float>& w_values,
              const std::vector<float>& b_values,
              std::int64_t misalignment = 0)
      : shape(s)
      , x(x_values, misalignment)
      , w(w_values, misalignment)
      , b(b_values, misalignment)
      , y(s.output_elements(), misalignment)
      , space(tconv::conv_transpose_workspace_bytes(s, chain(bias(nullptr))))
  {}

  bool run(launch_mode mode)
  {
    return tconv_test::run(mode, [&](cudaStream_t stream) {
      return tconv::conv_transpose(
        x.data(), w.data(), y.data(), shape, chain(bias(b.data())), tconv::options{}, space.get(), stream);
    });
  }
  bool guards_intact() const
  {
    return x.guards_intact() && w.guards_intact() && b.guards_intact() && y.guards_intact() && space.guards_intact();
  }
};

void check(const shape3& shape,
           const std::vector<float>& x,
           const std::vector<float>& w,
           const std::vector<float>& b,
           launch_mode mode          = launch_mode::direct,
           std::int64_t misalignment = 0)
{
  convolution c(shape, x, w, b, misalignment);
  ASSERT_TRUE(c.run(mode)) << to_string(shape);
  const full_reference expected(x, w, shape);
  EXPECT_TRUE(compare_convolution(c.y.download().data(), expected.with_bias(b.data()), extents_of(shape)))
    << to_string(shape) << ", " << name_of(mode) << ", misalignment " << misalignment;
  EXPECT_TRUE(c.guards_intact()) << to_string(shape);
}

void check_random_values(const shape3& shape,
                         std::uint32_t seed,
                         launch_mode mode          = launch_mode::direct,
                         std::int64_t misalignment = 0)
{
  check(shape,
        random_values(seed, shape.input_elements()),
        random_values(seed + 1000, shape.weight_elements()),
        random_values(seed + 2000, shape.out_channels),
        mode,
        misalignment);
}

class conv_transpose_gpu : public gpu_test
{};

TEST_F(conv_transpose_gpu, awkward_shapes)
{
  std::uint32_t seed = 10;
  for (const shape3& shape : awkward_shapes())
  {
    check_random_values(shape, seed++);
  }
}

TEST_F(conv_transpose_gpu, awkward_shapes_on_a_side_stream_in_a_graph_and_unaligned)
{
  std::uint32_t seed = 500;
  for (const shape3& shape : awkward_shapes())
  {
    check_random_values(shape, seed, launch_mode::side_stream, 1);
    check_random_values(shape, seed, launch_mode::graph, 3);
    ++seed;
  }
}

TEST_F(conv_transpose_gpu, random_shapes)
{
  for (std::uint32_t i = 0; i < 300; ++i)
  {
    random_stream random(i);
    const shape3 shape = random_shape(random, 4000000);
    SCOPED_TRACE(random.replay());
    check_random_values(shape, 7000 + i, launch_modes[i % 3], static_cast<std::int64_t>(i % 5));
  }
}

TEST_F(conv_transpose_gpu, ranks_agree)
{
  const shape1 s1 = make_shape<1>({2, 3, 5, 1}, {17}, {4}, {2}, {1}, {1});
  const auto x    = random_values(1, s1.input_elements());
  const auto w    = random_values(2, s1.weight_elements());
  const auto call = [&](const auto& shape) {
    device_buffer<float> dx(x);
    device_buffer<float> dw(w);
    device_buffer<float> dy(shape.output_elements());
    workspace_buffer space(tconv::conv_transpose_workspace_bytes(shape));
    EXPECT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
      return tconv::conv_transpose(
        dx.data(), dw.data(), dy.data(), shape, chain<>{}, tconv::options{}, space.get(), stream);
    }));
    return dy.download();
  };
  shape2 s2;
  s2.batch          = 2;
  s2.in_channels    = 3;
  s2.out_channels   = 5;
  s2.input          = {1, 17};
  s2.kernel         = {1, 4};
  s2.stride         = {1, 2};
  s2.padding        = {0, 1};
  s2.output_padding = {0, 1};
  const auto y1     = call(s1);
  EXPECT_EQ(y1, call(s2));
  EXPECT_EQ(y1, call(tconv::detail::canonical(s1)));
}

// Small integers are exact in every engine and mode, so that a single misplaced tap shows as a wrong integer.
TEST_F(conv_transpose_gpu, integers_are_exact)
{
  for (const shape3& shape : awkward_shapes())
  {
    const auto x = recipe_x_values(shape.input_elements());
    const auto w = recipe_w_values(shape.weight_elements());
    std::vector<float> b(static_cast<std::size_t>(shape.out_channels));
    for (std::size_t c = 0; c < b.size(); ++c)
    {
      b[c] = static_cast<float>(c % 7) - 3.0f;
    }
    convolution c(shape, x, w, b);
    ASSERT_TRUE(c.run(launch_mode::direct));
    const full_reference expected(x, w, shape);
    const auto y               = c.y.download();
    const std::int64_t channel = shape.output_positions();
    std::int64_t wrong         = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
    {
      const auto co = static_cast<std::int64_t>(i) / channel % shape.out_channels;
      wrong += static_cast<double>(y[i]) != expected.value[i] + static_cast<double>(b[static_cast<std::size_t>(co)]);
    }
    EXPECT_EQ(wrong, 0) << to_string(shape);
  }
}

TEST_F(conv_transpose_gpu, extreme_magnitudes_in_one_tensor)
{
  const shape3 shape = make_shape<3>({2, 16, 24, 1}, {3, 5, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
  auto x             = random_values(1, shape.input_elements());
  for (std::size_t i = 0; i < x.size(); ++i)
  {
    x[i] *= i % 3 == 0 ? 1e30f : (i % 3 == 1 ? 1e-30f : 1.0f);
  }
  check(shape, x, random_values(2, shape.weight_elements()), random_values(3, shape.out_channels));
}

TEST_F(conv_transpose_gpu, subnormals_are_kept)
{
  const shape3 shape = make_shape<3>({1, 2, 8, 1}, {1, 3, 5}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1});
  auto x             = random_values(1, shape.input_elements());
  for (float& v : x)
  {
    v *= 1e-40f;
  }
  check(shape, x, random_values(2, shape.weight_elements()), std::vector<float>(8, 0.0f));
}

// NaN and infinity in x reach exactly the outputs whose taps touch them. The reference scatters, so it knows.
TEST_F(conv_transpose_gpu, nan_and_infinity_in_x_stay_where_they_land)
{
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  std::uint32_t seed     = 40;
  for (const shape3& shape : awkward_shapes())
  {
    for (const float special : specials)
    {
      auto x                             = random_values(++seed, shape.input_elements());
      x[random_bits(seed, 7) % x.size()] = special;
      x.back()                           = special;
      check(shape, x, random_values(seed + 1, shape.weight_elements()), random_values(seed + 2, shape.out_channels));
    }
  }
}

// The zeros of the halo are no inputs: an infinite weight must not meet them.
TEST_F(conv_transpose_gpu, nan_and_infinity_in_w_stay_where_they_land)
{
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  std::uint32_t seed     = 140;
  for (const shape3& shape : awkward_shapes())
  {
    for (const float special : specials)
    {
      auto w                             = random_values(++seed, shape.weight_elements());
      w[random_bits(seed, 7) % w.size()] = special;
      check(shape,
            random_values(seed + 1, shape.input_elements(), 0.5f, 1.0f),
            w,
            random_values(seed + 2, shape.out_channels));
    }
  }
}

TEST_F(conv_transpose_gpu, more_tiles_than_65535)
{
  // One output position per block in y or z would need 70,001 of them.
  check_random_values(make_shape<3>({70001, 1, 2, 1}, {1, 1, 2}, {1, 1, 2}), 77);
  check_random_values(tconv::detail::canonical(make_shape<1>({1, 1, 70001, 1}, {2}, {1})), 78);
  check_random_values(tconv::detail::canonical(make_shape<2>({1, 70001, 1, 1}, {1, 2}, {1, 1})), 79);
  check_random_values(make_shape<3>({1, 1, 1, 1}, {70001, 1, 1}, {2, 1, 1}, {2, 1, 1}), 80);
}

/// y at sampled positions against gather_at, without downloading all of it.
void check_samples(
  const shape3& shape, const std::vector<float>& x, const std::vector<float>& w, const float* y, int samples)
{
  const output_extents e = extents_of(shape);
  for (int j = 0; j < samples; ++j)
  {
    std::int64_t flat = 0;
    if (j < 160)
    {
      // Around 2^31, around 2^32 and at the end.
      const std::int64_t centre = j < 64 ? std::int64_t{1} << 31
                                         : (j < 128 ? std::int64_t{1} << 32 : e.elements() - 16);
      flat                      = centre + j % 64 - 32;
    }
    else
    {
      const auto bits = static_cast<std::uint64_t>(random_bits(5, static_cast<std::uint64_t>(2 * j))) << 32
                      | random_bits(5, static_cast<std::uint64_t>(2 * j + 1));
      flat = static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(e.elements()));
    }
    if (flat < 0 || flat >= e.elements())
    {
      continue;
    }
    float got = 0;
    ASSERT_TRUE(cuda_ok(cudaMemcpy(&got, y + flat, sizeof(float), cudaMemcpyDeviceToHost), "sample"));
    std::int64_t rest     = flat;
    const std::int64_t ow = rest % e.w;
    rest /= e.w;
    const std::int64_t oh = rest % e.h;
    rest /= e.h;
    const std::int64_t od = rest % e.d;
    rest /= e.d;
    const auto expected = tconv::reference::conv_transpose_at(
      x.data(), w.data(), shape, rest / e.c, rest % e.c, {od, oh, ow});
    const auto terms   = static_cast<double>(expected.terms);
    const double bound = (terms + 8) * 0x1p-24 * expected.magnitude + ulp(expected.value) / 2 + terms * 0x1p-149;
    ASSERT_LE(std::fabs(static_cast<double>(got) - expected.value), bound)
      << to_string(shape) << " at flat index " << flat << ": got " << got << ", expected " << expected.value;
  }
}

void check_large(const shape3& shape)
{
  const auto x = random_values(1, shape.input_elements());
  const auto w = random_values(2, shape.weight_elements());
  device_buffer<float> dx(x);
  device_buffer<float> dw(w);
  device_buffer<float> dy(shape.output_elements());
  workspace_buffer space(tconv::conv_transpose_workspace_bytes(shape));
  ASSERT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) {
    return tconv::conv_transpose(
      dx.data(), dw.data(), dy.data(), shape, chain<>{}, tconv::options{}, space.get(), stream);
  }));
  check_samples(shape, x, w, dy.data(), 3000);
  EXPECT_TRUE(dy.guards_intact());
}

// pytorch/pytorch #32866: offsets of C_out * k^3 * positions beyond 2^31.
TEST_F(conv_transpose_gpu, large_products_of_extents)
{
  check_large(make_shape<3>({1, 64, 128, 1}, {8, 128, 172}, {5, 5, 5}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1}));
}

// An output of 4,311,744,512 elements (16 GiB).
TEST_F(conv_transpose_gpu, outputs_beyond_32_bits)
{
  check_large(make_shape<3>({1, 1, 8, 1}, {257, 512, 512}, {2, 2, 2}, {2, 2, 2}));
}

TEST_F(conv_transpose_gpu, a_thousand_launches_give_the_same_bits)
{
  const shape3 shape = make_shape<3>({2, 24, 64, 1}, {5, 9, 17}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
  convolution c(shape,
                random_values(1, shape.input_elements()),
                random_values(2, shape.weight_elements()),
                random_values(3, shape.out_channels));
  ASSERT_TRUE(c.run(launch_mode::direct));
  const auto first = c.y.download();
  for (int i = 0; i < 1000; ++i)
  {
    if (i % 100 == 0)
    {
      c.y.poison();
    }
    ASSERT_TRUE(c.run(launch_mode::direct));
    const auto again = c.y.download();
    ASSERT_EQ(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)), 0) << "launch " << i;
  }
}

// pytorch/pytorch #129649: products by one and zero return x bit for bit, so fp32 is not silently TF32.
TEST_F(conv_transpose_gpu, identity_weights_return_x_bit_for_bit)
{
  const shape3 shape = make_shape<3>({1, 1152, 1152, 1}, {1, 2, 5}, {1, 1, 1});
  const auto x       = random_values(9, shape.input_elements(), -3.0f, 3.0f);
  std::vector<float> w(static_cast<std::size_t>(shape.weight_elements()), 0.0f);
  for (std::size_t c = 0; c < 1152; ++c)
  {
    w[c * 1152 + c] = 1.0f;
  }
  convolution c(shape, x, w, std::vector<float>(1152, 0.0f));
  ASSERT_TRUE(c.run(launch_mode::direct));
  EXPECT_EQ(c.y.download(), x);
}

/// target = source, after a while. The next kernel may start long before that, so that it finds nothing yet unless it waits.
__global__ void copy_late(const float* source, float* target, std::int64_t count)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  const auto begin = clock64();
  while (clock64() - begin < 200000)
  {}
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
  {
    target[i] = source[i];
  }
}

// By default kernels may start early: whatever brings the input, they wait for it, on a stream and in a graph.
TEST_F(conv_transpose_gpu, default_launches_wait_for_whatever_is_before_them)
{
  const shape3 shape     = make_shape<3>({2, 32, 64, 1}, {4, 9, 12}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
  const auto count       = shape.input_elements();
  const auto x_values    = random_values(1, count);
  const auto functors    = chain(bias(nullptr));
  const std::size_t of_x = static_cast<std::size_t>(count) * sizeof(float);
  device_buffer<float> source(x_values);
  device_buffer<float> w(random_values(2, shape.weight_elements(), -0.12f, 0.12f));
  device_buffer<float> b(random_values(3, shape.out_channels));
  device_buffer<float> other(count);
  workspace_buffer space(tconv::conv_transpose_workspace_bytes(shape, functors));
  workspace_buffer mean_space(tconv::global_mean_workspace_bytes(shape, functors));
  cudaStream_t side = nullptr;
  cudaEvent_t fork  = nullptr;
  cudaEvent_t join  = nullptr;
  ASSERT_TRUE(cuda_ok(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "stream"));
  ASSERT_TRUE(cuda_ok(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), "event"));
  ASSERT_TRUE(cuda_ok(cudaEventCreateWithFlags(&join, cudaEventDisableTiming), "event"));

  const auto copy_on = [&](cudaStream_t stream, float* to) {
    copy_late<<<64, 256, 0, stream>>>(source.data(), to, count);
  };
  const auto on_side = [&](cudaStream_t stream, auto body) {
    EXPECT_TRUE(cuda_ok(cudaEventRecord(fork, stream), "fork"));
    EXPECT_TRUE(cuda_ok(cudaStreamWaitEvent(side, fork, 0), "fork"));
    body();
    EXPECT_TRUE(cuda_ok(cudaEventRecord(join, side), "join"));
    EXPECT_TRUE(cuda_ok(cudaStreamWaitEvent(stream, join, 0), "join"));
  };
  const auto results = [&](launch_mode mode, auto before) {
    device_buffer<float> x(count);
    device_buffer<float> y(shape.output_elements());
    device_buffer<float> mean(shape.batch * shape.out_channels);
    EXPECT_TRUE(run(mode, [&](cudaStream_t stream) {
      before(stream, x.data());
      const auto with_bias  = chain(bias(b.data()));
      const tconv::status s = tconv::conv_transpose(
        x.data(), w.data(), y.data(), shape, with_bias, {}, space.get(), stream);
      return s.ok()
             ? tconv::global_mean(x.data(), w.data(), mean.data(), shape, with_bias, {}, mean_space.get(), stream)
             : s;
    }));
    auto all        = y.download();
    const auto more = mean.download();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto expected = results(launch_mode::direct, [&](cudaStream_t, float* x) {
    EXPECT_TRUE(cuda_ok(cudaMemcpy(x, source.data(), of_x, cudaMemcpyDeviceToDevice), "copy"));
    EXPECT_TRUE(cuda_ok(cudaDeviceSynchronize(), "copy"));
  });
  for (const launch_mode mode : launch_modes)
  {
    SCOPED_TRACE(name_of(mode));
    EXPECT_EQ(results(mode, copy_on), expected) << "behind a kernel";
    const auto by_copy = [&](cudaStream_t stream, float* x) {
      copy_on(stream, other.data());
      EXPECT_TRUE(cuda_ok(cudaMemcpyAsync(x, other.data(), of_x, cudaMemcpyDeviceToDevice, stream), "copy"));
    };
    EXPECT_EQ(results(mode, by_copy), expected) << "behind a copy";
    const auto behind_memset = [&](cudaStream_t stream, float* x) {
      copy_on(stream, x);
      EXPECT_TRUE(cuda_ok(cudaMemsetAsync(other.data(), 0, 64, stream), "memset"));
    };
    EXPECT_EQ(results(mode, behind_memset), expected) << "behind a kernel and a memset";
    const auto behind_host = [&](cudaStream_t stream, float* x) {
      copy_on(stream, x);
      EXPECT_TRUE(cuda_ok(cudaLaunchHostFunc(
                            stream, [](void*) {}, nullptr),
                          "host function"));
    };
    EXPECT_EQ(results(mode, behind_host), expected) << "behind a kernel and a host function";
    const auto from_side = [&](cudaStream_t stream, float* x) { on_side(stream, [&] { copy_on(side, x); }); };
    EXPECT_EQ(results(mode, from_side), expected) << "behind an event";
    const auto from_both = [&](cudaStream_t stream, float* x) {
      on_side(stream, [&] {
        copy_on(side, x);
        copy_late<<<1, 32, 0, stream>>>(source.data(), other.data(), 1);
      });
    };
    EXPECT_EQ(results(mode, from_both), expected) << "behind a kernel and an event";
  }
  (void) cudaEventDestroy(join);
  (void) cudaEventDestroy(fork);
  (void) cudaStreamDestroy(side);
}

// Each call reads what the one before it has written; kernels may start early, and stage x before they wait for packed weights.
TEST_F(conv_transpose_gpu, programmatic_launches_wait_for_their_input)
{
  const shape3 shape = make_shape<3>({2, 16, 16, 1}, {1, 61, 64}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1});
  const auto x       = random_values(1, shape.input_elements());
  device_buffer<float> w(random_values(2, shape.weight_elements(), -0.12f, 0.12f));
  device_buffer<float> b(random_values(3, shape.out_channels));
  workspace_buffer first(tconv::conv_transpose_workspace_bytes(shape, chain(bias(nullptr))));
  workspace_buffer second(tconv::conv_transpose_workspace_bytes(shape, chain(bias(nullptr))));
  const auto run_all = [&](bool programmatic) {
    device_buffer<float> even(x);
    device_buffer<float> odd(shape.output_elements());
    tconv::options opts;
    opts.programmatic_launch = programmatic;
    EXPECT_TRUE(run(launch_mode::side_stream, [&](cudaStream_t stream) {
      for (int i = 0; i < 40; ++i)
      {
        if (const tconv::status s = tconv::conv_transpose(i % 2 == 0 ? even.data() : odd.data(),
                                                          w.data(),
                                                          i % 2 == 0 ? odd.data() : even.data(),
                                                          shape,
                                                          chain(bias(b.data())),
                                                          opts,
                                                          i % 2 == 0 ? first.get() : second.get(),
                                                          stream);
            !s.ok())
        {
          return s;
        }
      }
      return tconv::status{};
    }));
    return even.download();
  };
  const auto expected = run_all(false);
  for (int repeat = 0; repeat < 25; ++repeat)
  {
    ASSERT_EQ(run_all(true), expected) << "repeat " << repeat;
  }
}

TEST_F(conv_transpose_gpu, empty_outputs_write_nothing)
{
  for (const shape3& shape : {make_shape<3>({0, 2, 3, 1}, {2, 2, 2}, {2, 2, 2}),
                              make_shape<3>({1, 2, 3, 1}, {1, 2, 2}, {1, 2, 2}, {1, 2, 2}, {0, 2, 2})})
  {
    device_buffer<float> y(16);
    EXPECT_EQ(tconv::conv_transpose_workspace_bytes(shape), 0U);
    EXPECT_TRUE(run(launch_mode::graph, [&](cudaStream_t stream) {
      const float* none = nullptr;
      return tconv::conv_transpose(none, none, y.data(), shape, chain<>{}, tconv::options{}, {}, stream);
    }));
    for (const float v : y.download())
    {
      EXPECT_TRUE(std::isnan(v));
    }
  }
}

} // namespace
