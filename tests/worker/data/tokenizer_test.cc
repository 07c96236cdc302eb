#include "worker/data/tokenizer.h"

#include <gmock/gmock.h>

namespace esteira {
namespace {

TEST(TokenizerTest, BytesRoundTrip) {
  auto tokenizer = MakeTokenizer("bytes");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->vocab_size(), 256);
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  std::string decoded;
  for (const int32_t token : (*tokenizer)->Encode(text)) decoded += (*tokenizer)->Decode(token);
  EXPECT_EQ(decoded, text);
  EXPECT_THAT((*tokenizer)->Encode("\xc3\xa9"), testing::ElementsAre(0xc3, 0xa9));
  EXPECT_TRUE((*tokenizer)->Encode("").empty());
  EXPECT_EQ((*tokenizer)->Decode(256), "");
  EXPECT_EQ((*tokenizer)->Decode(-1), "");
}

TEST(TokenizerTest, OthersAreRefusedByName) {
  EXPECT_EQ(MakeTokenizer("").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(MakeTokenizer("tokenizer.json").status().ToString(),
              testing::HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace esteira
