// Token files and their indices, byte by byte, of every kind and with every kind of damage.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"
#include "workers/io/token_file.h"

namespace ringfeed::testing {

using Sentences = std::vector<std::vector<std::int64_t>>;

template <typename T>
void append_number(std::string& to, T value) {
  const std::size_t at = to.size();
  to.resize(at + sizeof value);
  std::memcpy(to.data() + at, &value, sizeof value);
}
template <typename T>
void put_number(std::string& to, std::size_t at, T value) {
  RF_CHECK(at + sizeof value <= to.size(), at, to.size());
  std::memcpy(to.data() + at, &value, sizeof value);
}

struct MadeTokens {
  Sentences sentences = {};
  formats::TokenCode code = formats::TokenCode::kUint16;
  formats::TokenFile::Kind kind = formats::TokenFile::Kind::kMapped;

  // PREFIX.bin.
  [[nodiscard]] std::string data() const {
    std::string bytes;
    const bool legacy = kind == formats::TokenFile::Kind::kLegacy;
    for (const auto& sentence : sentences) {
      for (const std::int64_t token : sentence) {
        std::string id;
        append_number(id, token + (legacy ? 1 : 0));
        bytes += id.substr(0, formats::token_bytes(code));
      }
    }
    return bytes;
  }
  // PREFIX.idx.
  [[nodiscard]] std::string index() const {
    return kind == formats::TokenFile::Kind::kLegacy ? legacy_index() : mapped_index();
  }

 private:
  [[nodiscard]] std::string mapped_index() const {
    const bool megatron = kind == formats::TokenFile::Kind::kMegatron;
    std::string bytes("MMIDIDX\0\0", 9);
    append_number(bytes, std::uint64_t{1});
    append_number(bytes, static_cast<std::uint8_t>(code));
    append_number(bytes, std::uint64_t{sentences.size()});
    if (megatron) append_number(bytes, std::uint64_t{sentences.size() + 1});
    for (const auto& sentence : sentences) {
      append_number(bytes, static_cast<std::int32_t>(sentence.size()));
    }
    std::int64_t at = 0;
    for (const auto& sentence : sentences) {
      append_number(bytes, at);
      at += static_cast<std::int64_t>(sentence.size() * formats::token_bytes(code));
    }
    // A document is a sentence.
    for (std::size_t i = 0; megatron && i <= sentences.size(); ++i) {
      append_number(bytes, static_cast<std::int64_t>(i));
    }
    return bytes;
  }
  [[nodiscard]] std::string legacy_index() const {
    std::string bytes("TNTIDX\0\0", 8);
    append_number(bytes, std::uint64_t{1});
    append_number(bytes, std::uint64_t{static_cast<std::uint8_t>(code)});
    append_number(bytes, std::uint64_t{formats::token_bytes(code)});
    append_number(bytes, std::uint64_t{sentences.size()});
    append_number(bytes, std::uint64_t{sentences.size()});
    for (std::size_t i = 0; i <= sentences.size(); ++i) {
      append_number(bytes, static_cast<std::int64_t>(i));
    }
    std::int64_t at = 0;
    append_number(bytes, at);
    for (const auto& sentence : sentences) {
      at += static_cast<std::int64_t>(sentence.size());
      append_number(bytes, at);
    }
    for (const auto& sentence : sentences) {
      append_number(bytes, static_cast<std::int64_t>(sentence.size()));
    }
    return bytes;
  }
};

// A directory of token files and dictionaries that is removed with its owner.
class TokenDir {
 public:
  TokenDir() {
    std::string name = (std::filesystem::temp_directory_path() / "ringfeed-tokens-XXXXXX").string();
    RF_CHECK(::mkdtemp(name.data()) != nullptr, errno);
    path_ = std::filesystem::canonical(name).string();
  }
  TokenDir(const TokenDir&) = delete;
  TokenDir& operator=(const TokenDir&) = delete;
  ~TokenDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string path(std::string_view name) const {
    return path_ + "/" + std::string(name);
  }
  // Writes and closes a file, making its directories; returns its path.
  std::string write(std::string_view name, std::string_view content) const {
    const std::string file = path(name);
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    RF_CHECK(out.good(), content.size());
    return file;
  }
  // Returns the prefix.
  std::string write(std::string_view name, const MadeTokens& made) const {
    write(std::string(name) + ".bin", made.data());
    write(std::string(name) + ".idx", made.index());
    return path(name);
  }
  void remove(std::string_view name) const { std::filesystem::remove_all(path(name)); }

 private:
  std::string path_;
};

// Sentences of 1 to 9 tokens, `</s>` included, that are told apart by `seed`.
inline Sentences made_sentences(std::size_t count, std::int64_t seed = 0) {
  Sentences sentences(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t words = (7 * i + static_cast<std::size_t>(seed)) % 9;
    for (std::size_t word = 0; word < words; ++word) {
      sentences[i].push_back(4 + (13 * seed + static_cast<std::int64_t>(5 * i + word)) % 100);
    }
    sentences[i].push_back(2);
  }
  return sentences;
}

}  // namespace ringfeed::testing
