#include "worker/trainer/training_run.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
#include "worker/checkpoint/state_source.h"
#include "worker/model/unit_compute.h"
#include "worker/trainer/reports.h"

namespace esteira {
namespace {

SampleReader ReaderOf(const DataSet& data) {
  return [&data](int64_t first, int64_t count, std::span<int32_t> inputs,
                 std::span<int32_t> targets) { return data.Read(first, count, inputs, targets); };
}

// What a run starts from without a checkpoint.
StateSource InitialState(const JobSpec& job) {
  return [units = MakeUnits(job.model), seed = job.seed](int unit, int buffer, int64_t begin,
                                                         std::span<float> values) {
    std::fill(values.begin(), values.end(), 0.0f);
    if (buffer == 0) {
      InitialWeights(units[static_cast<size_t>(unit)], seed,
                     {begin, begin + static_cast<int64_t>(values.size())}, values);
    }
    return absl::OkStatus();
  };
}

// Which samples the step consumed, in the order of the global batch.
void AddSampleIds(const Setup& setup, int64_t step, v1::StepReportProto& report) {
  const int64_t batch = setup.job.global_batch_size;
  for (int64_t i = 0; i < batch; ++i) {
    report.add_sample_ids(setup.train->NumberOf(setup.train->At((step - 1) * batch + i)));
  }
}

}  // namespace

TrainingRun::TrainingRun(Channel& channel, Setup& setup, Transport& transport, Logger log)
    : channel_(channel),
      setup_(setup),
      transport_(transport),
      log_(std::move(log)),
      job_(setup.job) {}

absl::Status TrainingRun::Run() {
  if (!setup_.launch_check.empty()) RETURN_IF_ERROR(Notice("CHECKED", setup_.launch_check));
  std::optional<ResumePoint> point;
  if (job_.resume_if_found) {
    ASSIGN_OR_RETURN(point, FindPoint());
    if (point) job_ = point->continuation.job;
  }
  RETURN_IF_ERROR(Prepare());
  if (point) {
    RETURN_IF_ERROR(Restore(*point));
    RETURN_IF_ERROR(Notice("RESUMED", DescribeResume(*point), step_));
  }
  first_step_ = step_ + 1;
  while (step_ < job_.steps) {
    ++step_;
    RETURN_IF_ERROR(TrainStep());
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::Prepare() {
  ASSIGN_OR_RETURN(engine_,
                   Engine::Make(setup_.plan, job_,
                                {.rank = setup_.rank,
                                 .operation_timeout = setup_.operation_timeout,
                                 .check_finite_each_op = setup_.compute.check_finite,
                                 .make_unit = setup_.compute.make_unit},
                                *setup_.compute.device, *setup_.compute.kernels, transport_));
  runner_ = std::make_unique<StepRunner>(
      StepRunner::Setting{
          setup_.plan, job_, setup_.rank, setup_.operation_timeout,
          [this](int64_t sample) { return setup_.train->NumberOf(setup_.train->At(sample)); }},
      *engine_, *setup_.compute.device, transport_);
  writer_ =
      std::make_unique<CheckpointWriter>(job_, setup_.plan.layout, setup_.train_identity,
                                         setup_.rank, setup_.operation_timeout, files_, transport_);
  saver_ = std::make_unique<BackgroundSaver>(*writer_,
                                             [this](const SaveReport& save) { ReportSave(save); });
  return PrepareSaves();
}

absl::Status TrainingRun::TrainStep() {
  ASSIGN_OR_RETURN(
      const StepRunner::Outcome outcome,
      runner_->Run(step_, ReaderOf(*setup_.train), Every(job_.parameter_hash_every_steps)));
  const StepReport& report = outcome.report;
  RETURN_IF_ERROR(HandleFinding(outcome));
  const OnNonFinite policy = job_.on_non_finite;
  if (policy == OnNonFinite::kRollBack) {
    if (MustRollBack(report)) return RollBack();
    RETURN_IF_ERROR(CompareWithRunBefore(report));
  }
  std::optional<double> validation_loss;
  if (Every(job_.validate_every_steps)) {
    ASSIGN_OR_RETURN(validation_loss, Validation());
  }
  RETURN_IF_ERROR(ReportStep(report, validation_loss));
  if (report.non_finite.found && policy == OnNonFinite::kStop) {
    return StopAtNonFinite(report, setup_.rank);
  }
  if (!job_.checkpoint_directory.empty() && Every(job_.checkpoint_every_steps)) {
    return SaveCheckpoint();
  }
  return absl::OkStatus();
}

// Of several bad steps in a row only the first is an event of the job.
absl::Status TrainingRun::HandleFinding(const StepRunner::Outcome& outcome) {
  const bool found = !outcome.finding.empty();
  const bool found_before = std::exchange(found_before_, found);
  if (!found || setup_.rank != 0) return absl::OkStatus();
  if (!found_before) return Notice(outcome.spike ? "SPIKE" : "BAD_STEP", outcome.finding);
  log_.With("step", step_).Warning(outcome.finding);
  return absl::OkStatus();
}

// An event of the job, from rank 0. `steps_done` is said when they were done elsewhere.
absl::Status TrainingRun::Notice(const char* reason, const std::string& message,
                                 int64_t steps_done) {
  if (setup_.rank != 0) return absl::OkStatus();
  log_.Info(message);
  v1::TrainerReport report = NewReport();
  report.mutable_notice()->set_reason(reason);
  report.mutable_notice()->set_message(message);
  report.mutable_notice()->set_step(steps_done);
  return channel_.Write(report);
}

absl::StatusOr<std::optional<double>> TrainingRun::Validation() {
  if (!setup_.validation) return std::nullopt;
  return engine_->Evaluate(job_.validation_batches, ReaderOf(*setup_.validation));
}

v1::TrainerReport TrainingRun::NewReport() const {
  v1::TrainerReport report;
  report.set_job_id(setup_.job_id);
  report.set_epoch(setup_.epoch);
  report.set_rank(setup_.rank);
  return report;
}

absl::Status TrainingRun::ReportStep(const StepReport& report,
                                     std::optional<double> validation_loss) {
  v1::TrainerReport message = NewReport();
  *message.mutable_step() =
      EncodeStep(report, setup_.epoch, validation_loss, *setup_.compute.device);
  const int64_t dropped = transport_.counters().messages_dropped;
  message.mutable_step()->set_messages_dropped(dropped - std::exchange(dropped_before_, dropped));
  if (setup_.rank == 0) {
    if (job_.write_sample_ids) AddSampleIds(setup_, step_, *message.mutable_step());
    log_.Info(absl::StrFormat(
        "step %d loss %.4f norm %.3f lr %.2e %.0f tokens/s%s", step_, report.loss,
        report.gradient_norm, report.learning_rate,
        static_cast<double>(report.tokens) / report.step_seconds,
        validation_loss ? absl::StrFormat(" validation loss %.4f", *validation_loss) : ""));
  }
  return channel_.Write(message);
}

// Memory for the copy of a periodic save is taken once, so that no save can run out of it. Without
// it saves are still made.
absl::Status TrainingRun::PrepareSaves() {
  if (job_.checkpoint_directory.empty() || job_.checkpoint_every_steps <= 0) {
    return absl::OkStatus();
  }
  const int64_t bytes = BytesOfStates(engine_->States());
  if (bytes == 0) return absl::OkStatus();  // the rank holds nothing but padding
  absl::StatusOr<Buffer> copy = setup_.compute.device->Allocate(bytes, MemoryKind::kOther);
  if (copy.ok()) {
    copy_ = *std::move(copy);
    log_.With("bytes", bytes).Info("memory for the copy of a checkpoint is taken");
    return absl::OkStatus();
  }
  if (!absl::IsResourceExhausted(copy.status())) return copy.status();
  log_.With("bytes", bytes)
      .With("cause", copy.status().message())
      .Warning("no memory for the copy of a checkpoint: training will wait for each save");
  return absl::OkStatus();
}

// A checkpoint that cannot be written is an error of its own: training goes on, and only the last
// one ends the job.
absl::Status TrainingRun::SaveCheckpoint() {
  const int64_t updates = engine_->updates();
  std::vector<UnitState> states = engine_->States();
  if (IsLast()) return saver_->SaveNow(step_, updates, std::move(states));
  const bool fits = copy_.bytes() >= BytesOfStates(states);
  const absl::Status status =
      fits ? saver_->Start(step_, updates, std::move(states),
                           {copy_.data(), static_cast<size_t>(copy_.bytes())})
           : saver_->SaveNow(step_, updates, std::move(states));
  return IsConsequence(status) ? status : absl::OkStatus();
}

// On the thread that wrote it.
void TrainingRun::ReportSave(const SaveReport& save) {
  const double seconds = absl::ToDoubleSeconds(save.duration);
  const double stall = absl::ToDoubleSeconds(save.stall);
  v1::TrainerReport times = NewReport();
  times.mutable_checkpoint_save()->set_failed(!save.result.ok());
  times.mutable_checkpoint_save()->set_seconds(seconds);
  times.mutable_checkpoint_save()->set_stall_seconds(stall);
  channel_.Write(times).IgnoreError();  // a daemon that is gone ends the run by itself
  const bool failed_before = std::exchange(save_failed_, !save.result.ok());
  if (!save.result.ok()) return ReportFailedSave(save, failed_before);
  if (setup_.rank != 0) return;
  log_.With("step", save.step)
      .With("path", save.result->path)
      .With("bytes", save.result->bytes)
      .With("seconds", absl::StrFormat("%.3f", seconds))
      .With("stall_seconds", absl::StrFormat("%.3f", stall))
      .Info("checkpoint written");
  if (!save.result->cleanup.ok())
    log_.With("cause", save.result->cleanup.message())
        .Warning("cannot point `latest` at a new checkpoint or remove an old one");
  v1::TrainerReport message = NewReport();
  v1::CheckpointInfo& info = *message.mutable_checkpoint();
  info.set_path(save.result->path);
  info.set_step(save.step);
  info.set_bytes(save.result->bytes);
  info.mutable_time()->set_seconds(absl::ToUnixSeconds(absl::Now()));
  info.set_save_seconds(seconds);
  info.set_stall_seconds(stall);
  channel_.Write(message).IgnoreError();
}

void TrainingRun::ReportFailedSave(const SaveReport& save, bool failed_before) {
  const absl::Status& status = save.result.status();
  if (IsConsequence(status) || save.step == job_.steps) return;  // it ends the run
  log_.With("step", save.step)
      .With("cause", status.message())
      .Error("checkpoint failed, training goes on");
  if (setup_.rank != 0 || failed_before) return;
  v1::TrainerReport message = NewReport();
  message.mutable_notice()->set_reason("CHECKPOINT_FAILED");
  message.mutable_notice()->set_message(
      absl::StrCat("the checkpoint of step ", save.step,
                   " failed, training goes on: ", std::string(status.message())));
  channel_.Write(message).IgnoreError();
}

absl::StatusOr<std::optional<ResumePoint>> TrainingRun::FindPoint() {
  return FindResumePoint(setup_.job, setup_.plan.layout.micro_batch_size, setup_.train_identity,
                         files_, transport_, setup_.operation_timeout);
}

absl::Status TrainingRun::Restore(const ResumePoint& point) {
  ASSIGN_OR_RETURN(const StateSource source, OpenStateSource(files_, point.folder, job_.model));
  RETURN_IF_ERROR(engine_->Restore(point.state.updates, source));
  step_ = point.state.step;
  return absl::OkStatus();
}

// Once a step, and not again before something new was learned.
bool TrainingRun::MustRollBack(const StepReport& report) {
  if (!report.non_finite.found || engine_->updates() == hopeless_updates_) return false;
  if (step_ > rolled_back_at_) return true;
  if (step_ == rolled_back_at_) hopeless_updates_ = engine_->updates();
  return false;
}

// To the newest checkpoint that this run can go on from, or, before the first one, to the initial
// weights. The bad step comes again then; if it is bad again, it is skipped.
absl::Status TrainingRun::RollBack() {
  absl::Status saved = saver_->Wait();  // a failed save has been reported
  if (IsConsequence(saved)) return saved;
  rolled_back_at_ = std::exchange(step_, 0);
  ASSIGN_OR_RETURN(const std::optional<ResumePoint> point, FindPoint());
  RETURN_IF_ERROR(point ? Restore(*point) : engine_->Restore(0, InitialState(job_)));
  return Notice("ROLLED_BACK",
                absl::StrCat("step ", rolled_back_at_, " was bad: rolled back to step ", step_,
                             point ? "" : ", the initial weights, as there is no checkpoint yet",
                             "; if it is bad again it is skipped"));
}

// After a roll back the steps come out as before, unless the state had been damaged.
absl::Status TrainingRun::CompareWithRunBefore(const StepReport& report) {
  if (step_ < first_step_) return absl::OkStatus();  // rolled back to before this epoch
  const Numbers now = {std::bit_cast<uint64_t>(report.loss),
                       std::bit_cast<uint64_t>(report.gradient_norm)};
  const auto at = static_cast<size_t>(step_ - first_step_);
  if (at >= numbers_.size()) {
    numbers_.push_back(now);
    return absl::OkStatus();
  }
  const Numbers before = std::exchange(numbers_[at], now);
  if (before == now) return absl::OkStatus();
  return Notice(
      "STATE_WAS_DAMAGED",
      absl::StrFormat("step %d came out otherwise than before the roll back (loss %.9g, now %.9g): "
                      "a machine had damaged the state. Its record is that of the first time",
                      step_, std::bit_cast<double>(before.loss), report.loss));
}

}  // namespace esteira
