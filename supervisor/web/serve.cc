#include "supervisor/web/serve.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/signal_set.hpp>
#include <charconv>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/control/place.h"
#include "supervisor/web/answers.h"
#include "supervisor/web/http.h"
#include "supervisor/web/looks.h"

namespace ringfeed::web {
namespace {

constexpr rlim_t kOtherFds = 96;  // standard streams, the loop, supervisors

struct Place {
  std::string address;
  std::uint16_t port = 0;
};

// "127.0.0.1:9464", "[::1]:9464", "9464".
Place place_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  Place place{.address = colon == std::string::npos ? "127.0.0.1" : text.substr(0, colon)};
  if (place.address.starts_with('[') && place.address.ends_with(']')) {
    place.address = place.address.substr(1, place.address.size() - 2);
  }
  if (place.address == "localhost") place.address = "127.0.0.1";
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), place.port);
  boost::system::error_code wrong;
  boost::asio::ip::make_address(place.address, wrong);
  if (error != std::errc() || end != port.data() + port.size() || wrong) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--listen {}: an address and a port are wanted, as 127.0.0.1:9464 or "
                            "[::1]:9464",
                            escaped(text)));
  }
  return place;
}

std::string read_token(const std::string& file) {
  std::ifstream in(file);
  std::string token;
  std::getline(in, token);
  constexpr std::size_t kLeast = 16;
  if (!in && token.empty()) {
    throw Error(ErrorCode::kIo, fmt::format("{}: the token cannot be read", escaped(file)));
  }
  while (!token.empty() && (token.back() == '\r' || token.back() == ' ')) token.pop_back();
  if (token.size() < kLeast) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: a token of {} characters and more is wanted on its first line",
                            escaped(file), kLeast));
  }
  return token;
}

Limits limits_here() {
  Limits limits;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    const rlim_t room = files.rlim_cur > kOtherFds + 2 ? (files.rlim_cur - kOtherFds) / 2 : 1;
    limits.connections = static_cast<std::size_t>(std::min<rlim_t>(limits.connections, room));
    limits.streams = std::min(limits.streams, std::max<std::size_t>(1, limits.connections / 4));
  }
  return limits;
}

}  // namespace

int serve(const Options& given) {
  const Place place = place_of(given.listen);
  Access access{.hosts = given.hosts};
  if (!given.token_file.empty()) access.token = read_token(given.token_file);
  ::signal(SIGPIPE, SIG_IGN);
  boost::asio::io_context loop(1);
  Looks looks(loop, control::search_directories(given.directory, control::read_environment()));
  Answers answers(loop, looks, std::move(access));
  const HttpServer server(
      loop, place.address, place.port, limits_here(),
      [&](const Question& question, const Respond& reply) { answers.answer(question, reply); });
  boost::asio::signal_set ends(loop, SIGINT, SIGTERM);
  ends.async_wait([&](boost::system::error_code, int) { loop.stop(); });
  const bool v6 = place.address.find(':') != std::string::npos;
  fmt::print("http://{}{}{}:{}/\n", v6 ? "[" : "", place.address, v6 ? "]" : "", server.port());
  std::fflush(stdout);
  if (!boost::asio::ip::make_address(place.address).is_loopback() && given.token_file.empty()) {
    fmt::print(stderr,
               "ringfeed-web: everybody who reaches {} can read what these feeds do: --token-file "
               "asks for a token\n",
               place.address);
  }
  for (;;) {
    try {
      loop.run();
      return 0;
    } catch (const std::exception& error) {
      // Of one answer, for want of memory; the others go on.
      fmt::print(stderr, "ringfeed-web: {}\n", escaped_lines(error.what()));
    }
  }
}

}  // namespace ringfeed::web
