#include "common/plan/plan_codec.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "coordinator/planner/planner.h"
#include "esteira/v1/plan.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

Plan MakeTestPlan() {
  JobSpec job;
  job.model.architecture = Architecture::kLlama;
  job.model.num_layers = 2;
  job.model.hidden_size = 8;
  job.model.num_heads = 2;
  job.model.num_kv_heads = 1;
  job.model.intermediate_size = 12;
  job.model.vocab_size = 16;
  job.model.max_sequence_length = 8;
  job.model.tie_embeddings = true;
  job.model.norm_epsilon = 1e-6;
  job.model.rope_theta = 500000;
  job.sequence_length = 5;
  job.global_batch_size = 7;
  job.layout.stages = 2;
  job.layout.replicas = 2;
  job.layout.zero = 3;
  job.layout.schedule = "1f1b";
  job.layout.micro_batch_size = 2;
  job.layout.recompute = "full";
  absl::StatusOr<Plan> plan = MakePlan(job, UniformCluster(4));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(PlanCodecTest, RoundTripThroughBytes) {
  Plan plan = MakeTestPlan();
  plan.train[1].instructions[2].joined = true;
  v1::PlanProto proto;
  ASSERT_TRUE(proto.ParseFromString(EncodePlan(plan).SerializeAsString()));
  EXPECT_EQ(proto.digest(), PlanDigest(plan));
  const absl::StatusOr<Plan> decoded = DecodePlan(proto);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(*decoded == plan);
}

TEST(PlanCodecTest, EveryChangeBreaksTheDigest) {
  const v1::PlanProto proto = EncodePlan(MakeTestPlan());
  const std::function<void(v1::PlanProto&)> changes[] = {
      [](v1::PlanProto& p) { p.mutable_model()->set_rope_theta(10000); },
      [](v1::PlanProto& p) { p.mutable_model()->set_vocab_size(17); },
      [](v1::PlanProto& p) { p.mutable_layout()->set_zero(2); },
      [](v1::PlanProto& p) { p.mutable_layout()->set_boundaries(1, p.layout().boundaries(1) + 1); },
      [](v1::PlanProto& p) { p.mutable_layout()->mutable_policies(1)->set_recompute(false); },
      [](v1::PlanProto& p) { p.mutable_layout()->set_exact_numerics(true); },
      [](v1::PlanProto& p) { p.set_precision("fp32"); },
      [](v1::PlanProto& p) { p.mutable_train(0)->mutable_instructions()->SwapElements(0, 1); },
      [](v1::PlanProto& p) { p.mutable_train(1)->mutable_instructions(2)->set_slot(3); },
      [](v1::PlanProto& p) { p.mutable_train(1)->mutable_instructions(2)->set_joined(true); },
      [](v1::PlanProto& p) { p.mutable_evaluate(0)->mutable_instructions()->RemoveLast(); },
      [](v1::PlanProto& p) { p.mutable_train(0)->mutable_micro_batches(0)->set_num_samples(1); },
      [](v1::PlanProto& p) { p.mutable_train(0)->mutable_slots(0)->set_bytes(1); },
      [](v1::PlanProto& p) { p.mutable_train()->RemoveLast(); },
      [](v1::PlanProto& p) { p.clear_digest(); },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    v1::PlanProto changed = proto;
    changes[i](changed);
    const absl::Status status = DecodePlan(changed).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_THAT(std::string(status.message()), HasSubstr("digest")) << i;
  }
}

TEST(PlanCodecTest, ThePredictionIsOutsideTheDigest) {
  v1::PlanProto proto = EncodePlan(MakeTestPlan());
  proto.mutable_prediction()->set_step_seconds(42);
  const auto decoded = DecodePlan(proto);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->prediction.step_seconds, 42);
}

TEST(PlanCodecTest, FieldsOutOfRangeAreNamed) {
  const v1::PlanProto proto = EncodePlan(MakeTestPlan());
  const std::pair<const char*, std::function<void(v1::PlanProto&)>> changes[] = {
      {"architecture", [](v1::PlanProto& p) { p.mutable_model()->set_architecture("mamba"); }},
      {"precision", [](v1::PlanProto& p) { p.set_precision("fp64"); }},
      {"model.num_layers", [](v1::PlanProto& p) { p.mutable_model()->set_num_layers(0); }},
      {"model.vocab_size", [](v1::PlanProto& p) { p.mutable_model()->set_vocab_size(-5); }},
      {"norm_epsilon",
       [](v1::PlanProto& p) {
         p.mutable_model()->set_norm_epsilon(std::numeric_limits<double>::quiet_NaN());
       }},
      {"layout.stages", [](v1::PlanProto& p) { p.mutable_layout()->set_stages(0); }},
      {"layout.micro_batch_size",
       [](v1::PlanProto& p) { p.mutable_layout()->set_micro_batch_size(0); }},
      {"layout.zero", [](v1::PlanProto& p) { p.mutable_layout()->set_zero(4); }},
      {"layout.reduce_every",
       [](v1::PlanProto& p) { p.mutable_layout()->mutable_policies(0)->set_reduce_every(-1); }},
      {"layout.gather_for",
       [](v1::PlanProto& p) { p.mutable_layout()->mutable_policies(1)->set_gather_for(-1); }},
      {"layout.lookahead",
       [](v1::PlanProto& p) { p.mutable_layout()->mutable_policies(0)->set_lookahead(-1); }},
      {"instruction.op",
       [](v1::PlanProto& p) { p.mutable_train(0)->mutable_instructions(0)->set_op(kNumOps); }},
      {"instruction.op",
       [](v1::PlanProto& p) { p.mutable_train(0)->mutable_instructions(0)->set_op(-1); }},
      {"instruction.dx",
       [](v1::PlanProto& p) { p.mutable_evaluate(3)->mutable_instructions(0)->set_dx(-1); }},
      {"program.rank", [](v1::PlanProto& p) { p.mutable_train(0)->set_rank(-1); }},
      {"program.units", [](v1::PlanProto& p) { p.mutable_train(0)->set_units(0, -2); }},
      {"program.slots",
       [](v1::PlanProto& p) { p.mutable_train(0)->mutable_slots()->RemoveLast(); }},
      {"slots.count",
       [](v1::PlanProto& p) { p.mutable_train(0)->mutable_slots(2)->set_count(-1); }},
      {"micro_batch.num_samples",
       [](v1::PlanProto& p) { p.mutable_train(0)->mutable_micro_batches(0)->set_num_samples(-1); }},
  };
  for (const auto& [name, change] : changes) {
    v1::PlanProto changed = proto;
    change(changed);
    const absl::Status status = DecodePlan(changed).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  EXPECT_FALSE(DecodePlan(v1::PlanProto()).ok());
}

}  // namespace
}  // namespace esteira
