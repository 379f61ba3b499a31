# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Configures, builds and runs every test that this machine can run:
#
#   cmake -P cmake/test.cmake
#
# Options stand before -P:
#
#   -DBUILD_DIR=<dir>                   where to build (default: build)
#   -DTCONV_ENABLE_CUDA=OFF             host part only, though there is an nvcc
#   -DCMAKE_CUDA_ARCHITECTURES=<list>   default: the GPU's own, without a GPU 90a-real
#   -DTCONV_<OPTION>=<value>            any option of CMakeLists.txt
#   -DJOBS=<n>                          tests at a time (default: the number of cores)
#   -DTESTS=<regex>                     run the tests that match, only
#
# GPU tests are Skipped where there is no GPU. The exit status is non-zero if any stage fails; the last lines are
# ctest's.

include("${CMAKE_CURRENT_LIST_DIR}/driver.cmake")

if(NOT DEFINED BUILD_DIR)
  set(BUILD_DIR "${source_dir}/build")
endif()
cmake_path(ABSOLUTE_PATH BUILD_DIR)
if(NOT DEFINED JOBS)
  cmake_host_system_information(RESULT JOBS QUERY NUMBER_OF_LOGICAL_CORES)
endif()
set(selection)
if(DEFINED TESTS)
  set(selection --tests-regex "${TESTS}")
endif()

# Without a GPU kernels are compiled, no more.
find_program(nvidia_smi nvidia-smi NO_CACHE)
set(fast OFF)
if(NOT nvidia_smi)
  set(fast ON)
endif()
configure("${BUILD_DIR}" -DTCONV_FAST_COMPILE=${fast} -DTCONV_BUILD_TESTS=ON -DTCONV_BUILD_BENCH=ON
          -DTCONV_BUILD_EXAMPLES=ON -DTCONV_TEST_SM80=ON)
build("${BUILD_DIR}")
stage("test" "${CMAKE_CTEST_COMMAND}" --test-dir "${BUILD_DIR}" --build-config Release --output-on-failure
      --no-tests=error --parallel ${JOBS} ${selection})
