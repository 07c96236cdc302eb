#include "coordinator/service/job_streams.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/timestamp.h"
#include "coordinator/job/job_messages.h"

namespace esteira {
namespace {

constexpr int kStepsPerPage = 256;

std::optional<int> RankOf(const v1::ReadLogsRequest& request) {
  return request.has_rank() ? std::optional<int>(request.rank()) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<StepRecord>> StepPages::Next() {
  if (page_.empty()) {
    ASSIGN_OR_RETURN(std::vector<StepRecord> records,
                     store_.ListSteps(job_id_, next_step_, kStepsPerPage));
    page_.assign(std::make_move_iterator(records.begin()), std::make_move_iterator(records.end()));
  }
  if (page_.empty()) return std::optional<StepRecord>();
  std::optional<StepRecord> record = std::move(page_.front());
  page_.pop_front();
  next_step_ = record->step + 1;
  return record;
}

// The job is read before its steps, so that a job that is over has none that were not seen.
absl::StatusOr<Pulled> JobEventStream::Pull(v1::JobEvent& event) {
  if (ended_) return Pulled::kEnd;
  ASSIGN_OR_RETURN(const Job job, store_.Get(job_id_));
  if (!steps_) {
    steps_.emplace(store_, job_id_, job.step + 1);
  } else {
    ASSIGN_OR_RETURN(const std::optional<StepRecord> step, steps_->Next());
    if (step) *event.mutable_step() = EncodeStepRecord(*step);
  }
  *event.mutable_job() = EncodeJob(job);
  v1::Job settled = event.job();
  settled.clear_step();
  settled.clear_loss();
  settled.clear_validation_loss();
  std::string said = settled.SerializeAsString();
  if (!event.has_step()) {
    if (said == sent_) return Pulled::kNothing;
    sent_ = std::move(said);
    ended_ = IsTerminal(job.state);
  }
  event.set_revision(++revision_);
  return Pulled::kItem;
}

StepStream::StepStream(Controller& controller, JobStore& store, const v1::ReadStepsRequest& request)
    : JobStream(controller, store, request.id(), request.follow()),
      steps_(store, request.id(), request.first_step()) {}

absl::StatusOr<Pulled> StepStream::Pull(v1::StepRecord& record) {
  return PullNext<StepRecord>([&] { return steps_.Next(); },
                              [&](const StepRecord& step) { record = EncodeStepRecord(step); });
}

LogStream::LogStream(Controller& controller, JobStore& store, const DataDirectory& directory,
                     const v1::ReadLogsRequest& request)
    : JobStream(controller, store, request.id(), request.follow()),
      bad_tail_(request.tail() < 0),
      reader_(directory.LogFolder(request.id()), RankOf(request), request.tail()) {}

absl::StatusOr<Pulled> LogStream::Pull(v1::LogLine& line) {
  if (bad_tail_) return absl::InvalidArgumentError("tail: must not be negative");
  return PullNext<LogEntry>([&] { return reader_.Next(); },
                            [&](const LogEntry& entry) {
                              *line.mutable_time() = EncodeTime(entry.time);
                              line.set_rank(entry.rank);
                              line.set_worker(entry.worker);
                              line.set_text(entry.text);
                            });
}

}  // namespace esteira
