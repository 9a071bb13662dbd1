// ringfeed inspect: the worker knows the formats, so it is a worker that looks and prints.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/cli/verb.h"
#include "supervisor/group/spawn.h"

namespace ringfeed::cli {
namespace {

struct InspectOptions {
  std::string path = {};
  std::optional<std::uint64_t> record = {};  // index in the game or token file; empty: the first
  std::string chunk = {};                    // name or index of a tar's member
  std::string dictionary = {};               // of a token file; empty: the one beside it
  std::uint32_t top = 8;                     // moves of the policy to show
  bool all = false;                          // all records, members, chunks
  bool json = false;
};

int inspect(const InspectOptions& options) {
  const std::string binary = process::find_worker_binary();
  std::vector<std::string> words{"ringfeed-worker", "--inspect", options.path};
  if (options.record) words.push_back(fmt::format("--record={}", *options.record));
  if (!options.chunk.empty()) words.push_back("--chunk=" + options.chunk);
  if (!options.dictionary.empty()) words.push_back("--dictionary=" + options.dictionary);
  words.push_back(fmt::format("--top={}", options.top));
  if (options.all) words.emplace_back("--all");
  if (options.json) words.emplace_back("--json");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  // It takes this process's place: its output and exit status are those of the command.
  ::execv(binary.c_str(), argv.data());
  throw Error(ErrorCode::kIo,
              fmt::format("worker binary {} cannot be started: {}", binary, std::strerror(errno)));
}

}  // namespace

void add_inspect(CLI::App& verb, int& result) {
  struct Given {
    InspectOptions options;
    std::uint64_t record = 0;
  };
  const auto given = std::make_shared<Given>();
  verb.add_option(
          "PATH", given->options.path,
          "a file of samples (lines of JSON or text, a tar, arrays of NumPy's, a table; packed or "
          "not), a .gz of one game, a tar of games, raw records, the index of a tar, a token file "
          "(PREFIX, PREFIX.idx or PREFIX.bin), a snapshot, a dead letter or a configuration")
      ->required();
  CLI::Option* const record_option =
      verb.add_option("--record", given->record,
                      "show this record of the game, this sentence or sample, counted from 0")
          ->type_name("N")
          ->check(CLI::NonNegativeNumber);
  verb.add_option("--chunk", given->options.chunk,
                  "show this game of a tar: its name, or its index, counted from 0")
      ->type_name("NAME_OR_INDEX");
  verb.add_flag("--all", given->options.all,
                "show all records of the game, all members of a tar, all sentences or samples")
      ->excludes(record_option);
  verb.add_option("--dictionary", given->options.dictionary,
                  "the dictionary of a token file; default: dict.LANG.txt beside it")
      ->type_name("FILE");
  verb.add_option("--top", given->options.top, "number of moves of the policy to show; default 8")
      ->type_name("K")
      ->check(CLI::Range(0, 1858));
  verb.add_flag("--json", given->options.json, "print one JSON object");
  verb.footer(
      "Damage is reported on standard error; the exit status is then 1, as it is for a file of "
      "another kind.\n"
      "Examples: ringfeed inspect training.123.gz --record 40 --top 5\n"
      "          ringfeed inspect games-0017.tar --chunk 3 --all\n"
      "          ringfeed inspect data_bin/train.eng_Latn-tur_Latn.eng_Latn");
  verb.callback([=, &result] {
    if (record_option->count() != 0) given->options.record = given->record;
    result = inspect(given->options);
  });
}

}  // namespace ringfeed::cli
