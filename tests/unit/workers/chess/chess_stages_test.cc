// The specification of the chess stages (chess_games.h, chess_variations.h, exact_reader.h,
// sequence_pool.h, variation_mixer.h, sequence_batcher.h): what happens to rows and samples on
// their way, deaths included. Which tokens a row gives is tests/unit/formats' business, and that it
// is the original's is tests/e2e/chess/test_chess.py's.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/support/rig/stage_data.h"
#include "tests/support/rig/stage_views.h"
#include "workers/chess/chess_columns.h"
#include "workers/chess/sequence_records.h"
#include "workers/chess/token_sequence.h"
#include "workers/chess/variation_mixer.h"
#include "workers/io/row_batch.h"
#include "workers/rows/row_records.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using formats::ColumnKind;
using formats::RowBatchHead;
using formats::RowBatchWriter;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kStart = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

struct TestRow {
  std::string game;
  std::int64_t ply = 0;
  std::string fen = kStart;
  std::string move = "e2e4";
  std::string best = "d2d4";
  double win = 0.5;
};

std::string packed(std::uint32_t file, std::uint32_t epoch, std::uint64_t first_row,
                   const std::vector<std::vector<std::string>>& texts,
                   const std::vector<std::vector<double>>& numbers, std::uint32_t columns,
                   std::uint32_t rows) {
  const std::string path = fmt::format("/data/part-{}.parquet", file);
  std::string bytes(1 << 20, '\0');
  RowBatchWriter writer(
      {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()},
      {first_row, rows, columns, file, epoch, static_cast<std::uint32_t>(path.size()), 0}, path);
  for (std::uint32_t c = 0; c < columns; ++c) {
    if (!texts[c].empty()) {
      std::uint64_t size = 0;
      for (const std::string& text : texts[c]) size += text.size();
      const RowBatchWriter::Column to = writer.add(ColumnKind::kText, false, size);
      std::uint32_t at = 0;
      for (std::uint32_t i = 0; i < rows; ++i) {
        to.offsets[i] = at;
        std::copy(texts[c][i].begin(), texts[c][i].end(), reinterpret_cast<char*>(to.text) + at);
        at += static_cast<std::uint32_t>(texts[c][i].size());
      }
      to.offsets[rows] = at;
    } else if (!numbers[c].empty()) {
      const RowBatchWriter::Column to = writer.add(ColumnKind::kNumber, false, 0);
      std::copy(numbers[c].begin(), numbers[c].end(), to.numbers.begin());
    } else {
      static_cast<void>(writer.add(ColumnKind::kAbsent, false, 0));
    }
  }
  bytes.resize(writer.bytes());
  return bytes;
}

RigRecord rows_record(std::uint32_t file, std::uint32_t epoch, std::uint64_t first_row,
                      const std::vector<TestRow>& rows) {
  std::vector<std::vector<std::string>> texts(8);
  std::vector<std::vector<double>> numbers(8);
  for (const TestRow& row : rows) {
    texts[game_columns::kGameId].push_back(row.game);
    numbers[game_columns::kPly].push_back(static_cast<double>(row.ply));
    texts[game_columns::kFen].push_back(row.fen);
    texts[game_columns::kPlayedMove].push_back(row.move);
    texts[game_columns::kBestMove].push_back(row.best);
    numbers[game_columns::kWin].push_back(row.win);
    numbers[game_columns::kDraw].push_back(0.25);
    numbers[game_columns::kLoss].push_back(0.75 - row.win);
  }
  return {.bytes = packed(file, epoch, first_row, texts, numbers, 8,
                          static_cast<std::uint32_t>(rows.size())),
          .user = kRowsRecord};
}

RigRecord mark(std::uint64_t user, std::uint32_t file, std::uint32_t epoch) {
  return {.bytes = packed(file, epoch, 0, {}, {}, 0, 0), .user = user};
}

// Games of a few files, each game's rows spread over two records.
std::vector<RigRecord> some_files(std::uint32_t epochs, std::uint32_t files, std::uint32_t games,
                                  bool ends_epochs = true) {
  std::vector<RigRecord> records;
  for (std::uint32_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::uint32_t file = 0; file < files; ++file) {
      std::vector<TestRow> rows;
      for (std::uint32_t game = 0; game < games; ++game) {
        for (std::int64_t ply = 0; ply < 3 + game % 5; ++ply) {
          rows.push_back({.game = fmt::format("g{}", game), .ply = ply});
        }
      }
      // Not in the order of games or plies.
      std::mt19937_64 random(file);
      std::shuffle(rows.begin() + 1, rows.end(), random);
      for (std::size_t at = 0; at < rows.size(); at += 7) {
        const std::size_t end = std::min(at + 7, rows.size());
        records.push_back(rows_record(file, epoch, at,
                                      {rows.begin() + static_cast<std::ptrdiff_t>(at),
                                       rows.begin() + static_cast<std::ptrdiff_t>(end)}));
      }
      records.push_back(mark(kFileEndRecord, file, epoch));
    }
    if (ends_epochs) records.push_back(mark(kEpochEndRecord, 0, epoch));
  }
  return records;
}

formats::TokenSequence::Lineage lineage(const RigRecord& record) {
  return formats::packed_lineage(
      {reinterpret_cast<const std::byte*>(record.bytes.data()), record.bytes.size()});
}

using Names = std::multiset<std::pair<std::uint32_t, std::uint32_t>>;  // of file, game
Names names(const std::vector<RigRecord>& records) {
  Names all;
  for (const RigRecord& record : records) {
    if (record.user == kSequenceRecord) all.insert({lineage(record).file, lineage(record).game});
  }
  return all;
}

void describe_games(LaneRig& rig, const std::string& settings) {
  rig.add_source("rows", 1, {.capacity = 16, .bytes = 1 << 20});
  rig.add_stage(fmt::format("name: 'games' chess_games {{ input: 'rows' {} }}", settings));
  rig.add_sink("out", "games");
  rig.build();
}

std::vector<RigRecord> games_of(const std::vector<RigRecord>& rows, const std::string& settings,
                                double restarts = 0, std::uint64_t chance = 1) {
  LaneRig rig("seed: 5 epochs: 1");
  describe_games(rig, settings);
  for (const RigRecord& record : rows) rig.feed("rows", record);
  rig.finish("rows");
  std::mt19937_64 random(chance);
  if (restarts > 0) {
    rig.run_with_restarts(random, restarts);
  } else {
    rig.run();
  }
  EXPECT_TRUE(rig.all_finished());
  return rig.got("out");
}

TEST(ChessGames, GivesEachGameOnceInEachEpoch) {
  const std::vector<RigRecord> got = games_of(some_files(2, 3, 11), "pool_size: 8");
  ASSERT_THAT(got, SizeIs(2 * 3 * 11));
  Names all;
  for (std::uint32_t file = 0; file < 3; ++file) {
    for (std::uint32_t game = 0; game < 11; ++game) all.insert({file, game});
  }
  EXPECT_EQ(names({got.begin(), got.begin() + 33}), all) << "epochs are mixed for themselves";
  EXPECT_EQ(names({got.begin() + 33, got.end()}), all);
  EXPECT_NE(texts({got.begin(), got.begin() + 33}), texts({got.begin() + 33, got.end()}));
}

TEST(ChessGames, MixesAcrossFiles) {
  const std::vector<RigRecord> got = games_of(some_files(1, 3, 20), "pool_size: 30");
  std::set<std::uint32_t> files;
  for (std::size_t i = 0; i < 20; ++i) files.insert(lineage(got[i]).file);
  EXPECT_GT(files.size(), 1U);
}

TEST(ChessGames, DeathsAndLanesChangeNothing) {
  const std::vector<RigRecord> rows = some_files(2, 3, 9);
  const std::string settings = "pool_size: 8 skip_board_probability: 0.3 length_max: 150";
  const std::vector<RigRecord> plain = games_of(rows, settings);
  ASSERT_THAT(plain, SizeIs(54));
  EXPECT_EQ(games_of(rows, settings + " threads: 3"), plain);
  for (std::uint64_t chance = 1; chance <= 20; ++chance) {
    ASSERT_EQ(games_of(rows, settings + (chance % 2 == 0 ? " threads: 2" : ""), 0.3, chance), plain)
        << chance;
  }
}

TEST(ChessGames, AGameBesideAGapIsLeftOut) {
  LaneRig rig("seed: 5 epochs: 1");
  describe_games(rig, "pool_size: 1");
  rig.feed("rows", rows_record(0, 0, 0, {{.game = "a"}, {.game = "b"}}));
  rig.feed("rows", mark(kRowsGapRecord, 0, 0));
  rig.feed("rows", rows_record(0, 0, 9, {{.game = "c"}, {.game = "d"}}));
  rig.feed("rows", mark(kFileEndRecord, 0, 0));
  rig.finish("rows");
  rig.run();
  EXPECT_EQ(names(rig.got("out")), (Names{{0, 0}, {0, 3}}));
  EXPECT_EQ(rig.counter("games", "games_cut"), 2U);
}

TEST(ChessGames, SkipsGamesWithAFaultByThemselves) {
  LaneRig rig("seed: 5 epochs: 1");
  describe_games(rig, "pool_size: 1");
  rig.feed("rows", rows_record(0, 0, 100,
                               {{.game = "a", .fen = "nonsense"},
                                {.game = "b", .move = "a7a8n"},
                                {.game = "c", .best = "bos"},
                                {.game = "d"}}));
  rig.feed("rows", {.bytes = "these are not rows", .user = kRowsRecord});
  rig.feed("rows", mark(kFileEndRecord, 0, 0));
  rig.finish("rows");
  rig.run();
  EXPECT_EQ(names(rig.got("out")), (Names{{0, 3}}));
  for (const char* reason : {"skipped_fen", "skipped_played_move", "skipped_best_move"}) {
    EXPECT_EQ(rig.counter("games.tokens", reason), 1U) << reason;
  }
  EXPECT_EQ(rig.counter("games", "rows_damaged"), 1U);
  EXPECT_THAT(rig.log("path=/data/part-0.parquet offset=101"), SizeIs(1));
}

// ---- EXACT

std::vector<RigRecord> exact_of(const std::string& settings, double restarts,
                                std::uint64_t chance) {
  LaneRig rig("seed: 5 epochs: 2");
  rig.add_source("rows", 1, {.capacity = 16, .bytes = 1 << 20});
  rig.add_stage(
      fmt::format("name: 'games' chess_games {{ input: 'rows' order: EXACT {} }}", settings));
  rig.add_sink("out", "games");
  rig.add_sink("requests", "games.requests");
  rig.build();
  const FileList list{3, 0};
  rig.feed("rows",
           {.bytes = {reinterpret_cast<const char*>(&list), sizeof list}, .user = kFilesRecord});
  // The files that are asked for.
  std::map<std::uint32_t, std::vector<RigRecord>> files;
  for (const RigRecord& record : some_files(1, 3, 9, false)) {
    RowBatchHead head{};
    std::memcpy(&head, record.bytes.data(), sizeof head);
    files[head.file].push_back(record);
  }
  std::mt19937_64 random(chance);
  std::size_t served = 0;
  for (bool done = false; !done;) {
    if (restarts > 0) {
      rig.run_with_restarts(random, restarts);
    } else {
      rig.run();
    }
    const std::vector<RigRecord> requests = rig.got("requests");
    done = served == requests.size();
    for (; served < requests.size(); ++served) {
      FileRequest request{};
      std::memcpy(&request, requests[served].bytes.data(), sizeof request);
      for (const RigRecord& record : files[request.file]) rig.feed("rows", record);
    }
  }
  EXPECT_TRUE(rig.finished(rig.lanes_of("games").front()));
  return rig.got("out");
}

TEST(ExactGames, DeathsChangeNothing) {
  for (const std::string settings : {"", "workers: 2", "workers: 4 skip_board_probability: 0.5"}) {
    const std::vector<RigRecord> plain = exact_of(settings, 0, 0);
    EXPECT_THAT(names(plain), SizeIs(2 * 27)) << settings;
    for (std::uint64_t chance = 1; chance <= 10; ++chance) {
      ASSERT_EQ(exact_of(settings, 0.3, chance), plain) << settings << chance;
    }
  }
}

TEST(ChessStages, RefuseQueuesThatAreTooSmallOrMayDrop) {
  const auto refusal = [](const std::string& stage) {
    LaneRig rig("epochs: 1 stages { name: 'rows' parquet_source { files: 'a' } }");
    try {
      rig.add_stage(stage);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal("name: 'games' chess_games { input: 'rows' queue_bytes: 65536 }"), "");
  EXPECT_THAT(
      refusal("name: 'games' chess_games { input: 'rows' length_max: 2000 queue_bytes: 65536 }"),
      HasSubstr("does not fit half of queue_bytes"));
  EXPECT_THAT(refusal("name: 'games' chess_games { input: 'rows' order: EXACT overflow_behavior: "
                      "DROP_NEW }"),
              HasSubstr("BLOCK"));
  EXPECT_THAT(refusal("name: 'v' chess_variations { input: 'rows' order: EXACT }"),
              HasSubstr("variation_mixer"));
}

// ---- mixing and batches

RigRecord sample(std::uint32_t game, std::size_t tokens = 5) {
  formats::TokenSequence sequence;
  sequence.lineage = {0, game, 0, 0};
  sequence.tokens.assign(tokens, formats::kPadToken);
  sequence.tokens.front() = static_cast<formats::Token>(game % 1900);
  std::string bytes(formats::packed_bytes(sequence), '\0');
  formats::pack(sequence, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
  return {.bytes = bytes, .tag = {game, 0}, .user = kSequenceRecord};
}

std::vector<RigRecord> mixed(double restarts, std::uint64_t chance, bool has_variations = true) {
  LaneRig rig("seed: 5 epochs: 1");
  rig.add_source("games", 1, {.capacity = 16, .bytes = 1 << 18});
  rig.add_source("variations", 1, {.capacity = 16, .bytes = 1 << 18});
  rig.add_stage(
      "name: 'mixer' variation_mixer { input: 'games' variations: 'variations' variation_ratio: "
      "0.4 "
      "}");
  rig.add_sink("out", "mixer");
  rig.build();
  for (std::uint32_t i = 0; i < 60; ++i) rig.feed("games", sample(i));
  rig.feed("games", {.user = kSequencesEndRecord});
  for (std::uint32_t epoch = 0; epoch < 200; ++epoch) {
    for (std::uint32_t i = 0; i < 4 && has_variations; ++i)
      rig.feed("variations", sample(1000 + i));
    rig.feed("variations", {.user = kSequencesEndRecord});
  }
  rig.finish("games");
  std::mt19937_64 random(chance);
  if (restarts > 0) {
    rig.run_with_restarts(random, restarts);
  } else {
    rig.run();
  }
  EXPECT_TRUE(rig.finished(rig.lanes_of("mixer").front()));
  return rig.got("out");
}

TEST(VariationMixer, EndsWithTheGamesAndCountsTheEpochsOfTheVariations) {
  const std::vector<RigRecord> got = mixed(0, 0);
  std::uint32_t games = 0;
  std::uint32_t variations = 0;
  for (const RigRecord& record : got) {
    const auto from = lineage(record);
    if (from.game < 1000) {
      EXPECT_EQ(from.game, games++);
    } else {
      EXPECT_EQ(from.game - 1000, variations % 4);
      EXPECT_EQ(from.variation_epoch, variations / 4);
      ++variations;
    }
  }
  EXPECT_EQ(games, 60U);
  EXPECT_NEAR(variations, 40, 25);
}

TEST(VariationMixer, TakesAGameWhereThereIsNoVariation) {
  EXPECT_THAT(mixed(0, 0, false), SizeIs(60));
}

// Variations that do not begin again are over before the games: what comes is another mix, and it
// is said.
TEST(VariationMixer, SaysWhatTheMixIsAndWasToBe) {
  using ::testing::HasSubstr;
  LaneRig rig("seed: 5 epochs: 1");
  rig.add_source("games", 1, {.capacity = 16, .bytes = 1 << 18});
  rig.add_source("variations", 1, {.capacity = 16, .bytes = 1 << 18});
  rig.add_stage(
      "name: 'mixer' variation_mixer { input: 'games' variations: 'variations' variation_ratio: "
      "0.7 "
      "}");
  rig.add_sink("out", "mixer");
  rig.build();
  for (std::uint32_t i = 0; i < 1000; ++i) rig.feed("games", sample(i));
  for (std::uint32_t i = 0; i < 500; ++i) rig.feed("variations", sample(1000 + i));
  rig.finish("variations");
  rig.run();
  EXPECT_THAT(rig.note("mixer"), HasSubstr("0.7"));
  rig.finish("games");
  rig.run();
  EXPECT_THAT(rig.got("out"), SizeIs(1500));
  EXPECT_EQ(rig.note("mixer"), "0.333 of 1500 samples are variations, 0.700 is configured");
  const std::vector<std::string> said = rig.log("no_variations ");
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said.front(), HasSubstr("their source of rows does not have repeat: true"));
  EXPECT_THAT(said.front(), HasSubstr("0.700 is configured; only games from here on"));
}

TEST(VariationMixer, WarnsOfVariationsThatDoNotBeginAgain) {
  using ::testing::HasSubstr;
  const auto warnings = [](const std::string& epochs, const std::string& searched,
                           const std::string& order = "BETTER") {
    const StageViews stages(
        fmt::format("{} stages {{ name: 'g' parquet_source {{ files: 'a' }} }}"
                    " stages {{ name: 'games' chess_games {{ input: 'g' order: {} }} }}"
                    " stages {{ name: 's' parquet_source {{ files: 'b' {} }} }}"
                    " stages {{ name: 'searched' chess_variations {{ input: 's' order: {} }} }}"
                    " stages {{ name: 'mixer' variation_mixer {{ input: 'games' variations: "
                    "'searched' variation_ratio: 0.7 order: {} }} }}",
                    epochs, order, searched, order, order));
    std::vector<std::string> texts;
    for (const Problem& problem : variation_mixer_type().problems(stages["mixer"])) {
      EXPECT_TRUE(problem.warning) << problem.text;
      texts.push_back(problem.field + ": " + problem.text);
    }
    return texts;
  };
  const std::vector<std::string> texts = warnings("epochs: 2", "");
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_THAT(texts.front(), HasSubstr("variation_ratio 0.7 holds only as long as there are"));
  EXPECT_THAT(texts.front(), HasSubstr("stage 's' ends with epoch 2"));
  EXPECT_THAT(warnings("epochs: 2", "repeat: true"), IsEmpty());
  EXPECT_THAT(warnings("", ""), IsEmpty()) << "in an endless feed they begin again";
  EXPECT_THAT(warnings("epochs: 2", "", "EXACT"), IsEmpty()) << "which begins them again itself";
}

// What is drawn does not hang on when a sample comes.
TEST(VariationMixer, WaitsForWhatItHasDrawn) {
  const std::vector<RigRecord> plain = mixed(0, 0);
  for (std::uint64_t chance = 1; chance <= 5; ++chance) {
    LaneRig rig("seed: 5 epochs: 1");
    rig.add_source("games", 1, {.capacity = 16, .bytes = 1 << 18});
    rig.add_source("variations", 1, {.capacity = 16, .bytes = 1 << 18});
    rig.add_stage(
        "name: 'mixer' variation_mixer { input: 'games' variations: 'variations' variation_ratio: "
        "0.4 "
        "}");
    rig.add_sink("out", "mixer");
    rig.build();
    std::mt19937_64 random(chance);
    std::uint32_t game = 0;
    for (std::uint32_t variation = 0; variation < 1000;) {
      const bool games_turn = game <= 60 && random() % 2 == 0;
      if (games_turn && game < 60) {
        rig.feed("games", sample(game++));
      } else if (games_turn) {
        rig.feed("games", {.user = kSequencesEndRecord});
        rig.finish("games");
        ++game;
      } else if (variation % 5 == 4) {
        rig.feed("variations", {.user = kSequencesEndRecord});
        ++variation;
      } else {
        rig.feed("variations", sample(1000 + variation % 5));
        ++variation;
      }
      if (random() % 3 == 0) rig.run();
    }
    rig.run();
    EXPECT_EQ(rig.got("out"), plain) << chance;
  }
}

TEST(VariationMixer, DeathsChangeNothing) {
  const std::vector<RigRecord> plain = mixed(0, 0);
  for (std::uint64_t chance = 1; chance <= 20; ++chance) ASSERT_EQ(mixed(0.3, chance), plain);
}

std::vector<RigBatch> batches(const std::vector<RigRecord>& samples, const std::string& settings,
                              const std::string& feed = "seed: 5 epochs: 1", double restarts = 0,
                              std::uint64_t chance = 1) {
  LaneRig rig(feed);
  rig.add_source("samples", 1, {.capacity = 16, .bytes = 1 << 18});
  rig.add_stage(
      fmt::format("name: 'batches' sequence_batcher {{ input: 'samples' length: 8 "
                  "batch_size: 4 lineage: true {} }}",
                  settings));
  rig.build();
  for (const RigRecord& record : samples) rig.feed("samples", record);
  rig.finish("samples");
  std::mt19937_64 random(chance);
  if (restarts > 0) {
    rig.run_with_restarts(random, restarts);
  } else {
    rig.run();
  }
  EXPECT_TRUE(rig.all_finished());
  return rig.batches();
}

std::vector<std::uint32_t> sizes(const std::vector<RigBatch>& all) {
  std::vector<std::uint32_t> rows;
  for (const RigBatch& batch : all) rows.push_back(batch.rows);
  return rows;
}

// The first elements of rows: arrays begin with input_ids, 8 int64 of each row.
std::vector<std::int64_t> first_tokens(const std::vector<RigBatch>& all) {
  std::vector<std::int64_t> tokens;
  for (const RigBatch& batch : all) {
    for (std::uint32_t row = 0; row < batch.rows; ++row) {
      std::int64_t token = 0;
      std::memcpy(&token, batch.bytes.data() + 64 * std::size_t{row}, sizeof token);
      tokens.push_back(token);
    }
  }
  return tokens;
}

TEST(SequenceBatcher, FillsBatchesAndEndsThemWhereItIsTold) {
  std::vector<RigRecord> samples;
  for (std::uint32_t i = 0; i < 10; ++i) {
    samples.push_back(sample(i));
    if (i == 5) samples.push_back({.user = kBatchEndRecord});
    if (i == 2) samples.push_back({.user = kSequencesEndRecord});
  }
  samples.push_back({.user = kBatchEndRecord});
  samples.push_back({.user = kBatchEndRecord});
  const std::vector<RigBatch> got = batches(samples, "");
  EXPECT_EQ(sizes(got), (std::vector<std::uint32_t>{4, 2, 4}));
  EXPECT_EQ(first_tokens(got), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(sizes(batches(samples, "", "seed: 5 epochs: 1 drop_remainder: true")),
            (std::vector<std::uint32_t>{4, 4}));
}

TEST(SequenceBatcher, TakesEveryWorldSizeThSample) {
  std::vector<RigRecord> samples;
  for (std::uint32_t i = 0; i < 10; ++i) samples.push_back(sample(i));
  EXPECT_EQ(first_tokens(batches(samples, "world_size: 3 rank: 1")),
            (std::vector<std::int64_t>{1, 4, 7}));
  EXPECT_EQ(first_tokens(batches(samples, "world_size: 3 rank: 0")),
            (std::vector<std::int64_t>{0, 3, 6, 9}));
}

TEST(SequenceBatcher, SkipsWhatIsNoSequenceOrTooLong) {
  std::vector<RigRecord> samples = {sample(1), sample(2, 9), {.bytes = "x"}, sample(3, 8)};
  EXPECT_EQ(first_tokens(batches(samples, "")), (std::vector<std::int64_t>{1, 3}));
}

TEST(SequenceBatcher, DeathsAndLanesChangeNothing) {
  std::vector<RigRecord> samples;
  for (std::uint32_t i = 0; i < 30; ++i) samples.push_back(sample(i, 1 + i % 8));
  const std::vector<RigBatch> plain = batches(samples, "");
  EXPECT_EQ(first_tokens(batches(samples, "threads: 2")), first_tokens(plain));
  EXPECT_EQ(first_tokens(batches(samples, "compact: true")).size(), 30U);
  for (std::uint64_t chance = 1; chance <= 10; ++chance) {
    const std::vector<RigBatch> again = batches(samples, "", "seed: 5 epochs: 1", 0.3, chance);
    ASSERT_EQ(first_tokens(again), first_tokens(plain)) << chance;
    ASSERT_EQ(sizes(again), sizes(plain)) << chance;
  }
}

}  // namespace
}  // namespace ringfeed
