#include "supervisor/feed/snapshots.h"

#include <fmt/format.h>

#include <utility>

#include "proto/control.pb.h"
#include "proto/snapshot.pb.h"
#include "ringfeed/shm/quote.h"

namespace ringfeed::process {

Snapshots::Snapshots(EventLoop& loop, const layout::FeedMemory& memory, const std::string& feed,
                     const Answers& answers, Hooks hooks)
    : loop_(loop), memory_(memory), feed_(feed), answers_(answers), hooks_(std::move(hooks)) {}

bool Snapshots::take(control::ConnectionId connection, const Request& request, Reply& reply,
                     bool is_scaled) {
  if (task_ || is_scaled) {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(fmt::format("feed '{}' is {}: try again", feed_,
                               under_way() ? "taking a snapshot"
                               : task_     ? "abandoning the previous snapshot"
                                           : "being scaled"));
    return true;
  }
  asker_ = {connection, request.id()};
  begin(request.snapshot().directory());
  return false;
}

bool Snapshots::take_own(const std::string& directory,
                         std::function<void(const Result<SnapshotTask::Facts>&)> done) {
  if (task_) return false;
  begin(directory);
  own_ = std::move(done);
  return true;
}

void Snapshots::begin(const std::string& directory) {
  SnapshotTask::Hooks hooks;
  hooks.park = hooks_.park;
  hooks.describe = hooks_.describe;
  hooks.done = [this](const Result<SnapshotTask::Facts>& result) { done(result); };
  hooks.ended = [this] { task_.reset(); };
  task_ = std::make_unique<SnapshotTask>(loop_, memory_, directory, std::move(hooks));
}

void Snapshots::done(const Result<SnapshotTask::Facts>& result) {
  if (const auto own = std::exchange(own_, {})) {
    // It is over, whatever can be said about it: else none could be taken any more.
    try {
      tell(result);
      own(result);
    } catch (const std::exception&) {
    }
    return;
  }
  answers_.or_refuse(asker_, [&] { answer(result); });
}

void Snapshots::tell(const Result<SnapshotTask::Facts>& result) {
  if (!result) {
    hooks_.event(metrics::Level::kWarn, "snapshot_failed",
                 "reason=" + in_quotes(result.error().message()));
    return;
  }
  newest_ = result->directory;
  hooks_.on_taken();
  hooks_.event(metrics::Level::kInfo, "snapshot_taken",
               fmt::format("directory={} bytes={} newest_batch={} pause_us={} total_ms={}",
                           log_value(result->directory), result->bytes, result->newest_batch,
                           result->pause_us, result->total_ms));
}

void Snapshots::answer(const Result<SnapshotTask::Facts>& result) {
  tell(result);
  Reply reply;
  reply.set_id(asker_.request);
  if (result) {
    SnapshotReply& out = *reply.mutable_snapshot();
    out.set_directory(result->directory);
    out.set_bytes(result->bytes);
    out.set_newest_batch(result->newest_batch);
    out.set_pause_us(result->pause_us);
    out.set_total_ms(result->total_ms);
  } else {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(result.error().message());
  }
  answers_.send(asker_.connection, reply);
}

void Snapshots::give_up(const std::string& why) {
  if (!under_way()) return;
  Error abandoned(ErrorCode::kClosed, fmt::format("the snapshot was abandoned: {}", why));
  task_->give_up();
  done(std::move(abandoned));
}

}  // namespace ringfeed::process
