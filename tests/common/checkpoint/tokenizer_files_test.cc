#include "common/checkpoint/tokenizer_files.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace esteira {
namespace {

using nlohmann::json;

TEST(TokenizerFilesTest, EveryByteIsItsOwnId) {
  const json tokenizer = json::parse(PrintByteTokenizer(50304));
  const json& vocabulary = tokenizer["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 256u);
  EXPECT_EQ(vocabulary["A"], 'A');
  EXPECT_EQ(vocabulary["~"], '~');
  EXPECT_EQ(vocabulary["\u0120"], ' ');  // GPT-2's well-known names of space and newline
  EXPECT_EQ(vocabulary["\u010a"], '\n');
  EXPECT_EQ(vocabulary["\u00ff"], 255);
  EXPECT_EQ(vocabulary["\u0143"], 0xad);  // the last that is replaced
  std::vector<bool> seen(256);
  for (const auto& [name, id] : vocabulary.items()) seen.at(id.get<size_t>()) = true;
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 256);
  EXPECT_TRUE(tokenizer["model"]["merges"].empty());
}

TEST(TokenizerFilesTest, NoTokenOutsideTheVocabulary) {
  const json tokenizer = json::parse(PrintByteTokenizer(100));
  EXPECT_EQ(tokenizer["model"]["vocab"].size(), 100u);
}

TEST(TokenizerFilesTest, TheNameIsFoundAgain) {
  EXPECT_EQ(*ParseTokenizerName(PrintByteTokenizer(256)), "bytes");
  EXPECT_EQ(*ParseTokenizerName(PrintByteTokenizer(17)), "bytes");
  json other = json::parse(PrintByteTokenizer(256));
  other["model"]["merges"] = {"a b"};
  EXPECT_EQ(ParseTokenizerName(other.dump()).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(ParseTokenizerName("{}").ok());
  EXPECT_FALSE(ParseTokenizerName(R"({"model": 7})").ok());
  EXPECT_FALSE(ParseTokenizerName(R"({"model": []})").ok());
  EXPECT_FALSE(ParseTokenizerName("").ok());
}

}  // namespace
}  // namespace esteira
