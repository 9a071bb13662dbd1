// The hand-written wire format beside the real protocol buffers: what one writes the other reads.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "client.h"
#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed/shm/layout.h"

namespace ringfeed::client {
namespace {

Request written(const rf_attach_options& options, const char* group = "g") {
  std::uint8_t bytes[1024];
  const std::size_t count = encode_attach(options, group, "train.py", 7, bytes, sizeof bytes);
  EXPECT_GT(count, 0U);
  Request request;
  EXPECT_TRUE(request.ParseFromArray(bytes, static_cast<int>(count)));
  return request;
}

TEST(AttachCodec, WritesEveryFieldThatWasGiven) {
  rf_attach_options options{};
  options.kind = RF_RANKED;
  options.rank = 3;
  options.world = 4;
  options.start = RF_START_NEWEST;
  options.policy = RF_POLICY_SKIP;
  options.redeliver = RF_AT_MOST_ONCE;
  options.max_tries = 9;
  options.max_hold = 300;
  options.stall_ms = 1ULL << 40;
  options.rejoin_ms = 12345;
  const Request request = written(options);
  EXPECT_EQ(request.id(), 7U);
  const AttachRequest& attach = request.attach();
  EXPECT_EQ(attach.abi_major(), shm::kAbiMajor);
  EXPECT_EQ(attach.layout_hash(), shm::kLayoutHash);
  EXPECT_NE(attach.pid(), 0U);
  EXPECT_EQ(attach.client(), "train.py");
  EXPECT_EQ(attach.group(), "g");
  EXPECT_EQ(attach.kind(), ConsumerGroupConfig::RANKED);
  EXPECT_EQ(attach.rank(), 3U);
  EXPECT_EQ(attach.world(), 4U);
  EXPECT_EQ(attach.start(), AttachRequest::NEWEST);
  EXPECT_EQ(attach.policy(), ConsumerGroupConfig::SKIP);
  EXPECT_TRUE(attach.has_redeliver());
  EXPECT_FALSE(attach.redeliver());
  EXPECT_EQ(attach.max_tries(), 9U);
  EXPECT_EQ(attach.max_hold(), 300U);
  EXPECT_EQ(attach.stall_ms(), 1ULL << 40);
  EXPECT_EQ(attach.rejoin_ms(), 12345U);
  EXPECT_TRUE(request.unknown_fields().empty());
}

TEST(AttachCodec, WhatIsNotGivenIsAbsent) {
  const Request request = written({});
  const AttachRequest& attach = request.attach();
  EXPECT_FALSE(attach.has_kind() || attach.has_rank() || attach.has_world());
  EXPECT_FALSE(attach.has_policy() || attach.has_redeliver() || attach.has_max_tries());
  EXPECT_FALSE(attach.has_max_hold() || attach.has_stall_ms() || attach.has_rejoin_ms());
  EXPECT_EQ(attach.start(), AttachRequest::OLDEST);
}

TEST(AttachCodec, RefusesARequestThatDoesNotFit) {
  std::uint8_t bytes[16];
  EXPECT_EQ(encode_attach({}, "g", "train.py", 1, bytes, sizeof bytes), 0U);
}

TEST(AttachCodec, WritesADetach) {
  std::uint8_t bytes[64];
  const std::size_t count = encode_detach(false, false, 300, bytes, sizeof bytes);
  Request request;
  ASSERT_TRUE(request.ParseFromArray(bytes, static_cast<int>(count)));
  EXPECT_EQ(request.id(), 300U);
  EXPECT_TRUE(request.has_detach());
  EXPECT_FALSE(request.detach().failed() || request.detach().at_exit());
}

TEST(AttachCodec, SaysHowItLeaves) {
  for (const bool failed : {false, true}) {
    std::uint8_t bytes[64];
    const std::size_t count = encode_detach(failed, !failed, 1, bytes, sizeof bytes);
    Request request;
    ASSERT_TRUE(request.ParseFromArray(bytes, static_cast<int>(count)));
    EXPECT_EQ(request.detach().failed(), failed);
    EXPECT_EQ(request.detach().at_exit(), !failed);
  }
}

TEST(WaitCodec, AsksAndHearsForWhomItWaits) {
  std::uint8_t bytes[64];
  const std::size_t count = encode_wait(5000, kWaitId, bytes, sizeof bytes);
  Request request;
  ASSERT_TRUE(request.ParseFromArray(bytes, static_cast<int>(count)));
  EXPECT_EQ(request.wait().waited_ms(), 5000U);

  Reply reply;
  reply.set_id(kWaitId);
  AwaitedTrainer& awaited = *reply.mutable_wait()->add_awaited();
  awaited.set_group("idle");
  awaited.set_member(2);
  awaited.set_pid(4711);
  awaited.set_command("python notebook.py");
  awaited.set_idle_ms(57'000);
  awaited.set_held(1);
  awaited.set_text("member 2 does nothing");
  reply.mutable_wait()->add_awaited()->set_group("gone");
  reply.mutable_wait()->set_held_up_ms(9000);
  reply.mutable_wait()->set_held_up("two waited");
  const std::string message = reply.SerializeAsString();
  std::vector<std::string> heard;
  const auto hear = [](void* user, const rf_notice* notice) {
    static_cast<std::vector<std::string>*>(user)->push_back(
        fmt::format("{} {} {} {} {} {} {}", notice->kind, notice->group ? notice->group : "-",
                    notice->member, notice->pid, notice->idle_ms, notice->held, notice->text));
  };
  const auto say = [](const void*, const rf_notice&, const char* text, char* out,
                      std::size_t room) { snprintf(out, room, "<%s>", text); };
  Notices notices{hear, &heard, say, nullptr, 5000, 0};
  ASSERT_TRUE(for_each_notice(reinterpret_cast<const std::uint8_t*>(message.data()), message.size(),
                              &notices));
  EXPECT_EQ(notices.given, 3U);
  EXPECT_THAT(heard, ::testing::ElementsAre("1 idle 2 4711 57000 1 <member 2 does nothing>",
                                            "1 gone -1 0 0 0 <>", "2 - -1 0 0 0 <two waited>"));
}

// What the supervisor says by itself: what is left out, or another state, which is no notice.
TEST(NoticeCodec, ReadsWhatIsLeftOutAndWhoStandsStill) {
  Reply reply;
  reply.set_id(0);
  reply.mutable_event()->set_state(StatusReply::DRAINING);
  reply.mutable_event()->set_reason("a test says so");
  char text[64];
  const auto kind = [&] {
    const std::string message = reply.SerializeAsString();
    return decode_notice(reinterpret_cast<const std::uint8_t*>(message.data()), message.size(),
                         text, sizeof text);
  };
  EXPECT_EQ(kind(), 0U);
  reply.mutable_event()->set_left_out("5 % of all samples");
  EXPECT_EQ(kind(), RF_NOTICE_LEFT_OUT);
  EXPECT_STREQ(text, "5 % of all samples");
  reply.mutable_event()->set_left_out(std::string(100, 'x'));
  EXPECT_EQ(kind(), RF_NOTICE_LEFT_OUT);
  EXPECT_EQ(std::string(text), std::string(sizeof text - 1, 'x')) << "cut to the room there is";
  reply.mutable_event()->clear_left_out();
  reply.mutable_event()->set_stands_still("nobody has worked");
  EXPECT_EQ(kind(), RF_NOTICE_STANDS_STILL);
  EXPECT_STREQ(text, "nobody has worked");
}

Reply full_reply() {
  Reply reply;
  reply.set_id(5);
  ringfeed::AttachReply* const attach = reply.mutable_attach();
  attach->set_abi_major(1);
  attach->set_abi_minor(2);
  attach->set_layout_hash(0x8877665544332211);
  attach->set_feed_id("0123456789abcdef");
  attach->set_feed("lc0");
  attach->set_group_index(3);
  attach->set_member_index(15);
  attach->set_lanes(2);
  attach->set_slot_bytes(1ULL << 40);
  attach->set_rows_max(1024);
  attach->set_supervisor_pid(4242);
  for (const char* name : {"planes", "policy"}) {
    TensorSpec* const tensor = attach->add_tensors();
    tensor->set_name(name);
    tensor->set_dtype("float32");
    for (const std::int64_t size : {-1, 112, 8, 8}) tensor->add_shape(size);
    tensor->set_offset(4096);
    tensor->set_bytes(29360128);
  }
  return reply;
}

std::unique_ptr<AttachReply> read_back(const std::string& bytes, bool* ok, std::uint64_t* id) {
  auto reply = std::make_unique<AttachReply>();
  *ok = decode_reply(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), id,
                     reply.get());
  return reply;
}

TEST(ReplyCodec, ReadsWhatProtocolBuffersWrite) {
  bool ok = false;
  std::uint64_t id = 0;
  const auto reply = read_back(full_reply().SerializeAsString(), &ok, &id);
  ASSERT_TRUE(ok);
  EXPECT_EQ(id, 5U);
  EXPECT_EQ(reply->error, 0);
  EXPECT_EQ(reply->abi_major, 1U);
  EXPECT_EQ(reply->abi_minor, 2U);
  EXPECT_EQ(reply->layout_hash, 0x8877665544332211U);
  EXPECT_EQ(std::memcmp(reply->feed_id, "0123456789abcdef", 16), 0);
  EXPECT_EQ(reply->group_index, 3U);
  EXPECT_EQ(reply->member_index, 15U);
  EXPECT_EQ(reply->slot_bytes, 1ULL << 40);
  EXPECT_EQ(reply->rows_max, 1024U);
  EXPECT_EQ(reply->supervisor_pid, 4242U);
  ASSERT_EQ(reply->tensor_count, 2U);
  EXPECT_STREQ(reply->tensors[1].name, "policy");
  EXPECT_STREQ(reply->tensors[1].dtype, "float32");
  EXPECT_EQ(reply->tensors[1].item_bytes, 4U);
  ASSERT_EQ(reply->tensors[1].dims, 4U);
  EXPECT_EQ(reply->tensors[1].shape[0], -1);
  EXPECT_EQ(reply->tensors[1].shape[1], 112);
  EXPECT_EQ(reply->tensors[1].offset, 4096U);
}

TEST(ReplyCodec, ReadsARefusal) {
  Reply refusal;
  refusal.set_id(1);
  refusal.set_error(Reply::GROUP_MISMATCH);
  refusal.set_text("group g is ranked");
  bool ok = false;
  std::uint64_t id = 0;
  const auto reply = read_back(refusal.SerializeAsString(), &ok, &id);
  ASSERT_TRUE(ok);
  EXPECT_EQ(reply->error, Reply::GROUP_MISMATCH);
  EXPECT_STREQ(reply->text, "group g is ranked");
}

TEST(ReplyCodec, SkipsFieldsThatItDoesNotKnow) {
  Reply reply = full_reply();
  // Field 100 of each wire type, in the reply and in the attach part.
  for (auto* unknown :
       {reply.mutable_unknown_fields(), reply.mutable_attach()->mutable_unknown_fields()}) {
    unknown->AddVarint(100, 7);
    unknown->AddFixed64(100, 0x0807060504030201);
    unknown->AddLengthDelimited(100, "hi");
    unknown->AddFixed32(100, 0x04030201);
  }
  bool ok = false;
  std::uint64_t id = 0;
  const auto read = read_back(reply.SerializeAsString(), &ok, &id);
  ASSERT_TRUE(ok);
  EXPECT_EQ(read->tensor_count, 2U);
}

TEST(ReplyCodec, AReplyCutAnywhereIsRefusedOrLacksWhatWasCutOff) {
  const std::string whole = full_reply().SerializeAsString();
  std::size_t refused = 0;
  for (std::size_t count = 0; count < whole.size(); ++count) {
    // A copy of just these bytes, so that a read beyond them is seen by AddressSanitizer.
    const std::string cut(whole.data(), count);
    bool ok = false;
    std::uint64_t id = 0;
    const auto reply = read_back(cut, &ok, &id);
    if (!ok) {
      ++refused;
      continue;
    }
    EXPECT_EQ(reply->tensor_count, 0U) << count;
  }
  EXPECT_GT(refused, whole.size() / 2);
}

TEST(ReplyCodec, RefusesMoreTensorsOrDimensionsThanItHasRoomFor) {
  bool ok = true;
  std::uint64_t id = 0;
  Reply many = full_reply();
  while (many.attach().tensors_size() <= static_cast<int>(kTensorsMax)) {
    *many.mutable_attach()->add_tensors() = many.attach().tensors(0);
  }
  read_back(many.SerializeAsString(), &ok, &id);
  EXPECT_FALSE(ok);
  Reply deep = full_reply();
  for (int i = 0; i < 5; ++i) deep.mutable_attach()->mutable_tensors(0)->add_shape(2);
  ok = true;
  read_back(deep.SerializeAsString(), &ok, &id);
  EXPECT_FALSE(ok);
}

// ---- metrics

TEST(MetricsCodec, AsksAndFindsTheAnswerInEitherForm) {
  std::uint8_t bytes[64];
  const std::size_t count = encode_metrics(true, 5, bytes, sizeof bytes);
  Request request;
  ASSERT_TRUE(request.ParseFromArray(bytes, static_cast<int>(count)));
  EXPECT_EQ(request.id(), 5U);
  EXPECT_TRUE(request.metrics().as_json());
  Reply reply;
  reply.set_id(5);
  reply.mutable_metrics()->set_feed("lc0");
  reply.mutable_metrics()->set_json("{}");
  const std::string given = reply.SerializeAsString();
  const auto* const data = reinterpret_cast<const std::uint8_t*>(given.data());
  const auto found = [&](bool as_json, std::size_t bytes_of_it) {
    const std::uint8_t* at = nullptr;
    std::size_t length = 0;
    if (!find_metrics(data, bytes_of_it, as_json, &at, &length)) return std::string("nothing");
    return std::string(reinterpret_cast<const char*>(at), length);
  };
  EXPECT_EQ(found(true, given.size()), "{}");
  EXPECT_EQ(found(false, given.size()), reply.metrics().SerializeAsString());
  for (std::size_t cut = 0; cut < given.size(); ++cut) {
    EXPECT_EQ(found(true, cut), "nothing") << cut;
    EXPECT_EQ(found(false, cut), "nothing") << cut;
  }
}

}  // namespace
}  // namespace ringfeed::client
