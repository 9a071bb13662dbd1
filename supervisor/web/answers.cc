#include "supervisor/web/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "supervisor/metrics/json.h"
#include "supervisor/metrics/openmetrics.h"
#include "supervisor/metrics/show.h"
#include "supervisor/web/page.h"

namespace ringfeed::web {
namespace {

namespace asio = boost::asio;
using metrics::Json;

constexpr std::chrono::milliseconds kEvery{1'000};
constexpr double kWindowS = 10;  // of what a view has
constexpr std::string_view kJson = "application/json";

// The name in front of the port, of "[::1]:9464" too.
std::string_view name_of(std::string_view host) {
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    return end == std::string_view::npos ? std::string_view{} : host.substr(1, end - 1);
  }
  return host.substr(0, host.find(':'));
}

bool is_address(std::string_view name) {
  boost::system::error_code error;
  asio::ip::make_address(std::string(name), error);
  return !error;
}

// Takes as long for a wrong token as for the right one.
bool is_same(std::string_view given, std::string_view wanted) {
  unsigned char differs = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    differs |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return differs == 0;
}

Answer json_answer(std::string body, unsigned status = 200) {
  if (body.empty() || body.back() != '\n') body += '\n';
  return {.status = status, .type = std::string(kJson), .body = std::move(body)};
}

// Names of files need not be UTF-8.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Answer error_answer(unsigned status, std::string_view why) {
  return json_answer(text_of({{"error", why}}), status);
}

const Look* find(const std::vector<Look>& looks, std::string_view name) {
  const auto found =
      std::find_if(looks.begin(), looks.end(), [&](const Look& one) { return one.feed == name; });
  return found == looks.end() ? nullptr : &*found;
}

bool answers(const Look& look) { return look.status && look.metrics; }

std::string why_json(const Look& look) {
  MetricsReply only;
  only.set_feed(look.metrics->feed());
  *only.mutable_bottlenecks() = look.metrics->bottlenecks();
  return metrics::protobuf_json(only);
}

// One feed, for the page: its status, and what it has done lately.
Json view_of(const Look& look) {
  Json view{{"feed", look.feed}};
  if (!answers(look)) {
    view["error"] = look.error;
    return view;
  }
  view["status"] = metrics::status_object(*look.status, look.before.get());
  MetricsReply recent;
  recent.set_deaths(look.metrics->deaths());
  *recent.mutable_bottlenecks() = look.metrics->bottlenecks();
  for (const WindowMetricsProto& window : look.metrics->windows()) {
    if (window.seconds_wanted() == kWindowS) *recent.add_windows() = window;
  }
  view["metrics"] = metrics::metrics_object(recent, metrics::JsonForm::kPlain);
  return view;
}

std::string event_of(const std::vector<Look>& looks, std::string_view only) {
  Json all = Json::array();
  for (const Look& look : looks) {
    if (only.empty() || look.feed == only) all.push_back(view_of(look));
  }
  return fmt::format("event: feeds\ndata: {}\n\n", text_of(all));
}

Answer feeds_answer(const std::vector<Look>& looks) {
  Json feeds = Json::array();
  for (const Look& look : looks) {
    Json one{{"feed", look.feed}, {"up", answers(look)}};
    if (answers(look)) {
      one["state"] = StatusReply::State_Name(look.status->state());
      one["supervisor_pid"] = look.status->supervisor_pid();
    } else {
      if (look.orphaned) one["state"] = "ORPHANED";
      one["error"] = look.error;
    }
    feeds.push_back(std::move(one));
  }
  return json_answer(text_of({{"feeds", feeds}}));
}

// Why a feed is not ready; empty: it is.
std::string not_ready(const Look& look) {
  if (!answers(look)) return look.error;
  const StatusReply& status = *look.status;
  if (status.state() == StatusReply::FAILED) return "it has failed: " + status.reason();
  for (const FeedStatus& output : status.outputs()) {
    if (output.batches_published() == 0) return "it has published no batch yet";
  }
  if (status.state() != StatusReply::RUNNING) return {};
  for (const ConsumerGroupStatus& group : status.groups()) {
    if (group.lag() == 0 || group.members() > 0) continue;
    for (const FeedStatus& output : status.outputs()) {
      if (output.alias() == group.output() && output.slots_used() == output.slots()) {
        return fmt::format("group '{}' holds it up: it has no trainer", group.name());
      }
    }
  }
  return {};
}

Answer ready_answer(const std::vector<Look>& looks) {
  std::string text;
  for (const Look& look : looks) {
    if (const std::string why = not_ready(look); !why.empty()) {
      text += fmt::format("feed {}: {}\n", look.feed, why);
    }
  }
  if (looks.empty()) text = "no feed runs\n";
  const bool ready = text.empty();
  return {.status = ready ? 200u : 503u, .body = ready ? "ready\n" : text};
}

Answer metrics_answer(const std::vector<Look>& looks, std::string_view accept) {
  const bool open = accept.find("application/openmetrics-text") != std::string_view::npos;
  const auto form = open ? metrics::TextForm::kOpenMetrics : metrics::TextForm::kPrometheus;
  std::vector<metrics::FeedNumbers> feeds;
  for (const Look& look : looks) {
    const bool known = answers(look);
    feeds.push_back(
        {look.feed, known ? look.status.get() : nullptr, known ? look.metrics.get() : nullptr});
  }
  return {.type = std::string(metrics::content_type(form)),
          .body = metrics::metrics_text(feeds, form)};
}

Answer page_answer(const PageFile& file, std::string_view known) {
  Answer answer;
  answer.type = file.type;
  answer.fields = {{"ETag", std::string(file.tag)},
                   {"Cache-Control", "no-cache"},
                   {"Content-Security-Policy",
                    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                    "img-src 'self' data:; base-uri 'none'; form-action 'none'; "
                    "frame-ancestors 'none'"}};
  if (known == file.tag) {
    answer.status = 304;
  } else {
    answer.body = file.text;
  }
  return answer;
}

constexpr std::string_view kFeeds = "/api/v1/feeds";

}  // namespace

struct Answers::State : std::enable_shared_from_this<Answers::State> {
  State(asio::io_context& loop, Looks& all_looks, Access who)
      : timer(loop), looks(all_looks), access(std::move(who)) {}

  struct Listener {
    std::shared_ptr<Stream> stream;
    std::string feed;  // "": all
  };

  [[nodiscard]] std::optional<Answer> refused(const Question& question, bool is_open) const;
  [[nodiscard]] bool may_be_called(std::string_view name) const;
  void answer_feed(std::string_view rest, const Respond& reply);
  void begin_stream(const std::string& feed, const Respond& reply);
  void tell();

  asio::steady_timer timer;
  Looks& looks;
  Access access;
  std::list<Listener> listeners;
  bool ticks = false;
};

bool Answers::State::may_be_called(std::string_view name) const {
  return name == "localhost" || is_address(name) ||
         std::find(access.hosts.begin(), access.hosts.end(), name) != access.hosts.end();
}

// `is_open`: nothing of a feed is in the answer.
std::optional<Answer> Answers::State::refused(const Question& question, bool is_open) const {
  if (!may_be_called(name_of(question.host))) {
    return error_answer(421, "this server is not called so: see --allow-host");
  }
  constexpr std::string_view kScheme = "http://";
  if (!question.origin.empty() && question.origin != std::string(kScheme) + question.host) {
    return error_answer(403, "pages of other sites may not ask");
  }
  if (is_open || access.token.empty()) return std::nullopt;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view given = question.authorization;
  if (given.starts_with(kBearer) && is_same(given.substr(kBearer.size()), access.token)) {
    return std::nullopt;
  }
  Answer answer = error_answer(401, "a token is needed: Authorization: Bearer TOKEN");
  answer.fields.emplace_back("WWW-Authenticate", "Bearer realm=\"ringfeed\"");
  return answer;
}

void Answers::State::answer_feed(std::string_view rest, const Respond& reply) {
  const std::size_t slash = rest.find('/');
  const std::string name(rest.substr(0, slash));
  const std::string what(slash == std::string_view::npos ? "status" : rest.substr(slash + 1));
  constexpr std::array<std::string_view, 4> kKnown{"status", "metrics", "why", "events"};
  if (std::find(kKnown.begin(), kKnown.end(), what) == kKnown.end()) {
    return static_cast<void>(reply(error_answer(404, "there is status, metrics, why and events")));
  }
  looks.ask([self = shared_from_this(), name, what, reply](const LooksAtAll& all) {
    const Look* const look = find(*all, name);
    if (look == nullptr) return static_cast<void>(reply(error_answer(404, "no such feed")));
    if (what == "events") return self->begin_stream(name, reply);
    if (!answers(*look)) return static_cast<void>(reply(error_answer(503, look->error)));
    if (what == "status") {
      reply(json_answer(metrics::status_json(*look->status, look->before.get())));
    } else if (what == "metrics") {
      reply(json_answer(metrics::metrics_json(*look->metrics, metrics::JsonForm::kPlain)));
    } else {
      reply(json_answer(why_json(*look)));
    }
  });
}

void Answers::State::begin_stream(const std::string& feed, const Respond& reply) {
  const std::shared_ptr<Stream> stream =
      reply({.type = "text/event-stream", .body = "retry: 2000\n\n", .streams = true});
  if (!stream) return;
  listeners.push_back({stream, feed});
  if (!std::exchange(ticks, true)) tell();
}

// Every second, as long as somebody listens.
void Answers::State::tell() {
  looks.ask([self = shared_from_this()](const LooksAtAll& all) {
    std::string everything;
    std::erase_if(self->listeners, [&](const Listener& one) {
      if (one.feed.empty() && everything.empty()) everything = event_of(*all, {});
      return !one.stream->send(one.feed.empty() ? everything : event_of(*all, one.feed));
    });
    self->ticks = !self->listeners.empty();
    if (!self->ticks) return;
    self->timer.expires_after(kEvery);
    self->timer.async_wait([self](boost::system::error_code error) {
      if (!error) self->tell();
    });
  });
}

Answers::Answers(asio::io_context& loop, Looks& looks, Access access)
    : state_(std::make_shared<State>(loop, looks, std::move(access))) {}

Answers::~Answers() { state_->timer.cancel(); }

void Answers::answer(const Question& question, const Respond& reply) {
  const std::string_view target = question.target;
  const std::string path(target.substr(0, target.find('?')));
  const PageFile* const file = find_page_file(path);
  const bool is_open = file != nullptr || path == "/healthz";
  if (std::optional<Answer> no = state_->refused(question, is_open)) {
    return static_cast<void>(reply(std::move(*no)));
  }
  if (file != nullptr) {
    return static_cast<void>(reply(page_answer(*file, question.if_none_match)));
  }
  if (path == "/healthz") return static_cast<void>(reply({.body = "ok\n"}));
  if (path == "/readyz") {
    return state_->looks.ask([reply](const LooksAtAll& all) { reply(ready_answer(*all)); });
  }
  if (path == "/metrics") {
    return state_->looks.ask([reply, accept = question.accept](const LooksAtAll& all) {
      reply(metrics_answer(*all, accept));
    });
  }
  if (path == "/api/v1/events") return state_->begin_stream({}, reply);
  if (path == kFeeds) {
    return state_->looks.ask([reply](const LooksAtAll& all) { reply(feeds_answer(*all)); });
  }
  if (path.starts_with(kFeeds) && path[kFeeds.size()] == '/') {
    return state_->answer_feed(std::string_view(path).substr(kFeeds.size() + 1), reply);
  }
  reply(error_answer(404, "there is nothing here: see /"));
}

}  // namespace ringfeed::web
