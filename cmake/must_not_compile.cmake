# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Wrong use must be rejected at compile time, in the user's words.

# tconv_add_must_not_compile(<source>)
#
# A source of the form
#
#     // must not compile: <part of the message>
#     #if defined(TCONV_MUST_NOT_COMPILE)
#     ... the wrong use ...
#     #else
#     ... its right twin ...
#     #endif
#
# The twin is compiled with everything else, which shows that nothing but the wrong use is wrong. A test compiles the
# other branch and demands an error with that message.
function(tconv_add_must_not_compile source)
  cmake_path(GET source STEM name)
  file(STRINGS "${source}" expected REGEX "^// must not compile: " LIMIT_COUNT 1)
  string(REGEX REPLACE "^// must not compile: " "" expected "${expected}")
  if(expected STREQUAL "")
    message(FATAL_ERROR "tconv: no line '// must not compile: <message>' in ${source}")
  endif()
  string(REGEX REPLACE "([][+.*()^$?|\\\\])" "\\\\\\1" expected "${expected}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")

  set(twin must_compile.${name})
  add_library(${twin} OBJECT "${source}")
  tconv_own_target(${twin})

  set(target must_not_compile.${name})
  add_library(${target} OBJECT EXCLUDE_FROM_ALL "${source}")
  tconv_own_target(${target})
  target_compile_definitions(${target} PRIVATE TCONV_MUST_NOT_COMPILE)

  add_test(NAME ${target} COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --config "$<CONFIG>" --target
                                  ${target})
  # The lock: two builds in one tree would trip over each other.
  set_tests_properties(${target} PROPERTIES LABELS must_not_compile RESOURCE_LOCK build PASS_REGULAR_EXPRESSION
                                            "error[^\n]*${expected}")
endfunction()
