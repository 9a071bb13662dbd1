// ringfeed-worker-python: becomes the Python that runs a stage of the kind python, as
// `python -m ringfeed.worker`, with the same words and descriptors.
//
// Which Python that is stands in the configuration that this process is about to be given: it looks
// at that without taking it. Else it is the one that runs `ringfeed` ($RINGFEED_PYTHON), the one of
// the active virtual environment, or python3 of PATH.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "proto/config.pb.h"
#include "proto/worker.pb.h"

namespace {

// All of a file, from its start; nothing is moved.
std::string contents(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_size <= 0) return {};
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), 0);
  bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return bytes;
}

// The setup that waits in the socket; its descriptors come along, which is no taking either.
ringfeed::WorkerSetup waiting_setup(int socket) {
  ringfeed::WorkerSetup setup;
  std::string packet(64 * 1024, '\0');
  iovec part{packet.data(), packet.size()};
  std::array<char, CMSG_SPACE(sizeof(int) * 253)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_PEEK | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return setup;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::vector<int> fds(count);
    std::memcpy(fds.data(), CMSG_DATA(head), count * sizeof(int));
    // The first is the setup itself. All are closed: this process is another program soon.
    if (!fds.empty()) setup.ParseFromString(contents(fds[0]));
    for (const int fd : fds) ::close(fd);
  }
  return setup;
}

// What its settings name, whatever kind it is.
std::string interpreter_of(const ringfeed::StageConfig& stage) {
  const google::protobuf::Reflection& stages = *stage.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> set;
  stages.ListFields(stage, &set);
  for (const google::protobuf::FieldDescriptor* kind : set) {
    if (kind->message_type() == nullptr) continue;
    const auto* const named = kind->message_type()->FindFieldByName("interpreter");
    if (named == nullptr) continue;
    const google::protobuf::Message& settings = stages.GetMessage(stage, kind);
    return settings.GetReflection()->GetString(settings, named);
  }
  return {};
}

// Of the stage of this name; of the first that names one, if there is no such stage.
std::string wanted_interpreter(const ringfeed::DataLoaderConfig& config, std::string_view stage) {
  std::string found;
  for (const ringfeed::StageConfig& one : config.stages()) {
    const std::string named = interpreter_of(one);
    if (named.empty()) continue;
    if (one.name() == stage) return named;
    if (found.empty() && stage.empty()) found = named;
  }
  return found;
}

std::string in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::string_view rest(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string place = std::string(rest.substr(0, colon)) + "/" + name;
    if (colon != 0 && ::access(place.c_str(), X_OK) == 0) return place;
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
  return {};
}

std::string usual_interpreter() {
  if (const char* const named = std::getenv("RINGFEED_PYTHON");
      named != nullptr && *named != '\0') {
    return named;
  }
  if (const char* const home = std::getenv("VIRTUAL_ENV"); home != nullptr && *home != '\0') {
    const std::string place = std::string(home) + "/bin/python";
    if (::access(place.c_str(), X_OK) == 0) return place;
  }
  return in_path("python3");
}

// The extension module lies beside this program's directory, where it is installed or built.
void name_module() {
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0) return;
  std::string place(self, static_cast<std::size_t>(length));
  place.resize(place.rfind('/'));
  place.resize(place.rfind('/'));
  for (const char* const name : {"/lib/ringfeed/_worker.abi3.so", "/lib/_worker.abi3.so"}) {
    if (::access((place + name).c_str(), R_OK) != 0) continue;
    ::setenv("RINGFEED_WORKER_MODULE", (place + name).c_str(), 1);
    return;
  }
}

void end_with(std::uint32_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // an exec keeps it
  // It may have been gone before that.
  if (static_cast<std::uint32_t>(::getppid()) != parent) ::_exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view word(argc >= 2 ? argv[1] : "");
  const bool foreground = word == "--try-fd" && argc >= 4;
  std::string interpreter;
  if (((word == "--setup-fd" || word == "--warm-fd") && argc == 3) || foreground) {
    const ringfeed::WorkerSetup setup = waiting_setup(std::atoi(argv[2]));
    // Whoever started it is the only one to end it; also while it waits at a terminal.
    if (foreground) end_with(setup.supervisor_pid());
    ringfeed::DataLoaderConfig config;
    if (config.ParseFromString(setup.config()) && setup.lanes_size() != 0) {
      interpreter = wanted_interpreter(config, setup.lanes(0).stage());
    }
  } else if (word == "--plan") {
    ringfeed::DataLoaderConfig config;
    if (config.ParseFromString(contents(STDIN_FILENO)))
      interpreter = wanted_interpreter(config, "");
  } else if (word != "--kinds") {
    std::fputs("ringfeed starts ringfeed-worker-python: see ringfeed --help\n", stderr);
    return 2;
  }
  if (interpreter.empty()) interpreter = usual_interpreter();
  if (interpreter.empty()) {
    std::fputs(
        "there is no python3 in PATH: install Python, or name one as the stage's interpreter\n",
        stderr);
    return 1;
  }
  name_module();
  std::vector<std::string> words{interpreter, "-m", "ringfeed.worker"};
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> arguments;
  for (std::string& one : words) arguments.push_back(one.data());
  arguments.push_back(nullptr);
  ::execv(interpreter.c_str(), arguments.data());
  std::fprintf(stderr, "the interpreter %s cannot be started: %s\n", interpreter.c_str(),
               std::strerror(errno));
  return 1;
}
