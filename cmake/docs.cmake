# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# The reference of the public headers, by Doxygen.

# tconv_add_doxygen_test()
#
# The test docs.doxygen demands that every public symbol is described and that no description names a parameter which is
# not there. The target docs does the same: pages in docs/html of the build tree. Without Doxygen the test is Skipped.
# Configured by docs/Doxyfile.in, for 1.9.4 (Debian 12) and newer.
function(tconv_add_doxygen_test)
  find_program(TCONV_DOXYGEN NAMES doxygen)
  mark_as_advanced(TCONV_DOXYGEN)
  set(usable OFF)
  if(TCONV_DOXYGEN)
    set(usable ON)
    set(output_dir "${PROJECT_BINARY_DIR}/docs")
    file(MAKE_DIRECTORY "${output_dir}")
    configure_file("${PROJECT_SOURCE_DIR}/docs/Doxyfile.in" "${output_dir}/Doxyfile" @ONLY)
    add_custom_target(
      docs
      COMMAND "${TCONV_DOXYGEN}" "${output_dir}/Doxyfile"
      COMMENT "Reference in ${output_dir}/html"
      VERBATIM)
  endif()
  tconv_add_lint_test(docs.doxygen ${usable} "no doxygen" "${TCONV_DOXYGEN}" "${output_dir}/Doxyfile")
endfunction()
