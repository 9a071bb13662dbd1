#include "supervisor/os/reserve.h"

#include <execinfo.h>
#include <fcntl.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "proto/batch.pb.h"
#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "proto/snapshot.pb.h"
#include "proto/worker.pb.h"

namespace ringfeed::process {

void load_unwinder() {
  void* frame = nullptr;
  ::backtrace(&frame, 1);
}

void load_messages() {
  const std::array<const google::protobuf::FileDescriptor*, 6> files{
      Request::descriptor()->file(),          FromWorker::descriptor()->file(),
      SnapshotManifest::descriptor()->file(), PipelinePlan::descriptor()->file(),
      DataLoaderConfig::descriptor()->file(), BatchSchema::descriptor()->file()};
  auto* const factory = google::protobuf::MessageFactory::generated_factory();
  for (const google::protobuf::FileDescriptor* file : files) {
    for (int i = 0; i < file->message_type_count(); ++i) {
      const auto* const prototype = factory->GetPrototype(file->message_type(i));
      // Reflection makes what is left of them.
      std::vector<const google::protobuf::FieldDescriptor*> fields;
      prototype->GetReflection()->ListFields(*prototype, &fields);
      static_cast<void>(prototype->ShortDebugString());
    }
  }
}

std::size_t DescriptorReserve::give_up(std::size_t count, std::size_t leave) {
  const std::size_t given = std::min(count, kept_.size() - std::min(kept_.size(), leave));
  kept_.resize(kept_.size() - given);
  return given;
}

void DescriptorReserve::refill() {
  while (loans_ == 0 && kept_.size() < count_) {
    shm::Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) return;
    kept_.push_back(std::move(fd));
  }
}

}  // namespace ringfeed::process
