// The C++ client of a ringfeed feed: owners over ringfeed.h, and a loader that starts its own feed.
//
//   ringfeed::Feed feed({.feed = "lc0", .group = "run-a"});
//   while (std::optional<ringfeed::Batch> batch = feed.next()) {
//     train(batch->tensor<float>("planes"), batch->rows());
//   }                                                   // the batch goes back with its owner
//
// Header-only; link libringfeed.so. C++20. Errors are thrown as ringfeed::ClientError with the
// status and the sentence of the C library. Threads: as in ringfeed.h; a Batch may be destroyed by
// any thread, and may outlive its Feed.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ringfeed.h"

namespace ringfeed {

class ClientError : public std::runtime_error {
 public:
  ClientError(rf_status status, const std::string& text)
      : std::runtime_error(text), status_(status) {}
  // Which kind: RF_TIMEOUT, RF_SLOTS_EXHAUSTED, RF_FEED_FAILED, ...
  [[nodiscard]] rf_status status() const noexcept { return status_; }

 private:
  rf_status status_;
};

// What to attach to; see rf_attach_options.
struct AttachOptions {
  std::string feed = {};
  std::string group = "default";
  std::string socket_dir = {};                  // empty: by environment
  std::string socket_path = {};                 // wins over socket_dir
  std::optional<uint32_t> rank = std::nullopt;  // with world: a ranked group
  uint32_t world = 0;
  uint32_t start = RF_START_OLDEST;
  uint32_t policy = RF_POLICY_DEFAULT;
  uint32_t max_hold = 0;  // 0: default
  uint32_t view = RF_VIEW_READONLY;
  std::optional<std::string> output = {};  // alias of an output; none: the feed's first one
  int32_t timeout_ms = 10'000;             // for the feed to appear and to answer; < 0: no limit
  int32_t answer_ms = 0;                   // for its answer; 0: what is left of timeout_ms
  bool observe = false;                    // only looks; then nothing about a group may be given
  // Called in next() when this trainer waits for another one, or has held others up, and when the
  // feed leaves out much of its data; see rf_notice. Throws nothing.
  std::function<void(const rf_notice&)> on_notice = {};
};

// The answer of one stage.
struct StageAnswer {
  std::string stage;
  std::string response;  // a serialized StageControlResponse
};

// A message of the program's own protobuf classes; this header needs none.
template <typename T>
concept ProtobufMessage = requires(const T& message) {
  { message.SerializeAsString() } -> std::convertible_to<std::string>;
};

class Feed;

// A batch that this process holds; its destructor gives it back. Move-only; empty after a move.
class Batch {
 public:
  Batch(Batch&& other) noexcept
      : feed_(std::exchange(other.feed_, nullptr)),
        schema_(other.schema_),
        raw_(other.raw_),
        private_view_(other.private_view_) {}
  Batch& operator=(Batch&& other) noexcept {
    if (this != &other) {
      release();
      feed_ = std::exchange(other.feed_, nullptr);
      schema_ = other.schema_;
      raw_ = other.raw_;
      private_view_ = other.private_view_;
    }
    return *this;
  }
  ~Batch() { release(); }

  // Its number in the feed, from 1; its rows; the members that died while they held it.
  [[nodiscard]] uint64_t seq() const noexcept { return raw_.seq; }
  [[nodiscard]] uint32_t rows() const noexcept { return raw_.rows; }
  [[nodiscard]] uint32_t tries() const noexcept { return raw_.tries; }
  [[nodiscard]] const rf_batch& raw() const noexcept { return raw_; }
  explicit operator bool() const noexcept { return feed_ != nullptr; }

  // The array of that name: all its items in this batch, row-major, in the slot itself. Valid as
  // long as the batch. Throws ClientError (RF_INVALID): no such tensor, a different item size, or
  // the batch was given back.
  template <typename T>
  [[nodiscard]] std::span<const T> tensor(std::string_view name) const {
    const rf_tensor& found = spec(name);
    if (found.item_bytes != sizeof(T)) {
      throw ClientError(RF_INVALID, "tensor " + std::string(name) + " is " + found.dtype +
                                        ", items of " + std::to_string(found.item_bytes) +
                                        " bytes: requested items of " + std::to_string(sizeof(T)));
    }
    const auto* const at = static_cast<const unsigned char*>(raw_.data) + found.offset;
    // rf_next has checked that they fit.
    return {reinterpret_cast<const T*>(at),
            static_cast<std::size_t>(rf_tensor_items(&found, &raw_))};
  }

  // The lengths of that array's dimensions in this batch. Throws ClientError (RF_INVALID) as
  // tensor().
  [[nodiscard]] std::vector<std::size_t> shape(std::string_view name) const {
    const rf_tensor& found = spec(name);
    std::vector<std::size_t> lengths(found.dims);
    for (uint32_t d = 0; d < found.dims; ++d) {
      lengths[d] = static_cast<std::size_t>(rf_tensor_length(&found, &raw_, d));
    }
    return lengths;
  }

  // The rows of a field of text or bytes: a tensor of uint8 beside NAME_offsets, int64 [rows + 1].
  // They lie in the slot itself, and are valid as long as the batch. Throws ClientError as
  // tensor(), and RF_DAMAGED: the offsets lead out of it.
  [[nodiscard]] std::vector<std::string_view> strings(std::string_view name) const {
    const std::span<const unsigned char> whole = tensor<unsigned char>(name);
    const std::span<const int64_t> ends = tensor<int64_t>(std::string(name) + "_offsets");
    const auto* const begin = reinterpret_cast<const char*>(whole.data());
    std::vector<std::string_view> found;
    found.reserve(rows());
    bool fits = ends.size() == std::size_t{rows()} + 1;
    for (std::size_t i = 0; fits && i < rows(); ++i) {
      fits = ends[i] >= 0 && ends[i] <= ends[i + 1] &&
             static_cast<uint64_t>(ends[i + 1]) <= whole.size();
      if (fits) {
        found.emplace_back(begin + ends[i], static_cast<std::size_t>(ends[i + 1] - ends[i]));
      }
    }
    if (fits) return found;
    throw ClientError(RF_DAMAGED, "the offsets of " + std::string(name) + " lead out of it");
  }

  // The same array for writing. Only this process sees what is written, and only until the batch is
  // given back. Throws ClientError as tensor(), and RF_INVALID without RF_VIEW_PRIVATE.
  template <typename T>
  [[nodiscard]] std::span<T> mutable_tensor(std::string_view name) const {
    if (!private_view_) {
      throw ClientError(
          RF_INVALID,
          "this feed's batches are read-only: attach with view RF_VIEW_PRIVATE to write to them");
    }
    const std::span<const T> found = tensor<T>(name);
    return {const_cast<T*>(found.data()), found.size()};
  }

  // Compares the batch with its checksum; see rf_verify. Throws ClientError: RF_DAMAGED,
  // RF_INVALID.
  void verify() const {
    const rf_status status = feed_ == nullptr ? RF_INVALID : rf_verify(feed_, &raw_);
    if (status == RF_OK) return;
    throw ClientError(status, feed_ == nullptr ? "this batch was released" : rf_last_error(feed_));
  }

  // Gives the batch back now. Harmless if it was given back already.
  void release() noexcept {
    if (feed_ != nullptr) rf_release(std::exchange(feed_, nullptr), raw_.seq);
  }

 private:
  friend class Feed;
  [[nodiscard]] const rf_tensor& spec(std::string_view name) const {
    if (feed_ == nullptr) throw ClientError(RF_INVALID, "this batch was released");
    for (uint32_t i = 0; i < schema_->tensor_count; ++i) {
      if (name == schema_->tensors[i].name) return schema_->tensors[i];
    }
    throw ClientError(RF_INVALID, "the feed has no tensor " + std::string(name));
  }
  Batch(rf_feed* feed, const rf_schema_info* schema, const rf_batch& raw,
        bool private_view) noexcept
      : feed_(feed), schema_(schema), raw_(raw), private_view_(private_view) {}
  rf_feed* feed_;
  const rf_schema_info* schema_;
  rf_batch raw_;
  bool private_view_;
};

// A member of a consumer group; its destructor leaves the group. Move-only.
class Feed {
 public:
  // Attaches; throws ClientError.
  explicit Feed(const AttachOptions& options) {
    rf_attach_options raw{};
    raw.struct_size = sizeof raw;
    raw.timeout_ms = options.timeout_ms;
    raw.feed = options.feed.c_str();
    raw.group = options.group.c_str();
    raw.socket_dir = options.socket_dir.empty() ? nullptr : options.socket_dir.c_str();
    raw.socket_path = options.socket_path.empty() ? nullptr : options.socket_path.c_str();
    raw.kind = options.rank ? RF_RANKED : RF_KIND_DEFAULT;
    raw.rank = options.rank.value_or(0);
    raw.world = options.world;
    raw.start = options.start;
    raw.policy = options.policy;
    raw.max_hold = options.max_hold;
    raw.view = options.view;
    raw.answer_ms = options.answer_ms;
    raw.output = options.output ? options.output->c_str() : nullptr;
    if (options.observe) raw.group = nullptr;
    raw.observe = options.observe ? 1 : 0;
    if (options.on_notice) {
      on_notice_ = std::make_unique<std::function<void(const rf_notice&)>>(options.on_notice);
      raw.on_notice = [](void* user, const rf_notice* notice) {
        (*static_cast<std::function<void(const rf_notice&)>*>(user))(*notice);
      };
      raw.notice_user = on_notice_.get();
    }
    private_view_ = options.view == RF_VIEW_PRIVATE;
    if (const rf_status status = rf_attach(&raw, &feed_); status != RF_OK) {
      throw ClientError(status, rf_last_error(nullptr));
    }
  }
  Feed(Feed&& other) noexcept
      : feed_(std::exchange(other.feed_, nullptr)),
        private_view_(other.private_view_),
        on_notice_(std::move(other.on_notice_)) {}
  Feed& operator=(Feed&& other) noexcept {
    if (this != &other) {
      rf_detach(feed_);
      feed_ = std::exchange(other.feed_, nullptr);
      private_view_ = other.private_view_;
      on_notice_ = std::move(other.on_notice_);
    }
    return *this;
  }
  // If an exception ends the scope, the group waits for a successor; see rf_leave_failed.
  ~Feed() {
    if (feed_ != nullptr && std::uncaught_exceptions() > exceptions_) rf_leave_failed(feed_);
    rf_detach(feed_);
  }

  // The next batch; nullopt at the end of the feed. timeout_ms < 0: no limit. Throws ClientError:
  // RF_TIMEOUT, RF_SLOTS_EXHAUSTED, RF_FEED_FAILED, ...; signals do not end the wait.
  std::optional<Batch> next(int64_t timeout_ms = -1) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
    rf_batch raw{};
    raw.struct_size = sizeof raw;
    int64_t left_ms = timeout_ms;
    for (;;) {
      const rf_status status = rf_next(feed_, left_ms, &raw);
      if (status == RF_OK) return Batch(feed_, rf_schema(feed_), raw, private_view_);
      if (status == RF_END) return std::nullopt;
      if (status != RF_INTERRUPTED) throw ClientError(status, rf_last_error(feed_));
      if (timeout_ms < 0) continue;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      left_ms = left.count() > 0 ? left.count() : 0;
    }
  }

  [[nodiscard]] const rf_schema_info& schema() const { return *rf_schema(feed_); }
  [[nodiscard]] rf_stats_info stats() const {
    rf_stats_info stats{};
    stats.struct_size = sizeof stats;
    if (const rf_status status = rf_stats(feed_, &stats); status != RF_OK) {
      throw ClientError(status, rf_last_error(feed_));
    }
    return stats;
  }
  // Passes on a serialized StageControlRequest; see rf_control. An empty stage: to all stages that
  // understand it. Throws ClientError.
  std::vector<StageAnswer> control(std::string_view request, const std::string& stage = {},
                                   int64_t timeout_ms = -1) {
    std::vector<StageAnswer> answers;
    const auto take = [](void* user, const char* name, const void* response, uint64_t bytes) {
      static_cast<std::vector<StageAnswer>*>(user)->push_back(
          {name, std::string(static_cast<const char*>(response), bytes)});
    };
    const rf_status status = rf_control(feed_, stage.empty() ? nullptr : stage.c_str(),
                                        request.data(), request.size(), timeout_ms, take, &answers);
    if (status != RF_OK) throw ClientError(status, rf_last_error(feed_));
    return answers;
  }

  // A serialized MetricsReply, or with RF_METRICS_JSON its JSON; see rf_metrics. Throws
  // ClientError.
  [[nodiscard]] std::string metrics(uint32_t form = RF_METRICS_MESSAGE, int64_t timeout_ms = -1) {
    std::string found;
    const auto take = [](void* user, const void* data, uint64_t bytes) {
      static_cast<std::string*>(user)->assign(static_cast<const char*>(data), bytes);
    };
    const rf_status status = rf_metrics(feed_, form, timeout_ms, take, &found);
    if (status != RF_OK) throw ClientError(status, rf_last_error(feed_));
    return found;
  }

  [[nodiscard]] rf_feed* handle() const noexcept { return feed_; }

 private:
  rf_feed* feed_ = nullptr;
  bool private_view_ = false;
  std::unique_ptr<std::function<void(const rf_notice&)>> on_notice_;  // where the library finds it
  int exceptions_ = std::uncaught_exceptions();
};

// A private feed: configure, start(), get_next() until nullopt, stop(). The supervisor is a child
// process (the program `ringfeed`). It ends with this process, however this process dies.
//
//   ringfeed::DataLoader loader;
//   loader.add_stage("name: \"files\" file_path_provider { directory: \"/data\" }");
//   loader.add_stages(config);                         // a message of one's own protobuf classes
//   loader.start();
//   while (std::optional<ringfeed::Batch> batch = loader.get_next()) { ... }
//
// Each function has a second name, as in lczero-training's documents: AddStage, GetNext. Threads:
// one thread adds stages. Any thread may call get_next() and the functions after it, and stop()
// while no other call is under way.
class DataLoader {
 public:
  // `config`: a DataLoaderConfig in text format or JSON; more may be added. `program`: path or name
  // of the program `ringfeed`, which also reads configurations. Throws ClientError as add_stages().
  explicit DataLoader(std::string_view config = {}, std::string program = "ringfeed")
      : program_(std::move(program)) {
    if (config.empty()) return;
    try {
      add_stages(config);
    } catch (...) {
      stop();
      throw;
    }
  }
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;
  ~DataLoader() { stop(); }

  // Adds one stage: a StageConfig as text (text format, or JSON, which begins with a brace),
  // serialized, or as a message of the program's own classes. Its own mistakes (no configuration,
  // an unknown field, a number out of range, a name that is taken) are reported here; mistakes in
  // how stages fit together are reported by start(). Throws ClientError: RF_INVALID, also after
  // start(), and then nothing has changed; RF_FEED_FAILED: the program cannot be started.
  void add_stage(std::string_view text) { add(true, is_json(text) ? kJson : kText, text); }
  void add_stage(std::span<const std::byte> serialized) {
    add(true, kSerialized, chars(serialized));
  }
  template <ProtobufMessage M>
  void add_stage(const M& message) {
    require_type(message, "ringfeed.StageConfig");
    add(true, kSerialized, message.SerializeAsString());
  }
  // The same for a whole DataLoaderConfig: its stages and its settings.
  void add_stages(std::string_view text) { add(false, is_json(text) ? kJson : kText, text); }
  void add_stages(std::span<const std::byte> serialized) {
    add(false, kSerialized, chars(serialized));
  }
  template <ProtobufMessage M>
  void add_stages(const M& message) {
    require_type(message, "ringfeed.DataLoaderConfig");
    add(false, kSerialized, message.SerializeAsString());
  }
  // Everything that was added, in text format.
  [[nodiscard]] const std::string& config() const noexcept { return config_; }

  // Starts the feed and attaches to its first output; returns when that can be read. Throws
  // ClientError: RF_INVALID with every mistake in the configuration, RF_FEED_FAILED with what the
  // supervisor said, RF_NO_SUCH_FEED after timeout_ms.
  void start(int32_t timeout_ms = -1) {
    if (started_) throw ClientError(RF_INVALID, "the loader was already started: make another one");
    if (config_.empty()) {
      throw ClientError(RF_INVALID, "the loader has no stages: call add_stage() before start()");
    }
    started_ = true;
    write("loader.textproto", config_);
    spawn();
    try {
      std::optional<Feed> feed = attach(std::nullopt, timeout_ms);
      first_alias_ = feed->stats().output;
      feed_ = std::move(feed);
    } catch (...) {
      stop();
      throw;
    }
  }

  // The next batch of the first output; nullopt when a finite run is over. Throws ClientError as
  // Feed::next, and RF_FEED_FAILED if the supervisor is gone.
  std::optional<Batch> get_next(int64_t timeout_ms = -1) { return get_next({}, timeout_ms); }
  // The same for the output with this alias. Reading begins with the first call for it; until then
  // the output waits, and its stages with it, unless it is KEEP_NEWEST. Also throws ClientError
  // (RF_INVALID) if there is no such output; the text lists those that exist.
  std::optional<Batch> get_next(std::string_view alias, int64_t timeout_ms = -1) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
    Feed& from = feed(alias);
    bool gone = false;
    for (;;) {
      int64_t slice_ms = 200;
      if (timeout_ms >= 0) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        slice_ms = std::clamp<int64_t>(left.count(), 0, slice_ms);
      }
      try {
        return from.next(slice_ms);
      } catch (const ClientError& error) {
        if (error.status() != RF_TIMEOUT) throw;
        if (timeout_ms >= 0 && Clock::now() >= until) throw;
      }
      // One more look after its end: the feed's own end or reason may have come with it.
      if (gone) throw ClientError(RF_FEED_FAILED, "the supervisor has ended: " + said());
      gone = exit_status().has_value();
    }
  }
  // As get_next(), but returns nullopt at once if no batch is ready, or the run is over.
  std::optional<Batch> maybe_get_next(std::string_view alias = {}) {
    try {
      return get_next(alias, 0);
    } catch (const ClientError& error) {
      if (error.status() != RF_TIMEOUT) throw;
      return std::nullopt;
    }
  }

  // Passes a StageControlRequest (serialized, or a message) to one stage, or with no name to all
  // stages that understand it. Returns the answer of each. Throws ClientError as Feed::control().
  std::vector<StageAnswer> send_control_message(std::string_view serialized,
                                                const std::string& stage = {},
                                                int64_t timeout_ms = -1) {
    return feed().control(serialized, stage, timeout_ms);
  }
  template <ProtobufMessage M>
  std::vector<StageAnswer> send_control_message(const M& message, const std::string& stage = {},
                                                int64_t timeout_ms = -1) {
    return feed().control(message.SerializeAsString(), stage, timeout_ms);
  }
  // Numbers of the whole feed: a serialized MetricsReply, or its JSON. Throws ClientError as
  // Feed::metrics().
  [[nodiscard]] std::string metrics(uint32_t form = RF_METRICS_MESSAGE, int64_t timeout_ms = -1) {
    return feed().metrics(form, timeout_ms);
  }

  // The member that reads an output. Throws ClientError: RF_DETACHED: not running.
  [[nodiscard]] Feed& feed(std::string_view alias = {}) {
    if (!feed_) throw ClientError(RF_DETACHED, "the loader is not running: call start() first");
    if (alias.empty() || alias == first_alias_) return *feed_;
    // One thread attaches; the others use the result.
    const std::lock_guard lock(attaching_);
    const auto known = others_.find(alias);
    if (known != others_.end()) return known->second;
    return others_.emplace(alias, *attach(std::string(alias), -1)).first->second;
  }
  // Where `ringfeed status loader --json` finds the feed.
  [[nodiscard]] const std::filesystem::path& socket_dir() const noexcept { return dir_; }

  // As lczero-training's documents call them.
  template <typename T>
  void AddStage(const T& config) {
    add_stage(config);
  }
  template <typename T>
  void AddStages(const T& config) {
    add_stages(config);
  }
  void Start() { start(); }
  void Stop() { stop(); }
  std::optional<Batch> GetNext(std::string_view alias = {}) { return get_next(alias); }
  std::optional<Batch> MaybeGetNext(std::string_view alias = {}) { return maybe_get_next(alias); }
  template <typename T>
  std::vector<StageAnswer> SendControlMessage(const T& request) {
    return send_control_message(request);
  }

  // Ends the feed and its processes. Batches that still exist stay readable. Harmless if it is not
  // running.
  void stop() noexcept {
    started_ = true;
    others_.clear();
    feed_.reset();
    if (pid_ >= 0 && pid_ != ::getpid()) {  // all this belongs to the process that forked this one
      if (keeper_.joinable()) keeper_.detach();
      child_ = -1;
      dir_.clear();
    }
    if (child_ > 0) {
      // The first signal asks to drain, the second to stop now; a supervisor that does not react is
      // killed.
      for (int signal_number : {SIGTERM, SIGTERM, SIGKILL}) {
        if (exit_status()) break;
        ::kill(signal_number == SIGKILL ? -child_ : child_, signal_number);
        for (int i = 0; i < 500 && !exit_status(); ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      }
      if (keeper_.joinable()) keeper_.join();
      child_ = -1;
    }
    if (!dir_.empty()) {
      std::error_code ignored;
      std::filesystem::remove_all(dir_, ignored);
      dir_.clear();
    }
  }

 private:
  enum Form { kText, kJson, kSerialized };

  static bool is_json(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    return first != std::string_view::npos && text[first] == '{';
  }
  static std::string_view chars(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  template <typename M>
  static void require_type(const M& message, std::string_view wanted) {
    if constexpr (requires { message.GetTypeName(); }) {
      if (message.GetTypeName() == wanted) return;
      throw ClientError(RF_INVALID, "a " + std::string(message.GetTypeName()) +
                                        " is not a configuration here: give a " +
                                        std::string(wanted));
    }
  }

  // `stage`: it is one stage, not a whole configuration.
  void add(bool stage, Form form, std::string_view content) {
    if (started_) {
      throw ClientError(RF_INVALID, "the loader was already started: add stages before start()");
    }
    constexpr const char* kEndings[] = {".textproto", ".json", ".binpb"};
    const std::string name = std::string(stage ? "stage" : "stages") + kEndings[form];
    // The part alone first, so that line numbers in messages are its own.
    std::string text = part(name, stage ? as_stages(form, content) : std::string(content));
    if (!config_.empty()) text = part("config.textproto", config_ + text);
    config_ = std::move(text);
  }
  static std::string as_stages(Form form, std::string_view content) {
    if (form == kText) return "stages { " + std::string(content) + "\n}\n";
    if (form == kJson) return "{\"stages\": [" + std::string(content) + "]}";
    // Field 1, length-delimited.
    std::string bytes = "\x0a";
    std::size_t left = content.size();
    for (; left >= 0x80; left >>= 7) bytes.push_back(static_cast<char>((left & 0x7f) | 0x80));
    bytes.push_back(static_cast<char>(left));
    return bytes.append(content);
  }
  // This part of a configuration in text format, as the program reads it.
  std::string part(const std::string& name, const std::string& content) {
    write(name, content);
    const std::string file = (dir_ / name).string();
    const int status = run_program({"check", "--part", file});
    std::string problems = read("part.log");
    const std::string found = read("part.out");
    for (const std::string& done : {name, std::string("part.log"), std::string("part.out")}) {
      std::error_code ignored;
      std::filesystem::remove(dir_ / done, ignored);
    }
    if (status == 0) return found;
    const std::string place = dir_.string() + "/";
    for (std::size_t at = 0; (at = problems.find(place, at)) != std::string::npos;) {
      problems.erase(at, place.size());
    }
    throw ClientError(status == 3 ? RF_INVALID : RF_FEED_FAILED,
                      problems.empty() ? "the program " + program_ + " ended with status " +
                                             std::to_string(status)
                                       : problems);
  }
  // Its exit status. What it wrote is then in part.out and part.log.
  int run_program(const std::vector<std::string>& arguments) {
    std::vector<char*> words = {program_.data()};
    std::vector<std::string> copies = arguments;
    for (std::string& word : copies) words.push_back(word.data());
    words.push_back(nullptr);
    const std::string out = (dir_ / "part.out").string();
    const std::string log = (dir_ / "part.log").string();
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    constexpr int kNew = O_WRONLY | O_CREAT | O_TRUNC;
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&files, 1, out.c_str(), kNew, 0600);
    ::posix_spawn_file_actions_addopen(&files, 2, log.c_str(), kNew, 0600);
    pid_t child = -1;
    const int error =
        ::posix_spawnp(&child, program_.c_str(), &files, nullptr, words.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    if (error != 0) {
      throw ClientError(RF_FEED_FAILED, "the program " + program_ + " cannot be started: " +
                                            std::strerror(error) + "; is it in PATH?");
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // A path in the loader's own directory, which is created for the first file.
  void write(const std::string& name, std::string_view content) {
    if (dir_.empty()) {
      std::string dir = (std::filesystem::temp_directory_path() / "ringfeed-XXXXXX").string();
      if (::mkdtemp(dir.data()) == nullptr) {
        throw ClientError(RF_IO, "no directory can be created for the loader: " +
                                     std::string(std::strerror(errno)));
      }
      dir_ = dir;
      pid_ = ::getpid();
    }
    std::ofstream file(dir_ / name, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    if (!file) throw ClientError(RF_IO, "the loader cannot write " + (dir_ / name).string());
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(dir_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  // A member that reads this output; none: the first one. Throws if it cannot be made.
  std::optional<Feed> attach(const std::optional<std::string>& output, int32_t timeout_ms) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
    for (;;) {
      try {
        return Feed(AttachOptions{.feed = "loader",
                                  .socket_path = (dir_ / "loader.sock").string(),
                                  .output = output,
                                  .timeout_ms = 100,
                                  .answer_ms = 10'000});
      } catch (const ClientError& error) {
        const bool waiting = error.status() == RF_NO_SUCH_FEED || error.status() == RF_TIMEOUT ||
                             error.status() == RF_INTERRUPTED || error.status() == RF_IO;
        if (const std::optional<int> status = exit_status(); status) {
          if (*status == 3) throw ClientError(RF_INVALID, said());
          throw ClientError(RF_FEED_FAILED, "the supervisor ended with status " +
                                                std::to_string(*status) + ": " + said());
        }
        if (!waiting || (timeout_ms >= 0 && Clock::now() >= until)) throw;
      }
    }
  }

  // The child watches this process. When this process ends, however that happens, the child ends
  // too and removes the directory.
  void spawn() {
    const std::string program = program_;
    const std::string file = (dir_ / "loader.textproto").string();
    const std::string place = "control.directory=" + dir_.string();
    const std::string log = (dir_ / "supervisor.log").string();
    const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
    if (self < 0) {
      throw ClientError(RF_IO, "the supervisor cannot be told of this process: " +
                                   std::string(std::strerror(errno)));
    }
    const std::string owner = "--owner-fd=" + std::to_string(self);
    std::promise<pid_t> started;
    std::future<pid_t> pid = started.get_future();
    ended_ = std::promise<int>();
    end_ = ended_.get_future().share();
    keeper_ = std::thread([&started, this, program, file, place, log, owner, self] {
      const pid_t child = ::fork();
      if (child == 0) {
        // From here on only calls that are safe in the child of a program with threads.
        ::setsid();
        ::fcntl(self, F_SETFD, 0);
        const int null = ::open("/dev/null", O_RDWR);
        const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ::dup2(null, 0);
        ::dup2(null, 1);
        ::dup2(out, 2);
        const char* const arguments[] = {program.c_str(), "run",         file.c_str(),
                                         "--set",         "feed=loader", "--set",
                                         place.c_str(),   owner.c_str(), nullptr};
        ::execvp(program.c_str(), const_cast<char* const*>(arguments));
        constexpr char kMissing[] = "the program ringfeed cannot be started: is it in PATH?\n";
        [[maybe_unused]] const auto written = ::write(2, kMissing, sizeof kMissing - 1);
        ::_exit(127);
      }
      started.set_value(child);
      if (child < 0) return;
      int status = 0;
      while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
      }
      ended_.set_value(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    });
    child_ = pid.get();
    ::close(self);
    if (child_ < 0) {
      keeper_.join();
      throw ClientError(RF_IO, "the supervisor cannot be started: fork fails");
    }
  }

  [[nodiscard]] std::optional<int> exit_status() const {
    if (end_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
    return end_.get();
  }

  [[nodiscard]] std::string said() const { return read("supervisor.log"); }

  std::string program_;
  std::string config_;
  bool started_ = false;
  std::filesystem::path dir_;
  std::optional<Feed> feed_;  // of the first output
  std::string first_alias_;
  std::mutex attaching_;
  std::map<std::string, Feed, std::less<>> others_;  // by alias, attached when first asked for
  pid_t pid_ = -1;                                   // the process that made the directory
  pid_t child_ = -1;
  std::thread keeper_;
  std::promise<int> ended_;
  std::shared_future<int> end_;
};

}  // namespace ringfeed
