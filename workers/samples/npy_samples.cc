// The rows of a NumPy array as samples: what the first axis counts. One field, called `data` or as
// the configuration says, or of records one for each member. The cursor of an item is the number of
// the next row, from the part's first.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "workers/io/npy_file.h"
#include "workers/samples/array_rows.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;

// Of an array with columns first, a block takes a piece of each: few pieces are large ones.
constexpr std::uint64_t kColumnsBlockBytes = std::uint64_t{64} << 20;

class NpySamples final : public SampleFile {
 public:
  NpySamples(shm::Fd fd, RowFields fields, ArrayRows array, std::uint64_t data_at,
             std::uint64_t next, std::uint64_t end, std::uint64_t first, std::uint64_t lacking,
             std::uint64_t trailing_bytes)
      : fd_(std::move(fd)),
        row_fields_(std::move(fields)),
        array_(std::move(array)),
        data_at_(data_at),
        row_bytes_(array_.row_bytes),
        next_(next),
        end_(end),
        first_(first),
        lacking_(lacking),
        trailing_bytes_(trailing_bytes) {}

  std::uint64_t trailing_bytes() const override { return trailing_bytes_; }

  Result<bool> next(Item& item) override {
    if (next_ == end_ && lacking_ != 0) {
      return Error{ErrorCode::kDamaged,
                   fmt::format("it has {} of {} rows: it was cut short or is still being written",
                               array_.rows - lacking_, array_.rows)};
    }
    if (next_ == end_) return false;
    if (next_ >= block_end_) {
      if (Status read = read_block(); !read) return read.error();
    }
    const std::span<const std::byte> row =
        std::span(block_).subspan((next_ - block_begin_) * row_bytes_, row_bytes_);
    const std::uint64_t place = data_at_ + next_ * row_bytes_;
    ++next_;
    item = Item{.place = place, .cursor = next_ - first_, .bytes = row_bytes_};
    fields_.clear();
    if (std::string why = row_fields_.add(row, fields_); !why.empty()) {
      item.fault = SampleFault::kWrongType;
      item.text = fmt::format("row {}: {}", next_ - 1, why);
    }
    item.fields = fields_;
    return true;
  }
  std::uint64_t lost() const override { return end_ - next_ + lacking_; }

 private:
  [[nodiscard]] Status read_block() {
    const std::uint64_t rows =
        std::clamp<std::uint64_t>((array_.columns_first ? kColumnsBlockBytes : kBlockBytes) /
                                      std::max<std::uint64_t>(row_bytes_, 1),
                                  1, end_ - next_);
    block_.resize(rows * row_bytes_);
    if (array_.columns_first) {
      if (Status read = read_columns(rows); !read) return read;
    } else if (Status read = read_at(data_at_ + next_ * row_bytes_, block_); !read) {
      return read;
    }
    block_begin_ = next_;
    block_end_ = next_ + rows;
    return {};
  }

  // So many rows from next_ on: each of their cells lies with those of all other rows.
  [[nodiscard]] Status read_columns(std::uint64_t rows) {
    const std::uint64_t bytes = array_.element_bytes;
    piece_.resize(rows * bytes);
    for (std::uint64_t cell = 0; cell < array_.cells; ++cell) {
      const std::uint64_t at = data_at_ + (cell * array_.rows + next_) * bytes;
      if (Status read = read_at(at, piece_); !read) return read;
      put_cells(array_, cell, piece_, block_);
    }
    return {};
  }

  [[nodiscard]] Status read_at(std::uint64_t at, std::span<std::byte> to) const {
    for (std::size_t have = 0; have < to.size();) {
      const ssize_t got =
          ::pread(fd_.get(), to.data() + have, to.size() - have, static_cast<off_t>(at + have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
      if (got == 0) {
        return Error{ErrorCode::kDamaged, fmt::format("it ends in row {}, or before it", next_)};
      }
      have += static_cast<std::size_t>(got);
    }
    return {};
  }

  shm::Fd fd_;
  RowFields row_fields_;
  ArrayRows array_;
  std::uint64_t data_at_;
  std::uint64_t row_bytes_;
  std::uint64_t next_;  // rows of the array
  std::uint64_t end_;
  std::uint64_t first_;              // of the part
  std::uint64_t lacking_;            // rows behind the last one that the file does not have
  std::uint64_t trailing_bytes_;     // there, of the file
  std::vector<SampleField> fields_;  // of the row at hand
  std::vector<std::byte> piece_;
  std::vector<std::byte> block_;  // rows [block_begin_, block_end_)
  std::uint64_t block_begin_ = 0;
  std::uint64_t block_end_ = 0;
};

}  // namespace

Result<std::unique_ptr<SampleFile>> open_npy(const SampleSourceConfig& config, SamplePart part) {
  const Result<formats::NpyHead> head = formats::read_npy_head(part.fd.get());
  if (!head) return head.error();
  const Result<ArrayRows> array = array_rows(*head);
  if (!array) return array.error();
  Result<RowFields> fields = RowFields::make(*array, "data", wanted_fields(config), "");
  if (!fields) return fields.error();
  struct stat file {};
  if (::fstat(part.fd.get(), &file) != 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  const auto bytes = static_cast<std::uint64_t>(file.st_size);
  const std::uint64_t rows = array->rows;
  const std::uint64_t row_bytes = array->row_bytes;
  const auto rows_before = [&](std::uint64_t at) -> std::uint64_t {
    // Of rows without bytes all are there, in the last part.
    if (row_bytes == 0) return at >= std::max<std::uint64_t>(part.file_bytes, 1) ? rows : 0;
    if (at <= head->data_at) return 0;
    return std::min(rows, (at - head->data_at - 1) / row_bytes + 1);
  };
  // Where columns come first, a row ends in the last of them.
  const std::uint64_t there = bytes - std::min(bytes, head->data_at);
  const std::uint64_t before = array->columns_first ? (row_bytes - array->element_bytes) * rows : 0;
  const std::uint64_t step = array->columns_first ? array->element_bytes : row_bytes;
  const std::uint64_t whole = row_bytes == 0 ? rows : (there - std::min(there, before)) / step;
  const std::uint64_t first = rows_before(part.begin);
  const std::uint64_t end = std::max(first, std::min(rows_before(part.end), whole));
  // Another array, if somebody has saved two to one file. NumPy does not read it either.
  const bool is_last = part.end >= part.file_bytes;
  const std::uint64_t lacking = is_last ? rows - std::min(rows, end) : 0;
  const std::uint64_t trailing = is_last && whole >= rows ? there - rows * row_bytes : 0;
  return std::unique_ptr<SampleFile>(std::make_unique<NpySamples>(
      std::move(part.fd), std::move(*fields), *array, head->data_at,
      std::min(first + part.cursor, end), end, first, lacking, trailing));
}

}  // namespace ringfeed
