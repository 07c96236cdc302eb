// What users follow of a job. Each stream reads what is stored and is woken by the controller when
// there is more.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "coordinator/controller/controller.h"
#include "coordinator/job/log_reader.h"
#include "coordinator/service/pull_stream.h"
#include "esteira/v1/cluster.pb.h"

namespace esteira {

// A stream about one job that ends when the job is over and everything has been sent.
template <typename Response>
class JobStream : public PullStream<Response> {
 public:
  JobStream(Controller& controller, JobStore& store, std::string job_id, bool follow)
      : store_(store), job_id_(std::move(job_id)), follow_(follow), controller_(controller) {}

 protected:
  void OnBegin() override {
    std::weak_ptr<PullStream<Response>> weak = this->weak_from_this();
    watch_ = controller_.Watch(job_id_, [weak] {
      if (const auto stream = weak.lock()) stream->Wake();
    });
  }
  void OnEnd() override { controller_.Unwatch(watch_); }

  // The next item of `next`, or the end: at once, or when following at the end of the job. NotFound
  // without such a job.
  template <typename Item, typename NextItem, typename Encode>
  absl::StatusOr<Pulled> PullNext(const NextItem& next, const Encode& encode) {
    bool over = !follow_;
    for (int look = known_ ? 0 : 1; look < 2; ++look) {
      if (look == 1) {
        // Looked at before the items: what a job that is over has left behind is all there.
        const absl::StatusOr<Job> job = store_.Get(job_id_);
        if (!job.ok()) return job.status();
        known_ = true;
        over = over || IsTerminal(job->state);
      }
      const absl::StatusOr<std::optional<Item>> item = next();
      if (!item.ok()) return item.status();
      if (item->has_value()) {
        encode(**item);
        return Pulled::kItem;
      }
    }
    return over ? Pulled::kEnd : Pulled::kNothing;
  }

  JobStore& store_;
  const std::string job_id_;

 private:
  const bool follow_;
  bool known_ = false;  // the job exists
  Controller& controller_;
  int64_t watch_ = 0;
};

// Step records, read in pages from the store.
class StepPages {
 public:
  StepPages(JobStore& store, std::string job_id, int64_t next_step)
      : store_(store), job_id_(std::move(job_id)), next_step_(next_step) {}
  absl::StatusOr<std::optional<StepRecord>> Next();

 private:
  JobStore& store_;
  const std::string job_id_;
  int64_t next_step_;
  std::deque<StepRecord> page_;
};

class JobEventStream : public JobStream<v1::JobEvent> {
 public:
  JobEventStream(Controller& controller, JobStore& store, std::string job_id)
      : JobStream(controller, store, std::move(job_id), /*follow=*/true) {}

 protected:
  absl::StatusOr<Pulled> Pull(v1::JobEvent& event) override;

 private:
  int64_t revision_ = 0;
  std::string sent_;  // what the last event said of the job, but for its progress
  bool ended_ = false;
  std::optional<StepPages> steps_;
};

class StepStream : public JobStream<v1::StepRecord> {
 public:
  StepStream(Controller& controller, JobStore& store, const v1::ReadStepsRequest& request);

 protected:
  absl::StatusOr<Pulled> Pull(v1::StepRecord& record) override;

 private:
  StepPages steps_;
};

class LogStream : public JobStream<v1::LogLine> {
 public:
  LogStream(Controller& controller, JobStore& store, const DataDirectory& directory,
            const v1::ReadLogsRequest& request);

 protected:
  absl::StatusOr<Pulled> Pull(v1::LogLine& line) override;

 private:
  const bool bad_tail_;
  LogReader reader_;
};

}  // namespace esteira
