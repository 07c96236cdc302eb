#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/worker/data/temporary_files.h"
#include "worker/data/data_set.h"

namespace esteira {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class JsonlSourceTest : public TemporaryFiles {
 protected:
  absl::StatusOr<std::unique_ptr<TokenSource>> Open(const std::string& text, int64_t sequence = 4) {
    return OpenTokenSource(Write(absl::StrCat("data", ++files_, ".jsonl"), text), "bytes", sequence,
                           256);
  }
  std::string ErrorOf(const std::string& text) { return Open(text).status().ToString(); }

  void ExpectSample(TokenSource& source, int64_t sample, const std::vector<int32_t>& inputs,
                    const std::vector<int32_t>& targets) {
    std::vector<int32_t> read_inputs(inputs.size(), 7), read_targets(targets.size(), 7);
    ASSERT_TRUE(source.Read(sample, read_inputs, read_targets).ok());
    EXPECT_EQ(read_inputs, inputs);
    EXPECT_EQ(read_targets, targets);
  }

 private:
  int files_ = 0;
};

TEST_F(JsonlSourceTest, ALineIsASampleOfOneOfThreeForms) {
  auto source = Open(
      "{\"tokens\": [1, 2, 3, 4, 5], \"labels\": [-100, -100, 3, -100, 9]}\n"
      "{\"tokens\": [6, 7]}\n"
      "\n"
      "{\"prompt\": \"ab\", \"completion\": \"cd\"}\r\n"
      "{\"text\": \"xyz\"}");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->num_samples(), 4);
  ExpectSample(**source, 0, {1, 2, 3, 4}, {-100, 3, -100, 9});
  ExpectSample(**source, 1, {6, 0, 0, 0}, {7, -100, -100, -100});
  ExpectSample(**source, 2, {'a', 'b', 'c', 0}, {-100, 'c', 'd', -100});
  ExpectSample(**source, 3, {'x', 'y', 0, 0}, {'y', 'z', -100, -100});
}

TEST_F(JsonlSourceTest, ASampleMayHaveNoTargetAtAll) {
  auto source = Open("{\"tokens\": [1, 2], \"labels\": [-100, -100]}\n");
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectSample(**source, 0, {1, 0, 0, 0}, {-100, -100, -100, -100});
}

TEST_F(JsonlSourceTest, FaultsNameTheLine) {
  const std::pair<const char*, const char*> faults[] = {
      {"", "has no line"},
      {"\n \n", "has no line"},
      {"{\"text\": \"ab\"}\n[1]\n", "line 2 (byte 15): not a JSON object"},
      {"{\"text\": \"ab\"", "line 1 (byte 0): not a JSON object"},
      {"{\"txt\": \"ab\"}", "neither tokens, nor prompt and completion, nor text"},
      {"{\"prompt\": \"ab\"}", "neither tokens"},
      {"{\"text\": \"ab\", \"weight\": 2}", "unknown field \"weight\""},
      {"{\"text\": 3}", "\"text\" is not a string"},
      {"{\"tokens\": 3}", "\"tokens\" is not a list"},
      {"{\"tokens\": [1, 2.5]}", "has 2.5, which is no token"},
      {"{\"tokens\": [1, 18446744073709551615]}", "18446744073709551615, which is no token"},
      {"{\"tokens\": [1, 256]}", "token 256 at position 1 is outside the vocabulary"},
      {"{\"tokens\": [1, -1]}", "token -1 at position 1 is outside"},
      {"{\"tokens\": [1, 2], \"labels\": [1]}", "2 tokens and 1 labels"},
      {"{\"tokens\": [1, 2], \"labels\": [1, -5]}", "label -5 at position 1 is neither -100"},
      {"{\"tokens\": [1]}", "1 tokens; a sample has from 2 to 5"},
      {"{\"text\": \"abcdef\"}", "6 tokens; a sample has from 2 to 5"},
  };
  for (const auto& [text, what] : faults) {
    EXPECT_THAT(ErrorOf(text), AllOf(HasSubstr(what), HasSubstr(".jsonl"))) << text;
  }
}

TEST_F(JsonlSourceTest, LinesAcrossReadBoundaries) {
  std::string text;
  for (int i = 0; i < 40000; ++i) {
    absl::StrAppend(&text, "{\"tokens\": [", i % 256, ", ", (i + 1) % 256, "]}\n");
  }
  auto source = Open(text);
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_EQ((*source)->num_samples(), 40000);
  for (int i : {0, 1, 31337, 39999}) {
    ExpectSample(**source, i, {i % 256, 0, 0, 0}, {(i + 1) % 256, -100, -100, -100});
  }
}

TEST_F(JsonlSourceTest, AnyBytesAreReadOrRefused) {
  const std::string good = "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"tokens\": [1, 2]}\n";
  for (uint64_t round = 0; round < 2000; ++round) {
    std::string text = good;
    for (uint64_t i = 0; i < 1 + round % 3; ++i) {
      const uint64_t bits = RandomBits(3, round, i);
      text[bits % text.size()] = static_cast<char>(bits >> 32);
    }
    auto source = Open(text);
    if (!source.ok()) continue;
    std::vector<int32_t> inputs(4), targets(4);
    for (int64_t s = 0; s < (*source)->num_samples(); ++s) {
      EXPECT_TRUE((*source)->Read(s, inputs, targets).ok());
    }
  }
}

}  // namespace
}  // namespace esteira
