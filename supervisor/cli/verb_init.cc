// ringfeed init: a first configuration. The worker knows the data, so it is a worker that looks and
// writes; here its text is checked, and becomes a file.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/cli/verb.h"
#include "supervisor/config/names.h"
#include "supervisor/group/spawn.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed::cli {
namespace {

constexpr std::uint64_t kSayAfterMs = 5'000;
constexpr std::uint64_t kProposeMsMax = 600'000;

struct InitOptions {
  std::vector<std::string> words = {};  // [KIND] [DIRECTORY], which the worker tells apart
  std::string feed = {};                // empty: the pipeline's own name
  std::string output = {};              // empty: FEED.textproto; - is standard output
  bool force = false;
  bool json = false;
};

struct Answer {
  int status = kFailure;
  std::string kind = {};
  std::string feed = {};
  std::string found = {};
  std::string text = {};  // of the configuration
};

Answer ask(const std::string& binary, const InitOptions& options) {
  std::vector<std::string> words{"--propose"};
  if (!options.feed.empty()) words.push_back("--feed=" + options.feed);
  if (!options.output.empty() && options.output != "-") {
    words.push_back("--file=" + options.output);
  }
  words.insert(words.end(), options.words.begin(), options.words.end());
  const shm::Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) throw Error(ErrorCode::kIo, "/dev/null cannot be opened");
  process::Asked asked = process::spawn_asked(binary, nothing.get(), words);
  std::string told;
  std::array<char, 65536> bytes;
  const std::uint64_t began_ms = process::now_ms();
  bool said = false;
  for (bool ended = false; !ended;) {
    pollfd watched[2] = {{asked.answer.get(), POLLIN, 0}, {asked.pidfd.get(), POLLIN, 0}};
    if (::poll(watched, 2, 1'000) < 0 && errno != EINTR) break;
    ended = process::has_ended(asked.pidfd.get());
    const std::uint64_t for_ms = process::now_ms() - began_ms;
    if (!ended && !said && for_ms >= kSayAfterMs) {
      said = true;
      fmt::print(stderr, "{} --propose has not answered for {} s; it is waited for, {} s at most\n",
                 binary, kSayAfterMs / 1000, kProposeMsMax / 1000);
    }
    if (!ended && for_ms >= kProposeMsMax) {
      ::kill(-asked.pid, SIGKILL);
      static_cast<void>(process::reap(asked.pidfd));
      throw Error(ErrorCode::kTimeout, fmt::format("{} --propose has not answered within {} s: the "
                                                   "data may lie on a file system that hangs",
                                                   binary, kProposeMsMax / 1000));
    }
    for (ssize_t n = 0; (n = ::read(asked.answer.get(), bytes.data(), bytes.size())) > 0;) {
      told.append(bytes.data(), static_cast<std::size_t>(n));
    }
  }
  const process::Ending ending = process::reap(asked.pidfd);
  if (!ending.exited) {
    throw Error(ErrorCode::kIo, fmt::format("{} --propose ended with {}", binary, ending.text()));
  }
  Answer answer{.status = ending.status};
  if (answer.status != kOk) return answer;
  std::size_t at = 0;
  for (std::string* line : {&answer.kind, &answer.feed, &answer.found}) {
    const std::size_t end = told.find('\n', at);
    if (end == std::string::npos) {
      throw Error(ErrorCode::kIncompatible,
                  fmt::format("{} --propose answered {} bytes that are not a proposal: use the "
                              "same version of supervisor and worker",
                              binary, told.size()));
    }
    *line = told.substr(at, end - at);
    at = end + 1;
  }
  answer.text = told.substr(at);
  return answer;
}

Answer ask(const InitOptions& options) { return ask(process::find_worker_binary(), options); }

std::string for_shell(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

Error exists(const std::string& path) {
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("{} already exists: give another file with --output, or --force to replace it",
                  path)};
}

void refuse_existing(const std::string& path, bool force) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return;
  if (S_ISDIR(info.st_mode)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is a directory: give a file in it with --output", path));
  }
  if (!force) throw exists(path);
}

// The file is there as a whole or not at all, whatever happens meanwhile. What has its name stays,
// also what came after refuse_existing(), unless `force`.
void write_new(const std::string& path, std::string_view text, bool force) {
  const std::string partial = fmt::format("{}.{}.new", path, ::getpid());
  shm::Fd file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  int error = file ? 0 : errno;
  while (error == 0 && !text.empty()) {
    const ssize_t wrote = ::write(file.get(), text.data(), text.size());
    if (wrote < 0 && errno != EINTR) error = errno;
    if (wrote > 0) text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  // Where a disk is full only this may say so.
  if (error == 0 && ::fsync(file.get()) != 0 && errno != EINVAL && errno != EROFS) error = errno;
  if (error == 0) {
    int done =
        force ? ::rename(partial.c_str(), path.c_str())
              : ::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE);
    if (done != 0 && !force && (errno == EINVAL || errno == ENOSYS)) {
      // A file system that cannot tell: a second name does not take an existing one's place either.
      done = ::link(partial.c_str(), path.c_str());
      if (done == 0) ::unlink(partial.c_str());
    }
    if (done == 0) return;
    error = errno;
  }
  if (file) ::unlink(partial.c_str());
  if (error == EEXIST) throw exists(path);
  throw Error(ErrorCode::kIo,
              fmt::format("{} cannot be written: {}: give another file with --output", path,
                          std::strerror(error)));
}

int init(const InitOptions& options) {
  if (!options.feed.empty() && !config::valid_feed_name(options.feed)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "'{}' is not a valid feed name: give 1 to 64 characters from A-Z a-z 0-9 _ . -, "
            "and none of the last two at the beginning",
            escaped(options.feed)));
  }
  const bool prints = options.output == "-";
  if (!options.output.empty() && !prints) refuse_existing(options.output, options.force);
  const Answer answer = ask(options);
  if (answer.status != kOk) return answer.status;
  const std::string path = options.output.empty() ? answer.feed + ".textproto" : options.output;
  if (!prints) refuse_existing(path, options.force);
  // Whatever is wrong with the data is found here, before there is a file.
  const std::optional<Prepared> prepared =
      prepare({.file = path, .text = answer.text, .overrides = {}});
  if (!prepared) {
    fmt::print(stderr, "nothing was written: this feed would not start with this data\n");
    return kInvalidConfiguration;
  }
  if (prints) {
    fmt::print("{}", answer.text);
  } else {
    write_new(path, answer.text, options.force);
  }
  if (const Status room = layout::check_memory(prepared->layout, memory_limits(*prepared)); !room) {
    fmt::print(stderr, "warning: {}\n", escaped_lines(room.error().message()));
  }
  if (options.json) {
    fmt::print(
        "{}\n",
        json_text(
            {{"kind", answer.kind}, {"found", answer.found}, {"feed", answer.feed}, {"file", path}},
            -1));
    return kOk;
  }
  const std::string file = prints ? answer.feed + ".textproto" : path;
  fmt::print(
      prints ? stderr : stdout,
      "{}: {}\n{}Next, each in its own terminal:\n"
      "  ringfeed run {}\n"
      "  python3 -c 'import ringfeed; [print(batch) for batch in ringfeed.attach(\"{}\")]'\n",
      answer.kind, answer.found, prints ? "" : fmt::format("Wrote {}.\n", escaped(path)),
      escaped(for_shell(file)), answer.feed);
  return kOk;
}

}  // namespace

void add_init(CLI::App& verb, int& result) {
  struct Given {
    InitOptions options;
    std::string first = {};
    std::string second = {};
  };
  const auto given = std::make_shared<Given>();
  verb.add_option("KIND", given->first, "kind of data; default: the one that is in the directory")
      ->type_name("lc0|chess|fairseq|samples|DIR");
  verb.add_option("DIRECTORY", given->second, "where the data is; default: the current directory")
      ->type_name("DIR");
  verb.add_flag("--json", given->options.json, "print one JSON object: what was found and written");
  verb.add_option("--feed", given->options.feed, "name of the feed; default: that of the pipeline")
      ->type_name("NAME");
  verb.add_option(
          "-o,--output", given->options.output,
          "file to write, - for standard output; default: FEED.textproto in the current directory")
      ->type_name("FILE");
  verb.add_flag("--force", given->options.force, "replace an existing file");
  verb.footer(
      "In a large directory it looks at only a part of the files.\n"
      "Examples: ringfeed init /data/lc0\n"
      "          ringfeed init chess /data/games --feed games --output games.textproto");
  verb.callback([=, &result] {
    if (given->options.json && given->options.output == "-") {
      throw CLI::ExcludesError("--json", "--output -, which prints the configuration");
    }
    for (const std::string& word : {given->first, given->second}) {
      if (!word.empty()) given->options.words.push_back(word);
    }
    result = init(given->options);
  });
}

}  // namespace ringfeed::cli
