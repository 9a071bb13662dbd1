// What the options of the command line say of themselves: for --help, manual pages and completion,
// which therefore cannot disagree.
//
// The kind of word that an option takes is declared beside it, as its type_name(); an argument
// whose name is its kind needs none. It is one of kWordKinds, or a value, in small letters, or
// several of these: "FEED", "bash|zsh|fish", "CONFIG|FEED".
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::cli {

// What completion offers for a word.
enum class Offer {
  kNothing,  // a number, a text, a new name
  kFeeds,
  kStages,          // of the feed, or of the configuration, that stands on the line
  kStageGroups,     // of the feed that stands there
  kConsumerGroups,  // of that feed
  kStageKinds,
  kVerbs,
  kFiles,
  kConfigs,  // files whose names end like those of configurations
  kDirectories,
};

struct WordKind {
  std::string_view name;
  Offer offer;
};
inline constexpr WordKind kWordKinds[] = {
    {"FEED", Offer::kFeeds},
    {"STAGE", Offer::kStages},
    {"GROUP", Offer::kStageGroups},
    {"CONSUMER_GROUP", Offer::kConsumerGroups},
    {"KIND", Offer::kStageKinds},
    {"VERB", Offer::kVerbs},
    {"FILE", Offer::kFiles},
    {"PATH", Offer::kFiles},
    {"CONFIG", Offer::kConfigs},
    {"DIR", Offer::kDirectories},
    {"ADDRESS:PORT", Offer::kNothing},
    {"FD", Offer::kNothing},
    {"K", Offer::kNothing},
    {"LANES", Offer::kNothing},
    {"MESSAGE", Offer::kNothing},
    {"N", Offer::kNothing},
    {"NAME", Offer::kNothing},
    {"NAME_OR_INDEX", Offer::kNothing},
    {"PATH=VALUE", Offer::kNothing},
    {"SECONDS", Offer::kNothing},
};

// An option, or an argument, as people read it.
struct OptionWords {
  const CLI::Option* option = nullptr;
  bool argument = false;                // known by its place
  std::vector<std::string> names = {};  // "-o", "--output"; of an argument its name
  std::string takes = {};               // the kinds of its word; "": it is a flag
  std::string text = {};                // with everything that the options below say
  bool required = false;
  bool repeats = false;

  [[nodiscard]] std::vector<std::string> kinds() const;  // of `takes`
  [[nodiscard]] bool is_called(std::string_view name) const;
};
[[nodiscard]] OptionWords words_of(const CLI::Option& option);
// All that are not hidden, in the order of their declarations; arguments in that of the line.
[[nodiscard]] std::vector<OptionWords> options_of(const CLI::App& verb);

// The verbs that are not hidden.
[[nodiscard]] std::vector<const CLI::App*> verbs_of(const CLI::App& program);

// What stands below a verb's options: texts, then examples.
struct Notes {
  std::vector<std::string> paragraphs = {};
  std::vector<std::string> examples = {};
};
[[nodiscard]] Notes notes_of(const CLI::App& verb);

}  // namespace ringfeed::cli
