// Starts worker processes, and those that are asked for a plan (plan_question.h).
//
// A worker gets: standard input /dev/null; standard output and error one pipe to the supervisor;
// descriptor 3 its end of the setup socket; nothing else. It is the head of a process group of its
// own, so that Ctrl-C at a terminal reaches the supervisor alone, which then drains.
//
// The writing end of the pipe does not block and SIGPIPE is ignored: when nobody reads (the
// supervisor is stopped, or dead), lines are lost and lanes go on.
#pragma once

#include <string>
#include <vector>

#include "ringfeed/shm/segment.h"
#include "supervisor/os/identity.h"

namespace ringfeed::process {

inline constexpr int kSetupFd = 3;
// Kept until the process ends, and for nothing else.
inline constexpr int kLockFd = 4;

// ringfeed-worker beside this binary, else $RINGFEED_WORKER, else from PATH. Throws Error
// (kNotFound) that names the places.
[[nodiscard]] std::string find_worker_binary();

// The program that runs a stage group: the worker, or what is beside it under the name `program`
// (NodePlan.program). Throws Error (kNotFound).
[[nodiscard]] std::string program_for(const std::string& worker, const std::string& program);

// Whether the libraries are there that `binary` is linked with: true unless it ends like a program
// whose libraries are not found. It is started for that, with nowhere to say anything. Throws Error
// if it cannot be started.
[[nodiscard]] bool libraries_found(const std::string& binary);

struct Spawned {
  Identity identity;
  shm::Fd pidfd;
  shm::Fd socket;  // SOCK_SEQPACKET, does not block
  shm::Fd log;     // what the worker says, does not block
};

// The setup socket and the log pipe of a worker: ours, and those to give to it.
struct WorkerLinks {
  shm::Fd socket;
  shm::Fd log;
  shm::Fd their_socket;
  shm::Fd their_log;
};
// Throws Error if the system refuses: kNoMemory if it has run out of something, else kIo.
[[nodiscard]] WorkerLinks make_worker_links();

// `lock`: a descriptor that the process keeps as long as it lives (kLockFd); -1: none. Throws Error
// in the same way.
[[nodiscard]] Spawned spawn_worker(const std::string& binary, int lock = -1);

// How a process has ended; waits for it, which is at once after its pidfd became readable.
struct Ending {
  bool known = true;  // false: not a child of this process, so nobody tells how
  bool exited = false;
  int status = 0;  // exit status
  int signal = 0;  // or the signal that killed it
  // "exit status 3", "signal 11 (Segmentation fault)".
  [[nodiscard]] std::string text() const;
};
[[nodiscard]] Ending reap(const shm::Fd& pidfd);

// `binary` with these words, --plan unless others are given, and with `question`, a file, as its
// standard input. Throws Error as spawn_worker() does.
struct Asked {
  pid_t pid = 0;
  shm::Fd pidfd;
  shm::Fd answer;  // its standard output; does not block
};
[[nodiscard]] Asked spawn_asked(const std::string& binary, int question,
                                const std::vector<std::string>& words = {"--plan"});

}  // namespace ringfeed::process
