// Token files and batch plans for tests and benchmarks.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"
#include "workers/bitext/batch_plan.h"
#include "workers/io/token_file.h"

namespace ringfeed::testing {

using Sentences = std::vector<std::vector<std::int64_t>>;

template <typename T>
void append_value(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  RF_CHECK(out.good(), bytes.size());
}

// PREFIX.bin and PREFIX.idx of these sentences.
inline void write_token_file(const std::string& prefix, const Sentences& sentences,
                             formats::TokenCode code = formats::TokenCode::kUint16,
                             bool legacy = false) {
  const std::uint32_t width = formats::token_bytes(code);
  std::string data;
  std::string sizes;
  std::string places;
  std::uint64_t tokens = 0;
  for (const std::vector<std::int64_t>& sentence : sentences) {
    if (legacy) {
      append_value<std::int64_t>(sizes, static_cast<std::int64_t>(sentence.size()));
      append_value<std::uint64_t>(places, tokens);
    } else {
      append_value<std::int32_t>(sizes, static_cast<std::int32_t>(sentence.size()));
      append_value<std::uint64_t>(places, tokens * width);
    }
    for (const std::int64_t token : sentence) {
      const std::int64_t stored = token + (legacy ? 1 : 0);
      data.append(reinterpret_cast<const char*>(&stored), width);
    }
    tokens += sentence.size();
  }
  std::string index;
  if (legacy) {
    index.assign("TNTIDX\0\0", 8);
    append_value<std::uint64_t>(index, 1);
    append_value<std::uint64_t>(index, static_cast<std::uint64_t>(code));
    append_value<std::uint64_t>(index, width);
    append_value<std::uint64_t>(index, sentences.size());
    append_value<std::uint64_t>(index, sentences.size());
    for (std::uint64_t i = 0; i <= sentences.size(); ++i) append_value<std::uint64_t>(index, i);
    append_value<std::uint64_t>(places, tokens);
    index += places + sizes;
  } else {
    index.assign("MMIDIDX\0\0", 9);
    append_value<std::uint64_t>(index, 1);
    append_value<std::uint8_t>(index, static_cast<std::uint8_t>(code));
    append_value<std::uint64_t>(index, sentences.size());
    index += sizes + places;
  }
  write_bytes(prefix + ".bin", data);
  write_bytes(prefix + ".idx", index);
}

// A plan under construction. Parts are as given but for their paths, which are set here.
struct BatchPlanMaker {
  formats::BatchPlanHead head{.epoch = 1,
                              .batch = 0,
                              .batches = 1,
                              .generation = 0,
                              .world_size = 1,
                              .kind = formats::BatchKind::kBatch,
                              .rows = 0,
                              .parts = 0,
                              .text_bytes = 0,
                              .chain_epoch = 1,
                              .chain_pass = 0};
  std::vector<formats::BatchPlanPart> parts = {};
  std::vector<formats::BatchPlanRow> rows = {};
  std::string text = {};

  // A part without any token of its own, number `number` and of that direction.
  formats::BatchPlanPart& add_part(std::uint32_t number, std::uint64_t sentences,
                                   std::string_view source, std::string_view target) {
    formats::BatchPlanPart part{};
    part.sentences = sentences;
    part.number = part.direction = number;
    part.encoder_token = part.decoder_token = part.source_tag = formats::kNoToken;
    part.source_bytes = static_cast<std::uint16_t>(source.size());
    part.target_bytes = static_cast<std::uint16_t>(target.size());
    part.source_at = static_cast<std::uint32_t>(text.size());
    text += source;
    part.target_at = static_cast<std::uint32_t>(text.size());
    text += target;
    return parts.emplace_back(part);
  }
  void add_row(std::uint32_t part, std::uint64_t index) { rows.push_back({index, part, 0}); }

  [[nodiscard]] std::string bytes() const {
    std::string made(formats::batch_plan_bytes(parts.size(), rows.size(), text.size()), '\0');
    formats::write_batch_plan({reinterpret_cast<std::byte*>(made.data()), made.size()}, head, parts,
                              rows, text);
    return made;
  }
};

}  // namespace ringfeed::testing
