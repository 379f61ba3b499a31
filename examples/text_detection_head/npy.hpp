// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Reads and writes NumPy's .npy files, as far as the example needs them: little-endian float32 in C order, format 1.0
/// or 2.0. Anything else is refused with a sentence that says why. For a little-endian host, like every one that CUDA
/// supports.
/// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace example
{

/// A packed array. data.size() is the product of shape, which is 1 for the empty shape.
struct tensor
{
  std::vector<std::int64_t> shape;
  std::vector<float> data;
};

/// "[1, 24, 60, 156]"
inline std::string to_string(const std::vector<std::int64_t>& shape)
{
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
  {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

namespace detail
{

inline constexpr char npy_magic[]           = "\x93NUMPY";
inline constexpr std::size_t npy_magic_size = sizeof(npy_magic) - 1;

/// Elements in \p shape, or false where an extent is negative or the bytes would not fit in 63 bits.
inline bool count_elements(const std::vector<std::int64_t>& shape, std::int64_t& count)
{
  // Extents of 0 must not hide an overflow behind them: the product of the others is checked as well.
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(sizeof(float));
  std::int64_t product        = 1;
  bool empty                  = false;
  for (const std::int64_t extent : shape)
  {
    if (extent < 0 || (extent > 0 && product > most / extent))
    {
      return false;
    }
    empty   = empty || extent == 0;
    product = extent == 0 ? product : product * extent;
  }
  count = empty ? 0 : product;
  return true;
}

/// \p text in quotes, safe to print whatever the file holds.
inline std::string quoted(std::string text)
{
  for (char& c : text)
  {
    c = c >= ' ' && c <= '~' ? c : '?';
  }
  return "'" + text + "'";
}

/// Reads the header: a Python dictionary with exactly the keys 'descr', 'fortran_order' and 'shape', in any order.
class npy_header_parser
{
public:
  explicit npy_header_parser(std::string text) : text_(std::move(text)) {}

  /// "" and the shape, or what is wrong.
  std::string parse(std::vector<std::int64_t>& shape)
  {
    bool seen_descr = false;
    bool seen_order = false;
    bool seen_shape = false;
    if (!take('{'))
    {
      return "the header is not a dictionary";
    }
    while (!take('}'))
    {
      std::string key;
      std::string value;
      if (!take_string(key) || !take(':'))
      {
        return "the header is malformed";
      }
      if (key == "descr" && !seen_descr)
      {
        seen_descr = true;
        // A structured type would be a list here.
        if (!take_string(value) || value != "<f4")
        {
          return "the element type is not little-endian float32 ('<f4')"
               + (value.empty() ? "" : ", but " + quoted(value));
        }
      }
      else if (key == "fortran_order" && !seen_order)
      {
        seen_order = true;
        if (!take_word("False"))
        {
          return "the array is not in C order (fortran_order is not False)";
        }
      }
      else if (key == "shape" && !seen_shape)
      {
        seen_shape = true;
        if (!take_shape(shape))
        {
          return "the shape is not a tuple of extents that fit 63 bits";
        }
      }
      else
      {
        return "the header has an unexpected or repeated key " + quoted(key);
      }
      if (!take(',') && peek() != '}')
      {
        return "the header is malformed";
      }
    }
    if (!seen_descr || !seen_order || !seen_shape)
    {
      return "the header lacks descr, fortran_order or shape";
    }
    return peek() == '\0' && position_ == text_.size() ? "" : "something follows the header's dictionary";
  }

private:
  /// The next character that is no white space, or 0 at the end.
  char peek()
  {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n'))
    {
      ++position_;
    }
    return position_ < text_.size() ? text_[position_] : '\0';
  }

  bool take(char wanted)
  {
    const bool found = peek() == wanted && position_ < text_.size();
    position_ += found ? 1 : 0;
    return found;
  }

  bool take_word(const char* word)
  {
    const std::size_t size = std::strlen(word);
    peek();
    const bool found = text_.compare(position_, size, word) == 0;
    position_ += found ? size : 0;
    return found;
  }

  bool take_string(std::string& value)
  {
    const char quote = peek();
    if (quote != '\'' && quote != '"')
    {
      return false;
    }
    const std::size_t end = text_.find(quote, position_ + 1);
    if (end == std::string::npos)
    {
      return false;
    }
    value     = text_.substr(position_ + 1, end - position_ - 1);
    position_ = end + 1;
    return true;
  }

  bool take_extent(std::int64_t& extent)
  {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    if (peek() < '0' || peek() > '9')
    {
      return false;
    }
    extent = 0;
    for (; position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9'; ++position_)
    {
      const std::int64_t digit = text_[position_] - '0';
      if (extent > (most - digit) / 10)
      {
        return false;
      }
      extent = extent * 10 + digit;
    }
    return true;
  }

  /// (), (3,) or (3, 4)
  bool take_shape(std::vector<std::int64_t>& shape)
  {
    shape.clear();
    if (!take('('))
    {
      return false;
    }
    while (!take(')'))
    {
      std::int64_t extent = 0;
      if (!take_extent(extent))
      {
        return false;
      }
      shape.push_back(extent);
      if (!take(',') && peek() != ')')
      {
        return false;
      }
    }
    return true;
  }

  std::string text_;
  std::size_t position_ = 0;
};

/// Everything from magic to data; \p size is the file's.
inline std::string read_npy(std::istream& file, std::uint64_t size, tensor& result)
{
  unsigned char start[npy_magic_size + 2];
  if (!file.read(reinterpret_cast<char*>(start), sizeof(start)) || std::memcmp(start, npy_magic, npy_magic_size) != 0)
  {
    return "not an .npy file";
  }
  const unsigned major = start[npy_magic_size];
  const unsigned minor = start[npy_magic_size + 1];
  if ((major != 1 && major != 2) || minor != 0)
  {
    return "format " + std::to_string(major) + "." + std::to_string(minor) + " is neither 1.0 nor 2.0";
  }

  const std::size_t length_bytes = major == 1 ? 2 : 4;
  unsigned char length[4]        = {};
  if (!file.read(reinterpret_cast<char*>(length), static_cast<std::streamsize>(length_bytes)))
  {
    return "the file ends inside the header";
  }
  const std::uint32_t header_size = length[0] | static_cast<std::uint32_t>(length[1]) << 8
                                  | static_cast<std::uint32_t>(length[2]) << 16
                                  | static_cast<std::uint32_t>(length[3]) << 24;
  const std::uint64_t before_header = sizeof(start) + length_bytes;
  // Nothing is allocated on the word of a file that is shorter than what it announces.
  if (header_size > size - before_header)
  {
    return "the file ends inside the header";
  }
  std::string header(header_size, '\0');
  if (!file.read(header.data(), static_cast<std::streamsize>(header_size)))
  {
    return "the file ends inside the header";
  }

  tensor read;
  std::int64_t count = 0;
  if (std::string error = npy_header_parser(std::move(header)).parse(read.shape); !error.empty())
  {
    return error;
  }
  if (!count_elements(read.shape, count))
  {
    return "shape " + to_string(read.shape) + " has more bytes than fit 63 bits";
  }
  const std::uint64_t announced = static_cast<std::uint64_t>(count) * sizeof(float);
  const std::uint64_t present   = size - before_header - header_size;
  if (announced != present)
  {
    return "shape " + to_string(read.shape) + " needs " + std::to_string(announced)
         + " bytes of data, but the file has " + std::to_string(present);
  }
  read.data.resize(static_cast<std::size_t>(count));
  if (count > 0 && !file.read(reinterpret_cast<char*>(read.data.data()), static_cast<std::streamsize>(announced)))
  {
    return "the data cannot be read";
  }
  result = std::move(read);
  return "";
}

} // namespace detail

/// Reads \p path into \p result. Returns "" or what is wrong; \p result is then untouched.
[[nodiscard]] inline std::string read_npy(const std::string& path, tensor& result)
{
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0)
  {
    return path + ": cannot be opened";
  }
  file.seekg(0);
  const std::string error = detail::read_npy(file, static_cast<std::uint64_t>(size), result);
  return error.empty() ? "" : path + ": " + error;
}

/// Writes \p array to \p path, in format 1.0. Returns "" or what is wrong.
[[nodiscard]] inline std::string write_npy(const std::string& path, const tensor& array)
{
  std::int64_t count = 0;
  if (!detail::count_elements(array.shape, count) || static_cast<std::uint64_t>(count) != array.data.size())
  {
    return path + ": " + std::to_string(array.data.size()) + " elements do not fill shape " + to_string(array.shape);
  }

  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (const std::int64_t extent : array.shape)
  {
    header += std::to_string(extent) + ", "; // a comma behind the last one too: (3) would be a number, not a tuple
  }
  header += "), }";
  // Spaces up to a multiple of 64, and a line feed as the last character, as the format asks.
  constexpr std::size_t alignment     = 64;
  constexpr std::size_t before_header = detail::npy_magic_size + 4;
  header.append(alignment - 1 - (before_header + header.size()) % alignment, ' ');
  header += '\n';
  if (header.size() > 0xffff)
  {
    return path + ": too many dimensions";
  }

  std::ofstream file(path, std::ios::binary);
  const char version_and_length[4] = {
    1, 0, static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  file.write(detail::npy_magic, static_cast<std::streamsize>(detail::npy_magic_size));
  file.write(version_and_length, sizeof(version_and_length));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(
    reinterpret_cast<const char*>(array.data.data()), static_cast<std::streamsize>(array.data.size() * sizeof(float)));
  file.close();
  return file ? "" : path + ": cannot be written";
}

} // namespace example
