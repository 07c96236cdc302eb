// The commands that need a model: `generate` and `evaluate`.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace esteira {

struct GenerateOptions {
  std::string folder;  // a checkpoint, an export, or a directory of checkpoints
  std::string prompt;
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: the most likely token
  uint64_t seed = 0;
  int threads = 1;
};

// Writes the prompt and, as they come, the characters of `tokens` sampled tokens, then a newline.
// Token i is a function of (model, prompt, temperature, seed, i). Contexts longer than the model's
// go on with its last max_sequence_length tokens.
absl::Status RunGenerate(const GenerateOptions& options, std::ostream& out);

struct EvaluateOptions {
  std::string folder;
  std::string data;
  int threads = 1;
  bool json = false;
};

// Writes the mean loss over all whole samples of a data file (of the trained sequence length), the
// perplexity, and the number of tokens.
absl::Status RunEvaluate(const EvaluateOptions& options, std::ostream& out);

// The same by command-line arguments (without the command's name). InvalidArgument names what is
// wrong.
absl::Status GenerateMain(const std::vector<std::string>& arguments, std::ostream& out);
absl::Status EvaluateMain(const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace esteira
