// A warm parent that somebody else has started, as supervisor/group/given_parent.h knows it.
//
//   fake_parent PATH PROGRAM BEHAVIOUR
//
// Listens on PATH, which it puts in the place of what was there, and serves one supervisor after
// the other. What it forks becomes PROGRAM, with --setup-fd. BEHAVIOUR:
//   serve   does all of it
//   silent  does not tell how its processes ended
//   lie     says `here` itself, on the setup socket of the process that it was to fork
//   mute    takes orders and does nothing
//   slow    forks only when the supervisor has lost patience and closed the connection
//   full    answers that it has no room
//   spare   answers that the group has no work; with SIGUSR1 it has some
//   still   its processes end before they have said anything
// From SIGUSR1 on it is `serve`. Its standard output is told how its processes end.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/os/packet.h"

namespace {

using namespace ringfeed;  // NOLINT: a test program

int listen_at(const std::string& path) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  fresh.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket, 8) != 0 || ::rename(fresh.c_str(), path.c_str()) != 0) {
    std::perror("fake_parent");
    std::exit(1);
  }
  return socket;
}

// Ends with 3 if nobody waits for it any more.
[[noreturn]] void become(const char* program, const std::vector<shm::Fd>& fds) {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);
  ::dup2(fds[1].get(), STDERR_FILENO);
  if (!control::send_packet(fds[0].get(), "here")) ::_exit(3);
  ::dup2(fds[1].get(), STDOUT_FILENO);
  // As descriptors that an exec keeps.
  const int setup = ::dup(fds[0].get());
  for (std::size_t i = 2; i < fds.size(); ++i) (void)::dup(fds[i].get());
  ::execl(program, "ringfeed-worker", "--setup-fd", std::to_string(setup).c_str(), nullptr);
  ::_exit(4);
}

class Parent {
 public:
  Parent(const char* program, const char* behaviour) : program_(program), behaviour_(behaviour) {
    sigset_t handled;
    sigemptyset(&handled);
    for (const int signal : {SIGCHLD, SIGUSR1}) sigaddset(&handled, signal);
    ::sigprocmask(SIG_BLOCK, &handled, nullptr);
    signals_ = ::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  [[noreturn]] void serve(int listener) {
    for (;;) {
      wait(listener);
      link_ = shm::Fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      say("ready");
      while (link_) {
        wait(link_.get());
        take_order();
      }
    }
  }

 private:
  void say(const std::string& text) {
    if (link_) static_cast<void>(control::send_packet(link_.get(), text));
  }

  static void note(const std::string& line) {
    std::puts(line.c_str());
    std::fflush(stdout);
  }

  // Until the descriptor can be read; meanwhile processes end.
  void wait(int fd) {
    for (;;) {
      pollfd ready[2] = {{fd, POLLIN, 0}, {signals_, POLLIN, 0}};
      ::poll(ready, 2, -1);
      if (ready[1].revents != 0) hear_signals();
      if (ready[0].revents != 0) return;
    }
  }
  void hear_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGUSR1) continue;
      const bool spared = behaviour_ == "spare";
      behaviour_ = "serve";
      if (spared) say("work " + spared_);
    }
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const std::string ended = "ended " + std::to_string(pid) + " " + std::to_string(status);
      note(ended);
      if (behaviour_ != "silent") say(ended);
    }
  }

  void take_order() {
    Result<control::Packet> order = control::receive_packet(link_.get());
    if (!order || order->end) return link_.reset();
    if (!order->bytes.starts_with("fork ") || order->fds.size() < 2)
      return say("error unknown order");
    if (behaviour_ == "mute") return kept_.push_back(std::move(order->fds));
    if (behaviour_ == "full") return say("error it has no room");
    if (behaviour_ == "spare") {
      spared_ = order->bytes.substr(std::string_view("fork ").size());
      return say("later");
    }
    if (behaviour_ == "lie") {
      kept_.push_back(std::move(order->fds));
      static_cast<void>(control::send_packet(kept_.back()[0].get(), "here"));
      return;
    }
    if (behaviour_ == "slow") {
      note("asked");
      wait(link_.get());  // its end is all that can come
    }
    const pid_t pid = ::fork();
    if (pid == 0 && behaviour_ == "still") ::_exit(5);
    if (pid == 0) become(program_, order->fds);
  }

  const char* program_;
  std::string_view behaviour_;
  std::string spared_;  // the group that was refused last
  int signals_ = -1;
  shm::Fd link_;
  std::vector<std::vector<shm::Fd>> kept_;  // as if a process had them
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  ::signal(SIGPIPE, SIG_IGN);
  Parent(argv[2], argv[3]).serve(listen_at(argv[1]));
}
