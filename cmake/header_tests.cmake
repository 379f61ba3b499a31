# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Every header alone, and linked twice.

# tconv_add_header_tests()
#
# One translation unit per header, which includes that header twice and nothing else: it compiles only if the header
# brings what it needs and has a guard. Then all objects are linked into one program twice over, which fails if a
# function or a variable lacks inline. The .hpp headers see the host compiler alone, without a CUDA include path.
# Exceptions and RTTI are off, as they may be for users.
function(tconv_add_header_tests)
  set(include_dir "${PROJECT_SOURCE_DIR}/include")
  foreach(kind IN ITEMS host cuda)
    if(kind STREQUAL "cuda" AND NOT TCONV_HAS_CUDA)
      continue()
    endif()
    if(kind STREQUAL "host")
      set(header_extension hpp)
      set(source_extension cpp)
      set(no_exceptions -fno-exceptions -fno-rtti)
    else()
      set(header_extension cuh)
      set(source_extension cu)
      set(no_exceptions -Xcompiler=-fno-exceptions,-fno-rtti)
    endif()

    file(
      GLOB_RECURSE headers
      RELATIVE "${include_dir}"
      CONFIGURE_DEPENDS "${include_dir}/tconv/*.${header_extension}")
    set(sources)
    foreach(header IN LISTS headers)
      string(MAKE_C_IDENTIFIER "${header}" name)
      set(source "${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.${source_extension}")
      file(CONFIGURE OUTPUT "${source}" CONTENT "#include <@header@>\n#include <@header@> // again: the guard.\n" @ONLY)
      list(APPEND sources "${source}")
    endforeach()
    if(NOT sources)
      continue()
    endif()

    set(objects tconv_headers_${kind})
    add_library(${objects} OBJECT ${sources})
    target_compile_options(${objects} PRIVATE ${no_exceptions})
    if(kind STREQUAL "host")
      target_include_directories(${objects} PRIVATE "${include_dir}")
      target_compile_features(${objects} PRIVATE cxx_std_17)
      tconv_strict(${objects})
    else()
      tconv_own_target(${objects} WGMMA)
    endif()

    set(program tconv_headers_${kind}_linked_twice)
    set(main "${CMAKE_CURRENT_BINARY_DIR}/headers/main.${source_extension}")
    file(CONFIGURE OUTPUT "${main}" CONTENT "int main() {}\n")
    add_executable(${program} "${main}")
    # Naming the library and its objects makes CMake put the same objects on the link line twice.
    target_link_libraries(${program} PRIVATE ${objects} "$<TARGET_OBJECTS:${objects}>")
    add_test(NAME headers.${kind} COMMAND ${program})
    set_tests_properties(headers.${kind} PROPERTIES LABELS headers)
  endforeach()
endfunction()
