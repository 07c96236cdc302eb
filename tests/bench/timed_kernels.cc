#include "tests/bench/timed_kernels.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "tests/bench/machine_limits.h"

namespace esteira {
namespace {

class TimedCpuKernels : public TimedKernels {
 public:
  TimedCpuKernels(const ModelSpec& model, std::unique_ptr<Kernels> kernels)
      : model_(model), kernels_(std::move(kernels)) {}

  void BeginStep() override {
    // What came before the first step set the weights up.
    if (steps_++ == 0) operations_.clear();
    next_ = 0;
  }
  const std::deque<TimedOperation>& operations() const override { return operations_; }

  void Zero(Tensor x, Stream& stream) override {
    Timed({.name = "Zero", .part = StepPart::kMemory, .bytes = x.bytes()}, stream,
          [&] { kernels_->Zero(x, stream); });
  }
  void Convert(Tensor from, Tensor to, Stream& stream) override {
    Timed({.name = "Convert", .part = StepPart::kPointwise, .bytes = from.bytes() + to.bytes()},
          stream, [&] { kernels_->Convert(from, to, stream); });
  }
  void Add(Tensor a, Tensor b, Tensor sum, Stream& stream) override {
    Timed({.name = "Add", .part = StepPart::kPointwise, .bytes = 3 * a.bytes()}, stream,
          [&] { kernels_->Add(a, b, sum, stream); });
  }
  void Accumulate(Tensor x, Tensor sum, Stream& stream) override {
    Timed({.name = "Accumulate", .part = StepPart::kMemory, .bytes = x.bytes() + 2 * sum.bytes()},
          stream, [&] { kernels_->Accumulate(x, sum, stream); });
  }
  void AddFixedPoint(Tensor x, float largest, Tensor sum, int32_t* refused,
                     Stream& stream) override {
    Timed({.name = "AddFixedPoint",
           .part = StepPart::kMemory,
           .bytes = 2 * x.bytes() + 2 * sum.bytes()},
          stream, [&] { kernels_->AddFixedPoint(x, largest, sum, refused, stream); });
  }
  void FromFixedPoint(Tensor from, Tensor to, Stream& stream) override {
    Timed({.name = "FromFixedPoint", .part = StepPart::kMemory, .bytes = from.bytes() + to.bytes()},
          stream, [&] { kernels_->FromFixedPoint(from, to, stream); });
  }
  void LinearForward(Tensor x_NI, Tensor w, Tensor bias_O, WeightLayout layout, Tensor y_NO,
                     Stream& stream) override {
    Timed(OfProduct("forward", layout, x_NI.rows, x_NI.columns, y_NO.columns), stream,
          [&] { kernels_->LinearForward(x_NI, w, bias_O, layout, y_NO, stream); });
  }
  void LinearBackwardInput(Tensor dy_NO, Tensor w, WeightLayout layout, Tensor dx_NI,
                           Stream& stream) override {
    Timed(OfProduct("input gradient", layout, dy_NO.rows, dx_NI.columns, dy_NO.columns), stream,
          [&] { kernels_->LinearBackwardInput(dy_NO, w, layout, dx_NI, stream); });
  }
  void LinearBackwardWeight(Tensor x_NI, Tensor dy_NO, WeightLayout layout, GradientSum sum,
                            Tensor dw, Tensor db_O, Stream& stream) override {
    Timed(OfProduct("weight gradient", layout, x_NI.rows, x_NI.columns, dy_NO.columns), stream,
          [&] { kernels_->LinearBackwardWeight(x_NI, dy_NO, layout, sum, dw, db_O, stream); });
  }
  void LayerNormForward(Tensor x_NH, Tensor w_H, Tensor b_H, double epsilon, Tensor y_NH,
                        Tensor mean_N, Tensor rstd_N, Stream& stream) override {
    Timed({.name = "LayerNormForward", .part = StepPart::kPointwise, .bytes = 2 * x_NH.bytes()},
          stream, [&] {
            kernels_->LayerNormForward(x_NH, w_H, b_H, epsilon, y_NH, mean_N, rstd_N, stream);
          });
  }
  void LayerNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor mean_N, Tensor rstd_N,
                              Tensor dx_NH, Stream& stream) override {
    Timed(
        {.name = "LayerNormBackwardInput", .part = StepPart::kPointwise, .bytes = 3 * x_NH.bytes()},
        stream,
        [&] { kernels_->LayerNormBackwardInput(dy_NH, x_NH, w_H, mean_N, rstd_N, dx_NH, stream); });
  }
  void LayerNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor mean_N, Tensor rstd_N, Tensor dw_H,
                               Tensor db_H, Stream& stream) override {
    Timed({.name = "LayerNormBackwardWeight",
           .part = StepPart::kPointwise,
           .bytes = 2 * x_NH.bytes()},
          stream, [&] {
            kernels_->LayerNormBackwardWeight(dy_NH, x_NH, mean_N, rstd_N, dw_H, db_H, stream);
          });
  }
  void RmsNormForward(Tensor x_NH, Tensor w_H, double epsilon, Tensor y_NH, Tensor rstd_N,
                      Stream& stream) override {
    Timed({.name = "RmsNormForward", .part = StepPart::kPointwise, .bytes = 2 * x_NH.bytes()},
          stream, [&] { kernels_->RmsNormForward(x_NH, w_H, epsilon, y_NH, rstd_N, stream); });
  }
  void RmsNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor rstd_N, Tensor dx_NH,
                            Stream& stream) override {
    Timed({.name = "RmsNormBackwardInput", .part = StepPart::kPointwise, .bytes = 3 * x_NH.bytes()},
          stream, [&] { kernels_->RmsNormBackwardInput(dy_NH, x_NH, w_H, rstd_N, dx_NH, stream); });
  }
  void RmsNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor rstd_N, Tensor dw_H,
                             Stream& stream) override {
    Timed(
        {.name = "RmsNormBackwardWeight", .part = StepPart::kPointwise, .bytes = 2 * x_NH.bytes()},
        stream, [&] { kernels_->RmsNormBackwardWeight(dy_NH, x_NH, rstd_N, dw_H, stream); });
  }
  void Dropout(Tensor x_NH, const DropoutMask& mask, Tensor y_NH, Stream& stream) override {
    Timed({.name = "Dropout", .part = StepPart::kPointwise, .bytes = 2 * x_NH.bytes()}, stream,
          [&] { kernels_->Dropout(x_NH, mask, y_NH, stream); });
  }
  void GeluForward(Tensor x, Tensor y, Stream& stream) override {
    Timed({.name = "GeluForward", .part = StepPart::kPointwise, .bytes = 2 * x.bytes()}, stream,
          [&] { kernels_->GeluForward(x, y, stream); });
  }
  void GeluBackward(Tensor dy, Tensor x, Tensor dx, Stream& stream) override {
    Timed({.name = "GeluBackward", .part = StepPart::kPointwise, .bytes = 3 * x.bytes()}, stream,
          [&] { kernels_->GeluBackward(dy, x, dx, stream); });
  }
  void SwiGluForward(Tensor gate, Tensor up, Tensor y, Stream& stream) override {
    Timed({.name = "SwiGluForward", .part = StepPart::kPointwise, .bytes = 3 * up.bytes()}, stream,
          [&] { kernels_->SwiGluForward(gate, up, y, stream); });
  }
  void SwiGluBackward(Tensor dy, Tensor gate, Tensor up, Tensor dgate, Tensor dup,
                      Stream& stream) override {
    Timed({.name = "SwiGluBackward", .part = StepPart::kPointwise, .bytes = 5 * up.bytes()}, stream,
          [&] { kernels_->SwiGluBackward(dy, gate, up, dgate, dup, stream); });
  }
  void Rope(Tensor x, int64_t sequence, int64_t head_size, double theta, bool inverse,
            Stream& stream) override {
    Timed({.name = "Rope", .part = StepPart::kAttention, .bytes = 2 * x.bytes()}, stream,
          [&] { kernels_->Rope(x, sequence, head_size, theta, inverse, stream); });
  }
  void AttentionForward(const AttentionShape& shape, Strided q, Strided k, Strided v, Tensor y_NH,
                        Tensor log_sum_exp, Tensor workspace, Stream& stream) override {
    Timed(OfAttention("AttentionForward", shape, 2), stream, [&] {
      kernels_->AttentionForward(shape, q, k, v, y_NH, log_sum_exp, workspace, stream);
    });
  }
  void AttentionBackward(const AttentionShape& shape, Tensor dy_NH, Strided q, Strided k, Strided v,
                         Tensor y_NH, Tensor log_sum_exp, Strided dq, Strided dk, Strided dv,
                         Tensor workspace, Stream& stream) override {
    Timed(OfAttention("AttentionBackward", shape, 5), stream, [&] {
      kernels_->AttentionBackward(shape, dy_NH, q, k, v, y_NH, log_sum_exp, dq, dk, dv, workspace,
                                  stream);
    });
  }
  void EmbeddingForward(Tensor tokens_N, Tensor table_VH, Tensor positions_TH, int64_t sequence,
                        Tensor y_NH, Stream& stream) override {
    Timed({.name = "EmbeddingForward", .part = StepPart::kEmbedding, .bytes = 2 * y_NH.bytes()},
          stream, [&] {
            kernels_->EmbeddingForward(tokens_N, table_VH, positions_TH, sequence, y_NH, stream);
          });
  }
  void EmbeddingBackward(Tensor dy_NH, Tensor tokens_N, int64_t sequence, Tensor dtable_VH,
                         Tensor dpositions_TH, Stream& stream) override {
    Timed({.name = "EmbeddingBackward",
           .part = StepPart::kEmbedding,
           .bytes = dy_NH.bytes() + 2 * dy_NH.elements() * 4},
          stream, [&] {
            kernels_->EmbeddingBackward(dy_NH, tokens_N, sequence, dtable_VH, dpositions_TH,
                                        stream);
          });
  }
  void CrossEntropy(Tensor logits_NV, Tensor targets_N, LossSums* sums, Stream& stream) override {
    Timed({.name = "CrossEntropy", .part = StepPart::kHead, .bytes = 2 * logits_NV.bytes()}, stream,
          [&] { kernels_->CrossEntropy(logits_NV, targets_N, sums, stream); });
  }
  void CrossEntropyLoss(Tensor logits_NV, Tensor targets_N, LossSums* sums,
                        Stream& stream) override {
    Timed({.name = "CrossEntropyLoss", .part = StepPart::kHead, .bytes = logits_NV.bytes()}, stream,
          [&] { kernels_->CrossEntropyLoss(logits_NV, targets_N, sums, stream); });
  }
  void AdamW(const AdamWStep& step, Tensor gradient_sum, Tensor master, Tensor m, Tensor v,
             Tensor parameters, Stream& stream) override {
    Timed({.name = "AdamW",
           .part = StepPart::kOptimizer,
           .bytes = gradient_sum.bytes() * 7 + parameters.bytes()},
          stream, [&] { kernels_->AdamW(step, gradient_sum, master, m, v, parameters, stream); });
  }
  void SumSquaresByBlock(Tensor x, double* blocks, Stream& stream) override {
    Timed({.name = "SumSquaresByBlock", .part = StepPart::kOptimizer, .bytes = x.bytes()}, stream,
          [&] { kernels_->SumSquaresByBlock(x, blocks, stream); });
  }
  void FindNonFinite(Tensor x, int32_t* found, Stream& stream) override {
    Timed({.name = "FindNonFinite", .part = StepPart::kMemory, .bytes = x.bytes()}, stream,
          [&] { kernels_->FindNonFinite(x, found, stream); });
  }

 private:
  TimedOperation OfProduct(const char* pass, WeightLayout layout, int64_t rows, int64_t in,
                           int64_t out) const {
    const bool head = in == model_.vocab_size || out == model_.vocab_size;
    const bool mlp = in == model_.intermediate_size || out == model_.intermediate_size;
    return {.name = pass,
            .part = head  ? StepPart::kHead
                    : mlp ? StepPart::kMlp
                          : StepPart::kAttention,
            .flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in * out),
            .layout = layout,
            .rows = rows,
            .in = in,
            .out = out};
  }

  // Of products over the whole square of scores, causality needs half.
  static TimedOperation OfAttention(const char* name, const AttentionShape& shape, int products) {
    const auto scores = static_cast<double>(shape.batch * shape.num_heads) *
                        static_cast<double>(shape.sequence * shape.sequence);
    return {.name = name,
            .part = StepPart::kAttention,
            .flops = products * scores * static_cast<double>(shape.head_size)};
  }

  void Timed(TimedOperation operation, Stream& stream, const std::function<void()>& run) {
    const size_t index = next_++;
    if (index == operations_.size()) {
      operation.seconds = std::numeric_limits<double>::infinity();
      operations_.push_back(std::move(operation));
    }
    TimedOperation& timed = operations_[index];
    const auto begin = std::make_shared<double>();
    stream.Enqueue([begin] {
      *begin = ThreadSeconds();
      return absl::OkStatus();
    });
    run();
    stream.Enqueue([begin, &timed] {
      timed.seconds = std::min(timed.seconds, ThreadSeconds() - *begin);
      return absl::OkStatus();
    });
  }

  ModelSpec model_;
  std::unique_ptr<Kernels> kernels_;
  std::deque<TimedOperation> operations_;  // references stay valid
  int64_t steps_ = 0;
  size_t next_ = 0;
};

}  // namespace

const char* NameOf(StepPart part) {
  switch (part) {
    case StepPart::kEmbedding: return "embedding";
    case StepPart::kAttention: return "attention";
    case StepPart::kMlp: return "MLP";
    case StepPart::kPointwise: return "norms and pointwise";
    case StepPart::kHead: return "head and loss";
    case StepPart::kOptimizer: return "optimizer";
    case StepPart::kMemory: return "clearing and checks";
  }
  return "";
}

std::unique_ptr<TimedKernels> MakeTimedKernels(const ModelSpec& model,
                                               std::unique_ptr<Kernels> kernels) {
  return std::make_unique<TimedCpuKernels>(model, std::move(kernels));
}

}  // namespace esteira
