#include "worker/launch_check/launch_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/communication/inproc/inproc_transport.h"
#include "worker/launch_check/oracle.h"
#include "worker/launch_check/toy.h"

namespace esteira {
namespace {

constexpr int64_t kSteps = 2;
// Of the largest update that a parameter has seen, or of the loss or the norm: sums of a few
// thousand fp32 numbers in another order differ by less, and one micro-batch in a thousand that
// counts twice, or not, by more.
constexpr double kFastTolerance = 1e-4;
// The same where replicas round their gradients to bf16, which the oracle does not: what cancels
// among them leaves several times 2^-8 of the largest.
constexpr double kBf16TrafficTolerance = 1.0 / 16;

// An engine for each rank, on a device of its own.
class Ranks {
 public:
  static absl::StatusOr<std::unique_ptr<Ranks>> Make(const Toy& toy,
                                                     const LaunchCheckOptions& options) {
    auto ranks = std::make_unique<Ranks>();
    const int size = toy.plan.layout.num_ranks();
    ranks->transports_ = MakeInprocTransports(size);
    for (int rank = 0; rank < size; ++rank) {
      Member& member = ranks->members_.emplace_back();
      member.device = MakeCpuDevice({.threads = 1});
      member.kernels = MakeCpuKernels(1);
      const EngineOptions engine = {
          .rank = rank,
          .operation_timeout = options.timeout,
          .check_finite_each_op = false,
          .make_unit = options.units ? options.units(rank) : MakeUnitCompute};
      ASSIGN_OR_RETURN(member.engine,
                       Engine::Make(toy.plan, toy.job, engine, *member.device, *member.kernels,
                                    *ranks->transports_[static_cast<size_t>(rank)]));
    }
    return ranks;
  }

  // What rank 0 reports; all ranks agree on it.
  absl::StatusOr<StepReport> Step(int64_t step, const SampleReader& samples) {
    std::vector<absl::StatusOr<StepReport>> reports(members_.size(), StepReport());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        reports[rank] = members_[rank].engine->Step(step, samples, /*hash=*/false);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& report : reports) RETURN_IF_ERROR(report.status());
    return *reports.front();
  }

  int size() const { return static_cast<int>(members_.size()); }
  std::vector<UnitState> States(int rank) const {
    return members_[static_cast<size_t>(rank)].engine->States();
  }

 private:
  struct Member {
    std::unique_ptr<Device> device;
    std::unique_ptr<Kernels> kernels;
    std::unique_ptr<Engine> engine;
  };
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<Member> members_;
};

// One run of the plan beside the oracle, in one kind of numerics.
class Comparison {
 public:
  Comparison(const Toy& toy, Ranks& ranks, Oracle& oracle)
      : toy_(toy),
        ranks_(ranks),
        oracle_(oracle),
        units_(MakeUnits(toy.job.model)),
        exact_(toy.job.numerics == Numerics::kExact),
        tolerance_(toy.job.gradient_traffic == GradientTraffic::kBf16 ? kBf16TrafficTolerance
                                                                      : kFastTolerance) {
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      const std::span<const float> master = oracle.Master(static_cast<int>(unit));
      initial_.emplace_back(master.begin(), master.end());
    }
  }

  absl::Status Run() {
    const SampleReader samples = RandomSamples(toy_.job);
    for (int64_t step = 1; step <= kSteps; ++step) {
      ASSIGN_OR_RETURN(const Oracle::Outcome expected, oracle_.Step(step, samples));
      ASSIGN_OR_RETURN(const StepReport report, ranks_.Step(step, samples));
      RETURN_IF_ERROR(CompareParameters(step));
      RETURN_IF_ERROR(CompareNumber(step, "loss", report.loss, expected.loss));
      RETURN_IF_ERROR(
          CompareNumber(step, "gradient norm", report.gradient_norm, expected.gradient_norm));
    }
    return absl::OkStatus();
  }

 private:
  struct Place {
    int unit = std::numeric_limits<int>::max();
    int64_t element = 0;  // of the unit's flat buffer
    int rank = 0;
    float found = 0;
    bool operator<(const Place& other) const {
      return unit != other.unit ? unit < other.unit : element < other.element;
    }
  };

  bool Same(double found, double expected, double scale) const {
    if (!exact_) return std::abs(found - expected) <= tolerance_ * scale;
    return std::bit_cast<uint64_t>(found) == std::bit_cast<uint64_t>(expected);
  }

  absl::Status CompareNumber(int64_t step, const char* what, double found, double expected) const {
    if (Same(found, expected, std::abs(expected))) return absl::OkStatus();
    return Difference(absl::StrFormat("the %s of step %d is %.17g, on one rank %.17g", what, step,
                                      found, expected));
  }

  double LargestUpdate(int unit, const ParameterSpec& parameter) const {
    double largest = 0;
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.elements; ++i) {
      const auto at = static_cast<size_t>(i);
      const double now = oracle_.Master(unit)[at];
      largest = std::max(largest, std::abs(now - initial_[static_cast<size_t>(unit)][at]));
    }
    return largest;
  }

  std::optional<Place> FirstIn(const UnitState& state, int rank) const {
    const std::span<const float> expected = oracle_.Master(state.unit);
    for (const ParameterSpec& parameter : units_[static_cast<size_t>(state.unit)].parameters) {
      const double scale = exact_ ? 0 : LargestUpdate(state.unit, parameter);
      const int64_t end = std::min(state.end, parameter.offset + parameter.elements);
      for (int64_t i = std::max(state.begin, parameter.offset); i < end; ++i) {
        const float found = state.master[static_cast<size_t>(i - state.begin)];
        if (!Same(found, expected[static_cast<size_t>(i)], scale)) {
          return Place{state.unit, i, rank, found};
        }
      }
    }
    return std::nullopt;
  }

  absl::Status CompareParameters(int64_t step) const {
    Place first;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      for (const UnitState& state : ranks_.States(rank)) {
        const std::optional<Place> place = FirstIn(state, rank);
        if (place && *place < first) first = *place;
      }
    }
    if (first.unit == Place().unit) return absl::OkStatus();
    const std::vector<ParameterSpec>& parameters =
        units_[static_cast<size_t>(first.unit)].parameters;
    const auto parameter =
        std::find_if(parameters.begin(), parameters.end(), [&](const ParameterSpec& candidate) {
          return first.element < candidate.offset + candidate.elements;
        });
    return Difference(absl::StrFormat(
        "%s is the first parameter that differs, after step %d: element %d is %.9g on rank %d "
        "(stage %d, replica %d), on one rank %.9g",
        parameter->name, step, first.element - parameter->offset, first.found, first.rank,
        toy_.plan.layout.StageOfRank(first.rank), toy_.plan.layout.ReplicaOfRank(first.rank),
        oracle_.Master(first.unit)[static_cast<size_t>(first.element)]));
  }

  static absl::Status Difference(const std::string& what) { return absl::InternalError(what); }

  const Toy& toy_;
  Ranks& ranks_;
  Oracle& oracle_;
  const std::vector<UnitSpec> units_;
  const bool exact_;
  const double tolerance_;
  std::vector<std::vector<float>> initial_;  // by unit
};

absl::Status CheckIn(const Toy& toy, const LaunchCheckOptions& options) {
  const std::unique_ptr<Device> device = MakeCpuDevice({.threads = 1});
  const std::unique_ptr<Kernels> kernels = MakeCpuKernels(1);
  ASSIGN_OR_RETURN(const std::unique_ptr<Oracle> oracle,
                   Oracle::Make(toy.job, toy.plan.layout.micro_batch_size, *device, *kernels));
  ASSIGN_OR_RETURN(const std::unique_ptr<Ranks> ranks, Ranks::Make(toy, options));
  return Comparison(toy, *ranks, *oracle).Run();
}

}  // namespace

absl::StatusOr<LaunchCheckReport> CheckLaunch(const JobSpec& job, const Plan& plan,
                                              const LaunchCheckOptions& options) {
  const int most_ranks = options.most_ranks > 0 ? options.most_ranks : plan.layout.num_ranks();
  std::vector<Toy> toys = {AtToyWidth(job, plan, Numerics::kExact, job.precision, most_ranks)};
  if (job.numerics == Numerics::kFast) {
    toys.push_back(AtToyWidth(job, plan, Numerics::kFast, Precision::kFp32, most_ranks));
  }
  for (const Toy& toy : toys) {
    const absl::Status status = CheckIn(toy, options);
    if (status.ok()) continue;
    return absl::Status(
        status.code(),
        absl::StrCat("the launch check failed, and no step was made. At toy width, in ",
                     NumericsName(toy.job.numerics),
                     " numerics, this plan does not compute what "
                     "one rank computes: ",
                     status.message(),
                     ". The fault is in the plan or in the software, not in the job: choose "
                     "another layout, and report this one"));
  }
  return LaunchCheckReport{toys.front().plan.layout.num_ranks(), toys.front().replicas_left_out};
}

}  // namespace esteira
