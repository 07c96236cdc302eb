// What the client reads from disk: the job file, the configuration, the local cluster's file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/job_file.h"
#include "client/local_cluster.h"
#include "client/server.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A home of its own for each test, and no variable of the machine's.
class FilesTest : public testing::Test {
 protected:
  FilesTest() {
    root_ = absl::StrCat(testing::TempDir(), getpid(), "-",
                         testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(root_);
    for (const char* name : {"ESTEIRA_SERVER", "XDG_CONFIG_HOME", "XDG_STATE_HOME"}) unsetenv(name);
    setenv("HOME", root_.c_str(), 1);
  }
  ~FilesTest() override { std::filesystem::remove_all(root_); }

  std::string Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full, std::ios::binary) << text;
    return full.string();
  }
  void WriteDefaultCluster(const std::string& json) {
    Write("cluster/cluster.json", json);
    Write(".local/state/esteira/default-local-cluster", root_ + "/cluster\n");
  }
  absl::StatusOr<LocalCluster> ReadCluster(const std::string& json) {
    Write("cluster/cluster.json", json);
    return ReadLocalCluster(root_ + "/cluster");
  }

  std::string root_;
};

TEST_F(FilesTest, TheServerIsTheFlagElseTheVariableElseTheFileElseTheLocalCluster) {
  WriteDefaultCluster(R"({"server": "local:1", "daemons": []})");
  EXPECT_EQ(*ResolveServer(""), "local:1");
  Write(".config/esteira/config.yaml", "server: file:2\n");
  EXPECT_EQ(*ResolveServer(""), "file:2");
  setenv("ESTEIRA_SERVER", "variable:3", 1);
  EXPECT_EQ(*ResolveServer(""), "variable:3");
  EXPECT_EQ(*ResolveServer("flag:4"), "flag:4");
  setenv("ESTEIRA_SERVER", "", 1);
  EXPECT_EQ(*ResolveServer(""), "file:2") << "an empty variable is none";
}

TEST_F(FilesTest, AServerThatIsNoAddressIsNamedWithItsOrigin) {
  const auto expect = [](const std::string& flag, const std::string& origin) {
    const absl::Status status = ResolveServer(flag).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << origin;
    EXPECT_THAT(std::string(status.message()), HasSubstr(origin));
    EXPECT_THAT(std::string(status.message()), HasSubstr("host:port"));
  };
  const std::string path = Write(".config/esteira/config.yaml", "server: here\n");
  expect("", path);
  setenv("ESTEIRA_SERVER", "here:0", 1);
  expect("", "ESTEIRA_SERVER");
  expect("a b:1", "--server");
}

TEST_F(FilesTest, ALocalClusterIsTheSameHoweverItsFolderIsWritten) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(root_);
  for (const char* folder : {"cluster", "./cluster/", "x/../cluster//"}) {
    WriteDefaultCluster(R"({"server": "local:1", "daemons": []})");
    const auto cluster = ReadLocalCluster(folder);
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    if (!cluster.ok()) continue;
    EXPECT_EQ(cluster->directory, root_ + "/cluster");
    EXPECT_TRUE(StopLocalCluster(*cluster).ok());
    EXPECT_EQ(DefaultLocalCluster().status().message(), "no local cluster is up") << folder;
  }
  std::filesystem::current_path(before);
}

TEST_F(FilesTest, XdgFoldersWinOverHome) {
  Write(".config/esteira/config.yaml", "server: home:1\n");
  Write("xdg/esteira/config.yaml", "server: xdg:2\n");
  setenv("XDG_CONFIG_HOME", (root_ + "/xdg").c_str(), 1);
  EXPECT_EQ(*ResolveServer(""), "xdg:2");
  EXPECT_EQ(StateFolder(), root_ + "/.local/state/esteira");
  setenv("XDG_STATE_HOME", (root_ + "/state").c_str(), 1);
  EXPECT_EQ(StateFolder(), root_ + "/state/esteira");
}

TEST_F(FilesTest, NoServerAnywhereIsUnavailable) {
  EXPECT_EQ(ResolveServer("").status().code(), absl::StatusCode::kUnavailable);
  for (const char* text : {"", "# nothing\n", "other: 1\n", "server:\n", "server: ''\n"}) {
    Write(".config/esteira/config.yaml", text);
    EXPECT_EQ(ResolveServer("").status().code(), absl::StatusCode::kUnavailable) << text;
  }
}

TEST_F(FilesTest, AConfigurationThatCannotBeReadIsAnError) {
  for (const char* text :
       {"server: [a, b]\n", "server: {a: b}\n", "just words\n", "- a\n", "{", "a: b: c\n"}) {
    const std::string path = Write(".config/esteira/config.yaml", text);
    const absl::Status status = ResolveServer("").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path)) << text;
  }
}

TEST_F(FilesTest, ABrokenLocalClusterIsNotPassedOver) {
  WriteDefaultCluster("{");
  EXPECT_EQ(ResolveServer("").status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(root_ + "/cluster/cluster.json");
  EXPECT_EQ(ResolveServer("").status().code(), absl::StatusCode::kUnavailable) << "it was stopped";
}

TEST_F(FilesTest, ReadsALocalCluster) {
  const auto cluster = ReadCluster(
      R"({"server": "127.0.0.1:5", "daemons": [
          {"name": "coordinator", "pid": 12, "start_ticks": 18446744073709551615, "log": "/l",
           "metrics": "127.0.0.1:6"},
          {"name": "worker-0", "pid": 2147483647, "start_ticks": 1}]})");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->server, "127.0.0.1:5");
  EXPECT_EQ(cluster->directory, root_ + "/cluster");
  ASSERT_EQ(cluster->daemons.size(), 2u);
  EXPECT_EQ(cluster->daemons[0].name, "coordinator");
  EXPECT_EQ(cluster->daemons[0].pid, 12);
  EXPECT_EQ(cluster->daemons[0].start_ticks, ~uint64_t{0});
  EXPECT_EQ(cluster->daemons[0].log, "/l");
  EXPECT_EQ(cluster->daemons[0].metrics, "127.0.0.1:6");
  EXPECT_EQ(cluster->daemons[1].pid, std::numeric_limits<int>::max());
  EXPECT_EQ(cluster->daemons[1].log, "");
}

TEST_F(FilesTest, AMissingLocalClusterIsNotFound) {
  EXPECT_EQ(ReadLocalCluster(root_ + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DefaultLocalCluster().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FilesTest, AHostileLocalClusterIsDataLossAndNeverAnException) {
  const std::string daemon = R"({"server": "a:1", "daemons": [)";
  for (const std::string& json :
       {std::string(),
        std::string("garbage"),
        std::string("\0\xff", 2),
        std::string("null"),
        std::string("[]"),
        std::string("7"),
        std::string("{}"),
        std::string(R"({"daemons": []})"),
        std::string(R"({"server": 5, "daemons": []})"),
        std::string(R"({"server": null, "daemons": []})"),
        std::string(R"({"server": "a:1", "daemons": {}})"),
        std::string(R"({"server": "a:1", "daemons": "x"})"),
        daemon + "1]}",
        daemon + "null]}",
        daemon + "[]]}",
        daemon + "{}]}",
        daemon + R"({"name": 5, "pid": 1, "start_ticks": 1}]})",
        daemon + R"({"name": "w", "pid": "1", "start_ticks": 1}]})",
        daemon + R"({"name": "w", "pid": -1, "start_ticks": 1}]})",
        daemon + R"({"name": "w", "pid": 0, "start_ticks": 1}]})",
        daemon + R"({"name": "w", "pid": 1e99, "start_ticks": 1}]})",
        daemon + R"({"name": "w", "pid": 4294967297, "start_ticks": 1}]})",
        daemon + R"({"name": "w", "pid": 1, "start_ticks": -1}]})",
        daemon + R"({"name": "w", "pid": 1, "start_ticks": {}}]})",
        daemon + R"({"name": "w", "pid": 1}]})",
        std::string(100'000, '[')}) {
    EXPECT_EQ(ReadCluster(json).status().code(), absl::StatusCode::kDataLoss)
        << json.substr(0, 200);
  }
}

uint64_t OwnStartTicks() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
  return std::strtoull(fields[19].c_str(), nullptr, 10);
}

TEST(IsRunning, OnlyTheSameProcessCounts) {
  LocalDaemon daemon{
      .name = "d", .pid = getpid(), .start_ticks = OwnStartTicks(), .log = "", .metrics = ""};
  EXPECT_TRUE(IsRunning(daemon));
  daemon.start_ticks += 1;
  EXPECT_FALSE(IsRunning(daemon)) << "another process with its pid";
  daemon.start_ticks = 0;
  EXPECT_FALSE(IsRunning(daemon));
  for (const int pid : {0, -1, std::numeric_limits<int>::max()}) {
    daemon.pid = pid;
    EXPECT_FALSE(IsRunning(daemon)) << pid;
  }
}

TEST(IsRunning, AZombieIsGone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    char byte = 0;
    _exit(read(ends[0], &byte, 1) == 1 ? 0 : 1);
  }
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
  const LocalDaemon daemon{.name = "d",
                           .pid = pid,
                           .start_ticks = std::strtoull(fields[19].c_str(), nullptr, 10),
                           .log = "",
                           .metrics = ""};
  EXPECT_TRUE(IsRunning(daemon));
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(IsRunning(daemon));
  waitpid(pid, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
}

std::string JobText(const std::string& train, const std::string& more) {
  return absl::StrCat(
      "name: j\n"
      "model: {architecture: gpt2, num_layers: 2, hidden_size: 64, num_heads: 2, vocab_size: 256, "
      "max_sequence_length: 16}\n"
      "data:\n  train: [{path: ",
      train, "}]\n  tokenizer: bytes\n  sequence_length: 16\n",
      "training: {steps: 3, global_batch_size: 4, micro_batch_size: 1, optimizer: {adamw: "
      "{learning_rate: 1.0e-3}}}\n",
      more);
}

TEST_F(FilesTest, RelativePathsOfAJobAreTakenFromItsFolder) {
  const std::string path = Write("jobs/a/job.yaml", JobText("../data/t.txt", R"(
checkpoint: {directory: out/./x, every_steps: 1}
)"));
  const auto job = ReadJobFile(path, {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->proto.data().train(0).path(), root_ + "/jobs/data/t.txt");
  EXPECT_EQ(job->spec.train[0].path, root_ + "/jobs/data/t.txt");
  EXPECT_EQ(job->proto.checkpoint().directory(), root_ + "/jobs/a/out/x");
  EXPECT_EQ(job->spec.checkpoint_directory, root_ + "/jobs/a/out/x");
}

TEST_F(FilesTest, AbsolutePathsOfAJobStayAndOverridesWin) {
  const std::string path = Write("job.yaml", JobText("/data/t.txt", ""));
  const auto job = ReadJobFile(path, {"training.steps=5", "checkpoint.directory=here"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.train[0].path, "/data/t.txt");
  EXPECT_EQ(job->spec.steps, 5);
  EXPECT_THAT(job->proto.set_fields(), ElementsAre("training.steps", "checkpoint.directory"));
  EXPECT_EQ(job->spec.checkpoint_directory, root_ + "/here");
}

TEST_F(FilesTest, AFileNamedRelativeToTheCurrentFolder) {
  Write("sub/job.yaml", JobText("t.txt", ""));
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(root_);
  const auto job = ReadJobFile("sub/job.yaml", {});
  std::filesystem::current_path(before);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.train[0].path, root_ + "/sub/t.txt");
}

constexpr const char* kSchedule = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";

TEST_F(FilesTest, AScheduleIsReadFromTheFolderOfItsJob) {
  Write("jobs/s/mine.csv", kSchedule);
  const std::string path = Write(
      "jobs/a/job.yaml", JobText("t.txt", "parallelism: {pipeline_schedule: csv:../s/mine.csv}"));
  const auto job = ReadJobFile(path, {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->proto.parallelism().pipeline_schedule(), "csv:" + root_ + "/jobs/s/mine.csv");
  EXPECT_EQ(job->proto.parallelism().pipeline_schedule_csv(), kSchedule);
  EXPECT_EQ(job->spec.layout.schedule_csv, kSchedule);
}

TEST_F(FilesTest, AScheduleThatIsGivenWinsOverTheJobs) {
  Write("here/mine.csv", kSchedule);
  const std::string path =
      Write("job.yaml", JobText("t.txt", "parallelism: {pipeline_schedule: csv:gone.csv}"));
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(root_ + "/here");
  const auto job = ReadJobFile(path, {}, "csv:mine.csv");
  const auto named = ReadJobFile(path, {}, "gpipe");
  std::filesystem::current_path(before);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.layout.schedule_csv, kSchedule);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->spec.layout.schedule, "gpipe");
  EXPECT_EQ(named->spec.layout.schedule_csv, "");
}

TEST_F(FilesTest, AScheduleThatCannotRunIsOneFaultWithItsCellMarked) {
  Write("mine.csv", "0F0,0B0\n1F0,1X0\n");
  const std::string path =
      Write("job.yaml", JobText("t.txt", "parallelism: {pipeline_schedule: csv:mine.csv}"));
  const absl::Status status = ReadJobFile(path, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("parallelism.pipeline_schedule: " + root_ + "/mine.csv"));
  EXPECT_THAT(message, HasSubstr("row 1     1F0 1X0\n              ^^^\n"));
  EXPECT_EQ(message.find("parallelism", 20), std::string::npos) << message;
}

TEST_F(FilesTest, AScheduleThatIsNotThereIsOneFault) {
  for (const char* schedule : {"csv:", "csv:none.csv", "csv:."}) {
    const std::string path = Write(
        "job.yaml",
        JobText("t.txt", absl::StrCat("parallelism: {pipeline_schedule: \"", schedule, "\"}")));
    const absl::Status status = ReadJobFile(path, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << schedule;
    EXPECT_EQ(status.message().find("\n"), absl::string_view::npos) << status;
  }
}

TEST_F(FilesTest, AMissingOrBadJobFileIsAUsageError) {
  const absl::Status missing = ReadJobFile(root_ + "/none.yaml", {}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("none.yaml"));
  for (const char* text : {"", "{", "- 1\n", "name: j\nnmae: k\n"}) {
    EXPECT_EQ(ReadJobFile(Write("bad.yaml", text), {}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace esteira
