// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The partition of a workspace, described once: the size query and the run build the same layout.

#include "../options.hpp"
#include "../status.hpp"

TCONV_NAMESPACE_BEGIN

namespace detail
{

/// Hands out 256-byte aligned pieces of a workspace, in order.
class workspace_layout
{
public:
  static constexpr int64_t alignment = 256;

  /// A typed piece; get() turns it into a pointer once the workspace is known.
  template <class T>
  struct piece
  {
    int64_t offset = 0;
    T* get(const workspace& w) const { return reinterpret_cast<T*>(static_cast<char*>(w.data) + offset); }
  };

  /// Reserves \p count elements.
  template <class T>
  piece<T> add(int64_t count)
  {
    const piece<T> result{bytes_};
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + alignment - 1) / alignment * alignment;
    return result;
  }

  std::size_t bytes() const { return static_cast<std::size_t>(bytes_); }

  /// Checks the user's workspace against this layout.
  [[nodiscard]] status check(const workspace& w) const
  {
    if (bytes_ == 0)
    {
      return {};
    }
    if (w.data == nullptr || w.bytes < bytes())
    {
      return status::error(status_code::workspace_too_small,
                           "workspace: %llu bytes at %p, but this call needs %llu",
                           static_cast<unsigned long long>(w.bytes),
                           w.data,
                           static_cast<unsigned long long>(bytes()));
    }
    if (reinterpret_cast<std::uintptr_t>(w.data) % alignment != 0)
    {
      return status::error(status_code::workspace_misaligned,
                           "workspace: %p does not start on a multiple of %d bytes",
                           w.data,
                           static_cast<int>(alignment));
    }
    return {};
  }

private:
  int64_t bytes_ = 0;
};

} // namespace detail

TCONV_NAMESPACE_END
