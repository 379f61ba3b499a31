# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# NCCL, NVIDIA's collectives between GPUs: the target NCCL::NCCL, and NCCL_VERSION.
#
# Found where it is installed for the system, or below NCCL_ROOT (a variable of CMake or of the environment): a folder with
# include/ and lib/. The wheel nvidia-nccl-cu13, which PyTorch brings, has one at site-packages/nvidia/nccl, without the
# usual symlink libnccl.so.

find_path(NCCL_INCLUDE_DIR nccl.h)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  set(parts)
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    if(lines MATCHES "#define NCCL_${part} +([0-9]+)")
      list(APPEND parts "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  list(JOIN parts "." NCCL_VERSION)
  unset(parts)
  unset(lines)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES
                                                                                  "${NCCL_INCLUDE_DIR}")
endif()
