#include "common/plan/sizes.h"

#include <string>
#include <tuple>

#include "common/plan/model_spec.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

ModelSpec Model(Architecture architecture, bool tied) {
  ModelSpec model;
  model.architecture = architecture;
  model.num_layers = 3;
  model.hidden_size = 24;
  model.num_heads = 6;
  model.num_kv_heads = architecture == Architecture::kGpt2 ? 6 : 2;
  model.intermediate_size = 50;
  model.vocab_size = 101;
  model.max_sequence_length = 512;
  model.tie_embeddings = tied;
  return model;
}

using LayoutFunction = BufferLayout (*)(const ModelSpec&, const UnitSpec&, int64_t, int64_t,
                                        Precision);
using Parameters = std::tuple<Architecture, bool, Precision>;

class SizesTest : public testing::TestWithParam<Parameters> {
 protected:
  ModelSpec model_ = Model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Precision precision_ = std::get<2>(GetParam());
};

TEST_P(SizesTest, SlicesFollowEachOtherAligned) {
  for (LayoutFunction function : {&SavedLayout, &WorkspaceLayout}) {
    for (const UnitSpec& unit : MakeUnits(model_)) {
      const BufferLayout layout = function(model_, unit, 3, 7, precision_);
      int64_t end = 0;
      for (const TensorSlice& slice : layout.slices) {
        EXPECT_EQ(slice.offset_bytes % 64, 0) << slice.name;
        EXPECT_GE(slice.offset_bytes, end) << slice.name;
        EXPECT_LT(slice.offset_bytes - end, 64) << slice.name;
        EXPECT_GT(slice.elements, 0) << slice.name;
        end = slice.offset_bytes + slice.elements * BytesOf(slice.type);
        EXPECT_EQ(layout.Find(slice.name).offset_bytes, slice.offset_bytes);
      }
      EXPECT_GE(layout.bytes, end);
      EXPECT_LT(layout.bytes - end, 64);
    }
  }
}

// So a short micro-batch fits where a full one was planned.
TEST_P(SizesTest, FewerSequencesNeverNeedMore) {
  for (LayoutFunction function : {&SavedLayout, &WorkspaceLayout}) {
    for (const UnitSpec& unit : MakeUnits(model_)) {
      for (int64_t sequence : {1, 7, 256, 257}) {
        for (int64_t batch = 1; batch < 20; ++batch) {
          const BufferLayout fewer = function(model_, unit, batch - 1, sequence, precision_);
          const BufferLayout more = function(model_, unit, batch, sequence, precision_);
          EXPECT_LE(fewer.bytes, more.bytes);
        }
      }
    }
  }
}

TEST_P(SizesTest, OnlyBlocksAndHeadKeepSomething) {
  for (const UnitSpec& unit : MakeUnits(model_)) {
    const bool keeps = unit.kind == UnitKind::kBlock || unit.kind == UnitKind::kHead;
    EXPECT_EQ(SavedLayout(model_, unit, 2, 5, precision_).bytes > 0, keeps);
    EXPECT_EQ(WorkspaceLayout(model_, unit, 2, 5, precision_).bytes > 0, keeps);
  }
}

// Forward and weight passes multiply each weight once a token, the input pass too: 6 in all.
// Attention: two products forward; backward four, and one to form the scores again, which
// ModelFlopsPerToken does not count.
TEST_P(SizesTest, OperationsOfAllPassesAreThoseOfTheModel) {
  const int64_t batch = 3;
  const int64_t sequence = 64;
  double flops = 0;
  double forward = 0;
  for (const UnitSpec& unit : MakeUnits(model_)) {
    if (unit.kind == UnitKind::kEmbedding) continue;
    forward += ForwardFlops(model_, unit, batch, sequence);
    flops += BackwardInputFlops(model_, unit, batch, sequence) +
             BackwardWeightFlops(model_, unit, batch, sequence);
  }
  flops += forward;
  const double tokens = batch * sequence;
  const double scores_again = 3 * tokens * sequence * 24;  // three layers
  EXPECT_DOUBLE_EQ(flops, ModelFlopsPerToken(model_, sequence) * tokens + scores_again);
  EXPECT_DOUBLE_EQ(forward, ModelFlopsPerToken(model_, sequence) * tokens / 3);
}

TEST_P(SizesTest, EmbeddingAndTablesCostNextToNothing) {
  for (const UnitSpec& unit : MakeUnits(model_)) {
    if (unit.kind == UnitKind::kEmbedding) {
      EXPECT_EQ(ForwardFlops(model_, unit, 3, 7), 3 * 7 * 24);
      EXPECT_EQ(BackwardInputFlops(model_, unit, 3, 7), 0);
      EXPECT_EQ(BackwardWeightFlops(model_, unit, 3, 7), 3 * 7 * 24);
    }
    if (unit.kind == UnitKind::kTied) {
      EXPECT_EQ(ForwardFlops(model_, unit, 3, 7), 0);
      EXPECT_EQ(BackwardWeightFlops(model_, unit, 3, 7), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, SizesTest,
    testing::Combine(testing::Values(Architecture::kGpt2, Architecture::kLlama), testing::Bool(),
                     testing::Values(Precision::kFp32, Precision::kBf16)),
    [](const testing::TestParamInfo<Parameters>& instance) {
      return std::string(ArchitectureName(std::get<0>(instance.param))) +
             (std::get<1>(instance.param) ? "_tied_" : "_untied_") +
             PrecisionName(std::get<2>(instance.param));
    });

TEST(SizesKnownAnswerTest, SavedOfAGpt2Block) {
  // 16 tokens of 24: 8 widths (qkv 3, attention, residual, d_residual, and 2 inner of 48), all
  // multiples of 64 bytes; 4 statistics of 16, 6 heads of log-sum-exp, 2 norms of 2 vectors of 24
  // (192 bytes) each.
  ModelSpec model = Model(Architecture::kGpt2, false);
  model.intermediate_size = 48;
  const UnitSpec block = MakeUnits(model)[1];
  const int64_t fp32 = 4 * 64 + 16 * 6 * 4 + 2 * 192;
  const int64_t widths = 16 * 24 * (3 + 1 + 1 + 1 + 2 * 2);
  EXPECT_EQ(SavedLayout(model, block, 2, 8, Precision::kFp32).bytes, fp32 + 4 * widths);
  EXPECT_EQ(SavedLayout(model, block, 2, 8, Precision::kBf16).bytes, fp32 + 2 * widths);
}

TEST(SizesKnownAnswerTest, AttentionWorksOnSixteenPairsAtOnce) {
  EXPECT_EQ(AttentionWorkspaceElements(0, 7, 4, 8), 0);
  EXPECT_EQ(AttentionWorkspaceElements(3, 7, 4, 8), 12 * 3 * 7 * 8);
  EXPECT_EQ(AttentionWorkspaceElements(4, 7, 4, 8), 16 * 3 * 7 * 8);
  EXPECT_EQ(AttentionWorkspaceElements(5, 7, 4, 8), 16 * 3 * 7 * 8);
}

TEST(SizesKnownAnswerTest, ReductionScratch) {
  EXPECT_EQ(ReduceScratchBytes(640, 1, Numerics::kFast), 0);
  EXPECT_EQ(ReduceScratchBytes(640, 2, Numerics::kFast), 2560);
  EXPECT_EQ(ReduceScratchBytes(640, 2, Numerics::kExact), 5120);
  EXPECT_EQ(ReduceScratchBytes(0, 3, Numerics::kFast), 0);
}

TEST(SizesKnownAnswerTest, GradientsTravelAsTheyAreSummedOrAsBf16) {
  Layout layout;
  EXPECT_EQ(TrafficType(layout), ElementType::kFp32);
  layout.gradient_traffic = GradientTraffic::kBf16;
  EXPECT_EQ(TrafficType(layout), ElementType::kBf16);
  layout.gradient_traffic = GradientTraffic::kFull;
  layout.numerics = Numerics::kExact;
  EXPECT_EQ(TrafficType(layout), ElementType::kInt64);
}

TEST(SizesKnownAnswerTest, ElementTypes) {
  EXPECT_EQ(BytesOf(ElementType::kFp32), 4);
  EXPECT_EQ(BytesOf(ElementType::kBf16), 2);
  EXPECT_EQ(BytesOf(ElementType::kInt32), 4);
  EXPECT_EQ(BytesOf(ElementType::kInt64), 8);
  EXPECT_EQ(BytesOf(ElementType::kByte), 1);
  EXPECT_EQ(ComputeType(Precision::kFp32), ElementType::kFp32);
  EXPECT_EQ(ComputeType(Precision::kBf16), ElementType::kBf16);
}

TEST(SizesDeathTest, AnUnknownSliceIsAFault) {
  EXPECT_DEATH(BufferLayout().Find("nothing"), "CHECK failed");
}

}  // namespace
}  // namespace esteira
