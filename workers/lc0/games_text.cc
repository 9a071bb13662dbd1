#include "workers/lc0/games_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "workers/inspect/describers.h"

namespace ringfeed::inspect {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kFieldsInLine = 3;

std::string move_text(const ordered_json& move) {
  const auto text = move["move"].get<std::string>();
  if (move["castling"].is_null()) return text;
  return fmt::format("{} ({} in other notations)", text, move["castling"].get<std::string>());
}

std::string policy_text(const ordered_json& policy) {
  std::string text = "  policy: ";
  text += policy["legal"].is_null()
              ? "version 3 does not distinguish legal moves from others"
              : fmt::format("{} legal moves", policy["legal"].get<std::size_t>());
  text += fmt::format(", probabilities sum to {:.6g}", policy["sum"].get<double>());
  if (policy.contains("nan")) text += fmt::format(", {} are NaN", policy["nan"].get<std::size_t>());
  text += "\n";
  for (const ordered_json& move : policy["top"]) {
    text += fmt::format("    {:<6} {:.6f}  index {}", move["move"].get<std::string>(),
                        move["probability"].get<double>(), move["index"].get<std::size_t>());
    if (!move["castling"].is_null()) {
      text +=
          fmt::format(" (castling, {} in other notations)", move["castling"].get<std::string>());
    }
    text += "\n";
  }
  return text;
}

std::string board_text(const ordered_json& record) {
  const ordered_json& side = record["side_to_move"];
  const bool known = record["fen"].is_string();
  const bool black = known && side == "black";
  std::string text = fmt::format(
      "  {}; the board as the side to move sees it: its pieces are capitals\n",
      side.is_null() ? "the side to move is unknown" : side.get<std::string>() + " to move");
  int row = 0;
  for (const ordered_json& line : record["board"]) {
    text += fmt::format("    {} ", black ? row + 1 : 8 - row);
    for (const char piece : line.get<std::string>()) text += fmt::format(" {}", piece);
    text += "\n";
    ++row;
  }
  return text + "       a b c d e f g h\n";
}

std::string record_text(const ordered_json& record) {
  std::string text = fmt::format("record {}: version {}, input_format {} ({})\n",
                                 record["index"].get<std::size_t>(), number_text(record["version"]),
                                 number_text(record["input_format"]),
                                 record["input_format_name"].get<std::string>());
  text += board_text(record);
  if (record["fen"].is_string()) {
    text += fmt::format(
        "  fen: {}{}\n", record["fen"].get<std::string>(),
        record["move_number_known"].get<bool>() ? "" : "  (the move number is unknown)");
  } else {
    text += fmt::format("  fen: none, {}\n", record["fen_missing"].get<std::string>());
  }
  text += fmt::format("  history: {} of 8 steps{}\n", record["history_steps"].get<std::size_t>(),
                      record["repetition"].get<bool>() ? "; the position is a repetition" : "");
  std::size_t column = 0;
  for (const auto& [name, value] : record["fields"].items()) {
    const bool last = ++column % kFieldsInLine == 0 || column == record["fields"].size();
    const std::string shown = fmt::format("{} {}", name, number_text(value));
    text += column % kFieldsInLine == 1 ? "  " : "";
    text += last ? shown + "\n" : fmt::format("{:<32}", shown);
  }
  if (record.contains("invariance") && !record["invariance"].empty()) {
    text += "  invariance_info:";
    for (const ordered_json& name : record["invariance"]) {
      text += " " + name.get<std::string>();
    }
    text += "\n";
  }
  for (const char* name : {"played", "best"}) {
    if (!record.contains(name) || record[name].is_null()) continue;
    text += fmt::format("  {}: {}\n", name, move_text(record[name]));
  }
  return text + policy_text(record["policy"]);
}

std::string chunk_text(const ordered_json& chunk) {
  std::string text = "game";
  if (chunk.contains("name")) {
    text += fmt::format(" {} ({})", chunk["index"].get<std::size_t>(),
                        chunk["name"].get<std::string>());
  }
  text += fmt::format(": {} records of version {}, input_format {}, {} bytes, {} as stored",
                      chunk["records"].get<std::size_t>(), number_text(chunk["version"]),
                      number_text(chunk["input_format"]), number_text(chunk["bytes"]),
                      number_text(chunk["stored_bytes"]));
  if (chunk.contains("trailing_bytes")) {
    text += fmt::format(", followed by {} more", number_text(chunk["trailing_bytes"]));
  }
  return text + "\n";
}

std::string list_text(const ordered_json& list, std::size_t omitted) {
  std::string text = fmt::format("  {:>6} {:>14} {:>10} {:>10} {:>8}\n", "index", "byte", "stored",
                                 "inflated", "records");
  for (const ordered_json& entry : list) {
    const auto records = entry["records_claimed"].get<std::uint64_t>();
    text += fmt::format("  {:>6} {:>14} {:>10} {:>10} {:>8}  {}\n",
                        entry["index"].get<std::size_t>(), entry["offset"].get<std::uint64_t>(),
                        entry["stored_bytes"].get<std::uint64_t>(),
                        entry["bytes_claimed"].get<std::uint64_t>(),
                        records == 0 ? std::string("?") : std::to_string(records),
                        entry.value("name", std::string()));
  }
  if (omitted != 0) text += fmt::format("  and {} more: --all\n", omitted);
  return text + "  inflated and records: as claimed by the files\n";
}

}  // namespace

std::string games_text(const ordered_json& found) {
  std::string text;
  if (found.contains("tar")) {
    const ordered_json& tar = found["tar"];
    text += fmt::format("  the tar has {} bytes in the index, and {}\n", number_text(tar["bytes"]),
                        tar["state"].get<std::string>());
  }
  for (const char* list : {"members", "chunks"}) {
    if (!found.contains(list)) continue;
    text += list_text(found[list], found[std::string(list) + "_omitted"].get<std::size_t>());
    if (list == std::string_view("members")) {
      text += "  the records of one: --chunk INDEX\n";
    }
  }
  if (found.contains("chunk")) text += chunk_text(found["chunk"]);
  if (found.contains("records")) {
    for (const ordered_json& record : found["records"]) text += "\n" + record_text(record);
  }
  return text;
}

}  // namespace ringfeed::inspect
