// Any bytes as PREFIX.idx and PREFIX.bin: the first two bytes say where the one ends and the other
// begins.
//
// Holds: a file that opens has no more sentences than its index has room for; a sentence that is
// given lies whole in PREFIX.bin; ids of 64 and of 32 bits agree in their low halves.
#include <vector>

#include "tests/fuzz/input.h"
#include "workers/io/token_file.h"

using namespace ringfeed;
using namespace ringfeed::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::span<const std::byte> input = fuzz::bytes_of(data, size);
  const std::size_t index_bytes =
      std::min<std::size_t>(data[0] | static_cast<std::size_t>(data[1]) << 8, size - 2);
  static const fuzz::Directory directory;
  directory.put("t.idx", input.subspan(2, index_bytes));
  directory.put("t.bin", input.subspan(2 + index_bytes));

  const Result<TokenFile> file = TokenFile::open(directory.path() + "/t");
  if (!file) {
    RF_HOLDS(!file.error().message().empty(), index_bytes);
    return 0;
  }
  RF_HOLDS(file->sentences() <= index_bytes / 8, file->sentences(), index_bytes);
  RF_HOLDS(file->documents() <= index_bytes / 8, file->documents(), index_bytes);
  RF_HOLDS(file->data_bytes() == size - 2 - index_bytes, file->data_bytes(), size);
  std::vector<std::uint32_t> sizes(file->sentences());
  file->sizes(0, sizes);
  std::vector<std::int64_t> wide;
  std::vector<std::int32_t> narrow;
  for (std::uint64_t s = 0; s < file->sentences(); ++s) {
    file->fetch(s);
    const std::optional<SentenceBytes> sentence = file->sentence(s);
    if (!sentence) continue;
    const std::uint64_t bytes = std::uint64_t{sentence->tokens} * token_bytes(file->code());
    RF_HOLDS(bytes <= file->data_bytes(), bytes, file->data_bytes());
    RF_HOLDS(sentence->tokens == sizes[s], s, sentence->tokens, sizes[s]);
    // Sentences may overlap, and a file may list one many times over.
    if (sentence->tokens > 4096 || s > 4096) continue;
    wide.resize(sentence->tokens);
    narrow.resize(sentence->tokens);
    read_tokens<std::int64_t>(*file, *sentence, wide);
    read_tokens<std::int32_t>(*file, *sentence, narrow);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      RF_HOLDS(narrow[i] == static_cast<std::int32_t>(wide[i]), s, i, wide[i], narrow[i]);
    }
  }
  file->warm_up();
  return 0;
}
