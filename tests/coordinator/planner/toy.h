// Small models and layouts that the planner's tests share.
#pragma once

#include <string>

#include "common/base/status_macros.h"
#include "common/plan/plan.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/partition.h"
#include "coordinator/planner/planner.h"

namespace esteira {

inline ModelSpec ToyModel(int64_t layers, bool tied,
                          Architecture architecture = Architecture::kGpt2) {
  ModelSpec model;
  model.architecture = architecture;
  model.num_layers = layers;
  model.hidden_size = 8;
  model.num_heads = 2;
  model.num_kv_heads = 2;
  model.intermediate_size = 16;
  model.vocab_size = 20;
  model.max_sequence_length = 8;
  model.tie_embeddings = tied;
  return model;
}

// A layout with `micro_batches` of two sequences for each replica, all of them full.
inline Layout ToyLayout(const ModelSpec& model, int stages, int replicas, int micro_batches,
                        const std::string& schedule, int zero = 0, const StagePolicy& policy = {},
                        int chunks_per_stage = 1) {
  Layout layout;
  layout.stages = stages;
  layout.chunks_per_stage = chunks_per_stage;
  layout.SetPolicies(policy);
  layout.replicas = replicas;
  layout.schedule = schedule;
  layout.zero = zero;
  layout.micro_batch_size = 2;
  layout.global_batch_size = int64_t{2} * replicas * micro_batches;
  layout.sequence_length = 4;
  layout.boundaries =
      Partition(UnitCosts(model, 2, 4, Precision::kFp32, false, {}), layout.num_chunks());
  return layout;
}

inline JobSpec ToyJob(int64_t layers) {
  JobSpec job;
  job.name = "toy";
  job.model = ToyModel(layers, /*tied=*/false);
  job.train = {{"/data/text", 1}};
  job.sequence_length = 4;
  job.steps = 1;
  job.global_batch_size = 8;
  job.precision = Precision::kFp32;
  return job;
}

}  // namespace esteira
