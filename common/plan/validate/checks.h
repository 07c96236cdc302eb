// The checks of validate.h, one file each. Internal to this folder. Each returns OK or the first
// fault that it finds, and may rely on the checks that Validate runs before it: structure first of
// all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/plan/plan.h"

namespace esteira::validate {

// What the checks share of a plan whose structure is right.
struct Context {
  Context(const Plan& checked_plan, Phase checked_phase);

  // Whether chunks, not units, are what instructions name.
  bool on_chunks() const { return phase == Phase::kGenerated; }
  int num_items() const;  // units that compute, or chunks
  bool Holds(const Program& program, int item) const { return StageOf(item) == program.stage; }
  int StageOf(int item) const;
  const UnitSpec& unit(int index) const { return units[static_cast<size_t>(index)]; }
  bool HasParameters(int index) const { return unit(index).flat_elements > 0; }
  // The other end of a tied table.
  int OtherEnd(int end) const;
  int WindowSize(int stage) const;  // micro-batches of a gradient window
  int NumWindows(int stage) const {
    return (num_micro_batches + WindowSize(stage) - 1) / WindowSize(stage);
  }
  // Gradient windows are the sums themselves.
  bool WindowsAreSums(int stage) const { return placement.whole_sums && NumWindows(stage) == 1; }

  const Plan& plan;
  const Phase phase;
  const std::vector<UnitSpec> units;
  const Placement placement;
  const int num_micro_batches;
  std::vector<int> stage_of_unit;
};

// Where the first compute or point-to-point instruction of each (op, unit, micro-batch) of a
// program stands.
class Positions {
 public:
  Positions(const Context& context, const Program& program);
  // -1: nowhere.
  int32_t At(Op op, int item, int micro_batch) const;
  // The backward pass that makes dx: B, or I.
  int32_t Backward(int item, int micro_batch) const;
  // The backward pass that adds to the gradients: B, or W.
  int32_t WeightGradient(int item, int micro_batch) const;
  // Instructions that repeat an earlier one.
  const std::vector<size_t>& repeated() const { return repeated_; }

 private:
  size_t Cell(Op op, int item, int micro_batch) const;

  const size_t num_micro_batches_;
  std::vector<int32_t> row_of_item_;  // -1: not held
  size_t num_rows_ = 0;
  std::vector<int32_t> cells_;
  std::vector<size_t> repeated_;
};

// One program under check.
struct Subject {
  const Context& context;
  const Program& program;
  const bool train;
  const Positions positions;
};

// "check: train stage 2, instruction 17 (3F0): expected ...".
absl::Status Fault(absl::string_view check, const Program& program, bool train,
                   absl::string_view expected);
absl::Status FaultAt(absl::string_view check, const Program& program, bool train, size_t index,
                     absl::string_view expected);
inline absl::Status Fault(absl::string_view check, const Subject& subject,
                          absl::string_view expected) {
  return Fault(check, subject.program, subject.train, expected);
}
inline absl::Status FaultAt(absl::string_view check, const Subject& subject, size_t index,
                            absl::string_view expected) {
  return FaultAt(check, subject.program, subject.train, index, expected);
}

absl::Status CheckStructure(const Plan& plan, Phase phase);
absl::Status CheckCoverage(const Subject& subject);
absl::Status CheckOrder(const Subject& subject);
absl::Status CheckPeers(const Subject& subject);
absl::Status CheckPairing(const Subject& subject);
absl::Status CheckGathered(const Subject& subject);
absl::Status CheckReduction(const Subject& subject);
absl::Status CheckJoins(const Subject& subject);
absl::Status CheckSlots(const Subject& subject);
absl::Status CheckDeadlock(const Context& context, const std::vector<Program>& programs,
                           bool train);

}  // namespace esteira::validate
