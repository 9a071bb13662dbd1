// ringfeed peek: the newest batch as numbers, as text and as files.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "proto/view.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/asking.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"
#include "supervisor/os/locale.h"
#include "supervisor/os/table.h"
#include "supervisor/os/text.h"
#include "supervisor/peek/observed_batch.h"
#include "supervisor/peek/question.h"
#include "supervisor/peek/saved.h"
#include "supervisor/peek/summary.h"

namespace ringfeed::cli {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::size_t kFirstShown = 6;

struct PeekOptions {
  std::string feed = {};
  std::string directory = {};  // of the control socket
  std::string output = {};
  std::string save = {};
  std::string view = {};  // a program
  std::vector<std::string> pictures = {};
  std::uint64_t rows = 1;
  double timeout_s = 10;
  bool json = false;
};

struct Seen {
  const peek::ObservedBatch& batch;
  std::vector<peek::Summary> summaries;
  ShowAnswer shown;
  std::vector<std::string> saved = {};  // paths
};

// Why there is none: what the stages are doing, or how the feed has ended.
std::string no_batch_text(control::ControlClient& client, const PeekOptions& options,
                          const Error& why) {
  std::string doing;
  try {
    Request request;
    request.mutable_status();
    const StatusReply status = answer_of(client, request).status();
    for (const std::string& line : status.progress()) {
      doing += fmt::format("{}{}", doing.empty() ? " (" : "; ", escaped(line));
    }
    if (!doing.empty()) doing += ")";
    if (status.state() == StatusReply::ENDED || status.state() == StatusReply::FAILED) {
      return fmt::format("feed '{}' has {}, and holds no batch that could be shown: {}",
                         options.feed, status.state() == StatusReply::ENDED ? "ended" : "failed",
                         escaped(why.message()));
    }
  } catch (const Error&) {  // it has ended meanwhile
    return escaped(why.message());
  }
  if (why.code() != ErrorCode::kTimeout) return escaped(why.message());
  return fmt::format(
      "feed '{}' has published no batch within {:.3g} s{}: wait for its first one with a longer "
      "--timeout, and see ringfeed why {}",
      options.feed, options.timeout_s, doing, options.feed);
}

std::string shape_text(const peek::ObservedArray& array, bool utf8) {
  std::string text;
  for (const std::uint64_t size : array.shape) {
    text += fmt::format("{}{}", text.empty() ? "" : utf8 ? "×" : "x", size);
  }
  return text.empty() ? "-" : text;
}

std::string share_text(std::uint64_t part, std::uint64_t all) {
  if (all == 0) return "-";
  return fmt::format("{:.1f} %", 100 * static_cast<double>(part) / static_cast<double>(all));
}

std::string arrays_text(const Seen& seen, bool utf8) {
  Table table({{"array"},
               {"dtype"},
               {"shape"},
               {"min", Align::kRight},
               {"mean", Align::kRight},
               {"max", Align::kRight},
               {"std", Align::kRight},
               {"zeros", Align::kRight},
               {"nan", Align::kRight},
               {"inf", Align::kRight},
               {"first"}});
  for (std::size_t i = 0; i < seen.summaries.size(); ++i) {
    const peek::ObservedArray& array = seen.batch.arrays()[i];
    const peek::Summary& summary = seen.summaries[i];
    std::vector<std::string> row{array.name, array.dtype, shape_text(array, utf8)};
    if (summary.range) {
      row.insert(row.end(), {summary.range->min_text, fmt::format("{:.5g}", summary.range->mean),
                             summary.range->max_text, fmt::format("{:.5g}", summary.range->std)});
    } else {
      row.insert(row.end(), {"-", "-", "-", "-"});
    }
    row.insert(row.end(), {share_text(summary.zeros, summary.items), fmt::to_string(summary.nans),
                           fmt::to_string(summary.infinities)});
    std::string first;
    for (const std::string& item : summary.first) first += (first.empty() ? "" : " ") + item;
    if (summary.items > summary.first.size()) first += utf8 ? " …" : " ...";
    row.push_back(std::move(first));
    table.add(row);
  }
  return table.text();
}

double age_s(const peek::ObservedBatch& batch) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const double now_s = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
  return std::max(0.0, now_s - static_cast<double>(batch.published_ns()) / 1e9);
}

std::string as_text(const PeekOptions& options, const Seen& seen) {
  const peek::ObservedBatch& batch = seen.batch;
  std::string text = fmt::format(
      "feed {}, batch {}{}: {} of at most {} rows, {}, published {:.1f} s ago\n\n", options.feed,
      batch.number(),
      batch.output().empty() ? "" : fmt::format(" of output '{}'", escaped(batch.output())),
      batch.rows(), batch.rows_max(), shown_bytes(batch.bytes()), age_s(batch));
  text += arrays_text(seen, locale_is_utf8());
  for (const ShownRow& row : seen.shown.rows()) {
    text += fmt::format("\nrow {}\n", row.row());
    std::string lines = escaped_lines(row.text());
    if (!lines.empty() && lines.back() == '\n') lines.pop_back();
    for (std::size_t at = 0; at <= lines.size();) {
      const std::size_t end = std::min(lines.find('\n', at), lines.size());
      text += fmt::format("  {}\n", std::string_view(lines).substr(at, end - at));
      at = end + 1;
    }
  }
  return text;
}

// What JSON lacks stays out of it.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json as_json(const PeekOptions& options, const Seen& seen) {
  const peek::ObservedBatch& batch = seen.batch;
  ordered_json out{{"feed", options.feed},         {"output", batch.output()},
                   {"batch", batch.number()},      {"rows", batch.rows()},
                   {"rows_max", batch.rows_max()}, {"bytes", batch.bytes()},
                   {"crc32c", batch.crc32c()},     {"age_s", number(age_s(batch))}};
  out["arrays"] = ordered_json::array();
  for (std::size_t i = 0; i < seen.summaries.size(); ++i) {
    const peek::ObservedArray& array = batch.arrays()[i];
    const peek::Summary& summary = seen.summaries[i];
    ordered_json one{{"name", array.name},       {"dtype", array.dtype},   {"shape", array.shape},
                     {"items", summary.items},   {"zeros", summary.zeros}, {"nan", summary.nans},
                     {"inf", summary.infinities}};
    if (summary.range) {
      one["min"] = number(summary.range->min);
      one["mean"] = number(summary.range->mean);
      one["max"] = number(summary.range->max);
      one["std"] = number(summary.range->std);
    }
    one["first"] = summary.first;
    out["arrays"].push_back(std::move(one));
  }
  out["shown"] = ordered_json::array();
  for (const ShownRow& row : seen.shown.rows()) {
    out["shown"].push_back({{"row", row.row()}, {"text", row.text()}});
  }
  out["problems"] =
      std::vector<std::string>(seen.shown.problems().begin(), seen.shown.problems().end());
  if (!seen.saved.empty()) out["saved"] = seen.saved;
  return out;
}

fs::path save(const fs::path& parent, const PeekOptions& options, Seen& seen) {
  const fs::path directory = peek::make_directory(parent, options.feed, seen.batch);
  const auto note = [&](const std::string& name) {
    seen.saved.push_back((directory / name).string());
  };
  peek::FileNames names;
  for (const peek::ObservedArray& array : seen.batch.arrays()) {
    const std::string name = names.of(array.name) + ".npy";
    peek::save_array(directory / name, array);
    note(name);
  }
  for (const ShownPicture& picture : seen.shown.pictures()) {
    const std::string name = fmt::format("{}-{}.png", names.of(picture.array()), picture.row());
    peek::save_file(directory / name, picture.png(), {});
    note(name);
  }
  peek::save_file(directory / "batch.json", json_text(as_json(options, seen), 2), "\n");
  note("batch.json");
  return directory;
}

// The program of somebody's own, with the directory as its argument. Its exit status.
int run_view(const std::string& program, const fs::path& directory) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execlp(program.c_str(), program.c_str(), directory.c_str(), nullptr);
    fmt::print(stderr, "ringfeed: --view {} cannot be started: {}: check the path\n",
               escaped(program), std::strerror(errno));
    ::_exit(127);
  }
  int status = 0;
  while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return kOk;
  fmt::print(stderr, "ringfeed: the view {} has failed: see what it says above\n",
             escaped(program));
  return kFailure;
}

// Removed with what is in it.
class PassingDirectory {
 public:
  PassingDirectory() {
    std::string name = (fs::temp_directory_path() / "ringfeed-peek-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(ErrorCode::kIo,
                  fmt::format("no directory can be made in {}: {}",
                              fs::temp_directory_path().string(), std::strerror(errno)));
    }
    path_ = name;
  }
  PassingDirectory(const PassingDirectory&) = delete;
  PassingDirectory& operator=(const PassingDirectory&) = delete;
  ~PassingDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

int show(const PeekOptions& options, Seen& seen) {
  fs::path saved;
  if (!options.save.empty()) saved = save(fs::absolute(options.save), options, seen);
  fmt::print("{}",
             options.json ? json_text(as_json(options, seen), -1) + "\n" : as_text(options, seen));
  for (const std::string& problem : seen.shown.problems()) {
    if (!options.json) fmt::print(stderr, "ringfeed: {}\n", escaped(problem));
  }
  if (!saved.empty()) fmt::print(stderr, "saved: {}\n", escaped(saved.string()));
  if (options.view.empty()) return kOk;
  if (!saved.empty()) return run_view(options.view, saved);
  const PassingDirectory passing;
  return run_view(options.view, save(passing.path(), options, seen));
}

int peek_at(const PeekOptions& options) {
  const std::vector<std::string> directories = look_in(options.directory);
  int status = kOk;
  std::optional<control::ControlClient> client = find_feed(directories, options.feed, status);
  if (!client) return status;
  Request request;
  request.mutable_origin();
  const OriginReply origin = answer_of(*client, request).origin();
  const Result<peek::ObservedBatch> batch = peek::ObservedBatch::take(
      {.feed = options.feed,
       .directories = directories,
       .output = options.output,
       .timeout_ms = static_cast<std::uint64_t>(options.timeout_s * 1e3)});
  if (!batch) {
    fmt::print(stderr, "ringfeed: {}\n", no_batch_text(*client, options, batch.error()));
    return batch.error().code() == ErrorCode::kInvalidArgument ? kUsage : kFailure;
  }
  Seen seen{.batch = *batch, .summaries = {}, .shown = {}};
  for (const peek::ObservedArray& array : batch->arrays()) {
    seen.summaries.push_back(peek::summarise(array, kFirstShown));
  }
  seen.shown = peek::ask_about(*batch, origin, options.rows, options.pictures);
  return show(options, seen);
}

}  // namespace

void add_peek(CLI::App& verb, int& result) {
  const auto options = std::make_shared<PeekOptions>();
  add_feed(verb, options->feed);
  add_directory(verb, options->directory);
  verb.add_option("--output", options->output, "alias of the output; default: the first one")
      ->type_name("NAME");
  verb.add_option("--rows", options->rows, "number of rows to show; default 1")
      ->type_name("N")
      ->check(CLI::Range(0, 1000));
  verb.add_option("--timeout", options->timeout_s,
                  "longest wait for the first batch, in seconds; default 10")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));
  verb.add_option("--save", options->save,
                  "save the arrays (.npy), the shown rows of pictures (.png) and batch.json in a "
                  "directory below this one")
      ->type_name("DIR");
  verb.add_option("--picture", options->pictures,
                  "this array of uint8 is a picture, whatever its name says; may be given several "
                  "times")
      ->type_name("NAME")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  CLI::Option* const view =
      verb.add_option("--view", options->view,
                      "a program of your own that shows the batch: it gets the directory with its "
                      "files as its argument")
          ->type_name("FILE");
  CLI::Option* const json = verb.add_flag("--json", options->json, "print one JSON object");
  json->excludes(view);
  verb.footer(
      "It looks like an observer: no trainer misses the batch, and the feed does not wait.\n"
      "Examples: ringfeed peek lc0 --rows 3\n"
      "          ringfeed peek photos --save seen --picture thumbnail");
  verb.callback([options, &result] { result = peek_at(*options); });
}

}  // namespace ringfeed::cli
