// The log of files that a stage has seen: entries of a fixed part and a path, at the end of its
// arena, where it grows. A restart reads it and knows what has been dealt with.
//
//   bytes         of an entry
//   0             Fixed   what the stage keeps of a file, such as size and time
//   sizeof Fixed  8       length of the path
//   behind that           the path, padded to 8 bytes
//
// Entries are only added. They belong to the log once the word that holds its length is committed:
// a lane that dies before leaves bytes behind that nothing refers to.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

template <typename Fixed>
class FileLog {
  static_assert(std::is_trivially_copyable_v<Fixed> && sizeof(Fixed) % 8 == 0);

 public:
  // Entries that are added in one step.
  class Entries {
   public:
    void add(const Fixed& fixed, std::string_view path) {
      const std::uint64_t path_bytes = path.size();
      const std::size_t at = bytes_.size();
      bytes_.resize(at + entry_bytes(path_bytes));
      std::memcpy(bytes_.data() + at, &fixed, sizeof fixed);
      std::memcpy(bytes_.data() + at + sizeof fixed, &path_bytes, sizeof path_bytes);
      std::memcpy(bytes_.data() + at + kHead, path.data(), path.size());
    }

   private:
    friend class FileLog;
    std::vector<std::byte> bytes_;
  };

  // `log` is the last thing in the layout, and empty there: it grows by `growth` bytes and more.
  FileLog(Word bytes, Place log, std::uint64_t growth)
      : bytes_(bytes), log_(log), growth_(growth) {}

  // Calls see(fixed, path) for each entry, in the order in which they were added.
  template <std::invocable<const Fixed&, std::string> See>
  void read(const StageContext& context, See&& see) const {
    const std::uint64_t used = context.load(bytes_);
    RF_CHECK(used <= context.state_bytes - log_.offset, used, context.state_bytes);
    for (std::uint64_t at = 0; at < used;) {
      const std::byte* entry = context.state + log_.offset + at;
      Fixed fixed{};
      std::uint64_t path_bytes = 0;
      RF_CHECK(at + kHead <= used, at, used);
      std::memcpy(&fixed, entry, sizeof fixed);
      std::memcpy(&path_bytes, entry + sizeof fixed, sizeof path_bytes);
      RF_CHECK(path_bytes < kPathBytesEnd && at + entry_bytes(path_bytes) <= used, path_bytes, at,
               used);
      see(fixed, std::string(reinterpret_cast<const char*>(entry) + kHead, path_bytes));
      at += entry_bytes(path_bytes);
    }
  }

  // Adds the entries with this step. False: the arena cannot grow now, return kNoRoom.
  [[nodiscard]] bool append(Step& step, const Entries& entries) const noexcept {
    const std::uint64_t used = step.load(bytes_);
    const std::uint64_t end = log_.offset + used + entries.bytes_.size();
    if (!step.grow(end, end + growth_)) return false;
    step.fill({log_.offset + used, entries.bytes_.size()}, entries.bytes_);
    step.store(bytes_, used + entries.bytes_.size());
    return true;
  }

 private:
  static constexpr std::uint64_t kHead = sizeof(Fixed) + sizeof(std::uint64_t);
  // Longer than any path that the kernel takes.
  static constexpr std::uint64_t kPathBytesEnd = 65536;

  static constexpr std::uint64_t entry_bytes(std::uint64_t path_bytes) noexcept {
    return kHead + shm::align_up(path_bytes, 8);
  }

  Word bytes_;
  Place log_;
  std::uint64_t growth_;
};

}  // namespace ringfeed
