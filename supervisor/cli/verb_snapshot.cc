// ringfeed snapshot: a running feed saved to a directory.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/asking.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/cli/waiting.h"
#include "supervisor/os/text.h"

namespace ringfeed::cli {
namespace {

// Disks may be slow, and a feed large; whoever is impatient may interrupt it.
constexpr int kSnapshotMs = 24 * 3600 * 1000;

int take_snapshot(const std::string& directory, const std::string& feed, const std::string& target,
                  bool json) {
  if (target.empty()) {
    fmt::print(stderr, "ringfeed: DIR is empty: give the path of a directory to create\n");
    return kUsage;
  }
  std::error_code failed;
  const std::string place = std::filesystem::absolute(target, failed).lexically_normal().string();
  if (failed) {
    throw Error(ErrorCode::kIo, fmt::format("{} is not a usable path for a snapshot: the current "
                                            "directory is unknown: {}: give an absolute path",
                                            in_quotes(target), failed.message()));
  }
  const std::vector<std::string> directories = look_in(directory);
  Request request;
  request.mutable_snapshot()->set_directory(place);
  int status = kOk;
  const std::optional<Reply> reply = [&] {
    Waiting waiting(directories, feed, "snapshot");
    return answer_of_feed(directories, feed, request, status, kSnapshotMs,
                          [&waiting] { waiting.look(); });
  }();
  if (!reply) return status;
  const SnapshotReply& taken = reply->snapshot();
  if (json) {
    fmt::print("{}\n", json_text({{"feed", feed},
                                  {"directory", taken.directory()},
                                  {"bytes", taken.bytes()},
                                  {"newest_batch", taken.newest_batch()},
                                  {"pause_us", taken.pause_us()},
                                  {"total_ms", taken.total_ms()}}));
  } else {
    fmt::print("{}: {}, up to batch {}; the lanes paused for {:.1f} ms, it took {} ms in all\n",
               escaped(taken.directory()), shown_bytes(taken.bytes()), taken.newest_batch(),
               static_cast<double>(taken.pause_us()) / 1000, taken.total_ms());
  }
  return kOk;
}

}  // namespace

void add_snapshot(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    std::string target;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  verb.add_option("DIR", given->target,
                  "directory to create; an existing snapshot there is replaced")
      ->required();
  add_json(verb, given->json);
  verb.footer(
      "The feed pauses only for a moment. To resume later: ringfeed run --resume DIR\n"
      "Example: ringfeed snapshot lc0 /data/checkpoints/lc0-feed");
  add_directory(verb, given->directory);
  verb.callback([=, &result] {
    result = take_snapshot(given->directory, given->feed, given->target, given->json);
  });
}

}  // namespace ringfeed::cli
