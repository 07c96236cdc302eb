#include "common/checkpoint/digest.h"

#include <gtest/gtest.h>

#include "common/base/hash.h"

namespace esteira {
namespace {

TEST(DigestTest, PiecesDoNotMatter) {
  const std::string text(1000, 'x');
  for (const size_t piece : {1, 7, 64, 1000}) {
    Digest digest;
    for (size_t begin = 0; begin < text.size(); begin += piece)
      digest.Append(text.substr(begin, piece));
    EXPECT_EQ(digest.Finish(), Sha256Hex(text)) << piece;
  }
  EXPECT_EQ(Digest().Finish(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace esteira
