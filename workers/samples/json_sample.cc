#include "workers/samples/json_sample.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <utility>

#include "workers/samples/json_number.h"
#include "workers/samples/json_text.h"

namespace ringfeed {
namespace {

using json::AnyNumber;

constexpr std::size_t kCapacityMin = std::size_t{64} << 10;
constexpr std::size_t kValueShown = 40;  // bytes of a number in a message

std::string_view kind_of(const char* at) {
  switch (*at) {
    case '[':
      return "an array";
    case '{':
      return "an object";
    case '"':
      return "a string";
    case 't':
    case 'f':
      return "true or false";
    case 'n':
      return "null";
    default:
      return "a number";
  }
}

// What the values of an array of any depth have in common.
struct ArrayFacts {
  enum class Level : std::uint8_t { kUnknown, kValues, kArrays };
  std::vector<std::uint32_t> shape = {};
  std::vector<Level> levels = {};  // by depth
  bool numbers = true;
  bool whole = true;         // int64
  bool not_negative = true;  // whole, and uint64
  bool inexact = false;      // one of them is held by no type as it is
  bool truths = true;
  void clear() {
    shape.clear();
    levels.clear();
    numbers = whole = not_negative = truths = true;
    inexact = false;
  }
};

// The places of a text's structure that simdjson found, one after the other: brackets, colons,
// commas, and where each string and each other value begins.
struct Walk {
  const char* text;
  const std::uint32_t* next;
  const std::uint32_t* end;

  [[nodiscard]] const char* take() noexcept { return next != end ? text + *next++ : nullptr; }
  [[nodiscard]] const char* see() const noexcept { return next != end ? text + *next : nullptr; }
};

}  // namespace

class JsonSamples::Parser {
 public:
  Parser(std::vector<WantedField> wanted, bool strict)
      : wanted_(std::move(wanted)), strict_(strict) {
    // The depth is that of a tape, which nobody makes here.
    if (simdjson::get_active_implementation()->create_dom_parser_implementation(
            kCapacityMin, 1, parser_) != simdjson::SUCCESS) {
      parser_ = nullptr;
    }
    found_.resize(wanted_.size());
  }

  Outcome read(std::string_view text) {
    fields_.clear();
    used_ = 0;
    if (Outcome outcome = find_structure(text); outcome.fault != SampleFault::kNone) {
      return outcome;
    }
    if (*text_at(0) != '{') return no_object();
    Outcome outcome;
    if (!members(outcome)) return outcome;
    if (!(wanted_.empty() ? take_all(outcome) : take_wanted(outcome))) return outcome;
    // Only now: what was made has moved while more was made.
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      fields_[i].name = wanted_.empty() ? std::string_view(made_[i].name) : fields_[i].name;
      fields_[i].shape = made_[i].shape;
      fields_[i].data = made_[i].bytes;
    }
    outcome.fields = fields_;
    return outcome;
  }

 private:
  struct Made {
    std::string name = {};  // of a member that nobody named
    std::vector<std::uint32_t> shape = {};
    std::vector<std::byte> bytes = {};
  };
  // A member's value: where its structure begins, and the place behind it.
  struct Found {
    const std::uint32_t* at = nullptr;  // nullptr: there is none
    const std::uint32_t* behind = nullptr;
  };
  struct Member {
    std::string name;
    Found value;
  };

  // ---- the structure

  Outcome find_structure(std::string_view text) {
    const auto failed = [](simdjson::error_code error) -> Outcome {
      return {SampleFault::kNotJson, simdjson::error_message(error)};
    };
    text_ = text;
    if (parser_ == nullptr || (text.size() > parser_->capacity() &&
                               parser_->set_capacity(2 * text.size()) != simdjson::SUCCESS &&
                               parser_->set_capacity(text.size()) != simdjson::SUCCESS)) {
      return {SampleFault::kTooLarge, fmt::format("{} bytes of JSON", text.size())};
    }
    if (text.empty()) return failed(simdjson::EMPTY);
    const simdjson::error_code error =
        parser_->stage1(reinterpret_cast<const std::uint8_t*>(text.data()), text.size(),
                        simdjson::stage1_mode::regular);
    if (error != simdjson::SUCCESS) return failed(error);
    begin_ = parser_->structural_indexes.get();
    end_ = begin_ + parser_->n_structural_indexes;
    return {};
  }
  [[nodiscard]] const char* text_at(std::size_t i) const { return text_.data() + begin_[i]; }
  [[nodiscard]] Walk walk_from(const std::uint32_t* at) const {
    return {.text = text_.data(), .next = at, .end = end_};
  }

  static Outcome no_json(std::string_view what, std::size_t at) {
    return {SampleFault::kNotJson, fmt::format("{} at byte {} of it", what, at)};
  }
  Outcome no_object() {
    Walk walk = walk_from(begin_);
    if (!pass_over(walk, walk.take()) || walk.next != end_) return no_json("it is no JSON", 0);
    return {SampleFault::kNotAnObject, fmt::format("it is {}, not an object", kind_of(text_at(0)))};
  }

  // Looks whether all of it is JSON, and notes the values of those that are wanted, or of all: of
  // one name the last one counts.
  bool members(Outcome& outcome) {
    members_count_ = 0;
    too_many_ = false;
    std::ranges::fill(found_, Found{});
    Walk walk = walk_from(begin_ + 1);
    const auto wrong = [&](std::string_view what) {
      const std::size_t at = walk.next == begin_ ? 0 : static_cast<std::size_t>(*(walk.next - 1));
      outcome = no_json(what, at);
      return false;
    };
    const char* at = walk.take();
    if (at == nullptr) return wrong("its object has no end");
    while (*at != '}') {
      if (*at != '"') return wrong("a member has no name");
      const char* const colon = walk.see();
      if (colon == nullptr || *colon != ':') return wrong("a name has no colon behind it");
      std::string_view name = raw(at + 1, colon);
      ++walk.next;
      if (name.find('\\') != std::string_view::npos) {
        bool surrogates = false;
        if (!unescape(name, name_, surrogates)) return wrong("a string has an escape that is none");
        name = {reinterpret_cast<const char*>(name_.data()), name_.size()};
      }
      Found value{.at = walk.next};
      at = walk.take();
      if (at == nullptr || !pass_over(walk, at)) return wrong("a value is none");
      value.behind = walk.next;
      note(name, value);
      at = walk.take();
      if (at == nullptr) return wrong("its object has no end");
      if (*at == '}') break;
      if (*at != ',') return wrong("there is no comma");
      at = walk.take();
      if (at == nullptr || *at == '}') return wrong("a comma has no member behind it");
    }
    return walk.next == end_ || (++walk.next, wrong("something stands behind its object"));
  }

  void note(std::string_view name, const Found& value) {
    if (!wanted_.empty()) {
      for (std::size_t i = 0; i < wanted_.size(); ++i) {
        if (wanted_[i].name == name) found_[i] = value;
      }
      return;
    }
    // Nobody behind this can ask for it.
    if (name.empty() || name.size() > sample::kNameBytesMax) return;
    const auto begin = members_.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(members_count_);
    const auto same =
        std::find_if(begin, end, [&](const Member& member) { return member.name == name; });
    if (same != end) {
      same->value = value;
      std::rotate(same, same + 1, end);
      return;
    }
    if (members_count_ == kMembersMax) {
      too_many_ = true;
      return;
    }
    if (members_count_ == members_.size()) members_.emplace_back();
    Member& member = members_[members_count_++];
    member.name = name;
    member.value = value;
  }
  // More than a sample can have, with nulls among them.
  static constexpr std::size_t kMembersMax = 16 * sample::kFieldsMax;

  // The text of a string that begins there and is followed by `behind`: between its quote and that
  // there are only blanks.
  static std::string_view raw(const char* begin, const char* behind) noexcept {
    const char* end = behind - 1;
    while (end != begin && *end != '"') --end;
    return {begin, static_cast<std::size_t>(end - begin)};
  }
  // Of the string at `at`, which was taken last.
  [[nodiscard]] std::string_view string_at(const Walk& walk, const char* at) const noexcept {
    const char* const behind = walk.see();
    return raw(at + 1, behind != nullptr ? behind : text_.data() + text_.size());
  }
  // Of the number or word at `at`, which was taken last.
  [[nodiscard]] std::string_view scalar_at(const Walk& walk, const char* at) const noexcept {
    const char* const behind = walk.see();
    const char* const end = behind != nullptr ? behind : text_.data() + text_.size();
    const std::string_view text(at, static_cast<std::size_t>(end - at));
    return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  }
  [[nodiscard]] static AnyNumber read_number(std::string_view text) {
    AnyNumber any;
    if (!json::read_number(text.data(), any.number)) return json::read_any_number(text);
    any.kind = any.number.is_whole ? AnyNumber::Kind::kWhole : AnyNumber::Kind::kReal;
    return any;
  }

  // Behind the value that begins at `at`, which was taken last. False: it is none. However deep it
  // is, the depth costs a byte.
  [[nodiscard]] bool pass_over(Walk& walk, const char* at) {
    levels_.clear();
    for (;;) {
      if (*at == '[' || *at == '{') {
        const bool object = *at == '{';
        at = walk.take();
        if (at == nullptr) return false;
        if (*at != (object ? '}' : ']')) {
          levels_.push_back(object ? '}' : ']');
          if (object && !take_name(walk, at)) return false;
          continue;
        }
      } else if (!is_scalar(walk, at)) {
        return false;
      }
      // Behind a value.
      for (;;) {
        if (levels_.empty()) return true;
        at = walk.take();
        if (at == nullptr) return false;
        if (*at == levels_.back()) {
          levels_.pop_back();
          continue;
        }
        if (*at != ',') return false;
        at = walk.take();
        if (at == nullptr || (levels_.back() == '}' && !take_name(walk, at))) return false;
        break;
      }
    }
  }
  // Of a member: `at` becomes its value.
  [[nodiscard]] bool take_name(Walk& walk, const char*& at) {
    if (*at != '"' || !is_scalar(walk, at)) return false;
    const char* const colon = walk.take();
    if (colon == nullptr || *colon != ':') return false;
    at = walk.take();
    return at != nullptr;
  }
  [[nodiscard]] bool is_scalar(const Walk& walk, const char* at) {
    switch (*at) {
      case '"': {
        const std::string_view text = string_at(walk, at);
        bool surrogates = false;
        return text.find('\\') == std::string_view::npos || unescape(text, scratch_, surrogates);
      }
      case 't':
        return scalar_at(walk, at) == "true";
      case 'f':
        return scalar_at(walk, at) == "false";
      case 'n':
        return scalar_at(walk, at) == "null";
      default: {
        const AnyNumber number = read_number(scalar_at(walk, at));
        return number.kind != AnyNumber::Kind::kNone &&
               !(strict_ && number.kind == AnyNumber::Kind::kNotFinite);
      }
    }
  }

  // The text without its escapes. A surrogate without its partner becomes the three bytes that it
  // would have in UTF-8, which is none (`surrogates`). False: an escape is none.
  [[nodiscard]] bool unescape(std::string_view text, std::vector<std::byte>& to, bool& surrogates) {
    to.resize(text.size() + kJsonSlack);
    const std::byte* end = unescape_(text, to.data());
    surrogates = end == nullptr;
    if (surrogates) end = unescape_halves(text, to.data());
    if (end == nullptr) return false;
    to.resize(static_cast<std::size_t>(end - to.data()));
    return true;
  }

  // ---- the fields

  bool take_all(Outcome& outcome) {
    const auto refuse = [&] {
      outcome = {SampleFault::kTooLarge,
                 fmt::format("it has more than {} members, the most that a sample can have: say "
                             "with `fields` which are wanted",
                             sample::kFieldsMax)};
      return false;
    };
    if (too_many_) return refuse();
    for (std::size_t i = 0; i < members_count_; ++i) {
      const Member& member = members_[i];
      if (text_.data()[*member.value.at] == 'n') continue;
      if (fields_.size() == sample::kFieldsMax) return refuse();
      Made& made = next_made();
      made.name = member.name;
      if (!add(made, member.name, member.value, std::nullopt, outcome)) return false;
    }
    return true;
  }
  bool take_wanted(Outcome& outcome) {
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const WantedField& field = wanted_[i];
      if (found_[i].at == nullptr || text_.data()[*found_[i].at] == 'n') {
        if (field.default_value) {
          const SampleField value = field.by_default();
          Made& made = next_made();
          made.shape.assign(value.shape.begin(), value.shape.end());
          made.bytes.assign(value.data.begin(), value.data.end());
          fields_.push_back(value);
          continue;
        }
        if (field.may_lack) continue;
        outcome = {SampleFault::kMissingField, fmt::format("it has no field '{}'", field.name)};
        return false;
      }
      if (!add(next_made(), field.as, found_[i], field.dtype, outcome)) return false;
    }
    return true;
  }

  bool add(Made& made, std::string_view name, const Found& found, std::optional<SampleDtype> wanted,
           Outcome& outcome) {
    SampleField& field = fields_.emplace_back(SampleField{.name = name});
    Walk walk = walk_from(found.at);
    const char* const at = walk.take();
    const auto refuse = [&](std::string_view what) {
      outcome = {SampleFault::kWrongType,
                 fmt::format("field '{}' is {}, which cannot be {}", name, what,
                             dtype_name(wanted.value_or(SampleDtype::kText)))};
      return false;
    };
    const bool as_text = wanted && !is_array(*wanted);
    switch (*at) {
      case '"': {
        if (wanted && !as_text) return refuse(kind_of(at));
        bool surrogates = false;
        (void)unescape(string_at(walk, at), made.bytes, surrogates);
        if (surrogates && wanted == SampleDtype::kText) {
          return refuse("a string with half of a surrogate pair");
        }
        field.dtype = wanted.value_or(surrogates ? SampleDtype::kBytes : SampleDtype::kText);
        return true;
      }
      case 't':
      case 'f':
        if (as_text) return add_json(made, field, found, wanted);
        field.dtype = wanted.value_or(SampleDtype::kBool);
        return put_truth(*at == 't', field.dtype, made.bytes) || refuse(kind_of(at));
      case '{':
        if (wanted && !as_text) return refuse(kind_of(at));
        return add_json(made, field, found, wanted);
      case '[': {
        if (as_text) return add_json(made, field, found, wanted);
        facts_.clear();
        if (!look_at(walk, 0) || (!wanted && facts_.inexact)) {
          made.shape.clear();
          if (wanted) return refuse(kind_of(at));
          return add_json(made, field, found, wanted);
        }
        made.shape = facts_.shape;
        // Nothing says what an empty one would hold.
        field.dtype = wanted                             ? *wanted
                      : facts_.truths && !facts_.numbers ? SampleDtype::kBool
                      : facts_.whole                     ? SampleDtype::kInt64
                      : facts_.not_negative              ? SampleDtype::kUint64
                                                         : SampleDtype::kFloat64;
        Walk again = walk_from(found.at + 1);
        return put_array(again, field.dtype, made.bytes) || refuse(kind_of(at));
      }
      default: {
        if (as_text) return add_json(made, field, found, wanted);
        const std::string_view text = scalar_at(walk, at);
        const AnyNumber number = read_number(text);
        const std::optional<SampleDtype> own = number_dtype(number.kind);
        if (!wanted && !own) return add_json(made, field, found, wanted);
        field.dtype = wanted ? *wanted : *own;
        return put(number, text, field.dtype, made.bytes) || refuse(text.substr(0, kValueShown));
      }
    }
  }
  // Of a number of which nothing else is wanted. What no type holds as it is, is text.
  static std::optional<SampleDtype> number_dtype(AnyNumber::Kind kind) {
    switch (kind) {
      case AnyNumber::Kind::kWhole:
        return SampleDtype::kInt64;
      case AnyNumber::Kind::kLarge:
        return SampleDtype::kUint64;
      case AnyNumber::Kind::kReal:
      case AnyNumber::Kind::kNotFinite:
        return SampleDtype::kFloat64;
      default:
        return std::nullopt;
    }
  }

  // The value itself, without blanks.
  bool add_json(Made& made, SampleField& field, const Found& found,
                std::optional<SampleDtype> wanted) {
    const char* const begin = text_.data() + *found.at;
    const char* const end = text_.data() + (found.behind != end_ ? *found.behind : text_.size());
    const auto bytes = static_cast<std::size_t>(end - begin);
    made.bytes.resize(bytes + kJsonSlack);
    std::size_t left = 0;
    const simdjson::error_code error =
        simdjson::minify(begin, bytes, reinterpret_cast<char*>(made.bytes.data()), left);
    RF_CHECK(error == simdjson::SUCCESS, error);
    made.bytes.resize(left);
    field.dtype = wanted.value_or(SampleDtype::kText);
    return true;
  }

  static std::byte* grow(std::vector<std::byte>& to, SampleDtype dtype) {
    const std::size_t before = to.size();
    to.resize(before + dtype_bytes(dtype));
    return to.data() + before;
  }
  static bool put(const AnyNumber& number, std::string_view text, SampleDtype dtype,
                  std::vector<std::byte>& to) {
    return json::put_any_number(number, text, dtype, grow(to, dtype));
  }
  // As a number it is 0 or 1.
  static bool put_truth(bool truth, SampleDtype dtype, std::vector<std::byte>& to) {
    std::byte* const at = grow(to, dtype);
    if (dtype != SampleDtype::kBool) {
      const std::int64_t whole = truth ? 1 : 0;
      return json::put_number(
          {.is_whole = true, .whole = whole, .real = static_cast<double>(whole)}, dtype, at);
    }
    *at = static_cast<std::byte>(truth);
    return true;
  }

  // Behind the "[" of an array, into facts_. False: it is none of numbers or of truth values, or of
  // no shape.
  bool look_at(Walk& walk, std::size_t depth) {
    ArrayFacts& facts = facts_;
    if (depth == sample::kDimsMax) return false;
    const bool first = facts.shape.size() == depth;
    if (first) facts.shape.push_back(0);
    if (facts.levels.size() == depth) facts.levels.push_back(ArrayFacts::Level::kUnknown);
    std::uint32_t count = 0;
    for (const char* at = walk.take(); *at != ']'; at = walk.take()) {
      if (*at == ',') continue;
      ++count;
      const bool deeper = *at == '[';
      const auto is = deeper ? ArrayFacts::Level::kArrays : ArrayFacts::Level::kValues;
      const auto was = std::exchange(facts.levels[depth], is);
      if (was != is && was != ArrayFacts::Level::kUnknown) return false;
      if (deeper) {
        if (!look_at(walk, depth + 1)) return false;
        continue;
      }
      if (*at == 't' || *at == 'f') {
        facts.numbers = facts.whole = facts.not_negative = false;
      } else if (*at == '"' || *at == '{' || *at == 'n') {
        return false;
      } else {
        facts.truths = false;
        const AnyNumber number = read_number(scalar_at(walk, at));
        const AnyNumber::Kind kind = number.kind;
        facts.whole &= kind == AnyNumber::Kind::kWhole;
        facts.not_negative &= kind == AnyNumber::Kind::kLarge ||
                              (kind == AnyNumber::Kind::kWhole && number.number.whole >= 0);
        facts.inexact |= kind == AnyNumber::Kind::kBeyond || kind == AnyNumber::Kind::kHuge;
      }
      if (!facts.numbers && !facts.truths) return false;
    }
    if (first) facts.shape[depth] = count;
    return count == facts.shape[depth];
  }
  // Behind the "[" of an array that look_at() knows.
  bool put_array(Walk& walk, SampleDtype dtype, std::vector<std::byte>& to) {
    for (const char* at = walk.take(); *at != ']'; at = walk.take()) {
      if (*at == ',') continue;
      if (*at == '[') {
        if (!put_array(walk, dtype, to)) return false;
      } else if (*at == 't' || *at == 'f') {
        if (!put_truth(*at == 't', dtype, to)) return false;
      } else {
        const std::string_view text = scalar_at(walk, at);
        if (!put(read_number(text), text, dtype, to)) return false;
      }
    }
    return true;
  }

  // What was made for the line before is taken again, with its memory.
  Made& next_made() {
    if (used_ == made_.size()) made_.emplace_back();
    Made& made = made_[used_++];
    made.shape.clear();
    made.bytes.clear();
    return made;
  }

  std::vector<WantedField> wanted_;
  bool strict_;
  std::unique_ptr<simdjson::internal::dom_parser_implementation> parser_;
  decltype(Unescaper::unescape) unescape_ = unescapers().front().unescape;
  // The text at hand, and its structure.
  std::string_view text_;
  const std::uint32_t* begin_ = nullptr;
  const std::uint32_t* end_ = nullptr;
  std::string levels_;  // what ends those that are open
  std::vector<std::byte> scratch_;
  std::vector<std::byte> name_;
  std::vector<Found> found_;  // by wanted field
  // Of all members, if nothing is named; more than there are now.
  std::vector<Member> members_;
  std::size_t members_count_ = 0;
  bool too_many_ = false;
  std::vector<SampleField> fields_;
  std::vector<Made> made_;  // by field; more than there are now
  std::size_t used_ = 0;
  ArrayFacts facts_;
};

JsonSamples::JsonSamples(std::vector<WantedField> wanted, bool strict)
    : parser_(std::make_unique<Parser>(std::move(wanted), strict)) {}
JsonSamples::~JsonSamples() = default;
JsonSamples::Outcome JsonSamples::read(std::string_view text) { return parser_->read(text); }

}  // namespace ringfeed
