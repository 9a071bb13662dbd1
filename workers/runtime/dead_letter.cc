#include "workers/runtime/dead_letter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ringfeed/shm/segment.h"

namespace ringfeed {
namespace {

Error io_error(const std::string& path, const char* what) {
  return Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

Status write_whole(const std::string& path, std::span<const std::byte> bytes) {
  const std::string partial = path + ".partial";
  // Whatever has that name, a death or somebody has left it there: it is not written to.
  ::unlink(partial.c_str());
  const shm::Fd fd(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return io_error(partial, "cannot be created");
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t wrote = ::write(fd.get(), bytes.data() + at, bytes.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const Error error = io_error(partial, "cannot be written");
      ::unlink(partial.c_str());
      return error;
    }
    at += static_cast<std::size_t>(wrote);
  }
  if (::rename(partial.c_str(), path.c_str()) != 0) return io_error(path, "cannot be renamed to");
  return {};
}

// What a plug-in calls its nodes and ports, as a part of a file's name.
std::string part_of_name(std::string_view name) {
  constexpr std::size_t kPartBytesMax = 64;
  std::string part(name.substr(0, kPartBytesMax));
  for (char& c : part) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!plain && c != '-' && c != '.') c = '_';
  }
  return part;
}

}  // namespace

Result<std::string> write_dead_letter(const DeadLetterFacts& facts, const DeadLetter& letter) {
  std::error_code failed;
  std::filesystem::create_directories(facts.directory, failed);
  if (failed) {
    errno = failed.value();
    return io_error(facts.directory, "cannot be created");
  }
  const std::string stem = fmt::format(
      "{}/{}{}{}-{}-{}.{}-{}", facts.directory, part_of_name(facts.stage),
      facts.node.empty() ? "" : ".", part_of_name(facts.node), part_of_name(letter.input),
      facts.lane, shm::ring_of(letter.key), shm::seq_of(letter.key));
  const nlohmann::ordered_json about = {
      {"feed", facts.feed},
      {"stage", facts.stage},
      {"node", facts.node},
      {"lane", facts.lane},
      {"port", letter.input},
      {"ring", shm::ring_of(letter.key)},
      {"seq", shm::seq_of(letter.key)},
      {"lineage", {letter.record.header->tag[0], letter.record.header->tag[1]}},
      {"user", letter.record.header->user},
      {"bytes", letter.record.bytes.size()},
      {"xxh3", fmt::format("{:016x}",
                           ::XXH3_64bits(letter.record.bytes.data(), letter.record.bytes.size()))},
      {"deaths", facts.deaths},
      {"cause", facts.cause},
      {"seed", facts.seed},
      {"config", facts.config},
      {"version", facts.version}};
  const std::string text =
      about.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (Status wrote = write_whole(stem + ".record", letter.record.bytes); !wrote)
    return wrote.error();
  if (Status wrote = write_whole(stem + ".json", std::as_bytes(std::span(text))); !wrote) {
    return wrote.error();
  }
  return stem + ".record";
}

}  // namespace ringfeed
