// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Writes grey PNG images without a library: the pixels stay uncompressed, in "stored" deflate blocks.
/// Formats: PNG (ISO/IEC 15948), zlib (RFC 1950), deflate (RFC 1951).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace example
{
namespace detail
{

inline void append_big_endian(std::string& bytes, std::uint32_t value)
{
  for (int shift = 24; shift >= 0; shift -= 8)
  {
    bytes += static_cast<char>((value >> shift) & 0xffu);
  }
}

/// The checksum behind every chunk of a PNG file.
inline std::uint32_t crc32(const std::string& bytes)
{
  std::uint32_t crc = 0xffffffffu;
  for (const char byte : bytes)
  {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit)
    {
      crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
    }
  }
  return ~crc;
}

/// The checksum behind a zlib stream.
inline std::uint32_t adler32(const std::string& bytes)
{
  std::uint32_t low  = 1;
  std::uint32_t high = 0;
  for (const char byte : bytes)
  {
    low  = (low + static_cast<unsigned char>(byte)) % 65521u;
    high = (high + low) % 65521u;
  }
  return high << 16 | low;
}

/// A zlib stream that holds \p bytes as they are.
inline std::string store(const std::string& bytes)
{
  constexpr std::size_t most_per_block = 65535;

  std::string stream   = "\x78\x01"; // deflate, 32 KiB window, fastest; a multiple of 31 as a big-endian number
  std::size_t position = 0;
  do
  {
    const std::size_t size = std::min(most_per_block, bytes.size() - position);
    const bool last        = position + size == bytes.size();
    stream += static_cast<char>(last ? 1 : 0);
    for (const std::size_t length : {size, ~size}) // the length in little endian, and its complement
    {
      stream += static_cast<char>(length & 0xffu);
      stream += static_cast<char>((length >> 8) & 0xffu);
    }
    stream.append(bytes, position, size);
    position += size;
  } while (position < bytes.size());
  append_big_endian(stream, adler32(bytes));
  return stream;
}

/// Length, type, data, checksum of type and data.
inline std::string png_chunk(const char* type, const std::string& data)
{
  std::string chunk;
  append_big_endian(chunk, static_cast<std::uint32_t>(data.size()));
  const std::string checked = type + data;
  chunk += checked;
  append_big_endian(chunk, crc32(checked));
  return chunk;
}

} // namespace detail

/// Writes \p pixels [height, width], 0 black to 255 white, to \p path. Returns "" or what is wrong.
[[nodiscard]] inline std::string
write_png(const std::string& path, const std::vector<std::uint8_t>& pixels, std::int64_t height, std::int64_t width)
{
  // A PNG chunk holds less than 2 GiB; half of that leaves room for what is around the pixels.
  constexpr std::int64_t most = std::int64_t{1} << 30;
  if (height < 1 || width < 1 || height > most / (width + 1))
  {
    return path + ": an image of " + std::to_string(width) + " x " + std::to_string(height) + " cannot be written";
  }
  if (pixels.size() != static_cast<std::size_t>(height * width))
  {
    return path + ": " + std::to_string(pixels.size()) + " pixels do not fill " + std::to_string(width) + " x "
         + std::to_string(height);
  }

  std::string header;
  detail::append_big_endian(header, static_cast<std::uint32_t>(width));
  detail::append_big_endian(header, static_cast<std::uint32_t>(height));
  header.append({8, 0, 0, 0, 0}); // bits per sample, grey, deflate, the standard filters, not interlaced

  std::string rows;
  rows.reserve(static_cast<std::size_t>(height * (width + 1)));
  for (std::int64_t y = 0; y < height; ++y)
  {
    rows += '\0'; // this row is not filtered
    rows.append(reinterpret_cast<const char*>(pixels.data()) + y * width, static_cast<std::size_t>(width));
  }

  std::ofstream file(path, std::ios::binary);
  file << "\x89PNG\r\n\x1a\n"
       << detail::png_chunk("IHDR", header) << detail::png_chunk("IDAT", detail::store(rows))
       << detail::png_chunk("IEND", "");
  file.close();
  return file ? "" : path + ": cannot be written";
}

} // namespace example
