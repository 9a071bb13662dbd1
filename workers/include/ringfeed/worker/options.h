// Options of a stage that a plug-in has: the settings that ringfeed's own configuration does not
// know. They are written as a JSON object:
//
//   stages { name: "long" plugin { kind: "length_filter" input: "lines" options: '{"min_words": 20}' } }
//
// An option is declared once, with its type. `ringfeed check` refuses what is not declared, a value
// of another type, and one outside of the range; `ringfeed stages` shows the declarations.
//
//   const Option<std::int64_t> kMinWords{
//       .name = "min_words", .help = "Fewer words: the text is left out.", .otherwise = 1, .min = 0};
//   ...
//   type.options = {kMinWords};                                      // StageType
//   const std::int64_t least = plugin_settings(config).options.get(kMinWords);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ringfeed {

enum class OptionType { kBool, kInteger, kNumber, kText, kIntegers, kNumbers, kTexts };

// What an option may be. monostate: something else, which no option can be.
using OptionValue =
    std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<std::string>>;

template <typename T>
constexpr OptionType option_type() noexcept {
  if constexpr (std::is_same_v<T, bool>) return OptionType::kBool;
  if constexpr (std::is_same_v<T, std::int64_t>) return OptionType::kInteger;
  if constexpr (std::is_same_v<T, double>) return OptionType::kNumber;
  if constexpr (std::is_same_v<T, std::string>) return OptionType::kText;
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return OptionType::kIntegers;
  if constexpr (std::is_same_v<T, std::vector<double>>) return OptionType::kNumbers;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return OptionType::kTexts;
}

// `T` is bool, std::int64_t, double, std::string, or a std::vector of one of the last three.
template <typename T>
struct Option {
  std::string name;                 // 1 to 64 of a-z 0-9 _
  std::string help;                 // a sentence, with the unit
  std::optional<T> otherwise = {};  // what it is when it is not given; absent: it must be given
  std::optional<double> min = {};   // of numbers, and of each in a list
  std::optional<double> max = {};
  std::vector<std::string> choices = {};  // of texts, and of each in a list; empty: any
};

// A declared option without its type.
struct OptionSpec {
  template <typename T>
  OptionSpec(const Option<T>& option)  // NOLINT: implicit on purpose
      : name(option.name),
        help(option.help),
        type(option_type<T>()),
        min(option.min),
        max(option.max),
        choices(option.choices) {
    if (option.otherwise) otherwise = *option.otherwise;
  }

  std::string name;
  std::string help;
  OptionType type;
  OptionValue otherwise;  // monostate: it must be given
  std::optional<double> min;
  std::optional<double> max;
  std::vector<std::string> choices;
};

// The options that a configuration gives.
class Options {
 public:
  Options() = default;
  explicit Options(std::map<std::string, OptionValue> given) : given_(std::move(given)) {}

  // What is given, if it has the option's type; else `otherwise`; else a value of 0, or empty. In a
  // configuration that `check` accepts, the last never happens.
  template <typename T>
  [[nodiscard]] T get(const Option<T>& option) const {
    const auto found = given_.find(option.name);
    if (found != given_.end()) {
      if (const T* const value = std::get_if<T>(&found->second)) return *value;
      // 3 is a number too, and [] a list of anything.
      if constexpr (std::is_same_v<T, double>) {
        if (const auto* const whole = std::get_if<std::int64_t>(&found->second)) {
          return static_cast<double>(*whole);
        }
      }
      if (const auto* const whole = std::get_if<std::vector<std::int64_t>>(&found->second)) {
        if constexpr (std::is_same_v<T, std::vector<double>>)
          return T(whole->begin(), whole->end());
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          if (whole->empty()) return {};
        }
      }
    }
    return option.otherwise.value_or(T{});
  }
  [[nodiscard]] bool has(const std::string& name) const { return given_.contains(name); }

 private:
  std::map<std::string, OptionValue> given_;
};

}  // namespace ringfeed
