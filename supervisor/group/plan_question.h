// Asks a program for its plan of a configuration, without blocking: a program may take its time, or
// never answer, and the caller has other things to do.
#pragma once

#include <functional>
#include <string>

#include "ringfeed/shm/result.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed {
class DataLoaderConfig;
class DataLooks;
class KindList;
class PipelinePlan;
}  // namespace ringfeed

namespace ringfeed::process {

// Runs `binary --plan` and gives it the configuration. `answered` is called once, from the loop,
// with the plan or an Error: kIo or kIncompatible with what the worker said; kTimeout if it has not
// answered within `timeout_ms` (-1: no limit) and was killed. What its code has started in its
// process group ends with it, and is not waited for. If the loop ends first, the program
// is killed and `answered` is not called. If the program cannot be started, `answered` gets that
// Error too. A thread starts it, because its file may be on a file system that hangs. Throws Error,
// without calling `answered`, if there is no thread or descriptor to ask with.
void ask_plan(EventLoop& loop, const std::string& binary, const DataLoaderConfig& config,
              int timeout_ms, std::function<void(const Result<PipelinePlan>&)> answered);

// The same, but waits for the plan and throws the Error; -1: two minutes. After five seconds it
// says on standard error what it waits for. SIGTERM and the like end the program with this process.
[[nodiscard]] PipelinePlan ask_plan(const std::string& binary, const DataLoaderConfig& config,
                                    int timeout_ms = -1);

// Runs `binary --kinds` and waits. Returns the kinds of stages that it has. Throws the same Errors.
[[nodiscard]] KindList ask_kinds(const std::string& binary);

// Runs `binary --look` in the same way: what the first of the configuration's data is like.
[[nodiscard]] DataLooks ask_looks(const std::string& binary, const DataLoaderConfig& config,
                                  int timeout_ms);

// What `binary` prints when it is started with `word` and given the question as standard input.
// Throws the same Errors.
[[nodiscard]] std::string ask_text(const std::string& binary, const std::string& word,
                                   const std::string& question, int timeout_ms);

}  // namespace ringfeed::process
