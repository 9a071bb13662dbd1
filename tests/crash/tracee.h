// A child process under ptrace, stopped at each of its stores into protected memory.
//
// The child makes the memory that shall be watched read-only. A store then faults; the tracer gives
// the page back for one instruction, steps over it, looks at what has changed, and takes the page
// away again. So nothing need be decoded, nothing can be missed, and what happens in private memory
// costs nothing, or, if every instruction is wanted, one step each.
//
// Linux on x86-64. The child dies with its tracer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ringfeed::crash {

inline constexpr std::uint64_t kPage = 4096;

class Tracee {
 public:
  // Forks; the child runs `body`, which does not return.
  explicit Tracee(const std::function<void()>& body);
  ~Tracee();
  Tracee(const Tracee&) = delete;
  Tracee& operator=(const Tracee&) = delete;

  // Called by the child: stops it until the tracer lets it go on.
  static void stop(int signal);
  // Lets the child go on until it stops itself with this signal. Throws if it does anything else.
  void run_to(int signal);

  struct Store {
    std::uint64_t rip = 0;             // of the instruction
    std::vector<std::uint64_t> pages;  // addresses of the pages that it was let into
  };
  // Lets the child go on to its next store into memory that it cannot write, and over this one
  // instruction. False: it stopped itself with `signal` instead. `every_instruction`: by single
  // steps, counted.
  bool next_store(int signal, bool every_instruction, Store* store);
  // Instructions that were stepped over one by one.
  [[nodiscard]] std::uint64_t instructions() const { return instructions_; }
  // A death like any other: SIGKILL, and reaped.
  void kill();

 private:
  int wait(const char* doing);
  void resume(int request);
  void protect(std::uint64_t page, int protection);
  [[noreturn]] void lost(const char* doing, int status);

  pid_t pid_ = -1;
  std::uint64_t instructions_ = 0;
};

}  // namespace ringfeed::crash
