#include "supervisor/doctor/feeds.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "proto/control.pb.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/control/client.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/place.h"
#include "supervisor/control/silent_feed.h"
#include "supervisor/doctor/apart.h"
#include "supervisor/doctor/texts.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

constexpr int kAnswerMs = 2'000;
constexpr int kFeedMs = 4'000;
// More than anybody runs, and each is a process here.
constexpr std::size_t kFeedsMax = 100;

constexpr const char* kWithoutSupervisor =
    "no stage that dies is replaced, new trainers wait, and when shutdown.orphan_timeout_s is over "
    "its workers end";

struct Files {
  std::string feed;
  std::string directory;
  std::string socket;
  std::string lock;
  std::string state;

  Files(std::string name, std::string place)
      : feed(std::move(name)),
        directory(std::move(place)),
        socket(control::socket_path(directory, feed)),
        lock(control::lock_path(directory, feed)),
        state(directory + "/" + feed + ".state") {}
};

std::string verb(const Files& files, const std::string& words) {
  return fmt::format("ringfeed {} --socket-dir {}", words, shell_word(files.directory));
}

// 0: somebody listens there; else errno.
int connect_to(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  socket.copy(address.sun_path, socket.size());
  const shm::Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(fd.get(), to, sizeof address) == 0 || errno == EAGAIN) return 0;
  return errno;
}

// A loader's feed has its files elsewhere; a link to its socket lies among those of other feeds.
std::optional<Files> behind_link(const Files& files) {
  struct stat info {};
  if (::lstat(files.socket.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return std::nullopt;
  std::error_code failed;
  const std::filesystem::path to = std::filesystem::read_symlink(files.socket, failed);
  Files behind = files;
  behind.state = (std::filesystem::path(files.directory) /
                  std::filesystem::path(to).replace_extension(".state"))
                     .string();
  return behind;
}

// What is no file of ringfeed's has no place among them.
void look_at_kinds(const Files& files, Findings& findings) {
  for (const std::string& path : {files.socket, files.lock, files.state}) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) continue;
    const bool is_socket = &path == &files.socket || path == files.socket;
    if (is_socket ? S_ISSOCK(info.st_mode) : S_ISREG(info.st_mode)) continue;
    findings.push_back(wrong(
        fmt::format("{} is {}", path, is_socket ? "no socket" : "no regular file"),
        fmt::format("feed '{}' cannot start: only ringfeed should put anything there", files.feed),
        {fmt::format("rm {}{}", S_ISDIR(info.st_mode) ? "-r " : "", shell_word(path)), ""}));
  }
}

// The user whose feed it is; nullopt: it has no file any more.
std::optional<uid_t> owner_of(const Files& files) {
  for (const std::string& path : {files.lock, files.socket, files.state}) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) == 0) return info.st_uid;
  }
  return std::nullopt;
}

Finding dead_feed_of_other(const Files& files, uid_t owner) {
  const passwd* const user = ::getpwuid(owner);
  const std::string who = user == nullptr ? std::to_string(owner) : user->pw_name;
  const std::string clean = verb(files, "clean");
  const std::string command =
      ::geteuid() == 0
          ? fmt::format("setpriv --reuid {} --clear-groups {}", owner, clean)
          : fmt::format("sudo -u {} {}", shell_word(user == nullptr ? "#" + who : who), clean);
  return better(fmt::format("feed '{}' of user {} in {} is dead, and its files are there",
                            files.feed, who, files.directory),
                "the name cannot be used by this user: files of another one are not believed",
                {command, "as the user whose files they are"});
}

// `error`: why it cannot be connected to.
Finding feed_of_other(const Files& files, uid_t owner, int error) {
  const std::optional<control::SilentFeed> silent =
      control::find_silent(files.directory, files.feed);
  if (error == EACCES && (!silent || silent->state == "STARTING")) {
    return fine(fmt::format("feed '{}' is user {}'s", files.feed, owner));
  }
  if (!silent || silent->state == "FAILED" || silent->state == "DEAD") {
    return dead_feed_of_other(files, owner);
  }
  const std::string what = fmt::format("feed '{}': {}", files.feed, silent->reason);
  if (silent->state == "NO_ANSWER") return not_known(what);
  if (silent->state == "STARTING") return fine(what);
  return wrong(what, kWithoutSupervisor, {.advice = "it is for that user to do"});
}

// It listens. Does it answer?
void look_at_live(const Files& files, Findings& findings) {
  try {
    auto client = control::ControlClient::connect({files.directory}, files.feed);
    if (!client) return;  // it has just ended
    Request request;
    request.set_id(1);
    request.mutable_status();
    const Reply reply = client->call(request, kAnswerMs);
    if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
    findings.push_back(fine(fmt::format("feed '{}' runs and answers", files.feed)));
    return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) {
      findings.push_back(not_known(fmt::format("feed '{}': {}", files.feed, error.message())));
      return;
    }
  }
  const control::LockRecord record = control::LockRecord::parse(text_of(files.state).value_or(""));
  const pid_t pid = record.supervisor.pid;
  const char state = process::state_letter(record.supervisor);
  constexpr const char* kCost =
      "no stage that dies is replaced, and new trainers wait; those that have attached go on";
  if (state == 'T') {
    findings.push_back(
        wrong(fmt::format("the supervisor of feed '{}' (process {}) is stopped", files.feed, pid),
              kCost, {fmt::format("kill -CONT {}", pid), ""}));
  } else {
    findings.push_back(wrong(
        fmt::format("the supervisor of feed '{}' (process {}) does not answer", files.feed, pid),
        kCost,
        {.advice = "it may be held by a debugger or wait for a file system. After kill -9, "
                   "`ringfeed run` with its configuration takes the feed over, and nothing "
                   "is lost"}));
  }
}

Finding dead_feed(const Files& files, const control::LockRecord& record) {
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (const std::string& file : record.files) {
    struct stat info {};
    if (::lstat(file.c_str(), &info) != 0) continue;
    ++count;
    bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  if (count == 0) {
    return better(fmt::format("feed '{}' in {} is dead, and its files are there", files.feed,
                              files.directory),
                  "trainers that ask for it wait for a feed that does not come, and lists of feeds "
                  "have to ask it each time",
                  {verb(files, "clean"), ""});
  }
  const bool is_worth = !record.over && !control::was_another_boot(record);
  return better(
      fmt::format("feed '{}' in {} is dead, and has left {} files of its memory", files.feed,
                  files.directory, count),
      fmt::format("they take {}{}", shown_bytes(bytes), is_worth ? ", and can still be used" : ""),
      {verb(files, is_worth ? "clean --force" : "clean"),
       is_worth ? "removes them; `ringfeed run` with its configuration goes on from them" : ""});
}

void look_at_silent(const Files& files, Findings& findings) {
  const Result<std::optional<control::LockRecord>> orphan = control::find_orphan(files.lock);
  if (!orphan) {
    findings.push_back(
        not_known(fmt::format("feed '{}': {}", files.feed, orphan.error().message())));
    return;
  }
  if (*orphan) {
    const control::LockRecord& record = **orphan;
    findings.push_back(wrong(
        fmt::format("feed '{}' has no supervisor: {} of its workers go on", files.feed,
                    control::living_workers(record).size()),
        kWithoutSupervisor,
        {verb(files, fmt::format("stop {} --now", shell_word(files.feed))),
         "ends it; `ringfeed run` with its configuration takes it over instead, and nothing is "
         "lost"}));
    return;
  }
  const control::LockHolders holders = control::holders_of(files.lock);
  if (holders.supervisor != 0 || holders.workers) {
    findings.push_back(
        fine(fmt::format("feed '{}' is starting, or its workers are not seen from "
                         "here (another container)",
                         files.feed)));
    return;
  }
  // It may have ended in the meantime.
  if (!owner_of(files)) return;
  findings.push_back(
      dead_feed(files, control::LockRecord::parse(text_of(files.state).value_or(""))));
}

Findings look_at_link(const Files& link) {
  const int error = connect_to(link.socket);
  Findings findings;
  if (error == 0) {
    look_at_live(link, findings);
  } else if (error == EACCES) {
    findings.push_back(fine(fmt::format("feed '{}' is another user's loader", link.feed)));
  } else {
    findings.push_back(better(fmt::format("{} leads to the feed of a loader that is gone: {}",
                                          link.socket, std::strerror(error)),
                              "lists of feeds have to ask it each time",
                              {"rm " + shell_word(link.socket), ""}));
  }
  return findings;
}

Findings look_at_feed(const Files& files) {
  if (const std::optional<Files> link = behind_link(files)) return look_at_link(*link);
  Findings findings;
  look_at_kinds(files, findings);
  const std::optional<uid_t> owner = owner_of(files);
  if (!findings.empty() || !owner) return findings;
  const int error = connect_to(files.socket);
  if (error != 0 && *owner != ::geteuid()) return {feed_of_other(files, *owner, error)};
  if (error == 0) {
    look_at_live(files, findings);
  } else {
    look_at_silent(files, findings);
  }
  struct stat info {};
  if (::lstat(files.socket.c_str(), &info) == 0 && (info.st_mode & 0077) != 0) {
    findings.push_back(better(
        fmt::format("others may connect to {} (mode {:04o})", files.socket, info.st_mode & 07777),
        "whoever is let in to its directory can take half of the 512 places for connections",
        {fmt::format("chmod 600 {}", shell_word(files.socket)), ""}));
  }
  return findings;
}

}  // namespace

Findings look_at_feeds(const std::vector<std::string>& directories) {
  std::vector<Check> checks;
  std::size_t left_out = 0;
  for (const std::string& directory : directories) {
    for (const std::string& feed : control::feeds_in(directory)) {
      if (checks.size() == kFeedsMax) {
        ++left_out;
        continue;
      }
      const Files files(feed, directory);
      checks.push_back({"", [files] { return look_at_feed(files); }});
    }
  }
  // One that hangs is not in the way of the others.
  Findings findings = look_apart(checks, kFeedMs);
  if (left_out != 0) {
    findings.push_back(not_known(fmt::format("{} more feeds were not looked at", left_out)));
  }
  if (checks.empty()) findings.push_back(fine("no feed runs, and none has left anything"));
  return findings;
}

}  // namespace ringfeed::doctor
