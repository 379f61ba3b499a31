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


class Pipeline(nn.Module):
    """A transposed convolution and what follows it. `tail` works in any precision: float64 results come from it, too."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def tail(self, z: Tensor) -> Tensor:
        """What follows the convolution."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """The result as bench_dump_outputs writes it, or with more axes of extent 1."""
        return self.tail(self.conv(x))


class WithOffset(Pipeline):
    """With a further bias per channel."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__(conv)
        weight = conv.weight
        self.offset = nn.Parameter(torch.randn(weight.shape[1], *[1] * (weight.dim() - 2)))  # type: ignore


class WithBatchNorm(Pipeline):
    """With a BatchNorm."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__(conv)
        self.norm = nn.BatchNorm3d(conv.weight.shape[1])  # type: ignore


class MeanOverDepthSoftmax(WithOffset):
    """L2_13."""

    def tail(self, z: Tensor) -> Tensor:
        z = torch.mean(z, dim=2, keepdim=True) + self.offset
        return torch.tanh(torch.softmax(z, dim=1)) * 2.0


class BatchNormCentred(WithBatchNorm):
    """L2_15."""

    def tail(self, z: Tensor) -> Tensor:
        z = self.norm(z)
        return z - torch.mean(z, dim=(2, 3, 4), keepdim=True)


class MeanLogsumexp(WithOffset):
    """L2_42."""

    def tail(self, z: Tensor) -> Tensor:
        z = torch.mean(z, dim=(2, 3), keepdim=True) + self.offset
        return torch.sum(torch.logsumexp(z, dim=1, keepdim=True), dim=(2, 3)) * 10.0


class HalfMeanTwice(Pipeline):
    """L2_44."""

    def tail(self, z: Tensor) -> Tensor:
        z = torch.mean(z * 0.5, dim=[2, 3], keepdim=True)
        return torch.mean(z, dim=[2, 3], keepdim=True)


class SoftmaxSigmoid(Pipeline):
    """L2_49, P1."""

    def tail(self, z: Tensor) -> Tensor:
        return torch.sigmoid(torch.softmax(z, dim=1))


class ScaleAveragePool(WithOffset):
    """L2_50."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__(conv)
        self.first = nn.Parameter(torch.tensor(0.5))
        self.second = nn.Parameter(torch.tensor(1.0))

    def tail(self, z: Tensor) -> Tensor:
        return (nn.functional.avg_pool3d(z * self.first, 2) + self.offset) * self.second


class BatchNormAveragePools(WithBatchNorm):
    """L2_72."""

    def tail(self, z: Tensor) -> Tensor:
        return nn.functional.avg_pool3d(nn.functional.avg_pool3d(self.norm(z), 2), 2)


class ScaleBatchNormMean(WithBatchNorm):
    """L2_77, P2."""

    def tail(self, z: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool3d(self.norm(z * 2), 1)


MODELS: dict[str, type[Pipeline]] = {
    "L2_13": MeanOverDepthSoftmax,
    "L2_15": BatchNormCentred,
    "L2_42": MeanLogsumexp,
    "L2_44": HalfMeanTwice,
    "L2_49": SoftmaxSigmoid,
    "L2_50": ScaleAveragePool,
    "L2_72": BatchNormAveragePools,
    "L2_77": ScaleBatchNormMean,
    "P2_eval": ScaleBatchNormMean,
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """The convolution of a pipeline, as bench_dump_outputs --list has it."""

    name: str
    train: bool  # BatchNorm, if there is one, uses the statistics of the batch
    batch: int
    in_channels: int
    out_channels: int
    extents: list[int]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    output_padding: list[int]

    @property
    def output(self) -> list[int]:
        """Output extents of the convolution."""
        axes = zip(self.extents, self.kernel, self.stride, self.padding, self.output_padding, strict=True)
        return [(n - 1) * stride - 2 * padding + kernel + more for n, kernel, stride, padding, more in axes]


def find_problem(name: str, dump: Path) -> Problem:
    """The problem `name` of bench_dump_outputs."""
    listing = subprocess.run([dump, "--list"], check=True, timeout=60, capture_output=True, text=True)
    return next(Problem(**fields) for fields in json.loads(listing.stdout) if fields["name"] == name)


def make_model(problem: Problem, device: torch.device) -> Pipeline:
    """The problem as PyTorch layers with default initialisation, the same in every process."""
    torch.manual_seed(SEED)
    layer = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[len(problem.extents)]
    conv = layer(
        problem.in_channels,
        problem.out_channels,
        tuple(problem.kernel),
        stride=tuple(problem.stride),
        padding=tuple(problem.padding),
        output_padding=tuple(problem.output_padding),
    )
    return MODELS[problem.name](conv).to(device).train(problem.train)


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
            candidate = copy.deepcopy(model)
            for parameter in candidate.parameters():
                if parameter.dim() == x.dim():  # not a bias that broadcasts, which Module.to() would refuse
                    parameter.data = parameter.data.contiguous(memory_format=layout)
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


def compile_in_a_process(problem: Problem, dump: Path, timeout: float) -> Json | None:
    """Times of torch.compile, in a process that is killed after `timeout` seconds; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "compile.json"
        command = [sys.executable, __file__, "--only-compile", "--problem", problem.name, "--dump", str(dump)]
        command += ["--output", str(output)]
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


def conv_transpose64(problem: Problem, model: Pipeline, x: Tensor) -> Tensor:
    """The convolution in float64 by the definition: input i and tap t reach output i * stride - padding + t.

    One matrix product per sample and tap; x is [N, C_in, ...], the result [N, C_out, ...].
    """
    missing = 3 - len(problem.extents)  # leading axes

    def three(values: Sequence[int], one: int) -> list[int]:
        return [one] * missing + list(values)

    inputs, outputs = three(problem.extents, 1), three(problem.output, 1)
    kernel, stride, padding = three(problem.kernel, 1), three(problem.stride, 1), three(problem.padding, 0)
    w = model.conv.weight.detach().double().view(problem.in_channels, problem.out_channels, *kernel)  # type: ignore
    b = model.conv.bias.detach().double()  # type: ignore
    # With room for what padding crops.
    room = [max((n - 1) * stride[a] + kernel[a], padding[a] + outputs[a]) for a, n in enumerate(inputs)]
    crop = [slice(padding[a], padding[a] + outputs[a]) for a in range(3)]
    samples = []
    for sample in x:
        z = torch.zeros(w.shape[1], *room, dtype=torch.float64, device=x.device)
        columns = sample.double().flatten(1)
        for tap in itertools.product(*map(range, kernel)):
            d, h, v = (slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, inputs, stride, strict=True))
            z[:, d, h, v] += (w[:, :, tap[0], tap[1], tap[2]].T @ columns).view(-1, *inputs)
        samples.append(z[:, crop[0], crop[1], crop[2]] + b[:, None, None, None])
    return torch.stack(samples).view(problem.batch, problem.out_channels, *problem.output)


@dataclasses.dataclass(frozen=True)
class Reference:
    """The problem's results in float64."""

    logits: Tensor  # of the first sample, [C_out, ...]
    y: Tensor
    variance: Tensor | None  # unbiased, of what enters BatchNorm in train mode


def reference64(problem: Problem, model: Pipeline, x: Tensor) -> Reference:
    """float64 results from the same fp32 parameters and input."""
    z = conv_transpose64(problem, model, x)
    model64 = copy.deepcopy(model).double()
    norm = getattr(model64, "norm", None)
    if norm is not None:
        norm.momentum = 1.0
    with torch.no_grad():
        y = model64.tail(z)
    # With momentum 1 the running variance is that of the batch.
    variance = norm.running_var if norm is not None and problem.train else None
    return Reference(z[0].clone(), y, variance)


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


def write_tensors(folder: Path, model: Pipeline, x: Tensor) -> None:
    """The inputs of bench_dump_outputs."""
    tensors = {"x": x, "w": model.conv.weight, "b": model.conv.bias}
    if isinstance(model, WithOffset):
        tensors["offset"] = model.offset
    if isinstance(model, WithBatchNorm):
        norm = model.norm
        tensors |= {"gamma": norm.weight, "beta": norm.bias, "mean": norm.running_mean, "var": norm.running_var}
    for name, tensor in tensors.items():
        write_floats(folder / f"{name}.bin", tensor)  # type: ignore[arg-type]


def run_tconv(
    problem: Problem, dump: Path, model: Pipeline, x: Tensor, shape: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """tconv's output, of `shape`, and, in train mode, its variance, from the same tensors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tensors(folder, model, x)
        subprocess.run([dump, problem.name, folder], check=True, timeout=60)
        y = read_floats(folder / "y.bin", shape, x.device)
        variance = None
        if problem.train:
            variance = read_floats(folder / "var_out.bin", [problem.out_channels], x.device)
    return y, variance


def compare(problem: Problem, model: Pipeline, x: Tensor, dump: Path) -> tuple[Json, int]:
    """{"max_err", "err_bound", "variance_err"} of the row, and the elements of the result.

    The last error is relative, null outside train mode.
    """
    reference = reference64(problem, model, x)
    with torch.no_grad():
        logits = model.conv(x)[0]
        eager = copy.deepcopy(model)(x)
    # TF32 in PyTorch would widen the bound; it is a thousand times away from fp32.
    scale = float(reference.logits.abs().max())
    if largest_error(logits, reference.logits) > 1e-5 * scale:
        raise RuntimeError("PyTorch's convolution is not fp32 (or the float64 reference is wrong)")
    y, variance = run_tconv(problem, dump, model, x, reference.y.shape)
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
    return errors, reference.y.numel()


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
    errors, outputs = compare(problem, model, x, options.dump)
    torch.cuda.empty_cache()
    say(f"    {errors}")
    progress("timing eager")
    variants = measure_variants(model, x)
    if not options.no_compile:
        torch.cuda.empty_cache()
        progress("timing torch.compile")
        times = compile_in_a_process(problem, options.dump, options.compile_timeout)
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
        "bytes": 4 * (x.numel() + model.conv.weight.numel() + outputs),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", required=True, choices=sorted(MODELS))
    parser.add_argument("--dump", required=True, type=Path, metavar="FILE", help="the executable bench_dump_outputs")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help='[{"row", "bytes"}] as JSON')
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument(
        "--compile-timeout", type=float, default=75, metavar="S", help="for torch.compile (default: 75)"
    )
    parser.add_argument("--only-compile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("pytorch_compare.py: PyTorch sees no GPU", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False

    problem = find_problem(options.problem, options.dump)
    result: Any = (
        compile_in_this_process(problem, device) if options.only_compile else [make_row(problem, options, device)]
    )
    options.output.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
