#include "worker/inference/commands.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file_system.h"
#include "common/base/hash.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/reader.h"
#include "worker/data/data_set.h"
#include "worker/data/tokenizer.h"
#include "worker/inference/inference_model.h"
#include "worker/inference/sampling.h"
#include "worker/inference/utf8_stream.h"

namespace esteira {
namespace {

constexpr int64_t kTokensAtOnce = 2048;  // of an evaluation

// A model and everything that it stands on.
struct LoadedModel {
  RealFileSystem files;
  std::unique_ptr<CheckpointReader> reader;
  std::unique_ptr<Device> device;
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<InferenceModel> model;  // last: it uses all above
};

absl::Status Load(const std::string& folder, int threads, LoadedModel& loaded) {
  ASSIGN_OR_RETURN(loaded.reader, CheckpointReader::Open(loaded.files, folder));
  loaded.device = MakeCpuDevice({.threads = threads});
  loaded.kernels = MakeCpuKernels(threads);
  ASSIGN_OR_RETURN(loaded.model,
                   InferenceModel::Load(*loaded.reader, *loaded.device, *loaded.kernels));
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenizerOf(const CheckpointReader& reader) {
  if (reader.tokenizer()) return *reader.tokenizer();
  return absl::FailedPreconditionError(
      absl::StrCat(reader.folder(),
                   " has no tokenizer.json: it was trained on token files, and text cannot be "
                   "turned into its tokens"));
}

absl::StatusOr<std::vector<int32_t>> EncodePrompt(const GenerateOptions& options,
                                                  const Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<int32_t> tokens = tokenizer.Encode(options.prompt);
  if (tokens.empty())
    return absl::InvalidArgumentError("the prompt is empty: give at least one character");
  for (const int32_t token : tokens) {
    if (token >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the prompt's token ", token, " is outside the model's vocabulary of ", vocab_size));
    }
  }
  return tokens;
}

absl::StatusOr<LossSums> SumLoss(const TokenSource& source, int64_t sequence,
                                 InferenceModel& model) {
  const int64_t batch = std::max<int64_t>(1, kTokensAtOnce / sequence);
  const auto length = static_cast<size_t>(sequence);
  LossSums sums;
  for (int64_t first = 0; first < source.num_samples(); first += batch) {
    const auto count = static_cast<size_t>(std::min(batch, source.num_samples() - first));
    std::vector<int32_t> inputs(count * length);
    std::vector<int32_t> targets(count * length);
    for (size_t i = 0; i < count; ++i) {
      RETURN_IF_ERROR(source.Read(first + static_cast<int64_t>(i),
                                  std::span(inputs).subspan(i * length, length),
                                  std::span(targets).subspan(i * length, length)));
    }
    ASSIGN_OR_RETURN(const LossSums part, model.Loss(sequence, inputs, targets));
    sums.loss += part.loss;
    sums.valid_tokens += part.valid_tokens;
  }
  return sums;
}

}  // namespace

absl::Status RunGenerate(const GenerateOptions& options, std::ostream& out) {
  LoadedModel loaded;
  RETURN_IF_ERROR(Load(options.folder, options.threads, loaded));
  const ModelSpec& spec = loaded.model->spec();
  ASSIGN_OR_RETURN(const std::string name, TokenizerOf(*loaded.reader));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(name));
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, EncodePrompt(options, *tokenizer, spec.vocab_size));
  // A vocabulary may be padded; only tokens that stand for text are drawn.
  const auto drawable = static_cast<size_t>(std::min(spec.vocab_size, tokenizer->vocab_size()));
  const auto window = static_cast<size_t>(spec.max_sequence_length);
  Utf8Stream text;
  out << text.Push(options.prompt);
  for (int64_t i = 0; i < options.tokens && out; ++i) {
    const size_t first = tokens.size() - std::min(tokens.size(), window);
    ASSIGN_OR_RETURN(const std::vector<float> logits,
                     loaded.model->NextLogits(std::span<const int32_t>(tokens).subspan(first)));
    const double uniform =
        RandomUniform(options.seed, HashName("generate"), static_cast<uint64_t>(i));
    tokens.push_back(SampleToken(std::span(logits).first(drawable), options.temperature, uniform));
    out << text.Push(tokenizer->Decode(tokens.back())) << std::flush;
  }
  out << text.Finish() << "\n" << std::flush;
  return absl::OkStatus();
}

absl::Status RunEvaluate(const EvaluateOptions& options, std::ostream& out) {
  LoadedModel loaded;
  RETURN_IF_ERROR(Load(options.folder, options.threads, loaded));
  const ModelSpec& spec = loaded.model->spec();
  std::string tokenizer;
  if (!absl::EndsWith(options.data, ".bin")) {
    ASSIGN_OR_RETURN(tokenizer, TokenizerOf(*loaded.reader));
  }
  const auto& state = loaded.reader->trainer_state();
  const int64_t sequence =
      state ? std::min(state->sequence_length, spec.max_sequence_length) : spec.max_sequence_length;
  ASSIGN_OR_RETURN(const std::unique_ptr<TokenSource> source,
                   OpenTokenSource(options.data, tokenizer, sequence, spec.vocab_size));
  ASSIGN_OR_RETURN(const LossSums sums, SumLoss(*source, sequence, *loaded.model));
  const double loss = sums.loss / static_cast<double>(sums.valid_tokens);
  if (options.json) {
    out << absl::StrFormat("{\"loss\": %.17g, \"perplexity\": %.17g, \"tokens\": %d}\n", loss,
                           std::exp(loss), sums.valid_tokens);
  } else {
    out << absl::StrFormat("loss %.6f  perplexity %.4f  tokens %d\n", loss, std::exp(loss),
                           sums.valid_tokens);
  }
  return absl::OkStatus();
}

}  // namespace esteira
