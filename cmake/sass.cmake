# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# The ctest tests sass.<name>: what ptxas made of the main loops.

# tconv_add_sass_test(<target> NAME <name> KERNEL <kernel> INSTRUCTION <opcode> [SPILLS])
#
# Each sm_90a instance of the kernel template tconv::kernel::<kernel> in <target> must have main loops with <opcode> and,
# but for SPILLS, without local memory: test/sass/check_sass.py. Read with cuobjdump, the CUDA toolkit's or that of PyPI's
# nvidia-cuda-cuobjdump; without one, or Python, the test is Skipped. With one, <target> is compiled with full
# optimisation, also under TCONV_FAST_COMPILE.
function(tconv_add_sass_test target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SPILLS" "NAME;KERNEL;INSTRUCTION" "")
  find_package(Python3 COMPONENTS Interpreter)
  set(packages)
  if(Python3_Interpreter_FOUND)
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_path('purelib'))"
      OUTPUT_VARIABLE site
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    file(GLOB packages "${site}/nvidia/cu*/bin")
  endif()
  find_program(TCONV_CUOBJDUMP cuobjdump HINTS "${CUDAToolkit_BIN_DIR}" ${packages})
  mark_as_advanced(TCONV_CUOBJDUMP)

  get_target_property(architectures ${target} CUDA_ARCHITECTURES)
  set(usable OFF)
  set(reason)
  if(NOT Python3_Interpreter_FOUND)
    set(reason "no Python")
  elseif(NOT TCONV_CUOBJDUMP)
    set(reason "no cuobjdump")
  elseif(NOT architectures MATCHES "90a(-real)?(;|$)")
    set(reason "not built for sm_90a")
  else()
    set(usable ON)
    set_target_properties(${target} PROPERTIES TCONV_FULL_OPTIMISATION ON)
  endif()
  set(spills)
  if(arg_SPILLS)
    set(spills --spills)
  endif()
  tconv_add_lint_test(
    sass.${arg_NAME} ${usable} "${reason}" "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/test/sass/check_sass.py"
    --cuobjdump "${TCONV_CUOBJDUMP}" --architecture sm_90a --kernel ${arg_KERNEL} --instruction ${arg_INSTRUCTION}
    ${spills} "$<TARGET_FILE:${target}>")
endfunction()
