// The trainers of an output: attached over the socket, watched through their pidfds.
//
// A trainer is gone when its process has ended (pidfd), or when it has asked to leave: by its
// connection, or, if that has ended, in its group's page. The end of its connection alone changes
// nothing, because a helper that it forked keeps a copy of the socket open after its death, and a
// live trainer may close it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "supervisor/control/server.h"
#include "supervisor/control/waits.h"

namespace ringfeed {
class AttachReply;
class AttachRequest;
class BatchSchema;
class DetachRequest;
class RejoinRequest;
class Reply;
}  // namespace ringfeed

namespace ringfeed::control {

class Trainers {
 public:
  // What happens, for the log: "trainer_joined", "group=a member=0 pid=7".
  using Report = std::function<void(std::string_view event, const std::string& values)>;

  Trainers(process::EventLoop& loop, const layout::OutputMemory& memory, ConsumerGroups& groups,
           const BatchSchema& schema, Report report);
  ~Trainers();
  Trainers(const Trainers&) = delete;
  Trainers& operator=(const Trainers&) = delete;

  // Fills the reply; on success `fds` are the descriptors to send with it. What it throws has left
  // nobody behind.
  void attach(ControlServer& server, ConnectionId connection, const AttachRequest& request,
              Reply& reply, std::vector<int>& fds);
  // Members of an earlier supervisor's time: the living are watched, the dead give back what they
  // held.
  void adopt();
  // One of them says by which connection it can be reached now.
  void rejoin(ControlServer& server, ConnectionId connection, const RejoinRequest& request,
              Reply& reply);
  // Is this connection that of one of them?
  [[nodiscard]] bool has(ConnectionId connection) { return find(connection) != places_.end(); }
  void detach(ConnectionId connection, const DetachRequest& request, Reply& reply);
  void connection_closed(ConnectionId connection);
  // Those who have left go whose message was lost: with the supervisor before, or for want of one.
  void look_for_left() noexcept;
  // The answer has not reached the one who has just attached by this connection: as if he had not.
  void take_back(ConnectionId connection) noexcept;

  [[nodiscard]] std::string client(const MemberPlace& place) const { return facts(place).client; }
  [[nodiscard]] TrainerFacts facts(const MemberPlace& place) const;
  // The member that is attached by this connection.
  [[nodiscard]] std::optional<MemberPlace> place(ConnectionId connection);
  // Connections of attached trainers, for events.
  [[nodiscard]] std::vector<ConnectionId> connections() const;

 private:
  struct Trainer {
    ConnectionId connection = 0;  // 0: closed, the process lives
    process::Identity who;
    shm::Fd pidfd;
    std::string client;
    bool end_seen = false;
    bool ends_well = false;  // it has said that its process is about to end with status 0
  };
  using Places = std::map<MemberPlace, Trainer>;

  // What each who attaches is told; and a member besides.
  void fill(AttachReply& out) const;
  void fill(const MemberPlace& at, AttachReply& out) const;
  [[nodiscard]] std::uint64_t segment_bytes(std::uint32_t segment) const;
  void ended(const MemberPlace& place);
  void died(const MemberPlace& place);
  void bury_dead(const std::string& group);
  // Of a member whose process has ended: had it left its group, or come to the feed's end?
  [[nodiscard]] std::string_view end_of(const MemberPlace& place) const;
  template <typename Values>
  void say(std::string_view event, const Values& values) noexcept;
  void remove(Places::iterator at, std::string_view event, ConsumerGroups::Leaving how) noexcept;
  // As its process has ended.
  void bury(Places::iterator at) noexcept;
  [[nodiscard]] Places::iterator find(ConnectionId connection);
  // "output=validation group=a member=0 pid=7", for the log.
  [[nodiscard]] std::string shown(const MemberPlace& place, pid_t pid) const;

  process::EventLoop& loop_;
  layout::OutputMemory memory_;
  ConsumerGroups& groups_;
  const BatchSchema& schema_;
  Report report_;
  Places places_;
};

}  // namespace ringfeed::control
