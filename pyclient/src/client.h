// The inside of the client library: the handle, the conversation with the supervisor, the segments.
//
// Built on libc alone: no exceptions, no RTTI, no libstdc++ at run time (headers such as <atomic>
// that compile to instructions are used). Memory comes from calloc; owners release explicitly.
#pragma once

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <atomic>

#include "ringfeed.h"
#include "ringfeed/shm/feed.h"
#include "ringfeed/shm/lane_page.h"

namespace ringfeed::client {

inline constexpr uint32_t kTensorsMax = 64;
// Lengths that may vary from batch to batch: those of rf_batch.ragged.
inline constexpr int64_t kRaggedMax = 16;
inline constexpr size_t kErrorBytes = 1024;
inline constexpr size_t kMessageBytes = size_t{64} * 1024;
// A wait never lasts longer before the phase of the feed and the group are looked at again: the
// last resort, should a waker die between its store and its ring.
inline constexpr int64_t kSliceMs = 50;
// A claim word has 40 bits for the number of a batch.
inline constexpr uint64_t kSeqMax = (uint64_t{1} << 40) - 1;

// ---- errors: one text per thread, so that no lock and no race can mix two threads' sentences ----

// Notes the sentence of this thread's last failure and returns `status`, so that it can be returned
// on. `feed` is only compared by rf_last_error, never followed.
rf_status fail(const void* feed, rf_status status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
const char* last_error(const void* feed);

// ---- time ----

uint64_t now_ns();

struct Deadline {
  uint64_t at_ns;  // CLOCK_MONOTONIC
  bool never;

  static Deadline after(int64_t timeout_ms);
  // Milliseconds left, at most `most`; 0 when it has passed.
  [[nodiscard]] int64_t left_ms(int64_t most) const;
};

// Of the request in which a member tells a later supervisor of itself.
constexpr uint64_t kRejoinId = 3;
// Of one that asks for whom it waits, or who has waited for it.
constexpr uint64_t kWaitId = 4;
// Room for what a supervisor says without being asked, and for its answer to that.
constexpr size_t kHeardBytes = 8192;

// ---- messages (codec.cc): the attach part of proto/control.proto, written and read by hand ----

struct AttachReply {
  int64_t error;   // Reply.ErrorCode; 0 none
  char text[768];  // Reply.text
  uint32_t abi_major;
  uint32_t abi_minor;
  uint64_t layout_hash;
  uint8_t feed_id[16];
  bool has_feed_id;
  uint32_t group_index;
  uint32_t member_index;
  uint32_t rows_max;
  uint64_t slot_bytes;
  uint32_t supervisor_pid;
  uint32_t output;
  char output_alias[72];
  uint32_t tensor_count;
  rf_tensor tensors[kTensorsMax];
};

// The serialized Request; returns its bytes, 0 if it does not fit.
size_t encode_attach(const rf_attach_options& options, const char* group, const char* client,
                     uint64_t id, uint8_t* out, size_t room);
// `failed`: a successor may come; `at_exit`: not now, but when this process has ended.
size_t encode_detach(bool failed, bool at_exit, uint64_t id, uint8_t* out, size_t room);
size_t encode_wait(uint64_t waited_ms, uint64_t id, uint8_t* out, size_t room);
// Calls `give` for each notice in the answer to that, with the words that `say` makes of the
// supervisor's; false, perhaps after some, if the bytes are no message. *count: how many.
struct Notices {
  rf_on_notice give;
  void* user;
  // Puts the sentence for a notice into out; `text`: the supervisor's.
  void (*say)(const void* feed, const rf_notice& notice, const char* text, char* out, size_t room);
  const void* feed;
  uint64_t waited_ms;
  uint32_t given;
};
bool for_each_notice(const uint8_t* bytes, size_t count, Notices* notices);
// Of what the supervisor says without being asked: RF_NOTICE_LEFT_OUT, RF_NOTICE_STANDS_STILL, with
// its text; 0: it is no notice.
uint32_t decode_notice(const uint8_t* bytes, size_t count, char* text, size_t room);
size_t encode_rejoin(const uint8_t* feed_id, uint32_t output, uint32_t group, uint32_t member,
                     uint64_t epoch, uint64_t id, uint8_t* out, size_t room);
// False if the bytes are no message. *id: Reply.id, 0 for an event.
bool decode_reply(const uint8_t* bytes, size_t count, uint64_t* id, AttachReply* reply);

// Reply.id; false if the bytes are no message.
bool decode_id(const uint8_t* bytes, size_t count, uint64_t* id);

// Reply.error and Reply.text; false if the bytes are no message.
bool decode_error(const uint8_t* bytes, size_t count, int64_t* error, char* text, size_t room);
// A message to stages, as stage_control in a Request; `stage` may be null.
size_t encode_stage_control(const char* stage, const uint8_t* request, size_t request_bytes,
                            uint64_t key, uint64_t id, uint8_t* out, size_t room);
// A request for the metrics.
size_t encode_metrics(bool as_json, uint64_t id, uint8_t* out, size_t room);
// The MetricsReply in a Reply, or the JSON in that; false if the bytes are none.
bool find_metrics(const uint8_t* bytes, size_t count, bool as_json, const uint8_t** found,
                  size_t* found_bytes);
// Is the message beside these bytes, in a descriptor (supervisor/os/packet.h)?
bool is_in_descriptor(const uint8_t* bytes, size_t count);
// Calls `answer` for each answer in a Reply; false, perhaps after some, if the bytes are none.
bool for_each_answer(const uint8_t* bytes, size_t count, rf_answer answer, void* user);

// ---- the control socket (socket.cc) ----

// Connects to the feed's supervisor; the descriptor or -1, with the path tried (the last one) and
// the errno in *error (ENAMETOOLONG when a path does not fit a socket address).
int connect_feed(const rf_attach_options& options, char* path, size_t path_room, int* error);
// To a path; with `wait` false it gives up where it would have to wait (EAGAIN).
int connect_path(const char* path, bool wait, int* error);
bool send_message(int fd, const uint8_t* bytes, size_t count);
// Receives one message with up to `fd_room` descriptors. > 0: its bytes; 0: closed by the peer;
// -1: timeout; -2: interrupted; -3: error (errno).
ssize_t receive_message(int fd, const Deadline& deadline, uint8_t* bytes, size_t room, int* fds,
                        size_t fd_room, size_t* fd_count);

// ---- arrays ----

// Does this array have room for its items in this batch? Of a dtype that is not known one byte
// each.
inline bool fits(const rf_tensor& tensor, const rf_batch& batch) {
  uint64_t bytes = tensor.item_bytes == 0 ? 1 : tensor.item_bytes;
  bool empty = false;
  bool too_many = false;
  for (uint32_t d = 0; d < tensor.dims; ++d) {
    const uint64_t length = rf_tensor_length(&tensor, &batch, d);
    empty = empty || length == 0;
    too_many = too_many || __builtin_mul_overflow(bytes, length, &bytes);
  }
  return empty || (!too_many && bytes <= tensor.bytes);
}

// ---- segments (segment.cc) ----

struct Map {
  uint8_t* data;
  uint64_t bytes;

  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(data + offset);
  }
  [[nodiscard]] const shm::SegmentHeader* header() const {
    return reinterpret_cast<const shm::SegmentHeader*>(data);
  }
};

enum class Access {
  kRead,
  kWrite,
  kPrivate,  // readable and writable; a page that is written becomes this process's own
};

// Maps the segment behind `fd` if it is ready, of this kind, ABI, layout and feed. The mapping is
// not inherited by children. Does not close the descriptor. Errors: RF_INCOMPATIBLE, RF_DAMAGED,
// RF_NO_MEMORY, in one sentence.
rf_status map_segment(int fd, shm::SegmentKind kind, const char* name, const uint8_t* feed_id,
                      Access access, Map* map);
// Forgets this process's own pages in a part of a private mapping (whole pages): from then on it
// shows the segment's bytes. False: the system refuses.
bool drop_private(uint8_t* data, uint64_t bytes);
void unmap(Map* map);

struct Observed;

}  // namespace ringfeed::client

// A member of a consumer group, and everything that it maps.
//
// Mapped while `users` > 0: one for the membership, one for each batch held, one for each call
// under way. Freed with the last of `owners`: one for the caller's handle, one while it is mapped.
// `held` is the member's own list of its claims; the claim words in the group page are what others
// go by.
struct rf_feed {
  pid_t pid;
  std::atomic<uint32_t> users;
  std::atomic<uint32_t> owners;
  std::atomic<uint32_t> left;         // 1: rf_leave was called
  std::atomic<uint32_t> left_failed;  // 1: because its work has failed
  int socket;
  int group_fd;  // of the group's page: a feed whose own processes have died finds it here
  pthread_mutex_t claiming;  // one look at the claim words at a time; never held while sleeping

  ringfeed::client::Map control;
  ringfeed::client::Map feed_control;
  ringfeed::client::Map group_segment;
  ringfeed::client::Map payload;
  ringfeed::shm::GroupPage* group;

  uint64_t lanes;
  uint64_t slots;
  uint64_t descriptors;
  uint64_t slot_bytes;
  bool ordered;
  uint64_t position;  // batches below it are passed over
  bool private_view;  // payload is mapped copy-on-write
  bool ragged;        // some arrays have lengths that vary
  uint64_t epoch;
  uint32_t group_index;
  uint8_t member;
  uint32_t output;  // its number, from 0
  char output_alias[72];
  uint32_t supervisor_pid;
  std::atomic<uint32_t> supervisor_gone;  // its end of the socket is closed: a hint
  bool sees_processes;                    // pids of the feed mean something in this pid namespace
  std::atomic<uint32_t> replaced;         // another feed of the name has taken its place
  std::atomic<uint64_t> look_again_ns;    // for another supervisor, not before this time
  std::atomic<uint64_t> abandoned_ns;     // since when neither it nor any lane lives; 0: they do
  char socket_path[512];

  // Of notices (notices.cc): CLOCK_MONOTONIC, 0: never.
  rf_on_notice on_notice;
  void* notice_user;
  std::atomic<uint64_t> active_ns;       // the caller was last here
  std::atomic<uint64_t> waits_since_ns;  // for a batch
  std::atomic<uint64_t> waits_seen_ns;   // it last waited
  std::atomic<uint64_t> ask_at_ns;       // for whom it waits, not before
  rf_feed* next_living;                  // in the list of those that leave at exit

  // Of an observer (observe.cc), which has no group, and after it has attached no socket.
  bool observes;
  uint64_t observed_newest[ringfeed::shm::kDescriptorsMax];  // by lane; under `claiming`
  ringfeed::client::Observed* observed;  // batches that were not released yet, under `claiming`

  std::atomic<uint64_t> held[ringfeed::shm::kDescriptorsMax];  // by s mod D: s, 0 none
  std::atomic<uint32_t> held_slot[ringfeed::shm::kDescriptorsMax];
  std::atomic<uint32_t> held_count;
  std::atomic<uint64_t> wait_ns;
  std::atomic<uint64_t> waits;
  std::atomic<uint64_t> next_wait_ns;  // for the batch that comes next, so far

  // Lanes that have been asked and are yet to be woken, as bits, and where their bells are.
  std::atomic<uint64_t> owed;
  std::atomic<std::byte*> owed_table;

  char name[68];
  char group_name[68];
  rf_schema_info schema;
  rf_tensor tensors[ringfeed::client::kTensorsMax];
};
