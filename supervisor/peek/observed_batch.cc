#include "supervisor/peek/observed_batch.h"

#include <fmt/format.h>
#include <ringfeed.h>

#include <algorithm>
#include <climits>

#include "ringfeed/shm/quote.h"

namespace ringfeed::peek {
namespace {

constexpr int kAnswerMs = 10'000;

ErrorCode code_of(rf_status status) {
  switch (status) {
    case RF_TIMEOUT:
      return ErrorCode::kTimeout;
    case RF_END:
    case RF_FEED_FAILED:
    case RF_FEED_STOPPED:
    case RF_DETACHED:
      return ErrorCode::kClosed;
    case RF_NO_SUCH_FEED:
      return ErrorCode::kNotFound;
    case RF_INVALID:
      return ErrorCode::kInvalidArgument;
    case RF_INCOMPATIBLE:
      return ErrorCode::kIncompatible;
    case RF_NO_MEMORY:
      return ErrorCode::kNoMemory;
    case RF_DAMAGED:
      return ErrorCode::kDamaged;
    default:
      return ErrorCode::kIo;
  }
}

Error last_error(const rf_feed* feed, rf_status status) {
  const char* const text = rf_last_error(feed);
  return {code_of(status), text == nullptr ? "the feed cannot be looked at" : text};
}

// Attached as an observer; the first directory that has the feed counts.
Result<rf_feed*> attach(const ObservedBatch::Wish& wish) {
  rf_attach_options options{};
  options.struct_size = sizeof options;
  options.feed = wish.feed.c_str();
  options.client = "ringfeed peek";
  options.answer_ms = kAnswerMs;
  options.output = wish.output.empty() ? nullptr : wish.output.c_str();
  options.observe = 1;
  rf_feed* feed = nullptr;
  rf_status status = RF_NO_SUCH_FEED;
  for (const std::string& directory : wish.directories) {
    options.socket_dir = directory.c_str();
    status = rf_attach(&options, &feed);
    if (status != RF_NO_SUCH_FEED) break;
  }
  if (status != RF_OK) return last_error(nullptr, status);
  return feed;
}

}  // namespace

struct ObservedBatch::Held {
  rf_feed* feed = nullptr;
  rf_batch batch{};

  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    static_cast<void>(rf_release_batch(feed, &batch));
    static_cast<void>(rf_detach(feed));
  }
};

Result<ObservedBatch> ObservedBatch::take(const Wish& wish) {
  Result<rf_feed*> feed = attach(wish);
  if (!feed) return feed.error();
  ObservedBatch taken;
  taken.held_ = std::make_shared<Held>();
  Held& held = *taken.held_;
  held.feed = *feed;
  held.batch.struct_size = sizeof held.batch;
  const auto patience =
      static_cast<std::int64_t>(std::min<std::uint64_t>(wish.timeout_ms, std::uint64_t{INT_MAX}));
  const rf_status status = rf_next(held.feed, patience, &held.batch);
  if (status != RF_OK) return last_error(held.feed, status);
  rf_stats_info stats{};
  stats.struct_size = sizeof stats;
  if (rf_stats(held.feed, &stats) == RF_OK) taken.output_ = stats.output;
  const rf_schema_info& schema = *rf_schema(held.feed);
  const rf_batch& batch = held.batch;
  taken.number_ = batch.seq;
  taken.rows_ = batch.rows;
  taken.rows_max_ = schema.rows_max;
  taken.bytes_ = batch.bytes;
  taken.crc32c_ = batch.crc32c;
  taken.published_ns_ = batch.published_ns;
  for (std::uint32_t i = 0; i < schema.tensor_count; ++i) {
    const rf_tensor& tensor = schema.tensors[i];
    ObservedArray array;
    array.name = tensor.name;
    array.dtype = tensor.dtype;
    array.item_bytes = std::max<std::uint32_t>(tensor.item_bytes, 1);
    array.has_rows = tensor.dims > 0 && tensor.shape[0] == -1;
    for (std::uint32_t d = 0; d < tensor.dims; ++d) {
      array.shape.push_back(rf_tensor_length(&tensor, &batch, d));
    }
    // The observer has copied at least so much (pyclient/src/observe.cc).
    array.bytes = {static_cast<const std::byte*>(batch.data) + tensor.offset,
                   rf_tensor_items(&tensor, &batch) * array.item_bytes};
    taken.arrays_.push_back(std::move(array));
  }
  return taken;
}

}  // namespace ringfeed::peek
