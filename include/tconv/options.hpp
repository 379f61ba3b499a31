// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// What every launcher takes besides its tensors: options and a workspace.

#include "layout.hpp"

#include <cstddef>

TCONV_NAMESPACE_BEGIN

/// How products are formed.
enum class math : int
{
  /// fp32-class: |err| <= (K + 8) * 2^-24 * (sum|x||w| + |bias|) per output before the epilogue, K products landing on it.
  precise = 0,
  /// Allows operands rounded to TF32 (adds 2^-10 * sum|x||w|). An engine may be more exact than asked: groups are multiplied precisely.
  tf32 = 1
};

/// Which engine computes, for conv_transpose(), batch_norm_train() and batch_norm_train_centred() of a convolution, and
/// batch_norm_train_global_mean(); other launchers have no choice. One that a launcher does not have, or not for the problem, is
/// not_supported.
enum class engine : int
{
  automatic = 0, ///< the fastest by the library's model of costs
  gather    = 1, ///< products on CUDA cores, tile by tile: anything legal; moments of outputs by a pass over them
  /// batch_norm_train_global_mean(): sums of squares from the spectrum of x; nothing cropped, stride 1, no groups.
  spectral = 2,
  /// Products on the tensor cores, and moments of outputs by a pass over them; groups for fp32 tensors. By wgmma on devices of compute capability 9.0 in
  /// builds for sm_90a that define TCONV_ENABLE_SM90A, else by mma.sync on devices and in builds for 8.0 and newer.
  implicit_gemm = 3,
  /// The same by mma.sync whatever the device; builds for sm_90a alone have it where they define TCONV_WARP_MMA as 1.
  implicit_gemm_warp = 4
};

/// Options of a launcher; the defaults suit everyone who has not measured otherwise.
struct options
{
  tconv::math math     = tconv::math::precise;     ///< how products are formed
  tconv::engine engine = tconv::engine::automatic; ///< asks for one engine, for tests and measurements
  /// Layout of x. Layouts of x and y may differ. Weights have one layout.
  layout input_layout  = layout::channels_first;
  layout output_layout = layout::channels_first; ///< layout of y
  /// Lets the first kernel of the call start while the previous kernel on the stream drains (programmatic dependent launch,
  /// sm_90 and newer). Every kernel of the library waits before it touches memory, so results do not depend on it. Saves about a microsecond a call.
  bool programmatic_launch = true;
  /// Asks the CUDA runtime whether each pointer can be read on the device (a few microseconds of host time a call). Null and
  /// misaligned pointers are rejected in any case.
  bool check_pointers = false;
};

/// Scratch memory of one call: device memory that starts on a multiple of 256 bytes. Its contents need no initialisation and
/// mean nothing afterwards. Calls that may run at the same time need one each.
struct workspace
{
  void* data        = nullptr; ///< a multiple of 256; null where no bytes are needed
  std::size_t bytes = 0;       ///< at least what the matching ..._workspace_bytes() returns
};

TCONV_NAMESPACE_END
