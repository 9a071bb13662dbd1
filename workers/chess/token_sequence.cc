#include "workers/chess/token_sequence.h"

#include <algorithm>
#include <cstring>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {
namespace {

struct Head {
  TokenSequence::Lineage lineage;
  std::uint32_t tokens;
  std::uint32_t targets;
  std::uint32_t values;
  std::uint32_t blocks;
  std::uint32_t flags;
  std::uint32_t reserved[3];
};
static_assert(sizeof(Head) == 48 && sizeof(TokenSequence::Value) == 16 &&
              sizeof(TokenSequence::Target) == 8 && sizeof(TokenSequence::Block) == 8);

std::uint64_t bytes_of(const Head& head) noexcept {
  return sizeof head + std::uint64_t{head.values} * sizeof(TokenSequence::Value) +
         std::uint64_t{head.targets} * sizeof(TokenSequence::Target) +
         std::uint64_t{head.blocks} * sizeof(TokenSequence::Block) +
         std::uint64_t{head.tokens} * sizeof(Token);
}

Head head_of(const TokenSequence& sequence) noexcept {
  return {.lineage = sequence.lineage,
          .tokens = static_cast<std::uint32_t>(sequence.tokens.size()),
          .targets = static_cast<std::uint32_t>(sequence.targets.size()),
          .values = static_cast<std::uint32_t>(sequence.values.size()),
          .blocks = static_cast<std::uint32_t>(sequence.blocks.size()),
          .flags = sequence.first_is_not_best ? 1U : 0U,
          .reserved = {}};
}

template <typename T>
void put(const std::vector<T>& list, std::byte*& at) noexcept {
  if (!list.empty()) std::memcpy(at, list.data(), list.size() * sizeof(T));
  at += list.size() * sizeof(T);
}

template <typename T>
void get(std::vector<T>& list, std::uint32_t count, const std::byte*& at) {
  list.resize(count);
  if (count != 0) std::memcpy(list.data(), at, count * sizeof(T));
  at += count * sizeof(T);
}

}  // namespace

std::size_t packed_bytes(const TokenSequence& sequence) noexcept {
  return bytes_of(head_of(sequence));
}

void pack(const TokenSequence& sequence, std::span<std::byte> out) noexcept {
  const Head head = head_of(sequence);
  RF_CHECK(out.size() >= bytes_of(head), out.size(), bytes_of(head));
  std::byte* at = out.data();
  std::memcpy(at, &head, sizeof head);
  at += sizeof head;
  put(sequence.values, at);
  put(sequence.targets, at);
  put(sequence.blocks, at);
  put(sequence.tokens, at);
}

bool unpack(std::span<const std::byte> record, TokenSequence& sequence) {
  Head head{};
  if (record.size() < sizeof head) return false;
  std::memcpy(&head, record.data(), sizeof head);
  if (record.size() != bytes_of(head)) return false;
  sequence.lineage = head.lineage;
  sequence.first_is_not_best = (head.flags & 1) != 0;
  const std::byte* at = record.data() + sizeof head;
  get(sequence.values, head.values, at);
  get(sequence.targets, head.targets, at);
  get(sequence.blocks, head.blocks, at);
  get(sequence.tokens, head.tokens, at);
  const auto inside = [&head](const auto& item) { return item.at < head.tokens; };
  return std::all_of(sequence.values.begin(), sequence.values.end(), inside) &&
         std::all_of(sequence.targets.begin(), sequence.targets.end(), inside) &&
         std::all_of(sequence.blocks.begin(), sequence.blocks.end(),
                     [&head](const TokenSequence::Block& block) {
                       return block.begin <= block.end && block.end <= head.tokens;
                     }) &&
         std::all_of(sequence.tokens.begin(), sequence.tokens.end(),
                     [](Token token) { return token < kChessTokens; });
}

TokenSequence::Lineage packed_lineage(std::span<const std::byte> record) noexcept {
  TokenSequence::Lineage lineage;
  if (record.size() >= sizeof(Head)) std::memcpy(&lineage, record.data(), sizeof lineage);
  return lineage;
}

void set_variation_epoch(std::span<std::byte> record, std::uint32_t epoch) noexcept {
  RF_CHECK(record.size() >= sizeof(Head), record.size());
  std::memcpy(
      record.data() + offsetof(Head, lineage) + offsetof(TokenSequence::Lineage, variation_epoch),
      &epoch, sizeof epoch);
}

}  // namespace ringfeed::formats
