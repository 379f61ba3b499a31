# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# GoogleTest executables as ctest tests, one per suite: finer than one per executable, without a process (on a GPU: a
# CUDA context) for each of thousands of parametrised cases.

# The exit status of test/common/main.cpp for "everything was skipped".
set(tconv_skip_status 77)

# tconv_add_test_executable(<target> SOURCES <file>...)
#
# A GoogleTest executable with our main(). Helpers are included as "common/...". Which tconv headers it sees is up to
# the caller: mutants bring their own.
function(tconv_add_test_executable target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE tconv_test_main)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/test")
endfunction()

# tconv_add_suites(<target> LABEL <label> [TIMEOUT <seconds>] [RESOURCE_LOCK <lock>])
#
# Registers each suite of <target> as the test <label>.<suite>. The suites are listed when the target is built, without
# running a test, so no GPU is needed.
function(tconv_add_suites target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;TIMEOUT;RESOURCE_LOCK" "")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  set(properties LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE ${tconv_skip_status})
  if(arg_RESOURCE_LOCK)
    list(APPEND properties RESOURCE_LOCK ${arg_RESOURCE_LOCK})
  endif()

  set(suites "${CMAKE_CURRENT_BINARY_DIR}/${target}.suites.cmake")
  add_custom_command(
    TARGET ${target}
    POST_BUILD
    BYPRODUCTS "${suites}"
    COMMAND
      "${CMAKE_COMMAND}" "-DEXECUTABLE=$<TARGET_FILE:${target}>" "-DPREFIX=${arg_LABEL}." "-DPROPERTIES=${properties}"
      "-DOUTPUT=${suites}" -P "${PROJECT_SOURCE_DIR}/cmake/list_suites.cmake"
    VERBATIM)

  # Read by ctest itself. An executable that was not built is a failure, not a hole in the list.
  set(include_file "${CMAKE_CURRENT_BINARY_DIR}/${target}.include.cmake")
  file(
    CONFIGURE
    OUTPUT "${include_file}"
    CONTENT [[
if(EXISTS "@suites@")
  include("@suites@")
else()
  add_test("@target@_NOT_BUILT" "@target@_NOT_BUILT")
endif()
]]
    @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include_file}")
endfunction()
