// HTTP/1.1 for the few who look at feeds, one thread for all of them.
//
// Whatever a client does costs no more than Limits says. Who asks slowly, reads slowly or does not
// ask at all is disconnected; when there are too many connections the one that has been silent
// longest makes room for a new one. GET and HEAD alone, and no bodies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace ringfeed::web {

struct Limits {
  std::size_t connections = 128;
  std::size_t streams = 32;              // of them
  std::uint32_t header_bytes = 8 << 10;  // of a request, with its first line
  int request_ms = 5'000;                // for all of a request, or between two
  int write_ms = 10'000;                 // for all of an answer
  std::size_t behind_bytes = 4 << 20;    // that a stream may be behind
};

struct Question {
  bool head = false;   // HEAD: the answer without its body
  std::string target;  // path and query, as they came
  std::string host;
  std::string origin;  // "": none
  std::string authorization;
  std::string accept;
  std::string if_none_match;
};

struct Answer {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields = {};
  bool streams = false;  // what follows goes through Stream::send()
};

// An answer that goes on.
class Stream {
 public:
  virtual ~Stream() = default;
  // False: the client has gone, or reads too slowly.
  [[nodiscard]] virtual bool send(std::string_view text) = 0;
  // The client is disconnected, and may come again.
  virtual void end() noexcept = 0;
};

// Called once, now or later, in the thread of the loop. It returns the stream, if that was the
// answer and there is still a client.
using Respond = std::function<std::shared_ptr<Stream>(Answer)>;
using Handler = std::function<void(const Question&, Respond)>;

class HttpServer {
 public:
  // Listens at once. Throws Error (kIo) that says which address could not be had.
  HttpServer(boost::asio::io_context& loop, const std::string& address, std::uint16_t port,
             const Limits& limits, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  // After an exception out of the loop: connections are accepted again, if they were not any more.
  // False: there is no memory for it now.
  [[nodiscard]] bool resume() noexcept;

 private:
  class Listener;
  std::shared_ptr<Listener> listener_;
};

}  // namespace ringfeed::web
