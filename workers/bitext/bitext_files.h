// What a bitext_source reads, as far as it can be known without reading a sentence: its directions,
// the token files of each of their shards, and the ids of the tokens that stand before sentences.
// The stage and the check of its configuration share it, so that they cannot disagree.
//
// Token files are named SUBSET.SRC-TGT.LANG.idx and .bin, dictionaries dict.LANG.txt.
//
// Shards of a direction:
//   NLLB, MAIN  as many as there are directories with an index of the direction in any subset
//               (MAIN: in one whose name begins with the subset's), or if none has one, of the
//               reversed direction; they are in the first so many directories, whatever is in these
//   NONE        those directories, in their order, that have files for it
//
// Files of a direction in a directory, subset by subset: those of SRC-TGT; else those of TGT-SRC,
// sides changed, unless (not MAIN) "bt" is one of the parts of the subset's name between
// underscores; else none. A pair is there with .idx and .bin of its source side (NLLB, MAIN), or
// with the .idx alone (NONE), so that a .bin that is missing is an error.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "proto/config.pb.h"
#include "ringfeed/worker/stage.h"
#include "workers/bitext/dictionary.h"

namespace ringfeed {

// A direction as the configuration names it.
struct BitextPair {
  std::string field;  // where it stands there: "lang_pairs[3]"
  std::string category;
  std::string source;
  std::string target;
  int extra = -1;  // number of its entry of extra_data; -1: of category main

  [[nodiscard]] std::string key() const { return category + ":" + source + "-" + target; }
};

// The directions in the order of their data, those that are no pair of languages left out; from the
// configuration alone.
[[nodiscard]] std::vector<BitextPair> bitext_pairs(const BitextSourceConfig& config);
// Whether directions without files are left out.
[[nodiscard]] bool bitext_allows_missing(const BitextSourceConfig& config);

// A pair of token files of a shard.
struct BitextFold {
  std::string source;  // paths without .bin and .idx
  std::string target;
  std::uint32_t repeat = 1;
  int tag = -1;  // of BitextVocabulary::tags; -1: none
};

// A sentence for people about files of different length.
[[nodiscard]] std::string bitext_unequal(const BitextFold& fold, std::uint64_t source,
                                         std::uint64_t target);

// The names in the directories, as they were when it was made. For one thread.
class BitextListing {
 public:
  explicit BitextListing(const BitextSourceConfig& config);

  // Whether any of the directories can be looked into.
  [[nodiscard]] bool found() const noexcept { return found_; }
  // Directories that cannot be looked into.
  [[nodiscard]] const std::vector<Problem>& problems() const noexcept { return problems_; }

  // Whether there is a directory for the direction to be in.
  [[nodiscard]] bool sought(const BitextPair& pair) const;
  [[nodiscard]] std::uint32_t shards(const BitextPair& pair) const;
  // Empty: the shard is not there.
  [[nodiscard]] std::vector<BitextFold> folds(const BitextPair& pair, std::uint32_t shard) const;
  // The directory of a shard; "": there is no such shard.
  [[nodiscard]] std::string directory(const BitextPair& pair, std::uint32_t shard) const;
  // Sentences for people, of a direction without files, and of one of its shards.
  [[nodiscard]] std::string missing(const BitextPair& pair) const;
  [[nodiscard]] std::string missing(const BitextPair& pair, std::uint32_t shard) const;

 private:
  struct Directory {
    std::string path;
    std::unordered_set<std::string> stems;       // "train.eng-tur.eng": files that are there
    std::unordered_set<std::string> directions;  // "eng-tur"
  };
  [[nodiscard]] const std::vector<Directory>& directories(const BitextPair& pair) const;
  [[nodiscard]] std::vector<BitextFold> folds_in(const Directory& directory,
                                                 const BitextPair& pair) const;
  [[nodiscard]] const std::vector<std::size_t>& directories_of(const BitextPair& pair) const;
  [[nodiscard]] std::string names_sought(const BitextPair& pair) const;
  void list(const std::string& path, const std::string& field, Directory& to);

  const BitextSourceConfig& config_;
  std::vector<std::string> subsets_;
  std::vector<std::vector<Directory>> directories_;  // of main, then of each entry of extra_data
  mutable std::unordered_map<std::string, std::vector<std::size_t>> of_pair_;  // by key
  std::vector<Problem> problems_;
  bool found_ = false;
};

struct BitextTokens {
  std::optional<std::uint32_t> encoder;  // before the source sentence
  std::optional<std::uint32_t> decoder;  // before the target sentence
  std::uint32_t source_lang_id = 0;      // place in the list of languages, from 1
  std::uint32_t target_lang_id = 0;
};
inline constexpr std::array<std::string_view, 3> kBitextTags = {"<MINED_DATA>", "<MMT_BT_DATA>",
                                                                "<SMT_BT_DATA>"};
struct BitextVocabulary {
  std::vector<BitextTokens> of_pair;
  std::array<std::uint32_t, kBitextTags.size()> tags{};  // with add_data_source_prefix_tags
  std::uint32_t source_symbols =
      0;  // ids of the side's dictionary are below this; 0: there is none
  std::uint32_t target_symbols = 0;
};

// The languages and their tokens. What is wrong is added to `problems`; then the vocabulary is of
// no use.
[[nodiscard]] BitextVocabulary read_bitext_vocabulary(const BitextSourceConfig& config,
                                                      const std::vector<BitextPair>& pairs,
                                                      std::vector<Problem>& problems);

// With what bitext_source adds to them; nullptr: the side has none, or none that can be read.
struct BitextDictionaries {
  std::shared_ptr<const formats::Dictionary> source;
  std::shared_ptr<const formats::Dictionary> target;
};
[[nodiscard]] BitextDictionaries read_bitext_dictionaries(const BitextSourceConfig& config);

// All that is wrong with the configuration; and where its directories are there, with their files.
// Directions without files are warnings where they are allowed.
[[nodiscard]] std::vector<Problem> bitext_problems(const BitextSourceConfig& config);

}  // namespace ringfeed
