#include "supervisor/top/terminfo.h"

namespace ringfeed::top {
namespace {

// Types up to their first "-" or ".", and whose description is right for them.
struct Like {
  std::string_view begin;
  std::string_view type;
};
constexpr Like kLike[] = {
    {"xterm", "xterm-256color"},     {"screen", "screen-256color"},
    {"tmux", "tmux-256color"},       {"linux", "linux"},
    {"foot", "xterm-256color"},      {"ghostty", "xterm-256color"},
    {"alacritty", "xterm-256color"}, {"wezterm", "xterm-256color"},
};

}  // namespace

Description description_of(const std::string& type) {
  const std::string_view begin = std::string_view(type).substr(0, type.find_first_of("-."));
  for (const Like& like : kLike) {
    const std::string_view entry = like.begin == begin ? built_in_entry(like.type) : "";
    if (!entry.empty()) return {std::string(like.type), std::string(entry)};
  }
  return {};
}

}  // namespace ringfeed::top
