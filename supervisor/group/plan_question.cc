#include "supervisor/group/plan_question.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "proto/config.pb.h"
#include "proto/kinds.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/starvation.h"
#include "supervisor/group/spawn.h"

namespace ringfeed::process {
namespace {

// More than any plan; a program that writes on and on is no worker.
constexpr std::size_t kAnswerBytesMax = std::size_t{64} << 20;
// Libraries on a file server that is busy are imported in less; whoever waits is told much earlier.
constexpr int kAnswerMsMax = 120'000;
constexpr std::uint64_t kSayAfterMs = 5'000;

Error system_error(const std::string& what) {
  return {system_code(errno), fmt::format("{}: {}", what, std::strerror(errno))};
}

// A file of memory, and no pipe: nobody has to wait until it is read.
shm::Fd question_of(const std::string& text) {
  shm::Fd file(::memfd_create("question", MFD_CLOEXEC));
  if (!file) throw system_error("the question for a plan");
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n =
        ::pwrite(file.get(), text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno != EINTR) throw system_error("the question for a plan");
    if (n > 0) at += static_cast<std::size_t>(n);
  }
  return file;
}

// The start of the program, in a thread of its own: whoever starts a program waits until its file
// is open, and that is for ever where a file system does not answer. The thread may outlive the
// question.
class Start {
 public:
  Start(std::string binary, std::string word, shm::Fd question)
      : binary_(std::move(binary)), word_(std::move(word)), question_(std::move(question)) {
    if (!said_) throw system_error("the question for a plan");
  }

  static void begin(const std::shared_ptr<Start>& start) {
    try {
      std::thread([start] { start->work(); }).detach();
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::kNoMemory, fmt::format("worker binary {}: no thread to start it: {}",
                                                    start->binary_, error.what()));
    }
  }
  // Readable when the program has been started, or could not be.
  [[nodiscard]] int fd() const { return said_.get(); }
  [[nodiscard]] Result<Asked> take() {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    return std::move(asked_);
  }
  // Nobody will take it.
  void abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    end_abandoned();
  }

 private:
  void work() noexcept {
    Asked asked;
    std::optional<Error> failure;
    try {
      asked = spawn_asked(binary_, question_.get(), {word_});
    } catch (const Error& error) {
      failure.emplace(error.code(), error.message());
    } catch (...) {
      failure.emplace(ErrorCode::kNoMemory, "no memory");  // so short that it needs none
    }
    const std::lock_guard lock(mutex_);
    asked_ = std::move(asked);
    failure_ = std::move(failure);
    end_abandoned();
    const std::uint64_t one = 1;
    (void)!::write(said_.get(), &one, sizeof one);
  }
  void end_abandoned() {
    if (!abandoned_ || !asked_.pidfd) return;
    ::kill(asked_.pid, SIGKILL);
    static_cast<void>(reap(std::exchange(asked_.pidfd, shm::Fd())));
  }

  const std::string binary_;
  const std::string word_;
  const shm::Fd question_;
  const shm::Fd said_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex_;
  Asked asked_;
  std::optional<Error> failure_;
  bool abandoned_ = false;
};

// While somebody waits for a program with nothing else to do, it ends with this process: a signal
// would leave it behind, for it leads a group of its own.
class EndsWithUs {
 public:
  EndsWithUs() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction ours {};
      ours.sa_handler = &end;
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &ours, nullptr);
    }
  }
  ~EndsWithUs() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  EndsWithUs(const EndsWithUs&) = delete;
  EndsWithUs& operator=(const EndsWithUs&) = delete;
  static void is(pid_t pid) { asked = pid; }

 private:
  static void end(int signal) {
    if (asked != 0) ::kill(-asked, SIGKILL);
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  static constexpr std::array<int, 3> kSignals{SIGTERM, SIGINT, SIGHUP};
  static volatile pid_t asked;  // 0: nobody
  std::array<struct sigaction, kSignals.size()> before_{};
};
volatile pid_t EndsWithUs::asked = 0;

// Its answer is what it has written when it ends: a child that it leaves may keep the pipe open.
// Lives as long as the loop watches something of it.
class PlanQuestion : public std::enable_shared_from_this<PlanQuestion> {
 public:
  using Answered = std::function<void(const Result<std::string>&)>;

  // `word`: what it is asked for, "--plan"; `question`: on its standard input.
  PlanQuestion(EventLoop& loop, std::string binary, std::string word, const std::string& question,
               Answered answered)
      : loop_(loop),
        binary_(std::move(binary)),
        word_(std::move(word)),
        start_(std::make_shared<Start>(binary_, word_, question_of(question))),
        answered_(std::move(answered)) {}

  // The loop has gone, or could not watch: nobody hears of it any more.
  ~PlanQuestion() {
    if (start_) start_->abandon();
    if (!asked_.pidfd) return;
    kill();
    static_cast<void>(reap(asked_.pidfd));
  }
  PlanQuestion(const PlanQuestion&) = delete;
  PlanQuestion& operator=(const PlanQuestion&) = delete;

  void begin(int timeout_ms) {
    try {
      loop_.watch(start_->fd(), [self = shared_from_this()] { self->started(); });
      if (timeout_ms >= 0) {
        timer_ = loop_.after(static_cast<std::uint64_t>(timeout_ms),
                             [self = shared_from_this(), timeout_ms] { self->late(timeout_ms); });
      }
      Start::begin(start_);
    } catch (...) {
      if (timer_) loop_.cancel(*timer_);
      loop_.unwatch(start_->fd());  // which holds this object
      throw;
    }
  }

 private:
  // Our child, not reaped yet: nobody else's number. And what its own code has started.
  void kill() const {
    if (!asked_.pidfd) return;
    ::kill(-asked_.pid, SIGKILL);
    ::kill(asked_.pid, SIGKILL);
  }

  void started() {
    const auto self = shared_from_this();
    if (!asked_.pidfd) {
      Result<Asked> asked = start_->take();
      if (!asked) {
        const Result<std::string> refused(asked.error());  // while this can be called again
        loop_.unwatch(start_->fd());
        start_.reset();
        return answer(refused);
      }
      asked_ = std::move(*asked);
    }
    EndsWithUs::is(asked_.pid);
    if (!answered_) kill();  // too late
    if (!waits_) loop_.watch(asked_.pidfd.get(), [self] { self->ended(); });
    waits_ = true;
    if (answered_) {
      loop_.watch(asked_.answer.get(), [self] {
        if (!self->read()) self->stop_reading();
      });
      reads_ = true;
    }
    loop_.unwatch(start_->fd());
    start_.reset();
  }

  // False: nothing more can be read, yet or ever.
  bool read() {
    std::array<char, 65536> bytes;
    text_.reserve(text_.size() + bytes.size());  // what was read is never lost for want of memory
    const ssize_t n = ::read(asked_.answer.get(), bytes.data(), bytes.size());
    if (n < 0) return errno == EINTR || (errno == EAGAIN && !ended_);
    if (n == 0) return false;
    text_.append(bytes.data(), static_cast<std::size_t>(n));
    if (text_.size() <= kAnswerBytesMax) return true;
    give_up({ErrorCode::kIncompatible,
             fmt::format("{} {} answers without an end, at least {} bytes: give a worker of "
                         "ringfeed's",
                         binary_, word_, text_.size())});
    return false;
  }

  void stop_reading() {
    if (!std::exchange(reads_, false)) return;
    const auto self = shared_from_this();
    loop_.unwatch(asked_.answer.get());
  }

  void ended() {
    const auto self = shared_from_this();
    ended_ = true;
    while (answered_ && read()) {
    }
    stop_reading();
    loop_.unwatch(asked_.pidfd.get());
    kill();  // what it has left: the number is its own until it is reaped
    EndsWithUs::is(0);
    const Ending ending = reap(std::exchange(asked_.pidfd, shm::Fd()));
    if (answered_) answer(said(ending));
  }

  // Throws nothing: the program ends once.
  Result<std::string> said(const Ending& ending) noexcept try {
    if (ending.exited && ending.status == 0) return std::move(text_);
    return Error(ErrorCode::kIo, fmt::format("{} {} ended with {}: see what it said above", binary_,
                                             word_, ending.text()));
  } catch (const std::exception&) {
    return Error(ErrorCode::kNoMemory, "no memory");  // so short that it needs none
  }

  void late(int timeout_ms) {
    Error why(ErrorCode::kTimeout,
              fmt::format("{} {} has not answered within {} ms", binary_, word_, timeout_ms));
    timer_.reset();  // a timer that throws is called again
    give_up(std::move(why));
  }

  void give_up(Error why) {
    const auto self = shared_from_this();
    kill();
    stop_reading();
    answer(std::move(why));
  }

  void answer(const Result<std::string>& text) {
    if (timer_) loop_.cancel(*timer_);
    timer_.reset();
    const Answered answered = std::exchange(answered_, {});
    if (answered) answered(text);
  }

  EventLoop& loop_;
  const std::string binary_;
  const std::string word_;
  std::shared_ptr<Start> start_;  // empty: over
  Asked asked_;                   // empty: not started, or over
  Answered answered_;             // empty: called
  std::string text_;
  bool waits_ = false;  // for its end
  bool reads_ = false;
  bool ended_ = false;
  std::optional<EventLoop::TimerId> timer_;
};

// The answer as a message. Throws nothing: whoever asked hears of it once, and never again.
template <typename Message>
Result<Message> parsed(const std::string& binary, std::string_view word,
                       const Result<std::string>& text) noexcept try {
  if (!text) return text.error();
  Message message;
  if (!message.ParseFromString(*text)) {
    return Error(ErrorCode::kIncompatible,
                 fmt::format("{} {} answered {} bytes that are not a {}: use the same version of "
                             "supervisor and worker",
                             binary, word, text->size(), word == "--plan" ? "plan" : "list"));
  }
  return message;
} catch (const std::exception&) {
  return Error(ErrorCode::kNoMemory, "no memory");  // so short that it needs none
}

// Asks, and waits for the answer, with a word about it if that takes long.
std::string await_answer(const std::string& binary, const std::string& word,
                         const std::string& question, int timeout_ms) {
  const int most_ms = timeout_ms < 0 ? kAnswerMsMax : timeout_ms;
  const EndsWithUs guard;
  EventLoop loop;
  std::optional<Result<std::string>> answer;
  std::make_shared<PlanQuestion>(loop, binary, word, question,
                                 [&](const Result<std::string>& text) { answer.emplace(text); })
      ->begin(most_ms);
  loop.after(kSayAfterMs, [&] {
    fmt::print(stderr, "{} {} has not answered for {} s; it is waited for, {} s at most\n", binary,
               word, kSayAfterMs / 1000, most_ms / 1000);
  });
  while (!answer) loop.run_once(-1);
  return std::move(*answer).value_or_throw();
}

}  // namespace

void ask_plan(EventLoop& loop, const std::string& binary, const DataLoaderConfig& config,
              int timeout_ms, std::function<void(const Result<PipelinePlan>&)> answered) {
  const auto hear = [binary, answered = std::move(answered)](const Result<std::string>& text) {
    answered(parsed<PipelinePlan>(binary, "--plan", text));
  };
  std::make_shared<PlanQuestion>(loop, binary, "--plan", config.SerializePartialAsString(), hear)
      ->begin(timeout_ms);
}

PipelinePlan ask_plan(const std::string& binary, const DataLoaderConfig& config, int timeout_ms) {
  const std::string text =
      await_answer(binary, "--plan", config.SerializePartialAsString(), timeout_ms);
  return parsed<PipelinePlan>(binary, "--plan", text).value_or_throw();
}

KindList ask_kinds(const std::string& binary) {
  return parsed<KindList>(binary, "--kinds", await_answer(binary, "--kinds", "", -1))
      .value_or_throw();
}

DataLooks ask_looks(const std::string& binary, const DataLoaderConfig& config, int timeout_ms) {
  const std::string text =
      ask_text(binary, "--look", config.SerializePartialAsString(), timeout_ms);
  return parsed<DataLooks>(binary, "--look", text).value_or_throw();
}

std::string ask_text(const std::string& binary, const std::string& word,
                     const std::string& question, int timeout_ms) {
  return await_answer(binary, word, question, timeout_ms);
}

}  // namespace ringfeed::process
