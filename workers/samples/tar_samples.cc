// The members of a tar as samples, grouped as WebDataset does: those that follow each other and
// have one name up to the first dot of it are one sample, whose fields are named by the rest. With
// `group: BY_KEY` those that have one name within a window of samples.
//
// Items come as they are met, and their number is the cursor: what follows from the names alone
// decides which there are, so that a lane that begins anew finds the same ones.
//
// A member that is lost costs the sample that it is of, which is counted once. Where the damage
// does not say whose it was, the samples before and behind it are in doubt: they go out if they
// have all fields that are wanted.
#include <fmt/format.h>
#include <simdjson.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "proto/config.pb.h"
#include "workers/io/tar.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

// The name of the members of a sample, up to the dot.
constexpr std::string_view kKeyField = "__key__";

using formats::TarEntry;
using formats::TarMember;
using formats::TarProblem;
using formats::TarReason;

// A member's name taken apart; no key: it is of no sample.
struct MemberName {
  std::string_view key;
  std::string field;
};
MemberName taken_apart(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  const std::size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', begin);
  if (dot == std::string_view::npos || dot == begin) return {};
  MemberName taken{.key = name.substr(0, dot), .field = std::string(name.substr(dot + 1))};
  std::ranges::transform(taken.field, taken.field.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return taken;
}

// Damage of which it is not known whose it is.
struct Doubt {
  std::uint64_t place;
  std::string text;
  std::string key;    // as the damaged header has it
  bool told = false;  // a sample has been refused for it
};

// The members of a key that have come so far.
struct Group {
  struct Member {
    std::string field;
    TarMember member;
    std::vector<std::byte> content = {};  // of a packed file
  };
  std::string key;
  std::uint64_t place = 0;  // of the first member
  std::uint64_t end = 0;    // of the last one
  std::uint64_t bytes = 0;
  std::vector<Member> members = {};
  std::string damage = {};  // what is wrong with a member
  std::string twice = {};   // a member whose field has come before
  std::shared_ptr<Doubt> before = {};
  std::shared_ptr<Doubt> behind = {};
  bool again = false;  // the key has come before
};

class TarSamples final : public SampleFile {
 public:
  TarSamples(const SampleSourceConfig& config, SamplePart part, std::uint64_t file_bytes)
      : wanted_(wanted_fields(config)),
        as_numbers_(std::move(part.numbers)),
        window_(config.group() == SampleSourceConfig::BY_KEY ? config.group_window() : 1),
        left_(part.cursor),
        cursor_(part.cursor),
        packed_(part.packing != formats::Packing::kPlain) {
    if (packed_) {
      walk_.emplace(std::make_unique<formats::ByteStream>(std::move(part.fd), part.packing, 0,
                                                          config.window_bytes_max()));
    } else {
      fd_ = std::move(part.fd);
      walk_.emplace(fd_.get(), file_bytes);
    }
  }

  Result<bool> next(Item& item) override {
    for (;;) {
      while (!ready_.empty()) {
        Ready ready = std::move(ready_.front());
        ready_.pop_front();
        // It has been counted with a sample.
        if (ready.doubt != nullptr && ready.doubt->told) continue;
        const bool is_out = left_ != 0;
        if (is_out) --left_;
        item = Item{.place = ready.place,
                    .cursor = cursor_ + (is_out ? 0 : 1),
                    .bytes = 0,
                    .fault = ready.fault,
                    .text = std::move(ready.text)};
        if (ready.group != nullptr) {
          at_hand_ = std::move(ready.group);
          if (Status given = give(*at_hand_, is_out, item); !given) return given.error();
        }
        if (is_out) continue;
        ++cursor_;
        return true;
      }
      if (fault_) return *fault_;
      if (over_) return false;
      if (Status more = walk_on(); !more) {
        fault_ = more.error();
        close_all("the file cannot be read to its end");
      }
    }
  }

  std::uint64_t checked() const override {
    return packed_ ? walk_->stream()->checked() : SampleFile::checked();
  }
  std::uint64_t trailing_bytes() const override {
    return packed_ ? walk_->stream()->trailing_bytes() : 0;
  }

 private:
  // What becomes an item: a group; or a fault, perhaps one that has been told by then.
  struct Ready {
    std::shared_ptr<Group> group = {};
    SampleFault fault = SampleFault::kNone;
    std::uint64_t place = 0;
    std::string text = {};
    std::shared_ptr<Doubt> doubt = {};
  };

  // Of a sample; and of all that wait for more members, of a packed file.
  static constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 30;

  // Takes what comes next in the tar. An error: nothing more can be read.
  [[nodiscard]] Status walk_on() {
    Result<std::optional<TarEntry>> next = walk_->next();
    if (!next) return next.error();
    if (!*next) {
      over_ = true;
      close_all({});
      return {};
    }
    TarEntry& entry = **next;
    // Tars that are joined may have the same keys.
    if (std::exchange(archive_, entry.archive) != entry.archive) {
      const std::shared_ptr<Doubt> doubt = std::exchange(doubt_, nullptr);
      if (doubt != nullptr && last_ != nullptr) last_->behind = doubt;
      close_all({});
      seen_.clear();
      // What looked like an end may have been zeros in a member.
      doubt_ = doubt;
    }
    const auto pass_over = [&](std::string_view what) {
      ready_.push_back({.fault = SampleFault::kNoSample,
                        .place = entry.offset,
                        .text = fmt::format("member '{}' {}", entry.member.name, what)});
    };
    switch (entry.kind) {
      case TarEntry::Kind::kMember:
        if (taken_apart(entry.member.name).key.empty()) {
          pass_over("has no key with a dot behind it in its name");
          return {};
        }
        return take(std::move(entry.member));
      case TarEntry::Kind::kProblem:
        take(std::move(entry.problem));
        return {};
      case TarEntry::Kind::kDirectory:
        return {};
      case TarEntry::Kind::kLink:
        pass_over("is a link: pack the file that it means (tar --dereference --hard-dereference)");
        return {};
      case TarEntry::Kind::kOther:
        pass_over("is no file");
        return {};
    }
    return {};
  }

  [[nodiscard]] Status take(TarMember member) {
    MemberName name = taken_apart(member.name);
    const std::shared_ptr<Group> group = group_of(name.key, member.data_offset);
    if (!damage_of_next_.empty()) group->damage = std::exchange(damage_of_next_, {});
    if (const std::shared_ptr<Doubt> doubt = std::exchange(doubt_, nullptr)) {
      if (group == last_ || doubt->key == group->key) {
        group->damage = doubt->text;
      } else {
        if (last_ != nullptr) last_->behind = doubt;
        group->before = doubt;
      }
    }
    last_ = group;
    group->bytes += member.data_bytes;
    group->end = member.pieces.empty()
                     ? member.data_offset + member.data_bytes
                     : member.pieces.back().data_offset + member.pieces.back().bytes;
    const auto same = [&](const Group::Member& other) { return other.field == name.field; };
    if (std::ranges::any_of(group->members, same)) group->twice = member.name;
    group->members.push_back({.field = std::move(name.field), .member = std::move(member)});
    if (packed_) {
      if (Status got = keep(*group); !got) return got;
    }
    while (open_.size() > 1 && held_ > kBytesMax) close_front();
    return {};
  }

  // Reads the last member of the group, which cannot be had later.
  [[nodiscard]] Status keep(Group& group) {
    Group::Member& member = group.members.back();
    const auto wants = [&](const WantedField& field) { return field.name == member.field; };
    if (!wanted_.empty() && std::ranges::none_of(wanted_, wants)) return {};
    if (group.bytes > kBytesMax) return {};
    Status got = walk_->read(member.member, member.content);
    held_ += member.content.size();
    // That it is cut is said by what comes next.
    if (got || got.error().code() == ErrorCode::kNotFound) return {};
    group.damage = fmt::format("member '{}' cannot be read to its end", member.member.name);
    return got;
  }

  void take(TarProblem problem) {
    const std::string_view key = taken_apart(problem.name).key;
    if (problem.reason == TarReason::kTrailing) {
      ready_.push_back({.fault = SampleFault::kTrailing,
                        .place = problem.offset,
                        .text = std::move(problem.text)});
    } else if (problem.reason == TarReason::kDamagedExtension) {
      damage_of_next_ = std::move(problem.text);
    } else if (problem.reason == TarReason::kNameless) {
      ready_.push_back({.fault = SampleFault::kDamaged,
                        .place = problem.offset,
                        .text = std::move(problem.text)});
    } else if (problem.reason == TarReason::kDamagedHeader || key.empty()) {
      // The name in a damaged header is believed where it fits.
      const bool of_last = last_ != nullptr && !key.empty() && key == last_->key;
      if (of_last) last_->damage = problem.text;
      if (of_last && problem.alone) return;
      if (doubt_ != nullptr && !doubt_->told) {
        ready_.push_back(
            {.fault = SampleFault::kDamaged, .place = doubt_->place, .text = doubt_->text});
      }
      doubt_ = std::make_shared<Doubt>(Doubt{.place = problem.offset,
                                             .text = std::move(problem.text),
                                             .key = std::string(of_last ? "" : key),
                                             .told = of_last});
    } else {
      const std::shared_ptr<Group> group = group_of(key, problem.offset);
      group->damage = std::move(problem.text);
      last_ = group;
    }
  }

  // The one that is open, or a new one.
  std::shared_ptr<Group> group_of(std::string_view key, std::uint64_t place) {
    if (const auto found = by_key_.find(key); found != by_key_.end()) return found->second;
    while (open_.size() >= window_) close_front();
    auto group = std::make_shared<Group>(Group{.key = std::string(key), .place = place});
    group->again = !seen_.insert(std::hash<std::string_view>()(key)).second;
    by_key_.emplace(group->key, group);
    open_.push_back(group);
    return group;
  }

  // Nothing more comes to the one that has been open for longest.
  void close_front() {
    const std::shared_ptr<Group> group = std::move(open_.front());
    open_.pop_front();
    by_key_.erase(group->key);
    for (const Group::Member& member : group->members) held_ -= member.content.size();
    ready_.push_back({.group = group, .place = group->place});
    if (group->before == nullptr) return;
    ready_.push_back({.fault = SampleFault::kDamaged,
                      .place = group->before->place,
                      .text = group->before->text,
                      .doubt = group->before});
  }

  // `damage`: of those that lack something, else nothing.
  void close_all(const std::string& damage) {
    const std::shared_ptr<Doubt> doubt = std::exchange(doubt_, nullptr);
    if (doubt != nullptr && last_ != nullptr) last_->behind = doubt;
    last_ = nullptr;
    while (!open_.empty()) {
      Group& group = *open_.front();
      if (!damage.empty() && group.damage.empty() && !is_complete(group)) group.damage = damage;
      close_front();
    }
    if (doubt == nullptr) return;
    ready_.push_back({.fault = SampleFault::kDamaged,
                      .place = doubt->place,
                      .text = doubt->text,
                      .doubt = doubt});
  }

  // The first wanted field that has no member; `needed`: and that a sample needs.
  [[nodiscard]] const WantedField* missing(const Group& group, bool needed) const {
    for (const WantedField& wanted : wanted_) {
      const auto is = [&](const Group::Member& member) { return member.field == wanted.name; };
      if (wanted.name == kKeyField || (needed && !wanted.is_needed())) continue;
      if (std::ranges::none_of(group.members, is)) return &wanted;
    }
    return nullptr;
  }
  // Are all members there that are wanted?
  [[nodiscard]] bool is_complete(const Group& group) const {
    return !wanted_.empty() && missing(group, false) == nullptr;
  }

  // Makes the item of a group. What is refused for its names is refused again in another process.
  [[nodiscard]] Status give(Group& group, bool is_out, Item& item) {
    const auto refuse = [&](SampleFault fault, std::string text) {
      item.fault = fault;
      item.text = std::move(text);
      return Status();
    };
    item.bytes = group.bytes;
    item.end = group.end;
    if (group.again) {
      item.notice = fmt::format(
          "the key '{}' has come before: its members do not follow each other; {}", group.key,
          window_ == 1 ? "group: BY_KEY gathers them" : "raise group_window");
    }
    const WantedField* const lacks = missing(group, true);
    if (!group.damage.empty()) {
      return refuse(SampleFault::kDamaged, fmt::format("sample '{}': {}", group.key, group.damage));
    }
    if (!is_complete(group)) {
      bool in_doubt = false;
      for (const std::shared_ptr<Doubt>& doubt : {group.before, group.behind}) {
        if (doubt == nullptr) continue;
        in_doubt = doubt->told = true;
        item.text = doubt->text;
      }
      if (in_doubt) {
        return refuse(SampleFault::kDamaged,
                      fmt::format("sample '{}' may lack a member: {}", group.key, item.text));
      }
    }
    if (!group.twice.empty()) {
      return refuse(SampleFault::kDamaged, fmt::format("two members '{}'", group.twice));
    }
    if (lacks != nullptr) {
      return refuse(SampleFault::kMissingField,
                    fmt::format("sample '{}' has no member '{}'", group.key, lacks->name));
    }
    if (group.bytes > kBytesMax) {
      return refuse(SampleFault::kTooLarge,
                    fmt::format("sample '{}' has {} bytes", group.key, group.bytes));
    }
    if (is_out) return {};
    fields_.clear();
    const SampleDtype as_key = dtype_of_key(group.key);
    fields_.push_back({.name = kKeyField, .dtype = as_key, .data = bytes_of(group.key)});
    if (!packed_) contents_.resize(std::max(contents_.size(), group.members.size()));
    if (wanted_.empty()) {
      numbers_.resize(group.members.size());
      for (std::size_t i = 0; i < group.members.size(); ++i) {
        std::span<const std::byte> content;
        if (Status got = content_of(group, i, content); !got) return got;
        const Group::Member& member = group.members[i];
        const auto number = std::ranges::find(as_numbers_, member.field, &WantedField::name);
        SampleField field{
            .name = member.field,
            .dtype = number != as_numbers_.end() ? *number->dtype : SampleDtype::kBytes,
            .data = content};
        if (!converted(field, numbers_[i])) {
          return refuse(
              SampleFault::kWrongType,
              fmt::format("member '{}' is not {}", member.member.name, dtype_name(field.dtype)));
        }
        fields_.push_back(field);
      }
      item.fields = fields_;
      return {};
    }
    numbers_.resize(wanted_.size());
    for (std::size_t w = 0; w < wanted_.size(); ++w) {
      const WantedField& wanted = wanted_[w];
      if (wanted.name == kKeyField) {
        SampleField& field = fields_.front();
        field.name = wanted.as;
        field.dtype = wanted.dtype.value_or(as_key);
        if (!converted(field, numbers_[w])) {
          return refuse(SampleFault::kWrongType,
                        fmt::format("key '{}' is not {}", group.key, dtype_name(field.dtype)));
        }
        continue;
      }
      const auto found = std::ranges::find(group.members, wanted.name, &Group::Member::field);
      if (found == group.members.end()) {
        if (wanted.default_value) fields_.push_back(wanted.by_default());
        continue;
      }
      const auto i = static_cast<std::size_t>(found - group.members.begin());
      std::span<const std::byte> content;
      if (Status got = content_of(group, i, content); !got) return got;
      SampleField field{
          .name = wanted.as, .dtype = wanted.dtype.value_or(SampleDtype::kBytes), .data = content};
      if (!converted(field, numbers_[w])) {
        return refuse(
            SampleFault::kWrongType,
            fmt::format("member '{}' is not {}", found->member.name, dtype_name(field.dtype)));
      }
      fields_.push_back(field);
    }
    item.fields = fields_;
    return {};
  }

  // Writers that know no UTF-8 have names of other letters.
  static SampleDtype dtype_of_key(std::string_view key) {
    return simdjson::validate_utf8(key) ? SampleDtype::kText : SampleDtype::kBytes;
  }

  static std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }

  // Text has to be UTF-8; a number is written in decimal, with blanks around it or not.
  static bool converted(SampleField& field, std::uint64_t& number) {
    if (field.dtype == SampleDtype::kBytes) return true;
    std::string_view text(reinterpret_cast<const char*>(field.data.data()), field.data.size());
    if (field.dtype == SampleDtype::kText) return simdjson::validate_utf8(text);
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return false;
    text = text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
    const auto parse = [&](auto value) {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) return false;
      std::memcpy(&number, &value, sizeof value);
      field.data = std::as_bytes(std::span(&number, 1)).first(sizeof value);
      return true;
    };
    switch (field.dtype) {
      case SampleDtype::kInt8: {
        // from_chars() of a char type would be one of characters.
        std::int16_t wide = 0;
        if (!parse(wide)) return false;
        std::memcpy(&wide, &number, sizeof wide);
        field.data = field.data.first(1);
        return wide >= -128 && wide <= 127;
      }
      case SampleDtype::kUint8: {
        std::uint16_t wide = 0;
        if (!parse(wide)) return false;
        std::memcpy(&wide, &number, sizeof wide);
        field.data = field.data.first(1);
        return wide <= 255;
      }
      case SampleDtype::kInt16:
        return parse(std::int16_t{});
      case SampleDtype::kInt32:
        return parse(std::int32_t{});
      case SampleDtype::kInt64:
        return parse(std::int64_t{});
      case SampleDtype::kUint16:
        return parse(std::uint16_t{});
      case SampleDtype::kUint32:
        return parse(std::uint32_t{});
      case SampleDtype::kUint64:
        return parse(std::uint64_t{});
      case SampleDtype::kFloat32:
        return parse(float{});
      case SampleDtype::kFloat64:
        return parse(double{});
      default:
        return false;
    }
  }

  // Member i, until the next group.
  [[nodiscard]] Status content_of(Group& group, std::size_t i,
                                  std::span<const std::byte>& content) {
    Group::Member& member = group.members[i];
    if (packed_) {
      content = member.content;
      return {};
    }
    if (Status got = walk_->read(member.member, contents_[i]); !got) {
      if (got.error().code() != ErrorCode::kNotFound) return got;
      return Error{ErrorCode::kDamaged,
                   fmt::format("{}: it was cut meanwhile", got.error().message())};
    }
    content = contents_[i];
    return {};
  }

  std::vector<WantedField> wanted_;
  std::vector<WantedField> as_numbers_;  // without these: members that are written numbers
  std::size_t window_;                   // groups that are open at once
  std::uint64_t left_;                   // items that are out already
  std::uint64_t cursor_;                 // of the item that comes next
  bool packed_;
  shm::Fd fd_;
  std::optional<formats::TarWalk> walk_;
  std::uint32_t archive_ = 0;
  std::deque<std::shared_ptr<Group>> open_;
  std::map<std::string, std::shared_ptr<Group>, std::less<>> by_key_;  // those
  std::uint64_t held_ = 0;                // bytes of their members in memory
  std::unordered_set<std::size_t> seen_;  // hashes of the archive's keys
  std::shared_ptr<Group> last_;           // of the member that came last
  std::shared_ptr<Doubt> doubt_;          // behind that
  std::string damage_of_next_;            // of the member that comes next
  std::deque<Ready> ready_;
  bool over_ = false;
  std::optional<Error> fault_;
  // Of the sample at hand.
  std::shared_ptr<Group> at_hand_;
  std::vector<std::vector<std::byte>> contents_;  // by member
  std::vector<SampleField> fields_;
  std::vector<std::uint64_t> numbers_;  // by wanted field
};

}  // namespace

Result<std::unique_ptr<SampleFile>> open_tar(const SampleSourceConfig& config, SamplePart part) {
  struct stat file {};
  if (::fstat(part.fd.get(), &file) != 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  return std::unique_ptr<SampleFile>(std::make_unique<TarSamples>(
      config, std::move(part), static_cast<std::uint64_t>(file.st_size)));
}

}  // namespace ringfeed
