#include "supervisor/web/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <list>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "supervisor/graph/writers.h"
#include "supervisor/metrics/json.h"
#include "supervisor/metrics/json_writer.h"
#include "supervisor/metrics/openmetrics.h"
#include "supervisor/metrics/show.h"
#include "supervisor/web/ballast.h"
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

Answer error_answer(unsigned status, std::string_view why) {
  return json_answer(metrics::json_text({{"error", why}}), status);
}

const Look* find(const std::vector<Look>& looks, std::string_view name) {
  const auto found =
      std::find_if(looks.begin(), looks.end(), [&](const Look& one) { return one.feed == name; });
  return found == looks.end() ? nullptr : &*found;
}

bool answers(const Look& look) { return look.status && look.metrics; }

// One feed, for the page: its status, and what it has done lately.
void write_view(metrics::JsonWriter& out, const Look& look) {
  out.begin_object();
  out.name("feed");
  out.value(look.feed);
  if (answers(look)) {
    MetricsReply recent;
    recent.set_deaths(look.metrics->deaths());
    *recent.mutable_bottlenecks() = look.metrics->bottlenecks();
    for (const WindowMetricsProto& window : look.metrics->windows()) {
      if (window.seconds_wanted() == kWindowS) *recent.add_windows() = window;
    }
    out.name("status");
    out.json(metrics::status_line(*look.status, look.before.get()));
    out.name("metrics");
    out.json(metrics::message_json(recent));
  } else {
    out.name("error");
    out.value(look.error);
  }
  out.end_object();
}

std::string event_of(const std::vector<Look>& looks, std::string_view only) {
  metrics::JsonWriter all;
  all.begin_array();
  for (const Look& look : looks) {
    if (only.empty() || look.feed == only) write_view(all, look);
  }
  all.end_array();
  return fmt::format("event: feeds\ndata: {}\n\n", all.take());
}

Answer feeds_answer(const std::vector<Look>& looks) {
  Json feeds = Json::array();
  for (const Look& look : looks) {
    Json one{{"feed", look.feed}, {"up", answers(look)}};
    if (answers(look)) {
      one["state"] = StatusReply::State_Name(look.status->state());
      one["supervisor_pid"] = look.status->supervisor_pid();
    } else {
      if (!look.ended.empty()) one["state"] = look.ended;
      one["error"] = look.error;
    }
    feeds.push_back(std::move(one));
  }
  return json_answer(metrics::json_text({{"feeds", feeds}}));
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
    // Trainers that are started when the feed is ready are no reason why it is not.
    if (group.lag() == 0 || group.members() > 0 || !group.had_member()) continue;
    for (const FeedStatus& output : status.outputs()) {
      if (output.alias() == group.output() && output.slots_used() == output.slots()) {
        return fmt::format("group '{}' holds it up: it has lost its trainers", group.name());
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
    feeds.push_back({look.feed, known ? look.status.get() : nullptr,
                     known ? look.metrics.get() : nullptr, look.ended, look.error});
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
  // Calls with what all feeds say of themselves, or refuses.
  template <typename Then>
  void look(const Respond& reply, Then then);
  void answer_feed(std::string_view rest, const Respond& reply);
  void begin_stream(const std::string& feed, const Respond& reply);
  void tell() noexcept;
  void tell_all(const std::vector<Look>& all);
  void tell_later() noexcept;

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

template <typename Then>
void Answers::State::look(const Respond& reply, Then then) {
  looks.ask([reply, then = std::move(then)](const LooksAtAll& all) {
    if (all && take_ballast()) return then(*all);
    // Without a tree.
    reply({.status = 503,
           .type = std::string(kJson),
           .body = "{\"error\":\"there is no memory for an answer: ask again\"}\n"});
  });
}

void Answers::State::answer_feed(std::string_view rest, const Respond& reply) {
  const std::size_t slash = rest.find('/');
  const std::string name(rest.substr(0, slash));
  const std::string what(slash == std::string_view::npos ? "status" : rest.substr(slash + 1));
  constexpr std::array<std::string_view, 5> kKnown{"status", "metrics", "why", "graph", "events"};
  if (std::find(kKnown.begin(), kKnown.end(), what) == kKnown.end()) {
    return static_cast<void>(
        reply(error_answer(404, "there is status, metrics, why, graph and events")));
  }
  look(reply, [self = shared_from_this(), name, what, reply](const std::vector<Look>& all) {
    const Look* const look = find(all, name);
    if (look == nullptr) return static_cast<void>(reply(error_answer(404, "no such feed")));
    if (what == "events") return self->begin_stream(name, reply);
    if (!answers(*look)) return static_cast<void>(reply(error_answer(503, look->error)));
    if (what == "status") {
      reply(json_answer(metrics::status_json(*look->status, look->before.get())));
    } else if (what == "metrics") {
      reply(json_answer(metrics::message_json(*look->metrics)));
    } else if (what == "graph") {
      const graph::Graph graph = graph::make_graph(*look->status, look->metrics.get());
      reply(json_answer(metrics::json_text(graph::graph_object(graph))));
    } else {
      reply(json_answer(metrics::json_text(metrics::why_object(*look->metrics))));
    }
  });
}

void Answers::State::begin_stream(const std::string& feed, const Respond& reply) {
  const std::shared_ptr<Stream> stream =
      reply({.type = "text/event-stream", .body = "retry: 2000\n\n", .streams = true});
  if (!stream) return;
  try {
    listeners.push_back({stream, feed});
  } catch (const std::bad_alloc&) {
    return stream->end();
  }
  if (!std::exchange(ticks, true)) tell();
}

// Every second, as long as somebody listens. Without memory for it a second is left out.
void Answers::State::tell() noexcept {
  try {
    looks.ask([self = shared_from_this()](const LooksAtAll& all) {
      try {
        if (all && take_ballast()) self->tell_all(*all);
      } catch (const std::exception&) {
      }
      self->tell_later();
    });
  } catch (const std::exception&) {
    tell_later();
  }
}

void Answers::State::tell_all(const std::vector<Look>& all) {
  std::string everything;
  std::erase_if(listeners, [&](const Listener& one) {
    if (one.feed.empty() && everything.empty()) everything = event_of(all, {});
    return !one.stream->send(one.feed.empty() ? everything : event_of(all, one.feed));
  });
}

void Answers::State::tell_later() noexcept {
  ticks = !listeners.empty();
  if (!ticks) return;
  try {
    timer.expires_after(kEvery);
    timer.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error) self->tell();
    });
  } catch (const std::exception&) {
    // Nobody would tell them anything any more.
    for (const Listener& one : listeners) one.stream->end();
    listeners.clear();
    ticks = false;
  }
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
    return state_->look(reply, [reply](const std::vector<Look>& all) { reply(ready_answer(all)); });
  }
  if (path == "/metrics") {
    return state_->look(reply, [reply, accept = question.accept](const std::vector<Look>& all) {
      reply(metrics_answer(all, accept));
    });
  }
  if (path == "/api/v1/events") return state_->begin_stream({}, reply);
  if (path == kFeeds) {
    return state_->look(reply, [reply](const std::vector<Look>& all) { reply(feeds_answer(all)); });
  }
  if (path.starts_with(kFeeds) && path[kFeeds.size()] == '/') {
    return state_->answer_feed(std::string_view(path).substr(kFeeds.size() + 1), reply);
  }
  reply(error_answer(404, "there is nothing here: see /"));
}

}  // namespace ringfeed::web
