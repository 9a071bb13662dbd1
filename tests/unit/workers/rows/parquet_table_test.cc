// Parquet files as tables of values, whole and damaged.
#include "workers/io/parquet_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "tests/support/makers/parquet_maker.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using formats::TableType;
using formats::TableValue;
using ::testing::ElementsAre;

Result<std::unique_ptr<formats::TableFile>> opened(const std::string& path) {
  Result<shm::Fd> fd = shm::open_regular(path);
  if (!fd) return fd.error();
  return formats::open_parquet_table(std::move(*fd));
}

// A value as tests look at it.
std::string shown(const TableValue& value) {
  if (!value.fault.empty()) return "fault: " + value.fault;
  if (value.type == TableType::kNothing) return "null";
  if (value.type == TableType::kText) {
    return "'" +
           std::string(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()) + "'";
  }
  std::uint64_t bits = 0;
  if (!value.bytes.empty()) {
    std::memcpy(&bits, value.bytes.data(), std::min(value.bytes.size(), sizeof bits));
  }
  return fmt::format("{}:{}:{}", static_cast<int>(value.type),
                     value.is_array ? fmt::to_string(fmt::join(value.shape, "x")) : "", bits);
}

// All values of a column; where it ends early, what is wrong.
std::vector<std::string> column(formats::TableFile& table) {
  std::vector<std::string> all;
  for (std::size_t group = 0; group < table.row_groups().size(); ++group) {
    if (const Status open = table.open(group); !open) {
      all.push_back("damaged");
      continue;
    }
    for (;;) {
      const Result<std::uint64_t> rows = table.decode();
      if (!rows) all.push_back("damaged");
      if (!rows || *rows == 0) break;
      for (std::uint64_t row = 0; row < *rows; ++row) {
        TableValue value;
        table.value(0, row, value);
        all.push_back(shown(value));
      }
    }
  }
  return all;
}

TEST(ParquetTable, HasEachTypeAsItIs) {
  const TempDir directory;
  const auto type = [](TableType is) { return fmt::to_string(static_cast<int>(is)); };
  const auto values = [&](const std::string& is, const char* a, const char* b) {
    write_parquet(directory.path("a"), {{"c", is, {a, std::nullopt, b}}}, {.rows_of_group = 2});
    const auto table = opened(directory.path("a"));
    EXPECT_TRUE(table) << is;
    (*table)->choose({0});
    return column(**table);
  };
  for (const char* const text : {"string", "large_string", "string_view", "dictionary"}) {
    EXPECT_THAT(values(text, "one", ""), ElementsAre("'one'", "null", "''")) << text;
  }
  EXPECT_THAT(values("int8", "-1", "2"), ElementsAre(type(TableType::kInt8) + "::255", "null",
                                                     type(TableType::kInt8) + "::2"));
  EXPECT_THAT(values("uint64", "18446744073709551615", "2"),
              ElementsAre(type(TableType::kUint64) + "::18446744073709551615", "null",
                          type(TableType::kUint64) + "::2"));
  EXPECT_THAT(values("bool", "true", "false"),
              ElementsAre(type(TableType::kBool) + "::1", "null", type(TableType::kBool) + "::0"));
  EXPECT_THAT(values("list", "7", "8"),
              ElementsAre(type(TableType::kInt64) + ":1:7", type(TableType::kInt64) + ":0:0",
                          type(TableType::kInt64) + ":1:8"));
}

TEST(ParquetTable, SaysWhereRowGroupsBegin) {
  const TempDir directory;
  write_parquet(directory.path("a"), {{"c", "int32", {"1", "2", "3", "4", "5"}}},
                {.rows_of_group = 2});
  const auto table = opened(directory.path("a"));
  ASSERT_TRUE(table);
  const std::vector<formats::RowGroup>& groups = (*table)->row_groups();
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_LT(groups[0].begin, groups[1].begin);
  EXPECT_EQ(groups[2].first_row, 4U);
  EXPECT_EQ(groups[2].rows, 1U);
}

// Every bit of a small file in turn, and random ones of a larger: it is refused, ends early or has
// other values; nothing else is read.
TEST(ParquetTable, SurvivesEveryDamage) {
  const TempDir directory;
  std::vector<std::optional<std::string>> texts;
  std::vector<std::optional<std::string>> lists;
  for (int i = 0; i < 300; ++i) {
    texts.push_back(i % 7 == 0 ? std::nullopt : std::optional(std::string(i % 20, 'x')));
    lists.push_back(i % 5 == 0 ? std::nullopt : std::optional(std::to_string(i)));
  }
  for (const bool dictionary : {true, false}) {
    write_parquet(directory.path("a"), {{"t", "string", texts}, {"l", "list", lists}},
                  {.compression = "uncompressed", .rows_of_group = 100, .dictionary = dictionary});
    std::ifstream file(directory.path("a"), std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(file), {}};
    std::mt19937 random(4);
    int other = 0;
    for (int i = 0; i < 600; ++i) {
      std::string hurt = whole;
      for (std::uint32_t n = 1 + random() % 2; n > 0; --n) {
        const std::size_t at = random() % hurt.size();
        hurt[at] = static_cast<char>(hurt[at] ^ 1 << random() % 8);
      }
      const auto table = opened(directory.write("b", hurt));
      if (!table) {
        ++other;
        continue;
      }
      if ((*table)->columns().size() != 2) continue;
      (*table)->choose({i % 2 == 0 ? std::size_t{0} : 1});
      other += static_cast<int>(column(**table).size() != 300);
    }
    EXPECT_GT(other, 50);
  }
}

}  // namespace
}  // namespace ringfeed
