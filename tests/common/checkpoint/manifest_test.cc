#include "common/checkpoint/manifest.h"

#include <gmock/gmock.h>

namespace esteira {
namespace {

using testing::HasSubstr;

const std::string kDigest(64, 'a');

std::string One(const std::string& file) {
  return R"({"format_version": 1, "step": 3, "files": [)" + file + "]}";
}
std::string Entry(const std::string& name, const std::string& bytes, const std::string& digest) {
  return R"({"name": ")" + name + R"(", "bytes": )" + bytes + R"(, "sha256": ")" + digest + R"("})";
}

TEST(ManifestTest, RoundTrip) {
  const Manifest manifest{
      200, {{"a.safetensors", 10, kDigest}, {"config.json", 0, std::string(64, '0')}}};
  EXPECT_EQ(*ParseManifest(PrintManifest(manifest)), manifest);
  EXPECT_EQ(manifest.total_bytes(), 10);
  EXPECT_EQ(ParseManifest(PrintManifest({0, {}}))->files.size(), 0u);
}

TEST(ManifestTest, FaultsAreNamed) {
  const auto error = [](const std::string& text) {
    return ParseManifest(text).status().ToString();
  };
  EXPECT_TRUE(ParseManifest(One(Entry("a", "1", kDigest))).ok());
  EXPECT_THAT(error(""), HasSubstr("manifest.json: it is not a JSON object"));
  EXPECT_THAT(error("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error(PrintManifest({5, {}}).substr(0, 30)), HasSubstr("not a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("format_version"));
  EXPECT_THAT(error(R"({"format_version": 2})"), HasSubstr("format version 2"));
  EXPECT_THAT(error(R"({"format_version": 1, "step": -1, "files": []})"),
              HasSubstr("step is negative"));
  EXPECT_THAT(error(R"({"format_version": 1, "step": 1e99, "files": []})"), HasSubstr("\"step\""));
  EXPECT_THAT(error(R"({"format_version": 1, "step": 18446744073709551615, "files": []})"),
              HasSubstr("\"step\""));
  EXPECT_THAT(error(R"({"format_version": 1, "step": 1})"), HasSubstr("\"files\""));
  EXPECT_THAT(error(One("7")), HasSubstr("not an object"));
  EXPECT_THAT(error(One(Entry("../a", "1", kDigest))), HasSubstr("no name of a file"));
  EXPECT_THAT(error(One(Entry("..", "1", kDigest))), HasSubstr("no name of a file"));
  EXPECT_THAT(error(One(Entry("manifest.json", "1", kDigest))), HasSubstr("no name of a file"));
  EXPECT_THAT(error(One(Entry("a\\u0000b", "1", kDigest))), HasSubstr("no name of a file"));
  EXPECT_THAT(error(One(Entry("a", "-1", kDigest))), HasSubstr("a has a negative size"));
  EXPECT_THAT(error(One(Entry("a", "1", "abc"))), HasSubstr("a has no SHA-256"));
  EXPECT_THAT(error(One(Entry("a", "1", std::string(64, 'A')))), HasSubstr("a has no SHA-256"));
  EXPECT_THAT(error(One(Entry("a", "1", kDigest) + "," + Entry("a", "2", kDigest))),
              HasSubstr("a stands twice"));
}

}  // namespace
}  // namespace esteira
