// ringfeed dead-letters: the records that a feed has set aside.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/cli/letter.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"
#include "supervisor/control/place.h"
#include "supervisor/group/spawn.h"
#include "supervisor/os/text.h"

namespace ringfeed::cli {
namespace {

// The first line: how the stage ended; the worker's last words follow.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

bool runs(const std::string& sockets, const std::string& feed) {
  const std::vector<std::string> directories = look_in(sockets);
  return control::ControlClient::connect(directories, feed).has_value() ||
         find_orphan(directories, feed).has_value();
}

int unknown(const std::string& sockets, const std::filesystem::path& place,
            const std::string& feed) {
  const int status = no_such_feed(look_in(sockets), feed);
  // Beside FEED/dead-letters: those of other feeds.
  std::vector<std::string> others;
  const std::filesystem::path state = place.parent_path().parent_path();
  if (const auto names = shm::names_in(state.string()); names) {
    for (const std::string& name : *names) {
      if (std::filesystem::is_directory(state / name / place.filename())) others.push_back(name);
    }
  }
  std::ranges::sort(others);
  if (!others.empty()) {
    fmt::print(stderr, "there are dead letters of: {}\n",
               escaped(fmt::format("{}", fmt::join(others, ", "))));
  }
  return status;
}

// What the first of them hold.
std::vector<std::string> described(const std::vector<std::filesystem::path>& letters) {
  constexpr std::size_t kDescribed = 100;
  std::vector<std::filesystem::path> records;
  for (std::size_t i = 0; i < std::min(letters.size(), kDescribed); ++i) {
    records.push_back(std::filesystem::path(letters[i]).replace_extension(".record"));
  }
  if (records.empty()) return {};
  try {
    return describe_records(records, process::find_worker_binary());
  } catch (const Error&) {
    return {};  // without a worker they are listed all the same
  }
}

int dead_letters(const std::string& feed, const std::string& directory, const std::string& sockets,
                 bool json) {
  const std::filesystem::path place =
      control::dead_letter_directory(directory, feed, control::read_environment());
  std::vector<std::filesystem::path> files;
  const Result<std::vector<std::string>> names = shm::names_in(place.string());
  if (!names && names.error().code() != ErrorCode::kNotFound) throw Error(names.error());
  if (names) {
    for (const std::string& name : *names) {
      if (name.ends_with(".json")) files.push_back(place / name);
    }
  }
  std::sort(files.begin(), files.end());
  const std::vector<std::string> texts = json ? std::vector<std::string>{} : described(files);
  for (const std::filesystem::path& file : files) {
    const Result<nlohmann::json> read = read_about(file);
    if (!read) {
      fmt::print(stderr, "{}\n", escaped(read.error().message()));
      continue;
    }
    const nlohmann::json& about = *read;
    std::filesystem::path record = file;
    record.replace_extension(".record");
    if (json) {
      nlohmann::ordered_json out = about;
      out["file"] = record.string();
      fmt::print("{}\n", json_text(out));
      continue;
    }
    try {
      fmt::print("{}  {}, {} deaths, {}\n", escaped(record.string()),
                 shown_bytes(about.value("bytes", 0ULL)), about.value("deaths", 0U),
                 escaped(first_line(about.value("cause", std::string("unknown")))));
      const auto number = static_cast<std::size_t>(&file - files.data());
      if (number < texts.size()) fmt::print("{}", texts[number]);
    } catch (const nlohmann::json::exception&) {  // a field that is not what it should be
      fmt::print(stderr, "{}: is damaged\n", escaped(file.string()));
    }
  }
  if (!files.empty()) return kOk;
  // Without a place of its own and without a process: a name that nobody knows.
  if (!names && directory.empty() && !runs(sockets, feed)) return unknown(sockets, place, feed);
  fmt::print(stderr, "no dead letters in {}\n", escaped(place.string()));
  return kOk;
}

}  // namespace

void add_dead_letters(CLI::App& verb, int& result) {
  struct Given {
    std::string feed;
    std::string directory;
    std::string sockets;
    ReplayOptions replay;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  verb.add_option("FEED", given->feed, "name of the feed; not needed with --replay");
  verb.add_option("--directory", given->directory,
                  "directory of the records; default: $XDG_STATE_HOME/ringfeed/FEED/dead-letters")
      ->type_name("DIR");
  CLI::Option* const json = verb.add_flag(
      "--json", given->json, "print one JSON object per record, with everything that is known");
  CLI::Option* const replays =
      verb.add_option("--replay", given->replay.file,
                      "give this record to its stage once more, in a separate process with its own "
                      "memory; no feed is touched")
          ->type_name("FILE");
  verb.add_option("--binary", given->replay.binary, "the ringfeed-worker to replay with")
      ->type_name("PATH")
      ->check(CLI::ExistingFile)
      ->needs(replays);
  verb.add_option("--config", given->replay.config,
                  "use this configuration instead of the one saved with the record")
      ->type_name("CONFIG")
      ->check(CLI::ExistingFile)
      ->needs(replays);
  CLI::Option* const timeout =
      verb.add_option(
              "--timeout", given->replay.timeout_s,
              "give up on the stage after this many seconds; default: restart.stall_ms of the "
              "configuration, else 10")
          ->type_name("SECONDS")
          ->check(CLI::Range(0.001, 1e6))
          ->needs(replays);
  CLI::Option* const wait =
      verb.add_flag(
              "--wait", given->replay.wait,
              "wait before handing over the record until Enter is pressed, to attach a debugger; "
              "no time limit unless --timeout is given")
          ->needs(replays);
  verb.add_flag("--pdb", given->replay.pdb,
                "of a stage in Python: call it here, under Python's debugger, which stops at its "
                "first line and where it raises an exception; without any time limit")
      ->needs(replays)
      ->excludes(timeout)
      ->excludes(wait)
      ->excludes(json);
  verb.footer(
      "The exit status of a replay is 0 if the stage took the record, 6 if it died, hung or did "
      "not take it.\n"
      "Examples: ringfeed dead-letters lc0\n"
      "          ringfeed dead-letters --replay .../unpacker-input-0.0-17.record");
  add_directory(verb, given->sockets);
  verb.callback([=, &result] {
    if (replays->count() != 0) {
      result = replay_letter(given->feed, given->directory, given->replay, given->json);
      return;
    }
    if (given->feed.empty()) throw CLI::RequiredError("FEED (or --replay FILE)");
    result = dead_letters(given->feed, given->directory, given->sockets, given->json);
  });
}

}  // namespace ringfeed::cli
