#include "client/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ClusterSpec Parsed(absl::string_view text) {
  absl::StatusOr<ClusterSpec> cluster = ParseClusterFile(text);
  EXPECT_TRUE(cluster.ok()) << cluster.status() << "\n" << text;
  return cluster.ok() ? *std::move(cluster) : ClusterSpec();
}

std::vector<std::string> FaultsOf(absl::string_view text) {
  const absl::Status status = ParseClusterFile(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return absl::StrSplit(status.message(), '\n');
}

// One worker with one field.
std::string Worker(const std::string& field) { return absl::StrCat("workers: [{", field, "}]"); }

TEST(ParseClusterFile, ReadsEveryField) {
  const ClusterSpec cluster = Parsed(
      "workers:\n"
      "  - {count: 5, kind: h100, memory: 80 GiB, flops: 400e12, memory_bandwidth: 3e12, per_host: "
      "2}\n"
      "  - {kind: cpu, flops_fp32: 50 GFLOP/s, flops_bf16: 75 GFLOP/s, pass_time: 5 ms}\n"
      "links:\n"
      "  within_host: {latency: 5us, bandwidth: 400e9}\n"
      "  between_hosts: {latency: 20 us, bandwidth: 50 GB/s}\n");
  ASSERT_EQ(cluster.num_workers(), 6);
  const WorkerSpec& first = cluster.workers[0];
  EXPECT_EQ(first.kind, "h100");
  EXPECT_EQ(first.memory_bytes, int64_t{80} << 30);
  EXPECT_EQ(first.flops_fp32, 400e12);
  EXPECT_EQ(first.flops_bf16, 400e12);
  EXPECT_EQ(first.bytes_per_second, 3e12);
  const WorkerSpec& last = cluster.workers[5];
  EXPECT_EQ(last.kind, "cpu");
  EXPECT_EQ(last.memory_bytes, 0);
  EXPECT_EQ(last.flops_fp32, 50e9);
  EXPECT_EQ(last.flops_bf16, 75e9);
  EXPECT_DOUBLE_EQ(last.pass_seconds, 5e-3);
  std::vector<int> hosts;
  for (const WorkerSpec& worker : cluster.workers) hosts.push_back(worker.host);
  EXPECT_THAT(hosts, ElementsAre(0, 0, 1, 1, 2, 3)) << "kinds do not share a host";
  EXPECT_DOUBLE_EQ(cluster.within_host.latency_seconds, 5e-6);
  EXPECT_EQ(cluster.within_host.bytes_per_second, 400e9);
  EXPECT_DOUBLE_EQ(cluster.between_hosts.latency_seconds, 20e-6);
  EXPECT_EQ(cluster.between_hosts.bytes_per_second, 50e9);
}

TEST(ParseClusterFile, WhatIsLeftOutIsAsInClusterSpec) {
  const ClusterSpec cluster = Parsed("workers: [{}]");
  ASSERT_EQ(cluster.num_workers(), 1);
  EXPECT_EQ(cluster.workers[0], WorkerSpec());
  EXPECT_EQ(cluster.within_host, LinkSpec());
  EXPECT_EQ(cluster.between_hosts, LinkSpec());
  EXPECT_EQ(Parsed("{workers: [{count: 3}], links: {within_host: {latency: 1}}}").workers[2].host,
            2)
      << "a host each";
}

TEST(ParseClusterFile, SizesHaveUnits) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {{"12", 12},
                                                              {"0", 0},
                                                              {"1e3", 1000},
                                                              {"3 B", 3},
                                                              {"2kB", 2000},
                                                              {"2 KiB", 2048},
                                                              {"1.5 MiB", 1572864},
                                                              {"4 MB", 4000000},
                                                              {"'80 GiB'", 80LL << 30},
                                                              {"1 TB", 1000000000000},
                                                              {"1TiB", 1LL << 40},
                                                              {"7   GB", 7000000000}};
  for (const auto& [text, bytes] : sizes) {
    EXPECT_EQ(Parsed(Worker("memory: " + text)).workers[0].memory_bytes, bytes) << text;
  }
}

TEST(ParseClusterFile, NamesABadNumberWithItsFieldAndUnits) {
  for (const char* text : {"80 gib", "GiB", "", "80 G", "80 GB/s", "'1,5 GB'", "nan", "inf", "[80]",
                           "{a: 1}", "80 GiB more", "1e400", "~"}) {
    EXPECT_THAT(FaultsOf(Worker(absl::StrCat("memory: ", text))),
                ElementsAre(HasSubstr("workers[0].memory: is ")))
        << text;
  }
  EXPECT_THAT(FaultsOf(Worker("memory: 80 gib"))[0],
              HasSubstr("is \"80 gib\", not a number with or without a unit (B, kB, MB"));
  EXPECT_THAT(FaultsOf(Worker("pass_time: 5 min"))[0], HasSubstr("(s, ms, us, ns)"));
}

TEST(ParseClusterFile, NamesANumberOutOfRange) {
  EXPECT_THAT(FaultsOf(Worker("memory: -1"))[0], HasSubstr("must be at least 0"));
  EXPECT_THAT(FaultsOf(Worker("memory: 1e10 GB"))[0], HasSubstr("at most 1e18"));
  for (const char* field : {"flops", "flops_fp32", "flops_bf16", "memory_bandwidth"}) {
    for (const char* value : {"0", "-3", "0 GFLOP/s"}) {
      EXPECT_THAT(FaultsOf(Worker(absl::StrCat(field, ": ", value))),
                  ElementsAre(HasSubstr(absl::StrCat("workers[0].", field, ": is "))));
    }
  }
  for (const char* field : {"count", "per_host"}) {
    for (const char* value :
         {"0", "-1", "1.5", "1e3", "x", "65537", "99999999999999999999", "[1]"}) {
      EXPECT_THAT(FaultsOf(Worker(absl::StrCat(field, ": ", value))),
                  ElementsAre(HasSubstr("not a whole number from 1 to 65536")))
          << value;
    }
  }
  EXPECT_THAT(FaultsOf("workers: [{count: 65536}, {count: 1}]"),
              ElementsAre(HasSubstr("workers[1]: makes more than 65536 workers")));
}

TEST(ParseClusterFile, NamesAllFaultsAtOnce) {
  EXPECT_THAT(
      FaultsOf("worker: [{count: 1}]\n"
               "workers:\n"
               "  - {cuont: 8, memory: much, flops: 0}\n"
               "  - 7\n"
               "  - {kind: [h100], kind: b}\n"
               "links: {inside: {}, within_host: {latency: -1, bandwith: 3}, between_hosts: 4}\n"),
      ElementsAre("worker: is not a field; did you mean workers?",
                  "workers[0].cuont: is not a field; did you mean count?",
                  HasSubstr("workers[0].memory: is \"much\""),
                  HasSubstr("workers[0].flops: is \"0\""),
                  "workers[1]: is \"7\", not a map of fields",
                  "workers[2].kind: is a list; write one word, for example h100",
                  HasSubstr("workers[2].kind: is given twice (line 5)"),
                  "links.inside: is not a field; did you mean within_host?",
                  HasSubstr("links.within_host.latency: is \"-1\""),
                  "links.within_host.bandwith: is not a field; did you mean bandwidth?",
                  "links.between_hosts: is \"4\", not a map of fields"));
}

TEST(ParseClusterFile, NamesAFileThatIsNoMap) {
  for (const char* text : {"", "~", "- a", "just words", "7"}) {
    EXPECT_THAT(FaultsOf(text), ElementsAre(HasSubstr("cluster file: is "))) << text;
  }
  EXPECT_THAT(FaultsOf("workers: ["), ElementsAre(HasSubstr("cluster file: is not YAML: line 1")));
  EXPECT_THAT(FaultsOf("{}"), ElementsAre(HasSubstr("workers: is missing")));
  EXPECT_THAT(FaultsOf("workers: []"), ElementsAre(HasSubstr("workers: is an empty list")));
  EXPECT_THAT(FaultsOf("workers: {count: 8}"),
              ElementsAre(HasSubstr("workers: is a map of fields")));
  EXPECT_THAT(FaultsOf("num_workers: 8")[0],
              HasSubstr("num_workers: is not a field; did you mean workers?"));
  EXPECT_THAT(FaultsOf(std::string((1 << 20) + 1, '#')), ElementsAre(HasSubstr("at most 1048576")));
  EXPECT_THAT(FaultsOf(std::string(100'000, '[')), ElementsAre(HasSubstr("cluster file: is")));
}

TEST(ParseClusterFile, AnyBytesAreRefusedOrAreACluster) {
  const std::string valid =
      "workers: [{count: 8, kind: h100, memory: 80 GiB, per_host: 4}]\nlinks: {within_host: "
      "{latency: 5us}}\n";
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = valid;
    for (size_t change = 0; change < 1 + random() % 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const absl::StatusOr<ClusterSpec> cluster = ParseClusterFile(bytes);
    if (cluster.ok()) {
      EXPECT_GE(cluster->num_workers(), 1) << bytes;
    } else {
      EXPECT_EQ(cluster.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(ReadClusterFile, ReadsTheExamples) {
  const auto h100 = ReadClusterFile(ESTEIRA_SOURCE_DIR "/deploy/local/clusters/h100-16384.yaml");
  ASSERT_TRUE(h100.ok()) << h100.status();
  EXPECT_EQ(h100->num_workers(), 16384);
  EXPECT_EQ(h100->workers.back().host, 2047);
  const auto cpu = ReadClusterFile(ESTEIRA_SOURCE_DIR "/deploy/local/clusters/cpu-3-one-slow.yaml");
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->num_workers(), 3);
  EXPECT_EQ(2 * cpu->workers[2].flops_fp32, cpu->workers[0].flops_fp32);
}

TEST(ReadClusterFile, AMissingFileIsAUsageError) {
  const absl::Status status = ReadClusterFile("/no/such.yaml").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such.yaml"));
}

}  // namespace
}  // namespace esteira
