// Any bytes as a record of rows, as a plan of a batch, and as a packed sequence: what a stage finds
// in a ring, whoever has written there.
//
// Holds: what is accepted gives views that lie inside the record; a record of rows that is written
// anew from them is accepted again and says the same; a sequence packs into the same bytes, but for
// what is reserved.
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/fuzz/input.h"
#include "workers/bitext/batch_plan.h"
#include "workers/chess/token_sequence.h"
#include "workers/io/row_batch.h"

using namespace ringfeed;
using namespace ringfeed::formats;

namespace {

// As the memory of a ring is: aligned, and it ends where it ends.
std::vector<std::uint64_t> aligned(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> words((bytes.size() + 7) / 8);
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

bool same(double one, double other) {
  return std::memcmp(&one, &other, sizeof one) == 0 || (std::isnan(one) && std::isnan(other));
}

void write_column(const RowBatch& batch, std::uint32_t c, RowBatchWriter& writer) {
  const ColumnKind kind = batch.kind(c);
  std::uint64_t text_bytes = 0;
  for (std::uint32_t r = 0; kind == ColumnKind::kText && r < batch.rows(); ++r) {
    text_bytes += batch.text(c, r).value_or("").size();
  }
  const bool may_miss = kind == ColumnKind::kText || kind == ColumnKind::kInteger;
  const RowBatchWriter::Column to = writer.add(kind, may_miss, text_bytes);
  if (kind == ColumnKind::kAbsent || kind == ColumnKind::kMissing) return;
  std::uint32_t at = 0;
  if (kind == ColumnKind::kText) to.offsets[0] = 0;
  for (std::uint32_t r = 0; r < batch.rows(); ++r) {
    if (kind == ColumnKind::kText) {
      const auto text = batch.text(c, r);
      to.given[r] = text ? 1 : 0;
      if (text && !text->empty()) std::memcpy(to.text + at, text->data(), text->size());
      at += static_cast<std::uint32_t>(text.value_or("").size());
      to.offsets[r + 1] = at;
    } else if (kind == ColumnKind::kInteger) {
      const auto integer = batch.integer(c, r);
      to.given[r] = integer ? 1 : 0;
      to.integers[r] = integer.value_or(0);
    } else if (kind == ColumnKind::kNumber) {
      to.numbers[r] = batch.number(c, r);
    }
  }
}

void check_rows(std::span<const std::byte> record) {
  RowBatch batch;
  if (!batch.read(record)) return;
  const std::uint32_t columns = batch.head().columns;
  std::uint64_t bytes = RowBatchWriter::head_bytes(columns, batch.path().size());
  for (std::uint32_t c = 0; c < columns; ++c) {
    std::uint64_t text_bytes = 0;
    for (std::uint32_t r = 0; batch.kind(c) == ColumnKind::kText && r < batch.rows(); ++r) {
      const auto text = batch.text(c, r);
      if (!text) continue;
      const auto* begin = reinterpret_cast<const std::byte*>(text->data());
      RF_HOLDS(begin >= record.data() && begin + text->size() <= record.data() + record.size(), c,
               r, text->size());
      text_bytes += text->size();
    }
    bytes += RowBatchWriter::column_bytes(batch.kind(c), true, batch.rows(), text_bytes);
  }
  // Columns may share their bytes, so that a small record is a large one when it is written anew.
  if (bytes > 1 << 15) return;
  std::vector<std::uint64_t> room((bytes + 7) / 8);
  const std::span<std::byte> out(reinterpret_cast<std::byte*>(room.data()), 8 * room.size());
  RowBatchWriter writer(out, batch.head(), batch.path());
  for (std::uint32_t c = 0; c < columns; ++c) write_column(batch, c, writer);
  RowBatch again;
  RF_HOLDS(again.read(out.first(writer.bytes())), writer.bytes(), bytes);
  RF_HOLDS(again.rows() == batch.rows() && again.path() == batch.path(), again.rows(),
           batch.rows());
  for (std::uint32_t c = 0; c < columns; ++c) {
    RF_HOLDS(again.kind(c) == batch.kind(c), c);
    for (std::uint32_t r = 0; r < batch.rows() && batch.kind(c) > ColumnKind::kMissing; ++r) {
      RF_HOLDS(again.text(c, r) == batch.text(c, r), c, r);
      RF_HOLDS(again.integer(c, r) == batch.integer(c, r), c, r);
      RF_HOLDS(same(again.number(c, r), batch.number(c, r)), c, r);
    }
  }
}

void check_plan(std::span<const std::byte> record) {
  BatchPlan plan;
  if (!plan.read(record)) return;
  const auto* const begin = reinterpret_cast<const char*>(record.data());
  const auto inside = [&](std::string_view text) {
    return text.empty() ||
           (text.data() >= begin && text.data() + text.size() <= begin + record.size());
  };
  for (const BatchPlanPart& part : plan.parts()) {
    RF_HOLDS(inside(plan.source(part)) && inside(plan.target(part)), part.source_at,
             part.target_at);
  }
  for (const BatchPlanRow& row : plan.rows()) {
    const std::uint64_t sentences = plan.parts()[row.part].sentences;
    RF_HOLDS(plan.sentence(row) < sentences, row.index, sentences);
  }
}

void check_sequence(std::span<const std::byte> record) {
  TokenSequence sequence;
  if (!unpack(record, sequence)) return;
  RF_HOLDS(packed_bytes(sequence) == record.size(), packed_bytes(sequence), record.size());
  std::vector<std::byte> out(record.size());
  pack(sequence, out);
  constexpr std::size_t kFlagsAndReserved = 32;
  constexpr std::size_t kHeadBytes = 48;
  RF_HOLDS(std::equal(out.begin(), out.begin() + kFlagsAndReserved, record.begin()), record.size());
  RF_HOLDS(std::equal(out.begin() + kHeadBytes, out.end(), record.begin() + kHeadBytes),
           record.size());
  RF_HOLDS(packed_lineage(record).file == sequence.lineage.file, sequence.lineage.file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint64_t> words = aligned(fuzz::bytes_of(data, size));
  const std::span<const std::byte> record(reinterpret_cast<const std::byte*>(words.data()), size);
  check_rows(record);
  check_plan(record);
  check_sequence(record);
  return 0;
}
