// fake_feed: serves a FakeFeed to clients in other processes, told what to do on standard input.
//
//   fake_feed --dir DIR [--feed NAME] [--lanes L] [--slots N] [--rows R] [--max-hold H] [--relaxed]
//             [--checksum] [--slot-bytes N] [--tensor NAME:DTYPE:SHAPE:OFFSET:BYTES]...
//
// SHAPE is numbers with commas. With tensors of its own it publishes only what `batch` gives it.
//
// Prints "ready" and then one line of answer for each line of input:
//   publish N [ROWS]        "ok": a thread publishes N more batches, each as soon as there is room
//   batch ROWS RAGGED FILE  "ok": so it does with one of these rows, lengths (with commas; - if
//                           there are none) and bytes
//   close                   "ok": the lanes close once all of these are published
//   fail REASON             "ok": the feed fails once all of these are published
//   stop REASON             "ok": the feed is stopped
//   newest                  the number of the newest batch
//   members                 how many clients are attached
//   recover G M             "ok": member M of group G is taken for dead
//   drain G                 "ok": group G leaves
//   event                   "ok": an event is sent to every client
//   answer [STAGE HEX]...   "ok": the next message to stages gets these responses of these stages
//                           (- for an empty one)
//   calls                   messages to stages until now: STAGE KEY TEXT of each, the stage - if
//                           for all, between them tabs
//   refuse CODE TEXT        "ok": attaching is answered with this error
// Ends when its standard input does.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fakes/fake_feed.h"

namespace {

using ringfeed::testing::FakeAnswer;
using ringfeed::testing::FakeBatch;
using ringfeed::testing::FakeCall;
using ringfeed::testing::FakeFeed;
using ringfeed::testing::FakeFeedOptions;
using ringfeed::testing::FakeTensor;

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
  void publish(FakeBatch batch) {
    const std::lock_guard lock(mutex_);
    given_.push_back(std::move(batch));
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
      if (!given_.empty() && feed_.publish(given_.front())) {
        given_.pop_front();
        continue;
      }
      const bool all = wanted_ == 0 && given_.empty();
      if (all && closing_) {
        feed_.close();
        closing_ = false;
      }
      if (all && !failure_.empty()) {
        feed_.fail(failure_);
        failure_.clear();
      }
      // No room: groups' bells are not listened to here, a look now and then does.
      changed_.wait_for(lock, std::chrono::milliseconds(all ? 1000 : 1));
    }
  }

  FakeFeed& feed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t wanted_ = 0;
  std::uint32_t rows_ = 0;
  std::deque<FakeBatch> given_;
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

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

FakeTensor tensor_of(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  FakeTensor tensor{
      parts.at(0), parts.at(1), {}, std::stoull(parts.at(3)), std::stoull(parts.at(4))};
  for (const std::string& length : split(parts.at(2), ',')) {
    tensor.shape.push_back(std::stoll(length));
  }
  return tensor;
}

FakeBatch batch_of(std::istringstream& words) {
  FakeBatch batch;
  std::string ragged;
  words >> batch.rows >> ragged;
  if (ragged != "-") {
    for (const std::string& length : split(ragged, ',')) {
      batch.ragged.push_back(static_cast<std::uint32_t>(std::stoul(length)));
    }
  }
  std::ifstream file(rest_of(words), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  batch.bytes.assign(begin, begin + bytes.size());
  return batch;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// What the command line asks for; nothing if it cannot be understood, which is said.
std::optional<FakeFeedOptions> options_of(int argc, char** argv) {
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
      return std::nullopt;
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
    } else if (flag == "--slot-bytes") {
      options.slot_bytes = number();
    } else if (flag == "--tensor") {
      options.tensors.push_back(tensor_of(value));
    } else {
      std::cerr << "fake_feed: unknown option " << flag << "\n";
      return std::nullopt;
    }
  }
  return options;
}

void show_calls(FakeFeed& feed) {
  for (const FakeCall& call : feed.calls()) {
    std::cout << (call.stage.empty() ? "-" : call.stage) << " " << call.key << " " << call.request
              << "\t";
  }
  std::cout << std::endl;
}

// Does what a line says and answers it.
void obey(FakeFeed& feed, Publisher& publisher, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  words >> verb;
  if (verb == "newest") {
    std::cout << feed.newest() << std::endl;
    return;
  }
  if (verb == "members") {
    std::cout << feed.members() << std::endl;
    return;
  }
  if (verb == "calls") return show_calls(feed);
  if (verb == "publish") {
    std::uint64_t count = 0;
    std::uint32_t rows = 0;
    words >> count >> rows;
    publisher.publish(count, rows);
  } else if (verb == "batch") {
    publisher.publish(batch_of(words));
  } else if (verb == "close") {
    publisher.close();
  } else if (verb == "fail") {
    publisher.fail(rest_of(words));
  } else if (verb == "stop") {
    feed.stop(rest_of(words));
  } else if (verb == "answer") {
    std::vector<FakeAnswer> answers;
    for (std::string stage, response; words >> stage >> response;) {
      answers.push_back({stage, response == "-" ? "" : from_hex(response)});
    }
    feed.answer(std::move(answers));
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
    return;
  }
  std::cout << "ok" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<FakeFeedOptions> options = options_of(argc, argv);
  if (!options) return 2;
  FakeFeed feed(*options);
  Publisher publisher(feed);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) obey(feed, publisher, line);
  return 0;
}
