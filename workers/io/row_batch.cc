#include "workers/io/row_batch.h"

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {
namespace {

constexpr std::uint32_t kHasMissing = 1;
constexpr std::uint32_t kColumnsMax = 4096;

struct ColumnEntry {
  std::uint32_t kind;
  std::uint32_t flags;
  std::uint64_t offset;
};
static_assert(sizeof(ColumnEntry) == 16);

constexpr std::uint64_t padded(std::uint64_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

}  // namespace

bool RowBatch::read(std::span<const std::byte> record) {
  columns_.clear();
  if (record.size() < sizeof head_) return false;
  std::memcpy(&head_, record.data(), sizeof head_);
  if (head_.columns > kColumnsMax ||
      RowBatchWriter::head_bytes(head_.columns, head_.path_bytes) > record.size()) {
    return false;
  }
  path_ = {reinterpret_cast<const char*>(record.data()) + sizeof head_ +
               head_.columns * sizeof(ColumnEntry),
           head_.path_bytes};
  columns_.resize(head_.columns);
  for (std::uint32_t i = 0; i < head_.columns; ++i) {
    if (!read_column(record, i)) return false;
  }
  return true;
}

bool RowBatch::read_column(std::span<const std::byte> record, std::uint32_t number) {
  ColumnEntry entry{};
  std::memcpy(&entry, record.data() + sizeof head_ + number * sizeof entry, sizeof entry);
  Column& column = columns_[number];
  if (entry.kind > static_cast<std::uint32_t>(ColumnKind::kNumber)) return false;
  column.kind = static_cast<ColumnKind>(entry.kind);
  if (column.kind == ColumnKind::kAbsent || column.kind == ColumnKind::kMissing) return true;
  const std::uint64_t least =
      RowBatchWriter::column_bytes(column.kind, (entry.flags & kHasMissing) != 0, head_.rows, 0);
  if (entry.offset > record.size() || least > record.size() - entry.offset) return false;
  const std::byte* at = record.data() + entry.offset;
  if ((entry.flags & kHasMissing) != 0) {
    column.given = at;
    at += padded(head_.rows);
  }
  column.values = at;
  if (column.kind != ColumnKind::kText) return true;
  column.bytes = at + padded(4 * (std::uint64_t{head_.rows} + 1));
  const auto room = static_cast<std::uint64_t>(record.data() + record.size() - column.bytes);
  std::uint32_t before = 0;
  for (std::uint64_t i = 0; i <= head_.rows; ++i) {
    const std::uint32_t offset = load<std::uint32_t>(column.values + 4 * i);
    if (offset < before || offset > room) return false;
    before = offset;
  }
  return true;
}

std::uint64_t RowBatchWriter::column_bytes(ColumnKind kind, bool has_missing, std::uint32_t rows,
                                           std::uint64_t text_bytes) noexcept {
  const std::uint64_t given = has_missing ? padded(rows) : 0;
  switch (kind) {
    case ColumnKind::kAbsent:
    case ColumnKind::kMissing:
      return 0;
    case ColumnKind::kText:
      return given + padded(4 * (std::uint64_t{rows} + 1)) + padded(text_bytes);
    case ColumnKind::kInteger:
    case ColumnKind::kNumber:
      return given + 8 * std::uint64_t{rows};
  }
  return 0;
}

std::uint64_t RowBatchWriter::head_bytes(std::uint32_t columns, std::size_t path_bytes) noexcept {
  return sizeof(RowBatchHead) + columns * sizeof(ColumnEntry) + padded(path_bytes);
}

RowBatchWriter::RowBatchWriter(std::span<std::byte> out, const RowBatchHead& head,
                               std::string_view path) noexcept
    : out_(out),
      rows_(head.rows),
      columns_(head.columns),
      used_(head_bytes(head.columns, path.size())) {
  RF_CHECK(used_ <= out.size() && head.path_bytes == path.size(), used_, out.size(), path.size());
  std::memcpy(out.data(), &head, sizeof head);
  std::byte* at = out.data() + sizeof head + columns_ * sizeof(ColumnEntry);
  std::memset(at, 0, padded(path.size()));
  if (!path.empty()) std::memcpy(at, path.data(), path.size());
}

RowBatchWriter::Column RowBatchWriter::add(ColumnKind kind, bool has_missing,
                                           std::uint64_t text_bytes) noexcept {
  const std::uint64_t bytes = column_bytes(kind, has_missing, rows_, text_bytes);
  RF_CHECK(added_ < columns_ && used_ + bytes <= out_.size(), added_, used_, bytes);
  const ColumnEntry entry{static_cast<std::uint32_t>(kind), has_missing ? kHasMissing : 0, used_};
  std::memcpy(out_.data() + sizeof(RowBatchHead) + added_++ * sizeof entry, &entry, sizeof entry);
  std::byte* at = out_.data() + used_;
  used_ += bytes;
  Column column;
  if (bytes == 0) return column;
  // Padding is part of the record, and so of what two runs have in common.
  std::memset(out_.data() + used_ - 8, 0, 8);
  if (has_missing) {
    std::memset(at + padded(rows_) - 8, 0, rows_ == 0 ? 0 : 8);
    column.given = {reinterpret_cast<std::uint8_t*>(at), rows_};
    at += padded(rows_);
  }
  if (kind == ColumnKind::kText) {
    const std::uint64_t offsets = padded(4 * (std::uint64_t{rows_} + 1));
    std::memset(at + offsets - 8, 0, 8);
    column.offsets = {reinterpret_cast<std::uint32_t*>(at), std::size_t{rows_} + 1};
    column.text = at + offsets;
  } else if (kind == ColumnKind::kInteger) {
    column.integers = {reinterpret_cast<std::int64_t*>(at), rows_};
  } else {
    column.numbers = {reinterpret_cast<double*>(at), rows_};
  }
  return column;
}

}  // namespace ringfeed::formats
