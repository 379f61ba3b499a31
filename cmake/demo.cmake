# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Configures, builds and runs the two example programs, on the GPU if there is one, else on the CPU reference:
#
#   cmake -P cmake/demo.cmake
#
# Takes the options of test.cmake that concern building; BUILD_DIR is build-demo by default. The exit status is non-zero
# if any stage fails.

include("${CMAKE_CURRENT_LIST_DIR}/driver.cmake")

string(TIMESTAMP began "%s")
if(NOT DEFINED BUILD_DIR)
  set(BUILD_DIR "${source_dir}/build-demo")
endif()
cmake_path(ABSOLUTE_PATH BUILD_DIR)
set(programs demo text_detection_head)

configure("${BUILD_DIR}" -DTCONV_BUILD_TESTS=OFF -DTCONV_BUILD_BENCH=OFF -DTCONV_BUILD_EXAMPLES=ON)
build("${BUILD_DIR}" --target ${programs})
foreach(program IN LISTS programs)
  # In the build tree, because they write files.
  stage("run ${program}" "${CMAKE_COMMAND}" -E chdir "${BUILD_DIR}" "${BUILD_DIR}/bin/${program}")
endforeach()

string(TIMESTAMP ended "%s")
math(EXPR seconds "${ended} - ${began}")
message(STATUS "demo: all right, ${seconds} s in all, building included")
