// Asks a program for its plan of a configuration, as an event: a program may take its time, or
// never answer, and whoever asks has other things to do.
#pragma once

#include <functional>
#include <string>

#include "ringfeed/shm/result.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed {
class DataLoaderConfig;
class KindList;
class PipelinePlan;
}  // namespace ringfeed

namespace ringfeed::process {

// Runs `binary --plan` and gives it the configuration. `answered` is called once, from the loop,
// with the plan or an Error: kIo or kIncompatible with what the worker said, kTimeout if it has not
// answered within `timeout_ms` (-1: it may take its time), and is killed then. If the loop goes
// first the program is killed and nobody is called. A program that cannot be started is an answer,
// too. It is started in a thread, for its file may lie where nothing answers. Throws Error, and
// calls nobody, if nothing can be asked: no thread, no descriptor.
void ask_plan(EventLoop& loop, const std::string& binary, const DataLoaderConfig& config,
              int timeout_ms, std::function<void(const Result<PipelinePlan>&)> answered);

// The same for whoever has nothing else to do: waits, and throws the Error.
[[nodiscard]] PipelinePlan ask_plan(const std::string& binary, const DataLoaderConfig& config,
                                    int timeout_ms = -1);

// Runs `binary --kinds` and waits: the kinds of stages that it has. Throws the same Errors.
[[nodiscard]] KindList ask_kinds(const std::string& binary);

}  // namespace ringfeed::process
