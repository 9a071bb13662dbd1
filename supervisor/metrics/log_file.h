// The file of the log: opened without waiting for anybody, opened anew for whoever has moved it
// away, and renamed when it has become large.
//
//   FILE.1 -> FILE.2 ... FILE.(keep-1) -> FILE.keep, FILE -> FILE.1, FILE.new -> FILE
//
// FILE.new is made first: if that fails, or a name cannot be changed, lines go on to the file they
// went to. A process that dies in between leaves every line in one of these files.
#pragma once

#include <cstdint>
#include <string>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::metrics {

class LogFile {
 public:
  LogFile() = default;
  // A file, appended to, or a FIFO that is being read. Errors: kIo, the reason alone.
  [[nodiscard]] static Result<LogFile> open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  // In it now, by whomever; 0 for what is no file.
  [[nodiscard]] std::uint64_t bytes() const;
  // The file of this name from now on. On an error the one before stays.
  [[nodiscard]] Status reopen();
  // A new file of this name; `keep` old ones stay beside it. One that somebody else has moved away
  // is only opened anew. On an error the one before stays.
  [[nodiscard]] Status rotate(std::uint32_t keep);

 private:
  std::string path_;
  shm::Fd fd_;
};

}  // namespace ringfeed::metrics
