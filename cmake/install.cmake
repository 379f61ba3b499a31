# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# The package: headers, the target tconv::tconv, the helpers and the licence.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Nothing in the package depends on the machine, hence share/ and ARCH_INDEPENDENT.
set(tconv_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/tconv")

install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/include/tconv"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING
  PATTERN "*.hpp"
  PATTERN "*.cuh")
install(TARGETS tconv EXPORT tconvTargets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT tconvTargets NAMESPACE tconv:: DESTINATION "${tconv_package_dir}")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/tconvConfig.cmake.in" "${PROJECT_BINARY_DIR}/tconvConfig.cmake"
  INSTALL_DESTINATION "${tconv_package_dir}")
# Before 1.0 a new minor version may change anything.
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/tconvConfigVersion.cmake" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/tconvConfig.cmake" "${PROJECT_BINARY_DIR}/tconvConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/tconvHelpers.cmake" DESTINATION "${tconv_package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
