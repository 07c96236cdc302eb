#include "worker/engine/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/dependencies.h"
#include "common/plan/shard_map.h"
#include "common/plan/validate.h"
#include "worker/engine/handlers.h"
#include "worker/engine/memory.h"
#include "worker/engine/parameter_hash.h"
#include "worker/engine/queues.h"
#include "worker/engine/timing.h"
#include "worker/model/unit_compute.h"
#include "worker/optimizer/learning_rate.h"

namespace esteira {
namespace {

constexpr uint32_t kGroupOfAll = 0;  // groups of stages follow

// A program with all that its run needs: what each instruction waits for, and when it ran.
struct PreparedProgram {
  PreparedProgram(const std::vector<UnitSpec>& units, const Placement& placement,
                  const Program& its_program, Device& device)
      : program(its_program), waits(Dependencies(units, placement, program)) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      starts.push_back(device.NewEvent());
      ends.push_back(device.NewEvent());
    }
  }

  const Program& program;
  const std::vector<std::vector<int32_t>> waits;
  std::vector<std::unique_ptr<Event>> starts, ends;  // by instruction
};

absl::Status CheckArguments(const Plan& plan, const JobSpec& job, const EngineOptions& options,
                            const Transport& transport) {
  const Layout& layout = plan.layout;
  if (job.model != plan.model || job.precision != plan.precision ||
      job.numerics != layout.numerics || job.gradient_traffic != layout.gradient_traffic ||
      job.global_batch_size != layout.global_batch_size ||
      job.sequence_length != layout.sequence_length) {
    return absl::InvalidArgumentError(
        "the plan is not for this job: its model, numerics, gradient traffic or sizes differ");
  }
  if (transport.size() != layout.num_ranks() || transport.rank() != options.rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options.rank, " of ", layout.num_ranks(), " was given the transport of rank ",
        transport.rank(), " of ", transport.size()));
  }
  return Validate(plan);
}

std::unique_ptr<Collectives> CollectivesOf(Transport& transport, std::vector<int> members,
                                           uint32_t group, absl::Duration timeout) {
  CollectivesOptions options;
  options.group_id = group;
  options.timeout = timeout;
  return MakeCollectives(transport, std::move(members), options);
}

std::vector<int> RanksOfStage(const Layout& layout, int stage) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<size_t>(layout.replicas));
  for (int replica = 0; replica < layout.replicas; ++replica) {
    ranks.push_back(layout.RankOf(stage, replica));
  }
  return ranks;
}

std::vector<int> AllRanks(const Layout& layout) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<size_t>(layout.num_ranks()));
  for (int rank = 0; rank < layout.num_ranks(); ++rank) ranks.push_back(rank);
  return ranks;
}

const Program& ProgramOf(const std::vector<Program>& programs, const Layout& layout,
                         const EngineOptions& options) {
  return programs[static_cast<size_t>(layout.StageOfRank(options.rank))];
}

class ProgramEngine : public Engine {
 public:
  ProgramEngine(const Plan& plan, const JobSpec& job, const EngineOptions& options, Device& device,
                Kernels& kernels, Transport& transport, std::vector<UnitSpec> units,
                std::unique_ptr<RankMemory> memory);

  absl::Status SetInitialWeights();
  absl::StatusOr<StepReport> Step(int64_t step, const SampleReader& samples, bool hash,
                                  double largest_norm) override;
  absl::StatusOr<double> Evaluate(int64_t batches, const SampleReader& samples) override;
  std::vector<UnitState> States() override;
  absl::Status Restore(int64_t updates, const StateSource& source) override;
  int64_t updates() const override { return updates_; }

 private:
  absl::Status SetWeights(const StateSource& masters);
  absl::Status ReadSamples(const Program& program, int64_t first, const SampleReader& samples);
  absl::Status Run(const PreparedProgram& prepared, const RunSettings& settings);
  RunSettings TrainSettings(int64_t step, double learning_rate) const;
  std::vector<Interval> IntervalsOf(const PreparedProgram& prepared) const;
  uint64_t HashOwnParameters() const;
  // Calls `visit` with each unit whose optimizer state this rank holds a part of.
  template <typename Visit>
  void ForEachOwned(const Visit& visit) const;

  const Plan plan_;
  const JobSpec job_;
  const EngineOptions options_;
  Device& device_;
  Kernels& kernels_;
  const std::vector<UnitSpec> units_;
  const std::unique_ptr<RankMemory> memory_;
  const std::unique_ptr<Collectives> stage_, all_;
  const PreparedProgram train_, evaluate_;
  const std::unique_ptr<Event> began_;
  std::unique_ptr<Handlers> handlers_;
  // After all that its tasks touch: its end waits for them.
  Queues queues_;
  int64_t updates_ = 0;
};

ProgramEngine::ProgramEngine(const Plan& plan, const JobSpec& job, const EngineOptions& options,
                             Device& device, Kernels& kernels, Transport& transport,
                             std::vector<UnitSpec> units, std::unique_ptr<RankMemory> memory)
    : plan_(plan),
      job_(job),
      options_(options),
      device_(device),
      kernels_(kernels),
      units_(std::move(units)),
      memory_(std::move(memory)),
      stage_(CollectivesOf(
          transport, RanksOfStage(plan_.layout, plan_.layout.StageOfRank(options_.rank)),
          kGroupOfAll + 1 + static_cast<uint32_t>(plan_.layout.StageOfRank(options_.rank)),
          options_.operation_timeout)),
      all_(CollectivesOf(transport, AllRanks(plan_.layout), kGroupOfAll,
                         options_.operation_timeout)),
      train_(units_, PlacementOf(plan_.layout.zero), ProgramOf(plan_.train, plan_.layout, options_),
             device),
      evaluate_(units_, PlacementOf(plan_.layout.zero),
                ProgramOf(plan_.evaluate, plan_.layout, options_), device),
      began_(device.NewEvent()),
      queues_(device, transport) {
  handlers_ = std::make_unique<Handlers>(Machinery{.plan = plan_,
                                                   .units = units_,
                                                   .options = options_,
                                                   .device = device_,
                                                   .kernels = kernels_,
                                                   .transport = transport,
                                                   .memory = *memory_,
                                                   .queues = queues_,
                                                   .stage = *stage_,
                                                   .all = *all_});
}

template <typename Visit>
void ProgramEngine::ForEachOwned(const Visit& visit) const {
  for (int index : train_.program.units) {
    const UnitSpec& spec = units_[static_cast<size_t>(index)];
    const UnitMemory* unit = memory_->unit(index);
    if (unit != nullptr && spec.owner < 0) visit(index, spec, *unit);
  }
}

absl::Status ProgramEngine::SetWeights(const StateSource& masters) {
  for (int index : train_.program.units) {
    const UnitMemory* unit = memory_->unit(index);
    if (unit == nullptr || unit->parameters.data() == nullptr) continue;
    const UnitSpec& spec = units_[static_cast<size_t>(index)];
    const Range held = unit->parameters.range();
    ASSIGN_OR_RETURN(Buffer buffer, device_.Allocate(held.size() * BytesOf(ElementType::kFp32),
                                                     MemoryKind::kOther));
    const FlatPart values(std::move(buffer), held, ElementType::kFp32);
    // Padding stays zero.
    const Range real = {held.begin, std::max(held.begin, std::min(held.end, spec.flat_elements))};
    RETURN_IF_ERROR(masters(index, 0, real.begin,
                            {values.All().as<float>(), static_cast<size_t>(real.size())}));
    Stream& stream = queues_[Queue::kCompute];
    kernels_.Convert(values.All(), unit->parameters.All(), stream);
    if (spec.owner < 0) {
      kernels_.Convert(values.Elements(unit->valid), unit->master.All(), stream);
    }
    RETURN_IF_ERROR(queues_.Synchronize());
  }
  return absl::OkStatus();
}

absl::Status ProgramEngine::SetInitialWeights() {
  return SetWeights([this](int unit, int, int64_t begin, std::span<float> values) {
    InitialWeights(units_[static_cast<size_t>(unit)], job_.seed,
                   {begin, begin + static_cast<int64_t>(values.size())}, values);
    return absl::OkStatus();
  });
}

absl::Status ProgramEngine::Restore(int64_t updates, const StateSource& source) {
  RETURN_IF_ERROR(SetWeights(source));
  absl::Status status;
  ForEachOwned([&](int index, const UnitSpec& spec, const UnitMemory& unit) {
    int buffer = 1;
    for (const FlatPart* moment : {&unit.m, &unit.v}) {
      const Range held = moment->range();
      const Range real = {held.begin, std::max(held.begin, std::min(held.end, spec.flat_elements))};
      if (!status.ok()) return;
      status = source(index, buffer++, real.begin,
                      {moment->All().as<float>(), static_cast<size_t>(real.size())});
    }
  });
  updates_ = updates;
  return status;
}

absl::Status ProgramEngine::ReadSamples(const Program& program, int64_t first,
                                        const SampleReader& samples) {
  const int head = NumComputeUnits(plan_.model) - 1;
  const auto holds = [&](int unit) {
    return std::binary_search(program.units.begin(), program.units.end(), unit);
  };
  if (!holds(0) && !holds(head)) return absl::OkStatus();
  const int replica = plan_.layout.ReplicaOfRank(options_.rank);
  for (int j = 0; j < plan_.layout.num_micro_batches(); ++j) {
    const MicroBatch micro_batch = plan_.layout.MicroBatchOf(replica, j);
    if (micro_batch.num_samples == 0) continue;
    const auto size = static_cast<size_t>(micro_batch.num_samples * plan_.layout.sequence_length);
    const absl::Status read =
        samples(first + micro_batch.first_sample, micro_batch.num_samples,
                memory_->Tokens(j).first(size), memory_->Targets(j).first(size));
    if (!read.ok()) return queues_.Fail(read);
  }
  return absl::OkStatus();
}

absl::Status ProgramEngine::Run(const PreparedProgram& prepared, const RunSettings& settings) {
  handlers_->Begin(prepared.program, settings);
  std::vector<size_t> joined;  // of the open group
  for (size_t i = 0; i < prepared.program.instructions.size(); ++i) {
    const Op op = prepared.program.instructions[i].op;
    if (op == Op::kRelease) {  // takes no time, so it has no place on a queue
      handlers_->Issue(i);
      continue;
    }
    Stream& stream = queues_[QueueOf(op)];
    for (int32_t other : prepared.waits[i]) stream.Wait(*prepared.ends[static_cast<size_t>(other)]);
    stream.Record(*prepared.starts[i]);
    queues_.Guard(QueueOf(op));
    handlers_->Issue(i);
    if (prepared.program.instructions[i].joined) {
      joined.push_back(i);  // has run when the one that closes its group has
      continue;
    }
    if (QueueOf(op) == Queue::kShard) {
      for (size_t member : std::exchange(joined, {})) stream.Record(*prepared.ends[member]);
    }
    stream.Record(*prepared.ends[i]);
  }
  RETURN_IF_ERROR(queues_.Synchronize());
  return handlers_->CheckEmpty();
}

RunSettings ProgramEngine::TrainSettings(int64_t step, double learning_rate) const {
  RunSettings settings;
  settings.dropout.rate = job_.dropout;
  settings.dropout.seed = job_.seed;
  settings.dropout.first_sample = (step - 1) * job_.global_batch_size;
  settings.adamw.learning_rate = learning_rate;
  settings.adamw.beta1 = job_.adamw.beta1;
  settings.adamw.beta2 = job_.adamw.beta2;
  settings.adamw.epsilon = job_.adamw.epsilon;
  settings.adamw.step = updates_ + 1;
  settings.weight_decay = job_.adamw.weight_decay;
  settings.clip_norm = job_.gradient_clip_norm;
  return settings;
}

std::vector<Interval> ProgramEngine::IntervalsOf(const PreparedProgram& prepared) const {
  const absl::Time began = began_->time();
  std::vector<Interval> intervals(prepared.ends.size());
  for (size_t i = 0; i < intervals.size(); ++i) {
    if (prepared.program.instructions[i].op == Op::kRelease) continue;
    intervals[i] = {absl::ToDoubleSeconds(prepared.starts[i]->time() - began),
                    absl::ToDoubleSeconds(prepared.ends[i]->time() - began)};
  }
  return intervals;
}

absl::StatusOr<StepReport> ProgramEngine::Step(int64_t step, const SampleReader& samples, bool hash,
                                               double largest_norm) {
  queues_[Queue::kCompute].Record(*began_);
  RETURN_IF_ERROR(
      ReadSamples(train_.program, (step - 1) * plan_.layout.global_batch_size, samples));
  StepReport report;
  report.step = step;
  report.learning_rate = LearningRate(job_.schedule, job_.adamw.learning_rate, step,
                                      job_.schedule_steps.value_or(job_.steps));
  RunSettings settings = TrainSettings(step, report.learning_rate);
  settings.largest_norm = largest_norm;
  RETURN_IF_ERROR(Run(train_, settings));
  const Agreement& agreement = handlers_->agreement();
  if (agreement.update) ++updates_;
  report.loss = agreement.loss;
  report.gradient_norm = agreement.gradient_norm;
  report.tokens = plan_.layout.global_batch_size * plan_.layout.sequence_length;
  report.valid_tokens = agreement.valid_tokens;
  report.skipped = !agreement.update;
  report.non_finite = agreement.non_finite;
  report.spike = agreement.spike;
  report.unit_squares = handlers_->unit_squares();
  const std::span<const LossSums> losses = memory_->losses();
  report.losses.assign(losses.begin(), losses.end());
  report.losses.resize(static_cast<size_t>(plan_.layout.num_micro_batches()));
  report.op_bytes = handlers_->op_bytes();
  AddTimes(train_.program, train_.waits, IntervalsOf(train_), report);
  if (hash) report.parameter_hash_part = HashOwnParameters();
  return report;
}

absl::StatusOr<double> ProgramEngine::Evaluate(int64_t batches, const SampleReader& samples) {
  Contribution total;
  for (int64_t batch = 0; batch < batches; ++batch) {
    RETURN_IF_ERROR(
        ReadSamples(evaluate_.program, batch * plan_.layout.global_batch_size, samples));
    RunSettings settings;
    settings.evaluate = true;
    RETURN_IF_ERROR(Run(evaluate_, settings));
    total.Add(handlers_->total());
  }
  if (total.valid_tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no target in ", batches, " batches of the validation data counts"));
  }
  return Agree(total, std::numeric_limits<double>::infinity()).loss;
}

std::vector<UnitState> ProgramEngine::States() {
  std::vector<UnitState> states;
  ForEachOwned([&](int index, const UnitSpec& spec, const UnitMemory& unit) {
    const Range range = ShardMap(spec.flat_elements, plan_.layout.replicas)
                            .Valid(plan_.layout.ReplicaOfRank(options_.rank));
    if (range.size() == 0) return;  // padding only
    const auto span = [&](const FlatPart& part) {
      return std::span<float>(part.Elements(range).as<float>(), static_cast<size_t>(range.size()));
    };
    states.push_back(
        {index, range.begin, range.end, span(unit.master), span(unit.m), span(unit.v)});
  });
  return states;
}

uint64_t ProgramEngine::HashOwnParameters() const {
  uint64_t sum = 0;
  ForEachOwned([&](int, const UnitSpec& spec, const UnitMemory& unit) {
    sum += HashParameters(spec, unit.own, unit.master);
  });
  return sum;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Make(const Plan& plan, const JobSpec& job,
                                                     const EngineOptions& options, Device& device,
                                                     Kernels& kernels, Transport& transport) {
  RETURN_IF_ERROR(CheckArguments(plan, job, options, transport));
  std::vector<UnitSpec> units = MakeUnits(plan.model);
  ASSIGN_OR_RETURN(std::unique_ptr<RankMemory> memory,
                   RankMemory::Make(plan, units, options.rank, device));
  auto engine = std::make_unique<ProgramEngine>(plan, job, options, device, kernels, transport,
                                                std::move(units), std::move(memory));
  RETURN_IF_ERROR(engine->SetInitialWeights());
  return engine;
}

}  // namespace esteira
