#include "supervisor/web/serve.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/control/place.h"
#include "supervisor/os/address.h"
#include "supervisor/web/answers.h"
#include "supervisor/web/http.h"
#include "supervisor/web/looks.h"

namespace ringfeed::web {
namespace {

constexpr std::chrono::milliseconds kNoMemory{20};  // until there is some
constexpr rlim_t kOtherFds = 96;                    // standard streams, the loop, supervisors

NetAddress listen_address(const std::string& text) {
  Result<NetAddress> address = parse_address(text);
  if (address) return *address;
  throw Error(address.error().code(), "--listen: " + address.error().message());
}

// Whoever has started it watches it; without that process nobody would end it.
void end_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) throw Error(ErrorCode::kIo, "the process that started it has ended");
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

void say_trouble(const std::exception& error) noexcept {
  try {
    fmt::print(stderr, "ringfeed-web: {}\n", escaped_lines(error.what()));
  } catch (const std::exception&) {
    // There is no memory to say it, or nobody reads it.
  }
}

}  // namespace

int serve(const Options& given) {
  if (given.parent != 0) end_with(given.parent);
  const NetAddress place = listen_address(given.listen);
  Access access{.hosts = given.hosts};
  if (!given.token_file.empty()) access.token = read_token(given.token_file);
  ::signal(SIGPIPE, SIG_IGN);
  boost::asio::io_context loop(1);
  Looks looks(loop, control::search_directories(given.directory, control::read_environment()));
  Answers answers(loop, looks, std::move(access));
  HttpServer server(
      loop, place.host, place.port, limits_here(),
      [&](const Question& question, const Respond& reply) { answers.answer(question, reply); });
  boost::asio::signal_set ends(loop, SIGINT, SIGTERM);
  ends.async_wait([&](boost::system::error_code, int) { loop.stop(); });
  NetAddress here = place;
  here.port = server.port();
  fmt::print("{}{}/\n", kScheme, here.text());
  std::fflush(stdout);
  if (!place.loopback && given.token_file.empty()) {
    fmt::print(stderr,
               "ringfeed-web: everybody who reaches {} can read what these feeds do: --token-file "
               "asks for a token\n",
               here.text());
  }
  for (;;) {
    try {
      loop.run();
      return 0;
    } catch (const std::exception& error) {
      // Of one answer, for want of memory; the others go on.
      say_trouble(error);
    }
    while (!server.resume()) std::this_thread::sleep_for(kNoMemory);
  }
}

}  // namespace ringfeed::web
