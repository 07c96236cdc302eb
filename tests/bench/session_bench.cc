// How a coordinator bears many workers: starts one, opens thousands of sessions that register and
// then send heartbeats as a daemon would, and looks at how old the coordinator's last word of each
// worker is, how much memory a session takes, and how long a user waits for an answer meanwhile.
// With --plan_stages, submits a job that takes all of them and looks at how long it takes until
// each has its plan. Prints a table; exit code 1 when a worker was taken for lost or got no plan.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "esteira/v1/cluster.grpc.pb.h"
#include "esteira/v1/worker.grpc.pb.h"

ABSL_FLAG(std::string, coordinator, "", "The esteira-coordinator program.");
ABSL_FLAG(int, sessions, 10000, "Workers to play.");
ABSL_FLAG(int, connections, 16, "Connections that carry their sessions.");
ABSL_FLAG(absl::Duration, heartbeat, absl::Seconds(2), "The coordinator's --heartbeat.");
ABSL_FLAG(absl::Duration, duration, absl::Seconds(20), "How long to go on once all are there.");
ABSL_FLAG(int, plan_stages, 0, "Stages of a job for all sessions, submitted at the end; 0: none.");

namespace esteira {
namespace {

// A coordinator in a folder of its own. Killed at the end.
class CoordinatorProcess {
 public:
  CoordinatorProcess() {
    CHECK(mkdtemp(folder_.data()) != nullptr);
    const std::string port_file = absl::StrCat(folder_, "/port");
    std::vector<std::string> words = {
        absl::GetFlag(FLAGS_coordinator),
        absl::StrCat("--data_dir=", folder_, "/data"),
        "--listen=127.0.0.1:0",
        "--metrics_listen=127.0.0.1:0",
        absl::StrCat("--port_file=", port_file),
        "--log_level=warning",
        absl::StrCat("--heartbeat=", absl::FormatDuration(absl::GetFlag(FLAGS_heartbeat)))};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    address_ = AwaitAddress(port_file);
  }
  ~CoordinatorProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }

  const std::string& address() const { return address_; }

  int64_t ResidentBytes() const {
    std::ifstream statm(absl::StrCat("/proc/", pid_, "/statm"));
    int64_t size = 0, resident = 0;
    statm >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }

  double ProcessorSeconds() const {
    std::ifstream stat(absl::StrCat("/proc/", pid_, "/stat"));
    std::string word;
    double ticks = 0;
    for (int field = 1; field <= 15 && stat >> word; ++field) {
      double value = 0;
      if (field >= 14 && absl::SimpleAtod(word, &value)) ticks += value;
    }
    return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

 private:
  static std::string AwaitAddress(const std::string& port_file) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (absl::Now() < deadline) {
      std::ifstream file(port_file);
      std::string text;
      std::getline(file, text);
      const std::string key = "\"address\":\"";
      const size_t begin = text.find(key);
      if (begin != std::string::npos) {
        const size_t from = begin + key.size();
        return text.substr(from, text.find('"', from) - from);
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    std::fprintf(stderr, "the coordinator did not start: is --coordinator right?\n");
    std::exit(2);
  }

  std::string folder_ =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/esteira-sessions-XXXXXX");
  pid_t pid_ = -1;
  std::string address_;
};

// What all sessions were told.
struct Tally {
  std::atomic<int> registered = 0;
  std::atomic<int> configured = 0;
  std::atomic<int64_t> first_plan_ns = 0;  // when the first of them got its plan
  std::atomic<int64_t> plan_bytes = 0;     // of one
};

// A worker's stream: registers, then beats when it is told to.
class Session : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  Session(v1::WorkerService::Stub& stub, int number, Tally& tally) : tally_(tally) {
    outgoing_.set_worker_id(absl::StrCat("worker-", number));
    outgoing_.set_incarnation(1);
    v1::Register& hello = *outgoing_.mutable_register_();
    hello.set_host(absl::StrCat("host-", number / 8));
    hello.set_device("cpu");
    hello.set_memory_bytes(int64_t{256} << 30);
    stub.async()->Session(&context_, this);
    StartRead(&incoming_);
    StartWrite(&outgoing_);
    StartCall();
  }

  void Beat() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (writing_ || done_) {
      ++missed_;
      return;
    }
    outgoing_.mutable_heartbeat();
    writing_ = true;
    StartWrite(&outgoing_);
  }
  void Cancel() { context_.TryCancel(); }
  int missed() const { return missed_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (incoming_.has_registered()) ++tally_.registered;
    if (incoming_.has_configure()) {
      int64_t none = 0;
      tally_.first_plan_ns.compare_exchange_strong(none, absl::GetCurrentTimeNanos());
      tally_.plan_bytes = static_cast<int64_t>(incoming_.configure().plan().size());
      ++tally_.configured;
    }
    StartRead(&incoming_);
  }
  void OnWriteDone(bool) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
  }
  void OnDone(const grpc::Status&) override {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  bool done() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

 private:
  grpc::ClientContext context_;
  v1::WorkerMessage outgoing_;
  v1::CoordinatorMessage incoming_;
  Tally& tally_;
  std::mutex mutex_;
  bool writing_ = true;  // the registration
  bool done_ = false;
  int missed_ = 0;
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address, int number) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("esteira.bench.connection", number);  // else channels share one
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

struct Survey {
  int present = 0;
  int lost = 0;
  double oldest_seconds = 0;  // since the coordinator heard of the worker that it heard of last
  double answer_seconds = 0;  // that this took
};

Survey LookAtWorkers(v1::ClusterService::Stub& cluster) {
  grpc::ClientContext context;
  v1::ListWorkersResponse response;
  const absl::Time begin = absl::Now();
  const grpc::Status status = cluster.ListWorkers(&context, {}, &response);
  const absl::Time end = absl::Now();
  CHECK(status.ok());
  Survey survey;
  survey.answer_seconds = absl::ToDoubleSeconds(end - begin);
  for (const v1::Worker& worker : response.workers()) {
    if (worker.state() == v1::LOST) {
      ++survey.lost;
      continue;
    }
    ++survey.present;
    const absl::Time heard = absl::FromUnixSeconds(worker.last_heartbeat_time().seconds()) +
                             absl::Nanoseconds(worker.last_heartbeat_time().nanos());
    survey.oldest_seconds = std::max(survey.oldest_seconds, absl::ToDoubleSeconds(end - heard));
  }
  return survey;
}

using Sessions = std::vector<std::unique_ptr<Session>>;

// Every session beats once in a period, evenly spread.
class Timetable {
 public:
  Timetable(Sessions& sessions, absl::Duration period)
      : sessions_(sessions), period_(period), start_(absl::Now()) {}

  void SendDue() {
    const auto count = static_cast<int64_t>(sessions_.size());
    const absl::Time now = absl::Now();
    const auto due = static_cast<int64_t>(absl::FDivDuration(now - start_, period_) *
                                          static_cast<double>(count));
    if (due > sent_) {
      const double turns = static_cast<double>(sent_) / static_cast<double>(count);
      largest_lag_ =
          std::max(largest_lag_, absl::ToDoubleSeconds(now - (start_ + period_ * turns)));
    }
    for (; sent_ < due; ++sent_) sessions_[static_cast<size_t>(sent_ % count)]->Beat();
  }
  int64_t sent() const { return sent_; }
  double largest_lag() const { return largest_lag_; }  // of this program behind its own timetable

 private:
  Sessions& sessions_;
  const absl::Duration period_;
  const absl::Time start_;
  int64_t sent_ = 0;
  double largest_lag_ = 0;
};

// A Llama of the 70B kind: as many layers as the stages divide, 32 micro-batches a replica, ZeRO 1.
v1::JobSpec JobFor(int workers, int stages) {
  constexpr int kMicroBatches = 32;
  v1::JobSpec job;
  job.set_name("for-all");
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture("llama");
  model.set_num_layers(5 * stages - 2);
  model.set_hidden_size(8192);
  model.set_num_heads(64);
  model.set_num_kv_heads(8);
  model.set_intermediate_size(28672);
  model.set_vocab_size(128256);
  model.set_max_sequence_length(8192);
  job.mutable_data()->add_train()->set_path("/nowhere/train.tokens");
  job.mutable_data()->set_tokenizer("bytes");
  job.mutable_data()->set_sequence_length(4096);
  v1::TrainingSpec& training = *job.mutable_training();
  training.set_steps(1);
  training.set_micro_batch_size(1);
  const int replicas = workers / stages;
  training.set_global_batch_size(int64_t{kMicroBatches} * replicas);
  v1::ParallelismSpec& parallelism = *job.mutable_parallelism();
  parallelism.set_pipeline_stages(stages);
  parallelism.set_replicas(replicas);
  parallelism.set_zero(1);
  parallelism.set_pipeline_schedule("1f1b");
  return job;
}

// Submits a job for all and waits until each session has its plan; whether they all got it.
bool SendPlans(const CoordinatorProcess& coordinator, v1::JobService::Stub& jobs, int stages,
               Sessions& sessions, Tally& tally, Timetable& timetable) {
  const int ranks = static_cast<int>(sessions.size()) / stages * stages;
  v1::SubmitJobRequest request;
  *request.mutable_spec() = JobFor(ranks, stages);
  grpc::ClientContext context;
  v1::SubmitJobResponse response;
  const double processor = coordinator.ProcessorSeconds();
  const absl::Time begin = absl::Now();
  const grpc::Status status = jobs.SubmitJob(&context, request, &response);
  if (!status.ok()) {
    std::printf("the job was refused: %s\n", status.error_message().c_str());
    return false;
  }
  while (tally.configured < ranks && absl::Now() - begin < absl::Minutes(2)) {
    timetable.SendDue();
    absl::SleepFor(absl::Milliseconds(1));
  }
  const absl::Time end = absl::Now();
  const absl::Time first = absl::FromUnixNanos(tally.first_plan_ns);
  std::printf(
      "a plan for %d ranks (%d stages x %d replicas), %lld bytes to each: %d have it; %.2f s after "
      "the job was submitted, %.2f s after the first; %.2f s of the coordinator's processor time\n",
      ranks, stages, ranks / stages, static_cast<long long>(tally.plan_bytes),
      tally.configured.load(), absl::ToDoubleSeconds(end - begin),
      absl::ToDoubleSeconds(end - first), coordinator.ProcessorSeconds() - processor);
  return tally.configured == ranks;
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

int Run() {
  RaiseDescriptorLimit();
  const int count = absl::GetFlag(FLAGS_sessions);
  CoordinatorProcess coordinator;
  const int64_t bytes_before = coordinator.ResidentBytes();
  std::vector<std::unique_ptr<v1::WorkerService::Stub>> stubs;
  for (int i = 0; i < absl::GetFlag(FLAGS_connections); ++i) {
    stubs.push_back(v1::WorkerService::NewStub(Connect(coordinator.address(), i)));
  }
  const auto cluster = v1::ClusterService::NewStub(Connect(coordinator.address(), -1));
  const auto jobs = v1::JobService::NewStub(Connect(coordinator.address(), -2));

  Tally tally;
  Sessions sessions;
  const absl::Time began = absl::Now();
  for (int i = 0; i < count; ++i) {
    sessions.push_back(
        std::make_unique<Session>(*stubs[static_cast<size_t>(i) % stubs.size()], i, tally));
  }
  while (tally.registered < count && absl::Now() - began < absl::Minutes(1)) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  const double register_seconds = absl::ToDoubleSeconds(absl::Now() - began);
  std::printf("%d of %d sessions registered in %.2f s\n", tally.registered.load(), count,
              register_seconds);

  const absl::Duration period = absl::GetFlag(FLAGS_heartbeat);
  const absl::Time start = absl::Now();
  const absl::Time end = start + absl::GetFlag(FLAGS_duration);
  const double processor_before = coordinator.ProcessorSeconds();
  std::vector<double> oldest, answers;
  int lost = 0;
  Timetable timetable(sessions, period);
  absl::Time next_look = start + 2 * period;
  while (absl::Now() < end) {
    timetable.SendDue();
    if (absl::Now() >= next_look) {
      const Survey survey = LookAtWorkers(*cluster);
      oldest.push_back(survey.oldest_seconds);
      answers.push_back(survey.answer_seconds);
      lost = std::max(lost, survey.lost);
      next_look += absl::Seconds(1);
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const double processor = coordinator.ProcessorSeconds() - processor_before;
  const int64_t bytes = coordinator.ResidentBytes();
  int missed = 0;
  for (const auto& session : sessions) missed += session->missed();

  std::printf(
      "heartbeats: one in %.1f s each, %.0f a second in all; %d could not be sent in time; "
      "the senders were %.3f s late at most\n",
      absl::ToDoubleSeconds(period), static_cast<double>(timetable.sent()) / seconds, missed,
      timetable.largest_lag());
  std::printf("longest since any worker was heard of: %.3f s (%.3f s after it was due); lost: %d\n",
              *std::max_element(oldest.begin(), oldest.end()),
              *std::max_element(oldest.begin(), oldest.end()) - absl::ToDoubleSeconds(period),
              lost);
  std::sort(answers.begin(), answers.end());
  std::printf("ListWorkers of all: median %.3f s, longest %.3f s\n", answers[answers.size() / 2],
              answers.back());
  std::printf("coordinator: %.2f of a core; %.1f MB resident, %.1f kB a session\n",
              processor / seconds, 1e-6 * static_cast<double>(bytes),
              1e-3 * static_cast<double>(bytes - bytes_before) / count);
  const int stages = absl::GetFlag(FLAGS_plan_stages);
  const bool all_have_plans =
      stages == 0 || SendPlans(coordinator, *jobs, stages, sessions, tally, timetable);
  for (const auto& session : sessions) session->Cancel();
  for (const auto& session : sessions) {
    while (!session->done()) absl::SleepFor(absl::Milliseconds(1));
  }
  return lost == 0 && tally.registered == count && all_have_plans ? 0 : 1;
}

}  // namespace
}  // namespace esteira

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "How a coordinator bears many workers.\n  session_bench --coordinator "
      "build/release/bin/esteira-coordinator");
  absl::ParseCommandLine(argc, argv);
  return esteira::Run();
}
