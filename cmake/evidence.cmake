# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Says whether the committed GPU results were measured on the committed sources (design: evidence). Never fails.
#
#   cmake -P cmake/evidence.cmake

cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH source_dir)
set(manifest_file "bench/results/h200/manifest.json")

if(NOT EXISTS "${source_dir}/${manifest_file}")
  message(STATUS "GPU evidence: none (no ${manifest_file})")
  return()
endif()
file(READ "${source_dir}/${manifest_file}" manifest)
set(stale)
foreach(tree IN ITEMS include test)
  string(JSON measured ERROR_VARIABLE error GET "${manifest}" "${tree}_tree")
  if(error)
    message(STATUS "GPU evidence: cannot tell, ${manifest_file} has no ${tree}_tree")
    return()
  endif()
  execute_process(
    COMMAND git rev-parse "HEAD:${tree}"
    WORKING_DIRECTORY "${source_dir}"
    OUTPUT_VARIABLE committed
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
    RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(STATUS "GPU evidence: cannot tell, git does not know HEAD:${tree}")
    return()
  endif()
  if(NOT measured STREQUAL committed)
    list(APPEND stale "${tree}/ (measured ${measured}, now ${committed})")
  endif()
endforeach()
if(stale)
  list(JOIN stale ", " stale)
  message(STATUS "GPU evidence: STALE, changed since: ${stale}")
else()
  message(STATUS "GPU evidence: fresh")
endif()
