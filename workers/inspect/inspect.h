// What a file is, and what is in it: for people who have a file and a question.
//
// Everything that ringfeed reads or leaves behind is known by its first bytes or, where these say
// nothing, by its name. Damage is a sentence in `problems` that says where and what; what can be
// shown nevertheless is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "workers/io/row_file.h"

namespace ringfeed::inspect {

struct Options {
  std::string path = {};
  std::optional<std::size_t> record = {};  // index in the game or token file; none: the first
  std::string chunk = {};                  // of a tar: name or index of a game
  std::string dictionary = {};             // of a token file; "": the one beside it
  std::size_t top = 8;                     // moves of the policy
  bool all = false;                        // all records; of a tar or an index, all of the list
  bool json = false;
  formats::OpenRowFile open_rows = {};  // Parquet files; empty: this program cannot read them
};

// path, kind, text (a sentence), problems (sentences), and by kind:
//   gzip_chunk, raw_chunk   chunk: version, input_format, records, bytes ...; records
//   tar                     members, members_omitted; with a chunk asked for: chunk, records
//   chunk_index             tar, chunks, chunks_omitted
//   snapshot                manifest
//   dead_letter             letter; records, if what it holds are frames
//   parquet                 rows (parquet_rows.h)
//   token_file              tokens (token_sentences.h)
//   ringfeed_configuration  feed, stages
//   lczero_configuration, unknown
// Throws Error: the path cannot be read; the chunk or record that was asked for is not there.
[[nodiscard]] nlohmann::ordered_json inspect_path(const Options& options);

// The same as text, as it stands in the terminal.
[[nodiscard]] std::string as_text(const nlohmann::ordered_json& found);

// Takes the words behind --inspect, prints, returns the exit status: 0; 1 if something is damaged
// or unknown, 2 if the words are wrong.
int run(int count, char** words);

}  // namespace ringfeed::inspect
