#include "supervisor/web/looks.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "proto/control.pb.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/place.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/packet.h"

namespace ringfeed::web {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t kFeedsMax = 64;  // of one page
enum : std::uint64_t { kStatusId = 1, kMetricsId = 2 };

// A connection, or why there is none; nothing at all: nobody listens there.
std::optional<Result<shm::Fd>> connected_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  path.copy(address.sun_path, path.size());
  shm::Fd link(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (link &&
      ::connect(link.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return link;
  }
  const int error = errno;
  if (error == ENOENT || error == ECONNREFUSED || error == ENOTDIR) return std::nullopt;
  if (error == EAGAIN) {
    return Error(ErrorCode::kBusy,
                 "its supervisor accepts no connections: it is stopped, or out of descriptors");
  }
  return Error(ErrorCode::kIo, fmt::format("it cannot be reached: {}", std::strerror(error)));
}

std::string packet_of(std::uint64_t id) {
  Request request;
  request.set_id(id);
  if (id == kStatusId) {
    request.mutable_status();
  } else {
    request.mutable_metrics();
  }
  return request.SerializeAsString();
}

}  // namespace

// One feed, which is asked over a connection that stays.
class Looks::Feed : public std::enable_shared_from_this<Looks::Feed> {
 public:
  Feed(asio::io_context& loop, std::string directory, std::string name)
      : loop_(loop), timer_(loop), directory_(std::move(directory)) {
    look_.feed = std::move(name);
  }

  // `then` is called once, later or now.
  void ask(std::function<void()> then) {
    then_ = std::move(then);
    look_.before = std::exchange(look_.status, nullptr);
    look_.metrics = nullptr;
    look_.error.clear();
    look_.orphaned = false;
    gone_ = false;
    fresh_ = false;
    begin();
  }

  // It could not even be asked, for want of memory or descriptors.
  void give_up(const std::string& why) {
    fresh_ = true;
    fail(why);
  }

  [[nodiscard]] const Look& look() const { return look_; }
  // Nobody listens there any more, and nobody works on.
  [[nodiscard]] bool gone() const { return gone_; }

 private:
  void begin() {
    if (!link_ && !connect()) return end();
    for (const std::uint64_t id : {kStatusId, kMetricsId}) {
      if (!control::send_packet(link_->native_handle(), packet_of(id))) {
        return fail("its supervisor takes no questions");
      }
    }
    timer_.expires_after(std::chrono::milliseconds(kAnswerMs));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      // It may have been on its way when the answer came.
      if (error || !self->then_) return;
      self->fail(fmt::format("its supervisor has not answered within {} ms", kAnswerMs));
    });
    await();
  }

  bool connect() {
    fresh_ = true;
    std::optional<Result<shm::Fd>> link =
        connected_to(control::socket_path(directory_, look_.feed));
    if (!link) {
      look_for_workers();
      return false;
    }
    if (!*link) {
      look_.error = link->error().what();
      return false;
    }
    link_.emplace(loop_);
    link_->assign((*link)->get());
    static_cast<void>((*link)->release());
    return true;
  }

  // Nobody listens: the feed is over, or goes on without a supervisor.
  void look_for_workers() {
    const Result<std::optional<control::LockRecord>> left =
        control::find_orphan(control::lock_path(directory_, look_.feed));
    look_.orphaned = left && left->has_value();
    gone_ = !look_.orphaned;
    if (gone_) return;
    look_.error = fmt::format(
        "its supervisor (process {}) is dead, and {} of its workers go on: `ringfeed run CONFIG` "
        "takes the feed over, `ringfeed stop {} --now` ends it",
        (*left)->supervisor.pid, control::living_workers(**left).size(), look_.feed);
  }

  void await() {
    link_->async_wait(asio::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](error_code error) {
                        if (!error && self->then_) self->read();
                      });
  }

  void read() {
    while (link_) {
      Result<control::Packet> packet = control::receive_packet(link_->native_handle());
      if (packet && packet->empty) return await();
      if (!packet || packet->end)
        return fail("its supervisor has closed the connection: ask again");
      Reply reply;
      if (!reply.ParseFromString(packet->bytes)) continue;
      if (reply.error() != Reply::NONE) return fail(reply.text());
      if (reply.id() == kStatusId && reply.has_status()) {
        look_.status = std::make_shared<StatusReply>(std::move(*reply.mutable_status()));
      }
      if (reply.id() == kMetricsId && reply.has_metrics()) {
        look_.metrics = std::make_shared<MetricsReply>(std::move(*reply.mutable_metrics()));
      }
      if (look_.status && look_.metrics) return end();
    }
  }

  void fail(std::string why) {
    timer_.cancel();
    link_.reset();
    look_.status = nullptr;
    look_.metrics = nullptr;
    // The other end of an old connection may be a supervisor that has a successor.
    if (!fresh_) return begin();
    look_.error = std::move(why);
    end();
  }

  void end() {
    timer_.cancel();
    if (then_) std::exchange(then_, nullptr)();
  }

  asio::io_context& loop_;
  asio::steady_timer timer_;
  std::string directory_;
  std::optional<asio::posix::stream_descriptor> link_;
  Look look_;
  bool gone_ = false;
  bool fresh_ = false;  // the connection was made for this question
  std::function<void()> then_;
};

struct Looks::State : std::enable_shared_from_this<Looks::State> {
  explicit State(asio::io_context& context) : loop(context) {}

  // Whatever fails in it, everybody who waits for it is answered.
  void begin_round() {
    try {
      find();
    } catch (const std::exception&) {
      // A directory that cannot be read now: those that are known are asked.
    }
    waiting = feeds.size() + 1;
    for (const auto& [name, feed] : feeds) {
      try {
        feed->ask([self = shared_from_this()] { self->one_less(); });
      } catch (const std::exception& error) {
        feed->give_up(error.what());
      }
    }
    one_less();
  }

  void find() {
    std::erase_if(feeds, [](const auto& one) { return one.second->gone(); });
    for (const std::string& directory : directories) {
      for (const std::string& name : control::feeds_in(directory)) {
        if (feeds.size() >= kFeedsMax || feeds.contains(name)) continue;
        feeds.emplace(name, std::make_shared<Feed>(loop, directory, name));
      }
    }
  }

  void one_less() {
    if (--waiting != 0) return;
    auto all = std::make_shared<std::vector<Look>>();
    for (const auto& [name, feed] : feeds) {
      if (!feed->gone()) all->push_back(feed->look());
    }
    known = std::move(all);
    known_ms = process::now_ms();
    for (const auto& then : std::exchange(asked, {})) {
      try {
        then(known);
      } catch (const std::exception&) {
        // No memory for this answer: its connection ends with the last who could give it.
      }
    }
  }

  asio::io_context& loop;
  std::vector<std::string> directories;
  std::map<std::string, std::shared_ptr<Feed>> feeds;
  std::vector<std::function<void(const LooksAtAll&)>> asked;
  std::size_t waiting = 0;
  LooksAtAll known;
  std::uint64_t known_ms = 0;
};

Looks::Looks(asio::io_context& loop, std::vector<std::string> directories)
    : state_(std::make_shared<State>(loop)) {
  state_->directories = std::move(directories);
}

Looks::~Looks() = default;

void Looks::ask(std::function<void(const LooksAtAll&)> then) {
  State& state = *state_;
  if (state.known && process::now_ms() - state.known_ms < kFreshMs) return then(state.known);
  state.asked.push_back(std::move(then));
  if (state.asked.size() == 1) state.begin_round();
}

}  // namespace ringfeed::web
