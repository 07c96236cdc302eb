#include "client/cli.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <map>

#include "absl/strings/str_join.h"
#include "client/commands.h"

namespace esteira {
namespace {

const std::map<std::string, Output> kOutputs = {
    {"table", Output::kTable},     {"json", Output::kJson},   {"id", Output::kId},
    {"jsonl", Output::kJsonLines}, {"csv", Output::kCsv},     {"text", Output::kText},
    {"svg", Output::kSvg},         {"trace", Output::kTrace}, {"program", Output::kProgram}};

// One -o option over the outputs that a command has.
CLI::Option& AddOutput(CLI::App& command, Output& output, const std::vector<std::string>& names) {
  std::map<std::string, Output> choices;
  for (const std::string& name : names) choices[name] = kOutputs.at(name);
  return *command.add_option("-o,--output", output, "Form of the output")
              ->transform(CLI::CheckedTransformer(choices))
              ->option_text(absl::StrJoin(names, "|"));
}

// The command line: options are written into this object, and the chosen command into `run`.
class CommandLine {
 public:
  CommandLine() { Build(); }
  int Parse(int argc, char** argv);

 private:
  using Command = std::function<ExitCode()>;

  void Build();
  void AddLocal();
  void AddSubmit();
  void AddJobCommands();
  void AddRecords();
  void AddPlan();
  void AddWorkers();
  void AddCheckpoints();
  void AddInference();
  void AddServerCommands();
  CLI::App& Add(CLI::App& parent, const std::string& name, const std::string& description,
                Command command);
  void AddServer(CLI::App& command, std::string& server) {
    command.add_option(
        "--server", server,
        "Coordinator, HOST:PORT (else ESTEIRA_SERVER, the config file, the local cluster)");
  }

  CLI::App app_{"esteira: distributed training of language models"};
  Command run_;
  SubmitOptions submit_;
  JobOptions job_;
  WorkerOptions worker_;
  WaitOptions wait_;
  LogsOptions logs_;
  StepsOptions steps_;
  PlanOptions plan_;
  DiffOptions diff_;
  ExportCommandOptions export_;
  std::string checkpoint_;
  LocalClusterOptions local_;
  std::string local_directory_;
  std::string server_;
  int logs_rank_ = -1;
};

CLI::App& CommandLine::Add(CLI::App& parent, const std::string& name,
                           const std::string& description, Command command) {
  CLI::App* added = parent.add_subcommand(name, description);
  added->callback([this, command = std::move(command)] { run_ = command; });
  return *added;
}

void CommandLine::Build() {
  app_.require_subcommand(1);
  app_.set_version_flag("--version", ESTEIRA_VERSION);
  app_.footer("A first run: esteira local up --workers 4 && esteira submit -f job.yaml --follow");
  AddLocal();
  AddSubmit();
  AddJobCommands();
  AddRecords();
  AddPlan();
  AddWorkers();
  AddCheckpoints();
  AddInference();
  AddServerCommands();
}

void CommandLine::AddLocal() {
  CLI::App& local = *app_.add_subcommand("local", "A whole cluster on this machine");
  local.require_subcommand(1);
  local_.directory = DefaultLocalDirectory();
  CLI::App& up =
      Add(local, "up", "Start a coordinator and workers", [this] { return LocalUp(local_); });
  up.add_option("--workers", local_.workers, "Worker daemons")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  up.add_option("--device", local_.device,
                "Device of the workers; synthetic takes the time of computing and computes nothing")
      ->check(CLI::IsMember({"cpu", "cuda", "synthetic"}))
      ->capture_default_str();
  CLI::Option* pass_seconds =
      up.add_option("--synthetic-pass-seconds", local_.synthetic_pass_seconds,
                    "Synthetic: time of each of F, I, W and R of a block; B takes twice as long "
                    "(default: 0.01)")
          ->check(CLI::PositiveNumber);
  up.add_option("--synthetic-flops", local_.synthetic_flops,
                "Synthetic: each pass takes its floating point operations by this rate instead")
      ->check(CLI::PositiveNumber)
      ->excludes(pass_seconds);
  up.add_option("--slow-down", local_.slow_down,
                "WORKER=FACTOR: each compute pass of that worker takes FACTOR times as long; may "
                "be repeated")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  up.add_option("--threads", local_.threads, "Threads of each worker (0: cores / workers)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  up.add_option("--dir", local_.directory, "Folder of the cluster's data and logs")
      ->capture_default_str();
  up.add_option("--port", local_.port, "Port of the coordinator (0: any free one)")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  CLI::App& down = Add(local, "down", "Stop the cluster; its data stays",
                       [this] { return LocalDown(local_directory_); });
  down.add_option("--dir", local_directory_,
                  "Folder of the cluster (default: the one started last)");
  CLI::App& status =
      Add(local, "status", "Show its daemons", [this] { return LocalStatus(local_directory_); });
  status.add_option("--dir", local_directory_,
                    "Folder of the cluster (default: the one started last)");
}

void CommandLine::AddSubmit() {
  CLI::App& submit = Add(app_, "submit", "Submit a job", [this] { return Submit(submit_); });
  AddServer(submit, submit_.server);
  submit.add_option("-f,--file", submit_.file, "Job file (YAML)")->required();
  submit
      .add_option("--set", submit_.overrides,
                  "FIELD=VALUE, wins over the file; may be repeated. Where the job goes on from a "
                  "checkpoint, it also wins over what was saved, which otherwise wins over the "
                  "file")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  submit.add_flag("--follow", submit_.follow, "Show progress until the job ends; Ctrl-C detaches");
  submit.add_flag("--dry-run", submit_.dry_run,
                  "Check and plan the job on the server, submit nothing");
  submit.add_option("--name", submit_.name, "Name, instead of the file's");
  submit.add_option("--priority", submit_.priority, "Higher goes first in the queue");
  submit.add_option("--request-id", submit_.request_id, "The same id again returns the same job");
  AddOutput(submit, submit_.output, {"id", "json"});
}

void CommandLine::AddJobCommands() {
  CLI::App& list = Add(app_, "list", "List the jobs", [this] { return ListJobs(job_); });
  AddServer(list, job_.server);
  AddOutput(list, job_.output, {"table", "json"});
  CLI::App& describe = Add(app_, "describe", "Show one job", [this] { return DescribeJob(job_); });
  AddServer(describe, job_.server);
  describe.add_option("job", job_.job, "Job id")->required();
  AddOutput(describe, job_.output, {"table", "json"});
  CLI::App& cancel = Add(app_, "cancel", "Cancel a job", [this] { return CancelJob(job_); });
  AddServer(cancel, job_.server);
  cancel.add_option("job", job_.job, "Job id")->required();
  CLI::App& wait = Add(app_, "wait", "Wait for a job", [this] { return WaitForJob(wait_); });
  AddServer(wait, wait_.server);
  wait.add_option("job", wait_.job, "Job id")->required();
  wait.add_option("--for", wait_.state, "State to wait for, e.g. RUNNING (default: the end)");
  wait.add_option("--timeout", wait_.timeout_seconds,
                  "Seconds, or with a unit: 90s, 5m, 2h (0: no limit)")
      ->transform(
          CLI::AsNumberWithUnit(std::map<std::string, double>{{"s", 1}, {"m", 60}, {"h", 3600}},
                                CLI::AsNumberWithUnit::CASE_SENSITIVE));
}

void CommandLine::AddRecords() {
  CLI::App& logs = Add(app_, "logs", "Show what a job's trainers printed", [this] {
    if (logs_rank_ >= 0) logs_.rank = logs_rank_;
    return ShowLogs(logs_);
  });
  AddServer(logs, logs_.server);
  logs.add_option("job", logs_.job, "Job id")->required();
  logs.add_flag("-f,--follow", logs_.follow, "Go on until the job ends");
  logs.add_option("--rank", logs_rank_, "Of one rank only")->check(CLI::NonNegativeNumber);
  logs.add_option("--tail", logs_.tail, "The last N lines only")->check(CLI::NonNegativeNumber);
  CLI::App& steps =
      Add(app_, "steps", "Show one record a step", [this] { return ShowSteps(steps_); });
  AddServer(steps, steps_.server);
  steps.add_option("job", steps_.job, "Job id")->required();
  steps.add_flag("-f,--follow", steps_.follow, "Go on until the job ends");
  AddOutput(steps, steps_.output, {"table", "jsonl", "csv"});
}

void CommandLine::AddPlan() {
  CLI::App& plan = Add(app_, "plan", "Plan a job offline", [this] { return ShowPlan(plan_); });
  plan.add_option("-f,--file", plan_.file, "Job file (YAML)")->required();
  plan.add_option("--set", plan_.overrides, "FIELD=VALUE, wins over the file; may be repeated")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  CLI::Option* workers =
      plan.add_option("--workers", plan_.workers, "Number of equal workers on one host")
          ->check(CLI::Range(1, 65536));
  plan.add_option("--cluster", plan_.cluster_file,
                  "Cluster file (YAML): kinds of workers, their memory and rates, links; for "
                  "examples see deploy/local/clusters")
      ->excludes(workers);
  CLI::Option* schedule = plan.add_option(
      "--schedule", plan_.schedule,
      "Pipeline schedule instead of the job's: a name, auto, or csv:PATH (PyTorch's compute-only "
      "form); a CSV that cannot run is shown with its faulty cell marked");
  CLI::Option* compare =
      plan.add_option("--compare", plan_.compare,
                      "Schedules side by side in one table, e.g. gpipe,1f1b,csv:PATH")
          ->delimiter(',')
          ->excludes(schedule);
  AddOutput(plan, plan_.output, {"text", "json", "svg", "trace", "csv", "program"})
      .excludes(compare);
  plan.footer(
      "Outputs: text (chart of the step in the terminal, memory as bars, why this plan), json (the "
      "plan), svg (the chart as a picture), trace (opens in ui.perfetto.dev and chrome://tracing), "
      "csv (the pipeline schedule), program (every instruction of every rank).");
}

void CommandLine::AddWorkers() {
  CLI::App& workers = *app_.add_subcommand("workers", "The workers of a cluster");
  workers.require_subcommand(1);
  CLI::App& list =
      Add(workers, "list", "List the workers", [this] { return ListWorkers(worker_); });
  AddServer(list, worker_.server);
  AddOutput(list, worker_.output, {"table", "json"});
  CLI::App& describe = Add(workers, "describe", "Show one worker, with what its device achieves",
                           [this] { return DescribeWorker(worker_); });
  AddServer(describe, worker_.server);
  describe.add_option("worker", worker_.worker, "Worker id")->required();
  AddOutput(describe, worker_.output, {"table", "json"});
}

void CommandLine::AddCheckpoints() {
  CLI::App& checkpoints = *app_.add_subcommand(
      "checkpoints",
      "List, verify, compare and export checkpoints; only `list JOB` needs a cluster");
  checkpoints.require_subcommand(1);
  CLI::App& list = Add(checkpoints, "list", "List the checkpoints of a job or in a folder",
                       [this] { return ListCheckpoints(job_); });
  AddServer(list, job_.server);
  list.add_option("job", job_.job,
                  "Job id, or a folder (one that is there, or a path with a slash)")
      ->required()
      ->option_text("JOB|DIR");
  AddOutput(list, job_.output, {"table", "json"});
  CLI::App& verify =
      Add(checkpoints, "verify", "Read every file and compare its digest; exit code 1: damaged",
          [this] { return VerifyCheckpoints(checkpoint_); });
  verify.add_option("dir", checkpoint_, "A checkpoint, or a folder of checkpoints")->required();
  CLI::App& diff =
      Add(checkpoints, "diff",
          "Compare two checkpoints by parameter; exit code 0: equal bits, 1: different",
          [this] { return DiffCheckpoints(diff_); });
  diff.add_option("a", diff_.a, "A checkpoint, an export or a Hugging Face folder")->required();
  diff.add_option("b", diff_.b, "The other one")->required();
  diff.add_flag("--weights-only", diff_.weights_only, "Leave out the optimizer's state");
  diff.add_flag("--all", diff_.all, "List equal tensors too");
  CLI::App& out =
      Add(checkpoints, "export", "Write the weights as a Hugging Face folder, whole or not at all",
          [this] { return ExportCheckpoint(export_); });
  out.add_option("dir", export_.folder, "A checkpoint, or a folder of checkpoints: the newest")
      ->required();
  out.add_option("out", export_.out, "Folder to make; one that holds something is refused")
      ->required();
  out.add_option("--dtype", export_.dtype, "Type of the weights (default: the checkpoint's)")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  out.add_option("--shard-size", export_.shard_size, "Most bytes in one file, e.g. 500MB or 2GiB")
      ->capture_default_str();
}

void CommandLine::AddInference() {
  const std::vector<std::pair<std::string, std::string>> commands = {
      {"generate",
       "Sample text: esteira generate DIR --prompt TEXT [--tokens N] [--temperature T] [--seed S]"},
      {"evaluate", "Loss and perplexity: esteira evaluate DIR --data PATH"}};
  for (const auto& [name, description] : commands) {
    CLI::App* command = app_.add_subcommand(name, description);
    command->prefix_command();  // the arguments belong to the worker's program, its --help included
    command->set_help_flag();
    command->callback([this, command, name = name] {
      run_ = [command, name] { return RunWorkerCommand(name, command->remaining()); };
    });
  }
}

void CommandLine::AddServerCommands() {
  AddServer(Add(app_, "health", "Ask whether the coordinator serves",
                [this] { return ShowHealth(server_); }),
            server_);
  AddServer(Add(app_, "version", "Versions of client and server",
                [this] { return ShowVersion(server_); }),
            server_);
  CLI::App& completion = *app_.add_subcommand("completion", "Shell completion");
  completion.require_subcommand(1);
  Add(completion, "bash", "For bash: source <(esteira completion bash)", [] {
    std::cout << BashCompletion();
    return kExitOk;
  });
}

int CommandLine::Parse(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const int code = run_();
  std::cout.flush();
  if (std::cout) return code;
  std::cerr << "esteira: cannot write the output: is the disk full?\n";
  return code == kExitOk ? kExitJobFailed : code;
}

}  // namespace

int RunCommandLine(int argc, char** argv) { return CommandLine().Parse(argc, argv); }

}  // namespace esteira
