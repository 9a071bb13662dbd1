// All directions of a corpus of parallel text, as bitext_source has found them
// (proto/stages/bitext.proto).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "workers/bitext/batch_plan.h"
#include "workers/bitext/bitext_sampling.h"

namespace ringfeed {

struct BitextFiles {
  std::string source;  // path without .bin and .idx
  std::string target;
  std::uint64_t sentences = 0;
  std::uint32_t repeat = 1;
  std::uint32_t source_tag = formats::kNoToken;
  std::uint32_t number = 0;  // among all of the corpus
  // How much longer sentences become by what is put before them, on each side.
  std::uint32_t source_more = 0;
  std::uint32_t target_more = 0;
  std::uint32_t encoder_token = formats::kNoToken;
  std::uint32_t decoder_token = formats::kNoToken;
  std::uint32_t truncate_source = 0;
  std::uint32_t source_symbols = 0;  // ids are below this; 0: nobody knows
  std::uint32_t target_symbols = 0;
  bool replaces_eos = false;
  [[nodiscard]] std::uint64_t counted() const noexcept { return sentences * repeat; }
};
using BitextShard = std::vector<BitextFiles>;

struct CorpusDirection {
  std::string key;
  std::vector<BitextShard> shards = {};
  std::uint32_t source_lang_id = 0;
  std::uint32_t target_lang_id = 0;
};

class BitextCatalogue {
 public:
  std::vector<CorpusDirection> directions;
  std::uint32_t files = 0;  // pairs of them

  // Takes a serialized BitextDirection in. False: it is none, or does not fit those before it.
  [[nodiscard]] bool add(std::span<const std::byte> message);
  // Have the records of all directions and shards come?
  [[nodiscard]] bool complete() const noexcept;
  [[nodiscard]] std::vector<formats::ShardSizes> sizes() const;

 private:
  std::uint64_t expected_ = 0;  // records, of the directions that have been heard of
  std::uint64_t added_ = 0;
};

}  // namespace ringfeed
