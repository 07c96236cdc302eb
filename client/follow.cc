#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/render.h"
#include "client/server.h"

namespace esteira {
namespace {

constexpr absl::Duration kLinePeriod = absl::Seconds(1);

// What Ctrl-C prints; a signal handler can reach nothing else.
char detach_message[512];

void Detach(int) {
  const ssize_t ignored = write(STDERR_FILENO, detach_message, std::strlen(detach_message));
  _exit(ignored < 0 ? kExitJobFailed : kExitOk);
}

void InstallDetach(const std::string& job) {
  absl::SNPrintF(detach_message, sizeof detach_message,
                 "\nDetached: job %s goes on. See it again with `esteira steps %s -f`, end it with "
                 "`esteira cancel "
                 "%s`.\n",
                 job, job, job);
  signal(SIGINT, Detach);
}

int TerminalWidth(int fd) {
  winsize size;
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A bar that is drawn over itself on a terminal, and at most one line a second elsewhere.
class ProgressView {
 public:
  ProgressView(std::ostream& out, int fd) : out_(out), fd_(fd), terminal_(isatty(fd) != 0) {}

  void Show(const v1::StepRecord& step, int64_t steps) {
    const bool last = step.step() == steps;
    if (step.has_validation_loss() || step.skipped()) {
      Line(step.skipped() ? absl::StrCat("step ", step.step(), " skipped: ", step.skip_cause())
                          : absl::StrFormat("step %d validation loss %.4f", step.step(),
                                            step.validation_loss()));
    }
    if (terminal_) {
      out_ << "\r\033[K" << ProgressLine(step, steps, TerminalWidth(fd_) - 1) << std::flush;
      drawn_ = true;
    } else if (last || absl::Now() - last_line_ >= kLinePeriod) {
      out_ << ProgressLine(step, steps, 120) << std::endl;
      last_line_ = absl::Now();
    }
  }

  void Line(const std::string& text) {
    if (drawn_) out_ << "\r\033[K";
    out_ << text << std::endl;
    drawn_ = false;
  }

  void Finish() {
    if (drawn_) out_ << std::endl;
    drawn_ = false;
  }

 private:
  std::ostream& out_;
  const int fd_;
  const bool terminal_;
  bool drawn_ = false;
  absl::Time last_line_ = absl::InfinitePast();
};

void ShowTransition(const v1::Job& job, ProgressView& view) {
  view.Line(absl::StrCat(StateName(job.state()), job.message().empty() ? "" : ": ", job.message()));
}

}  // namespace

ExitCode FollowJob(const std::string& server_flag, const std::string& job_id, ProgressTo to) {
  const absl::StatusOr<std::string> server = ResolveServer(server_flag);
  if (!server.ok()) return ReportError(server.status());
  InstallDetach(job_id);
  ProgressView view = to == ProgressTo::kStdout ? ProgressView(std::cout, STDOUT_FILENO)
                                                : ProgressView(std::cerr, STDERR_FILENO);
  v1::Job job;
  const absl::Status status =
      Connection(*server).Watch(job_id, absl::InfiniteFuture(), [&](const v1::JobEvent& event) {
        if (event.has_job()) {
          const bool changed =
              event.job().state() != job.state() || event.job().message() != job.message();
          job = event.job();
          if (changed) ShowTransition(job, view);
        }
        if (event.has_step()) view.Show(event.step(), job.spec().training().steps());
        return true;
      });
  view.Finish();
  signal(SIGINT, SIG_DFL);
  if (!status.ok()) return ReportError(status);
  return job.state() == v1::SUCCEEDED ? kExitOk : kExitJobFailed;
}

}  // namespace esteira
