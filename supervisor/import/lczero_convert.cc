#include "supervisor/import/lczero_convert.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "proto/config.pb.h"
#include "supervisor/config/names.h"

namespace ringfeed::imports {
namespace {

namespace theirs = ::lczero::training;
using config::Place;
using config::Problem;

constexpr std::size_t kCommentColumns = 98;
// Frames are small, and their queues cost a wake-up when they run empty or full.
constexpr std::uint64_t kFrameQueue = 4096;
// What their position cache takes for a position, and what our store takes for a game (see
// ShufflingChunkPoolConfig.store_bytes).
constexpr std::uint64_t kTheirFrameBytes = 8396;
constexpr std::uint64_t kStoredGameBytes = 36'000;
constexpr std::uint64_t kStoreBytesMin = 16'777'216;
constexpr std::uint64_t kSlotsMax = 256;
constexpr std::uint64_t kOutputsMax = 16;
// Of any stage.
constexpr std::uint64_t kThreadsMax = 64;
constexpr std::uint64_t kQueueMax = 1048576;
// An output that keeps the newest batches needs so many slots for each lane.
constexpr std::uint64_t kYieldingSlots = 4;

enum class Kind {
  kNone,
  kProvider,
  kLoader,
  kPool,
  kUnpacker,
  kSampler,
  kTensors,
  kRescorer,
  kSplitter,
  kExtractor,
  kJoin,
};

// What an output of theirs carries, as far as we have no such thing.
enum class Role { kMain, kCacheHits, kCacheRequests };

struct Output {
  std::string name;
  Role role = Role::kMain;
};

struct Reference {
  std::size_t stage = 0;
  std::string output;
  Role role = Role::kMain;
};

// A stage of theirs on its way to ours.
struct Stage {
  const theirs::StageConfig* theirs = nullptr;
  const config::Places* places = nullptr;
  std::string path;  // in its source: "stage[2]"
  Kind kind = Kind::kNone;
  std::string field;  // of its kind: "shuffling_chunk_pool"
  std::string name;   // ours
  std::vector<Output> outputs;
  std::vector<std::optional<Reference>> inputs;
  bool collapsed = false;             // a join of one: its readers read its input
  std::vector<std::string> comments;  // what was noted of it
  std::vector<StageConfig> made;      // ours, nearly always one
};

std::string text_of(const google::protobuf::Message& message) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

// As comment lines of at most kCommentColumns; `item`: one of a list.
std::string comment(std::string_view text, bool item = false) {
  const std::string begin = item ? "# -" : "#";
  std::string lines;
  std::string line = begin;
  bool empty = true;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (line.size() + 1 + word.size() > kCommentColumns && !empty) {
      lines += line + "\n";
      line = item ? "#  " : "#";
    }
    line += fmt::format(" {}", word);
    empty = false;
  }
  return lines + line + "\n";
}

std::string block(std::string_view name, const google::protobuf::Message& message) {
  std::string lines = fmt::format("{} {{\n", name);
  std::string_view rest;
  const std::string text = text_of(message);
  rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    lines += fmt::format("  {}\n", rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return lines + "}\n";
}

class Converter {
 public:
  Converter(const std::vector<LczeroMessage>& sources, std::string feed)
      : sources_(sources), feed_(std::move(feed)) {}

  Imported convert() {
    collect();
    if (ok()) name_stages();
    if (ok()) resolve_inputs();
    if (ok()) {
      for (Stage& stage : stages_) make(stage);
      for (Stage& stage : stages_) keep_going(stage);
      relax_lanes();
      make_outputs();
    }
    if (ok()) note_in_general();
    if (ok()) imported_.text = written();
    return std::move(imported_);
  }

 private:
  [[nodiscard]] bool ok() const { return imported_.problems.empty(); }

  static Place place(const Stage& stage, const std::string& below) {
    return stage.places->find(below.empty() ? stage.path : stage.path + "." + below);
  }
  void problem(const Stage& stage, const std::string& below, std::string text) {
    imported_.problems.push_back(
        {place(stage, below), stage.theirs->name(), std::move(text), stage.path + "." + below});
  }
  // `below`: the field that it is about, inside the stage's own configuration.
  void note(Stage& stage, const std::string& below, const std::string& text) {
    const std::string field = below.empty() ? stage.field : stage.field + "." + below;
    imported_.notes.push_back({place(stage, field), stage.theirs->name(), text, stage.path});
    stage.comments.push_back(text);
  }
  void note(std::string text) {
    imported_.notes.push_back({sources_.front().places.whole(), {}, text, {}});
    comments_.push_back(std::move(text));
  }

  void collect() {
    for (const LczeroMessage& source : sources_) {
      for (int i = 0; i < source.config.stage_size(); ++i) {
        Stage stage;
        stage.theirs = &source.config.stage(i);
        stage.places = &source.places;
        stage.path = fmt::format("stage[{}]", i);
        find_kind(stage);
        stages_.push_back(std::move(stage));
      }
    }
    if (stages_.empty()) {
      imported_.problems.push_back(
          {sources_.front().places.whole(), {}, "the data loader has no stages", {}});
    }
    std::map<std::string, const Stage*> seen;
    for (const Stage& stage : stages_) {
      const std::string& name = stage.theirs->name();
      if (name.empty()) {
        problem(stage, "", fmt::format("{} has no name", stage.path));
      } else if (!seen.try_emplace(name, &stage).second) {
        problem(stage, "name",
                fmt::format("another stage has this name, at {}; rename one of them",
                            place(*seen[name], "name").text()));
      }
      std::set<std::string> outputs;
      for (const Output& output : stage.outputs) {
        if (!outputs.insert(output.name).second) {
          problem(stage, stage.field,
                  fmt::format("two of its outputs are called \"{}\"", output.name));
        }
      }
    }
  }

  void find_kind(Stage& stage) {
    const theirs::StageConfig& config = *stage.theirs;
    const std::pair<Kind, bool> kinds[] = {
        {Kind::kProvider, config.has_file_path_provider()},
        {Kind::kLoader, config.has_chunk_source_loader()},
        {Kind::kPool, config.has_shuffling_chunk_pool()},
        {Kind::kUnpacker, config.has_chunk_unpacker()},
        {Kind::kSampler, config.has_shuffling_frame_sampler()},
        {Kind::kTensors, config.has_tensor_generator()},
        {Kind::kRescorer, config.has_chunk_rescorer()},
        {Kind::kSplitter, config.has_chunk_source_splitter()},
        {Kind::kExtractor, config.has_simple_chunk_extractor()},
        {Kind::kJoin, config.has_join_positions()},
    };
    std::size_t given = 0;
    for (const auto& [kind, has] : kinds) {
      if (!has) continue;
      stage.kind = kind;
      ++given;
    }
    if (given != 1) {
      problem(stage, "",
              given == 0
                  ? "it does not say what it is: give exactly one configuration, such as "
                    "file_path_provider"
                  : fmt::format("it is {} things at once: give exactly one configuration", given));
      return;
    }
    const auto add = [&stage](const theirs::QueueConfig& queue, Role role) {
      stage.outputs.push_back({queue.name(), role});
    };
    switch (stage.kind) {
      case Kind::kProvider:
        stage.field = "file_path_provider";
        return add(config.file_path_provider().output(), Role::kMain);
      case Kind::kLoader:
        stage.field = "chunk_source_loader";
        return add(config.chunk_source_loader().output(), Role::kMain);
      case Kind::kPool:
        stage.field = "shuffling_chunk_pool";
        add(config.shuffling_chunk_pool().output(), Role::kMain);
        if (config.shuffling_chunk_pool().has_cachehit_output()) {
          add(config.shuffling_chunk_pool().cachehit_output(), Role::kCacheHits);
        }
        return;
      case Kind::kUnpacker:
        stage.field = "chunk_unpacker";
        add(config.chunk_unpacker().output(), Role::kMain);
        if (config.chunk_unpacker().has_prefetch_output()) {
          add(config.chunk_unpacker().prefetch_output(), Role::kCacheRequests);
        }
        return;
      case Kind::kSampler:
        stage.field = "shuffling_frame_sampler";
        return add(config.shuffling_frame_sampler().output(), Role::kMain);
      case Kind::kTensors:
        stage.field = "tensor_generator";
        return add(config.tensor_generator().output(), Role::kMain);
      case Kind::kRescorer:
        stage.field = "chunk_rescorer";
        return add(config.chunk_rescorer().output(), Role::kMain);
      case Kind::kSplitter:
        stage.field = "chunk_source_splitter";
        for (const theirs::QueueConfig& queue : config.chunk_source_splitter().output()) {
          add(queue, Role::kMain);
        }
        return;
      case Kind::kExtractor:
        stage.field = "simple_chunk_extractor";
        return add(config.simple_chunk_extractor().output(), Role::kMain);
      case Kind::kJoin:
        stage.field = "join_positions";
        return add(config.join_positions().output(), Role::kMain);
      case Kind::kNone:
        return;
    }
  }

  // A name that can be one of ours: what cannot stand in it becomes '_'.
  static std::string fit_name(std::string name) {
    for (char& c : name) {
      const bool fits = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
      if (!fits) c = '_';
    }
    return name.substr(0, config::kNameLengthMax);
  }

  std::string free_name(std::string wanted) {
    std::string name = wanted.substr(0, config::kNameLengthMax);
    for (int number = 2; !names_.insert(name).second; ++number) {
      const std::string ending = fmt::format("-{}", number);
      name = wanted.substr(0, config::kNameLengthMax - ending.size()) + ending;
    }
    return name;
  }

  void name_stages() {
    for (Stage& stage : stages_) {
      if (config::valid_stage_name(stage.theirs->name())) {
        stage.name = free_name(stage.theirs->name());
      }
    }
    for (Stage& stage : stages_) {
      if (!stage.name.empty()) continue;
      stage.name = free_name(fit_name(stage.theirs->name()));
      note(stage, "",
           fmt::format("called '{}' here, where names have letters, digits, _ and -", stage.name));
    }
  }

  // "stage" or "stage.output", split at the first dot.
  std::optional<Reference> find(std::string_view reference, const Place& at,
                                const std::string& who) {
    const std::size_t dot = reference.find('.');
    const std::string name(reference.substr(0, dot));
    const std::string output(dot == std::string_view::npos ? "" : reference.substr(dot + 1));
    std::vector<std::string> names;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      names.push_back(stages_[i].theirs->name());
      if (names.back() != name) continue;
      std::vector<std::string> outputs;
      for (const Output& found : stages_[i].outputs) {
        if (found.name == output) return Reference{i, output, found.role};
        outputs.push_back(fmt::format("{}{}{}", name, found.name.empty() ? "" : ".", found.name));
      }
      imported_.problems.push_back({at, who,
                                    fmt::format("stage '{}' has no output for \"{}\"; it has {}",
                                                name, reference, config::listed(outputs)),
                                    std::string(reference)});
      return std::nullopt;
    }
    imported_.problems.push_back({at, who,
                                  fmt::format("there is no stage '{}'{}", name,
                                              config::did_you_mean(name, names, "there are")),
                                  std::string(reference)});
    return std::nullopt;
  }

  void resolve_inputs() {
    std::map<std::pair<std::size_t, std::string>, const Stage*> readers;
    for (Stage& stage : stages_) {
      for (int i = 0; i < stage.theirs->input_size(); ++i) {
        const std::string below = fmt::format("input[{}]", i);
        stage.inputs.push_back(
            find(stage.theirs->input(i), place(stage, below), stage.theirs->name()));
        if (!stage.inputs.back()) continue;
        const Reference& input = *stage.inputs.back();
        const auto [reader, first] = readers.try_emplace({input.stage, input.output}, &stage);
        if (!first) {
          problem(
              stage, below,
              fmt::format(
                  "stage '{1}' reads \"{0}\" too, so the two share its records; here an output has "
                  "one reader: leave one of them out, or put a chunk_source_splitter before them",
                  stage.theirs->input(i), reader->second->theirs->name()));
        }
      }
      check_inputs(stage);
    }
    if (!ok()) return;
    for (Stage& stage : stages_) drop_cache_paths(stage);
    for (const Stage& stage : stages_) {
      if (stage.collapsed) note_collapsed(stage);
    }
  }

  void check_inputs(const Stage& stage) {
    const std::size_t count = stage.inputs.size();
    std::size_t least = 1;
    std::size_t most = 1;
    if (stage.kind == Kind::kProvider) least = most = 0;
    if (stage.kind == Kind::kJoin) most = count;
    if (stage.kind == Kind::kPool && stage.theirs->shuffling_chunk_pool().has_cachehit_output()) {
      least = most = 2;
    }
    if (count >= least && count <= most) return;
    problem(stage, "",
            fmt::format("it has {} inputs; a {} {} has {}{}", count, stage.field,
                        least == 2 ? "with cachehit_output" : "", least,
                        stage.kind == Kind::kJoin ? " or more" : ""));
  }

  // Cached positions and requests for them travel in our pool itself, not between stages.
  void drop_cache_paths(Stage& stage) {
    if (stage.kind == Kind::kPool && stage.inputs.size() == 2) {
      if (stage.inputs[1]->role != Role::kCacheRequests) {
        problem(stage, "input[1]",
                "its second input is not the prefetch_output of a chunk_unpacker, so it cannot be "
                "converted");
        return;
      }
      stage.inputs.pop_back();
      note(stage, "cachehit_output",
           "the second input (cache requests) was left out: the pool's store needs no requests");
    }
    std::vector<std::optional<Reference>> kept;
    for (std::size_t i = 0; i < stage.inputs.size(); ++i) {
      const Reference& input = *stage.inputs[i];
      const bool cached = stage.kind == Kind::kJoin && input.role == Role::kCacheHits;
      if (input.role != Role::kMain && !cached) {
        problem(stage, fmt::format("input[{}]", i),
                fmt::format(
                    "\"{}\" carries {}, which ringfeed does not send between stages: only a {} "
                    "that reads it can be converted",
                    stage.theirs->input(static_cast<int>(i)),
                    input.role == Role::kCacheHits ? "cached positions" : "cache requests",
                    input.role == Role::kCacheHits ? "join_positions" : "shuffling_chunk_pool"));
      }
      if (!cached) kept.push_back(stage.inputs[i]);
    }
    if (kept.size() == stage.inputs.size()) return;
    if (kept.empty()) {
      problem(stage, "", "it joins only cached positions, which are not a separate stream here");
      return;
    }
    stage.inputs = kept;
    if (kept.size() > 1) {
      note(stage, "", "that input was left out: here cached positions come with the others");
      return;
    }
    stage.collapsed = true;
  }

  // Once it is known which joins are left out: what their readers read instead.
  void note_collapsed(const Stage& stage) {
    const Stage* source = &stage;
    for (std::size_t steps = 0; source->collapsed; ++steps) {
      if (steps > stages_.size()) {
        problem(stage, "", "through other joins it reads only itself");
        return;
      }
      source = &stages_[source->inputs.front()->stage];
    }
    const std::string text = fmt::format(
        "left out: here cached positions come with the others, so only one input remains; its "
        "readers now read '{}'",
        ours(*stage.inputs.front()));
    imported_.notes.push_back({place(stage, stage.field), stage.theirs->name(), text, stage.path});
    comments_.push_back(fmt::format("stage '{}' was {}", stage.theirs->name(), text));
  }

  // How we refer to it.
  [[nodiscard]] std::string ours(const Reference& reference) const {
    const Stage& stage = stages_[reference.stage];
    if (stage.collapsed) return ours(*stage.inputs.front());
    if (stage.kind != Kind::kSplitter) return stage.name;
    return fmt::format("{}.{}", stage.name, splitter_output(reference.output));
  }
  static std::string splitter_output(const std::string& name) {
    return name.empty() ? "output" : fit_name(name);
  }
  [[nodiscard]] std::string input(const Stage& stage) const {
    return stage.inputs.empty() ? "" : ours(*stage.inputs.front());
  }

  static OverflowBehavior overflow(const theirs::QueueConfig& queue) {
    switch (queue.overflow_behavior()) {
      case theirs::QueueConfig::DROP_NEW:
        return DROP_NEW;
      case theirs::QueueConfig::KEEP_NEWEST:
        return KEEP_NEWEST;
      case theirs::QueueConfig::BLOCK:
        break;
    }
    return BLOCK;
  }

  template <typename Ours>
  void queue(const theirs::QueueConfig& theirs_queue, Ours& to) {
    if (theirs_queue.has_queue_capacity()) {
      to.set_queue_capacity(std::clamp(theirs_queue.queue_capacity(), std::uint64_t{1}, kQueueMax));
    } else {
      default_queues_ = true;
    }
    if (const OverflowBehavior behavior = overflow(theirs_queue); behavior != BLOCK) {
      to.set_overflow_behavior(behavior);
    }
  }
  // Frames: a queue that blocks changes nothing but the speed by its length.
  template <typename Ours>
  void frame_queue(const theirs::QueueConfig& theirs_queue, Ours& to) {
    queue(theirs_queue, to);
    if (overflow(theirs_queue) != BLOCK || theirs_queue.queue_capacity() >= kFrameQueue) return;
    to.set_queue_capacity(kFrameQueue);
    long_frame_queues_ = true;
  }
  // `field`: as it is called there; "": it was noted before.
  template <typename Ours>
  void threads(Stage& stage, const std::string& field, std::uint64_t count, Ours& to) {
    const std::uint64_t fit = std::clamp(count, std::uint64_t{1}, kThreadsMax);
    if (fit != count && !field.empty()) {
      note(
          stage, field,
          fmt::format("{} {} became {}: a stage has 1 to {} here", field, count, fit, kThreadsMax));
    }
    if (fit != 1) to.set_threads(static_cast<std::uint32_t>(fit));
  }

  void make(Stage& stage) {
    if (stage.collapsed) return;
    StageConfig out;
    out.set_name(stage.name);
    switch (stage.kind) {
      case Kind::kProvider:
        make_provider(stage, *out.mutable_file_path_provider());
        break;
      case Kind::kLoader:
        make_loader(stage, *out.mutable_chunk_source_loader());
        break;
      case Kind::kPool:
        make_pool(stage, *out.mutable_shuffling_chunk_pool());
        break;
      case Kind::kUnpacker:
        make_unpacker(stage, *out.mutable_chunk_unpacker());
        break;
      case Kind::kSampler:
        make_sampler(stage, *out.mutable_shuffling_frame_sampler());
        break;
      case Kind::kTensors:
        make_tensors(stage, *out.mutable_tensor_generator());
        break;
      case Kind::kRescorer:
        make_rescorer(stage, *out.mutable_chunk_rescorer());
        break;
      case Kind::kSplitter:
        make_splitter(stage, *out.mutable_chunk_source_splitter());
        break;
      case Kind::kExtractor:
        out.mutable_simple_chunk_extractor()->set_input(input(stage));
        queue(stage.theirs->simple_chunk_extractor().output(),
              *out.mutable_simple_chunk_extractor());
        break;
      case Kind::kJoin:
        for (const std::optional<Reference>& input : stage.inputs) {
          out.mutable_join_positions()->add_input(ours(*input));
        }
        frame_queue(stage.theirs->join_positions().output(), *out.mutable_join_positions());
        break;
      case Kind::kNone:
        break;
    }
    stage.made.push_back(std::move(out));
  }

  void make_provider(const Stage& stage, FilePathProviderConfig& out) {
    const theirs::FilePathProviderConfig& in = stage.theirs->file_path_provider();
    if (in.directory().empty()) problem(stage, stage.field, "it has no directory");
    out.set_directory(in.directory());
    queue(in.output(), out);
  }

  void make_loader(Stage& stage, ChunkSourceLoaderConfig& out) {
    const theirs::ChunkSourceLoaderConfig& in = stage.theirs->chunk_source_loader();
    out.set_input(input(stage));
    threads(stage, "threads", in.threads(), out);
    queue(in.output(), out);
    if (in.has_frame_format()) {
      note(stage, "frame_format",
           fmt::format("frame_format {} was left out: each chunk tells the version of its records, "
                       "3 to 7, and versions may be mixed",
                       theirs::ChunkSourceLoaderConfig::FrameFormat_Name(in.frame_format())));
    }
  }

  void make_pool(Stage& stage, ShufflingChunkPoolConfig& out) {
    const theirs::ShufflingChunkPoolConfig& in = stage.theirs->shuffling_chunk_pool();
    out.set_input(input(stage));
    if (in.chunk_pool_size() != out.chunk_pool_size()) {
      out.set_chunk_pool_size(in.chunk_pool_size());
    }
    threads(stage, "chunk_loading_threads", in.chunk_loading_threads(), out);
    queue(in.output(), out);
    if (in.has_source_ingestion_threads()) {
      note(stage, "source_ingestion_threads",
           "source_ingestion_threads was left out: one lane owns the window, and threads "
           "(chunk_loading_threads there) is the number of lanes that read");
    }
    make_hanse(stage, in, out);
    if (in.has_cachehit_output() || in.position_cache_size() > 0) make_store(stage, in, out);
    if (in.has_caching_threads()) {
      note(stage, "caching_threads",
           "caching_threads was left out: the lanes that read fill the store");
    }
    if (in.has_position_sampling() && !out.has_position_sampling()) {
      note(stage, "position_sampling",
           "position_sampling of the pool was left out: without hanse_sampling_threshold it does "
           "nothing");
    }
  }

  void make_hanse(Stage& stage, const theirs::ShufflingChunkPoolConfig& in,
                  ShufflingChunkPoolConfig& out) {
    if (!in.has_hanse_sampling_threshold()) {
      if (in.has_hanse_sampling_gamma()) {
        note(stage, "hanse_sampling_gamma",
             "hanse_sampling_gamma was left out: without hanse_sampling_threshold it does nothing");
      }
      return;
    }
    if (in.hanse_sampling_threshold() <= 0) {
      note(stage, "hanse_sampling_threshold",
           fmt::format("hanse_sampling_threshold {} was left out: it means every draw is accepted",
                       in.hanse_sampling_threshold()));
      return;
    }
    if (in.has_position_sampling()) {
      weights(in.position_sampling(), *out.mutable_position_sampling());
      if (in.hanse_sampling_gamma() != 1.0) {
        out.set_weighted_sampling_gamma(static_cast<float>(in.hanse_sampling_gamma()));
      }
      note(
          stage, "hanse_sampling_threshold",
          fmt::format("hanse_sampling_threshold {} was left out: there it has lately been only a "
                      "switch, and a chunk is accepted with probability (weight / largest weight "
                      "seen)^gamma; position_sampling and weighted_sampling_gamma do the same here",
                      in.hanse_sampling_threshold()));
      return;
    }
    // Every position weighs 1.
    out.mutable_position_sampling();
    if (in.hanse_sampling_gamma() != 1.0) {
      out.set_weighted_sampling_gamma(static_cast<float>(in.hanse_sampling_gamma()));
    }
    note(stage, "hanse_sampling_threshold",
         fmt::format(
             "hanse_sampling_threshold {} was left out: there it has lately been only a switch, "
             "and a chunk of n records is accepted with probability (n / largest n seen)^gamma; "
             "position_sampling (each position weighs 1) and weighted_sampling_gamma do the same "
             "here; for min(1, n / {})^gamma, which does not read chunks that are passed over, "
             "give hanse_sampling_threshold and hanse_sampling_gamma instead",
             in.hanse_sampling_threshold(), in.hanse_sampling_threshold()));
  }

  void make_store(Stage& stage, const theirs::ShufflingChunkPoolConfig& in,
                  ShufflingChunkPoolConfig& out) {
    const std::string field = in.has_cachehit_output() ? "cachehit_output" : "position_cache_size";
    if (!in.has_cachehit_output() || in.position_cache_size() == 0) {
      note(stage, field,
           in.has_cachehit_output()
               ? "cachehit_output was left out: its cache has no size, so there is no store either"
               : "position_cache_size was left out: without cachehit_output it does nothing");
      return;
    }
    // Both products stay far from overflow for any sizes that a machine could have.
    constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
    const std::uint64_t cache = std::min(in.position_cache_size(), kMost) * kTheirFrameBytes;
    const std::uint64_t window = std::min(in.chunk_pool_size(), kMost) * kStoredGameBytes;
    const std::uint64_t bytes = std::max(kStoreBytesMin, std::min(cache, window));
    out.set_store_bytes(bytes);
    note(stage, "cachehit_output",
         fmt::format(
             "the position cache (cachehit_output, position_cache_size {}) became store_bytes {}: "
             "a store keeps whole games, about 36 KB each, for all their later uses; that is {}",
             in.position_cache_size(), bytes,
             bytes == cache    ? "the memory that the cache took (8396 bytes a position)"
             : bytes == window ? "room for the whole window, less than the cache took"
                               : "the least that there is"));
  }

  static void weights(const theirs::PositionSamplingConfig& in, PositionSamplingConfig& out) {
    const auto take = [](bool has, double value, auto set) {
      if (has) set(static_cast<float>(value));
    };
    // What is given is kept, the default too: whether q_weight and pol_scale are given counts.
    take(in.has_diff_focus_q_weight(), in.diff_focus_q_weight(),
         [&](float v) { out.set_diff_focus_q_weight(v); });
    take(in.has_diff_focus_pol_scale(), in.diff_focus_pol_scale(),
         [&](float v) { out.set_diff_focus_pol_scale(v); });
    take(in.has_diff_focus_alpha(), in.diff_focus_alpha(),
         [&](float v) { out.set_diff_focus_alpha(v); });
    take(in.has_diff_focus_beta(), in.diff_focus_beta(),
         [&](float v) { out.set_diff_focus_beta(v); });
    take(in.has_diff_focus_gamma(), in.diff_focus_gamma(),
         [&](float v) { out.set_diff_focus_gamma(v); });
    take(in.has_diff_focus_tau(), in.diff_focus_tau(), [&](float v) { out.set_diff_focus_tau(v); });
    take(in.has_default_weight(), in.default_weight(), [&](float v) { out.set_default_weight(v); });
  }

  void make_unpacker(Stage& stage, ChunkUnpackerConfig& out) {
    const theirs::ChunkUnpackerConfig& in = stage.theirs->chunk_unpacker();
    out.set_input(input(stage));
    if (in.has_position_sampling_rate() == in.has_position_count()) {
      problem(stage, stage.field, "give either position_sampling_rate or position_count");
    }
    if (in.has_position_sampling_rate()) {
      out.set_position_sampling_rate(in.position_sampling_rate());
      const double uses = 1 / in.position_sampling_rate();
      if (std::abs(uses - std::round(uses)) > 1e-3 && in.position_sampling_rate() > 0.1) {
        note(
            stage, "position_sampling_rate",
            fmt::format("position_sampling_rate {}: here every use of a chunk gives this share; "
                        "there the share shrinks from use to use if 1 / rate is not a whole number",
                        in.position_sampling_rate()));
      }
    }
    if (in.has_position_count()) {
      constexpr std::uint64_t kMax = 0xFFFFFFFF;
      out.set_position_count(static_cast<std::uint32_t>(std::min(in.position_count(), kMax)));
    }
    threads(stage, "threads", in.threads(), out);
    frame_queue(in.output(), out);
    if (in.has_prefetch_count() || in.has_prefetch_output()) {
      note(stage, in.has_prefetch_count() ? "prefetch_count" : "prefetch_output",
           "prefetch_count and prefetch_output were left out: the pool's store takes their place "
           "(store_bytes)");
    }
    if (!in.has_position_sampling()) return;
    if (in.has_position_count()) {
      weights(in.position_sampling(), *out.mutable_position_sampling());
    } else {
      note(stage, "position_sampling",
           "position_sampling was left out: there and here weights count only with position_count");
    }
  }

  void make_sampler(Stage& stage, ShufflingFrameSamplerConfig& out) {
    const theirs::ShufflingFrameSamplerConfig& in = stage.theirs->shuffling_frame_sampler();
    out.set_input(input(stage));
    if (in.reservoir_size_per_thread() != out.reservoir_size_per_thread()) {
      out.set_reservoir_size_per_thread(in.reservoir_size_per_thread());
    }
    threads(stage, "threads", in.threads(), out);
    frame_queue(in.output(), out);
  }

  void make_tensors(Stage& stage, TensorGeneratorConfig& out) {
    const theirs::TensorGeneratorConfig& in = stage.theirs->tensor_generator();
    constexpr std::uint64_t kMax = 0xFFFFFFFF;
    out.set_input(input(stage));
    if (in.batch_size() != out.batch_size()) {
      out.set_batch_size(static_cast<std::uint32_t>(std::min(in.batch_size(), kMax)));
    }
    threads(stage, "threads", in.threads(), out);
    // The length of its queue is that of the feed: make_outputs().
    if (!in.output().has_queue_capacity()) default_queues_ = true;
    if (overflow(in.output()) == BLOCK) return;
    out.set_overflow_behavior(KEEP_NEWEST);
    if (overflow(in.output()) == DROP_NEW) {
      note(
          stage, "output",
          "DROP_NEW became KEEP_NEWEST: here the last stage cannot drop new batches; neither waits "
          "for trainers, but a trainer that was away finds the newest batches, not the oldest");
    }
  }

  void make_rescorer(Stage& stage, ChunkRescorerConfig& out) {
    const theirs::ChunkRescorerConfig& in = stage.theirs->chunk_rescorer();
    // Theirs drops what is not as it should be; ours has a stage of its own for that.
    StageConfig validator;
    validator.set_name(free_name(stage.name + "-validator"));
    validator.mutable_chunk_validator()->set_input(input(stage));
    threads(stage, "threads", in.threads(), *validator.mutable_chunk_validator());
    out.set_input(validator.name());
    stage.made.push_back(std::move(validator));
    note(stage, "",
         fmt::format("its first checks are a separate stage here, '{}'; remove that stage to keep "
                     "chunks that fail them",
                     stage.made.back().name()));
    threads(stage, "", in.threads(), out);
    queue(in.output(), out);
    if (in.dist_temp() != 1) out.set_policy_temperature(static_cast<float>(in.dist_temp()));
    if (in.dist_offset() != 0) out.set_policy_offset(static_cast<float>(in.dist_offset()));
    if (in.has_deblunder_threshold() && in.has_deblunder_width()) {
      out.set_deblunder_threshold(static_cast<float>(in.deblunder_threshold()));
      out.set_deblunder_width(static_cast<float>(in.deblunder_width()));
    } else if (in.has_deblunder_threshold() || in.has_deblunder_width()) {
      const bool threshold = in.has_deblunder_threshold();
      note(stage, threshold ? "deblunder_threshold" : "deblunder_width",
           fmt::format("{} was left out: without {} nothing is deblundered",
                       threshold ? "deblunder_threshold" : "deblunder_width",
                       threshold ? "deblunder_width" : "deblunder_threshold"));
    }
    const auto theta = static_cast<float>(in.st_q_theta());
    if (theta != out.st_q_theta()) out.set_st_q_theta(theta);
    if (!in.syzygy_paths().empty()) {
      note(stage, "syzygy_paths",
           "syzygy_paths was left out: ringfeed does not read endgame tables, so they do not "
           "correct results; give data that was already rescored");
    }
    if (!in.gaviota_paths().empty()) {
      note(stage, "gaviota_paths",
           "gaviota_paths was left out: ringfeed does not read endgame tables, so they do not "
           "correct plies_left");
    }
    if (in.dtz_boost() != 0) {
      note(stage, "dtz_boost",
           "dtz_boost was left out: it needs endgame tables, which ringfeed does not read");
    }
    if (in.new_input_format() != -1) {
      note(stage, "new_input_format",
           fmt::format("new_input_format {} was left out: records keep their input_format, which "
                       "decides planes 104 to 110 of each record",
                       in.new_input_format()));
    }
  }

  void make_splitter(Stage& stage, ChunkSourceSplitterConfig& out) {
    const theirs::ChunkSourceSplitterConfig& in = stage.theirs->chunk_source_splitter();
    out.set_input(input(stage));
    if (in.output_size() == 0) problem(stage, stage.field, "it has no outputs");
    if (in.output_size() != in.weight_size()) {
      problem(stage, stage.field,
              fmt::format("it has {} outputs and {} weights: give a weight for each output",
                          in.output_size(), in.weight_size()));
      return;
    }
    if (static_cast<std::uint64_t>(in.output_size()) > kOutputsMax) {
      problem(stage, stage.field,
              fmt::format("it has {} outputs, but at most {} are possible", in.output_size(),
                          kOutputsMax));
    }
    std::set<std::string> outputs;
    std::optional<std::uint64_t> capacity;
    for (int i = 0; i < in.output_size(); ++i) {
      const theirs::QueueConfig& queue = in.output(i);
      ChunkSourceSplitterConfig::Output& output = *out.add_outputs();
      output.set_name(splitter_output(queue.name()));
      const std::string at = fmt::format("{}.output[{}]", stage.field, i);
      if (!outputs.insert(output.name()).second) {
        problem(stage, at, fmt::format("another output is also called '{}'", output.name()));
      }
      if (in.weight(i) == 0) {
        problem(stage, fmt::format("{}.weight[{}]", stage.field, i),
                fmt::format("output '{}' has the weight 0 and would get nothing: leave it out",
                            queue.name()));
      }
      if (in.weight(i) != 1) output.set_weight(in.weight(i));
      if (!queue.has_queue_capacity()) default_queues_ = true;
      if (queue.has_queue_capacity()) {
        capacity = std::max(capacity.value_or(0), queue.queue_capacity());
      }
    }
    if (capacity) out.set_queue_capacity(*capacity);
    note(stage, "",
         "a fixed hash divides the chunks, so the split is the same in every run; there each start "
         "makes a new one");
  }

  // Outputs of a splitter block here, because what says that the scan is complete may not be
  // dropped. Where theirs dropped files, the stage behind drops what it makes of them: a branch
  // that nobody reads then does not keep the others waiting.
  void keep_going(Stage& stage) {
    if (stage.kind != Kind::kSplitter) return;
    const auto& outputs = stage.theirs->chunk_source_splitter().output();
    for (int i = 0; i < outputs.size(); ++i) {
      const OverflowBehavior behavior = overflow(outputs[i]);
      if (behavior == BLOCK) continue;
      std::vector<std::string> extractors;
      std::set<std::size_t> seen;
      drop_behind(index_of(stage), &outputs[i].name(), behavior, extractors, seen);
      const std::string who =
          extractors.empty() ? "a pool behind it takes files whether anybody reads from it or not"
                             : fmt::format("the {} behind it, {}, drops chunks instead",
                                           "simple_chunk_extractor", config::listed(extractors));
      note(stage, fmt::format("output[{}]", i),
           fmt::format("overflow_behavior {} of output \"{}\" was left out: a splitter's outputs "
                       "block here, so that no file is lost; {}",
                       OverflowBehavior_Name(behavior), outputs[i].name(), who));
    }
  }
  [[nodiscard]] std::size_t index_of(const Stage& stage) const {
    return static_cast<std::size_t>(&stage - stages_.data());
  }
  // `output`: null for all that the stage has.
  void drop_behind(std::size_t from, const std::string* output, OverflowBehavior behavior,
                   std::vector<std::string>& extractors, std::set<std::size_t>& seen) {
    for (Stage& stage : stages_) {
      const bool reads = std::any_of(
          stage.inputs.begin(), stage.inputs.end(), [&](const std::optional<Reference>& input) {
            return input->stage == from && (output == nullptr || input->output == *output);
          });
      if (!reads || !seen.insert(index_of(stage)).second) continue;
      if (stage.kind == Kind::kSplitter) {
        drop_behind(index_of(stage), nullptr, behavior, extractors, seen);
      } else if (stage.kind == Kind::kExtractor) {
        SimpleChunkExtractorConfig& own = *stage.made.front().mutable_simple_chunk_extractor();
        if (own.overflow_behavior() == BLOCK) own.set_overflow_behavior(behavior);
        extractors.push_back(fmt::format("'{}'", stage.name));
      }
    }
  }

  // Does this stage deal its rows out one by one, in turn? Only behind such a one several lanes of
  // tensors are possible in a fixed order.
  static bool deals_rows_out(const StageConfig& stage) {
    if (stage.has_shuffling_frame_sampler()) {
      return stage.shuffling_frame_sampler().threads() == 1 ||
             stage.shuffling_frame_sampler().overflow_behavior() != BLOCK;
    }
    return stage.has_join_positions() ||
           (stage.has_chunk_unpacker() && stage.chunk_unpacker().overflow_behavior() != BLOCK);
  }
  [[nodiscard]] const StageConfig* made(const std::string& name) const {
    for (const Stage& stage : stages_) {
      for (const StageConfig& made : stage.made) {
        if (made.name() == name) return &made;
      }
    }
    return nullptr;
  }
  void relax_lanes() {
    for (Stage& stage : stages_) {
      if (stage.kind != Kind::kTensors) continue;
      const TensorGeneratorConfig& own = stage.made.front().tensor_generator();
      if (own.threads() < 2) continue;
      const StageConfig* const before = made(own.input());
      if (before == nullptr || deals_rows_out(*before)) continue;
      relaxed_ = true;
      note(stage, "threads",
           fmt::format("dispatch is RELAXED: {} lanes behind stage '{}' take rows as they are "
                       "ready; for a repeatable order set threads: 1 here, or put one lane of a "
                       "shuffling_frame_sampler before it, and remove dispatch",
                       own.threads(), before->name()));
    }
  }

  void make_outputs() {
    const LczeroMessage& source = sources_.front();
    std::set<std::string> aliases;
    std::set<std::size_t> given;
    struct Final {
      std::string alias;
      std::size_t stage;
    };
    std::vector<Final> finals;
    for (int i = 0; i < source.config.output_size(); ++i) {
      const std::string& text = source.config.output(i);
      const Place at = source.places.find(fmt::format("output[{}]", i));
      const auto refuse = [&](std::string what) {
        imported_.problems.push_back({at, {}, std::move(what), text});
      };
      const std::size_t colon = text.find(':');
      const std::string alias = colon == std::string::npos ? "" : text.substr(0, colon);
      const std::optional<Reference> found =
          find(std::string_view(text).substr(colon == std::string::npos ? 0 : colon + 1), at, "");
      if (!found) continue;
      const Stage& stage = stages_[found->stage];
      if (stage.kind != Kind::kTensors) {
        refuse(fmt::format(
            "output \"{}\": stage '{}' is a {}, which gives no tensors; name a tensor_generator",
            text, stage.theirs->name(), stage.field));
      } else if (!aliases.insert(alias).second) {
        refuse(fmt::format("output \"{}\": another output also has the alias \"{}\"", text, alias));
      } else if (!alias.empty() && !config::valid_stage_name(alias)) {
        refuse(
            fmt::format("output \"{}\": \"{}\" cannot be an alias; give letters, digits, '_' "
                        "and '-'",
                        text, alias));
      } else if (!given.insert(found->stage).second) {
        refuse(
            fmt::format("output \"{}\": stage '{}' is already an output; here each has one alias",
                        text, stage.theirs->name()));
      } else {
        finals.push_back({alias, found->stage});
      }
    }
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      Stage& stage = stages_[i];
      if (stage.kind != Kind::kTensors || given.contains(i)) continue;
      const bool only = finals.empty() && given.empty();
      std::string alias = only ? "" : stage.name;
      if (!aliases.insert(alias).second) alias = free_name(alias);
      given.insert(i);
      note(stage, "",
           fmt::format(
               "no 'output' names it, so there nobody could read it; here it is the output {}",
               alias.empty() ? "without an alias" : fmt::format("'{}'", alias)));
      finals.push_back({alias, i});
    }
    if (finals.empty() && ok()) {
      imported_.problems.push_back(
          {source.places.whole(),
           {},
           "no stage is a tensor_generator, so there is nothing for trainers to read",
           {}});
    }
    for (const Final& final : finals) add_output(final.alias, stages_[final.stage], finals.size());
  }

  void add_output(const std::string& alias, Stage& stage, std::size_t count) {
    const theirs::TensorGeneratorConfig& in = stage.theirs->tensor_generator();
    FeedOutputConfig output;
    // Slots are what their queue holds, what is in the trainer's hands and what is being written.
    constexpr std::uint64_t kMost = 1 << 20;
    const std::uint64_t wanted =
        std::min(in.output().queue_capacity(), kMost) + 1 + std::min(in.threads(), kMost);
    const TensorGeneratorConfig& own = stage.made.front().tensor_generator();
    const bool yields = own.overflow_behavior() == KEEP_NEWEST;
    const std::uint64_t least = yields ? kYieldingSlots * own.threads() : 0;
    const std::uint64_t slots =
        std::min(kSlotsMax, std::max({wanted, least, std::uint64_t{output.slots()}}));
    if (slots != output.slots()) output.set_slots(static_cast<std::uint32_t>(slots));
    if (!alias.empty()) output.set_alias(alias);
    if (count > 1 || !alias.empty()) output.set_stage(stage.name);
    if (relaxed_) output.set_dispatch(FeedOutputConfig::RELAXED);
    if (overflow(in.output()) == KEEP_NEWEST) {
      note(stage, "output",
           "KEEP_NEWEST: trainers of this output get the newest batches; batches that they hold do "
           "not change");
    }
    if (output.ByteSizeLong() != 0) outputs_.push_back(block("feed_output", output));
  }

  void note_in_general() {
    note("no seed: as there, every run has another order; set seed for a repeatable order");
    note(
        "planes 104 to 110 of records with another input_format than 1 follow that format; there "
        "they are made as for format 1, with masks of files as numbers: for a net that was trained "
        "that way set as_lczero_training: true in tensor_generator");
    if (default_queues_) {
      note(
          "queues without a queue_capacity hold 4 items there; here they have the defaults of "
          "proto/config.proto: their length changes the speed, not the data");
    }
    if (long_frame_queues_) {
      note(
          fmt::format("queues of frames hold {} here: frames are small, and the length of a queue "
                      "that drops nothing changes the speed, not the data",
                      kFrameQueue));
    }
  }

  std::string written() const {
    std::string text =
        "# proto-file: proto/config.proto\n"
        "# proto-message: ringfeed.DataLoaderConfig\n"
        "#\n";
    text += comment(fmt::format("Converted by 'ringfeed import-lc0' from {}.",
                                sources_.front().places.whole().source));
    text += "#\n";
    for (const std::string& general : comments_) text += comment(general, true);
    text += fmt::format("\nfeed: \"{}\"\n", feed_);
    for (const Stage& stage : stages_) {
      if (stage.made.empty()) continue;
      text += "\n";
      for (const std::string& noted : stage.comments) {
        text += comment(noted, stage.comments.size() > 1);
      }
      for (const StageConfig& made : stage.made) {
        if (&made != &stage.made.front()) text += "\n";
        text += block("stages", made);
      }
    }
    for (const std::string& output : outputs_) text += "\n" + output;
    return text;
  }

  const std::vector<LczeroMessage>& sources_;
  std::string feed_;
  std::vector<Stage> stages_;
  std::set<std::string> names_;        // of our stages
  std::vector<std::string> comments_;  // on the whole
  std::vector<std::string> outputs_;
  bool relaxed_ = false;  // lanes take what is ready
  bool default_queues_ = false;
  bool long_frame_queues_ = false;
  Imported imported_;
};

}  // namespace

Imported convert(const std::vector<LczeroMessage>& sources, const std::string& feed) {
  return Converter(sources, feed).convert();
}

}  // namespace ringfeed::imports
