// StartLocalCluster with programs that only say where they listen. The test runs in a folder of its
// own, so that the real ones are not found beside it.
#include "client/local_cluster.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/rpc/server.h"
#include "esteira/v1/cluster.grpc.pb.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

class FakeCluster : public v1::ClusterService::Service {
 public:
  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override {
    for (int i = 0; i < workers; ++i) response->add_workers()->set_state(v1::IDLE);
    return grpc::Status::OK;
  }
  std::atomic<int> workers = 2;
};

class LocalClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = absl::StrCat(testing::TempDir(), getpid(), "-",
                         testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(root_ + "/bin");
    unsetenv("XDG_STATE_HOME");
    setenv("HOME", root_.c_str(), 1);
    setenv("PATH", absl::StrCat(root_, "/bin:/usr/bin:/bin").c_str(), 1);
    auto server = RpcServer::Start({}, {{"esteira.v1.ClusterService", &service_}});
    ASSERT_TRUE(server.ok()) << server.status();
    rpc_ = *std::move(server);
    WriteProgram("esteira-coordinator", Serve(absl::StrCat("127.0.0.1:", rpc_->port())));
    WriteProgram("esteira-worker", Serve("none:1"));
    options_.directory = root_ + "/cluster";
  }
  void TearDown() override {
    if (const auto left = ReadLocalCluster(options_.directory); left.ok())
      StopLocalCluster(*left).IgnoreError();
    rpc_->Shutdown(absl::ZeroDuration());
    std::filesystem::remove_all(root_);
  }

  // A script that writes its port file and stays.
  static std::string Serve(const std::string& address) {
    return absl::StrCat(
        "for a; do case $a in --port_file=*) echo '{\"address\": \"", address,
        "\", \"metrics_address\": \"m:9\"}' > \"${a#--port_file=}\";; esac; done\n",
        "echo \"$@\" >> \"$HOME/started\"\necho $$ > \"$HOME/pid\"\nexec sleep 600\n");
  }
  void WriteProgram(const std::string& name, const std::string& script) {
    const std::string path = absl::StrCat(root_, "/bin/", name);
    std::ofstream(path) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  std::string Read(const std::string& name) {
    std::ifstream file(absl::StrCat(root_, "/", name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string root_;
  FakeCluster service_;
  std::unique_ptr<RpcServer> rpc_;
  LocalClusterOptions options_;
};

TEST_F(LocalClusterTest, StartsRemembersAndStops) {
  const auto cluster = StartLocalCluster(options_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->server, absl::StrCat("127.0.0.1:", rpc_->port()));
  ASSERT_EQ(cluster->daemons.size(), 3u);
  EXPECT_EQ(cluster->daemons[0].name, "coordinator");
  EXPECT_EQ(cluster->daemons[2].name, "worker-1");
  for (const LocalDaemon& daemon : cluster->daemons) {
    EXPECT_TRUE(IsRunning(daemon)) << daemon.name;
    EXPECT_EQ(daemon.metrics, "m:9");
  }
  EXPECT_THAT(Read("started"), HasSubstr("--id=worker-1"));
  EXPECT_EQ(DefaultLocalCluster()->server, cluster->server);
  EXPECT_EQ(StartLocalCluster(options_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsRunning(cluster->daemons[0])) << "a refusal stops nothing";

  ASSERT_TRUE(StopLocalCluster(*cluster).ok());
  for (const LocalDaemon& daemon : cluster->daemons) EXPECT_FALSE(IsRunning(daemon));
  EXPECT_EQ(DefaultLocalCluster().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadLocalCluster(options_.directory).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LocalClusterTest, AClusterWhoseDaemonsAreGoneIsStartedAnew) {
  const auto first = StartLocalCluster(options_);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const LocalDaemon& daemon : first->daemons) {
    kill(daemon.pid, SIGKILL);
    waitpid(daemon.pid, nullptr, 0);
  }
  const auto second = StartLocalCluster(options_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(second->daemons[0].pid, first->daemons[0].pid);
}

TEST_F(LocalClusterTest, ADaemonThatDiesTakesTheOthersWithIt) {
  WriteProgram("esteira-worker", "echo boom >&2; exit 1\n");
  const absl::Status status = StartLocalCluster(options_).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker-0 ended at once: boom"));
  EXPECT_EQ(ReadLocalCluster(options_.directory).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DefaultLocalCluster().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Read("started"), HasSubstr("--data_dir")) << "the coordinator had begun";
  EXPECT_NE(waitpid(std::stoi(Read("pid")), nullptr, WNOHANG), 0) << "and is gone";
}

TEST_F(LocalClusterTest, AProgramThatIsMissingIsNamed) {
  std::filesystem::remove(root_ + "/bin/esteira-coordinator");
  EXPECT_THAT(std::string(StartLocalCluster(options_).status().message()),
              HasSubstr("cannot start esteira-coordinator"));
}

}  // namespace
}  // namespace esteira
