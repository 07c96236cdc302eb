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
  const std::string bytes = PackPlan(EncodePlan(plan));
  EXPECT_LT(bytes.size(), EncodePlan(plan).ByteSizeLong());
  const absl::StatusOr<v1::PlanProto> proto = UnpackPlan(bytes);
  ASSERT_TRUE(proto.ok()) << proto.status();
  EXPECT_EQ(proto->digest(), PlanDigest(plan));
  const absl::StatusOr<Plan> decoded = DecodePlan(*proto);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(*decoded == plan);
}

// Whatever is cut off or flipped, nobody runs it.
TEST(PlanCodecTest, DamagedBytesAreRefused) {
  const std::string bytes = PackPlan(EncodePlan(MakeTestPlan()));
  const auto is_refused = [](const std::string& damaged) {
    const absl::StatusOr<v1::PlanProto> proto = UnpackPlan(damaged);
    const absl::Status status = proto.ok() ? DecodePlan(*proto).status() : proto.status();
    return status.code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(is_refused(""));
  EXPECT_TRUE(is_refused("no plan at all"));
  for (size_t size = 0; size < bytes.size() - 8; size += 7) {  // the last 8 are the sum and length
    EXPECT_TRUE(is_refused(bytes.substr(0, size))) << size;
  }
  const Plan good = *DecodePlan(*UnpackPlan(bytes));
  for (size_t at = 0; at < bytes.size(); at += 5) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const absl::StatusOr<v1::PlanProto> proto = UnpackPlan(damaged);
    if (!proto.ok()) continue;
    const absl::StatusOr<Plan> plan = DecodePlan(*proto);
    EXPECT_TRUE(!plan.ok() || *plan == good) << "byte " << at;
  }
}

TEST(PlanCodecTest, APlanIsNoLongerForMoreReplicas) {
  Plan plan = MakeTestPlan();
  const size_t few = EncodePlan(plan).ByteSizeLong();
  plan.layout.replicas = 8192;
  EXPECT_LT(EncodePlan(plan).ByteSizeLong(), few + 16);
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
      [](v1::PlanProto& p) { p.mutable_layout()->set_bf16_gradient_traffic(true); },
      [](v1::PlanProto& p) { p.set_precision("fp32"); },
      [](v1::PlanProto& p) { p.mutable_train(0)->mutable_instructions()->SwapElements(0, 1); },
      [](v1::PlanProto& p) { p.mutable_train(1)->mutable_instructions(2)->set_slot(3); },
      [](v1::PlanProto& p) { p.mutable_train(1)->mutable_instructions(2)->set_joined(true); },
      [](v1::PlanProto& p) { p.mutable_evaluate(0)->mutable_instructions()->RemoveLast(); },
      [](v1::PlanProto& p) {
        p.mutable_train(0)->mutable_slots(0)->mutable_classes(0)->set_bytes(1);
      },
      [](v1::PlanProto& p) { p.mutable_train(0)->mutable_slots(0)->add_classes(); },
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

TEST(PlanCodecTest, PredictionAndWorkersAreOutsideTheDigest) {
  v1::PlanProto proto = EncodePlan(MakeTestPlan());
  EXPECT_EQ(proto.worker_of_rank_size(), 4);
  proto.clear_worker_of_rank();
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
       [](v1::PlanProto& p) { p.mutable_evaluate(1)->mutable_instructions(0)->set_dx(-1); }},
      {"program.stage", [](v1::PlanProto& p) { p.mutable_train(0)->set_stage(-1); }},
      {"program.units", [](v1::PlanProto& p) { p.mutable_train(0)->set_units(0, -2); }},
      {"program.slots",
       [](v1::PlanProto& p) { p.mutable_train(0)->mutable_slots()->RemoveLast(); }},
      {"slots.count",
       [](v1::PlanProto& p) {
         p.mutable_train(0)->mutable_slots(2)->mutable_classes(0)->set_count(-1);
       }},
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
