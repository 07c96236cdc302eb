// The inner loops of the CPU kernels, as a table of plain functions: one table for each instruction
// set that the binary carries, all of the same source (*-inl.h). Loops are single-threaded,
// allocate nothing and check nothing; the kernels above them split the work among threads. Legend
// of shapes: worker/kernels/kernels.h.
#pragma once

#include <cstdint>

namespace esteira {

// One, in fixed point: 2^36 (kFixedPointBits of worker/kernels/kernels.h).
inline constexpr double kFixedPointScale = 68719476736.0;

// A bf16 number: the upper half of an fp32.
struct Bf16 {
  uint16_t bits;
};

// Rows of one matrix: the element (r, c) is data[r * stride + c].
template <typename T>
struct RowsOf {
  T* data = nullptr;
  int64_t stride = 0;
  [[gnu::always_inline]] inline T* row(int64_t r) const { return data + r * stride; }
};

template <typename T>
struct NormRows {
  int64_t rows = 0;
  int64_t columns = 0;
  const T* x = nullptr;
  const T* w = nullptr;
  const T* b = nullptr;   // LayerNorm only
  float* mean = nullptr;  // LayerNorm only; null: RMSNorm
  float* rstd = nullptr;
  float epsilon = 0;
  const T* dy = nullptr;  // backward passes only
  T* out = nullptr;       // y or dx
};

// Columns [begin, end) of the weight gradients of a norm; db may be null.
template <typename T>
struct NormColumns {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t begin = 0;
  int64_t end = 0;
  const T* dy = nullptr;
  const T* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  float* dw = nullptr;
  float* db = nullptr;
};

struct AdamWFactors {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;          // learning rate over the first bias correction
  float second_correction;  // one over the square root of the second bias correction
  float epsilon;
  float decay;  // learning rate times weight decay
};

// Attention of one (sequence, key-value head) pair: `group` query heads, column blocks of head_size
// of q, y, dy and dq.
template <typename T>
struct AttentionPair {
  int64_t sequence = 0;
  int64_t head_size = 0;
  int64_t group = 0;
  float scale = 0;
  RowsOf<const T> q, k, v;
  RowsOf<T> y;                  // forward
  RowsOf<float> log_sum_exp;    // one column a query head
  RowsOf<const T> dy, y_saved;  // backward
  RowsOf<T> dq, dk, dv;
  float* packed = nullptr;   // [T, D]: the keys in fp32; forward: a second one, the values
  float* sums = nullptr;     // backward: two [T, D]
  float* scratch = nullptr;  // LoopsOf<T>::attention_scratch
};

inline constexpr int64_t kAttentionTile = 64;

// --- bf16 products in tiles (tiles-inl.h, tile_product-inl.h) ---

inline constexpr int64_t kDepthOfStep = 32;
inline constexpr int64_t kLinesOfPanel = 32;
inline constexpr int64_t kPanelStep = kLinesOfPanel * kDepthOfStep;  // elements
inline constexpr int64_t kPanelSums = kLinesOfPanel * kLinesOfPanel;
constexpr int64_t StepsOf(int64_t depth) { return (depth + kDepthOfStep - 1) / kDepthOfStep; }
constexpr int64_t PanelsOf(int64_t lines) { return (lines + kLinesOfPanel - 1) / kLinesOfPanel; }

// The element (r, c) is data[r * stride + c], or data[c * stride + r] when transposed.
struct StoredMatrix {
  const Bf16* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

// Where sums go: bf16 (`narrow`), or fp32 (`wide`), added to what is there if so asked. They
// are multiplied by `scale` first; `bias`: one element a column, or null: 0. So in fp32 there is
// never a -0.
struct PanelResult {
  int64_t rows = 0;
  int64_t columns = 0;
  const Bf16* bias = nullptr;
  float scale = 1;
  Bf16* narrow = nullptr;
  float* wide = nullptr;
  int64_t stride = 0;
  bool accumulate = false;
  bool past_caches = false;  // wide, aligned to 64 bytes and assigned: not read again soon
};

// sums (+)= left right, over `steps` of depth. The sums of a pair of panels are kPanelSums
// elements, those of a row panel follow each other.
struct PanelBlock {
  const Bf16* left = nullptr;
  int64_t left_panel = 0;  // elements from one left panel to the next
  const Bf16* right = nullptr;
  int64_t steps = 0;
  bool first = false;  // sums begin at zero
  bool last = false;   // sums end as `result`
  float* sums = nullptr;
  PanelResult result;
};

struct TileLoops {
  // Both begin at the matrix's first element.
  void (*pack_left)(const StoredMatrix& a, int64_t rows, int64_t depth, Bf16* panels);
  void (*pack_right)(const StoredMatrix& b, int64_t depth, int64_t columns, Bf16* panels);
  void (*multiply)(const PanelBlock& block);
};

template <typename T>
struct LoopsOf {
  void (*to_fp32)(const T* from, float* to, int64_t n);
  void (*from_fp32)(const float* from, T* to, int64_t n);
  void (*add)(const T* a, const T* b, T* sum, int64_t n);
  void (*accumulate)(const T* x, float* sum, int64_t n);
  // sums[c] += sum over rows of x[r, c], for begin <= c < end.
  void (*column_sums)(RowsOf<const T> x, int64_t rows, int64_t begin, int64_t end, float* sums);
  void (*norm_forward)(const NormRows<T>& norm);
  void (*norm_backward_input)(const NormRows<T>& norm);
  void (*norm_backward_weight)(const NormColumns<T>& norm);
  void (*gelu_forward)(const T* x, T* y, int64_t n);
  void (*gelu_backward)(const T* dy, const T* x, T* dx, int64_t n);
  void (*swiglu_forward)(const T* gate, const T* up, T* y, int64_t n);
  void (*swiglu_backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n);
  // One head of one position: `half` pairs (x[i], x[half + i]) turn by the angle with this cosine
  // and sine.
  void (*rotate)(T* x, const float* cosine, const float* sine, int64_t half, bool inverse);
  // Elements of AttentionPair::scratch.
  int64_t (*attention_scratch)(int64_t sequence, int64_t head_size);
  void (*attention_forward)(const AttentionPair<T>& pair);
  void (*attention_backward)(const AttentionPair<T>& pair);
  // -log p[target] of one row; with `gradient` the row becomes p - onehot(target).
  double (*cross_entropy_row)(T* logits, int64_t columns, int64_t target, bool gradient);
  void (*adamw)(const AdamWFactors& factors, const float* gradient_sum, float* master, float* m,
                float* v, T* parameters, int64_t n);
  bool (*any_non_finite)(const T* x, int64_t n);
};

struct Loops {
  const char* name;  // of the instruction set
  LoopsOf<float> fp32;
  LoopsOf<Bf16> bf16;
  void (*sum_squares_by_block)(const float* x, double* blocks, int64_t num_blocks);
  // Kernels::AddFixedPoint; true when an element was refused.
  bool (*add_fixed_point)(float* x, float largest, int64_t* sum, int64_t n);
  void (*from_fixed_point)(const int64_t* from, float* to, int64_t n);
  void (*add_integers)(const int64_t* x, int64_t* sum, int64_t n);
  const TileLoops* tiles = nullptr;  // null: the instruction set has none

  template <typename T>
  const LoopsOf<T>& Of() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return fp32;
    } else {
      return bf16;
    }
  }
};

extern const Loops kLoopsBaseline;  // any x86-64
extern const Loops kLoopsAvx2;      // x86-64-v3
extern const Loops kLoopsAvx512;    // x86-64-v4
extern const Loops kLoopsAmx;       // x86-64-v4 with AVX512-BF16 and AMX-BF16

// The fastest that this CPU runs. Asks the operating system for the use of tiles, once.
const Loops& LoopsOfThisCpu();

}  // namespace esteira
