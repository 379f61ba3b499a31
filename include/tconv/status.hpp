// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The one channel through which every launcher reports: a code, a CUDA error and a message in a fixed array.
/// No allocation, no exception.

#include "detail/config.hpp"

#include <cstdarg>
#include <cstddef>
#include <cstdio>

TCONV_NAMESPACE_BEGIN

/// What went wrong, coarsely; status::message() says what exactly.
enum class status_code : int
{
  success              = 0, ///< done, or queued on the stream
  invalid_argument     = 1, ///< an argument breaks a rule; the message names both
  not_supported        = 2, ///< legal, but not implemented for this combination
  workspace_too_small  = 3, ///< fewer bytes than the matching ..._workspace_bytes() asked for
  workspace_misaligned = 4, ///< the workspace does not start on a multiple of 256 bytes
  cuda_error           = 5  ///< the CUDA runtime refused; see status::cuda_error()
};

/// Result of every launcher and of every validation.
///
/// Anything but success means that nothing was launched and nothing was written, except for cuda_error, which can come from
/// a later kernel of the call.
class [[nodiscard]] status
{
public:
  /// Success.
  status() = default;

  /// Failure with a message in printf form. The message is cut at capacity - 1 characters.
#if defined(__GNUC__) || defined(__clang__)
  __attribute__((format(printf, 2, 3)))
#endif
  static status
  error(status_code code, const char* format, ...)
  {
    status result;
    result.code_ = code;
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(result.message_, capacity, format, arguments);
    va_end(arguments);
    return result;
  }

  /// Failure inside the CUDA runtime. \p error is the cudaError_t, \p name its name, \p where the call or kernel.
  static status cuda(int error, const char* name, const char* where)
  {
    status result      = status::error(status_code::cuda_error, "%s: %s (CUDA error %d)", where, name, error);
    result.cuda_error_ = error;
    return result;
  }

  /// True for success.
  bool ok() const
  {
    return code_ == status_code::success;
  }
  /// The same as ok().
  explicit operator bool() const
  {
    return ok();
  }
  /// The coarse reason.
  status_code code() const
  {
    return code_;
  }
  /// The cudaError_t as int where code() is cuda_error, else 0.
  int cuda_error() const
  {
    return cuda_error_;
  }
  /// A sentence that names the argument and the rule; empty for success.
  const char* message() const
  {
    return message_;
  }

private:
  static constexpr std::size_t capacity = 208;

  status_code code_       = status_code::success;
  int cuda_error_         = 0;
  char message_[capacity] = {};
};

TCONV_NAMESPACE_END
