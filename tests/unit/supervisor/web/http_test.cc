// The server in this process, and clients that say what they like: real sockets on loopback.
#include "supervisor/web/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ringfeed/shm/segment.h"

namespace ringfeed::web {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  explicit HttpServerTest(const Limits& limits = {})
      : server(
            loop, "127.0.0.1", 0, limits, [this](const Question& question, const Respond& reply) {
              ++questions;
              last = question;
              if (question.target == "/stream") {
                stream = reply({.type = "text/event-stream", .body = "first\n", .streams = true});
              } else {
                reply({.body = "answer\n"});
              }
            }) {}

  shm::Fd connected() {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(server.port());
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    shm::Fd link(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(link.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place), 0);
    return link;
  }

  // Lets the server work until nothing comes for a moment, or the other end closes.
  std::string said(const shm::Fd& link, int patience_ms = 200) {
    std::string text;
    for (int idle = 0; idle < patience_ms / 10;) {
      loop.poll();
      pollfd ready{link.get(), POLLIN, 0};
      if (::poll(&ready, 1, 10) == 0) {
        ++idle;
        continue;
      }
      char bytes[4096];
      const ssize_t count = ::recv(link.get(), bytes, sizeof bytes, 0);
      if (count <= 0) break;
      text.append(bytes, static_cast<std::size_t>(count));
      idle = 0;
    }
    return text;
  }

  std::string answer(const std::string& request) {
    const shm::Fd link = connected();
    EXPECT_EQ(::send(link.get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    return said(link, 50);
  }

  boost::asio::io_context loop;
  std::size_t questions = 0;
  Question last;
  std::shared_ptr<Stream> stream;
  HttpServer server;
};

TEST_F(HttpServerTest, AnswersRequestsThatComeTogether) {
  const std::string one = "GET /a?b=c HTTP/1.1\r\nHost: here\r\nAccept: x\r\n\r\n";
  const std::string text = answer(one + one + one);
  EXPECT_EQ(questions, 3u);
  EXPECT_EQ(last.target, "/a?b=c");
  EXPECT_EQ(last.host, "here");
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, StreamsUntilTheClientGoes) {
  shm::Fd link = connected();
  const std::string request = "GET /stream HTTP/1.1\r\nHost: here\r\n\r\n";
  ASSERT_GT(::send(link.get(), request.data(), request.size(), 0), 0);
  EXPECT_THAT(said(link), HasSubstr("\r\n\r\nfirst\n"));
  ASSERT_TRUE(stream);
  EXPECT_TRUE(stream->send("second\n"));
  EXPECT_EQ(said(link), "second\n");
  link.reset();
  for (int i = 0; i < 100 && stream->send("third\n"); ++i)
    loop.run_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(stream->send("fourth\n"));
}

// Whoever reads nothing loses the stream, and costs no more than was allowed.
TEST_F(HttpServerTest, EndsAStreamThatIsTooFarBehind) {
  const shm::Fd link = connected();
  const std::string request = "GET /stream HTTP/1.1\r\nHost: here\r\n\r\n";
  ASSERT_GT(::send(link.get(), request.data(), request.size(), 0), 0);
  said(link);
  ASSERT_TRUE(stream);
  const std::string much(1 << 20, 'x');
  int sent = 0;
  while (sent < 100 && stream->send(much)) {
    ++sent;
    loop.poll();
  }
  EXPECT_LT(sent, 100);
}

// Requests with bytes changed, cut, doubled; what is no request, too. Sanitizers look on.
TEST_F(HttpServerTest, BearsWhateverIsSaid) {
  std::mt19937 dice(5);
  const std::vector<std::string> seeds{
      "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
      "GET /api/v1/feeds HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
      "HEAD /x HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nUpgrade: h2c\r\nConnection: "
      "Upgrade\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};
  for (int round = 0; round < 400; ++round) {
    std::string request = seeds[dice() % seeds.size()];
    for (std::size_t change = dice() % 6; change > 0; --change) {
      const std::size_t at = dice() % request.size();
      switch (dice() % 4) {
        case 0:
          request[at] = static_cast<char>(dice());
          break;
        case 1:
          request.erase(at, dice() % 9);
          break;
        case 2:
          request.insert(at, request.substr(0, dice() % 40));
          break;
        default:
          request.insert(at, dice() % 3000, static_cast<char>(dice()));
      }
      if (request.empty()) request = "\r";
    }
    const shm::Fd link = connected();
    static_cast<void>(::send(link.get(), request.data(), request.size(), MSG_NOSIGNAL));
    loop.poll();
    if (round % 8 == 0) said(link, 20);
  }
  EXPECT_THAT(answer("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

}  // namespace
}  // namespace ringfeed::web
