// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Folds BatchNorm in eval mode into an affine per channel, or into the weights of the transposed convolution before it.

#include "batch_norm_train_global_mean.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace runtime
{

[[nodiscard]] inline status check_fold(std::initializer_list<argument> inputs,
                                       std::initializer_list<argument> outputs,
                                       const batch_norm_arguments& arguments,
                                       const options& opts)
{
  if (status s = check_batch_norm(arguments); !s.ok())
  {
    return s;
  }
  return check_call(inputs, outputs, detail::workspace_layout{}, opts, workspace{});
}

} // namespace runtime

/// slopes[c] = gamma / sqrt(running_var + eps), offsets[c] = slopes[c] * (bias[c] - running_mean) + beta: the chain
/// affine(slopes, offsets) on the bare convolution is bias and BatchNorm. Where running_var + eps = 0 the result is beta.
///
/// \param bias       [channels] fp32, or null for no bias
/// \param arguments  running statistics, read, not null; gamma and beta may be null; eps >= 0; momentum in [0, 1], not used
/// \param slopes     [channels] fp32, written; must not overlap an input or offsets
/// \param offsets    [channels] fp32, written; must not overlap an input
/// \param channels   >= 0 and <= 2^60; 0 does nothing
/// \param opts       see options; math and layouts make no difference
/// \param stream     see conv_transpose()
///
/// One launch, no workspace. Errors: invalid_argument (nothing written), cuda_error.
[[nodiscard]] inline status fold_batch_norm(const float* bias,
                                            const batch_norm_arguments& arguments,
                                            float* slopes,
                                            float* offsets,
                                            int64_t channels,
                                            const options& opts,
                                            cudaStream_t stream)
{
  if (channels < 0 || channels > detail::field_limit)
  {
    return status::error(
      status_code::invalid_argument, "channels = %lld: must be >= 0 and <= 2^60", static_cast<long long>(channels));
  }
  const auto optional = [&](const float* p) { return p != nullptr ? channels : 0; };
  if (status s = runtime::check_fold({{"bias", bias, optional(bias)},
                                      {"batch_norm.gamma", arguments.gamma, optional(arguments.gamma)},
                                      {"batch_norm.beta", arguments.beta, optional(arguments.beta)},
                                      {"batch_norm.running_mean", arguments.running_mean, channels},
                                      {"batch_norm.running_var", arguments.running_var, channels}},
                                     {{"slopes", slopes, channels}, {"offsets", offsets, channels}},
                                     arguments,
                                     opts);
      !s.ok() || channels == 0)
  {
    return s;
  }
  constexpr int threads = 256;
  return runtime::launch("tconv::kernel::fold_batch_norm",
                         kernel::fold_batch_norm<threads>,
                         {std::min<int64_t>(ceil_div(channels, threads), 1024), threads, 0, opts.programmatic_launch},
                         stream,
                         bias,
                         arguments,
                         slopes,
                         offsets,
                         channels);
}

/// folded = w scaled per output channel, offsets as above: conv_transpose with folded weights and chain(bias(offsets)) is
/// convolution, bias and BatchNorm. Right for any groups: output channel j of group g is scaled by its own slope.
///
/// \param w          [in_channels, out_channels / groups, kernel...]: f32, f16 or bf16
/// \param bias       [out_channels] fp32, or null for no bias
/// \param arguments  as above, over out_channels
/// \param folded     like w, written, rounded to its type once; must not overlap an input or another output
/// \param slopes     [out_channels] fp32, written (scratch that also tells what was folded)
/// \param offsets    [out_channels] fp32, written
/// \param shape      of the convolution; every rule is checked
/// \param opts       see options; math and layouts make no difference
/// \param stream     see conv_transpose()
///
/// Two launches, no workspace. Errors as above.
template <int Rank, class T>
[[nodiscard]] status fold_batch_norm(const T* w,
                                     const float* bias,
                                     const batch_norm_arguments& arguments,
                                     T* folded,
                                     float* slopes,
                                     float* offsets,
                                     const conv_transpose_shape<Rank>& shape,
                                     const options& opts,
                                     cudaStream_t stream)
{
  if (status s = validate(shape); !s.ok())
  {
    return s;
  }
  static_assert(is_tensor_type<T>::value, "tconv: weights are float, __half or __nv_bfloat16");
  const int64_t elements = shape.weight_elements();
  const int64_t channels = shape.out_channels;
  const auto optional    = [&](const float* p) { return p != nullptr ? channels : 0; };
  if (status s = runtime::check_fold(
        {{"w", w, elements},
         {"bias", bias, optional(bias)},
         {"batch_norm.gamma", arguments.gamma, optional(arguments.gamma)},
         {"batch_norm.beta", arguments.beta, optional(arguments.beta)},
         {"batch_norm.running_mean", arguments.running_mean, channels},
         {"batch_norm.running_var", arguments.running_var, channels}},
        {{"folded", folded, elements}, {"slopes", slopes, channels}, {"offsets", offsets, channels}},
        arguments,
        opts);
      !s.ok())
  {
    return s;
  }
  if (status s = fold_batch_norm(bias, arguments, slopes, offsets, shape.out_channels, opts, stream); !s.ok())
  {
    return s;
  }
  constexpr int threads = 256;
  return runtime::launch("tconv::kernel::fold_into_weights",
                         kernel::fold_into_weights<threads, T>,
                         {std::min<int64_t>(ceil_div(shape.weight_elements(), threads), 4096), threads, 0, true},
                         stream,
                         w,
                         slopes,
                         folded,
                         shape.weight_elements(),
                         shape.taps(),
                         shape.in_channels / shape.groups,
                         shape.out_channels / shape.groups);
}

TCONV_CUDA_NAMESPACE_END
