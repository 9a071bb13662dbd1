// For whom a trainer waits, asked by one that waits or that comes back.
#include "proto/control.pb.h"
#include "supervisor/feed/feed.h"

namespace ringfeed::process {

bool Feed::on_wait(control::ConnectionId connection, const Request& request, Reply& reply) {
  for (const std::unique_ptr<Output>& output : outputs_) {
    const std::optional<control::MemberPlace> member = output->trainers.place(connection);
    if (!member) continue;
    WaitReply& out = *reply.mutable_wait();
    if (request.wait().waited_ms() == 0) {
      output->waits.come_back(*member, now_ms(), out);
    } else {
      output->waits.ask(*member, request.wait().waited_ms(), now_ms(), out);
      for (const std::unique_ptr<GroupProcess>& worker : workers_) {
        const std::string late = worker->late_start();
        if (!late.empty()) out.add_awaited()->set_text(late);
      }
    }
    return true;
  }
  reply.set_error(Reply::BAD_REQUEST);
  reply.set_text("this connection is not attached: attach first");
  return true;
}

}  // namespace ringfeed::process
