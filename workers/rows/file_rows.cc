#include "workers/rows/file_rows.h"

#include <algorithm>
#include <cstring>

namespace ringfeed {
namespace {

// A kept record begins with the place of the next one.
constexpr std::uint64_t kLinkBytes = 8;

}  // namespace

// ---- FileRows

bool FileRows::keep(Step& step, PlacePool& places, std::span<const std::byte> record) noexcept {
  std::uint64_t place = 0;
  std::byte* to = places.make(step, kLinkBytes + record.size(), &place);
  if (to == nullptr) return false;
  std::memset(to, 0, kLinkBytes);
  if (!record.empty()) std::memcpy(to + kLinkBytes, record.data(), record.size());
  const std::uint64_t records = step.load(state_.records);
  if (records == 0) {
    step.store(state_.head, place);
  } else {
    step.store(places.word(step.load(state_.tail), 0), place);
  }
  step.store(state_.tail, place);
  step.store(state_.records, records + 1);
  return true;
}

bool FileRows::give_up(Step& step, PlacePool& places) noexcept {
  std::uint64_t records = step.load(state_.records);
  std::uint64_t place = step.load(state_.head);
  for (std::uint64_t i = 0; i < kGivenUpMax && records != 0; ++i, --records) {
    const std::uint64_t next = step.load(places.word(place, 0));
    places.give(step, place);
    place = next;
  }
  step.store(state_.head, place);
  step.store(state_.records, records);
  return records == 0;
}

void FileRows::look(const Step& step, const PlacePool& places,
                    std::vector<formats::RowBatch>& batches) const {
  batches.clear();
  std::uint64_t place = step.load(state_.head);
  for (std::uint64_t i = step.load(state_.records); i != 0; --i) {
    const std::span<const std::byte> record = places.record(step, place);
    formats::RowBatch batch;
    // It was looked at before it was kept.
    RF_CHECK(batch.read(record.subspan(kLinkBytes)), place, record.size());
    batches.push_back(std::move(batch));
    place = step.load(places.word(place, 0));
  }
}

}  // namespace ringfeed
