// Small plans for the tests of this folder.
#pragma once

#include <string>
#include <vector>

#include "common/plan/plan.h"

namespace esteira {

ModelSpec TinyModel(int64_t num_layers, bool tied);

// A pipeline written by hand, by stage: held units and the lines of both programs.
struct HandMadeStage {
  std::vector<int> units;
  std::vector<std::string> train;
  std::vector<std::string> evaluate;
};

// The plan of `layout` in which every replica does what `stages` say. There is one slot class of
// each kind, as large as the instructions need.
Plan MakeHandMadePlan(const ModelSpec& model, const Layout& layout,
                      const std::vector<HandMadeStage>& stages);

// Two stages (embedding and one block; head), two replicas, two micro-batches each, ZeRO 1, one
// window.
Plan TwoStagePlan();

// One rank, two micro-batches, ZeRO 3, tied table, I and W apart, recomputation, a window for each
// micro-batch.
Plan OneRankPlan();

// Two stages with two chunks each in the shape of a V (embedding and head; both blocks), two
// replicas, two micro-batches, ZeRO 2, tied table with both ends on one rank, I and W apart on the
// blocks.
Plan VShapePlan();

// The plan as it stands before slots are numbered, and before anything but computing and exchanges
// is in.
Plan WithoutSlots(Plan plan);
Plan OnlyExchanges(Plan plan);
Plan OnlyCompute(Plan plan);

// Index of the instruction with this text; fails the test when there is none.
size_t Find(const Program& program, const std::string& text);
// In the train program of one stage. Peers are left out of `text`.
void Remove(Plan& plan, int stage, const std::string& text);
void Replace(Plan& plan, int stage, const std::string& text, const std::string& replacement);
void MoveBefore(Plan& plan, int stage, const std::string& text, const std::string& before);

}  // namespace esteira
