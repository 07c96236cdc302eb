#include "worker/inference/utf8_stream.h"

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace esteira {
namespace {

constexpr char kBad[] = "\xef\xbf\xbd";

// The text, pushed byte by byte.
std::string ByBytes(const std::string& bytes) {
  Utf8Stream stream;
  std::string text;
  for (const char byte : bytes) text += stream.Push(absl::string_view(&byte, 1));
  return text + stream.Finish();
}

std::string AtOnce(const std::string& bytes) {
  Utf8Stream stream;
  std::string text = stream.Push(bytes);
  return text + stream.Finish();
}

TEST(Utf8StreamTest, WholeCharactersPass) {
  const std::string text = "a\n\tz\u00e9\u20ac\U0001F600\U0010FFFF\ud7ff";
  EXPECT_EQ(ByBytes(text), text);
  EXPECT_EQ(AtOnce(text), text);
  EXPECT_EQ(ByBytes(""), "");
}

TEST(Utf8StreamTest, ACharacterWaitsForItsRest) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("x\xe2\x82"), "x");
  EXPECT_EQ(stream.Push("\xac"), "\u20ac");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8StreamTest, WhatIsNoCharacterIsReplaced) {
  const std::string bad = kBad;
  EXPECT_EQ(ByBytes("a\x80z"), "a" + bad + "z");
  EXPECT_EQ(ByBytes("\xff\xc0\xc1\xf5"), bad + bad + bad + bad);
  EXPECT_EQ(ByBytes("\xe2\x82q"), bad + "q");
  EXPECT_EQ(ByBytes("\xe2\x82"), bad);
  EXPECT_EQ(ByBytes("\xed\xa0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(ByBytes("\xe0\x80\xaf"), bad + bad + bad);  // overlong
  EXPECT_EQ(ByBytes("\xf4\x90\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(ByBytes("\xe2\xe2\x82\xac"), bad + "\u20ac");
}

TEST(Utf8StreamTest, ControlCharactersCannotReachTheTerminal) {
  const std::string bad = kBad;
  EXPECT_EQ(ByBytes("\x1b[2J"), bad + "[2J");
  EXPECT_EQ(ByBytes(std::string("\0\r\x7f", 3)), bad + bad + bad);
  EXPECT_EQ(ByBytes("\xc2\x9b"), bad);
  EXPECT_EQ(ByBytes("\xc2\xa0"), "\xc2\xa0");
}

TEST(Utf8StreamTest, PiecesDoNotMatter) {
  for (uint64_t trial = 0; trial < 500; ++trial) {
    std::string bytes;
    for (uint64_t i = 0; i < trial % 40; ++i)
      bytes += static_cast<char>(RandomBits(1, trial, i) % 256 | (i % 2) << 7);
    ASSERT_EQ(ByBytes(bytes), AtOnce(bytes));
  }
}

}  // namespace
}  // namespace esteira
