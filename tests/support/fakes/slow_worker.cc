// ringfeed-worker in which one stage is slower than it is: RINGFEED_SLOW names the lanes
// ("unpacker", "pool.read"), RINGFEED_SLOW_HOW what each of their steps costs more,
// RINGFEED_SLOW_US so many microseconds: `compute` keeps a processor busy, `wait` sleeps as one
// does who waits for a disk.
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "proto/config.pb.h"
#include "tests/support/rig/test_worker.h"

namespace ringfeed {
namespace {

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::uint64_t cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000;
}

class SlowStage final : public Stage {
 public:
  explicit SlowStage(std::unique_ptr<Stage> real)
      : real_(std::move(real)),
        computes_(setting("RINGFEED_SLOW_HOW") == "compute"),
        us_(std::strtoull(setting("RINGFEED_SLOW_US").c_str(), nullptr, 10)) {}

  StepStatus step(Step& step) noexcept override {
    const StepStatus status = real_->step(step);
    if (status != StepStatus::kDone) return status;
    if (computes_) {
      const std::uint64_t end = cpu_us() + us_;
      while (cpu_us() < end) {
      }
    } else {
      ::usleep(static_cast<useconds_t>(us_));
    }
    return status;
  }
  void forget(Step& step, const Record& record) noexcept override { real_->forget(step, record); }
  const ControlBox* control_box() const noexcept override { return real_->control_box(); }
  void control(Step& step, const StageControlRequest& request,
               StageControlResponse& response) noexcept override {
    real_->control(step, request, response);
  }
  int poll_ms() const noexcept override { return real_->poll_ms(); }

 private:
  std::unique_ptr<Stage> real_;
  bool computes_;
  std::uint64_t us_;
};

}  // namespace
}  // namespace ringfeed

int main(int argc, char** argv) {
  using namespace ringfeed;  // NOLINT: a test program
  const std::string slow = setting("RINGFEED_SLOW");
  return testing::run_test_worker(argc, argv, "slow_worker", [&slow](StageType& type) {
    type.nodes = [nodes = type.nodes, slow](const StageView& stage) {
      std::vector<NodeSpec> made = nodes(stage);
      for (NodeSpec& node : made) {
        if (slow != stage.config.name() + (node.name.empty() ? "" : "." + node.name)) continue;
        node.create = [create = node.create](const StageContext& context) {
          return std::make_unique<SlowStage>(create(context));
        };
      }
      return made;
    };
  });
}
