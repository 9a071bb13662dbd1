// The arrays of one .npz file as samples: row i of each, together. The cursor of an item is the
// number of the next row, from the part's first.
//
// Rows are read in blocks that begin at multiples of one number, from the first of the array on
// where it is deflated: so where a damaged array ends does not depend on who read how much of it.
//
// Who reads the last rows compares the checksums of the arrays behind them, those of stored ones by
// reading them once more from their beginning. Its cursor goes on meanwhile.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "workers/io/zip.h"
#include "workers/samples/array_rows.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

using formats::ZipMember;

constexpr std::uint64_t kNpzBlockBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kNpzRowBytesMax = std::uint64_t{1} << 30;
constexpr std::uint64_t kNpyFirstBytes = 4096;  // more than NumPy writes
constexpr std::uint64_t kCheckedAtOnce = std::uint64_t{4} << 20;
constexpr std::string_view kEnding = ".npy";

std::string_view array_name(const ZipMember& member) {
  const std::string_view name = member.name;
  return name.ends_with(kEnding) ? name.substr(0, name.size() - kEnding.size())
                                 : std::string_view();
}

// The members that are wanted, with what is wanted of them. kNotFound: it lacks one.
struct Chosen {
  const ZipMember* member;
  WantedField wanted;
};
Result<std::vector<Chosen>> choose(const std::vector<ZipMember>& members,
                                   const std::vector<WantedField>& wanted) {
  std::vector<Chosen> chosen;
  const auto find = [&](std::string_view name) {
    return std::ranges::find_if(
        members, [&](const ZipMember& member) { return array_name(member) == name; });
  };
  for (const WantedField& field : wanted) {
    const auto found = field.name.empty() ? members.end() : find(field.name);
    if (found == members.end() && !field.is_needed()) continue;
    if (found == members.end()) {
      std::string names;
      for (const ZipMember& member : members) {
        if (array_name(member).empty()) continue;
        names += fmt::format("{}'{}'", names.empty() ? "" : ", ", array_name(member));
      }
      return Error{ErrorCode::kNotFound,
                   fmt::format("it has no array '{}'; it has {}", field.name,
                               names.empty() ? "none" : names.substr(0, 500))};
    }
    chosen.push_back({&*found, field});
  }
  if (!chosen.empty()) return chosen;
  if (!wanted.empty()) return Error{ErrorCode::kNotFound, "it has none of the arrays"};
  for (auto member = members.begin(); member != members.end(); ++member) {
    const std::string name(array_name(*member));
    if (name.empty()) continue;
    if (find(name) != member) {
      return Error{ErrorCode::kDamaged, fmt::format("it has two arrays '{}'", name)};
    }
    chosen.push_back({&*member, {.name = name, .as = name}});
  }
  if (chosen.empty()) return Error{ErrorCode::kDamaged, "it has no arrays"};
  return chosen;
}

// What an array begins with.
Result<formats::NpyHead> head_of(int fd, const ZipMember& member) {
  for (std::uint64_t wanted = kNpyFirstBytes;;
       wanted = formats::kNpyHeadBytesMax + kNpyFirstBytes) {
    std::string bytes(std::min(wanted, member.bytes), '\0');
    formats::ZipReader reader(fd, member);
    const Status got = reader.read(std::as_writable_bytes(std::span(bytes)));
    if (!got) return got.error();
    Result<formats::NpyHead> head = formats::read_npy_head(bytes);
    if (head || wanted > kNpyFirstBytes || member.bytes <= kNpyFirstBytes) return head;
  }
}

struct Array {
  ZipMember member;
  std::string name;  // in the sample
  ArrayRows rows;
  std::uint64_t head_bytes = 0;
  RowFields fields = {};
  std::unique_ptr<formats::ZipReader> reader = {};  // of a deflated one
  std::vector<std::byte> block = {};
  std::vector<std::byte> whole = {};  // of one that has columns first: all rows
};

Result<Array> open_array(int fd, const Chosen& chosen) {
  const auto named = [&](const Error& error) {
    return Error{error.code(),
                 fmt::format("array '{}': {}", array_name(*chosen.member), error.message())};
  };
  if (!chosen.member->unreadable.empty()) {
    return named({ErrorCode::kDamaged, chosen.member->unreadable});
  }
  const Result<formats::NpyHead> head = head_of(fd, *chosen.member);
  if (!head) return named(head.error());
  Result<ArrayRows> rows = array_rows(*head);
  if (!rows) return named(rows.error());
  // Of records, members have the name of the array in front of theirs.
  const std::vector<WantedField> wanted =
      rows->columns.front().name.empty() ? std::vector{chosen.wanted} : std::vector<WantedField>();
  Result<RowFields> fields =
      RowFields::make(*rows, chosen.wanted.as, wanted, chosen.wanted.as + ".");
  if (!fields) return named(fields.error());
  if (rows->columns_first && chosen.member->bytes > kNpzRowBytesMax) {
    return named({ErrorCode::kUnsupported,
                  "its rows are scattered over more than a GiB (fortran_order): save it with "
                  "order='C'"});
  }
  Array array{.member = *chosen.member,
              .name = chosen.wanted.as,
              .rows = std::move(*rows),
              .head_bytes = head->data_at,
              .fields = std::move(*fields)};
  const std::uint64_t data_bytes = array.member.bytes - array.head_bytes;
  const std::uint64_t row_bytes = array.rows.row_bytes;
  if (row_bytes != 0 &&
      (data_bytes % row_bytes != 0 || data_bytes / row_bytes != array.rows.rows)) {
    return named({ErrorCode::kDamaged, fmt::format("it has {} bytes for {} rows of {}", data_bytes,
                                                   array.rows.rows, row_bytes)});
  }
  return array;
}

// All that are wanted; they have as many rows.
Result<std::vector<Array>> open_arrays(const SampleSourceConfig& config, int fd,
                                       std::uint64_t* trailing_bytes = nullptr) {
  const Result<std::vector<ZipMember>> members = formats::read_zip_directory(fd, trailing_bytes);
  if (!members) return members.error();
  const Result<std::vector<Chosen>> chosen = choose(*members, wanted_fields(config));
  if (!chosen) return chosen.error();
  std::vector<Array> arrays;
  std::uint64_t row_bytes = 0;
  for (const Chosen& one : *chosen) {
    Result<Array> array = open_array(fd, one);
    if (!array) return array.error();
    const Array& before = arrays.empty() ? *array : arrays.front();
    if (array->rows.rows != before.rows.rows) {
      return Error{ErrorCode::kDamaged,
                   fmt::format("array '{}' has {} rows, array '{}' has {}: say with `fields` which "
                               "arrays belong together",
                               array_name(before.member), before.rows.rows,
                               array_name(array->member), array->rows.rows)};
    }
    row_bytes += array->rows.row_bytes;
    arrays.push_back(std::move(*array));
  }
  if (row_bytes > kNpzRowBytesMax) {
    return Error{ErrorCode::kDamaged,
                 fmt::format("a row of all its arrays has {} bytes, at most {} are read", row_bytes,
                             kNpzRowBytesMax)};
  }
  return arrays;
}

Error named(const Array& array, const Error& error) {
  return {error.code(), fmt::format("array '{}': {}", array_name(array.member), error.message())};
}

// Reads arrays to their ends, each from its beginning unless a reader of it is given.
class ArrayChecks {
 public:
  // Goes on for some megabytes. True: all are right.
  Result<bool> some(int fd, std::vector<Array>& arrays) {
    if (next_ == arrays.size()) return true;
    Array& array = arrays[next_];
    if (array.reader == nullptr) {
      array.reader = std::make_unique<formats::ZipReader>(fd, array.member);
    }
    const Result<bool> whole = array.reader->finish(kCheckedAtOnce);
    if (!whole) return named(array, whole.error());
    if (*whole) {
      array.reader = nullptr;
      ++next_;
    }
    return next_ == arrays.size();
  }

 private:
  std::size_t next_ = 0;
};

class NpzCheck final : public FileCheck {
 public:
  NpzCheck(shm::Fd fd, std::vector<Array> arrays)
      : fd_(std::move(fd)), arrays_(std::move(arrays)) {}
  Result<bool> some() override { return checks_.some(fd_.get(), arrays_); }

 private:
  shm::Fd fd_;
  std::vector<Array> arrays_;
  ArrayChecks checks_;
};

class NpzSamples final : public SampleFile {
 public:
  // Rows [first, end).
  // `instead`: of wanted fields of which there is no array, those that have a default.
  NpzSamples(shm::Fd fd, std::vector<Array> arrays, std::vector<WantedField> instead,
             std::uint64_t first, std::uint64_t end, std::uint64_t cursor,
             std::uint64_t trailing_bytes)
      : fd_(std::move(fd)),
        arrays_(std::move(arrays)),
        instead_(std::move(instead)),
        first_(first),
        end_(end),
        next_(std::min(first + cursor, end)),
        cursor_(cursor),
        trailing_bytes_(trailing_bytes) {
    for (const Array& array : arrays_) row_bytes_ += array.rows.row_bytes;
    block_rows_ =
        std::max<std::uint64_t>(kNpzBlockBytes / std::max<std::uint64_t>(row_bytes_, 1), 1);
    block_end_ = next_;
  }

  Result<bool> next(Item& item) override {
    if (next_ == end_) return finish(item);
    if (next_ >= block_end_) {
      if (Status read = read_block(next_ / block_rows_); !read) return read.error();
    }
    item = Item{.place = next_, .cursor = ++cursor_, .bytes = row_bytes_};
    fields_.clear();
    for (Array& array : arrays_) {
      const std::uint64_t bytes = array.rows.row_bytes;
      const std::span<const std::byte> row =
          std::span(array.block).subspan((next_ - block_begin_) * bytes, bytes);
      if (std::string why = array.fields.add(row, fields_); !why.empty()) {
        item.fault = SampleFault::kWrongType;
        item.text = fmt::format("array '{}' in row {}: {}", array_name(array.member), next_, why);
      }
    }
    for (const WantedField& field : instead_) fields_.push_back(field.by_default());
    item.fields = fields_;
    ++next_;
    return true;
  }

  std::uint64_t checked() const override {
    return is_last() && !checked_ ? 0 : SampleFile::checked();
  }
  std::uint64_t elsewhere() const override { return next_ == end_ ? first_ : 0; }
  std::uint64_t trailing_bytes() const override { return trailing_bytes_; }
  std::uint64_t lost() const override { return std::max<std::uint64_t>(end_ - next_, 1); }

 private:
  [[nodiscard]] bool is_last() const { return end_ == arrays_.front().rows.rows; }

  [[nodiscard]] Status read_block(std::uint64_t number) {
    block_begin_ = std::max(first_, number * block_rows_);
    block_end_ = std::min(end_, (number + 1) * block_rows_);
    for (; blocks_inflated_ <= number; ++blocks_inflated_) {
      for (Array& array : arrays_) {
        if (!array.member.deflated || array.rows.columns_first) continue;
        if (Status got = inflate_block(array, blocks_inflated_); !got) {
          return named(array, got.error());
        }
      }
    }
    for (Array& array : arrays_) {
      const std::uint64_t row_bytes = array.rows.row_bytes;
      if (array.rows.columns_first) {
        if (Status got = load(array); !got) return named(array, got.error());
        const auto rows =
            std::span(array.whole)
                .subspan(block_begin_ * row_bytes, (block_end_ - block_begin_) * row_bytes);
        array.block.assign(rows.begin(), rows.end());
        continue;
      }
      if (array.member.deflated) {
        const std::uint64_t before = (block_begin_ - number * block_rows_) * row_bytes;
        array.block.erase(array.block.begin(),
                          array.block.begin() + static_cast<std::ptrdiff_t>(before));
        continue;
      }
      array.block.resize((block_end_ - block_begin_) * row_bytes);
      const std::uint64_t at = array.member.data_at + array.head_bytes + block_begin_ * row_bytes;
      if (Status got = read_at(at, array.block); !got) return named(array, got.error());
    }
    return {};
  }

  // Of an array that has columns first, all rows are read at once.
  [[nodiscard]] Status load(Array& array) const {
    if (!array.whole.empty()) return {};
    formats::ZipReader reader(fd_.get(), array.member);
    std::vector<std::byte> bytes(array.head_bytes);
    if (Status head = reader.read(bytes); !head) return head;
    std::vector<std::byte> rows(array.rows.rows * array.rows.row_bytes);
    bytes.resize(array.rows.rows * array.rows.element_bytes);
    for (std::uint64_t cell = 0; cell < array.rows.cells; ++cell) {
      if (Status got = reader.read(bytes); !got) return got;
      put_cells(array.rows, cell, bytes, rows);
    }
    if (const Result<bool> all = reader.finish(array.member.bytes); !all) return all.error();
    array.whole = std::move(rows);
    return {};
  }

  // All rows of a block; blocks come in order.
  [[nodiscard]] Status inflate_block(Array& array, std::uint64_t number) {
    if (array.reader == nullptr) {
      array.reader = std::make_unique<formats::ZipReader>(fd_.get(), array.member);
      array.block.resize(array.head_bytes);
      if (Status head = array.reader->read(array.block); !head) return head;
    }
    const std::uint64_t rows = std::min(block_rows_, array.rows.rows - number * block_rows_);
    array.block.resize(rows * array.rows.row_bytes);
    return array.reader->read(array.block);
  }

  // Behind the last row of the arrays their checksums tell whether all were right.
  [[nodiscard]] Result<bool> finish(Item& item) {
    if (!is_last()) return false;
    if (end_ > first_) {
      const std::uint64_t last = (end_ - 1) / block_rows_;
      if (blocks_inflated_ <= last) {
        if (Status read = read_block(last); !read) return read.error();
      }
    }
    const Result<bool> all = checks_.some(fd_.get(), arrays_);
    if (!all) return all.error();
    checked_ = *all;
    item = Item{.place = next_, .cursor = ++cursor_, .bytes = 0, .nothing = true};
    return !checked_;
  }

  [[nodiscard]] Status read_at(std::uint64_t at, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
      if (got == 0) {
        return Error{ErrorCode::kDamaged, "the file became shorter while it was read"};
      }
      at += static_cast<std::uint64_t>(got);
      out = out.subspan(static_cast<std::size_t>(got));
    }
    return {};
  }

  shm::Fd fd_;
  std::vector<Array> arrays_;
  std::vector<WantedField> instead_;
  std::vector<SampleField> fields_;  // of the row at hand
  std::uint64_t first_;
  std::uint64_t end_;
  std::uint64_t next_;
  std::uint64_t row_bytes_ = 0;  // of all arrays
  std::uint64_t block_rows_ = 1;
  // In the arrays' `block`: rows [block_begin_, block_end_).
  std::uint64_t block_begin_ = 0;
  std::uint64_t block_end_ = 0;
  std::uint64_t blocks_inflated_ = 0;  // blocks of deflated arrays that have been read
  std::uint64_t cursor_;
  std::uint64_t trailing_bytes_;
  ArrayChecks checks_;
  bool checked_ = false;
};

}  // namespace

bool can_divide_npz(const SampleSourceConfig& config, int fd) {
  const Result<std::vector<Array>> arrays = open_arrays(config, fd);
  return arrays &&
         std::ranges::none_of(*arrays, [](const Array& array) { return array.member.deflated; });
}

Result<std::unique_ptr<FileCheck>> check_npz(const SampleSourceConfig& config, shm::Fd fd) {
  Result<std::vector<Array>> arrays = open_arrays(config, fd.get());
  if (!arrays) return arrays.error();
  return std::unique_ptr<FileCheck>(std::make_unique<NpzCheck>(std::move(fd), std::move(*arrays)));
}

Result<std::unique_ptr<SampleFile>> open_npz(const SampleSourceConfig& config, SamplePart part) {
  std::uint64_t trailing_bytes = 0;
  Result<std::vector<Array>> opened = open_arrays(config, part.fd.get(), &trailing_bytes);
  if (!opened) return opened.error();
  std::vector<Array> arrays = std::move(*opened);
  // Rows belong to the part that has as much of the file before it.
  const std::uint64_t rows = arrays.front().rows.rows;
  const auto rows_before = [&](std::uint64_t at) -> std::uint64_t {
    if (at >= part.file_bytes) return rows;
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{at} * rows + part.file_bytes - 1) / part.file_bytes);
  };
  const std::uint64_t first = rows_before(part.begin);
  const std::uint64_t end = std::max(first, rows_before(part.end));
  std::vector<WantedField> instead;
  for (WantedField& field : wanted_fields(config)) {
    const bool there = std::ranges::find(arrays, field.as, &Array::name) != arrays.end();
    if (field.default_value && !there) instead.push_back(std::move(field));
  }
  return std::unique_ptr<SampleFile>(std::make_unique<NpzSamples>(
      std::move(part.fd), std::move(arrays), std::move(instead), first, end, part.cursor,
      part.end >= part.file_bytes ? trailing_bytes : 0));
}

}  // namespace ringfeed
