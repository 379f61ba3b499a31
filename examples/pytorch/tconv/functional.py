# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functional calls. Forward only; x and w float32, float16 or bfloat16 on one CUDA device.

x is [batch, in_channels, extent...] with 1 to 3 axes, contiguous or channels last; w is
[in_channels, out_channels / groups, kernel...], contiguous. Parameters per channel are float32, or of the type of x and
then converted in every call. Arithmetic is fp32-class whatever PyTorch's TF32 switches say. RuntimeError names the
argument and the rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import build

Size = int | Sequence[int]


def _per_axis(value: Size, w: Tensor) -> list[int]:
    return [value] * (w.dim() - 2) if isinstance(value, int) else list(value)


def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    epilogue: str = "none",
) -> Tensor:
    """epilogue(conv_transpose(x, w) + bias), in the type and the memory format of x.

    Arguments are those of torch.nn.functional.conv_transpose1d, 2d and 3d; w decides which. `epilogue` is the name of a
    file in csrc/epilogues: "none", "relu", "sigmoid", "tanh", "softmax" or "softmax_sigmoid", softmax over dim 1.
    """
    build.load()
    sizes = [_per_axis(value, w) for value in (stride, padding, output_padding, dilation)]
    y: Tensor = torch.ops.tconv.conv_transpose(x, w, bias, *sizes[:3], groups, sizes[3], epilogue)
    return y


def global_mean(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Mean over all positions of conv_transpose(x, w) + bias, [batch, out_channels, 1...], without a convolution."""
    build.load()
    sizes = [_per_axis(value, w) for value in (stride, padding, output_padding, dilation)]
    y: Tensor = torch.ops.tconv.global_mean(x, w, bias, *sizes[:3], groups, sizes[3])
    return y


def batch_norm_global_mean(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    scale: float = 1.0,
) -> Tensor:
    """Mean over all positions of batch_norm(scale * (conv_transpose(x, w) + bias)), [batch, out_channels, 1...].

    BatchNorm as torch.nn.functional.batch_norm: with `training` it takes the statistics of the batch and updates the
    running ones in place, if they are given. The convolution's output is never stored.
    """
    build.load()
    sizes = [_per_axis(value, w) for value in (stride, padding, output_padding, dilation)]
    y: Tensor = torch.ops.tconv.batch_norm_global_mean(
        x,
        w,
        bias,
        *sizes[:3],
        groups,
        sizes[3],
        scale,
        gamma,
        beta,
        running_mean,
        running_var,
        training,
        momentum,
        eps,
    )
    return y
