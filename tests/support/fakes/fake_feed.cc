#include "tests/support/fakes/fake_feed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed/shm/layout.h"

namespace ringfeed::testing {
namespace {

using shm::GroupState;
using shm::MemberState;

constexpr std::uint32_t kColumns = 3;
constexpr std::uint32_t kJournalEntries = 128;
constexpr std::size_t kPacketBytesMax = 128 * 1024;
// What is sent beside a message that lies in a descriptor (supervisor/os/packet.h).
constexpr std::string_view kBodyInDescriptor{"\x78\x01", 2};

std::uint64_t id_offset(std::uint32_t rows) { return shm::align_up(rows * kColumns * 4, 64); }
std::uint64_t flags_offset(std::uint32_t rows) {
  return id_offset(rows) + shm::align_up(std::uint64_t{rows} * 8, 64);
}
std::uint64_t batch_bytes(std::uint32_t rows) {
  return flags_offset(rows) + shm::align_up(std::uint64_t{rows} * 2, 64);
}

shm::Fd in_memory(const std::string& bytes) {
  shm::Fd fd(::memfd_create("fake-reply", MFD_CLOEXEC));
  RF_CHECK(
      fd && ::write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
      bytes.size());
  return fd;
}

shm::Fd reopen_read_only(int fd) {
  return shm::Fd(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

// A producing lane: its page in control, an arena in private memory.
struct FakeFeed::Lane {
  Lane(const shm::FeedProducer::Memory& memory, const shm::FeedGeometry& geometry,
       std::uint32_t lane, std::uint64_t feed_control_bytes)
      : arena(2 * kJournalEntries * sizeof(shm::JournalEntry) / 8 + 16), segments(4), index(lane) {
    auto* const bytes = reinterpret_cast<std::byte*>(arena.data());
    segments[shm::kArenaSegment] = {bytes, arena.size() * 8};
    segments[shm::kLanePageSegment] = {reinterpret_cast<std::byte*>(memory.page), shm::kPageBytes};
    segments[shm::kFeedControlSegment] = {memory.feed_control, feed_control_bytes};
    auto* const area = reinterpret_cast<shm::JournalEntry*>(bytes);
    journal = std::make_unique<shm::Journal>(*memory.page, area, area + kJournalEntries,
                                             kJournalEntries, segments);
    journal->recover();
    shm::FeedProducer::Memory own = memory;
    own.open_slot =
        shm::word_ref(shm::kArenaSegment, 2 * kJournalEntries * sizeof(shm::JournalEntry));
    producer = std::make_unique<shm::FeedProducer>(own, geometry, lane);
  }
  std::vector<std::uint64_t> arena;
  std::vector<shm::WritableSegment> segments;
  std::unique_ptr<shm::Journal> journal;
  std::unique_ptr<shm::FeedProducer> producer;
  std::uint32_t index;
};

struct FakeFeed::Connection {
  shm::Fd fd;
  bool attached = false;
  std::uint32_t group = 0;
  std::uint32_t member = 0;
};

FakeFeed::FakeFeed(FakeFeedOptions options) : options_(std::move(options)) {
  if (options_.socket_dir.empty()) {
    std::string dir = (std::filesystem::temp_directory_path() / "ringfeed-fake-XXXXXX").string();
    RF_CHECK(::mkdtemp(dir.data()) != nullptr, errno);
    options_.socket_dir = dir;
    own_dir_ = true;
  }
  geometry_.lanes = options_.lanes;
  geometry_.slots = options_.slots;
  geometry_.descriptors =
      options_.descriptors != 0 ? options_.descriptors : shm::descriptor_count(options_.lanes);
  geometry_.slot_bytes = shm::align_up(slot_bytes(), shm::kPageBytes);
  geometry_.ordered = options_.ordered;
  geometry_.checksum = options_.checksum;
  identity_.feed_id = shm::random_feed_id();

  const auto make = [&](shm::SegmentKind kind, std::uint64_t bytes,
                        std::array<std::uint32_t, 16> geometry) {
    return shm::create_segment({.name = options_.feed + "/segment",
                                .kind = kind,
                                .bytes = bytes,
                                .growable = false,
                                .geometry = geometry},
                               {}, identity_)
        .value_or_throw();
  };
  const std::uint64_t feed_control_bytes =
      shm::feed_control_bytes(geometry_.lanes, geometry_.descriptors);
  control_fd_ =
      make(shm::SegmentKind::kControl, shm::control_bytes(geometry_.lanes),
           {geometry_.lanes,
            static_cast<std::uint32_t>(shm::bells_offset(geometry_.lanes) / shm::kPageBytes)});
  feed_control_fd_ =
      make(shm::SegmentKind::kFeedControl, feed_control_bytes,
           {geometry_.lanes, geometry_.slots, geometry_.descriptors,
            static_cast<std::uint32_t>(geometry_.slot_bytes),
            static_cast<std::uint32_t>(geometry_.slot_bytes >> 32), geometry_.ordered ? 1U : 0U});
  payload_fd_ = make(shm::SegmentKind::kPayload, shm::payload_bytes(geometry_), {});
  control_ = shm::map_segment(control_fd_.get(), true).value_or_throw();
  feed_control_ = shm::map_segment(feed_control_fd_.get(), true).value_or_throw();
  payload_ = shm::map_segment(payload_fd_.get(), true).value_or_throw();
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    group_fds_.push_back(make(shm::SegmentKind::kGroup, shm::kGroupSegmentBytes, {}));
    groups_.push_back(shm::map_segment(group_fds_.back().get(), true).value_or_throw());
    group_pages_.push_back(
        reinterpret_cast<shm::GroupPage*>(groups_.back().data() + shm::kPageBytes));
  }
  for (std::uint32_t lane = 0; lane < geometry_.lanes; ++lane) {
    shm::FeedProducer::Memory memory;
    memory.feed_control = feed_control_.data();
    memory.payload = payload_.data();
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) memory.groups[g] = group_pages_[g];
    memory.page = reinterpret_cast<shm::LanePage*>(control_.data() + shm::lane_page_offset(lane));
    lanes_.push_back(std::make_unique<Lane>(memory, geometry_, lane, feed_control_bytes));
  }
  set_phase(shm::FeedPhase::kRunning);

  listener_ = shm::Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = socket_path();
  RF_CHECK(path.size() < sizeof address.sun_path, path.size());
  std::memcpy(address.sun_path, path.data(), path.size());
  ::unlink(path.c_str());
  RF_CHECK(
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
      errno);
  RF_CHECK(::listen(listener_.get(), 16) == 0, errno);
  int wake[2];
  RF_CHECK(::pipe2(wake, O_CLOEXEC) == 0, errno);
  wake_read_ = shm::Fd(wake[0]);
  wake_write_ = shm::Fd(wake[1]);
  server_ = std::thread([this] { serve(); });
}

FakeFeed::~FakeFeed() {
  stop_ = true;
  wake_write_.reset();  // the server's poll ends
  server_.join();
  ::unlink(socket_path().c_str());
  if (own_dir_) {
    std::error_code ignored;
    std::filesystem::remove_all(options_.socket_dir, ignored);
  }
}

std::string FakeFeed::socket_path() const {
  return fmt::format("{}/{}.sock", options_.socket_dir, options_.feed);
}

std::uint64_t FakeFeed::slot_bytes() const {
  return options_.tensors.empty() ? batch_bytes(options_.rows_max) : options_.slot_bytes;
}

bool FakeFeed::publish(const FakeBatch& batch) {
  const std::lock_guard lock(mutex_);
  Lane& lane = *lanes_[(next_ - 1) % geometry_.lanes];
  lane.producer->attend_groups();
  const auto slot = lane.producer->open(*lane.journal);
  if (!slot) {
    lane.journal->abandon();
    return false;
  }
  RF_CHECK(batch.bytes.size() <= slot->size(), batch.bytes.size());
  std::ranges::copy(batch.bytes, slot->begin());
  shm::BatchInfo info;
  info.bytes = batch.bytes.size();
  info.rows = batch.rows;
  RF_CHECK(batch.ragged.size() <= std::size(info.ragged), batch.ragged.size());
  std::ranges::copy(batch.ragged, info.ragged);
  lane.producer->publish(*lane.journal, info);
  lane.journal->commit();
  lane.producer->announce();
  ++next_;
  return true;
}

bool FakeFeed::publish_on(Lane& lane, std::uint32_t rows) {
  lane.producer->attend_groups();
  const std::uint64_t s = lane.producer->next_batch(*lane.journal);
  const auto slot = lane.producer->open(*lane.journal);
  if (!slot) {
    lane.journal->abandon();
    return false;
  }
  const std::uint32_t used = rows == 0 ? options_.rows_max : rows;
  std::byte* const to = slot->data();
  for (std::uint32_t row = 0; row < used; ++row) {
    for (std::uint32_t column = 0; column < kColumns; ++column) {
      const auto value = static_cast<float>(1000 * s + std::uint64_t{kColumns} * row + column);
      std::memcpy(to + (row * kColumns + column) * 4, &value, 4);
    }
    const auto id = static_cast<std::int64_t>(s);
    std::memcpy(to + id_offset(options_.rows_max) + row * 8, &id, 8);
    const std::uint8_t flags[2] = {static_cast<std::uint8_t>(s), static_cast<std::uint8_t>(s)};
    std::memcpy(to + flags_offset(options_.rows_max) + row * 2, flags, 2);
  }
  shm::BatchInfo info;
  info.bytes = batch_bytes(options_.rows_max);
  info.rows = used;
  info.token[0] = s * 7;
  lane.producer->publish(*lane.journal, info);
  lane.journal->commit();
  lane.producer->announce();
  return true;
}

std::uint64_t FakeFeed::publish(std::uint64_t count, std::uint32_t rows) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!publish_on(*lanes_[(next_ - 1) % geometry_.lanes], rows)) return i;
    ++next_;
  }
  return count;
}

bool FakeFeed::publish_lane(std::uint32_t lane, std::uint32_t rows) {
  const std::lock_guard lock(mutex_);
  return publish_on(*lanes_[lane], rows);
}

void FakeFeed::close_lane(std::uint32_t lane) {
  const std::lock_guard lock(mutex_);
  lanes_[lane]->producer->close(*lanes_[lane]->journal);
  lanes_[lane]->journal->commit();
  lanes_[lane]->producer->announce();
}

void FakeFeed::close() {
  for (std::uint32_t lane = 0; lane < geometry_.lanes; ++lane) close_lane(lane);
  set_phase(shm::FeedPhase::kEnded);
}

void FakeFeed::set_phase(shm::FeedPhase phase) {
  auto& state = *reinterpret_cast<shm::FeedState*>(control_.data() + shm::kFeedStateOffset);
  state.supervisor_pid.store(static_cast<std::uint32_t>(::getpid()), std::memory_order_relaxed);
  // release: as the supervisor does, the reason before the phase.
  state.phase.store(static_cast<std::uint32_t>(phase), std::memory_order_release);
}

void FakeFeed::fail(const std::string& reason) { over(shm::FeedPhase::kFailed, reason); }

void FakeFeed::stop(const std::string& reason) { over(shm::FeedPhase::kStopped, reason); }

void FakeFeed::over(shm::FeedPhase phase, const std::string& reason) {
  auto& state = *reinterpret_cast<shm::FeedState*>(control_.data() + shm::kFeedStateOffset);
  state.reason_bytes = static_cast<std::uint32_t>(std::min(reason.size(), sizeof state.reason));
  std::memcpy(state.reason, reason.data(), state.reason_bytes);
  set_phase(phase);
}

void FakeFeed::recover(std::uint32_t g, std::uint32_t member) {
  shm::GroupPage& page = *group_pages_[g];
  for (std::uint64_t i = 0; i < geometry_.descriptors; ++i) {
    shm::claim_recover(page.words[i], static_cast<std::uint8_t>(member), page.head.redeliver != 0,
                       page.head.max_tries);
  }
  page.members[member].state.store(static_cast<std::uint32_t>(MemberState::kFree),
                                   std::memory_order_release);
}

void FakeFeed::recover_member(std::uint32_t g, std::uint32_t member) {
  const std::lock_guard lock(mutex_);
  recover(g, member);
}

void FakeFeed::set_group_state(std::uint32_t g, GroupState state) {
  const std::lock_guard lock(mutex_);
  group_pages_[g]->head.state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
}

void FakeFeed::send_event(const std::string& left_out) {
  const std::lock_guard lock(mutex_);
  Reply event;
  event.mutable_event()->set_state(StatusReply::RUNNING);
  event.mutable_event()->set_reason("a test says so");
  if (!left_out.empty()) event.mutable_event()->set_left_out(left_out);
  const std::string bytes = event.SerializeAsString();
  for (const auto& connection : connections_) {
    if (connection->attached) {
      ::send(connection->fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

void FakeFeed::refuse(int code, const std::string& text) {
  const std::lock_guard lock(mutex_);
  refuse_code_ = code;
  refuse_text_ = text;
}

void FakeFeed::spoil_header(shm::SegmentKind kind, std::function<void(shm::SegmentHeader&)> spoil) {
  const std::lock_guard lock(mutex_);
  spoil_kind_ = kind;
  spoil_ = std::move(spoil);
}

void FakeFeed::answer(std::vector<FakeAnswer> answers) {
  const std::lock_guard lock(mutex_);
  ready_.push_back(std::move(answers));
}

void FakeFeed::set_metrics(std::string json) {
  const std::lock_guard lock(mutex_);
  metrics_ = std::move(json);
}

std::vector<FakeCall> FakeFeed::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void FakeFeed::set_silent(bool silent) {
  const std::lock_guard lock(mutex_);
  silent_ = silent;
}

std::uint64_t FakeFeed::newest() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t newest = 0;
  for (std::uint32_t lane = 0; lane < geometry_.lanes; ++lane) {
    newest = std::max(newest, reinterpret_cast<const shm::ProducerLine*>(
                                  feed_control_.data() + shm::kProducerLinesOffset)[lane]
                                  .newest.load(std::memory_order_acquire));
  }
  return newest;
}

std::uint32_t FakeFeed::members() const {
  const std::lock_guard lock(mutex_);
  std::uint32_t count = 0;
  for (const auto& connection : connections_) count += connection->attached ? 1 : 0;
  return count;
}

shm::Fd FakeFeed::copy_for_sending(const shm::Fd& fd, shm::SegmentKind kind, std::uint64_t bytes) {
  const bool writable = kind == shm::SegmentKind::kGroup;
  if (!spoil_ || spoil_kind_ != kind)
    return writable ? shm::Fd(::dup(fd.get())) : reopen_read_only(fd.get());
  shm::Fd copy(::memfd_create("spoiled", MFD_CLOEXEC));
  RF_CHECK(::ftruncate(copy.get(), static_cast<off_t>(bytes)) == 0, errno);
  shm::Mapping from = shm::map_segment(fd.get(), false).value_or_throw();
  shm::Mapping to = shm::map_segment(copy.get(), true).value_or_throw();
  std::memcpy(to.data(), from.data(), shm::kPageBytes);
  spoil_(*reinterpret_cast<shm::SegmentHeader*>(to.data()));
  return copy;
}

namespace {

std::string refused(Reply& reply, int code, const std::string& text) {
  reply.set_error(static_cast<Reply::ErrorCode>(code));
  reply.set_text(text);
  return reply.SerializeAsString();
}

}  // namespace

std::string FakeFeed::answer_call(const StageControlCall& call, Reply& reply) {
  std::string text;
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  StageControlRequest request;
  if (!request.ParseFromString(call.request())) {
    return refused(reply, Reply::BAD_REQUEST, "the request cannot be decoded");
  }
  printer.PrintToString(request, &text);
  calls_.push_back({call.stage(), call.key(), text});
  if (call.key() == 0) return refused(reply, Reply::BAD_REQUEST, "a message without a key");
  if (!given_.contains(call.key())) {
    if (ready_.empty()) return refused(reply, Reply::INTERNAL, "the test has no answer ready");
    given_[call.key()] = ready_.front();
    ready_.pop_front();
  }
  for (const FakeAnswer& given : given_[call.key()]) {
    StageControlAnswer& answer = *reply.mutable_stage_control()->add_answers();
    answer.set_stage(given.stage);
    answer.set_response(given.response);
  }
  reply.mutable_stage_control();
  return reply.SerializeAsString();
}

std::string FakeFeed::answer_metrics(bool as_json, Reply& reply, std::vector<shm::Fd>& fds) {
  MetricsReply& metrics = *reply.mutable_metrics();
  metrics.set_feed(options_.feed);
  if (as_json && !metrics_.empty()) metrics.set_json(metrics_);
  std::string whole = reply.SerializeAsString();
  if (whole.size() <= kPacketBytesMax) return whole;
  fds.push_back(in_memory(whole));
  return std::string(kBodyInDescriptor);
}

// The reply to a request, and the descriptors that go with it.
std::string FakeFeed::answer_request(Connection& connection, const std::string& bytes,
                                     std::vector<shm::Fd>& fds) {
  Request request;
  Reply reply;
  const bool decoded = request.ParseFromString(bytes);
  reply.set_id(request.id());
  if (!decoded) return refused(reply, Reply::BAD_REQUEST, "the request cannot be decoded");
  if (request.has_detach()) {
    // One that leaves with its process is gone when its connection is.
    if (!request.detach().at_exit()) leave(connection);
    reply.mutable_detach();
    return reply.SerializeAsString();
  }
  if (request.has_stage_control()) return answer_call(request.stage_control(), reply);
  if (request.has_metrics()) return answer_metrics(request.metrics().as_json(), reply, fds);
  if (!request.has_attach()) return refused(reply, Reply::BAD_REQUEST, "neither attach nor detach");
  return attach(connection, request.attach(), reply, fds);
}

// Sets up a group that no trainer has joined before.
void FakeFeed::make_group(std::uint32_t g, const AttachRequest& wish) {
  const bool ranked = wish.kind() == ConsumerGroupConfig::RANKED;
  shm::GroupPage& page = *group_pages_[g];
  page.head.kind =
      static_cast<std::uint32_t>(ranked ? shm::GroupKind::kRanked : shm::GroupKind::kShared);
  page.head.policy = wish.has_policy() ? static_cast<std::uint32_t>(wish.policy()) : 0;
  page.head.redeliver = wish.has_redeliver() ? wish.redeliver() : options_.redeliver;
  page.head.max_tries = wish.has_max_tries() ? wish.max_tries() : options_.max_tries;
  page.head.max_hold = wish.has_max_hold() ? wish.max_hold() : options_.max_hold;
  page.head.world = ranked ? wish.world() : 1;
  std::strncpy(page.head.name, wish.group().c_str(), sizeof page.head.name - 1);
  page.head.epoch.fetch_add(1);
  page.head.state.store(static_cast<std::uint32_t>(GroupState::kJoining));
  std::uint64_t from = 1;
  for (const auto& lane : lanes_) {
    lane->producer->attend_groups();
    const auto& own =
        *reinterpret_cast<shm::LanePage*>(control_.data() + shm::lane_page_offset(lane->index));
    // A lane at its end answers no more.
    from = std::max({from, own.answers[g].from.load(), own.retire.load()});
  }
  page.head.start.store(wish.start() == AttachRequest::OLDEST ? from : next_);
  if (options_.admits) page.head.state.store(static_cast<std::uint32_t>(GroupState::kActive));
}

void FakeFeed::describe(AttachReply& body) {
  body.set_abi_major(shm::kAbiMajor);
  body.set_abi_minor(shm::kAbiMinor);
  body.set_layout_hash(shm::kLayoutHash);
  body.set_feed_id(identity_.feed_id.data(), identity_.feed_id.size());
  body.set_feed(options_.feed);
  body.set_lanes(geometry_.lanes);
  body.set_slots(geometry_.slots);
  body.set_descriptors(geometry_.descriptors);
  body.set_slot_bytes(slot_bytes());
  body.set_slot_stride(geometry_.slot_bytes);
  body.set_rows_max(options_.rows_max);
  body.set_control_bytes(control_.bytes());
  body.set_feed_control_bytes(feed_control_.bytes());
  body.set_group_bytes(shm::kGroupSegmentBytes);
  body.set_payload_bytes(payload_.bytes());
  body.set_supervisor_pid(static_cast<std::uint32_t>(::getpid()));
  const std::uint64_t rows = options_.rows_max;
  const std::vector<FakeTensor> usual{
      {"x", "float32", {-1, kColumns}, 0, rows * kColumns * 4},
      {"id", "int64", {-1}, id_offset(options_.rows_max), rows * 8},
      {"flags", "uint8", {-1, 2}, flags_offset(options_.rows_max), rows * 2}};
  for (const FakeTensor& tensor : options_.tensors.empty() ? usual : options_.tensors) {
    TensorSpec& spec = *body.add_tensors();
    spec.set_name(tensor.name);
    spec.set_dtype(tensor.dtype);
    for (const std::int64_t size : tensor.shape) spec.add_shape(size);
    spec.set_offset(tensor.offset);
    spec.set_bytes(tensor.bytes);
  }
}

std::string FakeFeed::attach(Connection& connection, const AttachRequest& wish, Reply& reply,
                             std::vector<shm::Fd>& fds) {
  if (refuse_code_ != 0) return refused(reply, refuse_code_, refuse_text_);
  if (wish.abi_major() != shm::kAbiMajor || wish.layout_hash() != shm::kLayoutHash ||
      wish.pid() == 0 || wish.client().empty()) {
    return refused(reply, Reply::INCOMPATIBLE,
                   "the client has another ABI, or names neither pid nor name");
  }
  if (wish.observe()) {
    describe(*reply.mutable_attach());
    reply.mutable_attach()->clear_group_bytes();
    fds.push_back(copy_for_sending(control_fd_, shm::SegmentKind::kControl, control_.bytes()));
    fds.push_back(
        copy_for_sending(feed_control_fd_, shm::SegmentKind::kFeedControl, feed_control_.bytes()));
    fds.push_back(copy_for_sending(payload_fd_, shm::SegmentKind::kPayload, payload_.bytes()));
    return reply.SerializeAsString();
  }

  std::uint32_t g = 0;
  std::uint32_t unused = shm::kGroupsMax;
  for (; g < shm::kGroupsMax; ++g) {
    const auto state = static_cast<GroupState>(group_pages_[g]->head.state.load());
    if (state == GroupState::kUnused && unused == shm::kGroupsMax) unused = g;
    if (state == GroupState::kActive && wish.group() == group_pages_[g]->head.name) break;
  }
  if (g == shm::kGroupsMax) {
    if (unused == shm::kGroupsMax) return refused(reply, Reply::FULL, "all groups are in use");
    g = unused;
    make_group(g, wish);
  }
  shm::GroupPage& page = *group_pages_[g];
  const bool page_ranked = page.head.kind == static_cast<std::uint32_t>(shm::GroupKind::kRanked);
  if (wish.has_kind() && page_ranked != (wish.kind() == ConsumerGroupConfig::RANKED)) {
    return refused(reply, Reply::GROUP_MISMATCH,
                   fmt::format("group {} is {}: attach with the same kind", wish.group(),
                               page_ranked ? "ranked" : "shared"));
  }
  std::uint32_t m = page_ranked ? wish.rank() : 0;
  while (m < shm::kMembersMax &&
         page.members[m].state.load() != static_cast<std::uint32_t>(MemberState::kFree)) {
    m = page_ranked ? shm::kMembersMax : m + 1;
  }
  if (m >= shm::kMembersMax) return refused(reply, Reply::FULL, "no free member in the group");
  page.members[m].pid = wish.pid();
  page.members[m].rank = wish.rank();
  page.members[m].taken.store(0);
  page.members[m].done.store(0);
  page.members[m].state.store(static_cast<std::uint32_t>(MemberState::kLive));
  connection.attached = true;
  connection.group = g;
  connection.member = m;

  AttachReply& body = *reply.mutable_attach();
  describe(body);
  body.set_group_index(g);
  body.set_member_index(m);
  fds.push_back(copy_for_sending(control_fd_, shm::SegmentKind::kControl, control_.bytes()));
  fds.push_back(
      copy_for_sending(feed_control_fd_, shm::SegmentKind::kFeedControl, feed_control_.bytes()));
  fds.push_back(copy_for_sending(group_fds_[g], shm::SegmentKind::kGroup, shm::kGroupSegmentBytes));
  fds.push_back(copy_for_sending(payload_fd_, shm::SegmentKind::kPayload, payload_.bytes()));
  return reply.SerializeAsString();
}

void FakeFeed::leave(Connection& connection) {
  if (!connection.attached) return;
  connection.attached = false;
  recover(connection.group, connection.member);
}

// One message of a client. False when the client has closed.
bool FakeFeed::hear(Connection& connection) {
  std::string bytes(65536, '\0');
  const ssize_t received = ::recv(connection.fd.get(), bytes.data(), bytes.size(), 0);
  if (received <= 0) return false;
  bytes.resize(static_cast<std::size_t>(received));
  const std::lock_guard lock(mutex_);
  if (silent_) return true;
  std::vector<shm::Fd> fds;
  const std::string reply = answer_request(connection, bytes, fds);
  iovec part{const_cast<char*>(reply.data()), reply.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof fd);
    }
  }
  ::sendmsg(connection.fd.get(), &message, MSG_NOSIGNAL);
  return true;
}

void FakeFeed::serve() {
  while (!stop_) {
    std::vector<pollfd> polled = {{wake_read_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const auto& connection : connections_) {
        polled.push_back({connection->fd.get(), POLLIN, 0});
      }
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) return;
    // Only this thread adds and removes connections.
    for (std::size_t i = polled.size(); i-- > 2;) {
      if (polled[i].revents == 0 || hear(*connections_[i - 2])) continue;
      const std::lock_guard lock(mutex_);
      // Every client of this feed is its only process here: the socket's end counts as its death.
      leave(*connections_[i - 2]);
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i - 2));
    }
    if (polled[1].revents != 0) {
      shm::Fd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const std::lock_guard lock(mutex_);
      if (accepted) {
        connections_.push_back(std::make_unique<Connection>());
        connections_.back()->fd = std::move(accepted);
      }
    }
  }
}

}  // namespace ringfeed::testing
