// The order of files in a pool's window: newer is what has the larger name.
#pragma once

#include <string_view>

namespace ringfeed {

// The name by which a file is ordered: without its directories.
[[nodiscard]] std::string_view sort_key(std::string_view path) noexcept;

// Less in the order of keys: bytewise, or with numbers in the names compared as numbers ("run9"
// before "run10"), and bytewise where that makes no difference ("run09" and "run9").
class KeyLess {
 public:
  explicit KeyLess(bool numeric = false) noexcept : numeric_(numeric) {}
  [[nodiscard]] bool operator()(std::string_view left, std::string_view right) const noexcept;

 private:
  bool numeric_;
};

}  // namespace ringfeed
