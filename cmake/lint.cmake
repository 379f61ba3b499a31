# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# The ctest tests format, tidy and tidy.<source>. Where the tool is missing they are Skipped.

# Adds <test> with the command that follows, or, if <tool> is false, a test that ctest shows as Skipped with the reason.
function(tconv_add_lint_test test tool reason)
  if(tool)
    add_test(
      NAME ${test}
      COMMAND ${ARGN}
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  else()
    add_test(NAME ${test} COMMAND "${CMAKE_COMMAND}" -E echo "skipped: ${reason}")
    set_tests_properties(${test} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
  endif()
  set_tests_properties(${test} PROPERTIES LABELS lint TIMEOUT 1200)
endfunction()

# tconv_add_format_test()
#
# clang-format over every source of ours. Versions format differently; .clang-format is written for 14, Debian 12's.
function(tconv_add_format_test)
  find_program(TCONV_CLANG_FORMAT NAMES clang-format-14 clang-format)
  mark_as_advanced(TCONV_CLANG_FORMAT)
  set(usable OFF)
  if(TCONV_CLANG_FORMAT)
    execute_process(COMMAND "${TCONV_CLANG_FORMAT}" --version OUTPUT_VARIABLE version)
    if(version MATCHES "version 14\\.")
      set(usable ON)
    endif()
  endif()
  set(globs)
  foreach(folder IN ITEMS include test bench examples)
    foreach(extension IN ITEMS hpp cuh cpp cu)
      list(APPEND globs "${PROJECT_SOURCE_DIR}/${folder}/*.${extension}")
    endforeach()
  endforeach()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${globs})
  tconv_add_lint_test(format ${usable} "no clang-format 14" "${TCONV_CLANG_FORMAT}" --dry-run -Werror ${sources})
endfunction()

# tconv_add_tidy_tests(<source>...)
#
# clang-tidy over the host headers, all of them in one translation unit (.clang-tidy), and over each of the given
# sources, which belong to a target of this build (test/.clang-tidy).
function(tconv_add_tidy_tests)
  find_program(TCONV_CLANG_TIDY NAMES clang-tidy-14 clang-tidy)
  mark_as_advanced(TCONV_CLANG_TIDY)
  set(usable OFF)
  if(TCONV_CLANG_TIDY)
    set(usable ON)
  endif()

  set(include_dir "${PROJECT_SOURCE_DIR}/include")
  file(
    GLOB_RECURSE headers
    RELATIVE "${include_dir}"
    CONFIGURE_DEPENDS "${include_dir}/tconv/*.hpp")
  list(TRANSFORM headers REPLACE "(.+)" "#include <\\1>")
  list(JOIN headers "\n" content)
  set(all_headers "${CMAKE_CURRENT_BINARY_DIR}/all_host_headers.cpp")
  file(CONFIGURE OUTPUT "${all_headers}" CONTENT "@content@\n" @ONLY)
  tconv_add_lint_test(
    tidy ${usable} "no clang-tidy" "${TCONV_CLANG_TIDY}" --quiet "--config-file=${PROJECT_SOURCE_DIR}/.clang-tidy"
    "${all_headers}" -- -std=c++17 "-I${include_dir}")

  set(reason "no clang-tidy")
  if(usable AND NOT CMAKE_EXPORT_COMPILE_COMMANDS)
    set(usable OFF)
    set(reason "no compile_commands.json")
  endif()
  foreach(source IN LISTS ARGN)
    cmake_path(GET source STEM name)
    tconv_add_lint_test(tidy.${name} ${usable} "${reason}" "${TCONV_CLANG_TIDY}" --quiet -p "${PROJECT_BINARY_DIR}"
                        "${source}")
  endforeach()
endfunction()
