// A feed without stages: real segments, real producing lanes, and a control socket that answers
// attach and detach, all in this process. Tests of clients say what it publishes and when.
//
// Batch s has rows_max rows (or as many as asked) of three tensors, whose contents follow from s:
//   x      float32 [B, 3]  1000 * s + 3 * row + column
//   id     int64   [B]     s
//   flags  uint8   [B, 2]  s mod 256
// Or it has the tensors that the test says, and publishes the bytes that the test gives.
//
// Messages to stages get the answers that the test has laid ready: each message the next one, and
// one whose key has come before the same as then.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ringfeed/shm/feed_producer.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed {
class AttachReply;
class AttachRequest;
class Reply;
class StageControlCall;
}  // namespace ringfeed

namespace ringfeed::testing {

// Longest wait for what must happen; a test that needs it has failed.
inline constexpr int kPatienceMs = 30'000;

struct FakeTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;  // as TensorSpec.shape
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// A batch whose bytes the test gives.
struct FakeBatch {
  std::vector<std::byte> bytes;
  std::uint32_t rows = 0;
  std::vector<std::uint32_t> ragged = {};
};

struct FakeFeedOptions {
  std::string feed = "fake";
  std::string socket_dir = {};  // empty: one of its own, removed at the end
  std::uint32_t lanes = 1;
  std::uint32_t slots = 4;
  std::uint32_t descriptors = 0;  // 0: as many as fit
  std::uint32_t rows_max = 4;
  bool ordered = true;
  std::uint32_t max_hold = 2;  // of groups whose members do not ask for another
  bool redeliver = true;
  std::uint32_t max_tries = 3;
  bool checksum = false;
  std::vector<FakeTensor> tensors = {};  // empty: x, id and flags
  std::uint64_t slot_bytes = 0;          // with tensors
  bool admits = true;                    // false: groups stay JOINING until set_group_state()
};

// A message to stages, as it came.
struct FakeCall {
  std::string stage;  // "": all
  std::uint64_t key = 0;
  std::string request;  // a StageControlRequest, as text in one line
};

struct FakeAnswer {
  std::string stage;
  std::string response;  // a serialized StageControlResponse
};

class FakeFeed {
 public:
  explicit FakeFeed(FakeFeedOptions options = {});
  ~FakeFeed();
  FakeFeed(const FakeFeed&) = delete;
  FakeFeed& operator=(const FakeFeed&) = delete;

  [[nodiscard]] const std::string& socket_dir() const { return options_.socket_dir; }
  [[nodiscard]] std::string socket_path() const;
  [[nodiscard]] const FakeFeedOptions& options() const { return options_; }

  // Publishes the next `count` batches in order, each as soon as its lane has room; returns how
  // many it could before a lane had none.
  std::uint64_t publish(std::uint64_t count, std::uint32_t rows = 0);
  // Publishes the next batch, with these bytes; false: its lane has no room.
  bool publish(const FakeBatch& batch);
  // Publishes the next batch of one lane, whatever the others do; false: no room.
  bool publish_lane(std::uint32_t lane, std::uint32_t rows = 0);
  // Closes the lanes: no batch comes after those that are published.
  void close();
  void close_lane(std::uint32_t lane);
  void fail(const std::string& reason);
  // As by `ringfeed stop --now`: the lanes have not closed.
  void stop(const std::string& reason);
  void set_phase(shm::FeedPhase phase);

  // What the supervisor does with proof of a member's death.
  void recover_member(std::uint32_t group, std::uint32_t member);
  void set_group_state(std::uint32_t group, shm::GroupState state);
  // Sends an event to every attached client, with what the feed leaves out, if that is given.
  void send_event(const std::string& left_out = {});
  // Answers attach requests with this error instead; "" ends that.
  void refuse(int code, const std::string& text);
  // Applied to the header of the segment whose descriptor is sent next, in a copy of its own.
  void spoil_header(shm::SegmentKind kind, std::function<void(shm::SegmentHeader&)> spoil);
  // The next message to stages is answered with these.
  void answer(std::vector<FakeAnswer> answers);
  // Messages to stages until now.
  [[nodiscard]] std::vector<FakeCall> calls() const;
  // What is answered to who asks for metrics as JSON; too much for a packet goes in a descriptor.
  void set_metrics(std::string json);
  // Stops answering: requests are read and nothing is sent.
  void set_silent(bool silent);

  [[nodiscard]] shm::GroupPage& group(std::uint32_t index) { return *group_pages_[index]; }
  [[nodiscard]] std::uint64_t newest() const;
  [[nodiscard]] std::uint32_t members() const;  // connections that are attached
  [[nodiscard]] const std::byte* payload() const { return payload_.data(); }

 private:
  void over(shm::FeedPhase phase, const std::string& reason);
  struct Lane;
  struct Connection;
  void serve();
  bool hear(Connection& connection);
  std::string answer_request(Connection& connection, const std::string& bytes,
                             std::vector<shm::Fd>& fds);
  // Of a request of each kind: the serialized reply.
  std::string answer_call(const StageControlCall& call, Reply& reply);
  std::string answer_metrics(bool as_json, Reply& reply, std::vector<shm::Fd>& fds);
  std::string attach(Connection& connection, const AttachRequest& wish, Reply& reply,
                     std::vector<shm::Fd>& fds);
  void make_group(std::uint32_t g, const AttachRequest& wish);
  void describe(AttachReply& body);
  void leave(Connection& connection);
  void recover(std::uint32_t group, std::uint32_t member);
  bool publish_on(Lane& lane, std::uint32_t rows);
  [[nodiscard]] std::uint64_t slot_bytes() const;
  shm::Fd copy_for_sending(const shm::Fd& fd, shm::SegmentKind kind, std::uint64_t bytes);

  FakeFeedOptions options_;
  bool own_dir_ = false;
  shm::FeedGeometry geometry_;
  shm::FeedIdentity identity_;
  shm::Fd control_fd_, feed_control_fd_, payload_fd_;
  shm::Mapping control_, feed_control_, payload_;
  std::vector<shm::Fd> group_fds_;
  std::vector<shm::Mapping> groups_;
  std::vector<shm::GroupPage*> group_pages_;
  std::vector<std::unique_ptr<Lane>> lanes_;

  mutable std::mutex mutex_;  // over everything below, and over the lanes
  std::uint64_t next_ = 1;
  int refuse_code_ = 0;
  std::string refuse_text_;
  shm::SegmentKind spoil_kind_ = shm::SegmentKind::kControl;
  std::function<void(shm::SegmentHeader&)> spoil_;
  bool silent_ = false;
  std::string metrics_;
  std::deque<std::vector<FakeAnswer>> ready_;
  std::map<std::uint64_t, std::vector<FakeAnswer>> given_;  // by key
  std::vector<FakeCall> calls_;
  std::vector<std::unique_ptr<Connection>> connections_;
  shm::Fd listener_, wake_read_, wake_write_;
  std::atomic<bool> stop_{false};
  std::thread server_;
};

}  // namespace ringfeed::testing
