#include "common/checkpoint/run_comparison.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

std::string Text(double value) {
  std::string text = absl::StrCat(value);
  // Six digits may hide the difference.
  return std::stod(text) == value ? text : absl::StrFormat("%.17g", value);
}
std::string Text(int64_t value) { return absl::StrCat(value); }
std::string Text(uint64_t value) { return absl::StrCat(value); }
std::string Text(const std::string& value) { return value; }
std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(Decay decay) {
  switch (decay) {
    case Decay::kCosine: return "cosine";
    case Decay::kLinear: return "linear";
    case Decay::kConstant: return "constant";
    case Decay::kWsd: return "wsd";
  }
  return "";
}

// Fields that differ, as "name SAVED -> JOB".
class Differences {
 public:
  template <typename Value>
  void Add(const char* name, const Value& saved, const Value& job) {
    if (saved == job) return;
    texts_.push_back(absl::StrCat(name, " ", Text(saved), " -> ", Text(job)));
  }
  void AddText(std::string text) { texts_.push_back(std::move(text)); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

void CompareModels(const ModelSpec& saved, const ModelSpec& job, Differences& differences) {
  const auto name = [](Architecture architecture) {
    return std::string(ArchitectureName(architecture));
  };
  differences.Add("model.architecture", name(saved.architecture), name(job.architecture));
  differences.Add("model.num_layers", saved.num_layers, job.num_layers);
  differences.Add("model.hidden_size", saved.hidden_size, job.hidden_size);
  differences.Add("model.num_heads", saved.num_heads, job.num_heads);
  differences.Add("model.num_kv_heads", saved.num_kv_heads, job.num_kv_heads);
  differences.Add("model.intermediate_size", saved.intermediate_size, job.intermediate_size);
  differences.Add("model.vocab_size", saved.vocab_size, job.vocab_size);
  differences.Add("model.max_sequence_length", saved.max_sequence_length, job.max_sequence_length);
  differences.Add("model.tie_embeddings", saved.tie_embeddings, job.tie_embeddings);
  differences.Add("model.norm_epsilon", saved.norm_epsilon, job.norm_epsilon);
  if (job.architecture == Architecture::kLlama) {
    differences.Add("model.rope_theta", saved.rope_theta, job.rope_theta);
  }
}

// The order, the weights and the bytes decide which sample comes when; where the files lie does
// not.
void CompareData(const std::vector<DataIdentity>& saved, const std::vector<DataIdentity>& job,
                 Differences& differences) {
  differences.Add("number of files in data.train", static_cast<int64_t>(saved.size()),
                  static_cast<int64_t>(job.size()));
  for (size_t i = 0; i < std::min(saved.size(), job.size()); ++i) {
    const std::string name = absl::StrCat("data.train[", i, "] (", job[i].path, ")");
    differences.Add(absl::StrCat(name, " size").c_str(), saved[i].bytes, job[i].bytes);
    differences.Add(absl::StrCat(name, " weight").c_str(), saved[i].weight, job[i].weight);
    if (saved[i].bytes == job[i].bytes && saved[i].sha256 != job[i].sha256) {
      differences.AddText(absl::StrCat(name, " has other bytes than ", saved[i].path, " had"));
    }
  }
}

absl::Status CheckSameRun(const RunDescription& saved, const RunDescription& job) {
  Differences differences;
  CompareModels(saved.config.model, job.config.model, differences);
  CompareData(saved.state.train, job.state.train, differences);
  differences.Add("data.tokenizer", saved.state.tokenizer, job.state.tokenizer);
  differences.Add("data.sequence_length", saved.state.sequence_length, job.state.sequence_length);
  differences.Add("training.seed", saved.state.seed, job.state.seed);
  differences.Add("training.global_batch_size", saved.state.global_batch_size,
                  job.state.global_batch_size);
  if (differences.texts().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "it is of another run (saved -> this job): ", absl::StrJoin(differences.texts(), "; "),
      "; set them back, or name another checkpoint.directory, or set checkpoint.resume=never to "
      "start anew"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CompareRuns(const RunDescription& saved,
                                                     const RunDescription& job) {
  RETURN_IF_ERROR(CheckSameRun(saved, job));
  if (saved.state.step > job.state.steps) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is of step ", saved.state.step, ", and training.steps is ",
                     job.state.steps, "; raise training.steps, or name another ",
                     "checkpoint.directory, or set checkpoint.resume=never to start anew"));
  }
  Differences differences;
  const TrainerState& before = saved.state;
  const TrainerState& now = job.state;
  differences.Add("training.steps", before.steps, now.steps);
  differences.Add("training.precision", std::string(PrecisionName(saved.config.precision)),
                  std::string(PrecisionName(job.config.precision)));
  differences.Add("training.micro_batch_size", before.micro_batch_size, now.micro_batch_size);
  differences.Add("training.numerics", before.numerics, now.numerics);
  differences.Add("training.dropout", before.dropout, now.dropout);
  differences.Add("training.gradient_clip_norm", before.gradient_clip_norm, now.gradient_clip_norm);
  differences.Add("adamw.learning_rate", before.adamw.learning_rate, now.adamw.learning_rate);
  differences.Add("adamw.beta1", before.adamw.beta1, now.adamw.beta1);
  differences.Add("adamw.beta2", before.adamw.beta2, now.adamw.beta2);
  differences.Add("adamw.epsilon", before.adamw.epsilon, now.adamw.epsilon);
  differences.Add("adamw.weight_decay", before.adamw.weight_decay, now.adamw.weight_decay);
  differences.Add("schedule.warmup_steps", before.schedule.warmup_steps, now.schedule.warmup_steps);
  differences.Add("schedule.decay", before.schedule.decay, now.schedule.decay);
  differences.Add("schedule.final_ratio", before.schedule.final_ratio, now.schedule.final_ratio);
  differences.Add("schedule.decay_steps", before.schedule.decay_steps, now.schedule.decay_steps);
  return differences.texts();
}

}  // namespace esteira
