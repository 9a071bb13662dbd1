// The last answers that a stage has given to messages. A message may come again, because nobody
// knows whether it was answered. It then gets the same answer, and takes effect only once.
//
// It is part of the state of a stage that answers messages. Lay it out there and return it from
// Stage::control_box(); the runtime does the rest. An answer is committed in the step that carries
// out its message.
#pragma once

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

class ControlBox {
 public:
  // Answers that are remembered; at most this many messages may be on their way at once.
  static constexpr std::uint64_t kAnswers = 16;
  static constexpr std::uint64_t kAnswerBytesMax = 2048;

  explicit ControlBox(StateLayout& layout)
      : next_(layout.word()), keys_(layout.words(kPlaces)), sizes_(layout.words(kPlaces)) {
    for (Place& place : answers_) place = layout.place(kAnswerBytesMax);
  }

  // The answer to the message of this key, which is not 0.
  [[nodiscard]] std::optional<std::string> find(const Step& step, std::uint64_t key) const {
    for (std::uint64_t i = 0; i < kPlaces; ++i) {
      if (step.load(keys_[i]) != key) continue;
      return std::string(reinterpret_cast<const char*>(step.bytes(answers_[i].offset)),
                         step.load(sizes_[i]));
    }
    return std::nullopt;
  }

  // RF_CHECK: the answer is not longer than kAnswerBytesMax.
  void keep(Step& step, std::uint64_t key, std::string_view answer) const noexcept {
    RF_CHECK(answer.size() <= kAnswerBytesMax, answer.size());
    // One place always has no key. This is that place; the next one is cleared to take its role.
    const std::uint64_t at = step.load(next_) % kPlaces;
    step.fill(answers_[at], std::as_bytes(std::span(answer)));
    step.store(keys_[at], key);
    step.store(sizes_[at], answer.size());
    step.store(next_, (at + 1) % kPlaces);
    step.store(keys_[(at + 1) % kPlaces], 0);
  }

 private:
  static constexpr std::uint64_t kPlaces = kAnswers + 1;
  Word next_;
  Words keys_;
  Words sizes_;
  std::array<Place, kPlaces> answers_;
};

}  // namespace ringfeed
