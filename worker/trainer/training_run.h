#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/base/log.h"
#include "worker/checkpoint/background_saver.h"
#include "worker/checkpoint/resume_point.h"
#include "worker/checkpoint/writer.h"
#include "worker/engine/engine.h"
#include "worker/trainer/channel.h"
#include "worker/trainer/setup.h"
#include "worker/trainer/step_runner.h"

namespace esteira {

// One rank's run from its first step, or where a checkpoint left off, to its last: steps,
// validations, checkpoints, and what is done about a step that went bad. Reports on `channel`.
// Every decision follows from what all ranks agreed on. Run is called once; the saves that it
// starts use a thread of their own.
class TrainingRun {
 public:
  TrainingRun(Channel& channel, Setup& setup, Transport& transport, Logger log);

  absl::Status Run();
  int64_t step() const { return step_; }  // the one that is running, or the last one

 private:
  absl::Status Prepare();
  absl::Status TrainStep();
  absl::Status HandleFinding(const StepRunner::Outcome& outcome);
  absl::StatusOr<std::optional<double>> Validation();
  absl::Status ReportStep(const StepReport& report, std::optional<double> validation_loss);
  absl::Status Notice(const char* reason, const std::string& message, int64_t steps_done = 0);
  absl::Status PrepareSaves();
  absl::StatusOr<std::optional<ResumePoint>> FindPoint();
  absl::Status Restore(const ResumePoint& point);
  bool MustRollBack(const StepReport& report);
  absl::Status RollBack();
  absl::Status CompareWithRunBefore(const StepReport& report);
  absl::Status SaveCheckpoint();
  void ReportSave(const SaveReport& save);
  void ReportFailedSave(const SaveReport& save, bool failed_before);
  bool IsLast() const { return step_ == job_.steps; }
  bool Every(int64_t period) const { return IsLast() || (period > 0 && step_ % period == 0); }
  v1::TrainerReport NewReport() const;

  struct Numbers {  // the bits of a step
    uint64_t loss = 0, gradient_norm = 0;
    bool operator==(const Numbers&) const = default;
  };

  Channel& channel_;
  Setup& setup_;
  Transport& transport_;
  const Logger log_;
  JobSpec job_;  // from Prepare on with the hyper-parameters that hold; setup_.job is as submitted
  RealFileSystem files_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StepRunner> runner_;
  int64_t step_ = 0;
  int64_t first_step_ = 1;
  int64_t rolled_back_at_ = 0;     // the last step that was bad and rolled back
  int64_t hopeless_updates_ = -1;  // a roll back did not help a state of so many updates
  std::vector<Numbers> numbers_;  // of the steps from first_step_ on, when steps may be rolled back
  bool found_before_ = false;     // the step before had a finding too
  int64_t dropped_before_ = 0;    // messages, at the step before
  bool save_failed_ = false;      // the save before; of the thread that saves
  Buffer copy_;                   // of the states, while they are written
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<BackgroundSaver> saver_;  // last: its end waits for a save that uses the others
};

}  // namespace esteira
