#include "workers/bitext/bitext_proposal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "workers/io/token_file.h"
#include "workers/kit/sort_key.h"

namespace ringfeed {

namespace pipelines {
extern const std::string_view kFairseqNllb;
}

namespace {

constexpr std::size_t kFilesCounted = 200;

// A token file by its name: SUBSET.SOURCE-TARGET.LANG.idx.
struct TokenName {
  std::string directory;
  std::string subset;
  std::string source;
  std::string target;
  std::string lang;
};

std::optional<TokenName> token_name(std::string_view path) {
  constexpr std::string_view kIndex = ".idx";
  if (!path.ends_with(kIndex)) return std::nullopt;
  path.remove_suffix(kIndex.size());
  const std::size_t slash = path.rfind('/');
  const std::string_view directory = path.substr(0, std::max<std::size_t>(slash, 1));
  std::string_view name = path.substr(slash + 1);
  const std::size_t lang_at = name.rfind('.');
  if (lang_at == std::string_view::npos) return std::nullopt;
  const std::string_view lang = name.substr(lang_at + 1);
  name = name.substr(0, lang_at);
  const std::size_t pair_at = name.rfind('.');
  if (pair_at == std::string_view::npos || pair_at == 0) return std::nullopt;
  const std::string_view pair = name.substr(pair_at + 1);
  // One of the two languages is known, so that a hyphen in a name is no border.
  std::string_view source;
  std::string_view target;
  if (pair.starts_with(lang) && pair.substr(lang.size()).starts_with('-')) {
    source = lang;
    target = pair.substr(lang.size() + 1);
  } else if (pair.ends_with(lang) && pair.size() > lang.size() + 1 &&
             pair[pair.size() - lang.size() - 1] == '-') {
    target = lang;
    source = pair.substr(0, pair.size() - lang.size() - 1);
  }
  if (source.empty() || target.empty()) return std::nullopt;
  return TokenName{std::string(directory), std::string(name.substr(0, pair_at)),
                   std::string(source), std::string(target), std::string(lang)};
}

bool for_training(const std::string& subset) { return subset.starts_with("train"); }

std::vector<std::string> literals(const auto& values) {
  std::vector<std::string> out;
  for (const std::string& value : values) out.push_back(text_literal(value));
  return out;
}

std::string parent_of(const std::string& directory) {
  return directory.substr(0, directory.rfind('/'));
}

// What the names of the files say, of the files for training.
struct Corpus {
  std::set<std::string> directories = {};
  std::set<std::string> subsets = {};
  std::set<std::string> pairs = {};  // "eng_Latn-deu_Latn"
  std::set<std::string> langs = {};
  std::set<std::string> others = {};  // subsets that are not for training
  std::string lone = {};              // an index whose partner is missing
  std::uint64_t sentences = 0;
  bool all_counted = true;

  [[nodiscard]] bool empty() const { return pairs.empty() && others.empty() && lone.empty(); }
};

bool there(const DirectoryLook& look, const std::string& path) {
  return std::binary_search(look.files.begin(), look.files.end(), path);
}

Corpus corpus_of(const DirectoryLook& look) {
  Corpus corpus{.all_counted = look.whole};
  // Which sides are there, both files of each, by directory, subset, source and target.
  std::map<std::array<std::string, 4>, std::pair<bool, bool>> sides;
  for (const std::string& file : look.ending_in(".idx")) {
    const std::optional<TokenName> name = token_name(file);
    if (!name) continue;
    if (!there(look, file.substr(0, file.size() - 4) + ".bin")) {
      if (corpus.lone.empty()) corpus.lone = file;
      continue;
    }
    auto& [source, target] = sides[{name->directory, name->subset, name->source, name->target}];
    (name->lang == name->source ? source : target) = true;
  }
  std::size_t files = 0;
  for (const auto& [key, found] : sides) {
    const auto& [directory, subset, source, target] = key;
    const std::string pair = source + "-" + target;
    const std::string begin = fmt::format("{}/{}.{}.", directory, subset, pair);
    if (!found.first || !found.second) {
      if (corpus.lone.empty()) corpus.lone = begin + (found.first ? source : target) + ".idx";
      continue;
    }
    if (!for_training(subset)) {
      corpus.others.insert(subset);
      continue;
    }
    corpus.directories.insert(directory);
    corpus.subsets.insert(subset);
    corpus.pairs.insert(pair);
    corpus.langs.insert({source, target});
    if (files == kFilesCounted) {
      corpus.all_counted = false;
      continue;
    }
    ++files;
    const Result<formats::TokenFile> file = formats::TokenFile::open(begin + source);
    if (file) corpus.sentences += file->sentences();
  }
  return corpus;
}

// Directions that the files serve as well.
std::vector<std::string> reversed(const Corpus& corpus) {
  std::set<std::string> found;
  for (const std::string& pair : corpus.pairs) {
    for (const std::string& source : corpus.langs) {
      if (!pair.starts_with(source + "-")) continue;
      const std::string target = pair.substr(source.size() + 1);
      const std::string back = target + "-" + source;
      if (corpus.langs.contains(target) && !corpus.pairs.contains(back)) found.insert(back);
    }
  }
  return {found.begin(), found.end()};
}

// Empty: it can be trained on.
std::string fault_of(const Corpus& corpus) {
  if (corpus.pairs.empty() && !corpus.others.empty()) {
    return fmt::format(
        "there are token files only of {}: training needs files whose names begin with train",
        fmt::join(corpus.others, ", "));
  }
  if (corpus.pairs.empty()) {
    return fmt::format(
        "{} has no partner: each pair of languages needs four files, SUBSET.SRC-TGT.SRC and "
        "SUBSET.SRC-TGT.TGT, each as .idx and .bin",
        escaped(corpus.lone));
  }
  const std::string& first = *corpus.directories.begin();
  for (const std::string& directory : corpus.directories) {
    if (parent_of(directory) == parent_of(first)) continue;
    return fmt::format(
        "there are token files in {} and in {}, which are not shards side by side: give one of "
        "them",
        escaped(first), escaped(directory));
  }
  return {};
}

}  // namespace

std::optional<Proposal> propose_bitext(const DirectoryLook& look, const ProposalWish& wish) {
  Corpus corpus = corpus_of(look);
  if (corpus.empty()) return std::nullopt;
  Proposal proposal;
  proposal.problem = fault_of(corpus);
  if (!proposal.problem.empty()) return proposal;
  std::vector<std::string> shards(corpus.directories.begin(), corpus.directories.end());
  // shard10 comes behind shard9.
  std::sort(shards.begin(), shards.end(), [](const std::string& left, const std::string& right) {
    return KeyLess(true)(sort_key(left), sort_key(right));
  });
  const std::string begin = shards.front() + "/dict.";
  const std::string end = ".txt";
  const std::string single = shards.front() + "/dict.txt";
  const auto without =
      std::find_if(corpus.langs.begin(), corpus.langs.end(),
                   [&](const std::string& lang) { return !there(look, begin + lang + end); });
  const bool one_dictionary = without != corpus.langs.end() && there(look, single);
  if (without != corpus.langs.end() && !one_dictionary) {
    proposal.problem =
        fmt::format("the dictionary {} is missing: copy it there; it gives the ids of words",
                    escaped(begin + *without + end));
    return proposal;
  }
  // A language with a dictionary has a token, also where nothing of it is trained here.
  for (const std::string& file : look.ending_in(end)) {
    if (one_dictionary || !file.starts_with(begin) || file.size() <= begin.size() + end.size()) {
      continue;
    }
    corpus.langs.insert(file.substr(begin.size(), file.size() - begin.size() - end.size()));
  }
  proposal.found = fmt::format(
      "{} of languages in {}, {}{} sentences", counted(corpus.pairs.size(), "pair"),
      counted(shards.size(), "shard"), corpus.all_counted ? "" : "at least ", corpus.sentences);
  PipelineText pipeline(pipelines::kFairseqNllb);
  pipeline.introduce(look, proposal.found);
  pipeline.set("bitext", "directory", literals(shards));
  pipeline.set("bitext", "lang_pairs", literals(corpus.pairs));
  pipeline.set("bitext", "langs", literals(corpus.langs));
  pipeline.set("bitext", "subsets", literals(corpus.subsets));
  if (const std::vector<std::string> back = reversed(corpus); !back.empty()) {
    std::vector<std::string> lines{"# The other way round, from the same files:"};
    for (const std::string& pair : back) lines.push_back("# lang_pairs: " + text_literal(pair));
    pipeline.add_below("bitext", "lang_pairs", lines);
  }
  if (one_dictionary) {
    pipeline.add_below(
        "bitext", "directory",
        {"", "# One dictionary for all languages.", "dictionary: " + text_literal(single)});
  }
  pipeline.name(wish);
  proposal.feed = pipeline.feed();
  proposal.text = pipeline.text();
  return proposal;
}

}  // namespace ringfeed
