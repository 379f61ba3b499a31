// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: bind(const coordinate&) const must return a functor float operator()(float) const

#include <tconv/thread/chain.hpp>

namespace
{

struct channel_number
{
#if defined(TCONV_MUST_NOT_COMPILE)
  float bind(const tconv::coordinate& at) const
  {
    return static_cast<float>(at.channel);
  }
#else
  struct bound
  {
    float number;
    float operator()(float v) const { return v + number; }
  };
  bound bind(const tconv::coordinate& at) const
  {
    return {static_cast<float>(at.channel)};
  }
#endif
};

} // namespace

int length()
{
  return decltype(tconv::chain(channel_number{}))::length;
}
