# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Says whether the committed GPU results were measured on the committed sources (design: evidence). Never fails.
#
#   cmake -P cmake/evidence.cmake
#
# Each file of bench/results/h200 carries the trees that it was made from, so that one left over from an earlier run shows.

cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH source_dir)
set(results "bench/results/h200")
set(trees include test)

if(NOT EXISTS "${source_dir}/${results}/manifest.json")
  message(STATUS "GPU evidence: none (no ${results}/manifest.json)")
  return()
endif()
foreach(tree IN LISTS trees)
  execute_process(
    COMMAND git rev-parse "HEAD:${tree}"
    WORKING_DIRECTORY "${source_dir}"
    OUTPUT_VARIABLE committed_${tree}
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
    RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(STATUS "GPU evidence: cannot tell, git does not know HEAD:${tree}")
    return()
  endif()
endforeach()

# manifest.json is a manifest; the others hold one as "manifest", or are lists of objects that do.
set(stale)
foreach(file IN ITEMS manifest.json tests.json sanitizer.json bench.json pytorch.json)
  if(NOT EXISTS "${source_dir}/${results}/${file}")
    list(APPEND stale "${file} (missing)")
    continue()
  endif()
  file(READ "${source_dir}/${results}/${file}" content)
  set(paths manifest)
  if(file STREQUAL "manifest.json")
    set(paths ".")
  endif()
  string(JSON type ERROR_VARIABLE error TYPE "${content}")
  if(type STREQUAL "ARRAY")
    string(JSON count LENGTH "${content}")
    set(paths)
    if(count GREATER 0)
      math(EXPR last "${count} - 1")
      foreach(i RANGE ${last})
        list(APPEND paths "${i}/manifest")
      endforeach()
    endif()
  endif()
  set(changed)
  foreach(path IN LISTS paths)
    string(REPLACE "/" ";" keys "${path}")
    list(REMOVE_ITEM keys ".")
    foreach(tree IN LISTS trees)
      string(JSON measured ERROR_VARIABLE error GET "${content}" ${keys} "${tree}_tree")
      if(error)
        list(APPEND changed "no ${tree}_tree")
      elseif(NOT measured STREQUAL committed_${tree})
        list(APPEND changed "${tree}/ was ${measured}, now ${committed_${tree}}")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES changed)
  if(NOT paths)
    set(changed "empty")
  endif()
  if(changed)
    list(JOIN changed ", " changed)
    list(APPEND stale "${file} (${changed})")
  endif()
endforeach()
if(stale)
  list(JOIN stale "\n     " stale)
  message(STATUS "GPU evidence: STALE\n     ${stale}")
else()
  message(STATUS "GPU evidence: fresh")
endif()
