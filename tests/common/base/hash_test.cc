#include "common/base/hash.h"

#include <gtest/gtest.h>

namespace esteira {
namespace {

TEST(HashTest, Sha256MatchesThePublishedVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// Initial weights depend on these values: a change here changes what every job learns.
TEST(HashTest, NamesHashToFixedValues) {
  EXPECT_EQ(Mix64(0), 0xe220a8397b1dcdafULL);  // SplitMix64's first output for seed 0
  EXPECT_NE(HashName("transformer.h.0"), HashName("transformer.h.1"));
  EXPECT_EQ(Hex64(255), "00000000000000ff");
}

}  // namespace
}  // namespace esteira
