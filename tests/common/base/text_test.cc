// Text that comes from outside: UTF-8, names of daemons, levels of the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/log.h"
#include "common/base/names.h"
#include "common/base/utf8.h"

namespace esteira {
namespace {

const char* const kCharacters[] = {"a",
                                   "\x7F",
                                   "\xC2\x80",
                                   "\xDF\xBF",
                                   "\xE0\xA0\x80",
                                   "\xED\x9F\xBF",
                                   "\xEE\x80\x80",
                                   "\xEF\xBF\xBF",
                                   "\xF0\x90\x80\x80",
                                   "\xF4\x8F\xBF\xBF"};
const char* const kNoCharacters[] = {"\x80",
                                     "\xBF",
                                     "\xC0\xAF",
                                     "\xC1\xBF",
                                     "\xC2",
                                     "\xC2\x41",
                                     "\xE0\x9F\xBF",
                                     "\xED\xA0\x80",
                                     "\xE2\x82",
                                     "\xF0\x8F\xBF\xBF",
                                     "\xF4\x90\x80\x80",
                                     "\xF5\x80\x80\x80",
                                     "\xF0\x90\x80",
                                     "\xFE",
                                     "\xFF"};

TEST(Utf8, WhatIsACharacter) {
  for (const std::string text : kCharacters) {
    EXPECT_EQ(Utf8LengthAt("x" + text, 1), text.size()) << testing::PrintToString(text);
    EXPECT_TRUE(IsUtf8(text + text));
    EXPECT_EQ(ReplaceInvalidUtf8("<" + text + ">"), "<" + text + ">");
  }
  EXPECT_TRUE(IsUtf8(absl::string_view("\0", 1)));
  EXPECT_TRUE(IsUtf8(""));
}

TEST(Utf8, WhatIsNone) {
  for (const std::string text : kNoCharacters) {
    EXPECT_EQ(Utf8LengthAt(text, 0), 0u) << testing::PrintToString(text);
    EXPECT_FALSE(IsUtf8("x" + text));
    EXPECT_FALSE(IsUtf8(text + "x"));
    const std::string mended = ReplaceInvalidUtf8(text);
    EXPECT_TRUE(IsUtf8(mended));
    EXPECT_EQ(mended.substr(0, 3), "\xEF\xBF\xBD");
  }
  EXPECT_EQ(ReplaceInvalidUtf8("a\xC2"), "a\xEF\xBF\xBD");
}

TEST(Names, WorkerIds) {
  for (const std::string& id :
       {std::string("a"), std::string("host-1.example_2:3"), std::string(128, 'x')}) {
    EXPECT_TRUE(CheckWorkerId(id).ok()) << id;
  }
  for (const std::string& id :
       {std::string(), std::string("a b"), std::string("a/b"), std::string("a\0", 2),
        std::string("\xC3\xA9"), std::string(129, 'x')}) {
    EXPECT_EQ(CheckWorkerId(id).code(), absl::StatusCode::kInvalidArgument) << id;
  }
}

TEST(Names, HostsAndPorts) {
  for (const char* address : {"h:1", "127.0.0.1:7070", "[::1]:65535", "a-b_c.d:9", "h:00080"}) {
    EXPECT_TRUE(ParseHostPort(address, 1).ok()) << address;
  }
  const auto parts = ParseHostPort("[fe80::1%eth0]:80", 1);
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ(parts->host, "[fe80::1%eth0]");
  EXPECT_EQ(parts->port, 80);
  EXPECT_TRUE(ParseHostPort("h:0", 0).ok());
  for (const char* address :
       {"", ":", "h", "h:", ":1", "h:0", "h:-1", "h:+1", "h: 1", "h:1 ", "h:65536", "h:1e3",
        "h:99999999999", "::1:80", "[]:1", "[::1:1", "a b:1", "a/b:1", "http://h:1"}) {
    EXPECT_EQ(ParseHostPort(address, 1).status().code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST(Log, LevelsByName) {
  EXPECT_EQ(*ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(*ParseLogLevel("info"), LogLevel::kInfo);
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(*ParseLogLevel("error"), LogLevel::kError);
  for (const char* name : {"", "Info", "warn", "infos"}) {
    EXPECT_EQ(ParseLogLevel(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

}  // namespace
}  // namespace esteira
