#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One problem in PyTorch, in true fp32, timed by the protocol of the benchmarks, and tconv's error beside PyTorch's.

    python3 bench/pytorch_compare.py --problem L2_49 --dump build/bin/bench_dump_outputs --output row.json

evidence.py calls this once per problem and adds tconv's time out of bench.json. Layers have PyTorch's default
initialisation, inputs are uniform in [0, 1).

Times: calls rotate over inputs that together exceed L2; between two events as many calls as fill 20 ms, 2 at least; the
median of 7 such groups after a warm-up, of 3 where a call takes more than 50 ms; the same under a CUDA graph for calls
of up to 1 ms, beyond which launches cannot matter (the rules of common/timer.hpp). eager is PyTorch as it comes, TF32
off; compile is torch.compile in its default mode; expert the least of these, cudnn.benchmark, channels-last tensors
(the input is given so) and both. A variant whose first calls take 1.25 times the least so far is not measured further.

Errors: the largest absolute difference from float64, computed on the GPU from the definition, one matrix product per
tap. err_bound is twice that of eager PyTorch plus 4 ulp of the largest output.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import copy
import dataclasses
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

GROUP_MS = 20
LONGEST_IN_7_MS = 50
LONGEST_IN_GRAPH_MS = 1
SEED = 49

Json = dict[str, Any]


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Problems
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Problem:
    """A transposed convolution and what follows it."""

    name: str
    pipeline: str  # as bench_dump_outputs calls it
    batch: int
    in_channels: int
    out_channels: int
    extents: tuple[int, int, int]
    kernel: int
    stride: int = 1
    padding: int = 0
    output_padding: int = 0

    @property
    def pools(self) -> bool:
        """Whether the output is one value per sample and channel."""
        return self.pipeline != "softmax_sigmoid"

    @property
    def trains(self) -> bool:
        """Whether BatchNorm uses the statistics of the batch."""
        return self.pipeline == "scale_batch_norm_mean_train"

    @property
    def output(self) -> list[int]:
        """Output extents of the convolution."""
        return [(n - 1) * self.stride - 2 * self.padding + self.kernel + self.output_padding for n in self.extents]

    @property
    def bytes(self) -> int:
        """Input, weights and final output once each, as the benchmarks count them."""
        inputs = self.batch * self.in_channels * math.prod(self.extents)
        weights = self.in_channels * self.out_channels * self.kernel**3
        outputs = self.batch * self.out_channels * (1 if self.pools else math.prod(self.output))
        return 4 * (inputs + weights + outputs)

    def arguments(self) -> list[str]:
        """The shape for bench_dump_outputs."""

        def cube(value: int) -> str:
            return f"{value},{value},{value}"

        return [
            f"batch={self.batch}",
            f"in_channels={self.in_channels}",
            f"out_channels={self.out_channels}",
            "input=" + ",".join(map(str, self.extents)),
            f"kernel={cube(self.kernel)}",
            f"stride={cube(self.stride)}",
            f"padding={cube(self.padding)}",
            f"output_padding={cube(self.output_padding)}",
        ]


P2 = Problem("L2_77", "scale_batch_norm_mean_train", 16, 64, 128, (16, 32, 32), kernel=5)
PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("L2_49", "softmax_sigmoid", 16, 32, 64, (16, 32, 32), kernel=3, stride=2, padding=1, output_padding=1),
        P2,
        dataclasses.replace(P2, name="P2_eval", pipeline="scale_batch_norm_mean_eval"),
    )
}


class SoftmaxSigmoid(nn.Module):
    """P1."""

    def __init__(self, conv: nn.ConvTranspose3d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, D, H, W] as the convolution returns it."""
        return torch.sigmoid(torch.softmax(self.conv(x), dim=1))


class ScaleBatchNormMean(nn.Module):
    """P2."""

    def __init__(self, conv: nn.ConvTranspose3d) -> None:
        super().__init__()
        self.conv = conv
        self.norm = nn.BatchNorm3d(conv.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C]"""
        z = self.norm(self.conv(x) * 2)
        return nn.functional.adaptive_avg_pool3d(z, 1).flatten(1)


def make_model(problem: Problem, device: torch.device) -> nn.Module:
    """The problem as PyTorch layers with default initialisation, the same in every process."""
    torch.manual_seed(SEED)
    conv = nn.ConvTranspose3d(
        problem.in_channels,
        problem.out_channels,
        problem.kernel,
        stride=problem.stride,
        padding=problem.padding,
        output_padding=problem.output_padding,
    )
    model = ScaleBatchNormMean(conv) if problem.pools else SoftmaxSigmoid(conv)
    return model.to(device).train(problem.trains)


def make_input(problem: Problem, device: torch.device) -> Tensor:
    """x in [0, 1), the same in every process."""
    generator = torch.Generator(device=device).manual_seed(SEED + 1)
    return torch.rand(problem.batch, problem.in_channels, *problem.extents, device=device, generator=generator)


# ---------------------------------------------------------------------------------------------------------------------
# Time
# ---------------------------------------------------------------------------------------------------------------------


def rotation(x: Tensor) -> list[Tensor]:
    """Copies of x that together exceed L2 at least twice over; as the benchmarks' rotating_buffers."""
    l2 = torch.cuda.get_device_properties(x.device).L2_cache_size
    count = min(max(2 * l2 // (x.element_size() * x.numel()) + 1, 4), 64)
    return [x.clone(memory_format=torch.preserve_format) for _ in range(count)]


def elapsed(body: Callable[[], None]) -> float:
    """Milliseconds on the current stream that `body` takes."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    body()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def graph_time(calls: Callable[[int], None], count: int, groups: int) -> float | None:
    """Milliseconds per call of `count` calls in one CUDA graph; None if they cannot be captured."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls(count)
        graph.replay()
        return statistics.median(elapsed(graph.replay) for _ in range(groups)) / count
    except RuntimeError as error:
        say(f"    no CUDA graph: {str(error).splitlines()[0]}")
        return None


def measure(model: Callable[[Tensor], Tensor], inputs: Sequence[Tensor], least: float = math.inf) -> Json:
    """Milliseconds per call by the protocol: {"stream_ms", "graph_ms", "calls"}.

    With more than 1.25 times `least` in the first calls it stops there: {"first_calls_ms"}.
    """

    def calls(count: int) -> None:
        for i in range(count):
            model(inputs[i % len(inputs)])

    torch.cuda.synchronize()  # the inputs are there before another stream reads them
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        calls(2)
        once = elapsed(lambda: calls(1))
        if once < GROUP_MS:
            once = elapsed(lambda: calls(5)) / 5
        if once > 1.25 * least:
            return {"first_calls_ms": once}
        count = min(max(int(GROUP_MS / max(once, 1e-4)), 2), 400)
        groups = 3 if once > LONGEST_IN_7_MS else 7
        stream_ms = statistics.median(elapsed(lambda: calls(count)) for _ in range(groups)) / count
        graph_ms = graph_time(calls, count, groups) if once <= LONGEST_IN_GRAPH_MS else None
    return {"stream_ms": stream_ms, "graph_ms": graph_ms, "calls": count}


@contextlib.contextmanager
def cudnn_benchmark(enabled: bool) -> Iterator[None]:
    """cuDNN's search for the fastest algorithm, on or off."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def measure_variants(model: nn.Module, x: Tensor, least: float = math.inf) -> dict[str, Json]:
    """Times of what a knowing user would try, eager first; `least` as for measure()."""
    variants: dict[str, Json] = {}
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    for search, channels_last in itertools.product((False, True), (False, True) if last else (False,)):
        names = [name for name, on in (("cudnn_benchmark", search), ("channels_last", channels_last)) if on]
        name = "_".join(names) or "eager"
        layout = last if channels_last else torch.contiguous_format
        with cudnn_benchmark(search):
            candidate = copy.deepcopy(model).to(memory_format=layout)  # type: ignore[call-overload]
            inputs = rotation(x.contiguous(memory_format=layout))
            # PyTorch keeps cuDNN's plans per thread, whoever chose them: in this one the search would find eager's.
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                variants[name] = thread.submit(measure, candidate, inputs, least).result()
        least = min(least, variants[name].get("stream_ms", math.inf))
        say(f"    {name}: {variants[name]}")
    return variants


def compile_in_this_process(problem: Problem, device: torch.device) -> Json:
    """Times of torch.compile in its default mode, after a check against eager."""
    model = make_model(problem, device)
    x = make_input(problem, device)
    with torch.no_grad():
        expected = copy.deepcopy(model)(x)
        compiled = torch.compile(model)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-3, atol=1e-4)
    return measure(compiled, rotation(x))


def compile_in_a_process(problem: Problem, timeout: float) -> Json | None:
    """Times of torch.compile, in a process that is killed after `timeout` seconds; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "compile.json"
        command = [sys.executable, __file__, "--only-compile", "--problem", problem.name, "--output", str(output)]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            say(f"    torch.compile: not done after {timeout:g} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        try:
            times: Json = json.loads(output.read_text())
        except (OSError, ValueError):
            return None
    say(f"    compile: {times}")
    return times


# ---------------------------------------------------------------------------------------------------------------------
# Error
# ---------------------------------------------------------------------------------------------------------------------


def conv_transpose64(conv: nn.ConvTranspose3d, x: Tensor, extents: Sequence[int]) -> Tensor:
    """conv(x) in float64 by the definition: input i and tap t reach output i * stride - padding + t.

    One matrix product per sample and tap; x is [N, C_in, D, H, W], the result [N, C_out, *extents].
    """
    stride, padding, kernel = conv.stride, conv.padding, conv.kernel_size
    w = conv.weight.detach().double()
    b = conv.bias.detach().double()  # type: ignore[union-attr]
    # With room for what padding crops.
    room = [max((n - 1) * stride[a] + kernel[a], int(padding[a]) + extents[a]) for a, n in enumerate(x.shape[2:])]
    crop = [slice(int(padding[a]), int(padding[a]) + extents[a]) for a in range(3)]
    samples = []
    for sample in x:
        z = torch.zeros(w.shape[1], *room, dtype=torch.float64, device=x.device)
        columns = sample.double().flatten(1)
        for tap in itertools.product(*map(range, kernel)):
            d, h, v = (slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, sample.shape[1:], stride, strict=True))
            z[:, d, h, v] += (w[:, :, tap[0], tap[1], tap[2]].T @ columns).view(-1, *sample.shape[1:])
        samples.append(z[:, crop[0], crop[1], crop[2]] + b[:, None, None, None])
    return torch.stack(samples)


@dataclasses.dataclass(frozen=True)
class Reference:
    """The problem's results in float64."""

    logits: Tensor  # of the first sample, [C_out, D, H, W]
    y: Tensor
    variance: Tensor | None  # unbiased, of what enters BatchNorm in train mode


def reference64(problem: Problem, model: nn.Module, x: Tensor) -> Reference:
    """float64 results from the same fp32 parameters and input."""
    conv = model.conv
    assert isinstance(conv, nn.ConvTranspose3d)
    z = conv_transpose64(conv, x, problem.output)
    logits = z[0].clone()
    if not problem.pools:
        return Reference(logits, torch.sigmoid(torch.softmax(z, dim=1)), None)
    norm = model.norm
    assert isinstance(norm, nn.BatchNorm3d)
    assert norm.running_mean is not None and norm.running_var is not None
    z = z * 2
    spatial = (0, 2, 3, 4)
    variance = z.var(spatial, correction=1) if problem.trains else None
    if problem.trains:
        mean, var = z.mean(spatial), z.var(spatial, correction=0)
    else:
        mean, var = norm.running_mean.double(), norm.running_var.double()
    slope = norm.weight.detach().double() / torch.sqrt(var + norm.eps)
    y = (z.mean((2, 3, 4)) - mean) * slope + norm.bias.detach().double()
    return Reference(logits, y, variance)


def largest_error(got: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; infinite if anything is not finite."""
    worst = max(float((g.double() - e).abs().max()) for g, e in zip(got, expected, strict=True))
    finite = all(bool(torch.isfinite(g).all()) for g in got)
    return worst if finite else math.inf


def ulp(value: float) -> float:
    """Distance from |value| to the next larger fp32."""
    v = torch.tensor(abs(value), dtype=torch.float32)
    return float(torch.nextafter(v, torch.tensor(math.inf)) - v)


def write_floats(path: Path, tensor: Tensor) -> None:
    """Raw fp32, channels first."""
    values = tensor.detach().float().contiguous().flatten().cpu()
    torch.from_file(str(path), shared=True, size=values.numel(), dtype=torch.float32).copy_(values)


def read_floats(path: Path, shape: Sequence[int], device: torch.device) -> Tensor:
    """What write_floats() or bench_dump_outputs wrote."""
    count = math.prod(shape)
    if path.stat().st_size != 4 * count:
        raise RuntimeError(f"{path} is not a file of {count} floats")
    return torch.from_file(str(path), shared=False, size=count, dtype=torch.float32).to(device).view(*shape)


def write_tensors(folder: Path, model: nn.Module, x: Tensor) -> None:
    """The inputs of bench_dump_outputs."""
    tensors = {"x": x, "w": model.conv.weight, "b": model.conv.bias}  # type: ignore[union-attr]
    norm = getattr(model, "norm", None)
    if norm is not None:
        tensors |= {"gamma": norm.weight, "beta": norm.bias, "mean": norm.running_mean, "var": norm.running_var}
    for name, tensor in tensors.items():
        write_floats(folder / f"{name}.bin", tensor)  # type: ignore[arg-type]


def run_tconv(problem: Problem, dump: Path, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """tconv's output and, in train mode, its variance, from the same tensors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tensors(folder, model, x)
        subprocess.run([dump, problem.pipeline, folder, *problem.arguments()], check=True, timeout=60)
        shape = [problem.batch, problem.out_channels]
        y = read_floats(folder / "y.bin", shape if problem.pools else shape + problem.output, x.device)
        variance = None
        if problem.trains:
            variance = read_floats(folder / "var_out.bin", [problem.out_channels], x.device)
    return y, variance


def compare(problem: Problem, model: nn.Module, x: Tensor, dump: Path) -> Json:
    """{"max_err", "err_bound", "variance_err"} of the row; the last is relative, null outside train mode."""
    reference = reference64(problem, model, x)
    with torch.no_grad():
        logits = model.conv(x)[0]  # type: ignore[operator]
        eager = copy.deepcopy(model)(x)
    # TF32 in PyTorch would widen the bound; it is a thousand times away from fp32.
    scale = float(reference.logits.abs().max())
    if largest_error(logits, reference.logits) > 1e-5 * scale:
        raise RuntimeError("PyTorch's convolution is not fp32 (or the float64 reference is wrong)")
    y, variance = run_tconv(problem, dump, model, x)
    variance_err = None
    if variance is not None and reference.variance is not None:
        variance_err = largest_error(variance / reference.variance, torch.ones_like(reference.variance))
    errors = {
        "max_err": largest_error(y, reference.y),
        "err_bound": 2 * largest_error(eager, reference.y) + 4 * ulp(float(reference.y.abs().max())),
        "variance_err": variance_err,
    }
    if not all(math.isfinite(value) for value in errors.values() if value is not None):
        raise RuntimeError(f"not finite: {errors}")
    return errors


# ---------------------------------------------------------------------------------------------------------------------
# A row
# ---------------------------------------------------------------------------------------------------------------------


def make_row(problem: Problem, options: argparse.Namespace, device: torch.device) -> Json:
    """{"row", "bytes"}: a row of pytorch.json, its tconv_ms still null, and the bytes that the benchmark must count."""
    began = time.monotonic()

    def progress(what: str) -> None:
        say(f"  [{time.monotonic() - began:5.1f} s] {problem.name}: {what}")

    progress("float64 reference, PyTorch's and tconv's outputs")
    model = make_model(problem, device)
    x = make_input(problem, device)
    errors = compare(problem, model, x, options.dump)
    torch.cuda.empty_cache()
    say(f"    {errors}")
    progress("timing eager")
    variants = measure_variants(model, x)
    if not options.no_compile:
        torch.cuda.empty_cache()
        progress("timing torch.compile")
        times = compile_in_a_process(problem, options.compile_timeout)
        if times is not None:
            variants["compile"] = times
    progress("done")
    measured = {name: times["stream_ms"] for name, times in variants.items() if "stream_ms" in times}
    return {
        "row": {
            "problem": problem.name,
            "math": "precise",
            "dtype": "f32",
            "tconv_ms": None,
            "eager_ms": measured["eager"],
            "compile_ms": measured.get("compile"),
            "expert_ms": min(measured.values()),
            "max_err": errors["max_err"],
            "err_bound": errors["err_bound"],
            "torch": torch.__version__,
            "variance_err": errors["variance_err"],
            "variants": variants,
        },
        "bytes": problem.bytes,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", required=True, choices=sorted(PROBLEMS))
    parser.add_argument("--dump", type=Path, metavar="FILE", help="the executable bench_dump_outputs")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help='[{"row", "bytes"}] as JSON')
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument(
        "--compile-timeout", type=float, default=75, metavar="S", help="for torch.compile (default: 75)"
    )
    parser.add_argument("--only-compile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.only_compile and options.dump is None:
        parser.error("--dump is required")
    if not torch.cuda.is_available():
        print("pytorch_compare.py: PyTorch sees no GPU", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False

    problem = PROBLEMS[options.problem]
    result: Any = (
        compile_in_this_process(problem, device) if options.only_compile else [make_row(problem, options, device)]
    )
    options.output.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
