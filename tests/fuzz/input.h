// What fuzz targets share: an input as bytes, as text, or as a file.
//
// What must hold is said with RF_HOLDS, which prints the values and aborts: libFuzzer then keeps
// the input. The fuzzer itself sees reads and writes outside of memory, undefined arithmetic,
// leaks, runs of more than ten seconds and single allocations of more than 256 MiB (scripts/fuzz).
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace ringfeed::fuzz {

template <typename... Values>
[[noreturn, gnu::cold]] void does_not_hold(const char* condition, const char* file, int line,
                                           const Values&... values) {
  std::string text;
  ((text += fmt::format(" [{}]", values)), ...);
  fmt::print(stderr, "{}:{}: {} does not hold:{}\n", file, line, condition, text);
  std::abort();
}
// RF_HOLDS(offset <= size, offset, size): numbers and texts.
#define RF_HOLDS(condition, ...)                                       \
  ((condition) ? static_cast<void>(0)                                  \
               : ::ringfeed::fuzz::does_not_hold(#condition, __FILE__, \
                                                 __LINE__ __VA_OPT__(, ) __VA_ARGS__))

inline std::span<const std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}
inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Whether a sentence may go to a log or a terminal: foreign words in it have been quoted.
inline bool is_printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n') || byte == 0x7f;
  });
}

// The text with the first `word` replaced: for numbers that seeds cannot know.
inline std::string with(std::string text, std::string_view word, std::string_view number) {
  const std::size_t at = text.find(word);
  return at == std::string::npos ? text : text.replace(at, word.size(), number);
}

// A nameless file in memory with other bytes each time.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) { RF_HOLDS(fd_ >= 0, fd_); }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int with(std::span<const std::byte> bytes) {
    RF_HOLDS(::ftruncate(fd_, 0) == 0, fd_);
    const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), 0);
    RF_HOLDS(put == static_cast<ssize_t>(bytes.size()), put, bytes.size());
    return fd_;
  }

 private:
  int fd_;
};

// A directory of its own under $TMPDIR, gone at the end of the process (after a finding it goes
// with $TMPDIR).
class Directory {
 public:
  Directory() {
    const char* const parent = std::getenv("TMPDIR");
    path_ = std::string(parent != nullptr ? parent : "/tmp") + "/ringfeed-fuzz.XXXXXX";
    RF_HOLDS(::mkdtemp(path_.data()) != nullptr, path_);
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // The file's path.
  std::string put(std::string_view name, std::span<const std::byte> bytes) const {
    std::string file = path_ + "/" + std::string(name);
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    RF_HOLDS(fd >= 0, file);
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    RF_HOLDS(written == static_cast<ssize_t>(bytes.size()), written, bytes.size());
    ::close(fd);
    return file;
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ringfeed::fuzz
