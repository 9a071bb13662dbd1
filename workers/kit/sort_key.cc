#include "workers/kit/sort_key.h"

#include <cstddef>

namespace ringfeed {

namespace {

bool digit(char c) noexcept { return c >= '0' && c <= '9'; }

// Takes the number at the front of the text; without its leading zeros.
std::string_view take_number(std::string_view& text) noexcept {
  std::size_t end = 0;
  while (end < text.size() && digit(text[end])) ++end;
  std::size_t begin = 0;
  while (begin + 1 < end && text[begin] == '0') ++begin;
  const std::string_view number = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return number;
}

// Below, equal to or above 0.
int compare_numeric(std::string_view left, std::string_view right) noexcept {
  while (!left.empty() && !right.empty()) {
    if (digit(left.front()) && digit(right.front())) {
      const std::string_view a = take_number(left);
      const std::string_view b = take_number(right);
      if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
      if (const int order = a.compare(b); order != 0) return order;
      continue;
    }
    // As unsigned bytes, which is how string_view compares them too.
    const auto a = static_cast<unsigned char>(left.front());
    const auto b = static_cast<unsigned char>(right.front());
    if (a != b) return a < b ? -1 : 1;
    left.remove_prefix(1);
    right.remove_prefix(1);
  }
  return left.empty() == right.empty() ? 0 : left.empty() ? -1 : 1;
}

}  // namespace

std::string_view sort_key(std::string_view path) noexcept {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool KeyLess::operator()(std::string_view left, std::string_view right) const noexcept {
  if (numeric_) {
    if (const int order = compare_numeric(left, right); order != 0) return order < 0;
  }
  return left < right;
}

}  // namespace ringfeed
