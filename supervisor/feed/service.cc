#include "supervisor/feed/service.h"

#include <fmt/format.h>
#include <time.h>

#include "ringfeed/shm/quote.h"

namespace ringfeed::process {
namespace {

// systemd drops a message of over 4,096 bytes as a whole, with what else is in it.
constexpr std::size_t kStatusBytesMax = 1024;

std::string status_line(const std::string& status) {
  std::string text = escaped(status);
  if (text.size() > kStatusBytesMax) {
    std::size_t end = kStatusBytesMax;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    text.resize(end);
    text += "…";
  }
  return "STATUS=" + text + "\n";
}

}  // namespace

bool Service::send(const std::string& lines) {
  const Status sent = manager_.send(lines);
  problem_ = sent ? std::string() : sent.error().message();
  return sent.ok();
}

void Service::reloading() {
  if (!ready_ || stopping_ || !manager_.listens()) return;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  reloading_ = send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}\n",
                                now.tv_sec * 1'000'000 + now.tv_nsec / 1'000));
}

void Service::look(const Now& now, std::uint64_t now_ms) {
  if (!manager_.listens()) return;
  const auto due = [&](std::uint64_t last_ms, std::uint64_t every_ms) {
    return last_ms == 0 || now_ms >= last_ms + every_ms;
  };
  std::string lines;
  const bool says_ready = now.ready && (!ready_ || reloading_) && !now.stopping;
  const bool says_stopping = now.stopping && !stopping_;
  if (says_ready) lines += "READY=1\n";
  if (says_stopping) lines += "STOPPING=1\n";
  const bool says_status =
      now.status != status_ && (now.state != state_ || due(status_ms_, kStatusMs));
  if (says_status) lines += status_line(now.status);
  const bool extends = (!now.ready || now.stopping) && due(extended_ms_, kExtendMs);
  if (extends) lines += fmt::format("EXTEND_TIMEOUT_USEC={}\n", kExtendForMs * 1'000);
  const bool watched = watchdog_ms() != 0 && due(watched_ms_, watchdog_ms());
  if (watched) lines += "WATCHDOG=1\n";
  if (lines.empty() || !send(lines)) return;
  if (says_ready) {
    ready_ = true;
    reloading_ = false;
  }
  if (says_stopping) stopping_ = true;
  if (says_status) {
    state_ = now.state;
    status_ = now.status;
    status_ms_ = now_ms;
  }
  if (extends) extended_ms_ = now_ms;
  if (watched) watched_ms_ = now_ms;
}

}  // namespace ringfeed::process
