#include "workers/inspect/view.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace ringfeed::inspect {
namespace {

// False: it ends before.
bool read_whole(int fd, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = ::read(fd, to.data(), to.size());
    if (n > 0) {
      to = to.subspan(static_cast<std::size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

// "": no domain knows it.
std::string shown(std::span<const std::byte> bytes, const Describers& describers) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  Report report{out};
  for (const auto& describe : describers.letters) {
    if (!describe({.kind = "", .node = "", .bytes = bytes}, {}, report)) continue;
    std::string text;
    for (const auto& domain_text : describers.texts) text += domain_text(out);
    return text;
  }
  return {};
}

}  // namespace

int view(int socket, int records, const Describers& describers) {
  // Whoever started it is the only one to end it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::array<std::uint64_t, 4> head{};
  std::array<std::uint64_t, 2> count{};  // in, out
  std::vector<std::byte> bytes;
  while (read_whole(records, std::as_writable_bytes(std::span(head)))) {
    bytes.resize(head[0]);
    if (!read_whole(records, bytes)) break;
    const bool out = head[3] != 0;
    const std::string text = shown(bytes, describers);
    fmt::print("{} {} (lineage {:016x}:{})\n{}", out ? "out" : "in ", ++count[out ? 1 : 0], head[1],
               head[2], text.empty() ? fmt::format("    {} bytes\n", bytes.size()) : text);
  }
  std::fflush(stdout);
  constexpr std::string_view kDone = "done 0";
  static_cast<void>(!::send(socket, kDone.data(), kDone.size(), MSG_NOSIGNAL));
  return 0;
}

int describe_records(const Describers& describers) {
  constexpr std::uint64_t kRecordMax = std::uint64_t{64} << 20;
  std::string path;
  for (int c = std::getchar(); c != EOF; c = std::getchar()) {
    if (c != 0) {
      path += static_cast<char>(c);
      continue;
    }
    std::string text;
    try {
      text = shown(File(path).read_whole(kRecordMax), describers);
    } catch (const Error&) {  // it has gone meanwhile, or is too large to be looked at
    }
    std::fwrite(text.c_str(), 1, text.size() + 1, stdout);
    path.clear();
  }
  return 0;
}

}  // namespace ringfeed::inspect
