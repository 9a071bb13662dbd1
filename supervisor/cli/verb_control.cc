// ringfeed control: messages to stages.
#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"

namespace ringfeed::cli {
namespace {

// More than the supervisor gives the stages.
constexpr int kControlMs = 20 * 1000;

// Keeps the first thing that is wrong with a text.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(std::string& text) : text_(text) {}
  void AddError(int line, int column, const std::string& what) override {
    if (text_.empty()) text_ = fmt::format("{}:{}: {}", line + 1, column + 1, what);
  }

 private:
  std::string& text_;
};

// Whether a stage says in its answer that it has not done what it was asked.
bool refuses(const StageControlResponse& response) {
  std::vector<const google::protobuf::FieldDescriptor*> kinds;
  response.GetReflection()->ListFields(response, &kinds);
  return std::any_of(kinds.begin(), kinds.end(), [&](const auto* kind) {
    if (kind->is_repeated() ||
        kind->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      return false;
    }
    const google::protobuf::Message& own = response.GetReflection()->GetMessage(response, kind);
    const auto* const error = own.GetDescriptor()->FindFieldByName("error");
    return error != nullptr && !error->is_repeated() && own.GetReflection()->HasField(own, error);
  });
}

int control_stages(const std::string& directory, const std::string& feed, const std::string& stage,
                   const std::string& message, bool json) {
  Request request;
  request.set_id(1);
  StageControlCall& call = *request.mutable_stage_control();
  std::string wrong;
  FirstError errors(wrong);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  StageControlRequest stage_request;
  if (!parser.ParseFromString(message, &stage_request)) {
    fmt::print(stderr, "ringfeed: the message is not a StageControlRequest: {}\n", escaped(wrong));
    return kUsage;
  }
  call.set_request(stage_request.SerializeAsString());
  if (!stage.empty()) call.set_stage(stage);
  std::random_device device;
  call.set_key((std::uint64_t{device()} << 32 | device()) | 1);

  // A supervisor that dies meanwhile is followed by the next one, which is asked the same.
  const std::vector<std::string> directories = look_in(directory);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  Reply reply;
  for (bool asked = false;;) {
    std::optional<control::ControlClient> client =
        control::ControlClient::connect(directories, feed);
    if (!client && !asked) {
      int status = kOk;
      client = find_feed(directories, feed, status);
      if (!client) return status;
    }
    try {
      if (client) {
        asked = true;
        reply = client->call(request, kControlMs);
        break;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kClosed) throw;
    }
    if (std::chrono::steady_clock::now() > end) {
      throw Error(ErrorCode::kClosed,
                  fmt::format("feed '{}' has lost its supervisor, and no other has taken it over: "
                              "it is unknown whether the message took effect",
                              feed));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
  std::vector<std::pair<std::string, StageControlResponse>> given;
  for (const StageControlAnswer& answer : reply.stage_control().answers()) {
    if (!given.emplace_back(answer.stage(), StageControlResponse())
             .second.ParseFromString(answer.response())) {
      throw Error(ErrorCode::kIo, fmt::format("the answer of stage '{}' cannot be read: use the "
                                              "same ringfeed version as the feed",
                                              answer.stage()));
    }
  }
  const bool refused = std::any_of(given.begin(), given.end(),
                                   [](const auto& answer) { return refuses(answer.second); });
  const int result = refused ? kFailure : kOk;
  if (json) {
    ringfeed::metrics::Json answers = ringfeed::metrics::Json::object();
    for (const auto& [name, response] : given) {
      answers[name] = ringfeed::metrics::to_json(response);
    }
    fmt::print("{}\n", json_text(answers));
    return result;
  }
  for (const auto& [name, response] : given) {
    fmt::print("{}: {}\n", escaped(name), response.ShortDebugString());
  }
  if (given.empty()) fmt::print("no stage answered\n");
  return result;
}

}  // namespace

void add_control(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    std::string stage;
    std::string message;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  verb.add_option("MESSAGE", given->message,
                  "a StageControlRequest of proto/control.proto, in text format")
      ->required();
  verb.add_option("--stage", given->stage,
                  "send to this stage only; default: all that understand the message")
      ->type_name("STAGE");
  add_json(verb, given->json);
  verb.footer(
      "The message takes effect between two steps of the stage, exactly once. If a stage cannot do "
      "what is asked, its answer says why (error), and the exit status is 1.\n"
      "Examples: ringfeed control lc0 'chunk_pool_request {}'\n"
      "          ringfeed control lc0 'chunk_pool_request { reset_chunk_anchor: true }'\n"
      "          ringfeed control lc0 'chunk_pool_request { set_chunk_anchor: \"games-0017.tar\" "
      "}'");
  add_directory(verb, given->directory);
  verb.callback([=, &result] {
    result =
        control_stages(given->directory, given->feed, given->stage, given->message, given->json);
  });
}

}  // namespace ringfeed::cli
