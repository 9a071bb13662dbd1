// TarMaker: tars of every dialect and with every kind of damage, block by block.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringfeed::testing {

enum class TarDialect { kV7, kUstar, kGnu, kStar };
// How a size is written: "00000000012\0", "00000000012 ", "000000000012", "         12 ", base-256,
// or not at all.
enum class SizeStyle { kNul, kSpace, kTwelveDigits, kSpacesFirst, kBase256, kBlank };

struct TarHeader {
  std::string name;
  std::uint64_t size = 0;
  char type = '0';
  TarDialect dialect = TarDialect::kUstar;
  SizeStyle size_style = SizeStyle::kNul;
  std::string prefix = {};
  bool signed_sum = false;
};

class TarMaker {
 public:
  static constexpr std::size_t kBlock = 512;

  // A member: header, data, padding. Returns the offset of its header.
  std::size_t add(TarHeader header, std::string_view data) {
    header.size = data.size();
    const std::size_t offset = add_header(header);
    add_data(data);
    return offset;
  }
  template <std::convertible_to<std::string_view> Name>
  std::size_t add(const Name& name, std::string_view data) {
    return add(TarHeader{.name = std::string(std::string_view(name))}, data);
  }

  // A header alone, with whatever size it claims.
  std::size_t add_header(const TarHeader& header) {
    std::string block(kBlock, '\0');
    const auto put = [&block](std::size_t offset, std::string_view text) {
      text.copy(block.data() + offset, text.size());
    };
    put(0, std::string_view(header.name).substr(0, 100));
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, size_field(header));
    put(136, "14760534700");
    block[156] = header.type;
    switch (header.dialect) {
      case TarDialect::kV7:
        break;
      case TarDialect::kGnu:
        put(257, "ustar  ");
        put(345, "14760534700");  // access time, where ustar has its prefix
        break;
      case TarDialect::kStar:
        put(508, "tar");
        put(476, "14760534700");  // access time, in the last part of ustar's prefix
        [[fallthrough]];
      case TarDialect::kUstar:
        put(257, std::string_view("ustar\0"
                                  "00",
                                  8));
        put(345, header.prefix);
        break;
    }
    seal(block, header.signed_sum);
    return add_bytes(block);
  }

  // Data with its padding to whole blocks.
  std::size_t add_data(std::string_view data) {
    const std::size_t offset = add_bytes(data);
    bytes_.resize((bytes_.size() + kBlock - 1) / kBlock * kBlock, '\0');
    return offset;
  }
  std::size_t add_bytes(std::string_view bytes) {
    const std::size_t offset = bytes_.size();
    bytes_ += bytes;
    return offset;
  }

  // A pax header with these records; type x for the next member, g for all that follow.
  std::size_t add_pax(const std::vector<std::pair<std::string, std::string>>& records,
                      char type = 'x') {
    std::string payload;
    for (const auto& [key, value] : records) payload += pax_record(key, value);
    return add({.name = "PaxHeader/next", .type = type}, payload);
  }
  // A GNU long name (L) or long link target (K).
  std::size_t add_long(const std::string& text, char type = 'L') {
    return add({.name = "././@LongLink", .type = type, .dialect = TarDialect::kGnu}, text + '\0');
  }

  TarMaker& end(std::size_t zero_blocks = 2) {
    bytes_.append(zero_blocks * kBlock, '\0');
    return *this;
  }

  // Changes a byte without repairing any checksum.
  void damage(std::size_t offset) { bytes_[offset] = static_cast<char>(bytes_[offset] ^ 0x55); }
  void cut(std::size_t bytes) { bytes_.resize(bytes); }
  // Recomputes the checksum of the header at `offset`.
  void seal_at(std::size_t offset) {
    std::string block = bytes_.substr(offset, kBlock);
    seal(block, false);
    bytes_.replace(offset, kBlock, block);
  }

  [[nodiscard]] std::string& text() { return bytes_; }
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(bytes_));
  }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }

  // "length key=value\n", the length counting its own digits.
  static std::string pax_record(const std::string& key, const std::string& value) {
    const std::string rest = " " + key + "=" + value + "\n";
    std::size_t length = rest.size();
    while (std::to_string(length).size() + rest.size() != length) {
      length = std::to_string(length).size() + rest.size();
    }
    return std::to_string(length) + rest;
  }

 private:
  static std::string size_field(const TarHeader& header) {
    char text[32];
    const auto size = static_cast<unsigned long long>(header.size);
    switch (header.size_style) {
      case SizeStyle::kNul:
        std::snprintf(text, sizeof text, "%011llo", size);
        return {text, 12};
      case SizeStyle::kSpace:
        std::snprintf(text, sizeof text, "%011llo ", size);
        return text;
      case SizeStyle::kTwelveDigits:
        std::snprintf(text, sizeof text, "%012llo", size);
        return text;
      case SizeStyle::kSpacesFirst:
        std::snprintf(text, sizeof text, "%11llo ", size);
        return text;
      case SizeStyle::kBase256: {
        std::string binary(12, '\0');
        binary[0] = static_cast<char>(0x80);
        for (std::size_t i = 0; i < 8; ++i) {
          binary[11 - i] = static_cast<char>(size >> (8 * i) & 0xFF);
        }
        return binary;
      }
      case SizeStyle::kBlank:
        return std::string(12, '\0');
    }
    return {};
  }

  static void seal(std::string& block, bool signed_sum) {
    std::fill_n(block.begin() + 148, 8, ' ');
    long sum = 0;
    for (const char c : block) {
      sum += signed_sum ? static_cast<long>(static_cast<signed char>(c))
                        : static_cast<long>(static_cast<unsigned char>(c));
    }
    char text[32];
    std::snprintf(text, sizeof text, "%06lo", static_cast<unsigned long>(sum));
    std::memcpy(block.data() + 148, text, 7);  // digits and a NUL; the last space stays
  }

  std::string bytes_;
};

}  // namespace ringfeed::testing
