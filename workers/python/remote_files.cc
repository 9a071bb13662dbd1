// Finds the objects of a store and outputs the paths of their copies in a cache of this host: those
// that a listing has, a record that says that it is complete, and in an endless run what is new in
// later ones. The listings, and the fetching, are Python's (pyclient/ringfeed/worker/files.py).
//
//   out      files    one path a record; a marker record after the first listing
//   arena    length of the log (8 bytes), marker sent (8), the log: {size, version, path} of every
//            file output
//   at end   in a finite run it ends after the marker; on drain at once. The process stays until
//            the feed ends, and so does a successor's: readers ask it for copies.
//   skips    a path that no system takes (files_unreadable)
//
// What has been output is in the arena, so a restart lists again and compares.
#include <fmt/format.h>
#include <limits.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ringfeed/worker/sample.h"
#include "workers/files/file_records.h"
#include "workers/files/remote_kind.h"
#include "workers/kit/file_log.h"
#include "workers/kit/stage_help.h"
#include "workers/python/remote_settings.h"
#include "workers/python/source_function.h"

namespace ringfeed {
namespace {

constexpr std::uint64_t kLogGrowth = 1 * kMiB;
constexpr std::uint64_t kLogBytesMax = 16ULL << 30;
// Paths that are asked for at once.
constexpr std::size_t kPathsAtOnce = 64;
// A first listing that fails so often in a row ends the feed.
constexpr std::uint32_t kListingsMax = 3;

struct ObjectVersion {
  std::uint64_t bytes;
  std::uint64_t mtime_ns;  // 0: the store has not said yet
  friend bool operator==(const ObjectVersion&, const ObjectVersion&) = default;
};

// Of a field that is one number; 0 if there is none.
std::uint64_t number_in(const SampleView& sample, std::string_view name) {
  const std::optional<SampleField> field = sample.find(name);
  std::uint64_t number = 0;
  if (field && field->data.size() == sizeof number) {
    std::memcpy(&number, field->data.data(), sizeof number);
  }
  return number;
}

class RemoteFiles final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : log_bytes(layout.word()), marker_sent(layout.word()), log(layout.place(0)) {}
    Word log_bytes;
    Word marker_sent;
    Place log;  // to the end of the arena; grows
  };

  explicit RemoteFiles(const StageContext& context)
      : context_(context),
        state_([] {
          StateLayout layout;
          return State(layout);
        }()),
        log_(state_.log_bytes, state_.log, kLogGrowth),
        out_(context.output("output")),
        files_found_(context.counter("files_found")),
        files_unreadable_(context.counter("files_unreadable")),
        listing_failed_(context.counter("listing_failed")),
        finite_(context.feed.epochs() > 0) {
    log_.read(context, [this](const ObjectVersion& version, std::string path) {
      seen_[std::move(path)] = version;
    });
    // From here on it answers readers, whatever this lane has still to do.
    Result<std::unique_ptr<SourceFunction>> opened = source_opener()(context);
    if (!opened) throw Error(opened.error());
    source_ = std::move(*opened);
  }

  StepStatus step(Step& step) noexcept override {
    if (step.draining() || (finite_ && step.load(state_.marker_sent) != 0)) return StepStatus::kEnd;
    if (too_long_ != 0) {
      step.count(files_unreadable_, std::exchange(too_long_, 0));
      return StepStatus::kDone;
    }
    if (tries_told_ != tries_) {
      step.gauge(listing_failed_, tries_told_ = tries_);
      return StepStatus::kDone;
    }
    if (pending_.empty()) return ask(step);
    while (!pending_.empty()) {
      const Found& found = pending_.front();
      if (found.path.empty()) {
        if (step.load(state_.marker_sent) == 0) {
          if (!step.put(out_, {}, {.user = kScanCompleteRecord})) return StepStatus::kNoRoom;
          step.store(state_.marker_sent, 1);
        }
        pending_.pop_front();
        context_.note(fmt::format("{} objects", seen_.size()));
        return StepStatus::kDone;
      }
      if (const auto known = seen_.find(found.path); known != seen_.end()) {
        // One that was output before its version was known is as it was.
        if (known->second.mtime_ns == 0) known->second = found.version;
        if (known->second == found.version || found.version.mtime_ns == 0) {
          pending_.pop_front();
          continue;
        }
      }
      FileLog<ObjectVersion>::Entries entry;
      entry.add(found.version, found.path);
      if (!log_.append(step, entry) ||
          !step.put(out_, std::as_bytes(std::span(found.path)), {.user = kFileRecord})) {
        return StepStatus::kNoRoom;
      }
      step.count(files_found_);
      seen_[found.path] = found.version;
      pending_.pop_front();
      // One file a call: a call that finds no room afterwards then takes back nothing that seen_
      // has already.
      return StepStatus::kDone;
    }
    return StepStatus::kAgain;
  }

 private:
  struct Found {
    std::string path;  // "": the listing is complete
    ObjectVersion version;
  };

  // The next paths of the listing; kIdle: it is under way, or nothing is new.
  StepStatus ask(Step& step) noexcept {
    const bool first = step.load(state_.marker_sent) == 0;
    if (!begun_) {
      // What has been output is not fetched ahead again.
      const std::string cursor = first ? fmt::format("{}", seen_.size()) : "all";
      const auto bytes = std::as_bytes(std::span(cursor));
      source_->begin(0, {bytes.begin(), bytes.end()}, seen_.size());
      begun_ = true;
    }
    SourceFunction::Items items = source_->next(kPathsAtOnce);
    for (const SourceFunction::Item& item : items.items) take(item);
    if (!items.error.empty()) begun_ = false;
    if (!pending_.empty() || too_long_ != 0) {
      tries_ = 0;
      return StepStatus::kAgain;
    }
    if (!items.error.empty()) failed(items, first);
    return StepStatus::kIdle;
  }

  void take(const SourceFunction::Item& item) {
    const std::optional<SampleView> sample = SampleView::open(item.sample);
    const std::optional<SampleField> path = sample ? sample->find("path") : std::nullopt;
    if (!path) {
      context_.warn(
          fmt::format("no_path stage={} error={}: {}", context_.stage, item.error, item.traceback));
      ++too_long_;
      return;
    }
    std::string text(reinterpret_cast<const char*>(path->data.data()), path->data.size());
    if (text.size() >= PATH_MAX) {
      ++too_long_;
      if (long_occasions_.speak()) {
        context_.warn(fmt::format("file_unreadable stage={} count={} path={}: its name is too long",
                                  context_.stage, long_occasions_.count(), text));
      }
      return;
    }
    pending_.push_back(
        {std::move(text), {number_in(*sample, "size"), number_in(*sample, "version")}});
  }

  // A first listing is tried a few times, later ones for ever: the store was there before.
  void failed(const SourceFunction::Items& items, bool first) noexcept {
    ++tries_;
    if (first && tries_ >= kListingsMax) {
      context_.fail(
          fmt::format("stage '{}': {}:\n{}", context_.stage, items.error, items.traceback));
    }
    if (fail_occasions_.speak()) {
      context_.warn(fmt::format("listing_failed stage={} count={}: {}", context_.stage,
                                fail_occasions_.count(), last_line(items.traceback)));
    }
    context_.note(last_line(items.traceback));
  }
  static std::string last_line(std::string_view text) {
    while (text.ends_with('\n')) text.remove_suffix(1);
    const std::size_t at = text.rfind('\n');
    return std::string(at == std::string_view::npos ? text : text.substr(at + 1));
  }

  StageContext context_;
  State state_;
  FileLog<ObjectVersion> log_;
  OutPort out_;
  Counter files_found_;
  Counter files_unreadable_;
  Counter listing_failed_;
  bool finite_;
  std::unordered_map<std::string, ObjectVersion> seen_;  // the arena's log, by path
  std::unique_ptr<SourceFunction> source_;
  std::deque<Found> pending_;
  bool begun_ = false;
  std::uint32_t tries_ = 0;  // listings in a row that failed
  std::uint32_t tries_told_ = 0;
  std::uint64_t too_long_ = 0;  // paths since the last step
  Occasions long_occasions_;
  Occasions fail_occasions_;
};

void add_url_problems(const RemoteFilesConfig& own, std::vector<Problem>& problems) {
  if (own.url_size() == 0 && own.list_size() == 0) {
    problems.push_back(
        {"url", "url is not set; give what is to be read, e.g. \"s3://bucket/data/*.jsonl.zst\""});
  }
  for (int i = 0; i < own.url_size(); ++i) {
    if (is_url(own.url(i))) continue;
    problems.push_back({fmt::format("url[{}]", i),
                        fmt::format("\"{}\" is no URL; write it as \"s3://bucket/name\". Files of "
                                    "this host are for a stage that finds them",
                                    own.url(i))});
  }
}

std::vector<Problem> problems_of(const StageView& stage) {
  const RemoteSettings settings = *remote_settings(stage.config);
  std::vector<Problem> problems;
  if (stage.config.has_remote_files()) add_url_problems(stage.config.remote_files(), problems);
  if (settings.cache.empty()) {
    problems.push_back({"cache",
                        "cache is not set; give the directory of this host where copies of the "
                        "objects are kept, e.g. \"/var/cache/ringfeed\""});
  }
  if (settings.cache_bytes == 0) {
    problems.push_back({"cache_bytes",
                        "cache_bytes is not set; give the bytes that the copies may take, e.g. "
                        "200000000000: no default can know what else the disk is for"});
  }
  if (!settings.storage_options.empty() &&
      !nlohmann::json::parse(settings.storage_options, nullptr, false).is_object()) {
    problems.push_back(
        {"storage_options", "storage_options are no JSON object; write e.g. '{\"anon\": true}'"});
  }
  if (!problems.empty()) return problems;
  for (Problem problem : object_problems(remote_object(settings, stage.feed.epochs() > 0))) {
    // There is no such setting.
    problem.field.clear();
    problems.push_back(std::move(problem));
  }
  return problems;
}

std::vector<NodeSpec> nodes_of(OutputSpec output) {
  StateLayout layout;
  (void)RemoteFiles::State(layout);
  NodeSpec node;
  node.process_per_lane = true;
  node.warm_parent = true;
  node.serves_when_over = true;
  node.state_bytes = layout.bytes() + kLogGrowth;
  node.state_bytes_max = kLogBytesMax;
  node.outputs = {std::move(output)};
  node.weight = 1;
  node.steps_per_commit = 16;
  node.program = "ringfeed-worker-python";
  if (source_opener()) {
    node.create = [](const StageContext& context) {
      return std::make_unique<RemoteFiles>(context);
    };
  }
  return {node};
}

}  // namespace

StageType remote_files_type() {
  set_remote_kind({.problems = &problems_of, .nodes = &nodes_of});
  StageType type;
  type.kind = "remote_files";
  type.outputs = {{"output", "files"}};
  type.counters = {
      {"files_found", "Objects found."},
      {"files_unreadable", "Objects whose copies would have names that the system does not take."},
      {"listing_failed", "Times in a row that the store could not be listed.", kGauge},
  };
  type.problems = &problems_of;
  type.nodes = [](const StageView& stage) {
    return nodes_of(
        output_spec(stage.config.remote_files(), "files", 256 * kKiB, UnitRule::kRecord));
  };
  type.example = {.text = R"(
stages { name: "objects" remote_files {
  url: "s3://bucket/data/*.jsonl.zst" cache: "/data/cache" cache_bytes: 100000000000 } }
)",
                  .maker = "jsonl_files"};
  return type;
}

}  // namespace ringfeed
