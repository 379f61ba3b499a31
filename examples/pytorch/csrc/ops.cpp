// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
/// \file
/// The operators torch.ops.tconv.*: arguments are checked, outputs and workspace come from PyTorch's allocator, everything
/// is queued on PyTorch's current stream of the device of x.

#include "pipelines.hpp"

#include <ATen/ATen.h>
#include <algorithm>
#include <array>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <optional>
#include <string>
#include <torch/library.h>
#include <vector>

namespace tconv_torch
{

std::map<std::string, pipeline>& epilogues()
{
  static std::map<std::string, pipeline> all;
  return all;
}

namespace
{

using optional_tensor = std::optional<at::Tensor>;

element element_of(const at::Tensor& x)
{
  switch (x.scalar_type())
  {
    case at::kFloat: return element::f32;
    case at::kHalf: return element::f16;
    case at::kBFloat16: return element::bf16;
    default:
      TORCH_CHECK(false, "tconv: x: must be float32, float16 or bfloat16, but is ", c10::toString(x.scalar_type()));
  }
}

/// What holds for every tensor.
void check_tensor(const char* name, const at::Tensor& t, const at::Tensor& x)
{
  TORCH_CHECK(t.is_cuda(), "tconv: ", name, ": must be a CUDA tensor, but is on ", t.device());
  TORCH_CHECK(t.device() == x.device(), "tconv: ", name, ": is on ", t.device(), ", but x is on ", x.device());
  TORCH_CHECK(!at::GradMode::is_enabled() || !t.requires_grad(),
              "tconv: ",
              name,
              ": requires grad, but there is no backward pass: call under torch.no_grad(), or detach it");
}

/// Order of the elements of x. With one channel or one position it is both; PyTorch's own rule decides.
tconv::layout layout_of(const at::Tensor& x)
{
  const bool first = x.is_contiguous();
  const bool last  = x.movedim(1, -1).is_contiguous();
  TORCH_CHECK(first || last,
              "tconv: x: must be packed, contiguous or channels last, but has sizes ",
              x.sizes(),
              " and strides ",
              x.strides());
  return last && (!first || x.suggest_memory_format() != at::MemoryFormat::Contiguous) ? tconv::layout::channels_last
                                                                                       : tconv::layout::channels_first;
}

/// The parameter \p p of [channels] in fp32, undefined where there is none. One of the type of x is converted.
at::Tensor parameter(const char* name, const optional_tensor& p, const at::Tensor& x, int64_t channels)
{
  if (!p.has_value() || !p->defined())
  {
    return {};
  }
  check_tensor(name, *p, x);
  TORCH_CHECK(p->scalar_type() == at::kFloat || p->scalar_type() == x.scalar_type(),
              "tconv: ",
              name,
              ": must be float32 or of the type of x, but is ",
              c10::toString(p->scalar_type()));
  TORCH_CHECK(p->dim() == 1 && p->size(0) == channels,
              "tconv: ",
              name,
              ": must be [out_channels] = [",
              channels,
              "], but is ",
              p->sizes());
  TORCH_CHECK(p->is_contiguous(), "tconv: ", name, ": must be contiguous");
  return p->to(at::kFloat);
}

/// Parameters of the convolution, one value per axis.
struct convolution
{
  at::IntArrayRef stride;
  at::IntArrayRef padding;
  at::IntArrayRef output_padding;
  at::IntArrayRef dilation;
  int64_t groups;
};

/// Checks x and w and describes them. w decides the rank.
call make_call(const at::Tensor& x, const at::Tensor& w, const convolution& conv)
{
  call c;
  c.type = element_of(x);
  check_tensor("x", x, x);
  check_tensor("w", w, x);
  TORCH_CHECK(w.scalar_type() == x.scalar_type(),
              "tconv: w: must have the type of x, ",
              c10::toString(x.scalar_type()),
              ", but is ",
              c10::toString(w.scalar_type()));
  TORCH_CHECK(w.dim() >= 3 && w.dim() <= 5,
              "tconv: w: must be [in_channels, out_channels / groups, kernel...] with 1 to 3 axes, but is ",
              w.sizes());
  TORCH_CHECK(x.dim() == w.dim(),
              "tconv: x: must be [batch, channels, ",
              w.dim() - 2,
              " axes], as w has ",
              w.dim() - 2,
              ", but is ",
              x.sizes());
  TORCH_CHECK(w.is_contiguous(), "tconv: w: must be contiguous, but has strides ", w.strides());
  TORCH_CHECK(conv.groups >= 1, "tconv: groups: must be >= 1, but is ", conv.groups);
  TORCH_CHECK(x.size(1) == w.size(0), "tconv: x: has ", x.size(1), " channels, but w takes ", w.size(0));

  c.shape.batch        = x.size(0);
  c.shape.in_channels  = x.size(1);
  c.shape.out_channels = w.size(1) * conv.groups;
  c.shape.groups       = conv.groups;
  const int64_t rank   = w.dim() - 2;
  const auto fill      = [rank](const char* name, at::IntArrayRef values, std::array<int64_t, 3>& field) {
    TORCH_CHECK(static_cast<int64_t>(values.size()) == rank,
                "tconv: ",
                name,
                ": must have one value per axis, ",
                rank,
                ", but is ",
                values);
    std::copy(values.begin(), values.end(), field.end() - rank);
  };
  fill("x", x.sizes().slice(2), c.shape.input);
  fill("w", w.sizes().slice(2), c.shape.kernel);
  fill("stride", conv.stride, c.shape.stride);
  fill("padding", conv.padding, c.shape.padding);
  fill("output_padding", conv.output_padding, c.shape.output_padding);
  fill("dilation", conv.dilation, c.shape.dilation);
  // Before outputs are allocated by it.
  const tconv::status valid = tconv::validate(c.shape, x.element_size());
  TORCH_CHECK(valid.ok(), "tconv: ", valid.message());

  c.options.input_layout = layout_of(x);
  c.x                    = x.const_data_ptr();
  c.w                    = w.const_data_ptr();
  return c;
}

const float* pointer(const at::Tensor& t)
{
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

float* mutable_pointer(const at::Tensor& t)
{
  return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
}

/// Runs \p p into \p y.
void run(const pipeline& p, call& c, const at::Tensor& y, const at::Tensor& x)
{
  const c10::cuda::CUDAGuard guard(x.device());
  c.y      = y.mutable_data_ptr();
  c.stream = c10::cuda::getCurrentCUDAStream();
  // Goes back to the allocator on return, which hands it to work behind this call on the same stream.
  const auto bytes       = p.workspace_bytes(c);
  const at::Tensor space = at::empty({static_cast<int64_t>(bytes)}, x.options().dtype(at::kByte));
  c.space                = {space.mutable_data_ptr(), bytes};
  const tconv::status s  = p.run(c);
  TORCH_CHECK(s.ok(), "tconv: ", s.message());
}

/// [batch, out_channels, 1...], as global average pooling returns it.
at::Tensor empty_means(const at::Tensor& x, const call& c)
{
  std::vector<int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[0] = c.shape.batch;
  sizes[1] = c.shape.out_channels;
  return at::empty(sizes, x.options());
}

at::Tensor conv_transpose_op(const at::Tensor& x,
                             const at::Tensor& w,
                             const optional_tensor& bias,
                             at::IntArrayRef stride,
                             at::IntArrayRef padding,
                             at::IntArrayRef output_padding,
                             int64_t groups,
                             at::IntArrayRef dilation,
                             const std::string& epilogue)
{
  const auto found = epilogues().find(epilogue);
  if (found == epilogues().end())
  {
    std::string names;
    for (const auto& item : epilogues())
    {
      names += (names.empty() ? "" : ", ") + item.first;
    }
    TORCH_CHECK(false, "tconv: epilogue: must be one of ", names, ", but is ", epilogue);
  }
  call c             = make_call(x, w, {stride, padding, output_padding, dilation, groups});
  const at::Tensor b = parameter("bias", bias, x, c.shape.out_channels);
  c.bias             = pointer(b);

  const auto extents = c.shape.output();
  const bool last    = c.options.input_layout == tconv::layout::channels_last;
  std::vector<int64_t> sizes{c.shape.batch, c.shape.out_channels};
  sizes.insert(last ? sizes.end() - 1 : sizes.end(), extents.end() - (w.dim() - 2), extents.end());
  const at::Tensor packed = at::empty(sizes, x.options());
  at::Tensor y            = last ? packed.movedim(-1, 1) : packed;
  c.options.output_layout = c.options.input_layout;
  run(found->second, c, y, x);
  return y;
}

at::Tensor global_mean_op(const at::Tensor& x,
                          const at::Tensor& w,
                          const optional_tensor& bias,
                          at::IntArrayRef stride,
                          at::IntArrayRef padding,
                          at::IntArrayRef output_padding,
                          int64_t groups,
                          at::IntArrayRef dilation)
{
  static const pipeline means = global_mean();
  call c                      = make_call(x, w, {stride, padding, output_padding, dilation, groups});
  const at::Tensor b          = parameter("bias", bias, x, c.shape.out_channels);
  c.bias                      = pointer(b);
  at::Tensor y                = empty_means(x, c);
  run(means, c, y, x);
  return y;
}

at::Tensor batch_norm_global_mean_op(const at::Tensor& x,
                                     const at::Tensor& w,
                                     const optional_tensor& bias,
                                     at::IntArrayRef stride,
                                     at::IntArrayRef padding,
                                     at::IntArrayRef output_padding,
                                     int64_t groups,
                                     at::IntArrayRef dilation,
                                     double scale,
                                     const optional_tensor& gamma,
                                     const optional_tensor& beta,
                                     const optional_tensor& running_mean,
                                     const optional_tensor& running_var,
                                     bool training,
                                     double momentum,
                                     double eps)
{
  static const pipeline eval  = batch_norm_eval_global_mean();
  static const pipeline train = batch_norm_train_global_mean();

  call c                 = make_call(x, w, {stride, padding, output_padding, dilation, groups});
  const int64_t channels = c.shape.out_channels;
  const at::Tensor b     = parameter("bias", bias, x, channels);
  const at::Tensor slope = parameter("gamma", gamma, x, channels);
  const at::Tensor shift = parameter("beta", beta, x, channels);
  const at::Tensor mean  = parameter("running_mean", running_mean, x, channels);
  const at::Tensor var   = parameter("running_var", running_var, x, channels);
  TORCH_CHECK(
    training || (mean.defined() && var.defined()), "tconv: running_mean, running_var: must be given in eval mode");
  c.bias       = pointer(b);
  c.scale      = static_cast<float>(scale);
  c.batch_norm = {pointer(slope),
                  pointer(shift),
                  mutable_pointer(mean),
                  mutable_pointer(var),
                  static_cast<float>(eps),
                  static_cast<float>(momentum)};
  at::Tensor y = empty_means(x, c);
  run(training ? train : eval, c, y, x);
  if (training)
  {
    // Running statistics that had to be converted.
    if (mean.defined() && !mean.is_same(*running_mean))
    {
      running_mean->copy_(mean);
    }
    if (var.defined() && !var.is_same(*running_var))
    {
      running_var->copy_(var);
    }
  }
  return y;
}

} // namespace

} // namespace tconv_torch

// Composite: every device and every grad mode arrives at our own checks.
TORCH_LIBRARY(tconv, library)
{
#define TCONV_TORCH_CONVOLUTION                                                                                        \
  "Tensor x, Tensor w, Tensor? bias, int[] stride, int[] padding, int[] output_padding, int groups, int[] dilation"
  library.def("conv_transpose(" TCONV_TORCH_CONVOLUTION ", str epilogue) -> Tensor", tconv_torch::conv_transpose_op);
  library.def("global_mean(" TCONV_TORCH_CONVOLUTION ") -> Tensor", tconv_torch::global_mean_op);
  library.def("batch_norm_global_mean(" TCONV_TORCH_CONVOLUTION
              ", float scale, Tensor? gamma, Tensor? beta, Tensor(a!)? running_mean, Tensor(b!)? running_var, bool "
              "training, float momentum, float eps) -> Tensor",
              tconv_torch::batch_norm_global_mean_op);
#undef TCONV_TORCH_CONVOLUTION
}
