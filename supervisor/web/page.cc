#include "supervisor/web/page.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <string>

#include "supervisor/web/page_bytes.h"

namespace ringfeed::web {
namespace {

std::string tag_of(std::string_view text) {
  return fmt::format("\"{:016x}\"", XXH3_64bits(text.data(), text.size()));
}

struct Files {
  std::array<std::string, 3> tags{tag_of(index_html()), tag_of(page_css()), tag_of(page_js())};
  std::array<PageFile, 3> files{{
      {"/", "text/html; charset=utf-8", index_html(), tags[0]},
      {"/page.css", "text/css; charset=utf-8", page_css(), tags[1]},
      {"/page.js", "text/javascript; charset=utf-8", page_js(), tags[2]},
  }};
};

}  // namespace

const PageFile* find_page_file(std::string_view path) {
  static const Files known;
  const auto found = std::find_if(known.files.begin(), known.files.end(),
                                  [&](const PageFile& one) { return one.path == path; });
  return found == known.files.end() ? nullptr : &*found;
}

}  // namespace ringfeed::web
