// The specification of workers/rows/parquet_source.h and workers/io/parquet_file.h, on files
// that Arrow writes.
#include "workers/rows/parquet_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/support/makers/parquet_maker.h"
#include "tests/support/rig/stage_data.h"
#include "workers/io/arrow_library.h"
#include "workers/io/parquet_file.h"
#include "workers/rows/row_records.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::StartsWith;
namespace fs = std::filesystem;

using formats::ColumnKind;
using formats::ColumnType;
using formats::RowBatch;
using formats::RowFile;

std::string cell(const RowBatch& batch, std::uint32_t column, std::uint32_t row) {
  switch (batch.kind(column)) {
    case ColumnKind::kAbsent:
      return "absent";
    case ColumnKind::kMissing:
      return "null";
    case ColumnKind::kText: {
      const auto text = batch.text(column, row);
      return text ? "'" + std::string(*text) + "'" : "null";
    }
    case ColumnKind::kInteger: {
      const auto integer = batch.integer(column, row);
      return integer ? std::to_string(*integer) : "null";
    }
    case ColumnKind::kNumber: {
      const double number = batch.number(column, row);
      return std::isnan(number) ? "nan" : fmt::format("{}", number);
    }
  }
  return "?";
}

std::vector<std::string> rows_of(const RowBatch& batch) {
  std::vector<std::string> rows;
  for (std::uint32_t row = 0; row < batch.rows(); ++row) {
    std::string text;
    for (std::uint32_t column = 0; column < batch.head().columns; ++column) {
      text += (column == 0 ? "" : " ") + cell(batch, column, row);
    }
    rows.push_back(std::move(text));
  }
  return rows;
}

// Everything that a sink got: rows, and "(end a.parquet)" and the like.
std::vector<std::string> told(const std::vector<RigRecord>& records) {
  std::vector<std::string> all;
  for (const RigRecord& record : records) {
    if (record.user == kFilesRecord) {
      FileList list{};
      EXPECT_EQ(record.bytes.size(), sizeof list);
      std::memcpy(&list, record.bytes.data(), sizeof list);
      all.push_back(fmt::format("({} files)", list.files));
      continue;
    }
    RowBatch batch;
    EXPECT_TRUE(batch.read(std::as_bytes(std::span(record.bytes))));
    const std::string name = fs::path(batch.path()).filename().string();
    switch (record.user) {
      case kRowsRecord:
        for (std::string& row : rows_of(batch)) all.push_back(std::move(row));
        break;
      case kRowsGapRecord:
        all.push_back(fmt::format("(gap {} {})", name, batch.head().first_row));
        break;
      case kFileEndRecord:
        all.push_back(fmt::format("(end {})", name));
        break;
      case kFileFailedRecord:
        all.push_back(fmt::format("(failed {})", name));
        break;
      case kEpochEndRecord:
        all.push_back(fmt::format("(epoch {})", batch.head().epoch));
        break;
      default:
        all.push_back("?");
    }
  }
  return all;
}

std::vector<std::string> marks(const std::vector<RigRecord>& records) {
  std::vector<std::string> all = told(records);
  std::erase_if(all, [](const std::string& text) { return !text.starts_with('('); });
  return all;
}

struct Source {
  explicit Source(const std::string& own, const std::string& feed = "epochs: 1")
      : rig(feed, &formats::kArrowReaders) {
    rig.add_stage(fmt::format("name: 'source' parquet_source {{ {} }}", own));
    rig.add_sink("out", "source");
    rig.build();
  }
  void finish() {
    rig.run();
    EXPECT_TRUE(rig.all_finished());
  }
  [[nodiscard]] std::vector<std::string> all() const { return told(rig.got("out")); }
  [[nodiscard]] std::vector<std::string> marks() const { return ringfeed::marks(rig.got("out")); }
  [[nodiscard]] std::uint64_t counter(std::string_view name) const {
    return rig.counter("source", name);
  }
  LaneRig rig;
};

// Games as chess_games asks for them.
std::string games_reader(const std::string& more = "") {
  return fmt::format("stages {{ name: 'games' chess_games {{ input: 'source' {} }} }}", more);
}

std::vector<std::optional<std::string>> values(std::size_t rows,
                                               const std::function<std::string(std::size_t)>& of) {
  std::vector<std::optional<std::string>> all;
  for (std::size_t i = 0; i < rows; ++i) all.emplace_back(of(i));
  return all;
}

std::vector<MadeColumn> game_columns_of(std::size_t rows, const std::string& id) {
  const auto number = [](std::size_t i) {
    return fmt::format("{}", static_cast<double>(i % 7) / 8);
  };
  return {
      {"unread", "string", values(rows, [](std::size_t) { return "x"; })},
      {"fen", "string",
       values(rows,
              [](std::size_t i) { return fmt::format("fen {} {}", i, std::string(i % 90, 'k')); })},
      {"played_move", "string",
       values(rows, [](std::size_t i) { return i % 2 ? "e2e4" : "e7e5"; })},
      {"best_move", "string", values(rows, [](std::size_t) { return "d2d4"; })},
      {"win", "double", values(rows, number)},
      {"draw", "double", values(rows, number)},
      {"loss", "double", values(rows, number)},
      {"game_id", "string",
       values(rows, [&](std::size_t i) { return fmt::format("{}_{}", id, i / 50); })},
      {"ply", "int64", values(rows, [](std::size_t i) { return std::to_string(i % 50 + 1); })},
  };
}

// ---- what the values become

struct Made {
  std::string compression;
  std::string encoding;  // "dictionary"; else as in MadeFile
  bool new_pages;
  friend void PrintTo(const Made& made, std::ostream* out) {
    *out << made.compression << " " << made.encoding << (made.new_pages ? " v2" : "");
  }
};
std::vector<Made> all_made() {
  std::vector<Made> all;
  for (const std::string& compression : parquet_compressions()) {
    for (const bool new_pages : {false, true}) {
      for (const char* encoding : {"dictionary", "", "delta", "lengths"}) {
        all.push_back({compression, encoding, new_pages});
      }
    }
  }
  return all;
}

class ParquetValues : public ::testing::TestWithParam<Made> {};

TEST_P(ParquetValues, ComeAsTheyWereWritten) {
  constexpr std::size_t kRows = 2500;
  TempDir directory;
  MadeFile file{.compression = GetParam().compression,
                .rows_of_group = 1000,
                .page_bytes = 2000,
                .dictionary = GetParam().encoding == "dictionary",
                .encoding = GetParam().encoding == "dictionary" ? "" : GetParam().encoding,
                .new_pages = GetParam().new_pages,
                .checksums = true};
  const auto sparse = [](std::vector<std::optional<std::string>> all, std::size_t every) {
    for (std::size_t i = 0; i < all.size(); i += every) all[i].reset();
    return all;
  };
  const auto text = values(kRows, [](std::size_t i) {
    return fmt::format("{}{}", std::string(i % 40, static_cast<char>('a' + i % 26)), i % 100);
  });
  const auto integer = values(kRows, [](std::size_t i) { return std::to_string(i * 37 % 5000); });
  const auto number = values(
      kRows, [](std::size_t i) { return fmt::format("{}", static_cast<double>(i % 200) / 4); });
  write_parquet(directory.path("a.parquet"),
                {{"text", "string", text, false},
                 {"some", "large_string", sparse(text, 3)},
                 {"view", "string_view", sparse(text, 2)},
                 {"code", "dictionary", sparse(text, 5)},
                 {"small", "int32", integer},
                 {"large", "int64", sparse(integer, 7)},
                 {"double", "double", sparse(number, 4)},
                 {"float", "float", number, false},
                 {"none", "null", std::vector<std::optional<std::string>>(kRows)}},
                file);
  Source source(
      fmt::format("directory: '{}' columns: ['text', 'some', 'view', 'code', 'small', "
                  "'large', 'double', 'float', 'none'] queue_bytes: 65536",
                  directory.path()));
  source.finish();
  std::vector<std::string> expected;
  for (std::size_t i = 0; i < kRows; ++i) {
    const auto shown = [&](std::size_t every) {
      return i % every == 0 ? "null" : "'" + *text[i] + "'";
    };
    expected.push_back(fmt::format("'{}' {} {} {} {} {} {} {} null", *text[i], shown(3), shown(2),
                                   shown(5), *integer[i], i % 7 == 0 ? "null" : *integer[i],
                                   i % 4 == 0 ? "nan" : *number[i], *number[i]));
  }
  expected.emplace_back("(end a.parquet)");
  expected.emplace_back("(epoch 0)");
  EXPECT_EQ(source.all(), expected);
  EXPECT_EQ(source.counter("rows"), kRows);
  EXPECT_EQ(source.counter("row_groups"), 3U);
  EXPECT_EQ(source.counter("files_read"), 1U);
  EXPECT_GT(source.rig.got("out").size(), 8U);
}
INSTANTIATE_TEST_SUITE_P(AllWaysToWrite, ParquetValues, ::testing::ValuesIn(all_made()));

TEST(ParquetTypes, OfAllKindsBecomeTextIntegersOrNumbers) {
  TempDir directory;
  const std::vector<std::optional<std::string>> small = {"1", std::nullopt, "100"};
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"int8", "1 null 100"},      {"int16", "1 null 100"},  {"int32", "1 null 100"},
      {"int64", "1 null 100"},     {"uint8", "1 null 100"},  {"uint16", "1 null 100"},
      {"uint32", "1 null 100"},    {"uint64", "1 null 100"}, {"half", "1 nan 100"},
      {"float", "1 nan 100"},      {"double", "1 nan 100"},  {"string", "'1' null '100'"},
      {"binary", "'1' null '100'"}};
  for (const auto& [kind, expected] : kinds) {
    write_parquet(directory.path("a.parquet"), {{"x", kind, small}});
    Source source(fmt::format("directory: '{}' columns: 'x'", directory.path()));
    source.finish();
    EXPECT_EQ(fmt::format("{}", fmt::join(source.all(), " ")),
              expected + " (end a.parquet) (epoch 0)")
        << kind;
  }
}

TEST(ParquetTypes, KeepTheirEnds) {
  TempDir directory;
  write_parquet(directory.path("a.parquet"),
                {{"b", "bool", {"true", "false", std::nullopt}},
                 {"u", "uint32", {"4294967295", "0", "7"}},
                 {"w", "uint64", {"18446744073709551615", std::nullopt, "1"}},
                 {"i", "int64", {"-9223372036854775808", "9223372036854775807", "0"}},
                 {"d", "date32", {"1970-01-03", "1969-12-31", std::nullopt}},
                 {"t", "timestamp", {"1970-01-01 00:00:01", std::nullopt, "1970-01-01 00:00:02"}},
                 {"e", "string", {"", std::nullopt, std::string("a\0b", 3)}}});
  Source source(
      fmt::format("directory: '{}' columns: ['b','u','w','i','d','t','e']", directory.path()));
  source.finish();
  EXPECT_THAT(source.all(), ElementsAre("1 4294967295 -1 -9223372036854775808 2 1000000 ''",
                                        "0 0 null 9223372036854775807 -1 null null",
                                        std::string("null 7 1 0 null 2000000 'a\0b'", 29),
                                        "(end a.parquet)", "(epoch 0)"));
}

TEST(ParquetColumns, AreTheReadersInItsOrder) {
  TempDir directory;
  write_parquet(directory.path("a.parquet"), game_columns_of(2, "g"));
  Source source(fmt::format("directory: '{}'", directory.path()), "epochs: 1 " + games_reader());
  source.finish();
  EXPECT_THAT(source.all(), ElementsAre("'g_0' 1 'fen 0 ' 'e7e5' 'd2d4' 0 0 0",
                                        "'g_0' 2 'fen 1 k' 'e2e4' 'd2d4' 0.125 0.125 0.125",
                                        "(end a.parquet)", "(epoch 0)"));
}

TEST(ParquetColumns, MayBeLeftOutIfTheReaderCanDoWithoutThem) {
  TempDir directory;
  auto columns = game_columns_of(1, "g");
  std::erase_if(columns, [](const MadeColumn& column) { return column.name == "played_move"; });
  write_parquet(directory.path("a.parquet"), columns);
  Source source(fmt::format("directory: '{}'", directory.path()), "epochs: 1 " + games_reader());
  source.finish();
  EXPECT_THAT(source.all(), Contains("'g_0' 1 'fen 0 ' absent 'd2d4' 0 0 0"));
}

// ---- files and epochs

std::string one_row(const TempDir& directory, const std::string& name) {
  write_parquet(directory.path(name), {{"x", "string", {name}}});
  return directory.path(name);
}

TEST(ParquetFiles, AreThoseOfTheDirectoryInOrderOfTheirNames) {
  TempDir directory;
  for (const char* name : {"part-2.parquet", "part-010.parquet", ".hidden.parquet", "B.parquet"}) {
    one_row(directory, name);
  }
  fs::create_directory(directory.path("sub.parquet"));
  fs::create_directory(directory.path("more"));
  one_row(directory, "more/below.parquet");
  directory.write("notes.txt", "x");
  Source source(
      fmt::format("directory: '{}/' columns: 'x' shuffle_files: false", directory.path()));
  source.finish();
  EXPECT_THAT(source.all(), ElementsAre("'B.parquet'", "(end B.parquet)", "'part-010.parquet'",
                                        "(end part-010.parquet)", "'part-2.parquet'",
                                        "(end part-2.parquet)", "(epoch 0)"));
  EXPECT_EQ(source.counter("files_found"), 3U);
  EXPECT_EQ(source.counter("epochs"), 1U);
}

TEST(ParquetFiles, OfAListComeInItsOrder) {
  TempDir directory;
  Source source(fmt::format("files: '{}' files: '{}' columns: 'x' shuffle_files: false",
                            one_row(directory, "b"), one_row(directory, "a")));
  source.finish();
  EXPECT_THAT(source.all(), ElementsAre("'b'", "(end b)", "'a'", "(end a)", "(epoch 0)"));
}

TEST(ParquetFiles, AreSharedAmongRanks) {
  TempDir directory;
  for (const char* name : {"0.parquet", "1.parquet", "2.parquet", "3.parquet", "4.parquet"}) {
    one_row(directory, name);
  }
  for (const auto& [rank, expected] : std::vector<std::pair<int, std::vector<std::string>>>{
           {0, {"(end 0.parquet)", "(end 3.parquet)", "(epoch 0)"}},
           {1, {"(end 1.parquet)", "(end 4.parquet)", "(epoch 0)"}},
           {2, {"(end 2.parquet)", "(epoch 0)"}}}) {
    Source source(
        fmt::format("directory: '{}' columns: 'x' shuffle_files: false rank: {} "
                    "world_size: 3",
                    directory.path(), rank));
    source.finish();
    EXPECT_EQ(source.marks(), expected);
  }
}

TEST(ParquetFiles, ComeInAnotherOrderInEveryEpoch) {
  TempDir directory;
  for (int i = 0; i < 8; ++i) one_row(directory, fmt::format("{}.parquet", i));
  const auto run = [&](const std::string& seed) {
    Source source(fmt::format("directory: '{}' columns: 'x'", directory.path()),
                  "epochs: 3 seed: " + seed);
    source.finish();
    EXPECT_EQ(source.counter("epochs"), 3U);
    EXPECT_EQ(source.counter("files_read"), 24U);
    return source.marks();
  };
  const std::vector<std::string> once = run("1");
  EXPECT_EQ(once, run("1"));
  EXPECT_NE(once, run("2"));
  std::vector<std::vector<std::string>> epochs;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto begin = once.begin() + static_cast<std::ptrdiff_t>(9 * i);
    EXPECT_EQ(*(begin + 8), fmt::format("(epoch {})", i));
    epochs.emplace_back(begin, begin + 8);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (auto& epoch : epochs) std::sort(epoch.begin(), epoch.end());
  EXPECT_EQ(epochs[0], epochs[1]);
  EXPECT_EQ(epochs[1], epochs[2]);
}

TEST(ParquetFiles, MissingEndAFiniteRunWithAWarning) {
  TempDir directory;
  for (const std::string& where : {directory.path(), directory.path("nowhere")}) {
    Source source(fmt::format("directory: '{}' columns: 'x'", where));
    source.finish();
    EXPECT_THAT(source.all(), IsEmpty());
    EXPECT_THAT(source.rig.log("no_files"), ElementsAre(HasSubstr(where)));
  }
}

TEST(ParquetFiles, AreWaitedForInAnEndlessRunAndAddedFromEpochToEpoch) {
  TempDir directory;
  Source source(fmt::format("directory: '{}' columns: 'x' shuffle_files: false", directory.path()),
                "");
  source.rig.allow("out", 5);
  source.rig.run();
  EXPECT_THAT(source.all(), IsEmpty());
  EXPECT_THAT(source.rig.note("source"), HasSubstr("waiting"));
  one_row(directory, "b.parquet");
  ASSERT_TRUE(source.rig.run_until([&] { return source.all().size() == 5; }));
  EXPECT_THAT(source.all(), ElementsAre("'b.parquet'", "(end b.parquet)", "(epoch 0)",
                                        "'b.parquet'", "(end b.parquet)"));
  one_row(directory, "a.parquet");
  source.rig.restart_all();
  source.rig.allow("out", 400);
  ASSERT_TRUE(source.rig.run_until([&] { return source.counter("files_found") == 2; }));
  ASSERT_TRUE(source.rig.run_until([&] { return source.all().size() >= 300; }));
  // Numbers stay: the new one comes after those that were known.
  const std::vector<std::string> all = source.all();
  const auto found = std::find(all.begin(), all.end(), "'a.parquet'");
  ASSERT_NE(found, all.end());
  EXPECT_EQ(*(found - 1), "(end b.parquet)");
}

TEST(ParquetFiles, OfNoUseAreNotTriedOverAndOver) {
  TempDir directory;
  directory.write("a.parquet", "no table");
  Source source(fmt::format("directory: '{}' columns: 'x' shuffle_files: false", directory.path()),
                "");
  source.rig.run();
  EXPECT_THAT(source.all(), ElementsAre("(failed a.parquet)", "(epoch 0)"));
  EXPECT_THAT(source.rig.note("source"), HasSubstr("waiting"));
  one_row(directory, "b.parquet");
  source.rig.allow("out", 4);
  ASSERT_TRUE(source.rig.run_until([&] { return source.all().size() == 6; }));
  EXPECT_THAT(source.all(), Contains("'b.parquet'"));
}

TEST(ParquetFiles, RepeatInAFiniteRunIfTheyShould) {
  TempDir directory;
  one_row(directory, "a.parquet");
  Source source(fmt::format("directory: '{}' columns: 'x' repeat: true", directory.path()));
  source.rig.allow("out", 30);
  ASSERT_TRUE(source.rig.run_until([&] { return source.all().size() == 30; }));
  EXPECT_THAT(source.marks(), Contains("(epoch 9)"));
  source.rig.want(shm::LaneDesire::kDrain);
  source.rig.allow("out", 10000);
  source.finish();
}

// ---- what is skipped

TEST(ParquetSkips, AFileWithoutAColumnAndSaysWhatThereIs) {
  TempDir directory;
  auto columns = game_columns_of(2, "g");
  std::erase_if(columns, [](const MadeColumn& c) { return c.name == "win" || c.name == "fen"; });
  write_parquet(directory.path("a.parquet"), columns);
  write_parquet(directory.path("b.parquet"), game_columns_of(1, "h"));
  Source source(fmt::format("directory: '{}' shuffle_files: false", directory.path()),
                "epochs: 1 " + games_reader());
  source.finish();
  EXPECT_THAT(source.marks(), ElementsAre("(failed a.parquet)", "(end b.parquet)", "(epoch 0)"));
  EXPECT_EQ(source.counter("skipped_missing_column"), 1U);
  EXPECT_THAT(source.rig.log("skipped_missing_column"),
              ElementsAre(AllOf(HasSubstr("a.parquet"), HasSubstr("missing: fen, win"),
                                HasSubstr("it has unread, played_move, best_move, draw"))));
}

// Nor does it come to be read because there was no room to say that it is not.
TEST(ParquetSkips, AFileWithoutAColumnAlsoWhileTheQueueIsFull) {
  TempDir directory;
  auto columns = game_columns_of(2, "g");
  std::erase_if(columns, [](const MadeColumn& c) { return c.name == "fen"; });
  std::vector<std::string> expected;
  for (int i = 0; i < 10; ++i) {
    const std::string name = fmt::format("{}.parquet", i);
    write_parquet(directory.path(name), i % 2 == 0 ? game_columns_of(1, "h") : columns);
    expected.push_back(fmt::format("({} {})", i % 2 == 0 ? "end" : "failed", name));
  }
  expected.emplace_back("(epoch 0)");
  Source source(
      fmt::format("directory: '{}' shuffle_files: false queue_capacity: 1", directory.path()),
      "epochs: 1 " + games_reader());
  for (std::uint64_t records = 0; records < 30; ++records) {
    source.rig.allow("out", 0);
    source.rig.run();
    source.rig.allow("out", 1);
    source.rig.run();
  }
  source.rig.allow("out", 1000);
  source.finish();
  EXPECT_EQ(source.marks(), expected);
  EXPECT_EQ(source.counter("skipped_missing_column"), 5U);
}

TEST(ParquetSkips, AFileWithAColumnOfAnotherType) {
  for (const auto& [column, type, found] :
       std::vector<std::array<std::string, 3>>{{"fen", "int64", "fen is INT64, expected text"},
                                               {"fen", "binary", "BYTE_ARRAY"},
                                               {"fen", "list", "fen is"},
                                               {"fen", "struct", "fen is"},
                                               {"win", "string", "String"},
                                               {"win", "decimal", "Decimal"},
                                               {"ply", "timestamp", "Timestamp"},
                                               {"played_move", "double", "DOUBLE"}}) {
    TempDir directory;
    auto columns = game_columns_of(1, "g");
    for (MadeColumn& made : columns) {
      if (made.name != column) continue;
      made.type = type;
      made.values = {type == "timestamp" ? "1970-01-01 00:00:02" : "5"};
    }
    write_parquet(directory.path("a.parquet"), columns);
    Source source(fmt::format("directory: '{}'", directory.path()), "epochs: 1 " + games_reader());
    source.finish();
    EXPECT_THAT(source.all(), ElementsAre("(failed a.parquet)", "(epoch 0)"));
    EXPECT_EQ(source.counter("skipped_wrong_type"), 1U);
    EXPECT_THAT(source.rig.log("skipped_wrong_type"),
                ElementsAre(AllOf(HasSubstr("column " + column), HasSubstr(found))));
  }
}

TEST(ParquetSkips, WhatIsNoParquetFile) {
  TempDir directory;
  directory.write("0.parquet", "");
  directory.write("1.parquet", "PAR1PAR1");
  directory.write("2.parquet", "PAR1 this is none, although it says so PAR1");
  directory.write("3.parquet", std::string(5000, 'x'));
  const std::string whole = one_row(directory, "whole");
  fs::copy_file(whole, directory.path("4.parquet"));
  fs::resize_file(directory.path("4.parquet"), fs::file_size(whole) - 1);
  fs::create_symlink("nowhere", directory.path("5.parquet"));
  write_parquet(directory.path("6.parquet"), {{"x", "string", {}}});
  ASSERT_EQ(::mkfifo(directory.path("8.parquet").c_str(), 0600), 0);
  Source source(fmt::format("directory: '{}' columns: 'x' shuffle_files: false", directory.path()));
  source.finish();
  EXPECT_THAT(source.all(),
              ElementsAre("(failed 0.parquet)", "(failed 1.parquet)", "(failed 2.parquet)",
                          "(failed 3.parquet)", "(failed 4.parquet)", "(failed 5.parquet)",
                          "(end 6.parquet)", "(failed 8.parquet)", "(epoch 0)"));
  EXPECT_EQ(source.counter("skipped_unreadable"), 6U);
  EXPECT_EQ(source.counter("skipped_vanished"), 1U) << "the link to nothing";
}

TEST(ParquetSkips, AFileThatHasVanished) {
  TempDir directory;
  Source source(fmt::format("files: '{}' files: '{}' columns: 'x' shuffle_files: false",
                            directory.path("gone"), one_row(directory, "b")));
  source.finish();
  EXPECT_THAT(source.all(), ElementsAre("(failed gone)", "'b'", "(end b)", "(epoch 0)"));
  EXPECT_EQ(source.counter("skipped_vanished"), 1U);
}

TEST(ParquetSkips, ARowThatDoesNotFitIntoARecord) {
  TempDir directory;
  write_parquet(directory.path("a.parquet"),
                {{"n", "int64", {"1", "2", "3", "4"}},
                 {"x", "string", {"a", std::string(70000, 'b'), std::string(20000, 'c'), "d"}}});
  Source source(
      fmt::format("directory: '{}' columns: ['n', 'x'] queue_bytes: 65536", directory.path()));
  source.finish();
  EXPECT_THAT(source.all(), ElementsAre("1 'a'", "3 '" + std::string(20000, 'c') + "'", "4 'd'",
                                        "(end a.parquet)", "(epoch 0)"));
  EXPECT_EQ(source.counter("rows_too_large"), 1U);
  EXPECT_THAT(source.rig.log("rows_too_large"),
              ElementsAre(AllOf(HasSubstr("row 1"), HasSubstr("raise queue_bytes"))));
}

// Flips a byte of the first place where the text is.
void damage(const std::string& path, const std::string& text) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t at = bytes.find(text);
  ASSERT_NE(at, std::string::npos);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(bytes[at] ^ 1));
}

std::string with_a_damaged_page(const TempDir& directory) {
  const auto texts =
      values(900, [](std::size_t i) { return fmt::format("text of row {:04}.", i); });
  const std::string path = directory.path("a.parquet");
  write_parquet(path, {{"x", "string", texts}},
                {.compression = "uncompressed",
                 .rows_of_group = 300,
                 .page_bytes = 1000,
                 .dictionary = false,
                 .checksums = true});
  damage(path, "text of row 0400.");
  return path;
}

TEST(ParquetDamage, TakesTheRestOfARowGroupAndNoMore) {
  TempDir directory;
  with_a_damaged_page(directory);
  Source source(fmt::format("directory: '{}' columns: 'x'", directory.path()));
  source.finish();
  std::vector<std::string> all = source.all();
  const auto gap = std::find_if(all.begin(), all.end(),
                                [](const std::string& s) { return s.starts_with("(gap"); });
  ASSERT_NE(gap, all.end());
  const auto before = gap - all.begin();
  EXPECT_GT(before, 300);
  EXPECT_LE(before, 400);
  EXPECT_EQ(*gap, fmt::format("(gap a.parquet {})", before));
  EXPECT_EQ(*(gap - 1), fmt::format("'text of row {:04}.'", before - 1));
  EXPECT_EQ(*(gap + 1), "'text of row 0600.'");
  EXPECT_EQ(all.back(), "(epoch 0)");
  EXPECT_EQ(source.counter("row_groups_damaged"), 1U);
  EXPECT_EQ(source.counter("rows_damaged"), static_cast<std::uint64_t>(600 - before));
  EXPECT_EQ(source.counter("row_groups"), 2U);
  EXPECT_THAT(source.rig.log("rows_damaged"),
              ElementsAre(AllOf(HasSubstr("row group 1"), HasSubstr("column x"))));
}

TEST(ParquetDamage, IsTheSameWhoeverDies) {
  TempDir directory;
  with_a_damaged_page(directory);
  const std::string own = fmt::format("directory: '{}' columns: 'x'", directory.path());
  Source undisturbed(own);
  undisturbed.finish();
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    std::mt19937_64 random(seed);
    Source source(own);
    source.rig.run_with_restarts(random, 0.5);
    EXPECT_EQ(source.rig.got("out").size(), undisturbed.rig.got("out").size());
    EXPECT_EQ(source.all(), undisturbed.all());
  }
}

// ---- deaths

TEST(ParquetDeaths, ChangeNothing) {
  TempDir directory;
  for (int i = 0; i < 3; ++i) {
    write_parquet(directory.path(fmt::format("{}.parquet", i)),
                  game_columns_of(1100, fmt::format("f{}", i)),
                  {.rows_of_group = 500, .page_bytes = 3000});
  }
  const std::string feed = "epochs: 2 seed: 3 " + games_reader();
  const std::string own = fmt::format("directory: '{}' queue_bytes: 65536", directory.path());
  Source undisturbed(own, feed);
  undisturbed.finish();
  const std::vector<RigRecord> expected = undisturbed.rig.got("out");
  EXPECT_GT(expected.size(), 30U);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    Source source(own, feed);
    source.rig.run_with_restarts(random, 0.3);
    EXPECT_TRUE(source.rig.got("out") == expected);
    for (const char* counter : {"rows", "files_read", "row_groups", "epochs"}) {
      EXPECT_EQ(source.counter(counter), undisturbed.counter(counter)) << counter;
    }
  }
}

TEST(ParquetThreads, ChangeNothing) {
  TempDir directory;
  write_parquet(directory.path("a.parquet"), game_columns_of(9000, "g"), {.rows_of_group = 4000});
  const std::string feed = "epochs: 1 " + games_reader();
  const std::string own = fmt::format("directory: '{}' queue_bytes: 65536", directory.path());
  Source one(own, feed);
  one.finish();
  Source three(own + " threads: 3", feed);
  three.finish();
  EXPECT_TRUE(one.rig.got("out") == three.rig.got("out"));
}

TEST(ParquetDeaths, InBetweenWhichAFileChangesGiveUpTheFile) {
  TempDir directory;
  const auto write = [&](const std::string& id) {
    write_parquet(directory.path("a.parquet"), game_columns_of(2000, id), {.rows_of_group = 500});
  };
  write("old");
  write_parquet(directory.path("b.parquet"), game_columns_of(1, "b"));
  Source source(fmt::format("directory: '{}' queue_bytes: 65536 shuffle_files: false "
                            "queue_capacity: 1",
                            directory.path()),
                "epochs: 1 " + games_reader());
  source.rig.allow("out", 2);
  source.rig.run();
  EXPECT_THAT(source.all(), SizeIs(::testing::Gt(10U)));
  EXPECT_THAT(source.marks(), IsEmpty());
  fs::remove(directory.path("a.parquet"));
  write("new");
  source.rig.restart_all();
  source.rig.allow("out", 1000);
  source.finish();
  EXPECT_THAT(source.marks(), ElementsAre(StartsWith("(gap a.parquet"), "(failed a.parquet)",
                                          "(end b.parquet)", "(epoch 0)"));
  EXPECT_THAT(source.all(), Each(::testing::Not(HasSubstr("new"))));
  EXPECT_EQ(source.counter("skipped_changed"), 1U);
}

TEST(ParquetSkips, TheRestOfAFileThatIsWrittenToWhileItIsRead) {
  TempDir directory;
  write_parquet(directory.path("a.parquet"), game_columns_of(2000, "old"), {.rows_of_group = 500});
  Source source(
      fmt::format("directory: '{}' queue_bytes: 65536 queue_capacity: 1", directory.path()),
      "epochs: 1 " + games_reader());
  source.rig.allow("out", 2);
  source.rig.run();
  std::ofstream(directory.path("a.parquet"), std::ios::app) << "more";
  source.rig.allow("out", 1000);
  source.finish();
  EXPECT_THAT(source.marks(),
              ElementsAre(StartsWith("(gap a.parquet"), "(failed a.parquet)", "(epoch 0)"));
  EXPECT_EQ(source.counter("skipped_changed"), 1U);
}

// ---- EXACT

// Asks for files, as the stage behind does.
class Asker final : public Stage {
 public:
  Asker(const StageContext& context, std::vector<FileRequest> requests)
      : requests_(std::move(requests)), out_(context.output("requests")) {}
  StepStatus step(Step& step) noexcept override {
    const std::uint64_t asked = step.load(Word{0});
    if (asked == requests_.size()) return StepStatus::kEnd;
    if (!step.put(out_, std::as_bytes(std::span(&requests_[asked], 1)))) return StepStatus::kNoRoom;
    step.store(Word{0}, asked + 1);
    return StepStatus::kDone;
  }

 private:
  std::vector<FileRequest> requests_;
  OutPort out_;
};

struct Asked {
  Asked(const std::string& own, std::vector<FileRequest> requests)
      : rig("epochs: 1 " + games_reader("order: EXACT"), &formats::kArrowReaders) {
    rig.add_stage(fmt::format("name: 'source' parquet_source {{ {} }}", own));
    NodeSpec asker;
    asker.state_bytes = 64;
    OutputSpec output;
    output.port = "requests";
    output.record_type = "requests";
    output.units = UnitRule::kRecord;
    asker.outputs = {output};
    asker.create = [requests = std::move(requests)](const StageContext& context) {
      return std::make_unique<Asker>(context, requests);
    };
    rig.add_node("games", std::move(asker));
    rig.add_sink("out", "source");
    rig.build();
  }
  LaneRig rig;
};

TEST(ParquetRequests, AreAnsweredFileByFile) {
  TempDir directory;
  for (const char* name : {"c", "a", "b"}) {
    write_parquet(directory.path(fmt::format("{}.parquet", name)), game_columns_of(1, name));
  }
  Asked asked(fmt::format("directory: '{}'", directory.path()), {{2, 0}, {0, 0}, {1, 0}, {2, 1}});
  asked.rig.run();
  EXPECT_TRUE(asked.rig.all_finished());
  const auto row = [](const char* name) {
    return fmt::format("'{}_0' 1 'fen 0 ' 'e7e5' 'd2d4' 0 0 0", name);
  };
  EXPECT_THAT(told(asked.rig.got("out")),
              ElementsAre("(3 files)", row("c"), "(end c.parquet)", row("a"), "(end a.parquet)",
                          row("b"), "(end b.parquet)", row("c"), "(end c.parquet)"));
  RowBatch last;
  const std::string bytes = asked.rig.got("out").back().bytes;
  ASSERT_TRUE(last.read(std::as_bytes(std::span(bytes))));
  EXPECT_EQ(last.head().epoch, 1U);
  EXPECT_EQ(last.head().file, 2U);
}

TEST(ParquetRequests, GetWhatThereIsOfTheColumns) {
  TempDir directory;
  auto columns = game_columns_of(1, "g");
  std::erase_if(columns, [](const MadeColumn& column) { return column.name == "win"; });
  for (MadeColumn& column : columns) {
    if (column.name == "draw") column = {"draw", "string", {"x"}};
  }
  write_parquet(directory.path("a.parquet"), columns);
  directory.write("b.parquet", "none");
  Asked asked(fmt::format("directory: '{}'", directory.path()), {{1, 0}, {0, 0}});
  asked.rig.run();
  EXPECT_THAT(told(asked.rig.got("out")),
              ElementsAre("(2 files)", "(failed b.parquet)",
                          "'g_0' 1 'fen 0 ' 'e7e5' 'd2d4' absent absent 0", "(end a.parquet)"));
  EXPECT_THAT(asked.rig.log("columns_absent"), SizeIs(1));
}

TEST(ParquetRequests, SurviveDeaths) {
  TempDir directory;
  for (int i = 0; i < 3; ++i) {
    write_parquet(directory.path(fmt::format("{}.parquet", i)),
                  game_columns_of(700, std::to_string(i)), {.rows_of_group = 300});
  }
  const std::vector<FileRequest> requests = {{2, 0}, {0, 0}, {1, 0}, {1, 1}, {2, 1}, {0, 1}};
  const std::string own = fmt::format("directory: '{}' queue_bytes: 65536", directory.path());
  Asked undisturbed(own, requests);
  undisturbed.rig.run();
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    std::mt19937_64 random(seed);
    Asked asked(own, requests);
    asked.rig.run_with_restarts(random, 0.3);
    EXPECT_TRUE(asked.rig.got("out") == undisturbed.rig.got("out"));
  }
}

// ---- damaged bytes

// Whatever the bytes are: rows, or a reasoned refusal; never a crash, and an end.
void read_all(const std::string& path) {
  const std::vector<formats::ColumnWish> wishes = {
      {"text", ColumnType::kText, true},   {"code", ColumnType::kAny, true},
      {"n", ColumnType::kNumber, true},    {"x", ColumnType::kNumber, true},
      {"half", ColumnType::kNumber, true}, {"flag", ColumnType::kAny, true}};
  auto opened = formats::open_parquet_file(path, wishes, 1);
  if (!opened) return;
  RowFile& file = **opened;
  std::vector<std::byte> room(1 << 20);
  static_cast<void>(file.column_names());
  for (std::uint32_t group = 0; group < std::min<std::size_t>(file.row_groups().size(), 100);
       ++group) {
    file.seek(group, 0);
    // A row group that claims to be endless has to prove it.
    for (int records = 0; records < 2000; ++records) {
      const RowFile::Next next =
          file.next({.bytes = 4096, .bytes_max = room.size(), .rows = 500}, 1);
      if (next.kind == RowFile::Kind::kTooLarge) {
        file.pass(1);
        continue;
      }
      if (next.kind != RowFile::Kind::kRows) break;
      file.write(std::span(room).first(next.bytes), {}, "p");
      RowBatch batch;
      ASSERT_TRUE(batch.read(std::span(room).first(next.bytes)));
      file.pass(next.rows);
    }
  }
}

class ParquetBytes : public ::testing::TestWithParam<MadeFile> {};

TEST_P(ParquetBytes, MayBeAnything) {
  constexpr std::size_t kRows = 300;
  TempDir directory;
  const std::string path = directory.path("a.parquet");
  const auto text = values(kRows, [](std::size_t i) { return fmt::format("t{}", i % 50 * i); });
  auto sparse = text;
  for (std::size_t i = 0; i < kRows; i += 3) sparse[i].reset();
  const auto number = values(
      kRows, [](std::size_t i) { return fmt::format("{}", static_cast<double>(i % 16) / 4); });
  write_parquet(path,
                {{"text", "string", sparse},
                 {"code", "dictionary", text},
                 {"n", "int64", values(kRows, [](std::size_t i) { return std::to_string(i * i); })},
                 {"x", "double", number},
                 {"half", "half", number},
                 {"flag", "bool",
                  values(kRows, [](std::size_t i) { return i % 3 == 0 ? "true" : "false"; })}},
                GetParam());
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  read_all(path);
  std::mt19937_64 random(7);
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = whole;
    const auto any = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
    if (round % 10 == 9) {
      bytes.resize(any(bytes.size()));
    } else {
      // Half of the changes hit the footer, which says what everything else is.
      const std::size_t footer = std::min<std::size_t>(bytes.size() / 2, 1500);
      for (std::size_t changes = 1 + any(3); changes > 0; --changes) {
        const std::size_t at = round % 2 == 0 ? bytes.size() - 1 - any(footer) : any(bytes.size());
        bytes[at] = static_cast<char>(round % 4 < 2 ? bytes[at] ^ (1 << any(8)) : any(256));
      }
    }
    directory.write("a.parquet", bytes);
    SCOPED_TRACE(fmt::format("round {}", round));
    read_all(path);
  }
}
INSTANTIATE_TEST_SUITE_P(
    AllWaysToWrite, ParquetBytes,
    ::testing::Values(
        MadeFile{.rows_of_group = 120, .page_bytes = 300},
        MadeFile{.compression = "uncompressed", .dictionary = false},
        MadeFile{
            .compression = "zstd", .dictionary = false, .encoding = "delta", .new_pages = true},
        MadeFile{.compression = "uncompressed", .dictionary = false, .encoding = "lengths"}));

}  // namespace
}  // namespace ringfeed
