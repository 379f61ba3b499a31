# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Script behind the test package.install: installs BUILD_DIR afresh into PREFIX and compares the installed headers with
# HEADERS.

file(REMOVE_RECURSE "${PREFIX}")
execute_process(
  COMMAND "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${PREFIX}" COMMAND_ERROR_IS_FATAL ANY)

file(GLOB_RECURSE expected RELATIVE "${HEADERS}" "${HEADERS}/*.hpp" "${HEADERS}/*.cuh")
file(GLOB_RECURSE installed RELATIVE "${PREFIX}/include/tconv" "${PREFIX}/include/tconv/*")
if(NOT expected STREQUAL installed)
  message(FATAL_ERROR "expected headers: ${expected}\ninstalled: ${installed}")
endif()
