#include "supervisor/feed/web_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "proto/config.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/os/signals.h"

namespace ringfeed::process {
namespace {

constexpr std::uint64_t kPauseMsMin = 500;
constexpr std::uint64_t kPauseMsMax = 30'000;
constexpr std::uint32_t kDoublingsMax = 6;
constexpr std::string_view kScheme = "http://";
// This program, whatever has become of its file.
constexpr const char* kThisProgram = "/proc/self/exe";
constexpr std::size_t kLastWords = 2;  // lines

}  // namespace

WebProcess::WebProcess(EventLoop& loop, const HttpConfig& settings, const std::string& directory,
                       Hooks hooks)
    : loop_(loop), hooks_(std::move(hooks)) {
  words_ = {"ringfeed-web", "web",     "--listen",    settings.listen(),
            "--socket-dir", directory, "--ends-with", fmt::to_string(::getpid())};
  if (!settings.token_file().empty()) {
    words_.insert(words_.end(), {"--token-file", settings.token_file()});
  }
  for (const std::string& host : settings.allow_hosts()) {
    words_.insert(words_.end(), {"--allow-host", host});
  }
}

WebProcess::~WebProcess() { end(); }

void WebProcess::end() {
  if (!process_.pidfd) return;
  ::syscall(SYS_pidfd_send_signal, process_.pidfd.get(), SIGKILL, nullptr, 0);
  static_cast<void>(reap(process_.pidfd));
  forget();
}

void WebProcess::look_after() {
  if (process_.pidfd || now_ms() < next_ms_) return;
  try {
    start();
  } catch (const std::exception& error) {
    end();  // nobody would see its end, or read what it says
    pause(error.what());
  }
}

void WebProcess::start() {
  RF_FAILPOINT("supervisor.web.starting");
  tail_.clear();
  process_ = spawn_heard(kThisProgram, words_);
  started_ms_ = now_ms();
  loop_.watch(process_.pidfd.get(), [this] {
    if (has_ended(process_.pidfd.get())) ended();
  });
  loop_.watch(process_.log.get(), [this] { read_log(); });
}

void WebProcess::on_line(std::string_view line) {
  if (!address_.empty() || !line.starts_with(kScheme)) return hooks_.on_line(line);
  address_ = line;
  hooks_.on_event("info", "web_listens",
                  fmt::format("address={} pid={}", log_value(line), process_.identity.pid));
  hooks_.on_problem("");
}

void WebProcess::read_log() {
  const auto hear = [this](std::string_view line) { on_line(line); };
  if (!tail_.read(process_.log.get(), hear)) loop_.unwatch(process_.log.get());
}

void WebProcess::ended() {
  read_log();
  tail_.finish([this](std::string_view line) { on_line(line); });
  const Ending ending = reap(process_.pidfd);
  forget();
  const std::string words = tail_.last_words(kLastWords);
  pause(words.empty() || ending.signal != 0 ? ending.text() : words);
}

void WebProcess::forget() {
  loop_.unwatch(process_.pidfd.get());
  loop_.unwatch(process_.log.get());
  process_ = {};
  address_.clear();
}

void WebProcess::pause(const std::string& why) {
  // One that has lived for long begins anew.
  const bool lived = started_ms_ != 0 && now_ms() - started_ms_ > kPauseMsMax;
  failures_ = lived ? 1 : failures_ + 1;
  const std::uint64_t ms =
      std::min(kPauseMsMax, kPauseMsMin << std::min(failures_ - 1, kDoublingsMax));
  next_ms_ = now_ms() + ms;
  started_ms_ = 0;
  hooks_.on_problem(
      fmt::format("the page and the metrics of `http` cannot be had: {}; it is "
                  "started again at least every {} s",
                  why, kPauseMsMax / 1'000));
}

}  // namespace ringfeed::process
