#include "common/base/nearest_name.h"

#include <gtest/gtest.h>

namespace esteira {
namespace {

TEST(NearestName, TakesTheFewestChanges) {
  const std::vector<std::string> known = {"steps", "seed", "schedule"};
  EXPECT_EQ(NearestName("step", known), "steps");
  EXPECT_EQ(NearestName("sed", known), "seed");
  EXPECT_EQ(NearestName("shcedule", known), "schedule");
  EXPECT_EQ(NearestName("seed", known), "seed");
}

TEST(NearestName, TheFirstOfEqualsAndNothingOfNothing) {
  EXPECT_EQ(NearestName("ac", {"ab", "bc"}), "ab");
  EXPECT_EQ(NearestName("", {"bb", "a"}), "a");
  EXPECT_EQ(NearestName("a", {}), "");
}

}  // namespace
}  // namespace esteira
