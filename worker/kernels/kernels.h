// Arithmetic on views and a stream: all that a backend must provide. Every operation is mandatory,
// allocates nothing, and passes one conformance suite against reference/.
//
// Assign or accumulate, once for all: outputs and gradients of activations are assigned; gradients
// of weights (dw, db, always fp32) are accumulated, and where most of a step's bytes are, the
// caller may begin a new sum instead. Inputs may not overlap outputs unless a comment says so.
//
// Shapes: N rows (tokens), B sequences, T positions (N = B * T), I inputs, O outputs, H hidden
// size, V vocabulary, Q query heads, K key-value heads, D head size. Activations and weights share
// one type (fp32 or bf16), sums inside an operation are formed in fp32 or better. Results depend on
// values and shapes alone: not on addresses, timing or history. Everything is asynchronous on
// `stream`; a failure sticks to the stream.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/device/device.h"
#include "worker/tensor/tensor.h"

namespace esteira {

enum class WeightLayout { kInOut, kOutIn };  // GPT-2 stores w[I,O], Llama w[O,I]

// A gradient goes on from what lies in memory, or begins anew: the same bits as if there were
// zeros, whatever there is.
enum class GradientSum { kContinues, kBegins };

struct AttentionShape {
  int64_t batch = 0;      // B
  int64_t sequence = 0;   // T
  int64_t num_heads = 0;  // Q
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
};

struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double gradient_scale = 1;  // clip factor over valid tokens: applied to the sum of gradients
  int64_t step = 1;           // of the optimizer, from 1: bias correction
};

// Which elements of an activation become zero: a function of (seed, site, sample, element) alone.
struct DropoutMask {
  double rate = 0;           // of the elements; below 1; to 16 bits
  uint64_t seed = 0;         // of the job
  uint64_t site = 0;         // which of the model's dropouts
  int64_t first_sample = 0;  // of the whole run: row n is of sample first_sample + n / sequence
  int64_t sequence = 0;
};

// Results of CrossEntropy, in device memory, added up over calls.
struct LossSums {
  double loss = 0;           // sum over valid targets of -log p
  int64_t valid_tokens = 0;  // targets other than -100
};

inline constexpr int32_t kIgnoredTarget = -100;

inline constexpr int kFixedPointBits = 36;
inline constexpr float kLargestFixedPoint = 67108864;  // 2^(62 - kFixedPointBits)

class Kernels {
 public:
  virtual ~Kernels() = default;

  // --- memory ---
  virtual void Zero(Tensor x, Stream& stream) = 0;
  virtual void Convert(Tensor from, Tensor to,
                       Stream& stream) = 0;  // to <- from, between fp32 and bf16, or copy
  virtual void Add(Tensor a, Tensor b, Tensor sum,
                   Stream& stream) = 0;  // sum <- a + b; sum may be a or b
  // sum <- sum + x; sum is fp32, or int64 and so is x.
  virtual void Accumulate(Tensor x, Tensor sum, Stream& stream) = 0;

  // --- fixed point: an int64 stands for itself over 2^kFixedPointBits ---
  // sum (int64) <- sum + x, each element of x (fp32) rounded to nearest, ties to even; x <- 0. An
  // element of a magnitude beyond `largest` (at most kLargestFixedPoint), or a NaN, adds nothing,
  // and *refused <- 1; otherwise *refused is left alone.
  virtual void AddFixedPoint(Tensor x, float largest, Tensor sum, int32_t* refused,
                             Stream& stream) = 0;
  // to (fp32) <- from (int64), rounded to nearest.
  virtual void FromFixedPoint(Tensor from, Tensor to, Stream& stream) = 0;

  // --- linear: y[N,O] = x[N,I] w + b[O] ---
  // `bias` without data: none.
  virtual void LinearForward(Tensor x_NI, Tensor w, Tensor bias_O, WeightLayout layout, Tensor y_NO,
                             Stream& stream) = 0;
  virtual void LinearBackwardInput(Tensor dy_NO, Tensor w, WeightLayout layout, Tensor dx_NI,
                                   Stream& stream) = 0;
  virtual void LinearBackwardWeight(Tensor x_NI, Tensor dy_NO, WeightLayout layout, GradientSum sum,
                                    Tensor dw, Tensor db_O, Stream& stream) = 0;

  // --- normalisation over H ---
  // `mean_N`, `rstd_N`: fp32, kept for the backward passes. RMSNorm has no mean (no data) and no
  // bias.
  virtual void LayerNormForward(Tensor x_NH, Tensor w_H, Tensor b_H, double epsilon, Tensor y_NH,
                                Tensor mean_N, Tensor rstd_N, Stream& stream) = 0;
  virtual void LayerNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor mean_N,
                                      Tensor rstd_N, Tensor dx_NH, Stream& stream) = 0;
  virtual void LayerNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor mean_N, Tensor rstd_N,
                                       Tensor dw_H, Tensor db_H, Stream& stream) = 0;
  virtual void RmsNormForward(Tensor x_NH, Tensor w_H, double epsilon, Tensor y_NH, Tensor rstd_N,
                              Stream& stream) = 0;
  virtual void RmsNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor rstd_N,
                                    Tensor dx_NH, Stream& stream) = 0;
  virtual void RmsNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor rstd_N, Tensor dw_H,
                                     Stream& stream) = 0;

  // --- pointwise ---
  // y = x where the element is kept, over the share that is kept; else 0. y may be x.
  virtual void Dropout(Tensor x_NH, const DropoutMask& mask, Tensor y_NH, Stream& stream) = 0;
  // GELU with tanh (Hendrycks & Gimpel), as GPT-2's gelu_new. dx may be dy or x.
  virtual void GeluForward(Tensor x, Tensor y, Stream& stream) = 0;
  virtual void GeluBackward(Tensor dy, Tensor x, Tensor dx, Stream& stream) = 0;
  // y = silu(gate) * up. dgate may be gate, dup may be up.
  virtual void SwiGluForward(Tensor gate, Tensor up, Tensor y, Stream& stream) = 0;
  virtual void SwiGluBackward(Tensor dy, Tensor gate, Tensor up, Tensor dgate, Tensor dup,
                              Stream& stream) = 0;
  // Rotary position embedding in place on x[N, heads * D], halves rotated as Hugging Face's Llama
  // does; position of row n is n % sequence. `inverse` rotates back: the backward pass.
  virtual void Rope(Tensor x, int64_t sequence, int64_t head_size, double theta, bool inverse,
                    Stream& stream) = 0;

  // --- causal attention, scale 1/sqrt(D) ---
  // q[N, Q*D], k and v [N, K*D]: views may be columns of one wider matrix, so row strides
  // (elements) are given. log_sum_exp[N, Q] fp32 is kept for the backward pass. No [T,T] matrix of
  // a whole batch is ever formed.
  struct Strided {
    Tensor view;         // first row's elements
    int64_t row_stride;  // elements
  };
  virtual void AttentionForward(const AttentionShape& shape, Strided q, Strided k, Strided v,
                                Tensor y_NH, Tensor log_sum_exp, Tensor workspace,
                                Stream& stream) = 0;
  virtual void AttentionBackward(const AttentionShape& shape, Tensor dy_NH, Strided q, Strided k,
                                 Strided v, Tensor y_NH, Tensor log_sum_exp, Strided dq, Strided dk,
                                 Strided dv, Tensor workspace, Stream& stream) = 0;
  // dq, dk and dv may be q, k and v. `workspace`: fp32, AttentionWorkspaceElements of
  // common/plan/sizes.h.

  // --- embedding ---
  // y[n] = table[tokens[n]] (+ positions[n % sequence] when it has data).
  virtual void EmbeddingForward(Tensor tokens_N, Tensor table_VH, Tensor positions_TH,
                                int64_t sequence, Tensor y_NH, Stream& stream) = 0;
  // dtable (if it has data) and dpositions (if it has data) accumulate, rows added in order of n.
  virtual void EmbeddingBackward(Tensor dy_NH, Tensor tokens_N, int64_t sequence, Tensor dtable_VH,
                                 Tensor dpositions_TH, Stream& stream) = 0;

  // --- loss ---
  // Softmax cross-entropy summed over valid targets, fused with its gradient: logits become
  // d(sum)/d(logits) in place. Adds to *sums (device memory); the sum over rows is formed in double
  // in order of n.
  virtual void CrossEntropy(Tensor logits_NV, Tensor targets_N, LossSums* sums, Stream& stream) = 0;
  // The same without the gradient; logits are left as they are.
  virtual void CrossEntropyLoss(Tensor logits_NV, Tensor targets_N, LossSums* sums,
                                Stream& stream) = 0;

  // --- optimizer ---
  // Decoupled weight decay (Loshchilov & Hutter, 2019) with bias correction. master, m, v,
  // gradient_sum: fp32; `parameters` (fp32 or bf16) receives the rounded master. All of equal size.
  virtual void AdamW(const AdamWStep& step, Tensor gradient_sum, Tensor master, Tensor m, Tensor v,
                     Tensor parameters, Stream& stream) = 0;
  // blocks[i] <- sum of squares (double) of elements [64 i, 64 i + 64) of x (fp32), always formed
  // in the same order. x.elements() is a multiple of kBlockElements.
  virtual void SumSquaresByBlock(Tensor x, double* blocks, Stream& stream) = 0;
  // *found <- 1 when any element is NaN or infinite; otherwise it is left alone.
  virtual void FindNonFinite(Tensor x, int32_t* found, Stream& stream) = 0;
};

std::unique_ptr<Kernels> MakeCpuKernels(int threads);

}  // namespace esteira
