// Starts worker processes, and programs that are asked for a plan (plan_question.h).
//
// A worker gets /dev/null as standard input, one pipe to the supervisor as standard output and
// error, its end of the setup socket as descriptor 3, and nothing else. It leads its own process
// group, so that Ctrl-C at a terminal reaches only the supervisor, which then drains.
//
// The writing end of the pipe does not block, and SIGPIPE is ignored. If nobody reads (the
// supervisor is stopped, or dead), lines are lost and lanes go on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/segment.h"
#include "supervisor/os/identity.h"

namespace ringfeed::process {

// Of a warm parent (warm_parent.h, given_parent.h): its first word, an order to it, and how long it
// may take for that. A fork takes milliseconds; whoever does not answer for so long is stopped or
// hangs.
inline constexpr std::string_view kParentReady = "ready";
inline constexpr std::string_view kForkOrder = "fork";
inline constexpr int kForkMsMax = 500;

inline constexpr int kSetupFd = 3;
// Kept open until the process ends; not used otherwise.
inline constexpr int kLockFd = 4;
// Of a program in the foreground, which has no lock: where its records come from.
inline constexpr int kRecordsFd = 4;

// ringfeed-worker beside this binary, else $RINGFEED_WORKER, else from PATH. Throws Error
// (kNotFound) with the places it tried.
[[nodiscard]] std::string find_worker_binary();

// The program that runs a stage group: the worker, or the file `program` beside it, or beside the
// one that find_worker_binary() finds (NodePlan.program). Throws Error (kNotFound).
[[nodiscard]] std::string program_for(const std::string& worker, const std::string& program);

// Is it a program of the Python package, in whose directory it lies?
[[nodiscard]] bool is_of_package(const std::string& binary);

struct Spawned {
  Identity identity;
  shm::Fd pidfd;
  shm::Fd socket;  // SOCK_SEQPACKET, does not block
  shm::Fd log;     // what the worker says, does not block
};

// The setup socket and the log pipe of a worker: our ends and those of the worker.
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
// `word`: what is said before the number of the setup socket.
[[nodiscard]] Spawned spawn_worker(const std::string& binary, int lock = -1,
                                   const std::string& word = "--setup-fd");

// Starts `binary` with these words, the first of which is its name; it has no socket.
[[nodiscard]] Spawned spawn_heard(const std::string& binary, const std::vector<std::string>& words);

// Starts `binary --try-fd SETUP RECORDS WORDS` with the standard streams and the process group of
// this process, so that it may use the terminal. Throws Error as spawn_worker() does.
struct Foreground {
  Spawned process;  // without a log
  shm::Fd records;  // a pipe to it, does not block
};
[[nodiscard]] Foreground spawn_foreground(const std::string& binary,
                                          const std::vector<std::string>& words);

// How a process ended. reap() waits for its end, which is immediate once its pidfd is readable.
struct Ending {
  bool known = true;  // false: it was not our child, so the system does not tell how
  bool told = false;  // somebody else has: for words alone
  bool exited = false;
  int status = 0;  // exit status
  int signal = 0;  // or the signal that killed it
  // "exit status 3", "signal 11 (Segmentation fault)".
  [[nodiscard]] std::string text() const;
};
[[nodiscard]] Ending reap(const shm::Fd& pidfd);

// Starts `binary` with these words, by default --plan, and with the file `question` as standard
// input. Throws Error as spawn_worker() does.
struct Asked {
  pid_t pid = 0;
  shm::Fd pidfd;
  shm::Fd answer;  // its standard output; does not block
};
[[nodiscard]] Asked spawn_asked(const std::string& binary, int question,
                                const std::vector<std::string>& words = {"--plan"});

}  // namespace ringfeed::process
