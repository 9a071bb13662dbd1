// Specification of supervisor/snapshot: what is on disk is complete or absent, is what the segments
// held at the last copy, and is read back only where it belongs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "proto/snapshot.pb.h"
#include "supervisor/os/text.h"
#include "supervisor/snapshot/changes.h"
#include "supervisor/snapshot/load.h"
#include "supervisor/snapshot/pages.h"
#include "supervisor/snapshot/series.h"
#include "supervisor/snapshot/store.h"
#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::snapshot {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Snapshots : public ::testing::Test {
 protected:
  Snapshots() : layout_(test::laid_out()), memory_(test::feed_memory()) {
    work_ = fs::temp_directory_path() / ("ringfeed-snapshot-" + std::to_string(::getpid()));
    fs::create_directory(work_);
  }
  ~Snapshots() override { fs::remove_all(work_); }

  SnapshotManifest manifest() const {
    SnapshotManifest out;
    describe_segments(layout_, out);
    out.set_feed("test");
    const shm::FeedId& id = memory_->identity().feed_id;
    out.set_feed_id(to_hex({reinterpret_cast<const char*>(id.data()), id.size()}));
    out.set_config_hash(1);
    out.set_seed(5);
    return out;
  }
  void add_all(Store& store) const {
    for (const layout::SegmentPlan& segment : layout_.segments) {
      store.add(segment.spec.name, memory_->fd(segment.id));
    }
  }
  SnapshotManifest save(const fs::path& place) {
    Store store(place);
    add_all(store);
    store.copy(2, go_);
    SnapshotManifest out = manifest();
    store.publish(out);
    return out;
  }
  shm::Mapping map(int fd) const { return shm::map_segment(fd, true).value_or_throw(); }
  // Everything but the page of the header.
  static std::string contents(const shm::Mapping& mapping) {
    return {reinterpret_cast<const char*>(mapping.data()) + shm::kPageBytes,
            mapping.bytes() - shm::kPageBytes};
  }
  std::uint32_t arena_of(std::uint32_t lane) const { return layout_.lanes[lane].arena_segment; }
  // As the lane's worker has them.
  shm::Stamps stamps(std::uint32_t lane, const shm::Mapping& heads) const {
    const auto& counts = layout_.segments[layout_.lanes[lane].heads_segment].spec.geometry;
    return {memory_->lane(lane), {heads.data(), heads.bytes()}, counts[0], counts[1], counts[2]};
  }
  // Nobody waits for the answer of a lane at its end.
  void finish_all_but(std::uint32_t lane) const {
    for (const layout::LanePlan& plan : layout_.lanes) {
      if (plan.index == lane) continue;
      memory_->lane(plan.index).state.store(static_cast<std::uint32_t>(shm::LaneState::kFinished));
    }
  }

  layout::FeedLayout layout_;
  std::unique_ptr<layout::FeedMemory> memory_;
  fs::path work_;
  std::atomic<bool> go_{false};  // "cancelled"
};

TEST_F(Snapshots, GiveBackWhatTheSegmentsHeld) {
  std::mt19937_64 random(3);
  const std::uint32_t arena = arena_of(1);
  shm::grow_segment(memory_->fd(arena), 400'000, "arena").or_throw();
  for (const std::uint32_t segment : {arena, layout_.outputs[0].payload_segment}) {
    const shm::Mapping mapping = map(memory_->fd(segment));
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t at =
          shm::kPageBytes + random() % ((mapping.bytes() - shm::kPageBytes) / 8) * 8;
      *reinterpret_cast<std::uint64_t*>(mapping.data() + at) = random();
    }
  }
  const SnapshotManifest saved = save(work_ / "saved");
  SnapshotManifest read;
  ASSERT_TRUE(read_manifest(work_ / "saved", read).ok());
  EXPECT_EQ(read.SerializeAsString(), saved.SerializeAsString());
  Result<layout::FoundMemory> found = load(work_ / "saved", read, layout_, {});
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->identity.feed_id, memory_->identity().feed_id);
  for (const std::uint32_t segment : {arena, layout_.outputs[0].payload_segment}) {
    EXPECT_EQ(contents(map(found->fds[segment].get())), contents(map(memory_->fd(segment))));
  }
  // And is memory that a supervisor can take over.
  const layout::FeedMemory taken(layout_, std::move(*found));
  EXPECT_EQ(taken.output().newest_batch(), 0U);
}

TEST_F(Snapshots, WriteOnlyWhatHasChangedSinceTheLastCopy) {
  const shm::Mapping arena = map(memory_->fd(arena_of(1)));
  Store store(work_ / "saved");
  add_all(store);
  store.copy(1, go_);
  EXPECT_EQ(store.copy(1, go_), 0U);
  arena.data()[5 * shm::kPageBytes] = std::byte{1};
  arena.data()[9 * shm::kPageBytes + 17] = std::byte{1};
  EXPECT_EQ(store.copy(2, go_), 2 * shm::kPageBytes);
  // Back to zeros is a change as well.
  arena.data()[5 * shm::kPageBytes] = std::byte{0};
  EXPECT_EQ(store.copy(1, go_), shm::kPageBytes);
  SnapshotManifest out = manifest();
  store.publish(out);
  Result<layout::FoundMemory> found = load(work_ / "saved", out, layout_, {});
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(contents(map(found->fds[arena_of(1)].get())), contents(arena));
}

// Whatever is written while it is copied: the last copy, at rest, is right.
TEST_F(Snapshots, AreRightThoughSegmentsChangeWhileTheyAreCopied) {
  const shm::Mapping arena = map(memory_->fd(arena_of(1)));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::mt19937_64 random(7);
    while (!stop.load()) {
      auto* const words = reinterpret_cast<std::atomic<std::uint64_t>*>(arena.data());
      words[512 + random() % (arena.bytes() / 8 - 512)].store(random());
    }
  });
  Store store(work_ / "saved");
  add_all(store);
  for (int pass = 0; pass < 20; ++pass) store.copy(1, go_);
  stop.store(true);
  writer.join();
  store.copy(2, go_);
  SnapshotManifest out = manifest();
  store.publish(out);
  Result<layout::FoundMemory> found = load(work_ / "saved", out, layout_, {});
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(contents(map(found->fds[arena_of(1)].get())), contents(arena));
}

TEST_F(Snapshots, LookOnlyAtWhatLanesHaveStamped) {
  const std::uint32_t lane = layout_.outputs[0].producing_lanes[0];
  finish_all_but(lane);
  const shm::Mapping heads = map(memory_->fd(layout_.lanes[lane].heads_segment));
  const shm::Mapping payload = map(memory_->fd(layout_.outputs[0].payload_segment));
  shm::Stamps stamped = stamps(lane, heads);
  Store store(work_ / "saved");
  add_all(store);
  Changes changes(*memory_);
  const auto copy = [&] {
    Look look = changes.look();
    for (std::size_t i = 0; i < look.size(); ++i) {
      if (i != layout_.outputs[0].payload_segment) look[i].emplace();
    }
    return store.copy(1, go_, look);
  };
  changes.order(go_);  // nobody answers, nothing has a stamp
  copy();
  stamped.follow();
  // Slots 1 and 2: only one of them is announced.
  payload.data()[2 * shm::kPageBytes] = std::byte{1};
  payload.data()[3 * shm::kPageBytes] = std::byte{1};
  stamped.mark_slot(1);
  changes.order(go_);
  EXPECT_EQ(copy(), 2 * shm::kPageBytes)
      << "a lane that has answered late may have changed anything since";
  changes.order(go_);
  stamped.follow();
  static_cast<void>(copy());
  payload.data()[2 * shm::kPageBytes] = std::byte{2};
  payload.data()[3 * shm::kPageBytes] = std::byte{2};
  stamped.mark_slot(1);
  EXPECT_EQ(copy(), shm::kPageBytes);
}

// The lane works all the time and takes over a new generation whenever it likes to.
TEST_F(Snapshots, FindWhatALaneHasStampedWhileTheyAreCopied) {
  const std::uint32_t lane = 1;
  finish_all_but(lane);
  const shm::Mapping heads = map(memory_->fd(layout_.lanes[lane].heads_segment));
  const std::uint32_t segment = arena_of(lane);
  shm::grow_segment(memory_->fd(segment), 4 << 20, "arena").or_throw();
  const shm::Mapping arena = map(memory_->fd(segment));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::mt19937_64 random(7);
    shm::Stamps stamped = stamps(lane, heads);
    auto* const words = reinterpret_cast<std::atomic<std::uint64_t>*>(arena.data());
    while (!stop.load()) {
      if (random() % 5000 == 0) stamped.follow();
      const std::uint64_t at =
          shm::kStateOffset / 8 + random() % ((arena.bytes() - shm::kStateOffset) / 8);
      stamped.mark(8 * at, 8);
      words[at].store(random());
    }
  });
  Store store(work_ / "saved");
  add_all(store);
  Changes changes(*memory_);
  for (int pass = 0; pass < 20; ++pass) {
    changes.order(go_);
    store.copy(1, go_, changes.look());
  }
  stop.store(true);
  writer.join();
  store.make_room(1 << 20);  // less than there is to copy
  store.copy_to_room(2, go_, changes.look());
  store.write_kept();
  SnapshotManifest out = manifest();
  store.publish(out);
  Result<layout::FoundMemory> found = load(work_ / "saved", out, layout_, {});
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(contents(map(found->fds[segment].get())), contents(arena));
}

// Of a ring, what is between head and tail is what counts; it goes round in between.
TEST_F(Snapshots, HoldWhatIsInTheRings) {
  std::mt19937_64 random(9);
  const layout::RingPlan& ring = layout_.rings[0];
  const std::uint64_t capacity = ring.geometry.capacity_bytes;
  const shm::Mapping memory = map(memory_->fd(ring.segment));
  const shm::Mapping heads = map(memory_->fd(ring.heads_segment));
  auto& tail = reinterpret_cast<shm::TailLine*>(memory.data() + shm::kTailLineOffset)->tail;
  auto& head =
      reinterpret_cast<shm::HeadLine*>(heads.data() + shm::kHeadLinesOffset)[ring.head_index].head;
  std::byte* const data = memory.data() + shm::kRingDataOffset;
  for (int round = 0; round < 15; ++round) {
    Store store(work_ / "saved");
    add_all(store);
    Changes changes(*memory_);
    for (int pass = 0; pass < 4; ++pass) {
      store.copy(1, go_, changes.look());
      head.store(head + random() % (tail - head + 1));
      for (std::uint64_t more = random() % (head + capacity - tail + 1); more > 0; --more) {
        data[tail % capacity] = static_cast<std::byte>(random());
        tail.store(tail + 1);
      }
    }
    store.copy(1, go_, changes.look());
    SnapshotManifest out = manifest();
    store.publish(out);
    Result<layout::FoundMemory> found = load(work_ / "saved", out, layout_, {});
    ASSERT_TRUE(found.ok()) << found.error().message();
    const shm::Mapping loaded = map(found->fds[ring.segment].get());
    for (std::uint64_t at = head; at < tail; ++at) {
      ASSERT_EQ(loaded.data()[shm::kRingDataOffset + at % capacity], data[at % capacity])
          << "byte " << at << " of [" << head << ", " << tail << "), round " << round;
    }
  }
}

TEST_F(Snapshots, TakeNoRoomForZeros) {
  SnapshotManifest saved = save(work_ / "saved");
  for (const SnapshotSegment& segment : saved.segments()) {
    struct stat info {};
    ASSERT_EQ(::stat((work_ / "saved" / segment.file()).c_str(), &info), 0);
    EXPECT_LE(info.st_blocks * 512, 64 * 1024) << segment.name() << " of " << segment.bytes();
  }
}

TEST_F(Snapshots, AreThereWholeOrNotAtAll) {
  {
    Store store(work_ / "saved");
    add_all(store);
    store.copy(1, go_);
    EXPECT_FALSE(fs::exists(work_ / "saved"));
  }
  EXPECT_TRUE(fs::is_empty(work_)) << "what is not published is removed";
  {
    Store store(work_ / "saved");
    add_all(store);
    go_.store(true);
    EXPECT_THROW(store.copy(2, go_), Error);
    go_.store(false);
  }
  EXPECT_TRUE(fs::is_empty(work_));
  // What a death has left is taken away by the next one.
  fs::create_directory(work_ / ".saved.partial");
  std::ofstream(work_ / ".saved.partial" / "000.segment") << "half";
  save(work_ / "saved");
  EXPECT_TRUE(fs::exists(work_ / "saved" / kManifestFile));
  EXPECT_FALSE(fs::exists(work_ / ".saved.partial"));
}

TEST_F(Snapshots, ReplaceOneBeforeAndNothingElse) {
  save(work_ / "saved");
  map(memory_->fd(arena_of(1))).data()[3 * shm::kPageBytes] = std::byte{9};
  const SnapshotManifest second = save(work_ / "saved");
  SnapshotManifest read;
  ASSERT_TRUE(read_manifest(work_ / "saved", read).ok());
  EXPECT_EQ(read.SerializeAsString(), second.SerializeAsString());
  EXPECT_FALSE(fs::exists(work_ / ".saved.partial"));

  fs::create_directory(work_ / "precious");
  std::ofstream(work_ / "precious" / "file") << "kept";
  try {
    const Store store(work_ / "precious");
    FAIL() << "a directory with other things was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("already exists and is not a snapshot"));
  }
  EXPECT_TRUE(fs::exists(work_ / "precious" / "file"));
}

// Whatever is not a snapshot of ringfeed's, or lies beside one, stays where it is, byte for byte.
TEST_F(Snapshots, TakeNothingOfAnybodyElses) {
  const auto write = [](const fs::path& file, const std::string& text) {
    std::ofstream(file) << text;
  };
  const auto refused = [&](const fs::path& place, const std::string& why) {
    std::map<std::string, std::string> before;
    const auto held = [&] {
      std::map<std::string, std::string> files;
      for (const fs::directory_entry& entry : fs::recursive_directory_iterator(work_)) {
        std::ostringstream text;
        if (entry.is_regular_file()) text << std::ifstream(entry.path()).rdbuf();
        files[entry.path().string()] = text.str();
      }
      return files;
    };
    before = held();
    try {
      save(place);
      ADD_FAILURE() << place << " was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr(why));
    }
    EXPECT_EQ(held(), before);
  };
  // A manifest of anybody's.
  fs::create_directory(work_ / "theirs");
  write(work_ / "theirs" / "manifest.textproto", "name: \"a dataset\"\n");
  write(work_ / "theirs" / "checkpoint.pt", "weights");
  refused(work_ / "theirs", "is not a snapshot");
  // A checkpoint beside ringfeed's own.
  save(work_ / "saved");
  write(work_ / "saved" / "checkpoint.pt", "weights");
  refused(work_ / "saved", "holds 'checkpoint.pt', which is not part of the snapshot in it");
  fs::remove(work_ / "saved" / "checkpoint.pt");
  write(work_ / "saved" / "999.segment", "not listed");
  refused(work_ / "saved", "holds '999.segment'");
  fs::remove(work_ / "saved" / "999.segment");
  save(work_ / "saved");
  // A file, a link, and a directory of somebody's where the half of one would be.
  write(work_ / "file", "kept");
  refused(work_ / "file", "is not a directory");
  fs::create_directory_symlink(work_ / "saved", work_ / "link");
  refused(work_ / "link", "is not a directory");
  fs::create_directory(work_ / ".next.partial");
  write(work_ / ".next.partial" / "notes.txt", "kept");
  refused(work_ / "next", "holds 'notes.txt', which no snapshot left there");
}

// Between the first look and the last somebody puts a file there.
TEST_F(Snapshots, LookAgainBeforeTheyTakeAPlace) {
  save(work_ / "saved");
  Store store(work_ / "saved");
  add_all(store);
  store.copy(1, go_);
  std::ofstream(work_ / "saved" / "checkpoint.pt") << "weights";
  SnapshotManifest out = manifest();
  EXPECT_THROW(store.publish(out), Error);
  EXPECT_TRUE(fs::exists(work_ / "saved" / "checkpoint.pt"));
  EXPECT_TRUE(fs::exists(work_ / "saved" / kManifestFile));
}

TEST_F(Snapshots, AreWrittenToOnePlaceByOneAtATime) {
  const Store store(work_ / "saved");
  EXPECT_THROW(Store(work_ / "saved"), Error);
}

TEST_F(Snapshots, ThatCannotBeWrittenLeaveNothingAndSaySo) {
  const shm::Mapping arena = map(memory_->fd(arena_of(1)));
  for (std::uint64_t at = shm::kPageBytes; at < arena.bytes(); ++at)
    arena.data()[at] = std::byte{1};
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{16384, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    Store store(work_ / "saved");
    add_all(store);
    store.copy(2, go_);
  } catch (const Error& error) {
    message = error.message();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, HasSubstr("saved: segment "));
  EXPECT_THAT(message, HasSubstr("File too large"));
  EXPECT_TRUE(fs::is_empty(work_));
}

TEST_F(Snapshots, ThatAreDamagedAreRefused) {
  const shm::Mapping arena = map(memory_->fd(arena_of(1)));
  for (std::uint64_t at = 8192; at < 40'000; ++at) arena.data()[at] = std::byte{1};
  const SnapshotManifest good = save(work_ / "good");
  const std::string file = good.segments(static_cast<int>(arena_of(1))).file();
  const auto loaded = [&](const fs::path& place) -> std::string {
    SnapshotManifest read;
    if (const Status status = read_manifest(place, read); !status) return status.error().message();
    const Result<layout::FoundMemory> found = load(place, read, layout_, {});
    return found ? "loaded" : found.error().message();
  };
  ASSERT_EQ(loaded(work_ / "good"), "loaded");
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const fs::path place = work_ / "flipped";
    fs::remove_all(place);
    fs::copy(work_ / "good", place);
    std::fstream bytes(place / file, std::ios::in | std::ios::out | std::ios::binary);
    // Page 0 holds the header, which the new segment has of its own; its bytes count as well.
    const std::streamoff at = random() % 40'000;
    bytes.seekg(at);
    const char old = static_cast<char>(bytes.get());
    bytes.seekp(at);
    bytes.put(static_cast<char>(old ^ (1 << random() % 8)));
    bytes.close();
    EXPECT_THAT(loaded(place), HasSubstr("fails its checksum")) << "byte " << at;
  }
  const std::string text = [&] {
    std::ifstream in(work_ / "good" / kManifestFile);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  }();
  for (std::size_t at = 0; at < text.size(); at += 37) {
    fs::remove_all(work_ / "flipped");
    fs::copy(work_ / "good", work_ / "flipped");
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    std::ofstream(work_ / "flipped" / kManifestFile) << changed;
    EXPECT_THAT(loaded(work_ / "flipped"), HasSubstr("is damaged")) << "byte " << at;
    std::ofstream(work_ / "flipped" / kManifestFile) << text.substr(0, at);
    EXPECT_THAT(loaded(work_ / "flipped"), HasSubstr("is damaged")) << "cut at " << at;
  }
}

TEST_F(Snapshots, WhoseFilesAreFifosAreRefusedAtOnce) {
  const SnapshotManifest saved = save(work_ / "saved");
  const fs::path segment = work_ / "saved" / saved.segments(0).file();
  fs::remove(segment);
  ASSERT_EQ(::mkfifo(segment.c_str(), 0600), 0);
  EXPECT_THAT(load(work_ / "saved", saved, layout_, {}).error().message(),
              AllOf(HasSubstr("is damaged"), HasSubstr("it is a FIFO, not a regular file")));
  const fs::path manifest = work_ / "saved" / kManifestFile;
  fs::remove(manifest);
  ASSERT_EQ(::mkfifo(manifest.c_str(), 0600), 0);
  SnapshotManifest read;
  EXPECT_THAT(read_manifest(work_ / "saved", read).error().message(),
              AllOf(HasSubstr("cannot be read"), HasSubstr("it is a FIFO, not a regular file")));
  EXPECT_THROW(const Store store(work_ / "saved"), Error);
}

TEST_F(Snapshots, WhosePlaceVanishesSayWhatIsNotThere) {
  const auto message = [](const fs::path& place, const auto& meanwhile) -> std::string {
    try {
      Store store(place);
      meanwhile();
      store.add("segment", 0);
    } catch (const Error& error) {
      return error.message();
    }
    return "nothing";
  };
  const fs::path parent = work_ / "parent\nline";
  const std::string named = (work_ / "parent\\nline").string();
  EXPECT_THAT(message(parent / "saved", [] {}),
              HasSubstr("(" + named + " does not exist: make it"));
  fs::create_directory(parent);
  EXPECT_THAT(message(parent / "saved", [&] { fs::remove_all(parent); }),
              HasSubstr("(" + named + " does not exist: somebody has moved or removed it"));
}

TEST_F(Snapshots, OfAnotherLayoutAreRefusedByTheSegmentThatDiffers) {
  SnapshotManifest saved = save(work_ / "saved");
  const layout::FeedLayout wider = test::laid_out({.slots = 8});
  const Result<layout::FoundMemory> found = load(work_ / "saved", saved, wider, {});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), ErrorCode::kIncompatible);
  EXPECT_THAT(found.error().message(), HasSubstr("feed control"));
  saved.set_layout_hash(saved.layout_hash() + 1);
  std::ofstream(work_ / "saved" / kManifestFile) << manifest_text(saved);
  SnapshotManifest read;
  const Status status = read_manifest(work_ / "saved", read);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("use that version"));
}

// A manifest is a file like any other: what it says may hold line ends, and sequences that a
// terminal obeys.
TEST_F(Snapshots, AreNamedInMessagesOnOneLine) {
  SnapshotManifest saved = save(work_ / "saved");
  const auto load_message = [&] {
    return load(work_ / "saved", saved, layout_, {}).error().message();
  };
  SnapshotManifest other = saved;
  saved.mutable_segments(0)->set_digest("another");
  EXPECT_THAT(load_message(), HasSubstr("000.segment (segment test/control) fails its checksum"));
  saved.mutable_segments(0)->set_file("x\x1b[2J\n");
  EXPECT_THAT(load_message(), HasSubstr("'x\\x1b[2J\\n' is not the name of a file in it"));
  saved.mutable_segments(0)->set_name("y\x1b");
  EXPECT_THAT(load_message(), HasSubstr("its segment y\\x1b of"));
  other.set_layout_hash(other.layout_hash() + 1);
  other.set_ringfeed_version("\x1b]0;title\a");
  std::ofstream(work_ / "saved" / kManifestFile) << manifest_text(other);
  SnapshotManifest read;
  EXPECT_THAT(read_manifest(work_ / "saved", read).error().message(),
              HasSubstr("taken by ringfeed \\x1b]0;title\\x07 with ABI"));
}

TEST_F(Snapshots, ReadNoFileElsewhere) {
  SnapshotManifest saved = save(work_ / "saved");
  const std::string own = saved.segments(0).file();
  fs::copy(work_ / "saved" / own, work_ / own);
  for (const std::string& file :
       {"../" + own, (work_ / own).string(), "./" + own, "../saved/" + own, std::string(".."),
        std::string(), own + std::string(1, '\0'), own + "\n", std::string(4096, '0')}) {
    saved.mutable_segments(0)->set_file(file);
    const Result<layout::FoundMemory> found = load(work_ / "saved", saved, layout_, {});
    ASSERT_FALSE(found.ok()) << file;
    EXPECT_EQ(found.error().code(), ErrorCode::kDamaged) << file;
    EXPECT_THAT(found.error().message(), HasSubstr("is not the name of a file in it"));
  }
}

TEST_F(Snapshots, LeaveNoFilesBehindWhereTheyCannotBeLoaded) {
  const SnapshotManifest saved = save(work_ / "saved");
  fs::remove(work_ / "saved" / saved.segments(saved.segments_size() - 1).file());
  const fs::path storage = work_ / "storage";
  fs::create_directory(storage);
  EXPECT_FALSE(load(work_ / "saved", saved, layout_, {storage}).ok());
  EXPECT_TRUE(fs::is_empty(storage));
}

// Numbers of processes mean nothing after a while, or elsewhere.
std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.push_back(fs::path(entry.directory).filename());
  return names;
}

TEST_F(Snapshots, OfASeriesTheNewestStay) {
  for (const std::uint64_t batch : {30, 60, 90}) save(series_path(work_, "test", batch));
  EXPECT_THAT(names_of(read_series(work_, "test")),
              ElementsAre("test-000000000030", "test-000000000060", "test-000000000090"));
  EXPECT_EQ(prune_series(work_, "test", 2), 1U);
  EXPECT_THAT(names_of(read_series(work_, "test")),
              ElementsAre("test-000000000060", "test-000000000090"));
  EXPECT_FALSE(fs::exists(work_ / "test-000000000030"));
  EXPECT_EQ(prune_series(work_, "test", 0), 1U) << "never the last one";
  EXPECT_THAT(names_of(read_series(work_, "test")), ElementsAre("test-000000000090"));
}

// A clock that was set back by hours or years, between any two.
TEST_F(Snapshots, OfASeriesTheNewestStayWhateverTheClockSays) {
  const auto save_at = [&](std::uint64_t batch, const char* taken_at) {
    Store store(series_path(work_, "test", batch));
    add_all(store);
    store.copy(2, go_);
    SnapshotManifest out = manifest();
    out.set_taken_at(taken_at);
    store.publish(out);
  };
  save_at(30, "2026-11-30T12:00:00Z");
  save_at(60, "2026-11-30T10:00:00Z");
  save_at(20, "1970-01-01T00:00:00Z");  // of a feed that was started anew
  save_at(90, "2106-02-07T06:28:15Z");
  save_at(10, "1999-01-01T00:00:00Z");
  EXPECT_THAT(names_of(read_series(work_, "test")),
              ElementsAre("test-000000000030", "test-000000000060", "test-000000000020",
                          "test-000000000090", "test-000000000010"));
  EXPECT_EQ(prune_series(work_, "test", 2), 3U);
  save_at(11, "1980-01-01T00:00:00Z");
  EXPECT_EQ(prune_series(work_, "test", 2), 1U);
  EXPECT_THAT(names_of(read_series(work_, "test")),
              ElementsAre("test-000000000010", "test-000000000011"));
  // One that is replaced is the newest again; another feed has numbers of its own.
  save_at(10, "1975-01-01T00:00:00Z");
  EXPECT_THAT(names_of(read_series(work_, "test")),
              ElementsAre("test-000000000011", "test-000000000010"));
  EXPECT_EQ(next_number(work_, "other"), 1U);
}

TEST_F(Snapshots, OfASeriesOneThatCannotBeReadIsNoneOfThoseThatStay) {
  for (const std::uint64_t batch : {1, 2, 3}) save(series_path(work_, "test", batch));
  std::ofstream(fs::path(series_path(work_, "test", 3)) / kManifestFile) << "damaged";
  EXPECT_EQ(prune_series(work_, "test", 1), 1U);
  EXPECT_THAT(names_of(read_series(work_, "test")), ElementsAre("test-000000000002"));
  EXPECT_TRUE(fs::exists(series_path(work_, "test", 3))) << "somebody may want to look at it";
}

TEST_F(Snapshots, OfASeriesNothingElseIsTouched) {
  save(work_ / "test-mine");
  save(series_path(work_, "test2", 1));
  for (const std::uint64_t batch : {1, 2}) save(series_path(work_, "test", batch));
  std::ofstream(fs::path(series_path(work_, "test", 1)) / "thesis.txt") << "not ours";
  fs::create_directory(work_ / ".test-000000000009.partial");
  std::ofstream(work_ / ".test-000000000009.partial" / "000.segment") << "of one that was killed";
  fs::create_directory(work_ / ".test-000000000008.partial");
  std::ofstream(work_ / ".test-000000000008.partial" / "thesis.txt") << "not ours";
  EXPECT_EQ(prune_series(work_, "test", 1), 0U);
  EXPECT_TRUE(fs::exists(work_ / "test-mine") && fs::exists(series_path(work_, "test2", 1)));
  EXPECT_TRUE(fs::exists(fs::path(series_path(work_, "test", 1)) / "thesis.txt"));
  EXPECT_FALSE(fs::exists(work_ / ".test-000000000009.partial"));
  EXPECT_TRUE(fs::exists(work_ / ".test-000000000008.partial" / "thesis.txt"));
}

TEST_F(Snapshots, KnowNobodyWhoWasAtWork) {
  shm::LanePage& lane = memory_->lane(2);
  lane.pid.store(static_cast<std::uint32_t>(::getpid()));
  lane.progress_ns.store(~std::uint64_t{0});
  lane.parked.store(3);
  lane.commit.store(77);
  shm::Member& member = memory_->output().group(4).members[1];
  member.pid = static_cast<std::uint32_t>(::getpid());
  member.state.store(static_cast<std::uint32_t>(shm::MemberState::kLive));
  const SnapshotManifest saved = save(work_ / "saved");
  const layout::FeedMemory found(layout_,
                                 load(work_ / "saved", saved, layout_, {}).value_or_throw());
  EXPECT_EQ(found.lane(2).pid.load(), 0U);
  EXPECT_EQ(found.lane(2).progress_ns.load(), 0U);
  EXPECT_EQ(found.lane(2).parked.load(), 0U);
  EXPECT_EQ(found.lane(2).commit.load(), 77U);
  EXPECT_EQ(found.output().group(4).members[1].pid, 0U);
  EXPECT_EQ(found.output().group(4).members[1].state.load(),
            static_cast<std::uint32_t>(shm::MemberState::kLive))
      << "its claims are still to be given back";
}

}  // namespace
}  // namespace ringfeed::snapshot
