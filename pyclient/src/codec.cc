// Protocol-buffer wire format, as far as attaching needs it: varint, 64-bit and length-delimited
// fields. Unknown fields are skipped, so the supervisor may be newer than this library.
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "ringfeed/shm/layout.h"

namespace ringfeed::client {
namespace {

class Writer {
 public:
  Writer(uint8_t* out, size_t room) : out_(out), room_(room) {}

  void varint(uint32_t field, uint64_t value) {
    raw(uint64_t{field} << 3);
    raw(value);
  }
  void fixed64(uint32_t field, uint64_t value) {
    raw(uint64_t{field} << 3 | 1);
    for (int i = 0; i < 8; ++i) byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void bytes(uint32_t field, const void* data, size_t count) {
    begin(field, count);
    const auto* from = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < count; ++i) byte(from[i]);
  }
  // The key and the length of `count` bytes, which follow.
  void begin(uint32_t field, size_t count) {
    raw(uint64_t{field} << 3 | 2);
    raw(count);
  }
  void text(uint32_t field, const char* text) { bytes(field, text, strlen(text)); }
  // Bytes written; 0 if they did not fit.
  [[nodiscard]] size_t finish() const { return used_ <= room_ ? used_ : 0; }

 private:
  void raw(uint64_t value) {
    while (value >= 0x80) {
      byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    byte(static_cast<uint8_t>(value));
  }
  void byte(uint8_t value) {
    if (used_ < room_) out_[used_] = value;
    ++used_;
  }
  uint8_t* out_;
  size_t room_;
  size_t used_ = 0;
};

// Walks the fields of one message. After next() returned true: field, and value or (data, count).
class Reader {
 public:
  Reader(const uint8_t* bytes, size_t bytes_count) : at_(bytes), end_(bytes + bytes_count) {}

  bool next() {
    if (at_ == end_) return false;
    uint64_t key = 0;
    if (!raw(&key)) return bad();
    field = static_cast<uint32_t>(key >> 3);
    wire = static_cast<uint32_t>(key & 7);
    switch (wire) {
      case 0:
        return raw(&value) || bad();
      case 1:
      case 5: {
        const size_t width = wire == 1 ? 8 : 4;
        if (static_cast<size_t>(end_ - at_) < width) return bad();
        value = 0;
        for (size_t i = 0; i < width; ++i) value |= uint64_t{at_[i]} << (8 * i);
        at_ += width;
        return true;
      }
      case 2: {
        uint64_t length = 0;
        if (!raw(&length) || length > static_cast<uint64_t>(end_ - at_)) return bad();
        data = at_;
        count = static_cast<size_t>(length);
        at_ += count;
        return true;
      }
      default:
        return bad();
    }
  }
  [[nodiscard]] bool whole() const { return !bad_; }

  // The field as text, cut to what fits.
  void copy_text(char* out, size_t room) const {
    const size_t used = count < room ? count : room - 1;
    memcpy(out, data, used);
    out[used] = '\0';
  }

  uint32_t field = 0;
  uint32_t wire = 0;
  uint64_t value = 0;
  const uint8_t* data = nullptr;
  size_t count = 0;

  // A varint inside length-delimited bytes (packed numbers); false at the end.
  bool raw(uint64_t* out) {
    uint64_t result = 0;
    for (unsigned shift = 0; shift < 70 && at_ != end_; shift += 7) {
      const uint8_t byte = *at_++;
      if (shift < 64) result |= uint64_t{byte & 0x7fU} << shift;
      if ((byte & 0x80) == 0) {
        *out = result;
        return true;
      }
    }
    return false;
  }

 private:
  bool bad() {
    bad_ = true;
    at_ = end_;
    return false;
  }
  const uint8_t* at_;
  const uint8_t* end_;
  bool bad_ = false;
};

uint32_t item_bytes(const char* dtype) {
  struct Known {
    const char* name;
    uint32_t bytes;
  };
  static constexpr Known kKnown[] = {
      {"bool", 1},    {"int8", 1},     {"uint8", 1},   {"int16", 2},    {"uint16", 2},
      {"float16", 2}, {"bfloat16", 2}, {"int32", 4},   {"uint32", 4},   {"float32", 4},
      {"int64", 8},   {"uint64", 8},   {"float64", 8}, {"complex64", 8}};
  for (const Known& known : kKnown) {
    if (strcmp(known.name, dtype) == 0) return known.bytes;
  }
  return 0;
}

bool decode_tensor(const uint8_t* bytes, size_t count, rf_tensor* tensor) {
  Reader in(bytes, count);
  while (in.next()) {
    if (in.field == 1 && in.wire == 2) in.copy_text(tensor->name, sizeof tensor->name);
    if (in.field == 2 && in.wire == 2) in.copy_text(tensor->dtype, sizeof tensor->dtype);
    if (in.field == 3 && in.wire == 0) {
      if (tensor->dims == 8) return false;
      tensor->shape[tensor->dims++] = static_cast<int64_t>(in.value);
    }
    if (in.field == 3 && in.wire == 2) {
      Reader packed(in.data, in.count);
      uint64_t size = 0;
      while (packed.raw(&size)) {
        if (tensor->dims == 8) return false;
        tensor->shape[tensor->dims++] = static_cast<int64_t>(size);
      }
    }
    if (in.field == 4 && in.wire == 0) tensor->offset = in.value;
    if (in.field == 5 && in.wire == 0) tensor->bytes = in.value;
  }
  tensor->item_bytes = item_bytes(tensor->dtype);
  return in.whole() && tensor->dims > 0;
}

bool decode_attach(const uint8_t* bytes, size_t count, AttachReply* reply) {
  Reader in(bytes, count);
  while (in.next()) {
    if (in.wire == 2) {
      if (in.field == 4 && in.count == sizeof reply->feed_id) {
        memcpy(reply->feed_id, in.data, in.count);
        reply->has_feed_id = true;
      }
      if (in.field == 25) in.copy_text(reply->output_alias, sizeof reply->output_alias);
      if (in.field == 19) {
        if (reply->tensor_count == kTensorsMax ||
            !decode_tensor(in.data, in.count, &reply->tensors[reply->tensor_count++])) {
          return false;
        }
      }
      continue;
    }
    const auto number = static_cast<uint32_t>(in.value);
    switch (in.field) {
      case 1:
        reply->abi_major = number;
        break;
      case 2:
        reply->abi_minor = number;
        break;
      case 3:
        reply->layout_hash = in.value;
        break;
      case 6:
        reply->group_index = number;
        break;
      case 7:
        reply->member_index = number;
        break;
      case 11:
        reply->slot_bytes = in.value;
        break;
      case 13:
        reply->rows_max = number;
        break;
      case 24:
        reply->output = number;
        break;
      case 18:
        reply->supervisor_pid = number;
        break;
      default:
        break;
    }
  }
  return in.whole();
}

}  // namespace

size_t encode_attach(const rf_attach_options& options, const char* group, const char* client,
                     uint64_t id, uint8_t* out, size_t room) {
  uint8_t body[2048];
  Writer attach(body, sizeof body);
  attach.varint(1, shm::kAbiMajor);
  attach.varint(2, shm::kAbiMinor);
  attach.fixed64(3, shm::kLayoutHash);
  attach.varint(4, static_cast<uint64_t>(getpid()));
  attach.text(5, client);
  attach.text(6, group);
  if (options.kind != RF_KIND_DEFAULT) attach.varint(7, options.kind == RF_RANKED ? 1 : 0);
  if (options.kind == RF_RANKED) {
    attach.varint(8, options.rank);
    attach.varint(9, options.world);
  }
  attach.varint(10, options.start == RF_START_NEWEST ? 0 : 1);
  if (options.policy != RF_POLICY_DEFAULT) attach.varint(11, options.policy - 1);
  if (options.stall_ms != 0) attach.varint(12, options.stall_ms);
  if (options.redeliver != RF_REDELIVER_DEFAULT)
    attach.varint(13, options.redeliver == RF_REDELIVER ? 1 : 0);
  if (options.max_tries != 0) attach.varint(14, options.max_tries);
  if (options.max_hold != 0) attach.varint(15, options.max_hold);
  if (options.rejoin_ms != 0) attach.varint(16, options.rejoin_ms);
  if (options.position != 0) attach.varint(17, options.position);
  if (options.output != nullptr && options.output[0] != '\0') attach.text(18, options.output);
  if (options.observe != 0) attach.varint(19, 1);
  const size_t body_bytes = attach.finish();
  if (body_bytes == 0) return 0;
  Writer request(out, room);
  request.varint(1, id);
  request.bytes(2, body, body_bytes);
  return request.finish();
}

size_t encode_rejoin(const uint8_t* feed_id, uint32_t output, uint32_t group, uint32_t member,
                     uint64_t epoch, uint64_t id, uint8_t* out, size_t room) {
  uint8_t body[64];
  Writer rejoin(body, sizeof body);
  rejoin.bytes(1, feed_id, 16);
  rejoin.varint(2, group);
  rejoin.varint(3, member);
  rejoin.fixed64(4, epoch);
  rejoin.varint(5, static_cast<uint64_t>(getpid()));
  if (output != 0) rejoin.varint(6, output);
  Writer request(out, room);
  request.varint(1, id);
  request.bytes(8, body, rejoin.finish());
  return request.finish();
}

size_t encode_detach(bool failed, bool at_exit, uint64_t id, uint8_t* out, size_t room) {
  uint8_t body[8];
  Writer detach(body, sizeof body);
  if (failed) detach.varint(2, 1);
  if (at_exit) detach.varint(3, 1);
  Writer request(out, room);
  request.varint(1, id);
  request.bytes(3, body, detach.finish());
  return request.finish();
}

size_t encode_wait(uint64_t waited_ms, uint64_t id, uint8_t* out, size_t room) {
  uint8_t body[16];
  Writer wait(body, sizeof body);
  if (waited_ms != 0) wait.varint(1, waited_ms);
  Writer request(out, room);
  request.varint(1, id);
  request.bytes(13, body, wait.finish());
  return request.finish();
}

namespace {

bool give_awaited(const uint8_t* bytes, size_t count, Notices* notices) {
  char group[72] = "";
  char command[1024] = "";
  char text[2048] = "";
  char line[3072];
  rf_notice notice{};
  notice.struct_size = sizeof notice;
  notice.kind = RF_NOTICE_WAITS;
  notice.member = -1;
  notice.waited_ms = notices->waited_ms;
  Reader in(bytes, count);
  while (in.next()) {
    if (in.wire == 2) {
      if (in.field == 1) in.copy_text(group, sizeof group);
      if (in.field == 4) in.copy_text(command, sizeof command);
      if (in.field == 7) in.copy_text(text, sizeof text);
    } else if (in.field == 2) {
      notice.member = static_cast<int32_t>(in.value & 0x7fffffff);
    } else if (in.field == 3) {
      notice.pid = static_cast<uint32_t>(in.value);
    } else if (in.field == 5) {
      notice.idle_ms = in.value;
    } else if (in.field == 6) {
      notice.held = static_cast<uint32_t>(in.value);
    }
  }
  if (!in.whole()) return false;
  notice.group = group;
  notice.command = command[0] == '\0' ? nullptr : command;
  notices->say(notices->feed, notice, text, line, sizeof line);
  notice.text = line;
  ++notices->given;
  notices->give(notices->user, &notice);
  return true;
}

}  // namespace

bool for_each_notice(const uint8_t* bytes, size_t count, Notices* notices) {
  Reader reply(bytes, count);
  while (reply.next()) {
    if (reply.field != 17 || reply.wire != 2) continue;
    char text[3072] = "";
    char line[4096];
    rf_notice held_up{};
    held_up.struct_size = sizeof held_up;
    held_up.kind = RF_NOTICE_HELD_UP;
    held_up.member = -1;
    Reader wait(reply.data, reply.count);
    while (wait.next()) {
      if (wait.field == 1 && wait.wire == 2 && !give_awaited(wait.data, wait.count, notices)) {
        return false;
      }
      if (wait.field == 2 && wait.wire == 0) held_up.waited_ms = wait.value;
      if (wait.field == 3 && wait.wire == 2) wait.copy_text(text, sizeof text);
    }
    if (!wait.whole()) return false;
    if (held_up.waited_ms == 0) continue;
    notices->say(notices->feed, held_up, text, line, sizeof line);
    held_up.text = line;
    ++notices->given;
    notices->give(notices->user, &held_up);
  }
  return reply.whole();
}

uint32_t decode_notice(const uint8_t* bytes, size_t count, char* text, size_t room) {
  uint32_t kind = 0;
  Reader reply(bytes, count);
  while (reply.next()) {
    if (reply.field != 10 || reply.wire != 2) continue;
    Reader event(reply.data, reply.count);
    while (event.next()) {
      if (event.wire != 2 || event.field < 3 || event.field > 4) continue;
      kind = event.field == 3 ? RF_NOTICE_LEFT_OUT : RF_NOTICE_STANDS_STILL;
      event.copy_text(text, room);
    }
    if (!event.whole()) return 0;
  }
  return reply.whole() ? kind : 0;
}

bool decode_reply(const uint8_t* bytes, size_t count, uint64_t* id, AttachReply* reply) {
  memset(reply, 0, sizeof *reply);
  *id = 0;
  Reader in(bytes, count);
  while (in.next()) {
    if (in.field == 1 && in.wire == 0) *id = in.value;
    if (in.field == 2 && in.wire == 0) reply->error = static_cast<int64_t>(in.value);
    if (in.field == 3 && in.wire == 2) in.copy_text(reply->text, sizeof reply->text);
    if (in.field == 4 && in.wire == 2 && !decode_attach(in.data, in.count, reply)) return false;
  }
  return in.whole();
}

bool decode_id(const uint8_t* bytes, size_t count, uint64_t* id) {
  *id = 0;
  Reader in(bytes, count);
  while (in.next()) {
    if (in.field == 1 && in.wire == 0) *id = in.value;
  }
  return in.whole();
}

bool decode_error(const uint8_t* bytes, size_t count, int64_t* error, char* text, size_t room) {
  *error = 0;
  text[0] = '\0';
  Reader in(bytes, count);
  while (in.next()) {
    if (in.field == 2 && in.wire == 0) *error = static_cast<int64_t>(in.value);
    if (in.field == 3 && in.wire == 2) in.copy_text(text, room);
  }
  return in.whole();
}

size_t encode_stage_control(const char* stage, const uint8_t* request, size_t request_bytes,
                            uint64_t key, uint64_t id, uint8_t* out, size_t room) {
  // The call's own bytes are known beforehand, so it need not be written twice.
  const auto length_bytes = [](size_t length) {
    size_t bytes = 1;
    for (; length >= 0x80; length >>= 7) ++bytes;
    return bytes;
  };
  const size_t stage_bytes = stage == nullptr ? 0 : strlen(stage);
  size_t call_bytes = 1 + length_bytes(request_bytes) + request_bytes + 9;
  if (stage != nullptr) call_bytes += 1 + length_bytes(stage_bytes) + stage_bytes;
  Writer call(out, room);
  call.varint(1, id);
  call.begin(6, call_bytes);
  if (stage != nullptr) call.bytes(1, stage, stage_bytes);
  call.bytes(2, request, request_bytes);
  call.fixed64(3, key);
  return call.finish();
}

size_t encode_metrics(bool as_json, uint64_t id, uint8_t* out, size_t room) {
  uint8_t body[8];
  Writer metrics(body, sizeof body);
  metrics.varint(1, as_json ? 1 : 0);
  Writer request(out, room);
  request.varint(1, id);
  request.bytes(12, body, metrics.finish());
  return request.finish();
}

bool find_metrics(const uint8_t* bytes, size_t count, bool as_json, const uint8_t** found,
                  size_t* found_bytes) {
  bool answered = false;
  Reader reply(bytes, count);
  while (reply.next()) {
    if (reply.field != 16 || reply.wire != 2) continue;
    if (!as_json) {
      answered = true;
      *found = reply.data;
      *found_bytes = reply.count;
      continue;
    }
    Reader metrics(reply.data, reply.count);
    while (metrics.next()) {
      if (metrics.field != 6 || metrics.wire != 2) continue;
      answered = true;
      *found = metrics.data;
      *found_bytes = metrics.count;
    }
    if (!metrics.whole()) return false;
  }
  return reply.whole() && answered;
}

bool is_in_descriptor(const uint8_t* bytes, size_t count) {
  return count == 2 && bytes[0] == 0x78 && bytes[1] == 0x01;
}

bool for_each_answer(const uint8_t* bytes, size_t count, rf_answer answer, void* user) {
  Reader reply(bytes, count);
  bool answered = false;
  while (reply.next()) {
    if (reply.field != 8 || reply.wire != 2) continue;
    answered = true;
    Reader answers(reply.data, reply.count);
    while (answers.next()) {
      if (answers.field != 1 || answers.wire != 2) continue;
      Reader one(answers.data, answers.count);
      char stage[72] = "";
      const uint8_t* response = nullptr;
      size_t response_bytes = 0;
      while (one.next()) {
        if (one.field == 1 && one.wire == 2) one.copy_text(stage, sizeof stage);
        if (one.field == 2 && one.wire == 2) {
          response = one.data;
          response_bytes = one.count;
        }
      }
      if (!one.whole()) return false;
      answer(user, stage, response, response_bytes);
    }
    if (!answers.whole()) return false;
  }
  return reply.whole() && answered;
}

}  // namespace ringfeed::client
