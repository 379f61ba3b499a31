// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Type traits that also exist under NVRTC: detail::meta is std, or there cuda::std.

#include "config.hpp"

#if !defined(__CUDACC_RTC__)
#  include <type_traits>
#else
#  include <cuda/std/type_traits>
#endif

TCONV_NAMESPACE_BEGIN

namespace detail
{

#if !defined(__CUDACC_RTC__)
namespace meta = std;
#else
namespace meta = cuda::std;
#endif

} // namespace detail

TCONV_NAMESPACE_END
