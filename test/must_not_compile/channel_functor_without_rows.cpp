// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: a functor with across_channels = true needs operator()(Row&) const for any row type

#include <tconv/thread/chain.hpp>

namespace
{

struct twice
{
  static constexpr bool across_channels = true;

#if defined(TCONV_MUST_NOT_COMPILE)
  float operator()(float v) const
  {
    return 2.0f * v;
  }
#else
  template <class Row>
  void operator()(Row& row) const
  {
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] *= 2.0f;
    }
  }
#endif
};

} // namespace

int length()
{
  return decltype(tconv::chain(twice{}))::length;
}
