// The corpus that the examples of this domain's stages begin with (StageType::example).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

// The corpus, and behind it the stages in `behind`, a line each.
inline StageExample corpus_example(std::string_view behind = "") {
  std::string text = R"(
stages {
  name: "bitext"
  bitext_source {
    directory: "/data/shard000"
    directory: "/data/shard001"
    lang_pairs: "eng_Latn-tur_Latn"
    lang_pairs: "fra_Latn-eng_Latn"
  }
}
)";
  text += behind;
  return {.text = std::move(text), .maker = "token_files"};
}

}  // namespace ringfeed
