# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds the operators in csrc/ with nvcc, and loads them. Called at the first use; by hand:

    python -m tconv

Objects are kept in build/ under a digest of everything that they are made from. Only ops.cpp knows PyTorch, so another
version of it recompiles one file. TORCH_CUDA_ARCH_LIST ("9.0a", "8.0;9.0a", "8.0+PTX") overrides the architecture of
the current device.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent.parent
SOURCES = HERE / "csrc"
INCLUDE = HERE.parents[1] / "include"
BUILD = HERE / "build"
HEADERS = (".hpp", ".cuh")

_lock = threading.Lock()


def nvcc() -> str:
    """The compiler: that of CUDA_HOME, else the one on PATH, else the one in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME")
    found = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(found).is_file():
        raise RuntimeError(f"tconv: no nvcc ({found}): set CUDA_HOME")
    return found


def architecture_flags() -> list[str]:
    """Code generation for the architectures of TORCH_CUDA_ARCH_LIST, else for the current device."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").replace(",", " ").split()
    if not listed:
        if not torch.cuda.is_available():
            raise RuntimeError("tconv: PyTorch sees no GPU to build for: set TORCH_CUDA_ARCH_LIST, to 9.0a for example")
        major, minor = torch.cuda.get_device_capability()
        listed = [f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")]
    flags = []
    for item in listed:
        number = item.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if item.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    # Without it, or with TCONV_ENABLE_SM90A, the tensor-core engine comes in, and a minute of compile time for every operator on fp32.
    flags.append("-DTCONV_WARP_MMA=0")
    return flags


def torch_flags() -> list[str]:
    """For ops.cpp."""
    from torch.utils import cpp_extension

    includes = [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
    return [*includes, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", "-std=c++20"]


def _digest(*parts: str | bytes) -> str:
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()[:16]


def _make(target: Path, command: Sequence[str | Path], name: str) -> Path:
    """Runs `command` -o `target` unless the target is there."""
    if target.is_file():
        return target
    began = time.monotonic()
    # Under a name of this process first: others may be building too.
    scratch = target.with_name(f"{os.getpid()}.{target.name}")
    result = subprocess.run([*command, "-o", scratch], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        scratch.unlink(missing_ok=True)
        raise RuntimeError(f"tconv: {name} failed:\n{' '.join(map(str, command))}\n{result.stdout}")
    scratch.replace(target)
    print(f"tconv: {name} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
    return target


def build() -> Path:
    """The library that torch.ops.load_library takes; builds what is missing, one process per core."""
    BUILD.mkdir(exist_ok=True)
    compiler = nvcc()
    flags = ["-O3", "-Xcompiler=-fPIC,-fvisibility=hidden", *architecture_flags()]
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
    headers = sorted(
        path for folder in (INCLUDE, SOURCES) for path in folder.rglob("*.[hc]*") if path.suffix in HEADERS
    )
    common = _digest(version, *flags, *(header.read_bytes() for header in headers))

    def compile_one(source: Path) -> Path:
        knows_torch = source.suffix == ".cpp"
        own = torch_flags() if knows_torch else ["-std=c++17"]
        key = _digest(common, source.read_bytes(), torch.__version__ if knows_torch else "")
        command: list[str | Path] = [compiler, "-c", source, "-I", INCLUDE, *flags, *own]
        return _make(BUILD / f"{source.stem}.{key}.o", command, f"compiled {source.name}")

    sources = [*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.cu")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = sorted(pool.map(compile_one, sources))

    libraries = Path(torch.__file__).parent / "lib"
    library = BUILD / f"tconv_torch.{_digest(*(o.name for o in objects))}.so"
    # The shared CUDA runtime is PyTorch's own.
    link: list[str | Path] = [
        compiler,
        "-shared",
        "-cudart=shared",
        *objects,
        "-L",
        libraries,
        "-lc10",
        "-lc10_cuda",
        "-ltorch_cpu",
    ]
    return _make(library, link, "linked")


@functools.cache
def _load() -> None:
    torch.ops.load_library(str(build()))  # type: ignore[no-untyped-call]


def load() -> None:
    """Makes torch.ops.tconv.* exist."""
    with _lock:
        _load()
