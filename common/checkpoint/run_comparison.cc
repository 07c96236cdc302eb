#include "common/checkpoint/run_comparison.h"

#include <algorithm>

#include "absl/strings/match.h"
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

absl::Status CheckNotBeyond(int64_t step, int64_t steps) {
  if (step <= steps) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("it is of step ", step, ", and training.steps is ", steps,
                   "; raise training.steps, or name another checkpoint.directory, or set "
                   "checkpoint.resume=never to start anew"));
}

bool IsSet(const JobSpec& job, absl::string_view field) {
  return std::any_of(job.set_fields.begin(), job.set_fields.end(), [&](const std::string& path) {
    return field == path || absl::StartsWith(field, path + ".");
  });
}

// Decides, field by field, between the saved run and the job.
class Settlement {
 public:
  explicit Settlement(Continuation& result) : result_(result) {}

  // A hyper-parameter: `job` becomes what holds.
  template <typename Value>
  void Settle(const char* field, const Value& saved, Value& job) {
    if (saved == job) return;
    if (IsSet(result_.job, field)) return AddSet(field, Text(saved), Text(job));
    result_.kept.push_back(absl::StrCat(field, " stays ", Text(saved), " (the job file gives ",
                                        Text(job), "; --set ", field, "=", Text(job),
                                        " would change it)"));
    job = saved;
  }

  // How far the job goes is its own; what the schedule spans is not.
  void SettleSteps(int64_t saved) {
    JobSpec& job = result_.job;
    if (saved == job.steps) return;
    constexpr char kField[] = "training.steps";
    if (IsSet(job, kField)) return AddSet(kField, Text(saved), Text(job.steps));
    job.schedule_steps = saved;
    if (job.schedule.decay == Decay::kConstant) return;  // it makes no difference
    result_.kept.push_back(absl::StrCat(
        kField, " stays ", saved, " for the learning rate (the job goes on to step ", job.steps,
        "; --set ", kField, "=", job.steps, " would make its decay end there)"));
  }

  // What the plan was made with: the saved value can hold no more.
  void Require(const char* field, const std::string& saved, const std::string& job) {
    if (saved == job) return;
    if (IsSet(result_.job, field)) return AddSet(field, saved, job);
    refused_.push_back(absl::StrCat(field, " is ", saved, ", and ", job, " in the job file; write ",
                                    saved, " there, or say --set ", field, "=", job,
                                    " to change it"));
  }

  // The layout's business: free to change, but part of what is computed.
  void Note(const char* field, int64_t saved, int64_t job) {
    if (saved != job) result_.changed.push_back(absl::StrCat(field, " ", saved, " -> ", job));
  }

  absl::Status status() const {
    if (refused_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("its run was computed otherwise: ", absl::StrJoin(refused_, "; ")));
  }

 private:
  void AddSet(const char* field, const std::string& saved, const std::string& job) {
    result_.changed.push_back(absl::StrCat(field, " ", saved, " -> ", job, " (--set)"));
  }

  Continuation& result_;
  std::vector<std::string> refused_;
};

void SettleOptimizer(const TrainerState& saved, JobSpec& job, Settlement& settlement) {
  settlement.Settle("training.dropout", saved.dropout, job.dropout);
  settlement.Settle("training.gradient_clip_norm", saved.gradient_clip_norm,
                    job.gradient_clip_norm);
  const AdamWOptions& adamw = saved.adamw;
  settlement.Settle("training.optimizer.adamw.learning_rate", adamw.learning_rate,
                    job.adamw.learning_rate);
  settlement.Settle("training.optimizer.adamw.beta1", adamw.beta1, job.adamw.beta1);
  settlement.Settle("training.optimizer.adamw.beta2", adamw.beta2, job.adamw.beta2);
  settlement.Settle("training.optimizer.adamw.epsilon", adamw.epsilon, job.adamw.epsilon);
  settlement.Settle("training.optimizer.adamw.weight_decay", adamw.weight_decay,
                    job.adamw.weight_decay);
}

void SettleSchedule(const TrainerState& saved, JobSpec& job, Settlement& settlement) {
  const LearningRateSchedule& schedule = saved.schedule;
  settlement.Settle("training.schedule.warmup_steps", schedule.warmup_steps,
                    job.schedule.warmup_steps);
  settlement.Settle("training.schedule.decay", schedule.decay, job.schedule.decay);
  settlement.Settle("training.schedule.final_ratio", schedule.final_ratio,
                    job.schedule.final_ratio);
  // decay_steps are wsd's alone: they come and go with it.
  if (job.schedule.decay == schedule.decay) {
    if (schedule.decay != Decay::kWsd) job.schedule.decay_steps = schedule.decay_steps;
    settlement.Settle("training.schedule.decay_steps", schedule.decay_steps,
                      job.schedule.decay_steps);
  }
  settlement.SettleSteps(saved.schedule_steps);
}

}  // namespace

absl::StatusOr<Continuation> ContinueRun(const RunDescription& saved, const JobSpec& job,
                                         int64_t micro_batch_size,
                                         const std::vector<DataIdentity>& train) {
  const RunDescription wanted = {{job.model, job.precision},
                                 MakeTrainerState(job, micro_batch_size, train, 0, 0)};
  RETURN_IF_ERROR(CheckSameRun(saved, wanted));
  RETURN_IF_ERROR(CheckNotBeyond(saved.state.step, job.steps));
  Continuation result{job, {}, {}};
  Settlement settlement(result);
  settlement.Require("training.precision", PrecisionName(saved.config.precision),
                     PrecisionName(job.precision));
  settlement.Require("training.numerics", saved.state.numerics, wanted.state.numerics);
  settlement.Require("parallelism.gradient_traffic", saved.state.gradient_traffic,
                     wanted.state.gradient_traffic);
  settlement.Note("training.micro_batch_size", saved.state.micro_batch_size, micro_batch_size);
  SettleOptimizer(saved.state, result.job, settlement);
  SettleSchedule(saved.state, result.job, settlement);
  RETURN_IF_ERROR(settlement.status());
  return result;
}

}  // namespace esteira
