#include "coordinator/controller/worker_specs.h"

#include <gtest/gtest.h>

#include <deque>

namespace esteira {
namespace {

class WorkerSpecsTest : public testing::Test {
 protected:
  WorkerDescription& Next(const std::string& id, double flops) {
    WorkerDescription& worker = workers_.emplace_back();
    worker.id = id;
    worker.incarnation = 1;
    worker.host = "alpha";
    worker.device = "cpu";
    worker.memory_bytes = 1000;
    worker.flops_fp32 = flops;
    return worker;
  }
  // All of them, registered.
  ClusterSpec Describe(const OpFactorsByKind& factors = {}) {
    std::vector<std::string> ids;
    for (const WorkerDescription& worker : workers_) {
      EXPECT_TRUE(membership_.Register(worker, ++session_, absl::UnixEpoch()).ok());
      ids.push_back(worker.id);
    }
    return ClusterOf(membership_, ids, factors);
  }

  std::deque<WorkerDescription> workers_;
  Membership membership_{Membership::Options()};
  int64_t session_ = 0;
};

TEST_F(WorkerSpecsTest, EveryWorkerAsItIs) {
  WorkerDescription& a = Next("a", 10e9);
  a.flops_bf16 = 30e9;
  a.memory_bytes_per_second = 5e9;
  WorkerDescription& b = Next("b", 5e9);
  b.host = "beta";
  b.memory_bytes = 500;
  WorkerDescription& c = Next("c", 0);
  c.device = "synthetic";
  c.pass_seconds = 0.25;
  const ClusterSpec cluster = Describe();
  ASSERT_EQ(cluster.num_workers(), 3);
  EXPECT_EQ(cluster.workers[0],
            (WorkerSpec{"cpu", 1000, 10e9, 30e9, 5e9, /*pass_seconds=*/0, /*host=*/0}));
  EXPECT_EQ(cluster.workers[1].flops_fp32, 5e9);
  EXPECT_EQ(cluster.workers[1].memory_bytes, 500);
  EXPECT_EQ(cluster.workers[1].host, 1);
  EXPECT_EQ(cluster.workers[2].kind, "synthetic");
  EXPECT_EQ(cluster.workers[2].pass_seconds, 0.25);
  EXPECT_EQ(cluster.workers[2].host, 0);
  EXPECT_EQ(cluster.workers[2].flops_fp32, WorkerSpec().flops_fp32) << "not known: the default";
}

TEST_F(WorkerSpecsTest, RatesThatHardlyDifferAreEqual) {
  Next("a", 10e9);
  Next("b", 9e9);
  Next("c", 11e9);
  Next("d", 5e9);  // half as fast is no noise
  Next("e", 4.9e9);
  const ClusterSpec cluster = Describe();
  for (size_t worker : {0u, 1u, 2u}) EXPECT_EQ(cluster.workers[worker].flops_fp32, 10e9);
  EXPECT_EQ(cluster.workers[3].flops_fp32, cluster.workers[4].flops_fp32);
  EXPECT_NEAR(cluster.workers[3].flops_fp32, 5e9, 0.2e9);
}

TEST_F(WorkerSpecsTest, KindsAreNotMixed) {
  Next("a", 10e9);
  Next("b", 11e9).device = "synthetic";
  const ClusterSpec cluster = Describe();
  EXPECT_EQ(cluster.workers[0].flops_fp32, 10e9);
  EXPECT_EQ(cluster.workers[1].flops_fp32, 11e9);
}

TEST_F(WorkerSpecsTest, FactorsAreThoseOfTheOneKind) {
  OpFactors factors = NoOpFactors();
  factors[0] = 3;
  Next("a", 10e9);
  EXPECT_EQ(Describe({{"cpu", factors}}).factors, factors);
  EXPECT_EQ(Describe({{"cuda", factors}}).factors, NoOpFactors());
  Next("b", 10e9).device = "synthetic";
  EXPECT_EQ(Describe({{"cpu", factors}}).factors, NoOpFactors()) << "two kinds";
}

TEST_F(WorkerSpecsTest, WhatIsMissingIsLikeTheSmallest) {
  EXPECT_EQ(PossibleCluster(membership_, 2, {}).workers, UniformCluster(2).workers);
  Next("a", 10e9);
  Next("b", 3e9);
  Describe();
  membership_.MarkLost("a", "silent");
  const ClusterSpec cluster = PossibleCluster(membership_, 3, {});
  ASSERT_EQ(cluster.num_workers(), 3);
  for (const WorkerSpec& worker : cluster.workers) EXPECT_EQ(worker.flops_fp32, 3e9);
  EXPECT_EQ(PossibleCluster(membership_, 1, {}).num_workers(), 1);
}

}  // namespace
}  // namespace esteira
