#include "workers/io/npy_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/support/rig/stage_data.h"

namespace ringfeed::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As NumPy writes it; version 2 and 3 have a length of four bytes.
std::string npy(const std::string& text, char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += version;
  bytes += '\0';
  const std::size_t length = text.size();
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
    bytes += static_cast<char>((length >> (8 * i)) & 0xff);
  }
  return bytes + text;
}

std::string fault_of(const std::string& bytes) {
  const Result<NpyHead> head = read_npy_head(bytes);
  return head ? "" : head.error().message();
}

TEST(NpyFile, SaysWhatTheArrayIs) {
  const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 40), }    \n";
  for (const char version : {'\1', '\2', '\3'}) {
    const std::string bytes = npy(text, version);
    const Result<NpyHead> head = read_npy_head(bytes + "data");
    ASSERT_TRUE(head) << fault_of(bytes);
    EXPECT_EQ(head->descr, "<f4");
    EXPECT_FALSE(head->fortran_order);
    EXPECT_THAT(head->shape, ElementsAre(3, 40));
    EXPECT_EQ(head->data_at, bytes.size());
    EXPECT_EQ(head->size().value_or_throw(), 120U);
  }
  const Result<NpyHead> number =
      read_npy_head(npy("{\"shape\": (), \"fortran_order\": True, \"descr\": \"|u1\"}"));
  ASSERT_TRUE(number);
  EXPECT_THAT(number->shape, IsEmpty());
  EXPECT_EQ(number->size().value_or_throw(), 1U);
  EXPECT_TRUE(number->fortran_order);
  EXPECT_THAT(read_npy_head(npy("{'descr': '<i8', 'fortran_order': False, 'shape': (7L,)}"))->shape,
              ElementsAre(7));
}

TEST(NpyFile, RefusesWhatIsNone) {
  EXPECT_THAT(fault_of("PK\x03\x04 a zip file, not this"), HasSubstr("no .npy file"));
  EXPECT_THAT(fault_of(""), HasSubstr("in the middle of its head"));
  EXPECT_THAT(fault_of(npy("{}", '\4')), HasSubstr("version 4 is unknown"));
  EXPECT_THAT(fault_of(npy("{}  ")), HasSubstr("lacks descr"));
  EXPECT_THAT(fault_of(npy("[1, 2]")), HasSubstr("no dictionary"));
  EXPECT_THAT(fault_of(npy("{'descr': [('a', 4)], 'fortran_order': False, 'shape': (3,)}")),
              HasSubstr("structured dtype"));
  EXPECT_THAT(fault_of(npy("{'descr': '<f4', 'fortran_order': No, 'shape': (3,)}")),
              HasSubstr("neither True nor False"));
  EXPECT_THAT(fault_of(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, x)}")),
              HasSubstr("no tuple of numbers"));
  EXPECT_THAT(fault_of(npy("{'descr': '<f4', 'more': False}")), HasSubstr("unknown key 'more'"));
  const std::string whole = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_THAT(fault_of(whole.substr(0, bytes)), HasSubstr("in the middle")) << bytes;
  }
  const Result<NpyHead> huge = read_npy_head(
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}"));
  ASSERT_TRUE(huge);
  EXPECT_FALSE(huge->size());
}

// Also one whose head is longer than what is read at first.
TEST(NpyFile, IsReadFromAFile) {
  const testing::TempDir directory;
  const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}";
  for (const std::size_t blanks : {std::size_t{1}, std::size_t{9000}, std::size_t{70000}}) {
    const std::string bytes = npy(text + std::string(blanks, ' '), '\2');
    const std::string path = directory.write("a.npy", bytes);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const Result<NpyHead> head = read_npy_head(fd);
    ::close(fd);
    ASSERT_TRUE(head) << blanks;
    EXPECT_EQ(head->data_at, bytes.size());
  }
}

}  // namespace
}  // namespace ringfeed::formats
