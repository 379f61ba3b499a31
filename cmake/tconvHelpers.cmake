# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# What a user's project gets beside the target tconv::tconv. Part of the installed package.

# Oldest CUDA toolkit that compiles the .cuh headers.
set(TCONV_MINIMUM_CUDA_VERSION 12.8)

# tconv_enable_sm90a(<target>)
#
# Defines TCONV_ENABLE_SM90A for the CUDA sources of <target> if 90a is among its CUDA architectures, which compiles the
# wgmma kernels in. Host code cannot see the 'a' of sm_90a, so the build has to say it. The architectures are looked at
# when the build files are generated: setting CUDA_ARCHITECTURES after this call counts, too.
function(tconv_enable_sm90a target)
  set(architectures "$<TARGET_PROPERTY:${target},CUDA_ARCHITECTURES>")
  foreach(name IN ITEMS 90a 90a-real 90a-virtual)
    list(APPEND conditions "$<IN_LIST:${name},${architectures}>")
  endforeach()
  list(JOIN conditions "," conditions)
  target_compile_definitions(
    ${target} PRIVATE "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<OR:${conditions}>>:TCONV_ENABLE_SM90A>")
endfunction()
