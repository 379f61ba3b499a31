# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Tests of the tests: copies of the headers with one deliberate fault each, which a named test must catch.

# tconv_add_mutant(<name> FILE <header> FROM <text> TO <text> SOURCE <test source> CAUGHT_BY <Suite.Test>)
#
# Copies include/tconv into the build tree and replaces FROM by TO in FILE (relative to include/tconv). FROM must occur
# there exactly once, so that a mutant cannot outlive the code it was made for: configuring fails if it does. Nothing is
# escaped in FROM and TO; bracket arguments ([[...]]) keep quotes, backslashes and line ends as they are.
#
# SOURCE (.cu, or .cpp for a fault in a host header) is compiled against the faulty copy, and the test mutant.<name>
# demands that CAUGHT_BY fails in it: a crash, a refusal to run or another test's failure does not count. The same
# source with the true headers is built once, as mutant.none.<source>, and must pass. Without nvcc, mutants in .cu
# sources are left out; without a GPU, they are skipped.
function(tconv_add_mutant name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILE;FROM;TO;SOURCE;CAUGHT_BY" "")
  foreach(key IN ITEMS FILE FROM SOURCE CAUGHT_BY)
    if(NOT DEFINED arg_${key})
      message(FATAL_ERROR "tconv_add_mutant(${name}): ${key} is missing")
    endif()
  endforeach()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tconv_add_mutant(${name}): what is \"${arg_UNPARSED_ARGUMENTS}\"?")
  endif()
  if(arg_SOURCE MATCHES "\\.cu$" AND NOT TCONV_HAS_CUDA)
    return()
  endif()

  set(include_dir "${PROJECT_BINARY_DIR}/mutants/${name}/include")
  tconv_copy_headers_with_fault("${name}" "${include_dir}/tconv" "${arg_FILE}" "${arg_FROM}" "${arg_TO}")

  cmake_path(GET arg_SOURCE STEM stem)
  set(baseline mutant.none.${stem})
  if(NOT TARGET ${baseline})
    tconv_add_mutant_executable(${baseline} "${arg_SOURCE}" "${PROJECT_SOURCE_DIR}/include")
    add_test(NAME ${baseline} COMMAND ${baseline})
    tconv_set_mutant_properties(${baseline} "${arg_SOURCE}")
  endif()

  set(mutant mutant.${name})
  tconv_add_mutant_executable(${mutant} "${arg_SOURCE}" "${include_dir}")
  add_test(NAME ${mutant} COMMAND ${mutant} "--gtest_filter=${arg_CAUGHT_BY}")
  tconv_set_mutant_properties(${mutant} "${arg_SOURCE}")
  string(REGEX REPLACE "([][+.*()^$?|\\\\])" "\\\\\\1" caught_by "${arg_CAUGHT_BY}")
  # ctest looks at SKIP_RETURN_CODE first, and at the exit status not at all.
  set_tests_properties(${mutant} PROPERTIES PASS_REGULAR_EXPRESSION "\\[  FAILED  \\] ${caught_by}[ ,]")
endfunction()

# Copies include/tconv to target_dir with the fault in it, and touches only what changed.
function(tconv_copy_headers_with_fault name target_dir file from to)
  set(source_dir "${PROJECT_SOURCE_DIR}/include/tconv")
  if(NOT EXISTS "${source_dir}/${file}")
    message(FATAL_ERROR "mutant ${name}: there is no header ${file}")
  endif()

  file(READ "${source_dir}/${file}" text)
  string(FIND "${text}" "${from}" first)
  string(FIND "${text}" "${from}" last REVERSE)
  if(first EQUAL -1)
    message(FATAL_ERROR "mutant ${name}: ${file} does not contain\n${from}")
  elseif(NOT first EQUAL last)
    message(FATAL_ERROR "mutant ${name}: ${file} contains more than once\n${from}")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")

  file(
    GLOB_RECURSE headers
    RELATIVE "${source_dir}"
    CONFIGURE_DEPENDS "${source_dir}/*.hpp" "${source_dir}/*.cuh")
  file(GLOB_RECURSE copies RELATIVE "${target_dir}" "${target_dir}/*")
  list(REMOVE_ITEM copies ${headers})
  foreach(stale IN LISTS copies)
    file(REMOVE "${target_dir}/${stale}")
  endforeach()
  foreach(header IN LISTS headers)
    cmake_path(GET header PARENT_PATH folder)
    file(MAKE_DIRECTORY "${target_dir}/${folder}")
    if(header STREQUAL file)
      set(copied "${target_dir}/../faulty_header")
      file(WRITE "${copied}" "${text}")
    else()
      set(copied "${source_dir}/${header}")
    endif()
    file(COPY_FILE "${copied}" "${target_dir}/${header}" ONLY_IF_DIFFERENT)
    # A changed header must be copied again before anything is compiled.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source_dir}/${header}")
  endforeach()
endfunction()

# Does not link tconv::tconv, whose include path leads to the true headers. Warnings are not errors: a fault may leave a
# variable unused.
function(tconv_add_mutant_executable target source include_dir)
  tconv_add_test_executable(${target} SOURCES "${source}")
  target_include_directories(${target} BEFORE PRIVATE "${include_dir}")
  target_compile_features(${target} PRIVATE cxx_std_17)
  if(source MATCHES "\\.cu$")
    target_compile_features(${target} PRIVATE cuda_std_17)
  endif()
endfunction()

function(tconv_set_mutant_properties test source)
  set_tests_properties(${test} PROPERTIES LABELS mutants TIMEOUT 600 SKIP_RETURN_CODE ${tconv_skip_status})
  if(source MATCHES "\\.cu$")
    set_tests_properties(${test} PROPERTIES RESOURCE_LOCK gpu)
  endif()
endfunction()
