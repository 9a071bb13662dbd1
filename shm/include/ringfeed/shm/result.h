// Result<T>: a value, or the reason why the world refused it. Error: that reason; thrown if a
// process cannot start.
//
// Three kinds of failure, three forms:
//   expected (empty, full, end)          a value: std::optional or an enum
//   refused (ENOSPC, a damaged tar)      Result<T>, which must be looked at
//   a bug, or memory against its header  RF_CHECK: prints the values and aborts; the supervisor
//                                        restarts the worker
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace ringfeed {

enum class ErrorCode {
  kInvalidArgument,  // the caller asked for something impossible
  kConfiguration,    // the configuration says something that cannot be done
  kNoMemory,         // too little memory, address space or room in a directory
  kIo,               // the system refused a read, a write, an open
  kDamaged,          // bytes that contradict their format or checksum
  kUnsupported,      // well-formed, but of a kind or version that is not handled here
  kIncompatible,     // another ABI, layout or feed than the one expected
  kNotFound,
  kBusy,  // somebody else has it
  kTimeout,
  kClosed,
};

// Says who, what with the numbers, and what to do. It is thrown if a process cannot start;
// elsewhere Result carries it.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit on purpose
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit on purpose

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  // The value; only after ok().
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }
  // The reason; only after !ok().
  [[nodiscard]] const Error& error() const noexcept { return *std::get_if<1>(&state_); }
  // The value, or the reason thrown: for start-up code.
  T value_or_throw() && {
    if (!ok()) throw Error(error());
    return std::move(*std::get_if<0>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

// A Result without a value: done, or the reason why not.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose
  [[nodiscard]] bool ok() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const Error& error() const noexcept { return *error_; }
  void or_throw() const {
    if (error_) throw Error(*error_);
  }

 private:
  std::optional<Error> error_;
};

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& values) noexcept;
template <typename... Values>
std::string check_values(const Values&... values) {
  std::string text;
  ((text += (text.empty() ? "" : ", ") + std::to_string(values)), ...);
  return text;
}
// Out of line and by value, so that a check costs its function only a compare and a jump.
template <typename... Values>
[[noreturn, gnu::cold, gnu::noinline]] void check_failed_with(const char* condition,
                                                              const char* file, int line,
                                                              Values... values) noexcept {
  check_failed(condition, file, line, check_values(values...));
}
}  // namespace detail

// RF_CHECK(head <= tail, head, tail): if the condition does not hold, the process prints it with
// the values and aborts.
#define RF_CHECK(condition, ...)                                     \
  (__builtin_expect(static_cast<bool>(condition), 1)                 \
       ? static_cast<void>(0)                                        \
       : ::ringfeed::detail::check_failed_with(#condition, __FILE__, \
                                               __LINE__ __VA_OPT__(, ) __VA_ARGS__))

}  // namespace ringfeed
