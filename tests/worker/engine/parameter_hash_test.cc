#include "worker/engine/parameter_hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>

#include "common/base/hash.h"

namespace esteira {
namespace {

class ParameterHashTest : public ::testing::Test {
 protected:
  ParameterHashTest() {
    unit_.parameters = {{.name = "a", .shape = {70}, .offset = 0, .elements = 70},
                        {.name = "b", .shape = {3}, .offset = 128, .elements = 3}};
    unit_.flat_elements = 192;
  }

  // Elements [begin, end) of a buffer whose element i holds i.
  FlatPart Part(int64_t begin, int64_t end) {
    auto buffer = device_->Allocate((end - begin) * 4, MemoryKind::kOptimizer);
    EXPECT_TRUE(buffer.ok());
    FlatPart part(*std::move(buffer), {begin, end}, ElementType::kFp32);
    for (int64_t i = begin; i < end; ++i) {
      part.All().as<float>()[i - begin] = static_cast<float>(i);
    }
    return part;
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice({});
  UnitSpec unit_;
};

TEST_F(ParameterHashTest, IsTheSumOverLogicalElements) {
  uint64_t expected = 0;
  const auto add = [&](const char* name, uint64_t index, float value) {
    expected += Mix64(Mix64(HashName(name) ^ Mix64(index)) ^ std::bit_cast<uint32_t>(value));
  };
  for (uint64_t i = 0; i < 70; ++i) add("a", i, static_cast<float>(i));
  for (uint64_t i = 0; i < 3; ++i) add("b", i, static_cast<float>(128 + i));
  EXPECT_EQ(HashParameters(unit_, {0, 192}, Part(0, 192)), expected);
}

TEST_F(ParameterHashTest, ShardsAddUpToTheWholeAndPaddingTakesNoPart) {
  const uint64_t whole = HashParameters(unit_, {0, 192}, Part(0, 192));
  uint64_t sum = 0;
  for (int64_t begin = 0; begin < 256; begin += 64) {
    sum += HashParameters(unit_, {begin, begin + 64}, Part(begin, begin + 64));
  }
  EXPECT_EQ(sum, whole);
}

TEST_F(ParameterHashTest, AShardsRangeOfTheWholeHashesAsTheShard) {
  EXPECT_EQ(HashParameters(unit_, {64, 128}, Part(0, 192)),
            HashParameters(unit_, {64, 128}, Part(64, 128)));
}

TEST_F(ParameterHashTest, SeesOneBitOneNameAndOneSwap) {
  const uint64_t whole = HashParameters(unit_, {0, 192}, Part(0, 192));
  const FlatPart bit = Part(0, 192);
  float& value = bit.All().as<float>()[69];
  value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1);
  EXPECT_NE(HashParameters(unit_, {0, 192}, bit), whole);

  const FlatPart swapped = Part(0, 192);
  std::swap(swapped.All().as<float>()[1], swapped.All().as<float>()[2]);
  EXPECT_NE(HashParameters(unit_, {0, 192}, swapped), whole);

  unit_.parameters[1].name = "c";
  EXPECT_NE(HashParameters(unit_, {0, 192}, Part(0, 192)), whole);
}

}  // namespace
}  // namespace esteira
