// Any bytes as lines of JSON, all fields of them and some.
//
// Holds: whatever the reader of blocks takes is a sound sample with the bytes that the reader of
// lines gives it.
#include <cstring>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "tests/fuzz/input.h"
#include "workers/samples/json_block.h"
#include "workers/samples/json_sample.h"

using namespace ringfeed;

namespace {

// What simdjson may look at behind a line.
constexpr std::size_t kPadding = 64;

class Both {
 public:
  explicit Both(const std::vector<WantedField>& wanted) : block_(wanted), lines_(wanted) {}

  void read(std::string_view all) {
    bool begun = false;
    while (!all.empty()) {
      const std::string_view line = all.substr(0, all.find('\n'));
      if (!line.empty()) {
        if (!begun || !block_.is_in(line)) block_.begin(all);
        begun = true;
        if (block_.read(line)) compare(line);
      }
      all.remove_prefix(std::min(line.size() + 1, all.size()));
    }
  }

 private:
  void compare(std::string_view line) {
    const JsonSamples::Outcome outcome = lines_.read(line);
    RF_HOLDS(outcome.fault == SampleFault::kNone, line, outcome.text);
    const std::optional<std::uint64_t> bytes = sample_bytes(outcome.fields);
    RF_HOLDS(bytes.has_value(), line);
    RF_HOLDS(*bytes == block_.head().size() + block_.data().size(), line, *bytes);
    std::vector<std::byte> room(*bytes + sample::kAlignment, std::byte{0xee});
    void* at = room.data();
    std::size_t space = room.size();
    RF_HOLDS(std::align(sample::kAlignment, *bytes, at, space) != nullptr, space);
    auto* const record = static_cast<std::byte*>(at);
    write_sample({record, *bytes}, outcome.fields);
    const std::span<const std::byte> head = block_.head();
    const std::span<const std::byte> data = block_.data();
    RF_HOLDS(std::memcmp(record, head.data(), head.size()) == 0, line);
    RF_HOLDS(data.empty() || std::memcmp(record + head.size(), data.data(), data.size()) == 0,
             line);
    RF_HOLDS(SampleView::open({record, *bytes}).has_value(), line);
  }

  JsonBlock block_;
  JsonSamples lines_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<char> padded(size + kPadding, '"');
  if (size != 0) std::memcpy(padded.data(), data, size);
  const std::string_view lines(padded.data(), size);
  Both({}).read(lines);
  Both({{"id", "id", SampleDtype::kInt32},
        {"text", "words", SampleDtype::kText},
        {"x", "x", SampleDtype::kFloat32}})
      .read(lines);
  return 0;
}
