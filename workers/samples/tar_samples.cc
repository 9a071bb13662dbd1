// The members of a tar as samples, grouped as WebDataset does: those that follow each other and
// have one name up to the first dot of it are one sample, whose fields are named by the rest. The
// cursor of an item is the number of the next one: first what is wrong with the tar, then its
// samples.
#include <fmt/format.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>

#include "workers/io/tar.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

// The name of the members of a sample, up to the dot.
constexpr std::string_view kKeyField = "__key__";

using formats::TarMember;

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

// Members [begin, end) of the index.
struct Group {
  std::size_t begin;
  std::size_t end;
};

class TarSamples final : public SampleFile {
 public:
  TarSamples(const SampleSourceConfig& config, shm::Fd fd, formats::TarIndex index,
             std::uint64_t cursor)
      : wanted_(wanted_fields(config)), fd_(std::move(fd)), index_(std::move(index)), at_(cursor) {
    std::string_view key;
    for (std::size_t i = 0; i < index_.members.size(); ++i) {
      const std::string_view mine = taken_apart(index_.members[i].name).key;
      if (mine.empty()) continue;
      // What is of no sample does not part those that are.
      if (groups_.empty() || mine != key) groups_.push_back({i, i});
      groups_.back().end = i + 1;
      key = mine;
    }
  }

  Result<bool> next(Item& item) override {
    const std::size_t problems = index_.problems.size();
    if (at_ < problems) {
      const formats::TarProblem& problem = index_.problems[at_++];
      item = Item{.place = problem.offset,
                  .cursor = at_,
                  .bytes = 0,
                  .fault = SampleFault::kDamaged,
                  .text = problem.text};
      return true;
    }
    if (at_ - problems >= groups_.size()) return false;
    const Group group = groups_[at_ - problems];
    ++at_;
    item = Item{.place = index_.members[group.begin].data_offset, .cursor = at_, .bytes = 0};
    if (Status read = take(group, item); !read) return read.error();
    return true;
  }

 private:
  static constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 30;

  // Fills the item; an error: the file cannot be read any further.
  [[nodiscard]] Status take(Group group, Item& item) {
    names_.clear();
    fields_.clear();
    members_.clear();
    const auto refuse = [&](SampleFault fault, std::string text) {
      item.fault = fault;
      item.text = std::move(text);
      return Status();
    };
    for (std::size_t i = group.begin; i < group.end; ++i) {
      const TarMember& member = index_.members[i];
      MemberName name = taken_apart(member.name);
      if (name.key.empty()) continue;
      item.bytes += member.data_bytes;
      if (std::ranges::find(names_, name.field) != names_.end()) {
        return refuse(SampleFault::kDamaged, fmt::format("two members '{}'", member.name));
      }
      names_.push_back(std::move(name.field));
      members_.push_back(&member);
    }
    if (item.bytes > kBytesMax) {
      return refuse(SampleFault::kTooLarge,
                    fmt::format("sample '{}' has {} bytes", key(), item.bytes));
    }
    fields_.push_back({.name = kKeyField, .dtype = SampleDtype::kText, .data = bytes_of(key())});
    contents_.resize(std::max(contents_.size(), members_.size()));
    if (wanted_.empty()) {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (Status got = read(*members_[i], contents_[i]); !got) return got;
        fields_.push_back({.name = names_[i], .dtype = SampleDtype::kBytes, .data = contents_[i]});
      }
    }
    numbers_.resize(wanted_.size());
    for (std::size_t w = 0; w < wanted_.size(); ++w) {
      const WantedField& wanted = wanted_[w];
      if (wanted.name == kKeyField) {
        SampleField& field = fields_.front();
        field.name = wanted.as;
        field.dtype = wanted.dtype.value_or(SampleDtype::kText);
        if (!converted(field, numbers_[w])) {
          return refuse(SampleFault::kWrongType,
                        fmt::format("key '{}' is not {}", key(), dtype_name(field.dtype)));
        }
        continue;
      }
      const auto found = std::ranges::find(names_, wanted.name);
      if (found == names_.end()) {
        if (wanted.default_value) fields_.push_back(wanted.by_default());
        if (!wanted.is_needed()) continue;
        return refuse(SampleFault::kMissingField,
                      fmt::format("sample '{}' has no member '{}'", key(), wanted.name));
      }
      const auto i = static_cast<std::size_t>(found - names_.begin());
      if (Status got = read(*members_[i], contents_[i]); !got) return got;
      SampleField field{.name = wanted.as,
                        .dtype = wanted.dtype.value_or(SampleDtype::kBytes),
                        .data = contents_[i]};
      if (!converted(field, numbers_[w])) {
        return refuse(
            SampleFault::kWrongType,
            fmt::format("member '{}' is not {}", members_[i]->name, dtype_name(field.dtype)));
      }
      fields_.push_back(field);
    }
    item.fields = fields_;
    return {};
  }

  [[nodiscard]] std::string_view key() const { return taken_apart(members_.front()->name).key; }
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

  [[nodiscard]] Status read(const TarMember& member, std::vector<std::byte>& content) {
    content.resize(member.data_bytes);
    for (std::size_t have = 0; have < content.size();) {
      const ssize_t got = ::pread(fd_.get(), content.data() + have, content.size() - have,
                                  static_cast<off_t>(member.data_offset + have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
      if (got == 0) {
        return Error{ErrorCode::kDamaged, fmt::format("it ends in the middle of member '{}': it "
                                                      "was cut meanwhile",
                                                      member.name)};
      }
      have += static_cast<std::size_t>(got);
    }
    return {};
  }

  std::vector<WantedField> wanted_;
  shm::Fd fd_;
  formats::TarIndex index_;
  std::vector<Group> groups_;
  std::uint64_t at_;
  // Of the sample at hand, by member.
  std::vector<std::string> names_;
  std::vector<const TarMember*> members_;
  std::vector<std::vector<std::byte>> contents_;
  std::vector<SampleField> fields_;
  std::vector<std::uint64_t> numbers_;  // by wanted field
};

}  // namespace

Result<std::unique_ptr<SampleFile>> open_tar(const SampleSourceConfig& config, SamplePart part) {
  Result<formats::TarIndex> index = formats::index_tar(part.fd.get());
  if (!index) return index.error();
  return std::unique_ptr<SampleFile>(
      std::make_unique<TarSamples>(config, std::move(part.fd), std::move(*index), part.cursor));
}

}  // namespace ringfeed
