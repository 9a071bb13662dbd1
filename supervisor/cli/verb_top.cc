// ringfeed top: feeds in a terminal.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"
#include "supervisor/os/locale.h"
#include "supervisor/top/top.h"

namespace ringfeed::cli {
namespace {

struct Given {
  std::string directory;
  std::string feed;
  double interval_s = 1;
  bool once = false;
  bool json = false;
};

// $COLUMNS, as a shell knows it; what no terminal is wide is none. Else the terminal's.
std::size_t columns_wanted() {
  constexpr std::size_t kUsual = 80;
  constexpr std::size_t kMost = 1'000;
  if (const char* const given = std::getenv("COLUMNS")) {
    std::size_t columns = 0;
    const char* const end = given + std::strlen(given);
    const auto [last, error] = std::from_chars(given, end, columns);
    if (error == std::errc() && last == end && columns > 0 && columns <= kMost) return columns;
  }
  winsize window{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  return known ? std::min<std::size_t>(window.ws_col, kMost) : kUsual;
}

// Says what there is instead of feeds that can be asked. kOk: there are some.
int find_feeds(const Given& given, const std::vector<std::string>& directories,
               std::vector<std::string>& feeds) {
  feeds = control::ControlClient::live_feeds(directories);
  if (given.feed.empty()) {
    const std::vector<Orphan> orphans = find_orphans(directories);
    if (!feeds.empty() || (!orphans.empty() && !given.once)) return kOk;
    for (const Orphan& orphan : orphans) fmt::print(stderr, "ringfeed: {}", orphan_text(orphan));
    return orphans.empty() ? no_feed_at_all(directories) : kOrphaned;
  }
  if (control::ControlClient::connect(directories, given.feed)) {
    feeds = {given.feed};
    return kOk;
  }
  const std::optional<Orphan> orphan = find_orphan(directories, given.feed);
  if (!orphan) return no_such_feed(directories, given.feed);
  if (!given.once) return kOk;
  fmt::print(stderr, "ringfeed: {}", orphan_text(*orphan));
  return kOrphaned;
}

int top(const Given& given) {
  top::Options options;
  options.directories = look_in(given.directory);
  options.feed = given.feed;
  options.interval_ms = static_cast<std::uint64_t>(std::llround(1000 * given.interval_s));
  std::vector<std::string> feeds;
  if (const int status = find_feeds(given, options.directories, feeds); status != kOk) {
    return status;
  }
  if (!given.once) return top::show(options);
  top::print(options, feeds,
             {.json = given.json, .columns = columns_wanted(), .colours = output_wants_colours()});
  return kOk;
}

}  // namespace

void add_top(CLI::App& verb, int& result) {
  const auto given = std::make_shared<Given>();
  verb.add_option("FEED", given->feed,
                  "name of the feed; default: the one that runs, of several a list to choose from");
  verb.add_flag(
      "--once", given->once,
      "print one frame as text, for scripts; its width is $COLUMNS, the terminal's, or 80");
  verb.add_option("--interval", given->interval_s, "seconds between two looks, 0.25 to 3600")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.25, 3600.0))
      ->capture_default_str();
  verb.add_flag("--json", given->json, "with --once: print one JSON object per feed")
      ->needs("--once");
  verb.footer(
      "Keys: arrows choose a stage, w says what limits the feed, n and p lead to other feeds,\n"
      "? shows all keys, q leaves. Nothing here changes a feed.\n"
      "Example: ringfeed top lc0");
  add_directory(verb, given->directory);
  verb.callback([given, &result] { result = top(*given); });
}

}  // namespace ringfeed::cli
