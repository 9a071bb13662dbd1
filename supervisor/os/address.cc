#include "supervisor/os/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <charconv>

#include "ringfeed/shm/quote.h"

namespace ringfeed {
namespace {

constexpr std::uint32_t kLoopbackNet = 127;

// Fills what kind of address `address.host` is. False: it is none.
bool classify(NetAddress& address) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, address.host.c_str(), &v4) == 1) {
    address.loopback = ntohl(v4.s_addr) >> 24 == kLoopbackNet;
    return true;
  }
  if (::inet_pton(AF_INET6, address.host.c_str(), &v6) != 1) return false;
  address.v6 = true;
  address.loopback = IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return true;
}

}  // namespace

std::string NetAddress::text() const {
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<NetAddress> parse_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  NetAddress address;
  std::string_view host = colon == std::string_view::npos ? "127.0.0.1" : text.substr(0, colon);
  const bool brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  address.host = host == "localhost" ? "127.0.0.1" : std::string(host);
  const std::string_view port = colon == std::string_view::npos ? text : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool whole = error == std::errc() && end == port.data() + port.size();
  if (whole && classify(address) && address.v6 == brackets) return address;
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}: an address and a port are wanted, as 127.0.0.1:9464 or "
                           "[::1]:9464",
                           escaped(text))};
}

}  // namespace ringfeed
