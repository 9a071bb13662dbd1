// ringfeed-worker with a chunk_unpacker that cannot bear some chunks: those whose identity is a
// multiple of RINGFEED_POISON_EVERY, read as an unsigned number. On them it does what
// RINGFEED_POISON says, once it has output what it can of them: `crash` (writes where nothing is),
// `abort`, `exit` (status 9), `hang`.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "proto/config.pb.h"
#include "tests/support/rig/test_worker.h"
#include "workers/lc0/records.h"

namespace ringfeed {
namespace {

std::string_view setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

void suffer() {
  const std::string_view how = setting("RINGFEED_POISON", "crash");
  volatile std::uintptr_t nowhere = 64;
  if (how == "crash") *reinterpret_cast<volatile int*>(nowhere) = 1;
  if (how == "abort") std::abort();
  if (how == "exit") ::_exit(9);
  while (how == "hang") ::pause();
}

class PoisonedUnpacker final : public Stage {
 public:
  PoisonedUnpacker(const StageContext& context, std::unique_ptr<Stage> real)
      : in_(context.input("input")),
        every_(std::strtoull(setting("RINGFEED_POISON_EVERY", "10").data(), nullptr, 10)),
        real_(std::move(real)) {}
  StepStatus step(Step& step) noexcept override {
    std::uint64_t before = 0;
    std::optional<Record> record = step.peek(in_);
    if (record) std::memcpy(&before, record->bytes.data(), sizeof before);
    const StepStatus status = real_->step(step);
    if (record && before % every_ == 0) suffer();
    return status;
  }
  void forget(Step& step, const Record& record) noexcept override { real_->forget(step, record); }

 private:
  InPort in_;
  std::uint64_t every_;
  std::unique_ptr<Stage> real_;
};

}  // namespace
}  // namespace ringfeed

int main(int argc, char** argv) {
  using namespace ringfeed;  // NOLINT: a test program
  return testing::run_test_worker(argc, argv, "poison_worker", [](StageType& type) {
    if (type.kind == "chunk_unpacker") {
      type.nodes = [nodes = type.nodes](const StageView& stage) {
        std::vector<NodeSpec> made = nodes(stage);
        for (NodeSpec& node : made) {
          node.create = [create = node.create](const StageContext& context) {
            return std::make_unique<PoisonedUnpacker>(context, create(context));
          };
        }
        return made;
      };
    }
    // As if it could be asked more.
    const char* const answers = std::getenv("RINGFEED_TEST_ANSWERS");
    if (answers != nullptr) type.answers.emplace_back(answers);
    // As if it came of another version, which keeps other things in its memory.
    type.nodes = [nodes = type.nodes](const StageView& stage) {
      std::vector<NodeSpec> made = nodes(stage);
      const char* const version = std::getenv("RINGFEED_TEST_STATE_VERSION");
      for (NodeSpec& node : made) {
        if (version != nullptr) {
          node.state_version = static_cast<std::uint32_t>(std::strtoul(version, nullptr, 10));
        }
      }
      return made;
    };
  });
}
