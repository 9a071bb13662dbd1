// Messages to the stages of a feed, over a connection of their own: the membership is not touched,
// and a wait for an answer is nobody else's.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "feed_access.h"

namespace ringfeed::client {
namespace {

constexpr size_t kRequestBytesMax = size_t{64} << 10;
constexpr size_t kReplyBytesMax = size_t{1} << 20;
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
      const ssize_t got =
          receive_message(fd, deadline, buffers->reply, kReplyBytesMax, nullptr, 0, &fds);
      if (got == -2) continue;  // a signal: the message is on its way
      if (got == -1) asked = Asked::kTimedOut;
      if (got > 0) {
        buffers->reply_bytes = static_cast<size_t>(got);
        int64_t code = 0;
        const bool whole =
            decode_error(buffers->reply, buffers->reply_bytes, &code, text, text_room);
        asked = !whole ? Asked::kDamaged : code != 0 ? Asked::kRefused : Asked::kAnswered;
      }
      break;
    }
  }
  close(fd);
  return asked;
}

rf_status give_answers(const rf_feed* feed, const Buffers& buffers, rf_answer answer, void* user) {
  if (for_each_answer(buffers.reply, buffers.reply_bytes, answer, user)) return RF_OK;
  return fail(feed, RF_DAMAGED, "feed %s: the supervisor's answer is none", feed->name);
}

rf_status ask(const rf_feed* feed, const Deadline& deadline, Buffers* buffers, rf_answer answer,
              void* user) {
  char text[768] = "";
  for (;;) {
    switch (ask_once(feed->socket_path, deadline, buffers, text, sizeof text)) {
      case Asked::kAnswered:
        return give_answers(feed, *buffers, answer, user);
      case Asked::kRefused:
        return fail(feed, RF_REFUSED, "feed %s: %s", feed->name, text);
      case Asked::kDamaged:
        return fail(feed, RF_DAMAGED, "feed %s: the supervisor's answer is none", feed->name);
      case Asked::kTimedOut:
        return fail(feed, RF_TIMEOUT, "feed %s: no answer came in time", feed->name);
      case Asked::kGone:
        break;
    }
    if (!deadline.never && deadline.left_ms(1000) == 0) {
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
    return fail(feed, RF_IO, "control: the system gives no random number: %s", strerror(errno));
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
                 : ask(feed, Deadline::after(timeout_ms), &buffers, answer, user);
  }
  free(buffers.request);
  free(buffers.reply);
  return status;
}
