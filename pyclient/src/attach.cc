// Becoming a member and ceasing to be one; what is known of the feed in between.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "feed_access.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/layout.h"

namespace ringfeed::client {
namespace {

constexpr uint64_t kAttachId = 1;
constexpr uint64_t kDetachId = 2;
constexpr uint64_t kAtExitId = 5;
constexpr uint64_t kLookAgainNs = 100'000'000;
// With neither timeout_ms nor answer_ms a supervisor that exists gets this long to answer.
constexpr int64_t kAnswerMs = 10'000;
// So long a new member waits for lanes that have to hear of its group; what is left of the time for
// the supervisor's answer, if that is less.
constexpr int64_t kAdmissionMs = 5'000;
constexpr int64_t kDetachMs = 1'000;
// Pause between two looks for a socket that is not there yet. Starting a feed takes much longer.
constexpr int64_t kRetryMs = 10;

enum Received { kControlFd, kFeedControlFd, kGroupFd, kPayloadFd, kFds };

bool valid_name(const char* name) {
  if (name == nullptr || name[0] == '\0') return false;
  const size_t count = strlen(name);
  if (count > 64) return false;
  for (size_t i = 0; i < count; ++i) {
    const char c = name[i];
    const bool ok = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                    c == '_' || c == '.' || c == '-';
    if (!ok) return false;
  }
  return strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

rf_status check_options(const rf_attach_options& options, const char* group) {
  if (!valid_name(options.feed)) {
    return fail(nullptr, RF_INVALID,
                "attach: '%s' is not a feed name: use 1 to 64 characters from A-Z a-z 0-9 _ . -",
                options.feed == nullptr ? "" : options.feed);
  }
  if (!valid_name(group)) {
    return fail(nullptr, RF_INVALID,
                "attach: '%s' is not a group name: use 1 to 64 characters from A-Z a-z 0-9 _ . -",
                group);
  }
  if (options.kind > RF_RANKED || options.start > RF_START_NEWEST ||
      options.policy > RF_POLICY_DETACH || options.redeliver > RF_AT_MOST_ONCE) {
    return fail(nullptr, RF_INVALID,
                "attach: kind %u, start %u, policy %u, redeliver %u: one of them is none of the "
                "values in ringfeed.h",
                options.kind, options.start, options.policy, options.redeliver);
  }
  if (options.output != nullptr && options.output[0] != '\0' && !valid_name(options.output)) {
    return fail(
        nullptr, RF_INVALID,
        "attach: '%s' is not an alias of an output: use 1 to 64 characters from A-Z a-z 0-9 _ -",
        options.output);
  }
  if (options.observe != 0 &&
      (options.kind != 0 || options.policy != 0 || options.redeliver != 0 ||
       options.max_tries != 0 || options.max_hold != 0 || options.stall_ms != 0 ||
       options.rejoin_ms != 0 || options.position != 0)) {
    return fail(nullptr, RF_INVALID,
                "attach: an observer is in no group: leave out all that is about a group");
  }
  if (options.view > RF_VIEW_PRIVATE) {
    return fail(nullptr, RF_INVALID, "attach: view %u is neither read-only nor private",
                options.view);
  }
  if (options.kind == RF_RANKED &&
      (options.world < 1 || options.world > shm::kMembersMax || options.rank >= options.world)) {
    return fail(nullptr, RF_INVALID,
                "attach: rank %u of world %u: world must be 1 to %u, rank 0 to world - 1",
                options.rank, options.world, shm::kMembersMax);
  }
  if (options.position > kSeqMax) {
    return fail(nullptr, RF_INVALID, "attach: position %llu: batches have numbers from 1 to %llu",
                static_cast<unsigned long long>(options.position),
                static_cast<unsigned long long>(kSeqMax));
  }
  return RF_OK;
}

rf_status status_of_refusal(int64_t error) {
  switch (error) {  // Reply.ErrorCode
    case 1:
      return RF_INVALID;
    case 2:
      return RF_INCOMPATIBLE;
    case 3:
      return RF_PERMISSION;
    case 8:
      return RF_FEED_FAILED;
    default:
      return RF_REFUSED;
  }
}

// False if a signal came.
bool pause_ms(int64_t ms) {
  const timespec time{ms / 1000, ms % 1000 * 1'000'000};
  return nanosleep(&time, nullptr) == 0;
}

// `path` gets the socket's path, to find it again.
rf_status connect_or_wait(const rf_attach_options& options, const Deadline& deadline, char* path,
                          size_t path_room, int* fd) {
  for (;;) {
    int error = 0;
    *fd = connect_feed(options, path, path_room, &error);
    if (*fd >= 0) return RF_OK;
    if (error == EACCES || error == EPERM) {
      return fail(nullptr, RF_PERMISSION,
                  "feed %s: its socket %s belongs to another user: attach as the user that runs "
                  "the feed",
                  options.feed, path);
    }
    if (error == ENAMETOOLONG) {
      return fail(nullptr, RF_INVALID,
                  "feed %s: the socket path %s has %zu bytes, but the system allows 107: use a "
                  "shorter directory",
                  options.feed, path, strlen(path));
    }
    if (error != ENOENT && error != ECONNREFUSED && error != ENOTDIR && error != EAGAIN) {
      return fail(nullptr, RF_IO, "feed %s: cannot connect to %s: %s", options.feed, path,
                  strerror(error));
    }
    const int64_t left = deadline.left_ms(kRetryMs);
    if (left == 0) {
      return fail(nullptr, RF_NO_SUCH_FEED,
                  "feed %s: nobody serves %s (%s): start it with `ringfeed run`, or check the name "
                  "and RINGFEED_SOCKET_DIR",
                  options.feed, path, strerror(error));
    }
    if (!pause_ms(left)) {
      return fail(nullptr, RF_INTERRUPTED, "feed %s: interrupted while waiting for it",
                  options.feed);
    }
  }
}

// Takes back a request whose answer will not be waited for: the supervisor reads both in order.
void withdraw(int fd) {
  uint8_t message[64];
  const size_t bytes = encode_detach(false, false, kDetachId, message, sizeof message);
  send_message(fd, message, bytes);
}

void close_all(int* fds, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (fds[i] >= 0) close(fds[i]);
    fds[i] = -1;
  }
}

struct Hello {
  AttachReply reply;
  uint8_t message[kMessageBytes];
};

// Sends the request and waits for its answer. With RF_OK: reply and the four descriptors.
rf_status request_attach(int socket, const rf_attach_options& options, const char* group,
                         const Deadline& deadline, Hello* hello, int* fds) {
  const char* client = options.client != nullptr && options.client[0] != '\0'
                           ? options.client
                           : program_invocation_short_name;
  char client_cut[65];
  snprintf(client_cut, sizeof client_cut, "%s", client);
  const size_t bytes =
      encode_attach(options, group, client_cut, kAttachId, hello->message, sizeof hello->message);
  // Whoever is refused is disconnected at once, and the reason lies there to be read.
  const bool sent = bytes != 0 && send_message(socket, hello->message, bytes);
  const int error = sent ? 0 : errno;
  if (!sent && error != EPIPE && error != ECONNRESET) {
    return fail(nullptr, RF_IO, "feed %s: its supervisor does not accept the request: %s",
                options.feed, strerror(error));
  }
  for (;;) {
    size_t fd_count = 0;
    const ssize_t received = receive_message(socket, deadline, hello->message,
                                             sizeof hello->message, fds, kFds, &fd_count);
    uint64_t id = 0;
    if (received <= 0) {
      if (received == -1) {
        withdraw(socket);
        return fail(nullptr, RF_TIMEOUT,
                    "feed %s: its supervisor is running but has not answered in time: it may still "
                    "be starting, see `ringfeed status %s`",
                    options.feed, options.feed);
      }
      if (received == -2) {
        withdraw(socket);
        return fail(nullptr, RF_INTERRUPTED, "feed %s: interrupted while attaching", options.feed);
      }
      return fail(nullptr, RF_IO,
                  "feed %s: its supervisor closed the connection without an answer%s%s: either it "
                  "has ended, or it has no memory to answer: attach again",
                  options.feed, received == 0 ? "" : ": ", received == 0 ? "" : strerror(errno));
    }
    if (!decode_reply(hello->message, static_cast<size_t>(received), &id, &hello->reply)) {
      close_all(fds, fd_count);
      return fail(nullptr, RF_DAMAGED,
                  "feed %s: its supervisor sent %zd bytes that are not a valid reply", options.feed,
                  received);
    }
    // An event of the feed that came first; but a refusal of the connection has no number either.
    if (id != kAttachId && hello->reply.error == 0) {
      close_all(fds, fd_count);
      continue;
    }
    if (hello->reply.error != 0) {
      close_all(fds, fd_count);
      return fail(nullptr, status_of_refusal(hello->reply.error), "%s",
                  hello->reply.text[0] != '\0' ? hello->reply.text
                                               : "the supervisor refused without giving a reason");
    }
    // The answer's own numbers first: a supervisor of another version may send other descriptors.
    if (hello->reply.abi_major != shm::kAbiMajor || hello->reply.layout_hash != shm::kLayoutHash) {
      close_all(fds, fd_count);
      return fail(
          nullptr, RF_INCOMPATIBLE,
          "feed %s: its ABI is %u.%u with layout %#018llx, but this library reads %u.%u with "
          "%#018llx: use the same ringfeed version for supervisor and trainers",
          options.feed, hello->reply.abi_major, hello->reply.abi_minor,
          static_cast<unsigned long long>(hello->reply.layout_hash), shm::kAbiMajor, shm::kAbiMinor,
          static_cast<unsigned long long>(shm::kLayoutHash));
    }
    // Without a group's page between them.
    if (options.observe != 0 && fd_count == kFds - 1) {
      fds[kPayloadFd] = fds[kGroupFd];
      fds[kGroupFd] = -1;
      fd_count = kFds;
    }
    if (fd_count != kFds || !hello->reply.has_feed_id || hello->reply.tensor_count == 0 ||
        hello->reply.member_index >= shm::kMembersMax) {
      close_all(fds, fd_count);
      return fail(
          nullptr, RF_DAMAGED,
          "feed %s: the answer of its supervisor has %zu descriptors (4 expected), %u tensors, "
          "member %u",
          options.feed, fd_count, hello->reply.tensor_count, hello->reply.member_index);
    }
    return RF_OK;
  }
}

// Can the private pages of one slot be dropped, and without those of its neighbours?
rf_status check_private(const rf_feed* feed) {
  if (!feed->private_view) return RF_OK;
  const long page = sysconf(_SC_PAGESIZE);
  if (page <= 0 || shm::kPageBytes % static_cast<uint64_t>(page) != 0 ||
      feed->slot_bytes % static_cast<uint64_t>(page) != 0) {
    return fail(nullptr, RF_INVALID,
                "feed %s: its slots of %llu bytes are not whole pages of this system (%ld bytes), "
                "so a private view is impossible: use read-only batches, and copies of them",
                feed->name, static_cast<unsigned long long>(feed->slot_bytes), page);
  }
  // Now and not with the first batch. It also undoes the copying of everything in a program that
  // has locked its future memory.
  if (!drop_private(feed->payload.data, feed->payload.bytes)) {
    return fail(nullptr, RF_IO,
                "feed %s: this system cannot drop private pages (%s): use read-only batches, and "
                "copies of them",
                feed->name, strerror(errno));
  }
  return RF_OK;
}

// Lengths that this library can read, and that fit with as many rows as there can be. What varies
// otherwise is compared batch by batch.
rf_status check_shape(rf_feed* feed, const rf_tensor& tensor) {
  // As long as everything that varies is 1.
  rf_batch batch{};
  batch.rows = feed->schema.rows_max;
  for (uint32_t& length : batch.ragged) length = 1;
  bool ragged = false;
  for (uint32_t d = 0; d < tensor.dims; ++d) {
    const int64_t length = tensor.shape[d];
    if (length < -1 - kRaggedMax || (length == -1 && d > 0)) {
      return fail(nullptr, RF_INCOMPATIBLE,
                  "feed %s: dimension %u of tensor %s is %lld, which this library does not know: "
                  "use the same ringfeed version for supervisor and trainers",
                  feed->name, d, tensor.name, static_cast<long long>(length));
    }
    ragged = ragged || length < -1;
  }
  if (ragged) {
    // The widest batch may have few rows.
    if (batch.rows > 1) batch.rows = 1;
    feed->ragged = true;
  }
  if (!fits(tensor, batch)) {
    return fail(nullptr, RF_INCOMPATIBLE,
                "feed %s: tensor %s does not fit its %llu bytes with %u rows", feed->name,
                tensor.name, static_cast<unsigned long long>(tensor.bytes), feed->schema.rows_max);
  }
  return RF_OK;
}

rf_status map_all(rf_feed* feed, const Hello& hello, const int* fds) {
  const uint8_t* id = hello.reply.feed_id;
  rf_status status = map_segment(fds[kControlFd], shm::SegmentKind::kControl, "control", id,
                                 Access::kRead, &feed->control);
  if (status == RF_OK) {
    status = map_segment(fds[kFeedControlFd], shm::SegmentKind::kFeedControl, "feed control", id,
                         Access::kRead, &feed->feed_control);
  }
  if (status == RF_OK && !feed->observes) {
    status = map_segment(fds[kGroupFd], shm::SegmentKind::kGroup, "group", id, Access::kWrite,
                         &feed->group_segment);
  }
  if (status == RF_OK) {
    status = map_segment(fds[kPayloadFd], shm::SegmentKind::kPayload, "payload", id,
                         feed->private_view && !feed->observes ? Access::kPrivate : Access::kRead,
                         &feed->payload);
  }
  if (status != RF_OK) return status;

  const uint32_t* geometry = feed->feed_control.header()->geometry;
  feed->lanes = geometry[0];
  feed->slots = geometry[1];
  feed->descriptors = geometry[2];
  feed->slot_bytes = uint64_t{geometry[4]} << 32 | geometry[3];
  feed->ordered = geometry[5] != 0;
  const bool sound =
      feed->lanes > 0 && feed->slots >= feed->lanes && feed->slots % feed->lanes == 0 &&
      feed->descriptors >= feed->slots && feed->descriptors % feed->lanes == 0 &&
      feed->descriptors <= shm::kDescriptorsMax &&
      feed->feed_control.bytes >= shm::feed_control_bytes(feed->lanes, feed->descriptors) &&
      (feed->observes || feed->group_segment.bytes >= shm::kGroupSegmentBytes) &&
      feed->slot_bytes <= (feed->payload.bytes - shm::kPageBytes) / feed->slots;
  if (!sound) {
    return fail(nullptr, RF_DAMAGED,
                "feed %s: %llu lanes, %llu slots of %llu bytes and %llu descriptors contradict "
                "each other or their segments (payload %llu bytes)",
                feed->name, static_cast<unsigned long long>(feed->lanes),
                static_cast<unsigned long long>(feed->slots),
                static_cast<unsigned long long>(feed->slot_bytes),
                static_cast<unsigned long long>(feed->descriptors),
                static_cast<unsigned long long>(feed->payload.bytes));
  }
  if (!feed->observes) {
    feed->group = feed->group_segment.at<shm::GroupPage>(shm::kPageBytes);
    if (status = check_private(feed); status != RF_OK) return status;
  }

  feed->schema.struct_size = sizeof feed->schema;
  feed->schema.tensor_count = hello.reply.tensor_count;
  feed->schema.rows_max = hello.reply.rows_max;
  feed->schema.slot_bytes = feed->slot_bytes;
  feed->schema.tensors = feed->tensors;
  for (uint32_t i = 0; i < hello.reply.tensor_count; ++i) {
    feed->tensors[i] = hello.reply.tensors[i];
    const rf_tensor& tensor = feed->tensors[i];
    if (tensor.bytes > feed->slot_bytes || tensor.offset > feed->slot_bytes - tensor.bytes) {
      return fail(nullptr, RF_DAMAGED,
                  "feed %s: tensor %s of %llu bytes at %llu does not fit a slot of %llu",
                  feed->name, tensor.name, static_cast<unsigned long long>(tensor.bytes),
                  static_cast<unsigned long long>(tensor.offset),
                  static_cast<unsigned long long>(feed->slot_bytes));
    }
    if (const rf_status told = check_shape(feed, tensor); told != RF_OK) return told;
  }
  return RF_OK;
}

void unmap_all(rf_feed* feed) {
  unmap(&feed->control);
  unmap(&feed->feed_control);
  unmap(&feed->group_segment);
  unmap(&feed->payload);
  if (feed->socket >= 0) close(feed->socket);
  feed->socket = -1;
  if (feed->group_fd >= 0) close(feed->group_fd);
  feed->group_fd = -1;
}

void put_owner(rf_feed* feed) {
  // acq_rel: as in put_user.
  if (feed->owners.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  pthread_mutex_destroy(&feed->claiming);
  free(feed);
}

// Also for a supervisor that never reads the message, because it is dead or about to die.
void mark_left(rf_feed* feed, bool failed) {
  std::atomic<uint32_t>& state = feed->group->members[feed->member].state;
  const auto left =
      static_cast<uint32_t>(failed ? shm::MemberState::kLeftFailed : shm::MemberState::kLeft);
  // relaxed: written by this member; the supervisor alone changes it, to kFree.
  uint32_t seen = state.load(std::memory_order_relaxed);
  while (seen == static_cast<uint32_t>(shm::MemberState::kLive) ||
         seen == static_cast<uint32_t>(shm::MemberState::kAtEnd)) {
    // release, pairs with the supervisor's acquire: what was held has been given back.
    if (state.compare_exchange_weak(seen, left, std::memory_order_release,
                                    std::memory_order_relaxed)) {
      return;
    }
  }
}

// Tells the supervisor and gives it a moment to answer, so that the member's place is free when
// this returns. Silence is no harm: the next supervisor finds it in the page.
void leave(rf_feed* feed) {
  if (feed->observes) return;
  // relaxed: stored before the last use was given up.
  const bool failed = feed->left_failed.load(std::memory_order_relaxed) != 0;
  mark_left(feed, failed);
  RF_FAILPOINT("client.leave.asking");
  uint8_t message[4096];
  const size_t bytes = encode_detach(failed, false, kDetachId, message, sizeof message);
  // A supervisor that came after the one that died is told who leaves.
  if (!send_message(feed->socket, message, bytes) &&
      !(find_supervisor(feed, true) && send_message(feed->socket, message, bytes))) {
    return;
  }
  RF_FAILPOINT("client.leave.asked");
  const Deadline deadline = Deadline::after(kDetachMs);
  auto* reply = static_cast<AttachReply*>(calloc(1, sizeof(AttachReply)));
  while (reply != nullptr) {
    size_t fd_count = 0;
    const ssize_t received =
        receive_message(feed->socket, deadline, message, sizeof message, nullptr, 0, &fd_count);
    if (received == -2) continue;
    uint64_t id = 0;
    if (received <= 0 ||
        (decode_reply(message, static_cast<size_t>(received), &id, reply) && id == kDetachId)) {
      break;
    }
  }
  free(reply);
}

// Waits until the producing lanes know the group: then what is ready is given to whoever asks
// first, also if he does not wait. False: not yet, because a lane is stopped or being replaced, or
// a signal came, or it will not be any more. The member is one all the same.
bool wait_admitted(const rf_feed* feed, const Deadline& deadline, bool until_signal) {
  const shm::GroupHead& head = feed->group->head;
  // acquire, pairs with the supervisor's release: start is that of this admission.
  while (head.state.load(std::memory_order_acquire) ==
         static_cast<uint32_t>(shm::GroupState::kJoining)) {
    // relaxed: whoever fails or stops the feed admits nobody; rf_next gives the reason.
    const uint32_t phase = feed_state(feed).phase.load(std::memory_order_relaxed);
    if (phase > static_cast<uint32_t>(shm::FeedPhase::kDraining) || deadline.left_ms(1) == 0) {
      return false;
    }
    const timespec pause{0, 1'000'000};
    if (nanosleep(&pause, nullptr) != 0 && until_signal) return false;
  }
  return true;
}

// Looks whether a caller who asked for a position can have it: a batch that was held when it asked
// may have been given up before the lanes knew of the group.
rf_status check_position(const rf_feed* feed, bool admitted) {
  if (feed->position == 0) return RF_OK;
  if (!admitted) {
    return fail(nullptr, RF_TIMEOUT, "feed %s: group %s was not admitted in time", feed->name,
                feed->group_name);
  }
  // relaxed: ordered by the load of the state
  const uint64_t start = feed->group->head.start.load(std::memory_order_relaxed);
  if (start <= feed->position) return RF_OK;
  return fail(nullptr, RF_REFUSED,
              "feed %s, group %s: batch %llu is no longer held, the group begins with %llu: start "
              "the feed from a snapshot of that time (ringfeed run --resume DIR)",
              feed->name, feed->group_name, static_cast<unsigned long long>(feed->position),
              static_cast<unsigned long long>(start));
}

}  // namespace

// ---- the end of the process ----

namespace {

// Members of this process, for its exit.
pthread_mutex_t living_lock = PTHREAD_MUTEX_INITIALIZER;
rf_feed* living = nullptr;

// The supervisor is told that this member leaves of itself when its process has ended.
void announce_end(const rf_feed* feed) {
  uint8_t message[64];
  const size_t bytes = encode_detach(false, true, kAtExitId, message, sizeof message);
  send(feed->socket, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// A process that exits with status 0 has done its work: its groups need not wait for a successor.
// What its other threads still read stays claimed until it has ended. After fork() the list is the
// parent's.
void at_exit(int status, void*) {
  if (status != 0 || pthread_mutex_trylock(&living_lock) != 0) return;
  for (const rf_feed* feed = living; feed != nullptr; feed = feed->next_living) {
    // relaxed: stored by this process before it came to its end.
    if (feed->pid != getpid() || feed->left_failed.load(std::memory_order_relaxed) != 0) continue;
    announce_end(feed);
  }
  pthread_mutex_unlock(&living_lock);
}

// Another thread of the parent may have had the lock.
void forget_parents() {
  living_lock = PTHREAD_MUTEX_INITIALIZER;
  living = nullptr;
}

void note_living(rf_feed* feed) {
  static bool registered = false;
  pthread_mutex_lock(&living_lock);
  // on_exit, because a handler of atexit() does not hear the status.
  if (!registered) {
    registered =
        pthread_atfork(nullptr, nullptr, forget_parents) == 0 && on_exit(at_exit, nullptr) == 0;
  }
  feed->next_living = living;
  living = feed;
  pthread_mutex_unlock(&living_lock);
}

void forget_living(const rf_feed* feed) {
  pthread_mutex_lock(&living_lock);
  for (rf_feed** at = &living; *at != nullptr; at = &(*at)->next_living) {
    if (*at != feed) continue;
    *at = feed->next_living;
    break;
  }
  pthread_mutex_unlock(&living_lock);
}

}  // namespace

bool find_supervisor(rf_feed* feed, bool now) {
  const uint64_t time = now_ns();
  uint64_t not_before = feed->look_again_ns.load(std::memory_order_relaxed);
  // relaxed: decides which thread looks, and how often.
  if ((!now && time < not_before) ||
      !feed->look_again_ns.compare_exchange_strong(not_before, time + kLookAgainNs,
                                                   std::memory_order_relaxed)) {
    return false;
  }
  int error = 0;
  const int fd = connect_path(feed->socket_path, false, &error);
  if (fd < 0) return false;
  uint8_t message[96];
  const size_t bytes =
      encode_rejoin(feed->feed_control.header()->feed_id, feed->output, feed->group_index,
                    feed->member, feed->epoch, kRejoinId, message, sizeof message);
  const bool sent = send_message(fd, message, bytes);
  RF_FAILPOINT("client.rejoin.sent");
  // In one act, so that other threads always find an open socket there.
  if (sent) dup3(fd, feed->socket, O_CLOEXEC);
  close(fd);
  if (sent) feed->supervisor_gone.store(0, std::memory_order_relaxed);  // relaxed: a hint
  return sent;
}

void put_user(rf_feed* feed) {
  // acq_rel: release, so that this call's last accesses are over before another thread unmaps;
  // acquire, so that the thread that unmaps has seen everybody else's end.
  if (feed->users.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  forget_living(feed);
  leave(feed);
  unmap_all(feed);
  put_owner(feed);
}

}  // namespace ringfeed::client

using namespace ringfeed;          // NOLINT: this file defines the C functions
using namespace ringfeed::client;  // NOLINT

extern "C" rf_status rf_attach(const rf_attach_options* given, rf_feed** out) {
  if (out != nullptr) *out = nullptr;
  if (out == nullptr || given == nullptr ||
      given->struct_size < offsetof(rf_attach_options, group)) {
    return fail(nullptr, RF_INVALID,
                "attach: options and a place for the handle are needed, with struct_size set to "
                "sizeof(rf_attach_options)");
  }
  // A caller built with an older header knows fewer fields: the rest is 0, the default.
  rf_attach_options options{};
  memcpy(&options, given,
         given->struct_size < sizeof options ? given->struct_size : sizeof options);
  const char* group = options.group != nullptr ? options.group : "default";
  if (const rf_status status = check_options(options, group); status != RF_OK) return status;

  auto* feed = static_cast<rf_feed*>(calloc(1, sizeof(rf_feed)));
  auto* hello = static_cast<Hello*>(calloc(1, sizeof(Hello)));
  if (feed == nullptr || hello == nullptr) {
    free(feed);
    free(hello);
    return fail(nullptr, RF_NO_MEMORY, "attach: no memory for the handle");
  }
  feed->pid = getpid();
  feed->socket = -1;
  feed->group_fd = -1;
  pthread_mutex_init(&feed->claiming, nullptr);
  feed->private_view = options.view == RF_VIEW_PRIVATE;
  feed->on_notice = options.on_notice;
  feed->notice_user = options.notice_user;
  feed->active_ns.store(now_ns(), std::memory_order_relaxed);  // relaxed: nobody else has it yet
  feed->position = options.position;
  snprintf(feed->name, sizeof feed->name, "%s", options.feed);
  feed->observes = options.observe != 0;
  snprintf(feed->group_name, sizeof feed->group_name, "%s", feed->observes ? "" : group);

  const Deadline deadline = Deadline::after(options.timeout_ms);
  int fds[kFds] = {-1, -1, -1, -1};
  Deadline answer = deadline;
  rf_status status = connect_or_wait(options, deadline, feed->socket_path, sizeof feed->socket_path,
                                     &feed->socket);
  if (status == RF_OK) {
    if (options.answer_ms != 0) answer = Deadline::after(options.answer_ms);
    if (options.answer_ms == 0 && options.timeout_ms == 0) answer = Deadline::after(kAnswerMs);
    status = request_attach(feed->socket, options, group, answer, hello, fds);
  }
  bool member = false;
  if (status == RF_OK) {
    member = !feed->observes;
    RF_FAILPOINT("client.attach.member");
    status = RF_FAILPOINT_ERROR("client.attach.map")
                 ? fail(nullptr, RF_IO, "feed %s: a test wants no mapping", feed->name)
                 : map_all(feed, *hello, fds);
  }
  if (status == RF_OK) {
    feed->group_fd = fds[kGroupFd];
    fds[kGroupFd] = -1;
  }
  close_all(fds, kFds);
  if (status == RF_OK) {
    feed->member = static_cast<uint8_t>(hello->reply.member_index);
    feed->group_index = hello->reply.group_index;
    feed->output = hello->reply.output;
    memcpy(feed->output_alias, hello->reply.output_alias, sizeof feed->output_alias);
    feed->supervisor_pid = hello->reply.supervisor_pid;
    // In another pid namespace the feed's numbers would name strangers, or nobody.
    feed->sees_processes =
        feed->supervisor_pid != 0 &&
        (kill(static_cast<pid_t>(feed->supervisor_pid), 0) == 0 || errno == EPERM);
  }
  if (status == RF_OK && feed->observes) {
    // The supervisor has nothing to do with it from here on.
    close(feed->socket);
    feed->socket = -1;
  } else if (status == RF_OK) {
    // acquire, pairs with the supervisor's release of the group's state: the head is that of this
    // admission.
    feed->group->head.state.load(std::memory_order_acquire);
    feed->epoch = feed->group->head.epoch.load(std::memory_order_relaxed);  // relaxed: see above
    const bool asks = feed->position != 0;
    const Deadline patience = Deadline::after(asks ? kAnswerMs : answer.left_ms(kAdmissionMs));
    status = check_position(feed, wait_admitted(feed, patience, !asks));
  }
  if (status == RF_OK) {
    feed->users.store(1, std::memory_order_relaxed);   // relaxed, both: nobody else has the
    feed->owners.store(2, std::memory_order_relaxed);  // handle yet
    if (!feed->observes) note_living(feed);
    RF_FAILPOINT("client.attach.done");
    *out = feed;
  } else {
    if (member) withdraw(feed->socket);
    unmap_all(feed);
    feed->owners.store(1, std::memory_order_relaxed);  // relaxed: nobody else has it
    put_owner(feed);
  }
  free(hello);
  return status;
}

namespace {

rf_status leave_as(rf_feed* feed, bool failed) {
  if (feed == nullptr) return fail(feed, RF_INVALID, "leave: a handle is needed");
  if (feed->pid != getpid()) return forked(feed);
  // relaxed: read after the last use has been given up, below.
  if (failed) feed->left_failed.store(1, std::memory_order_relaxed);
  // acq_rel: exactly one call gives up the membership's use; waiting threads see it with acquire.
  if (feed->left.exchange(1, std::memory_order_acq_rel) != 0) return RF_OK;
  // What is still held has been worked on or will not be: others need not wait for it to come
  // back.
  if (!feed->observes) mark_at_end(feed);
  RF_FAILPOINT("client.leave.at_end");
  // It leaves with the last batch that is released, or, if none ever is, with the process.
  if (!feed->observes && !failed && feed->held_count.load(std::memory_order_relaxed) != 0) {
    announce_end(feed);
  }
  put_user(feed);
  return RF_OK;
}

}  // namespace

extern "C" rf_status rf_leave(rf_feed* feed) { return leave_as(feed, false); }

extern "C" rf_status rf_leave_failed(rf_feed* feed) { return leave_as(feed, true); }

extern "C" rf_status rf_detach(rf_feed* feed) {
  if (feed == nullptr) return RF_OK;
  const rf_status status = rf_leave(feed);
  if (status == RF_OK) put_owner(feed);
  return status;
}

extern "C" const rf_schema_info* rf_schema(const rf_feed* feed) {
  if (feed == nullptr || feed->pid != getpid()) return nullptr;
  return &feed->schema;
}

extern "C" rf_status rf_payload(rf_feed* feed, const void** data, uint64_t* bytes) {
  if (feed == nullptr || data == nullptr || bytes == nullptr) {
    return fail(feed, RF_INVALID, "payload: a handle and places for the results are needed");
  }
  if (feed->pid != getpid()) return forked(feed);
  const User user(feed);
  // acquire, pairs with rf_leave.
  if (!user || feed->left.load(std::memory_order_acquire) != 0) return detached(feed);
  if (feed->observes) {
    return fail(feed, RF_INVALID, "feed %s: an observer gets copies, none of the feed's memory",
                feed->name);
  }
  if (feed->private_view) {
    return fail(
        feed, RF_INVALID,
        "feed %s: attached with a private view, whose pages a device must not read: registering "
        "would copy them, and the copies would not change with the feed; attach read-only",
        feed->name);
  }
  *data = feed->payload.data;
  *bytes = feed->payload.bytes;
  return RF_OK;
}

extern "C" const char* rf_last_error(const rf_feed* feed) { return last_error(feed); }

extern "C" const char* rf_version(void) { return RINGFEED_VERSION; }
