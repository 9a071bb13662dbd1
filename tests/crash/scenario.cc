#include "tests/crash/scenario.h"

#include <fmt/format.h>

#include <array>

#include "tests/support/tar_maker.h"
#include "tests/unit/stages/stage_data.h"

namespace ringfeed::crash {
namespace {

using testing::LaneRig;

constexpr std::uint64_t kRoundsMax = 20'000;

void write_file(const std::string& directory, const std::string& name, const std::string& content) {
  std::ofstream out(directory + "/" + name, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  RF_CHECK(out.good(), content.size());
}

// Thirteen positions: a tar with two games and something that is no game, a loose game, and one
// that is not compressed.
void write_few(const std::string& directory) {
  testing::TarMaker tar;
  tar.add("0.gz", testing::gzip_text(testing::game(0, 3)));
  tar.add("bad.gz", "neither gzip nor records");
  tar.add("1.gz", testing::gzip_text(testing::game(3, 2)));
  write_file(directory, "000.tar", tar.end().text());
  write_file(directory, "001.gz", testing::gzip_text(testing::game(5, 4)));
  write_file(directory, "002.gz", testing::game(9, 4));
}

void describe_few(LaneRig& rig, const std::string& directory) {
  rig.add_stage(
      fmt::format("name: 'provider' file_path_provider {{ directory: '{}' "
                  "queue_capacity: 2 queue_bytes: 4096 }}",
                  directory));
  rig.add_stage(
      "name: 'loader' chunk_source_loader { input: 'provider' queue_capacity: 2 queue_bytes: 4096 "
      "}");
  // A chunk may fill half of its ring: seven positions.
  rig.add_stage(
      "name: 'pool' shuffling_chunk_pool { input: 'loader' chunk_pool_size: 10 queue_capacity: 2 "
      "queue_bytes: 16384 }");
  rig.add_stage(
      "name: 'unpacker' chunk_unpacker { input: 'pool' position_sampling_rate: 1 queue_capacity: 3 "
      "queue_bytes: 4096 }");
  rig.add_stage(
      "name: 'sampler' shuffling_frame_sampler { input: 'unpacker' reservoir_size_per_thread: 4 "
      "queue_capacity: 3 queue_bytes: 4096 }");
  rig.add_stage("name: 'tensors' tensor_generator { input: 'sampler' batch_size: 4 }");
}

}  // namespace

const char* kind_name(Kind kind) {
  static constexpr std::array<const char*, kKinds> kNames = {
      "find", "index", "collect", "grow",    "draw",   "read",   "unpack", "fill",
      "swap", "drain", "row",     "publish", "finish", "letter", "wait",   "attach"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::vector<Scenario> scenarios() {
  return {{.name = "pipeline",
           .about = "one lane of each stage, from files to batches",
           .feed_text = "epochs: 1 seed: 3 feed_output { slots: 2 }",
           .write = write_few,
           .describe = describe_few}};
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
    outcome.letters |= std::uint64_t{1} << rig.lanes_of(record.node).front();
  }
  return outcome;
}

}  // namespace ringfeed::crash
