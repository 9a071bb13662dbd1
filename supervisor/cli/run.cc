// ringfeed run and ringfeed check.
#include <fmt/format.h>
#include <sys/random.h>

#include <cstdio>
#include <filesystem>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/config/explain.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/place.h"
#include "supervisor/layout/memory.h"
#include "supervisor/process/supervisor.h"

namespace ringfeed::cli {
namespace {

std::uint64_t drawn_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    throw Error(ErrorCode::kIo, "the system gives no random number for a seed: set seed");
  }
  return seed;
}

}  // namespace

int check(const ConfigArguments& arguments) {
  const std::optional<Prepared> prepared = prepare(arguments);
  if (!prepared) return kInvalidConfiguration;
  const std::vector<config::MemoryPart> parts = layout::memory_parts(prepared->layout);
  fmt::print("{}", config::explain(prepared->configuration.message(), *prepared->plan,
                                   prepared->wiring, prepared->groups, parts));
  layout::check_memory(prepared->layout, memory_limits(*prepared)).or_throw();
  return kOk;
}

int run(const ConfigArguments& arguments) {
  std::optional<Prepared> prepared = prepare(arguments);
  if (!prepared) return kInvalidConfiguration;
  const DataLoaderConfig& message = prepared->configuration.message();
  const std::string& feed = message.feed();

  const std::string directory =
      control::socket_directory(message.control().directory(), control::read_environment());
  control::prepare_directory(directory, feed);
  control::FeedLock lock =
      control::FeedLock::take(control::lock_path(directory, feed), feed).value_or_throw();
  metrics::Talk talk(metrics::level_named(LogConfig::Level_Name(message.log().level())),
                     message.log().file());
  int status = kFailure;
  try {
    for (const std::string& done : control::clear_remains(lock.left_behind())) {
      talk.event(metrics::Level::kWarn, "remains_cleared",
                 fmt::format("feed={} what=\"{}\"", feed, done));
    }
    layout::check_memory(prepared->layout, memory_limits(*prepared)).or_throw();
    talk.say(fmt::format("feed {} takes\n{}", feed, layout::memory_table(prepared->layout)));
    const process::FeedRun feed_run{
        .config = message,
        .plan = *prepared->plan,
        .batches_stage = prepared->wiring.batches_stage,
        .seed = message.has_seed() ? message.seed() : drawn_seed(),
        .config_file = arguments.file == "-" ? arguments.file
                                             : std::filesystem::absolute(arguments.file).string(),
        .worker_binary = prepared->worker_binary,
        .socket = control::socket_path(directory, feed),
        .dead_letters = control::dead_letter_directory(message.restart().dead_letters(), feed,
                                                       control::read_environment()),
    };
    process::Supervisor supervisor(feed_run, std::move(prepared->layout), lock, talk);
    status = supervisor.run();
  } catch (...) {
    lock.remove();
    throw;
  }
  lock.remove();
  return status;
}

}  // namespace ringfeed::cli
