// The specification of workers/io/line_reader.h and byte_stream.h.
#include "workers/io/line_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <isa-l/crc.h>
#include <zstd.h>

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
  std::uint64_t checked = 0;
  std::uint64_t trailing_bytes = 0;
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
    read.checked = reader.stream().checked();
    read.trailing_bytes = reader.stream().trailing_bytes();
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

struct Packer {
  std::string name;
  std::string (*pack)(std::string_view);
};
const std::vector<Packer>& packers() {
  static const std::vector<Packer> all = {
      {"gz", [](std::string_view text) { return gzip_text(std::string(text)); }},
      {"zst", zstd_text},
      {"bz2", bzip2_text},
      {"xz", xz_text}};
  return all;
}

TEST(LineReader, UnpacksWhatIsPacked) {
  const TempDir directory;
  std::mt19937_64 random(4);
  for (int round = 0; round < 40; ++round) {
    const Packer& packer = packers()[static_cast<std::size_t>(round) % packers().size()];
    std::string text;
    std::string bytes;
    for (std::size_t parts = 1 + random() % 4; parts != 0; --parts) {
      const std::string part = random() % 5 == 0 ? "" : random_text(random, random() % 30);
      text += part;
      if (packer.name == "zst" && random() % 2 == 0) {
        bytes += zstd_skippable(std::string(random() % 300'000, 'k'));
      }
      bytes += packer.pack(part);
      if (random() % 3 == 0) bytes += std::string(random() % 600, '\0');
    }
    const std::string rubbish = random() % 3 == 0 ? std::string(1 + random() % 300'000, 'r') : "";
    const Read plain = read_lines(directory.write("plain", text));
    const std::string path = directory.write("packed." + packer.name, bytes + rubbish);
    const Read packed = read_lines(path);
    ASSERT_EQ(packed.problem, "") << path;
    ASSERT_EQ(packed.lines, plain.lines) << path;
    ASSERT_EQ(packed.offsets, plain.offsets) << path;
    ASSERT_EQ(packed.trailing_bytes, rubbish.size()) << path;
    ASSERT_EQ(packed.checked, text.size()) << path;
    // Behind an offset, as after a restart.
    const std::uint64_t behind =
        plain.offsets.empty() ? 0 : plain.offsets[plain.offsets.size() / 2];
    const Read rest = read_lines(path, behind);
    ASSERT_EQ(rest.lines, read_lines(directory.path("plain"), behind).lines);
  }
}

TEST(LineReader, SaysWhatIsWrongWithPackedDataAndGivesWhatIsBefore) {
  const TempDir directory;
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "line " + std::to_string(i * i) + "\n";
  const Read whole = read_lines(directory.write("plain", text));
  std::mt19937_64 random(5);
  for (const Packer& packer : packers()) {
    const std::string packed = packer.pack(text);
    const Read cut = read_lines(directory.write("cut", packed.substr(0, packed.size() - 5)));
    EXPECT_EQ(cut.code, ErrorCode::kDamaged) << packer.name;
    EXPECT_THAT(cut.problem, HasSubstr("truncated")) << packer.name;
    for (int round = 0; round < 50; ++round) {
      // The first bytes tell what it is. Of gzip the next six say when, how and where it was made.
      const std::size_t place = 10 + random() % (packed.size() - 10);
      std::string damaged = packed;
      damaged[place] ^= static_cast<char>(1 << random() % 8);
      damaged += packed;
      const Read read = read_lines(directory.write("damaged", damaged));
      ASSERT_EQ(read.code, ErrorCode::kDamaged) << packer.name << " " << place;
      ASSERT_NE(read.problem, "") << packer.name << " byte " << place << " is wrong in silence";
      // What was given before is in doubt, all of it.
      ASSERT_EQ(read.checked, 0U) << packer.name;
      ASSERT_LE(read.lines.size(), whole.lines.size() + 1);
    }
    // A member that has been checked comes whole, whatever is wrong with the next one.
    std::string second = packed;
    second[second.size() - 6] ^= 1;
    const Read first = read_lines(directory.write("second", packed + second));
    EXPECT_EQ(first.code, ErrorCode::kDamaged);
    EXPECT_EQ(first.checked, text.size());
    ASSERT_GE(first.lines.size(), whole.lines.size());
    EXPECT_TRUE(std::equal(whole.lines.begin(), whole.lines.end(), first.lines.begin()));
  }
  const Read garbage = read_lines(directory.write("garbage", "\x1f\x8b nothing of that kind"));
  EXPECT_EQ(garbage.code, ErrorCode::kDamaged);
}

// Of a short member that fails its check nothing goes out.
TEST(LineReader, GivesNothingOfAShortMemberThatIsDamaged) {
  const TempDir directory;
  for (const Packer& packer : packers()) {
    std::string packed = packer.pack("one\ntwo\n");
    const std::string before = packer.pack("zero\n");
    packed[packed.size() - (packer.name == "xz" ? 30 : 3)] ^= 4;
    const Read read = read_lines(directory.write("short", before + packed));
    EXPECT_EQ(read.code, ErrorCode::kDamaged) << packer.name;
    EXPECT_THAT(read.lines, ElementsAre("zero")) << packer.name;
  }
}

// Header checksums are rare, and made if they are there.
TEST(LineReader, ChecksTheHeaderOfAGzipMember) {
  const TempDir directory;
  const std::string plain = gzip_text(std::string("one\ntwo\n"));
  // FHCRC, and a name.
  std::string header = plain.substr(0, 10);
  header[3] = 2 | 8;
  header += std::string("a name\0", 7);
  const auto sum =
      crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(header.data()), header.size());
  std::string packed = header;
  packed += static_cast<char>(sum & 0xFF);
  packed += static_cast<char>(sum >> 8 & 0xFF);
  packed += plain.substr(10);
  EXPECT_THAT(read_lines(directory.write("right", packed)).lines, ElementsAre("one", "two"));
  for (std::size_t place = 4; place < header.size() + 2; ++place) {
    if (place == header.size() - 1) continue;  // the end of the name
    std::string damaged = packed;
    damaged[place] ^= 1;
    const Read read = read_lines(directory.write("damaged", damaged));
    EXPECT_THAT(read.lines, IsEmpty()) << place;
    EXPECT_THAT(read.problem, HasSubstr("header")) << place;
  }
}

TEST(LineReader, RefusesWindowsThatAreLongerThanItMay) {
  const TempDir directory;
  const std::string text(5 << 20, 'w');
  ZSTD_CCtx* const context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 24);
  std::string packed(::ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  // Without its size, which would be its window.
  // In two pieces: else its size is known, and its window no longer.
  for (const ZSTD_EndDirective end : {ZSTD_e_flush, ZSTD_e_end}) {
    ASSERT_EQ(::ZSTD_compressStream2(context, &out, &in, end), 0U);
  }
  ::ZSTD_freeCCtx(context);
  packed.resize(out.pos);
  const std::string path = directory.write("long.zst", packed);
  const auto read = [&](std::uint64_t window_bytes_max) {
    ByteStream stream(shm::open_regular(path).value_or_throw(), Packing::kZstd, 0,
                      window_bytes_max);
    std::vector<std::byte> bytes(text.size() + 1);
    return stream.read(bytes);
  };
  EXPECT_EQ(read(std::uint64_t{16} << 20).value_or_throw(), text.size());
  const Result<std::size_t> refused = read(std::uint64_t{8} << 20);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message(), HasSubstr("window_bytes_max"));
}

TEST(ByteStream, OfAFileThatIsCutComesWhatIsThereHoweverItIsRead) {
  const TempDir directory;
  std::mt19937_64 random(5);
  std::string text;
  for (int i = 0; i < 3000; ++i) text += fmt::format("{} {}\n", i, random() % 1000);
  const auto read = [&](const std::string& path, std::size_t piece) {
    shm::Fd fd = shm::open_regular(path).value_or_throw();
    const Packing packing = packing_of(fd.get()).value_or_throw();
    ByteStream stream(std::move(fd), packing);
    std::vector<std::byte> bytes(piece);
    for (;;) {
      const Result<std::size_t> got = stream.read(bytes);
      if (got && *got != 0) continue;
      EXPECT_FALSE(got);
      return stream.offset();
    }
  };
  for (const std::string& packed :
       {gzip_text(text), zstd_text(text), bzip2_text(text), xz_text(text)}) {
    for (const std::size_t part : {2U, 3U, 7U}) {
      const std::string path = directory.write("cut", packed.substr(0, packed.size() / part));
      const std::uint64_t whole = read(path, 1 << 20);
      for (const std::size_t piece : {1U, 5U, 1000U}) EXPECT_EQ(read(path, piece), whole);
    }
  }
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
