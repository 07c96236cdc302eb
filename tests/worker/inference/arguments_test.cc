#include <gmock/gmock.h>

#include <sstream>

#include "worker/inference/commands.h"

namespace esteira {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

std::string GenerateError(const Arguments& arguments) {
  std::ostringstream out;
  return GenerateMain(arguments, out).ToString();
}
std::string EvaluateError(const Arguments& arguments) {
  std::ostringstream out;
  return EvaluateMain(arguments, out).ToString();
}

TEST(ArgumentsTest, Help) {
  std::ostringstream out;
  EXPECT_TRUE(GenerateMain({"--help"}, out).ok());
  EXPECT_THAT(out.str(), HasSubstr("--temperature"));
  EXPECT_TRUE(EvaluateMain({"-h"}, out).ok());
  EXPECT_THAT(out.str(), HasSubstr("--data"));
}

TEST(ArgumentsTest, FaultsAreNamed) {
  EXPECT_THAT(GenerateError({}), HasSubstr("no folder"));
  EXPECT_THAT(GenerateError({"dir", "--tempo", "1"}), HasSubstr("unknown argument --tempo"));
  EXPECT_THAT(GenerateError({"dir", "other"}), HasSubstr("unknown argument other"));
  EXPECT_THAT(GenerateError({"dir", "--prompt"}), HasSubstr("--prompt takes a value"));
  EXPECT_THAT(GenerateError({"dir", "--tokens", "-1"}), HasSubstr("--tokens -1"));
  EXPECT_THAT(GenerateError({"dir", "--tokens=two"}), HasSubstr("--tokens two"));
  EXPECT_THAT(GenerateError({"dir", "--temperature", "nan"}), HasSubstr("--temperature nan"));
  EXPECT_THAT(GenerateError({"dir", "--seed", "-2"}), HasSubstr("--seed -2"));
  EXPECT_THAT(GenerateError({"dir", "--threads", "0"}), HasSubstr("--threads 0"));
  EXPECT_THAT(EvaluateError({"dir"}), HasSubstr("--data is missing"));
  EXPECT_THAT(EvaluateError({"dir", "--data", "x", "-o", "yaml"}), HasSubstr("-o yaml"));
  EXPECT_THAT(GenerateError({"--prompt", "-x", "/nowhere"}), HasSubstr("/nowhere does not exist"));
}

}  // namespace
}  // namespace esteira
