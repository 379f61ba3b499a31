// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Everything: launchers, functors, shapes. The CPU reference (tconv/reference/) is included separately.

#include "batch_norm_arguments.hpp"
#include "group_norm_arguments.hpp"
#include "launch/apply_chain.cuh"
#include "launch/batch_norm_train.cuh"
#include "launch/batch_norm_train_global_mean.cuh"
#include "launch/conv_batch_norm_train.cuh"
#include "launch/conv_transpose.cuh"
#include "launch/describe.cuh"
#include "launch/fold_batch_norm.cuh"
#include "launch/global_mean.cuh"
#include "launch/group_norm.cuh"
#include "launch/moments.cuh"
#include "launch/tensor_mean.cuh"
#include "layout.hpp"
#include "options.hpp"
#include "shape.hpp"
#include "status.hpp"
#include "tensor_shape.hpp"
#include "thread/activation.hpp"
#include "thread/affine.hpp"
#include "thread/chain.hpp"
#include "thread/channel_reduction.hpp"
#include "thread/layer_norm.hpp"
#include "thread/moments.hpp"
#include "thread/pool.hpp"
#include "thread/softmax.hpp"
#include "thread/tensor_operand.cuh"
#include "version.hpp"
