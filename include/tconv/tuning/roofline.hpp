// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// What one H200 does at most, as measured there: the ceilings of roofline estimates.

#include "../detail/config.hpp"

TCONV_NAMESPACE_BEGIN

namespace tuning
{

/// PyTorch 2.11, 2026-11-29: a large copy, counting reads and writes, and matrix products of 8192^3.
struct roofline
{
  static constexpr double bytes_per_second         = 4.238e12;
  static constexpr double half_products_per_second = 748.5e12 / 2;
  static constexpr double tf32_products_per_second = 404.0e12 / 2;
  /// fp32 as three fp16 products on tensor cores, which beats fp32 on CUDA cores (50.9e12 / 2).
  static constexpr double precise_products_per_second = half_products_per_second / 3;
};

} // namespace tuning

TCONV_NAMESPACE_END
