#include "coordinator/planner/cost_model.h"

#include <algorithm>

#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"

namespace esteira {
namespace {

// Launching the kernels of one unit.
constexpr double kComputeOverheadSeconds = 50e-6;
// AdamW reads and writes master weights and both moments, reads the gradient sum and writes the
// parameter: bytes of an element, besides the parameter itself.
constexpr double kStepBytesPerElement = 7 * sizeof(float);
// What exact numerics add to it: the sum is read, and written as fp32.
constexpr double kExactStepBytesPerElement = sizeof(int64_t) + sizeof(float);
// And to a backward pass: the gradient of a micro-batch is read and cleared, its sum read and
// written.
constexpr double kExactSumBytesPerElement = 2 * sizeof(float) + 2 * sizeof(int64_t);
// Of one rank's part of NORM: loss, counts and the exact sum of squares.
constexpr double kNormBytes = 512;
// To hand one message to a transport.
constexpr double kMessageSeconds = 1e-6;

double OpFlops(const ModelSpec& model, const UnitSpec& unit, Op op, int64_t samples,
               int64_t sequence) {
  switch (op) {
    case Op::kForward:
    case Op::kRecompute: return ForwardFlops(model, unit, samples, sequence);
    case Op::kBackwardInput: return BackwardInputFlops(model, unit, samples, sequence);
    case Op::kBackwardWeight: return BackwardWeightFlops(model, unit, samples, sequence);
    default:
      return BackwardInputFlops(model, unit, samples, sequence) +
             BackwardWeightFlops(model, unit, samples, sequence);
  }
}

// What an op moves to and from memory at least: its parameters (or their gradients, twice) and its
// activations, once.
double OpBytes(const ModelSpec& model, const UnitSpec& unit, Op op, int64_t samples,
               int64_t sequence, Precision precision) {
  const double parameters = static_cast<double>(unit.parameter_elements);
  const double saved =
      static_cast<double>(SavedLayout(model, unit, samples, sequence, precision).bytes);
  const double whole = op == Op::kBackward ? 2 : 1;
  const bool gradients = op == Op::kBackward || op == Op::kBackwardWeight;
  return whole * saved + parameters * static_cast<double>(BytesOf(precision)) +
         (gradients ? 2 * sizeof(float) * parameters : 0);
}

double PassSeconds(const UnitSpec& unit, Op op, double pass_seconds) {
  if (unit.kind != UnitKind::kBlock) return 0;
  return op == Op::kBackward ? 2 * pass_seconds : pass_seconds;
}

double UnitSeconds(const ModelSpec& model, const UnitSpec& unit, Op op, int64_t samples,
                   int64_t sequence, Precision precision, const WorkerSpec& worker) {
  if (worker.pass_seconds > 0) return PassSeconds(unit, op, worker.pass_seconds);
  return kComputeOverheadSeconds +
         std::max(OpFlops(model, unit, op, samples, sequence) / worker.flops(precision),
                  OpBytes(model, unit, op, samples, sequence, precision) / worker.bytes_per_second);
}

WorkerSpec Slower(const WorkerSpec& a, const WorkerSpec& b) {
  WorkerSpec slower = a;
  slower.memory_bytes = a.memory_bytes == 0   ? b.memory_bytes
                        : b.memory_bytes == 0 ? a.memory_bytes
                                              : std::min(a.memory_bytes, b.memory_bytes);
  slower.flops_fp32 = std::min(a.flops_fp32, b.flops_fp32);
  slower.flops_bf16 = std::min(a.flops_bf16, b.flops_bf16);
  slower.bytes_per_second = std::min(a.bytes_per_second, b.bytes_per_second);
  slower.pass_seconds = std::max(a.pass_seconds, b.pass_seconds);
  return slower;
}

}  // namespace

CostModel::CostModel(const ModelSpec& model, const Layout& layout, Precision precision,
                     const ClusterSpec& cluster, const std::vector<int>& worker_of_rank)
    : model_(model),
      layout_(layout),
      precision_(precision),
      placement_(PlacementOf(layout.zero)),
      cluster_{{}, cluster.within_host, cluster.between_hosts, cluster.factors},
      units_(MakeUnits(model)) {
  const auto worker = [&](int stage, int replica) -> const WorkerSpec& {
    const auto rank = static_cast<size_t>(layout.RankOf(stage, replica));
    return cluster
        .workers[worker_of_rank.empty() ? rank : static_cast<size_t>(worker_of_rank[rank])];
  };
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    host_of_rank_.push_back(worker(layout.StageOfRank(rank), layout.ReplicaOfRank(rank)).host);
  }
  const auto stages = static_cast<size_t>(layout.stages);
  stages_share_.assign(stages * stages, -1);
  for (int stage = 0; stage < layout.stages; ++stage) {
    slowest_.push_back(worker(stage, 0));
    bool share = true;
    for (int replica = 0; replica < layout.replicas; ++replica) {
      slowest_.back() = Slower(slowest_.back(), worker(stage, replica));
      share = share && worker(stage, replica).host == worker(stage, 0).host;
      one_host_ = one_host_ && worker(stage, replica).host == worker(0, 0).host;
    }
    replicas_share_.push_back(share);
  }
}

bool CostModel::StagesShareHost(int a, int b) const {
  int8_t& known = stages_share_[static_cast<size_t>(a) * static_cast<size_t>(layout_.stages) +
                                static_cast<size_t>(b)];
  if (known >= 0) return known == 1;
  known = 1;
  for (int replica = 0; replica < layout_.replicas && known == 1; ++replica) {
    const auto host = [&](int stage) {
      return host_of_rank_[static_cast<size_t>(layout_.RankOf(stage, replica))];
    };
    if (host(a) != host(b)) known = 0;
  }
  return known == 1;
}

double CostModel::ElementsOf(int unit, bool whole) const {
  const ShardMap map(units_[static_cast<size_t>(unit)].flat_elements, layout_.replicas);
  return static_cast<double>(whole ? map.padded_elements() : map.shard_elements());
}

double CostModel::TransferSeconds(int from_stage, int to_stage, double bytes) const {
  const LinkSpec& link =
      StagesShareHost(from_stage, to_stage) ? cluster_.within_host : cluster_.between_hosts;
  return link.latency_seconds + bytes / link.bytes_per_second;
}

// One pass over the replicas: replicas - 1 shards, at once, or round a ring where that costs little
// more than the transfer (worker/communication's choice).
double CostModel::RingSeconds(int stage, int unit, int64_t bytes_per_element, bool joined) const {
  const LinkSpec& link =
      replicas_share_[static_cast<size_t>(stage)] ? cluster_.within_host : cluster_.between_hosts;
  const double shard_bytes = ElementsOf(unit, false) * static_cast<double>(bytes_per_element);
  if (layout_.replicas == 1) return 0;
  const double transfer =
      static_cast<double>(layout_.replicas - 1) * shard_bytes / link.bytes_per_second;
  if (joined) return transfer;
  const double turns = static_cast<double>(layout_.replicas - 2) * link.latency_seconds;
  return link.latency_seconds + transfer + std::min(turns, transfer / 10);
}

double CostModel::RawComputeSeconds(int stage, int unit, Op op, int64_t samples) const {
  if (samples == 0) return 0;
  return UnitSeconds(model_, units_[static_cast<size_t>(unit)], op, samples,
                     layout_.sequence_length, precision_, slowest_[static_cast<size_t>(stage)]) +
         SumSeconds(stage, unit, op);
}

// Of what exact numerics do behind a backward pass; a worker whose passes take a given time has it
// in there.
double CostModel::SumSeconds(int stage, int unit, Op op) const {
  const WorkerSpec& worker = slowest_[static_cast<size_t>(stage)];
  const bool sums = op == Op::kBackward || op == Op::kBackwardWeight;
  if (!exact() || !sums || worker.pass_seconds > 0) return 0;
  double elements = 0;
  for (int used : units_[static_cast<size_t>(unit)].uses) elements += ElementsOf(used, true);
  return elements * kExactSumBytesPerElement / worker.bytes_per_second;
}

double CostModel::ComputeSeconds(int stage, int unit, Op op, int64_t samples) const {
  return Factor(op) * RawComputeSeconds(stage, unit, op, samples);
}

double CostModel::ActivationSeconds(int from_stage, int to_stage) const {
  if (from_stage == to_stage) return 0;
  const auto elements =
      static_cast<double>(layout_.micro_batch_size * layout_.sequence_length * model_.hidden_size);
  return Factor(Op::kSendAct) *
         TransferSeconds(from_stage, to_stage, elements * static_cast<double>(BytesOf(precision_)));
}

double CostModel::GatherSeconds(int stage, int unit, bool joined) const {
  return Factor(Op::kGather) * RingSeconds(stage, unit, BytesOf(precision_), joined);
}

double CostModel::ReduceSeconds(int stage, int unit, bool joined) const {
  // Reduce-scatter, and an all-gather of the sums where every replica steps all of the unit.
  const double scatter = RingSeconds(stage, unit, BytesOf(TrafficType(layout_)), joined);
  const double gather = placement_.whole_states ? RingSeconds(stage, unit, sum_bytes(), joined) : 0;
  return Factor(Op::kReduce) * (scatter + gather);
}

double CostModel::StepSeconds(int stage, int unit) const {
  return Factor(Op::kStep) * ElementsOf(unit, placement_.whole_states) *
         (kStepBytesPerElement + (exact() ? kExactStepBytesPerElement : 0) +
          static_cast<double>(BytesOf(precision_))) /
         slowest_[static_cast<size_t>(stage)].bytes_per_second;
}

double CostModel::Seconds(const Program& program, const Instruction& instruction) const {
  const int unit = instruction.unit;
  switch (instruction.op) {
    case Op::kGather: return GatherSeconds(program.stage, unit, instruction.joined);
    case Op::kReduce: return ReduceSeconds(program.stage, unit, instruction.joined);
    case Op::kStep: return StepSeconds(program.stage, unit);
    default: return Factor(instruction.op) * RawSeconds(program, instruction);
  }
}

double CostModel::RawSeconds(const Program& program, const Instruction& instruction) const {
  const auto element_bytes = static_cast<double>(BytesOf(precision_));
  const auto sum_element_bytes = static_cast<double>(sum_bytes());
  const WorkerSpec& worker = slowest_[static_cast<size_t>(program.stage)];
  const int unit = instruction.unit;
  const auto samples = [&] {
    // Those of the first replica, which has no fewer than any other.
    return layout_.MicroBatchOf(0, instruction.micro_batch).num_samples;
  };
  const int peer = instruction.peer < 0 ? program.stage : instruction.peer;
  switch (instruction.op) {
    case Op::kSendAct:
    case Op::kRecvAct:
    case Op::kSendGrad:
    case Op::kRecvGrad:
      return TransferSeconds(
          program.stage, peer,
          static_cast<double>(samples() * layout_.sequence_length * model_.hidden_size) *
              element_bytes);
    case Op::kClear: return ElementsOf(unit, true) * sum_element_bytes / worker.bytes_per_second;
    case Op::kTieGradient: {
      const double elements = ElementsOf(unit, placement_.whole_states);
      if (instruction.peer < 0) return 3 * elements * sum_element_bytes / worker.bytes_per_second;
      return TransferSeconds(program.stage, peer, elements * sum_element_bytes);
    }
    case Op::kTieParameter:
      return TransferSeconds(program.stage, peer,
                             ElementsOf(unit, placement_.whole_parameters) * element_bytes);
    case Op::kNorm: {
      // Every rank sends its part to all others at once.
      const LinkSpec& link = one_host_ ? cluster_.within_host : cluster_.between_hosts;
      return link.latency_seconds + static_cast<double>(layout_.num_ranks() - 1) *
                                        (kMessageSeconds + kNormBytes / link.bytes_per_second);
    }
    case Op::kRelease:
    case Op::kGather:
    case Op::kReduce:
    case Op::kStep: return 0;
    default: return RawComputeSeconds(program.stage, unit, instruction.op, samples());
  }
}

std::vector<double> UnitCosts(const ModelSpec& model, int64_t micro_batch_size,
                              int64_t sequence_length, Precision precision, bool recompute,
                              const WorkerSpec& worker) {
  const std::vector<UnitSpec> units = MakeUnits(model);
  std::vector<double> costs;
  for (int u = 0; u < NumComputeUnits(model); ++u) {
    const UnitSpec& unit = units[static_cast<size_t>(u)];
    const auto seconds = [&](Op op) {
      return UnitSeconds(model, unit, op, micro_batch_size, sequence_length, precision, worker);
    };
    const bool again = recompute && unit.kind == UnitKind::kBlock;
    costs.push_back(seconds(Op::kForward) * (again ? 2 : 1) + seconds(Op::kBackward));
  }
  return costs;
}

}  // namespace esteira
