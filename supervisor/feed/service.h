// What a feed tells the service manager: when it is ready, what it does, that it works, and that it
// ends. Without a service manager nothing happens.
#pragma once

#include <cstdint>
#include <string>

#include "supervisor/os/service_manager.h"

namespace ringfeed::process {

class Service {
 public:
  // What is due at least this often while it starts or ends, which may take long.
  static constexpr std::uint64_t kExtendMs = 1'000;
  static constexpr std::uint64_t kExtendForMs = 10'000;
  // A status that has only other numbers is told this often.
  static constexpr std::uint64_t kStatusMs = 5'000;

  // `manager` outlives this; nullptr: there is none.
  explicit Service(ServiceManager* manager) : manager_(manager != nullptr ? *manager : none_) {}
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  struct Now {
    bool ready = false;
    bool stopping = false;
    std::string state = {};   // RUNNING
    std::string status = {};  // RUNNING, 12 batches
  };
  // Called by the event loop at the end of each of its turns, and so only while it turns: that is
  // what the watchdog is told. What had no room is told at the next look.
  void look(const Now& now, std::uint64_t now_ms);
  // Something is read anew, and that is done when the next look comes.
  void reloading();
  // Is it time for a look, although nothing has changed?
  [[nodiscard]] std::uint64_t watchdog_ms() const { return manager_.watchdog_ms(); }
  // Is there anybody to tell?
  [[nodiscard]] bool listens() const { return manager_.listens(); }
  // What is wrong, in a sentence; empty: nothing.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  [[nodiscard]] bool send(const std::string& lines);

  ServiceManager none_;
  ServiceManager& manager_;
  bool ready_ = false;  // as told
  bool stopping_ = false;
  bool reloading_ = false;
  std::string state_;
  std::string status_;
  std::uint64_t status_ms_ = 0;
  std::uint64_t extended_ms_ = 0;
  std::uint64_t watched_ms_ = 0;
  std::string problem_;
};

}  // namespace ringfeed::process
