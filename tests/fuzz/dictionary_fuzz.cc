// Any bytes as a dictionary.
//
// Holds: ids are below the size, and every symbol that is found has the id under which it stands;
// written anew, a dictionary without symbols that were given twice is read as the same; a refusal
// can be shown.
#include "tests/fuzz/input.h"
#include "workers/bitext/dictionary.h"

using namespace ringfeed;
using namespace ringfeed::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Result<Dictionary> read = Dictionary::parse(fuzz::text_of(data, size), "dict.txt");
  if (!read) {
    RF_HOLDS(fuzz::is_printable(read.error().message()), read.error().message());
    return 0;
  }
  std::string written;
  bool names_all = true;
  for (std::uint32_t id = 0; id < read->size(); ++id) {
    const std::string_view symbol = read->symbol(id);
    const std::optional<std::uint32_t> found = read->find(symbol);
    RF_HOLDS(found && *found >= id && *found < read->size(), id, read->size());
    names_all = names_all && *found == id;
    if (id > Dictionary::kUnk) written.append(symbol).append(" 1\n");
  }
  if (names_all) {
    const Result<Dictionary> again = Dictionary::parse(written, "dict.txt");
    RF_HOLDS(again.ok(), again.ok() ? "" : again.error().message());
    RF_HOLDS(*again == *read, again->size(), read->size());
  }
  const std::int64_t ids[] = {0, -1, read->size(), static_cast<std::int64_t>(read->size()) - 1};
  static_cast<void>(read->text(ids));
  return 0;
}
