// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "../epilogue.cuh"

[[maybe_unused]] static const bool added = tconv_torch::add_epilogue("relu", tconv::relu());
