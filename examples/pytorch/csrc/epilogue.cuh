// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// What a file of epilogues/ includes.

#include "element.cuh"

#include <tconv/launch/conv_transpose.cuh>
#include <tconv/thread/activation.hpp>
#include <tconv/thread/affine.hpp>
#include <tconv/thread/chain.hpp>
#include <tconv/thread/softmax.hpp>

namespace tconv_torch
{

/// Makes conv_transpose with chain(bias, functors...) known as \p name, for every element type.
template <class... Functors>
bool add_epilogue(const char* name, const Functors&... functors)
{
  const auto chain_of = [=](const call& c) { return tconv::chain(tconv::bias(c.bias), functors...); };

  pipeline p;
  p.workspace_bytes = [=](const call& c) {
    return visit_element(c.type, [&](auto zero) {
      using T = decltype(zero);
      return tconv::conv_transpose_workspace_bytes<T, T>(c.shape, chain_of(c), c.options);
    });
  };
  p.run = [=](const call& c) {
    return visit_element(c.type, [&](auto zero) {
      using T = decltype(zero);
      return tconv::conv_transpose(static_cast<const T*>(c.x),
                                   static_cast<const T*>(c.w),
                                   static_cast<T*>(c.y),
                                   c.shape,
                                   chain_of(c),
                                   c.options,
                                   c.space,
                                   c.stream);
    });
  };
  return epilogues().emplace(name, p).second;
}

} // namespace tconv_torch
