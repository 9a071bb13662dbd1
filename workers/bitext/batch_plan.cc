#include "workers/bitext/batch_plan.h"

#include <algorithm>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {
namespace {

template <typename T>
std::byte* append(std::byte* at, std::span<const T> items) noexcept {
  if (!items.empty()) std::memcpy(at, items.data(), items.size_bytes());
  return at + items.size_bytes();
}

}  // namespace

void write_batch_plan(std::span<std::byte> out, BatchPlanHead head,
                      std::span<const BatchPlanPart> parts, std::span<const BatchPlanRow> rows,
                      std::string_view text) noexcept {
  const std::uint64_t bytes = batch_plan_bytes(parts.size(), rows.size(), text.size());
  RF_CHECK(out.size() >= bytes, out.size(), bytes);
  head.parts = static_cast<std::uint32_t>(parts.size());
  head.rows = static_cast<std::uint32_t>(rows.size());
  head.text_bytes = static_cast<std::uint32_t>(text.size());
  std::byte* at = append(out.data(), std::span<const BatchPlanHead>(&head, 1));
  at = append(at, parts);
  at = append(at, rows);
  at = append(at, std::span<const char>(text));
  std::fill(at, out.data() + bytes, std::byte{0});
}

bool BatchPlan::read(std::span<const std::byte> record) noexcept {
  if (record.size() < sizeof(BatchPlanHead)) return false;
  head_ = reinterpret_cast<const BatchPlanHead*>(record.data());
  const BatchPlanHead& head = *head_;
  if (record.size() < batch_plan_bytes(head.parts, head.rows, head.text_bytes)) return false;
  if (head.kind > BatchKind::kFirstStandIn || head.world_size == 0) return false;
  const std::byte* at = record.data() + sizeof head;
  parts_ = {reinterpret_cast<const BatchPlanPart*>(at), head.parts};
  at += parts_.size_bytes();
  rows_ = {reinterpret_cast<const BatchPlanRow*>(at), head.rows};
  at += rows_.size_bytes();
  text_ = {reinterpret_cast<const char*>(at), head.text_bytes};
  for (const BatchPlanPart& part : parts_) {
    if (part.sentences == 0 || std::uint64_t{part.source_at} + part.source_bytes > text_.size() ||
        std::uint64_t{part.target_at} + part.target_bytes > text_.size()) {
      return false;
    }
  }
  return std::ranges::all_of(rows_, [this](const BatchPlanRow& row) {
    return row.part < parts_.size() && row.index >= parts_[row.part].first;
  });
}

}  // namespace ringfeed::formats
