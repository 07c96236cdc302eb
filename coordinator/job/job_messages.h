// Between jobs and their wire form, which is also the form in which the store keeps them.
#pragma once

#include "absl/status/statusor.h"
#include "coordinator/job/job.h"
#include "coordinator/job/step_record.h"

namespace esteira::v1 {
class CheckpointInfo;
class FailureReport;
class Job;
class JobTransition;
class StepRecord;
}  // namespace esteira::v1

namespace esteira {

// With the spec, the transitions and the failures.
v1::Job EncodeJob(const Job& job);
// Without the spec, the transitions and the failures.
v1::Job EncodeJobSummary(const Job& job);
// Fills everything of `job` that EncodeJobSummary wrote.
void DecodeJobSummary(const v1::Job& message, Job& job);

v1::JobTransition EncodeTransition(const JobTransition& transition);
JobTransition DecodeTransition(const v1::JobTransition& message);
v1::FailureReport EncodeFailure(const FailureRecord& failure);
FailureRecord DecodeFailure(const v1::FailureReport& message);
v1::StepRecord EncodeStepRecord(const StepRecord& record);
StepRecord DecodeStepRecord(const v1::StepRecord& message);
v1::CheckpointInfo EncodeCheckpoint(const CheckpointRecord& checkpoint);
CheckpointRecord DecodeCheckpoint(const v1::CheckpointInfo& message);

}  // namespace esteira
