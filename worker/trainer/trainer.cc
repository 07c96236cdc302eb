#include "worker/trainer/trainer.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/trainer/reports.h"
#include "worker/trainer/setup.h"
#include "worker/trainer/training_run.h"

namespace esteira {
namespace {

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
  const int here = setup.endpoint->num_host_peers();
  log.With("over_shared_memory", here)
      .With("over_tcp", transport->size() - 1 - here)
      .Info("connected with the other ranks");
  AbortListener listener(channel, *transport);
  TrainingRun run(channel, setup, *transport, log);
  absl::Status status = run.Run();
  step = run.step();
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
