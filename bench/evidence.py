#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Makes the GPU evidence of bench/results/h200: tests, sanitizer, benchmarks and a comparison with PyTorch.

On a machine with git, on a clean tree, say what is going to be measured:

    python3 bench/evidence.py --write-manifest manifest.json

On the machine with the GPU (no git needed; a python3 that has torch), after a build with tests and benchmarks:

    python3 bench/evidence.py --build build --out bench/results/h200 --manifest manifest.json

Where one machine has both, --manifest can be left out. Written into --out:

    tests.json      a list of GoogleTest's JSONs, one per gpu_* executable
    sanitizer.json  {"memcheck": {"tests", "errors", "status"}, "initcheck": {...}, "racecheck": {...}}
    bench.json      Google Benchmark's JSON, one process per family of benchmarks
    pytorch.json    rows of pytorch_compare.py, one process per pipeline, and pytorch_convolutions.py, one per set of
                    problems, with tconv's times out of bench.json
    manifest.json   the trees, GPU, driver and date of what was measured; also inside each of the others

Every result is kept at once in --parts, so that a run that was cut off goes on where it stopped: a part is taken again
if it was made from the same trees by the same programs on the same GPU (--force ignores them). The exit status is 0 if
every chosen step succeeded. The file of a step that failed is removed, except where it says itself what failed.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SOURCE_DIR = Path(__file__).resolve().parent.parent
STEPS = ("tests", "sanitizer", "bench", "pytorch")
OUTPUTS = tuple(f"{step}.json" for step in STEPS)
TREES = ("include", "test")
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git does not record empty folders

# Tests that would take minutes under a sanitizer and reach no code that smaller ones do not.
SANITIZER_SKIPS = "*thousand*:*beyond_32_bits*:*large_products*:*p1_full*:*p2_full*:*65535*"
# Racecheck slows shared memory down a hundredfold: one small test per kernel.
RACECHECK_TESTS = "*p1_reduced*:*p2_reduced*:*softmax_then_sigmoid*:*.slices"

# The benchmark executable that is no Google Benchmark, and the library with the rows of pytorch_convolutions.py.
DUMP_OUTPUTS = "bench_dump_outputs"
LIST_BENCHMARKS = "--benchmark_list_tests=true"
CONVOLUTIONS = "libbench_convolution.so"
# Problems of pytorch_compare.py, and sets of rows of pytorch_convolutions.py by the expression that selects them.
PYTORCH_PIPELINES = ("L2_49", "P2_eval", "L2_77", "L2_13", "L2_15", "L2_42", "L2_44", "L2_50", "L2_72")
# Apart, so that one which takes long (cuDNN searches two minutes for a layer of vocoder_k16) takes nothing else with it.
PYTORCH_CONVOLUTIONS = {
    "level1": r"L1_\d+(_n[dhw]+c)?/(precise|tf32)/",
    "upsampling": "up[23]d",
    "vocoder_k4": "up1d_128",
    "vocoder_k8": "up1d_256",
    "vocoder_k16": "up1d_512",
}
PYTORCH_PROBLEMS = (*PYTORCH_PIPELINES, *PYTORCH_CONVOLUTIONS)

Json = Any


class EvidenceError(Exception):
    """What keeps evidence from being made, in words for the user."""


def say(line: str) -> None:
    """Prints a line at once: several threads report here, into a pipe perhaps."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write_json(path: Path, value: Json) -> None:
    """Writes `value` so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")
    unfinished.replace(path)


def read_json(path: Path) -> Json:
    """The JSON in `path`, or None where there is none."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# What is measured
# ---------------------------------------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """Output of a git command in the source tree."""
    try:
        result = subprocess.run(("git", *arguments), cwd=SOURCE_DIR, capture_output=True, text=True, check=False)
    except OSError as error:
        raise EvidenceError(f"cannot run git: {error}") from error
    if result.returncode != 0:
        raise EvidenceError(f"git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.strip()


def committed_trees() -> dict[str, str]:
    """The committed include/ and test/ trees and today's date. Refuses where files differ from what is committed."""
    dirty = git("status", "--porcelain", "--untracked-files=all", "--", *TREES)
    if dirty:
        raise EvidenceError("include/ and test/ are not what is committed; commit first:\n" + dirty)
    manifest = {f"{tree}_tree": git("rev-parse", f"HEAD:{tree}") for tree in TREES}
    manifest["date"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return manifest


def tree_id(folder: Path, *, with_modes: bool) -> str:
    """The id that git gives the tree `folder`, found without git. Without modes no file counts as executable."""
    entries = []
    for path in folder.iterdir():
        name = os.fsencode(path.name)
        if path.is_dir() and not path.is_symlink():
            identity = tree_id(path, with_modes=with_modes)
            if path.name != "__pycache__" and identity != EMPTY_TREE:
                entries.append((name + b"/", b"40000 " + name, identity))
            continue
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
        mode = b"100644"
        if path.is_symlink():
            mode = b"120000"
        elif with_modes and path.stat().st_mode & 0o100:
            mode = b"100755"
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entries.append((name, mode + b" " + name, blob))
    body = b"".join(head + b"\0" + bytes.fromhex(identity) for _, head, identity in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body).hexdigest()


def check_trees(manifest: Json) -> None:
    """Refuses a manifest of other sources than the ones beside this script."""
    for tree in TREES:
        promised = manifest.get(f"{tree}_tree")
        found = {tree_id(SOURCE_DIR / tree, with_modes=modes) for modes in (True, False)}
        if promised not in found:
            raise EvidenceError(f"the manifest is about {tree}/ as {promised}, but here it is {min(found)}")


def gpu_identity() -> dict[str, str]:
    """Name and driver of the first GPU."""
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    try:
        output = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
        name, driver = output.strip().splitlines()[0].rsplit(",", 1)
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise EvidenceError(f"no GPU here ({' '.join(query)}: {error})") from error
    return {"gpu": name.strip(), "driver": driver.strip()}


def same_trees(a: Json, b: Json) -> bool:
    """Whether two manifests are about the same sources."""
    return all(a.get(f"{tree}_tree") == b.get(f"{tree}_tree") for tree in TREES)


# ---------------------------------------------------------------------------------------------------------------------
# Running and remembering
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Finished:
    """A process that ended, or was ended."""

    status: int
    output: str
    timed_out: bool = False

    def tail(self, lines: int = 15) -> str:
        """The last lines of the output, indented."""
        return "\n".join("    | " + line for line in self.output.splitlines()[-lines:])


# Processes of execute() that run now.
running: set[subprocess.Popen[bytes]] = set()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process of execute() with all its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def execute(command: Sequence[str | Path], timeout: float, *, echo: bool = False) -> Finished:
    """Runs a command; past `timeout` seconds it and its children are killed. With `echo` its output is not kept."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=None if echo else output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Finished(127, str(error))
        running.add(process)
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            kill(process)
            process.wait()
            running.discard(process)
        output.seek(0)
        return Finished(process.returncode, output.read().decode(errors="replace"), timed_out)


@dataclasses.dataclass
class Result:
    """Outcome of a task: what it found, and what was wrong with that, if anything."""

    data: Json
    summary: str
    problem: str = ""
    output: str = ""


@dataclasses.dataclass
class Task:
    """One process and what is kept of it."""

    name: str
    key: dict[str, str]  # what the result depends on besides trees and GPU
    work: Callable[[], Result]


@dataclasses.dataclass
class Session:
    """Everything that the steps share."""

    options: argparse.Namespace
    manifest: dict[str, str]
    bin_dir: Path
    failures: list[str] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @property
    def out(self) -> Path:
        return Path(self.options.out)

    def executables(self, prefix: str) -> list[Path]:
        """Executables of the build whose name starts with `prefix`."""
        found = sorted(p for p in self.bin_dir.glob(prefix + "*") if p.is_file() and os.access(p, os.X_OK))
        if not found:
            raise EvidenceError(f"no {prefix}* in {self.bin_dir}; build with tests and benchmarks first")
        return found

    def fail(self, problem: str) -> None:
        """Notes a failure; the run goes on with what does not need it."""
        with self.lock:
            self.failures.append(problem)

    def part_file(self, task: Task) -> Path:
        """Where the result of `task` is kept."""
        return Path(self.options.parts) / (re.sub(r"[^\w.-]+", "_", task.name) + ".json")

    def part_key(self, task: Task) -> dict[str, str]:
        """What the result of `task` was made from."""
        about = {name: value for name, value in self.manifest.items() if name != "date"}
        return {"task": task.name, **about, **task.key}

    def perform(self, task: Task) -> Result:
        """The result of `task`, remembered or new. Only results without a problem are remembered."""
        part = read_json(self.part_file(task))
        if part is not None and not self.options.force and part.get("key") == self.part_key(task):
            say(f"  {task.name}: {part['summary']} (kept from before)")
            return Result(part["data"], part["summary"])
        say(f"  {task.name} ...")
        began = time.monotonic()
        result = task.work()
        elapsed = time.monotonic() - began
        if result.problem:
            say(f"  {task.name}: FAILED, {result.problem} ({elapsed:.1f} s)")
            if result.output:
                say(result.output)
            self.fail(f"{task.name}: {result.problem}")
        else:
            say(f"  {task.name}: {result.summary} ({elapsed:.1f} s)")
            write_json(
                self.part_file(task), {"key": self.part_key(task), "summary": result.summary, "data": result.data}
            )
        return result

    def perform_all(self, tasks: Sequence[Task], workers: int) -> dict[str, Result]:
        """Results by name. With several workers, tasks run side by side."""
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            futures = {task.name: pool.submit(self.perform, task) for task in tasks}
            try:
                return {name: future.result() for name, future in futures.items()}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(running):
                    kill(process)
                raise

    def write(self, name: str, value: Json) -> None:
        """Writes one of the final files."""
        write_json(self.out / name, value)
        say(f"  -> {self.out / name}")

    def withdraw(self, name: str, reason: str) -> None:
        """Writes none of a final file, and removes what an earlier run left: it would claim what is no longer so."""
        (self.out / name).unlink(missing_ok=True)
        say(f"  {name} not written: {reason}")


# ---------------------------------------------------------------------------------------------------------------------
# Tests, plain and under compute-sanitizer
# ---------------------------------------------------------------------------------------------------------------------


def count_tests(report: Json) -> tuple[int, list[str], list[str]]:
    """Number of tests in a GoogleTest JSON, names of those that failed, and of those that did not run."""
    failed = []
    skipped = []
    cases = [case for suite in report.get("testsuites", []) for case in suite.get("testsuite", [])]
    for case in cases:
        name = f"{case.get('classname', '?')}.{case.get('name', '?')}"
        if case.get("failures"):
            failed.append(name)
        elif case.get("result") != "COMPLETED":
            skipped.append(name)
    return len(cases), failed, skipped


def some(names: Sequence[str]) -> str:
    """A few names for a message."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def run_gtest(command: Sequence[str | Path], timeout: float, good: Sequence[int]) -> tuple[Finished, Json, str]:
    """Runs a GoogleTest program: the process, its JSON and what was wrong, a status that is not `good` included."""
    with tempfile.TemporaryDirectory() as folder:
        report_file = Path(folder) / "report.json"
        finished = execute([*command, f"--gtest_output=json:{report_file}"], timeout)
        report = read_json(report_file)
    tests, failed, skipped = count_tests(report or {})
    problem = ""
    if finished.timed_out:
        problem = f"timed out after {timeout:g} s"
    elif report is None:
        problem = f"ended with status {finished.status} and without a report"
    elif failed:
        problem = f"{len(failed)} of {tests} tests failed: {some(failed)}"
    elif skipped:
        problem = f"{len(skipped)} of {tests} tests were skipped: {some(skipped)}"
    elif tests == 0:
        problem = "no test ran"
    elif finished.status not in good:
        problem = f"ended with status {finished.status}"
    return finished, report, problem


def test_tasks(session: Session) -> list[Task]:
    """One task per test executable."""

    def task(executable: Path) -> Task:
        def work() -> Result:
            finished, report, problem = run_gtest([executable], session.options.test_timeout, [0])
            tests = count_tests(report)[0] if report else 0
            return Result(report, f"{tests} tests passed", problem, finished.tail())

        return Task(f"tests/{executable.name}", {"executable": digest(executable)}, work)

    return [task(executable) for executable in session.executables("gpu_")]


def finish_tests(session: Session, results: dict[str, Result]) -> None:
    """tests.json, if every test passed."""
    if any(result.problem for result in results.values()):
        session.withdraw("tests.json", "not everything passed")
        return
    session.write("tests.json", [{**result.data, "manifest": session.manifest} for result in results.values()])


def find_sanitizer() -> str | None:
    """compute-sanitizer, also where the toolkit's installer left PATH alone."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    )


def sanitizer_filters(session: Session) -> dict[str, str]:
    """GoogleTest filter of each tool that is asked for."""
    options = session.options
    filters = {"memcheck": f"-{options.sanitizer_skip}" if options.sanitizer_skip else "*"}
    if options.initcheck:
        filters["initcheck"] = filters["memcheck"]
    if options.racecheck:
        filters["racecheck"] = options.racecheck_filter
    return filters


def sanitizer_tasks(session: Session) -> list[Task]:
    """One task per tool and test executable that has a test for it."""
    sanitizer = find_sanitizer()
    if sanitizer is None:
        return []
    options = session.options

    def task(tool: str, test_filter: str, executable: Path) -> Task:
        command: list[str | Path] = [sanitizer, "--tool", tool, "--error-exitcode", "99", "--launch-timeout", "60"]
        if tool == "memcheck":
            command += ["--leak-check", "no"]
        command += [*options.sanitizer_option, executable, f"--gtest_filter={test_filter}"]

        def work() -> Result:
            finished, report, problem = run_gtest(command, options.sanitizer_timeout, [0, 99])
            if "terminated before first instrumented API call" in finished.output and "[  PASSED  ]" in finished.output:
                return Result({"tests": 0, "errors": 0}, "no call of CUDA")  # host tests: nothing to look at
            tests = count_tests(report)[0] if report else 0
            summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", finished.output)
            if summary is None and not problem:
                problem = "no summary in its output"
            # The sanitizer's own finding comes before that of a test which trips over it.
            errors = int(summary[1]) if summary else 0
            if errors:
                problem = f"{errors} errors"
            data = {"tests": tests, "errors": errors}
            return Result(data, f"{tests} tests, {errors} errors", problem, finished.tail(40))

        key = {"executable": digest(executable), "filter": test_filter, "options": " ".join(options.sanitizer_option)}
        return Task(f"sanitizer/{tool}/{executable.name}", key, work)

    tasks = []
    for tool, test_filter in sanitizer_filters(session).items():
        for executable in session.executables("gpu_"):
            listing = execute([executable, "--gtest_list_tests", f"--gtest_filter={test_filter}"], 60)
            if listing.status != 0 or re.search(r"^  \S", listing.output, re.MULTILINE):
                tasks.append(task(tool, test_filter, executable))
    return tasks


def finish_sanitizer(session: Session, results: dict[str, Result]) -> None:
    """sanitizer.json, which says itself what did not run."""
    summary: Json = {}
    filters = sanitizer_filters(session)
    for tool in ("memcheck", "initcheck", "racecheck"):
        mine = {name.rsplit("/", 1)[1]: r for name, r in results.items() if name.startswith(f"sanitizer/{tool}/")}
        errors = sum(r.data["errors"] for r in mine.values())
        unfinished = [f"{name} {r.problem}" for name, r in mine.items() if r.problem and not r.data["errors"]]
        if tool not in filters:
            status = "not run: not asked for"
        elif find_sanitizer() is None:
            status = "not run: no compute-sanitizer"
            session.fail(f"sanitizer/{tool}: no compute-sanitizer")
        elif not mine:
            status = "not run: the filter leaves no test"
        elif unfinished:
            status = "not run: " + "; ".join(unfinished)
        else:
            status = "ran"
        summary[tool] = {"tests": sum(r.data["tests"] for r in mine.values()), "errors": errors, "status": status}
        if tool in filters:
            summary[tool]["filter"] = filters[tool]
    session.write("sanitizer.json", {**summary, "manifest": session.manifest})


# ---------------------------------------------------------------------------------------------------------------------
# Benchmarks
# ---------------------------------------------------------------------------------------------------------------------


def family(name: str) -> str:
    """The family of a benchmark: the first word of its name, L1 of L1_57/precise/f32."""
    return re.split(r"[_/]", name)[0]


def bench_tasks(session: Session) -> list[Task]:
    """One task per family of benchmarks of an executable: a process each would cost more time than most benchmarks."""

    def task(executable: Path, key: dict[str, str], name: str, count: int) -> Task:
        def work() -> Result:
            with tempfile.TemporaryDirectory() as folder:
                report_file = Path(folder) / "report.json"
                finished = execute(
                    [
                        executable,
                        f"--benchmark_filter=^{re.escape(name)}[_/]",
                        f"--benchmark_out={report_file}",
                        "--benchmark_out_format=json",
                    ],
                    session.options.bench_timeout,
                )
                report = read_json(report_file)
            rows = report.get("benchmarks", []) if report else []
            problem = ""
            if finished.timed_out:
                problem = f"timed out after {session.options.bench_timeout:g} s"
            elif finished.status != 0 or len(rows) != count:
                problem = f"ended with status {finished.status} and {len(rows)} of {count} results"
            elif any(row.get("error_occurred") for row in rows):
                problem = next(str(row.get("error_message")) for row in rows if row.get("error_occurred"))
            if problem:
                return Result(None, "", problem, finished.tail())
            return Result(report, ", ".join(f"{milliseconds(row):.4g}" for row in rows) + " ms")

        return Task(f"bench/{executable.name}/{name}", key, work)

    tasks = []
    for executable in session.executables("bench_"):
        if executable.name == DUMP_OUTPUTS:
            continue
        # It has been seen to list them: check_that_programs_start().
        names = execute([executable, LIST_BENCHMARKS], 60).output.split("\n")
        families = collections.Counter(family(name.strip()) for name in names if name.strip())
        key = {"executable": digest(executable)}
        if executable.name == "bench_convolutions":
            key["library"] = digest(session.bin_dir / CONVOLUTIONS)
        tasks += [task(executable, key, name, count) for name, count in families.items()]
    return tasks


def finish_bench(session: Session, results: dict[str, Result]) -> None:
    """bench.json, if every benchmark ran."""
    reports = [result.data for result in results.values()]
    if not reports or any(problem.startswith("bench/") for problem in session.failures):
        session.withdraw("bench.json", "not every benchmark ran")
        return
    session.write(
        "bench.json",
        {
            "context": reports[0].get("context", {}),
            "benchmarks": [row for report in reports for row in report["benchmarks"]],
            "manifest": session.manifest,
        },
    )


# ---------------------------------------------------------------------------------------------------------------------
# PyTorch
# ---------------------------------------------------------------------------------------------------------------------


def pytorch_tasks(session: Session) -> list[Task]:
    """One task per pipeline and per set of convolutions."""
    options = session.options
    folder = SOURCE_DIR / "bench"

    def task(name: str, script: str, binary: str, words: Sequence[str]) -> Task:
        executable = session.bin_dir / binary
        if not executable.is_file():
            raise EvidenceError(f"no {executable}; build with benchmarks first")

        def work() -> Result:
            with tempfile.TemporaryDirectory() as temporary:
                report_file = Path(temporary) / "rows.json"
                command = [sys.executable, folder / script, *words, executable, "--output", report_file]
                finished = execute(command, options.pytorch_timeout + options.compile_timeout, echo=True)
                report = read_json(report_file)
            if finished.timed_out:
                return Result(None, "", "timed out")
            if finished.status != 0 or report is None:
                return Result(None, "", f"ended with status {finished.status}")
            return Result(report, f"{len(report)} rows")

        key = {
            "script": " ".join(digest(folder / file) for file in ("pytorch_compare.py", script)),
            "executable": digest(executable),
            "words": " ".join(words),
        }
        return Task(f"pytorch/{name}", key, work)

    tasks = []
    for name in options.problems.split(","):
        if name in PYTORCH_CONVOLUTIONS:
            words = ["--rows", PYTORCH_CONVOLUTIONS[name], "--library"]
            tasks.append(task(name, "pytorch_convolutions.py", CONVOLUTIONS, words))
        else:
            words = ["--problem", name, "--compile-timeout", str(options.compile_timeout)]
            words += [*(["--no-compile"] if options.no_compile else []), "--dump"]
            tasks.append(task(name, "pytorch_compare.py", DUMP_OUTPUTS, words))
    return tasks


def find_benchmark(bench: Json, name: str) -> Json:
    """The row of bench.json whose name is `name`, which Google Benchmark lengthens by /iterations:1 and the like."""
    rows = [row for row in bench["benchmarks"] if (row["name"] + "/").startswith(name + "/")]
    if len(rows) != 1:
        raise EvidenceError(f"bench.json has {len(rows)} rows {name}")
    return rows[0]


def milliseconds(row: Json) -> float:
    """Time of a row of bench.json."""
    return float(row["real_time"]) * {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}[row.get("time_unit", "ns")]


def finish_pytorch(session: Session, results: dict[str, Result]) -> None:
    """pytorch.json, if every problem ran and tconv was timed in the same run."""
    bench = read_json(session.out / "bench.json")
    if bench is None or not same_trees(bench.get("manifest", {}), session.manifest):
        raise EvidenceError("pytorch.json not written: it needs a bench.json of the same trees beside it (step bench)")
    if any(result.problem for result in results.values()):
        session.withdraw("pytorch.json", "not every problem ran")
        return
    rows = []
    for report in (entry for result in results.values() for entry in result.data):
        row = report["row"]
        name = f"{row['problem']}/{row['math']}/{row['dtype']}"
        measured = find_benchmark(bench, name)
        if measured["bytes"] != report["bytes"]:
            raise EvidenceError(f"bench.json and PyTorch's script disagree about the extents of {name}")
        row = {**row, "tconv_ms": milliseconds(measured), "manifest": session.manifest}
        if not row["max_err"] <= row["err_bound"]:
            session.fail(f"pytorch/{name}: max_err {row['max_err']:.3g} > err_bound {row['err_bound']:.3g}")
        say(
            f"  {name}: tconv {row['tconv_ms']:.4g} ms, {row['eager_ms'] / row['tconv_ms']:.1f}x eager, "
            f"{row['expert_ms'] / row['tconv_ms']:.1f}x expert"
        )
        rows.append(row)
    session.write("pytorch.json", rows)


# ---------------------------------------------------------------------------------------------------------------------
# All of it
# ---------------------------------------------------------------------------------------------------------------------

Step = tuple[str, Callable[[Session], list[Task]], Callable[[Session, dict[str, Result]], None]]

# What runs side by side, then what must have the GPU for itself.
GROUPS: tuple[tuple[Step, ...], ...] = (
    (("tests", test_tasks, finish_tests), ("sanitizer", sanitizer_tasks, finish_sanitizer)),
    (("bench", bench_tasks, finish_bench),),
    (("pytorch", pytorch_tasks, finish_pytorch),),
)


def run_group(session: Session, steps: Sequence[Step], workers: int) -> None:
    """Runs the tasks of `steps`, then lets each step write its file."""
    title = " and ".join(name for name, _, _ in steps)
    began = time.monotonic()
    tasks: dict[str, list[Task]] = {}
    for name, make_tasks, _ in steps:
        try:
            tasks[name] = make_tasks(session)
        except EvidenceError as error:
            session.fail(f"{name}: {error}")
            say(f"  {name}: {error}")
    everything = [task for mine in tasks.values() for task in mine]
    say(f"{title}: {len(everything)} processes, {workers} at a time")
    results = session.perform_all(everything, workers)
    for name, _, finish in steps:
        if name in tasks:
            try:
                finish(session, {task.name: results[task.name] for task in tasks[name]})
            except EvidenceError as error:
                session.fail(f"{name}: {error}")
                say(f"  {name}: {error}")
    session.seconds[title] = time.monotonic() - began
    say(f"{title}: {session.seconds[title]:.1f} s\n")


def embedded_manifests(value: Json) -> list[Json]:
    """The manifests inside one of the final files."""
    return [entry.get("manifest", {}) for entry in (value if isinstance(value, list) else [value])]


def finish_manifest(session: Session) -> None:
    """manifest.json, which must not vouch for files of other trees that lie beside it."""
    present = {name: read_json(session.out / name) for name in OUTPUTS}
    missing = [name for name, value in present.items() if value is None]
    strangers = [
        name
        for name, value in present.items()
        if value is not None and not all(same_trees(m, session.manifest) for m in embedded_manifests(value))
    ]
    if missing:
        say(f"not there: {', '.join(missing)}")
    if strangers:
        say(f"manifest.json not written, of other trees: {', '.join(strangers)}")
    elif len(missing) < len(OUTPUTS):
        session.write("manifest.json", session.manifest)


def load_manifest(options: argparse.Namespace) -> dict[str, str]:
    """The manifest of this run: trees and date from a file or from git, checked; GPU and driver from the machine."""
    if options.manifest:
        manifest = read_json(Path(options.manifest))
        if not isinstance(manifest, dict) or not all(f"{tree}_tree" in manifest for tree in TREES):
            raise EvidenceError(f"{options.manifest} is no manifest; --write-manifest makes one")
    elif (SOURCE_DIR / ".git").exists():
        manifest = committed_trees()
    else:
        raise EvidenceError("no git here: give --manifest FILE, made by --write-manifest where git is")
    check_trees(manifest)
    ordered = ("include_tree", "test_tree", "gpu", "driver", "date")
    complete = {**manifest, **gpu_identity()}
    return {name: complete[name] for name in ordered if name in complete}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--write-manifest", metavar="FILE", help="only write the trees that are committed here, and stop")
    add("--build", metavar="DIR", default="build", help="build directory; executables are in DIR/bin (default: build)")
    add("--out", metavar="DIR", default="bench/results/h200", help="where results go (default: bench/results/h200)")
    add("--parts", metavar="DIR", help="where single results are kept (default: OUT/.parts)")
    add("--manifest", metavar="FILE", help="made by --write-manifest from the same sources")
    add("--only", metavar="STEPS", default=",".join(STEPS), help="comma-separated, of: %(default)s")
    add("--force", action="store_true", help="run again what was kept from before")
    add("--jobs", type=int, default=4, metavar="N", help="test processes at a time (default: 4); timings run alone")
    add("--test-timeout", type=float, default=240, metavar="S", help="seconds per test executable (default: 240)")
    add(
        "--sanitizer-timeout",
        type=float,
        default=120,
        metavar="S",
        help="seconds per executable and tool (default: 120)",
    )
    add(
        "--sanitizer-skip",
        default=SANITIZER_SKIPS,
        metavar="PATTERNS",
        help="tests not to check (default: %(default)s)",
    )
    add(
        "--sanitizer-option", action="append", default=[], metavar="OPTION", help="one more option of compute-sanitizer"
    )
    add("--initcheck", action="store_true", help="also run initcheck, over the tests of memcheck")
    add("--racecheck", action="store_true", help="also run racecheck")
    add("--racecheck-filter", default=RACECHECK_TESTS, metavar="PATTERNS", help="its tests (default: %(default)s)")
    add("--bench-timeout", type=float, default=60, metavar="S", help="seconds per family of benchmarks (default: 60)")
    problems = ",".join(PYTORCH_PROBLEMS)
    add("--problems", default=problems, help="what pytorch.json has, comma-separated (default: %(default)s)")
    add("--pytorch-timeout", type=float, default=240, metavar="S", help="seconds per process (default: 240)")
    add("--no-compile", action="store_true", help="leave torch.compile out")
    add("--compile-timeout", type=float, default=75, metavar="S", help="seconds for torch.compile (default: 75)")
    options = parser.parse_args(arguments)
    options.only = [step for step in options.only.split(",") if step]
    for step in options.only:
        if step not in STEPS:
            parser.error(f"--only: no step {step}; there are {', '.join(STEPS)}")
    for problem in options.problems.split(","):
        if problem not in PYTORCH_PROBLEMS:
            parser.error(f"--problems: no problem {problem}; there are {problems}")
    if options.jobs < 1:
        parser.error("--jobs: must be >= 1")
    options.parts = options.parts or str(Path(options.out) / ".parts")
    return options


def check_that_programs_start(session: Session) -> None:
    """Raises if a program of the chosen steps cannot even list what it has: a library that is missing on this machine, say. Better
    now than after minutes of other steps."""
    wanted = session.options.only
    programs = []
    if "tests" in wanted or "sanitizer" in wanted:
        programs += [(path, "--gtest_list_tests") for path in session.executables("gpu_")]
    if "bench" in wanted:
        programs += [(path, LIST_BENCHMARKS) for path in session.executables("bench_") if path.name != DUMP_OUTPUTS]
    if "pytorch" in wanted and not PYTORCH_CONVOLUTIONS.keys() >= set(session.options.problems.split(",")):
        programs.append((session.bin_dir / DUMP_OUTPUTS, "--list"))
    for path, argument in programs:
        listing = execute([path, argument], 60)
        if listing.status != 0:
            raise EvidenceError(f"{path.name} does not start:\n{listing.tail()}")


def make_evidence(options: argparse.Namespace) -> int:
    """Runs the chosen steps; the exit status."""
    began = time.monotonic()
    session = Session(options, load_manifest(options), Path(options.build).resolve() / "bin")
    say(json.dumps(session.manifest, indent=1) + "\n")
    parts = Path(options.parts)
    parts.mkdir(parents=True, exist_ok=True)
    (parts / ".gitignore").write_text("*\n")

    check_that_programs_start(session)
    for steps in GROUPS:
        chosen = [step for step in steps if step[0] in options.only]
        if chosen:
            alone = chosen[0][0] in ("bench", "pytorch")
            run_group(session, chosen, 1 if alone else options.jobs)
    finish_manifest(session)

    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in session.seconds.items())
    say(f"\n{times}; {time.monotonic() - began:.0f} s in all")
    if session.failures:
        say(f"FAILED ({len(session.failures)}):\n" + "\n".join(f"  {problem}" for problem in session.failures))
        return 1
    say("all done")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line program."""
    options = parse_arguments(arguments)
    try:
        if options.write_manifest:
            manifest = committed_trees()
            write_json(Path(options.write_manifest), manifest)
            say(json.dumps(manifest, indent=1))
            return 0
        return make_evidence(options)
    except EvidenceError as error:
        print(f"evidence.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
