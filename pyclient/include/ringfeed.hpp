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
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
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
};

class Feed;

// A batch that this process holds: given back with its owner. Move-only; moved-from it is empty.
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

  // Number in the feed, from 1; rows; members that died while they held it.
  [[nodiscard]] uint64_t seq() const noexcept { return raw_.seq; }
  [[nodiscard]] uint32_t rows() const noexcept { return raw_.rows; }
  [[nodiscard]] uint32_t tries() const noexcept { return raw_.tries; }
  [[nodiscard]] const rf_batch& raw() const noexcept { return raw_; }
  explicit operator bool() const noexcept { return feed_ != nullptr; }

  // The array of that name, all of its items in this batch, row-major, in the slot itself: dead
  // with the batch. Throws ClientError (RF_INVALID): no such tensor, another item size, or given
  // back already.
  template <typename T>
  [[nodiscard]] std::span<const T> tensor(std::string_view name) const {
    const rf_tensor& found = spec(name);
    if (found.item_bytes != sizeof(T)) {
      throw ClientError(RF_INVALID, "tensor " + std::string(name) + " is " + found.dtype +
                                        ", items of " + std::to_string(found.item_bytes) +
                                        " bytes: asked for items of " + std::to_string(sizeof(T)));
    }
    const auto* const at = static_cast<const unsigned char*>(raw_.data) + found.offset;
    // rf_next has compared their number with the room that they have.
    return {reinterpret_cast<const T*>(at),
            static_cast<std::size_t>(rf_tensor_items(&found, &raw_))};
  }

  // Lengths of the dimensions of that array in this batch. Throws ClientError (RF_INVALID) as
  // tensor().
  [[nodiscard]] std::vector<std::size_t> shape(std::string_view name) const {
    const rf_tensor& found = spec(name);
    std::vector<std::size_t> lengths(found.dims);
    for (uint32_t d = 0; d < found.dims; ++d) {
      lengths[d] = static_cast<std::size_t>(rf_tensor_length(&found, &raw_, d));
    }
    return lengths;
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

  // Compares the batch with the checksum that was made of it; see rf_verify. Throws ClientError:
  // RF_DAMAGED, RF_INVALID.
  void verify() const {
    const rf_status status = feed_ == nullptr ? RF_INVALID : rf_verify(feed_, &raw_);
    if (status == RF_OK) return;
    throw ClientError(status,
                      feed_ == nullptr ? "this batch was given back" : rf_last_error(feed_));
  }

  // Gives the batch back now. Harmless when it was already.
  void release() noexcept {
    if (feed_ != nullptr) rf_release(std::exchange(feed_, nullptr), raw_.seq);
  }

 private:
  friend class Feed;
  [[nodiscard]] const rf_tensor& spec(std::string_view name) const {
    if (feed_ == nullptr) throw ClientError(RF_INVALID, "this batch was given back");
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

// A member of a consumer group; leaves with its owner. Move-only.
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
    raw.output = options.output ? options.output->c_str() : nullptr;
    private_view_ = options.view == RF_VIEW_PRIVATE;
    if (const rf_status status = rf_attach(&raw, &feed_); status != RF_OK) {
      throw ClientError(status, rf_last_error(nullptr));
    }
  }
  Feed(Feed&& other) noexcept
      : feed_(std::exchange(other.feed_, nullptr)), private_view_(other.private_view_) {}
  Feed& operator=(Feed&& other) noexcept {
    if (this != &other) {
      rf_detach(feed_);
      feed_ = std::exchange(other.feed_, nullptr);
      private_view_ = other.private_view_;
    }
    return *this;
  }
  ~Feed() { rf_detach(feed_); }

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
  [[nodiscard]] rf_feed* handle() const noexcept { return feed_; }

 private:
  rf_feed* feed_ = nullptr;
  bool private_view_ = false;
};

// A private feed: configure, start(), get_next() until nullopt, stop(). The supervisor is a child
// process (the program `ringfeed`) and ends with this one, whatever this one dies of.
class DataLoader {
 public:
  // `config`: a DataLoaderConfig in text format; more may be added.
  explicit DataLoader(std::string config = {}) : config_(std::move(config)) {}
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;
  ~DataLoader() { stop(); }

  // One StageConfig, or a whole DataLoaderConfig, in text format. Before start().
  void add_stage(std::string_view config) {
    config_.append("\nstages {\n").append(config).append("\n}\n");
  }
  void add_stages(std::string_view config) { config_.append("\n").append(config); }

  // Starts the feed and attaches to it; returns when it can be read from. `program`: path or name
  // of `ringfeed`. Throws ClientError: RF_INVALID with everything that is wrong with the
  // configuration, RF_FEED_FAILED with what the supervisor said, RF_NO_SUCH_FEED after timeout_ms.
  void start(int32_t timeout_ms = -1, const std::string& program = "ringfeed") {
    if (feed_ || child_ > 0) throw ClientError(RF_INVALID, "the loader has been started");
    std::string dir = (std::filesystem::temp_directory_path() / "ringfeed-XXXXXX").string();
    if (::mkdtemp(dir.data()) == nullptr) {
      throw ClientError(
          RF_IO, "no directory can be made for the loader: " + std::string(std::strerror(errno)));
    }
    dir_ = dir;
    std::ofstream(dir_ / "loader.textproto") << config_;
    spawn(program);
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
    for (;;) {
      try {
        feed_.emplace(AttachOptions{
            .feed = "loader", .socket_path = (dir_ / "loader.sock").string(), .timeout_ms = 100});
        return;
      } catch (const ClientError& error) {
        const bool waiting = error.status() == RF_NO_SUCH_FEED || error.status() == RF_TIMEOUT ||
                             error.status() == RF_INTERRUPTED || error.status() == RF_IO;
        if (const std::optional<int> status = exit_status(); status) {
          const std::string text = said();
          stop();
          if (*status == 3) throw ClientError(RF_INVALID, text);
          throw ClientError(RF_FEED_FAILED, "the supervisor ended with status " +
                                                std::to_string(*status) + ": " + text);
        }
        if (!waiting || (timeout_ms >= 0 && Clock::now() >= until)) {
          stop();
          throw;
        }
      }
    }
  }

  // The next batch; nullopt when a finite run is over. Throws ClientError as Feed::next, and
  // RF_FEED_FAILED when the supervisor is gone.
  std::optional<Batch> get_next(int64_t timeout_ms = -1) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
    bool gone = false;
    for (;;) {
      int64_t slice_ms = 200;
      if (timeout_ms >= 0) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        slice_ms = std::clamp<int64_t>(left.count(), 0, slice_ms);
      }
      try {
        return feed().next(slice_ms);
      } catch (const ClientError& error) {
        if (error.status() != RF_TIMEOUT) throw;
        if (timeout_ms >= 0 && Clock::now() >= until) throw;
      }
      // One more look after its end: the feed's own end or reason may have come with it.
      if (gone) throw ClientError(RF_FEED_FAILED, "the supervisor has ended: " + said());
      gone = exit_status().has_value();
    }
  }

  [[nodiscard]] Feed& feed() {
    if (!feed_) throw ClientError(RF_DETACHED, "the loader is not running: call start() first");
    return *feed_;
  }
  // Where `ringfeed status loader --json` and control messages find the feed.
  [[nodiscard]] const std::filesystem::path& socket_dir() const noexcept { return dir_; }

  // Ends the feed and its processes; batches that live stay readable. Harmless when not running.
  void stop() noexcept {
    feed_.reset();
    if (child_ > 0) {
      // The first asks to drain, the second to stop now; what does not listen is killed.
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
  // A thread that lives as long as the child forks it: the kernel signals a child when the thread
  // that forked it ends, not the process.
  void spawn(const std::string& program) {
    const std::string file = (dir_ / "loader.textproto").string();
    const std::string place = "control.directory=" + dir_.string();
    const std::string log = (dir_ / "supervisor.log").string();
    const pid_t parent = ::getpid();
    std::promise<pid_t> started;
    std::future<pid_t> pid = started.get_future();
    ended_ = std::promise<int>();
    end_ = ended_.get_future().share();
    keeper_ = std::thread([&started, this, program, file, place, log, parent] {
      const pid_t child = ::fork();
      if (child == 0) {
        // Only calls that are safe in the child of a program with threads.
        ::prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (::getppid() != parent) ::_exit(1);
        ::setsid();
        const int null = ::open("/dev/null", O_RDWR);
        const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ::dup2(null, 0);
        ::dup2(null, 1);
        ::dup2(out, 2);
        const char* const arguments[] = {program.c_str(), "run",   file.c_str(),  "--set",
                                         "feed=loader",   "--set", place.c_str(), nullptr};
        ::execvp(program.c_str(), const_cast<char* const*>(arguments));
        constexpr char kText[] = "the program ringfeed cannot be started: is it in PATH?\n";
        [[maybe_unused]] const auto written = ::write(2, kText, sizeof kText - 1);
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
    if (child_ < 0) {
      keeper_.join();
      throw ClientError(RF_IO, "the supervisor cannot be started: fork fails");
    }
  }

  [[nodiscard]] std::optional<int> exit_status() const {
    if (end_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
    return end_.get();
  }

  [[nodiscard]] std::string said() const {
    std::ifstream log(dir_ / "supervisor.log");
    return {std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
  }

  std::string config_;
  std::filesystem::path dir_;
  std::optional<Feed> feed_;
  pid_t child_ = -1;
  std::thread keeper_;
  std::promise<int> ended_;
  std::shared_future<int> end_;
};

}  // namespace ringfeed
