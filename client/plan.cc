#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cluster_file.h"
#include "client/commands.h"
#include "client/job_file.h"
#include "client/plan_views/comparison.h"
#include "client/plan_views/pipeline_of.h"
#include "client/plan_views/svg_chart.h"
#include "client/plan_views/text_chart.h"
#include "client/plan_views/trace.h"
#include "client/plan_views/waits.h"
#include "client/render.h"
#include "common/base/status_macros.h"
#include "common/plan/plan_codec.h"
#include "common/rpc/json.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/schedules/csv.h"
#include "esteira/v1/plan.pb.h"

namespace esteira {
namespace {

absl::StatusOr<ClusterSpec> ClusterOf(const PlanOptions& options) {
  if (!options.cluster_file.empty()) return ReadClusterFile(options.cluster_file);
  if (options.workers > 0) return UniformCluster(options.workers);
  return absl::InvalidArgumentError("for how many workers? Give --workers N or --cluster FILE");
}

absl::StatusOr<PlannedStep> PlanFor(const PlanOptions& options, const std::string& schedule,
                                    const ClusterSpec& cluster) {
  ASSIGN_OR_RETURN(const JobFile job, ReadJobFile(options.file, options.overrides, schedule));
  return PlanStep(job.spec, cluster);
}

// Bytes of the workers that hold the ranks.
std::vector<int64_t> BudgetsOf(const Plan& plan, const ClusterSpec& cluster) {
  std::vector<int64_t> budgets;
  for (int worker : plan.worker_of_rank) {
    budgets.push_back(cluster.workers[static_cast<size_t>(worker)].memory_bytes);
  }
  return budgets;
}

int TerminalWidth() {
  constexpr int kUsual = 100;
  int columns = 0;
  const char* given = std::getenv("COLUMNS");
  if (given != nullptr && absl::SimpleAtoi(given, &columns) && columns > 0) return columns;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kUsual;
}

bool WantsColor() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') &&
         (terminal == nullptr || std::string(terminal) != "dumb");
}

std::string LayoutLine(const Layout& layout) {
  return absl::StrFormat("%d stages x %d replicas, ZeRO %d, %s, %d micro-batches of %d sequences",
                         layout.stages, layout.replicas, layout.zero, layout.schedule,
                         layout.num_micro_batches(), layout.micro_batch_size);
}

std::string PredictionLine(const Prediction& prediction) {
  return absl::StrFormat("%s a step, bubble %.1f %%, exposed communication %.1f %%",
                         FormatSeconds(prediction.step_seconds), 100 * prediction.bubble_ratio,
                         100 * prediction.exposed_communication_ratio);
}

void PrintText(const PlannedStep& step, const std::vector<int64_t>& budgets) {
  const TextStyle style{.width = TerminalWidth(), .color = WantsColor()};
  const Plan& plan = step.plan;
  std::cout << LayoutLine(plan.layout) << "\npredicted: " << PredictionLine(plan.prediction) << "\n"
            << WaitsText(step.simulation) << "\n\n"
            << TextChart(MakeStepChart(plan, step.simulation.execution), style)
            << "\nmemory of each stage's fullest rank\n"
            << MemoryBars(plan, budgets, style);
  for (size_t i = 0; i < step.explanation.size(); ++i) {
    if (i == 0) std::cout << "\nchosen\n";
    if (i == 1) std::cout << "and why not\n";
    std::cout << "  " << step.explanation[i] << "\n";
  }
}

void PrintStep(const PlannedStep& step, const std::string& name,
               const std::vector<int64_t>& budgets, Output output) {
  const Plan& plan = step.plan;
  switch (output) {
    case Output::kSvg:
      std::cout << SvgChart({.title = name,
                             .subtitle = absl::StrCat(LayoutLine(plan.layout), ".  ",
                                                      PredictionLine(plan.prediction))},
                            plan, MakeStepChart(plan, step.simulation.execution), budgets);
      return;
    case Output::kTrace: std::cout << ChromeTrace(plan, step.simulation.execution); return;
    case Output::kCsv: std::cout << WriteCsvSchedule(PipelineOf(plan)); return;
    default: PrintText(step, budgets);
  }
}

// The programs of every stage, as workers get them.
ExitCode PrintPrograms(const JobSpec& job, const ClusterSpec& cluster, Output output) {
  const absl::StatusOr<Plan> plan = MakePlan(job, cluster);
  if (!plan.ok()) return ReportError(plan.status());
  if (output == Output::kJson) {
    std::cout << ToPrettyJson(EncodePlan(*plan)) << "\n";
  } else {
    std::cout << PrintPlan(*plan);
  }
  return kExitOk;
}

ExitCode Compare(const PlanOptions& options, const ClusterSpec& cluster) {
  std::vector<ComparedSchedule> schedules;
  bool any = false;
  for (const std::string& name : options.compare) {
    const absl::StatusOr<PlannedStep> step = PlanFor(options, name, cluster);
    if (!step.ok()) {
      schedules.push_back({.name = name, .refusal = std::string(step.status().message())});
      continue;
    }
    any = true;
    schedules.push_back(
        FiguresOf(name, step->plan, MakeStepChart(step->plan, step->simulation.execution)));
  }
  std::cout << ComparisonTable(schedules);
  return any ? kExitOk : kExitUsage;
}

}  // namespace

ExitCode ShowPlan(const PlanOptions& options) {
  const absl::StatusOr<JobFile> job =
      ReadJobFile(options.file, options.overrides, options.schedule);
  if (!job.ok()) return ReportError(job.status());
  const absl::StatusOr<ClusterSpec> cluster = ClusterOf(options);
  if (!cluster.ok()) return ReportError(cluster.status());
  if (!options.compare.empty()) return Compare(options, *cluster);
  if (options.output == Output::kJson || options.output == Output::kProgram) {
    return PrintPrograms(job->spec, *cluster, options.output);
  }
  const absl::StatusOr<PlannedStep> step = PlanStep(job->spec, *cluster);
  if (!step.ok()) return ReportError(step.status());
  PrintStep(*step, job->spec.name, BudgetsOf(step->plan, *cluster), options.output);
  return kExitOk;
}

}  // namespace esteira
