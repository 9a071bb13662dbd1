// ringfeed manual and completion: what the command line says of itself, for man and for shells.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/cli/completion/scripts.h"
#include "supervisor/cli/manual.h"
#include "supervisor/cli/verb.h"
#include "supervisor/cli/words.h"
#include "supervisor/config/names.h"

namespace ringfeed::cli {
namespace {

struct Script {
  const char* shell;
  std::string_view (*text)();
};
constexpr Script kScripts[] = {
    {"bash", completion_bash}, {"zsh", completion_zsh}, {"fish", completion_fish}};

int print_script(const std::string& shell) {
  for (const Script& script : kScripts) {
    if (shell == script.shell) {
      fmt::print("{}", script.text());
      return kOk;
    }
  }
  throw CLI::ValidationError("SHELL", fmt::format("there is no script for '{}': give bash, zsh or "
                                                  "fish",
                                                  escaped(shell)));
}

// On a terminal as man shows it. Comes back if there is no man.
void show_in_man(const std::string& text) {
  const shm::Fd page(::memfd_create("ringfeed-manual", MFD_CLOEXEC));
  if (!page || ::write(page.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::lseek(page.get(), 0, SEEK_SET) != 0 || ::dup2(page.get(), STDIN_FILENO) < 0) {
    return;
  }
  ::execlp("man", "man", "-l", "-", nullptr);
}

void write_page(const std::filesystem::path& directory, const ManualPage& page) {
  const std::filesystem::path path = directory / (page.name + ".1");
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << page.text;
  file.close();
  if (!file) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: cannot be written: {}: give another one with --directory",
                            path.string(), std::strerror(errno)));
  }
}

int write_pages(const CLI::App& program, const std::string& directory) {
  std::filesystem::create_directories(directory);
  const std::vector<ManualPage> pages = manual_pages(program);
  for (const ManualPage& page : pages) write_page(directory, page);
  fmt::print(stderr, "{} pages in {}\n", pages.size(), escaped(directory));
  return kOk;
}

int show_page(const CLI::App& program, const std::string& name) {
  std::vector<std::string> names;
  std::optional<ManualPage> page;
  if (name.empty()) page = program_page(program);
  for (const CLI::App* verb : verbs_of(program)) {
    names.push_back(verb->get_name());
    if (verb->get_name() == name) page = verb_page(*verb);
  }
  if (!page) {
    fmt::print(stderr, "ringfeed: there is no verb '{}'{}\n", escaped(name),
               config::did_you_mean(name, names, "there are"));
    return kUsage;
  }
  if (::isatty(STDOUT_FILENO) != 0) show_in_man(page->text);
  fmt::print("{}", page->text);
  return kOk;
}

}  // namespace

void add_completion(CLI::App& verb, int& result) {
  const auto shell = std::make_shared<std::string>();
  verb.add_option("SHELL", *shell, "the shell")->type_name("bash|zsh|fish")->required();
  verb.footer(
      "It completes verbs, options, and names of what runs: feeds, their stages and stage groups. "
      "An installed package has the scripts where the shells look for them.\n"
      "Examples: source <(ringfeed completion bash)\n"
      "          ringfeed completion zsh > ~/.zfunc/_ringfeed\n"
      "          ringfeed completion fish > ~/.config/fish/completions/ringfeed.fish");
  verb.callback([shell, &result] { result = print_script(*shell); });
}

void add_manual(CLI::App& verb, int& result) {
  struct Given {
    std::string verb;
    std::string directory;
  };
  const auto given = std::make_shared<Given>();
  CLI::Option* const page =
      verb.add_option("VERB", given->verb, "the page of this verb; default: that of the program");
  CLI::Option* const directory =
      verb.add_option("--directory", given->directory, "write all pages to this directory")
          ->type_name("DIR")
          ->excludes(page);
  verb.footer(
      "On a terminal man shows the page, elsewhere it is printed as man reads it.\n"
      "Examples: ringfeed manual run\n"
      "          ringfeed manual --directory ~/.local/share/man/man1");
  verb.callback([=, program = verb.get_parent(), &result] {
    if (directory->count() != 0 && given->directory.empty()) {
      throw CLI::ValidationError("--directory", "DIR is empty: give the path of a directory");
    }
    result = directory->count() != 0 ? write_pages(*program, given->directory)
                                     : show_page(*program, given->verb);
  });
}

}  // namespace ringfeed::cli
