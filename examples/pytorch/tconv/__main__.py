# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""python -m tconv: builds the operators and prints the library's path."""

from .build import build

print(build())
