#include "worker/trainer/step_runner.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr size_t kWindow = 32;         // steps whose norms are compared with
constexpr size_t kFewest = 8;          // of them, before a step can be a spike
constexpr uint32_t kGroup = 1u << 20;  // no group of the engine's
constexpr size_t kHostBytes = 64;

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string HostName() {
  std::array<char, kHostBytes> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

bool IsBad(const StepReport& report) { return report.non_finite.found || report.spike; }

// Findings as they travel: host, `differs`, squares by unit, losses by micro-batch.
class Record {
 public:
  Record(size_t num_units, size_t num_micro_batches)
      : num_units_(num_units), num_micro_batches_(num_micro_batches) {}

  size_t bytes() const {
    return kHostBytes + sizeof(int64_t) + num_units_ * sizeof(double) +
           num_micro_batches_ * sizeof(LossSums);
  }

  void Write(const RankFindings& findings, std::byte* to) const {
    std::memcpy(to, findings.host.data(), std::min(findings.host.size(), kHostBytes - 1));
    const int64_t differs = findings.differs ? 1 : 0;
    std::memcpy(to + kHostBytes, &differs, sizeof(differs));
    std::memcpy(to + kHostBytes + sizeof(differs), findings.unit_squares.data(),
                num_units_ * sizeof(double));
    std::memcpy(to + bytes() - num_micro_batches_ * sizeof(LossSums), findings.losses.data(),
                num_micro_batches_ * sizeof(LossSums));
  }

  RankFindings Read(const std::byte* from) const {
    RankFindings findings;
    findings.host = reinterpret_cast<const char*>(from);
    int64_t differs = 0;
    std::memcpy(&differs, from + kHostBytes, sizeof(differs));
    findings.differs = differs != 0;
    findings.unit_squares.resize(num_units_);
    findings.losses.resize(num_micro_batches_);
    std::memcpy(findings.unit_squares.data(), from + kHostBytes + sizeof(differs),
                num_units_ * sizeof(double));
    std::memcpy(findings.losses.data(), from + bytes() - num_micro_batches_ * sizeof(LossSums),
                num_micro_batches_ * sizeof(LossSums));
    return findings;
  }

 private:
  size_t num_units_;
  size_t num_micro_batches_;
};

}  // namespace

StepRunner::StepRunner(const Setting& setting, Engine& engine, Device& device, Transport& transport)
    : setting_(setting),
      engine_(engine),
      all_(MakeCollectives(transport, AllRanks(transport.size()),
                           {.group_id = kGroup, .timeout = setting.operation_timeout})),
      stream_(device.NewStream("replay")) {}

double StepRunner::UsualNorm() const {
  if (norms_.size() < kFewest) return 0;
  std::vector<double> sorted(norms_.begin(), norms_.end());
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

double StepRunner::LargestNorm() const {
  const double usual = UsualNorm();
  if (setting_.job.spike_factor <= 0 || usual <= 0) return std::numeric_limits<double>::infinity();
  return setting_.job.spike_factor * usual;
}

absl::StatusOr<std::vector<RankFindings>> StepRunner::Gather(const RankFindings& own) {
  const Record record(own.unit_squares.size(), own.losses.size());
  const auto ranks = static_cast<size_t>(all_->size());
  std::vector<std::byte> buffer(ranks * record.bytes());
  record.Write(own, buffer.data() + static_cast<size_t>(setting_.rank) * record.bytes());
  all_->AllGather(buffer, *stream_);
  RETURN_IF_ERROR(stream_->Synchronize());
  std::vector<RankFindings> findings;
  for (size_t rank = 0; rank < ranks; ++rank) {
    findings.push_back(record.Read(buffer.data() + rank * record.bytes()));
  }
  return findings;
}

absl::StatusOr<StepRunner::Outcome> StepRunner::Run(int64_t step, const SampleReader& samples,
                                                    bool hash) {
  const double largest_norm = LargestNorm();
  Outcome outcome;
  ASSIGN_OR_RETURN(outcome.report, engine_.Step(step, samples, hash, largest_norm));
  if (IsBad(outcome.report)) {
    const StepReport first = std::move(outcome.report);
    ASSIGN_OR_RETURN(outcome.report, engine_.Step(step, samples, hash, largest_norm));
    ASSIGN_OR_RETURN(std::vector<RankFindings> ranks,
                     Gather({HostName(), !SameFindings(first, outcome.report),
                             outcome.report.unit_squares, outcome.report.losses}));
    const int64_t before = (step - 1) * setting_.job.global_batch_size;
    const auto number = [this, before](int64_t i) { return setting_.sample_number(before + i); };
    outcome.finding = DescribeReplay(
        {setting_.plan, first, outcome.report, std::move(ranks), UsualNorm(), number});
    outcome.spike = outcome.report.spike;
    if (outcome.spike) {
      ASSIGN_OR_RETURN(outcome.report, engine_.Step(step, samples, hash));
    }
  }
  if (!outcome.report.skipped) {
    norms_.push_back(outcome.report.gradient_norm);
    if (norms_.size() > kWindow) norms_.pop_front();
  }
  return outcome;
}

}  // namespace esteira
