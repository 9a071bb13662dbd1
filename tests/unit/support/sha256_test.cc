// The digests of the other tests rest on this one.
#include "tests/support/rig/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace ringfeed::testing {
namespace {

std::string digest(const std::string& text) { return sha256(std::as_bytes(std::span(text))); }

TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // 56 bytes: the padding needs a block of its own.
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

}  // namespace
}  // namespace ringfeed::testing
