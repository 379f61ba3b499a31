#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""tconv in PyTorch against PyTorch in float64, on a GPU.

    python test_parity.py [-k WORD] [--no-timings]

Exit status: 0 if every check passed, 1 if one failed, 77 if there is no GPU; what needs none has then been checked.

Bounds. float32: twice the error of PyTorch in float32 (TF32 off) against float64 on the same values, plus 4 ulp of the
largest expected value. Convolutions of K products may also err by six standard deviations of K roundings, 6 sqrt(K) 2^-24
of the largest value: the gather engine sums in sequence, cuDNN in blocks. Half types: that, plus 1 ulp of the type at the
element in question (rounding takes half of it).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tconv

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHORT = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
EPILOGUES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda z: torch.softmax(z, dim=1),
    "softmax_sigmoid": lambda z: torch.sigmoid(torch.softmax(z, dim=1)),
}
# How much an error of the logits grows at most.
SLOPES = {"none": 1.0, "relu": 1.0, "sigmoid": 1 / 4, "tanh": 1.0, "softmax": 1 / 2, "softmax_sigmoid": 1 / 8}


# ---------------------------------------------------------------------------------------------------------------------
# PyTorch's side
# ---------------------------------------------------------------------------------------------------------------------


class PlainP1(nn.Module):
    """P1 as a PyTorch user writes it."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        padding: int,
        output_padding: int,
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
        """[N, C_out, D, H, W]"""
        return torch.sigmoid(torch.softmax(self.conv_transpose(x), dim=1))


class PlainP2(nn.Module):
    """P2 as a PyTorch user writes it."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        scale_factor: float,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
    ) -> None:
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size)
        self.scale_factor = scale_factor
        self.batch_norm = nn.BatchNorm3d(out_channels, eps=eps, momentum=momentum)
        self.global_avg_pool = nn.AdaptiveAvgPool3d((1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C_out, 1, 1, 1]"""
        pooled: Tensor = self.global_avg_pool(self.batch_norm(self.conv_transpose(x) * self.scale_factor))
        return pooled


P1_ARGUMENTS = (32, 64, 3, 2, 1, 1)
P2_ARGUMENTS = (64, 128, 5, 2.0)
FULL_P1 = (16, 32, 16, 32, 32)
FULL_P2 = (16, 64, 16, 32, 32)


def in_float64(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
    """function(tensors in float64) by PyTorch's own kernels, without cuDNN."""
    with torch.backends.cudnn.flags(enabled=False):
        return function(*(None if tensor is None else tensor.double() for tensor in tensors))


def to_channels_last(x: Tensor) -> Tensor:
    """The same tensor with its channels fastest, for any rank."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


# ---------------------------------------------------------------------------------------------------------------------
# Bounds
# ---------------------------------------------------------------------------------------------------------------------


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance of neighbouring numbers of `dtype` at each of `values`, which are float64."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(values.abs().clamp(min=info.tiny))
    return torch.ldexp(torch.full_like(values, info.eps), exponent - 1)


class Failure(Exception):
    """A check that did not pass."""


def compare(got: Tensor, expected: Tensor, plain32: Tensor, allowed: float = 0.0) -> tuple[float, float]:
    """Largest error and its bound, for the element that comes closest to its bound (or exceeds it most).

    `allowed`: an error that is right even where PyTorch's own is smaller.
    """
    if got.shape != expected.shape:
        raise Failure(f"shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    if expected.numel() == 0:
        return 0.0, 0.0
    error = (got.double() - expected).abs()
    if not bool(torch.isfinite(error).all()):
        raise Failure(f"{int((~torch.isfinite(error)).sum())} of {error.numel()} elements are not finite")
    own = float((plain32.double() - expected).abs().max())
    bound = torch.full_like(error, max(2 * own, allowed)) + 4 * ulp(expected.abs().max(), torch.float32)
    if got.dtype != torch.float32:
        bound += ulp(expected, got.dtype)
    worst = int((error / bound).argmax())
    return float(error.flatten()[worst]), float(bound.flatten()[worst])


@dataclasses.dataclass
class Row:
    """A line of the table: the worst of several comparisons."""

    name: str
    comparisons: int = 0
    error: float = 0.0
    bound: float = math.inf
    where: str = ""
    failures: list[str] = dataclasses.field(default_factory=list)

    def take(self, where: str, got: Tensor, expected: Tensor, plain32: Tensor, allowed: float = 0.0) -> None:
        """Compares, and keeps the worst."""
        self.comparisons += 1
        try:
            error, bound = compare(got, expected, plain32, allowed)
        except Failure as failure:
            self.failures.append(f"{where}: {failure}")
            return
        if error > bound:
            self.failures.append(f"{where}: error {error:.3g}, bound {bound:.3g}")
        if bound > 0 and error * self.bound >= self.error * bound or math.isinf(self.bound):
            self.error, self.bound, self.where = error, bound, where

    def check(self, where: str, passed: bool) -> None:
        """A statement that holds or not."""
        self.comparisons += 1
        if not passed:
            self.failures.append(where)

    def line(self) -> str:
        """For the table."""
        figures = "" if math.isinf(self.bound) else f"{self.error:9.2e} {self.bound:9.2e}  {self.where}"
        return f"{'FAIL' if self.failures else 'ok':4} {self.name:34} {self.comparisons:5} {figures}"


# ---------------------------------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution; its rank is that of `extents`."""

    batch: int
    in_channels: int
    out_channels: int
    extents: tuple[int, ...]
    kernel: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 0
    output_padding: int | tuple[int, ...] = 0
    groups: int = 1
    dilation: int | tuple[int, ...] = 1
    bias: bool = True

    def __str__(self) -> str:
        """Its shape in short."""
        differing = {name: value for name, value in self.arguments().items() if value != getattr(Case, name)}
        words = [f"{self.batch}x{self.in_channels}->{self.out_channels}", f"{self.extents}", f"k{self.kernel}"]
        return " ".join(words + [f"{name}={value}" for name, value in differing.items()])

    def arguments(self) -> dict[str, Any]:
        """As both sides call them."""
        names = ("stride", "padding", "output_padding", "groups", "dilation")
        return {name: getattr(self, name) for name in names}

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, w and bias; logits of about 3, so that softmax is peaked and sigmoid not flat."""
        generator = torch.Generator("cuda").manual_seed(49)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, device="cuda", generator=generator)

        kernel = (self.kernel,) * len(self.extents) if isinstance(self.kernel, int) else self.kernel
        stride = (self.stride,) * len(self.extents) if isinstance(self.stride, int) else self.stride
        taps = math.prod(max(k / s, 1) for k, s in zip(kernel, stride, strict=True))
        x = normal(self.batch, self.in_channels, *self.extents)
        w = normal(self.in_channels, self.out_channels // self.groups, *kernel) * (
            3 / math.sqrt(self.in_channels // self.groups * taps)
        )
        return x.to(dtype), w.to(dtype), normal(self.out_channels) if self.bias else None

    def products(self) -> int:
        """The most products that any output sums."""
        taps = self.kernel**len(self.extents) if isinstance(self.kernel, int) else math.prod(self.kernel)
        return self.in_channels // self.groups * taps

    def plain(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """PyTorch's convolution."""
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(self.extents) - 1]
        y: Tensor = function(x, w, bias, **self.arguments())
        return y


CASES = (
    Case(2, 16, 24, (37,), 5, stride=3, padding=2, output_padding=1),
    Case(3, 8, 8, (50,), 4, stride=2, padding=1, groups=8),
    Case(1, 5, 7, (19,), 3, dilation=4, output_padding=3, bias=False),
    Case(1, 1, 1, (1,), 1),
    Case(2, 32, 16, (14, 9), 4, stride=2, padding=1),
    Case(2, 12, 20, (11, 13), (3, 2), stride=(1, 3), padding=(1, 0), output_padding=(0, 2), groups=4),
    Case(1, 3, 64, (17, 16), 2, stride=2, bias=False),
    Case(1, 16, 300, (6, 5), 3, stride=2, padding=1, output_padding=1),
    Case(2, 6, 9, (7, 8), 3, stride=2, dilation=(2, 3), padding=2, output_padding=1, groups=3),
    Case(2, 32, 64, (4, 6, 7), 3, stride=2, padding=1, output_padding=1),
    Case(1, 64, 33, (5, 6, 6), 5),
    Case(2, 8, 12, (3, 5, 4), (1, 3, 2), stride=(2, 1, 3), padding=(0, 1, 0), groups=2, dilation=(1, 2, 1)),
    Case(1, 16, 16, (6, 5, 8), 3, stride=1, padding=1, groups=16, bias=False),
    Case(3, 4, 5, (1, 1, 1), 4, stride=4),
)


def check_functional(row: Row, dtype: torch.dtype, channels_last: bool) -> None:
    """Every case with every epilogue."""
    for case in CASES:
        x, w, bias = case.tensors(dtype)
        logits64 = in_float64(case.plain, x, w, bias)
        logits32 = case.plain(x.float(), w.float(), bias)
        given = to_channels_last(x) if channels_last else x
        for name, function in EPILOGUES.items():
            where = f"{name} {case}"
            y = tconv.conv_transpose(given, w, bias, **case.arguments(), epilogue=name)
            roundings = 6 * math.sqrt(case.products()) * 2**-24 * float(logits64.abs().max())
            row.take(where, y, function(logits64), function(logits32), SLOPES[name] * roundings)
            row.check(f"{where}: dtype", y.dtype == dtype)
            orders = {False: y.is_contiguous(), True: y.movedim(1, -1).is_contiguous()}
            ambiguous = case.in_channels == 1 or math.prod(case.extents) == 1  # x is in both orders
            row.check(f"{where}: order", any(orders.values()) if ambiguous else orders[channels_last])


def check_global_mean(row: Row, dtype: torch.dtype, channels_last: bool) -> None:
    """Every case."""
    for case in CASES:
        x, w, bias = case.tensors(dtype)
        axes = tuple(range(2, x.dim()))
        y64 = in_float64(case.plain, x, w, bias)
        y32 = case.plain(x.float(), w.float(), bias)
        y = tconv.global_mean(to_channels_last(x) if channels_last else x, w, bias, **case.arguments())
        row.take(str(case), y, y64.mean(axes, keepdim=True), y32.mean(axes, keepdim=True))


def make_p1() -> tconv.ConvTranspose3dSoftmaxSigmoid:
    """P1 with PyTorch's default initialisation, times 10 for softmax to be peaked."""
    torch.manual_seed(49)
    model = tconv.ConvTranspose3dSoftmaxSigmoid(*P1_ARGUMENTS).cuda()
    with torch.no_grad():
        model.conv_transpose.weight.mul_(10)
    return model


def make_p2(momentum: float | None = 0.1) -> tconv.ConvTranspose3dScaleBatchNormMean:
    """P2 with parameters and running statistics that are neither 0 nor 1."""
    torch.manual_seed(77)
    model = tconv.ConvTranspose3dScaleBatchNormMean(*P2_ARGUMENTS, momentum=momentum).cuda()
    norm = model.batch_norm
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_()
        norm.running_mean.normal_(std=0.2)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return model


def plain_of(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The plain module with the parameters and the mode of `model`."""
    if isinstance(model, tconv.ConvTranspose3dSoftmaxSigmoid):
        plain: nn.Module = PlainP1(*P1_ARGUMENTS)
    else:
        plain = PlainP2(*P2_ARGUMENTS, momentum=model.batch_norm.momentum)  # type: ignore[union-attr, arg-type]
    plain.load_state_dict(model.state_dict(), strict=True)
    return plain.to("cuda", dtype).train(model.training)


def uniform(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """x in [0, 1)."""
    return torch.rand(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


def check_eval(row: Row, model: nn.Module, shapes: Iterable[Sequence[int]]) -> None:
    """A module in eval mode, in every type and both orders."""
    model.eval()
    for shape in shapes:
        for dtype in DTYPES if math.prod(shape) < 1 << 20 else DTYPES[:1]:
            typed = copy.deepcopy(model).to(dtype)
            x = uniform(shape, 1, dtype)
            expected = in_float64(plain_of(typed, torch.float64), x)
            plain32 = plain_of(typed, torch.float32)(x.float())
            where = f"{SHORT[dtype]} {tuple(shape)}"
            row.take(where, typed(x), expected, plain32)
            last = typed.to(memory_format=torch.channels_last_3d)
            row.take(f"{where} channels last", last(to_channels_last(x)), expected, plain32)


def check_p1(row: Row) -> None:
    """P1."""
    check_eval(row, make_p1(), [(2, 32, 3, 5, 4), (1, 32, 1, 1, 1), FULL_P1])


def check_p2_eval(row: Row) -> None:
    """P2 in eval mode."""
    check_eval(row, make_p2(), [(2, 64, 3, 5, 4), (1, 64, 1, 1, 1), FULL_P2])


def check_p2_frozen(row: Row) -> None:
    """BatchNorm frozen inside a model in train mode, as in fine-tuning."""
    model = make_p2().train()
    model.batch_norm.eval()
    before = copy.deepcopy(model.state_dict())
    x = uniform((2, 64, 3, 4, 5), 1)
    plain64, plain32 = (plain_of(model, dtype) for dtype in (torch.float64, torch.float32))
    plain64.batch_norm.eval()  # type: ignore[union-attr]
    plain32.batch_norm.eval()  # type: ignore[union-attr]
    row.take("f32", model(x), in_float64(plain64, x), plain32(x))
    after = model.state_dict()
    row.check("state changed", all(torch.equal(after[key], before[key]) for key in before))


def train_steps(row: Row, shape: Sequence[int], dtype: torch.dtype, momentum: float | None, last: bool) -> None:
    """Three steps of P2; after each the output, at the end the running statistics too."""
    model = make_p2(momentum).train()
    if momentum is None:
        model.batch_norm.reset_running_stats()
    model.conv_transpose.to(dtype)  # BatchNorm stays float32
    plain64, plain32 = plain_of(model, torch.float64), plain_of(model, torch.float32)
    where = f"{SHORT[dtype]} {tuple(shape)} momentum {momentum}{' channels last' if last else ''}"
    for step in range(3):
        x = uniform(shape, step, dtype)
        expected, own = in_float64(plain64, x), plain32(x.float())
        row.take(f"{where} step {step}", model(to_channels_last(x) if last else x), expected, own)
    for name in ("running_mean", "running_var"):
        got, expected, own = (getattr(m.batch_norm, name) for m in (model, plain64, plain32))
        row.take(f"{where} {name}", got, expected, own)
    row.check(f"{where} num_batches_tracked", int(model.batch_norm.num_batches_tracked) == 3)  # type: ignore[arg-type]


def check_p2_train(row: Row) -> None:
    """P2 in train mode."""
    for shape in ((2, 64, 3, 5, 4), (1, 64, 1, 1, 1)):
        for dtype in DTYPES:
            for momentum in (0.1, None):
                for last in (False, True):
                    train_steps(row, shape, dtype, momentum, last)
    train_steps(row, FULL_P2, torch.float32, 0.1, False)


def check_p2_half_statistics(row: Row) -> None:
    """All of P2 in float16: the running statistics are rounded to it, once per step."""
    model = make_p2().half().train()
    plain64, plain32 = plain_of(model, torch.float64), plain_of(model, torch.float32)
    x = uniform((2, 64, 3, 5, 4), 1, torch.float16)
    row.take("y", model(x), in_float64(plain64, x), plain32(x.float()))
    for name in ("running_mean", "running_var"):
        got, expected, own = (getattr(m.batch_norm, name) for m in (model, plain64, plain32))
        row.check(f"{name}: dtype", got.dtype == torch.float16)
        row.take(name, got, expected, own)


def check_untracked(row: Row) -> None:
    """Without running statistics BatchNorm takes those of the batch in both modes."""
    model = make_p2()
    norm = model.batch_norm
    norm.track_running_stats, norm.running_mean, norm.running_var, norm.num_batches_tracked = False, None, None, None
    x = uniform((2, 64, 3, 4, 5), 1)
    for training in (True, False):
        model.train(training)
        plain64, plain32 = PlainP2(*P2_ARGUMENTS), PlainP2(*P2_ARGUMENTS)
        for plain in (plain64, plain32):
            plain.conv_transpose, plain.batch_norm = copy.deepcopy(model.conv_transpose), copy.deepcopy(norm)
            plain.train(training)
        row.take(f"train({training})", model(x), in_float64(plain64.double(), x), plain32(x))


def check_state_dict(row: Row) -> None:
    """Keys, both ways, strict. Needs no GPU."""
    pairs: tuple[tuple[nn.Module, nn.Module], ...] = (
        (tconv.ConvTranspose3dSoftmaxSigmoid(*P1_ARGUMENTS), PlainP1(*P1_ARGUMENTS)),
        (tconv.ConvTranspose3dSoftmaxSigmoid(*P1_ARGUMENTS, bias=False), PlainP1(*P1_ARGUMENTS, bias=False)),
        (tconv.ConvTranspose3dScaleBatchNormMean(*P2_ARGUMENTS), PlainP2(*P2_ARGUMENTS)),
    )
    for ours, plain in pairs:
        name = type(ours).__name__
        row.check(f"{name}: keys", list(ours.state_dict()) == list(plain.state_dict()))
        for source, target in ((ours, plain), (plain, ours)):
            with torch.no_grad():
                for tensor in source.state_dict().values():
                    tensor.copy_(torch.randint(9, tensor.shape))
            target.load_state_dict(source.state_dict(), strict=True)
            copies = target.state_dict()
            row.check(f"{name}: values", all(torch.equal(copies[k], v) for k, v in source.state_dict().items()))


def check_empty(row: Row) -> None:
    """Batch 0, as PyTorch: right shapes, running statistics untouched, the batch counted."""
    x = torch.empty(0, 32, 3, 4, 5, device="cuda")
    p1 = make_p1()
    row.check("P1", p1(x).shape == (0, 64, 6, 8, 10))
    p2 = make_p2().train()
    before = copy.deepcopy(p2.state_dict())
    row.check("P2", p2(torch.empty(0, 64, 3, 4, 5, device="cuda")).shape == (0, 128, 1, 1, 1))
    after = p2.state_dict()
    unchanged = all(torch.equal(after[key], before[key]) for key in before if key != "batch_norm.num_batches_tracked")
    row.check("P2: state changed", unchanged)
    row.check("P2: num_batches_tracked", int(after["batch_norm.num_batches_tracked"]) == 1)


def check_memory(row: Row) -> None:
    """Inputs in either order are not copied: beside y a call takes less than half of x."""
    model = make_p1()
    x = uniform(FULL_P1, 1)
    for given in (x, to_channels_last(x)):
        model(given)  # the allocator has its blocks
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = model(given)
        extra = torch.cuda.max_memory_allocated() - before - y.nbytes
        row.check(f"{tuple(given.stride())}: {extra} bytes", extra < x.nbytes // 2)


def check_errors(row: Row) -> None:
    """Every error names the argument and the rule."""

    def refuses(fragments: Sequence[str], *arguments: object, **keywords: object) -> None:
        where = " ".join(fragments)
        try:
            with torch.enable_grad():
                tconv.conv_transpose(*arguments, **keywords)  # type: ignore[arg-type]
        except RuntimeError as error:
            missing = [fragment for fragment in fragments if fragment not in str(error)]
            row.check(f"{where}: message is {str(error).splitlines()[0]!r}", not missing)
        else:
            row.check(f"{where}: no error", False)

    x = torch.rand(2, 4, 6, 6, device="cuda")
    w = torch.rand(4, 8, 3, 3, device="cuda")
    b = torch.rand(8, device="cuda")
    refuses(["x:", "CUDA", "cpu"], x.cpu(), w, b)
    refuses(["w:", "CUDA", "cpu"], x, w.cpu(), b)
    refuses(["bias:", "CUDA", "cpu"], x, w, b.cpu())
    refuses(["x:", "float32, float16 or bfloat16", "Double"], x.double(), w.double(), b)
    refuses(["w:", "type of x", "Half"], x, w.half(), b)
    refuses(["bias:", "float32 or of the type of x", "Double"], x, w, b.double())
    refuses(["x:", "contiguous or channels last", "strides"], x[..., ::2], w, b)
    refuses(["x:", "contiguous or channels last"], x.transpose(2, 3), w, b)
    refuses(["w:", "contiguous"], x, w.transpose(2, 3), b)
    refuses(["x:", "requires grad", "no_grad"], x.clone().requires_grad_(), w, b)
    refuses(["w:", "requires grad", "no_grad"], x, w.clone().requires_grad_(), b)
    refuses(["bias:", "requires grad", "no_grad"], x, w, b.clone().requires_grad_())
    refuses(["x:", "3 channels", "takes 4"], x[:, :3].contiguous(), w, b)
    refuses(["x:", "[batch, channels, 2 axes]"], x[0], w, b)
    refuses(["w:", "1 to 3 axes"], x, w[0, 0], b)
    refuses(["bias:", "[8]"], x, w, b[:7].contiguous())
    refuses(["epilogue:", "softmax_sigmoid", "swoosh"], x, w, b, epilogue="swoosh")
    refuses(["stride:", "one value per axis, 2"], x, w, b, stride=(1, 1, 1))
    refuses(["groups:", ">= 1"], x, w, b, groups=0)
    refuses(["in_channels", "divisible by groups"], x, w, groups=3)
    # The library's own.
    refuses(["shape.output_padding[h] = 2: must be < max(stride, dilation) = 2"], x, w, b, stride=2, output_padding=2)
    refuses(["shape.stride[w] = 0: must be >= 1"], x, w, b, stride=(1, 0))
    refuses(["output extent of axis h is", "padding[h] = 9"], x, w, b, padding=9)

    p2 = tconv.ConvTranspose3dScaleBatchNormMean(4, 8, 1, 2.0).cuda().train()
    before = copy.deepcopy(p2.state_dict())
    try:
        p2(torch.rand(1, 4, 1, 1, 1, device="cuda"))
        row.check("P2 with one value per channel: no error", False)
    except RuntimeError as error:
        row.check(f"P2 with one value per channel: {error}", "at least 2 values per channel" in str(error))
    after = p2.state_dict()
    row.check("P2 with one value per channel: state changed", all(torch.equal(after[k], v) for k, v in before.items()))
    with torch.enable_grad():
        x5 = torch.rand(2, 4, 2, 2, 2, device="cuda")
        try:
            p2(x5)
            row.check("P2 under enable_grad: no error", False)
        except RuntimeError as error:
            row.check(f"P2 under enable_grad: {error}", "w: requires grad" in str(error))
        p2.requires_grad_(False)
        row.check("P2 without gradients", p2(x5).shape == (2, 8, 1, 1, 1))
    with torch.inference_mode():
        row.check("P2 in inference mode", p2.eval()(x5).shape == (2, 8, 1, 1, 1))


def check_stream(row: Row) -> None:
    """The current stream, not the default one: the input is ready only there, after a while."""
    p1, p2 = make_p1(), make_p2().eval()
    x1, x2 = uniform((2, 32, 4, 5, 6), 1), uniform((2, 64, 4, 5, 6), 1)
    expected = [p1(x1), p2(x2)]
    late = [torch.full_like(x1, math.nan), torch.full_like(x2, math.nan)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # 0.1 s
        late[0].copy_(x1)
        late[1].copy_(x2)
        got = [p1(late[0]), p2(late[1])]
        finished = stream.query()
    row.check("the call waited for the stream", not finished)
    torch.cuda.synchronize()
    for name, a, b in zip(("P1", "P2"), got, expected, strict=True):
        row.check(name, torch.equal(a, b))


def check_device(row: Row) -> None:
    """The device of x, not the current one, where there are two."""
    if torch.cuda.device_count() < 2:
        return
    p1, x = make_p1(), uniform((2, 32, 4, 5, 6), 1)
    with torch.cuda.device(0):
        y = copy.deepcopy(p1).to("cuda:1")(x.to("cuda:1"))
        row.check("device", y.device == torch.device("cuda:1") and torch.cuda.current_device() == 0)
        row.check("values", torch.equal(y.to("cuda:0"), p1(x)))


def check_graph(row: Row) -> None:
    """Captured and replayed with other inputs: the same bits as direct calls, running statistics included."""
    models: tuple[nn.Module, ...] = (make_p1(), make_p2().eval(), make_p2().train())
    for model in models:
        channels = model.conv_transpose.in_channels  # type: ignore[union-attr]
        direct, captured = copy.deepcopy(model), copy.deepcopy(model)
        static = torch.zeros(2, int(channels), 4, 5, 6, device="cuda")  # type: ignore[arg-type]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = captured(static)
        name = f"{type(model).__name__} train({model.training})"
        for step in range(3):
            static.copy_(uniform(static.shape, step))
            graph.replay()
            row.check(f"{name} step {step}", torch.equal(y, direct(static)))
        states = zip(captured.state_dict().items(), direct.state_dict().values(), strict=True)
        for (key, value), expected in states:
            row.check(f"{name} {key}", torch.equal(value, expected))


def checks() -> dict[str, Callable[[Row], None]]:
    """All by name."""
    result: dict[str, Callable[[Row], None]] = {"state_dict both ways": check_state_dict}
    for dtype in DTYPES:
        for last in (False, True):
            suffix = f"{SHORT[dtype]} {'channels last' if last else 'channels first'}"
            result[f"conv_transpose {suffix}"] = lambda row, d=dtype, c=last: check_functional(row, d, c)  # type: ignore[misc]
            result[f"global_mean {suffix}"] = lambda row, d=dtype, c=last: check_global_mean(row, d, c)  # type: ignore[misc]
    return result | {
        "P1": check_p1,
        "P2 eval": check_p2_eval,
        "P2 frozen BatchNorm": check_p2_frozen,
        "P2 train": check_p2_train,
        "P2 train, statistics in f16": check_p2_half_statistics,
        "P2 untracked": check_untracked,
        "batch 0": check_empty,
        "memory": check_memory,
        "errors": check_errors,
        "side stream": check_stream,
        "second device": check_device,
        "CUDA graph": check_graph,
    }


NEED_NO_GPU = ("state_dict both ways",)


# ---------------------------------------------------------------------------------------------------------------------
# Times
# ---------------------------------------------------------------------------------------------------------------------


def milliseconds(model: nn.Module, inputs: Sequence[Tensor]) -> float:
    """Per call: median of 7 groups of calls that rotate over `inputs`."""

    def group(calls: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        for i in range(calls):
            model(inputs[i % len(inputs)])
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / calls

    once = max(group(3), group(3))
    return statistics.median(group(max(10, min(200, int(30 / once)))) for _ in range(7))


def print_times() -> None:
    """P1 and P2 at full extents beside PyTorch eager. For information."""
    print(f"\n{'ms per call':12} {'tconv':>8} {'eager f32':>10} {'eager tf32':>11}")
    for name, model, shape in (
        ("P1", make_p1(), FULL_P1),
        ("P2 eval", make_p2().eval(), FULL_P2),
        ("P2 train", make_p2().train(), FULL_P2),
    ):
        inputs = [uniform(shape, seed) for seed in range(4)]
        plain = plain_of(model, torch.float32)
        ours, f32 = milliseconds(model, inputs), milliseconds(plain, inputs)
        torch.backends.cudnn.allow_tf32 = True
        tf32 = milliseconds(plain, inputs)
        torch.backends.cudnn.allow_tf32 = False
        print(f"{name:12} {ours:8.3f} {f32:10.3f} {tf32:11.3f}", flush=True)


def main() -> int:
    """The command line program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", metavar="WORD", default="", help="only checks with WORD in their name")
    parser.add_argument("--no-timings", action="store_true", help="checks alone")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_grad_enabled(False)

    gpu = torch.cuda.is_available()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name() if gpu else 'no GPU'}")
    if gpu:
        began = time.monotonic()
        tconv.build.load()
        print(f"built and loaded in {time.monotonic() - began:.0f} s")
    print(f"{'':4} {'check':34} {'count':>5} {'error':>9} {'bound':>9}  where it comes closest")
    failed = skipped = count = 0
    for name, check in checks().items():
        if options.k not in name:
            continue
        if not gpu and name not in NEED_NO_GPU:
            skipped += 1
            continue
        row = Row(name)
        try:
            check(row)
        except Exception as error:  # a check that breaks must not hide those behind it
            row.failures.append(f"{type(error).__name__}: {error}")
        count += 1
        failed += bool(row.failures)
        print(row.line(), flush=True)
        for failure in row.failures[:5]:
            print(f"       {failure}")
        if len(row.failures) > 5:
            print(f"       and {len(row.failures) - 5} more")
    if gpu and not options.no_timings:
        print_times()
    print(f"\n{count - failed} passed, {failed} failed, {skipped} skipped")
    if failed or count + skipped == 0:
        return 1
    if skipped:
        print("PyTorch sees no GPU: what needs one was skipped")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
