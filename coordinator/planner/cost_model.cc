#include "coordinator/planner/cost_model.h"

#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"

namespace esteira {
namespace {

// AdamW with its casts, by element.
constexpr double kStepFlopsPerElement = 16;
// Launching the kernels of one unit.
constexpr double kComputeOverheadSeconds = 50e-6;

}  // namespace

CostModel::CostModel(const ModelSpec& model, const Layout& layout, Precision precision,
                     const ClusterSpec& cluster)
    : model_(model),
      layout_(layout),
      precision_(precision),
      placement_(PlacementOf(layout.zero)),
      cluster_(cluster),
      units_(MakeUnits(model)) {}

double CostModel::ElementsOf(int unit, bool whole) const {
  const ShardMap map(units_[static_cast<size_t>(unit)].flat_elements, layout_.replicas);
  return static_cast<double>(whole ? map.padded_elements() : map.shard_elements());
}

double CostModel::TransferSeconds(double bytes) const {
  return cluster_.link_latency_seconds + bytes / cluster_.link_bytes_per_second;
}

double CostModel::RingSeconds(int unit, int64_t bytes_per_element) const {
  const double shard_bytes = ElementsOf(unit, false) * static_cast<double>(bytes_per_element);
  return static_cast<double>(layout_.replicas - 1) * TransferSeconds(shard_bytes);
}

double CostModel::ComputeSeconds(const Program& program, const Instruction& instruction) const {
  const UnitSpec& unit = units_[static_cast<size_t>(instruction.unit)];
  const int64_t samples =
      program.micro_batches[static_cast<size_t>(instruction.micro_batch)].num_samples;
  const int64_t length = layout_.sequence_length;
  if (samples == 0) return 0;
  double flops = 0;
  switch (instruction.op) {
    case Op::kForward:
    case Op::kRecompute: flops = ForwardFlops(model_, unit, samples, length); break;
    case Op::kBackwardInput: flops = BackwardInputFlops(model_, unit, samples, length); break;
    case Op::kBackwardWeight: flops = BackwardWeightFlops(model_, unit, samples, length); break;
    default:
      flops = BackwardInputFlops(model_, unit, samples, length) +
              BackwardWeightFlops(model_, unit, samples, length);
  }
  return kComputeOverheadSeconds + flops / cluster_.flops_per_worker;
}

double CostModel::Seconds(const Program& program, const Instruction& instruction) const {
  const double element_bytes = static_cast<double>(BytesOf(precision_));
  const int unit = instruction.unit;
  switch (instruction.op) {
    case Op::kForward:
    case Op::kBackward:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
    case Op::kRecompute: return ComputeSeconds(program, instruction);
    case Op::kSendAct:
    case Op::kRecvAct:
    case Op::kSendGrad:
    case Op::kRecvGrad: {
      const auto batch = static_cast<size_t>(instruction.micro_batch);
      return TransferSeconds(static_cast<double>(program.micro_batches[batch].num_samples *
                                                 layout_.sequence_length * model_.hidden_size) *
                             element_bytes);
    }
    case Op::kGather: return RingSeconds(unit, BytesOf(precision_));
    case Op::kReduce:
      // Reduce-scatter, and an all-gather where every replica steps all of the unit.
      return RingSeconds(unit, sizeof(float)) * (placement_.whole_states ? 2 : 1);
    case Op::kRelease: return 0;
    case Op::kClear: return ElementsOf(unit, true) / cluster_.flops_per_worker;
    case Op::kTieGradient: {
      const double elements = ElementsOf(unit, placement_.whole_states);
      if (instruction.peer < 0) return elements / cluster_.flops_per_worker;
      return TransferSeconds(elements * sizeof(float));
    }
    case Op::kTieParameter:
      return TransferSeconds(ElementsOf(unit, placement_.whole_parameters) * element_bytes);
    case Op::kNorm:
      return static_cast<double>(layout_.num_ranks() - 1) * cluster_.link_latency_seconds;
    case Op::kStep:
      return ElementsOf(unit, placement_.whole_states) * kStepFlopsPerElement /
             cluster_.flops_per_worker;
  }
  return 0;
}

std::vector<double> UnitCosts(const ModelSpec& model, int64_t micro_batch_size,
                              int64_t sequence_length, Recompute recompute,
                              double flops_per_second) {
  const std::vector<UnitSpec> units = MakeUnits(model);
  std::vector<double> costs;
  for (int u = 0; u < NumComputeUnits(model); ++u) {
    const UnitSpec& unit = units[static_cast<size_t>(u)];
    const double forward = ForwardFlops(model, unit, micro_batch_size, sequence_length);
    double flops = forward + BackwardInputFlops(model, unit, micro_batch_size, sequence_length) +
                   BackwardWeightFlops(model, unit, micro_batch_size, sequence_length);
    if (recompute == Recompute::kFull && unit.kind == UnitKind::kBlock) flops += forward;
    costs.push_back(flops / flops_per_second);
  }
  return costs;
}

}  // namespace esteira
