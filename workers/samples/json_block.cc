#include "workers/samples/json_block.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "workers/samples/json_number.h"
#include "workers/samples/json_text.h"

namespace ringfeed {
namespace {

using json::is_word;
using json::Number;
using json::put_number;
using json::read_number;
using sample::Entry;
using sample::Head;

// What is looked at in one go: the lines, and where their structure is, stay in the caches.
constexpr std::size_t kJsonBlockBytes = std::size_t{128} << 10;
// Behind a block that is no JSON there are smaller ones, so that few lines are read as they are by
// JsonSamples.
constexpr std::size_t kJsonBlockBytesMin = std::size_t{8} << 10;
// Where most lines are for JsonSamples, so many blocks are left to it without a look.
constexpr std::uint32_t kBlocksLeft = 16;
constexpr std::uint32_t kDepthMax = 64;  // of what is passed over

}  // namespace

class JsonBlock::Impl {
 public:
  explicit Impl(const std::vector<WantedField>& wanted) : wanted_(wanted) {
    // capacity, and a depth that only stage 2 needs
    if (simdjson::get_active_implementation()->create_dom_parser_implementation(
            kJsonBlockBytes, 1, parser_) != simdjson::SUCCESS) {
      parser_ = nullptr;
    }
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) twice_ = twice_ || wanted_[i].name == wanted_[j].name;
      if (!add_name(wanted_[i].as)) twice_ = true;
    }
    seen_.resize(wanted_.size());
    if (!wanted_.empty() && !twice_) lay_out();
  }

  void begin(std::string_view lines) {
    const bool most_missed = missed_ > taken_;
    missed_ = taken_ = 0;
    if (most_missed) left_ = kBlocksLeft;
    std::string_view block = lines.substr(0, bytes_max_);
    if (block.size() < lines.size()) block = block.substr(0, block.rfind('\n') + 1);
    usable_ = false;
    // A line that is longer than a block is a block.
    if (block.empty()) block = lines.substr(0, lines.find('\n'));
    block_ = block;
    if (parser_ == nullptr || twice_ || block.size() > kJsonBlockBytes) return;
    if (left_ != 0) {
      --left_;
      return;
    }
    usable_ = parser_->stage1(reinterpret_cast<const std::uint8_t*>(block.data()), block.size(),
                              simdjson::stage1_mode::regular) == simdjson::SUCCESS;
    bytes_max_ = usable_ ? std::min(2 * bytes_max_, kJsonBlockBytes) : kJsonBlockBytesMin;
    if (!usable_) return;
    next_ = parser_->structural_indexes.get();
    // Behind the last there is room for more, and nobody goes beyond.
    parser_->structural_indexes[parser_->n_structural_indexes] =
        static_cast<std::uint32_t>(block.size());
  }

  [[nodiscard]] bool is_in(std::string_view line) const noexcept {
    return line.data() >= block_.data() && line.data() < block_.data() + block_.size();
  }

  [[nodiscard]] bool read(std::string_view line) noexcept {
    if (!usable_) return false;
    const bool done = read_object(line);
    ++(done ? taken_ : missed_);
    return done;
  }

  [[nodiscard]] std::span<const std::byte> head() const noexcept { return {head_.get(), prefix_}; }
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return {out_, used_}; }

 private:
  // Where the reading of a line is.
  struct Walk {
    const char* text;
    const std::uint32_t* next;
    std::uint32_t end;  // of the line

    // The next piece of structure, or first character of a value; nullptr: the line has no more.
    const char* take() noexcept { return *next < end ? text + *next++ : nullptr; }
    [[nodiscard]] const char* see() const noexcept { return *next < end ? text + *next : nullptr; }
  };

  [[nodiscard]] bool read_object(std::string_view line) noexcept {
    Walk walk{.text = block_.data(), .next = next_, .end = 0};
    const auto from = static_cast<std::uint32_t>(line.data() - block_.data());
    walk.end = from + static_cast<std::uint32_t>(line.size());
    while (*walk.next < from) ++walk.next;
    make_room(line.size());
    used_ = 0;
    out_ = data_.get();
    count_ = guess_ = 0;
    ++number_;
    const bool done = members(walk) && *walk.next >= walk.end && finish();
    next_ = walk.next;
    return done;
  }

  [[nodiscard]] bool members(Walk& walk) noexcept {
    const char* at = walk.take();
    if (at == nullptr || *at != '{') return false;
    at = walk.take();
    if (at == nullptr) return false;
    if (*at == '}') return true;
    for (;;) {
      if (*at != '"') return false;
      const char* const name = at + 1;
      const char* const colon = walk.take();
      if (colon == nullptr || *colon != ':') return false;
      if (!(wanted_.empty() ? member(walk, name, colon) : chosen(walk, name, colon))) return false;
      at = walk.take();
      if (at == nullptr) return false;
      if (*at == '}') return true;
      if (*at != ',') return false;
      at = walk.take();
      if (at == nullptr) return false;
    }
  }

  // The text of a string whose value is followed by `behind`: between its quote and that there are
  // only spaces.
  static std::string_view raw(const char* begin, const char* behind) noexcept {
    const char* end = behind - 1;
    while (end != begin && *end != '"') --end;
    return {begin, static_cast<std::size_t>(end - begin)};
  }

  // ---- all members

  [[nodiscard]] bool member(Walk& walk, const char* name, const char* colon) noexcept {
    const char* const at = walk.take();
    if (at == nullptr) return false;
    if (*at == 'n') {
      const std::string_view text = raw(name, colon);
      return is_word(at, "null") && is_plain(text) && !is_known(text);
    }
    if (count_ == sample::kFieldsMax) return false;
    // Names are mostly those of the line before.
    const bool known = count_ < names_.size() && names_[count_].size() + name < colon &&
                       name[names_[count_].size()] == '"' &&
                       std::memcmp(names_[count_].data(), name, names_[count_].size()) == 0;
    if (!known) {
      const std::string_view text = raw(name, colon);
      if (!is_plain(text)) return false;
      if (is_known(text)) return false;
      names_.resize(count_);
      laid_out_ = false;
      if (!add_name(text)) return false;
      entries()[count_] = {};
    }
    return value(walk, at, count_++, std::nullopt);
  }
  static bool is_plain(std::string_view text) noexcept {
    return text.find('\\') == std::string_view::npos;
  }
  // Is it the name of a member before? Of these the last one counts, which JsonSamples looks after.
  [[nodiscard]] bool is_known(std::string_view name) const noexcept {
    return std::ranges::find(std::span(names_).first(count_), name) !=
           std::span(names_).first(count_).end();
  }
  [[nodiscard]] bool add_name(std::string_view name) {
    if (name.empty() || name.size() > sample::kNameBytesMax) return false;
    names_.emplace_back(name);
    return names_.size() <= sample::kFieldsMax;
  }

  // ---- those that are wanted

  [[nodiscard]] bool chosen(Walk& walk, const char* name, const char* colon) noexcept {
    const std::string_view text = raw(name, colon);
    if (!is_plain(text)) return false;
    const char* const at = walk.take();
    if (at == nullptr) return false;
    // They mostly come in the order in which they are wanted.
    std::size_t i = guess_;
    for (std::size_t tries = 0; tries < wanted_.size(); ++tries, ++i) {
      if (i >= wanted_.size()) i = 0;
      if (wanted_[i].name != text) continue;
      if (seen_[i] == number_) return false;  // the last of a name counts
      if (*at == 'n') return false;
      seen_[i] = number_;
      in_order_ = count_ == 0 ? i == 0 : in_order_ && i == last_ + 1;
      last_ = i;
      guess_ = i + 1;
      ++count_;
      return value(walk, at, i, wanted_[i].dtype);
    }
    return pass_over(walk, at, 0);
  }

  // Looks whether it is JSON.
  [[nodiscard]] bool pass_over(Walk& walk, const char* at, std::uint32_t depth) noexcept {
    switch (*at) {
      case '"': {
        const char* const behind = walk.see();
        if (behind == nullptr) return false;
        return unescape_(raw(at + 1, behind), data_.get() + used_) != nullptr;
      }
      case '{':
      case '[': {
        if (depth == kDepthMax) return false;
        const bool object = *at == '{';
        const char end = object ? '}' : ']';
        at = walk.take();
        if (at == nullptr) return false;
        if (*at == end) return true;
        for (;;) {
          if (object) {
            if (*at != '"' || !pass_over(walk, at, depth + 1)) return false;
            const char* const colon = walk.take();
            if (colon == nullptr || *colon != ':') return false;
            at = walk.take();
            if (at == nullptr) return false;
          }
          if (!pass_over(walk, at, depth + 1)) return false;
          at = walk.take();
          if (at == nullptr) return false;
          if (*at == end) return true;
          if (*at != ',') return false;
          at = walk.take();
          if (at == nullptr) return false;
        }
      }
      case 't':
        return is_word(at, "true");
      case 'f':
        return is_word(at, "false");
      case 'n':
        return is_word(at, "null");
      default: {
        Number number;
        return read_number(at, number);
      }
    }
  }

  // ---- values

  [[nodiscard]] bool value(Walk& walk, const char* at, std::size_t field,
                           std::optional<SampleDtype> wanted) noexcept {
    const bool as_text = wanted && !is_array(*wanted);
    std::byte* const to = data_.get() + used_;
    switch (*at) {
      case '"': {
        if (wanted && !as_text) return false;
        const char* const behind = walk.see();
        if (behind == nullptr) return false;
        const std::byte* const end = unescape_(raw(at + 1, behind), to);
        if (end == nullptr) return false;
        put(field, wanted.value_or(SampleDtype::kText), {}, static_cast<std::size_t>(end - to));
        return true;
      }
      case '[':
        return !as_text && array(walk, field, wanted);
      case 't':
      case 'f': {
        const bool truth = *at == 't';
        if (wanted.value_or(SampleDtype::kBool) != SampleDtype::kBool) return false;
        if (!is_word(at, truth ? "true" : "false")) return false;
        *to = static_cast<std::byte>(truth);
        put(field, SampleDtype::kBool, {}, 1);
        return true;
      }
      default: {
        Number number;
        if (as_text || !read_number(at, number)) return false;
        if (!wanted) {
          std::memcpy(to, number.is_whole ? static_cast<const void*>(&number.whole) : &number.real,
                      8);
          put(field, number.is_whole ? SampleDtype::kInt64 : SampleDtype::kFloat64, {}, 8);
          return true;
        }
        if (!put_number(number, *wanted, to)) return false;
        put(field, *wanted, {}, dtype_bytes(*wanted));
        return true;
      }
    }
  }

  struct Array {
    std::array<std::uint32_t, sample::kDimsMax> shape;
    std::size_t dims;  // 0: not known yet
    bool all_whole;
    SampleDtype dtype;  // of the elements so far, or that are wanted
    bool wanted;
    std::byte* to;
  };

  [[nodiscard]] bool array(Walk& walk, std::size_t field,
                           std::optional<SampleDtype> wanted) noexcept {
    std::byte* const begin = data_.get() + used_;
    Array array{.shape = {},
                .dims = 0,
                .all_whole = true,
                .dtype = wanted.value_or(SampleDtype::kInt64),
                .wanted = wanted.has_value(),
                .to = begin};
    if (!level(walk, array, begin, 0)) return false;
    put(field, array.dtype, std::span(array.shape).first(array.dims),
        static_cast<std::size_t>(array.to - begin));
    return true;
  }

  // Behind the "[" of level `depth`. Empty ones are for JsonSamples.
  [[nodiscard]] static bool level(Walk& walk, Array& array, std::byte* begin,
                                  std::size_t depth) noexcept {
    if (depth == sample::kDimsMax) return false;
    std::uint32_t count = 0;
    const char* at = walk.take();
    if (at == nullptr) return false;
    if (*at == '[') {
      for (;;) {
        if (*at != '[' || !level(walk, array, begin, depth + 1)) return false;
        ++count;
        at = walk.take();
        if (at == nullptr) return false;
        if (*at == ']') break;
        if (*at != ',') return false;
        at = walk.take();
        if (at == nullptr) return false;
      }
    } else {
      if (array.dims == 0) array.dims = depth + 1;
      if (array.dims != depth + 1) return false;
      // Copies, which no byte that is written can be part of.
      Walk here = walk;
      const bool wanted = array.wanted;
      std::byte* to = array.to;
      for (;;) {
        Number number;
        if (!read_number(at, number)) return false;
        if (wanted) {
          if (!put_number(number, array.dtype, to)) return false;
          to += dtype_bytes(array.dtype);
        } else {
          if (number.is_whole && array.all_whole) {
            std::memcpy(to, &number.whole, 8);
          } else {
            if (array.all_whole) become_real(array, begin, to);
            std::memcpy(to, &number.real, 8);
          }
          to += 8;
        }
        ++count;
        at = here.take();
        if (at == nullptr) return false;
        if (*at == ']') break;
        if (*at != ',') return false;
        at = here.take();
        if (at == nullptr) return false;
      }
      walk.next = here.next;
      array.to = to;
    }
    std::uint32_t& size = array.shape[depth];
    if (size == 0) size = count;
    return size == count;
  }
  static void become_real(Array& array, std::byte* begin, const std::byte* end) noexcept {
    array.all_whole = false;
    array.dtype = SampleDtype::kFloat64;
    for (; begin != end; begin += 8) {
      std::int64_t whole = 0;
      std::memcpy(&whole, begin, 8);
      const auto real = static_cast<double>(whole);
      std::memcpy(begin, &real, 8);
    }
  }

  // ---- the record

  [[nodiscard]] Entry* entries() const noexcept {
    return reinterpret_cast<Entry*>(head_.get() + sample::kHeadBytes);
  }

  // The bytes of the field have been written behind those of the others.
  void put(std::size_t field, SampleDtype dtype, std::span<const std::uint32_t> shape,
           std::size_t bytes) noexcept {
    Entry& entry = entries()[field];
    entry.dtype = static_cast<std::uint8_t>(dtype);
    entry.data_at = static_cast<std::uint32_t>(prefix_ + used_);
    entry.data_bytes = static_cast<std::uint32_t>(bytes);
    if (entry.dims != 0 || !shape.empty()) {
      std::memset(entry.shape, 0, sizeof entry.shape);
      for (std::size_t i = 0; i < shape.size(); ++i) entry.shape[i] = shape[i];
      entry.dims = static_cast<std::uint8_t>(shape.size());
    }
    used_ += bytes;
    // No byte of a record is left as it was.
    std::memset(data_.get() + used_, 0, sample::kAlignment);
    used_ = shm::align_up(used_, sample::kAlignment);
  }

  // Where names are, and where data begins, for as many fields as there are names.
  void lay_out() {
    const std::size_t table = sample::kHeadBytes + names_.size() * sample::kFieldBytes;
    std::size_t at = table;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      entries()[i].name_at = static_cast<std::uint32_t>(at);
      entries()[i].name_bytes = static_cast<std::uint16_t>(names_[i].size());
      std::memcpy(head_.get() + at, names_[i].data(), names_[i].size());
      at += names_[i].size();
    }
    const std::size_t before = std::exchange(prefix_, shm::align_up(at, sample::kAlignment));
    std::memset(head_.get() + at, 0, prefix_ - at);
    for (std::size_t i = 0; i < names_.size(); ++i) {
      entries()[i].data_at += static_cast<std::uint32_t>(prefix_ - before);
    }
    const Head head{.bytes = 0,
                    .field_count = static_cast<std::uint16_t>(names_.size()),
                    .version = sample::kVersion,
                    .zero = 0};
    std::memcpy(head_.get(), &head, sizeof head);
    laid_out_ = true;
  }

  [[nodiscard]] bool finish() noexcept {
    if (!wanted_.empty()) {
      if (count_ != wanted_.size()) return false;
      if (!in_order_) put_in_order();
    } else if (!laid_out_ || count_ != names_.size()) {
      names_.resize(count_);
      lay_out();
    }
    const auto bytes = static_cast<std::uint32_t>(prefix_ + used_);
    std::memcpy(head_.get(), &bytes, sizeof bytes);
    return true;
  }

  // The data of fields that came in another order than they are wanted.
  void put_in_order() noexcept {
    if (ordered_.size() < used_) ordered_.resize(used_);
    std::size_t at = 0;
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      Entry& entry = entries()[i];
      const std::size_t bytes = shm::align_up(entry.data_bytes, sample::kAlignment);
      std::memcpy(ordered_.data() + at, data_.get() + (entry.data_at - prefix_), bytes);
      entry.data_at = static_cast<std::uint32_t>(prefix_ + at);
      at += bytes;
    }
    out_ = ordered_.data();
  }

  // A value takes at most four times its text (a number of an array has 8 bytes, and 2 characters),
  // and what fills it up to a multiple of 16 at most four times that of its field ("":1,).
  void make_room(std::size_t line_bytes) {
    const std::size_t need = 8 * line_bytes + kJsonSlack;
    if (data_bytes_ >= need) return;
    data_bytes_ = 2 * need;
    data_ = std::make_unique_for_overwrite<std::byte[]>(data_bytes_);
  }

  static constexpr std::size_t kHeadBytesMax =
      sample::kHeadBytes + sample::kFieldsMax * (sample::kFieldBytes + sample::kNameBytesMax) +
      sample::kAlignment;

  std::vector<WantedField> wanted_;
  bool twice_ = false;  // something is wanted twice, or cannot be a field
  std::unique_ptr<simdjson::internal::dom_parser_implementation> parser_;
  decltype(Unescaper::unescape) unescape_ = unescapers().front().unescape;
  // The block.
  std::string_view block_;
  bool usable_ = false;
  const std::uint32_t* next_ = nullptr;  // of its structure
  std::size_t bytes_max_ = kJsonBlockBytes;
  std::uint32_t taken_ = 0;  // lines
  std::uint32_t missed_ = 0;
  std::uint32_t left_ = 0;  // blocks that are not looked at
  // The line.
  std::size_t count_ = 0;  // fields
  std::size_t used_ = 0;   // bytes of data
  std::uint64_t number_ = 0;
  std::vector<std::uint64_t> seen_;  // by what is wanted: the last line that had it
  std::size_t guess_ = 0;            // what is wanted, and comes next
  std::size_t last_ = 0;
  bool in_order_ = true;
  // The record; of the head all but what put() and finish() write is that of the line before.
  std::vector<std::string> names_;
  bool laid_out_ = false;
  std::size_t prefix_ = 0;  // bytes of the head
  std::unique_ptr<std::byte[]> head_ = std::make_unique<std::byte[]>(kHeadBytesMax);
  std::unique_ptr<std::byte[]> data_;
  std::size_t data_bytes_ = 0;
  std::vector<std::byte> ordered_;
  const std::byte* out_ = nullptr;
};

JsonBlock::JsonBlock(const std::vector<WantedField>& wanted)
    : impl_(std::make_unique<Impl>(wanted)) {}
JsonBlock::~JsonBlock() = default;
void JsonBlock::begin(std::string_view lines) { impl_->begin(lines); }
bool JsonBlock::is_in(std::string_view line) const noexcept { return impl_->is_in(line); }
bool JsonBlock::read(std::string_view line) noexcept { return impl_->read(line); }
std::span<const std::byte> JsonBlock::head() const noexcept { return impl_->head(); }
std::span<const std::byte> JsonBlock::data() const noexcept { return impl_->data(); }

}  // namespace ringfeed
