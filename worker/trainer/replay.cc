#include "worker/trainer/replay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace esteira {
namespace {

constexpr size_t kMostNamed = 8;  // ranks, or samples

// Which NaN it is says nothing.
bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

std::string UnitText(const Plan& plan, int unit) {
  const UnitSpec spec = MakeUnits(plan.model)[static_cast<size_t>(unit)];
  std::string number = absl::StrCat("unit ", unit);
  switch (spec.kind) {
    case UnitKind::kEmbedding: return number + " (embedding)";
    case UnitKind::kBlock: return absl::StrCat(number, " (layer ", spec.layer, ")");
    case UnitKind::kHead: return number + " (head)";
    case UnitKind::kTied: return number + " (table of embedding and head)";
  }
  return number;
}

template <typename T>
std::string List(const std::vector<T>& items) {
  const size_t shown = std::min(items.size(), kMostNamed);
  std::string text =
      absl::StrJoin(items.begin(), items.begin() + static_cast<ptrdiff_t>(shown), ", ");
  if (items.size() > shown) absl::StrAppend(&text, " and ", items.size() - shown, " more");
  return text;
}

std::string RankText(const Replay& replay, int rank) {
  return absl::StrCat("rank ", rank, " (host ", replay.ranks[static_cast<size_t>(rank)].host, ")");
}

// "micro-batch 3 (samples 17, 18)"; `micro_batch` is the replica's own number.
std::string MicroBatchText(const Replay& replay, int replica, int micro_batch) {
  const Plan& plan = replay.plan;
  const MicroBatch samples = plan.layout.MicroBatchOf(replica, micro_batch);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < samples.num_samples; ++i) {
    numbers.push_back(replay.sample_number(samples.first_sample + i));
  }
  return absl::StrCat("micro-batch ", micro_batch,
                      plan.layout.replicas > 1 ? absl::StrCat(" of replica ", replica) : "",
                      numbers.size() == 1 ? " (sample " : " (samples ", List(numbers), ")");
}

std::string Symptom(const Replay& replay, const StepReport& report) {
  const NonFinite& place = report.non_finite;
  if (place.found) {
    return absl::StrCat("a non-finite value, first in ", UnitText(replay.plan, place.unit),
                        place.micro_batch < 0 ? std::string(" in the sum of its gradients")
                                              : absl::StrCat(", micro-batch ", place.micro_batch),
                        " on ", RankText(replay, place.rank));
  }
  if (replay.usual_norm <= 0) return absl::StrFormat("gradient norm %g", report.gradient_norm);
  return absl::StrFormat("gradient norm %g, %.1f times the median of the steps before",
                         report.gradient_norm, report.gradient_norm / replay.usual_norm);
}

std::string MachineText(const Replay& replay) {
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < replay.ranks.size(); ++rank) {
    if (replay.ranks[rank].differs) ranks.push_back(RankText(replay, static_cast<int>(rank)));
  }
  const bool bad_again = replay.second.non_finite.found || replay.second.spike;
  return absl::StrCat("Run again from the same state, it came out otherwise: ",
                      bad_again ? Symptom(replay, replay.second)
                                : absl::StrFormat("loss %g, gradient norm %g", replay.second.loss,
                                                  replay.second.gradient_norm),
                      ". So a machine is at fault, not the data: other numbers came from ",
                      List(ranks), bad_again ? "" : "; the second run counts");
}

// The unit with the largest share of the squared norm.
std::optional<std::string> LargestUnit(const Replay& replay) {
  std::vector<double> squares(MakeUnits(replay.plan.model).size());
  double total = 0;
  for (const RankFindings& rank : replay.ranks) {
    for (size_t unit = 0; unit < rank.unit_squares.size(); ++unit) {
      squares[unit] += rank.unit_squares[unit];
      total += rank.unit_squares[unit];
    }
  }
  const auto largest = std::max_element(squares.begin(), squares.end());
  if (!std::isfinite(total) || total <= 0) return std::nullopt;
  return absl::StrFormat("%.0f %% of the squared norm is of %s", 100 * *largest / total,
                         UnitText(replay.plan, static_cast<int>(largest - squares.begin())));
}

// The micro-batch with the largest mean loss.
std::optional<std::string> LargestLoss(const Replay& replay) {
  double largest = -1;
  int replica_of_largest = 0, micro_batch_of_largest = 0;
  for (size_t rank = 0; rank < replay.ranks.size(); ++rank) {
    const std::vector<LossSums>& losses = replay.ranks[rank].losses;
    for (size_t j = 0; j < losses.size(); ++j) {
      if (losses[j].valid_tokens == 0) continue;
      const double mean = losses[j].loss / static_cast<double>(losses[j].valid_tokens);
      if (!(mean > largest)) continue;
      largest = mean;
      replica_of_largest = replay.plan.layout.ReplicaOfRank(static_cast<int>(rank));
      micro_batch_of_largest = static_cast<int>(j);
    }
  }
  if (largest < 0) return std::nullopt;
  return absl::StrFormat("the largest loss, %.4g a token (mean %.4g), is of %s", largest,
                         replay.second.loss,
                         MicroBatchText(replay, replica_of_largest, micro_batch_of_largest));
}

std::string DataText(const Replay& replay) {
  std::string text =
      "Run again from the same state, it is the same to the bit on every rank: the data or the "
      "model, not a machine";
  const NonFinite& place = replay.second.non_finite;
  if (place.found && place.micro_batch >= 0) {
    return absl::StrCat(
        text, "; it is ",
        MicroBatchText(replay, replay.plan.layout.ReplicaOfRank(place.rank), place.micro_batch));
  }
  for (const auto& part : {LargestUnit(replay), LargestLoss(replay)}) {
    if (part) absl::StrAppend(&text, "; ", *part);
  }
  return text;
}

}  // namespace

bool SameFindings(const StepReport& a, const StepReport& b) {
  const auto same_loss = [](const LossSums& x, const LossSums& y) {
    return SameBits(x.loss, y.loss) && x.valid_tokens == y.valid_tokens;
  };
  return std::equal(a.unit_squares.begin(), a.unit_squares.end(), b.unit_squares.begin(),
                    b.unit_squares.end(), SameBits) &&
         std::equal(a.losses.begin(), a.losses.end(), b.losses.begin(), b.losses.end(), same_loss);
}

bool IsMachineFault(const Replay& replay) {
  return std::any_of(replay.ranks.begin(), replay.ranks.end(),
                     [](const RankFindings& rank) { return rank.differs; });
}

std::string DescribeReplay(const Replay& replay) {
  return absl::StrCat("step ", replay.first.step, ": ", Symptom(replay, replay.first), ". ",
                      IsMachineFault(replay) ? MachineText(replay) : DataText(replay));
}

}  // namespace esteira
