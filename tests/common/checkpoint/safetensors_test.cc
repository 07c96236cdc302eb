#include "common/checkpoint/safetensors.h"

#include <gmock/gmock.h>

#include "common/base/random.h"

namespace esteira {
namespace {

using testing::HasSubstr;

std::vector<TensorEntry> SomeTensors() {
  std::vector<TensorEntry> tensors = {{"w", ElementType::kFp32, {3, 5}},
                                      {"b", ElementType::kBf16, {7}},
                                      {"empty", ElementType::kFp32, {0, 4}},
                                      {"scalar", ElementType::kInt64, {}}};
  PlaceTensors(tensors);
  return tensors;
}

absl::StatusOr<SafetensorsFile> Parse(const std::string& header, int64_t data_bytes) {
  return ParseSafetensorsHeader(
      header, kSafetensorsPrefixBytes + static_cast<int64_t>(header.size()) + data_bytes);
}

std::string ErrorOf(const std::string& header, int64_t data_bytes) {
  return Parse(header, data_bytes).status().ToString();
}

std::string Tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(SafetensorsTest, RoundTrip) {
  const auto tensors = SomeTensors();
  EXPECT_EQ(tensors.back().end, 60 + 14 + 0 + 8);
  const std::string header = SafetensorsHeader(tensors);
  EXPECT_EQ(header.size() % 8, 0u);
  const auto file_bytes = static_cast<int64_t>(header.size()) + tensors.back().end;
  auto size = SafetensorsHeaderBytes(header.substr(0, 8), file_bytes);
  ASSERT_TRUE(size.ok());
  ASSERT_EQ(*size, static_cast<int64_t>(header.size()) - 8);
  auto file = ParseSafetensorsHeader(header.substr(8), file_bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors, tensors);
  EXPECT_EQ(file->data_offset, static_cast<int64_t>(header.size()));
  EXPECT_TRUE(Parse(SafetensorsHeader({}).substr(8), 0).ok());
}

TEST(SafetensorsTest, HostileSizesOfTheHeader) {
  const auto error = [](const std::string& prefix, int64_t bytes) {
    return SafetensorsHeaderBytes(prefix, bytes).status().ToString();
  };
  EXPECT_THAT(error("", 0), HasSubstr("too short"));
  EXPECT_THAT(error("1234567", 7), HasSubstr("too short"));
  EXPECT_THAT(error(std::string(8, '\xff'), 1 << 20), HasSubstr("18446744073709551615 bytes"));
  EXPECT_THAT(error(std::string("\x09\0\0\0\0\0\0\0", 8), 16), HasSubstr("9 bytes does not fit"));
  EXPECT_TRUE(SafetensorsHeaderBytes(std::string("\x08\0\0\0\0\0\0\0", 8), 16).ok());
  EXPECT_THAT(error(std::string("\0\0\0\x40\0\0\0\0", 8), int64_t{1} << 40),
              HasSubstr("does not fit"));
}

TEST(SafetensorsTest, BadHeadersAreNamed) {
  const std::string good = Tensor("F32", "[2]", "[0,8]");
  EXPECT_TRUE(Parse(R"({"a":)" + good + "}", 8).ok());
  EXPECT_THAT(ErrorOf("{", 8), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf("[1]", 8), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf(R"({"a":1})", 8), HasSubstr("tensor a"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F8", "[2]", "[0,8]") + "}", 8),
              HasSubstr("type \"F8\""));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F32", "[-2]", "[0,8]") + "}", 8), HasSubstr("shape"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F32", "[2.5]", "[0,8]") + "}", 8), HasSubstr("shape"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F32", "2", "[0,8]") + "}", 8), HasSubstr("shape"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F32", "[2]", "[8,0]") + "}", 8), HasSubstr("no range"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F32", "[2]", "[0]") + "}", 8), HasSubstr("no range"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F32", "[3]", "[0,8]") + "}", 8),
              HasSubstr("its shape takes 12 bytes, its offsets 8"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F32", "[4294967296,4294967296]", "[0,0]") + "}", 8),
              HasSubstr("overflows"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Tensor("F32", "[18446744073709551615]", "[0,0]") + "}", 8),
              HasSubstr("shape"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + good + "}", 7), HasSubstr("take 8 bytes, the file has 7"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + good + "}", 9), HasSubstr("take 8 bytes, the file has 9"));
}

TEST(SafetensorsTest, OverlapsHolesAndRepeats) {
  const std::string a = R"("a":)" + Tensor("F32", "[2]", "[0,8]");
  EXPECT_TRUE(Parse("{" + a + R"(,"b":)" + Tensor("F32", "[1]", "[8,12]") + "}", 12).ok());
  EXPECT_THAT(ErrorOf("{" + a + R"(,"b":)" + Tensor("F32", "[2]", "[4,12]") + "}", 12),
              HasSubstr("tensor b begins at byte 4, the one before it ends at 8"));
  EXPECT_THAT(ErrorOf("{" + a + R"(,"b":)" + Tensor("F32", "[2]", "[0,8]") + "}", 8),
              HasSubstr("tensor b"));
  EXPECT_THAT(ErrorOf("{" + a + R"(,"b":)" + Tensor("F32", "[1]", "[12,16]") + "}", 16),
              HasSubstr("tensor b"));
  EXPECT_FALSE(Parse("{" + a + R"(,"a":)" + Tensor("F32", "[1]", "[8,12]") + "}", 12).ok());
}

// Any single damage to a header gives a status, and whatever is accepted lies inside the file.
TEST(SafetensorsTest, DamagedHeadersNeverReachOutsideTheFile) {
  const auto tensors = SomeTensors();
  const std::string header = SafetensorsHeader(tensors);
  const auto file_bytes = static_cast<int64_t>(header.size()) + tensors.back().end;
  for (uint64_t trial = 0; trial < 5000; ++trial) {
    std::string damaged = header;
    for (uint64_t change = 0; change <= trial % 3; ++change) {
      const uint64_t bits = RandomBits(11, trial, change);
      damaged[bits % damaged.size()] = static_cast<char>(bits >> 32);
    }
    auto size = SafetensorsHeaderBytes(damaged.substr(0, 8), file_bytes);
    if (!size.ok()) continue;
    auto file = ParseSafetensorsHeader(damaged.substr(8, static_cast<size_t>(*size)), file_bytes);
    if (!file.ok()) continue;
    for (const TensorEntry& tensor : file->tensors) {
      ASSERT_GE(tensor.begin, 0);
      ASSERT_LE(file->data_offset + tensor.end, file_bytes);
      ASSERT_EQ(tensor.elements() * BytesOf(tensor.type), tensor.end - tensor.begin);
    }
  }
}

TEST(SafetensorsTest, DeepNestingIsNoStackOverflow) {
  EXPECT_FALSE(Parse(std::string(1000000, '['), 0).ok());
  EXPECT_FALSE(
      Parse(R"({"a":)" + std::string(100000, '[') + std::string(100000, ']') + "}", 0).ok());
}

}  // namespace
}  // namespace esteira
