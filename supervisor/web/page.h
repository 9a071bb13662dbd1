// The files of the page, which are in the program (page/).
#pragma once

#include <optional>
#include <string_view>

namespace ringfeed::web {

struct PageFile {
  std::string_view path;  // "/"
  std::string_view type;
  std::string_view text;
  std::string_view tag;  // changes with the text
};
[[nodiscard]] const PageFile* find_page_file(std::string_view path);

}  // namespace ringfeed::web
