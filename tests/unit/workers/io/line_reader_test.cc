// The specification of workers/io/line_reader.h and byte_stream.h.
#include "workers/io/line_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "ringfeed/shm/file.h"
#include "tests/support/makers/packed_text.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed::formats {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Read {
  std::vector<std::string> lines = {};
  std::vector<std::uint64_t> offsets = {};
  std::string problem = {};
  ErrorCode code = ErrorCode::kIo;
  std::size_t too_long = 0;
};

Read read_lines(const std::string& path, std::uint64_t begin = 0,
                std::uint64_t end = ByteStream::kToEnd, std::size_t line_bytes_max = 1 << 20) {
  shm::Fd fd = shm::open_regular(path).value_or_throw();
  const Packing packing = packing_of(fd.get()).value_or_throw();
  const std::uint64_t from = packing == Packing::kPlain && begin != 0 ? begin - 1 : 0;
  LineReader reader(std::make_unique<ByteStream>(std::move(fd), packing, from), begin, end,
                    line_bytes_max);
  Read read;
  for (;;) {
    const Result<std::optional<Line>> line = reader.next();
    if (!line) {
      read.problem = line.error().message();
      read.code = line.error().code();
      return read;
    }
    if (!*line) return read;
    if ((*line)->too_long) {
      ++read.too_long;
      continue;
    }
    read.lines.emplace_back((*line)->text);
    read.offsets.push_back((*line)->offset);
  }
}

TEST(LineReader, GivesLinesAsTheyAre) {
  const TempDir directory;
  EXPECT_THAT(read_lines(directory.write("a", "one\ntwo\r\n\nfour")).lines,
              ElementsAre("one", "two", "", "four"));
  EXPECT_THAT(read_lines(directory.write("b", "one\n")).lines, ElementsAre("one"));
  EXPECT_THAT(read_lines(directory.write("c", "\n")).lines, ElementsAre(""));
  EXPECT_THAT(read_lines(directory.write("d", "")).lines, IsEmpty());
  EXPECT_THAT(read_lines(directory.write("e", "x\ny\n")).offsets, ElementsAre(0, 2));
}

std::string random_text(std::mt19937_64& random, std::size_t lines) {
  std::string text;
  for (std::size_t i = 0; i < lines; ++i) {
    text += std::string(random() % (random() % 50 == 0 ? 700'000 : 60),
                        static_cast<char>('a' + i % 26));
    text += random() % 5 == 0 ? "\r\n" : "\n";
  }
  if (random() % 2 == 0) text += "no end";
  return text;
}

// Parts that meet have every line once, wherever they meet.
TEST(LineReader, PartsOfAFileHaveEveryLineOnce) {
  const TempDir directory;
  std::mt19937_64 random(3);
  for (int round = 0; round < 40; ++round) {
    const std::string text = random_text(random, 1 + random() % 40);
    const std::string path = directory.write("text", text);
    const Read whole = read_lines(path);
    EXPECT_EQ(whole.problem, "");
    std::vector<std::string> lines;
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t begin = 0; begin < text.size();) {
      const std::uint64_t end = std::min<std::uint64_t>(text.size(), begin + 1 + random() % 5000);
      const Read part = read_lines(path, begin, end);
      lines.insert(lines.end(), part.lines.begin(), part.lines.end());
      offsets.insert(offsets.end(), part.offsets.begin(), part.offsets.end());
      begin = end;
    }
    ASSERT_EQ(lines, whole.lines) << round;
    ASSERT_EQ(offsets, whole.offsets) << round;
  }
}

// Members, frames and padding as concatenation makes them.
// What lies in memory behind a line: whole lines, of this part alone, as they come later.
TEST(LineReader, ShowsLinesThatAreInMemory) {
  const TempDir directory;
  std::mt19937_64 random(3);
  for (int round = 0; round < 20; ++round) {
    const std::string text = random_text(random, 300);
    const std::string path = directory.write(fmt::format("m{}", round), text);
    const std::uint64_t end = random() % (text.size() + 1);
    LineReader reader(
        std::make_unique<ByteStream>(shm::open_regular(path).value_or_throw(), Packing::kPlain, 0),
        0, end, 1 << 20);
    std::size_t longest = 0;
    std::string_view ahead;
    std::uint64_t refills = 0;
    for (;;) {
      const Result<std::optional<Line>> line = reader.next();
      ASSERT_TRUE(line);
      if (!*line) break;
      if (reader.refills() == refills && (*line)->text.data() < ahead.data() + ahead.size()) {
        EXPECT_GE((*line)->text.data(), ahead.data());
      } else {
        refills = reader.refills();
        ahead = reader.lines_from(**line);
        EXPECT_EQ(ahead, std::string_view(text).substr((*line)->offset, ahead.size()));
        if (ahead.empty()) continue;
        EXPECT_TRUE(ahead.ends_with('\n') || (*line)->offset + ahead.size() == text.size());
        const std::size_t last = ahead.substr(0, ahead.size() - 1).rfind('\n');
        EXPECT_LT((*line)->offset + (last == std::string_view::npos ? 0 : last + 1), end)
            << "a line of the next part";
      }
      longest = std::max(longest, ahead.size() - (*line)->text.size());
    }
    if (end == text.size()) {
      EXPECT_GT(longest, 0U);
    }
  }
}

TEST(LineReader, UnpacksWhatIsPacked) {
  const TempDir directory;
  std::mt19937_64 random(4);
  for (int round = 0; round < 20; ++round) {
    std::string text;
    std::string gzip;
    std::string zstd;
    for (std::size_t parts = 1 + random() % 4; parts != 0; --parts) {
      const std::string part = random_text(random, random() % 30);
      text += part;
      gzip += gzip_text(part);
      zstd += zstd_text(part);
    }
    if (round % 3 == 0) gzip += std::string(random() % 100, '\0');
    const Read plain = read_lines(directory.write("plain", text));
    for (const std::string& path :
         {directory.write("packed.gz", gzip), directory.write("packed.zst", zstd)}) {
      const Read packed = read_lines(path);
      ASSERT_EQ(packed.problem, "") << path;
      ASSERT_EQ(packed.lines, plain.lines) << path;
      ASSERT_EQ(packed.offsets, plain.offsets) << path;
      // Behind an offset, as after a restart.
      const std::uint64_t behind =
          plain.offsets.empty() ? 0 : plain.offsets[plain.offsets.size() / 2];
      const Read rest = read_lines(path, behind);
      ASSERT_EQ(rest.lines, read_lines(directory.path("plain"), behind).lines);
    }
  }
}

TEST(LineReader, SaysWhatIsWrongWithPackedDataAndGivesWhatIsBefore) {
  const TempDir directory;
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "line " + std::to_string(i * i) + "\n";
  for (const std::string& packed : {gzip_text(text), zstd_text(text)}) {
    const Read cut = read_lines(directory.write("cut", packed.substr(0, packed.size() - 5)));
    EXPECT_EQ(cut.code, ErrorCode::kDamaged);
    EXPECT_THAT(cut.problem, HasSubstr("truncated"));
    std::mt19937_64 random(5);
    for (int round = 0; round < 50; ++round) {
      std::string damaged = packed;
      damaged[20 + random() % (packed.size() - 20)] ^= static_cast<char>(1 + random() % 255);
      const Read read = read_lines(directory.write("damaged", damaged));
      // A checksum at the end finds what changes nothing else; a Zstandard frame may have none.
      if (read.problem.empty()) continue;
      EXPECT_EQ(read.code, ErrorCode::kDamaged) << read.problem;
      EXPECT_LE(read.lines.size(), 20'000U);
    }
  }
  const Read garbage = read_lines(directory.write("garbage", "\x1f\x8b nothing of that kind"));
  EXPECT_EQ(garbage.code, ErrorCode::kDamaged);
}

TEST(LineReader, PassesOverLinesThatAreTooLong) {
  const TempDir directory;
  const std::string text =
      "a\n" + std::string(3 << 20, 'x') + "\nb\n" + std::string(101, 'y') + "\nc";
  const std::string path = directory.write("long", text);
  const Read read = read_lines(path, 0, ByteStream::kToEnd, 100);
  EXPECT_THAT(read.lines, ElementsAre("a", "b", "c"));
  EXPECT_EQ(read.too_long, 2U);
  EXPECT_EQ(read.offsets, read_lines(path, 0, ByteStream::kToEnd, 200).offsets.size() == 4
                              ? (std::vector<std::uint64_t>{0, 2 + (3 << 20) + 1, text.size() - 1})
                              : std::vector<std::uint64_t>{});
}

}  // namespace
}  // namespace ringfeed::formats
