#include "supervisor/web/http.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <list>
#include <optional>

#include "ringfeed/shm/result.h"

namespace ringfeed::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::milliseconds;

// After an accept that failed for want of descriptors.
constexpr milliseconds kAcceptAgain{100};

// What every answer has. Nothing of it is for other pages, and nothing is kept.
void add_fields(http::response_header<>& header, const Answer& answer) {
  header.set(http::field::content_type, answer.type);
  header.set("X-Content-Type-Options", "nosniff");
  header.set("Referrer-Policy", "no-referrer");
  header.set("Cross-Origin-Resource-Policy", "same-origin");
  header.set(http::field::cache_control, "no-store");
  for (const auto& [name, value] : answer.fields) header.set(name, value);
}

bool is_of_http(const error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_method).category();
}

}  // namespace

// The connections, those that spoke last behind.
class HttpServer::Listener : public std::enable_shared_from_this<HttpServer::Listener> {
 public:
  class Session;

  Listener(asio::io_context& loop, const asio::ip::tcp::endpoint& place, const Limits& limits,
           Handler handler)
      : acceptor_(loop, place), again_(loop), limits_(limits), handler_(std::move(handler)) {}

  void accept();
  void resume();
  void close();
  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  [[nodiscard]] const Limits& limits() const { return limits_; }
  [[nodiscard]] const Handler& handler() const { return handler_; }
  [[nodiscard]] bool has_room_for_stream() const { return streams_ < limits_.streams; }

 private:
  friend class Session;
  // What awaits a connection, or the time for another try. Asio may destroy it without a call: for
  // a connection that it has no memory to keep.
  class Awaits;
  void make_room();

  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer again_;
  Limits limits_;
  Handler handler_;
  std::list<Session*> sessions_;
  std::size_t streams_ = 0;
  bool accepting_ = false;  // a connection is awaited, or the time for another try
};

class HttpServer::Listener::Session : public Stream, public std::enable_shared_from_this<Session> {
 public:
  Session(asio::ip::tcp::socket socket, std::shared_ptr<Listener> listener)
      : listener_(std::move(listener)), stream_(std::move(socket)) {
    place_ = listener_->sessions_.insert(listener_->sessions_.end(), this);
  }
  ~Session() override {
    listener_->sessions_.erase(place_);
    if (streams_) --listener_->streams_;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void read() {
    parser_.emplace();
    parser_->header_limit(listener_->limits().header_bytes);
    parser_->body_limit(0);
    stream_.expires_after(milliseconds(listener_->limits().request_ms));
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](error_code error, std::size_t) { self->on_read(error); });
  }

  void close() noexcept {
    error_code ignored;
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

  // Can it be closed without the loss of an answer?
  [[nodiscard]] bool waits() const { return waits_; }

  [[nodiscard]] bool send(std::string_view text) override {
    if (!stream_.socket().is_open() ||
        behind_.size() + text.size() > listener_->limits().behind_bytes) {
      close();
      return false;
    }
    behind_ += text;
    if (!writing_) write_behind();
    return true;
  }

  void end() noexcept override { close(); }

 private:
  void on_read(error_code error) {
    if (error == http::error::header_limit) {
      return refuse(http::status::request_header_fields_too_large, "the request is too long");
    }
    if (error == http::error::body_limit) {
      return refuse(http::status::payload_too_large, "no request has a body here");
    }
    if (error && is_of_http(error) && error != http::error::end_of_stream &&
        error != http::error::partial_message) {
      return refuse(http::status::bad_request, "this is no HTTP request");
    }
    if (error) return close();
    listener_->sessions_.splice(listener_->sessions_.end(), listener_->sessions_, place_);
    const auto& request = parser_->get();
    keep_alive_ = request.keep_alive();
    const http::verb verb = request.method();
    if (verb != http::verb::get && verb != http::verb::head) {
      keep_alive_ = false;
      Answer answer{.status = 405, .body = "only GET and HEAD are answered\n"};
      answer.fields.emplace_back("Allow", "GET, HEAD");
      return static_cast<void>(respond(std::move(answer)));
    }
    const auto field = [&](http::field name) { return std::string(request[name]); };
    head_ = verb == http::verb::head;
    const Question question{.head = head_,
                            .target = std::string(request.target()),
                            .host = field(http::field::host),
                            .origin = field(http::field::origin),
                            .authorization = field(http::field::authorization),
                            .accept = field(http::field::accept),
                            .if_none_match = field(http::field::if_none_match)};
    waits_ = false;
    listener_->handler()(question, [self = shared_from_this()](Answer answer) {
      return self->respond(std::move(answer));
    });
  }

  void refuse(http::status status, std::string_view why) {
    keep_alive_ = false;
    static_cast<void>(
        respond({.status = static_cast<unsigned>(status), .body = fmt::format("{}\n", why)}));
  }

  std::shared_ptr<Stream> respond(Answer answer) {
    if (!stream_.socket().is_open()) return nullptr;
    if (answer.streams && !listener_->has_room_for_stream()) {
      answer = {.status = 503, .body = "too many streams are open\n"};
      answer.fields.emplace_back("Retry-After", "10");
    }
    stream_.expires_after(milliseconds(listener_->limits().write_ms));
    if (answer.streams && !head_) return begin_stream(answer);
    response_.emplace();
    response_->result(answer.status);
    response_->version(11);
    add_fields(*response_, answer);
    response_->keep_alive(keep_alive_);
    response_->content_length(answer.body.size());
    if (!head_) response_->body() = std::move(answer.body);
    serializer_.emplace(*response_);
    const auto written = [self = shared_from_this()](error_code error, std::size_t) {
      self->waits_ = true;
      if (error || !self->keep_alive_) return self->close();
      self->read();
    };
    if (head_) {
      http::async_write_header(stream_, *serializer_, written);
    } else {
      http::async_write(stream_, *serializer_, written);
    }
    return nullptr;
  }

  // Its end is the end of the connection.
  std::shared_ptr<Stream> begin_stream(const Answer& answer) {
    streams_ = true;
    ++listener_->streams_;
    http::response_header<> header;
    header.result(answer.status);
    header.version(11);
    add_fields(header, answer);
    header.set(http::field::connection, "close");
    behind_ = fmt::format("HTTP/1.1 {} OK\r\n", answer.status);
    for (const auto& field : header) {
      behind_ +=
          fmt::format("{}: {}\r\n", std::string(field.name_string()), std::string(field.value()));
    }
    behind_ += "\r\n" + answer.body;
    write_behind();
    await_end();
    return shared_from_this();
  }

  void write_behind() {
    writing_ = true;
    sending_ = std::exchange(behind_, {});
    stream_.expires_after(milliseconds(listener_->limits().write_ms));
    asio::async_write(stream_, asio::buffer(sending_),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        self->writing_ = false;
                        if (error) return self->close();
                        self->stream_.expires_never();
                        if (!self->behind_.empty()) self->write_behind();
                      });
  }

  // Nothing more is expected of it; whatever comes ends it.
  void await_end() {
    stream_.socket().async_wait(asio::ip::tcp::socket::wait_read,
                                [self = shared_from_this()](error_code) { self->close(); });
  }

  std::shared_ptr<Listener> listener_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{64 << 10};
  std::optional<http::request_parser<http::empty_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  std::list<Session*>::iterator place_;
  bool keep_alive_ = false;
  bool head_ = false;
  bool waits_ = true;
  bool streams_ = false;
  bool writing_ = false;
  std::string sending_;
  std::string behind_;
};

class HttpServer::Listener::Awaits {
 public:
  explicit Awaits(std::shared_ptr<Listener> listener) : listener_(std::move(listener)) {
    listener_->accepting_ = true;
  }
  ~Awaits() { static_cast<void>(over()); }
  Awaits(Awaits&&) noexcept = default;
  Awaits& operator=(Awaits&&) = delete;

  std::shared_ptr<Listener> over() noexcept {
    if (listener_) listener_->accepting_ = false;
    return std::exchange(listener_, nullptr);
  }

 private:
  std::shared_ptr<Listener> listener_;
};

void HttpServer::Listener::accept() {
  acceptor_.async_accept([awaits = Awaits(shared_from_this())](
                             error_code error, asio::ip::tcp::socket socket) mutable {
    const std::shared_ptr<Listener> self = awaits.over();
    if (error == asio::error::operation_aborted) return;
    if (error) {
      self->make_room();
      self->again_.expires_after(kAcceptAgain);
      self->again_.async_wait([tries = Awaits(self)](error_code stopped) mutable {
        const std::shared_ptr<Listener> listener = tries.over();
        if (!stopped) listener->accept();
      });
      return;
    }
    if (self->sessions_.size() >= self->limits_.connections) self->make_room();
    // Closed at once if all are in the middle of an answer.
    if (self->sessions_.size() < 2 * self->limits_.connections) {
      std::make_shared<Session>(std::move(socket), self)->read();
    }
    self->accept();
  });
}

void HttpServer::Listener::resume() {
  if (!accepting_) accept();
}

void HttpServer::Listener::make_room() {
  for (Session* session : sessions_) {
    if (session->waits()) return session->close();
  }
}

void HttpServer::Listener::close() {
  error_code ignored;
  acceptor_.close(ignored);
  again_.cancel();
  for (Session* session : sessions_) session->close();
}

HttpServer::HttpServer(asio::io_context& loop, const std::string& address, std::uint16_t port,
                       const Limits& limits, Handler handler) {
  try {
    const asio::ip::tcp::endpoint place(asio::ip::make_address(address), port);
    listener_ = std::make_shared<Listener>(loop, place, limits, std::move(handler));
  } catch (const boost::system::system_error& error) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot listen at {} port {}: {}: give another one with --listen",
                            address, port, error.code().message()));
  }
  listener_->accept();
}

HttpServer::~HttpServer() { listener_->close(); }

bool HttpServer::resume() noexcept {
  try {
    listener_->resume();
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

std::uint16_t HttpServer::port() const { return listener_->port(); }

}  // namespace ringfeed::web
