// The program of a plug-in: a worker that has stages of its own beside those of ringfeed.
//
//   int main(int argc, char** argv) { return ringfeed::worker_main(argc, argv, {length_filter_type()}); }
//
// It is linked with ringfeed::worker (find_package(ringfeed)), and used by
// `ringfeed run --worker PATH`, or worker: "PATH" in the configuration. A configuration names its
// stages by StageType::kind: plugin { kind: "length_filter" ... }. Everything that is said of
// ringfeed-worker is true of it.
#pragma once

#include <cstdint>
#include <vector>

#include "ringfeed/worker/batch.h"
#include "ringfeed/worker/options.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed {

// Raised with any change of these headers after which a program has to be compiled again.
inline constexpr std::uint64_t kWorkerAbi = 1;

// The sizes say it too if something was forgotten, or if the standard library is another one.
constexpr std::uint64_t worker_layout() noexcept {
  std::uint64_t mixed = kWorkerAbi;
  for (const std::uint64_t size :
       {sizeof(StageType), sizeof(NodeSpec), sizeof(InputSpec), sizeof(OutputSpec),
        sizeof(PortSpec), sizeof(CounterSpec), sizeof(MetricText), sizeof(Problem),
        sizeof(StageContext), sizeof(OptionSpec), sizeof(BatchLayout), sizeof(BatchTensor),
        sizeof(Options), sizeof(Links), sizeof(Facts), sizeof(Record), sizeof(RecordInfo),
        sizeof(std::string), sizeof(std::function<void()>)}) {
    mixed = (mixed ^ size) * 0x100000001b3;  // FNV-1a
  }
  return mixed;
}

namespace detail {
// `layout`: that of the headers which the caller was compiled with. If it is another one than the
// library's, `stages` is not looked at, and the exit status is 1.
int worker_main(int argc, char** argv, std::vector<StageType>* stages,
                std::uint64_t layout) noexcept;
}  // namespace detail

// What ringfeed asks of its worker, by `argv`; returns the exit status. `stages`: their kinds are 1
// to 64 of a-z 0-9 _, all different, and none is a kind of ringfeed's own; what is wrong with one
// is said on standard error, and the exit status is 1. One thread calls it, once, from main().
inline int worker_main(int argc, char** argv, std::vector<StageType> stages) noexcept {
  return detail::worker_main(argc, argv, &stages, worker_layout());
}

}  // namespace ringfeed
