#include "supervisor/cli/complete.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>

#include "ringfeed/shm/quote.h"
#include "supervisor/cli/offers.h"
#include "supervisor/cli/verbs.h"

namespace ringfeed::cli {
namespace {

// A shell that waits longer seems to hang.
constexpr timeval kPatience{0, 900'000};

// Reads a line as CLI11 would.
class Reader {
 public:
  explicit Reader(const CLI::App& program) : program_(program), options_(options_of(program)) {}

  void read(const std::string& word) {
    if (waiting_ != nullptr) {
      give(*std::exchange(waiting_, nullptr), word);
    } else if (!only_arguments_ && word == "--") {
      only_arguments_ = true;
    } else if (is_option(word)) {
      read_option(word);
    } else if (line_.verb == nullptr) {
      line_.verb = verb_called(word);
      lost_ = line_.verb == nullptr;
      if (!lost_) options_ = options_of(*line_.verb);
    } else if (const OptionWords* argument = next_argument()) {
      give(*argument, word);
    }
  }

  [[nodiscard]] Expected expected(const std::string& word) {
    Expected out{.line = line_};
    const std::size_t equals = word.find('=');
    if (waiting_ != nullptr) {
      out.kinds = waiting_->kinds();
      return out;
    }
    if (lost_) return out;
    if (is_option(word) && word.starts_with("--") && equals != std::string::npos) {
      if (const OptionWords* option = called(word.substr(0, equals))) out.kinds = option->kinds();
      return out;
    }
    if (!is_option(word) && (only_arguments_ || word != "-")) {
      if (line_.verb == nullptr) {
        out.kinds = {"VERB"};
        return out;
      }
      if (const OptionWords* const argument = next_argument()) {
        out.kinds = argument->kinds();
        return out;
      }
      if (only_arguments_) return out;
    }
    out.options = free_options();  // nothing else can come
    return out;
  }

 private:
  [[nodiscard]] bool is_option(const std::string& word) const {
    return !only_arguments_ && word.size() > 1 && word.front() == '-';
  }

  [[nodiscard]] const CLI::App* verb_called(const std::string& name) const {
    for (const CLI::App* verb : verbs_of(program_)) {
      if (verb->get_name() == name) return verb;
    }
    return nullptr;
  }

  [[nodiscard]] const OptionWords* called(const std::string& name) const {
    const auto found = std::ranges::find_if(options_, [&name](const OptionWords& option) {
      return !option.argument && option.is_called(name);
    });
    return found == options_.end() ? nullptr : &*found;
  }

  [[nodiscard]] const OptionWords* next_argument() const {
    const auto found = std::ranges::find_if(options_, [this](const OptionWords& option) {
      return option.argument && (option.repeats || !given_.contains(option.option));
    });
    return found == options_.end() ? nullptr : &*found;
  }

  void read_option(const std::string& word) {
    const bool is_long = word.starts_with("--");
    const std::size_t end = is_long ? word.find('=') : 2;
    const OptionWords* const option = called(word.substr(0, end));
    if (option == nullptr) return;
    if (option->takes.empty()) {
      give(*option, {});
    } else if (end < word.size()) {
      give(*option, word.substr(is_long ? end + 1 : end));
    } else {
      waiting_ = option;
    }
  }

  void give(const OptionWords& option, const std::string& value) {
    given_[option.option] = value;
    if (option.is_called("--socket-dir")) line_.directory = value;
    for (const std::string& kind : option.kinds()) {
      const WordKind* const known = find_kind(kind);
      if (known != nullptr && known->offer == Offer::kFeeds) line_.feed = value;
      if (known != nullptr && known->offer == Offer::kConfigs) line_.config = value;
    }
  }

  // Those that may still be given, beside those that have been.
  [[nodiscard]] std::vector<OptionWords> free_options() const {
    std::vector<OptionWords> out;
    for (const OptionWords& option : options_) {
      if (option.argument || (given_.contains(option.option) && !option.repeats)) continue;
      const std::set<CLI::Option*> excluded = option.option->get_excludes();
      const bool is_free = std::ranges::none_of(
          excluded, [this](const CLI::Option* other) { return given_.contains(other); });
      if (is_free) out.push_back(option);
    }
    return out;
  }

  const CLI::App& program_;
  std::vector<OptionWords> options_;  // of the verb, or of the program
  std::map<const CLI::Option*, std::string> given_;
  const OptionWords* waiting_ = nullptr;  // for its value
  bool only_arguments_ = false;
  bool lost_ = false;  // the verb is none
  Line line_;
};

// As bash takes quotes away, and its ~.
std::string unquoted(std::string_view word) {
  std::string out;
  if (word == "~" || word.starts_with("~/")) {
    const char* const home = std::getenv("HOME");
    out = home == nullptr ? "" : home;
    word.remove_prefix(1);
  }
  char quote = 0;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char c = word[i];
    if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && i + 1 < word.size()) {
      out += word[++i];
    } else {
      out += c;
    }
  }
  return out;
}

bool needs_no_quotes(std::string_view word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-.:=+,@%/").find(static_cast<char>(c)) != std::string_view::npos;
  };
  return !word.empty() && std::ranges::all_of(word, is_plain);
}

std::string answer_line(std::string_view word, std::string_view text) {
  return needs_no_quotes(word) ? fmt::format("{}\t{}\n", word, escaped(text)) : "";
}

// What an option is, in short.
std::string_view short_text(std::string_view text) { return text.substr(0, text.find("; ")); }

const char* files_word(const std::vector<std::string>& kinds) {
  const char* word = "none";
  for (const std::string& name : kinds) {
    const WordKind* const kind = find_kind(name);
    if (kind == nullptr) continue;
    if (kind->offer == Offer::kFiles) word = "files";
    if (kind->offer == Offer::kConfigs) word = "configs";
    if (kind->offer == Offer::kDirectories) word = "directories";
  }
  return word;
}

std::string answer(const CLI::App& program, std::span<const std::string> words) {
  const std::vector<std::string> typed = typed_words(words.front(), words.subspan(1));
  const Expected expected = expected_at(program, typed);
  std::string out = fmt::format("{}\n", files_word(expected.kinds));
  for (const std::string& kind : expected.kinds) {
    try {
      for (const Offered& one : offers_of(kind, expected.line, program)) {
        if (!one.word.starts_with('-')) out += answer_line(one.word, one.text);
      }
    } catch (const std::exception&) {
      // Nobody asked to hear of it: there is nothing to offer.
    }
  }
  const bool is_long = typed.back().starts_with("--");
  for (const OptionWords& option : expected.options) {
    for (const std::string& name : option.names) {
      if (!is_long || name.starts_with("--")) out += answer_line(name, short_text(option.text));
    }
  }
  return out;
}

void end_in_time() {
  ::signal(SIGALRM, [](int) { ::_exit(kOk); });
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
  const itimerval timer{{0, 0}, kPatience};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

}  // namespace

Expected expected_at(const CLI::App& program, std::span<const std::string> words) {
  Reader reader(program);
  for (const std::string& word : words.first(words.size() - 1)) reader.read(word);
  return reader.expected(words.back());
}

std::vector<std::string> typed_words(std::string_view shell, std::span<const std::string> words) {
  std::vector<std::string> typed;
  if (shell != "bash") {
    typed.assign(words.begin(), words.end());
  } else {
    bool joins = false;
    for (const std::string& word : words) {
      const bool mark = !word.empty() && word.find_first_not_of("=:") == std::string::npos;
      if ((joins || mark) && !typed.empty()) {
        typed.back() += unquoted(word);
      } else {
        typed.push_back(unquoted(word));
      }
      joins = mark;
    }
  }
  if (typed.empty()) typed.emplace_back();
  return typed;
}

int complete(const CLI::App& program, std::span<const std::string> words) {
  if (words.empty()) {
    fmt::print(stderr, "ringfeed: {} SHELL WORD...: for the scripts of ringfeed completion\n",
               kCompleteVerb);
    return kUsage;
  }
  end_in_time();
  std::string text = "none\n";
  try {
    text = answer(program, words);
  } catch (const std::exception&) {
    // No memory, say: the shell has nothing to offer then.
  }
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  fmt::print("{}", text);
  return kOk;
}

}  // namespace ringfeed::cli
