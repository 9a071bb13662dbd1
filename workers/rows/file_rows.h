// The rows of one file in a lane's arena, kept until all of them are there, and the games that they
// make.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/io/row_batch.h"
#include "workers/kit/place_pool.h"

namespace ringfeed {

// Records of rows one behind the other in a chain of places.
class FileRows {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : head(layout.word()), tail(layout.word()), records(layout.word()) {}
    Word head;
    Word tail;
    Word records;
  };
  // Records that one call of step() gives up at most.
  static constexpr std::uint64_t kGivenUpMax = 8;

  explicit FileRows(const State& state) : state_(state) {}

  [[nodiscard]] std::uint64_t records(const Step& step) const noexcept {
    return step.load(state_.records);
  }
  // Adds a record. False: no room now.
  [[nodiscard]] bool keep(Step& step, PlacePool& places,
                          std::span<const std::byte> record) noexcept;
  // Gives up to kGivenUpMax records up, from the first one on. True: none is left.
  bool give_up(Step& step, PlacePool& places) noexcept;
  // All of them, as views that hold until one is given up. Records without rows are gaps.
  void look(const Step& step, const PlacePool& places,
            std::vector<formats::RowBatch>& batches) const;

 private:
  State state_;
};

struct RowPlace {
  std::uint32_t batch;
  std::uint32_t row;
};

// Which rows make a game: those with one game_id, wherever they are in the file. Games are numbered
// in the order in which they appear.
class GameIndex {
 public:
  // The column game_id is the first one, ply the second one (wanted_columns.h).
  void build(std::span<const formats::RowBatch> batches);
  [[nodiscard]] std::size_t games() const noexcept { return games_.size(); }
  // Rows may be missing: damage lies beside one of its rows.
  [[nodiscard]] bool cut(std::size_t game) const noexcept { return games_[game].cut; }
  [[nodiscard]] std::uint64_t rows_without_game() const noexcept { return rows_without_game_; }
  // Its rows by their plies, those without one last, else as in the file.
  void rows_of(std::size_t game, std::vector<RowPlace>& rows);

 private:
  static constexpr std::uint32_t kNone = 0xffffffffU;
  // Rows of a game that follow each other in a batch.
  struct Run {
    RowPlace first;
    std::uint32_t count;
    std::uint32_t next;
  };
  struct Game {
    std::uint32_t first_run;
    std::uint32_t last_run;
    bool cut;
  };
  struct Ply {
    bool missing;
    std::int64_t integer;
    double number;
    RowPlace place;
  };
  std::uint32_t game_of(std::string_view id);

  std::span<const formats::RowBatch> batches_;
  std::vector<Run> runs_;
  std::vector<Game> games_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::vector<Ply> plies_;
  std::uint64_t rows_without_game_ = 0;
};

}  // namespace ringfeed
