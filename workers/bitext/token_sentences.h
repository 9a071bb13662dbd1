// What is in a token file, for the pipelines that read such files: how long its sentences are, and
// the first of them in words.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace ringfeed::inspect {

// PATH is PREFIX.idx, PREFIX.bin or PREFIX itself: the prefix; nullopt: it is no token file.
// `head`: the first bytes of the file, where it is one.
[[nodiscard]] std::optional<std::string> token_prefix(const std::string& path,
                                                      std::string_view head);

struct TokenWish {
  std::string dictionary = {};  // "": dict.LANG.txt beside it, LANG being its last name
  std::optional<std::size_t> sentence = {};  // this one
  bool all = false;                          // all sentences; else the first few
};
//   format          "mapped", "megatron", "legacy"
//   code, type      8, "uint16"
//   sentences, documents (of megatron), tokens, bytes (of PREFIX.bin)
//   out_of_bounds   sentences that lie outside of PREFIX.bin or have a negative length
//   length_min, length_max, length_mean; lengths: from, to, sentences; empty ones left out
//   dictionary      its path, symbols; null: there is none
//   first           index, ids, text (null without a dictionary), or why it cannot be shown; those
//                   that were asked for
// Damage is added to `problems`; then there may be nothing. Throws Error: the file or the
// dictionary that was given cannot be opened, or there is no such sentence.
[[nodiscard]] nlohmann::ordered_json describe_tokens(const std::string& prefix,
                                                     const TokenWish& wish,
                                                     nlohmann::ordered_json& problems);

// The same as text.
[[nodiscard]] std::string tokens_text(const nlohmann::ordered_json& tokens);

}  // namespace ringfeed::inspect
