#include "supervisor/os/address.h"

#include <gtest/gtest.h>

#include <string>

namespace ringfeed {
namespace {

TEST(Address, IsReadAsPeopleWriteIt) {
  const struct {
    const char* text;
    const char* shown;
    bool loopback;
  } cases[] = {
      {"127.0.0.1:9464", "127.0.0.1:9464", true}, {"9464", "127.0.0.1:9464", true},
      {"localhost:0", "127.0.0.1:0", true},       {"[::1]:65535", "[::1]:65535", true},
      {"0.0.0.0:80", "0.0.0.0:80", false},        {"[::]:80", "[::]:80", false},
      {"127.9.9.9:1", "127.9.9.9:1", true},
  };
  for (const auto& [text, shown, loopback] : cases) {
    const Result<NetAddress> address = parse_address(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->text(), shown);
    EXPECT_EQ(address->loopback, loopback) << text;
  }
}

TEST(Address, AnythingElseIsRefused) {
  for (const std::string text : {"", ":", ":80", "::1:80", "[::1]", "[127.0.0.1]:80", "host:80",
                                 "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3.4:8x", "[]:1"}) {
    const Result<NetAddress> address = parse_address(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_NE(address.error().message().find("127.0.0.1:9464"), std::string::npos);
  }
}

}  // namespace
}  // namespace ringfeed
