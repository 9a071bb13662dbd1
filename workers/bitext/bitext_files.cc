#include "workers/bitext/bitext_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/segment.h"
#include "workers/bitext/dictionary.h"
#include "workers/io/token_file.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {
namespace {

using formats::Dictionary;
using formats::TokenFile;

constexpr std::string_view kMain = "main";
constexpr std::string_view kDefaultSubset = "train";
constexpr std::string_view kIndexSuffix = ".idx";
constexpr std::string_view kDataSuffix = ".bin";
constexpr std::size_t kListed = 12;
// Problems with files, one for a direction at most, until the rest is only counted.
constexpr std::size_t kFileProblems = 20;
constexpr unsigned kThreadsMax = 8;
// By the subset's name.
constexpr std::array<std::string_view, kBitextTags.size()> kTagged = {
    "train_mining", "train_mmt_bt", "train_smt_bt"};

// "SRC-TGT" as the two; nothing: it is no such pair, or could not stand in a file's name.
std::optional<std::pair<std::string, std::string>> split_pair(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos || dash == 0 || dash + 1 == text.size() ||
      text.find('-', dash + 1) != std::string_view::npos ||
      text.find_first_of("./,: \t\r\n", 0) != std::string_view::npos ||
      text.find('\0') != std::string_view::npos) {
    return std::nullopt;
  }
  return std::pair(std::string(text.substr(0, dash)), std::string(text.substr(dash + 1)));
}

std::vector<std::string> subsets_of(const BitextSourceConfig& config) {
  if (config.subsets_size() == 0) return {std::string(kDefaultSubset)};
  return {config.subsets().begin(), config.subsets().end()};
}

std::string joined(const std::string& directory, std::string_view name) {
  return fmt::format("{}{}{}", directory, directory.ends_with('/') ? "" : "/", name);
}

std::string stem_of(std::string_view subset, const std::string& first, const std::string& second,
                    const std::string& lang) {
  return fmt::format("{}.{}-{}.{}", subset, first, second, lang);
}

// Of the parts of a name between underscores, is one "bt"?
bool is_back_translated(std::string_view subset) {
  return ("_" + std::string(subset) + "_").find("_bt_") != std::string::npos;
}

// The first of many, for a sentence.
template <typename Names>
std::string some_of(const Names& names) {
  std::vector<std::string_view> shown;
  for (const auto& name : names) {
    if (shown.size() == kListed) break;
    shown.push_back(name);
  }
  return fmt::format(
      "{}{}", fmt::join(shown, ", "),
      names.size() > kListed ? fmt::format(" and {} more", names.size() - kListed) : std::string());
}

}  // namespace

std::vector<BitextPair> bitext_pairs(const BitextSourceConfig& config) {
  std::vector<BitextPair> pairs;
  std::set<std::string> keys;
  const auto add = [&](std::string field, const std::string& category, const std::string& text,
                       int extra) {
    const auto both = split_pair(text);
    if (!both) return;
    BitextPair pair{std::move(field), category, both->first, both->second, extra};
    if (keys.insert(pair.key()).second) pairs.push_back(std::move(pair));
  };
  for (int i = 0; i < config.lang_pairs_size() && !config.ignore_main_data(); ++i) {
    add(fmt::format("lang_pairs[{}]", i), std::string(kMain), config.lang_pairs(i), -1);
  }
  for (int i = 0; i < config.extra_data_size(); ++i) {
    const BitextSourceConfig::ExtraData& extra = config.extra_data(i);
    for (int j = 0; j < extra.lang_pairs_size(); ++j) {
      add(fmt::format("extra_data[{}].lang_pairs[{}]", i, j), extra.category(), extra.lang_pairs(j),
          i);
    }
  }
  return pairs;
}

bool bitext_allows_missing(const BitextSourceConfig& config) {
  return config.has_allow_missing() ? config.allow_missing() : config.compat() == NLLB;
}

// ---- files

BitextListing::BitextListing(const BitextSourceConfig& config)
    : config_(config), subsets_(subsets_of(config)) {
  const auto list_all = [&](const auto& paths, const std::string& field) {
    std::vector<Directory>& all = directories_.emplace_back(static_cast<std::size_t>(paths.size()));
    for (int i = 0; i < paths.size(); ++i) {
      list(paths[i], fmt::format("{}[{}]", field, i), all[static_cast<std::size_t>(i)]);
    }
  };
  list_all(config.directory(), "directory");
  for (int i = 0; i < config.extra_data_size(); ++i) {
    list_all(config.extra_data(i).directory(), fmt::format("extra_data[{}].directory", i));
  }
}

void BitextListing::list(const std::string& path, const std::string& field, Directory& to) {
  to.path = path;
  DIR* entries = ::opendir(path.c_str());
  if (entries == nullptr) {
    std::string text =
        fmt::format("{}: cannot be opened: {}; give the existing directories of the shards", path,
                    std::strerror(errno));
    if (path.find(':') != std::string::npos) {
      text += ", each as a separate entry instead of joined by colons";
    }
    problems_.push_back({field, std::move(text)});
    return;
  }
  found_ = true;
  const bool prefix_only = config_.compat() == MAIN;
  std::unordered_set<std::string> data;  // as stems
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(entries);
    if (entry == nullptr) {
      if (errno == 0) break;
      problems_.push_back({field, fmt::format("{}: its names cannot be read completely: {}; look "
                                              "for disk errors in the kernel log",
                                              path, std::strerror(errno))});
      break;
    }
    std::string_view name = entry->d_name;
    if (name.ends_with(kDataSuffix)) {
      data.emplace(name.substr(0, name.size() - kDataSuffix.size()));
      continue;
    }
    if (!name.ends_with(kIndexSuffix)) continue;
    const bool of_subset = std::ranges::any_of(subsets_, [&](const std::string& subset) {
      return name.starts_with(subset) &&
             (prefix_only || name.substr(subset.size()).starts_with('.'));
    });
    if (!of_subset) continue;
    name.remove_suffix(kIndexSuffix.size());
    to.stems.emplace(name);
    const std::size_t last = name.rfind('.');
    if (last == std::string_view::npos || last == 0) continue;
    const std::size_t before = name.rfind('.', last - 1);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    to.directions.emplace(name.substr(begin, last - begin));
  }
  ::closedir(entries);
  // For fairseq a file without its other half is not there; shards are counted by indices alone.
  if (config_.compat() != NONE) {
    std::erase_if(to.stems, [&](const std::string& stem) { return !data.contains(stem); });
  }
}

const std::vector<BitextListing::Directory>& BitextListing::directories(
    const BitextPair& pair) const {
  return directories_[static_cast<std::size_t>(pair.extra + 1)];
}

std::vector<BitextFold> BitextListing::folds_in(const Directory& directory,
                                                const BitextPair& pair) const {
  std::vector<BitextFold> folds;
  std::vector<std::size_t> subset_of;
  const bool main_rules = config_.compat() == MAIN;
  const auto take = [&](std::size_t number, const std::string& subset) {
    const std::string* first = &pair.source;
    const std::string* second = &pair.target;
    const auto has = [&] {
      return directory.stems.contains(stem_of(subset, *first, *second, pair.source));
    };
    if (!has()) {
      if (!main_rules && is_back_translated(subset)) return false;
      std::swap(first, second);
      if (!has()) return false;
    }
    BitextFold fold;
    fold.source = joined(directory.path, stem_of(subset, *first, *second, pair.source));
    fold.target = joined(directory.path, stem_of(subset, *first, *second, pair.target));
    const auto* const tagged = std::ranges::find(kTagged, subset);
    if (config_.add_data_source_prefix_tags() && tagged != kTagged.end()) {
      fold.tag = static_cast<int>(tagged - kTagged.begin());
    }
    folds.push_back(std::move(fold));
    subset_of.push_back(number);
    return true;
  };
  for (std::size_t i = 0; i < subsets_.size(); ++i) {
    const bool there = take(i, subsets_[i]);
    if (!there || !main_rules || !config_.combine()) continue;
    for (int k = 1;
         take(subsets_.size() + static_cast<std::size_t>(k), fmt::format("{}{}", subsets_[i], k));
         ++k) {
    }
  }
  if (folds.empty()) return folds;
  // With fairseq it is the first fold that is there, and only if it is not alone.
  const bool first_only = config_.compat() == NONE;
  if (first_only ? subset_of[0] == 0 && subsets_.size() > 1 : folds.size() > 1) {
    folds[0].repeat = config_.upsample_primary();
  }
  return folds;
}

const std::vector<std::size_t>& BitextListing::directories_of(const BitextPair& pair) const {
  const auto [at, fresh] = of_pair_.try_emplace(pair.key());
  std::vector<std::size_t>& found = at->second;
  if (!fresh) return found;
  const std::vector<Directory>& all = directories(pair);
  if (config_.compat() == NONE) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!folds_in(all[i], pair).empty()) found.push_back(i);
    }
    return found;
  }
  const auto count = [&](const std::string& first, const std::string& second) {
    return static_cast<std::size_t>(std::ranges::count_if(all, [&](const Directory& directory) {
      return directory.directions.contains(first + "-" + second);
    }));
  };
  std::size_t shards = count(pair.source, pair.target);
  if (shards == 0) shards = count(pair.target, pair.source);
  for (std::size_t i = 0; i < shards; ++i) found.push_back(i);
  return found;
}

bool BitextListing::sought(const BitextPair& pair) const { return !directories(pair).empty(); }

std::uint32_t BitextListing::shards(const BitextPair& pair) const {
  return static_cast<std::uint32_t>(directories_of(pair).size());
}

std::vector<BitextFold> BitextListing::folds(const BitextPair& pair, std::uint32_t shard) const {
  const std::vector<std::size_t>& found = directories_of(pair);
  if (shard >= found.size()) return {};
  return folds_in(directories(pair)[found[shard]], pair);
}

std::string BitextListing::directory(const BitextPair& pair, std::uint32_t shard) const {
  const std::vector<std::size_t>& found = directories_of(pair);
  return shard < found.size() ? directories(pair)[found[shard]].path : std::string();
}

std::string BitextListing::names_sought(const BitextPair& pair) const {
  std::vector<std::string> names;
  for (const std::string& subset : subsets_) {
    names.push_back(stem_of(subset, pair.source, pair.target, pair.source) + ".idx");
    if (config_.compat() == MAIN || !is_back_translated(subset)) {
      names.push_back(stem_of(subset, pair.target, pair.source, pair.source) + ".idx");
    }
  }
  return some_of(names);
}

std::string BitextListing::missing(const BitextPair& pair) const {
  const std::vector<Directory>& all = directories(pair);
  std::set<std::string> there;
  std::vector<std::string> paths;
  for (const Directory& directory : all) {
    there.insert(directory.directions.begin(), directory.directions.end());
    paths.push_back(directory.path);
  }
  return fmt::format(
      "direction {} has no token files: there is no {} with its .bin in {}; {}; {}", pair.key(),
      names_sought(pair), some_of(paths),
      there.empty() ? "there are no files of these subsets at all"
                    : "of these subsets there are " + some_of(there),
      bitext_allows_missing(config_)
          ? fmt::format("it is left out ({}); correct the pair, directory or subsets if it should "
                        "not be, and set allow_missing: false to make this an error",
                        config_.has_allow_missing() ? "allow_missing" : "compat: NLLB")
          : "correct the pair, directory or subsets, or set allow_missing to leave it out");
}

std::string BitextListing::missing(const BitextPair& pair, std::uint32_t shard) const {
  return fmt::format(
      "direction {} has {} shards, but there is no {} with its .bin in {}, which should have "
      "number {}; put the directories that have all directions first",
      pair.key(), shards(pair), names_sought(pair), directory(pair, shard), shard + 1);
}

// ---- languages and their tokens

namespace {

// A language's token of that kind.
std::string lang_token(const BitextSourceConfig& config, const std::string& lang,
                       std::string_view spec) {
  std::string name = lang;
  for (const std::string_view kind : {"dae", "lm", "mined"}) {
    if (spec.ends_with(kind)) {
      name += fmt::format("_{}", kind);
      break;
    }
  }
  return config.lang_tok_style() == BitextSourceConfig::MBART ? fmt::format("[{}]", name)
                                                              : fmt::format("__{}__", name);
}

struct Specs {
  std::string source;  // "": no token
  std::string target;
  [[nodiscard]] bool any() const { return !source.empty() || !target.empty(); }
};

Specs specs_of(const BitextSourceConfig& config, const std::string& category) {
  for (const BitextSourceConfig::LangToks& entry : config.langtoks()) {
    if (entry.category() == category) return {entry.source_spec(), entry.target_spec()};
  }
  Specs specs;
  if (category != kMain) return specs;
  if (config.encoder_langtok() == BitextSourceConfig::SRC) specs.source = "src";
  if (config.encoder_langtok() == BitextSourceConfig::TGT) specs.source = "tgt";
  if (config.decoder_langtok()) specs.target = "tgt";
  return specs;
}

// The languages in the order of their tokens.
std::vector<std::string> languages(const BitextSourceConfig& config,
                                   std::vector<Problem>& problems) {
  if (config.langs_size() != 0) return {config.langs().begin(), config.langs().end()};
  std::vector<std::string> langs;
  if (config.has_lang_dict()) {
    const Result<std::string> text = shm::read_regular_file(config.lang_dict());
    if (!text) {
      problems.push_back(
          {"lang_dict", fmt::format("{}; give a file with one language per line, or langs",
                                    text.error().message())});
      return langs;
    }
    constexpr std::string_view kSpaces = " \t\v\f\r\n";
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t end = std::min(text->find_first_of("\r\n", at), text->size());
      const std::string_view line = std::string_view(*text).substr(at, end - at);
      const std::size_t first = line.find_first_not_of(kSpaces);
      if (first != std::string_view::npos) {
        langs.emplace_back(line.substr(first, line.find_last_not_of(kSpaces) + 1 - first));
      }
      at = end + 1;
    }
    return langs;
  }
  std::set<std::string> all;
  const auto add = [&all](const auto& pairs) {
    for (const std::string& text : pairs) {
      if (const auto both = split_pair(text)) all.insert({both->first, both->second});
    }
  };
  add(config.lang_pairs());
  // fairseq takes those of the main data alone.
  if (config.compat() == NONE || config.lang_pairs_size() == 0) {
    for (const auto& extra : config.extra_data()) add(extra.lang_pairs());
  }
  return {all.begin(), all.end()};
}

// Whether a file has these bytes; compared piece by piece, which stay in the processor's cache.
bool holds(const std::string& path, std::string_view text) {
  const Result<shm::Fd> fd = shm::open_regular(path);
  if (!fd) return false;
  std::vector<char> piece(256 * kKiB);
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t got = ::pread(fd->get(), piece.data(), std::min(piece.size(), text.size() - at),
                                static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    const auto bytes = static_cast<std::size_t>(got);
    if (text.substr(at, bytes) != std::string_view(piece.data(), bytes)) return false;
    at += bytes;
  }
  return true;
}

// Dictionaries that have been read: mostly all languages have the same one, so that many megabytes
// need not be parsed for each of hundreds of them.
class Dictionaries {
 public:
  // nullptr, with the reason in fault(): it cannot be read, or is none.
  std::shared_ptr<Dictionary> read(const std::string& path) {
    struct stat info {};
    const bool there = ::stat(path.c_str(), &info) == 0;
    for (const Read& known : read_) {
      if (there && known.device == info.st_dev && known.inode == info.st_ino) {
        return known.dictionary;
      }
    }
    if (there && read_.size() == 1 && S_ISREG(info.st_mode) &&
        static_cast<std::size_t>(info.st_size) == read_[0].text.size()) {
      if (holds(path, read_[0].text)) return read_[0].dictionary;
    }
    Result<Dictionary> parsed = Dictionary::read(path);
    if (!parsed) {
      fault_ = parsed.error();
      return nullptr;
    }
    Read read{info.st_dev, info.st_ino, {}, std::make_shared<Dictionary>(std::move(*parsed))};
    if (read_.empty()) {
      if (Result<std::string> text = shm::read_regular_file(path)) read.text = std::move(*text);
    }
    read_.push_back(std::move(read));
    return read_.back().dictionary;
  }
  [[nodiscard]] const Error& fault() const { return *fault_; }

 private:
  struct Read {
    dev_t device;
    ino_t inode;
    std::string text;  // of the first one
    std::shared_ptr<Dictionary> dictionary;
  };
  std::vector<Read> read_;
  std::optional<Error> fault_;
};

// What is wrong with a dictionary, and what to do. What a file contains has its remedy already.
std::string dictionary_fault(const Error& fault, bool given) {
  if (fault.code() == ErrorCode::kDamaged) return fault.message();
  const char* const remedy = fault.code() != ErrorCode::kNotFound ? "check who may read it"
                             : given                              ? "give one that is there"
                                     : "put it there, or give dictionary";
  return fmt::format("{}; {}", fault.message(), remedy);
}

std::string difference(const Dictionary& one, const Dictionary& other) {
  const std::uint32_t both = std::min(one.size(), other.size());
  for (std::uint32_t id = 0; id < both; ++id) {
    if (one.symbol(id) != other.symbol(id)) {
      return fmt::format("id {} is '{}' in the first and '{}' in the second", id, one.symbol(id),
                         other.symbol(id));
    }
  }
  return fmt::format("the first has {} symbols and the second {}", one.size(), other.size());
}

// The dictionary of all languages of one side; nullptr: there is none.
std::shared_ptr<Dictionary> side_dictionary(const BitextSourceConfig& config,
                                            const std::set<std::string>& langs,
                                            std::string_view side, bool needed,
                                            Dictionaries& dictionaries,
                                            std::vector<Problem>& problems) {
  const bool source = side == "source";
  std::string field = "directory[0]";
  std::vector<std::string> paths;
  if (config.has_dictionary()) {
    field = "dictionary";
    paths = {config.dictionary()};
  } else if (source ? config.has_source_dictionary() : config.has_target_dictionary()) {
    field = source ? "source_dictionary" : "target_dictionary";
    paths = {source ? config.source_dictionary() : config.target_dictionary()};
  } else if (config.directory_size() != 0) {
    for (const std::string& lang : langs) {
      paths.push_back(joined(config.directory(0), fmt::format("dict.{}.txt", lang)));
    }
  }
  std::shared_ptr<Dictionary> first;
  std::string first_path;
  for (const std::string& path : paths) {
    struct stat info {};
    if (!needed && field == "directory[0]" && ::stat(path.c_str(), &info) != 0) continue;
    const std::shared_ptr<Dictionary> dictionary = dictionaries.read(path);
    if (dictionary == nullptr) {
      Problem problem{field, dictionary_fault(dictionaries.fault(), field != "directory[0]")};
      // The other side may have said so.
      if (std::ranges::none_of(problems, [&](const Problem& said) {
            return said.field == problem.field && said.text == problem.text;
          })) {
        problems.push_back(std::move(problem));
      }
      return nullptr;
    }
    if (first == nullptr) {
      first = dictionary;
      first_path = path;
    } else if (first != dictionary && !(*first == *dictionary)) {
      problems.push_back(
          {field, fmt::format("{} and {} differ: {}; all {} languages must have the same "
                              "dictionary: binarize with one (fairseq-preprocess --srcdict), or "
                              "give {}_dictionary",
                              first_path, path, difference(*first, *dictionary), side, side)});
      return nullptr;
    }
  }
  return first;
}

// Behind the lines of the file.
void add_symbols(const BitextSourceConfig& config, const std::vector<std::string>& langs,
                 Dictionary& to) {
  std::vector<std::string> specs(config.langtoks_specs().begin(), config.langtoks_specs().end());
  if (specs.empty()) specs.emplace_back(kMain);
  for (const std::string& spec : specs) {
    for (const std::string& lang : langs) to.add_symbol(lang_token(config, lang, spec));
  }
  if (config.lang_tok_style() == BitextSourceConfig::MBART) to.add_symbol("<mask>");
  for (const std::string& symbol : config.extra_symbols()) to.add_symbol(symbol);
  if (config.add_data_source_prefix_tags()) {
    for (const std::string_view tag : kBitextTags) to.add_symbol(tag);
  }
  for (const std::string& symbol : config.final_symbols()) to.add_symbol(symbol);
}

}  // namespace

BitextVocabulary read_bitext_vocabulary(const BitextSourceConfig& config,
                                        const std::vector<BitextPair>& pairs,
                                        std::vector<Problem>& problems) {
  BitextVocabulary vocabulary;
  const std::size_t problems_before = problems.size();
  const std::vector<std::string> langs = languages(config, problems);
  if (problems.size() != problems_before) return vocabulary;

  std::set<std::string> sources;
  std::set<std::string> targets;
  bool needed = config.add_data_source_prefix_tags();
  for (const BitextPair& pair : pairs) {
    sources.insert(pair.source);
    targets.insert(pair.target);
    needed = needed || specs_of(config, pair.category).any();
  }
  Dictionaries dictionaries;
  const auto source = side_dictionary(config, sources, "source", needed, dictionaries, problems);
  const auto target = side_dictionary(config, targets, "target", needed, dictionaries, problems);
  if (problems.size() == problems_before && needed && (source == nullptr || target == nullptr)) {
    problems.push_back({"directory", "there is no dictionary; give directory or dictionary"});
  }
  if (problems.size() != problems_before) return vocabulary;
  if (source != nullptr) add_symbols(config, langs, *source);
  if (target != nullptr && target != source) add_symbols(config, langs, *target);
  if (source != nullptr) vocabulary.source_symbols = source->size();
  if (target != nullptr) vocabulary.target_symbols = target->size();

  // Places in the list, and where it says so twice, the first.
  std::map<std::string_view, std::uint32_t> place;
  for (std::size_t i = 0; i < langs.size(); ++i) {
    place.emplace(langs[i], static_cast<std::uint32_t>(i + 1));
  }
  const std::string remedy = config.langs_size() != 0 ? "langs"
                             : config.has_lang_dict() ? config.lang_dict()
                                                      : std::string("lang_pairs, or give langs");
  for (const BitextPair& pair : pairs) {
    BitextTokens tokens;
    for (const std::string* lang : {&pair.source, &pair.target}) {
      const auto found = place.find(*lang);
      if (found == place.end()) {
        problems.push_back(
            {pair.field, fmt::format("language {} of {} is not among the {} that have tokens; add "
                                     "it to {}, where fairseq had it",
                                     *lang, pair.key(), langs.size(), remedy)});
        break;
      }
      (lang == &pair.source ? tokens.source_lang_id : tokens.target_lang_id) = found->second;
    }
    const Specs specs = specs_of(config, pair.category);
    const auto token = [&](const std::string& lang, const std::string& spec,
                           const Dictionary& dictionary) {
      const std::string symbol = lang_token(config, lang, spec);
      const std::optional<std::uint32_t> id = dictionary.find(symbol);
      if (!id) {
        problems.push_back(
            {pair.field,
             fmt::format(
                 "{} must begin with the token {}, which the dictionary does not have; add '{}' to "
                 "langtoks_specs, where fairseq had it",
                 pair.key(), symbol, spec)});
      }
      return id;
    };
    if (tokens.target_lang_id != 0 && tokens.source_lang_id != 0) {
      if (!specs.source.empty()) {
        tokens.encoder = token(specs.source.starts_with("src") ? pair.source : pair.target,
                               specs.source, *source);
      }
      if (!specs.target.empty()) tokens.decoder = token(pair.target, specs.target, *target);
    }
    vocabulary.of_pair.push_back(tokens);
  }
  if (config.add_data_source_prefix_tags() && source != nullptr) {
    for (std::size_t i = 0; i < kBitextTags.size(); ++i) {
      vocabulary.tags[i] = source->find(kBitextTags[i]).value_or(Dictionary::kUnk);
    }
  }
  return vocabulary;
}

BitextDictionaries read_bitext_dictionaries(const BitextSourceConfig& config) {
  std::vector<Problem> problems;
  const std::vector<std::string> langs = languages(config, problems);
  std::set<std::string> sources;
  std::set<std::string> targets;
  for (const BitextPair& pair : bitext_pairs(config)) {
    sources.insert(pair.source);
    targets.insert(pair.target);
  }
  Dictionaries read;
  const auto source = side_dictionary(config, sources, "source", false, read, problems);
  const auto target = side_dictionary(config, targets, "target", false, read, problems);
  if (source != nullptr) add_symbols(config, langs, *source);
  if (target != nullptr && target != source) add_symbols(config, langs, *target);
  return {source, target};
}

// ---- what is wrong

namespace {

class Checker {
 public:
  explicit Checker(const BitextSourceConfig& config)
      : config_(config), pairs_(bitext_pairs(config)) {}

  std::vector<Problem> look() {
    settings();
    names();
    // What is not there yet is waited for: then there is nothing to look at. What is joined by
    // colons will not come.
    const BitextListing listing(config_);
    const bool joined_by_colons = std::ranges::any_of(
        config_.directory(),
        [](const std::string& path) { return path.find(':') != std::string::npos; });
    if (!listing.found() && !joined_by_colons) return std::move(problems_);
    problems_.insert(problems_.end(), listing.problems().begin(), listing.problems().end());
    if (pairs_.empty()) return std::move(problems_);
    static_cast<void>(read_bitext_vocabulary(config_, pairs_, problems_));
    // Of directories that are not there nothing can be said.
    if (listing.problems().empty()) files(listing);
    return std::move(problems_);
  }

 private:
  void problem(std::string field, std::string text) {
    problems_.push_back({std::move(field), std::move(text)});
  }

  void settings() {
    if (config_.directory_size() == 0) {
      problem("directory", "no directory is given; give those with the shards, in order");
    }
    if (config_.overflow_behavior() != BLOCK) {
      problem("overflow_behavior",
              "it would drop not a sentence but a whole direction; only BLOCK is possible here");
    }
    if (config_.combine() && config_.compat() != MAIN) {
      problem("combine",
              "only fairseq's main branch has combine; set compat: MAIN, or name all "
              "subsets in subsets");
    }
    if (config_.compat() == MAIN && config_.subsets_size() > 1) {
      problem("subsets[1]",
              "fairseq's main branch reads one subset; keep the first, or set compat "
              "to NLLB or NONE");
    }
    if (config_.compat() == MAIN && config_.add_data_source_prefix_tags()) {
      problem("add_data_source_prefix_tags",
              "fairseq's main branch has no such tags; leave them out, or set compat to NLLB or "
              "NONE");
    }
    std::set<std::string> subsets;
    for (int i = 0; i < config_.subsets_size(); ++i) {
      const std::string& subset = config_.subsets(i);
      const std::string field = fmt::format("subsets[{}]", i);
      if (subset.empty() || subset.find_first_of("./,") != std::string::npos) {
        problem(field, fmt::format("'{}' cannot be the beginning of a file name; give one name per "
                                   "entry, without dots, e.g. 'train'",
                                   subset));
      } else if (!subsets.insert(subset).second) {
        problem(field,
                fmt::format(
                    "'{}' is listed twice; keep one (upsample_primary repeats the first subset)",
                    subset));
      }
    }
    if (config_.has_dictionary() &&
        (config_.has_source_dictionary() || config_.has_target_dictionary())) {
      problem("dictionary",
              "dictionary is for all languages, and source_dictionary or target_dictionary "
              "is given too; keep one kind");
    }
  }

  void names() {
    std::set<std::string> keys;
    const auto check_pairs = [&](const auto& pairs, const std::string& field,
                                 const std::string& category) {
      for (int i = 0; i < pairs.size(); ++i) {
        const std::string path = fmt::format("{}[{}]", field, i);
        const auto both = split_pair(pairs[i]);
        if (!both) {
          problem(
              path,
              fmt::format(
                  "'{}' is not a direction; give one SRC-TGT per entry, e.g. 'eng_Latn-tur_Latn'",
                  pairs[i]));
        } else if (!keys.insert(fmt::format("{}:{}-{}", category, both->first, both->second))
                        .second) {
          problem(path,
                  fmt::format("'{}' is listed twice; keep one, and weight it with sampling_weights",
                              pairs[i]));
        }
      }
    };
    if (config_.lang_pairs_size() == 0 && !config_.ignore_main_data()) {
      problem("lang_pairs", "no direction is given; give SRC-TGT, e.g. 'eng_Latn-tur_Latn'");
    }
    check_pairs(config_.lang_pairs(), "lang_pairs", std::string(kMain));
    if (config_.ignore_main_data() && config_.extra_data_size() == 0) {
      problem("ignore_main_data",
              "there is no extra_data, so nothing is left to read; give some, or remove this");
    }
    std::set<std::string> categories = {std::string(kMain)};
    for (int i = 0; i < config_.extra_data_size(); ++i) {
      const BitextSourceConfig::ExtraData& extra = config_.extra_data(i);
      const std::string field = fmt::format("extra_data[{}]", i);
      if (extra.category().empty() || extra.category().find(':') != std::string::npos) {
        problem(field + ".category",
                fmt::format("'{}' is not a category; give a name without a colon, e.g. 'mined'",
                            extra.category()));
      } else if (extra.category().starts_with("mono_")) {
        problem(field + ".category",
                fmt::format("monolingual data ('{}') are not supported; remove them",
                            extra.category()));
      } else if (!categories.insert(extra.category()).second) {
        problem(
            field + ".category",
            fmt::format("'{}' is listed twice, or is the name of the main data; give another name",
                        extra.category()));
      }
      if (extra.directory_size() == 0) {
        problem(field + ".directory", "no directory is given; give those with its shards");
      }
      if (extra.lang_pairs_size() == 0) {
        problem(field + ".lang_pairs", "no direction is given; give SRC-TGT");
      }
      check_pairs(extra.lang_pairs(), field + ".lang_pairs", extra.category());
    }
    std::set<std::string> langs;
    for (int i = 0; i < config_.langs_size(); ++i) {
      if (config_.langs(i).empty() || config_.langs(i).find(',') != std::string::npos) {
        problem(fmt::format("langs[{}]", i),
                fmt::format("'{}' is not a language; give one per entry", config_.langs(i)));
      } else if (!langs.insert(config_.langs(i)).second) {
        problem(fmt::format("langs[{}]", i),
                fmt::format("'{}' is listed twice; keep the first", config_.langs(i)));
      }
    }
    std::set<std::string> with_tokens;
    for (int i = 0; i < config_.langtoks_size(); ++i) {
      const BitextSourceConfig::LangToks& entry = config_.langtoks(i);
      const std::string field = fmt::format("langtoks[{}]", i);
      if (!categories.contains(entry.category())) {
        problem(field + ".category", fmt::format("there is no category '{}'; there are {}",
                                                 entry.category(), some_of(categories)));
      } else if (!with_tokens.insert(entry.category()).second) {
        problem(field + ".category",
                fmt::format("'{}' is listed twice; keep one", entry.category()));
      }
      if (!entry.source_spec().empty() && !entry.source_spec().starts_with("src") &&
          !entry.source_spec().starts_with("tgt")) {
        problem(field + ".source_spec",
                fmt::format("'{}' names neither language; give 'src...' for the token of the "
                            "source, 'tgt...' for that of the target",
                            entry.source_spec()));
      }
    }
  }

  // Whether PREFIX.bin ends before what the index says of the last sentence; "": it does not. The
  // others are looked at when they are read, so that no index is read whole.
  [[nodiscard]] static std::string cut_off(const std::string& prefix, const TokenFile& file) {
    if (file.sentences() == 0 || file.sentence(file.sentences() - 1)) return {};
    return fmt::format(
        "{0}.bin: offset {1}: it ends there, and sentence {2}, the last one of {0}.idx, is beyond "
        "it: it has been truncated, is still being written, or belongs to another index; copy both "
        "files again",
        prefix, file.data_bytes(), file.sentences() - 1);
  }

  // What is wrong with the files of one shard; "": nothing. Any thread.
  struct Finding {
    std::string text;
    std::uint64_t sentences = 0;
  };
  [[nodiscard]] static Finding shard(const std::vector<BitextFold>& folds) {
    Finding finding;
    for (const BitextFold& fold : folds) {
      const Result<TokenFile> source = TokenFile::open(fold.source);
      if (!source) return {source.error().message(), 0};
      const Result<TokenFile> target = TokenFile::open(fold.target);
      if (!target) return {target.error().message(), 0};
      if (source->sentences() != target->sentences()) {
        return {bitext_unequal(fold, source->sentences(), target->sentences()), 0};
      }
      if (std::string text = cut_off(fold.source, *source); !text.empty()) return {text, 0};
      if (std::string text = cut_off(fold.target, *target); !text.empty()) return {text, 0};
      finding.sentences += source->sentences();
    }
    return finding;
  }

  // By pair: whether there is something to say, and what; returns of how many there is.
  template <typename Has, typename Text>
  std::size_t of_directions(const Has& has, const Text& text, bool warning) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      if (!has(i)) continue;
      if (++count <= kFileProblems) problems_.push_back({pairs_[i].field, text(i), warning});
    }
    if (count > kFileProblems) {
      const std::size_t more = count - kFileProblems;
      problems_.push_back(
          {"",
           warning
               ? fmt::format("the same holds for {} more directions; the log names some", more)
               : fmt::format("the same holds for {} more directions; correct these first", more),
           warning});
    }
    return count;
  }

  void files(const BitextListing& listing) {
    struct Task {
      std::size_t pair;
      std::vector<BitextFold> folds;
      Finding finding = {};
    };
    std::vector<Task> tasks;
    std::vector<std::optional<std::uint32_t>> missing(pairs_.size());  // by pair: its first shard
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const std::uint32_t shards = listing.shards(pairs_[i]);
      if (shards == 0 && listing.sought(pairs_[i])) missing[i] = 0;
      for (std::uint32_t k = 0; k < shards; ++k) {
        std::vector<BitextFold> folds = listing.folds(pairs_[i], k);
        if (!folds.empty()) {
          tasks.push_back({i, std::move(folds)});
        } else if (!missing[i]) {
          missing[i] = k;
        }
      }
    }
    // Hundreds of thousands of files on a file system far away take their time one by one.
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      // relaxed: the number alone is shared; the join of the threads orders what they have found.
      for (std::size_t i = next.fetch_add(1, std::memory_order_relaxed); i < tasks.size();
           i = next.fetch_add(1, std::memory_order_relaxed)) {
        tasks[i].finding = shard(tasks[i].folds);
      }
    };
    {
      std::vector<std::jthread> threads;
      const std::size_t count = std::min<std::size_t>(kThreadsMax, tasks.size() / 16);
      for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work);
      work();
    }
    std::vector<std::string> found(pairs_.size());  // by pair
    std::uint64_t sentences = 0;
    for (const Task& task : tasks) {
      sentences += task.finding.sentences;
      if (found[task.pair].empty()) found[task.pair] = task.finding.text;
    }
    // The texts are made for those that are named: of tens of thousands of pairs most may be
    // missing.
    const auto is_missing = [&](std::size_t i) { return missing[i].has_value(); };
    const auto what_is_missing = [&](std::size_t i) {
      return listing.shards(pairs_[i]) == 0 ? listing.missing(pairs_[i])
                                            : listing.missing(pairs_[i], *missing[i]);
    };
    const bool allowed = bitext_allows_missing(config_);
    if (allowed) of_directions(is_missing, what_is_missing, true);
    const auto is_wrong = [&](std::size_t i) {
      return !found[i].empty() || (!allowed && is_missing(i));
    };
    const auto what_is_wrong = [&](std::size_t i) {
      return !allowed && is_missing(i) ? what_is_missing(i) : found[i];
    };
    if (of_directions(is_wrong, what_is_wrong, false) == 0 && sentences == 0) {
      problem("lang_pairs", tasks.empty()
                                ? std::string("none of the directions has token files; correct "
                                              "directory, subsets or lang_pairs")
                                : "all token files are empty; binarize the texts again");
    }
  }

  const BitextSourceConfig& config_;
  std::vector<BitextPair> pairs_;
  std::vector<Problem> problems_;
};

}  // namespace

std::string bitext_unequal(const BitextFold& fold, std::uint64_t source, std::uint64_t target) {
  return fmt::format(
      "{}.idx has {} sentences and {}.idx {}, but each must be the translation of the sentence "
      "with the same number; binarize both from the same pair of texts",
      fold.source, source, fold.target, target);
}

std::vector<Problem> bitext_problems(const BitextSourceConfig& config) {
  return Checker(config).look();
}

}  // namespace ringfeed
