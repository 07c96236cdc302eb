#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/layout.h"
#include "common/plan/model_spec.h"

namespace esteira {

struct DataSource {
  std::string path;
  double weight = 1;
};

struct AdamWOptions {
  double learning_rate = 6e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
};

enum class Decay { kCosine, kLinear, kConstant, kWsd };
struct LearningRateSchedule {
  int64_t warmup_steps = 0;
  Decay decay = Decay::kCosine;
  double final_ratio = 0.1;
  int64_t decay_steps = 0;  // wsd
};

enum class OnNonFinite { kSkip, kStop, kRollBack };

// Whether the plan runs at toy width before the job starts: kAuto with at most so many ranks,
// kFull with all.
enum class LaunchCheck { kAuto, kOff, kFull };
inline constexpr int kMostRanksOfAutoCheck = 32;

// A layout as the user asked for it; what is absent the planner chooses.
struct LayoutRequest {
  std::optional<int> stages;
  std::optional<int> chunks_per_stage;
  std::optional<int> replicas;
  std::optional<int> zero;
  std::optional<std::string> schedule;  // a name, auto, or csv:PATH
  std::string schedule_csv;             // the text of the file at PATH
  std::optional<int> reduce_every;
  std::optional<int> gather_for;
  std::optional<int> lookahead;
  std::optional<int64_t> micro_batch_size;
  std::string recompute = "none";  // none | full | auto
  bool operator==(const LayoutRequest&) const = default;
};

// A job with all defaults filled in: what to train, on what data, how. Knows no hosts, ranks or
// devices. It is made from the proto by job_codec.h, which has checked it.
struct JobSpec {
  std::string name;
  ModelSpec model;
  std::vector<DataSource> train;
  std::vector<DataSource> validation;
  std::string tokenizer = "bytes";
  int64_t sequence_length = 0;
  uint64_t seed = 0;
  int64_t steps = 0;
  int64_t global_batch_size = 0;
  Precision precision = Precision::kBf16;
  Numerics numerics = Numerics::kFast;
  GradientTraffic gradient_traffic = GradientTraffic::kFull;
  double gradient_clip_norm = 1;
  double dropout = 0;
  AdamWOptions adamw;
  LearningRateSchedule schedule;
  std::optional<int64_t> schedule_steps;  // that the schedule spans; default: all of the job
  int64_t validate_every_steps = 0;
  int64_t validation_batches = 4;
  OnNonFinite on_non_finite = OnNonFinite::kSkip;
  double spike_factor = 0;  // times the usual gradient norm; 0: no step is a spike
  int64_t parameter_hash_every_steps = 0;
  bool write_sample_ids = false;
  LayoutRequest layout;
  std::string checkpoint_directory;
  int64_t checkpoint_every_steps = 0;
  int64_t checkpoints_to_keep = 0;
  LaunchCheck check = LaunchCheck::kAuto;
  bool resume_if_found = false;  // a checkpoint in the directory is to be continued
  // What was given beside the job file, "training.dropout" or "training.schedule": where a
  // checkpoint is continued, these hold against its values (common/checkpoint/run_comparison.h).
  std::vector<std::string> set_fields;
};

}  // namespace esteira
