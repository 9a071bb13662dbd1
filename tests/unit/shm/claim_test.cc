// The specification of ringfeed/shm/claim.h.
#include "ringfeed/shm/claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ringfeed::shm {
namespace {

using Word = std::atomic<std::uint64_t>;

constexpr ClaimState kStates[] = {ClaimState::kNone, ClaimState::kTaken, ClaimState::kDone,
                                  ClaimState::kAvail, ClaimState::kSkipped};

std::uint64_t word_of(std::uint64_t seq, ClaimState state, std::uint8_t member = 0,
                      std::uint8_t tries = 0) {
  return encode_claim({.seq = seq, .member = member, .tries = tries, .state = state});
}
bool take_word(Word& word, std::uint64_t s, std::uint8_t member) {
  return claim_take(word, word.load(), s, member);
}

TEST(ClaimWord, IsStateTriesMemberAndNumberFromTheLowestBit) {
  EXPECT_EQ(word_of(0x123456789a, ClaimState::kTaken, 0xbc, 0xde), 0x123456789abcde01U);
  EXPECT_EQ(word_of(0, ClaimState::kNone), 0U) << "cleared memory is a word that was never used";
}

TEST(ClaimWord, SurvivesEncodingAtEveryLimit) {
  for (const std::uint64_t seq : {std::uint64_t{0}, std::uint64_t{1}, kBatchSeqMax}) {
    for (const int member : {0, 1, 15, 255}) {
      for (const int tries : {0, 1, 255}) {
        for (const ClaimState state : kStates) {
          const Claim claim = {.seq = seq,
                               .member = static_cast<std::uint8_t>(member),
                               .tries = static_cast<std::uint8_t>(tries),
                               .state = state};
          EXPECT_EQ(decode_claim(encode_claim(claim)), claim);
        }
      }
    }
  }
}

//   For batch 10:        word of batch 9   10                                   11
//   open                 always            AVAIL                                never
//   finished             never             DONE, SKIPPED                        always
TEST(ClaimWord, IsOpenOrFinishedAsItsNumberAndStateSay) {
  for (const ClaimState state : kStates) {
    EXPECT_TRUE(claim_open({.seq = 9, .state = state}, 10));
    EXPECT_FALSE(claim_open({.seq = 11, .state = state}, 10));
    EXPECT_EQ(claim_open({.seq = 10, .state = state}, 10), state == ClaimState::kAvail);
    EXPECT_FALSE(claim_finished({.seq = 9, .state = state}, 10));
    EXPECT_TRUE(claim_finished({.seq = 11, .state = state}, 10));
    EXPECT_EQ(claim_finished({.seq = 10, .state = state}, 10),
              state == ClaimState::kDone || state == ClaimState::kSkipped);
  }
}

TEST(ClaimTake, NamesTheMember) {
  Word word{word_of(2, ClaimState::kDone, 7, 3)};
  EXPECT_TRUE(take_word(word, 10, 4));
  EXPECT_EQ(word.load(), word_of(10, ClaimState::kTaken, 4, 0)) << "tries are the batch's own";
}

TEST(ClaimTake, KeepsTheTriesOfABatchThatCameBack) {
  Word word{word_of(10, ClaimState::kAvail, 7, 2)};
  EXPECT_TRUE(take_word(word, 10, 4));
  EXPECT_EQ(word.load(), word_of(10, ClaimState::kTaken, 4, 2));
}

TEST(ClaimTake, IsRefusedUnlessTheWordIsOpen) {
  for (const std::uint64_t held :
       {word_of(10, ClaimState::kTaken, 3), word_of(10, ClaimState::kDone, 3),
        word_of(10, ClaimState::kSkipped), word_of(10, ClaimState::kNone),
        word_of(11, ClaimState::kAvail), word_of(11, ClaimState::kTaken, 4)}) {
    Word word{held};
    EXPECT_FALSE(take_word(word, 10, 4)) << held;
    EXPECT_EQ(word.load(), held);
  }
}

// Between the look and the exchange another member has taken, worked on and given back the batch:
// the word looks open again, but is not the same.
TEST(ClaimTake, IsRefusedIfTheWordHasChangedSinceItWasSeen) {
  Word word{word_of(2, ClaimState::kDone, 7)};
  const std::uint64_t seen = word.load();
  ASSERT_TRUE(take_word(word, 10, 5));
  EXPECT_FALSE(claim_take(word, seen, 10, 4));
  ASSERT_TRUE(claim_recover(word, 5, true, 3));
  EXPECT_FALSE(claim_take(word, seen, 10, 4));
  EXPECT_TRUE(take_word(word, 10, 4));
}

TEST(ClaimFinish, IsForTheHolderAlone) {
  Word word{word_of(10, ClaimState::kTaken, 4, 1)};
  EXPECT_FALSE(claim_finish(word, 10, 5));
  EXPECT_FALSE(claim_finish(word, 9, 4));
  EXPECT_FALSE(claim_finish(word, 11, 4));
  EXPECT_EQ(word.load(), word_of(10, ClaimState::kTaken, 4, 1));
  EXPECT_TRUE(claim_finish(word, 10, 4));
  EXPECT_EQ(word.load(), word_of(10, ClaimState::kDone, 4, 1));
  EXPECT_FALSE(claim_finish(word, 10, 4)) << "once";
}

TEST(ClaimFinish, IsRefusedAfterTheClaimWasRecovered) {
  Word word{word_of(10, ClaimState::kTaken, 4)};
  ASSERT_TRUE(claim_recover(word, 4, true, 3));
  EXPECT_FALSE(claim_finish(word, 10, 4));
  EXPECT_EQ(word.load(), word_of(10, ClaimState::kAvail, 4, 1));
}

TEST(ClaimRecover, GivesTheBatchBackAsOftenAsItMayBeTried) {
  Word word{0};
  for (std::uint8_t death = 0; death < 3; ++death) {
    ASSERT_TRUE(take_word(word, 10, death));
    ASSERT_TRUE(claim_recover(word, death, true, 3));
    EXPECT_EQ(word.load(),
              word_of(10, ClaimState::kAvail, death, static_cast<std::uint8_t>(death + 1)));
  }
  ASSERT_TRUE(take_word(word, 10, 9));
  ASSERT_TRUE(claim_recover(word, 9, true, 3));
  EXPECT_EQ(decode_claim(word.load()).state, ClaimState::kSkipped);
  EXPECT_FALSE(take_word(word, 10, 1));
}

TEST(ClaimRecover, ClosesTheBatchAtMostOnce) {
  Word word{word_of(10, ClaimState::kTaken, 4)};
  EXPECT_TRUE(claim_recover(word, 4, false, 3));
  EXPECT_EQ(decode_claim(word.load()).state, ClaimState::kSkipped);
}

TEST(ClaimRecover, TwiceIsOnceAndOthersAreLeftAlone) {
  Word word{word_of(10, ClaimState::kTaken, 4)};
  EXPECT_FALSE(claim_recover(word, 5, true, 3));
  EXPECT_TRUE(claim_recover(word, 4, true, 3));
  EXPECT_FALSE(claim_recover(word, 4, true, 3));
  EXPECT_EQ(decode_claim(word.load()).tries, 1);
  for (const ClaimState state : {ClaimState::kNone, ClaimState::kDone, ClaimState::kSkipped}) {
    Word other{word_of(10, state, 4)};
    EXPECT_FALSE(claim_recover(other, 4, true, 3));
    EXPECT_EQ(other.load(), word_of(10, state, 4));
  }
}

TEST(ClaimRecover, CountsTriesUpTo255AndStaysThere) {
  Word word{word_of(10, ClaimState::kTaken, 4, 255)};
  EXPECT_TRUE(claim_recover(word, 4, true, 1000));
  EXPECT_EQ(decode_claim(word.load()).tries, 255);
}

TEST(ClaimClose, IsForBatchesThatNobodyHas) {
  Word never_taken{word_of(2, ClaimState::kDone, 7, 5)};
  EXPECT_TRUE(claim_close(never_taken, 10));
  EXPECT_EQ(never_taken.load(), word_of(10, ClaimState::kSkipped, 0, 0));
  Word given_back{word_of(10, ClaimState::kAvail, 7, 2)};
  EXPECT_TRUE(claim_close(given_back, 10));
  EXPECT_EQ(given_back.load(), word_of(10, ClaimState::kSkipped, 0, 2));
  for (const std::uint64_t held :
       {word_of(10, ClaimState::kTaken, 4), word_of(10, ClaimState::kDone, 4),
        word_of(10, ClaimState::kSkipped), word_of(11, ClaimState::kAvail)}) {
    Word word{held};
    EXPECT_FALSE(claim_close(word, 10));
    EXPECT_EQ(word.load(), held);
  }
}

// Every word, every operation on every batch near its own: a number never goes back, and a finished
// batch stays finished.
TEST(ClaimTransitions, NeverGoBack) {
  int changes = 0;
  for (std::uint64_t seq = 9; seq <= 11; ++seq) {
    for (const ClaimState state : kStates) {
      for (std::uint64_t s = 9; s <= 11; ++s) {
        for (int operation = 0; operation < 5; ++operation) {
          Word word{word_of(seq, state, 1)};
          const std::uint64_t before = word.load();
          const bool was_finished = claim_finished(decode_claim(before), 10);
          bool changed = false;
          if (operation == 0) changed = take_word(word, s, 1);
          if (operation == 1) changed = claim_finish(word, s, 1);
          if (operation == 2) changed = claim_recover(word, 1, true, 3);
          if (operation == 3) changed = claim_recover(word, 1, false, 3);
          if (operation == 4) changed = claim_close(word, s);
          const Claim after = decode_claim(word.load());
          EXPECT_EQ(changed, word.load() != before);
          EXPECT_GE(after.seq, seq);
          EXPECT_TRUE(!was_finished || claim_finished(after, 10));
          changes += changed;
        }
      }
    }
  }
  EXPECT_GT(changes, 20) << "the test has not tested";
}

}  // namespace
}  // namespace ringfeed::shm
