#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/graph/writers.h"
#include "supervisor/os/packet.h"

namespace ringfeed::graph {
namespace {

constexpr const char* kProgram = "dot";
constexpr int kPatienceMs = 30'000;
constexpr std::size_t kSaidBytesMax = 2'000;  // of its complaints, in a message

[[noreturn]] void refuse(const std::string& what, int error) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(error)));
}

// Files of memory, and no pipes: nobody has to read while it writes.
shm::Fd empty_file(const char* name) {
  shm::Fd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) refuse("a picture of the graph", errno);
  return file;
}

std::string content_of(const shm::Fd& file, std::size_t most = SIZE_MAX) {
  std::string text;
  std::array<char, 65536> bytes{};
  while (text.size() < most) {
    const ssize_t n =
        ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(n));
  }
  if (text.size() > most) text.resize(most);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

pid_t start(const shm::Fd& in, const shm::Fd& out, const shm::Fd& said) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, in.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, out.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, said.get(), STDERR_FILENO);
  std::string program(kProgram);
  std::string form("-Tsvg");
  const std::array<char*, 3> words{program.data(), form.data(), nullptr};
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, kProgram, &files, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  if (error == 0) return pid;
  if (error != ENOENT) refuse(fmt::format("the program {} cannot be started", kProgram), error);
  throw Error(ErrorCode::kNotFound,
              fmt::format("an SVG is drawn by the program {} of Graphviz, which is not installed "
                          "(not in PATH): apt install graphviz, dnf install graphviz or brew "
                          "install graphviz; or give --format dot, and draw that elsewhere",
                          kProgram));
}

// Its wait status. Throws Error (kTimeout) if it does not end, which it has then.
int end_of(pid_t pid) {
  const shm::Fd child(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd ends{child.get(), POLLIN, 0};
  int ready = child ? -1 : 1;  // out of descriptors: it is waited for without a limit
  do {
    if (child) ready = ::poll(&ends, 1, kPatienceMs);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (ready > 0) return status;
  throw Error(
      ErrorCode::kTimeout,
      fmt::format("{} has not drawn the graph within {} s: give --format dot, and draw that "
                  "with other settings",
                  kProgram, kPatienceMs / 1000));
}

}  // namespace

std::string graph_svg(const Graph& graph) {
  const shm::Fd in = control::bytes_as_fd(graph_dot(graph), "graph").value_or_throw();
  const shm::Fd out = empty_file("svg");
  const shm::Fd said = empty_file("words");
  const int status = end_of(start(in, out, said));
  std::string svg = content_of(out);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !svg.empty()) return svg + "\n";
  throw Error(ErrorCode::kIo,
              fmt::format("{} could not draw the graph ({}): {}", kProgram,
                          WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                              : fmt::format("exit status {}", WEXITSTATUS(status)),
                          escaped(content_of(said, kSaidBytesMax))));
}

}  // namespace ringfeed::graph
