#include "supervisor/top/top.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/metrics/json.h"
#include "supervisor/metrics/json_writer.h"
#include "supervisor/metrics/show.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/locale.h"
#include "supervisor/top/asker.h"
#include "supervisor/top/frame.h"
#include "supervisor/top/screen.h"

namespace ringfeed::top {
namespace {

using Presence = Heard::Presence;

// What is kept of each feed.
struct Kept {
  Picture picture;
  bool answered = false;
  Story story;
};

std::int64_t time_now() { return static_cast<std::int64_t>(std::time(nullptr)); }

void take(const Heard& heard, Kept& kept) {
  if (heard.presence != Presence::kAnswers) {
    // What its last picture says of who waits is no longer so.
    if (heard.presence == Presence::kGone && kept.picture.state != "failed") {
      kept.picture.state = "ended";
    }
    if (heard.presence != Presence::kAsked) kept.story.add_trouble(heard.trouble, time_now());
    return;
  }
  kept.picture = picture_of(*heard.status, heard.before.get(), *heard.metrics);
  kept.answered = true;
  if (!kept.story.has_past()) kept.story.set_past(past_rates(kept.picture, *heard.metrics));
  kept.story.add(kept.picture, heard.answered_ms, time_now());
}

FeedNow feed_now(const Heard& heard, const Kept* kept) {
  FeedNow out{.name = heard.feed, .presence = heard.presence, .trouble = heard.trouble};
  if (kept == nullptr) return out;
  if (kept->answered) out.picture = &kept->picture;
  out.story = &kept->story;
  if (heard.answered_ms != 0) out.age_ms = process::now_ms() - heard.answered_ms;
  return out;
}

class Top {
 public:
  Top(const Options& options, bool utf8)
      : interval_ms_(options.interval_ms),
        utf8_(utf8),
        asker_(loop_, options.directories, [this](const Heard& heard) { hear(heard); }) {
    view_.feed = options.feed;
    if (options.feed.empty()) view_.page = Page::kFeeds;
  }

  int run(bool colours);

 private:
  void hear(const Heard& heard) {
    take(heard, kept_[heard.feed]);
    if (screen_) draw();
  }
  void tick();
  void draw();
  void read_keys();
  void read_signals();
  void suspend();

  std::uint64_t interval_ms_;
  bool utf8_;
  process::EventLoop loop_;
  shm::Fd signals_;
  std::optional<Screen> screen_;
  std::map<std::string, Kept> kept_;
  Now now_;
  View view_;
  std::size_t scroll_max_ = 0;
  std::string note_;
  int ended_by_ = 0;  // a signal
  Asker asker_;       // last: it calls hear() as long as it lives
};

sigset_t wanted_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT}) {
    ::sigaddset(&set, one);
  }
  return set;
}

int Top::run(bool colours) {
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t wanted = wanted_signals();
  // Before the terminal is taken: from then on no signal may end this process as it would by
  // itself.
  ::sigprocmask(SIG_BLOCK, &wanted, nullptr);
  signals_ = shm::Fd(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_) {
    throw Error(ErrorCode::kIo,
                fmt::format("no descriptor for signals is to be had: {}: end other "
                            "programs, or raise the limit of open files (ulimit -n)",
                            std::strerror(errno)));
  }
  screen_.emplace(colours);
  loop_.watch(signals_.get(), [this] { read_signals(); });
  loop_.watch(STDIN_FILENO, [this] { read_keys(); });
  // For want of memory, or of descriptors: it goes on when there are some.
  loop_.survive([this](const std::exception& error) { note_ = error.what(); });
  loop_.after(0, [this] { tick(); });
  loop_.run();
  loop_.unwatch(STDIN_FILENO);
  screen_.reset();
  if (ended_by_ == 0) return 0;
  ::signal(ended_by_, SIG_DFL);
  ::sigprocmask(SIG_UNBLOCK, &wanted, nullptr);
  ::raise(ended_by_);
  return 128 + ended_by_;
}

void Top::tick() {
  loop_.after(interval_ms_, [this] { tick(); });
  note_.clear();
  asker_.find(view_.feed);
  std::erase_if(kept_, [this](const auto& one) {
    return one.first != view_.feed && asker_.of(one.first) == nullptr;
  });
  const std::vector<const Heard*> all = asker_.all();
  for (const Heard* const heard : all) {
    // In the list all are shown; else the others are asked so that it is known which are there.
    const bool shown = heard->feed == view_.feed || view_.page == Page::kFeeds;
    if (shown || heard->presence == Presence::kAsked) asker_.ask(heard->feed);
  }
  if (!view_.feed.empty() && asker_.of(view_.feed) == nullptr) asker_.ask(view_.feed);
  draw();
}

void Top::draw() {
  now_.feeds.clear();
  for (const Heard* const heard : asker_.all()) {
    if (heard->presence == Presence::kGone && heard->feed != view_.feed) continue;
    const auto kept = kept_.find(heard->feed);
    now_.feeds.push_back(feed_now(*heard, kept == kept_.end() ? nullptr : &kept->second));
  }
  now_.ms = process::now_ms();
  now_.time_s = time_now();
  now_.note = note_;
  if (view_.feed.empty() && !now_.feeds.empty()) {
    view_.feed = now_.feeds.front().name;
    // With one there is nothing to choose.
    if (now_.feeds.size() == 1) view_.page = Page::kFeed;
  }
  Frame drawn = frame(now_, view_, screen_->size(), utf8_);
  scroll_max_ = drawn.scroll_max;
  view_.scroll = std::min(view_.scroll, scroll_max_);
  screen_->draw(drawn.lines);
}

void Top::read_keys() {
  Key key = Key::kNone;
  while (screen_->next(key)) {
    const std::string before = view_.feed;
    if (!press(key, now_, view_, scroll_max_, screen_->size().rows)) return loop_.stop();
    if (view_.feed != before) asker_.ask(view_.feed);
  }
  if (!screen_->is_there()) return loop_.stop();
  draw();
}

void Top::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    switch (static_cast<int>(info.ssi_signo)) {
      case SIGWINCH:
        screen_->resize();
        break;
      case SIGTSTP:
        suspend();
        break;
      case SIGCONT:  // after a SIGSTOP, which nobody is told
        if (!screen_->resume()) suspend();
        break;
      case SIGINT:
        return loop_.stop();
      default:
        ended_by_ = static_cast<int>(info.ssi_signo);
        return loop_.stop();
    }
  }
  draw();
}

// One of these has come, and has not been read.
bool is_pending(std::initializer_list<int> signals) {
  sigset_t pending;
  ::sigpending(&pending);
  return std::ranges::any_of(signals, [&](int one) { return ::sigismember(&pending, one) == 1; });
}

// False: it has not slept, as nobody could wake it.
bool sleep_until_continued() {
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::signal(SIGTSTP, SIG_DFL);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);  // sleeps here
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
  return is_pending({SIGCONT});
}

// Until a shell has brought it to the foreground, or somebody ends it.
void Top::suspend() {
  screen_->suspend();
  for (bool slept = true; slept;) {
    slept = sleep_until_continued();
    if (is_pending({SIGINT, SIGTERM, SIGHUP, SIGQUIT}) || screen_->resume()) return;
  }
  loop_.stop();
}

// As the page of `ringfeed web` gets it.
std::string json_of(const Heard& heard) {
  metrics::JsonWriter out;
  out.begin_object();
  out.name("feed");
  out.value(heard.feed);
  out.name("status");
  out.json(metrics::status_line(*heard.status, heard.before.get()));
  out.name("metrics");
  out.json(metrics::message_json(*heard.metrics));
  out.end_object();
  return out.take() + "\n";
}

}  // namespace

int show(const Options& options) {
  if (const std::string why = no_screen(); !why.empty()) throw Error(ErrorCode::kIo, why);
  const bool utf8 = choose_characters();
  return Top(options, utf8).run(wants_colours());
}

void print(const Options& options, const std::vector<std::string>& feeds, const Printed& printed) {
  const bool utf8 = choose_characters();
  process::EventLoop loop;
  std::size_t waiting = feeds.size();
  std::map<std::string, Kept> kept;
  Asker asker(loop, options.directories, [&](const Heard& heard) {
    take(heard, kept[heard.feed]);
    if (--waiting == 0) loop.stop();
  });
  for (const std::string& feed : feeds) {
    loop.after(0, [&asker, feed] { asker.ask(feed); });
  }
  if (waiting != 0) loop.run();
  std::string text;
  for (const std::string& feed : feeds) {
    const Heard& heard = *asker.of(feed);
    if (heard.presence != Presence::kAnswers) {
      throw Error(ErrorCode::kIo, fmt::format("feed {}: {}", feed, heard.trouble));
    }
    if (printed.json) {
      text += json_of(heard);
      continue;
    }
    Now now{.ms = process::now_ms(), .time_s = time_now()};
    now.feeds.push_back(feed_now(heard, &kept[feed]));
    if (!text.empty()) text += "\n";
    for (const Line& line : printout(now, {.feed = feed}, printed.columns, utf8)) {
      std::string row = printed.colours ? coloured(line) : line.text();
      row.erase(row.find_last_not_of(' ') + 1);
      text += row + "\n";
    }
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::kIo, "standard output cannot be written to");
  }
}

}  // namespace ringfeed::top
