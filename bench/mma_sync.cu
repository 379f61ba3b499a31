// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// P1 by mma.sync, as devices compute it that have no wgmma. Built without TCONV_ENABLE_SM90A. Timing protocol: see common/timer.hpp.

#include "common/p1.cuh"

namespace
{

using namespace tconv_bench;

template <class T>
void p1_by_warps(benchmark::State& state, tconv::math how)
{
  tconv::options opts;
  opts.math   = how;
  opts.engine = tconv::engine::implicit_gemm_warp;
  p1<T, T>(state, opts);
}

} // namespace

int main(int argc, char** argv)
{
  add("L2_49_mma_sync/precise/f32", [](benchmark::State& s) { p1_by_warps<float>(s, tconv::math::precise); });
  add("L2_49_mma_sync/tf32/f32", [](benchmark::State& s) { p1_by_warps<float>(s, tconv::math::tf32); });
  add("L2_49_mma_sync/half/bf16", [](benchmark::State& s) { p1_by_warps<__nv_bfloat16>(s, tconv::math::precise); });
  return run_benchmarks(argc, argv);
}
