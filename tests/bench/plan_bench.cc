// How long the plan of an epoch of parallel text takes, and how much memory: for directions
// DIR/0.src, DIR/0.tgt, DIR/1.src, ... (token files, of which only the indices are looked at).
//
//   plan_bench DIR DIRECTIONS [--temperature T] [--compat none|nllb] [--max-tokens N] [--epochs N]
//
// Prints one JSON object; `sentences` have been drawn, `kept` of them are within the limits. Memory
// is that of the process's own, not of the mapped indices, as the kernel counts it (RssAnon),
// looked at every 2 ms.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include "proto/stages/bitext.pb.h"
#include "ringfeed/shm/result.h"
#include "workers/bitext/plan_maker.h"
#include "workers/io/token_file.h"

namespace {

using namespace ringfeed;  // NOLINT(google-build-using-namespace): a program of its own

std::uint64_t own_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plans of epochs of parallel text");
  std::string directory;
  int directions = 0;
  double temperature = 0;
  std::string compat = "nllb";
  std::uint32_t max_tokens = 4096;
  std::uint64_t epochs = 1;
  app.add_option("directory", directory)->required();
  app.add_option("directions", directions)->required();
  app.add_option("--temperature", temperature, "0: every sentence once");
  app.add_option("--compat", compat);
  app.add_option("--max-tokens", max_tokens);
  app.add_option("--epochs", epochs);
  CLI11_PARSE(app, argc, argv);

  BitextCatalogue catalogue;
  for (int i = 0; i < directions; ++i) {
    BitextDirection message;
    message.set_number(static_cast<std::uint32_t>(i));
    message.set_directions(static_cast<std::uint32_t>(directions));
    message.set_key(fmt::format("main:{}", i));
    message.set_shard(0);
    message.set_shards(1);
    message.set_encoder_token(5);
    message.set_decoder_token(6);
    BitextPart& part = *message.add_parts();
    part.set_source(fmt::format("{}/{}.src", directory, i));
    part.set_target(fmt::format("{}/{}.tgt", directory, i));
    Result<formats::TokenFile> file = formats::TokenFile::open(part.source());
    if (!file) {
      fmt::print(stderr, "plan_bench: {}\n", file.error().message());
      return 1;
    }
    part.set_sentences(file->sentences());
    part.set_repeat(1);
    const std::string bytes = message.SerializeAsString();
    RF_CHECK(catalogue.add(std::as_bytes(std::span(bytes))), i);
  }
  PlanSettings settings;
  settings.sampling.rules =
      compat == "nllb" ? formats::BitextRules::kNllb : formats::BitextRules::kOurs;
  if (temperature > 0) {
    settings.sampling.method = formats::SamplingMethod::kTemperature;
    settings.sampling.temperature = temperature;
  }
  settings.batches.max_tokens = max_tokens;
  settings.max_source_positions = settings.max_target_positions = 512;

  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> peak = 0;
  const std::uint64_t before = own_bytes();
  std::thread watcher([&] {
    while (!over) {
      peak = std::max(peak.load(), own_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  double seconds = 0;
  std::clock_t cpu = 0;
  std::uint64_t drawn = 0;
  std::uint64_t kept = 0;
  std::uint64_t batches = 0;
  {
    DrawnPass pass;
    PlanProgress progress;
    for (std::uint64_t epoch = 1; epoch <= epochs; ++epoch) {
      const std::clock_t cpu_before = std::clock();
      const std::optional<MadePlan> plan =
          make_plan(settings, catalogue, {.chain = {}, .epoch = epoch}, pass, progress);
      cpu += std::clock() - cpu_before;
      seconds += plan->seconds;
      drawn = plan->drawn;
      kept = plan->sentences().size() / (plan->is_wide ? 8 : 4);
      batches = plan->batches();
    }
  }
  over = true;
  watcher.join();
  const auto each = [epochs](double value) { return value / static_cast<double>(epochs); };
  fmt::print(
      "{{\"seconds\": {:.3f}, \"cpu_seconds\": {:.3f}, \"sentences\": {}, \"kept\": {}, "
      "\"batches\": {}, \"peak_bytes\": {}}}\n",
      each(seconds), each(static_cast<double>(cpu) / CLOCKS_PER_SEC), drawn, kept, batches,
      peak.load() - before);
}
