// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "element.cuh"

#include <tconv/launch/batch_norm_train_global_mean.cuh>
#include <tconv/launch/global_mean.cuh>

namespace tconv_torch
{

namespace
{

/// tconv::global_mean() with chain_of(call).
template <class ChainOf>
pipeline make_global_mean(const ChainOf& chain_of)
{
  pipeline p;
  p.workspace_bytes = [=](const call& c) {
    return tconv::global_mean_workspace_bytes(c.shape, chain_of(c), c.options);
  };
  p.run = [=](const call& c) {
    return visit_element(c.type, [&](auto zero) {
      using T = decltype(zero);
      return tconv::global_mean(static_cast<const T*>(c.x),
                                static_cast<const T*>(c.w),
                                static_cast<T*>(c.y),
                                c.shape,
                                chain_of(c),
                                c.options,
                                c.space,
                                c.stream);
    });
  };
  return p;
}

/// What stands before BatchNorm.
auto bias_and_scale(const call& c)
{
  return tconv::chain(tconv::bias(c.bias), tconv::scale(c.scale));
}

} // namespace

pipeline global_mean()
{
  return make_global_mean([](const call& c) { return tconv::chain(tconv::bias(c.bias)); });
}

pipeline batch_norm_eval_global_mean()
{
  return make_global_mean([](const call& c) {
    const tconv::batch_norm_arguments& b = c.batch_norm;
    return tconv::chain(tconv::bias(c.bias),
                        tconv::scale(c.scale),
                        tconv::batch_norm(b.running_mean, b.running_var, b.gamma, b.beta, b.eps));
  });
}

pipeline batch_norm_train_global_mean()
{
  pipeline p;
  p.workspace_bytes = [](const call& c) {
    return tconv::batch_norm_train_global_mean_workspace_bytes(c.shape, bias_and_scale(c), c.options);
  };
  p.run = [](const call& c) {
    return visit_element(c.type, [&](auto zero) {
      using T = decltype(zero);
      return tconv::batch_norm_train_global_mean(static_cast<const T*>(c.x),
                                                 static_cast<const T*>(c.w),
                                                 static_cast<T*>(c.y),
                                                 c.shape,
                                                 bias_and_scale(c),
                                                 c.batch_norm,
                                                 c.options,
                                                 c.space,
                                                 c.stream);
    });
  };
  return p;
}

} // namespace tconv_torch
