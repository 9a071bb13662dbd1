// Messages to the stages of a feed, and its metrics, over a connection of their own: the membership
// is not touched, and a wait for an answer is nobody else's.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "feed_access.h"

namespace ringfeed::client {
namespace {

constexpr size_t kRequestBytesMax = size_t{64} << 10;
constexpr size_t kReplyBytesMax = size_t{1} << 20;
// Of one that is too large for a packet. Metrics of the largest feeds are some megabytes.
constexpr size_t kLongReplyBytesMax = size_t{256} << 20;
// A supervisor that has died is followed by another one, or not.
constexpr long kAgainNs = 50'000'000;
constexpr uint64_t kControlId = 1;

enum class Asked {
  kAnswered,
  kGone,      // nobody is there, or he has gone away: the next one may be asked
  kTimedOut,  // he is there, and does not answer
  kRefused,
  kDamaged,
};

struct Buffers {
  uint8_t* request;
  size_t request_bytes;
  uint8_t* reply;
  size_t reply_bytes;
};

// Takes a reply that did not fit a packet out of its descriptor.
bool read_long_reply(int fd, Buffers* buffers) {
  struct stat file {};
  if (fstat(fd, &file) != 0 || file.st_size <= 0 ||
      static_cast<size_t>(file.st_size) > kLongReplyBytesMax) {
    return false;
  }
  const auto bytes = static_cast<size_t>(file.st_size);
  auto* const room = static_cast<uint8_t*>(malloc(bytes));
  if (room == nullptr) return false;
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd, room + done, bytes - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  if (done < bytes) {
    free(room);
    return false;
  }
  free(buffers->reply);
  buffers->reply = room;
  buffers->reply_bytes = bytes;
  return true;
}

Asked ask_once(const char* path, const Deadline& deadline, Buffers* buffers, char* text,
               size_t text_room) {
  int error = 0;
  const int fd = connect_path(path, false, &error);
  if (fd < 0) return Asked::kGone;
  Asked asked = Asked::kGone;
  // Whoever is refused is disconnected at once, and the reason lies there to be read.
  if (send_message(fd, buffers->request, buffers->request_bytes) || errno == EPIPE ||
      errno == ECONNRESET) {
    for (;;) {
      size_t fds = 0;
      int beside = -1;
      const ssize_t got =
          receive_message(fd, deadline, buffers->reply, kReplyBytesMax, &beside, 1, &fds);
      if (got == -2) continue;  // a signal: the message is on its way
      if (got == -1) asked = Asked::kTimedOut;
      if (got > 0) {
        buffers->reply_bytes = static_cast<size_t>(got);
        int64_t code = 0;
        const bool there = !is_in_descriptor(buffers->reply, buffers->reply_bytes) ||
                           (fds == 1 && read_long_reply(beside, buffers));
        const bool whole =
            there && decode_error(buffers->reply, buffers->reply_bytes, &code, text, text_room);
        if (fds == 1) close(beside);
        asked = !whole ? Asked::kDamaged : code != 0 ? Asked::kRefused : Asked::kAnswered;
      }
      break;
    }
  }
  close(fd);
  return asked;
}

rf_status damaged(const rf_feed* feed) {
  return fail(feed, RF_DAMAGED, "feed %s: the supervisor's answer is not a valid reply",
              feed->name);
}

// RF_OK: the answer lies in *buffers.
rf_status ask(const rf_feed* feed, const Deadline& deadline, Buffers* buffers) {
  char text[768] = "";
  for (;;) {
    switch (ask_once(feed->socket_path, deadline, buffers, text, sizeof text)) {
      case Asked::kAnswered:
        return RF_OK;
      case Asked::kRefused:
        return fail(feed, RF_REFUSED, "feed %s: %s", feed->name, text);
      case Asked::kDamaged:
        return damaged(feed);
      case Asked::kTimedOut:
        return fail(feed, RF_TIMEOUT, "feed %s: no answer came in time", feed->name);
      case Asked::kGone:
        break;
    }
    // relaxed: nobody follows the supervisor of a feed that is over.
    const bool over = feed_state(feed).phase.load(std::memory_order_relaxed) >
                      static_cast<uint32_t>(shm::FeedPhase::kDraining);
    if (over || (!deadline.never && deadline.left_ms(1000) == 0)) {
      return fail(feed, RF_IO, "feed %s: no supervisor answers at %s", feed->name,
                  feed->socket_path);
    }
    const timespec pause{0, kAgainNs};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace
}  // namespace ringfeed::client

using namespace ringfeed::client;  // NOLINT: this file defines the C function

extern "C" rf_status rf_control(rf_feed* feed, const char* stage, const void* request,
                                uint64_t request_bytes, int64_t timeout_ms, rf_answer answer,
                                void* user) {
  if (feed == nullptr || answer == nullptr || (request == nullptr && request_bytes != 0)) {
    return fail(feed, RF_INVALID,
                "control: a handle, a message and a function for the answers "
                "are needed");
  }
  if (feed->pid != getpid()) return forked(feed);
  if (request_bytes > kRequestBytesMax / 2) {
    return fail(feed, RF_INVALID, "control: a message of %llu bytes; at most %zu are possible",
                static_cast<unsigned long long>(request_bytes), kRequestBytesMax / 2);
  }
  const User using_it(feed);
  if (!using_it) return detached(feed);
  // One and the same for every time that this message is sent, so that it takes effect once.
  uint64_t key = 0;
  if (getrandom(&key, sizeof key, 0) != sizeof key) {
    return fail(feed, RF_IO, "control: the system provides no random number: %s", strerror(errno));
  }
  Buffers buffers{};
  buffers.request = static_cast<uint8_t*>(malloc(kRequestBytesMax));
  buffers.reply = static_cast<uint8_t*>(malloc(kReplyBytesMax));
  rf_status status = RF_OK;
  if (buffers.request == nullptr || buffers.reply == nullptr) {
    status = fail(feed, RF_NO_MEMORY, "control: no memory for the answer");
  } else {
    buffers.request_bytes =
        encode_stage_control(stage, static_cast<const uint8_t*>(request), request_bytes, key | 1,
                             kControlId, buffers.request, kRequestBytesMax);
    status = buffers.request_bytes == 0
                 ? fail(feed, RF_INVALID, "control: the name of the stage is too long")
                 : ask(feed, Deadline::after(timeout_ms), &buffers);
    if (status == RF_OK && !for_each_answer(buffers.reply, buffers.reply_bytes, answer, user)) {
      status = damaged(feed);
    }
  }
  free(buffers.request);
  free(buffers.reply);
  return status;
}

extern "C" rf_status rf_metrics(rf_feed* feed, uint32_t form, int64_t timeout_ms, rf_bytes give,
                                void* user) {
  if (feed == nullptr || give == nullptr || form > RF_METRICS_JSON) {
    return fail(feed, RF_INVALID,
                "metrics: a handle, RF_METRICS_MESSAGE or RF_METRICS_JSON, and a function for the "
                "bytes are needed");
  }
  if (feed->pid != getpid()) return forked(feed);
  const User using_it(feed);
  if (!using_it) return detached(feed);
  uint8_t request[32];
  const bool as_json = form == RF_METRICS_JSON;
  Buffers buffers{request, encode_metrics(as_json, kControlId, request, sizeof request),
                  static_cast<uint8_t*>(malloc(kReplyBytesMax)), 0};
  if (buffers.reply == nullptr) {
    return fail(feed, RF_NO_MEMORY, "metrics: no memory for the answer");
  }
  rf_status status = ask(feed, Deadline::after(timeout_ms), &buffers);
  if (status == RF_OK) {
    const uint8_t* found = nullptr;
    size_t found_bytes = 0;
    if (find_metrics(buffers.reply, buffers.reply_bytes, as_json, &found, &found_bytes)) {
      give(user, found, found_bytes);
    } else {
      status = damaged(feed);
    }
  }
  free(buffers.reply);
  return status;
}
