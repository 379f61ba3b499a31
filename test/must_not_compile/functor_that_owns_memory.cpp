// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: a functor is passed to kernels by value: it must be trivially copyable

#include <tconv/thread/chain.hpp>

#include <vector>

namespace
{

struct table
{
#if defined(TCONV_MUST_NOT_COMPILE)
  std::vector<float> values;
#else
  float values[2];
#endif

  float operator()(float v) const
  {
    return v < 0.0f ? values[0] : values[1];
  }
};

} // namespace

int length()
{
  return decltype(tconv::chain(table{}))::length;
}
