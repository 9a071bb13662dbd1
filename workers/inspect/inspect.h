// What a file is, and what is in it: for people who have a file and a question.
//
// Everything that ringfeed reads or leaves behind is known by its first bytes or, where these say
// nothing, by its name. Damage is a sentence in `problems` that says where and what; what can be
// shown nevertheless is.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "workers/inspect/describers.h"

namespace ringfeed::inspect {

// path, kind, text (a sentence), problems (sentences), and by kind, of which the domains that are
// asked bring their own:
//   gzip_chunk, raw_chunk   chunk: version, input_format, records, bytes ...; records
//   tar                     members, members_omitted; with a chunk asked for: chunk, records
//   chunk_index             tar, chunks, chunks_omitted
//   snapshot                manifest
//   dead_letter             letter; records, if what it holds are frames
//   parquet                 rows (chess/parquet_rows.h), data
//   samples                 data (samples/file_describer.h)
//   token_file              tokens (bitext/token_sentences.h)
//   ringfeed_configuration  feed, stages
//   lczero_configuration, unknown
// Throws Error: the path cannot be read; the chunk or record that was asked for is not there.
[[nodiscard]] nlohmann::ordered_json inspect_path(const Options& options,
                                                  const Describers& describers);

// The same as text, as it stands in the terminal.
[[nodiscard]] std::string as_text(const nlohmann::ordered_json& found,
                                  const Describers& describers);

// Takes the words behind --inspect, prints, returns the exit status: 0; 1 if something is damaged
// or unknown, 2 if the words are wrong.
int run(int count, char** words, const Describers& describers);

}  // namespace ringfeed::inspect
