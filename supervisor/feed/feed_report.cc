// What the feed notes while it runs for the report at its end, and the report.
#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/layout.h"
#include "supervisor/feed/feed.h"
#include "supervisor/layout/memory.h"
#include "supervisor/metrics/read.h"
#include "supervisor/metrics/status.h"
#include "supervisor/os/text.h"
#include "supervisor/report/page.h"

namespace ringfeed::process {
namespace {

constexpr std::uint32_t kControlSegment = 0;
constexpr std::uint64_t kPointMsMin = 100;
// What limits is asked once a second, of the second before.
constexpr std::uint64_t kLimitsMs = 1'000;
constexpr std::uint64_t kLimitsNs = 1'000'000'000;
// A window that is shorter says nothing.
constexpr std::uint64_t kLimitsNsMin = 400'000'000;

// What the process has for itself; 0: it has gone.
std::uint64_t private_bytes(pid_t pid) {
  const shm::Fd file(::open(fmt::format("/proc/{}/statm", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  if (!file || ::read(file.get(), text.data(), text.size() - 1) <= 0) return 0;
  char* rest = nullptr;
  std::strtoull(text.data(), &rest, 10);
  const std::uint64_t resident = std::strtoull(rest, &rest, 10);
  const std::uint64_t shared = std::strtoull(rest, &rest, 10);
  return (resident - std::min(resident, shared)) * static_cast<std::uint64_t>(::getpagesize());
}

}  // namespace

// Numbers that a trainer itself writes: they are shown, and nothing follows from them.
void Feed::note_trainers() {
  noted_.waited_ns.resize(outputs_.size());
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    const Output& output = *outputs_[o];
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      if (output.groups.state(g) == shm::GroupState::kUnused) continue;
      for (std::uint32_t m = 0; m < shm::kMembersMax; ++m) {
        // Who it is says the account; one that has left stays there until another one comes.
        const shm::Member& known = output.memory.account(g).members[m];
        if (known.pid == 0) continue;
        const shm::Member& member = output.memory.group(g).members[m];
        const report::TrainerKey key{output.memory.layout().alias, output.groups.terms(g).name, m,
                                     known.pid, known.start_ticks};
        // A page keeps who was there before, also of another group.
        if (metrics::read(known.state) == static_cast<std::uint32_t>(shm::MemberState::kFree) &&
            !account_->trainers().contains(key)) {
          continue;
        }
        report::TrainerNote note;
        note.client = output.trainers.client({g, m});
        note.taken = metrics::read(member.taken);
        note.done = metrics::read(member.done);
        note.waited_ns = metrics::read(member.waited_ns);
        noted_.waited_ns[o] += account_->trainer(now_ms(), key, note);
      }
    }
  }
}

void Feed::note_look() {
  const std::uint64_t now = now_ms();
  note_trainers();
  // Of a feed that begins with this supervisor all is known from the start: nothing was there yet.
  if (noted_.ms == 0 && !adopts_) {
    noted_.ms = started_ms_;
    noted_.batches.assign(outputs_.size(), 0);
  }
  // The last look comes when the feed ends: of so short a time there is no rate.
  if (noted_.ms != 0 && now < noted_.ms + kPointMsMin) return note_epochs(now);
  std::vector<std::uint64_t> batches;
  for (const std::unique_ptr<Output>& output : outputs_) {
    batches.push_back(output->memory.batches_published());
  }
  if (noted_.ms != 0 && now > noted_.ms) {
    const double seconds = static_cast<double>(now - noted_.ms) / 1e3;
    std::vector<double> values(3 * outputs_.size() + 1, report::Curves::kUnknown);
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      const Output& output = *outputs_[o];
      values[account_->rate_of(o)] = static_cast<double>(batches[o] - noted_.batches[o]) / seconds;
      const std::uint32_t live = output.groups.live_members();
      if (live != 0) {
        values[account_->waits_of(o)] =
            std::min(1.0, static_cast<double>(noted_.waited_ns[o]) / 1e9 / seconds / live);
      }
      values[account_->slots_of(o)] =
          static_cast<double>(output.groups.slots_used()) / output.memory.layout().geometry.slots;
    }
    std::uint64_t bytes = 0;
    for (const std::unique_ptr<GroupProcess>& worker : workers_) {
      if (worker->identity().pid > 0) bytes += private_bytes(worker->identity().pid);
    }
    if (bytes != 0) values[account_->memory()] = static_cast<double>(bytes);
    account_->point(noted_.ms, now, values);
  }
  noted_.ms = now;
  noted_.batches = batches;
  noted_.waited_ns.assign(outputs_.size(), 0);
  note_epochs(now);
  note_limits();
}

// A stage that goes through its data again and again counts its epochs under this name.
void Feed::note_epochs(std::uint64_t now) {
  const std::vector<std::uint64_t>& counters = history_.newest().counters;
  std::vector<std::uint64_t> batches;
  for (const std::unique_ptr<Output>& output : outputs_) {
    batches.push_back(output->memory.batches_published());
  }
  for (int i = 0; i < run_.plan.stages_size(); ++i) {
    const auto places = looker_.counters().of_stage(static_cast<std::uint32_t>(i));
    const auto found = places.find("epochs");
    if (found == places.end() || found->second >= counters.size()) continue;
    account_->epochs(now, run_.plan.stages(i).name(), counters[found->second], batches);
  }
}

void Feed::note_limits() {
  if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) return;
  const std::uint64_t now = now_ms();
  if (noted_.limits_ms == 0) noted_.limits_ms = now;
  if (now < noted_.limits_ms + kLimitsMs) return;
  const std::size_t begin = history_.begin_of(kLimitsNs);
  if (history_.newest().time_ns - history_.at(begin).time_ns < kLimitsNsMin) return;
  MetricsReply found;
  find_bottlenecks(metrics_facts(), begin, found);
  const double seconds = static_cast<double>(now - noted_.limits_ms) / 1e3;
  noted_.limits_ms = now;
  for (const BottleneckProto& one : found.bottlenecks()) {
    account_->limit(one.output(), one, seconds);
  }
}

// Everything is still there. What goes wrong costs the report, and not the end of the feed.
void Feed::make_report() noexcept try {
  look_around(true);
  StatusReply status;
  fill_status(status);
  MetricsReply totals;
  metrics::fill_metrics(metrics_facts(), history_, totals);
  totals.set_deaths(deaths_);
  const auto& header =
      *reinterpret_cast<const shm::SegmentHeader*>(memory_.bytes(kControlSegment).data());
  std::string configuration;
  google::protobuf::TextFormat::PrintToString(run_.config, &configuration);
  const shm::FeedId& id = memory_.identity().feed_id;
  const report::Facts facts{
      .account = *account_,
      .status = status,
      .metrics = totals,
      .plan = run_.plan,
      .end = status_ != 0                 ? report::End::kFailed
             : phase_ == Phase::kStopping ? report::End::kStopped
             : draining_                  ? report::End::kDrained
                                          : report::End::kEnded,
      .reason = reason_,
      .feed_began_s = static_cast<std::int64_t>(header.created_ns / 1'000'000'000),
      .ended_s = static_cast<std::int64_t>(std::time(nullptr)),
      .seconds = account_->seconds(now_ms()),
      .adopted = adopts_ && run_.resumed_from.empty(),
      .resumed_from = run_.resumed_from,
      .configuration = std::move(configuration),
      .memory = layout::memory_table(memory_.layout()),
      .feed_id = to_hex({reinterpret_cast<const char*>(id.data()), id.size()}),
      .worker = run_.worker_binary,
      .version = RINGFEED_VERSION,
      .abi =
          fmt::format("{}.{}, layout {:#018x}", shm::kAbiMajor, shm::kAbiMinor, shm::kLayoutHash),
      .machine = report::this_machine(cores_),
  };
  report_ = report::page(facts);
} catch (const std::exception& error) {
  survive(error);
}

}  // namespace ringfeed::process
