// Any bytes from a client of ringfeed-web, over a real socket, to a server that has a token and to
// one that has none; both know a feed, which answers as a supervisor does.
//
// Holds: what comes back is nothing, or answers as HTTP says they are; nothing of the feed goes to
// whoever does not give the token, and nothing of the request comes back as a page. The server ends
// every connection, or waits for more of a request.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/io_context.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <thread>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/control/place.h"
#include "supervisor/os/packet.h"
#include "supervisor/web/answers.h"
#include "supervisor/web/http.h"
#include "supervisor/web/looks.h"
#include "supervisor/web/page_bytes.h"
#include "tests/fuzz/input.h"

using namespace ringfeed;
namespace http = boost::beast::http;

// The page itself is of no interest here.
namespace ringfeed {
std::string_view index_html() { return "<!doctype html>"; }
std::string_view page_css() { return "body {}"; }
std::string_view page_js() { return "start();"; }
}  // namespace ringfeed

namespace {

constexpr std::string_view kToken = "0123456789abcdef";
// Stands in whatever is said of the feed.
constexpr std::string_view kFeed = "hidden-feed";
constexpr std::size_t kInputMax = 16 << 10;  // twice what a request may have
constexpr std::size_t kReadMax = 1 << 20;    // of a stream, or of many answers

StatusReply status_of_feed() {
  StatusReply status;
  status.set_feed(std::string(kFeed));
  status.set_state(StatusReply::RUNNING);
  StageStatus& stage = *status.add_stages();
  stage.set_name("hidden-feed-stage");
  stage.add_lanes()->set_name("hidden-feed-stage.0");
  stage.set_progress("<script>\"&'</script>\x1b[31m");
  RingStatus& ring = *status.add_rings();
  ring.set_from("hidden-feed-stage.0");
  ring.set_to("hidden-feed-stage.0");
  status.add_outputs()->set_batches_published(7);
  status.add_groups()->set_name("hidden-feed-group");
  return status;
}

// What a supervisor is to whoever asks: a socket with the feed's name.
class Supervisor {
 public:
  explicit Supervisor(const std::string& directory)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const std::string path = control::socket_path(directory, std::string(kFeed));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    RF_HOLDS(path.size() < sizeof address.sun_path, path);
    path.copy(address.sun_path, path.size());
    RF_HOLDS(
        ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
            ::listen(socket_.get(), 8) == 0,
        path);
    std::thread([fd = socket_.get()] { answer(fd); }).detach();
  }

 private:
  static void answer(int listens) {
    for (;;) {
      shm::Fd link(::accept4(listens, nullptr, nullptr, SOCK_CLOEXEC));
      if (!link) continue;
      std::thread([link = std::move(link)] {
        for (;;) {
          const Result<control::Packet> packet = control::receive_packet(link.get());
          Request request;
          if (!packet || packet->end) return;
          if (packet->empty || !request.ParseFromString(packet->bytes)) continue;
          Reply reply;
          reply.set_id(request.id());
          if (request.has_status()) *reply.mutable_status() = status_of_feed();
          if (request.has_metrics()) reply.mutable_metrics();
          if (!control::send_packet(link.get(), reply.SerializeAsString())) return;
        }
      }).detach();
    }
  }

  shm::Fd socket_;
};

class Site {
 public:
  Site(const std::string& directory, std::string token)
      : looks_(loop_, {directory}),
        answers_(loop_, looks_, {.token = std::move(token)}),
        server_(loop_, "127.0.0.1", 0, web::Limits(),
                [this](const web::Question& question, const web::Respond& reply) {
                  answers_.answer(question, reply);
                }) {}

  // All that it says to these bytes.
  std::string said(std::string_view bytes) {
    const shm::Fd link(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(server_.port());
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    RF_HOLDS(::connect(link.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0,
             errno);
    // No port is left waiting behind it.
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(link.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (!bytes.empty()) {
      RF_HOLDS(::send(link.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                   static_cast<ssize_t>(bytes.size()),
               bytes.size());
    }
    ::shutdown(link.get(), SHUT_WR);
    std::string text;
    while (text.size() < kReadMax) {
      loop_.restart();
      loop_.poll();
      pollfd ready{link.get(), POLLIN, 0};
      if (::poll(&ready, 1, 0) == 0) {
        // It waits for a supervisor; a stream waits for its next second.
        if (text.find("text/event-stream") != std::string::npos) break;
        loop_.run_one_for(std::chrono::milliseconds(5));
        continue;
      }
      char read[8192];
      const ssize_t count = ::recv(link.get(), read, sizeof read, 0);
      if (count <= 0) break;
      text.append(read, static_cast<std::size_t>(count));
    }
    return text;
  }

 private:
  boost::asio::io_context loop_;
  web::Looks looks_;
  web::Answers answers_;
  web::HttpServer server_;
};

// One answer after the other; the last may be a stream, or cut by the end of the connection, or of
// HEAD, which has no body.
void check(std::string_view text) {
  while (!text.empty()) {
    RF_HOLDS(text.starts_with("HTTP/1."), text.substr(0, 80));
    const std::size_t end = text.find("\r\n\r\n");
    if (end == std::string_view::npos) return;
    http::response_parser<http::string_body> parser;
    parser.body_limit(kReadMax);
    boost::system::error_code error;
    const std::string head(text.substr(0, end + 4));
    parser.put(boost::asio::buffer(head), error);
    RF_HOLDS(!error || error == http::error::need_more, error.message(), head);
    const auto& answer = parser.get();
    RF_HOLDS(answer["X-Content-Type-Options"] == "nosniff", head);
    if (answer[http::field::content_type] == "text/event-stream") return;
    const std::string_view body = text.substr(end + 4);
    // What follows a HEAD is the next answer.
    const bool has_body = !body.starts_with("HTTP/1.");
    const std::size_t bytes = has_body ? parser.content_length().value_or(0) : 0;
    text = body.substr(std::min(bytes, body.size()));
  }
}

Site& site(bool open) {
  static const fuzz::Directory directory;
  static const Supervisor supervisor(directory.path());
  static Site with_token(directory.path(), std::string(kToken));
  static Site without(directory.path(), "");
  return open ? without : with_token;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = fuzz::text_of(data, std::min(size, kInputMax));
  for (const bool open : {false, true}) {
    const std::string text = site(open).said(bytes);
    check(text);
    RF_HOLDS(text.find("<script>\"") == std::string::npos ||
                 text.find("application/json") != std::string::npos ||
                 text.find("event-stream") != std::string::npos,
             text);
    if (open || bytes.find(kToken) != std::string_view::npos) continue;
    RF_HOLDS(text.find(kFeed) == std::string::npos, text);
  }
  return 0;
}
