#include "coordinator/planner/search.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "common/base/status_macros.h"
#include "coordinator/planner/drafts.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/schedules/list_schedule.h"

namespace esteira {
namespace {

// Drafts that are simulated: until so many fit, and at most so many.
constexpr int kEnoughFitting = 16;
constexpr int kMostSimulated = 40;
// Groups of drafts (shape, micro-batch size, ZeRO level) for which a schedule is built.
constexpr int kBuiltFor = 3;
constexpr int kBuiltSchedules = 3;
// Closer than this the model cannot tell two layouts apart, and the simpler one is taken.
constexpr double kSameSpeed = 1.005;
constexpr int kTriedLookaheads[] = {2, 4};
// Boundaries are moved by trial in pipelines of at most so many chunks.
constexpr size_t kFewChunks = 32;

std::vector<int> Divisors(int number) {
  std::vector<int> divisors;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors;
}

// An upper bound of the instructions of a plan.
double MostInstructions(const JobSpec& job, const Layout& layout) {
  return 9.0 * layout.num_micro_batches() * NumComputeUnits(job.model);
}

struct Scored {
  Draft draft;
  int preference = 0;
  std::vector<size_t> rungs;  // by stage: place on the policy ladder
  double step_seconds = 0;    // estimated
  int64_t short_bytes = 0;    // estimated: what the stage that lacks most lacks
};

int64_t Largest(const std::vector<MemoryUse>& memory, const std::vector<int64_t>& budgets,
                size_t* where) {
  int64_t lacking = 0;
  for (size_t i = 0; i < memory.size(); ++i) {
    const int64_t budget = budgets[i % budgets.size()];
    if (budget == 0 || memory[i].total() - budget <= lacking) continue;
    lacking = memory[i].total() - budget;
    if (where != nullptr) *where = i;
  }
  return lacking;
}

class Searcher {
 public:
  Searcher(const JobSpec& job, const ClusterSpec& cluster) : job_(job), cluster_(cluster) {}

  absl::StatusOr<SearchResult> Run() {
    CollectDrafts();
    std::stable_sort(drafts_.begin(), drafts_.end(), [](const Scored& a, const Scored& b) {
      const auto key = [](const Scored& s) {
        return std::make_tuple(s.short_bytes, s.step_seconds);
      };
      return key(a) < key(b);
    });
    result_.num_drafts = static_cast<int64_t>(drafts_.size());
    int simulated = 0;
    for (Scored& draft : drafts_) {
      const bool enough = static_cast<int>(result_.fitting.size()) >= kEnoughFitting;
      if (enough || simulated++ >= kMostSimulated) break;
      MoveBoundaries(draft);
      RETURN_IF_ERROR(TryWithPolicies(std::move(draft)));
    }
    if (job_.layout.schedule.value_or(std::string(kAutoSchedule)) == kAutoSchedule) {
      RETURN_IF_ERROR(TryBuiltSchedules());
    }
    RETURN_IF_ERROR(TryLookaheads());
    Order();
    return std::move(result_);
  }

 private:
  const std::vector<StagePolicy>& LadderOf(const Layout& layout) {
    const auto key = std::make_tuple(layout.zero, layout.stages, layout.num_micro_batches());
    auto found = ladders_.find(key);
    if (found == ladders_.end()) {
      found = ladders_
                  .emplace(key, PolicyLadder(job_.layout, layout.zero, layout.stages,
                                             layout.num_micro_batches()))
                  .first;
    }
    return found->second;
  }

  const Estimator& EstimatorOf(int64_t micro_batch_size) {
    return estimators_
        .try_emplace(micro_batch_size, job_.model, job_.precision, micro_batch_size,
                     job_.sequence_length)
        .first->second;
  }

  CostModel CostsFor(const Draft& draft) const {
    return CostModel(job_.model, draft.layout, job_.precision, cluster_, draft.worker_of_rank);
  }

  void CollectDrafts() {
    const int units = NumComputeUnits(job_.model);
    for (const Shape& shape : Shapes(job_.layout, cluster_.num_workers(), units)) {
      for (int64_t size : MicroBatchSizes(job_, shape)) {
        Layout sizes;
        sizes.replicas = shape.replicas;
        sizes.global_batch_size = job_.global_batch_size;
        sizes.micro_batch_size = size;
        if (MostInstructions(job_, sizes) > static_cast<double>(kMaxInstructions)) {
          result_.too_many_instructions = true;
          continue;
        }
        for (Frame& frame : FramesOf(job_, cluster_, shape, size)) AddDrafts(frame);
      }
    }
  }

  // One draft for each ZeRO level, with the laxest policy that each stage's memory seems to hold.
  void AddDrafts(const Frame& frame) {
    const std::vector<int64_t> budgets = Budgets(cluster_, frame.draft);
    const Estimator& estimator = EstimatorOf(frame.draft.layout.micro_batch_size);
    for (int zero : ZeroLevels(job_.layout, frame.draft.layout.replicas)) {
      Scored scored{frame.draft, frame.rank_of_preference, {}, 0, 0};
      Layout& layout = scored.draft.layout;
      layout.zero = zero;
      const std::vector<StagePolicy>& ladder = LadderOf(layout);
      layout.SetPolicies(ladder.front());
      scored.rungs.assign(static_cast<size_t>(layout.stages), 0);
      const CostModel costs = CostsFor(scored.draft);
      std::optional<PipelineTimes> times =
          TimePipeline(scored.draft.pipeline, estimator.CostsOf(scored.draft, costs));
      if (!times.has_value()) return;
      bool recomputes = false;
      for (int stage = 0; stage < layout.stages; ++stage) {
        const auto s = static_cast<size_t>(stage);
        while (budgets[s] > 0 && scored.rungs[s] + 1 < ladder.size() &&
               estimator.MemoryOf(scored.draft, stage, times->peak_bytes[s]).total() > budgets[s]) {
          layout.policies[s] = ladder[++scored.rungs[s]];
        }
        recomputes = recomputes || layout.policies[s].recompute != ladder.front().recompute;
      }
      if (recomputes) {
        times = TimePipeline(scored.draft.pipeline, estimator.CostsOf(scored.draft, costs));
      }
      const Estimate estimate = estimator.Of(scored.draft, costs, *times);
      scored.step_seconds = estimate.step_seconds;
      scored.short_bytes = Largest(estimate.memory, budgets, nullptr);
      drafts_.push_back(std::move(scored));
    }
  }

  // The partition balances chunks; what counts is the step. Moves single boundaries while that
  // makes the schedule shorter.
  void MoveBoundaries(Scored& scored) {
    std::vector<int>& bounds = scored.draft.layout.boundaries;
    if (bounds.size() <= 2 || bounds.size() > kFewChunks + 1) return;
    const Estimator& estimator = EstimatorOf(scored.draft.layout.micro_batch_size);
    const CostModel costs = CostsFor(scored.draft);
    const auto makespan = [&] {
      return TimePipeline(scored.draft.pipeline, estimator.CostsOf(scored.draft, costs))->makespan;
    };
    double best = makespan();
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t i = 1; i + 1 < bounds.size(); ++i) {
        for (int direction : {-1, 1}) {
          const int old = bounds[i];
          bounds[i] += direction;
          const bool legal = bounds[i] > bounds[i - 1] && bounds[i] < bounds[i + 1];
          const double with = legal ? makespan() : best;
          if (with < best * (1 - 1e-9)) {
            best = with;
            moved = true;
          } else {
            bounds[i] = old;
          }
        }
      }
    }
  }

  absl::StatusOr<Candidate> Simulated(const Draft& draft) const {
    ASSIGN_OR_RETURN(const Rehearsal rehearsal, Rehearse(job_, cluster_, draft));
    Candidate candidate{draft, PredictionOf(rehearsal.plan, rehearsal.simulation)};
    const std::vector<MemoryUse>& memory = candidate.prediction.memory;
    for (int rank = 0; rank < draft.layout.num_ranks(); ++rank) {
      const auto r = static_cast<size_t>(rank);
      const int64_t budget =
          cluster_.workers[static_cast<size_t>(draft.worker_of_rank[r])].memory_bytes;
      const auto stage = static_cast<size_t>(draft.layout.StageOfRank(rank));
      const int64_t lacking = memory[stage].total() - budget;
      if (budget == 0 || lacking <= candidate.short_bytes) continue;
      candidate.fits = false;
      candidate.short_rank = rank;
      candidate.short_bytes = lacking;
    }
    return candidate;
  }

  // Simulates, and takes the stages that do not fit down the ladder until they do.
  absl::Status TryWithPolicies(Scored scored) {
    const std::vector<StagePolicy> ladder = LadderOf(scored.draft.layout);
    while (true) {
      ASSIGN_OR_RETURN(Candidate candidate, Simulated(scored.draft));
      if (candidate.fits) {
        result_.fitting.push_back(std::move(candidate));
        return absl::OkStatus();
      }
      const std::vector<int64_t> budgets = Budgets(cluster_, scored.draft);
      bool changed = false;
      for (int stage = 0; stage < scored.draft.layout.stages; ++stage) {
        const auto s = static_cast<size_t>(stage);
        const bool fits = budgets[s] == 0 || candidate.prediction.memory[s].total() <= budgets[s];
        if (fits || scored.rungs[s] + 1 >= ladder.size()) continue;
        scored.draft.layout.policies[s] = ladder[++scored.rungs[s]];
        changed = true;
      }
      if (changed) continue;
      result_.too_large.push_back(std::move(candidate));
      return absl::OkStatus();
    }
  }

  // The best candidates so far, one of each shape, micro-batch size and ZeRO level.
  std::vector<Candidate> BestOfGroups(int count) {
    Order();
    std::vector<Candidate> best;
    std::vector<std::tuple<int, int64_t, int>> seen;
    for (const Candidate& candidate : result_.fitting) {
      const Layout& layout = candidate.draft.layout;
      const auto key = std::make_tuple(layout.stages, layout.micro_batch_size, layout.zero);
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      seen.push_back(key);
      best.push_back(candidate);
      if (static_cast<int>(best.size()) == count) break;
    }
    return best;
  }

  absl::Status TryBuiltSchedules() {
    for (const Candidate& base : BestOfGroups(kBuiltFor)) {
      if (base.draft.layout.stages == 1) continue;
      for (int chunks : {1, 2}) {
        if (job_.layout.chunks_per_stage.value_or(chunks) != chunks) continue;
        if (base.draft.layout.stages * chunks > NumComputeUnits(job_.model)) continue;
        RETURN_IF_ERROR(TryBuiltSchedule(base, chunks));
      }
    }
    return absl::OkStatus();
  }

  // Named schedules of the same chunks and placement, as the layout of `draft` would have them.
  std::vector<PipelineOps> NamedLike(const Draft& draft, const PipelineShape& shape) const {
    std::vector<PipelineOps> named;
    for (const Schedule& schedule : TrainingSchedules()) {
      if (shape.chunks_per_stage < schedule.min_chunks_per_stage ||
          shape.chunks_per_stage > schedule.max_chunks_per_stage) {
        continue;
      }
      PipelineOps ops = schedule.generate(shape);
      if (ops.stage_of_chunk == draft.pipeline.stage_of_chunk) named.push_back(std::move(ops));
    }
    return named;
  }

  absl::Status TryBuiltSchedule(const Candidate& base, int chunks) {
    Scored scored{base.draft, 0, {}, 0, 0};
    Layout& layout = scored.draft.layout;
    const PipelineShape shape{layout.stages, chunks, layout.num_micro_batches()};
    scored.draft.pipeline.stage_of_chunk = WavePlacement(shape);
    if (layout.chunks_per_stage != chunks) {
      layout.chunks_per_stage = chunks;
      Layout probe = layout;
      for (const Frame& frame :
           FramesOf(job_, cluster_, {layout.stages, layout.replicas}, layout.micro_batch_size)) {
        if (frame.draft.layout.chunks_per_stage == chunks &&
            frame.draft.pipeline.stage_of_chunk == scored.draft.pipeline.stage_of_chunk &&
            frame.draft.worker_of_rank == scored.draft.worker_of_rank) {
          layout.boundaries = frame.draft.layout.boundaries;
        }
      }
      if (layout.boundaries == probe.boundaries) return absl::OkStatus();
    }
    layout.schedule = std::string(kAutoSchedule);
    const Estimator& estimator = EstimatorOf(layout.micro_batch_size);
    ChunkCosts costs = estimator.CostsOf(scored.draft, CostsFor(scored.draft));
    costs.budget_bytes = UnitBudgets(scored.draft, estimator);
    const std::vector<StagePolicy>& ladder = LadderOf(layout);
    for (const StagePolicy& policy : layout.policies) {
      const auto rung = std::find(ladder.begin(), ladder.end(), policy);
      scored.rungs.push_back(rung == ladder.end() ? ladder.size() - 1
                                                  : static_cast<size_t>(rung - ladder.begin()));
    }
    // Chunk by chunk they look alike; the simulation tells them apart.
    for (PipelineOps& built : BestSchedules(shape, scored.draft.pipeline.stage_of_chunk, costs,
                                            NamedLike(scored.draft, shape), kBuiltSchedules)) {
      Scored with = scored;
      with.draft.pipeline = std::move(built);
      RETURN_IF_ERROR(TryWithPolicies(std::move(with)));
    }
    return absl::OkStatus();
  }

  // By stage: how many (unit, micro-batch) pairs its memory holds; empty without a budget.
  std::vector<double> UnitBudgets(const Draft& draft, const Estimator& estimator) const {
    const std::vector<int64_t> budgets = Budgets(cluster_, draft);
    if (std::all_of(budgets.begin(), budgets.end(), [](int64_t b) { return b == 0; })) return {};
    std::vector<double> units;
    for (int stage = 0; stage < draft.layout.stages; ++stage) {
      const int64_t budget = budgets[static_cast<size_t>(stage)];
      const auto none = static_cast<double>(estimator.MemoryOf(draft, stage, 0).total());
      const auto one = static_cast<double>(estimator.MemoryOf(draft, stage, 1).total());
      const double room = (static_cast<double>(budget) - none) / std::max(1.0, one - none);
      units.push_back(budget == 0 ? 1e18 : std::max(0.0, room));
    }
    return units;
  }

  // Communication that starts earlier needs more buffers; worth it where computation waits for it.
  absl::Status TryLookaheads() {
    if (job_.layout.lookahead.has_value()) return absl::OkStatus();
    for (const Candidate& base : BestOfGroups(kBuiltFor)) {
      if (base.prediction.exposed_communication_ratio < 0.01) continue;
      for (int lookahead : kTriedLookaheads) {
        Draft draft = base.draft;
        for (StagePolicy& policy : draft.layout.policies) policy.lookahead = lookahead;
        ASSIGN_OR_RETURN(Candidate candidate, Simulated(draft));
        if (candidate.fits) result_.fitting.push_back(std::move(candidate));
      }
    }
    return absl::OkStatus();
  }

  static int SimplicityOf(const Candidate& candidate) {
    int place = 0;
    for (const Schedule& schedule : TrainingSchedules()) {
      if (candidate.draft.layout.schedule == schedule.name) break;
      ++place;
    }
    return place;
  }

  // By step time; first the simplest of those that are as fast as the fastest.
  void Order() {
    std::vector<Candidate>& fitting = result_.fitting;
    const auto seconds = [](const Candidate& c) { return c.prediction.step_seconds; };
    std::stable_sort(fitting.begin(), fitting.end(), [&](const Candidate& a, const Candidate& b) {
      return seconds(a) < seconds(b);
    });
    std::stable_sort(
        result_.too_large.begin(), result_.too_large.end(),
        [](const Candidate& a, const Candidate& b) { return a.short_bytes < b.short_bytes; });
    if (fitting.empty()) return;
    const auto key = [](const Candidate& c) {
      const Layout& layout = c.draft.layout;
      return std::make_tuple(layout.zero, SimplicityOf(c), layout.chunks_per_stage, layout.stages);
    };
    size_t chosen = 0;
    for (size_t i = 1; i < fitting.size(); ++i) {
      if (seconds(fitting[i]) > kSameSpeed * seconds(fitting.front())) break;
      if (key(fitting[i]) < key(fitting[chosen])) chosen = i;
    }
    std::rotate(fitting.begin(), fitting.begin() + static_cast<std::ptrdiff_t>(chosen),
                fitting.begin() + static_cast<std::ptrdiff_t>(chosen) + 1);
  }

  const JobSpec& job_;
  const ClusterSpec& cluster_;
  std::vector<Scored> drafts_;
  std::map<std::tuple<int, int, int>, std::vector<StagePolicy>> ladders_;
  std::map<int64_t, Estimator> estimators_;
  SearchResult result_;
};

}  // namespace

std::vector<Shape> Shapes(const LayoutRequest& request, int num_workers, int max_stages) {
  std::vector<Shape> shapes;
  if (request.stages.has_value()) {
    const int replicas = request.replicas.value_or(num_workers / *request.stages);
    if (replicas >= 1) shapes.push_back({*request.stages, replicas});
  } else {
    const int share = request.replicas.has_value() ? num_workers / *request.replicas : num_workers;
    for (int stages : Divisors(share)) {
      if (stages > max_stages) break;
      shapes.push_back({stages, request.replicas.value_or(num_workers / stages)});
    }
  }
  std::erase_if(shapes, [&](const Shape& shape) {
    return int64_t{shape.stages} * shape.replicas > num_workers;
  });
  return shapes;
}

absl::StatusOr<Rehearsal> Rehearse(const JobSpec& job, const ClusterSpec& cluster,
                                   const Draft& draft) {
  Rehearsal rehearsal;
  ASSIGN_OR_RETURN(rehearsal.plan,
                   Generate(job.model, draft.layout, job.precision, draft.pipeline));
  for (const Pass& pass : Passes()) {
    ASSIGN_OR_RETURN(rehearsal.plan, pass.run(std::move(rehearsal.plan)));
  }
  rehearsal.plan.worker_of_rank = draft.worker_of_rank;
  const CostModel costs(job.model, draft.layout, job.precision, cluster, draft.worker_of_rank);
  ASSIGN_OR_RETURN(
      rehearsal.simulation,
      Simulate(rehearsal.plan, [&](const Program& program, const Instruction& instruction) {
        return costs.Seconds(program, instruction);
      }));
  return rehearsal;
}

absl::StatusOr<SearchResult> Search(const JobSpec& job, const ClusterSpec& cluster) {
  return Searcher(job, cluster).Run();
}

}  // namespace esteira
