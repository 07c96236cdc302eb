#include "tests/worker/engine/poisoned_kernels.h"

#include <limits>
#include <utility>

namespace esteira {
namespace {

class PoisonedKernels : public Kernels {
 public:
  explicit PoisonedKernels(KernelHook hook) : kernels_(MakeCpuKernels(1)), hook_(std::move(hook)) {}

  void Zero(Tensor x, Stream& stream) override {
    kernels_->Zero(x, stream);
    hook_("Zero", x, stream);
  }
  void Convert(Tensor from, Tensor to, Stream& stream) override {
    kernels_->Convert(from, to, stream);
    hook_("Convert", to, stream);
  }
  void Add(Tensor a, Tensor b, Tensor sum, Stream& stream) override {
    kernels_->Add(a, b, sum, stream);
    hook_("Add", sum, stream);
  }
  void Accumulate(Tensor x, Tensor sum, Stream& stream) override {
    kernels_->Accumulate(x, sum, stream);
    hook_("Accumulate", sum, stream);
  }
  void AddFixedPoint(Tensor x, float largest, Tensor sum, int32_t* refused,
                     Stream& stream) override {
    kernels_->AddFixedPoint(x, largest, sum, refused, stream);
    hook_("AddFixedPoint", sum, stream);
  }
  void FromFixedPoint(Tensor from, Tensor to, Stream& stream) override {
    kernels_->FromFixedPoint(from, to, stream);
    hook_("FromFixedPoint", to, stream);
  }
  void LinearForward(Tensor x_NI, Tensor w, Tensor bias_O, WeightLayout layout, Tensor y_NO,
                     Stream& stream) override {
    kernels_->LinearForward(x_NI, w, bias_O, layout, y_NO, stream);
    hook_("LinearForward", y_NO, stream);
  }
  void LinearBackwardInput(Tensor dy_NO, Tensor w, WeightLayout layout, Tensor dx_NI,
                           Stream& stream) override {
    kernels_->LinearBackwardInput(dy_NO, w, layout, dx_NI, stream);
    hook_("LinearBackwardInput", dx_NI, stream);
  }
  void LinearBackwardWeight(Tensor x_NI, Tensor dy_NO, WeightLayout layout, GradientSum sum,
                            Tensor dw, Tensor db_O, Stream& stream) override {
    kernels_->LinearBackwardWeight(x_NI, dy_NO, layout, sum, dw, db_O, stream);
    hook_("LinearBackwardWeight", dw, stream);
  }
  void LayerNormForward(Tensor x_NH, Tensor w_H, Tensor b_H, double epsilon, Tensor y_NH,
                        Tensor mean_N, Tensor rstd_N, Stream& stream) override {
    kernels_->LayerNormForward(x_NH, w_H, b_H, epsilon, y_NH, mean_N, rstd_N, stream);
    hook_("LayerNormForward", y_NH, stream);
  }
  void LayerNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor mean_N, Tensor rstd_N,
                              Tensor dx_NH, Stream& stream) override {
    kernels_->LayerNormBackwardInput(dy_NH, x_NH, w_H, mean_N, rstd_N, dx_NH, stream);
    hook_("LayerNormBackwardInput", dx_NH, stream);
  }
  void LayerNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor mean_N, Tensor rstd_N, Tensor dw_H,
                               Tensor db_H, Stream& stream) override {
    kernels_->LayerNormBackwardWeight(dy_NH, x_NH, mean_N, rstd_N, dw_H, db_H, stream);
    hook_("LayerNormBackwardWeight", dw_H, stream);
  }
  void RmsNormForward(Tensor x_NH, Tensor w_H, double epsilon, Tensor y_NH, Tensor rstd_N,
                      Stream& stream) override {
    kernels_->RmsNormForward(x_NH, w_H, epsilon, y_NH, rstd_N, stream);
    hook_("RmsNormForward", y_NH, stream);
  }
  void RmsNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor rstd_N, Tensor dx_NH,
                            Stream& stream) override {
    kernels_->RmsNormBackwardInput(dy_NH, x_NH, w_H, rstd_N, dx_NH, stream);
    hook_("RmsNormBackwardInput", dx_NH, stream);
  }
  void RmsNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor rstd_N, Tensor dw_H,
                             Stream& stream) override {
    kernels_->RmsNormBackwardWeight(dy_NH, x_NH, rstd_N, dw_H, stream);
    hook_("RmsNormBackwardWeight", dw_H, stream);
  }
  void Dropout(Tensor x_NH, const DropoutMask& mask, Tensor y_NH, Stream& stream) override {
    kernels_->Dropout(x_NH, mask, y_NH, stream);
    hook_("Dropout", y_NH, stream);
  }
  void GeluForward(Tensor x, Tensor y, Stream& stream) override {
    kernels_->GeluForward(x, y, stream);
    hook_("GeluForward", y, stream);
  }
  void GeluBackward(Tensor dy, Tensor x, Tensor dx, Stream& stream) override {
    kernels_->GeluBackward(dy, x, dx, stream);
    hook_("GeluBackward", dx, stream);
  }
  void SwiGluForward(Tensor gate, Tensor up, Tensor y, Stream& stream) override {
    kernels_->SwiGluForward(gate, up, y, stream);
    hook_("SwiGluForward", y, stream);
  }
  void SwiGluBackward(Tensor dy, Tensor gate, Tensor up, Tensor dgate, Tensor dup,
                      Stream& stream) override {
    kernels_->SwiGluBackward(dy, gate, up, dgate, dup, stream);
    hook_("SwiGluBackward", dgate, stream);
  }
  void Rope(Tensor x, int64_t sequence, int64_t head_size, double theta, bool inverse,
            Stream& stream) override {
    kernels_->Rope(x, sequence, head_size, theta, inverse, stream);
    hook_("Rope", x, stream);
  }
  void AttentionForward(const AttentionShape& shape, Strided q, Strided k, Strided v, Tensor y_NH,
                        Tensor log_sum_exp, Tensor workspace, Stream& stream) override {
    kernels_->AttentionForward(shape, q, k, v, y_NH, log_sum_exp, workspace, stream);
    hook_("AttentionForward", y_NH, stream);
  }
  void AttentionBackward(const AttentionShape& shape, Tensor dy_NH, Strided q, Strided k, Strided v,
                         Tensor y_NH, Tensor log_sum_exp, Strided dq, Strided dk, Strided dv,
                         Tensor workspace, Stream& stream) override {
    kernels_->AttentionBackward(shape, dy_NH, q, k, v, y_NH, log_sum_exp, dq, dk, dv, workspace,
                                stream);
    hook_("AttentionBackward", dy_NH, stream);
  }
  void EmbeddingForward(Tensor tokens_N, Tensor table_VH, Tensor positions_TH, int64_t sequence,
                        Tensor y_NH, Stream& stream) override {
    kernels_->EmbeddingForward(tokens_N, table_VH, positions_TH, sequence, y_NH, stream);
    hook_("EmbeddingForward", y_NH, stream);
  }
  void EmbeddingBackward(Tensor dy_NH, Tensor tokens_N, int64_t sequence, Tensor dtable_VH,
                         Tensor dpositions_TH, Stream& stream) override {
    kernels_->EmbeddingBackward(dy_NH, tokens_N, sequence, dtable_VH, dpositions_TH, stream);
    hook_("EmbeddingBackward", dtable_VH, stream);
  }
  void CrossEntropy(Tensor logits_NV, Tensor targets_N, LossSums* sums, Stream& stream) override {
    kernels_->CrossEntropy(logits_NV, targets_N, sums, stream);
    hook_("CrossEntropy", logits_NV, stream);
  }
  void CrossEntropyLoss(Tensor logits_NV, Tensor targets_N, LossSums* sums,
                        Stream& stream) override {
    kernels_->CrossEntropyLoss(logits_NV, targets_N, sums, stream);
    hook_("CrossEntropyLoss", logits_NV, stream);
  }
  void AdamW(const AdamWStep& step, Tensor gradient_sum, Tensor master, Tensor m, Tensor v,
             Tensor parameters, Stream& stream) override {
    kernels_->AdamW(step, gradient_sum, master, m, v, parameters, stream);
    hook_("AdamW", parameters, stream);
  }
  void SumSquaresByBlock(Tensor x, double* blocks, Stream& stream) override {
    kernels_->SumSquaresByBlock(x, blocks, stream);
  }
  void FindNonFinite(Tensor x, int32_t* found, Stream& stream) override {
    kernels_->FindNonFinite(x, found, stream);
  }

 private:
  const std::unique_ptr<Kernels> kernels_;
  const KernelHook hook_;
};

}  // namespace

std::unique_ptr<Kernels> MakePoisonedKernels(KernelHook hook) {
  return std::make_unique<PoisonedKernels>(std::move(hook));
}

void Spoil(Tensor tensor, Stream& stream) {
  stream.Enqueue([tensor] {
    *tensor.as<float>() = std::numeric_limits<float>::quiet_NaN();
    return absl::OkStatus();
  });
}

}  // namespace esteira
