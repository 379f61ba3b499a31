# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Rules for our own targets: tests, benchmarks and examples. Nothing here reaches a user of tconv::tconv.

# tconv_strict(<target>)
#
# Warnings, as errors (`cmake --compile-no-warning-as-error` lifts that), and no compiler extensions.
#
# With warnings as errors nvcc hands ptxas --warning-as-error as well. That is wanted for what ptxas says by itself,
# such as an impossible launch bound. Spills are reported only where -warn-spills asks: see tconv_forbid_spills. No
# -Wpedantic under nvcc, whose generated code breaks it, and no -Wconversion, which its headers break.
function(tconv_strict target)
  set_target_properties(${target} PROPERTIES COMPILE_WARNING_AS_ERROR ON CXX_EXTENSIONS OFF CUDA_EXTENSIONS OFF)
  target_compile_options(
    ${target}
    PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow>"
            # GoogleTest's TYPED_TEST_SUITE(a, b) has nothing for its '...'.
            "$<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang>:-Wno-gnu-zero-variadic-macro-arguments>"
            "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wall,-Wextra,-Wshadow>")
endfunction()

# tconv_forbid_spills(<target>)
#
# Makes a register spill or any other use of local memory an error, for sources whose policies promise none.
function(tconv_forbid_spills target)
  target_compile_options(
    ${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xptxas=-warn-spills,-warn-lmem-usage>")
endfunction()

# tconv_own_target(<target> [WGMMA] [WARP_MMA])
#
# What every executable and object library of ours has in common. WGMMA compiles the tensor-core engine in where the
# architectures have it, WARP_MMA the one on mma.sync: a minute of compile time for each chain on fp32 tensors, so only for
# targets that are about it.
# Where nobody runs them, TCONV_FAST_COMPILE saves most of that.
function(tconv_own_target target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WGMMA;WARP_MMA" "" "")
  target_link_libraries(${target} PRIVATE tconv::tconv)
  if(arg_WGMMA)
    tconv_enable_sm90a(${target})
  endif()
  target_compile_definitions(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:TCONV_WARP_MMA=$<BOOL:${arg_WARP_MMA}>>")
  tconv_strict(${target})
endfunction()
