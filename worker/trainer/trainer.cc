#include "worker/trainer/trainer.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/background_saver.h"
#include "worker/checkpoint/resume_point.h"
#include "worker/checkpoint/state_source.h"
#include "worker/checkpoint/writer.h"
#include "worker/engine/engine.h"
#include "worker/trainer/reports.h"
#include "worker/trainer/setup.h"

namespace esteira {
namespace {

// One rank's run from its first step to its last.
class Trainer {
 public:
  Trainer(Channel& channel, Setup& setup, Transport& transport, Logger log)
      : channel_(channel),
        setup_(setup),
        transport_(transport),
        log_(std::move(log)),
        writer_(setup.job, setup.plan.layout, setup.train_identity, setup.rank,
                setup.operation_timeout, files_, transport),
        saver_(writer_, [this](const SaveReport& save) { ReportSave(save); }) {}

  absl::Status Run();
  int64_t step() const { return step_; }

 private:
  absl::Status TrainStep();
  absl::StatusOr<std::optional<double>> Validation();
  absl::Status ReportStep(const StepReport& report, std::optional<double> validation_loss);
  absl::Status PrepareSaves();
  absl::Status Resume();
  absl::Status SaveCheckpoint();
  void ReportSave(const SaveReport& save);
  void ReportFailedSave(const SaveReport& save, bool failed_before);
  bool IsLast() const { return step_ == setup_.job.steps; }
  bool Every(int64_t period) const { return IsLast() || (period > 0 && step_ % period == 0); }
  v1::TrainerReport NewReport() const;

  Channel& channel_;
  Setup& setup_;
  Transport& transport_;
  const Logger log_;
  RealFileSystem files_;
  std::unique_ptr<Engine> engine_;
  int64_t step_ = 0;            // the one that is running, or the last one
  int64_t dropped_before_ = 0;  // messages, at the step before
  bool save_failed_ = false;    // the save before; of the thread that saves
  Buffer copy_;                 // of the states, while they are written
  CheckpointWriter writer_;
  BackgroundSaver saver_;  // last: its end waits for a save that uses the others
};

SampleReader ReaderOf(const DataSet& data) {
  return [&data](int64_t first, int64_t count, std::span<int32_t> inputs,
                 std::span<int32_t> targets) { return data.Read(first, count, inputs, targets); };
}

// Which samples the step consumed, in the order of the global batch.
void AddSampleIds(const Setup& setup, int64_t step, v1::StepReportProto& report) {
  const int64_t batch = setup.job.global_batch_size;
  for (int64_t i = 0; i < batch; ++i) {
    report.add_sample_ids(setup.train->NumberOf(setup.train->At((step - 1) * batch + i)));
  }
}

absl::Status Trainer::Run() {
  ASSIGN_OR_RETURN(engine_,
                   Engine::Make(setup_.plan, setup_.job,
                                {.rank = setup_.rank,
                                 .operation_timeout = setup_.operation_timeout,
                                 .check_finite_each_op = setup_.compute.check_finite,
                                 .make_unit = setup_.compute.make_unit},
                                *setup_.compute.device, *setup_.compute.kernels, transport_));
  RETURN_IF_ERROR(PrepareSaves());
  if (setup_.job.resume_if_found) RETURN_IF_ERROR(Resume());
  while (step_ < setup_.job.steps) {
    ++step_;
    RETURN_IF_ERROR(TrainStep());
  }
  return absl::OkStatus();
}

absl::Status Trainer::TrainStep() {
  ASSIGN_OR_RETURN(
      const StepReport report,
      engine_->Step(step_, ReaderOf(*setup_.train), Every(setup_.job.parameter_hash_every_steps)));
  std::optional<double> validation_loss;
  if (Every(setup_.job.validate_every_steps)) {
    ASSIGN_OR_RETURN(validation_loss, Validation());
  }
  RETURN_IF_ERROR(ReportStep(report, validation_loss));
  if (report.non_finite.found && setup_.job.on_non_finite == OnNonFinite::kStop) {
    return StopAtNonFinite(report, setup_.rank);
  }
  if (!setup_.job.checkpoint_directory.empty() && Every(setup_.job.checkpoint_every_steps)) {
    return SaveCheckpoint();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<double>> Trainer::Validation() {
  if (!setup_.validation) return std::nullopt;
  return engine_->Evaluate(setup_.job.validation_batches, ReaderOf(*setup_.validation));
}

v1::TrainerReport Trainer::NewReport() const {
  v1::TrainerReport report;
  report.set_job_id(setup_.job_id);
  report.set_epoch(setup_.epoch);
  report.set_rank(setup_.rank);
  return report;
}

absl::Status Trainer::ReportStep(const StepReport& report, std::optional<double> validation_loss) {
  v1::TrainerReport message = NewReport();
  *message.mutable_step() =
      EncodeStep(report, setup_.epoch, validation_loss, *setup_.compute.device);
  const int64_t dropped = transport_.counters().messages_dropped;
  message.mutable_step()->set_messages_dropped(dropped - std::exchange(dropped_before_, dropped));
  if (setup_.rank == 0) {
    if (setup_.job.write_sample_ids) AddSampleIds(setup_, step_, *message.mutable_step());
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
absl::Status Trainer::PrepareSaves() {
  const JobSpec& job = setup_.job;
  if (job.checkpoint_directory.empty() || job.checkpoint_every_steps <= 0) return absl::OkStatus();
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
absl::Status Trainer::SaveCheckpoint() {
  const int64_t updates = engine_->updates();
  std::vector<UnitState> states = engine_->States();
  if (IsLast()) return saver_.SaveNow(step_, updates, std::move(states));
  const bool fits = copy_.bytes() >= BytesOfStates(states);
  const absl::Status status = fits
                                  ? saver_.Start(step_, updates, std::move(states),
                                                 {copy_.data(), static_cast<size_t>(copy_.bytes())})
                                  : saver_.SaveNow(step_, updates, std::move(states));
  return IsConsequence(status) ? status : absl::OkStatus();
}

// On the thread that wrote it.
void Trainer::ReportSave(const SaveReport& save) {
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

void Trainer::ReportFailedSave(const SaveReport& save, bool failed_before) {
  const absl::Status& status = save.result.status();
  if (IsConsequence(status) || save.step == setup_.job.steps) return;  // it ends the run
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

absl::Status Trainer::Resume() {
  ASSIGN_OR_RETURN(const std::optional<ResumePoint> point,
                   FindResumePoint(setup_.job, setup_.train_identity, files_, transport_,
                                   setup_.operation_timeout));
  if (!point) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StateSource source,
                   OpenStateSource(files_, point->folder, setup_.job.model));
  RETURN_IF_ERROR(engine_->Restore(point->state.updates, source));
  step_ = point->state.step;
  if (setup_.rank != 0) return absl::OkStatus();
  const std::string text = DescribeResume(*point);
  log_.Info(text);
  v1::TrainerReport message = NewReport();
  message.mutable_notice()->set_reason("RESUMED");
  message.mutable_notice()->set_message(text);
  message.mutable_notice()->set_step(step_);
  return channel_.Write(message);
}

// Reads the channel while the engine runs: an abort, or the daemon's end, aborts the transport, and
// with it every wait of the engine.
class AbortListener {
 public:
  AbortListener(Channel& channel, Transport& transport)
      : channel_(channel), transport_(transport), thread_([this] { Listen(); }) {}
  ~AbortListener() {
    finished_ = true;
    channel_.StopReading();
    thread_.join();
  }

 private:
  void Listen() {
    v1::CoordinatorMessage message;
    while (channel_.Read(message).ok()) {
      if (message.has_abort()) transport_.Abort(absl::AbortedError(message.abort().message()));
    }
    if (!finished_) transport_.Abort(absl::AbortedError("the worker daemon is gone"));
  }

  Channel& channel_;
  Transport& transport_;
  std::atomic<bool> finished_ = false;
  std::thread thread_;
};

absl::Status SendReady(Channel& channel, const Setup& setup, const ComputeRates& rates) {
  v1::TrainerReport report;
  report.set_job_id(setup.job_id);
  report.set_epoch(setup.epoch);
  report.set_rank(setup.rank);
  report.mutable_ready()->set_address(setup.endpoint->address());
  report.mutable_ready()->set_transport_version(setup.endpoint->version());
  report.mutable_ready()->set_peak_flops(FlopsOf(rates, setup.plan.precision));
  return channel.Write(report);
}

absl::StatusOr<v1::Start> AwaitStart(Channel& channel) {
  v1::CoordinatorMessage message;
  while (true) {
    RETURN_IF_ERROR(channel.Read(message));
    if (message.has_abort()) return absl::AbortedError(message.abort().message());
    if (message.has_start()) return message.start();
  }
}

// From a checked setup to the last step; `step` follows the run for the failure's report.
absl::Status Train(Channel& channel, Setup& setup, const ComputeRates& rates, const Logger& log,
                   int64_t& step) {
  RETURN_IF_ERROR(SendReady(channel, setup, rates));
  ASSIGN_OR_RETURN(const v1::Start start, AwaitStart(channel));
  ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                   setup.endpoint->Connect(
                       {start.addresses().begin(), start.addresses().end()},
                       {start.transport_versions().begin(), start.transport_versions().end()}));
  AbortListener listener(channel, *transport);
  Trainer trainer(channel, setup, *transport, log);
  absl::Status status = trainer.Run();
  step = trainer.step();
  return status;
}

}  // namespace

absl::Status RunTrainer(Channel& channel, const TrainerOptions& options, Logger log) {
  v1::CoordinatorMessage message;
  RETURN_IF_ERROR(channel.Read(message));
  if (!message.has_configure())
    return absl::InternalError("the first message to a trainer must configure it");
  const v1::Configure& configure = message.configure();
  int64_t step = 0;
  absl::Status status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(Setup setup, MakeSetup(configure, options));
    return Train(channel, setup, options.rates, log.With("rank", setup.rank), step);
  }();
  if (status.ok()) return status;
  v1::TrainerReport report;
  report.set_job_id(configure.job_id());
  report.set_epoch(configure.epoch());
  report.set_rank(configure.rank());
  *report.mutable_failed() = EncodeFailure(status, step);
  // The daemon reports our exit whether or not it could be told why.
  channel.Write(report).IgnoreError();
  return status;
}

}  // namespace esteira
