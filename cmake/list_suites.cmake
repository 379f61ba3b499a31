# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Script behind tconv_add_suites (suites.cmake): asks the GoogleTest program EXECUTABLE for its suites and writes
# OUTPUT, a file for ctest with one test PREFIX<suite> with PROPERTIES for each suite that has a test to run.

execute_process(
  COMMAND "${EXECUTABLE}" --gtest_list_tests
  OUTPUT_VARIABLE listing
  ERROR_VARIABLE listing
  RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${EXECUTABLE} --gtest_list_tests failed (${result}):\n${listing}")
endif()

# "Suite.", perhaps with "  # TypeParam = ..." behind it, then one indented line per test. Brackets and semicolons,
# which parameters may print, would upset CMake's lists.
string(REGEX REPLACE "[][;]" "_" listing "${listing}")
string(REPLACE "\n" ";" lines "${listing}")
list(JOIN PROPERTIES " " properties)

set(suite "")
set(content "")
foreach(line IN LISTS lines)
  if(line MATCHES "^([^ ]+)\\.( |$)")
    set(suite "${CMAKE_MATCH_1}")
  elseif(suite AND line MATCHES "^  [^ ]" AND NOT "/${suite}" MATCHES "/DISABLED_" AND NOT line MATCHES "^  DISABLED_")
    string(APPEND content "add_test([=[${PREFIX}${suite}]=] [=[${EXECUTABLE}]=] [=[--gtest_filter=${suite}.*]=])\n"
                          "set_tests_properties([=[${PREFIX}${suite}]=] PROPERTIES ${properties})\n")
    set(suite "") # one entry per suite: its further tests are in it
  endif()
endforeach()
file(WRITE "${OUTPUT}" "${content}")
