// Any bytes as a reply that the C client decodes by hand.
//
// Holds: what protobuf's own parser takes, the client takes as well, but for more arrays or
// dimensions than it has room for, and reads the same from it; every text ends in its room, every
// view lies inside the bytes. What it writes, protobuf reads.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "pyclient/src/client.h"
#include "tests/fuzz/input.h"

using namespace ringfeed;

namespace {

template <std::size_t room>
bool ends(const char (&text)[room]) {
  return ::strnlen(text, room) < room;
}

// As the client cuts a text: to what fits, and where a C string ends.
template <std::size_t room>
bool is(const char (&text)[room], const std::string& whole) {
  const std::string cut = whole.substr(0, room - 1);
  return std::string(text) == std::string(cut.c_str());
}

struct Within {
  const std::uint8_t* begin;
  const std::uint8_t* end;
};

void check_answer(void* user, const char* stage, const void* bytes, std::size_t count) {
  const auto& [begin, end] = *static_cast<const Within*>(user);
  const auto* const response = static_cast<const std::uint8_t*>(bytes);
  RF_HOLDS(std::strlen(stage) < 72, stage);
  RF_HOLDS(count == 0 || (response >= begin && response + count <= end), count);
}

// A sentence for people, as notices.cc makes one.
void say(const void*, const rf_notice& notice, const char* text, char* out, std::size_t room) {
  RF_HOLDS(room > 0 && std::strlen(text) < 3072, room);
  RF_HOLDS(notice.kind != RF_NOTICE_WAITS || std::strlen(notice.group) < 72, notice.kind);
  std::snprintf(out, room, "%s", text);
}
void hear(void* count, const rf_notice* notice) {
  RF_HOLDS(notice->member >= -1 && std::strlen(notice->text) < 4096, notice->member);
  ++*static_cast<std::uint32_t*>(count);
}

void compare(const Reply& reply, const client::AttachReply& read) {
  RF_HOLDS(read.error == reply.error(), read.error, static_cast<int>(reply.error()));
  RF_HOLDS(is(read.text, reply.text()), read.text, reply.text());
  const AttachReply& attach = reply.attach();
  RF_HOLDS(read.abi_major == attach.abi_major() && read.abi_minor == attach.abi_minor(),
           read.abi_major, attach.abi_major());
  RF_HOLDS(read.layout_hash == attach.layout_hash(), read.layout_hash, attach.layout_hash());
  RF_HOLDS(read.group_index == attach.group_index(), read.group_index);
  RF_HOLDS(read.member_index == attach.member_index(), read.member_index);
  RF_HOLDS(read.slot_bytes == attach.slot_bytes(), read.slot_bytes, attach.slot_bytes());
  RF_HOLDS(read.rows_max == attach.rows_max(), read.rows_max, attach.rows_max());
  RF_HOLDS(read.output == attach.output(), read.output, attach.output());
  RF_HOLDS(read.supervisor_pid == attach.supervisor_pid(), read.supervisor_pid);
  RF_HOLDS(is(read.output_alias, attach.output_alias()), read.output_alias, attach.output_alias());
  RF_HOLDS(static_cast<int>(read.tensor_count) == attach.tensors_size(), read.tensor_count);
  for (std::uint32_t t = 0; t < read.tensor_count; ++t) {
    const TensorSpec& spec = attach.tensors(static_cast<int>(t));
    const rf_tensor& tensor = read.tensors[t];
    RF_HOLDS(is(tensor.name, spec.name()) && is(tensor.dtype, spec.dtype()), t);
    RF_HOLDS(static_cast<int>(tensor.dims) == spec.shape_size(), t, tensor.dims);
    for (std::uint32_t d = 0; d < tensor.dims; ++d) {
      RF_HOLDS(tensor.shape[d] == spec.shape(static_cast<int>(d)), t, d, tensor.shape[d]);
    }
    RF_HOLDS(tensor.offset == spec.offset() && tensor.bytes == spec.bytes(), t, tensor.offset);
  }
}

bool has_room(const Reply& reply) {
  if (reply.attach().tensors_size() > static_cast<int>(client::kTensorsMax)) return false;
  for (const TensorSpec& tensor : reply.attach().tensors()) {
    if (tensor.shape_size() == 0 || tensor.shape_size() > 8) return false;
  }
  return true;
}

bool knows_all(const google::protobuf::Message& message) {
  return message.GetReflection()->GetUnknownFields(message).empty();
}

// Whether the schema has all that is there, and each field is there once: then there is one
// meaning only. A value that an enumeration does not have is unknown to protobuf, and a number to
// the client.
bool is_plain(const Reply& reply, std::size_t bytes) {
  return reply.ByteSizeLong() == bytes && knows_all(reply) && knows_all(reply.attach()) &&
         std::ranges::all_of(reply.attach().tensors(), knows_all);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto read = std::make_unique<client::AttachReply>();
  std::uint64_t id = 0;
  const bool taken = client::decode_reply(data, size, &id, read.get());
  RF_HOLDS(ends(read->text) && ends(read->output_alias), size);
  RF_HOLDS(read->tensor_count <= client::kTensorsMax, read->tensor_count);
  for (std::uint32_t t = 0; t < read->tensor_count; ++t) {
    const rf_tensor& tensor = read->tensors[t];
    RF_HOLDS(ends(tensor.name) && ends(tensor.dtype) && tensor.dims <= 8, t, tensor.dims);
  }
  std::int64_t error = 0;
  char text[64];
  const bool error_taken = client::decode_error(data, size, &error, text, sizeof text);
  RF_HOLDS(ends(text), size);
  RF_HOLDS(!taken || error_taken, size);
  Within within{data, data + size};
  static_cast<void>(client::for_each_answer(data, size, check_answer, &within));
  for (const bool as_json : {false, true}) {
    const std::uint8_t* found = nullptr;
    std::size_t found_bytes = 0;
    if (!client::find_metrics(data, size, as_json, &found, &found_bytes)) continue;
    RF_HOLDS(found >= data && found + found_bytes <= data + size, found_bytes);
  }
  static_cast<void>(client::is_in_descriptor(data, size));
  std::uint32_t heard = 0;
  client::Notices notices{hear, &heard, say, nullptr, 0, 0};
  static_cast<void>(client::for_each_notice(data, size, &notices));
  RF_HOLDS(heard == notices.given, heard, notices.given);

  Reply reply;
  if (!reply.ParseFromArray(data, static_cast<int>(size)) || !is_plain(reply, size)) return 0;
  RF_HOLDS(taken == has_room(reply), taken, reply.ShortDebugString());
  if (!taken) return 0;
  RF_HOLDS(id == reply.id(), id, reply.id());
  compare(reply, *read);

  // The same bytes as the message to a stage, and the way back.
  std::vector<std::uint8_t> out(size + 256);
  const std::size_t bytes =
      client::encode_stage_control(text, data, size, id, id + 1, out.data(), out.size());
  Request request;
  RF_HOLDS(bytes != 0 && request.ParseFromArray(out.data(), static_cast<int>(bytes)), bytes);
  return 0;
}
