#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/data_identity.h"
#include "common/plan/job_spec.h"

namespace esteira {

inline constexpr char kTrainerStateName[] = "trainer_state.json";

// Where a run stands, besides its tensors: with them it is all that a run needs to go on as if it
// had never stopped.
struct TrainerState {
  int64_t step = 0;         // steps done
  int64_t updates = 0;      // optimizer updates done: steps less skipped ones
  int64_t next_sample = 0;  // global sample index of the next step's first sample
  uint64_t seed = 0;
  int64_t schedule_steps = 0;  // that the learning rate's schedule spans: "steps" in the file
  int64_t global_batch_size = 0;
  int64_t sequence_length = 0;
  int64_t micro_batch_size = 0;  // part of what is computed, as are numerics and traffic
  std::string numerics;
  std::string gradient_traffic;
  double dropout = 0;
  double gradient_clip_norm = 0;
  AdamWOptions adamw;
  LearningRateSchedule schedule;
  std::string tokenizer;            // as in a job file
  std::vector<DataIdentity> train;  // of data.train, in its order
};

// `micro_batch_size`: the layout's. `train`: of the job's data, as IdentifyData told it before the
// first step.
TrainerState MakeTrainerState(const JobSpec& job, int64_t micro_batch_size,
                              std::vector<DataIdentity> train, int64_t step, int64_t updates);

std::string PrintTrainerState(const TrainerState& state);
absl::StatusOr<TrainerState> ParseTrainerState(absl::string_view text);  // DataLoss names the field

}  // namespace esteira
