// A worker without stages, for tests of the supervisor: takes its setup as a real one does, then
// behaves as RINGFEED_FAKE says.
//   serve      says ready; ends when its lanes are told to stop, or, finished, to drain
//   finish     says ready, finishes its lanes, ends
//   crash      says a line and ends with status 9, before it is ready
//   permanent  says that a restart would meet the same, and ends with status 1
//   moody      serves and dies once, then says so three times, then serves
//   stuck      says ready and does nothing any more, whatever it is told
//   take       says ready, consumes the first record of its first lane's first ring, then as serve
//   poison     begins record 42 on every lane and faults in the first, unless that is set aside
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "proto/worker.pb.h"
#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/ring_layout.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/os/packet.h"

namespace {

using namespace ringfeed;  // NOLINT: a test program

void say(int socket, const FromWorker& message) {
  control::send_packet(socket, message.SerializeAsString()).or_throw();
}

bool supervisor_is_gone(int socket) {
  char byte = 0;
  return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// Waits for it, until the supervisor is gone at the latest, and moves the head behind it.
void take_first_record(int socket, const WorkerSetup& setup, const std::vector<shm::Fd>& fds) {
  const auto map = [&](std::uint32_t id, bool writable) {
    for (const SegmentSetup& segment : setup.segments()) {
      if (segment.id() == id) {
        return shm::map_segment(fds[segment.fd_index()].get(), writable).value_or_throw();
      }
    }
    std::_Exit(73);
  };
  const RingEnd& end = setup.lanes(0).inputs(0).rings(0);
  const shm::Mapping ring = map(end.ring_segment(), false);
  const shm::Mapping heads = map(end.heads_segment(), true);
  const auto& tail = *reinterpret_cast<const shm::TailLine*>(ring.data() + shm::kTailLineOffset);
  auto& head =
      reinterpret_cast<shm::HeadLine*>(heads.data() + shm::kHeadLinesOffset)[end.head_index()];
  while (tail.tail.load() == 0) {
    if (supervisor_is_gone(socket)) std::_Exit(72);
    usleep(1000);
  }
  head.head_seq.store(1);
  head.head.store(tail.tail.load());
}

}  // namespace

int main(int, char** argv) {
  const int socket = atoi(argv[2]);
  std::vector<shm::Fd> fds;
  std::size_t expected = 1;
  while (fds.size() < expected) {
    control::Packet packet = control::receive_packet(socket).value_or_throw();
    ToWorker message;
    if (packet.end || !message.ParseFromString(packet.bytes)) return 70;
    if (message.has_setup()) expected = message.setup().descriptor_count();
    for (shm::Fd& fd : packet.fds) fds.push_back(std::move(fd));
  }
  WorkerSetup setup;
  if (!setup.ParseFromFileDescriptor(fds[0].get())) return 71;
  const shm::Mapping control = shm::map_segment(fds[1].get(), true).value_or_throw();
  const auto lane = [&](std::uint32_t index) -> shm::LanePage& {
    return *reinterpret_cast<shm::LanePage*>(control.data() + shm::lane_page_offset(index));
  };
  const std::string_view behaviour = getenv("RINGFEED_FAKE");
  if (behaviour == "crash") {
    std::fputs("fake worker: out of luck\n", stderr);
    return 9;
  }
  FromWorker message;
  // Starts of this group before this one.
  const std::uint32_t earlier =
      setup.lanes().empty() ? 0 : lane(setup.lanes(0).index()).incarnation.load();
  const bool refuses = behaviour == "moody" && earlier >= 1 && earlier < 4;
  if (refuses) lane(setup.lanes(0).index()).incarnation.fetch_add(1);
  if (behaviour == "permanent" || refuses) {
    message.mutable_failure()->set_text("the fake has no stage 'mix'");
    message.mutable_failure()->set_permanent(true);
    say(socket, message);
    return 1;
  }
  for (const LaneSetup& planned : setup.lanes()) {
    shm::LanePage& page = lane(planned.index());
    page.pid.store(static_cast<std::uint32_t>(getpid()));
    page.incarnation.fetch_add(1);
    if (behaviour == "poison" && page.quarantine_key.load() != 42) {
      page.attempt_key.store(42);
    }
  }
  // Now: a test that kills whoever is ready finds its lanes attached.
  message.mutable_ready()->set_pid(static_cast<std::uint32_t>(getpid()));
  say(socket, message);
  if (behaviour == "poison" && lane(setup.lanes(0).index()).quarantine_key.load() != 42) {
    lane(setup.lanes(0).index()).faulted.store(SIGSEGV);
    kill(getpid(), SIGSEGV);
  }
  if (behaviour == "moody" && earlier == 0) return 9;
  if (behaviour == "take") take_first_record(socket, setup, fds);
  for (const LaneSetup& planned : setup.lanes()) {
    shm::LanePage& page = lane(planned.index());
    while (behaviour == "stuck") pause();
    while ((behaviour == "serve" || behaviour == "take" || behaviour == "moody") &&
           page.desired.load() == static_cast<std::uint32_t>(shm::LaneDesire::kRun)) {
      // Until the supervisor is gone at the latest: a test that fails leaves nobody behind.
      if (supervisor_is_gone(socket)) return 72;
      usleep(1000);
    }
    if (page.desired.load() == static_cast<std::uint32_t>(shm::LaneDesire::kStop)) return 0;
    page.state.store(static_cast<std::uint32_t>(shm::LaneState::kFinished));
  }
  return 0;
}
