#include "workers/bitext/token_sentences.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "ringfeed/shm/result.h"
#include "workers/bitext/dictionary.h"
#include "workers/io/token_file.h"

namespace ringfeed::inspect {
namespace {

using formats::Dictionary;
using formats::TokenFile;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::uint64_t kShown = 5;
constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 20;
constexpr std::size_t kBarMax = 50;

const char* format_name(TokenFile::Kind kind) {
  switch (kind) {
    case TokenFile::Kind::kMegatron:
      return "megatron";
    case TokenFile::Kind::kLegacy:
      return "legacy";
    default:
      return "mapped";
  }
}

// Lengths of 0, 1, 2 to 3, 4 to 7, and so on.
struct Lengths {
  std::uint64_t counts[33] = {};
  std::uint64_t tokens = 0;
  std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t most = 0;

  void add(std::uint32_t length) {
    ++counts[std::bit_width(length)];
    tokens += length;
    least = std::min(least, length);
    most = std::max(most, length);
  }
  [[nodiscard]] ordered_json list() const {
    ordered_json list = ordered_json::array();
    for (unsigned i = 0; i < std::size(counts); ++i) {
      if (counts[i] == 0) continue;
      const std::uint64_t from = i == 0 ? 0 : std::uint64_t{1} << (i - 1);
      const std::uint64_t to = i == 0 ? 0 : (std::uint64_t{1} << i) - 1;
      list.push_back({{"from", from}, {"to", to}, {"sentences", counts[i]}});
    }
    return list;
  }
};

// dict.LANG.txt beside it.
std::string dictionary_beside(const std::string& prefix) {
  const fs::path path(prefix);
  const std::string name = path.filename().string();
  return (path.parent_path() / fmt::format("dict.{}.txt", name.substr(name.rfind('.') + 1)))
      .string();
}

std::optional<Dictionary> find_dictionary(const std::string& prefix, const TokenWish& wish,
                                          ordered_json& out, ordered_json& problems) {
  out["dictionary"] = nullptr;
  const bool given = !wish.dictionary.empty();
  const std::string path = given ? wish.dictionary : dictionary_beside(prefix);
  std::error_code failed;
  if (!given && !fs::exists(path, failed)) return std::nullopt;
  Result<Dictionary> dictionary = Dictionary::read(path);
  if (!dictionary) {
    if (given) throw Error(dictionary.error());
    problems.push_back(dictionary.error().message());
    return std::nullopt;
  }
  out["dictionary"] = {{"path", path}, {"symbols", dictionary->size()}};
  return std::move(*dictionary);
}

}  // namespace

std::optional<std::string> token_prefix(const std::string& path, std::string_view head) {
  const fs::path given(path);
  const auto stem = [&] { return (given.parent_path() / given.stem()).string(); };
  std::error_code failed;
  if (given.extension() == ".idx") return stem();
  if (given.extension() == ".bin" && fs::exists(stem() + ".idx", failed)) return stem();
  for (const std::string_view magic : {"MMIDIDX", "TNTIDX", "HUFFIDX"}) {
    if (head.starts_with(magic)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: it is the index of a token file, whose name must end in .idx; rename it",
                      path));
    }
  }
  if (!fs::exists(path, failed) && fs::exists(path + ".idx", failed)) return path;
  return std::nullopt;
}

ordered_json describe_tokens(const std::string& prefix, const TokenWish& wish,
                             ordered_json& problems) {
  const Result<TokenFile> opened = TokenFile::open(prefix);
  if (!opened) {
    if (opened.error().code() == ErrorCode::kIo) throw Error(opened.error());
    problems.push_back(opened.error().message());
    return nullptr;
  }
  const TokenFile& file = *opened;
  const std::uint64_t sentences = file.sentences();
  if (wish.sentence && *wish.sentence >= sentences) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: there is no sentence {}: it has {}, counted from 0", prefix,
                            *wish.sentence, sentences));
  }
  ordered_json out = {{"format", format_name(file.kind())},
                      {"code", static_cast<unsigned>(file.code())},
                      {"type", formats::token_code_name(file.code())},
                      {"sentences", sentences}};
  if (file.kind() == TokenFile::Kind::kMegatron) out["documents"] = file.documents();
  Lengths lengths;
  std::vector<std::uint32_t> sizes(std::min(sentences, kAtOnce));
  std::uint64_t outside = 0;
  std::uint64_t first_outside = 0;
  for (std::uint64_t at = 0; at < sentences; at += sizes.size()) {
    sizes.resize(std::min(sentences - at, kAtOnce));
    file.sizes(at, sizes);
    for (std::uint64_t i = 0; i < sizes.size(); ++i) {
      lengths.add(sizes[i]);
      if (file.sentence(at + i)) continue;
      if (outside == 0) first_outside = at + i;
      ++outside;
    }
  }
  out["tokens"] = lengths.tokens;
  out["bytes"] = file.data_bytes();
  out["out_of_bounds"] = outside;
  if (outside != 0) {
    problems.push_back(
        fmt::format("{0}.idx: {1} of {2} sentences are not within the {3} bytes of {0}.bin, the "
                    "first is sentence {4}: the files come from different runs, or one has been "
                    "truncated; copy both again",
                    prefix, outside, sentences, file.data_bytes(), first_outside));
  }
  if (sentences != 0) {
    out["length_min"] = lengths.least;
    out["length_max"] = lengths.most;
    out["length_mean"] = static_cast<double>(lengths.tokens) / static_cast<double>(sentences);
  }
  out["lengths"] = lengths.list();

  const std::optional<Dictionary> dictionary = find_dictionary(prefix, wish, out, problems);
  out["first"] = ordered_json::array();
  const std::uint64_t begin = wish.sentence.value_or(0);
  const std::uint64_t end = wish.sentence ? begin + 1
                            : wish.all    ? sentences
                                          : std::min(sentences, kShown);
  std::uint64_t beyond = 0;
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = begin; i < end; ++i) {
    const auto sentence = file.sentence(i);
    if (!sentence) {
      out["first"].push_back({{"index", i}, {"ids", nullptr}, {"text", "outside of the file"}});
      continue;
    }
    ids.resize(sentence->tokens);
    formats::read_tokens<std::int64_t>(file, *sentence, ids);
    ordered_json shown = {{"index", i}, {"ids", ids}, {"text", nullptr}};
    if (dictionary) {
      shown["text"] = dictionary->text(ids);
      beyond += static_cast<std::uint64_t>(std::ranges::count_if(
          ids, [&](std::int64_t id) { return id < 0 || id >= dictionary->size(); }));
    }
    out["first"].push_back(std::move(shown));
  }
  if (beyond != 0) {
    problems.push_back(fmt::format(
        "{}: {} ids of the sentences shown are beyond the {} symbols of {}: it is not the "
        "dictionary that the text was binarized with",
        prefix, beyond, dictionary->size(), out["dictionary"]["path"].get<std::string>()));
  }
  return out;
}

std::string tokens_text(const ordered_json& tokens) {
  std::string text = fmt::format(
      "  {}, {} ids (code {}), {} tokens, {} bytes", tokens["format"].get<std::string>(),
      tokens["type"].get<std::string>(), tokens["code"].get<unsigned>(),
      tokens["tokens"].get<std::uint64_t>(), tokens["bytes"].get<std::uint64_t>());
  if (tokens.contains("documents")) {
    text += fmt::format(", {} places of documents", tokens["documents"].get<std::uint64_t>());
  }
  text +=
      fmt::format("; out of bounds: {} sentences\n", tokens["out_of_bounds"].get<std::uint64_t>());
  if (tokens.contains("length_mean")) {
    text +=
        fmt::format("  tokens of a sentence: {} to {}, mean {:.1f}\n",
                    tokens["length_min"].get<std::uint64_t>(),
                    tokens["length_max"].get<std::uint64_t>(), tokens["length_mean"].get<double>());
  }
  std::uint64_t most = 1;
  for (const ordered_json& bar : tokens["lengths"]) {
    most = std::max(most, bar["sentences"].get<std::uint64_t>());
  }
  for (const ordered_json& bar : tokens["lengths"]) {
    const auto from = bar["from"].get<std::uint64_t>();
    const auto to = bar["to"].get<std::uint64_t>();
    const auto count = bar["sentences"].get<std::uint64_t>();
    const auto width =
        static_cast<std::size_t>(static_cast<double>(count) / static_cast<double>(most) * kBarMax);
    text += fmt::format("  {:>13} {:>10}  {}\n",
                        from == to ? std::to_string(from) : fmt::format("{}-{}", from, to), count,
                        std::string(std::max<std::size_t>(width, 1), '#'));
  }
  if (tokens["dictionary"].is_null()) {
    text += "  no dictionary: ids are shown; name one with --dictionary FILE\n";
  } else {
    text += fmt::format("  dictionary {}: {} symbols\n",
                        tokens["dictionary"]["path"].get<std::string>(),
                        tokens["dictionary"]["symbols"].get<std::uint64_t>());
  }
  for (const ordered_json& sentence : tokens["first"]) {
    text += fmt::format(
        "  sentence {}: {}\n", sentence["index"].get<std::uint64_t>(),
        sentence["text"].is_null()
            ? fmt::format("{}", fmt::join(sentence["ids"].get<std::vector<std::int64_t>>(), " "))
            : sentence["text"].get<std::string>());
  }
  return text;
}

}  // namespace ringfeed::inspect
