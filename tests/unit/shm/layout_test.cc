// The specification of ringfeed/shm/layout.h: what two processes that share memory agree on.
//
// Whoever has to change this text changes the ABI: raise kAbiMinor (a field was added in a reserved
// place) or kAbiMajor (anything else) with it, and say so in the changelog.
#include "ringfeed/shm/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ringfeed::shm {
namespace {

// struct:field:offset:size; for x86-64 and arm64 alike.
constexpr char kGolden[] =
    // clang-format off
    "SegmentHeader:magic:0:8;"
    "SegmentHeader:abi_major:8:4;"
    "SegmentHeader:abi_minor:12:4;"
    "SegmentHeader:layout_hash:16:8;"
    "SegmentHeader:header_bytes:24:4;"
    "SegmentHeader:kind:28:4;"
    "SegmentHeader:total_bytes:32:8;"
    "SegmentHeader:feed_id:40:16;"
    "SegmentHeader:config_hash:56:8;"
    "SegmentHeader:endian:64:4;"
    "SegmentHeader:page_bytes:68:4;"
    "SegmentHeader:features_required:72:8;"
    "SegmentHeader:features_optional:80:8;"
    "SegmentHeader:created_ns:88:8;"
    "SegmentHeader:boot_id_lo:96:8;"
    "SegmentHeader:abi_min_reader:104:4;"
    "SegmentHeader:geometry:112:64;"
    "SegmentHeader:crc32c:176:4;"
    "SegmentHeader:state:180:4;"
    "LanePage:commit:0:8;"
    "LanePage:entry_counts:8:8;"
    "LanePage:waiting:256:4;"
    "LanePage:pid:384:4;"
    "LanePage:incarnation:388:4;"
    "LanePage:start_ticks:392:8;"
    "LanePage:attempt_key:400:8;"
    "LanePage:faulted:408:4;"
    "LanePage:state:412:4;"
    "LanePage:progress_ns:416:8;"
    "LanePage:woke_ns:424:8;"
    "LanePage:parked:432:8;"
    "LanePage:generation_seen:440:4;"
    "LanePage:desired:512:4;"
    "LanePage:crash_count:516:4;"
    "LanePage:quarantine_key:520:8;"
    "LanePage:park_ticket:528:8;"
    "LanePage:groups_barred:536:4;"
    "LanePage:generation:540:4;"
    "LanePage:retire:640:8;"
    "LanePage:answers:656:256;"
    "LanePage:kept_slots:912:112;"
    "LanePage:counters:1024:3072;"
    "LaneCounters:steps:0:8;"
    "LaneCounters:busy_ns:8:8;"
    "LaneCounters:starved_ns:16:8;"
    "LaneCounters:blocked_ns:24:8;"
    "LaneCounters:sleeps:32:8;"
    "LaneCounters:wakes:40:8;"
    "LaneCounters:named:128:2304;"
    "LaneCounters:note:2432:640;"
    "NamedCounter:name:0:40;"
    "NamedCounter:value:40:8;"
    "LaneNote:version:0:4;"
    "LaneNote:bytes:4:4;"
    "LaneNote:done:8:8;"
    "LaneNote:total:16:8;"
    "LaneNote:text:24:616;"
    "AdmissionAnswer:epoch:0:4;"
    "AdmissionAnswer:skipped:4:4;"
    "AdmissionAnswer:from:8:8;"
    "Bell:rings:0:4;"
    "FeedState:phase:0:4;"
    "FeedState:reason_bytes:4:4;"
    "FeedState:supervisor_pid:8:4;"
    "FeedState:replacing:12:32;"
    "FeedState:reason:44:980;"
    "NodeLanesWords:shares:0:8;"
    "NodeLanesWords:floor:8:8;"
    "TailLine:tail:0:8;"
    "TailLine:tail_seq:8:8;"
    "TailLine:closed:16:8;"
    "TailLine:dropped:24:8;"
    "TailLine:discard:32:8;"
    "TailLine:discard_seq:40:8;"
    "HeadLine:head:0:8;"
    "HeadLine:head_seq:8:8;"
    "HeadLine:skipped:16:8;"
    "HeadLine:hold:24:8;"
    "RecordHeader:type:0:4;"
    "RecordHeader:flags:4:4;"
    "RecordHeader:bytes:8:8;"
    "RecordHeader:seq:16:8;"
    "RecordHeader:tag:24:16;"
    "RecordHeader:t_ns:40:8;"
    "RecordHeader:crc32c:48:4;"
    "RecordHeader:user:56:8;"
    "Descriptor:seq:0:8;"
    "Descriptor:slot:8:4;"
    "Descriptor:layout_id:12:4;"
    "Descriptor:offset:16:8;"
    "Descriptor:bytes:24:8;"
    "Descriptor:token:32:16;"
    "Descriptor:rows:48:4;"
    "Descriptor:crc32c:52:4;"
    "Descriptor:published_ns:56:8;"
    "Descriptor:ragged:64:64;"
    "ProducerLine:newest:0:8;"
    "ProducerLine:closed:8:8;"
    "GroupHead:state:0:4;"
    "GroupHead:kind:4:4;"
    "GroupHead:policy:8:4;"
    "GroupHead:redeliver:12:4;"
    "GroupHead:epoch:16:8;"
    "GroupHead:start:24:8;"
    "GroupHead:max_hold:32:4;"
    "GroupHead:max_tries:36:4;"
    "GroupHead:world:40:4;"
    "GroupHead:stall_ms:44:4;"
    "GroupHead:name:48:64;"
    "GroupHead:rejoin_ms:112:8;"
    "GroupHead:declared:120:1;"
    "GroupHead:from_oldest:121:1;"
    "GroupHead:brief:122:1;"
    "Member:state:0:4;"
    "Member:pid:4:4;"
    "Member:start_ticks:8:8;"
    "Member:taken:16:8;"
    "Member:done:24:8;"
    "Member:last_ns:32:8;"
    "Member:rank:40:4;"
    "Member:at_most_once:44:4;"
    "Member:waited_ns:48:8;"
    "GroupWaits:sum_ns:0:8;GroupWaits:counts:8:120;"
    "GroupPage:low:128:8;"
    "GroupPage:bell:136:4;"
    "GroupPage:members:256:1024;GroupPage:waits:1280:128;"
    "GroupPage:words:2048:2048;";
// clang-format on
constexpr std::uint64_t kGoldenHash = 0x7ec73babaef60c2c;

std::string layout_text() {
  std::string text;
  for (const FieldLayout& field : kLayout) {
    text += std::string(field.structure) + ":" + field.field + ":" + std::to_string(field.offset) +
            ":" + std::to_string(field.bytes) + ";";
  }
  return text;
}

TEST(Layout, IsTheOneThatIsWrittenDownHere) { EXPECT_EQ(layout_text(), kGolden); }

// FNV-1a, written out once more: the hash in every segment header is that of the text above.
TEST(Layout, HasTheHashOfItsText) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : std::string(kGolden)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  EXPECT_EQ(kLayoutHash, hash);
  EXPECT_EQ(kLayoutHash, kGoldenHash);
}

TEST(Layout, FieldsOfAStructDoNotOverlap) {
  std::map<std::string, std::size_t> ends;
  for (const FieldLayout& field : kLayout) {
    EXPECT_GE(field.offset, ends[field.structure]) << field.structure << "." << field.field;
    ends[field.structure] = field.offset + field.bytes;
  }
}

// The prefetcher fetches lines in pairs: fields of different writers stand at least 128 bytes
// apart.
TEST(Layout, FieldsOfDifferentWritersShareNoPairOfLines) {
  constexpr std::size_t kOfTheLane[] = {offsetof(LanePage, commit), offsetof(LanePage, waiting),
                                        offsetof(LanePage, pid),    offsetof(LanePage, progress_ns),
                                        offsetof(LanePage, retire), offsetof(LanePage, counters)};
  constexpr std::size_t kOfTheSupervisor[] = {offsetof(LanePage, desired),
                                              offsetof(LanePage, quarantine_key)};
  for (const std::size_t lane : kOfTheLane) {
    for (const std::size_t supervisor : kOfTheSupervisor) {
      EXPECT_NE(lane / kLineBytes, supervisor / kLineBytes) << lane << " and " << supervisor;
    }
  }
  EXPECT_EQ(sizeof(Bell), kLineBytes);
  EXPECT_EQ(sizeof(TailLine), kLineBytes);
  EXPECT_EQ(sizeof(HeadLine), kLineBytes);
  EXPECT_EQ(sizeof(ProducerLine), kLineBytes);
}

TEST(Layout, PartsOfTheControlSegmentFollowOneAnother) {
  EXPECT_GE(kFeedStateOffset, sizeof(SegmentHeader));
  EXPECT_LE(kFeedStateOffset + sizeof(FeedState), kNodeLanesOffset);
  EXPECT_LE(kNodeLanesOffset + kNodesMax * sizeof(NodeLanesWords), kPageBytes);
  for (const std::uint64_t lanes : {1, 2, 31, 32, 33, 1000}) {
    EXPECT_EQ(lane_page_offset(0), kPageBytes);
    EXPECT_EQ(bells_offset(lanes), lane_page_offset(lanes - 1) + sizeof(LanePage));
    EXPECT_GE(control_bytes(lanes), bells_offset(lanes) + lanes * sizeof(Bell));
    EXPECT_EQ(control_bytes(lanes) % kPageBytes, 0U);
  }
}

TEST(Layout, PartsOfTheFeedControlSegmentFollowOneAnother) {
  EXPECT_GE(kFeedBellOffset, sizeof(SegmentHeader));
  for (const std::uint64_t lanes : {1, 3, 16}) {
    EXPECT_EQ(descriptors_offset(lanes), kProducerLinesOffset + lanes * sizeof(ProducerLine));
    EXPECT_EQ(descriptors_offset(lanes) % sizeof(Descriptor), 0U);
    EXPECT_GE(feed_control_bytes(lanes, 256), descriptors_offset(lanes) + 256 * sizeof(Descriptor));
  }
}

}  // namespace
}  // namespace ringfeed::shm
