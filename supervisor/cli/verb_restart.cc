// ringfeed restart and scale: other processes, and other lanes, for a stage.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/asking.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"

namespace ringfeed::cli {
namespace {

// The end of a step is waited for, then a start.
constexpr int kRestartMs = 60 * 1000;
// What an earlier change has left is worked off first.
constexpr int kScaleMs = 60 * 1000;

int restart(const std::string& directory, const std::string& feed, const std::string& group,
            const std::string& binary, bool json) {
  Request request;
  request.mutable_restart()->set_group(group);
  if (!binary.empty()) {
    request.mutable_restart()->set_binary(std::filesystem::canonical(binary).string());
  }
  int status = kOk;
  const std::optional<Reply> reply =
      answer_of_feed(look_in(directory), feed, request, status, kRestartMs);
  if (!reply) return status;
  if (json) {
    fmt::print("{}\n",
               json_text({{"feed", feed}, {"group", group}, {"pid", reply->restart().pid()}}, -1));
    return kOk;
  }
  fmt::print("stage group '{}' now runs in process {}\n", escaped(group), reply->restart().pid());
  return kOk;
}

int scale(const std::string& directory, const std::string& feed, const std::string& stage,
          std::uint32_t lanes, bool json) {
  Request request;
  request.mutable_scale()->set_stage(stage);
  request.mutable_scale()->set_lanes(lanes);
  int status = kOk;
  const std::optional<Reply> reply =
      answer_of_feed(look_in(directory), feed, request, status, kScaleMs);
  if (!reply) return status;
  const ScaleReply& done = reply->scale();
  if (json) {
    fmt::print("{}\n", json_text({{"feed", feed},
                                  {"stage", stage},
                                  {"lanes", done.lanes()},
                                  {"before", done.before()},
                                  {"pause_us", done.pause_us()}},
                                 -1));
    return kOk;
  }
  const std::string count = fmt::format("{} lane{}", done.lanes(), done.lanes() == 1 ? "" : "s");
  if (done.before() == done.lanes()) {
    fmt::print("stage '{}' already has {}\n", escaped(stage), count);
  } else {
    fmt::print("stage '{}' now has {}, before {}; the feed paused for {:.1f} ms\n", escaped(stage),
               count, done.before(), static_cast<double>(done.pause_us()) / 1000);
  }
  return kOk;
}

}  // namespace

void add_restart(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    std::string group;
    std::string binary;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  verb.add_option("GROUP", given->group, "name of the stage group, as shown by ringfeed status")
      ->required();
  verb.add_option("--binary", given->binary,
                  "run this group with another ringfeed-worker from now on; refused if it lays out "
                  "the memory of the stages differently")
      ->type_name("PATH")
      ->check(CLI::ExistingFile);
  add_json(verb, given->json);
  verb.footer("Nothing is lost or repeated.\nExample: ringfeed restart lc0 sampler");
  add_directory(verb, given->directory);
  verb.callback([=, &result] {
    result = restart(given->directory, given->feed, given->group, given->binary, given->json);
  });
}

void add_scale(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    std::string stage;
    std::uint32_t lanes = 0;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  verb.add_option("STAGE", given->stage, "name of the stage, as shown by ringfeed status")
      ->required();
  verb.add_option("LANES", given->lanes, "number of lanes, 1 to max_threads of the stage")
      ->required();
  add_json(verb, given->json);
  verb.footer(
      "Nothing is lost or repeated. With ORDERED dispatch the batches stay the same.\nThe next "
      "`ringfeed run` that takes the feed over uses the threads of its configuration again.\n"
      "Example: ringfeed scale lc0 unpacker 4");
  add_directory(verb, given->directory);
  verb.callback([=, &result] {
    result = scale(given->directory, given->feed, given->stage, given->lanes, given->json);
  });
}

}  // namespace ringfeed::cli
