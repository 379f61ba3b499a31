// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: no channel functor can follow one that reduces the channels

#include <tconv/thread/chain.hpp>
#include <tconv/thread/channel_reduction.hpp>
#include <tconv/thread/softmax.hpp>

int length()
{
#if defined(TCONV_MUST_NOT_COMPILE)
  return decltype(tconv::chain(tconv::channel_max{}, tconv::channel_softmax{}))::length;
#else
  return decltype(tconv::chain(tconv::channel_softmax{}, tconv::channel_max{}))::length;
#endif
}
