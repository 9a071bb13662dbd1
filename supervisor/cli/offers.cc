#include "supervisor/cli/offers.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/config/fields.h"
#include "supervisor/config/read.h"
#include "supervisor/config/reference.h"
#include "supervisor/control/client.h"
#include "supervisor/control/place.h"

namespace ringfeed::cli {
namespace {

// Together less than complete() waits.
constexpr int kConnectMs = 100;
constexpr int kAnswerMs = 600;

bool listens(const std::string& directory, const std::string& feed) {
  try {
    return control::ControlClient::connect({directory}, feed, 1).has_value();
  } catch (const Error& error) {
    return error.code() == ErrorCode::kTimeout;  // it is there, and busy
  }
}

std::vector<Offered> feeds(const std::string& given) {
  std::vector<Offered> out;
  for (const std::string& directory : look_in(given)) {
    for (const std::string& feed : control::feeds_in(directory)) {
      if (std::ranges::find(out, feed, &Offered::word) != out.end()) continue;
      if (listens(directory, feed)) {
        out.push_back({feed, "feed"});
      } else if (find_orphan({directory}, feed)) {
        out.push_back({feed, "feed without a supervisor"});
      }
    }
  }
  return out;
}

std::optional<StatusReply> status_of(const Line& line) {
  if (line.feed.empty()) return std::nullopt;
  std::optional<control::ControlClient> client =
      control::ControlClient::connect(look_in(line.directory), line.feed, kConnectMs);
  if (!client) return std::nullopt;
  Request request;
  request.set_id(1);
  request.mutable_status();
  Reply reply = client->call(request, kAnswerMs);
  if (!reply.has_status()) return std::nullopt;
  return std::move(*reply.mutable_status());
}

std::vector<Offered> stages_in(const std::string& file) {
  std::vector<Offered> out;
  if (!std::filesystem::is_regular_file(file)) return out;
  const config::Configuration read = config::read_config(file, {});
  for (const StageConfig& stage : read.message().stages()) {
    const auto kinds = config::kinds_set(stage);
    out.push_back({stage.name(), kinds.empty() ? "" : kinds.front()->name()});
  }
  return out;
}

std::vector<Offered> stages(const Line& line) {
  std::vector<Offered> out;
  if (!line.config.empty()) out = stages_in(line.config);
  if (!out.empty()) return out;
  if (const auto status = status_of(line)) out = names_in(*status, Offer::kStages);
  return out;
}

std::vector<Offered> names_now(const Line& line, Offer what) {
  const std::optional<StatusReply> status = status_of(line);
  return status ? names_in(*status, what) : std::vector<Offered>();
}

std::vector<Offered> stage_kinds() {
  std::vector<Offered> out;
  for (const config::KindSchema& kind : config::kind_schemas()) {
    out.push_back({kind.kind, kind.summary});
  }
  return out;
}

std::vector<Offered> verbs(const CLI::App& program) {
  std::vector<Offered> out;
  for (const CLI::App* verb : verbs_of(program)) {
    out.push_back({verb->get_name(), verb->get_description()});
  }
  return out;
}

}  // namespace

std::vector<Offered> names_in(const StatusReply& status, Offer what) {
  std::vector<Offered> out;
  const auto add = [&out](const std::string& name, const std::string& text) {
    const auto there = std::ranges::find(out, name, &Offered::word);
    if (there == out.end()) {
      out.push_back({name, text});
    } else {
      there->text += ", " + text;
    }
  };
  if (what == Offer::kConsumerGroups) {
    for (const ConsumerGroupStatus& group : status.groups()) {
      add(group.name(), group.output().empty() ? "consumer group" : "of " + group.output());
    }
    return out;
  }
  for (const StageStatus& stage : status.stages()) {
    if (what == Offer::kStages) add(stage.name(), stage.kind());
    if (what == Offer::kStageGroups) add(stage.group(), stage.name());
  }
  return out;
}

const WordKind* find_kind(std::string_view name) {
  const auto* const found = std::ranges::find(kWordKinds, name, &WordKind::name);
  return found == std::end(kWordKinds) ? nullptr : found;
}

std::vector<Offered> offers_of(std::string_view kind, const Line& line, const CLI::App& program) {
  const WordKind* const known = find_kind(kind);
  if (known == nullptr) return {{std::string(kind), ""}};
  switch (known->offer) {
    case Offer::kFeeds:
      return feeds(line.directory);
    case Offer::kStages:
      return stages(line);
    case Offer::kStageGroups:
    case Offer::kConsumerGroups:
      return names_now(line, known->offer);
    case Offer::kStageKinds:
      return stage_kinds();
    case Offer::kVerbs:
      return verbs(program);
    case Offer::kNothing:
    case Offer::kFiles:
    case Offer::kConfigs:
    case Offer::kDirectories:
      return {};
  }
  return {};
}

}  // namespace ringfeed::cli
