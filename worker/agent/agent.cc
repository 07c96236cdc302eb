#include "worker/agent/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/timestamp.h"

namespace esteira {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Seconds(2);

StepObservation Observe(const v1::StepReportProto& step) {
  const v1::StepRecord& record = step.record();
  return {.loss = record.loss(),
          .tokens = record.tokens(),
          .duration = absl::Seconds(record.step_seconds()),
          .bubble_ratio = record.bubble_ratio(),
          .exposed_communication_ratio = record.exposed_communication_ratio(),
          .transport = "ucx",
          .bytes_moved = {step.bytes_moved().begin(), step.bytes_moved().end()},
          .messages_dropped = step.messages_dropped()};
}

ExitCause CauseOf(const v1::Exited& exited) {
  if (exited.out_of_memory()) return ExitCause::kOutOfMemory;
  if (exited.signal() != 0) return ExitCause::kSignal;
  return exited.exit_code() == 0 ? ExitCause::kDone : ExitCause::kError;
}

}  // namespace

Agent::Agent(AgentOptions options, WorkerMetrics& metrics, Logger log)
    : options_(std::move(options)), metrics_(metrics), log_(std::move(log)) {
  metrics_.SetRates(options_.rates.flops_fp32, options_.rates.flops_bf16,
                    options_.rates.memory_bytes_per_second);
}

Agent::~Agent() = default;

absl::Status Agent::Run() {
  orphan_time_ = absl::Now() + options_.orphan_timeout;
  session_ = std::make_unique<Session>(
      options_.session, Registration(),
      Session::Callbacks{
          .on_message =
              [this](v1::CoordinatorMessage message) {
                Post([this, message = std::move(message)] { OnMessage(message); });
              },
          .on_connection =
              [this](bool connected) { Post([this, connected] { OnConnection(connected); }); }},
      log_);
  while (!stopping_ || trainer_) {
    if (stopping_)
      trainer_->Kill();  // its exit ends the loop, and is reported before the stream closes
    RunEvents();
    OnTimer(absl::Now());
  }
  session_->Flush(kFlushTimeout);
  session_ = nullptr;
  return refusal_;
}

void Agent::RunEvents() {
  std::deque<Event> events;
  {
    absl::MutexLock lock(&mutex_);
    const auto has_events = [this]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
    mutex_.AwaitWithDeadline(absl::Condition(&has_events), NextTimer());
    events.swap(events_);
  }
  for (Event& event : events) event();
}

void Agent::Stop() {
  Post([this] { stopping_ = true; });
}

void Agent::Post(Event event) {
  absl::MutexLock lock(&mutex_);
  events_.push_back(std::move(event));
}

absl::Time Agent::NextTimer() const {
  return trainer_ ? std::min(kill_time_, orphan_time_) : absl::InfiniteFuture();
}

void Agent::OnTimer(absl::Time now) {
  if (!trainer_) return;
  if (now >= orphan_time_) {
    log_.With("job", job_id_).Error("no coordinator for too long: killing the trainer");
    orphan_time_ = absl::InfiniteFuture();
    trainer_->Kill();
  }
  if (now >= kill_time_) {
    log_.With("job", job_id_).Warning("the trainer did not leave after an abort: killing it");
    kill_time_ = absl::InfiniteFuture();
    trainer_->Kill();
  }
}

void Agent::OnConnection(bool connected) {
  metrics_.SetConnected(connected);
  orphan_time_ = connected ? absl::InfiniteFuture() : absl::Now() + options_.orphan_timeout;
  if (connected) log_.With("coordinator", options_.session.coordinator).Info("registered");
}

bool Agent::IsCurrent(const std::string& job_id, int64_t epoch) const {
  return trainer_ != nullptr && job_id == job_id_ && epoch == epoch_;
}

void Agent::OnMessage(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kConfigure: return OnConfigure(message);
    case v1::CoordinatorMessage::kStart:
      if (IsCurrent(message.start().job_id(), message.start().epoch())) trainer_->Send(message);
      return;
    case v1::CoordinatorMessage::kAbort: return OnAbort(message.abort());
    case v1::CoordinatorMessage::kRefused:
      refusal_ = absl::FailedPreconditionError(
          absl::StrCat("the coordinator refused this worker: ", message.refused().message()));
      stopping_ = true;
      return;
    case v1::CoordinatorMessage::kRegistered:
    case v1::CoordinatorMessage::kAcknowledged:
    case v1::CoordinatorMessage::BODY_NOT_SET: return;
  }
}

void Agent::OnConfigure(const v1::CoordinatorMessage& message) {
  if (stopping_) return;
  if (!trainer_) return StartTrainer(message);
  // The coordinator gave this worker to a new epoch: the old one is over, whatever it does.
  waiting_configure_ = std::make_unique<v1::CoordinatorMessage>(message);
  trainer_->Kill();
}

void Agent::StartTrainer(const v1::CoordinatorMessage& message) {
  const v1::Configure& configure = message.configure();
  job_id_ = configure.job_id();
  epoch_ = configure.epoch();
  rank_ = configure.rank();
  kill_time_ = absl::InfiniteFuture();
  const int64_t life = ++life_;
  auto trainer = TrainerProcess::Spawn(
      options_.trainer_command,
      {.on_report =
           [this, life](v1::TrainerReport report) {
             Post([this, life, report = std::move(report)] { OnReport(life, report); });
           },
       .on_output = [this,
                     place = NewReport()](std::string line) { OnOutput(place, std::move(line)); },
       .on_exit =
           [this, life](v1::Exited exited) {
             Post([this, life, exited = std::move(exited)] { OnExit(life, exited); });
           }});
  const Logger log = log_.With("job", job_id_).With("epoch", epoch_).With("rank", rank_);
  if (!trainer.ok()) {
    log.With("cause", trainer.status().message()).Error("cannot start a trainer");
    v1::TrainerReport report = NewReport();
    report.mutable_exited()->set_exit_code(1);
    report.mutable_exited()->set_message(std::string(trainer.status().message()));
    session_->Report(std::move(report));
    return;
  }
  trainer_ = *std::move(trainer);
  metrics_.ObserveStart();
  log.With("pid", trainer_->pid()).Info("trainer started");
  session_->SetRegistration(Registration());
  trainer_->Send(message);
}

void Agent::OnAbort(const v1::Abort& abort) {
  int32_t rank = rank_;
  if (waiting_configure_ && waiting_configure_->configure().job_id() == abort.job_id() &&
      waiting_configure_->configure().epoch() == abort.epoch()) {
    rank = waiting_configure_->configure().rank();
    waiting_configure_ = nullptr;
  }
  if (!IsCurrent(abort.job_id(), abort.epoch())) {
    // The trainer is gone already, or never was: say so, so that the coordinator need not wait.
    v1::TrainerReport report;
    report.set_job_id(abort.job_id());
    report.set_epoch(abort.epoch());
    report.set_rank(rank);
    report.mutable_exited()->set_message("no trainer of this epoch runs here");
    session_->Report(std::move(report));
    return;
  }
  v1::CoordinatorMessage message;
  *message.mutable_abort() = abort;
  trainer_->Send(message);
  kill_time_ = std::min(kill_time_, absl::Now() + options_.abort_grace);
}

v1::TrainerReport Agent::NewReport() const {
  v1::TrainerReport report;
  report.set_job_id(job_id_);
  report.set_epoch(epoch_);
  report.set_rank(rank_);
  return report;
}

void Agent::OnReport(int64_t life, v1::TrainerReport report) {
  if (life != life_) return;
  if (report.has_step()) metrics_.ObserveStep(Observe(report.step()));
  if (report.has_checkpoint_save()) {
    const v1::CheckpointSave& save = report.checkpoint_save();
    metrics_.ObserveCheckpoint(save.failed(), absl::Seconds(save.seconds()),
                               absl::Seconds(save.stall_seconds()));
    return;
  }
  session_->Report(std::move(report));
}

void Agent::OnOutput(v1::TrainerReport report, std::string line) {
  v1::LogLine& log = *report.mutable_log();
  *log.mutable_time() = EncodeTime(absl::Now());
  log.set_rank(report.rank());
  log.set_worker(options_.session.worker_id);
  log.set_text(std::move(line));
  if (!session_->Report(std::move(report))) metrics_.CountDroppedLine();
}

void Agent::OnExit(int64_t life, v1::Exited exited) {
  if (life != life_) return;
  trainer_ = nullptr;
  kill_time_ = absl::InfiniteFuture();
  metrics_.ObserveExit(CauseOf(exited));
  log_.With("job", job_id_).With("epoch", epoch_).With("rank", rank_).Info(exited.message());
  v1::TrainerReport report = NewReport();
  *report.mutable_exited() = std::move(exited);
  session_->SetRegistration(Registration());
  session_->Report(std::move(report));
  if (waiting_configure_ && !stopping_) StartTrainer(*std::exchange(waiting_configure_, nullptr));
}

v1::Register Agent::Registration() const {
  v1::Register registration;
  registration.set_host(options_.host);
  registration.set_device(options_.device);
  registration.set_memory_bytes(options_.memory_bytes);
  registration.set_threads(options_.threads);
  registration.set_flops_fp32(options_.rates.flops_fp32);
  registration.set_flops_bf16(options_.rates.flops_bf16);
  registration.set_memory_bytes_per_second(options_.rates.memory_bytes_per_second);
  registration.set_pass_seconds(options_.rates.pass_seconds);
  registration.set_version(options_.version);
  if (trainer_) {
    registration.set_job_id(job_id_);
    registration.set_epoch(epoch_);
    registration.set_rank(rank_);
  }
  return registration;
}

}  // namespace esteira
