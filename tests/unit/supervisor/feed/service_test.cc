// What a service manager is told, over a socket that stands for systemd's.
#include "supervisor/feed/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ringfeed/shm/segment.h"

namespace ringfeed::process {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const std::string name = "ringfeed-service-test-" + std::to_string(::getpid());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    ::setenv("NOTIFY_SOCKET", ("@" + name).c_str(), 1);
    manager_ = ServiceManager::of_environment();
  }
  // One message; "": there is none.
  [[nodiscard]] std::string heard() const {
    std::string text(64 << 10, '\0');
    const ssize_t got = ::recv(socket_.get(), text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

  shm::Fd socket_;
  ServiceManager manager_;
};

TEST_F(ServiceTest, ALongStatusIsCutSoThatTheRestIsHeard) {
  Service service(&manager_);
  std::string status = "RUNNING; ";
  for (int i = 0; i < 2'000; ++i) status += "\x01ü";
  service.look({.ready = true, .state = "RUNNING", .status = status}, 1);
  const std::string said = heard();
  EXPECT_THAT(said, StartsWith("READY=1\nSTATUS=RUNNING; "));
  EXPECT_THAT(said, HasSubstr("…\n"));
  EXPECT_LT(said.size(), 2'048U) << "systemd drops what has more than 4,096 bytes";
}

TEST_F(ServiceTest, NobodyIsToldAnythingWithoutAManager) {
  Service service(nullptr);
  service.look({.ready = true, .state = "RUNNING", .status = "RUNNING"}, 1);
  EXPECT_FALSE(service.listens());
  EXPECT_EQ(service.problem(), "");
  EXPECT_EQ(heard(), "");
}

}  // namespace
}  // namespace ringfeed::process
