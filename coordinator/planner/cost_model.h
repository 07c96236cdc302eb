// How long each instruction takes, from the sizes of what it computes or moves: floating point
// operations or bytes of memory, whichever takes longer at the worker's achieved rates, and latency
// and bandwidth of links, times what was measured for each op (ClusterSpec::factors). A value;
// pure.
//
// A stage is as fast as the slowest of its workers, and a link as slow as the slowest between the
// same two stages: replicas meet in every reduction, so that is what a step sees.
#pragma once

#include <vector>

#include "common/plan/plan.h"
#include "common/plan/sizes.h"
#include "coordinator/planner/cluster.h"

namespace esteira {

class CostModel {
 public:
  // `worker_of_rank`: indices into cluster.workers; empty: rank r is held by worker r.
  CostModel(const ModelSpec& model, const Layout& layout, Precision precision,
            const ClusterSpec& cluster, const std::vector<int>& worker_of_rank = {});

  double Seconds(const Program& program, const Instruction& instruction) const;

  // Of one op on one compute unit, a full micro-batch, on the workers of `stage`.
  double ComputeSeconds(int stage, int unit, Op op, int64_t samples) const;
  // Of one full micro-batch's activations from one stage to another; 0 on the same one.
  double ActivationSeconds(int from_stage, int to_stage) const;
  // Of one GATHER, or one REDUCE, of a unit on a stage. Joined to a next one: the transfer alone,
  // since the group's messages have one latency, which the one that closes it has.
  double GatherSeconds(int stage, int unit, bool joined = false) const;
  double ReduceSeconds(int stage, int unit, bool joined = false) const;
  double StepSeconds(int stage, int unit) const;

 private:
  double RawSeconds(const Program& program, const Instruction& instruction) const;
  double RawComputeSeconds(int stage, int unit, Op op, int64_t samples) const;
  double TransferSeconds(int from_stage, int to_stage, double bytes) const;
  double RingSeconds(int stage, int unit, int64_t bytes_per_element, bool joined) const;
  bool StagesShareHost(int a, int b) const;
  double ElementsOf(int unit, bool whole) const;
  double SumSeconds(int stage, int unit, Op op) const;
  bool exact() const { return layout_.numerics == Numerics::kExact; }
  int64_t sum_bytes() const { return BytesOf(SumType(layout_.numerics)); }
  double Factor(Op op) const { return cluster_.factors[static_cast<size_t>(op)]; }

  ModelSpec model_;
  Layout layout_;
  Precision precision_;
  Placement placement_;
  ClusterSpec cluster_;  // links and factors
  std::vector<UnitSpec> units_;
  std::vector<WorkerSpec> slowest_;   // by stage
  std::vector<bool> replicas_share_;  // by stage: whether its replicas share one host
  std::vector<int> host_of_rank_;
  bool one_host_ = true;
  // By pair of stages: whether each replica's two share a host; -1: not looked at yet.
  mutable std::vector<int8_t> stages_share_;
};

// Seconds of one full micro-batch forward and backward on `worker`, by compute unit: what Partition
// balances.
std::vector<double> UnitCosts(const ModelSpec& model, int64_t micro_batch_size,
                              int64_t sequence_length, Precision precision, bool recompute,
                              const WorkerSpec& worker);

}  // namespace esteira
