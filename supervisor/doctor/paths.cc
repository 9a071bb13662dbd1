// The paths of a configuration, by what the schema says of them.
#include "supervisor/config/paths.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <list>
#include <set>

#include "proto/config.pb.h"
#include "supervisor/doctor/configuration.h"
#include "supervisor/doctor/places.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

namespace fs = std::filesystem;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

struct Use {
  PathUse use;
  bool is_file;  // else what the feed writes there is a directory
};
using Take = std::function<void(const Use& use, const std::string& path)>;

void each_path(const Message& message, const Take& take) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    const PathUse use = field->options().GetExtension(::ringfeed::path_use);
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        each_path(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                       : reflection.GetMessage(message, field),
                  take);
      } else if (use != NO_PATH) {
        take({use, field->full_name() == "ringfeed.LogConfig.file"},
             field->is_repeated() ? reflection.GetRepeatedString(message, field, i)
                                  : reflection.GetString(message, field));
      }
    }
  }
}

// The first directory on the way that may not be passed, links followed; "": all may.
std::string closed_above(const std::string& path) {
  constexpr int kLinksMax = 40;  // as the kernel has it
  fs::path at = "/";
  std::list<fs::path> rest;
  const auto add = [&](const fs::path& more) {
    const fs::path parts = more.relative_path();
    rest.insert(rest.begin(), parts.begin(), parts.end());
    if (more.is_absolute()) at = "/";
  };
  add(fs::absolute(path));
  for (int links = 0; !rest.empty();) {
    if (::access(at.c_str(), X_OK) != 0 && errno == EACCES) return at.string();
    const fs::path next = at / rest.front();
    rest.pop_front();
    std::error_code failed;
    const fs::path to = fs::read_symlink(next, failed);
    if (failed) {
      at = next;
    } else {
      if (++links > kLinksMax) return {};
      add(to);
    }
  }
  return {};
}

constexpr const char* kNotRead = "what lies there is skipped, and counted as unreadable";

// The command is for its owner, or for root.
Remedy let_in(const std::string& path, const std::string& mode) {
  struct stat info {};
  const bool is_ours = ::stat(path.c_str(), &info) == 0 && info.st_uid == ::geteuid();
  const std::string command =
      fmt::format("chmod {}{} {}", is_ours ? "u+" : "a+", mode, shell_word(path));
  return {is_ours ? command : as_root(command),
          is_ours ? ""
                  : fmt::format("for everybody; for this user alone: setfacl -R -m u:{}:rX {}",
                                ::geteuid(), shell_word(path))};
}

// The first entries of a data directory: one that cannot be read is told as an example.
void look_into(const std::string& directory, Findings& findings) {
  constexpr int kEntriesMax = 2000;
  std::error_code failed;
  int seen = 0;
  for (fs::directory_iterator at(directory, failed), end;
       !failed && at != end && seen < kEntriesMax; at.increment(failed), ++seen) {
    std::error_code ignored;
    const bool is_directory = at->is_directory(ignored);
    if (::access(at->path().c_str(), is_directory ? R_OK | X_OK : R_OK) == 0 || errno != EACCES) {
      continue;
    }
    Remedy remedy = let_in(directory, "rX");
    remedy.mend.replace(remedy.mend.find("chmod ") + 6, 0, "-R ");
    findings.push_back(wrong(fmt::format("{} may not be read by this user, and it lies in the data "
                                         "directory {}",
                                         at->path().string(), directory),
                             kNotRead, std::move(remedy)));
    return;
  }
}

void look_at_source(const std::string& path, bool is_finite, Findings& findings) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    const int error = errno;
    if (error == EACCES) {
      const std::string closed = closed_above(path);
      findings.push_back(wrong(fmt::format("{} cannot be reached: {} is closed to this user", path,
                                           closed.empty() ? "a directory above it" : closed),
                               kNotRead, let_in(closed.empty() ? path : closed, "x")));
    } else if (error == ENOENT || error == ENOTDIR) {
      const std::string what = fmt::format("{} does not exist", path);
      const Remedy remedy{.advice = "mount or copy it, or mend the path in the configuration"};
      findings.push_back(
          is_finite ? wrong(what, "a run with `epochs` has nothing of it", remedy)
                    : better(what, "the feed waits for it, and makes no batch of it", remedy));
    } else {
      findings.push_back(wrong(fmt::format("{} cannot be read: {}", path, std::strerror(error)),
                               kNotRead,
                               {.advice = "the file system refuses it: dmesg may say why"}));
    }
    return;
  }
  const bool is_directory = S_ISDIR(info.st_mode);
  if (::access(path.c_str(), is_directory ? R_OK | X_OK : R_OK) != 0) {
    findings.push_back(
        wrong(fmt::format("{} may not be read by this user: {}", path, std::strerror(errno)),
              kNotRead, let_in(path, is_directory ? "rx" : "r")));
    return;
  }
  if (is_directory) look_into(path, findings);
}

// What this user may not write. A directory that is there and somebody else's is left as it is:
// others may need it so.
Remedy let_write(const std::string& path, const Place& place, bool is_file) {
  const bool is_there = place.path == path;
  if (is_there && place.owner == ::geteuid()) {
    return {fmt::format("chmod u+rw{} {}", place.is_directory ? "x" : "", shell_word(path)), ""};
  }
  if (is_there) {
    return {.advice = fmt::format("name a {} of your own in the configuration",
                                  place.is_directory ? "directory" : "file")};
  }
  if (!is_file) return {make_directory_as_root(path), ""};
  const std::string directory = fs::path(path).parent_path();
  if (place.path != directory) return {make_directory_as_root(directory), ""};
  return {as_root(fmt::format("install -m 600 -o {} /dev/null {}", ::geteuid(), shell_word(path))),
          "an empty file of this user's; with log.rotate_bytes it needs a directory of its own"};
}

void look_at_target(const std::string& path, bool is_file, Findings& findings) {
  const Place place = existing_above(path);
  const int error = place.error != 0                            ? place.error
                    : place.path != path && !place.is_directory ? ENOTDIR
                                                                : place.write_error;
  if (error != 0) {
    const bool is_there = place.path == path;
    findings.push_back(wrong(
        is_there ? fmt::format("{} cannot be written to: {}", path, std::strerror(error))
                 : fmt::format("{} cannot be made: {}: {}", path, place.path, std::strerror(error)),
        "the feed does not start, or goes without what it keeps there",
        error == EACCES
            ? let_write(path, place, is_file)
            : Remedy{.advice = "mend the path in the configuration, or the file system"}));
    return;
  }
  constexpr std::uint64_t kBytesLeftMin = 1 << 20;
  if (place.free_bytes < kBytesLeftMin || place.free_files == 0) {
    findings.push_back(better(
        place.free_files == 0
            ? fmt::format("{} has no room for another file", place.path)
            : fmt::format("{} has {} left", place.path, shown_bytes(place.free_bytes)),
        "what the feed keeps there is lost or incomplete", make_room(place, 16 * kBytesLeftMin)));
  }
}

// One snapshot more than are kept needs all of the feed's memory.
void look_at_snapshots(const Planned& planned, Findings& findings) {
  if (planned.config.snapshot().directory().empty()) return;
  const Place place = existing_above(planned.config.snapshot().directory());
  const std::uint64_t need = layout::memory_sum(planned.layout);
  if (place.error != 0 || place.free_bytes >= need) return;
  findings.push_back(
      wrong(fmt::format("a snapshot takes {} at most, and {} has {} left", shown_bytes(need),
                        place.path, shown_bytes(place.free_bytes)),
            "no snapshot is begun before there is room for all of the feed's memory",
            make_room(place, need)));
}

}  // namespace

Findings look_at_paths(const Planned& planned) {
  Findings findings;
  std::set<std::string> seen;
  each_path(planned.config, [&](const Use& field, const std::string& path) {
    const PathUse use = field.use;
    if (path.empty() || config::is_address(path) || !seen.insert(path).second) return;
    if (use == PATH_READ || use == PATH_OR_URL) {
      look_at_source(path, planned.config.epochs() > 0, findings);
    }
    // The directories of sockets and of segments have looks of their own.
    const bool has_own = path == planned.config.control().directory() ||
                         path == planned.config.storage().directory();
    if (use == PATH_WRITE && !has_own) look_at_target(path, field.is_file, findings);
  });
  look_at_snapshots(planned, findings);
  if (findings.empty()) findings.push_back(fine("its paths can be read and written"));
  return findings;
}

}  // namespace ringfeed::doctor
