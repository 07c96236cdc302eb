// fake_trainer MODE: speaks the trainer's side of the channel.
//   obedient  Ready after Configure; after Start, three steps; leaves with code 7 on Abort.
//   stubborn  Ready after Configure, and nothing else whatever it is told.
//   deaf      never reads.
// It dies with its daemon, and after two minutes in any case.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <string>

#include "esteira/v1/worker.pb.h"
#include "worker/trainer/channel.h"

namespace esteira {
namespace {

v1::TrainerReport ReportOf(const v1::Configure& configure) {
  v1::TrainerReport report;
  report.set_job_id(configure.job_id());
  report.set_epoch(configure.epoch());
  report.set_rank(configure.rank());
  return report;
}

void ReportSteps(Channel& channel, const v1::Configure& configure) {
  for (int step = 1; step <= 3; ++step) {
    v1::TrainerReport report = ReportOf(configure);
    report.mutable_step()->mutable_record()->set_step(step);
    report.mutable_step()->set_messages_dropped(step == 2 ? 5 : 0);
    channel.Write(report).IgnoreError();
  }
  v1::TrainerReport report = ReportOf(configure);
  report.mutable_checkpoint_save()->set_seconds(4);
  report.mutable_checkpoint_save()->set_stall_seconds(1);
  channel.Write(report).IgnoreError();
}

int Run(const std::string& mode) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(120);
  if (mode == "deaf") return pause();
  Channel channel(kChannelDescriptor);
  v1::CoordinatorMessage message;
  if (!channel.Read(message).ok() || !message.has_configure()) return 1;
  const v1::Configure configure = message.configure();
  v1::TrainerReport ready = ReportOf(configure);
  ready.mutable_ready()->set_address("address");
  if (!channel.Write(ready).ok()) return 2;
  if (mode == "stubborn") return pause();
  while (channel.Read(message).ok()) {
    if (message.has_start()) ReportSteps(channel, configure);
    if (message.has_abort()) return 7;
  }
  return 3;
}

}  // namespace
}  // namespace esteira

int main(int argc, char** argv) { return argc == 2 ? esteira::Run(argv[1]) : 4; }
