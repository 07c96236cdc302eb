#include <cmath>
#include <functional>
#include <map>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/inference/commands.h"

namespace esteira {
namespace {

constexpr char kGenerateHelp[] =
    "Samples text from a model.\n"
    "  generate DIR --prompt TEXT [--tokens N] [--temperature T] [--seed S] [--threads N]\n"
    "DIR: a checkpoint, an export, or a directory of checkpoints (the newest is taken)\n"
    "  --prompt TEXT     the text to go on from\n"
    "  --tokens N        how many tokens to sample (200)\n"
    "  --temperature T   0: always the most likely token (0.8)\n"
    "  --seed S          the same seed gives the same text (0)\n"
    "  --threads N       of the kernels (1)\n";
constexpr char kEvaluateHelp[] =
    "Mean loss and perplexity of a model over a data file.\n"
    "  evaluate DIR --data PATH [-o text|json] [--threads N]\n"
    "DIR: a checkpoint, an export, or a directory of checkpoints (the newest is taken)\n"
    "  --data PATH       text, or a .bin of uint16 tokens\n"
    "  -o, --output      text or json (text)\n"
    "  --threads N       of the kernels (1)\n";

// What an option does with its value; false when the value is none.
using Setter = std::function<bool(const std::string&)>;

// "DIR --name value" or "--name=value", in any order.
absl::Status ParseArguments(const std::vector<std::string>& arguments,
                            const std::map<std::string, Setter>& setters, std::string& folder) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!absl::StartsWith(argument, "-") && folder.empty()) {
      folder = argument;
      continue;
    }
    const size_t equals = absl::StartsWith(argument, "--") ? argument.find('=') : std::string::npos;
    const std::string name = argument.substr(0, equals);
    const auto setter = setters.find(name);
    if (setter == setters.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown argument ", argument, "; see --help"));
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      return absl::InvalidArgumentError(absl::StrCat(name, " takes a value; see --help"));
    }
    const std::string value =
        equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (!setter->second(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " ", value, ": not a value of it; see --help"));
    }
  }
  if (folder.empty()) return absl::InvalidArgumentError("no folder is named; see --help");
  return absl::OkStatus();
}

bool AsksForHelp(const std::vector<std::string>& arguments) {
  return arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h");
}

Setter Threads(int& threads) {
  return [&threads](const std::string& value) {
    return absl::SimpleAtoi(value, &threads) && threads >= 1 && threads <= 1024;
  };
}

Setter Text(std::string& text) {
  return [&text](const std::string& value) {
    text = value;
    return true;
  };
}

}  // namespace

absl::Status GenerateMain(const std::vector<std::string>& arguments, std::ostream& out) {
  if (AsksForHelp(arguments)) {
    out << kGenerateHelp;
    return absl::OkStatus();
  }
  GenerateOptions options;
  const std::map<std::string, Setter> setters = {
      {"--prompt", Text(options.prompt)},
      {"--tokens",
       [&](const std::string& value) {
         return absl::SimpleAtoi(value, &options.tokens) && options.tokens >= 0;
       }},
      {"--temperature",
       [&](const std::string& value) {
         return absl::SimpleAtod(value, &options.temperature) &&
                std::isfinite(options.temperature) && options.temperature >= 0;
       }},
      {"--seed", [&](const std::string& value) { return absl::SimpleAtoi(value, &options.seed); }},
      {"--threads", Threads(options.threads)}};
  RETURN_IF_ERROR(ParseArguments(arguments, setters, options.folder));
  return RunGenerate(options, out);
}

absl::Status EvaluateMain(const std::vector<std::string>& arguments, std::ostream& out) {
  if (AsksForHelp(arguments)) {
    out << kEvaluateHelp;
    return absl::OkStatus();
  }
  EvaluateOptions options;
  const Setter output = [&](const std::string& value) {
    options.json = value == "json";
    return value == "json" || value == "text";
  };
  const std::map<std::string, Setter> setters = {{"--data", Text(options.data)},
                                                 {"-o", output},
                                                 {"--output", output},
                                                 {"--threads", Threads(options.threads)}};
  RETURN_IF_ERROR(ParseArguments(arguments, setters, options.folder));
  if (options.data.empty()) return absl::InvalidArgumentError("--data is missing; see --help");
  return RunEvaluate(options, out);
}

}  // namespace esteira
