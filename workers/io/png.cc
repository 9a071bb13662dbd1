#include "workers/io/png.h"

#include <libdeflate.h>

#include <array>
#include <cstring>
#include <memory>
#include <string_view>

namespace ringfeed::formats {
namespace {

constexpr int kLevel = 6;
constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 30;

void put_number(std::string& out, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
}

// Length, type, data, CRC of type and data.
void put_chunk(std::string& out, std::string_view type, std::string_view data) {
  put_number(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = out.size();
  out += type;
  out += data;
  put_number(out, libdeflate_crc32(0, out.data() + begin, out.size() - begin));
}

}  // namespace

Result<std::string> encode_png(const Pixels& pixels) {
  constexpr std::array<char, 5> kColourTypes{0, 0, 4, 2, 6};  // by channels
  const std::uint64_t line = std::uint64_t{pixels.width} * pixels.channels;
  if (pixels.width == 0 || pixels.height == 0 || pixels.channels == 0 || pixels.channels > 4 ||
      line > kBytesMax || line * pixels.height > kBytesMax ||
      line * pixels.height != pixels.bytes.size()) {
    return Error(ErrorCode::kInvalidArgument, "no picture has these sizes");
  }
  // Each line begins with its filter: none.
  std::string lines;
  lines.reserve((line + 1) * pixels.height);
  for (std::uint64_t y = 0; y < pixels.height; ++y) {
    lines += '\0';
    lines.append(reinterpret_cast<const char*>(pixels.bytes.data()) + y * line, line);
  }
  const std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)> compressor(
      libdeflate_alloc_compressor(kLevel), &libdeflate_free_compressor);
  if (compressor == nullptr) return Error(ErrorCode::kNoMemory, "no memory to pack a picture");
  std::string packed(libdeflate_zlib_compress_bound(compressor.get(), lines.size()), '\0');
  packed.resize(libdeflate_zlib_compress(compressor.get(), lines.data(), lines.size(),
                                         packed.data(), packed.size()));
  std::string header;
  put_number(header, pixels.width);
  put_number(header, pixels.height);
  header += '\x08';  // bits of a channel
  header += kColourTypes[pixels.channels];
  header.append(3, '\0');  // deflate, filters of lines, not interlaced
  std::string out{"\x89PNG\r\n\x1a\n", 8};
  put_chunk(out, "IHDR", header);
  put_chunk(out, "IDAT", packed);
  put_chunk(out, "IEND", {});
  return out;
}

}  // namespace ringfeed::formats
