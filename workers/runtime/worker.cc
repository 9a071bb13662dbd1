#include "workers/runtime/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <google/protobuf/text_format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "proto/worker.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/large_pages.h"
#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/starvation.h"
#include "workers/runtime/dead_letter.h"
#include "workers/runtime/fault.h"
#include "workers/runtime/lane.h"

namespace ringfeed {
namespace {

constexpr std::size_t kDescriptorsPerPacket = 250;
// A worker without a supervisor looks for the next one this often.
constexpr int kLookForSupervisorMs = 100;
// Arenas that have grown are looked for this often.
constexpr int kGatherEveryMs = 1000;

// One packet with its descriptors; empty at the end of the stream.
std::string receive_packet(int socket, std::vector<shm::Fd>& descriptors) {
  std::string bytes(1 << 20, '\0');
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * (kDescriptorsPerPacket + 3))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0)
    throw Error(ErrorCode::kIo, fmt::format("the supervisor's socket: {}", std::strerror(errno)));
  for (cmsghdr* part_header = CMSG_FIRSTHDR(&message); part_header != nullptr;
       part_header = CMSG_NXTHDR(&message, part_header)) {
    if (part_header->cmsg_level != SOL_SOCKET || part_header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part_header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part_header) + i * sizeof(int), sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

// The setup lies in a memfd, which is descriptor 0; those of the segments follow, in as many
// packets as it takes.
WorkerSetup receive_setup(int socket, std::vector<shm::Fd>& descriptors) {
  std::size_t expected = 1;
  bool first = true;
  while (first || descriptors.size() < expected) {
    ToWorker packet;
    const std::string bytes = receive_packet(socket, descriptors);
    if (bytes.empty() || !packet.ParseFromString(bytes)) {
      throw Error(ErrorCode::kIo, "the supervisor's setup ended early or cannot be read");
    }
    if (first) {
      if (!packet.has_setup())
        throw Error(ErrorCode::kIo, "the supervisor's first packet is not a setup");
      expected = packet.setup().descriptor_count();
      first = false;
    }
  }
  if (descriptors.size() != expected || expected == 0) {
    throw Error(ErrorCode::kIo, fmt::format("the supervisor announced {} descriptors and sent {}",
                                            expected, descriptors.size()));
  }
  struct stat info {};
  ::fstat(descriptors[0].get(), &info);
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  if (::pread(descriptors[0].get(), bytes.data(), bytes.size(), 0) !=
      static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorCode::kIo, "the supervisor's setup cannot be read");
  }
  WorkerSetup setup;
  if (!setup.ParseFromString(bytes))
    throw Error(ErrorCode::kIo, "the supervisor's setup is damaged");
  return setup;
}

std::uint64_t own_start_ticks() {
  const std::string text = shm::read_file("/proc/self/stat").value_or_throw();
  std::istringstream rest(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

// Maps each segment once, and hands out addresses.
class Segments {
 public:
  Segments(const WorkerSetup& setup, std::vector<shm::Fd> descriptors)
      : descriptors_(std::move(descriptors)) {
    std::memcpy(feed_.feed_id.data(), setup.feed_id().data(),
                std::min<std::size_t>(16, setup.feed_id().size()));
    for (const SegmentSetup& segment : setup.segments()) {
      if (segment.fd_index() >= descriptors_.size()) {
        throw Error(ErrorCode::kIo, fmt::format("segment {}: its descriptor {} did not come",
                                                segment.id(), segment.fd_index()));
      }
      specs_[segment.id()] = &segment;
    }
  }

  [[nodiscard]] int fd(std::uint32_t id) const { return descriptors_[spec(id).fd_index()].get(); }
  [[nodiscard]] const SegmentSetup& spec(std::uint32_t id) const {
    const auto at = specs_.find(id);
    if (at == specs_.end())
      throw Error(ErrorCode::kIo, fmt::format("segment {} is not part of the setup", id));
    return *at->second;
  }
  // The only one of its kind.
  [[nodiscard]] std::uint32_t of_kind(shm::SegmentKind kind) const {
    for (const auto& [id, segment] : specs_) {
      if (segment->kind() == static_cast<std::uint32_t>(kind)) return id;
    }
    throw Error(ErrorCode::kIo, fmt::format("the setup has no segment of kind {}",
                                            static_cast<std::uint32_t>(kind)));
  }

  // The whole segment, checked. Not so that of a consumer group: its members may write it all, and
  // what has to be known of it is: its size, which is sealed.
  std::byte* map(std::uint32_t id, bool writable) {
    const auto found = mapped_.find(id);
    if (found != mapped_.end()) return found->second.data();
    if (RF_FAILPOINT_ERROR("runtime.worker.map")) {
      throw Error(ErrorCode::kNoMemory, fmt::format("segment {}: a test wants no mapping", id));
    }
    shm::Mapping mapping = shm::map_segment(fd(id), writable).value_or_throw();
    const SegmentSetup& segment = spec(id);
    if (segment.kind() == static_cast<std::uint32_t>(shm::SegmentKind::kGroup)) {
      if (mapping.bytes() < shm::kGroupSegmentBytes) {
        throw Error(ErrorCode::kDamaged, fmt::format("segment {}: has {} bytes and needs {}", id,
                                                     mapping.bytes(), shm::kGroupSegmentBytes));
      }
    } else {
      shm::check_header(*reinterpret_cast<const shm::SegmentHeader*>(mapping.data()),
                        static_cast<shm::SegmentKind>(segment.kind()), &feed_, mapping.bytes(),
                        fmt::format("{}", id))
          .or_throw();
    }
    return mapped_.emplace(id, std::move(mapping)).first->second.data();
  }
  [[nodiscard]] std::uint64_t bytes(std::uint32_t id) const { return mapped_.at(id).bytes(); }
  // Everything that is mapped, with its descriptor.
  [[nodiscard]] std::vector<std::pair<std::byte*, int>> all() const {
    std::vector<std::pair<std::byte*, int>> found;
    for (const auto& [id, mapping] : mapped_) found.emplace_back(mapping.data(), fd(id));
    return found;
  }

 private:
  std::vector<shm::Fd> descriptors_;
  shm::FeedIdentity feed_;
  std::map<std::uint32_t, const SegmentSetup*> specs_;
  std::map<std::uint32_t, shm::Mapping> mapped_;
};

shm::RingGeometry ring_geometry(const std::byte* ring) {
  const auto& header = *reinterpret_cast<const shm::SegmentHeader*>(ring);
  return {.capacity_bytes = header.total_bytes - shm::kRingDataOffset,
          .records_max = header.geometry[0],
          .overflow = static_cast<shm::Overflow>(header.geometry[1])};
}

// The lanes of this worker, with all that they stand on.
class Worker {
 public:
  Worker(const WorkerSetup& setup, std::vector<shm::Fd> descriptors, const Registry& registry)
      : setup_(setup), segments_(setup, std::move(descriptors)), registry_(registry) {
    if (!config_.ParseFromString(setup.config()))
      throw Error(ErrorCode::kIo, "the setup's configuration is damaged");
    take_lock();
    control_ = segments_.map(segments_.of_kind(shm::SegmentKind::kControl), true);
    lane_count_ = reinterpret_cast<const shm::SegmentHeader*>(control_)->geometry[0];
    start_ticks_ = own_start_ticks();
    for (const LaneSetup& lane : setup_.lanes()) make_lane(lane);
  }

  int run(int setup_fd);

 private:
  // Held as long as the process lives; the kernel drops it exactly with the process, and forks do
  // not inherit it. In a segment that no trainer gets: whoever has a descriptor of a file, if only
  // for reading, can lock it.
  // Modelled in tests/model/journal.pml: with it, a lane has one live incarnation.
  void take_lock() {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = setup_.group_index() + 1;
    lock.l_len = 1;
    if (::fcntl(segments_.fd(segments_.of_kind(shm::SegmentKind::kLocks)), F_SETLK, &lock) != 0) {
      throw Error(
          ErrorCode::kBusy,
          fmt::format("stage group {}: another live process runs its lanes", setup_.group()));
    }
    RF_FAILPOINT("runtime.worker.locked");
  }

  [[nodiscard]] shm::LanePage* page(std::uint32_t lane) const {
    RF_CHECK(lane < lane_count_, lane, lane_count_);
    return reinterpret_cast<shm::LanePage*>(control_ + shm::lane_page_offset(lane));
  }
  [[nodiscard]] const shm::NodeLanesWords* node_lanes(std::uint32_t node) const {
    RF_CHECK(node < shm::kNodesMax, node);
    return reinterpret_cast<const shm::NodeLanesWords*>(control_ + shm::kNodeLanesOffset) + node;
  }
  [[nodiscard]] shm::Bell* bell(std::uint32_t lane) const {
    return reinterpret_cast<shm::Bell*>(control_ + shm::bells_offset(lane_count_)) + lane;
  }
  [[nodiscard]] shm::Neighbour neighbour(std::uint32_t lane) const {
    return {page(lane), bell(lane)};
  }

  void make_lane(const LaneSetup& lane);
  using Places = std::vector<std::pair<std::byte*, int>>;  // mapped memory, and its descriptor
  [[nodiscard]] Places places() const;
  static void gather_pages(int done_fd, const Places& places);
  void answer(int setup_fd, const std::string& bytes);
  [[nodiscard]] bool all_finished() const;
  static void say_finished(int setup_fd);
  [[nodiscard]] shm::Fd find_supervisor(bool* refused) const;
  void add_input(LaneParts& parts, const LaneSetup& lane, const LaneInput& input);
  void add_output(LaneParts& parts, const LaneSetup& lane, const LaneOutput& output,
                  const OutputSpec& spec);
  void add_feed(LaneParts& parts, const LaneSetup& lane, const FeedSetup& feed);
  [[nodiscard]] EdgeMode mode(shm::Overflow overflow) const {
    if (overflow != shm::Overflow::kBlock) return EdgeMode::kLoose;
    return setup_.dispatch() == FeedOutputConfig::RELAXED ? EdgeMode::kRelaxed : EdgeMode::kOrdered;
  }

  const WorkerSetup& setup_;
  DataLoaderConfig config_;
  Segments segments_;
  const Registry& registry_;
  std::byte* control_ = nullptr;
  std::uint32_t lane_count_ = 0;
  std::uint64_t start_ticks_ = 0;
  std::vector<std::unique_ptr<shm::Arena>> arenas_;
  std::vector<std::unique_ptr<LaneRuntime>> lanes_;
  std::vector<shm::LanePage*> pages_;  // theirs
  LaneOrders orders_;
  std::atomic<std::uint32_t> running_{0};
};

void Worker::add_input(LaneParts& parts, const LaneSetup& lane, const LaneInput& input) {
  InputPort port;
  port.block = std::max<std::uint64_t>(1, input.block());
  port.lane = lane.number();
  port.lanes.own_words = node_lanes(lane.node_index());
  port.lanes.peer_words = node_lanes(input.peer_node());
  for (const RingEnd& end : input.rings()) {
    std::byte* ring =
        segments_.map(end.ring_segment(), segments_.spec(end.ring_segment()).writable());
    std::byte* heads = segments_.map(lane.heads_segment(), true);
    const std::uint64_t line = shm::kHeadLinesOffset + end.head_index() * sizeof(shm::HeadLine);
    InputPort::Ring& in = port.rings.emplace_back();
    in.end = shm::RingConsumer(
        *reinterpret_cast<shm::TailLine*>(ring + shm::kTailLineOffset), ring + shm::kRingDataOffset,
        *reinterpret_cast<shm::HeadLine*>(heads + line), ring_geometry(ring), line);
    in.neighbour = neighbour(end.peer_lane());
    port.mode = mode(ring_geometry(ring).overflow);
  }
  if (lane.inputs_size() != 0) {
    parts.segments[shm::kHeadsSegment] = {segments_.map(lane.heads_segment(), true),
                                          segments_.bytes(lane.heads_segment())};
  }
  parts.inputs.push_back(std::move(port));
  parts.input_names.push_back(input.port());
}

void Worker::add_output(LaneParts& parts, const LaneSetup& lane, const LaneOutput& output,
                        const OutputSpec& spec) {
  OutputPort port;
  port.block = std::max<std::uint64_t>(1, output.block());
  port.lane = lane.number();
  port.lanes.own_words = node_lanes(lane.node_index());
  if (output.feed() == 0) port.lanes.peer_words = node_lanes(output.peer_node());
  port.unit_per_record = spec.units == UnitRule::kRecord;
  port.follows = spec.units == UnitRule::kFollow && lane.inputs_size() != 0;
  for (const RingEnd& end : output.rings()) {
    std::byte* ring = segments_.map(end.ring_segment(), true);
    std::byte* heads =
        segments_.map(end.heads_segment(), segments_.spec(end.heads_segment()).writable());
    const std::size_t where = parts.segments.size();
    RF_CHECK(where < 256, where);
    parts.segments.push_back({ring, segments_.bytes(end.ring_segment())});
    OutputPort::Ring& out = port.rings.emplace_back();
    out.end = shm::RingProducer(
        *reinterpret_cast<shm::TailLine*>(ring + shm::kTailLineOffset), ring + shm::kRingDataOffset,
        *reinterpret_cast<const shm::HeadLine*>(heads + shm::kHeadLinesOffset +
                                                end.head_index() * sizeof(shm::HeadLine)),
        ring_geometry(ring), static_cast<std::uint8_t>(where));
    out.neighbour = neighbour(end.peer_lane());
    port.mode = mode(ring_geometry(ring).overflow);
  }
  parts.outputs.push_back(std::move(port));
  parts.output_names.push_back(output.port());
}

void Worker::add_feed(LaneParts& parts, const LaneSetup& lane, const FeedSetup& feed) {
  shm::FeedProducer::Memory memory;
  memory.feed_control = segments_.map(feed.feed_control_segment(), true);
  memory.payload = segments_.map(feed.payload_segment(), true);
  if (feed.group_segments_size() != static_cast<int>(shm::kGroupsMax)) {
    throw Error(ErrorCode::kIo, fmt::format("the setup has {} group segments, expected {}",
                                            feed.group_segments_size(), shm::kGroupsMax));
  }
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    memory.groups[g] = reinterpret_cast<shm::GroupPage*>(
        segments_.map(feed.group_segments(static_cast<int>(g)), true) + shm::kPageBytes);
  }
  memory.page = page(lane.index());
  memory.open_slot = runtime_word(kOpenSlotWord);
  const auto& header = *reinterpret_cast<const shm::SegmentHeader*>(memory.feed_control);
  const shm::FeedGeometry geometry = {
      .lanes = header.geometry[0],
      .slots = header.geometry[1],
      .descriptors = header.geometry[2],
      .slot_bytes = std::uint64_t{header.geometry[4]} << 32 | header.geometry[3],
      .ordered = header.geometry[5] != 0,
      .checksum = feed.checksum(),
  };
  parts.segments[shm::kFeedControlSegment] = {memory.feed_control,
                                              segments_.bytes(feed.feed_control_segment())};
  parts.feed = std::make_unique<shm::FeedProducer>(memory, geometry, lane.number());
}

void Worker::make_lane(const LaneSetup& lane) {
  const StageConfig& stage = config_.stages(static_cast<int>(lane.stage_index()));
  const NodeSpec node = find_node(stage, config_, registry_, lane.node());
  const SegmentSetup& arena_spec = segments_.spec(lane.arena_segment());
  auto arena = std::make_unique<shm::Arena>(
      shm::Arena::map(segments_.fd(lane.arena_segment()),
                      std::max(arena_spec.bytes(), arena_spec.bytes_max()), lane.stage())
          .value_or_throw());

  const std::uint32_t version =
      reinterpret_cast<const shm::SegmentHeader*>(arena->segment().data)->geometry[1];
  if (version != node.state_version) {
    throw Error(ErrorCode::kIncompatible,
                fmt::format("stage '{}': its memory was laid out by version {} of the stage, and "
                            "this program has version {}: use the program that began the feed, or "
                            "start it anew",
                            lane.stage(), version, node.state_version));
  }

  LaneParts parts;
  parts.name = lane.stage() + (lane.node().empty() ? "" : "." + lane.node()) + "." +
               std::to_string(lane.number());
  parts.page = page(lane.index());
  parts.bell = bell(lane.index());
  parts.arena = arena.get();
  parts.segments.resize(shm::kFirstRingSegment);
  parts.segments[shm::kArenaSegment] = arena->segment();
  std::byte* const heads = segments_.map(lane.heads_segment(), true);
  const auto& stamped = reinterpret_cast<const shm::SegmentHeader*>(heads)->geometry;
  parts.stamps = shm::Stamps(*parts.page, {heads, segments_.bytes(lane.heads_segment())},
                             stamped[0], stamped[1], stamped[2]);
  parts.segments[shm::kLanePageSegment] = {reinterpret_cast<std::byte*>(parts.page),
                                           sizeof(shm::LanePage)};
  for (const LaneInput& input : lane.inputs()) add_input(parts, lane, input);
  for (const LaneOutput& output : lane.outputs()) {
    const auto spec =
        std::find_if(node.outputs.begin(), node.outputs.end(),
                     [&](const OutputSpec& candidate) { return candidate.port == output.port(); });
    if (spec == node.outputs.end()) {
      throw Error(ErrorCode::kConfiguration,
                  fmt::format("{}: has no output '{}'", parts.name, output.port()));
    }
    add_output(parts, lane, output, *spec);
    if (output.feed() != 0) {
      if (output.feed() > static_cast<std::uint32_t>(setup_.outputs_size())) {
        throw Error(ErrorCode::kIo, fmt::format("the setup has no output {}", output.feed()));
      }
      add_feed(parts, lane, setup_.outputs(static_cast<int>(output.feed()) - 1));
    }
  }
  parts.random_key = mix(setup_.seed(), mix(lane.stage()));
  if (lane.lanes() > 1 || !lane.node().empty()) {
    // Lanes of one stage draw differently; what is drawn for a thing uses StageContext::key
    // instead.
    parts.random_key = mix(parts.random_key, mix(mix(lane.node()), lane.number()));
  }
  parts.counters = counter_names(*registry_.find(stage_kind(stage)), stage);
  parts.steps_per_commit = node.steps_per_commit;
  parts.entries_per_step = node.entries_per_step;
  parts.pid = static_cast<std::uint32_t>(::getpid());
  parts.start_ticks = start_ticks_;

  DeadLetterFacts facts{.directory = setup_.dead_letters(),
                        .feed = setup_.feed(),
                        .stage = lane.stage(),
                        .node = lane.node(),
                        .lane = lane.number(),
                        .cause = "unknown",
                        .seed = setup_.seed(),
                        .version = RINGFEED_VERSION};
  for (const CondemnedRecord& condemned : setup_.condemned()) {
    if (condemned.lane() != lane.index()) continue;
    facts.cause = condemned.cause();
    facts.deaths = condemned.deaths();
  }
  parts.keep_dead_letter = [this, facts, name = parts.name](const DeadLetter& letter) mutable {
    google::protobuf::TextFormat::PrintToString(config_, &facts.config);
    const Result<std::string> path = write_dead_letter(facts, letter);
    if (path) {
      spdlog::warn("dead_letter lane={} seq={} bytes={} file={}", name, shm::seq_of(letter.key),
                   letter.record.bytes.size(), log_value(*path));
    } else {
      spdlog::error("dead_letter_lost lane={} seq={} bytes={} error={}", name,
                    shm::seq_of(letter.key), letter.record.bytes.size(),
                    in_quotes(path.error().message()));
    }
  };
  parts.warn = [](std::string_view text) { spdlog::warn("{}", text); };

  shm::LanePage* const lane_page = parts.page;
  auto runtime = std::make_unique<LaneRuntime>(std::move(parts));
  runtime->attach();
  StageContext context{.config = stage, .feed = config_, .stage = lane.stage()};
  context.lane = lane.number();
  context.lanes = lane.lanes();
  runtime->describe(context);
  context.seed = setup_.seed();
  context.key = mix(setup_.seed(), mix(lane.stage()));
  context.key_of = [seed = setup_.seed()](std::string_view name) { return mix(seed, mix(name)); };
  context.info = [](std::string_view text) { spdlog::info("{}", text); };
  context.warn = [](std::string_view text) { spdlog::warn("{}", text); };
  if (!runtime->finished()) runtime->set_stage(create_stage(node, context));
  arenas_.push_back(std::move(arena));
  pages_.push_back(lane_page);
  lanes_.push_back(std::move(runtime));
}

// The answers of several lanes to one call; the last one that comes sends them.
class CallAnswers {
 public:
  CallAnswers(int setup_fd, std::uint64_t id, std::size_t lanes) : fd_(setup_fd), left_(lanes) {
    reply_.set_id(id);
    reply_.mutable_stage_control();
    if (left_ == 0) send();
  }
  // Of the lane of this stage; without a response: it has none to give.
  void add(const std::string& stage, const std::optional<std::string>& response) {
    const std::lock_guard lock(mutex_);
    if (response) {
      StageControlAnswer& answer = *reply_.mutable_stage_control()->add_answers();
      answer.set_stage(stage);
      answer.mutable_response()->ParseFromString(*response);
    }
    if (--left_ == 0) send();
  }

 private:
  void send() const {
    const std::string bytes = reply_.SerializeAsString();
    ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  int fd_;
  std::size_t left_;
  std::mutex mutex_;
  FromWorker reply_;
};

// What the supervisor says while the lanes run.
void Worker::answer(int setup_fd, const std::string& bytes) {
  ToWorker call;
  if (!call.ParseFromString(bytes) || !call.has_stage_control()) return;
  const StageControlCall& asked = call.stage_control();
  std::vector<std::size_t> lanes;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::string& stage = setup_.lanes(static_cast<int>(i)).stage();
    if (lanes_[i]->takes_messages() && (!asked.has_stage() || asked.stage() == stage)) {
      lanes.push_back(i);
    }
  }
  const auto answers = std::make_shared<CallAnswers>(setup_fd, call.id(), lanes.size());
  for (const std::size_t i : lanes) {
    lanes_[i]->post({.key = asked.key(),
                     .request = asked.request().SerializeAsString(),
                     .answer = [answers, stage = setup_.lanes(static_cast<int>(i)).stage()](
                                   const std::optional<std::string>& response) {
                       answers->add(stage, response);
                     }});
  }
}

Worker::Places Worker::places() const {
  Places found = segments_.all();
  for (std::size_t i = 0; i < arenas_.size(); ++i) {
    const int fd = segments_.fd(setup_.lanes(static_cast<int>(i)).arena_segment());
    found.emplace_back(arenas_[i]->segment().data, fd);
  }
  return found;
}

// Gives the memory large pages, one at a time, until the lanes are done; arenas as they grow. A
// later incarnation finds them, and is told where they are. One at a time and with the priority of
// all others: a process that is killed is dead when its last thread is, and one that has to wait
// for its turn, with much to do in the kernel, made that seconds on a busy machine.
void Worker::gather_pages(int done_fd, const Places& places) {
  ::pthread_setname_np(::pthread_self(), "large pages");
  std::vector<std::uint64_t> done(places.size(), 0);
  pollfd lanes{done_fd, POLLIN, 0};
  for (int pause_ms = 0; ::poll(&lanes, 1, pause_ms) <= 0;) {
    pause_ms = kGatherEveryMs;
    for (std::size_t i = 0; i < places.size(); ++i) {
      struct stat info {};
      ::fstat(places[i].second, &info);
      const std::uint64_t whole =
          static_cast<std::uint64_t>(info.st_size) / shm::kLargePageBytes * shm::kLargePageBytes;
      if (done[i] >= whole) continue;
      shm::gather_pages(places[i].first + done[i], shm::kLargePageBytes);
      done[i] += shm::kLargePageBytes;
      pause_ms = 0;
      break;
    }
  }
}

bool Worker::all_finished() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->finished(); });
}

void Worker::say_finished(int setup_fd) {
  FromWorker finished;
  finished.mutable_finished();
  const std::string bytes = finished.SerializeAsString();
  ::send(setup_fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// The next supervisor of the feed, if there is one now: its end of a new setup socket. The log goes
// to it from then on. `refused`: one that serves another feed of this name, or has others for these
// lanes. It will never know this process: one whose supervisor died between starting it and writing
// that down is in no record.
shm::Fd Worker::find_supervisor(bool* refused) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (setup_.socket().empty() || setup_.socket().size() >= sizeof address.sun_path) return {};
  setup_.socket().copy(address.sun_path, sizeof address.sun_path - 1);
  const shm::Fd control(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // A supervisor that is stopped does not keep this thread: the lanes' end is awaited here too.
  const timeval patience{1, 0};
  ::setsockopt(control.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(control.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (::connect(control.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return {};
  }
  Request request;
  request.set_id(1);
  request.mutable_worker_rejoin()->set_feed_id(setup_.feed_id());
  request.mutable_worker_rejoin()->set_group(setup_.group());
  const std::string bytes = request.SerializeAsString();
  if (::send(control.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return {};
  std::vector<shm::Fd> descriptors;
  Reply reply;
  try {
    if (!reply.ParseFromString(receive_packet(control.get(), descriptors))) return {};
  } catch (const Error&) {
    return {};  // it did not answer in time, or has died as well
  }
  *refused = reply.error() == Reply::NO_SUCH_GROUP;
  if (!reply.has_worker_rejoin() || descriptors.size() != 2) return {};
  RF_FAILPOINT("runtime.worker.rejoined");
  ::dup2(descriptors[1].get(), STDOUT_FILENO);
  ::dup2(descriptors[1].get(), STDERR_FILENO);
  return std::move(descriptors[0]);
}

// Tells the supervisor why, and ends at once.
[[noreturn]] void give_up(int setup_fd, const Error& error) {
  FromWorker message;
  WorkerFailure& failure = *message.mutable_failure();
  failure.set_text(error.message());
  failure.set_starved(error.code() == ErrorCode::kNoMemory);
  failure.set_permanent(error.code() == ErrorCode::kConfiguration ||
                        error.code() == ErrorCode::kIncompatible);
  const std::string bytes = message.SerializeAsString();
  ::send(setup_fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::fprintf(stderr, "ringfeed-worker: %s\n", error.message().c_str());
  std::fflush(nullptr);
  ::_exit(1);
}

// The threads run the lanes; this one waits for them, and for the end of the supervisor. A process
// whose lanes have all finished stays until it is killed: batches may still wait for trainers, and
// if the supervisor dies, memory without a name lives on only with a process that holds it.
int Worker::run(int setup_fd) {
  RF_FAILPOINT("runtime.worker.ready");
  int done[2];
  if (::pipe2(done, O_CLOEXEC) != 0) {
    throw Error(system_code(errno), fmt::format("no pipe for the lanes: {}", std::strerror(errno)));
  }
  running_ = static_cast<std::uint32_t>(lanes_.size());
  const Places places = this->places();
  std::vector<std::thread> threads;
  // Where one is refused others may run already: the process ends as it stands, which is a death
  // like any other to them.
  const auto start = [&](const std::string& name, auto&& run) {
    try {
      if (RF_FAILPOINT_ERROR("runtime.worker.thread")) {
        throw std::system_error(EAGAIN, std::generic_category());
      }
      return std::thread(run);
    } catch (const std::system_error& error) {
      give_up(setup_fd,
              Error(ErrorCode::kNoMemory,
                    fmt::format("the system gives no thread for {}: {}: raise the limit of "
                                "processes (ulimit -u, or pids.max of the control group)",
                                name, error.code().message())));
    }
  };
  threads.reserve(lanes_.size());
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    threads.push_back(start("lane " + lanes_[i]->name(), [this, i, &done] {
      LaneRuntime& lane = *lanes_[i];
      ::pthread_setname_np(::pthread_self(), lane.name().substr(0, 15).c_str());
      const FaultWatch watch(*pages_[i]);
      lane.run(orders_);
      // acq_rel: the last one out sees the others' ends.
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const char byte = 1;
        (void)!::write(done[1], &byte, 1);
      }
    }));
  }
  std::thread gatherer = start("large pages", [&places, &done] { gather_pages(done[0], places); });
  FromWorker ready;
  ready.mutable_ready()->set_pid(static_cast<std::uint32_t>(::getpid()));
  ready.mutable_ready()->set_worker_version(RINGFEED_VERSION);
  const std::string bytes = ready.SerializeAsString();
  ::send(setup_fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);

  const int orphan_ms = static_cast<int>(config_.shutdown().orphan_timeout_s()) * 1000;
  pollfd watched[2] = {{done[0], POLLIN, 0}, {setup_fd, POLLIN, 0}};
  int timeout_ms = -1;
  shm::Fd link;  // to a later supervisor than the one that started this process
  int alone_ms = 0;
  bool idle = false;  // all lanes have finished
  for (;;) {
    const int events = ::poll(watched, timeout_ms < 0 ? 2 : 1, timeout_ms);
    if (events < 0 && errno == EINTR) continue;
    if (watched[0].revents != 0) {
      for (std::thread& thread : threads) thread.join();
      gatherer.join();
      // relaxed: this thread stored it.
      if (!all_finished() || orders_.leave.load(std::memory_order_relaxed)) break;
      idle = true;
      watched[0] = {-1, 0, 0};
      RF_FAILPOINT("runtime.worker.idle");
      if (watched[1].fd >= 0) say_finished(watched[1].fd);
      continue;
    }
    if (events == 0) {
      bool refused = false;
      if (shm::Fd found = find_supervisor(&refused)) {
        link = std::move(found);
        watched[1] = {link.get(), POLLIN, 0};
        timeout_ms = -1;
        // relaxed, as below; the new one has said what it desires before it answered.
        orders_.alone.store(false, std::memory_order_relaxed);
        spdlog::info("supervisor_found group={} after_ms={}", setup_.group(), alone_ms);
        if (idle) say_finished(link.get());
        continue;
      }
      alone_ms += timeout_ms;
      if (alone_ms < orphan_ms && !refused) continue;
      spdlog::warn("{} group={} after_ms={}", refused ? "replaced" : "orphaned", setup_.group(),
                   alone_ms);
      if (idle) break;
      // relaxed: read between two steps.
      orders_.leave.store(true, std::memory_order_relaxed);
      timeout_ms = -1;
      watched[1].fd = -1;
      continue;
    }
    if ((watched[1].revents & (POLLIN | POLLHUP)) != 0) {
      std::string packet(64 * 1024, '\0');
      const ssize_t got = ::recv(watched[1].fd, packet.data(), packet.size(), MSG_DONTWAIT);
      if (got > 0) answer(watched[1].fd, packet.substr(0, static_cast<std::size_t>(got)));
      if (got == 0) {
        spdlog::warn("supervisor_gone group={} stays_ms={}", setup_.group(), orphan_ms);
        timeout_ms = std::min(kLookForSupervisorMs, orphan_ms);  // the data path does not need it
        // relaxed: a parked lane looks at it every kSleepMsMax.
        orders_.alone.store(true, std::memory_order_relaxed);
        alone_ms = 0;
      }
    }
  }
  RF_FAILPOINT("runtime.worker.ending");
  ::close(done[0]);
  ::close(done[1]);
  return 0;
}

// Whatever is sent to all processes of a terminal, a job or a container: the supervisor decides
// what it means. A worker ends when it is told to, of SIGKILL, and of its own faults.
void ignore_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM,
                           SIGVTALRM, SIGXCPU, SIGXFSZ, SIGPWR, SIGIO, SIGSTKFLT}) {
    ::signal(signal, SIG_IGN);
  }
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) ::signal(signal, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// The text of a log line, which may hold names of files, as one line.
class EscapedText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& line) override {
    const std::string text = escaped({message.payload.data(), message.payload.size()});
    line.append(text.data(), text.data() + text.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedText>();
  }
};

// Nobody takes over from this supervisor, and a lane that hangs would not hear that it is gone.
void end_with(std::uint32_t supervisor) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have been gone before that.
  if (static_cast<std::uint32_t>(::getppid()) != supervisor) ::_exit(1);
}

}  // namespace

int run_worker(int setup_fd, const Registry& registry) {
  ignore_signals();
  ::fcntl(setup_fd, F_SETFD, FD_CLOEXEC);
  watch_for_faults();
  std::vector<shm::Fd> descriptors;
  const WorkerSetup setup = receive_setup(setup_fd, descriptors);
  if (setup.ends_with_supervisor()) end_with(setup.supervisor_pid());
  RF_FAILPOINT("runtime.worker.set_up");
  spdlog::set_default_logger(spdlog::stderr_logger_mt("worker/" + setup.group()));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedText>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n %*");
  spdlog::set_formatter(std::move(formatter));
  DataLoaderConfig config;
  config.ParseFromString(setup.config());
  switch (config.log().level()) {
    case LogConfig::DEBUG:
      spdlog::set_level(spdlog::level::debug);
      break;
    case LogConfig::INFO:
      spdlog::set_level(spdlog::level::info);
      break;
    case LogConfig::WARN:
      spdlog::set_level(spdlog::level::warn);
      break;
    case LogConfig::ERROR:
      spdlog::set_level(spdlog::level::err);
      break;
  }
  ::prctl(PR_SET_NAME, ("rf-" + setup.group()).substr(0, 15).c_str());
  try {
    Worker worker(setup, std::move(descriptors), registry);
    return worker.run(setup_fd);
  } catch (const Error& error) {
    give_up(setup_fd, error);
  }
}

int print_plan(const Registry& registry) {
  DataLoaderConfig config;
  if (!config.ParseFromIstream(&std::cin)) {
    throw Error(ErrorCode::kInvalidArgument, "standard input is not a serialized DataLoaderConfig");
  }
  plan_pipeline(config, registry).SerializeToOstream(&std::cout);
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}

}  // namespace ringfeed
