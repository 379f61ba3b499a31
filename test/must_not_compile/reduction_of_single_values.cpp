// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// must not compile: tconv: a functor with reduces_channels = true needs across_channels = true as well

#include <tconv/thread/chain.hpp>

namespace
{

struct largest
{
  static constexpr bool reduces_channels = true;
#if !defined(TCONV_MUST_NOT_COMPILE)
  static constexpr bool across_channels = true;
#endif

  float operator()(float v) const
  {
    return v;
  }
  template <class Row>
  void operator()(Row& row) const
  {
    const float peak = tconv::reduce_row(row, row[0], tconv::maximum_ignoring_nan{}, [](float v) { return v; });
    for (int i = 0; i < row.size(); ++i)
    {
      row[i] = peak;
    }
  }
};

} // namespace

int length()
{
  return decltype(tconv::chain(largest{}))::length;
}
