#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads the machine code of an executable: every main loop has the instruction that it is about, and no local memory.

    check_sass.py --cuobjdump cuobjdump --architecture sm_90a --kernel implicit_gemm --instruction HGMMA <executable>

With --spills the second is not asked. A main loop is an innermost loop that has the instruction. Every instance of the
kernel must have one, and none may load from or store to local memory: a value that ptxas spilled there would come back
once a turn. Outside these loops, on the paths that few tiles take, spills are allowed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

LOCAL_MEMORY = ("LDL", "STL")


class Instruction(NamedTuple):
    """One line of a listing."""

    address: int
    opcode: str  # without modifiers
    operands: str


def read_functions(listing: Iterable[str]) -> Iterator[tuple[str, list[Instruction]]]:
    """Mangled name and instructions of each function that `cuobjdump -sass` shows."""
    name = ""
    code: list[Instruction] = []
    for line in listing:
        if found := re.search(r"Function : (\S+)", line):
            if name:
                yield name, code
            name, code = found[1], []
        elif found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z]\w*)([^;]*);", line):
            code.append(Instruction(int(found[1], 16), found[2], found[3]))
    if name:
        yield name, code


def innermost_loops(code: Sequence[Instruction]) -> list[tuple[int, int]]:
    """First and last address of each loop without a loop inside. A loop is what a jump backwards spans."""
    ends: dict[int, int] = {}
    for at in code:
        target = re.search(r"0x([0-9a-f]+)\s*$", at.operands)
        if at.opcode == "BRA" and target and int(target[1], 16) <= at.address:
            begin = int(target[1], 16)
            ends[begin] = max(ends.get(begin, 0), at.address)
    loops = list(ends.items())
    return [
        (begin, end)
        for begin, end in loops
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops)
    ]


def main_loops(code: Sequence[Instruction], opcode: str) -> list[list[Instruction]]:
    """The innermost loops that have an instruction `opcode`."""
    loops = [[at for at in code if begin <= at.address <= end] for begin, end in innermost_loops(code)]
    return [loop for loop in loops if any(at.opcode == opcode for at in loop)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuobjdump", required=True, metavar="FILE")
    parser.add_argument("--architecture", required=True, metavar="SM")
    parser.add_argument("--kernel", required=True, help="name of a kernel template, without its namespace")
    parser.add_argument("--instruction", required=True, metavar="OPCODE")
    parser.add_argument("--spills", action="store_true", help="local memory may be used anywhere")
    parser.add_argument("executable")
    options = parser.parse_args(arguments)

    # A mangled name has its length before it, and behind a template's the arguments: 13implicit_gemmI...
    instance = f"kernel{len(options.kernel)}{options.kernel}I"
    command = [options.cuobjdump, "-arch", options.architecture, "-sass", options.executable]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    kernels = 0
    loops = 0
    faults = []
    for name, code in read_functions(listing):
        if instance not in name:
            continue
        found = main_loops(code, options.instruction)
        kernels += 1
        loops += len(found)
        if not found:
            faults.append(f"no loop with {options.instruction}: {name}")
        for loop in found:
            spilled = sum(at.opcode in LOCAL_MEMORY for at in loop)
            if spilled and not options.spills:
                faults.append(f"{spilled} accesses to local memory in the loop at {loop[0].address:#x}: {name}")
    if kernels == 0:
        faults.append(f"no kernel {options.kernel} for {options.architecture} in {options.executable}")
    memory = "" if options.spills else ", none with local memory"
    print("\n".join(faults) or f"{kernels} kernels, {loops} loops with {options.instruction}{memory}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
