#include "workers/io/deflate_walk.h"

#include <array>
#include <cstdint>

namespace ringfeed::formats {

namespace {

constexpr std::size_t kCodeBitsMax = 15;
constexpr std::size_t kLiteralSymbols = 288;
constexpr std::size_t kDistanceSymbols = 32;

// Reads bits from the lowest of each byte on; past the end it gives zeros and remembers that it
// did.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  std::uint32_t bits(unsigned count) noexcept {
    std::uint32_t value = 0;
    for (unsigned i = 0; i < count; ++i) value |= bit() << i;
    return value;
  }
  std::uint32_t bit() noexcept {
    if (next_bit_ >= bytes_.size() * 8) {
      ran_out_ = true;
      return 0;
    }
    const auto byte = std::to_integer<std::uint32_t>(bytes_[next_bit_ / 8]);
    const std::uint32_t value = (byte >> (next_bit_ % 8)) & 1;
    ++next_bit_;
    return value;
  }
  void to_next_byte() noexcept { next_bit_ = (next_bit_ + 7) / 8 * 8; }
  void skip_bytes(std::size_t count) noexcept {
    if (count > bytes_.size() - next_bit_ / 8) {
      ran_out_ = true;
      return;
    }
    next_bit_ += 8 * count;
  }
  [[nodiscard]] bool ran_out() const noexcept { return ran_out_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t next_bit_ = 0;
  bool ran_out_ = false;
};

// A canonical prefix code: how many codes of each length, and the symbols in code order.
struct PrefixCode {
  std::array<std::uint16_t, kCodeBitsMax + 1> count{};
  std::array<std::uint16_t, kLiteralSymbols> symbol{};

  // False if the lengths claim more codes than there are. A code with unused room is left to
  // decode(), which refuses the bits that no symbol has.
  bool build(std::span<const std::uint8_t> lengths) noexcept {
    count.fill(0);
    for (const std::uint8_t length : lengths) ++count[length];
    count[0] = 0;
    int room = 1;
    for (std::size_t length = 1; length <= kCodeBitsMax; ++length) {
      room = 2 * room - count[length];
      if (room < 0) return false;
    }
    std::array<std::uint16_t, kCodeBitsMax + 2> next{};
    for (std::size_t length = 1; length <= kCodeBitsMax; ++length) {
      next[length + 1] = static_cast<std::uint16_t>(next[length] + count[length]);
    }
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      if (lengths[s] != 0) symbol[next[lengths[s]]++] = static_cast<std::uint16_t>(s);
    }
    return true;
  }

  // The next symbol, or -1 for bits that are no code.
  int decode(BitReader& in) const noexcept {
    int code = 0;
    int first = 0;
    int index = 0;
    for (std::size_t length = 1; length <= kCodeBitsMax; ++length) {
      code |= static_cast<int>(in.bit());
      const int here = count[length];
      if (code - first < here) return symbol[static_cast<std::size_t>(index + code - first)];
      index += here;
      first = 2 * (first + here);
      code *= 2;
    }
    return -1;
  }
};

constexpr std::array<std::uint16_t, 29> kLengthBase = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                                       15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                                       67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr std::array<std::uint8_t, 29> kLengthExtraBits = {
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr std::array<std::uint8_t, 19> kCodeLengthOrder = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                           11, 4,  12, 3, 13, 2, 14, 1, 15};

// Distances: pairs of symbols share a number of extra bits; base 1, 2, 3, 4, 5, 7, 9, 13, ...
std::uint32_t distance_of(unsigned symbol, BitReader& in) noexcept {
  if (symbol < 4) return symbol + 1;
  const unsigned extra_bits = symbol / 2 - 1;
  return ((2 + symbol % 2) << extra_bits) + 1 + in.bits(extra_bits);
}

// Reads the two codes of a dynamic block. False for lengths that no encoder writes.
bool read_codes(BitReader& in, PrefixCode& literals, PrefixCode& distances) noexcept {
  const std::size_t literal_count = in.bits(5) + 257;
  const std::size_t distance_count = in.bits(5) + 1;
  const std::size_t length_count = in.bits(4) + 4;
  if (literal_count > 286) return false;
  std::array<std::uint8_t, 19> code_lengths{};
  for (std::size_t i = 0; i < length_count; ++i) {
    code_lengths[kCodeLengthOrder[i]] = static_cast<std::uint8_t>(in.bits(3));
  }
  PrefixCode lengths_code;
  if (!lengths_code.build(code_lengths)) return false;
  std::array<std::uint8_t, kLiteralSymbols + kDistanceSymbols> lengths{};
  const std::size_t total = literal_count + distance_count;
  for (std::size_t i = 0; i < total;) {
    const int symbol = lengths_code.decode(in);
    if (symbol < 0) return false;
    if (symbol < 16) {
      lengths[i++] = static_cast<std::uint8_t>(symbol);
      continue;
    }
    if (symbol == 16 && i == 0) return false;
    const std::uint8_t repeated = symbol == 16 ? lengths[i - 1] : std::uint8_t{0};
    std::size_t times = symbol == 16   ? 3 + in.bits(2)
                        : symbol == 17 ? 3 + in.bits(3)
                                       : 11 + in.bits(7);
    if (times > total - i) return false;
    for (; times > 0; --times) lengths[i++] = repeated;
  }
  const std::span<const std::uint8_t> all(lengths);
  return literals.build(all.first(literal_count)) &&
         distances.build(all.subspan(literal_count, distance_count));
}

void fixed_codes(PrefixCode& literals, PrefixCode& distances) noexcept {
  std::array<std::uint8_t, kLiteralSymbols> lengths{};
  for (std::size_t s = 0; s < kLiteralSymbols; ++s) {
    lengths[s] = s < 144 ? 8 : s < 256 ? 9 : s < 280 ? 7 : 8;
  }
  literals.build(lengths);
  std::array<std::uint8_t, kDistanceSymbols> distance_lengths{};
  distance_lengths.fill(5);
  distances.build(distance_lengths);
}

// False for a symbol that no encoder writes; true at the block's end or when the input has run out.
bool walk_block(BitReader& in, const PrefixCode& literals, const PrefixCode& distances,
                std::uint64_t& output_bytes) noexcept {
  while (!in.ran_out()) {
    const int symbol = literals.decode(in);
    if (symbol < 0) return false;
    if (symbol == 256) return true;
    if (symbol < 256) {
      ++output_bytes;
      continue;
    }
    const auto length_index = static_cast<std::size_t>(symbol - 257);
    if (length_index >= kLengthBase.size()) return false;
    const std::uint32_t length =
        kLengthBase[length_index] + in.bits(kLengthExtraBits[length_index]);
    const int distance_symbol = distances.decode(in);
    if (distance_symbol < 0 || distance_symbol >= 30) return false;
    const std::uint32_t distance = distance_of(static_cast<unsigned>(distance_symbol), in);
    if (distance > output_bytes) return false;
    output_bytes += length;
  }
  return true;
}

}  // namespace

DeflateEnd walk_deflate(std::span<const std::byte> stream) noexcept {
  BitReader in(stream);
  PrefixCode literals;
  PrefixCode distances;
  std::uint64_t output_bytes = 0;
  // Zeros read past the end may look like anything, so whether the input ran out is asked before
  // every refusal.
  const auto refused = [&in] { return in.ran_out() ? DeflateEnd::kRanOut : DeflateEnd::kInvalid; };
  while (true) {
    const bool last = in.bit() != 0;
    switch (in.bits(2)) {
      case 0: {
        in.to_next_byte();
        const std::uint32_t length = in.bits(16);
        const std::uint32_t complement = in.bits(16);
        if ((length ^ complement) != 0xFFFF) return refused();
        in.skip_bytes(length);
        output_bytes += length;
        break;
      }
      case 1:
        fixed_codes(literals, distances);
        if (!walk_block(in, literals, distances, output_bytes)) return refused();
        break;
      case 2:
        if (!read_codes(in, literals, distances)) return refused();
        if (!walk_block(in, literals, distances, output_bytes)) return refused();
        break;
      default:
        return refused();
    }
    if (in.ran_out()) return DeflateEnd::kRanOut;
    if (last) return DeflateEnd::kFinished;
  }
}

}  // namespace ringfeed::formats
