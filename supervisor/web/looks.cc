#include "supervisor/web/looks.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "proto/control.pb.h"
#include "supervisor/control/place.h"
#include "supervisor/control/questions.h"
#include "supervisor/control/silent_feed.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/packet.h"

namespace ringfeed::web {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

}  // namespace

// One feed, which is asked over a connection that stays.
class Looks::Feed : public std::enable_shared_from_this<Looks::Feed> {
 public:
  Feed(asio::io_context& loop, std::weak_ptr<State> all, std::string directory, std::string name)
      : loop_(loop), timer_(loop), all_(std::move(all)), directory_(std::move(directory)) {
    look_.feed = std::move(name);
  }

  // Whatever comes of it, and when: there is one less to wait for then.
  void ask() noexcept {
    asked_ = true;
    look_.before = std::exchange(look_.status, nullptr);
    look_.metrics = nullptr;
    answers_ = {};
    look_.error.clear();
    look_.ended = {};
    gone_ = false;
    unasked_ = false;
    fresh_ = false;
    attempt([this] { begin(); });
  }

  [[nodiscard]] const Look& look() const { return look_; }
  // Nobody listens there any more, and nobody works on.
  [[nodiscard]] bool gone() const { return gone_; }
  // It was this process that could not ask it.
  [[nodiscard]] bool unasked() const { return unasked_; }

 private:
  // For want of memory or descriptors: this feed does not answer, whoever waits is told.
  template <typename Step>
  void attempt(const Step& step) noexcept {
    try {
      return step();
    } catch (const std::exception& error) {
      link_.reset();
      answers_ = {};
      unasked_ = true;
      try {
        look_.error = fmt::format("it could not be asked: {}: ask again", error.what());
      } catch (const std::exception&) {  // no memory for that either
      }
    }
    end();
  }

  void begin() {
    if (!link_ && !connect()) return end();
    if (!control::ask_both(link_->native_handle())) {
      return fail("its supervisor takes no questions");
    }
    timer_.expires_after(std::chrono::milliseconds(kAnswerMs));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      // It may have been on its way when the answer came.
      if (error || !self->asked_) return;
      self->attempt([&self] {
        self->fail(fmt::format("its supervisor has not answered within {} ms", kAnswerMs));
      });
    });
    await();
  }

  bool connect() {
    fresh_ = true;
    std::optional<Result<shm::Fd>> link =
        control::connected_to(control::socket_path(directory_, look_.feed));
    if (!link) {
      look_for_others();
      return false;
    }
    if (!*link) {
      // Another user's: whether it lives shows, whatever it would say.
      look_for_others();
      if (gone_ || look_.ended.empty() || look_.ended == "STARTING") {
        gone_ = false;
        unasked_ = true;
        look_.ended.clear();
        look_.error = link->error().what();
      }
      return false;
    }
    ucred peer{};
    socklen_t bytes = sizeof peer;
    const bool told = ::getsockopt((*link)->get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
    look_.pid = told ? peer.pid : 0;
    link_.emplace(loop_);
    link_->assign((*link)->get());
    static_cast<void>((*link)->release());
    return true;
  }

  // Nobody listens: the feed is over, begins, or goes on without a supervisor. What is recorded of
  // its end is shown until it is cleaned.
  void look_for_others() {
    const std::optional<control::SilentFeed> silent = control::find_silent(directory_, look_.feed);
    gone_ = !silent;
    if (gone_) return;
    look_.error = silent->reason;
    if (silent->state != "NO_ANSWER") look_.ended = silent->state;
  }

  void await() {
    link_->async_wait(asio::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](error_code error) {
                        if (error || !self->asked_) return;
                        self->attempt([&self] { self->read(); });
                      });
  }

  void read() {
    while (link_) {
      Result<control::Packet> packet = control::receive_packet(link_->native_handle());
      if (packet && packet->empty) return await();
      if (!packet || packet->end)
        return fail("its supervisor has closed the connection: ask again");
      if (std::optional<std::string> refusal = answers_.take(packet->bytes)) {
        return fail(std::move(*refusal));
      }
      if (!answers_.both()) continue;
      look_.status = answers_.status;
      look_.metrics = answers_.metrics;
      return end();
    }
  }

  void fail(std::string why) {
    timer_.cancel();
    link_.reset();
    answers_ = {};
    // The other end of an old connection may be a supervisor that has a successor.
    if (!fresh_) return begin();
    look_.error = std::move(why);
    end();
  }

  void end() noexcept;

  asio::io_context& loop_;
  asio::steady_timer timer_;
  std::weak_ptr<State> all_;
  std::string directory_;
  std::optional<asio::posix::stream_descriptor> link_;
  control::Answers answers_;  // to this question, so far
  Look look_;
  bool gone_ = false;
  bool unasked_ = false;
  bool fresh_ = false;  // the connection was made for this question
  bool asked_ = false;  // and has not answered yet
};

struct Looks::State : std::enable_shared_from_this<Looks::State> {
  explicit State(asio::io_context& context) : loop(context) {}

  // Whatever fails in it, everybody who waits for it is told.
  void begin_round() noexcept {
    try {
      find();
    } catch (const std::exception&) {
      // A directory that cannot be read now: those that are known are asked.
    }
    waiting = feeds.size() + 1;
    for (const auto& [name, feed] : feeds) feed->ask();
    one_less();
  }

  void find() {
    std::erase_if(feeds, [](const auto& one) { return one.second->gone(); });
    for (const std::string& directory : directories) {
      for (const std::string& name : control::feeds_in(directory)) {
        if (feeds.size() >= feeds_max || feeds.contains(name)) continue;
        feeds.emplace(name, std::make_shared<Feed>(loop, weak_from_this(), directory, name));
      }
    }
  }

  void one_less() noexcept {
    if (--waiting != 0) return;
    LooksAtAll now;
    // What was in this process's way is no answer to the next who asks.
    bool lasts = true;
    try {
      auto all = std::make_shared<std::vector<Look>>();
      for (const auto& [name, feed] : feeds) {
        if (!feed->gone()) all->push_back(feed->look());
        if (feed->unasked()) lasts = false;
      }
      now = std::move(all);
    } catch (const std::exception&) {
      lasts = false;
    }
    known = lasts ? now : nullptr;
    known_ms = process::now_ms();
    for (const auto& then : std::exchange(asked, {})) {
      try {
        then(now);
      } catch (const std::exception&) {
        // No memory for this answer: its connection ends with the last who could give it.
      }
    }
  }

  asio::io_context& loop;
  std::vector<std::string> directories;
  std::size_t feeds_max = kFeedsMax;
  std::map<std::string, std::shared_ptr<Feed>> feeds;
  std::vector<std::function<void(const LooksAtAll&)>> asked;
  std::size_t waiting = 0;
  LooksAtAll known;
  std::uint64_t known_ms = 0;
};

void Looks::Feed::end() noexcept {
  timer_.cancel();
  if (!std::exchange(asked_, false)) return;
  if (const std::shared_ptr<State> all = all_.lock()) all->one_less();
}

Looks::Looks(asio::io_context& loop, std::vector<std::string> directories, std::size_t feeds_max)
    : state_(std::make_shared<State>(loop)) {
  state_->directories = std::move(directories);
  state_->feeds_max = feeds_max;
}

Looks::~Looks() = default;

void Looks::ask(std::function<void(const LooksAtAll&)> then) {
  State& state = *state_;
  if (state.known && process::now_ms() - state.known_ms < kFreshMs) return then(state.known);
  state.asked.push_back(std::move(then));
  if (state.asked.size() == 1) state.begin_round();
}

std::vector<Look> look_once(const std::string& directory) {
  asio::io_context loop;
  Looks looks(loop, {directory}, std::numeric_limits<std::size_t>::max());
  std::vector<Look> found;
  looks.ask([&found](const LooksAtAll& all) {
    if (!all) throw std::bad_alloc();
    found = *all;
  });
  loop.run();
  return found;
}

}  // namespace ringfeed::web
