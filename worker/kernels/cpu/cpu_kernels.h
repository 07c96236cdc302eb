#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "worker/kernels/cpu/aligned_scratch.h"
#include "worker/kernels/cpu/loops.h"
#include "worker/kernels/cpu/matmul.h"
#include "worker/kernels/kernels.h"

namespace esteira {

// Kernels on the host: oneDNN for matrix products, loops of our own for the rest, each on `threads`
// OpenMP threads of the stream's thread. Owns oneDNN primitives, the tables of Rope and the scratch
// of attention, made at the first use of a shape and kept. Thread-safe; operations that need what
// it owns run one at a time, so that concurrent computation wants one object a stream. Results
// depend on `threads` through oneDNN alone.
class CpuKernels : public Kernels {
 public:
  CpuKernels(int threads, const Loops& loops)
      : threads_(threads), loops_(loops), matmul_(loops, threads) {}

  void Zero(Tensor x, Stream& stream) override;
  void Convert(Tensor from, Tensor to, Stream& stream) override;
  void Add(Tensor a, Tensor b, Tensor sum, Stream& stream) override;
  void Accumulate(Tensor x, Tensor sum, Stream& stream) override;
  void AddFixedPoint(Tensor x, float largest, Tensor sum, int32_t* refused,
                     Stream& stream) override;
  void FromFixedPoint(Tensor from, Tensor to, Stream& stream) override;

  void LinearForward(Tensor x_NI, Tensor w, Tensor bias_O, WeightLayout layout, Tensor y_NO,
                     Stream& stream) override;
  void LinearBackwardInput(Tensor dy_NO, Tensor w, WeightLayout layout, Tensor dx_NI,
                           Stream& stream) override;
  void LinearBackwardWeight(Tensor x_NI, Tensor dy_NO, WeightLayout layout, GradientSum sum,
                            Tensor dw, Tensor db_O, Stream& stream) override;

  void LayerNormForward(Tensor x_NH, Tensor w_H, Tensor b_H, double epsilon, Tensor y_NH,
                        Tensor mean_N, Tensor rstd_N, Stream& stream) override;
  void LayerNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor mean_N, Tensor rstd_N,
                              Tensor dx_NH, Stream& stream) override;
  void LayerNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor mean_N, Tensor rstd_N, Tensor dw_H,
                               Tensor db_H, Stream& stream) override;
  void RmsNormForward(Tensor x_NH, Tensor w_H, double epsilon, Tensor y_NH, Tensor rstd_N,
                      Stream& stream) override;
  void RmsNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor rstd_N, Tensor dx_NH,
                            Stream& stream) override;
  void RmsNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor rstd_N, Tensor dw_H,
                             Stream& stream) override;

  void Dropout(Tensor x_NH, const DropoutMask& mask, Tensor y_NH, Stream& stream) override;
  void GeluForward(Tensor x, Tensor y, Stream& stream) override;
  void GeluBackward(Tensor dy, Tensor x, Tensor dx, Stream& stream) override;
  void SwiGluForward(Tensor gate, Tensor up, Tensor y, Stream& stream) override;
  void SwiGluBackward(Tensor dy, Tensor gate, Tensor up, Tensor dgate, Tensor dup,
                      Stream& stream) override;
  void Rope(Tensor x, int64_t sequence, int64_t head_size, double theta, bool inverse,
            Stream& stream) override;

  void AttentionForward(const AttentionShape& shape, Strided q, Strided k, Strided v, Tensor y_NH,
                        Tensor log_sum_exp, Tensor workspace, Stream& stream) override;
  void AttentionBackward(const AttentionShape& shape, Tensor dy_NH, Strided q, Strided k, Strided v,
                         Tensor y_NH, Tensor log_sum_exp, Strided dq, Strided dk, Strided dv,
                         Tensor workspace, Stream& stream) override;

  void EmbeddingForward(Tensor tokens_N, Tensor table_VH, Tensor positions_TH, int64_t sequence,
                        Tensor y_NH, Stream& stream) override;
  void EmbeddingBackward(Tensor dy_NH, Tensor tokens_N, int64_t sequence, Tensor dtable_VH,
                         Tensor dpositions_TH, Stream& stream) override;

  void CrossEntropy(Tensor logits_NV, Tensor targets_N, LossSums* sums, Stream& stream) override;
  void CrossEntropyLoss(Tensor logits_NV, Tensor targets_N, LossSums* sums,
                        Stream& stream) override;

  void AdamW(const AdamWStep& step, Tensor gradient_sum, Tensor master, Tensor m, Tensor v,
             Tensor parameters, Stream& stream) override;
  void SumSquaresByBlock(Tensor x, double* blocks, Stream& stream) override;
  void FindNonFinite(Tensor x, int32_t* found, Stream& stream) override;

 private:
  // Cosines and sines of every position, for one (sequence, head size, theta).
  struct RopeTable {
    int64_t sequence = 0;
    int64_t half = 0;
    double theta = 0;
    AlignedScratch cosines;
    AlignedScratch sines;
  };

  // Puts `task` (returning a status) or its typed form, task(element of the type), in the stream.
  template <typename Task>
  void Run(Stream& stream, Task task);
  template <typename Task>
  void RunTyped(Stream& stream, ElementType type, Task task);

  template <typename T>
  absl::Status RunRope(Tensor x, int64_t sequence, int64_t head_size, double theta, bool inverse);
  absl::Status FillRopeTable(int64_t sequence, int64_t half, double theta);
  template <typename T>
  absl::Status ForEachPair(const AttentionShape& shape, const AttentionPair<T>& whole,
                           Tensor workspace, void (*loop)(const AttentionPair<T>&));
  void RunCrossEntropy(Tensor logits_NV, Tensor targets_N, LossSums* sums, bool gradient,
                       Stream& stream);

  const int threads_;
  const Loops& loops_;
  Matmul matmul_;
  std::mutex scratch_mutex_;  // guards what follows
  RopeTable rope_;
  AlignedScratch attention_;
};

}  // namespace esteira
