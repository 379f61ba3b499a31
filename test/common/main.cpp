// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// main() of every test executable. Its exit status tells ctest apart what GoogleTest's own does not:
///
/// - 0: at least one test passed and none failed;
/// - 77: every selected test was skipped, which ctest shows as Skipped and not as Passed (SKIP_RETURN_CODE);
/// - 1: a test failed, or there was none to run, so that a misspelt filter cannot pass.

#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv)
{
  constexpr int all_skipped = 77;

  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  if (result != 0)
  {
    return 1;
  }
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  if (GTEST_FLAG_GET(list_tests) || tests.successful_test_count() > 0)
  {
    return 0;
  }
  if (tests.skipped_test_count() > 0)
  {
    return all_skipped;
  }
  std::fprintf(stderr, "no test ran\n");
  return 1;
}
