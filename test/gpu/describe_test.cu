// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// describe() without a device: work by hand, the launcher's own refusals and workspace. engines_test.cu tests that it
/// names the engine that runs.

#include "common/conv_case.hpp"

#include <tconv/tconv.cuh>

#include <gtest/gtest.h>

#include <string>

namespace
{

using namespace tconv_test;
using tconv::chain;
using tconv::describe;
using tconv::engine;

/// 3 -> 5 channels, 4 -> 7 positions: taps 0 and 2 land for 3 inputs, tap 1 for all 4.
const auto small = make_shape<1>({2, 3, 5, 1}, {4}, {3}, {2}, {1});

TEST(describe, counts_products_that_land_and_bytes_once)
{
  const auto plain = describe(small);
  ASSERT_TRUE(plain.outcome.ok()) << plain.text;
  EXPECT_EQ(plain.multiply_adds, 2 * 3 * 5 * (3 + 4 + 3));
  EXPECT_EQ(plain.bytes, 4 * (2 * 3 * 4 + 3 * 5 * 3 + 2 * 5 * 7));
  EXPECT_EQ((describe<__half, float>(small).bytes), 2 * (2 * 3 * 4 + 3 * 5 * 3) + 4 * 2 * 5 * 7);
  // Channels and positions that the chain leaves.
  EXPECT_EQ(describe(small, chain(tconv::channel_sum{})).bytes, 4 * (2 * 3 * 4 + 3 * 5 * 3 + 2 * 7));
  EXPECT_EQ(describe(small, chain(tconv::max_pool(2))).bytes, 4 * (2 * 3 * 4 + 3 * 5 * 3 + 2 * 5 * 3));

  auto grouped         = small;
  grouped.groups       = 3;
  grouped.out_channels = 6;
  EXPECT_EQ(describe(grouped).multiply_adds, 2 * 3 * 2 * (3 + 4 + 3));
}

TEST(describe, the_roofline_is_the_slower_of_bytes_and_products)
{
  const auto bytes = describe(small);
  EXPECT_DOUBLE_EQ(bytes.roofline_ms, bytes.bytes / 4.238e9);
  const auto dense    = make_shape<2>({16, 512, 512, 1}, {64, 64}, {5, 5});
  const auto products = describe(dense);
  EXPECT_DOUBLE_EQ(products.roofline_ms, products.multiply_adds * 2 * 3 / 748.5e9);
  EXPECT_DOUBLE_EQ(describe<__half>(dense).roofline_ms, products.multiply_adds * 2 / 748.5e9);
  tconv::options opts;
  opts.math = tconv::math::tf32;
  EXPECT_DOUBLE_EQ(describe(dense, chain<>{}, opts).roofline_ms, products.multiply_adds * 2 / 404.0e9);
}

TEST(describe, tells_the_plan_in_numbers_and_words)
{
  tconv::options opts;
  opts.engine         = engine::gather;
  const auto p1       = make_shape<3>({16, 32, 64, 1}, {16, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1});
  const auto functors = chain(tconv::channel_softmax{}, tconv::sigmoid{});
  const auto told     = describe(p1, functors, opts);
  ASSERT_TRUE(told.outcome.ok()) << told.text;
  EXPECT_EQ(told.engine, engine::gather);
  EXPECT_GE(told.tile_channels, 64); // a softmax on the accumulators
  EXPECT_TRUE(told.fused);
  EXPECT_GT(told.gather_ms, 0);
  const auto cells = told.tile_cells[0] * told.tile_cells[1] * told.tile_cells[2];
  EXPECT_GE(told.tiles * cells, 16 * 16 * 32 * 32);
  EXPECT_EQ(told.phases, 4); // of 8: those along w share a turn
  EXPECT_EQ(told.workspace, tconv::conv_transpose_workspace_bytes(p1, functors, opts));
  for (const char* word : {"engine: gather (asked for by options.engine)",
                           "phases",
                           "on the accumulators",
                           "13.9 GMAC",
                           "570.6 MB",
                           "the bytes take 0.1346 ms"})
  {
    EXPECT_NE(std::string(told.text).find(word), std::string::npos) << word << " is not in\n" << told.text;
  }

  auto wide         = p1;
  wide.out_channels = 300;
  EXPECT_FALSE(describe(wide, functors, opts).fused);
}

// Few input channels and average pools: no output that is averaged is formed, unless the gather engine is asked for.
TEST(describe, averages_from_x_at_once)
{
  const auto rgb   = make_shape<3>({64, 3, 16, 1}, {32, 32, 32}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1});
  const auto pools = chain(tconv::average_pool(2), tconv::average_pool(2), tconv::sigmoid{});
  const auto told  = describe(rgb, pools);
  ASSERT_TRUE(told.outcome.ok()) << told.text;
  EXPECT_TRUE(told.correlates);
  EXPECT_EQ(told.engine, engine::gather);
  EXPECT_EQ(told.tiles, 64 * 7); // of 15 * 15 * 15 positions, 512 a block
  EXPECT_EQ(told.workspace, tconv::conv_transpose_workspace_bytes(rgb, pools));
  EXPECT_NE(std::string(told.text).find("average pools from x at once"), std::string::npos) << told.text;
  tconv::options opts;
  opts.engine = engine::gather;
  EXPECT_FALSE(describe(rgb, pools, opts).correlates);
  auto many        = rgb;
  many.in_channels = 64;
  EXPECT_FALSE(describe(many, pools).correlates);
  EXPECT_FALSE(describe(rgb, chain(tconv::relu{}, tconv::average_pool(2))).correlates);
}

TEST(describe, refuses_what_conv_transpose_refuses)
{
  auto padded    = small;
  padded.padding = {5};
  const auto bad = describe(padded);
  EXPECT_EQ(bad.outcome.code(), tconv::status_code::invalid_argument);
  EXPECT_EQ(bad.text, std::string(tconv::validate(padded).message()) + "\n");
  EXPECT_EQ(bad.engine, engine::automatic);
  EXPECT_EQ(describe(small, chain(tconv::max_pool(8))).outcome.code(), tconv::status_code::invalid_argument);
  tconv::options opts;
  opts.engine = engine::spectral;
  EXPECT_EQ(describe(small, chain<>{}, opts).outcome.code(), tconv::status_code::not_supported);

  auto none  = small;
  none.batch = 0;
  EXPECT_TRUE(describe(none).outcome.ok());
  EXPECT_STREQ(describe(none).text, "nothing to compute\n");
}

} // namespace
