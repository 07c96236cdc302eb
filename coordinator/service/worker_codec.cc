#include "coordinator/service/worker_codec.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/plan_codec.h"
#include "common/rpc/timestamp.h"
#include "coordinator/job/job_messages.h"
#include "esteira/v1/worker.pb.h"

namespace esteira {
namespace {

// What is no rate counts as not known.
double Rate(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

RegisterMessage DecodeRegister(const v1::WorkerMessage& envelope) {
  const v1::Register& message = envelope.register_();
  RegisterMessage result;
  WorkerDescription& worker = result.description;
  worker.id = envelope.worker_id();
  worker.incarnation = envelope.incarnation();
  worker.host = message.host();
  worker.device = message.device();
  worker.memory_bytes = message.memory_bytes();
  worker.threads = message.threads();
  worker.flops_fp32 = Rate(message.flops_fp32());
  worker.flops_bf16 = Rate(message.flops_bf16());
  worker.memory_bytes_per_second = Rate(message.memory_bytes_per_second());
  worker.pass_seconds = Rate(message.pass_seconds());
  worker.version = message.version();
  if (!message.job_id().empty()) {
    result.running = Assignment{message.job_id(), message.epoch(), message.rank()};
  }
  return result;
}

StepPart DecodeStep(const v1::StepReportProto& message) {
  StepPart part;
  part.record = DecodeStepRecord(message.record());
  if (message.has_parameter_hash()) part.hash_part = message.parameter_hash_part();
  if (message.has_memory()) part.memory = DecodeMemory(message.memory());
  part.sample_ids.assign(message.sample_ids().begin(), message.sample_ids().end());
  return part;
}

LogReport DecodeLog(const v1::LogLine& message) {
  return {message.has_time() ? DecodeTime(message.time()) : absl::Now(), message.text()};
}

ExitReport DecodeExit(const v1::Exited& message) {
  return {message.exit_code(), message.signal(), message.out_of_memory(), message.message()};
}

FailedReport DecodeFailed(const v1::Failed& message) {
  return {static_cast<absl::StatusCode>(message.code()), message.message(), message.consequence(),
          message.step()};
}

CheckpointRecord DecodeCheckpointReport(const v1::CheckpointInfo& message) {
  CheckpointRecord checkpoint = DecodeCheckpoint(message);
  if (!message.has_time()) checkpoint.time = absl::Now();
  return checkpoint;
}

NoticeReport DecodeNotice(const v1::Notice& message) {
  NoticeReport notice{message.reason(), message.message(), std::nullopt};
  if (message.has_step()) notice.step = message.step();
  return notice;
}

absl::StatusOr<TrainerReport> DecodeReport(const v1::TrainerReport& message) {
  TrainerReport report;
  report.place = Assignment{message.job_id(), message.epoch(), message.rank()};
  switch (message.body_case()) {
    case v1::TrainerReport::kReady:
      report.body = ReadyReport{message.ready().address(), message.ready().transport_version(),
                                message.ready().peak_flops()};
      return report;
    case v1::TrainerReport::kStep:
      if (message.step().record().step() < 1) {
        return absl::InvalidArgumentError("a step report without a step");
      }
      report.body = DecodeStep(message.step());
      return report;
    case v1::TrainerReport::kLog: report.body = DecodeLog(message.log()); return report;
    case v1::TrainerReport::kCheckpoint:
      report.body = DecodeCheckpointReport(message.checkpoint());
      return report;
    case v1::TrainerReport::kNotice: report.body = DecodeNotice(message.notice()); return report;
    case v1::TrainerReport::kCheckpointSave:
      return absl::InvalidArgumentError("a report of a save, which is the daemon's own");
    case v1::TrainerReport::kExited: report.body = DecodeExit(message.exited()); return report;
    case v1::TrainerReport::kFailed: report.body = DecodeFailed(message.failed()); return report;
    case v1::TrainerReport::BODY_NOT_SET: break;
  }
  return absl::InvalidArgumentError("a trainer report without a body that this release knows");
}

struct CommandEncoder {
  v1::CoordinatorMessage& message;

  void operator()(const RegisteredCommand& command) const {
    message.mutable_registered()->set_lease_ms(absl::ToInt64Milliseconds(command.lease));
    message.mutable_registered()->set_heartbeat_ms(absl::ToInt64Milliseconds(command.heartbeat));
  }
  void operator()(const ConfigureCommand& command) const {
    v1::Configure& configure = *message.mutable_configure();
    configure.set_job_id(command.place.job_id);
    configure.set_epoch(command.place.epoch);
    configure.set_rank(command.place.rank);
    // It was written by this process.
    CHECK(configure.mutable_spec()->ParseFromString(*command.spec_bytes));
    configure.set_plan(*command.plan_bytes);
    configure.set_operation_timeout_ms(absl::ToInt64Milliseconds(command.operation_timeout));
  }
  void operator()(const StartCommand& command) const {
    v1::Start& start = *message.mutable_start();
    start.set_job_id(command.job_id);
    start.set_epoch(command.epoch);
    for (const std::string& address : command.addresses) start.add_addresses(address);
    for (const std::string& version : command.transport_versions) {
      start.add_transport_versions(version);
    }
  }
  void operator()(const AbortCommand& command) const {
    v1::Abort& abort = *message.mutable_abort();
    abort.set_job_id(command.job_id);
    abort.set_epoch(command.epoch);
    abort.set_message(command.message);
  }
  void operator()(const RefusedCommand& command) const {
    message.mutable_refused()->set_message(command.message);
  }
  void operator()(const AcknowledgedCommand& command) const {
    message.mutable_acknowledged()->set_sequence(command.sequence);
  }
};

}  // namespace

absl::StatusOr<WorkerMessage> DecodeWorkerMessage(const v1::WorkerMessage& message) {
  if (message.worker_id().empty())
    return absl::InvalidArgumentError("a message without a worker_id");
  WorkerMessage result;
  result.worker_id = message.worker_id();
  result.incarnation = message.incarnation();
  result.sequence = message.sequence();
  switch (message.body_case()) {
    case v1::WorkerMessage::kRegister: result.body = DecodeRegister(message); return result;
    case v1::WorkerMessage::kHeartbeat: result.body = HeartbeatMessage{}; return result;
    case v1::WorkerMessage::kReport: {
      ASSIGN_OR_RETURN(result.body, DecodeReport(message.report()));
      return result;
    }
    case v1::WorkerMessage::BODY_NOT_SET: break;
  }
  return absl::InvalidArgumentError("a message without a body that this release knows");
}

v1::CoordinatorMessage EncodeWorkerCommand(const WorkerCommand& command) {
  v1::CoordinatorMessage message;
  std::visit(CommandEncoder{message}, command);
  return message;
}

v1::Worker EncodeWorker(const WorkerRecord& worker) {
  v1::Worker message;
  message.set_id(worker.description.id);
  message.set_incarnation(worker.description.incarnation);
  switch (worker.state()) {
    case WorkerState::kIdle: message.set_state(v1::IDLE); break;
    case WorkerState::kBusy: message.set_state(v1::BUSY); break;
    case WorkerState::kLost: message.set_state(v1::LOST); break;
  }
  message.set_host(worker.description.host);
  message.set_device(worker.description.device);
  message.set_memory_bytes(worker.description.memory_bytes);
  message.set_threads(worker.description.threads);
  if (worker.assignment) {
    message.set_job(worker.assignment->job_id);
    message.set_rank(worker.assignment->rank);
  }
  *message.mutable_last_heartbeat_time() = EncodeTime(worker.last_seen);
  message.set_flops_fp32(worker.description.flops_fp32);
  message.set_flops_bf16(worker.description.flops_bf16);
  message.set_memory_bytes_per_second(worker.description.memory_bytes_per_second);
  message.set_pass_seconds(worker.description.pass_seconds);
  message.set_version(worker.description.version);
  message.set_message(worker.message);
  return message;
}

}  // namespace esteira
