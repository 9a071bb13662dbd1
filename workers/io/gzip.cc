#include "workers/io/gzip.h"

#include <fmt/format.h>
#include <isa-l/crc.h>
#include <libdeflate.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "workers/io/deflate_walk.h"

namespace ringfeed::formats {

namespace {

constexpr std::size_t kHeaderBytesMin = 10;
constexpr std::size_t kTrailerBytes = 8;
// Deflate cannot expand beyond 1032 : 1, so a trailer that claims more is a lie and reserves
// nothing.
constexpr std::size_t kExpansionMax = 1032;
constexpr std::size_t kBufferBytesMin = std::size_t{64} << 10;
// The walk that tells "cut short" from "damaged" runs at some 30 MB/s: longer members are called
// damaged without it.
constexpr std::size_t kWalkedBytesMax = std::size_t{8} << 20;

std::uint32_t load_u32(const std::byte* at) noexcept {
  std::uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Inflates the one member at the front of `input`.
struct Member {
  GzipStatus status;
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
};
Member inflate_member(libdeflate_decompressor* decompressor, std::span<const std::byte> input,
                      std::span<std::byte> output) noexcept {
  const GzipHeader header = read_gzip_header(input);
  if (header.status != GzipStatus::kOk) return {header.status};
  const std::span<const std::byte> stream = input.subspan(header.bytes);
  // An empty span may have no address, and the decoder does arithmetic on it.
  std::byte nowhere{};
  std::byte* to = output.empty() ? &nowhere : output.data();
  std::size_t stream_bytes = 0;
  std::size_t output_bytes = 0;
  switch (libdeflate_deflate_decompress_ex(decompressor, stream.data(), stream.size(), to,
                                           output.size(), &stream_bytes, &output_bytes)) {
    case LIBDEFLATE_SUCCESS:
      break;
    case LIBDEFLATE_INSUFFICIENT_SPACE:
      return {GzipStatus::kTooLarge};
    default:
      if (stream.size() > kWalkedBytesMax) return {GzipStatus::kBadData};
      return {walk_deflate(stream) == DeflateEnd::kRanOut ? GzipStatus::kTruncated
                                                          : GzipStatus::kBadData};
  }
  if (stream.size() - stream_bytes < kTrailerBytes) return {GzipStatus::kTruncated};
  const std::byte* trailer = stream.data() + stream_bytes;
  // Not libdeflate's, which takes half as long as inflating: with wide vectors this one is four
  // times as fast.
  if (load_u32(trailer) !=
      crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(to), output_bytes)) {
    return {GzipStatus::kBadChecksum};
  }
  if (load_u32(trailer + 4) != static_cast<std::uint32_t>(output_bytes)) {
    return {GzipStatus::kBadLength};
  }
  return {GzipStatus::kOk, header.bytes + stream_bytes + kTrailerBytes, output_bytes};
}

}  // namespace

const char* gzip_status_name(GzipStatus status) noexcept {
  switch (status) {
    case GzipStatus::kOk:
      return "ok";
    case GzipStatus::kNotGzip:
      return "not_gzip";
    case GzipStatus::kTruncated:
      return "truncated";
    case GzipStatus::kBadHeader:
      return "bad_header";
    case GzipStatus::kBadData:
      return "bad_data";
    case GzipStatus::kBadChecksum:
      return "bad_checksum";
    case GzipStatus::kBadLength:
      return "bad_length";
    case GzipStatus::kTooLarge:
      return "too_large";
    case GzipStatus::kNoMemory:
      return "no_memory";
  }
  return "unknown";
}

std::string gzip_outcome_text(const GzipOutcome& outcome, std::size_t limit_bytes) {
  const auto member = [&outcome] {
    return fmt::format("gzip member {} at byte {}", outcome.member_count + 1, outcome.input_offset);
  };
  switch (outcome.status) {
    case GzipStatus::kOk:
      return fmt::format("{} bytes from {} gzip members", outcome.inflated_bytes,
                         outcome.member_count);
    case GzipStatus::kNotGzip:
      return "it does not begin like a gzip file (1f 8b), although its name says so";
    case GzipStatus::kTruncated:
      return fmt::format("{} is truncated: fetch the file again", member());
    case GzipStatus::kBadHeader:
      return fmt::format(
          "{} has an unknown kind of header, or one with another checksum: damaged; fetch the file "
          "again",
          member());
    case GzipStatus::kBadData:
      return fmt::format("{} is not a valid deflate stream: damaged; fetch the file again",
                         member());
    case GzipStatus::kBadChecksum:
      return fmt::format("{} inflates to bytes with another CRC-32: damaged; fetch the file again",
                         member());
    case GzipStatus::kBadLength:
      return fmt::format(
          "{} inflates to another length than it claims: damaged; fetch the file again", member());
    case GzipStatus::kTooLarge:
      return fmt::format("{} inflates to more than {} bytes: no game is that long; remove the file",
                         member(), limit_bytes);
    case GzipStatus::kNoMemory:
      return fmt::format("no memory to inflate {}: run fewer lanes or on a larger machine",
                         member());
  }
  return "unknown reason";
}

bool is_gzip(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1F} && bytes[1] == std::byte{0x8B};
}

GzipHeader read_gzip_header(std::span<const std::byte> bytes) noexcept {
  if (!is_gzip(bytes)) return {GzipStatus::kNotGzip};
  if (bytes.size() < kHeaderBytesMin) return {GzipStatus::kTruncated};
  constexpr unsigned kHeaderCrc = 2;
  constexpr unsigned kExtra = 4;
  constexpr unsigned kName = 8;
  constexpr unsigned kComment = 16;
  constexpr unsigned kReserved = 0xE0;
  const auto flags = std::to_integer<unsigned>(bytes[3]);
  if (bytes[2] != std::byte{8} || (flags & kReserved) != 0) return {GzipStatus::kBadHeader};
  std::size_t at = kHeaderBytesMin;
  if ((flags & kExtra) != 0) {
    if (bytes.size() < at + 2) return {GzipStatus::kTruncated};
    at += 2 + std::to_integer<std::size_t>(bytes[at]) +
          256 * std::to_integer<std::size_t>(bytes[at + 1]);
  }
  for (const unsigned text : {kName, kComment}) {
    if ((flags & text) == 0) continue;
    while (at < bytes.size() && bytes[at] != std::byte{0}) ++at;
    ++at;
  }
  if ((flags & kHeaderCrc) != 0) at += 2;
  if (at > bytes.size()) return {GzipStatus::kTruncated};
  if ((flags & kHeaderCrc) != 0) {
    const std::uint32_t sum =
        crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), at - 2);
    const auto said = std::to_integer<std::uint32_t>(bytes[at - 2]) |
                      std::to_integer<std::uint32_t>(bytes[at - 1]) << 8;
    if (said != (sum & 0xFFFF)) return {GzipStatus::kBadHeader};
  }
  return {GzipStatus::kOk, at};
}

std::uint32_t gzip_uncompressed_bytes(std::span<const std::byte, 4> trailer) noexcept {
  return load_u32(trailer.data());
}

void GzipInflater::FreeDecompressor::operator()(libdeflate_decompressor* it) const noexcept {
  libdeflate_free_decompressor(it);
}
void GzipInflater::FreeBuffer::operator()(std::byte* buffer) const noexcept { std::free(buffer); }

GzipInflater::GzipInflater(std::size_t inflated_bytes_max) noexcept
    : decompressor_(libdeflate_alloc_decompressor()), inflated_bytes_max_(inflated_bytes_max) {}
GzipInflater::~GzipInflater() = default;

// Keeps what is in the buffer.
bool GzipInflater::grow(std::size_t bytes) noexcept {
  if (bytes <= buffer_bytes_) return true;
  auto* larger = static_cast<std::byte*>(std::realloc(buffer_.get(), bytes));
  if (larger == nullptr) return false;
  static_cast<void>(buffer_.release());  // realloc has freed it
  buffer_.reset(larger);
  buffer_bytes_ = bytes;
  return true;
}

GzipOutcome GzipInflater::inflate_into(std::span<const std::byte> input,
                                       std::span<std::byte> output) noexcept {
  GzipOutcome outcome;
  if (decompressor_ == nullptr) {
    outcome.status = GzipStatus::kNoMemory;
    return outcome;
  }
  for (std::size_t begin = 0;;) {
    outcome.input_offset = begin;
    const Member member = inflate_member(decompressor_.get(), input.subspan(begin),
                                         output.subspan(outcome.inflated_bytes));
    outcome.status = member.status;
    if (member.status != GzipStatus::kOk) return outcome;
    ++outcome.member_count;
    outcome.input_offset += member.input_bytes;
    outcome.inflated_bytes += member.output_bytes;
    begin = outcome.input_offset;
    while (begin < input.size() && input[begin] == std::byte{0}) ++begin;
    if (is_gzip(input.subspan(begin))) continue;
    outcome.trailing_bytes = input.size() - begin;
    return outcome;
  }
}

GzipOutcome GzipInflater::inflate(std::span<const std::byte> input,
                                  std::span<const std::byte>* inflated) noexcept {
  *inflated = {};
  std::size_t wanted = kBufferBytesMin;
  if (input.size() >= kTrailerBytes) {
    const std::size_t said = gzip_uncompressed_bytes(input.last<4>());
    // One byte more, so that a stream that is longer than it says is found out at once.
    wanted = std::max(wanted, std::min(said + 1, input.size() * kExpansionMax));
  }
  if (!grow(std::min(wanted, inflated_bytes_max_))) return {.status = GzipStatus::kNoMemory};
  while (true) {
    // The whole input again after growing: it happens for lying trailers and joined members, not
    // for games.
    const std::span<std::byte> room(buffer_.get(), std::min(buffer_bytes_, inflated_bytes_max_));
    const GzipOutcome outcome = inflate_into(input, room);
    if (outcome.status != GzipStatus::kTooLarge || buffer_bytes_ >= inflated_bytes_max_) {
      if (outcome.ok()) *inflated = room.first(outcome.inflated_bytes);
      return outcome;
    }
    const std::size_t larger =
        buffer_bytes_ > inflated_bytes_max_ / 2 ? inflated_bytes_max_ : 2 * buffer_bytes_;
    if (!grow(larger)) {
      GzipOutcome refused = outcome;
      refused.status = GzipStatus::kNoMemory;
      return refused;
    }
  }
}

GzipOutcome GzipInflater::inflate_or_verbatim(std::span<const std::byte> input,
                                              std::span<const std::byte>* bytes) noexcept {
  if (is_gzip(input)) return inflate(input, bytes);
  *bytes = input;
  return {.status = GzipStatus::kOk, .inflated_bytes = input.size(), .input_offset = input.size()};
}

}  // namespace ringfeed::formats
