// Any packets over the control socket of a supervisor with two trainers' worth of groups: real
// server, real groups, real memory; only what is behind them (stages, processes) is not there.
//
// An input is packets one after the other, each behind its length in two bytes; the bytes
// LAYOUT\0\0 become the number of the layout.
//
// Holds: a packet that is no request is refused and nothing else happens; each request is answered
// once, with its number and, if it is refused, with a reason; nobody is a member whose last answer
// does not say so; the groups' accounts and pages agree afterwards.
#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <map>
#include <memory>
#include <vector>

#include "proto/batch.pb.h"
#include "proto/control.pb.h"
#include "ringfeed/shm/layout.h"
#include "supervisor/control/consumer_groups.h"
#include "supervisor/control/server.h"
#include "supervisor/control/trainers.h"
#include "supervisor/os/packet.h"
#include "tests/fuzz/input.h"
#include "tests/unit/supervisor/feed_maker.h"

using namespace ringfeed;

namespace {

int connect_to(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  RF_HOLDS(fd >= 0, fd);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  RF_HOLDS(connected == 0, path);
  return fd;
}

// Segments as they are when a feed begins. They are made once, because that takes as long as a
// hundred inputs.
const layout::FeedMemory& fresh_memory() {
  static const std::unique_ptr<layout::FeedMemory> memory =
      test::feed_memory({.packers = 2, .slots = 4});
  static const std::vector<std::vector<std::byte>> then = [] {
    std::vector<std::vector<std::byte>> all;
    for (std::uint32_t s = 0; s < memory->layout().segments.size(); ++s) {
      const std::span<const std::byte> bytes = memory->bytes(s);
      all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
  }();
  for (std::uint32_t s = 0; s < then.size(); ++s) {
    const std::span<const std::byte> now = memory->bytes(s);
    // Only what the supervisor may write has changed, so only that is written.
    if (std::equal(now.begin(), now.end(), then[s].begin())) continue;
    std::copy(then[s].begin(), then[s].end(), const_cast<std::byte*>(now.data()));
  }
  return *memory;
}

class Feed {
 public:
  Feed()
      : memory_(fresh_memory()),
        plan_(test::planned_feed()),
        groups_(memory_.output()),
        trainers_(loop_, memory_.output(), groups_, plan_.plan.stages(2).batch(),
                  [](std::string_view, const std::string& values) {
                    RF_HOLDS(fuzz::is_printable(values), values);
                  }),
        server_(loop_, directory().path() + "/f.sock",
                {.on_request = [this](auto id, const Request& request) { answer(id, request); },
                 .on_closed = [this](auto id) { trainers_.connection_closed(id); }}),
        socket_(connect_to(server_.path())) {
    loop_.run_once(0);
  }

  void say(std::string_view packet) {
    if (!control::send_packet(socket_.get(), packet)) return;
    const std::uint64_t asked = requests_;
    loop_.run_once(0);
    Request request;
    const bool is_request = request.ParseFromArray(packet.data(), static_cast<int>(packet.size()));
    int answers = 0;
    while (true) {
      const Result<control::Packet> answer = control::receive_packet(socket_.get());
      RF_HOLDS(answer.ok(), packet.size());
      if (answer->empty || answer->end) break;
      ++answers;
      Reply reply;
      RF_HOLDS(reply.ParseFromString(answer->bytes), answer->bytes.size());
      RF_HOLDS((reply.error() == Reply::NONE) == reply.text().empty(), reply.ShortDebugString());
      RF_HOLDS(is_request || reply.error() == Reply::BAD_REQUEST, reply.ShortDebugString());
      RF_HOLDS(!is_request || reply.id() == request.id(), reply.id(), request.id());
      RF_HOLDS(answer->fds.empty() == !reply.has_attach(), answer->fds.size());
    }
    // Behind an empty packet a message lies in a descriptor, and there is none.
    RF_HOLDS(answers == 1 || packet.empty() || packet == control::kBodyInDescriptor, answers);
    RF_HOLDS(requests_ - asked == (is_request ? 1U : 0U) || answers != 1, requests_, asked);
    groups_.advance(1000);
    std::uint32_t members = 0;
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) members += groups_.live_members(g);
    // The end of a connection is no death.
    RF_HOLDS(members >= trainers_.connections().size(), members, trainers_.connections().size());
    RF_HOLDS(members == groups_.live_members(), members, groups_.live_members());
  }

 private:
  static const fuzz::Directory& directory() {
    static const fuzz::Directory directory;
    return directory;
  }

  // As the supervisor does.
  void answer(control::ConnectionId connection, const Request& request) {
    ++requests_;
    Reply reply;
    reply.set_id(request.id());
    std::vector<int> fds;
    switch (request.body_case()) {
      case Request::kAttach:
        if (trainers_.has(connection)) break;
        trainers_.attach(server_, connection, request.attach(), reply, fds);
        server_.send(connection, reply, fds);
        return;
      case Request::kDetach:
        trainers_.detach(connection, request.detach(), reply);
        server_.send(connection, reply);
        return;
      case Request::kRejoin:
        trainers_.rejoin(server_, connection, request.rejoin(), reply);
        server_.send(connection, reply);
        return;
      default:
        break;
    }
    reply.set_error(Reply::BAD_REQUEST);
    reply.set_text("not here");
    server_.send(connection, reply);
  }

  const layout::FeedMemory& memory_;
  test::PlannedFeed plan_;
  control::ConsumerGroups groups_;
  process::EventLoop loop_;
  control::Trainers trainers_;
  control::ControlServer server_;
  shm::Fd socket_;
  std::uint64_t requests_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input = fuzz::text_of(data, size);
  Feed feed;
  for (int packets = 0; input.size() >= 2 && packets < 16; ++packets) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(input[i]); };
    const std::size_t wanted = byte(0) | static_cast<std::size_t>(byte(1)) << 8;
    input.remove_prefix(2);
    const std::string packet(input.substr(0, wanted));
    input.remove_prefix(packet.size());
    const std::uint64_t layout = shm::kLayoutHash;
    feed.say(fuzz::with(packet, {"LAYOUT\0\0", sizeof layout},
                        {reinterpret_cast<const char*>(&layout), sizeof layout}));
  }
  return 0;
}
