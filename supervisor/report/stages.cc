// What a report says of the stages, and of what happened when.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "proto/control.pb.h"
#include "supervisor/report/html.h"
#include "supervisor/report/page.h"

namespace ringfeed::report {
namespace {

struct Times {
  std::uint64_t busy = 0;
  std::uint64_t starved = 0;
  std::uint64_t blocked = 0;
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  [[nodiscard]] double share(std::uint64_t part) const {
    const std::uint64_t all = busy + starved + blocked;
    return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
  }
};

Times times_of(const LaneStatus& lane) {
  return {lane.busy_ns(), lane.starved_ns(), lane.blocked_ns(), lane.records_in(),
          lane.records_out()};
}

std::string shares_cell(std::string_view name, const Times& times) {
  const std::array<Share, 3> shares{{{"busy", times.share(times.busy)},
                                     {"starved", times.share(times.starved)},
                                     {"blocked", times.share(times.blocked)}}};
  const std::string words =
      fmt::format("busy {}, no input {}, no room {}", shown_share(shares[0].share),
                  shown_share(shares[1].share), shown_share(shares[2].share));
  return bar(fmt::format("{}: {}", name, words), shares) +
         fmt::format("<span class=\"soft\">{}</span>", html(words));
}

// Lanes of a node have the same name but for the number: "pool.read.0" is of "pool.read".
std::string node_of(const std::string& lane) { return lane.substr(0, lane.rfind('.')); }

std::string stages_table(const Facts& facts) {
  const std::array<Column, 7> columns{{{"Stage"},
                                       {"Kind"},
                                       {"Lanes", true},
                                       {"Time of its lanes"},
                                       {"Records in", true},
                                       {"Records out", true},
                                       {"Restarts", true}}};
  std::vector<Row> rows;
  for (const StageStatus& stage : facts.status.stages()) {
    std::vector<std::pair<std::string, Times>> nodes;
    std::map<std::string, std::uint32_t> lanes;
    std::uint32_t restarts = 0;
    for (const LaneStatus& lane : stage.lanes()) {
      const std::string name = node_of(lane.name());
      if (nodes.empty() || nodes.back().first != name) nodes.emplace_back(name, Times());
      const Times times = times_of(lane);
      Times& sum = nodes.back().second;
      sum.busy += times.busy;
      sum.starved += times.starved;
      sum.blocked += times.blocked;
      sum.in += times.in;
      sum.out += times.out;
      ++lanes[name];
      restarts = std::max(restarts, lane.restarts());
    }
    for (const auto& [name, times] : nodes) {
      rows.push_back({{html(name), name == stage.name() ? html(stage.kind()) : "",
                       shown_count(lanes[name]), shares_cell(name, times), shown_count(times.in),
                       shown_count(times.out), shown_count(restarts)},
                      fmt::format("data-stage=\"{}\" data-restarts=\"{}\" data-in=\"{}\" "
                                  "data-out=\"{}\"",
                                  html(name), restarts, times.in, times.out)});
    }
  }
  return table("Stages, over the life of the feed", columns, rows);
}

struct Phrase {
  std::string_view event;
  std::string_view words;
  bool bad = false;
};
constexpr std::array<Phrase, 36> kPhrases{{
    {"feed_running", "all processes were ready"},
    {"first_batch", "the first batch was there"},
    {"worker_died", "a process of a stage died", true},
    {"idle_worker_died", "a process that had finished its stages died", true},
    {"worker_restarted", "its successor was started"},
    {"worker_stalled", "a process hung, and was killed", true},
    {"worker_killed", "a process did not end when it was told to, and was killed", true},
    {"worker_starved", "a process could not be started: the system had no room", true},
    {"worker_starved_no_more", "processes could be started again"},
    {"worker_adopted", "a living process was taken over"},
    {"worker_refused", "a new program was refused", true},
    {"worker_unread", "a stage was ended: nobody read from it any more"},
    {"record_quarantined", "a record that killed its stage was set aside", true},
    {"parent_died", "a warm parent died", true},
    {"parent_ready", "a warm parent was ready"},
    {"trainer_joined", "a trainer joined"},
    {"trainer_adopted", "a trainer was taken over"},
    {"trainer_rejoined", "a trainer found the new supervisor"},
    {"trainer_left", "a trainer left"},
    {"trainer_died", "a trainer died", true},
    {"trainer_not_told", "a trainer was gone before it had an answer", true},
    {"group_joined", "a consumer group joined"},
    {"group_leaving", "a consumer group is leaving", true},
    {"group_left", "a consumer group left"},
    {"group_holds_up", "others waited for this group", true},
    {"group_goes_on", "nobody waited for the group any more"},
    {"stage_scaled", "a stage got another number of lanes"},
    {"stage_not_scaled", "a stage kept its number of lanes", true},
    {"snapshot_taken", "a snapshot was taken"},
    {"snapshot_failed", "a snapshot failed", true},
    {"feed_draining", "the feed was drained"},
    {"feed_stopping", "the feed was stopped"},
    {"drain_waits", "the drain waited"},
    {"lanes_finished", "all stages had ended"},
    {"problem", "something around the feed failed", true},
    {"problem_over", "it was well again"},
}};

std::string happening_row(const Happening& one) {
  const auto phrase = std::ranges::find(kPhrases, one.name, &Phrase::event);
  std::string words = phrase == kPhrases.end() ? one.name : std::string(phrase->words);
  if (phrase == kPhrases.end()) std::ranges::replace(words, '_', ' ');
  const bool bad = one.level == metrics::Level::kError ||
                   (phrase == kPhrases.end() ? one.level == metrics::Level::kWarn : phrase->bad);
  std::string out = fmt::format(
      "<li data-event=\"{0}\"><span class=\"at\">{1}</span><div><p{2}>{3}</p><p class=\"values\">"
      "{4}</p>",
      html(one.name), shown_seconds(one.at_s), bad ? " class=\"bad\"" : "", html(words),
      html(one.values));
  if (!one.words.empty()) {
    out += fmt::format("<p class=\"values\">its last words: <q>{}</q></p>", html(one.words));
  }
  return out + "</div></li>\n";
}

}  // namespace

std::string stages_part(const Facts& facts) {
  return "<section><h2>Stages</h2>\n<p class=\"note\"><span class=\"key busy\"></span>busy "
         "<span class=\"key starved\"></span>no input <span class=\"key blocked\"></span>no room"
         "</p>\n" +
         stages_table(facts) + "</section>\n";
}

std::string timeline_part(const Facts& facts) {
  const Account& account = facts.account;
  std::string out = "<section><h2>What happened</h2>\n";
  if (account.first().empty()) return out + "<p>Nothing out of the ordinary.</p></section>\n";
  out += "<ol class=\"timeline\">\n";
  for (const Happening& one : account.first()) out += happening_row(one);
  if (account.left_out() != 0) {
    out += fmt::format(
        "<li><span class=\"at\">…</span><div><p>{} left out here; the log has "
        "them</p></div></li>\n",
        shown_number(account.left_out(), "event", "events"));
  }
  for (const Happening& one : account.last()) out += happening_row(one);
  return out + "</ol></section>\n";
}

}  // namespace ringfeed::report
