#include "supervisor/os/locale.h"

#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <string_view>

namespace ringfeed {
namespace {

std::string locale_name() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return value;
  }
  return "C";
}

// "UTF-8", "utf8".
bool names_utf8(const std::string& text) {
  std::string letters;
  for (const char c : text) {
    if (c != '-') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters.find("utf8") != std::string::npos;
}

}  // namespace

bool locale_is_utf8() {
  const locale_t locale = ::newlocale(LC_CTYPE_MASK, "", nullptr);
  if (locale == nullptr) return names_utf8(locale_name());
  const bool is = names_utf8(::nl_langinfo_l(CODESET, locale));
  ::freelocale(locale);
  return is;
}

std::size_t columns_of(int fd) {
  constexpr std::size_t kOtherwise = 80;
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kOtherwise;
}

bool terminal_is_dumb() {
  const char* const type = std::getenv("TERM");
  return type != nullptr && std::string_view(type) == "dumb";
}

bool wants_colours() {
  const char* const no_colour = std::getenv("NO_COLOR");
  const char* const type = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') && type != nullptr && *type != '\0' &&
         !terminal_is_dumb();
}

bool output_wants_colours() { return ::isatty(STDOUT_FILENO) == 1 && wants_colours(); }

}  // namespace ringfeed
