// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Version of the library. CMake reads the three numbers from this file; there is no second place to change.

/// First number of the version.
#define TCONV_VERSION_MAJOR 0
/// Second number of the version, in [0, 99].
#define TCONV_VERSION_MINOR 1
/// Third number of the version, in [0, 99].
#define TCONV_VERSION_PATCH 0

/// One number for comparisons: 10000 * major + 100 * minor + patch.
#define TCONV_VERSION (TCONV_VERSION_MAJOR * 10000 + TCONV_VERSION_MINOR * 100 + TCONV_VERSION_PATCH)
