// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// From the element type of a call to a C++ type.

#include "pipelines.hpp"

#include <tconv/thread/element.cuh>

namespace tconv_torch
{

/// body(T{}) for the element type T of a call.
template <class Body>
auto visit_element(element type, const Body& body)
{
  switch (type)
  {
    case element::f16: return body(__half{});
    case element::bf16: return body(__nv_bfloat16{});
    default: return body(0.0f);
  }
}

} // namespace tconv_torch
