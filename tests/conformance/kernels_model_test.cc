// Attention, embedding, loss and optimizer of every backend against the reference.
#include <algorithm>
#include <cmath>

#include "common/plan/sizes.h"
#include "tests/conformance/kernels_fixture.h"

namespace esteira {
namespace {

using Strided = Kernels::Strided;

constexpr AttentionShape kAttentionShapes[] = {
    {.batch = 0, .sequence = 5, .num_heads = 2, .num_kv_heads = 1, .head_size = 4},
    {.batch = 1, .sequence = 1, .num_heads = 1, .num_kv_heads = 1, .head_size = 1},
    {.batch = 2, .sequence = 2, .num_heads = 3, .num_kv_heads = 3, .head_size = 3},
    {.batch = 1, .sequence = 17, .num_heads = 4, .num_kv_heads = 2, .head_size = 8},
    {.batch = 3, .sequence = 63, .num_heads = 6, .num_kv_heads = 2, .head_size = 5},
    {.batch = 1, .sequence = 64, .num_heads = 2, .num_kv_heads = 2, .head_size = 64},
    {.batch = 2, .sequence = 65, .num_heads = 3, .num_kv_heads = 1, .head_size = 33},
    {.batch = 1, .sequence = 131, .num_heads = 4, .num_kv_heads = 4, .head_size = 80},
    {.batch = 1, .sequence = 200, .num_heads = 2, .num_kv_heads = 1, .head_size = 128},
    {.batch = 1, .sequence = 290, .num_heads = 2, .num_kv_heads = 1, .head_size = 40},
    {.batch = 5, .sequence = 9, .num_heads = 8, .num_kv_heads = 4, .head_size = 2}};

// q, k and v as columns of one matrix [N, (Q + 2 K) D], and one of the same form for their
// gradients.
class AttentionTest : public KernelsTest {
 protected:
  struct Views {
    Strided q, k, v;
  };
  Views ViewsOf(const AttentionShape& s, const Tensor& qkv) const {
    const auto columns = [&](int64_t first, int64_t heads) {
      Tensor view = qkv;
      view.data += first * s.head_size * BytesOf(qkv.type);
      view.columns = heads * s.head_size;
      return Strided{view, qkv.columns};
    };
    return {columns(0, s.num_heads), columns(s.num_heads, s.num_kv_heads),
            columns(s.num_heads + s.num_kv_heads, s.num_kv_heads)};
  }
  static int64_t Width(const AttentionShape& s) {
    return (s.num_heads + 2 * s.num_kv_heads) * s.head_size;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, testing::ValuesIn(KernelsParameters()), NameOf);

TEST_P(AttentionTest, ForwardAndBackward) {
  for (const AttentionShape& s : kAttentionShapes) {
    SCOPED_TRACE(testing::Message() << s.batch << " x " << s.sequence << ", heads " << s.num_heads
                                    << "/" << s.num_kv_heads << " of " << s.head_size);
    const int64_t rows = s.batch * s.sequence;
    const int64_t hidden = s.num_heads * s.head_size;
    const Twin qkv = Random(rows, Width(s));
    const Twin dqkv = Random(rows, Width(s));
    const Twin y = Random(rows, hidden);
    const Twin dy = Random(rows, hidden);
    const Twin log_sum_exp = Fp32(rows, s.num_heads);
    const Twin workspace =
        Fp32(1, AttentionWorkspaceElements(s.batch, s.sequence, s.num_kv_heads, s.head_size));
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      const Views in = ViewsOf(s, side(qkv));
      const Views out = ViewsOf(s, side(dqkv));
      k.AttentionForward(s, in.q, in.k, in.v, side(y), side(log_sum_exp), side(workspace), stream);
      k.AttentionBackward(s, side(dy), in.q, in.k, in.v, side(y), side(log_sum_exp), out.q, out.k,
                          out.v, side(workspace), stream);
    });
    // Tiles of bf16 take probabilities rounded to bf16: an error of 2^-9 in each weight.
    ExpectNear(y, "y", type() == ElementType::kBf16 ? 2.0 : 1.0);
    ExpectNear(log_sum_exp, "log_sum_exp");
    // The backward pass of bf16 starts from a rounded output.
    ExpectNear(dqkv, "dqkv", 3.0);
  }
}

// Gradients may take the place of what they are gradients of.
TEST_P(AttentionTest, BackwardInPlace) {
  for (const AttentionShape& s : kAttentionShapes) {
    const int64_t rows = s.batch * s.sequence;
    const int64_t hidden = s.num_heads * s.head_size;
    const Twin qkv = Random(rows, Width(s));
    const Twin dqkv = Random(rows, Width(s));
    const Twin y = Random(rows, hidden);
    const Twin dy = Random(rows, hidden);
    const Twin log_sum_exp = Fp32(rows, s.num_heads);
    const Twin workspace =
        Fp32(1, AttentionWorkspaceElements(s.batch, s.sequence, s.num_kv_heads, s.head_size));
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      const Views in = ViewsOf(s, side(qkv));
      k.AttentionForward(s, in.q, in.k, in.v, side(y), side(log_sum_exp), side(workspace), stream);
      for (const Tensor& gradients : {side(dqkv), side(qkv)}) {
        const Views out = ViewsOf(s, gradients);
        k.AttentionBackward(s, side(dy), in.q, in.k, in.v, side(y), side(log_sum_exp), out.q, out.k,
                            out.v, side(workspace), stream);
      }
    });
    ExpectSameBits({qkv.tested, dqkv.tested}, "of the backend");
    ExpectSameBits({qkv.expected, dqkv.expected}, "of the reference");
  }
}

// Large scores: without the running maximum they overflow. Over many keys it rises again and again.
TEST_P(AttentionTest, LargeScores) {
  constexpr int64_t kTokens = 400;
  const AttentionShape s = {
      .batch = 1, .sequence = kTokens, .num_heads = 1, .num_kv_heads = 1, .head_size = 16};
  const Twin qkv = Random(kTokens, 48, type(), 12.0);
  const Twin y = Random(kTokens, 16);
  const Twin log_sum_exp = Fp32(kTokens, 1);
  const Twin workspace = Fp32(1, AttentionWorkspaceElements(1, kTokens, 1, 16));
  Run([&](Kernels& k, const Side& side, Stream& stream) {
    const Views in = ViewsOf(s, side(qkv));
    k.AttentionForward(s, in.q, in.k, in.v, side(y), side(log_sum_exp), side(workspace), stream);
  });
  ExpectNear(log_sum_exp, "log_sum_exp");
  ExpectNear(y, "y", 40.0);  // scores of 500 leave fewer digits for their differences
}

TEST_P(KernelsTest, Embedding) {
  struct Sizes {
    int64_t batch, sequence, vocabulary, hidden;
  };
  for (const auto& [batch, sequence, vocabulary, hidden] :
       {Sizes{0, 3, 5, 4}, Sizes{1, 1, 1, 1}, Sizes{3, 7, 5, 17}, Sizes{2, 65, 11, 100}}) {
    for (const bool with_positions : {false, true}) {
      const int64_t rows = batch * sequence;
      const Twin tokens = Ids(rows, vocabulary);
      const Twin table = Random(vocabulary, hidden);
      const Twin positions = with_positions ? Random(sequence, hidden) : None();
      const Twin y = Random(rows, hidden);
      const Twin dy = Random(rows, hidden);
      const Twin dtable = Fp32(vocabulary, hidden);
      const Twin dpositions = with_positions ? Fp32(sequence, hidden) : None();
      Run([&](Kernels& k, const Side& side, Stream& stream) {
        k.EmbeddingForward(side(tokens), side(table), side(positions), sequence, side(y), stream);
        k.EmbeddingBackward(side(dy), side(tokens), sequence, side(dtable), side(dpositions),
                            stream);
      });
      ExpectSameBits(y, "y");
      ExpectSameBits(dtable, "dtable");
      if (with_positions) ExpectSameBits(dpositions, "dpositions");
    }
  }
}

TEST_P(KernelsTest, EmbeddingBackwardOfPositionsAlone) {
  const Twin dy = Random(6, 5);
  const Twin tokens = Ids(6, 4);
  const Twin dpositions = Fp32(3, 5);
  Run([&](Kernels& k, const Side& side, Stream& stream) {
    k.EmbeddingBackward(side(dy), side(tokens), 3, Tensor{}, side(dpositions), stream);
  });
  ExpectSameBits(dpositions, "dpositions");
}

TEST_P(KernelsTest, TokensOutsideTheVocabularyAreRefused) {
  const Twin table = Random(4, 3);
  const Twin y = Random(2, 3);
  for (const int32_t bad : {4, -1}) {
    auto stream = device_->NewStream("bad");
    const Twin tokens = Ids(2, 4);
    tokens.tested.as<int32_t>()[1] = bad;
    kernels_->EmbeddingForward(tokens.tested, table.tested, Tensor{}, 2, y.tested, *stream);
    const absl::Status status = stream->Synchronize();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("in row 1"));
  }
}

class CrossEntropyTest : public KernelsTest {
 protected:
  // Sums of the backend and of the reference over a call with and one without the gradient.
  void Check(const Twin& logits, const Twin& targets) {
    Twin sums{Allocate(1, sizeof(LossSums), ElementType::kByte),
              Allocate(1, sizeof(LossSums), ElementType::kByte)};
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      auto* loss = side(sums).as<LossSums>();
      k.CrossEntropyLoss(side(logits), side(targets), loss, stream);
      k.CrossEntropy(side(logits), side(targets), loss, stream);
    });
    const LossSums& tested = *sums.tested.as<LossSums>();
    const LossSums& expected = *sums.expected.as<LossSums>();
    EXPECT_EQ(tested.valid_tokens, expected.valid_tokens);
    EXPECT_NEAR(tested.loss, expected.loss, 1e-6 * (std::abs(expected.loss) + 1e-2));
    ExpectNear(logits, "dlogits");
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, CrossEntropyTest, testing::ValuesIn(KernelsParameters()),
                         NameOf);

TEST_P(CrossEntropyTest, LossAndGradient) {
  struct Sizes {
    int64_t rows, vocabulary;
  };
  for (const auto& [rows, vocabulary] :
       {Sizes{0, 5}, Sizes{1, 1}, Sizes{3, 2}, Sizes{7, 17}, Sizes{300, 31}, Sizes{5, 5003}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << vocabulary);
    const Twin logits = Random(rows, vocabulary, type(), 4.0);
    const Twin targets = Ids(rows, vocabulary);
    for (int64_t n = 1; n < rows; n += 3) {
      targets.tested.as<int32_t>()[n] = targets.expected.as<int32_t>()[n] = kIgnoredTarget;
    }
    Check(logits, targets);
  }
}

TEST_P(CrossEntropyTest, LargeLogitsAndConfidentRows) {
  const Twin logits = Random(4, 33, type(), 100.0);
  Set(logits, 5, 3e4);
  Set(logits, 33 + 7, -3e4);
  Check(logits, Ids(4, 33));
}

TEST_P(CrossEntropyTest, OnlyIgnoredTargets) {
  const Twin logits = Random(3, 7);
  const Twin targets = Ids(3, 7);
  for (int64_t n = 0; n < 3; ++n) {
    targets.tested.as<int32_t>()[n] = targets.expected.as<int32_t>()[n] = kIgnoredTarget;
  }
  Check(logits, targets);
  EXPECT_EQ(ValueAt(logits.tested, 20), 0.0);
}

TEST_P(KernelsTest, AdamW) {
  for (const int64_t n : {0, 1, 7, 64, 40000}) {
    const Twin gradient = Fp32(1, n);
    const Twin master = Fp32(1, n);
    const Twin m = Fp32(1, n);
    const Twin v = Fp32(1, n);
    const Twin parameters = Random(1, n);
    for (int64_t i = 0; i < n; ++i) Set(v, i, std::abs(ValueAt(v.tested, i)));
    for (const int64_t step : {1, 2, 1000000}) {
      Run([&](Kernels& k, const Side& side, Stream& stream) {
        k.AdamW({.learning_rate = 1e-2,
                 .beta1 = 0.9,
                 .beta2 = 0.95,
                 .epsilon = 1e-8,
                 .weight_decay = 0.1,
                 .gradient_scale = 0.25,
                 .step = step},
                side(gradient), side(master), side(m), side(v), side(parameters), stream);
      });
      for (const Twin& twin : {master, m, v, parameters}) ExpectNear(twin, "state");
    }
  }
}

// From nothing the first update is the learning rate, whatever the gradient's size.
TEST_P(KernelsTest, FirstStepOfAdamWCorrectsTheBias) {
  const Twin gradient = Fp32(1, 3);
  const Twin master = Fp32(1, 3);
  const Twin m = Fp32(1, 3);
  const Twin v = Fp32(1, 3);
  const Twin parameters = Fp32(1, 3);
  for (int64_t i = 0; i < 3; ++i) {
    Set(gradient, i, std::pow(10.0, static_cast<double>(i) - 1));
    for (const Twin& twin : {master, m, v}) Set(twin, i, 0.0);
  }
  kernels_->AdamW({.learning_rate = 0.5, .beta1 = 0.9, .beta2 = 0.999}, gradient.tested,
                  master.tested, m.tested, v.tested, parameters.tested, *stream_);
  ASSERT_TRUE(stream_->Synchronize().ok());
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(ValueAt(parameters.tested, i), -0.5, 1e-5);
}

TEST_P(KernelsTest, SumSquaresByBlockIsTheSameBitsEverywhere) {
  const Twin x = Fp32(1, 64 * 513);
  Twin blocks{Allocate(513, 8, ElementType::kByte), Allocate(513, 8, ElementType::kByte)};
  Run([&](Kernels& k, const Side& side, Stream& stream) {
    k.SumSquaresByBlock(side(x), side(blocks).as<double>(), stream);
  });
  ExpectSameBits(blocks, "blocks");
  EXPECT_NEAR(blocks.tested.as<double>()[512], 64.0, 60.0);
}

TEST_P(KernelsTest, FindNonFinite) {
  for (const int64_t n : {1, 15, 16, 33, 40000}) {
    const Twin x = Random(1, n);
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
        Twin found{Allocate(1, 1, ElementType::kInt32), Allocate(1, 1, ElementType::kInt32)};
        const double kept = ValueAt(x.tested, at);
        const auto find = [&] {
          Run([&](Kernels& k, const Side& side, Stream& stream) {
            k.FindNonFinite(side(x), side(found).as<int32_t>(), stream);
          });
        };
        find();
        EXPECT_EQ(*found.tested.as<int32_t>(), 0);
        Set(x, at, bad);
        find();
        EXPECT_EQ(*found.tested.as<int32_t>(), 1);
        Set(x, at, kept);
        find();
        EXPECT_EQ(*found.tested.as<int32_t>(), 1) << "left alone once set";
      }
    }
  }
}

TEST_P(KernelsTest, TheLargestFiniteValuesAreFinite) {
  const Twin x = Fp32(1, 100);
  for (int64_t i = 0; i < 100; ++i) Set(x, i, i % 2 == 0 ? 3.4e38 : -3.4e38);
  Twin found{Allocate(1, 1, ElementType::kInt32), Allocate(1, 1, ElementType::kInt32)};
  kernels_->FindNonFinite(x.tested, found.tested.as<int32_t>(), *stream_);
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_EQ(*found.tested.as<int32_t>(), 0);
}

}  // namespace
}  // namespace esteira
