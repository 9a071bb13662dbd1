// ringfeed doctor: what of this machine is in a feed's way, and how it is mended.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"
#include "supervisor/control/place.h"
#include "supervisor/doctor/configuration.h"
#include "supervisor/doctor/doctor.h"
#include "supervisor/os/locale.h"
#include "supervisor/os/text.h"

namespace ringfeed::cli {
namespace {

using doctor::Findings;

constexpr std::size_t kMistakesShown = 5;

struct Given {
  ConfigArguments config;
  std::string directory;
  double timeout_s = 10;
  bool json = false;
  bool all = false;
};

// Where `run` would put the socket.
doctor::SocketPlace socket_place(const Given& given, const std::string& configured) {
  using Named = doctor::SocketPlace::Named;
  return {.directory = control::socket_directory(
              given.directory.empty() ? configured : given.directory, control::read_environment()),
          .named = !given.directory.empty() ? Named::kOption
                   : !configured.empty()    ? Named::kConfiguration
                                            : Named::kEnvironment,
          .file = given.config.file};
}

Findings mistakes(const config::Checked& checked, const std::string& file) {
  Findings findings;
  for (const config::Problem& problem : checked.problems) {
    if (findings.size() == kMistakesShown) break;
    findings.push_back(doctor::wrong(
        problem.message(), "the feed does not start",
        {.advice = fmt::format("mend the configuration; `ringfeed check {}` shows all mistakes",
                               shell_word(file))}));
  }
  return findings;
}

// Runs in a process of its own (doctor/apart.h). `input`: the standard input as it was, for "-".
Findings look_at_file(const Given& given, int input) {
  if (input >= 0) ::dup2(input, STDIN_FILENO);
  config::Checked checked;
  const std::optional<Prepared> prepared = prepare(given.config, checked);
  if (!prepared) return mistakes(checked, given.config.file);
  const DataLoaderConfig& config = prepared->configuration.message();
  const doctor::SocketPlace sockets = socket_place(given, config.control().directory());
  const doctor::Planned planned{
      .config = config,
      .layout = prepared->layout,
      .file = given.config.file,
      .sockets = sockets,
      .is_running =
          control::ControlClient::connect({sockets.directory}, config.feed()).has_value()};
  return doctor::look_at_configuration(planned);
}

Findings look_at_given(const Given& given, int input) try {
  return look_at_file(given, input);
} catch (const Error& error) {
  const std::string words = doctor::last_words();
  return {doctor::wrong(
      words.empty() ? error.message() : fmt::format("{} ({})", error.message(), words),
      "the feed does not start", {})};
}

doctor::Look look_of(const Given& given) {
  doctor::Look look{.all = given.all};
  if (::isatty(STDOUT_FILENO) != 1) return look;
  look.colours = output_wants_colours();
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0) {
    look.width = std::min<int>(size.ws_col, 120);
  }
  return look;
}

int examine(const Given& given) {
  std::vector<doctor::Check> checks =
      doctor::checks_of_machine(socket_place(given, ""), look_in(given.directory));
  shm::Fd input;
  if (!given.config.file.empty()) {
    if (given.config.file == "-") input = shm::Fd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
    checks.push_back(
        {"configuration", [&given, &input] { return look_at_given(given, input.get()); }});
  }
  const Findings findings = doctor::look_apart(checks, static_cast<int>(given.timeout_s * 1000));
  fmt::print("{}",
             given.json ? doctor::findings_json(findings) : doctor::show(findings, look_of(given)));
  return doctor::is_wrong(findings) ? kFailure : kOk;
}

}  // namespace

void add_doctor(CLI::App& verb, int& result) {
  const auto given = std::make_shared<Given>();
  add_config(verb, given->config);
  add_directory(verb, given->directory);
  add_json(verb, given->json);
  verb.add_flag("--all", given->all, "show what is fine as well");
  verb.add_option("--timeout", given->timeout_s,
                  "give up on a look that takes longer; default: 10; at most 600")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 600.0));
  verb.footer(
      "With CONFIG also whether this configuration fits here. Nothing is changed: it prints the\n"
      "commands that mend what it has found. Exit status 1: something is wrong.\n"
      "Example: ringfeed doctor lc0.textproto");
  verb.callback([=, &result] { result = examine(*given); });
}

}  // namespace ringfeed::cli
