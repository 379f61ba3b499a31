#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Plain transposed convolutions in PyTorch, timed by the benchmarks' protocol, and tconv's error beside PyTorch's.

    python3 bench/pytorch_convolutions.py --library build/bin/libbench_convolution.so --rows L1_ --output rows.json

The rows are those of common/convolution.hpp, read out of the library, which also computes tconv's results on the same
tensors; evidence.py adds tconv's times out of bench.json. Layers have PyTorch's default initialisation and no bias,
inputs are uniform in [0, 1), batch, precision and extents as the row says. Rows that differ in tconv's layout alone
share PyTorch's times.

Times are those of pytorch_compare.py: eager is PyTorch on channels-first tensors; expert the least of that,
cudnn.benchmark, channels-last tensors and both. One axis has no channels-last format in PyTorch: there the same layer
with two axes, one of extent 1, is tried besides. PyTorch has TF32 off in precise rows and on in tf32 rows; half rows
have tensors of their type.

Errors: the largest absolute difference from float64 over a sample of outputs, all corners and thousands of random
positions with all their channels, computed from the definition. err_bound is twice that of eager PyTorch plus 4 ulp of
the largest output; in tf32 rows that of channels-last PyTorch, if larger: eager may have chosen an algorithm in fp32.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from pytorch_compare import SEED, Json, largest_error, measure_variants, say, ulp
from torch import Tensor, nn

SAMPLES = 4096
LAYERS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Shape(ctypes.Structure):
    """tconv_bench_shape."""

    _fields_ = [(name, ctypes.c_int64) for name in ("axes", "batch", "in_channels", "out_channels", "groups")] + [
        (name, ctypes.c_int64 * 3) for name in ("input", "kernel", "stride", "padding", "output_padding", "dilation")
    ]

    def per_axis(self, name: str) -> tuple[int, ...]:
        """The field `name` for PyTorch's axes."""
        return tuple(getattr(self, name)[3 - self.axes :])

    @property
    def output(self) -> list[int]:
        """Output extents."""
        names = ("input", "kernel", "stride", "padding", "output_padding", "dilation")
        return [
            (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
            for n, k, s, p, extra, d in zip(*map(self.per_axis, names), strict=True)
        ]


class Convolution(ctypes.Structure):
    """tconv_bench_convolution."""

    _fields_ = [
        ("problem", ctypes.c_char * 64),
        ("math", ctypes.c_char * 8),
        ("dtype", ctypes.c_char * 8),
        ("channels_last", ctypes.c_int64),
        ("shape", Shape),
    ]

    @property
    def name(self) -> str:
        """As bench.json calls it."""
        return f"{self.problem.decode()}/{self.math.decode()}/{self.dtype.decode()}"

    @property
    def element(self) -> torch.dtype:
        """Type of the tensors."""
        return DTYPES[self.dtype.decode()]


class Library:
    """libbench_convolution.so."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path.resolve()))
        self.library.tconv_bench_convolutions.restype = ctypes.c_int64
        self.library.tconv_bench_workspace_bytes.restype = ctypes.c_size_t
        self.library.tconv_bench_convolve.restype = ctypes.c_char_p

    def rows(self) -> list[Convolution]:
        """All rows."""
        first = ctypes.POINTER(Convolution)()
        count = self.library.tconv_bench_convolutions(ctypes.byref(first))
        return [first[i] for i in range(count)]

    def convolve(self, row: Convolution, x: Tensor, w: Tensor) -> Tensor:
        """tconv's output [N, C, ...], in whichever layout; elements that are not written are NaN."""
        extents = [row.shape.batch, row.shape.out_channels, *row.shape.output]
        x, w = x.contiguous(), w.contiguous()
        if row.channels_last:
            x = x.movedim(1, -1).contiguous()
            extents = [extents[0], *extents[2:], extents[1]]
        y = torch.full(extents, torch.nan, dtype=x.dtype, device=x.device)
        size = self.library.tconv_bench_workspace_bytes(ctypes.byref(row))
        space = torch.empty(size, dtype=torch.uint8, device=x.device)
        error = self.library.tconv_bench_convolve(
            ctypes.byref(row),
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_void_p(w.data_ptr()),
            ctypes.c_void_p(y.data_ptr()),
            ctypes.c_void_p(space.data_ptr()),
            ctypes.c_size_t(size),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        if error is not None:
            raise RuntimeError(f"{row.name}: {error.decode()}")
        torch.cuda.synchronize()
        return y.movedim(-1, 1) if row.channels_last else y


# ---------------------------------------------------------------------------------------------------------------------
# PyTorch
# ---------------------------------------------------------------------------------------------------------------------


def make_layer(row: Convolution, device: torch.device) -> nn.Module:
    """The layer, the same for every row of a problem but for its type."""
    torch.manual_seed(SEED)
    shape = row.shape
    layer = LAYERS[shape.axes - 1](
        shape.in_channels,
        shape.out_channels,
        shape.per_axis("kernel"),
        stride=shape.per_axis("stride"),
        padding=shape.per_axis("padding"),
        output_padding=shape.per_axis("output_padding"),
        groups=shape.groups,
        bias=False,
        dilation=shape.per_axis("dilation"),
    )
    return layer.to(device, row.element)


def make_input(row: Convolution, device: torch.device) -> Tensor:
    """x in [0, 1), the same for every row of a problem but for its type."""
    generator = torch.Generator(device=device).manual_seed(SEED + 1)
    extents = (row.shape.batch, row.shape.in_channels, *row.shape.per_axis("input"))
    return torch.rand(extents, device=device, generator=generator).to(row.element)


def with_two_axes(layer: nn.ConvTranspose1d) -> nn.ConvTranspose2d:
    """The same layer on [N, C, 1, W]."""
    twin = nn.ConvTranspose2d(
        layer.in_channels,
        layer.out_channels,
        (1, *layer.kernel_size),
        stride=(1, *layer.stride),
        padding=(0, *layer.padding),
        output_padding=(0, *layer.output_padding),
        groups=layer.groups,
        bias=False,
        dilation=(1, *layer.dilation),
    ).to(layer.weight.device, layer.weight.dtype)
    with torch.no_grad():
        twin.weight.copy_(layer.weight.unsqueeze(2))
    return twin


def time_layer(layer: nn.Module, x: Tensor) -> dict[str, Json]:
    """Times of what a knowing user would try, eager first."""
    variants = measure_variants(layer, x)
    if isinstance(layer, nn.ConvTranspose1d):
        least = min(v["stream_ms"] for v in variants.values() if "stream_ms" in v)
        twin = measure_variants(with_two_axes(layer), x.unsqueeze(2), least)
        variants |= {f"two_axes_{name}": times for name, times in twin.items()}
    return variants


# ---------------------------------------------------------------------------------------------------------------------
# Error
# ---------------------------------------------------------------------------------------------------------------------


class Sample:
    """Positions of outputs: a sample of the batch and a place on every axis each."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        generator = torch.Generator(device=device).manual_seed(SEED + 2)
        extents = [shape.batch, *shape.output]
        corners = torch.tensor(list(itertools.product(*((0, n - 1) for n in extents))), device=device).T
        self.places = tuple(
            torch.cat([corner, torch.randint(n, (SAMPLES,), device=device, generator=generator)])
            for n, corner in zip(extents, corners, strict=True)
        )

    def of(self, y: Tensor) -> Tensor:
        """[1, position, channel] of y, [N, C, ...]."""
        return y[(self.places[0], slice(None), *self.places[1:])].unsqueeze(0)

    def reference64(self, shape: Shape, x: Tensor, w: Tensor) -> Tensor:
        """The same in float64 by the definition: input i and tap t reach output i * stride - padding + t * dilation."""
        sample, *places = self.places
        y = torch.zeros(len(sample), shape.groups, shape.out_channels // shape.groups, dtype=torch.float64).to(x.device)
        axes = [shape.per_axis(name) for name in ("input", "stride", "padding", "dilation")]
        for tap in itertools.product(*map(range, shape.per_axis("kernel"))):
            lands = torch.ones_like(sample, dtype=torch.bool)
            inputs = []
            for place, t, n, stride, padding, dilation in zip(places, tap, *axes, strict=True):
                reached = place + padding - t * dilation
                i = reached.div(stride, rounding_mode="floor")
                lands &= (reached % stride == 0) & (i >= 0) & (i < n)
                inputs.append(i.clamp(0, n - 1))
            columns = x[(sample, slice(None), *inputs)].double() * lands[:, None]
            weights = w[(..., *tap)].double().unflatten(0, (shape.groups, -1))
            y += torch.einsum("pgi,gio->pgo", columns.unflatten(1, (shape.groups, -1)), weights)
        return y.flatten(1).unsqueeze(0)


def compare(library: Library, row: Convolution, layer: nn.Module, x: Tensor) -> Json:
    """{"max_err", "err_bound", "positions"} of the row."""
    w = layer.weight.detach()  # type: ignore[union-attr, operator]
    sample = Sample(row.shape, x.device)
    expected = sample.reference64(row.shape, x, w)
    with torch.no_grad():
        theirs = largest_error(sample.of(layer(x)), expected)
        if row.math == b"tf32" and x.dim() in CHANNELS_LAST:
            last = layer(x.contiguous(memory_format=CHANNELS_LAST[x.dim()]))
            theirs = max(theirs, largest_error(sample.of(last), expected))
            del last
    return {
        "max_err": largest_error(sample.of(library.convolve(row, x, w)), expected),
        "err_bound": 2 * theirs + 4 * ulp(float(expected.abs().max())),
        "positions": len(sample.places[0]),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


def make_rows(library: Library, rows: Sequence[Convolution], device: torch.device) -> list[Json]:
    """[{"row", "bytes"}], as pytorch_compare.py makes one."""
    began = time.monotonic()
    timed: dict[tuple[bytes, bytes, bytes], dict[str, Json]] = {}
    results = []
    for row in rows:
        say(f"  [{time.monotonic() - began:5.1f} s] {row.name}")
        torch.backends.cudnn.allow_tf32 = row.math == b"tf32"
        layer = make_layer(row, device)
        x = make_input(row, device)
        errors = compare(library, row, layer, x)
        torch.cuda.empty_cache()
        say(f"    {errors}")
        key = (bytes(row.shape), row.math, row.dtype)
        if key not in timed:
            timed[key] = time_layer(layer, x)
            torch.cuda.empty_cache()
        variants = timed[key]
        measured = {name: times["stream_ms"] for name, times in variants.items() if "stream_ms" in times}
        problem, math_mode, dtype = row.name.split("/")
        outputs = row.shape.batch * row.shape.out_channels * torch.Size(row.shape.output).numel()
        results.append(
            {
                "row": {
                    "problem": problem,
                    "math": math_mode,
                    "dtype": dtype,
                    "tconv_ms": None,
                    "eager_ms": measured["eager"],
                    "compile_ms": None,
                    "expert_ms": min(measured.values()),
                    **errors,
                    "torch": torch.__version__,
                    "variants": variants,
                },
                "bytes": x.element_size() * (x.numel() + layer.weight.numel() + outputs),  # type: ignore[operator]
            }
        )
    say(f"  [{time.monotonic() - began:5.1f} s] done")
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=Path, metavar="FILE", help="libbench_convolution.so")
    parser.add_argument("--rows", default="", metavar="REGEX", help="those whose problem/math/dtype begins so")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help='[{"row", "bytes"}] as JSON')
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("pytorch_convolutions.py: PyTorch sees no GPU", file=sys.stderr)
        return 2
    library = Library(options.library)
    rows = [row for row in library.rows() if re.match(options.rows, row.name)]
    if not rows:
        parser.error(f"--rows: no row begins with {options.rows}")
    results = make_rows(library, rows, torch.device("cuda"))
    options.output.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
