// The rows of a NumPy array as samples: what the first axis counts. One field, called `data` or as
// the configuration says. The cursor of an item is the number of the next row, from the part's
// first.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "workers/io/npy_file.h"
#include "workers/samples/array_rows.h"
#include "workers/samples/numbers.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;

class NpySamples final : public SampleFile {
 public:
  NpySamples(shm::Fd fd, std::string name, SampleDtype dtype, ArrayRows array,
             std::uint64_t data_at, std::uint64_t next, std::uint64_t end, std::uint64_t first,
             std::string lacks)
      : fd_(std::move(fd)),
        name_(std::move(name)),
        array_(std::move(array)),
        data_at_(data_at),
        row_bytes_(array_.row_bytes),
        next_(next),
        end_(end),
        first_(first),
        lacks_(std::move(lacks)) {
    field_ = {.name = name_, .dtype = dtype, .shape = array_.shape};
  }

  Result<bool> next(Item& item) override {
    if (next_ == end_ && !lacks_.empty()) return Error{ErrorCode::kDamaged, lacks_};
    if (next_ == end_) return false;
    if (next_ >= block_end_) {
      if (Status read = read_block(); !read) return read.error();
    }
    field_.data = std::span(block_).subspan((next_ - block_begin_) * row_bytes_, row_bytes_);
    const std::uint64_t place = data_at_ + next_ * row_bytes_;
    ++next_;
    item =
        Item{.place = place, .cursor = next_ - first_, .bytes = row_bytes_, .fields = {&field_, 1}};
    if (field_.dtype != array_.dtype) {
      if (!convert_numbers(field_.data, array_.dtype, field_.dtype, converted_)) {
        item.fault = SampleFault::kWrongType;
        item.text = fmt::format("row {} has a number that {} cannot hold", next_ - 1,
                                dtype_name(field_.dtype));
      }
      field_.data = converted_;
    }
    return true;
  }

 private:
  [[nodiscard]] Status read_block() {
    const std::uint64_t rows = std::clamp<std::uint64_t>(
        kBlockBytes / std::max<std::uint64_t>(row_bytes_, 1), 1, end_ - next_);
    block_.resize(rows * row_bytes_);
    for (std::size_t have = 0; have < block_.size();) {
      const ssize_t got = ::pread(fd_.get(), block_.data() + have, block_.size() - have,
                                  static_cast<off_t>(data_at_ + next_ * row_bytes_ + have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
      if (got == 0) {
        return Error{ErrorCode::kDamaged,
                     fmt::format("it ends in row {}, or before it", next_ + have / row_bytes_)};
      }
      have += static_cast<std::size_t>(got);
    }
    block_begin_ = next_;
    block_end_ = next_ + rows;
    return {};
  }

  shm::Fd fd_;
  std::string name_;
  ArrayRows array_;
  std::uint64_t data_at_;
  std::uint64_t row_bytes_;
  std::uint64_t next_;  // rows of the array
  std::uint64_t end_;
  std::uint64_t first_;  // of the part
  std::string lacks_;    // behind the last row: what the file does not have
  SampleField field_;
  std::vector<std::byte> converted_;
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
  std::string name = "data";
  SampleDtype dtype = array->dtype;
  if (config.fields_size() != 0) {
    const WantedField wanted = wanted_fields(config).front();
    name = wanted.as;
    dtype = wanted.dtype.value_or(dtype);
    if (!can_become(array->dtype, dtype)) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("its elements are {}, which cannot be {}", dtype_name(array->dtype),
                               dtype_name(dtype))};
    }
  }
  struct stat file {};
  if (::fstat(part.fd.get(), &file) != 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  const auto bytes = static_cast<std::uint64_t>(file.st_size);
  // Of rows without bytes all are there, in the first part.
  const std::uint64_t rows = array->rows;
  const std::uint64_t row_bytes = array->row_bytes;
  const auto rows_before = [&](std::uint64_t at) -> std::uint64_t {
    if (at <= head->data_at) return 0;
    if (row_bytes == 0) return rows;
    return std::min(rows, (at - head->data_at + row_bytes - 1) / row_bytes);
  };
  const std::uint64_t whole =
      row_bytes == 0 ? rows : (bytes - std::min(bytes, head->data_at)) / row_bytes;
  const std::uint64_t first = rows_before(part.begin);
  const std::uint64_t end = std::max(first, std::min(rows_before(part.end), whole));
  std::string lacks;
  if (whole < rows && part.end >= bytes) {
    lacks = fmt::format("it has {} of {} rows: it was cut short or is still being written", whole,
                        rows);
  }
  return std::unique_ptr<SampleFile>(std::make_unique<NpySamples>(
      std::move(part.fd), std::move(name), dtype, *array, head->data_at,
      std::min(first + part.cursor, end), end, first, std::move(lacks)));
}

}  // namespace ringfeed
