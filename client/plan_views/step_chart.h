// One step of a plan as a picture sees it: a row a stage, of the first replica, which stands for
// all. A value; knows nothing of how it is drawn.
#pragma once

#include <vector>

#include "common/plan/machine.h"
#include "common/plan/plan.h"

namespace esteira {

// What a compute queue does.
enum class Activity {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kRecompute,
  kUpdate,  // STEP and CLEAR
};
inline constexpr int kNumActivities = static_cast<int>(Activity::kUpdate) + 1;

// Why a compute queue stands idle.
enum class Idleness {
  kStages,         // other stages compute: the bubble
  kCommunication,  // GATHER, REDUCE or TIE_PARAM that nothing hides
};

struct Piece {  // without gap, of one pass and one activity
  Activity activity = Activity::kForward;
  int pass = -1;  // index into passes; -1: of none
  double start = 0;
  double end = 0;
};

struct Pass {  // of one micro-batch through one chunk, in one direction
  Activity activity = Activity::kForward;
  int chunk = 0;  // of those of its stage, from 0
  int micro_batch = 0;
  double start = 0;
  double end = 0;
};

struct Idle {
  Idleness reason = Idleness::kStages;
  double start = 0;
  double end = 0;
};

struct Transfer {  // what runs beside the compute queue
  Op op = Op::kSendAct;
  double start = 0;
  double end = 0;
};

struct StageRow {
  int stage = 0;
  std::vector<Pass> passes;
  std::vector<Piece> pieces;  // by time
  std::vector<Idle> idle;     // by time
  std::vector<Transfer> transfers;
  // Shares of the step. Bubble and exposed communication are what keeps the queue from being busy.
  double busy = 0;
  double bubble = 0;
  double exposed_communication = 0;
  // The most micro-batches whose activations the rank holds at once; a chunk counts as its share of
  // the stage's chunks.
  double held_micro_batches = 0;
};

struct StepChart {
  double seconds = 0;
  int chunks_per_stage = 1;
  std::vector<StageRow> rows;  // by stage
};

// `execution` is of plan.train.
StepChart MakeStepChart(const Plan& plan, const Execution& execution);

// Each of `columns` equal parts of the step as one thing: idle when two thirds of it are, else an
// activity that it has. Where passes are shorter than columns, activities come in turn, by their
// shares.
struct Column {
  enum class Kind { kBusy, kBubble, kExposed } kind = Kind::kBubble;
  Activity activity = Activity::kForward;
  int pass = -1;  // of the activity, the one with most of the column
};
std::vector<Column> Rasterize(const StageRow& row, double seconds, int columns);

// At most `count` of `size` indices, evenly spread, the first and the last among them.
std::vector<int> Sample(int size, int count);

}  // namespace esteira
