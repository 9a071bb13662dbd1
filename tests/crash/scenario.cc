#include "tests/crash/scenario.h"

#include <fmt/format.h>

#include <array>

#include "tests/support/makers/tar_maker.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed::crash {
namespace {

using testing::LaneRig;

constexpr std::uint64_t kRoundsMax = 20'000;

void write_file(const std::string& directory, const std::string& name, const std::string& content) {
  std::ofstream out(directory + "/" + name, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  RF_CHECK(out.good(), content.size());
}

std::string loose_game(std::uint64_t first, std::uint64_t count) {
  return testing::gzip_text(testing::game(first, count));
}

// Thirteen positions: a tar with two games and something that is no game, a loose game, and one
// that is not compressed.
void write_few(const std::string& directory) {
  testing::TarMaker tar;
  tar.add("0.gz", loose_game(0, 3));
  tar.add("bad.gz", "neither gzip nor records");
  tar.add("1.gz", loose_game(3, 2));
  write_file(directory, "000.tar", tar.end().text());
  write_file(directory, "001.gz", loose_game(5, 4));
  write_file(directory, "002.gz", testing::game(9, 4));
}

// Twenty-three positions in seven games and five files.
void write_more(const std::string& directory) {
  testing::TarMaker tar;
  for (std::uint64_t i = 0; i < 3; ++i) tar.add(fmt::format("{}.gz", i), loose_game(6 + 3 * i, 3));
  write_file(directory, "000.gz", loose_game(0, 3));
  write_file(directory, "001.gz", loose_game(3, 3));
  write_file(directory, "002.tar", tar.end().text());
  write_file(directory, "003.gz", loose_game(15, 4));
  write_file(directory, "004.gz", loose_game(19, 4));
}

// Games of seven positions, so many that places of the reservoir are used again.
void write_many(const std::string& directory) {
  for (std::uint64_t i = 0; i < 12; ++i) {
    write_file(directory, fmt::format("{:03}.gz", i), loose_game(7 * i, 7));
  }
}

// Positions that do not pack, so many that the reservoir needs more memory than it began with.
void write_large(const std::string& directory) {
  for (std::uint64_t i = 0; i < 9; ++i) {
    std::string records;
    for (std::uint64_t id = 5 * i; id < 5 * i + 5; ++id) records += testing::lc0_record(id, 1858);
    write_file(directory, fmt::format("{:03}.gz", i), testing::gzip_text(records));
  }
}

struct Sizes {
  std::uint32_t lanes = 1;  // of every stage but the provider and the sampler
  double rate = 1;
  std::uint64_t chunk_bytes = 16384;  // of the ring behind the pool: a chunk may fill half of it
  std::uint64_t frame_bytes = 4096;   // of the rings that carry frames
  std::uint32_t reservoir = 4;
  bool pool_frames = false;  // the pool puts out frames itself
};

void describe(LaneRig& rig, const std::string& directory, const Sizes& sizes) {
  rig.add_stage(
      fmt::format("name: 'provider' file_path_provider {{ directory: '{}' "
                  "queue_capacity: 2 queue_bytes: 4096 }}",
                  directory));
  rig.add_stage(
      fmt::format("name: 'loader' chunk_source_loader {{ input: 'provider' threads: {} "
                  "queue_capacity: 2 queue_bytes: 4096 }}",
                  sizes.lanes));
  if (sizes.pool_frames) {
    rig.add_stage(
        fmt::format("name: 'pool' shuffling_chunk_pool {{ input: 'loader' threads: {} "
                    "chunk_pool_size: 20 frames {{ position_sampling_rate: {} }} "
                    "queue_capacity: 2 queue_bytes: {} }}",
                    sizes.lanes, sizes.rate, sizes.chunk_bytes));
  } else {
    rig.add_stage(
        fmt::format("name: 'pool' shuffling_chunk_pool {{ input: 'loader' threads: {} "
                    "chunk_pool_size: 20 queue_capacity: 2 queue_bytes: {} }}",
                    sizes.lanes, sizes.chunk_bytes));
    rig.add_stage(
        fmt::format("name: 'unpacker' chunk_unpacker {{ input: 'pool' threads: {} "
                    "position_sampling_rate: {} queue_capacity: 3 queue_bytes: {} }}",
                    sizes.lanes, sizes.rate, sizes.frame_bytes));
  }
  rig.add_stage(
      fmt::format("name: 'sampler' shuffling_frame_sampler {{ input: '{}' "
                  "reservoir_size_per_thread: {} queue_capacity: 3 queue_bytes: {} }}",
                  sizes.pool_frames ? "pool" : "unpacker", sizes.reservoir, sizes.frame_bytes));
  rig.add_stage(fmt::format(
      "name: 'tensors' tensor_generator {{ input: 'sampler' threads: {} batch_size: 4 }}",
      sizes.lanes));
}

std::function<void(LaneRig&, const std::string&)> with(const Sizes& sizes) {
  return [sizes](LaneRig& rig, const std::string& directory) { describe(rig, directory, sizes); };
}

// The sampler, while the number of frames that it has taken is in this range.
std::function<bool(const LaneRig&, std::size_t)> sampler_at(std::uint64_t begin,
                                                            std::uint64_t end) {
  return [begin, end](const LaneRig& rig, std::size_t lane) {
    const std::uint64_t taken = rig.queue("unpacker", 0, "sampler", 0).get_total;
    return rig.node_of(lane) == "sampler" && taken >= begin && taken < end;
  };
}

}  // namespace

namespace {
constexpr std::array<const char*, kKinds> kKindNames = {
    "find", "index", "collect", "grow",    "draw",   "read",   "unpack", "fill",
    "swap", "drain", "row",     "publish", "finish", "letter", "wait",   "attach"};
}  // namespace

const char* kind_name(Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::vector<std::string> kind_names() { return {kKindNames.begin(), kKindNames.end()}; }

std::vector<Scenario> scenarios() {
  const std::string one_pass = "epochs: 1 seed: 3 feed_output { slots: 2 }";
  std::vector<Scenario> all;
  // One lane of each stage, from files to batches.
  all.push_back(
      {.name = "pipeline", .feed_text = one_pass, .write = write_few, .describe = with({})});
  // Two of most, and every chunk used twice.
  all.push_back({.name = "lanes",
                 .feed_text = "epochs: 2 seed: 3 feed_output { slots: 4 }",
                 .write = write_more,
                 .describe = with({.lanes = 2, .rate = 0.5})});
  // A pool whose reading lanes put out frames themselves, through a queue that no game fits; in one
  // pass also with a chunk to set aside, since the window hears of that at no certain time.
  const auto reads = [](const LaneRig& rig, std::size_t lane) {
    return rig.node_of(lane) == "pool.read";
  };
  all.push_back({.name = "frames",
                 .feed_text = "epochs: 2 seed: 3 feed_output { slots: 4 }",
                 .write = write_more,
                 .describe = with({.lanes = 2, .rate = 0.5, .pool_frames = true}),
                 .wanted = reads});
  all.push_back({.name = "frames_letter",
                 .feed_text = one_pass,
                 .write = write_more,
                 .describe = with({.pool_frames = true}),
                 .condemned = {{"pool.read", 2}},
                 .wanted = reads});
  // Every lane that reads records has one to set aside.
  all.push_back({.name = "letters",
                 .feed_text = one_pass,
                 .write = write_more,
                 .describe = with({}),
                 .condemned = {{"pool", 0},
                               {"loader", 1},
                               {"pool.read", 2},
                               {"unpacker", 3},
                               {"sampler", 4},
                               {"tensors", 5}}});
  // Frames take places that others have left: after more swaps than one commit may hold.
  all.push_back({.name = "places",
                 .feed_text = one_pass,
                 .write = write_many,
                 .describe = with({}),
                 .wanted = sampler_at(68, 76)});
  // The reservoir's arena grows.
  all.push_back({.name = "large",
                 .feed_text = one_pass,
                 .write = write_large,
                 .describe = with({.chunk_bytes = 98304, .frame_bytes = 20480, .reservoir = 8}),
                 .wanted = sampler_at(37, 39)});
  return all;
}

void build(const Scenario& scenario, const std::string& directory, LaneRig& rig) {
  scenario.describe(rig, directory);
  rig.build();
  for (const Condemned& record : scenario.condemned) {
    rig.condemn(rig.lanes_of(record.node).front(), shm::record_key(0, 0, record.seq));
  }
}

std::vector<std::map<std::string, std::uint64_t>> named_counters(const LaneRig& rig) {
  std::vector<std::map<std::string, std::uint64_t>> all;
  for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
    auto& counters = all.emplace_back();
    for (const shm::NamedCounter& counter : rig.page(lane).counters.named) {
      // A window that has drawn all it had to draw does not wait for what its readers might reject.
      if (std::string_view(counter.name) == "chunks_dropped") continue;
      if (counter.name[0] != '\0') counters[counter.name] = counter.value.load();
    }
  }
  return all;
}

bool run_in_turn(LaneRig& rig, Trainer& trainer, std::size_t without) {
  std::uint64_t rounds = 0;
  for (bool moved = true; moved; ++rounds) {
    if (rounds == kRoundsMax) return false;
    moved = trainer.act();
    for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
      if (lane == without || rig.finished(lane)) continue;
      const LaneRuntime::Round round = rig.lane(lane).round();
      moved =
          moved || round == LaneRuntime::Round::kWorked || round == LaneRuntime::Round::kFinished;
    }
  }
  return true;
}

Outcome undisturbed(const Scenario& scenario, const std::string& directory) {
  LaneRig rig(scenario.feed_text);
  build(scenario, directory, rig);
  Trainer trainer(rig, scenario.hold);
  Outcome outcome;
  rig.on_dead_letter([](const DeadLetter&) {});
  RF_CHECK(run_in_turn(rig, trainer, kNobody) && rig.all_finished() && trainer.at_end());
  if (!trainer.wrong().empty()) throw Error(ErrorCode::kIo, trainer.wrong());
  outcome.batches = trainer.batches();
  outcome.counters = named_counters(rig);
  for (const Condemned& record : scenario.condemned) {
    const std::size_t lane = rig.lanes_of(record.node).front();
    outcome.letters |= std::uint64_t{1} << lane;
    RF_CHECK(outcome.counters[lane]["dead_letters"] == 1, lane);
  }
  return outcome;
}

}  // namespace ringfeed::crash
