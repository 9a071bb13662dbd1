// ringfeed-worker in which a warm parent that somebody else has started forks the lanes of the
// stage $RINGFEED_GIVEN: it listens on $RINGFEED_GIVEN_SOCKET. The program that the stage names is
// nowhere to be found.
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

}  // namespace
}  // namespace ringfeed

int main(int argc, char** argv) {
  using namespace ringfeed;  // NOLINT: a test program
  return testing::run_test_worker(argc, argv, "given_worker", [](StageType& type) {
    type.nodes = [nodes = type.nodes](const StageView& stage) {
      std::vector<NodeSpec> made = nodes(stage);
      if (stage.config.name() != setting("RINGFEED_GIVEN")) return made;
      for (NodeSpec& node : made) {
        node.process_per_lane = true;
        node.warm_parent = true;
        node.parent_socket = setting("RINGFEED_GIVEN_SOCKET");
        node.program = "no-such-program";
      }
      return made;
    };
  });
}
