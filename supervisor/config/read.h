// Reads a configuration: text format, JSON or serialized, and the `--set path=value` that follow
// it.
//
// Nothing here stops at the first mistake. What was not understood is in problems(), each with its
// place; message() holds everything else, so that check_config() can look for further mistakes and
// the user sees all of them at once. A misspelt field counts as the one that was probably meant.
//
// Overrides, applied in their order after the file:
//   seed=7                                          a field
//   stages[2].shuffling_chunk_pool.threads=2        by index, from 0
//   stages.pool.shuffling_chunk_pool.threads=2      by name
//   stages.pool.threads=2                           the stage's own configuration may be left out
//   storage={directory: "/dev/shm/lc0"}             whole messages and lists, in text format
// A string may stand without quotes. Lines and columns count in the argument.
//
// A serialized configuration is read as strictly as text: what the schema does not have is a
// problem (serialized.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/config/places.h"

namespace ringfeed {
class DataLoaderConfig;
}

namespace ringfeed::config {

enum class Format {
  kAuto,        // JSON if the first character is '{', else text format
  kText,        // .textproto, .pbtxt, .txtpb, .prototxt
  kJson,        // .json
  kSerialized,  // .binpb, .pb
};

class Configuration {
 public:
  explicit Configuration(std::string source);
  // A message that was made elsewhere: its problems have paths, but no lines.
  Configuration(const DataLoaderConfig& message, std::string source);
  ~Configuration();
  Configuration(Configuration&&) noexcept;
  Configuration& operator=(Configuration&&) noexcept;

  [[nodiscard]] const DataLoaderConfig& message() const { return *message_; }
  [[nodiscard]] DataLoaderConfig& message() { return *message_; }
  [[nodiscard]] const Places& places() const { return places_; }
  [[nodiscard]] Places& places() { return places_; }
  [[nodiscard]] const std::vector<Problem>& problems() const { return problems_; }
  [[nodiscard]] std::vector<Problem>& problems() { return problems_; }
  // Problems that were found beside these and not kept.
  [[nodiscard]] std::size_t problems_left_out() const { return problems_left_out_; }
  void leave_out(std::size_t count) { problems_left_out_ += count; }
  // False: the text is broken in a way (a brace without its partner) that leaves message() without
  // meaning; only problems() are of use.
  [[nodiscard]] bool complete() const { return complete_; }
  void set_incomplete() { complete_ = false; }

 private:
  std::unique_ptr<DataLoaderConfig> message_;
  Places places_;
  std::vector<Problem> problems_;
  std::size_t problems_left_out_ = 0;
  bool complete_ = true;
};

// `source` is what messages call the text: its file name. A feed without a name gets the file's
// name without directory and extension.
[[nodiscard]] Configuration parse_config(std::string_view text, std::string_view source,
                                         std::span<const std::string> overrides = {},
                                         Format format = Format::kAuto);

// No configuration is larger; what has no end is refused as well.
inline constexpr std::size_t kConfigBytesMax = std::size_t{4} << 20;
// No feed has more stages, stage groups or outputs; bounds the work of checking.
inline constexpr int kStagesMax = 1024;

// The content of a configuration file; "-" is the standard input. Throws Error (kIo, kNotFound) if
// it cannot be read, is a directory or has more than kConfigBytesMax bytes.
[[nodiscard]] std::string read_config_file(const std::string& file);

// The same as parse_config() for a file; throws what read_config_file() throws.
[[nodiscard]] Configuration read_config(const std::string& file,
                                        std::span<const std::string> overrides = {});

// What the extension says, else kAuto.
[[nodiscard]] Format format_of(std::string_view file);

}  // namespace ringfeed::config
