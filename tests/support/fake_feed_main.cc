// fake_feed: serves a FakeFeed to clients in other processes, told what to do on standard input.
//
//   fake_feed --dir DIR [--feed NAME] [--lanes L] [--slots N] [--rows R] [--max-hold H] [--relaxed]
//             [--checksum]
//
// Prints "ready" and then one line of answer for each line of input:
//   publish N [ROWS]   "ok": a thread publishes N more batches, each as soon as there is room
//   close              "ok": the lanes close once all of these are published
//   fail REASON        "ok": the feed fails once all of these are published
//   stop REASON        "ok": the feed is stopped
//   newest             the number of the newest batch
//   members            how many clients are attached
//   recover G M        "ok": member M of group G is taken for dead
//   drain G            "ok": group G leaves
//   event              "ok": an event is sent to every client
//   refuse CODE TEXT   "ok": attaching is answered with this error
// Ends when its standard input does.
#include <condition_variable>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include "fake_feed.h"

namespace {

using ringfeed::testing::FakeFeed;
using ringfeed::testing::FakeFeedOptions;

// Publishes what has been asked for as the clients make room.
class Publisher {
 public:
  explicit Publisher(FakeFeed& feed) : feed_(feed), thread_([this] { run(); }) {}
  ~Publisher() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  void publish(std::uint64_t count, std::uint32_t rows) {
    const std::lock_guard lock(mutex_);
    wanted_ += count;
    rows_ = rows;
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  void fail(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    failure_ = reason;
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (wanted_ > 0 && feed_.publish(1, rows_) == 1) {
        --wanted_;
        continue;
      }
      if (wanted_ == 0 && closing_) {
        feed_.close();
        closing_ = false;
      }
      if (wanted_ == 0 && !failure_.empty()) {
        feed_.fail(failure_);
        failure_.clear();
      }
      // No room: groups' bells are not listened to here, a look now and then does.
      changed_.wait_for(lock, std::chrono::milliseconds(wanted_ > 0 ? 1 : 1000));
    }
  }

  FakeFeed& feed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t wanted_ = 0;
  std::uint32_t rows_ = 0;
  bool closing_ = false;
  std::string failure_;
  bool stop_ = false;
  std::thread thread_;
};

std::string rest_of(std::istringstream& words) {
  std::string text;
  std::getline(words >> std::ws, text);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  FakeFeedOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--relaxed") {
      options.ordered = false;
      continue;
    }
    if (flag == "--checksum") {
      options.checksum = true;
      continue;
    }
    if (i + 1 == argc) {
      std::cerr << "fake_feed: " << flag << " needs a value\n";
      return 2;
    }
    const std::string value = argv[++i];
    const auto number = [&value] { return static_cast<std::uint32_t>(std::stoul(value)); };
    if (flag == "--dir") {
      options.socket_dir = value;
    } else if (flag == "--feed") {
      options.feed = value;
    } else if (flag == "--lanes") {
      options.lanes = number();
    } else if (flag == "--slots") {
      options.slots = number();
    } else if (flag == "--rows") {
      options.rows_max = number();
    } else if (flag == "--max-hold") {
      options.max_hold = number();
    } else {
      std::cerr << "fake_feed: unknown option " << flag << "\n";
      return 2;
    }
  }
  FakeFeed feed(options);
  Publisher publisher(feed);
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "publish") {
      std::uint64_t count = 0;
      std::uint32_t rows = 0;
      words >> count >> rows;
      publisher.publish(count, rows);
    } else if (verb == "close") {
      publisher.close();
    } else if (verb == "fail") {
      publisher.fail(rest_of(words));
    } else if (verb == "stop") {
      feed.stop(rest_of(words));
    } else if (verb == "newest") {
      std::cout << feed.newest() << std::endl;
      continue;
    } else if (verb == "members") {
      std::cout << feed.members() << std::endl;
      continue;
    } else if (verb == "recover") {
      std::uint32_t group = 0;
      std::uint32_t member = 0;
      words >> group >> member;
      feed.recover_member(group, member);
    } else if (verb == "drain") {
      std::uint32_t group = 0;
      words >> group;
      feed.set_group_state(group, ringfeed::shm::GroupState::kDraining);
    } else if (verb == "event") {
      feed.send_event();
    } else if (verb == "refuse") {
      int code = 0;
      words >> code;
      feed.refuse(code, rest_of(words));
    } else {
      std::cout << "unknown: " << line << std::endl;
      continue;
    }
    std::cout << "ok" << std::endl;
  }
  return 0;
}
