#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/render.h"
#include "client/server.h"
#include "common/rpc/json.h"

namespace esteira {
namespace {

void PrintStepHeader() {
  std::cout << absl::StrFormat("%6s  %10s  %9s  %9s  %9s  %10s  %6s  %6s  %6s  %s\n", "STEP",
                               "LOSS", "NORM", "LR", "SECONDS", "TOKENS/S", "MFU", "BUBBLE", "COMM",
                               "NOTE");
}

void PrintStepRow(const v1::StepRecord& step) {
  std::string note;
  if (step.has_validation_loss())
    note = absl::StrFormat("validation loss %.4f", step.validation_loss());
  if (step.skipped()) note = absl::StrCat("skipped: ", step.skip_cause());
  if (!step.parameter_hash().empty())
    absl::StrAppend(&note, note.empty() ? "" : ", ", step.parameter_hash());
  std::cout << absl::StrFormat(
      "%6d  %10.5f  %9.4f  %9.2e  %9.4f  %10.0f  %5.1f%%  %5.1f%%  %5.1f%%  %s\n", step.step(),
      step.loss(), step.gradient_norm(), step.learning_rate(), step.step_seconds(),
      step.tokens_per_second(), 100 * step.model_flops_utilization(), 100 * step.bubble_ratio(),
      100 * step.exposed_communication_ratio(), note);
}

}  // namespace

ExitCode ShowSteps(const StepsOptions& options) {
  const absl::StatusOr<std::string> server = ResolveServer(options.server);
  if (!server.ok()) return ReportError(server.status());
  v1::ReadStepsRequest request;
  request.set_id(options.job);
  request.set_follow(options.follow);
  if (options.output == Output::kCsv) std::cout << CsvHeader() << "\n";
  if (options.output == Output::kTable) PrintStepHeader();
  const absl::Status status =
      Connection(*server).ReadSteps(request, [&](const v1::StepRecord& step) {
        if (options.output == Output::kJsonLines) std::cout << ToJson(step) << "\n";
        if (options.output == Output::kCsv) std::cout << CsvRow(step) << "\n";
        if (options.output == Output::kTable) PrintStepRow(step);
        if (options.follow) std::cout.flush();
        return std::cout.good();
      });
  return status.ok() ? kExitOk : ReportError(status);
}

ExitCode ShowLogs(const LogsOptions& options) {
  const absl::StatusOr<std::string> server = ResolveServer(options.server);
  if (!server.ok()) return ReportError(server.status());
  v1::ReadLogsRequest request;
  request.set_id(options.job);
  request.set_follow(options.follow);
  request.set_tail(options.tail);
  if (options.rank) request.set_rank(*options.rank);
  const absl::Status status = Connection(*server).ReadLogs(request, [&](const v1::LogLine& line) {
    std::cout << "[rank " << line.rank() << "] " << line.text() << "\n";
    if (options.follow) std::cout.flush();
    return std::cout.good();
  });
  return status.ok() ? kExitOk : ReportError(status);
}

}  // namespace esteira
