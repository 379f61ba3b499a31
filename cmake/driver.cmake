# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# What test.cmake and demo.cmake share: finding tools, and running stages with their output on the screen.

cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH source_dir)

# The CUDA toolkit's installer does not touch PATH.
find_program(nvcc_on_path nvcc NO_CACHE)
if(NOT nvcc_on_path
   AND NOT DEFINED ENV{CUDACXX}
   AND EXISTS /usr/local/cuda/bin/nvcc)
  set(ENV{CUDACXX} /usr/local/cuda/bin/nvcc)
endif()

# stage(<name> <command>...): runs a command; a failure ends the script with a non-zero status.
function(stage name)
  message(STATUS "${name}")
  # Argument by argument: ${ARGN} would tear 80-real;90a-real apart.
  set(command)
  math(EXPR last "${ARGC} - 1")
  foreach(i RANGE 1 ${last})
    string(REPLACE ";" "\\;" argument "${ARGV${i}}")
    list(APPEND command "${argument}")
  endforeach()
  execute_process(COMMAND ${command} WORKING_DIRECTORY "${source_dir}" RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${name} failed (${result})")
  endif()
endfunction()

# The architecture of the GPU in this machine, else sm_90a: one is enough here, and building for two takes twice the
# time.
function(default_architectures variable)
  set(${variable} 90a-real PARENT_SCOPE)
  find_program(nvidia_smi nvidia-smi NO_CACHE)
  if(NOT nvidia_smi)
    return()
  endif()
  execute_process(
    COMMAND "${nvidia_smi}" --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE capabilities
    ERROR_QUIET)
  if(capabilities MATCHES "^([0-9]+)\\.([0-9]+)")
    set(architecture "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
    if(architecture EQUAL 90)
      string(APPEND architecture "a") # the wgmma kernels exist under this name only
    endif()
    set(${variable} "${architecture}-real" PARENT_SCOPE)
  endif()
endfunction()

# configure(<build dir> <option>...): configures a Release build, and hands on -DCMAKE_CUDA_ARCHITECTURES,
# -DCMAKE_CUDA_COMPILER, -DCMAKE_CXX_COMPILER and every -DTCONV_... that the script was called with. These come last and
# win.
function(configure build_dir)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    default_architectures(CMAKE_CUDA_ARCHITECTURES)
  endif()
  set(options -DCMAKE_BUILD_TYPE=Release ${ARGN})
  get_cmake_property(variables VARIABLES)
  list(FILTER variables INCLUDE REGEX "^(TCONV_.*|CMAKE_CUDA_ARCHITECTURES|CMAKE_CUDA_COMPILER|CMAKE_CXX_COMPILER)$")
  foreach(variable IN LISTS variables)
    string(REPLACE ";" "\\;" value "${${variable}}")
    list(APPEND options "-D${variable}=${value}")
  endforeach()
  # An existing tree keeps its generator.
  find_program(ninja NAMES ninja ninja-build NO_CACHE)
  if(ninja AND NOT EXISTS "${build_dir}/CMakeCache.txt")
    list(APPEND options -G Ninja "-DCMAKE_MAKE_PROGRAM=${ninja}")
  endif()
  stage("configure ${build_dir}" "${CMAKE_COMMAND}" -S "${source_dir}" -B "${build_dir}" ${options})
endfunction()

# build(<build dir> <argument>...): builds with all cores.
function(build build_dir)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  stage("build" "${CMAKE_COMMAND}" --build "${build_dir}" --config Release --parallel ${cores} ${ARGN})
endfunction()
