// What stages tell each other before anything runs.
//
// A *fact* goes down: a stage says it of the records that it outputs ("sequences have at most 512
// tokens"), and the stage that reads them finds it at its input. A *wish* goes up: a stage says
// which records it would like to read ("these columns"), and the stage that makes them finds it at
// its output. Both are said in StageType and read through StageView::links. So a stage asks what is
// said of its records and never who says it: it knows no other kind of stage.
//
// A name is "<record type>.<what>". It is declared, with its type, in a header of the domain that
// owns the record type:
//
//   inline constexpr Fact<std::uint64_t> kLengthMax{"sequences.length_max"};
//   ...
//   outputs["output"].set(kLengthMax, own.length_max());                  // StageType::facts
//   const std::uint64_t longest = view.links.input("input").said.get(kLengthMax);
#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "ringfeed/shm/result.h"

namespace ringfeed {

// `T` is bool, std::uint64_t, std::string, or a type of the domain with a function fact_text(T) in
// its namespace.
template <typename T>
struct Fact {
  const char* name;
};

// A value as `ringfeed check` shows it; it shows none that is "".
inline std::string fact_text(bool value) { return value ? "yes" : "no"; }
inline std::string fact_text(std::uint64_t value) { return std::to_string(value); }
inline std::string fact_text(const std::string& value) { return value; }

// All that is said of one port.
class Facts {
 public:
  template <typename T>
  void set(const Fact<T>& fact, std::type_identity_t<T> value) {
    std::string text = fact_text(value);
    said_.insert_or_assign(fact.name, Said{std::move(value), std::move(text)});
  }
  // nullptr: nobody has said it. RF_CHECK: no other fact has this name.
  template <typename T>
  [[nodiscard]] const T* find(const Fact<T>& fact) const {
    const auto found = said_.find(std::string_view(fact.name));
    if (found == said_.end()) return nullptr;
    const T* const value = std::any_cast<T>(&found->second.value);
    RF_CHECK(value != nullptr, said_.size());
    return value;
  }
  template <typename T>
  [[nodiscard]] T get(const Fact<T>& fact, std::type_identity_t<T> otherwise = {}) const {
    const T* const value = find(fact);
    return value != nullptr ? *value : std::move(otherwise);
  }
  // Name and text of each, by name.
  [[nodiscard]] std::map<std::string, std::string> texts() const {
    std::map<std::string, std::string> texts;
    for (const auto& [name, said] : said_) texts[name] = said.text;
    return texts;
  }

 private:
  struct Said {
    std::any value;
    std::string text;
  };
  std::map<std::string, Said, std::less<>> said_;
};

// By port.
using PortFacts = std::map<std::string, Facts, std::less<>>;

// The other end of a port, and what it says: of an input the stage that writes and its facts, of an
// output the first stage that reads and its wishes.
struct Link {
  std::string stage;  // its name in the configuration; "": there is none
  std::string port;
  Facts said;

  [[nodiscard]] bool linked() const noexcept { return !stage.empty(); }
};

// All links of a stage.
class Links {
 public:
  // An unlinked one if the stage has no such port.
  [[nodiscard]] const Link& input(std::string_view port) const { return find(inputs_, port); }
  [[nodiscard]] const Link& output(std::string_view port) const { return find(outputs_, port); }

  Link& add_input(const std::string& port) { return inputs_[port]; }
  Link& add_output(const std::string& port) { return outputs_[port]; }

 private:
  using Map = std::map<std::string, Link, std::less<>>;
  static const Link& find(const Map& links, std::string_view port) {
    static const Link kNone;
    const auto found = links.find(port);
    return found == links.end() ? kNone : found->second;
  }

  Map inputs_;
  Map outputs_;
};

}  // namespace ringfeed
