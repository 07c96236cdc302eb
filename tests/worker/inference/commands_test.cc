#include "worker/inference/commands.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>

#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "tests/worker/inference/toy_checkpoint.h"
#include "worker/inference/inference_model.h"

namespace esteira {
namespace {

using testing::HasSubstr;

class CommandsTest : public testing::Test {
 protected:
  CommandsTest() : root_(testing::TempDir() + "/inference_" + std::to_string(getpid())) {
    std::filesystem::create_directories(root_);
  }
  ~CommandsTest() override { std::filesystem::remove_all(root_); }

  std::string Toy(const std::string& name) {
    auto folder = WriteToyCheckpoint(name, root_ + "/" + name);
    CHECK(folder.ok());
    return *folder;
  }
  static std::string Generate(const GenerateOptions& options) {
    std::ostringstream out;
    const absl::Status status = RunGenerate(options, out);
    return status.ok() ? out.str() : status.ToString();
  }
  static std::string Evaluate(const EvaluateOptions& options) {
    std::ostringstream out;
    const absl::Status status = RunEvaluate(options, out);
    return status.ok() ? out.str() : status.ToString();
  }

  std::string root_;
  RealFileSystem files_;
};

// What transformers 4.35.2 with torch 1.13.1 found for these checkpoints (load_in_transformers.py
// prints it).
TEST_F(CommandsTest, TheLossIsTheOneOfTransformers) {
  const std::map<std::string, double> expected = {{"gpt2", 6.537094195},
                                                  {"gpt2_untied", 6.650190402},
                                                  {"llama", 6.644259577},
                                                  {"llama_tied", 6.659956956},
                                                  {"llama_bf16", 6.643177182}};
  for (const std::string& name : ToyNames()) {
    const std::string folder = Toy(name);
    const std::string text = Evaluate(
        {.folder = folder, .data = root_ + "/" + name + "/data.txt", .threads = 1, .json = true});
    double loss = 0;
    double perplexity = 0;
    long long tokens = 0;
    ASSERT_EQ(std::sscanf(text.c_str(), R"({"loss": %lf, "perplexity": %lf, "tokens": %lld})",
                          &loss, &perplexity, &tokens),
              3)
        << text;
    EXPECT_NEAR(loss, expected.at(name), 2e-5) << name;
    EXPECT_NEAR(perplexity, std::exp(loss), 1e-6 * perplexity);
    EXPECT_EQ(tokens, 400);
  }
}

TEST_F(CommandsTest, ADirectoryOfCheckpointsIsEvaluatedToo) {
  Toy("gpt2");
  const std::string data = root_ + "/gpt2/data.txt";
  EXPECT_EQ(Evaluate({.folder = root_ + "/gpt2", .data = data}),
            Evaluate({.folder = root_ + "/gpt2/step-00000001", .data = data}));
  EXPECT_THAT(Evaluate({.folder = root_ + "/gpt2", .data = data}), HasSubstr("tokens 400"));
}

TEST_F(CommandsTest, TheSameSeedGivesTheSameText) {
  GenerateOptions options{
      .folder = Toy("llama"), .prompt = "Once", .tokens = 40, .temperature = 1, .seed = 1};
  const std::string text = Generate(options);
  EXPECT_EQ(text.substr(0, 4), "Once");
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(Generate(options), text);
  options.seed = 2;
  EXPECT_NE(Generate(options), text);
  // More tokens go on from the same ones; the context is longer than the window of 32.
  options.seed = 1;
  options.tokens = 10;
  const std::string start = Generate(options);
  EXPECT_EQ(text.substr(0, start.size() - 4), start.substr(0, start.size() - 4));
}

TEST_F(CommandsTest, NoTokensIsThePromptAlone) {
  EXPECT_EQ(Generate({.folder = Toy("llama"), .prompt = "Once", .tokens = 0}), "Once\n");
}

TEST_F(CommandsTest, FaultsAreNamed) {
  const std::string folder = Toy("gpt2");
  EXPECT_THAT(Generate({.folder = folder, .prompt = ""}), HasSubstr("prompt is empty"));
  EXPECT_THAT(Generate({.folder = root_, .prompt = "x"}), HasSubstr("is no model"));
  EXPECT_THAT(Evaluate({.folder = folder, .data = root_}), HasSubstr("is a directory"));
  std::filesystem::remove(folder + "/manifest.json");
  std::filesystem::remove(folder + "/tokenizer.json");
  EXPECT_THAT(Generate({.folder = folder, .prompt = "x"}), HasSubstr("has no tokenizer.json"));
  EXPECT_THAT(Evaluate({.folder = folder, .data = root_ + "/gpt2/data.txt"}),
              HasSubstr("has no tokenizer.json"));
}

// The logits after a prefix give the same probabilities as the loss over it.
TEST_F(CommandsTest, LogitsAgreeWithTheLoss) {
  for (const std::string& name : ToyNames()) {
    auto reader = CheckpointReader::Open(files_, Toy(name));
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto device = MakeCpuDevice({});
    const auto kernels = MakeCpuKernels(1);
    auto model = InferenceModel::Load(**reader, *device, *kernels);
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<int32_t> tokens = {72, 101, 0, 255, 258, 13, 7};
    double sum = 0;
    for (size_t count = 1; count < tokens.size(); ++count) {
      auto logits = (*model)->NextLogits(std::span(tokens).first(count));
      ASSERT_TRUE(logits.ok());
      ASSERT_EQ(logits->size(), 259u);
      double total = 0;
      for (const float logit : *logits) total += std::exp(static_cast<double>(logit));
      sum += std::log(total) - static_cast<double>((*logits)[static_cast<size_t>(tokens[count])]);
    }
    auto loss = (*model)->Loss(6, std::span(tokens).first(6), std::span(tokens).subspan(1));
    ASSERT_TRUE(loss.ok());
    EXPECT_NEAR(loss->loss, sum, 1e-4) << name;
    EXPECT_EQ(loss->valid_tokens, 6);
  }
}

}  // namespace
}  // namespace esteira
