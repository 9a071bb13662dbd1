#include "workers/kit/proposal.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"

namespace ringfeed {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

enum class Type { kFile, kDirectory, kOther };

Type type_of(const Directory& directory, const dirent& entry) {
  if (entry.d_type == DT_REG) return Type::kFile;
  if (entry.d_type == DT_DIR) return Type::kDirectory;
  if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return Type::kOther;
  struct stat target {};
  if (::fstatat(::dirfd(directory.get()), entry.d_name, &target, 0) != 0) return Type::kOther;
  if (S_ISREG(target.st_mode)) return Type::kFile;
  return S_ISDIR(target.st_mode) ? Type::kDirectory : Type::kOther;
}

std::string_view without_indent(std::string_view line) {
  const std::size_t first = line.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string_view() : line.substr(first);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

bool is_comment(std::string_view line) { return line.starts_with('#'); }

}  // namespace

std::vector<std::string> DirectoryLook::ending_in(std::string_view ending) const {
  std::vector<std::string> found;
  for (const std::string& file : files) {
    if (file.ends_with(ending)) found.push_back(file);
  }
  return found;
}

std::string DirectoryLook::count_text(std::size_t count) const {
  return fmt::format("{}{}", whole ? "" : "at least ", count);
}

DirectoryLook look_at(const std::string& directory, const LookLimits& limits) {
  const auto refused = [&directory](int error) {
    const bool missing = error == ENOENT;
    return Error(
        missing ? ErrorCode::kNotFound : ErrorCode::kIo,
        fmt::format("{}: {}", escaped(directory),
                    missing            ? "there is no such directory"
                    : error == ENOTDIR ? "this is not a directory; give the one with the data"
                                       : fmt::format("cannot be read: {}", std::strerror(error))));
  };
  char resolved[PATH_MAX];
  if (::realpath(directory.c_str(), resolved) == nullptr) throw refused(errno);
  DirectoryLook look{.directory = resolved, .files = {}, .whole = true};
  struct Waiting {
    std::string path;
    std::size_t depth;
  };
  // Level by level, so that one huge directory does not hide those beside it.
  std::deque<Waiting> places{{look.directory, 0}};
  std::size_t names = 0;
  std::size_t directories = 0;
  while (!places.empty()) {
    const Waiting place = std::move(places.front());
    places.pop_front();
    if (directories == limits.directories || names >= limits.names) {
      look.whole = false;
      break;
    }
    ++directories;
    const Directory opened(::opendir(place.path.c_str()));
    if (!opened) {
      if (place.depth == 0) throw refused(errno);
      look.whole = false;
      continue;
    }
    std::vector<std::string> below;
    std::size_t here = 0;
    for (;;) {
      errno = 0;
      const dirent* const entry = ::readdir(opened.get());
      if (entry == nullptr) {
        if (errno != 0 && place.depth == 0 && here == 0) throw refused(errno);
        if (errno != 0) look.whole = false;
        break;
      }
      if (entry->d_name[0] == '.') continue;
      if (here == limits.names_of_directory || names == limits.names) {
        look.whole = false;
        break;
      }
      ++here;
      ++names;
      std::string path = place.path == "/" ? "/" : place.path + "/";
      path += entry->d_name;
      const Type type = type_of(opened, *entry);
      if (type == Type::kFile) {
        look.files.push_back(std::move(path));
      } else if (type == Type::kDirectory) {
        below.push_back(std::move(path));
      }
    }
    if (place.depth == limits.depth) {
      if (!below.empty()) look.whole = false;
      continue;
    }
    std::sort(below.begin(), below.end());
    for (std::string& path : below) places.push_back({std::move(path), place.depth + 1});
  }
  std::sort(look.files.begin(), look.files.end());
  return look;
}

PipelineText::PipelineText(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines_.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

void PipelineText::introduce(const DirectoryLook& look, const std::string& found) {
  // The line that says to copy the pipeline and to set its directory.
  const auto line = std::find_if(lines_.begin(), lines_.end(), [](const std::string& text) {
    return text.starts_with("# Copy it");
  });
  RF_CHECK(line != lines_.end());
  const auto at = lines_.erase(line);
  lines_.insert(at, {fmt::format("# Written by `ringfeed init` for {}:", escaped(look.directory)),
                     fmt::format("#   {}", escaped(found)), "# Check it and run it:"});
}

std::string PipelineText::feed() const {
  for (const std::string& line : lines_) {
    constexpr std::string_view kBegin = "feed: \"";
    if (line.starts_with(kBegin))
      return line.substr(kBegin.size(), line.rfind('"') - kBegin.size());
  }
  RF_CHECK(false);
  return {};
}

void PipelineText::name(const ProposalWish& wish) {
  const std::string old = feed();
  const std::string now = wish.feed.empty() ? old : wish.feed;
  const std::string file = wish.file.empty() ? now + ".textproto" : wish.file;
  for (std::string& line : lines_) {
    if (line.starts_with("feed: ")) line = "feed: " + text_literal(now);
    if (!is_comment(line)) continue;
    replace_all(line, fmt::format("attach(\"{}\")", old),
                fmt::format("attach({})", text_literal(now)));
    for (const std::string_view verb : {"check", "run"}) {
      replace_all(line, fmt::format("ringfeed {} {}.textproto", verb, old),
                  fmt::format("ringfeed {} {}", verb, escaped(file)));
    }
  }
}

PipelineText::Lines PipelineText::find(std::string_view stage, std::string_view field) const {
  std::size_t at = 0;
  const std::string name = fmt::format("name: \"{}\"", stage);
  while (at < lines_.size() && without_indent(lines_[at]) != name) ++at;
  RF_CHECK(at < lines_.size());
  const std::string begin = fmt::format("{}: ", field);
  while (at < lines_.size() && lines_[at] != "}" &&
         !without_indent(lines_[at]).starts_with(begin)) {
    ++at;
  }
  RF_CHECK(at < lines_.size() && lines_[at] != "}");
  Lines found{at, 0};
  while (without_indent(lines_[at + found.count]).starts_with(begin)) ++found.count;
  return found;
}

void PipelineText::set(std::string_view stage, std::string_view field,
                       const std::vector<std::string>& values) {
  const Lines old = find(stage, field);
  const std::string indent(lines_[old.first].find_first_not_of(' '), ' ');
  const auto begin = lines_.begin() + static_cast<std::ptrdiff_t>(old.first);
  const auto at = lines_.erase(begin, begin + static_cast<std::ptrdiff_t>(old.count));
  std::vector<std::string> lines;
  for (const std::string& value : values) {
    lines.push_back(fmt::format("{}{}: {}", indent, field, value));
  }
  lines_.insert(at, lines.begin(), lines.end());
}

void PipelineText::add_below(std::string_view stage, std::string_view field,
                             const std::vector<std::string>& lines) {
  const Lines above = find(stage, field);
  const std::string indent(lines_[above.first].find_first_not_of(' '), ' ');
  auto at = lines_.begin() + static_cast<std::ptrdiff_t>(above.first + above.count);
  for (const std::string& line : lines)
    at = lines_.insert(at, line.empty() ? "" : indent + line) + 1;
}

std::string PipelineText::text() const {
  std::string text;
  for (const std::string& line : lines_) text += line + "\n";
  return text;
}

std::string text_literal(std::string_view bytes) {
  std::string literal = "\"";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      literal += '\\';
      literal += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      literal += fmt::format("\\{:03o}", byte);
    } else {
      literal += c;
    }
  }
  return literal + "\"";
}

std::string counted(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace ringfeed
