#include "worker/kernels/reference/reference_kernels.h"

#include <cstring>

#include "worker/kernels/reference/operations.h"

namespace esteira {
namespace {

// A vector of one value a row, whatever shape it came in.
Matrix Row(const Tensor& x) { return Matrix(x.Reshaped(1, x.elements())); }

Matrix RowsOf(const Kernels::Strided& x) { return Matrix(x.view, x.row_stride); }

// log_sum_exp[N, Q].
Matrix HeadColumns(const Tensor& x, const AttentionShape& shape) {
  return Matrix(x, shape.num_heads);
}

class ReferenceKernels : public Kernels {
 public:
  void Zero(Tensor x, Stream& stream) override {
    stream.Enqueue([=] {
      if (x.bytes() > 0) std::memset(x.data, 0, static_cast<size_t>(x.bytes()));
      return absl::OkStatus();
    });
  }

  void Convert(Tensor from, Tensor to, Stream& stream) override {
    stream.Enqueue([=] { return reference::Convert(from, to); });
  }

  void Add(Tensor a, Tensor b, Tensor sum, Stream& stream) override {
    stream.Enqueue([=] {
      reference::Add(a, b, sum);
      return absl::OkStatus();
    });
  }

  void Accumulate(Tensor x, Tensor sum, Stream& stream) override {
    stream.Enqueue([=] {
      if (x.type == ElementType::kInt64) {
        reference::AddIntegers(x, sum);
      } else {
        reference::Add(sum, x, sum);
      }
      return absl::OkStatus();
    });
  }

  void AddFixedPoint(Tensor x, float largest, Tensor sum, int32_t* refused,
                     Stream& stream) override {
    stream.Enqueue([=] {
      if (reference::AddFixedPoint(x, largest, sum)) *refused = 1;
      return absl::OkStatus();
    });
  }

  void FromFixedPoint(Tensor from, Tensor to, Stream& stream) override {
    stream.Enqueue([=] {
      reference::FromFixedPoint(from, to);
      return absl::OkStatus();
    });
  }

  void LinearForward(Tensor x_NI, Tensor w, Tensor bias_O, WeightLayout layout, Tensor y_NO,
                     Stream& stream) override {
    stream.Enqueue([=] {
      reference::LinearForward(Matrix(x_NI), Matrix(w), Matrix(bias_O), layout, Matrix(y_NO));
      return absl::OkStatus();
    });
  }

  void LinearBackwardInput(Tensor dy_NO, Tensor w, WeightLayout layout, Tensor dx_NI,
                           Stream& stream) override {
    stream.Enqueue([=] {
      reference::LinearBackwardInput(Matrix(dy_NO), Matrix(w), layout, Matrix(dx_NI));
      return absl::OkStatus();
    });
  }

  void LinearBackwardWeight(Tensor x_NI, Tensor dy_NO, WeightLayout layout, GradientSum sum,
                            Tensor dw, Tensor db_O, Stream& stream) override {
    if (sum == GradientSum::kBegins) {
      Zero(dw, stream);
      Zero(db_O, stream);
    }
    stream.Enqueue([=] {
      reference::LinearBackwardWeight(Matrix(x_NI), Matrix(dy_NO), layout, Matrix(dw),
                                      Matrix(db_O));
      return absl::OkStatus();
    });
  }

  void LayerNormForward(Tensor x_NH, Tensor w_H, Tensor b_H, double epsilon, Tensor y_NH,
                        Tensor mean_N, Tensor rstd_N, Stream& stream) override {
    stream.Enqueue([=] {
      reference::NormForward(Matrix(x_NH), Matrix(w_H), Matrix(b_H), epsilon, Matrix(y_NH),
                             Row(mean_N), Row(rstd_N));
      return absl::OkStatus();
    });
  }

  void LayerNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor mean_N, Tensor rstd_N,
                              Tensor dx_NH, Stream& stream) override {
    stream.Enqueue([=] {
      reference::NormBackwardInput(Matrix(dy_NH), Matrix(x_NH), Matrix(w_H), Row(mean_N),
                                   Row(rstd_N), Matrix(dx_NH));
      return absl::OkStatus();
    });
  }

  void LayerNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor mean_N, Tensor rstd_N, Tensor dw_H,
                               Tensor db_H, Stream& stream) override {
    stream.Enqueue([=] {
      reference::NormBackwardWeight(Matrix(dy_NH), Matrix(x_NH), Row(mean_N), Row(rstd_N),
                                    Matrix(dw_H), Matrix(db_H));
      return absl::OkStatus();
    });
  }

  void RmsNormForward(Tensor x_NH, Tensor w_H, double epsilon, Tensor y_NH, Tensor rstd_N,
                      Stream& stream) override {
    stream.Enqueue([=] {
      reference::NormForward(Matrix(x_NH), Matrix(w_H), Matrix(Tensor{}), epsilon, Matrix(y_NH),
                             Row(Tensor{}), Row(rstd_N));
      return absl::OkStatus();
    });
  }

  void RmsNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor rstd_N, Tensor dx_NH,
                            Stream& stream) override {
    stream.Enqueue([=] {
      reference::NormBackwardInput(Matrix(dy_NH), Matrix(x_NH), Matrix(w_H), Row(Tensor{}),
                                   Row(rstd_N), Matrix(dx_NH));
      return absl::OkStatus();
    });
  }

  void RmsNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor rstd_N, Tensor dw_H,
                             Stream& stream) override {
    stream.Enqueue([=] {
      reference::NormBackwardWeight(Matrix(dy_NH), Matrix(x_NH), Row(Tensor{}), Row(rstd_N),
                                    Matrix(dw_H), Matrix(Tensor{}));
      return absl::OkStatus();
    });
  }

  void Dropout(Tensor x_NH, const DropoutMask& mask, Tensor y_NH, Stream& stream) override {
    stream.Enqueue([=] {
      reference::Dropout(x_NH, mask, y_NH);
      return absl::OkStatus();
    });
  }

  void GeluForward(Tensor x, Tensor y, Stream& stream) override {
    stream.Enqueue([=] {
      reference::GeluForward(x, y);
      return absl::OkStatus();
    });
  }

  void GeluBackward(Tensor dy, Tensor x, Tensor dx, Stream& stream) override {
    stream.Enqueue([=] {
      reference::GeluBackward(dy, x, dx);
      return absl::OkStatus();
    });
  }

  void SwiGluForward(Tensor gate, Tensor up, Tensor y, Stream& stream) override {
    stream.Enqueue([=] {
      reference::SwiGluForward(gate, up, y);
      return absl::OkStatus();
    });
  }

  void SwiGluBackward(Tensor dy, Tensor gate, Tensor up, Tensor dgate, Tensor dup,
                      Stream& stream) override {
    stream.Enqueue([=] {
      reference::SwiGluBackward(dy, gate, up, dgate, dup);
      return absl::OkStatus();
    });
  }

  void Rope(Tensor x, int64_t sequence, int64_t head_size, double theta, bool inverse,
            Stream& stream) override {
    stream.Enqueue([=] { return reference::Rope(Matrix(x), sequence, head_size, theta, inverse); });
  }

  void AttentionForward(const AttentionShape& shape, Strided q, Strided k, Strided v, Tensor y_NH,
                        Tensor log_sum_exp, Tensor, Stream& stream) override {
    stream.Enqueue([=] {
      reference::AttentionForward(shape, RowsOf(q), RowsOf(k), RowsOf(v), Matrix(y_NH),
                                  HeadColumns(log_sum_exp, shape));
      return absl::OkStatus();
    });
  }

  void AttentionBackward(const AttentionShape& shape, Tensor dy_NH, Strided q, Strided k, Strided v,
                         Tensor, Tensor, Strided dq, Strided dk, Strided dv, Tensor,
                         Stream& stream) override {
    stream.Enqueue([=] {
      reference::AttentionBackward(shape, Matrix(dy_NH), RowsOf(q), RowsOf(k), RowsOf(v),
                                   {RowsOf(dq), RowsOf(dk), RowsOf(dv)});
      return absl::OkStatus();
    });
  }

  void EmbeddingForward(Tensor tokens_N, Tensor table_VH, Tensor positions_TH, int64_t sequence,
                        Tensor y_NH, Stream& stream) override {
    stream.Enqueue([=] {
      return reference::EmbeddingForward(tokens_N, Matrix(table_VH), Matrix(positions_TH), sequence,
                                         Matrix(y_NH));
    });
  }

  void EmbeddingBackward(Tensor dy_NH, Tensor tokens_N, int64_t sequence, Tensor dtable_VH,
                         Tensor dpositions_TH, Stream& stream) override {
    stream.Enqueue([=] {
      return reference::EmbeddingBackward(Matrix(dy_NH), tokens_N, sequence, Matrix(dtable_VH),
                                          Matrix(dpositions_TH));
    });
  }

  void CrossEntropy(Tensor logits_NV, Tensor targets_N, LossSums* sums, Stream& stream) override {
    stream.Enqueue(
        [=] { return reference::CrossEntropy(Matrix(logits_NV), targets_N, true, *sums); });
  }

  void CrossEntropyLoss(Tensor logits_NV, Tensor targets_N, LossSums* sums,
                        Stream& stream) override {
    stream.Enqueue(
        [=] { return reference::CrossEntropy(Matrix(logits_NV), targets_N, false, *sums); });
  }

  void AdamW(const AdamWStep& step, Tensor gradient_sum, Tensor master, Tensor m, Tensor v,
             Tensor parameters, Stream& stream) override {
    stream.Enqueue([=] {
      reference::AdamW(step, gradient_sum, master, m, v, parameters);
      return absl::OkStatus();
    });
  }

  void SumSquaresByBlock(Tensor x, double* blocks, Stream& stream) override {
    stream.Enqueue([=] {
      reference::SumSquaresByBlock(x, blocks);
      return absl::OkStatus();
    });
  }

  void FindNonFinite(Tensor x, int32_t* found, Stream& stream) override {
    stream.Enqueue([=] {
      if (reference::AnyNonFinite(x)) *found = 1;
      return absl::OkStatus();
    });
  }
};

}  // namespace

std::unique_ptr<Kernels> MakeReferenceKernels() { return std::make_unique<ReferenceKernels>(); }

}  // namespace esteira
