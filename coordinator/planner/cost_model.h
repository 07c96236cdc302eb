// How long each instruction takes, from the sizes of what it computes or moves. A value; pure.
// It knows a worker's rate and a link's latency and bandwidth, and nothing of measured steps.
#pragma once

#include <vector>

#include "common/plan/plan.h"
#include "coordinator/planner/planner.h"

namespace esteira {

class CostModel {
 public:
  CostModel(const ModelSpec& model, const Layout& layout, Precision precision,
            const ClusterSpec& cluster);

  // Seconds. Compute takes its FLOPs, a transfer latency and bytes, a collective the steps of a
  // ring.
  double Seconds(const Program& program, const Instruction& instruction) const;

 private:
  double ComputeSeconds(const Program& program, const Instruction& instruction) const;
  double TransferSeconds(double bytes) const;
  double RingSeconds(int unit, int64_t bytes_per_element) const;  // one pass over the replicas
  double ElementsOf(int unit, bool whole) const;

  ModelSpec model_;
  Layout layout_;
  Precision precision_;
  Placement placement_;
  ClusterSpec cluster_;
  std::vector<UnitSpec> units_;
};

// Seconds of one full micro-batch forward and backward, by compute unit: what Partition balances.
std::vector<double> UnitCosts(const ModelSpec& model, int64_t micro_batch_size,
                              int64_t sequence_length, Recompute recompute,
                              double flops_per_second);

}  // namespace esteira
