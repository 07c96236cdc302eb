#include "coordinator/service/wire_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esteira/v1/job.pb.h"

namespace esteira {
namespace {

v1::JobSpec Tiny() {
  v1::JobSpec spec;
  spec.set_name("tiny");
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_architecture("gpt2");
  model.set_num_layers(2);
  model.set_hidden_size(64);
  model.set_num_heads(2);
  model.set_vocab_size(256);
  model.set_max_sequence_length(16);
  spec.mutable_data()->add_train()->set_path("/data/corpus.txt");
  spec.mutable_data()->set_tokenizer("bytes");
  spec.mutable_data()->set_sequence_length(16);
  spec.mutable_training()->set_steps(2);
  spec.mutable_training()->set_global_batch_size(4);
  spec.mutable_training()->set_precision("fp32");
  spec.mutable_parallelism()->set_pipeline_stages(2);
  return spec;
}

absl::StatusOr<Plan> PlanForThree(const JobSpec& spec, const ClusterSpec&) {
  Plan plan;
  plan.model = spec.model;
  plan.layout.stages = 3;
  plan.layout.sequence_length = 16;
  return plan;
}

TEST(WirePlanner, KnowsWhatAJobNeeds) {
  const auto needs = WirePlanner(PlanForThree).Check(Tiny().SerializeAsString());
  ASSERT_TRUE(needs.ok()) << needs.status();
  EXPECT_EQ(needs->name, "tiny");
  EXPECT_EQ(needs->min_workers, 2);
}

TEST(WirePlanner, RefusesWhatIsNoJob) {
  WirePlanner planner(PlanForThree);
  EXPECT_EQ(planner.Check("\xff\xff").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(planner.Check("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(WirePlanner, RefusesMoreRanksThanAJobMayHave) {
  WirePlanner planner(PlanForThree);
  v1::JobSpec spec = Tiny();
  spec.mutable_parallelism()->set_replicas(32768);
  EXPECT_TRUE(planner.Check(spec.SerializeAsString()).ok());
  spec.mutable_parallelism()->set_replicas(32769);  // two stages each
  EXPECT_EQ(planner.Check(spec.SerializeAsString()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(WirePlanner, RefusesAPlanThatAWorkerCannotBeSent) {
  ClusterSpec cluster = UniformCluster(3);
  const std::string spec = Tiny().SerializeAsString();
  const auto planned = WirePlanner(PlanForThree).Plan(spec, cluster);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const size_t needed = spec.size() + planned->plan_bytes.size() + 4096;
  EXPECT_TRUE(WirePlanner(PlanForThree, needed).Plan(spec, cluster).ok());
  const absl::Status refused = WirePlanner(PlanForThree, needed - 1).Plan(spec, cluster).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("use a larger micro_batch_size"));
}

TEST(WirePlanner, DoesNotPassOnAPlanThatIsTooLarge) {
  WirePlanner planner(PlanForThree);
  ClusterSpec cluster = UniformCluster(2);
  EXPECT_EQ(planner.Plan(Tiny().SerializeAsString(), cluster).status().code(),
            absl::StatusCode::kInternal);
  cluster = UniformCluster(3);
  const auto planned = planner.Plan(Tiny().SerializeAsString(), cluster);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->summary.layout.stages, 3);
  EXPECT_NE(planned->summary.digest, "");
  EXPECT_GT(planned->flops_per_token, 0);
}

}  // namespace
}  // namespace esteira
