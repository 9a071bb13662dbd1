// Where a server listens, as people write it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"

namespace ringfeed {

struct NetAddress {
  std::string host;  // "127.0.0.1", "::1": a number, never a name
  std::uint16_t port = 0;
  bool v6 = false;
  bool loopback = false;

  // "127.0.0.1:9464", "[::1]:9464".
  [[nodiscard]] std::string text() const;
};

// "127.0.0.1:9464", "[::1]:9464", "localhost:9464", "9464"; port 0 is any that is free. Errors:
// kInvalidArgument, a sentence that says what is wanted.
[[nodiscard]] Result<NetAddress> parse_address(std::string_view text);

}  // namespace ringfeed
