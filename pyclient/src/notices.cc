#include "notices.h"

#include <stdio.h>
#include <sys/socket.h>

namespace ringfeed::client {
namespace {

// A wait of that length has a reason that people should know, a pause of that length may have held
// others up.
constexpr uint64_t kLongNs = 5'000'000'000;
constexpr uint64_t kNoticeAgainNs = 60'000'000'000;
// Between two calls of rf_next that belong to one wait: Python comes every 100 ms.
constexpr uint64_t kSameWaitNs = 1'000'000'000;

// Not waiting: a supervisor that does not read is asked again later.
bool ask_supervisor(const rf_feed* feed, uint64_t waited_ms) {
  uint8_t message[64];
  const size_t bytes = encode_wait(waited_ms, kWaitId, message, sizeof message);
  return send(feed->socket, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes);
}

void say(const void* of, const rf_notice& notice, const char* text, char* out, size_t room) {
  const auto* const feed = static_cast<const rf_feed*>(of);
  if (notice.kind != RF_NOTICE_WAITS) {
    snprintf(out, room, "feed %s: %s", feed->name, text);
    return;
  }
  char because[128] = "";
  if (notice.group[0] != '\0')
    snprintf(because, sizeof because, " because of group '%s'", notice.group);
  snprintf(out, room, "feed %s: group %s has had no batch for %llu s%s: %s", feed->name,
           feed->group_name, static_cast<unsigned long long>(notice.waited_ms / 1000), because,
           text);
}

}  // namespace

// relaxed, all in this file: times of this process alone, which decide when something is said.

void note_return(rf_feed* feed) {
  if (feed->on_notice == nullptr) return;
  const uint64_t now = now_ns();
  const uint64_t before = feed->active_ns.exchange(now, std::memory_order_relaxed);
  if (before != 0 && now - before > kLongNs && now > before) ask_supervisor(feed, 0);
}

void note_wait(rf_feed* feed) {
  if (feed->on_notice == nullptr) return;
  const uint64_t now = now_ns();
  feed->active_ns.store(now, std::memory_order_relaxed);
  const uint64_t seen = feed->waits_seen_ns.exchange(now, std::memory_order_relaxed);
  uint64_t since = feed->waits_since_ns.load(std::memory_order_relaxed);
  if (since == 0 || now - seen > kSameWaitNs) {
    feed->waits_since_ns.store(now, std::memory_order_relaxed);
    feed->ask_at_ns.store(now + kLongNs, std::memory_order_relaxed);
    return;
  }
  uint64_t at = feed->ask_at_ns.load(std::memory_order_relaxed);
  // One thread of those that wait.
  if (now < at ||
      !feed->ask_at_ns.compare_exchange_strong(at, now + kLongNs, std::memory_order_relaxed)) {
    return;
  }
  ask_supervisor(feed, (now - since) / 1'000'000);
}

void note_batch(rf_feed* feed) { feed->waits_since_ns.store(0, std::memory_order_relaxed); }

void note_notices(rf_feed* feed, const uint8_t* bytes, size_t count) {
  if (feed->on_notice == nullptr) return;
  const uint64_t now = now_ns();
  const uint64_t since = feed->waits_since_ns.load(std::memory_order_relaxed);
  Notices notices{
      feed->on_notice, feed->notice_user, say, feed, since == 0 ? 0 : (now - since) / 1'000'000, 0};
  for_each_notice(bytes, count, &notices);
  if (notices.given != 0) feed->ask_at_ns.store(now + kNoticeAgainNs, std::memory_order_relaxed);
}

bool note_notice(const rf_feed* feed, const uint8_t* bytes, size_t count) {
  char text[3072];
  const uint32_t kind = decode_notice(bytes, count, text, sizeof text);
  if (kind == 0) return false;
  if (feed->on_notice == nullptr) return true;
  char line[sizeof text + 128];
  rf_notice notice{};
  notice.struct_size = sizeof notice;
  notice.kind = kind;
  notice.member = -1;
  snprintf(line, sizeof line, "feed %s: %s", feed->name, text);
  notice.text = line;
  feed->on_notice(feed->notice_user, &notice);
  return true;
}

}  // namespace ringfeed::client
