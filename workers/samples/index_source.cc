// The stage index_source: the numbers of a dataset's items.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/file.h"
#include "ringfeed/worker/sample.h"
#include "ringfeed/worker/stage.h"
#include "workers/io/npy_file.h"
#include "workers/kit/shuffle.h"
#include "workers/kit/stage_help.h"
#include "workers/samples/sample_facts.h"

namespace ringfeed {
namespace {

// Samples that one step puts out.
constexpr std::uint32_t kPerStep = 64;

Error wrong(const std::string& path, std::string_view text) {
  return {ErrorCode::kConfiguration, fmt::format("{}: {}", path, text)};
}

template <typename Number>
Result<std::vector<double>> numbers_of(int fd, const std::string& path, std::uint64_t at,
                                       std::uint64_t count) {
  std::vector<Number> stored(count);
  const std::span<std::byte> room = std::as_writable_bytes(std::span(stored));
  for (std::size_t have = 0; have < room.size();) {
    const ssize_t got =
        ::pread(fd, room.data() + have, room.size() - have, static_cast<off_t>(at + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return wrong(path, std::strerror(errno));
    if (got == 0)
      return wrong(path, fmt::format("it ends after {} of {} bytes", have, room.size()));
    have += static_cast<std::size_t>(got);
  }
  return std::vector<double>(stored.begin(), stored.end());
}

// The sums of the first weight, the first two, ... of a .npy file; or why it cannot be used.
Result<std::vector<double>> sums_of(const std::string& path, std::uint64_t count) {
  const Result<shm::Fd> fd = shm::open_regular(path);
  if (!fd) return fd.error();
  const Result<formats::NpyHead> head = formats::read_npy_head(fd->get());
  if (!head) return wrong(path, head.error().message());
  if (head->shape != std::vector{count}) {
    std::string shape;
    for (const std::uint64_t size : head->shape) shape += fmt::format("{},", size);
    return wrong(
        path, fmt::format("it has shape ({}); give a weight for each of {} items", shape, count));
  }
  Result<std::vector<double>> sums =
      head->descr == "<f8" ? numbers_of<double>(fd->get(), path, head->data_at, count)
      : head->descr == "<f4"
          ? numbers_of<float>(fd->get(), path, head->data_at, count)
          : wrong(path, fmt::format("its elements are {}; give float64 or float32", head->descr));
  if (!sums) return sums;
  double sum = 0;
  for (std::size_t i = 0; i < sums->size(); ++i) {
    double& weight = (*sums)[i];
    if (!(weight >= 0) || std::isinf(weight)) {
      return wrong(path, fmt::format("weight {} is {}; give a number from 0 on", i, weight));
    }
    sum += std::exchange(weight, sum + weight);
  }
  if (!(sum > 0) || std::isinf(sum))
    return wrong(path, fmt::format("the sum of all weights is {}", sum));
  return sums;
}

std::uint64_t samples_of(const IndexSourceConfig& config) {
  return config.has_samples() ? config.samples() : config.count();
}

//   output   samples with one field, `index`, int64; each a unit; tag: epoch from 1, index
//   arena    how many have been put out
//   at end   after `epochs` epochs; on drain at once
class IndexSource final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : next(layout.word()) {}
    Word next;  // over all epochs
  };

  explicit IndexSource(const StageContext& context)
      : config_(context.config.index_source()),
        key_(context.key),
        per_epoch_(samples_of(config_)),
        epochs_(context.feed.epochs()),
        state_([] {
          StateLayout layout;
          return State(layout);
        }()),
        out_(context.output("output")),
        samples_(context.counter("samples")),
        epochs_done_(context.counter("epochs")) {
    if (config_.order() != IndexSourceConfig::WEIGHTED) return;
    Result<std::vector<double>> sums = sums_of(config_.weights(), config_.count());
    if (!sums) throw Error(sums.error());
    sums_ = std::move(*sums);
  }

  StepStatus step(Step& step) noexcept override {
    const std::uint64_t before = step.load(state_.next);
    std::uint64_t next = before;
    if (step.draining() || (epochs_ != 0 && next / per_epoch_ >= epochs_)) return StepStatus::kEnd;
    for (std::uint32_t i = 0; i < kPerStep; ++i) {
      const std::uint64_t epoch = next / per_epoch_;
      if (epochs_ != 0 && epoch >= epochs_) break;
      const auto index = static_cast<std::int64_t>(index_at(epoch, next % per_epoch_));
      const SampleField field{.name = "index",
                              .dtype = SampleDtype::kInt64,
                              .data = std::as_bytes(std::span(&index, 1))};
      const std::uint64_t bytes = *sample_bytes({&field, 1});
      const std::span<std::byte> room = step.reserve(out_, bytes);
      if (room.empty()) break;
      write_sample(room, {&field, 1});
      step.put_reserved(out_, bytes, {.tag = {epoch + 1, static_cast<std::uint64_t>(index)}});
      ++next;
      if (next % per_epoch_ == 0) step.count(epochs_done_);
    }
    if (next == before) return StepStatus::kNoRoom;
    step.store(state_.next, next);
    step.count(samples_, next - before);
    return StepStatus::kDone;
  }

 private:
  // A function of the epoch and the place in it.
  [[nodiscard]] std::uint64_t index_at(std::uint64_t epoch, std::uint64_t place) const noexcept {
    switch (config_.order()) {
      case IndexSourceConfig::IN_ORDER:
        return place % config_.count();
      case IndexSourceConfig::SHUFFLED:
        // More samples than items: one shuffle after the other.
        return Shuffle(mix(key_, epoch), place / config_.count(), config_.count())
            .at(place % config_.count());
      case IndexSourceConfig::WEIGHTED:
        break;
    }
    const double drawn = Random(mix(key_, epoch), 2 * place).unit() * sums_.back();
    const auto found = std::ranges::upper_bound(sums_, drawn);
    // Rounding may give the sum itself: the last item that has a weight.
    const auto last = std::ranges::lower_bound(sums_, sums_.back());
    return static_cast<std::uint64_t>(std::min(found, last) - sums_.begin());
  }

  const IndexSourceConfig& config_;
  std::uint64_t key_;
  std::uint64_t per_epoch_;
  std::uint64_t epochs_;  // 0: endless
  State state_;
  OutPort out_;
  Counter samples_;
  Counter epochs_done_;
  std::vector<double> sums_;
};

std::vector<Problem> index_problems(const StageView& stage) {
  const IndexSourceConfig& own = stage.config.index_source();
  std::vector<Problem> problems;
  if (!own.has_count()) problems.push_back({"count", "count is not set; give the number of items"});
  const bool weighted = own.order() == IndexSourceConfig::WEIGHTED;
  if (weighted && !own.has_weights()) {
    problems.push_back({"weights",
                        "WEIGHTED needs weights: the path of a .npy file with a weight "
                        "for each item"});
  } else if (!weighted && own.has_weights()) {
    problems.push_back({"weights", "weights do nothing unless order is WEIGHTED"});
  } else if (weighted && own.has_count()) {
    const Result<std::vector<double>> sums = sums_of(own.weights(), own.count());
    if (!sums) problems.push_back({"weights", sums.error().message()});
  }
  return problems;
}

}  // namespace

StageType index_source_type() {
  StageType type;
  type.kind = "index_source";
  type.outputs = {{"output", "samples"}};
  type.counters = {
      {"samples", "Samples output."},
      {"epochs", "Epochs that have been put out."},
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    outputs["output"].set(kTypedFields,
                          {{.name = "index",
                            .dtype = SampleDtype::kInt64,
                            .shape = std::vector<std::uint32_t>(),
                            .place = fmt::format("stage '{}'", stage.config.name())}});
  };
  type.problems = index_problems;
  type.nodes = [](const StageView& stage) {
    const IndexSourceConfig& own = stage.config.index_source();
    StateLayout layout;
    (void)IndexSource::State(layout);
    NodeSpec node;
    node.state_bytes = layout.bytes();
    node.outputs = {output_spec(own, "samples", kMiB, UnitRule::kRecord)};
    if (own.order() == IndexSourceConfig::WEIGHTED) node.private_bytes = 8 * own.count();
    node.weight = 0.05;
    node.steps_per_commit = 1;
    node.create = [](const StageContext& context) {
      return std::make_unique<IndexSource>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "items" index_source { count: 100 order: WEIGHTED weights: "/data/weights.npy" } }
)",
                  .maker = "item_weights"};
  return type;
}

}  // namespace ringfeed
