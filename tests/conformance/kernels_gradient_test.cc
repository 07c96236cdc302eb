// The gradients of the reference against central differences of its own forward passes, in fp32.
#include <gmock/gmock.h>

#include <cmath>

#include "common/base/random.h"
#include "common/plan/sizes.h"
#include "tests/conformance/kernels_fixture.h"
#include "worker/kernels/reference/reference_kernels.h"

namespace esteira {
namespace {

constexpr double kStep = 1.0 / 128;
constexpr double kTolerance = 3e-4;

class GradientTest : public testing::Test {
 protected:
  Tensor Random(int64_t rows, int64_t columns) {
    Tensor x{nullptr, ElementType::kFp32, rows, columns};
    x.data = Hold(x.bytes());
    ++num_tensors_;
    for (int64_t i = 0; i < x.elements(); ++i) {
      SetValue(x, i, RandomNormal(3, num_tensors_, static_cast<uint64_t>(i)));
    }
    return x;
  }
  Tensor Zeros(int64_t rows, int64_t columns) {
    Tensor x{nullptr, ElementType::kFp32, rows, columns};
    x.data = Hold(x.bytes());
    return x;
  }
  std::byte* Hold(int64_t bytes) {
    buffers_.push_back(*device_->Allocate(bytes, MemoryKind::kOther));
    return buffers_.back().data();
  }

  // sum(dy * y), after running `forward`.
  double Objective(const std::function<void()>& forward, const Tensor& y, const Tensor& dy) {
    forward();
    EXPECT_TRUE(stream_->Synchronize().ok());
    double sum = 0;
    for (int64_t i = 0; i < y.elements(); ++i) sum += ValueAt(y, i) * ValueAt(dy, i);
    return sum;
  }

  // Each element of `gradient` is the slope of `objective` in that element of `x`.
  void ExpectSlopes(const Tensor& x, const Tensor& gradient, const char* name,
                    const std::function<double()>& objective) {
    ASSERT_TRUE(stream_->Synchronize().ok());
    double squares = 0;
    for (int64_t i = 0; i < x.elements(); ++i) squares += std::pow(ValueAt(gradient, i), 2);
    const double typical = std::sqrt(squares / static_cast<double>(x.elements()));
    for (int64_t i = 0; i < x.elements(); ++i) {
      const double kept = ValueAt(x, i);
      SetValue(x, i, kept + kStep);
      const double above = objective();
      const double upper = ValueAt(x, i);
      SetValue(x, i, kept - kStep);
      const double below = objective();
      const double slope = (above - below) / (upper - ValueAt(x, i));
      SetValue(x, i, kept);
      EXPECT_NEAR(ValueAt(gradient, i), slope, kTolerance * (typical + std::abs(slope) + 1.0))
          << name << "[" << i << "]";
    }
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice({});
  std::unique_ptr<Stream> stream_ = device_->NewStream("reference");
  std::unique_ptr<Kernels> kernels_ = MakeReferenceKernels();
  std::vector<Buffer> buffers_;
  uint64_t num_tensors_ = 0;
};

TEST_F(GradientTest, Linear) {
  for (const WeightLayout layout : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
    const bool in_out = layout == WeightLayout::kInOut;
    const Tensor x = Random(3, 5);
    const Tensor w = in_out ? Random(5, 4) : Random(4, 5);
    const Tensor b = Random(1, 4);
    const Tensor y = Zeros(3, 4);
    const Tensor dy = Random(3, 4);
    const Tensor dx = Zeros(3, 5);
    const Tensor dw = in_out ? Zeros(5, 4) : Zeros(4, 5);
    const Tensor db = Zeros(1, 4);
    kernels_->LinearBackwardInput(dy, w, layout, dx, *stream_);
    kernels_->LinearBackwardWeight(x, dy, layout, GradientSum::kContinues, dw, db, *stream_);
    const auto objective = [&] {
      return Objective([&] { kernels_->LinearForward(x, w, b, layout, y, *stream_); }, y, dy);
    };
    ExpectSlopes(x, dx, "x", objective);
    ExpectSlopes(w, dw, "w", objective);
    ExpectSlopes(b, db, "b", objective);
  }
}

TEST_F(GradientTest, LayerNorm) {
  const Tensor x = Random(3, 7);
  const Tensor w = Random(1, 7);
  const Tensor b = Random(1, 7);
  const Tensor y = Zeros(3, 7);
  const Tensor dy = Random(3, 7);
  const Tensor mean = Zeros(3, 1);
  const Tensor rstd = Zeros(3, 1);
  const Tensor dx = Zeros(3, 7);
  const Tensor dw = Zeros(1, 7);
  const Tensor db = Zeros(1, 7);
  const auto forward = [&] { kernels_->LayerNormForward(x, w, b, 1e-5, y, mean, rstd, *stream_); };
  forward();
  kernels_->LayerNormBackwardInput(dy, x, w, mean, rstd, dx, *stream_);
  kernels_->LayerNormBackwardWeight(dy, x, mean, rstd, dw, db, *stream_);
  const auto objective = [&] { return Objective(forward, y, dy); };
  ExpectSlopes(x, dx, "x", objective);
  ExpectSlopes(w, dw, "w", objective);
  ExpectSlopes(b, db, "b", objective);
}

TEST_F(GradientTest, RmsNorm) {
  const Tensor x = Random(3, 7);
  const Tensor w = Random(1, 7);
  const Tensor y = Zeros(3, 7);
  const Tensor dy = Random(3, 7);
  const Tensor rstd = Zeros(3, 1);
  const Tensor dx = Zeros(3, 7);
  const Tensor dw = Zeros(1, 7);
  const auto forward = [&] { kernels_->RmsNormForward(x, w, 1e-5, y, rstd, *stream_); };
  forward();
  kernels_->RmsNormBackwardInput(dy, x, w, rstd, dx, *stream_);
  kernels_->RmsNormBackwardWeight(dy, x, rstd, dw, *stream_);
  const auto objective = [&] { return Objective(forward, y, dy); };
  ExpectSlopes(x, dx, "x", objective);
  ExpectSlopes(w, dw, "w", objective);
}

TEST_F(GradientTest, Activations) {
  const Tensor x = Random(2, 9);
  const Tensor up = Random(2, 9);
  const Tensor y = Zeros(2, 9);
  const Tensor dy = Random(2, 9);
  const Tensor dx = Zeros(2, 9);
  const Tensor dup = Zeros(2, 9);
  kernels_->GeluBackward(dy, x, dx, *stream_);
  ExpectSlopes(x, dx, "gelu",
               [&] { return Objective([&] { kernels_->GeluForward(x, y, *stream_); }, y, dy); });
  kernels_->SwiGluBackward(dy, x, up, dx, dup, *stream_);
  const auto objective = [&] {
    return Objective([&] { kernels_->SwiGluForward(x, up, y, *stream_); }, y, dy);
  };
  ExpectSlopes(x, dx, "gate", objective);
  ExpectSlopes(up, dup, "up", objective);
}

// The gradient of a rotation is the inverse rotation of dy.
TEST_F(GradientTest, Rope) {
  const Tensor x = Random(6, 8);
  const Tensor y = Zeros(6, 8);
  const Tensor dy = Random(6, 8);
  const Tensor dx = Zeros(6, 8);
  kernels_->Convert(dy, dx, *stream_);
  kernels_->Rope(dx, 3, 4, 100.0, true, *stream_);
  ExpectSlopes(x, dx, "x", [&] {
    return Objective(
        [&] {
          kernels_->Convert(x, y, *stream_);
          kernels_->Rope(y, 3, 4, 100.0, false, *stream_);
        },
        y, dy);
  });
}

TEST_F(GradientTest, Attention) {
  const AttentionShape s = {
      .batch = 2, .sequence = 5, .num_heads = 4, .num_kv_heads = 2, .head_size = 3};
  const Tensor q = Random(10, 12);
  const Tensor k = Random(10, 6);
  const Tensor v = Random(10, 6);
  const Tensor y = Zeros(10, 12);
  const Tensor dy = Random(10, 12);
  const Tensor log_sum_exp = Zeros(10, 4);
  const Tensor dq = Zeros(10, 12);
  const Tensor dk = Zeros(10, 6);
  const Tensor dv = Zeros(10, 6);
  const auto forward = [&] {
    kernels_->AttentionForward(s, {q, 12}, {k, 6}, {v, 6}, y, log_sum_exp, Tensor{}, *stream_);
  };
  forward();
  kernels_->AttentionBackward(s, dy, {q, 12}, {k, 6}, {v, 6}, y, log_sum_exp, {dq, 12}, {dk, 6},
                              {dv, 6}, Tensor{}, *stream_);
  const auto objective = [&] { return Objective(forward, y, dy); };
  ExpectSlopes(q, dq, "q", objective);
  ExpectSlopes(k, dk, "k", objective);
  ExpectSlopes(v, dv, "v", objective);
}

TEST_F(GradientTest, Embedding) {
  const Tensor table = Random(4, 3);
  const Tensor positions = Random(3, 3);
  const Tensor y = Zeros(6, 3);
  const Tensor dy = Random(6, 3);
  Tensor tokens{Hold(24), ElementType::kInt32, 6, 1};
  for (int32_t n = 0; n < 6; ++n) tokens.as<int32_t>()[n] = n % 3;
  const Tensor dtable = Zeros(4, 3);
  const Tensor dpositions = Zeros(3, 3);
  kernels_->EmbeddingBackward(dy, tokens, 3, dtable, dpositions, *stream_);
  const auto objective = [&] {
    return Objective([&] { kernels_->EmbeddingForward(tokens, table, positions, 3, y, *stream_); },
                     y, dy);
  };
  ExpectSlopes(table, dtable, "table", objective);
  ExpectSlopes(positions, dpositions, "positions", objective);
}

TEST_F(GradientTest, CrossEntropy) {
  const Tensor logits = Random(3, 5);
  Tensor targets{Hold(12), ElementType::kInt32, 3, 1};
  targets.as<int32_t>()[0] = 4;
  targets.as<int32_t>()[1] = kIgnoredTarget;
  auto* sums = reinterpret_cast<LossSums*>(Hold(sizeof(LossSums)));
  const Tensor gradient = Zeros(3, 5);
  kernels_->Convert(logits, gradient, *stream_);
  kernels_->CrossEntropy(gradient, targets, sums, *stream_);
  ExpectSlopes(logits, gradient, "logits", [&] {
    *sums = {};
    kernels_->CrossEntropyLoss(logits, targets, sums, *stream_);
    EXPECT_TRUE(stream_->Synchronize().ok());
    return sums->loss;
  });
}

}  // namespace
}  // namespace esteira
