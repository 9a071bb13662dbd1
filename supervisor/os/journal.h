// systemd's journal, by its native protocol: one datagram an entry, NAME=value a line.
// https://systemd.io/JOURNAL_NATIVE_PROTOCOL
#pragma once

#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::process {

// Does standard error go to the journal? systemd says in $JOURNAL_STREAM, as DEVICE:INODE, what it
// has made of it; whoever redirects it afterwards does not change the variable.
[[nodiscard]] bool stderr_is_journal();

class Journal {
 public:
  static constexpr const char* kSocket = "/run/systemd/journal/socket";

  explicit Journal(std::string path) : path_(std::move(path)) {}
  Journal() = default;

  // Waits as long as the journal has no room. An entry too large for a datagram goes as a sealed
  // file. Errors: kIo, the reason alone; the next entry tries anew, so a journal may be restarted.
  [[nodiscard]] Status send(std::string_view entry);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] Status send_file(const void* address, unsigned address_bytes,
                                 std::string_view entry) const;
  std::string path_;
  shm::Fd socket_;
};

}  // namespace ringfeed::process
