#include "tests/conformance/makers.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/makers/tar_maker.h"
#include "tests/support/rig/lc0_sample.h"
#ifdef RINGFEED_ARROW
#include "tests/support/makers/parquet_maker.h"
#endif

namespace ringfeed::testing {
namespace {

constexpr const char* kData = RINGFEED_SOURCE_DIR "/tests/data";

}  // namespace

void lc0_files(const TempDir& directory) {
  constexpr std::size_t kRecords = 8;  // of a game
  std::vector<std::string> games;
  for (const SampleGame& sample : kSampleGames) {
    const Bytes records = sample_records(sample);
    for (std::size_t part = 0; part < 3; ++part) {
      const char* const from =
          reinterpret_cast<const char*>(records.data()) + part * kRecords * formats::kV6RecordBytes;
      games.push_back(gzip_text({from, kRecords * formats::kV6RecordBytes}));
    }
  }
  std::size_t next = 0;
  for (const char* const folder : {"new", "old"}) {
    for (const char* const name : {"a", "b"}) {
      TarMaker tar;
      tar.add("0.gz", games[next++]);
      tar.add("1.gz", games[next++]);
      directory.write(fmt::format("{}/{}-{}.tar", folder, folder, name), tar.end().text());
      directory.write(fmt::format("{}/{}-{}.gz", folder, folder, name), games[next++]);
    }
  }
}

#ifdef RINGFEED_ARROW
namespace {

nlohmann::json parsed_file(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// Rows as tests/data/chess has them: texts, numbers and null.
void write_rows(const std::string& path, const std::vector<nlohmann::json>& rows) {
  std::vector<MadeColumn> columns;
  for (const auto& [name, value] : rows.front().items()) {
    const bool number = name == "ply" || name == "win" || name == "draw" || name == "loss";
    MadeColumn& column = columns.emplace_back();
    column.name = name;
    column.type = name == "ply" ? "int64" : number ? "double" : "string";
    for (const nlohmann::json& row : rows) {
      const nlohmann::json cell = row.value(name, nlohmann::json());
      column.values.push_back(cell.is_null()     ? std::optional<std::string>()
                              : cell.is_string() ? cell.get<std::string>()
                                                 : cell.dump());
    }
  }
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_parquet(path, columns);
}

}  // namespace

void chess_tables(const TempDir& directory) {
  std::vector<std::vector<nlohmann::json>> files(2);
  std::size_t next = 0;
  const nlohmann::json games = parsed_file(std::string(kData) + "/chess/pretrain_games.json");
  for (const auto& [name, rows] : games["games"].items()) {
    for (const nlohmann::json& row : rows) files[next % 2].push_back(row);
    ++next;
  }
  write_rows(directory.path("games/part-000.parquet"), files[0]);
  write_rows(directory.path("games/part-001.parquet"), files[1]);
  std::vector<nlohmann::json> searched;
  const nlohmann::json all = parsed_file(std::string(kData) + "/chess/finetune_rows.json");
  for (const auto& [name, row] : all["rows"].items()) searched.push_back(row);
  write_rows(directory.path("variations/part-000.parquet"), searched);
}
#endif

void jsonl_files(const TempDir& directory) {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text +=
        fmt::format(R"({{"text": "line {} of it", "label": {}, "more": [0.5, {}]}})", i, i % 7, i);
    text += i % 2 == 0 ? "\n" : "\r\n";
    if (i % 20 != 19) continue;
    const std::string name = fmt::format("part-{}.jsonl", i / 20);
    directory.write(i == 59 ? name + ".gz" : name, i == 59 ? gzip_text(text) : text);
    text.clear();
  }
}

void item_weights(const TempDir& directory) {
  std::string head = "{'descr': '<f8', 'fortran_order': False, 'shape': (100,), }";
  head.resize(128 - 10 - 1, ' ');
  std::string file = std::string("\x93NUMPY\x01\x00", 8) + '\x76' + '\0' + head + '\n';
  for (int i = 0; i < 100; ++i) {
    const double weight = i % 5;
    file.append(reinterpret_cast<const char*>(&weight), sizeof weight);
  }
  directory.write("weights.npy", file);
}

void token_files(const TempDir& directory) {
  std::filesystem::copy(std::string(kData) + "/fairseq/inputs/data_bin", directory.path(),
                        std::filesystem::copy_options::recursive);
}

// For a stage that reads no files.
void requests(const TempDir&) {}

Maker maker_named(std::string_view name) {
  if (name == "requests") return &requests;
  if (name == "lc0_files") return &lc0_files;
#ifdef RINGFEED_ARROW
  if (name == "chess_tables") return &chess_tables;
#endif
  if (name == "jsonl_files") return &jsonl_files;
  if (name == "item_weights") return &item_weights;
  if (name == "token_files") return &token_files;
  return nullptr;
}

}  // namespace ringfeed::testing
