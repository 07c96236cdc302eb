#include <gmock/gmock.h>

#include "common/base/random.h"
#include "tests/worker/data/temporary_files.h"
#include "worker/data/data_set.h"

namespace esteira {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocabulary = 256;

class TokenSourceTest : public TemporaryFiles {
 protected:
  static absl::StatusOr<std::unique_ptr<TokenSource>> Open(const std::string& path,
                                                           int64_t sequence,
                                                           int64_t vocabulary = kVocabulary) {
    return OpenTokenSource(path, "bytes", sequence, vocabulary);
  }
  static std::string ErrorOf(const std::string& path, int64_t sequence = 4,
                             int64_t vocabulary = kVocabulary) {
    return Open(path, sequence, vocabulary).status().ToString();
  }
};

TEST_F(TokenSourceTest, TextIsBytesAndTargetsAreShifted) {
  const std::string path = Write("a.txt",
                                 "abc\xff"
                                 "efghij");
  auto source = Open(path, 4);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->num_samples(), 2);  // ten tokens: [0,5) and [4,9)
  std::vector<int32_t> inputs(4);
  std::vector<int32_t> targets(4);
  ASSERT_TRUE((*source)->Read(0, inputs, targets).ok());
  EXPECT_THAT(inputs, testing::ElementsAre('a', 'b', 'c', 255));
  EXPECT_THAT(targets, testing::ElementsAre('b', 'c', 255, 'e'));
  ASSERT_TRUE((*source)->Read(1, inputs, targets).ok());
  EXPECT_THAT(inputs, testing::ElementsAre('e', 'f', 'g', 'h'));
  EXPECT_THAT(targets, testing::ElementsAre('f', 'g', 'h', 'i'));
}

TEST_F(TokenSourceTest, ExactlyOneSampleAndOneTokenTooFew) {
  auto source = Open(Write("one.txt", std::string(8, 'x')), 7);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->num_samples(), 1);
  EXPECT_EQ((*Open(Write("two.txt", std::string(15, 'x')), 7))->num_samples(), 2);
  EXPECT_EQ((*Open(Write("odd.txt", std::string(14, 'x')), 7))->num_samples(), 1);
  const std::string error = ErrorOf(Write("short.txt", std::string(7, 'x')), 7);
  EXPECT_THAT(error, HasSubstr("short.txt has 7 tokens; one sample takes 8"));
}

TEST_F(TokenSourceTest, BothKindsOfBinGiveTheSameTokens) {
  const std::vector<uint16_t> tokens = {1, 50303, 3, 4, 5, 6, 7};
  const std::string bare = Write("nanogpt.bin", Tokens(tokens));
  const std::string with_header = Write("llmc.bin", LlmcHeader(20240520, 1, 7) + Tokens(tokens));
  for (const std::string& path : {bare, with_header}) {
    auto source = Open(path, 3, 50304);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->num_samples(), 2);
    std::vector<int32_t> inputs(3);
    std::vector<int32_t> targets(3);
    ASSERT_TRUE((*source)->Read(0, inputs, targets).ok());
    EXPECT_THAT(inputs, testing::ElementsAre(1, 50303, 3)) << path;
    EXPECT_THAT(targets, testing::ElementsAre(50303, 3, 4)) << path;
  }
}

TEST_F(TokenSourceTest, LlmcTokensBeyondTheCountAreNotRead) {
  auto source =
      Open(Write("a.bin", LlmcHeader(20240520, 1, 4) + Tokens({1, 2, 3, 4, 9999, 9999})), 3);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->num_samples(), 1);
}

TEST_F(TokenSourceTest, BrokenBinsAreNamed) {
  EXPECT_THAT(ErrorOf(Write("odd.bin", "abc")), HasSubstr("3 bytes are not whole uint16 tokens"));
  EXPECT_THAT(ErrorOf(Write("cut.bin", LlmcHeader(20240520, 1, 5) + Tokens({1, 2, 3, 4}))),
              HasSubstr("promises 5 tokens (1034 bytes), the file has 1032 bytes"));
  EXPECT_THAT(ErrorOf(Write("negative.bin", LlmcHeader(20240520, 1, -5) + Tokens({1, 2}))),
              HasSubstr("promises -5 tokens"));
  EXPECT_THAT(ErrorOf(Write("version.bin", LlmcHeader(20240520, 2, 2) + Tokens({1, 2}))),
              HasSubstr("version 2"));
  EXPECT_THAT(ErrorOf(Write("wide.bin", LlmcHeader(20240801, 7, 2))), HasSubstr("uint32"));
  EXPECT_THAT(ErrorOf(Write("header.bin", LlmcHeader(20240520, 1, 0).substr(0, 12))),
              HasSubstr("the file has 12 bytes"));
  EXPECT_THAT(ErrorOf(Write("magic.bin", LlmcHeader(20240520, 1, 0).substr(0, 4))),
              HasSubstr("version 0"));
  Write("megatron.idx", "");
  EXPECT_THAT(ErrorOf(Write("megatron.bin", Tokens({1, 2}))), HasSubstr("Megatron"));
}

TEST_F(TokenSourceTest, PathsThatAreNoDataFile) {
  EXPECT_EQ(Open(root_ + "/missing", 4).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ErrorOf(root_ + "/missing"), HasSubstr(root_ + "/missing"));
  EXPECT_THAT(ErrorOf(root_), HasSubstr("is a directory"));
  EXPECT_THAT(ErrorOf(Write("empty.txt", "")), HasSubstr("has 0 tokens"));
  EXPECT_THAT(ErrorOf(Write("empty.bin", "")), HasSubstr("has 0 tokens"));
  EXPECT_THAT(ErrorOf("/dev/zero"), HasSubstr("not a regular file"));

  EXPECT_THAT(OpenTokenSource(Write("a.txt", "abcdef"), "gpt2.json", 4, 256).status().ToString(),
              HasSubstr("tokenizer \"gpt2.json\""));
}

TEST_F(TokenSourceTest, UnreadableFile) {
  const std::string path = Write("secret.txt", "abcdefgh");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(65534), 0);  // root reads every file
  }
  const absl::StatusCode code = Open(path, 4).status().code();
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_EQ(code, absl::StatusCode::kPermissionDenied);
}

TEST_F(TokenSourceTest, TheFirstTokenOutsideTheVocabularyIsNamed) {
  EXPECT_THAT(
      ErrorOf(Write("a.txt", "abcdez{z{"), 4, 'z'),
      HasSubstr(
          "a.txt: token 122 at position 5 is outside the vocabulary (model.vocab_size is 122)"));
  EXPECT_TRUE(Open(Write("b.txt", "abcdez"), 4, 'z' + 1).ok());
  std::vector<uint16_t> tokens(600000, 7);  // more than one piece of the scan
  tokens[599999] = 300;
  EXPECT_THAT(ErrorOf(Write("a.bin", Tokens(tokens))), HasSubstr("token 300 at position 599999"));
}

TEST_F(TokenSourceTest, AFileThatChangesAfterOpeningIsAnErrorNotASignal) {
  const std::string path = Write("a.bin", Tokens({1, 2, 3, 4, 5}));
  auto source = Open(path, 2);
  ASSERT_TRUE(source.ok());
  std::vector<int32_t> inputs(2);
  std::vector<int32_t> targets(2);
  Write("a.bin", Tokens({1, 2, 999, 4, 5}));
  EXPECT_EQ((*source)->Read(0, inputs, targets).code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::resize_file(path, 6);
  EXPECT_TRUE((*source)->Read(1, inputs, targets).code() == absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string((*source)->Read(1, inputs, targets).message()), HasSubstr("has shrunk"));
}

// Whatever stands in the first bytes, opening and reading end with a status.
TEST_F(TokenSourceTest, RandomHeadersNeverCrash) {
  int opened = 0;
  for (uint64_t trial = 0; trial < 300; ++trial) {
    std::string bytes(RandomBits(1, trial, 0) % 1100, '\0');
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(RandomBits(2, trial, i) % 3);
    const std::string magic =
        LlmcHeader(20240520, static_cast<int32_t>(RandomBits(3, trial, 0) % 2 + 1),
                   static_cast<int32_t>(RandomBits(4, trial, 0) >> (RandomBits(5, trial, 0) % 64)));
    if (trial % 2 == 0) bytes.replace(0, std::min<size_t>(bytes.size(), 12), magic.substr(0, 12));
    auto source = Open(Write("fuzz.bin", bytes), 5, 1000);
    if (!source.ok()) continue;
    ++opened;
    std::vector<int32_t> inputs(5);
    std::vector<int32_t> targets(5);
    EXPECT_TRUE((*source)->Read((*source)->num_samples() - 1, inputs, targets).ok());
  }
  EXPECT_GT(opened, 20);
}

}  // namespace
}  // namespace esteira
