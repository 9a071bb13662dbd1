// What a domain tells `inspect` and `init` about its files: which files are its own, what is in
// them, how that reads in a terminal, and what a feed of them would be. A domain fills the table in
// add_<domain>_describers(); inspect.h and propose.h ask it and know no domain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/segment.h"
#include "workers/kit/proposal.h"

namespace ringfeed::inspect {

struct Options {
  std::string path = {};
  std::optional<std::size_t> record = {};  // index in the game or token file; none: the first
  std::string chunk = {};                  // of a tar: name or index of a game
  std::string dictionary = {};             // of a token file; "": the one beside it
  std::size_t top = 8;                     // moves of the policy
  bool all = false;                        // all records; of a tar or an index, all of the list
  bool json = false;
};

// A file that is open for reading. Throws Error (kIo): it cannot be read, or is no regular file.
class File {
 public:
  explicit File(const std::string& path);

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  // What is there of [offset, offset + count).
  [[nodiscard]] std::vector<std::byte> read(std::uint64_t offset, std::uint64_t count) const;
  // Throws Error (kUnsupported): there are more bytes than `most`.
  [[nodiscard]] std::vector<std::byte> read_whole(std::uint64_t most) const;

 private:
  std::string path_;
  shm::Fd fd_;
  std::uint64_t bytes_ = 0;
};

// What has been found so far; inspect_path() lists the keys.
struct Report {
  nlohmann::ordered_json& out;

  void is(const char* kind, std::string text);
  void problem(std::string text);
};

struct Question {
  const Options& options;
  const File* file;                 // null: there is no file of this name
  std::span<const std::byte> head;  // its first bytes, 4096 at most
};

// When a describer is asked. Those of one turn are asked in the order in which they were added.
enum class Turn : std::uint8_t {
  kMarked,   // before anything else: a mark or an ending that nothing else has; also without a file
  kNamed,    // once it is no dead letter
  kGuessed,  // once --chunk has been refused for what is no tar: content that has no mark
  kContent,  // once it is no configuration: content of any kind
};

struct FileDescriber {
  Turn turn;
  // False: the file is none of these, and nothing was reported. Throws Error: the file is, and
  // what was asked for is not there.
  bool (*describe)(const Question& question, Report& report);
  // What an unknown file was compared with: "not gzip (1f 8b)". May be empty.
  std::string_view signs = {};
  // Why there is nothing at a path, where these files go by more than one name; "": it cannot say.
  std::string (*nothing_there)(const std::string& path) = nullptr;
};

// A record that was set aside, and the stage that it was for.
struct Letter {
  std::string kind;  // of the stage; "": not known
  std::string node;
  std::span<const std::byte> bytes;
};

// Data that `ringfeed init` can write a configuration for.
struct DataKind {
  std::string_view name;  // as people give it
  std::string_view data;  // what it is, for people
  Propose propose;
  bool of_anybody = false;  // data that need be no other kind's: asked where none of these has any
};

struct Describers {
  std::vector<FileDescriber> files = {};
  // Asked once a file is described: adds what else there is to be said of it.
  std::vector<void (*)(const Question& question, Report& report)> more = {};
  // What a dead letter holds: adds letter.holds or records. False: no stage of this domain.
  std::vector<bool (*)(const Letter& letter, const Options& options, Report& report)> letters = {};
  // Of what has been found, the domain's own keys as text; "" if there are none.
  std::vector<std::string (*)(const nlohmann::ordered_json& found)> texts = {};
  std::vector<DataKind> kinds = {};
};

[[noreturn]] void refuse(std::string text);  // throws Error (kInvalidArgument)

[[nodiscard]] inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
// Whether it is a tar, by its first bytes.
[[nodiscard]] bool is_tar(std::span<const std::byte> head);
// "1 game", "3 games".
[[nodiscard]] std::string plural(std::uint64_t count, std::string_view what);
// A number of the report as text; NaN, which JSON does not have, is "nan".
[[nodiscard]] std::string number_text(const nlohmann::ordered_json& value);

}  // namespace ringfeed::inspect
