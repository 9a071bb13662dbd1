#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client.h"

namespace ringfeed::client {
namespace {

struct Text {
  const void* feed;
  char text[kErrorBytes];
};

// A key and not thread_local: a thread_local of a library that is loaded late binds it to the
// dynamic linker by name, and takes room that a program's other libraries may need.
pthread_key_t key;
pthread_once_t key_made = PTHREAD_ONCE_INIT;
bool key_works = false;

void make_key() { key_works = pthread_key_create(&key, free) == 0; }

Text* own_text(bool make) {
  pthread_once(&key_made, make_key);
  if (!key_works) return nullptr;
  auto* text = static_cast<Text*>(pthread_getspecific(key));
  if (text == nullptr && make) {
    text = static_cast<Text*>(calloc(1, sizeof(Text)));
    if (text != nullptr && pthread_setspecific(key, text) != 0) {
      free(text);
      text = nullptr;
    }
  }
  return text;
}

bool is_c1(unsigned char byte) { return byte >= 0x80 && byte < 0xa0; }

// Names and reasons of others may be part of it: nothing that a terminal obeys gets through. Lines
// of a message of several stay.
void escape(const char* from, char* to, size_t room) {
  const char* const digits = "0123456789abcdef";
  size_t used = 0;
  unsigned char before = 0;
  for (; *from != '\0' && used + 5 < room; ++from) {
    const auto byte = static_cast<unsigned char>(*from);
    // Controls from U+0080 on are two bytes.
    const bool second = before == 0xc2 && is_c1(byte);
    const bool first = byte == 0xc2 && is_c1(static_cast<unsigned char>(from[1]));
    before = byte;
    if ((byte >= 0x20 || byte == '\n') && byte != 0x7f && !first && !second) {
      to[used++] = *from;
      continue;
    }
    to[used++] = '\\';
    to[used++] = 'x';
    to[used++] = digits[byte >> 4];
    to[used++] = digits[byte & 15];
  }
  to[used] = '\0';
}

}  // namespace

rf_status fail(const void* feed, rf_status status, const char* format, ...) {
  if (Text* text = own_text(true); text != nullptr) {
    text->feed = feed;
    char whole[kErrorBytes];
    va_list values;
    va_start(values, format);
    vsnprintf(whole, sizeof whole, format, values);
    va_end(values);
    escape(whole, text->text, sizeof text->text);
  }
  return status;
}

const char* last_error(const void* feed) {
  const Text* text = own_text(false);
  return text != nullptr && text->feed == feed ? text->text : "";
}

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

Deadline Deadline::after(int64_t timeout_ms) {
  if (timeout_ms < 0 || timeout_ms > INT64_C(1) << 40) return {0, true};
  return {now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000, false};
}

int64_t Deadline::left_ms(int64_t most) const {
  if (never) return most;
  const uint64_t now = now_ns();
  if (now >= at_ns) return 0;
  // Rounded up: a rest below a millisecond is waited for and not spun away.
  const uint64_t left = (at_ns - now + 999'999) / 1'000'000;
  return left < static_cast<uint64_t>(most) ? static_cast<int64_t>(left) : most;
}

}  // namespace ringfeed::client
