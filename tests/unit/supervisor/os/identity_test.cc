// Specification of supervisor/os/identity.h: what is said of a process that is none of ours.
#include "supervisor/os/identity.h"

#include <gtest/gtest.h>

#include <string>

namespace ringfeed::process {
namespace {

// "a b" as the kernel has it: a NUL behind each.
std::string words(std::string line) {
  for (char& c : line) {
    if (c == ' ') c = '\0';
  }
  return line + '\0';
}

TEST(Program, IsNamedAndNothingThatItWasGiven) {
  EXPECT_EQ(program_of(words("/usr/bin/train --token SECRET")), "train");
  EXPECT_EQ(program_of(words("/usr/bin/python3 /home/me/train.py --token SECRET")),
            "python3 train.py");
  EXPECT_EQ(program_of(words("python3.11 -u -W error -Xdev -X utf8 train.py SECRET")),
            "python3.11 train.py");
  EXPECT_EQ(program_of(words("python -m torch.distributed.run SECRET")),
            "python -m torch.distributed.run");
  EXPECT_EQ(program_of(words("python -mtrain --token SECRET")), "python -m train");
  EXPECT_EQ(program_of(words("python -Im train SECRET")), "python -m train");
  EXPECT_EQ(program_of(words("python -c SECRET")), "python");
  EXPECT_EQ(program_of(words("python -cSECRET SECRET")), "python");
  EXPECT_EQ(program_of(words("python -uc SECRET SECRET")), "python");
  EXPECT_EQ(program_of(words("python --check-hash-based-pycs always SECRET")), "python");
  EXPECT_EQ(program_of(words("python - SECRET")), "python");
  EXPECT_EQ(program_of(words("python -m")), "python");
  EXPECT_EQ(program_of(""), "");
  EXPECT_EQ(program_of(words(std::string(5000, 'x'))).size(), 100U);
}

}  // namespace
}  // namespace ringfeed::process
