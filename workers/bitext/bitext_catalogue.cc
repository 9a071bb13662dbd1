#include "workers/bitext/bitext_catalogue.h"

#include <algorithm>

#include "proto/stages/bitext.pb.h"

namespace ringfeed {
namespace {

// More would be an error of arithmetic somewhere.
constexpr std::uint64_t kSentencesMax = std::uint64_t{1} << 48;
constexpr std::uint32_t kDirectionsMax = 1U << 20;
constexpr std::uint32_t kShardsMax = 1U << 20;

}  // namespace

bool BitextCatalogue::add(std::span<const std::byte> message) {
  BitextDirection from;
  if (!from.ParseFromArray(message.data(), static_cast<int>(message.size()))) return false;
  if (from.directions() > kDirectionsMax || from.number() >= from.directions() ||
      from.shards() > kShardsMax || from.shard() >= from.shards()) {
    return false;
  }
  if (directions.empty()) directions.resize(from.directions());
  if (directions.size() != from.directions()) return false;
  CorpusDirection& direction = directions[from.number()];
  // Shard after shard: the first one says how many there are.
  if (direction.shards.size() != from.shard()) return false;
  if (from.shard() == 0) {
    direction.key = from.key();
    direction.source_lang_id = from.source_lang_id();
    direction.target_lang_id = from.target_lang_id();
  }
  for (const BitextPart& part : from.parts()) {
    if (part.sentences() > kSentencesMax || part.repeat() == 0) return false;
  }
  BitextShard& shard = direction.shards.emplace_back();
  for (const BitextPart& part : from.parts()) {
    BitextFiles& into = shard.emplace_back();
    into.source = part.source();
    into.target = part.target();
    into.sentences = part.sentences();
    into.repeat = part.repeat();
    if (part.has_source_tag()) into.source_tag = part.source_tag();
    into.number = files++;
    if (from.has_encoder_token()) into.encoder_token = from.encoder_token();
    if (from.has_decoder_token()) into.decoder_token = from.decoder_token();
    into.source_symbols = from.source_symbols();
    into.target_symbols = from.target_symbols();
    into.replaces_eos = from.replaces_eos();
    into.truncate_source = from.truncate_source();
    const auto more = [&](bool there) { return there && !from.replaces_eos() ? 1U : 0U; };
    into.source_more = more(from.has_encoder_token()) + (part.has_source_tag() ? 1U : 0U);
    into.target_more = more(from.has_decoder_token());
  }
  if (from.shard() == 0) expected_ += from.shards();
  ++added_;
  return true;
}

bool BitextCatalogue::complete() const noexcept {
  return !directions.empty() && added_ == expected_ &&
         std::ranges::none_of(directions, [](const auto& d) { return d.shards.empty(); });
}

std::vector<formats::ShardSizes> BitextCatalogue::sizes() const {
  std::vector<formats::ShardSizes> all;
  for (const CorpusDirection& direction : directions) {
    formats::ShardSizes& sizes = all.emplace_back();
    for (const BitextShard& shard : direction.shards) {
      std::uint64_t sum = 0;
      for (const BitextFiles& pair : shard) sum += pair.counted();
      sizes.push_back(sum);
    }
  }
  return all;
}

}  // namespace ringfeed
