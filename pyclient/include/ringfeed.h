/* The C client of a ringfeed feed, complete in this file: attach, take batches, give them back.
 *
 *   rf_attach_options options = {.struct_size = sizeof options, .feed = "lc0", .group = "run-a"};
 *   rf_feed* feed = NULL;
 *   if (rf_attach(&options, &feed) != RF_OK) die(rf_last_error(NULL));
 *   rf_batch batch = {.struct_size = sizeof batch};
 *   while (rf_next(feed, -1, &batch) == RF_OK) {
 *     train(batch.data, batch.rows);  (shared memory, read-only unless asked otherwise, not a copy)
 *     rf_release(feed, batch.seq);
 *   }
 *   rf_detach(feed);
 *
 * Threads: every function may be called by any thread. Several threads may be in rf_next,
 * rf_release and rf_stats of one feed at the same time, and any thread may release a batch. Only
 * rf_detach ends a handle: after it no call may begin, except rf_release of batches that are still
 * held.
 *
 * Processes: a handle belongs to the process that attached. In a child made by fork() every call
 * returns RF_FORKED, and nothing that the child does, its exit included, releases a batch of the
 * parent. The child must attach itself. The memory of batches is not mapped in the child.
 *
 * Death: if a process is killed at any instruction in this library, its claims still name it. The
 * supervisor gives its batches to another member (or to its successor), with a higher `tries`.
 *
 * Status: 0 is done, > 0 is expected, < 0 is an error; rf_last_error() gives its text. Structs
 * begin with their size, so that fields can be added at the end. Set struct_size to sizeof and the
 * rest to 0: every 0 means the default.
 *
 * C99; depends on libc alone.
 */
#ifndef RINGFEED_H
#define RINGFEED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RF_API __attribute__((visibility("default")))
#else
#define RF_API
#endif

typedef enum rf_status {
  RF_OK = 0,
  RF_TIMEOUT = 1,     /* nothing came in time; calling again is safe */
  RF_END = 2,         /* the feed is closed and this group has had every batch */
  RF_INTERRUPTED = 3, /* a signal came while waiting; calling again is safe */

  RF_INVALID = -1,         /* the caller asked for something impossible */
  RF_NO_SUCH_FEED = -2,    /* nobody serves a feed of this name */
  RF_INCOMPATIBLE = -3,    /* an ABI, layout or feed that this library cannot read */
  RF_REFUSED = -4,         /* the supervisor says no: group settings, no free member, no room */
  RF_FEED_FAILED = -5,     /* the feed has stopped with a reason, or is about to end */
  RF_SLOTS_EXHAUSTED = -6, /* this member holds too many batches for the next to come */
  RF_DETACHED = -7,        /* this process is no longer a member */
  RF_FORKED = -8,          /* the handle belongs to the parent process */
  RF_PERMISSION = -9,      /* another user's feed, or it does not see this process */
  RF_NO_MEMORY = -10,      /* too little memory or address space in this process */
  RF_IO = -11,             /* the system refused a call */
  RF_DAMAGED = -12,        /* shared memory or a message contradicts itself */
  RF_FEED_STOPPED = -13    /* the feed was stopped before its end: work in progress is lost */
} rf_status;

typedef struct rf_feed rf_feed;

/* How a group hands out its batches. */
enum { RF_KIND_DEFAULT = 0, RF_SHARED = 1, RF_RANKED = 2 };
/* Where a new group begins. */
enum { RF_START_OLDEST = 0, RF_START_NEWEST = 1 };
/* What the feed does when the group lags and all slots are held. */
enum { RF_POLICY_DEFAULT = 0, RF_POLICY_BLOCK = 1, RF_POLICY_SKIP = 2, RF_POLICY_DETACH = 3 };
/* What happens to the batches of a member that died. */
enum { RF_REDELIVER_DEFAULT = 0, RF_REDELIVER = 1, RF_AT_MOST_ONCE = 2 };
/* What a batch's memory is to this process.
 *
 * Read-only: the feed's own pages; writing is SIGSEGV.
 *
 * Private: the same pages until this process writes to one. From then on it has its own copy of
 * that page (usually 4 KiB), which the feed and other trainers never see. The copies are dropped
 * when the batch is released, so the next batch in the slot shows its own bytes. Do not use it for
 * memory that a device reads: registering or pinning private pages (cudaHostRegister, io_uring,
 * RDMA) copies them, and the device then reads old bytes. */
enum { RF_VIEW_READONLY = 0, RF_VIEW_PRIVATE = 1 };
/* States of a feed, in rf_stats_info.phase. */
enum {
  RF_PHASE_STARTING = 0,
  RF_PHASE_RUNNING = 1,
  RF_PHASE_DRAINING = 2,
  RF_PHASE_ENDED = 3,
  RF_PHASE_FAILED = 4,
  RF_PHASE_STOPPED = 5
};

/* What rf_notice tells. */
enum {
  RF_NOTICE_WAITS = 1,    /* this member has waited for some seconds because of the trainer named */
  RF_NOTICE_HELD_UP = 2,  /* others have waited for this member, which has just come back */
  RF_NOTICE_LEFT_OUT = 3, /* the feed leaves out 1 % of its data or more: how much, why, and where
                             the first of it is */
  RF_NOTICE_STANDS_STILL = 4 /* nobody in the feed has worked for long while trainers wait */
};

/* Something that the people who run a trainer should hear. All of it ends with the call. */
typedef struct rf_notice {
  uint32_t struct_size;
  uint32_t kind;       /* one of RF_NOTICE_* */
  const char* text;    /* one line of UTF-8 that says all of it and what to do */
  const char* group;   /* RF_NOTICE_WAITS: the consumer group that is waited for; else NULL */
  int32_t member;      /* its member; -1: the group has none who could go on */
  uint32_t pid;        /* process of that member; 0: unknown */
  const char* command; /* its program, and of a Python its script or module; NULL: unknown */
  uint64_t idle_ms;    /* since it last took a batch or gave one back; 0: unknown */
  uint64_t waited_ms;  /* RF_NOTICE_WAITS: how long this member has waited; RF_NOTICE_HELD_UP: how
                          long  others have waited for it; else 0 */
  uint32_t held;       /* batches that it holds */
  uint32_t reserved;   /* 0 */
} rf_notice;

/* Called in rf_next, by the thread that called that, with no lock held. */
typedef void (*rf_on_notice)(void* user, const rf_notice* notice);

/* What to attach to. From `kind` on, fields describe the group. They are used if this call creates
 * the group, and compared if it exists; 0 matches anything. */
typedef struct rf_attach_options {
  uint32_t struct_size;    /* sizeof(rf_attach_options) */
  int32_t timeout_ms;      /* longest wait for the feed to appear; 0: it is looked for once; < 0: no
                              limit */
  const char* feed;        /* its name: 1 to 64 characters out of A-Z a-z 0-9 _ . - */
  const char* group;       /* name of the consumer group; NULL: "default" */
  const char* socket_dir;  /* directory of control sockets; NULL: $RINGFEED_SOCKET_DIR, else
                              $XDG_RUNTIME_DIR/ringfeed, else /run/ringfeed */
  const char* socket_path; /* the control socket itself; wins over socket_dir */
  const char* client;      /* shown by `ringfeed status`; NULL: the program's name */
  uint32_t kind;           /* RF_SHARED, RF_RANKED */
  uint32_t rank;           /* RF_RANKED: 0 to world - 1; this member takes the batches s with
                              (s - 1) mod world == rank, s counting from 1 */
  uint32_t world;          /* RF_RANKED: 1 to 16 */
  uint32_t start;          /* RF_START_OLDEST, RF_START_NEWEST */
  uint32_t policy;         /* RF_POLICY_BLOCK, ..._SKIP, ..._DETACH */
  uint32_t redeliver;      /* what this member holds when it dies: RF_REDELIVER, RF_AT_MOST_ONCE;
                              default: as the group has it */
  uint32_t max_tries;      /* deliveries of one batch before it is closed; 0: default */
  uint32_t max_hold;       /* batches that one member may hold at once; 0: default */
  uint64_t stall_ms;  /* RF_POLICY_DETACH: milliseconds without progress before the group leaves */
  uint64_t rejoin_ms; /* milliseconds that the group stays without members; 0: default, 1: none */
  int32_t answer_ms;  /* longest wait for the answer of a supervisor that is there; 0: what is
                         left of timeout_ms, but 10 s if that is 0; < 0: no limit */
  uint32_t view;      /* RF_VIEW_READONLY, RF_VIEW_PRIVATE: of this member alone */
  uint64_t position;  /* this member's next batch; 0: wherever the group is. Earlier ones are passed
                         over; a group that is beyond it is put back, if the feed still holds it */
  const char* output; /* alias of the output whose batches are wanted, for a feed with several;
                         NULL: its first one */
  rf_on_notice on_notice; /* NULL: nobody is told. After five seconds of waiting in rf_next because
                             of a consumer group, and then each minute, it is called for each
                             trainer that is waited for; when this member comes back after a
                             pause in which others waited for it; and with the next batch when
                             the feed begins to leave out much of its data, has left out twice
                             as much, and when this member has attached to such a feed */
  void* notice_user;      /* the first argument of on_notice */
  uint32_t observe;       /* 1: only looks, see rf_next. All that concerns a group must be 0 */
  uint32_t reserved;      /* 0 */
} rf_attach_options;

/* One array of a batch. Its memory is at rf_batch.data + offset, row-major, little-endian. */
typedef struct rf_tensor {
  char name[64];        /* NUL-terminated, e.g. "planes" */
  char dtype[16];       /* as NumPy names it: "float32", "int64", "uint8", ... */
  uint32_t item_bytes;  /* bytes of one element; 0 for a dtype that this library does not know */
  uint32_t dims;        /* dimensions in shape, 1 to 8 */
  int64_t shape[8];     /* -1: rf_batch.rows, as the first only; -2 - i: rf_batch.ragged[i]; other
                           lengths are the same in every batch, also the first may be. See
                           rf_tensor_length */
  uint64_t offset;      /* bytes from the start of the batch; a multiple of 64 */
  uint64_t bytes;       /* of the largest: no batch has more items than fit */
  uint64_t reserved[4]; /* 0 */
} rf_tensor;

/* What every batch of a feed looks like. */
typedef struct rf_schema_info {
  uint32_t struct_size;
  uint32_t tensor_count;
  uint32_t rows_max;        /* rows of a full batch */
  uint32_t reserved;        /* 0 */
  uint64_t slot_bytes;      /* bytes of one slot of the payload */
  const rf_tensor* tensors; /* tensor_count of them */
} rf_schema_info;

/* A batch that this member holds. */
typedef struct rf_batch {
  uint32_t struct_size;  /* set by the caller before rf_next: sizeof(rf_batch) */
  uint32_t rows;         /* rows used, 0 to rows_max */
  uint64_t seq;          /* number of the batch in the feed, from 1 */
  uint64_t bytes;        /* bytes used in the slot */
  const void* data;      /* the slot, valid until rf_release; may be written (through a cast) with
                            RF_VIEW_PRIVATE, else writing is SIGSEGV */
  uint64_t token[2];     /* lineage: its origin, as the last stage defines it */
  uint32_t tries;        /* members that died while they held it; 0: first delivery */
  uint32_t slot;         /* index of the slot, for programs that pin memory */
  uint32_t crc32c;       /* CRC-32C of the bytes; 0 if the feed computes none */
  uint32_t layout_id;    /* 0: as in the schema */
  uint64_t published_ns; /* CLOCK_MONOTONIC when it was published */
  uint32_t ragged[16];   /* lengths that vary from batch to batch, see rf_tensor.shape; else 0 */
} rf_batch;

/* Length of dimension `dim`, 0 to dims - 1, of an array in this batch. */
static inline uint64_t rf_tensor_length(const rf_tensor* tensor, const rf_batch* batch,
                                        uint32_t dim) {
  const int64_t length = tensor->shape[dim];
  if (length >= 0) return (uint64_t)length;
  return length == -1 ? batch->rows : batch->ragged[-2 - length];
}

/* Items of an array in this batch. rf_next has checked that they fit into tensor->bytes. */
static inline uint64_t rf_tensor_items(const rf_tensor* tensor, const rf_batch* batch) {
  uint64_t items = 1;
  uint32_t dim;
  for (dim = 0; dim < tensor->dims; ++dim) items *= rf_tensor_length(tensor, batch, dim);
  return items;
}

/* Where this member, its group and the feed stand. */
typedef struct rf_stats_info {
  uint32_t struct_size; /* set by the caller: sizeof(rf_stats_info) */
  uint32_t phase;       /* RF_PHASE_STARTING to RF_PHASE_STOPPED */
  uint64_t published;   /* newest batch of the feed, 0 before the first */
  uint64_t taken;       /* batches that this member has claimed */
  uint64_t done;        /* of these, released */
  uint64_t lag;         /* published batches that the group has not finished; at most 256 */
  uint64_t start;       /* first batch that the group is entitled to */
  uint64_t wait_ns;     /* time that rf_next has slept in this process */
  uint64_t waits;       /* how often it slept */
  uint32_t held;        /* batches that this member holds now */
  uint32_t max_hold;    /* most that it may hold */
  uint32_t slots;       /* of the feed */
  uint32_t lanes;       /* producing lanes */
  uint32_t group_index; /* 0 to 15 */
  uint32_t member;      /* 0 to 15 */
  uint32_t members;     /* live members of the group */
  uint32_t kind;        /* RF_SHARED, RF_RANKED */
  uint32_t rank;        /* in a ranked group */
  uint32_t world;       /* in a ranked group; else 1 */
  uint32_t supervisor_pid;
  uint32_t ordered; /* 1: batches come in one fixed order; 0: as they are ready */
  uint8_t feed_id[16];
  char feed[68];  /* name, NUL-terminated */
  char group[68]; /* name, NUL-terminated */
  uint64_t next;  /* lowest batch that the group has not finished; in a ranked group: of those that
                     this rank takes */
  char socket[112];  /* path of the control socket, NUL-terminated */
  char output[72];   /* alias of the output, NUL-terminated; "": it has none */
  uint32_t closed;   /* 1: nothing will be published after `published` */
  uint32_t reserved; /* 0 */
} rf_stats_info;

/* Becomes a member of a consumer group and maps the feed: payload read-only (or private), own
 * group's page for writing, nothing else.
 *
 * Waits up to options->timeout_ms for the feed to appear, so trainers may start before it, and then
 * up to answer_ms. In this time it also waits (5 s at most) until the producing lanes know the
 * group; rf_next then gives what is ready at once, even with timeout_ms 0. Blocks no other thread.
 * A death in this call leaves at most a member, which the supervisor removes. Result: RF_OK and
 * *feed; else *feed is NULL and rf_last_error(NULL) says why. RF_INTERRUPTED: a signal came;
 * nothing is attached. RF_TIMEOUT: the feed is there, but its supervisor has not answered.
 * RF_NO_SUCH_FEED: no socket to connect to. RF_INCOMPATIBLE, RF_REFUSED, RF_FEED_FAILED,
 * RF_PERMISSION, RF_INVALID, RF_NO_MEMORY, RF_IO, RF_DAMAGED. */
RF_API rf_status rf_attach(const rf_attach_options* options, rf_feed** feed);

/* Claims this member's next batch and fills *batch, without copying it.
 *
 * Shared groups: the lowest batch that nobody has taken, first those that were given back. Ranked
 * groups: the lowest batch of this rank. Waits up to timeout_ms (< 0: no limit, 0: not at all) on a
 * futex; other threads go on.
 *
 * Observers (rf_attach_options.observe): the newest batch of the feed, if this handle has not given
 * it before; else the next that is published, or one later. It is a copy, in memory that rf_release
 * frees. An observer takes nothing from anybody and holds nothing up: batches that come faster than
 * it asks pass it by.
 *
 * Result: RF_OK: held until rf_release(feed, batch->seq), or until this process dies. RF_TIMEOUT,
 * RF_INTERRUPTED: nothing is claimed, calling again is safe. RF_END: nothing will come.
 * RF_SLOTS_EXHAUSTED: release a batch first; nothing is claimed. RF_FEED_FAILED: every published
 * batch has been delivered, and no more will come; the text is the feed's reason. RF_FEED_STOPPED:
 * the same for a feed that was stopped at once (`ringfeed stop --now`, a second signal, a drain
 * that took too long); a drained feed ends with RF_END. RF_DETACHED, RF_FORKED, RF_INVALID,
 * RF_DAMAGED, RF_IO (private pages that the system will not drop).
 *
 * Source: descriptor `seq mod D` of feed control, slot `slot` of the payload. */
RF_API rf_status rf_next(rf_feed* feed, int64_t timeout_ms, rf_batch* batch);

/* Makes `position` this member's next batch. Earlier batches are given back at once, unseen, as if
 * they had been used; rf_next then returns batches from `position` on. Use it in a program that
 * saved its place in the feed with its own state. Batches that are held stay held. To go back to a
 * batch before the group's next one, attach again with rf_attach_options.position. A position that
 * the feed never reaches passes over everything: compare with rf_stats_info.published first.
 * Result: RF_OK, RF_INVALID (no batch can have this number), RF_DETACHED, RF_FORKED. */
RF_API rf_status rf_pass_over(rf_feed* feed, uint64_t position);

/* Gives batch `seq` back. Its memory may then be written again, pointers into it are invalid, and
 * what was written to private pages is lost.
 *
 * Does not block. May be called after rf_detach for batches that were held then; the last one ends
 * the handle. A death before the atomic exchange redelivers the batch; a death after it does not.
 * Result: RF_OK; RF_INVALID: this handle does not hold it (released twice?); RF_DETACHED: the claim
 * was taken away, so there is nothing left to do; RF_FORKED. */
RF_API rf_status rf_release(rf_feed* feed, uint64_t seq);

/* The schema of the feed; NULL for a NULL handle or in a forked child. Lives as long as the handle.
 */
RF_API const rf_schema_info* rf_schema(const rf_feed* feed);

/* Fills *stats; its numbers are read one by one while the feed runs. RF_INVALID, RF_FORKED. */
RF_API rf_status rf_stats(rf_feed* feed, rf_stats_info* stats);

/* The payload as it is mapped in this process: every rf_batch.data is inside it. Use it to register
 * memory with a device. The memory is read-only and shared, so ask for read access alone.
 * Unregister before rf_leave: it unmaps the memory, at once or with the last batch that is still
 * held. RF_INVALID: also with RF_VIEW_PRIVATE, whose pages must not be registered. RF_DETACHED,
 * RF_FORKED.
 */
RF_API rf_status rf_payload(rf_feed* feed, const void** data, uint64_t* bytes);

/* Reads the whole batch, which this handle must hold, and compares it with the checksum that was
 * computed when it was published. Result: RF_OK; RF_DAMAGED: its bytes have changed (failing
 * memory, a stray write, or a write of this process to a private view); RF_INVALID: not held, or
 * the feed computes no checksums (feed_output.checksum); RF_FORKED. Allowed after rf_detach. */
RF_API rf_status rf_verify(rf_feed* feed, const rf_batch* batch);

/* As rf_release(feed, batch->seq). If batch->seq is 0, nothing happens, so cleanup can be arranged
 * before the batch is taken. */
RF_API rf_status rf_release_batch(rf_feed* feed, const rf_batch* batch);

/* The answer of one stage: its name, and a serialized StageControlResponse. Both are valid during
 * the call only. */
typedef void (*rf_answer)(void* user, const char* stage, const void* response, uint64_t bytes);

/* Passes a serialized StageControlRequest (proto/control.proto) to one stage, or with stage NULL to
 * all that understand it, and gives each answer to `answer`. The message takes effect exactly once,
 * between two steps of the stage, whichever process dies meanwhile: if the supervisor goes away,
 * the next one is asked the same. timeout_ms < 0: no limit. Result: RF_OK; RF_REFUSED (no such
 * stage, or a stage did not answer); RF_TIMEOUT, RF_IO: it may or may not have taken effect.
 * RF_INVALID, RF_DAMAGED, RF_DETACHED, RF_FORKED, RF_NO_MEMORY. Blocks no other call. */
RF_API rf_status rf_control(rf_feed* feed, const char* stage, const void* request,
                            uint64_t request_bytes, int64_t timeout_ms, rf_answer answer,
                            void* user);

/* Receives bytes that are valid during the call only. */
typedef void (*rf_bytes)(void* user, const void* data, uint64_t bytes);

/* What rf_metrics gives: a serialized MetricsReply (proto/metrics.proto), or that as JSON (not
 * NUL-terminated). */
enum { RF_METRICS_MESSAGE = 0, RF_METRICS_JSON = 1 };

/* Passes the numbers of the whole feed to `give`, once: totals, and those of the last 1, 10 and 60
 * seconds. timeout_ms < 0: no limit. If the supervisor goes away, the next one is asked, unless the
 * feed is over. Result: RF_OK; RF_TIMEOUT, RF_REFUSED, RF_IO, RF_INVALID, RF_DAMAGED, RF_DETACHED,
 * RF_FORKED, RF_NO_MEMORY: nothing was given. Blocks no other call. */
RF_API rf_status rf_metrics(rf_feed* feed, uint32_t form, int64_t timeout_ms, rf_bytes give,
                            void* user);

/* Asks a feed of this process's own (dataset_batcher) for batch `seq`: request `seq` of the table,
 * of `table_bytes` bytes, is the `size` bytes at `offset`, which have been written. The lane that
 * makes it is woken: with may_wait not at once if a batch of it is ready, but before this process
 * waits for one itself, or when it asks for more. The table is of this process's memory
 * (shm/include/ringfeed/shm/requests.h says what it looks like); it has one writer, so one thread
 * at a time may call. Blocks nobody. A death in this call leaves a request, or none. Result: RF_OK;
 * RF_INVALID: no table, or a request outside of it; RF_DETACHED, RF_FORKED. */
RF_API rf_status rf_ask(rf_feed* feed, void* table, uint64_t table_bytes, uint64_t seq,
                        uint64_t offset, uint64_t size, uint64_t kind, int may_wait);

/* Leaves the group; the handle stays. Later calls return RF_DETACHED, and threads that wait in
 * rf_next return it soon.
 *
 * Batches that are still held stay mapped and claimed until they are released. With the last of
 * them (or at once, if none is held) it tells the supervisor, waits at most a second for the
 * answer, and unmaps the memory. Calling again is harmless. RF_INVALID, RF_FORKED. */
RF_API rf_status rf_leave(rf_feed* feed);

/* The same, because the work has failed: the group waits for a successor as it does after a death.
 * (A group that did not ask for rejoin_ms is given up five seconds after its last member has left
 * with rf_leave or rf_detach, or has exited with status 0.) */
RF_API rf_status rf_leave_failed(rf_feed* feed);

/* Leaves the group as rf_leave does, and ends the handle. After it only rf_release may be called,
 * for batches that are still held; the last one frees the handle. NULL is allowed. RF_FORKED: the
 * child's copy of the handle is left alone. */
RF_API rf_status rf_detach(rf_feed* feed);

/* One sentence about this thread's last call with `feed` (NULL: rf_attach) whose status was < 0 or
 * RF_TIMEOUT; after RF_END, why the feed ended. "" if there was no such call. Never NULL; valid
 * until this thread's next call. */
RF_API const char* rf_last_error(const rf_feed* feed);

/* Version of this library, "MAJOR.MINOR.PATCH". */
RF_API const char* rf_version(void);

#ifdef __cplusplus
}
#endif

#endif
