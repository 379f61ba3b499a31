#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the table of measured times in README.md from the committed results; nobody types a figure there.

    python3 bench/readme_figures.py            # rewrites what stands between the markers
    python3 bench/readme_figures.py --check    # changes nothing; exit status 1 if README.md is out of date

Reads bench.json, pytorch.json and manifest.json of bench/results/h200 (see evidence.py), as far as they are there, and
replaces the lines between "<!-- figures: begin -->" and "<!-- figures: end -->". Without bench.json these lines say that
there are no results. Results of different trees do not go into one table: that is an error, exit status 2.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE_DIR = Path(__file__).resolve().parent.parent
BEGIN = "<!-- figures: begin -->"
END = "<!-- figures: end -->"
TREES = ("include_tree", "test_tree")

# What the names of problems mean. A problem that is not listed stands in the table by its name alone.
DESCRIPTIONS = {
    "L2_49": "P1: ConvTranspose3d 32->64 k3 s2 p1 op1 on 16x32x16x32x32, softmax over channels, sigmoid",
    "L2_49_gather": "P1 on CUDA cores (`engine::gather`)",
    "L2_49_implicit_gemm": "P1 on tensor cores (`engine::implicit_gemm`)",
    "L2_49_mma_sync": "P1 by mma.sync (`engine::implicit_gemm_warp`)",
    "P2_eval": "P2: ConvTranspose3d 64->128 k5 on 16x64x16x32x32, times 2, BatchNorm (eval), mean over space",
    "L2_77": "P2 with BatchNorm in train mode",
    "L2_77_gather": "the same by a pass over the outputs on CUDA cores (`engine::gather`)",
    "L2_77_implicit_gemm": "the same by a pass over the outputs on tensor cores (`engine::implicit_gemm`)",
    "L2_77_spectral": "the same from the spectrum of x (`engine::spectral`)",
    "L2_13": "ConvTranspose3d 16->64 k3 p1 on 16x16x32x128x128, mean over D, bias, softmax over channels, tanh, times 2",
    "L2_15": "ConvTranspose3d 16->32 k3 s2 p1 on 16x16x16x32x32, BatchNorm (train), minus its mean over space",
    "L2_42": "ConvTranspose2d 64->128 k3 on 16x64x512x512, mean over space, bias, logsumexp over channels, times 10",
    "L2_44": "ConvTranspose2d 64->128 k3 s2 p1 op1 on 16x64x128x128, times 0.5, mean over space",
    "L2_50": "ConvTranspose3d 3->16 k3 s2 p1 on 128x3x16x32x32, times 0.5, average pool 2, bias",
    "L2_72": "ConvTranspose3d 3->16 k3 s2 p1 on 64x3x32x32x32, BatchNorm (train), average pool 2 twice",
    "fold_batch_norm_128": "`fold_batch_norm` of 128 channels",
    "text_detection_head_1280x960": "text detection head for a page of 1280 x 960",
    "L2_49_bf16_to_f32": "P1 from bf16 to fp32",
    "L2_49_ndhwc": "P1, channels last in and out",
    "channel_softmax_16x64x32x64x64": "`apply_chain` with softmax over channels, on an existing tensor",
    "channel_softmax_16x64x32x64x64_ndhwc": "the same, channels last",
    "global_mean_16x64x32x64x64": "`global_mean` of an existing tensor",
    "global_mean_16x64x32x64x64_ndhwc": "the same, channels last",
    "channel_moments_16x64x32x64x64": "`channel_moments` of an existing tensor",
    "channel_moments_16x64x32x64x64_ndhwc": "the same, channels last",
    "batch_norm_train_16x64x32x64x64": "`batch_norm_train` on an existing tensor",
    "max_pool_16x64x32x64x64": "`apply_chain` with `max_pool(2)`, on an existing tensor",
    "max_pool_16x64x32x64x64_ndhwc": "the same, channels last",
    "spatial_mean_over_d_16x64x32x64x64": "`apply_chain` with `spatial_mean({0})`, on an existing tensor",
    "group_norm_8_16x64x32x64x64": "`group_norm` of 8 groups, on an existing tensor",
}

Json = Any


class FiguresError(Exception):
    """What keeps the table from being made, in words for the user."""


def read_json(path: Path) -> Json:
    """The JSON in `path`, or None where there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FiguresError(f"{path}: {error}") from error


def number(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never in exponential form."""
    if not math.isfinite(value):
        raise FiguresError(f"{value} is not a figure")
    if value == 0:
        return "0"
    # The exponent of the rounded value: 0.9996 is 1.00.
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    return f"{value:.{max(digits - 1 - exponent, 0)}f}"


def milliseconds(row: Json) -> float:
    """Time of a row of bench.json."""
    return float(row["real_time"]) * {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}[row.get("time_unit", "ns")]


def check_trees(manifest: Json, other: Json, name: str) -> None:
    """Refuses results that were measured on other sources than the manifest says."""
    for tree in TREES:
        if other.get("manifest", {}).get(tree) != manifest.get(tree):
            raise FiguresError(f"{name} and manifest.json are about different sources ({tree})")


def make_row(row: Json, pytorch: dict[tuple[str, ...], Json]) -> list[str]:
    """The cells of one benchmark; its name is problem/math/dtype and what Google Benchmark appends."""
    problem, math_mode, dtype = row["name"].split("/")[:3]
    time = milliseconds(row)
    floor = row.get("floor_ms")
    beside = pytorch.get((problem, math_mode, dtype), {})

    def beside_time(column: str) -> str:
        value = beside.get(column)
        return "" if value is None else f"{number(value)} ({number(value / time, 2)}x)"

    name = f"`{problem}` {DESCRIPTIONS[problem]}" if problem in DESCRIPTIONS else f"`{problem}`"
    return [
        name,
        f"{math_mode} {dtype}",
        number(time),
        "" if floor is None else number(float(floor)),
        beside_time("expert_ms"),
        beside_time("eager_ms"),
    ]


def convolution(problem: str) -> str:
    """Plain convolutions are named by shape and layout alone here, L1_57 or up1d_..._ncw, other problems ""."""
    return re.sub("_(f32|bf16)_", "_", problem) if re.match("L1_|up[123]d_", problem) else ""


def make_convolutions(benchmarks: Sequence[Json], pytorch: dict[tuple[str, ...], Json]) -> str:
    """The table of plain convolutions: a row per shape and layout, a column per precision."""
    modes = (("precise", "f32"), ("tf32", "f32"), ("half", "bf16"))
    cells: dict[str, dict[tuple[str, str], str]] = {}
    gains: dict[tuple[str, bool], list[float]] = {}  # by mode, and whether channels are last
    for row in benchmarks:
        problem, math_mode, dtype = row["name"].split("/")[:3]
        time = milliseconds(row)
        expert = pytorch.get((problem, math_mode, dtype), {}).get("expert_ms")
        cell = number(time) if expert is None else f"{number(time)} ({number(expert / time, 2)}x)"
        cells.setdefault(convolution(problem), {})[math_mode, dtype] = cell
        if expert is not None and problem.startswith("L1_"):
            gains.setdefault((math_mode, problem.endswith("c")), []).append(expert / time)
    lines = [["convolution", "precise f32 ms", "tf32 f32 ms", "bf16 ms"], ["---", "---:", "---:", "---:"]]
    lines += [[f"`{name}`", *(by_mode.get(mode, "") for mode in modes)] for name, by_mode in cells.items()]
    means = [
        f"{math_mode}{' with channels last' if last else ''} {number(statistics.geometric_mean(ratios))}x"
        for (math_mode, last), ratios in gains.items()
    ]
    legend = (
        "Transposed convolutions with nothing behind them: level 1 of KernelBench, and upsampling layers with batch 4 in "
        "both layouts. In parentheses: the time of PyTorch (*expert*, same precision), in times that of tconv."
    )
    if means:
        legend += f" Geometric means over level 1: {', '.join(means)}."
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{table}\n\n{legend}"


def make_figures(results: Path) -> str:
    """What belongs between the markers."""
    bench = read_json(results / "bench.json")
    if bench is None:
        return "No results are committed yet."
    manifest = read_json(results / "manifest.json")
    if manifest is None:
        raise FiguresError(f"{results} has a bench.json and no manifest.json")
    check_trees(manifest, bench, "bench.json")
    pytorch_rows = read_json(results / "pytorch.json") or []
    for row in pytorch_rows:
        check_trees(manifest, row, "pytorch.json")
    pytorch = {(row["problem"], row["math"], row["dtype"]): row for row in pytorch_rows}

    header = ["problem", "math, type", "tconv ms", "floor ms", "PyTorch expert ms", "PyTorch eager ms"]
    lines = [header, ["---", "---", "---:", "---:", "---:", "---:"]]
    # In the order of the descriptions, the precise ones first; then what has none.
    order = {problem: place for place, problem in enumerate(DESCRIPTIONS)}

    def rank(row: Json) -> tuple[int, bool]:
        problem, math_mode = str(row["name"]).split("/")[:2]
        return order.get(problem, len(order)), math_mode != "precise"

    plain = [row for row in bench["benchmarks"] if convolution(str(row["name"]).split("/")[0])]
    lines += [make_row(row, pytorch) for row in sorted(bench["benchmarks"], key=rank) if row not in plain]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

    versions = sorted({str(row["torch"]) for row in pytorch_rows})
    beside = f", PyTorch {' and '.join(versions)}" if versions else ""
    where = f"Measured on {manifest['date'][:10]}, {manifest['gpu']}, driver {manifest['driver']}{beside}."
    legend = (
        "Times of one call: inputs rotate over buffers larger than L2, between two events as many calls as fill 20 ms, "
        "median of 7 such groups. *Floor*: the bytes that must be moved at the rate of a large copy, or the multiply-adds that must be "
        "done at the rate of a large fp32 matrix product, whichever takes longer."
    )
    if pytorch_rows:
        legend += (
            " *Eager*: PyTorch in the same precision. *Expert*: the least of eager, torch.compile, cudnn.benchmark, "
            "channels-last tensors, and the latter two together, where they ran. In parentheses: times the time of tconv."
        )
    parts = [where, table, legend, *([make_convolutions(plain, pytorch)] if plain else [])]
    return "\n\n".join(parts)


def replace_figures(text: str, figures: str, name: str) -> str:
    """`text` with `figures` between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise FiguresError(f"{name} must have one line {BEGIN} and after it one line {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{rest.split(END)[1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--check", action="store_true", help="change nothing; exit status 1 if the README is out of date")
    add("--readme", type=Path, metavar="FILE", default=SOURCE_DIR / "README.md", help="default: %(default)s")
    add("--results", type=Path, metavar="DIR", default=SOURCE_DIR / "bench/results/h200", help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        old = options.readme.read_text()
        new = replace_figures(old, make_figures(options.results), options.readme.name)
    except (FiguresError, OSError) as error:
        print(f"readme_figures.py: {error}", file=sys.stderr)
        return 2
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        print(f"readme_figures.py: results are not as evidence.py writes them: {error!r}", file=sys.stderr)
        return 2
    if new == old:
        print(f"{options.readme} is up to date")
        return 0
    if options.check:
        print(f"{options.readme} is out of date; python3 bench/readme_figures.py brings it up to date")
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "is", "should be", n=0))
        return 1
    options.readme.write_text(new)
    print(f"{options.readme}: figures written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
