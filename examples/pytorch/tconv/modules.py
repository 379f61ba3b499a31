# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The pipelines P1 and P2 as modules. Their submodules hold the parameters, so that state_dict() is that of the plain
PyTorch modules; forward() is one call of tconv, for which gradients must be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from . import functional

Size = int | tuple[int, int, int]


def _convolution(conv: nn.ConvTranspose3d) -> dict[str, Any]:
    """The layer as arguments. Weights that model.to(memory_format=...) has permuted are copied back, in every call."""
    sizes: dict[str, Sequence[int]] = {
        name: getattr(conv, name) for name in ("stride", "padding", "output_padding", "dilation")
    }
    return {"w": conv.weight.contiguous(), "bias": conv.bias, "groups": conv.groups, **sizes}


class ConvTranspose3dSoftmaxSigmoid(nn.Module):
    """P1: sigmoid(softmax(conv_transpose(x), dim=1))."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        padding: Size,
        output_padding: Size,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            bias=bias,
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, D, H, W] -> [N, C_out, ...], in the memory format of x."""
        return functional.conv_transpose(x, **_convolution(self.conv_transpose), epilogue="softmax_sigmoid")


class ConvTranspose3dScaleBatchNormMean(nn.Module):
    """P2: adaptive_avg_pool3d(batch_norm(scale_factor * conv_transpose(x)), 1), in eval and in train mode."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        scale_factor: float,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
    ) -> None:
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size)
        self.scale_factor = scale_factor
        self.batch_norm = nn.BatchNorm3d(out_channels, eps=eps, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, D, H, W] -> [N, C_out, 1, 1, 1]. Train mode updates the running statistics, as BatchNorm3d does."""
        norm = self.batch_norm
        updates = norm.training and norm.track_running_stats and norm.running_mean is not None
        tracked = updates or not norm.training
        count = norm.num_batches_tracked if updates else None
        momentum = norm.momentum
        if momentum is None:  # a cumulative average; reading the counter waits for the device, as in BatchNorm3d
            momentum = 0.0 if count is None else 1.0 / (int(count) + 1)
        y = functional.batch_norm_global_mean(
            x,
            running_mean=norm.running_mean if tracked else None,
            running_var=norm.running_var if tracked else None,
            gamma=norm.weight,
            beta=norm.bias,
            training=norm.training or norm.running_mean is None,
            momentum=momentum,
            eps=norm.eps,
            scale=self.scale_factor,
            **_convolution(self.conv_transpose),
        )
        if count is not None:
            count.add_(1)
        return y
