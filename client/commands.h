// The commands of `esteira`, each from its options to an exit code. Parsing stands in cli.cc alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/local_cluster.h"
#include "common/base/exit_code.h"

namespace esteira {

enum class Output { kTable, kJson, kId, kJsonLines, kCsv, kText, kSvg, kTrace, kProgram };

struct SubmitOptions {
  std::string server, file, name, request_id;
  std::vector<std::string> overrides;
  int64_t priority = 0;
  bool follow = false;
  bool dry_run = false;
  Output output = Output::kTable;
};
ExitCode Submit(const SubmitOptions& options);

struct JobOptions {
  std::string server, job;
  Output output = Output::kTable;
};
ExitCode ListJobs(const JobOptions& options);
ExitCode DescribeJob(const JobOptions& options);
ExitCode CancelJob(const JobOptions& options);
ExitCode ListCheckpoints(const JobOptions& options);

// Whether it names a folder rather than a job: it has a slash, or is a folder that is there.
bool IsCheckpointFolder(const std::string& job_or_folder);
ExitCode ListCheckpointFolders(const std::string& directory, Output output);
// `path`: a checkpoint, or a directory of them. Exit code 1 when one is damaged.
ExitCode VerifyCheckpoints(const std::string& path);
struct DiffOptions {
  std::string a, b;
  bool weights_only = false;
  bool all = false;  // equal ones are listed too
};
ExitCode DiffCheckpoints(const DiffOptions& options);  // exit code 0 equal, 1 different
struct ExportCommandOptions {
  std::string folder, out;
  std::string dtype;  // empty: that of the checkpoint's weights
  std::string shard_size = "2GiB";
};
ExitCode ExportCheckpoint(const ExportCommandOptions& options);

struct WorkerOptions {
  std::string server, worker;
  Output output = Output::kTable;
};
ExitCode ListWorkers(const WorkerOptions& options);
ExitCode DescribeWorker(const WorkerOptions& options);

struct WaitOptions {
  std::string server, job;
  std::string state;           // empty: any terminal state
  double timeout_seconds = 0;  // 0: for ever
};
ExitCode WaitForJob(const WaitOptions& options);

// Shows a job's progress until it ends or Ctrl-C, which detaches and never cancels. On standard
// error when standard output belongs to a script.
enum class ProgressTo { kStdout, kStderr };
ExitCode FollowJob(const std::string& server, const std::string& job, ProgressTo to);

struct LogsOptions {
  std::string server, job;
  bool follow = false;
  std::optional<int> rank;
  int64_t tail = 0;
};
ExitCode ShowLogs(const LogsOptions& options);

struct StepsOptions {
  std::string server, job;
  bool follow = false;
  Output output = Output::kTable;
};
ExitCode ShowSteps(const StepsOptions& options);

struct PlanOptions {
  std::string file;
  std::vector<std::string> overrides;
  int workers = 0;
  std::string cluster_file;
  std::string schedule;              // empty: the job's
  std::vector<std::string> compare;  // names of schedules
  Output output = Output::kText;
};
ExitCode ShowPlan(const PlanOptions& options);

ExitCode LocalUp(const LocalClusterOptions& options);
ExitCode LocalDown(const std::string& directory);
ExitCode LocalStatus(const std::string& directory);

ExitCode ShowHealth(const std::string& server);
ExitCode ShowVersion(const std::string& server);
// The worker's own program does what needs a model: arguments are handed to it as they are.
ExitCode RunWorkerCommand(const std::string& command, const std::vector<std::string>& arguments);

// Completion script for bash.
std::string BashCompletion();

}  // namespace esteira
