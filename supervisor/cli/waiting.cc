#include "supervisor/cli/waiting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <utility>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/control/client.h"
#include "supervisor/metrics/progress.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/locale.h"
#include "supervisor/os/text.h"

namespace ringfeed::cli {
namespace {

constexpr std::uint64_t kPatienceMs = 2'000;
constexpr std::uint64_t kAskMs = 1'000;
constexpr std::uint64_t kLineMs = 10'000;
// So that whoever waits is not held up by a feed that does not answer.
constexpr int kAnswerMs = 1'000;

}  // namespace

Waiting::Waiting(std::vector<std::string> directories, std::string feed, std::string name)
    : directories_(std::move(directories)),
      feed_(std::move(feed)),
      name_(std::move(name)),
      terminal_(::isatty(STDERR_FILENO) == 1 && !terminal_is_dumb()),
      next_ms_(process::now_ms() + kPatienceMs) {}

Waiting::~Waiting() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Waiting::look() {
  if (process::now_ms() < next_ms_) return;
  try {
    ask();
  } catch (const Error&) {  // it has ended meanwhile, or is busy
  }
  next_ms_ = process::now_ms() + kAskMs;
}

void Waiting::ask() {
  std::optional<control::ControlClient> client =
      control::ControlClient::connect(directories_, feed_, kAnswerMs);
  if (!client) return show("", "the feed has ended, and its supervisor has yet to write files");
  Request request;
  request.set_id(1);
  request.mutable_status();
  const Reply reply = client->call(request, kAnswerMs);
  for (const ProgressStatus& told : reply.status().under_way()) {
    if (told.name() != name_) continue;
    const metrics::Progress progress = metrics::progress_of(told);
    const std::string left = metrics::left_text(progress);
    return show(metrics::progress_bar(progress, locale_is_utf8()),
                progress.text + (left.empty() ? "" : ", ") + left);
  }
  if (!reply.status().reason().empty()) show("", reply.status().reason());
}

void Waiting::show(const std::string& bar, const std::string& text) {
  const std::string line = escaped(fmt::format("{}: {}{}{}", feed_, terminal_ ? bar : "",
                                               terminal_ && !bar.empty() ? " " : "", text));
  if (terminal_) {
    const std::size_t columns = columns_of(STDERR_FILENO);
    fmt::print(stderr, "\r\x1b[K{}", shown_cut(line, columns > 1 ? columns - 1 : 1));
    std::fflush(stderr);
    drawn_ = true;
    return;
  }
  const std::uint64_t now = process::now_ms();
  if (shown_ms_ != 0 && now < shown_ms_ + kLineMs) return;
  shown_ms_ = now;
  fmt::print(stderr, "{}\n", line);
}

}  // namespace ringfeed::cli
