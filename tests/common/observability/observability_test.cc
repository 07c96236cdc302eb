#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/observability/coordinator_metrics.h"
#include "common/observability/exposer.h"
#include "common/observability/process_collector.h"
#include "common/observability/worker_metrics.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

std::string Scrape(int port) {
  const int fd = Connect(port);
  const std::string request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string response;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;)
    response.append(buffer, static_cast<size_t>(got));
  close(fd);
  const size_t body = response.find("\r\n\r\n");
  return body == std::string::npos ? "" : response.substr(body + 4);
}

std::string Text(const prometheus::Collectable& collectable) {
  return prometheus::TextSerializer().Serialize(collectable.Collect());
}

StepObservation ExampleStep() {
  StepObservation step;
  step.loss = 2.5;
  step.tokens = 64;
  step.duration = absl::Milliseconds(3);
  step.transport = "ucx";
  step.bytes_moved = {{"SEND_ACT", 10}, {"DANCE", 5}};
  step.messages_dropped = 7;
  return step;
}

TEST(Metrics, AScrapeOfEverythingPassesPromtool) {
  if (access("/usr/bin/promtool", X_OK) != 0) {
    GTEST_SKIP() << "/usr/bin/promtool is not there (Debian package prometheus)";
  }
  const auto registry = std::make_shared<prometheus::Registry>();
  CoordinatorMetrics coordinator(*registry, {"QUEUED", "RUNNING"}, {"IDLE", "BUSY", "LOST"});
  coordinator.CountTransition("QUEUED", "RUNNING");
  coordinator.ObserveStep("job-1", 1, 2, 3);
  coordinator.ObserveRpc("/esteira.v1.JobService/GetJob", "OK", absl::Seconds(1));
  WorkerMetrics worker(*registry);
  worker.ObserveStep(ExampleStep());
  ExportBuildInfo(*registry, "test", "0.1");
  const auto exposer = MetricsExposer::Open("127.0.0.1:0", {registry, MakeProcessCollector()});
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  const std::string text = Scrape((*exposer)->port());
  EXPECT_THAT(text, HasSubstr("process_resident_memory_bytes"));
  EXPECT_THAT(text, HasSubstr("esteira_build_info{component=\"test\",version=\"0.1\"} 1"));
  const std::string path = testing::TempDir() + "/scrape.txt";
  std::ofstream(path) << text;
  EXPECT_EQ(std::system(absl::StrCat("/usr/bin/promtool check metrics < ", path).c_str()), 0)
      << text;
}

TEST(Metrics, ATakenAddressIsNamed) {
  const auto first = MetricsExposer::Open("127.0.0.1:0", {});
  ASSERT_TRUE(first.ok());
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  const absl::Status status = MetricsExposer::Open(address, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
}

TEST(Metrics, IdleConnectionsDoNotBlockScrapes) {
  auto registry = std::make_shared<prometheus::Registry>();
  ExportBuildInfo(*registry, "test", "1");
  auto exposer = MetricsExposer::Open("127.0.0.1:0", {registry});
  ASSERT_TRUE(exposer.ok());
  std::vector<int> idle;
  for (int i = 0; i < 18; ++i) idle.push_back(Connect((*exposer)->port()));
  EXPECT_THAT(Scrape((*exposer)->port()), HasSubstr("esteira_build_info"));
  for (const int fd : idle) close(fd);
}

TEST(WorkerMetrics, KnownSeriesAreThereAtZeroAndUnknownOnesAreOther) {
  prometheus::Registry registry;
  WorkerMetrics metrics(registry);
  EXPECT_THAT(Text(registry),
              HasSubstr("esteira_worker_trainer_exits_total{cause=\"out_of_memory\"} 0"));
  metrics.ObserveStep(ExampleStep());
  metrics.ObserveExit(ExitCause::kSignal);
  metrics.CountDroppedLine();
  const std::string text = Text(registry);
  EXPECT_THAT(text, HasSubstr("operation=\"SEND_ACT\""));
  EXPECT_THAT(text, Not(HasSubstr("DANCE")));
  EXPECT_THAT(text, HasSubstr("esteira_worker_tokens_total 64"));
  EXPECT_THAT(text, HasSubstr("esteira_worker_dropped_messages_total 7"));
  EXPECT_THAT(text, HasSubstr("esteira_worker_dropped_log_lines_total 1"));
  EXPECT_THAT(text, HasSubstr("esteira_worker_trainer_exits_total{cause=\"signal\"} 1"));
}

TEST(WorkerMetrics, SavesOfCheckpoints) {
  prometheus::Registry registry;
  WorkerMetrics metrics(registry);
  EXPECT_THAT(Text(registry), HasSubstr("esteira_worker_checkpoint_failures_total 0"));
  EXPECT_THAT(Text(registry), HasSubstr("esteira_worker_checkpoint_seconds_count 0"));
  metrics.ObserveCheckpoint(false, absl::Seconds(2), absl::Seconds(0.25));
  metrics.ObserveCheckpoint(true, absl::Seconds(9), absl::Seconds(0.5));
  const std::string text = Text(registry);
  EXPECT_THAT(text, HasSubstr("esteira_worker_checkpoint_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("esteira_worker_checkpoint_seconds_sum 2"));
  EXPECT_THAT(text, HasSubstr("esteira_worker_checkpoint_stall_seconds_count 2"));
  EXPECT_THAT(text, HasSubstr("esteira_worker_checkpoint_stall_seconds_sum 0.75"));
  EXPECT_THAT(text, HasSubstr("esteira_worker_checkpoint_failures_total 1"));
}

TEST(WorkerMetrics, RatesOfTheDevice) {
  prometheus::Registry registry;
  WorkerMetrics metrics(registry);
  EXPECT_THAT(Text(registry), HasSubstr("esteira_worker_flops{precision=\"bf16\"} 0"));
  metrics.SetRates(128, 256, 512);
  EXPECT_THAT(Text(registry), HasSubstr("esteira_worker_flops{precision=\"fp32\"} 128"));
  EXPECT_THAT(Text(registry), HasSubstr("esteira_worker_flops{precision=\"bf16\"} 256"));
  EXPECT_THAT(Text(registry), HasSubstr("esteira_worker_memory_bytes_per_second 512"));
}

TEST(CoordinatorMetrics, SeriesOfJobsEndWithThemAndAreBounded) {
  prometheus::Registry registry;
  CoordinatorMetrics metrics(registry, {"QUEUED"}, {"IDLE"});
  EXPECT_THAT(Text(registry), HasSubstr("esteira_jobs{state=\"QUEUED\"} 0"));
  for (size_t i = 0; i <= CoordinatorMetrics::kMaxJobSeries; ++i) {
    metrics.ObserveStep(absl::StrCat("job-", i), 1, 1, 1);
  }
  EXPECT_THAT(Text(registry), HasSubstr("esteira_job_loss{job=\"job-0\"}"));
  EXPECT_THAT(Text(registry),
              Not(HasSubstr(absl::StrCat("job=\"job-", CoordinatorMetrics::kMaxJobSeries, "\""))));
  metrics.RemoveJob("job-0");
  metrics.RemoveJob("job-0");
  EXPECT_THAT(Text(registry), Not(HasSubstr("job=\"job-0\"")));
}

TEST(ProcessCollector, ReadsThisProcess) {
  double memory = 0, start = 0;
  for (const prometheus::MetricFamily& family : MakeProcessCollector()->Collect()) {
    if (family.name == "process_resident_memory_bytes") memory = family.metric[0].gauge.value;
    if (family.name == "process_start_time_seconds") start = family.metric[0].gauge.value;
  }
  EXPECT_GT(memory, 1e5);
  EXPECT_NEAR(start, static_cast<double>(absl::ToUnixSeconds(absl::Now())), 3600);
}

}  // namespace
}  // namespace esteira
