#include "coordinator/job/job_messages.h"

#include "common/plan/plan_codec.h"
#include "common/rpc/timestamp.h"
#include "esteira/v1/cluster.pb.h"
#include "esteira/v1/plan.pb.h"

namespace esteira {
namespace {

// The states have the same order on the wire, after UNSPECIFIED.
v1::JobState EncodeState(JobState state) {
  return static_cast<v1::JobState>(static_cast<int>(state) + 1);
}
JobState DecodeState(v1::JobState state) {
  return static_cast<JobState>(static_cast<int>(state) - 1);
}
static_assert(static_cast<int>(JobState::kQueued) + 1 == v1::QUEUED);
static_assert(static_cast<int>(JobState::kCancelled) + 1 == v1::CANCELLED);

void EncodePlanSummary(const PlanSummary& plan, v1::Job& message) {
  EncodeLayout(plan.layout, *message.mutable_layout());
  EncodePrediction(plan.prediction, *message.mutable_prediction());
  message.set_plan_digest(plan.digest);
}

PlanSummary DecodePlanSummary(const v1::Job& message) {
  return {DecodeLayout(message.layout()), DecodePrediction(message.prediction()),
          message.plan_digest()};
}

}  // namespace

v1::JobTransition EncodeTransition(const JobTransition& transition) {
  v1::JobTransition message;
  message.set_state(EncodeState(transition.state));
  message.set_reason(transition.reason);
  message.set_message(transition.message);
  *message.mutable_time() = EncodeTime(transition.time);
  return message;
}

JobTransition DecodeTransition(const v1::JobTransition& message) {
  return {DecodeState(message.state()), message.reason(), message.message(),
          DecodeTime(message.time())};
}

v1::FailureReport EncodeFailure(const FailureRecord& failure) {
  v1::FailureReport message;
  message.set_worker(failure.worker);
  message.set_rank(failure.rank);
  message.set_epoch(failure.epoch);
  message.set_step(failure.step);
  message.set_cause(failure.cause);
  message.set_consequence(failure.consequence);
  *message.mutable_time() = EncodeTime(failure.time);
  return message;
}

FailureRecord DecodeFailure(const v1::FailureReport& message) {
  return {message.worker(), message.rank(),        message.epoch(),           message.step(),
          message.cause(),  message.consequence(), DecodeTime(message.time())};
}

v1::Job EncodeJobSummary(const Job& job) {
  v1::Job message;
  message.set_id(job.id);
  message.set_state(EncodeState(job.state));
  message.set_reason(job.reason);
  message.set_message(job.message);
  message.set_epoch(job.epoch);
  message.set_priority(job.priority);
  *message.mutable_submit_time() = EncodeTime(job.submit_time);
  if (job.start_time) *message.mutable_start_time() = EncodeTime(*job.start_time);
  if (job.end_time) *message.mutable_end_time() = EncodeTime(*job.end_time);
  message.set_step(job.step);
  message.set_loss(job.loss);
  message.set_validation_loss(job.validation_loss);
  for (const std::string& worker : job.workers) message.add_workers(worker);
  if (job.plan) EncodePlanSummary(*job.plan, message);
  message.set_request_id(job.request_id);
  return message;
}

v1::Job EncodeJob(const Job& job) {
  v1::Job message = EncodeJobSummary(job);
  message.mutable_spec()->ParseFromString(job.spec_bytes);
  for (const JobTransition& transition : job.transitions) {
    *message.add_transitions() = EncodeTransition(transition);
  }
  for (const FailureRecord& failure : job.failures) {
    *message.add_failures() = EncodeFailure(failure);
  }
  return message;
}

void DecodeJobSummary(const v1::Job& message, Job& job) {
  job.id = message.id();
  job.state = DecodeState(message.state());
  job.reason = message.reason();
  job.message = message.message();
  job.epoch = message.epoch();
  job.priority = message.priority();
  job.submit_time = DecodeTime(message.submit_time());
  if (message.has_start_time()) job.start_time = DecodeTime(message.start_time());
  if (message.has_end_time()) job.end_time = DecodeTime(message.end_time());
  job.step = message.step();
  job.loss = message.loss();
  job.validation_loss = message.validation_loss();
  job.workers.assign(message.workers().begin(), message.workers().end());
  if (message.has_layout()) job.plan = DecodePlanSummary(message);
  job.request_id = message.request_id();
}

v1::StepRecord EncodeStepRecord(const StepRecord& record) {
  v1::StepRecord message;
  message.set_step(record.step);
  message.set_loss(record.loss);
  message.set_gradient_norm(record.gradient_norm);
  message.set_learning_rate(record.learning_rate);
  message.set_tokens(record.tokens);
  message.set_valid_tokens(record.valid_tokens);
  message.set_skipped(record.skipped);
  message.set_skip_cause(record.skip_cause);
  message.set_step_seconds(record.step_seconds);
  message.set_tokens_per_second(record.tokens_per_second);
  message.set_model_flops_utilization(record.model_flops_utilization);
  message.set_bubble_ratio(record.bubble_ratio);
  message.set_exposed_communication_ratio(record.exposed_communication_ratio);
  message.set_parameter_hash(record.parameter_hash);
  message.set_epoch(record.epoch);
  message.set_loss_bits(BitsOf(record.loss));
  message.set_gradient_norm_bits(BitsOf(record.gradient_norm));
  if (record.validation_loss) message.set_validation_loss(*record.validation_loss);
  for (const MemoryUse& memory : record.memory) EncodeMemory(memory, *message.add_memory());
  for (int op = 0; op < kNumOps; ++op) {
    const double seconds = record.op_seconds[static_cast<size_t>(op)];
    if (seconds > 0) (*message.mutable_op_seconds())[OpName(static_cast<Op>(op))] = seconds;
  }
  message.set_peak_bytes(record.peak_bytes);
  EncodeMemory(record.peak_memory, *message.mutable_peak_memory());
  message.set_predicted_step_seconds(record.predicted_step_seconds);
  message.set_predicted_bubble_ratio(record.predicted_bubble_ratio);
  message.set_predicted_peak_bytes(record.predicted_peak_bytes);
  return message;
}

StepRecord DecodeStepRecord(const v1::StepRecord& message) {
  StepRecord record;
  record.step = message.step();
  record.loss = message.loss();
  record.gradient_norm = message.gradient_norm();
  record.learning_rate = message.learning_rate();
  record.tokens = message.tokens();
  record.valid_tokens = message.valid_tokens();
  record.skipped = message.skipped();
  record.skip_cause = message.skip_cause();
  record.step_seconds = message.step_seconds();
  record.tokens_per_second = message.tokens_per_second();
  record.model_flops_utilization = message.model_flops_utilization();
  record.bubble_ratio = message.bubble_ratio();
  record.exposed_communication_ratio = message.exposed_communication_ratio();
  record.parameter_hash = message.parameter_hash();
  record.epoch = message.epoch();
  if (message.has_validation_loss()) record.validation_loss = message.validation_loss();
  for (const v1::MemoryProto& memory : message.memory()) {
    record.memory.push_back(DecodeMemory(memory));
  }
  for (int op = 0; op < kNumOps; ++op) {
    const auto seconds = message.op_seconds().find(OpName(static_cast<Op>(op)));
    if (seconds == message.op_seconds().end()) continue;
    record.op_seconds[static_cast<size_t>(op)] = seconds->second;
  }
  record.peak_bytes = message.peak_bytes();
  record.peak_memory = DecodeMemory(message.peak_memory());
  record.predicted_step_seconds = message.predicted_step_seconds();
  record.predicted_bubble_ratio = message.predicted_bubble_ratio();
  record.predicted_peak_bytes = message.predicted_peak_bytes();
  return record;
}

v1::CheckpointInfo EncodeCheckpoint(const CheckpointRecord& checkpoint) {
  v1::CheckpointInfo message;
  message.set_path(checkpoint.path);
  message.set_step(checkpoint.step);
  message.set_bytes(checkpoint.bytes);
  *message.mutable_time() = EncodeTime(checkpoint.time);
  message.set_save_seconds(checkpoint.save_seconds);
  message.set_stall_seconds(checkpoint.stall_seconds);
  return message;
}

CheckpointRecord DecodeCheckpoint(const v1::CheckpointInfo& message) {
  return {message.path(),         message.step(),
          message.bytes(),        DecodeTime(message.time()),
          message.save_seconds(), message.stall_seconds()};
}

}  // namespace esteira
