// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: a functor in a chain needs float operator()(float) const

#include <tconv/thread/chain.hpp>

namespace
{

struct half
{
#if defined(TCONV_MUST_NOT_COMPILE)
  float operator()(float v)
  {
    return v / 2;
  }
#else
  float operator()(float v) const
  {
    return v / 2;
  }
#endif
};

} // namespace

int length()
{
  return decltype(tconv::chain(half{}))::length;
}
