// Causal attention of bf16 in AMX tiles: the algorithm of attention-inl.h in blocks of 64 queries
// by 64 keys. Scores, probabilities and their gradients lie as S[key, query], as there; what leaves
// one product as sums becomes an operand of the next without a transpose. Products take bf16, also
// of probabilities; softmax and all sums are fp32. Exp2 makes a NaN of minus infinity, so no
// non-finite score vanishes.
#pragma once

#include "worker/kernels/cpu/attention-inl.h"
#include "worker/kernels/cpu/tile_product-inl.h"

namespace esteira {
namespace {

constexpr int64_t kBlock = kAttentionTile;  // queries or keys: two panels
constexpr int64_t kStepsOfBlock = kBlock / kDepthOfStep;
constexpr int64_t kBlockElements = kBlock * kBlock;
constexpr float kLog2E = 1.44269504f;
constexpr float kLowestScore = -1e30f;

// 2^x, relative error below 2e-7 (interpolated at Chebyshev's points); 0 far below, NaN for a NaN
// and for both infinities.
ESTEIRA_INLINE V Exp2(V x) {
  const V whole = _mm512_roundscale_ps(x, 0);
  const V r = x - whole;
  V p = Splat(1.3390863364616103e-3f);
  p = p * r + 9.676031918324871e-3f;
  p = p * r + 5.550357114219194e-2f;
  p = p * r + 2.4022107485308267e-1f;
  p = p * r + 6.931471880262287e-1f;
  p = p * r + 1.0000000754548972f;
  // By minus infinity, scalef would make 0 of a NaN.
  return _mm512_scalef_ps(p, _mm512_max_ps(whole, Splat(-1000.0f)));
}

constexpr int64_t RoundedToPanel(int64_t lines) { return PanelsOf(lines) * kLinesOfPanel; }
constexpr int64_t RoundedToBlock(int64_t lines) { return (lines + kBlock - 1) / kBlock * kBlock; }

// Everything that one pair needs, one after the other in its scratch. Lengths in fp32; bf16 takes
// half.
class TileScratch {
 public:
  TileScratch(float* scratch, int64_t sequence, int64_t head_size) : at_(scratch) {
    const int64_t keys = RoundedToBlock(sequence);
    const int64_t width = RoundedToPanel(head_size);
    Bf16** const of_keys[] = {&keys_left, &keys_across_left, &values_left};
    Bf16** const of_queries[] = {&queries_right, &queries_along_right, &dy_right, &dy_along_right};
    Bf16** const of_scores[] = {&p_left, &p_right, &ds_left, &ds_right};
    for (Bf16** matrix : of_keys) Take(matrix, keys * width);
    for (Bf16** matrix : of_queries) Take(matrix, kBlock * width);
    for (Bf16** matrix : of_scores) Take(matrix, kBlockElements);
    Take(&scores, kBlockElements);
    Take(&dscores, kBlockElements);
    Take(&out, kBlock * width);
    Take(&dk, keys * width);
    Take(&dv, keys * width);
    Take(&max, kBlock);
    Take(&sum, kBlock);
  }

  // Named by their place in a product; "across": the transpose of what memory holds.
  Bf16 *keys_left, *keys_across_left, *values_left;
  Bf16 *queries_right, *queries_along_right, *dy_right, *dy_along_right;
  Bf16 *p_left, *p_right, *ds_left, *ds_right;
  float *scores, *dscores;  // [key, query]
  float* out;               // [head size, query]
  float *dk, *dv;           // [key, head size]
  float *max, *sum;         // backward: log_sum_exp and the sum of dy y

 private:
  void Take(float** to, int64_t elements) {
    *to = at_;
    at_ += elements;
  }
  void Take(Bf16** to, int64_t elements) {
    *to = reinterpret_cast<Bf16*>(at_);
    at_ += elements / 2;
  }

  float* at_;
};

// The length of a TileScratch, in fp32.
int64_t TileAttentionScratch(int64_t sequence, int64_t head_size) {
  const int64_t keys = RoundedToBlock(sequence);
  const int64_t width = RoundedToPanel(head_size);
  const int64_t bf16 = 3 * keys * width + 4 * kBlock * width + 4 * kBlockElements;
  return bf16 / 2 + 2 * kBlockElements + kBlock * width + 2 * keys * width + 2 * kBlock;
}

// sums[rows, columns] (+)= left right. A panel of `left` is `left_panel` elements.
template <bool kContinue>
ESTEIRA_INLINE void MultiplyTiles(const Bf16* left, int64_t left_panel, int64_t row_panels,
                                  const Bf16* right, int64_t column_panels, int64_t steps,
                                  float* sums) {
  for (int64_t r = 0; r < row_panels; ++r) {
    for (int64_t c = 0; c < column_panels; ++c, sums += kPanelSums) {
      MultiplyPanels<kContinue>(left + r * left_panel, right + c * steps * kPanelStep, steps, sums);
    }
  }
}

// Where 16 queries of one key lie in the sums of a block: `group` of 16 queries, of four.
ESTEIRA_INLINE int64_t GroupOf(int64_t key, int64_t group) {
  return key / kLinesOfPanel * 2 * kPanelSums + group / 2 * kPanelSums +
         key % kLinesOfPanel / kTileRows * 2 * kSumElements + group % 2 * kSumElements +
         key % kTileRows * kTileRows;
}

// Queries of a group that see `key`; on the diagonal a query sees the keys up to itself.
template <bool kDiagonal>
ESTEIRA_INLINE __mmask16 Seen(int64_t key, int64_t group) {
  constexpr __mmask16 kAll16 = 0xffff;
  if constexpr (!kDiagonal) return kAll16;
  const int64_t hidden = key - group * kTileRows;
  if (hidden <= 0) return kAll16;
  return hidden >= kTileRows ? __mmask16{0} : static_cast<__mmask16>(kAll16 << hidden);
}

// Values of two keys, one after the other, and the 32 queries of a step, as bf16: into a left
// operand [key, query], a right operand, or both.
template <bool kLeft, bool kRight>
ESTEIRA_INLINE void StoreKeys(const V (&first)[2], const V (&second)[2], Bf16* left, Bf16* right) {
  const auto even = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(first[1], first[0]));
  const auto odd = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second[1], second[0]));
  if constexpr (kLeft) {
    _mm512_store_si512(left, even);
    _mm512_store_si512(left + kDepthOfStep, odd);
  }
  if constexpr (kRight) {
    _mm512_store_si512(right, Interleave<0>(even, odd));
    _mm512_store_si512(right + kTileElements, Interleave<1>(even, odd));
  }
}

// Where the values of `key` and the queries of `step` lie in a left or a right operand; 16 keys
// from a multiple of 16 on follow each other, kDepthOfStep elements apart on the left, as two are
// on the right.
ESTEIRA_INLINE int64_t LeftOf(int64_t key, int64_t step) {
  return (key / kLinesOfPanel * kStepsOfBlock + step) * kPanelStep +
         key % kLinesOfPanel * kDepthOfStep;
}
ESTEIRA_INLINE int64_t RightOf(int64_t key, int64_t step) {
  return (step * kStepsOfBlock + key / kDepthOfStep) * kPanelStep +
         key % kDepthOfStep / 2 * kLinesOfPanel;
}

// The largest score of each of 64 queries over a block, and `max` before it. Two chains a group:
// one after the other they would wait for each other.
template <bool kDiagonal>
ESTEIRA_INLINE void LargestScores(const float* scores, V (&max)[4]) {
  V odd[4] = {max[0], max[1], max[2], max[3]};
  for (int64_t first = 0; first < kBlock; first += kTileRows) {
    for (int64_t key = first; key < first + kTileRows; key += 2) {
#pragma GCC unroll 4
      for (int64_t group = 0; group < 4; ++group) {
        const float* const at = scores + GroupOf(first, group) + (key - first) * kTileRows;
        max[group] =
            _mm512_mask_max_ps(max[group], Seen<kDiagonal>(key, group), max[group], Load(at));
        odd[group] = _mm512_mask_max_ps(odd[group], Seen<kDiagonal>(key + 1, group), odd[group],
                                        Load(at + kTileRows));
      }
    }
  }
#pragma GCC unroll 4
  for (int64_t group = 0; group < 4; ++group) max[group] = _mm512_max_ps(max[group], odd[group]);
}

// The maximum of each query over the block and before; the output so far is rescaled to it.
template <bool kDiagonal>
ESTEIRA_INLINE void RaiseMaxima(TileScratch& s, float scale, int64_t width) {
  V max[4];
  for (int64_t group = 0; group < 4; ++group) max[group] = Load(s.max + group * kTileRows);
  LargestScores<kDiagonal>(s.scores, max);
  for (int64_t group = 0; group < 4; ++group) {
    const V old_max = Load(s.max + group * kTileRows);
    if (_mm512_cmpneq_ps_mask(max[group], old_max) == 0) continue;
    const V factor = Exp2((old_max - max[group]) * scale);
    Store(s.max + group * kTileRows, max[group]);
    Store(s.sum + group * kTileRows, Load(s.sum + group * kTileRows) * factor);
    for (int64_t d = 0; d < width; ++d) {
      float* const at = s.out + GroupOf(d, group);
      Store(at, Load(at) * factor);
    }
  }
}

// Scores to exponentials, in p_right, and their sums.
template <bool kDiagonal>
ESTEIRA_INLINE void Exponentials(TileScratch& s, float scale) {
  for (int64_t step = 0; step < kStepsOfBlock; ++step) {
    V max[2], sum[2];
    for (int i = 0; i < 2; ++i) {
      max[i] = Load(s.max + (2 * step + i) * kTileRows);
      sum[i] = Load(s.sum + (2 * step + i) * kTileRows);
    }
    for (int64_t first = 0; first < kBlock; first += kTileRows) {
      const float* const scores[2] = {s.scores + GroupOf(first, 2 * step),
                                      s.scores + GroupOf(first, 2 * step + 1)};
      Bf16* const right = s.p_right + RightOf(first, step);
      for (int64_t key = 0; key < kTileRows; key += 2) {
        V p[2][2];
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) {
#pragma GCC unroll 2
          for (int i = 0; i < 2; ++i) {
            const V score = Load(scores[i] + (key + k) * kTileRows);
            p[k][i] = _mm512_maskz_mov_ps(Seen<kDiagonal>(first + key + k, 2 * step + i),
                                          Exp2((score - max[i]) * scale));
            sum[i] += p[k][i];
          }
        }
        StoreKeys<false, true>(p[0], p[1], nullptr, right + key / 2 * kLinesOfPanel);
      }
    }
    for (int i = 0; i < 2; ++i) Store(s.sum + (2 * step + i) * kTileRows, sum[i]);
  }
}

// x[query, d] <- out[d, query] * factor[query]
void StoreAcross(const float* out, int64_t queries, int64_t head_size, const float* factor,
                 RowsOf<Bf16> x) {
  for (int64_t group = 0; group * kTileRows < queries; ++group) {
    const V scale = Load(factor + group * kTileRows);
    for (int64_t d = 0; d < head_size; d += kLinesOfPanel) {
      __m512i low[16], high[16];
      for (int64_t i = 0; i < kTileRows; ++i) {
        low[i] = reinterpret_cast<__m512i>(Load(out + GroupOf(d + i, group)) * scale);
        high[i] = reinterpret_cast<__m512i>(Load(out + GroupOf(d + kTileRows + i, group)) * scale);
      }
      Transpose(low);
      Transpose(high);
      const __mmask32 mask = MaskOf(head_size - d);
      for (int64_t i = 0; i < kTileRows && group * kTileRows + i < queries; ++i) {
        const auto row = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high[i]),
                                             reinterpret_cast<__m512>(low[i]));
        _mm512_mask_storeu_epi16(x.row(group * kTileRows + i) + d, mask,
                                 reinterpret_cast<__m512i>(row));
      }
    }
  }
}

// The rows of one block of queries, as a right operand [head size, query] (`along`) or
// [query, head size].
void PackQueries(RowsOf<const Bf16> x, int64_t queries, int64_t head_size, bool along,
                 Bf16* right) {
  if (along) {
    for (int64_t panel = 0; panel < kStepsOfBlock; ++panel) {
      PackRightAlong(x.row(panel * kLinesOfPanel), x.stride, queries - panel * kLinesOfPanel,
                     head_size, right + panel * StepsOf(head_size) * kPanelStep);
    }
    return;
  }
  for (int64_t step = 0; step < kStepsOfBlock; ++step) {
    for (int64_t panel = 0; panel < PanelsOf(head_size); ++panel) {
      PackStepAcross<true>(x.row(step * kDepthOfStep) + panel * kLinesOfPanel, x.stride,
                           head_size - panel * kLinesOfPanel, queries - step * kDepthOfStep,
                           right + (panel * kStepsOfBlock + step) * kPanelStep);
    }
  }
}

// Sizes of one pair, in panels and steps.
struct PairShape {
  explicit PairShape(const AttentionPair<Bf16>& pair)
      : width_panels(PanelsOf(pair.head_size)),
        width_steps(StepsOf(pair.head_size)),
        key_steps(RoundedToBlock(pair.sequence) / kDepthOfStep) {}
  int64_t width_panels;
  int64_t width_steps;
  int64_t key_steps;
};

// Rows of keys (or values) as a left operand [key, head size], up to whole blocks.
void PackKeys(RowsOf<const Bf16> x, const AttentionPair<Bf16>& pair, Bf16* left) {
  const int64_t panel = StepsOf(pair.head_size) * kPanelStep;
  for (int64_t key = 0; key < RoundedToBlock(pair.sequence); key += kLinesOfPanel, left += panel) {
    PackLeftAlong(x.row(key), x.stride, pair.sequence - key, pair.head_size, left);
  }
}

// The same as a left operand [head size, key].
void PackKeysAcross(RowsOf<const Bf16> x, const AttentionPair<Bf16>& pair, Bf16* left) {
  const int64_t steps = RoundedToBlock(pair.sequence) / kDepthOfStep;
  for (int64_t d = 0; d < pair.head_size; d += kLinesOfPanel) {
    for (int64_t step = 0; step < steps; ++step, left += kPanelStep) {
      PackStepAcross<false>(x.row(step * kDepthOfStep) + d, x.stride, pair.head_size - d,
                            pair.sequence - step * kDepthOfStep, left);
    }
  }
}

// [key, query] <- the block's keys (or values) times queries (or dy).
ESTEIRA_INLINE void TileScores(const PairShape& shape, const Bf16* keys_left, int64_t first_key,
                               const Bf16* right, float* scores) {
  const int64_t panel = shape.width_steps * kPanelStep;
  MultiplyTiles<false>(keys_left + first_key / kLinesOfPanel * panel, panel, kStepsOfBlock, right,
                       kStepsOfBlock, shape.width_steps, scores);
}

// out[head size, query] += (the block's keys or values)^T weights
ESTEIRA_INLINE void AddWeighted(const PairShape& shape, const Bf16* across_left, int64_t first_key,
                                const Bf16* weights_right, float* out) {
  MultiplyTiles<true>(across_left + first_key / kDepthOfStep * kPanelStep,
                      shape.key_steps * kPanelStep, shape.width_panels, weights_right,
                      kStepsOfBlock, kStepsOfBlock, out);
}

void TileForwardBlock(const AttentionPair<Bf16>& pair, const PairShape& shape, TileScratch& s,
                      int64_t head, int64_t first) {
  const int64_t head_size = pair.head_size;
  const int64_t queries = RowsOfTile(first, pair.sequence);
  const int64_t width = shape.width_panels * kLinesOfPanel;
  const float scale = pair.scale * kLog2E;
  PackQueries(HeadRows(pair.q, first, head, head_size), queries, head_size, /*along=*/true,
              s.queries_right);
  Fill(s.out, width * kBlock, 0.0f);
  Fill(s.sum, kBlock, 0.0f);
  Fill(s.max, kBlock, kLowestScore);
  for (int64_t key = 0; key <= first; key += kBlock) {
    TileScores(shape, s.keys_left, key, s.queries_right, s.scores);
    if (key == first) {
      RaiseMaxima<true>(s, scale, width);
      Exponentials<true>(s, scale);
    } else {
      RaiseMaxima<false>(s, scale, width);
      Exponentials<false>(s, scale);
    }
    AddWeighted(shape, s.values_left, key, s.p_right, s.out);
  }
  for (int64_t i = 0; i < queries; ++i) {
    pair.log_sum_exp.row(first + i)[head] = s.max[i] * pair.scale + __builtin_logf(s.sum[i]);
  }
  for (int64_t i = 0; i < kBlock; ++i) s.sum[i] = 1.0f / s.sum[i];
  StoreAcross(s.out, queries, head_size, s.sum, HeadRows(pair.y, first, head, head_size));
}

void TileAttentionForward(const AttentionPair<Bf16>& pair) {
  const TileScope tiles;
  const PairShape shape(pair);
  TileScratch s(pair.scratch, pair.sequence, pair.head_size);
  PackKeys(pair.k, pair, s.keys_left);
  PackKeysAcross(pair.v, pair, s.values_left);
  for (int64_t head = 0; head < pair.group; ++head) {
    for (int64_t first = 0; first < pair.sequence; first += kBlock) {
      TileForwardBlock(pair, shape, s, head, first);
    }
  }
}

// P = exp(S - log_sum_exp) and dS = P (dP - sum over d of dy y), as operands.
template <bool kDiagonal>
ESTEIRA_INLINE void TileBackwardScores(TileScratch& s, float scale) {
  for (int64_t step = 0; step < kStepsOfBlock; ++step) {
    V log_sum_exp[2], dy_y[2];
    for (int i = 0; i < 2; ++i) {
      log_sum_exp[i] = Load(s.max + (2 * step + i) * kTileRows);
      dy_y[i] = Load(s.sum + (2 * step + i) * kTileRows);
    }
    for (int64_t first = 0; first < kBlock; first += kTileRows) {
      const int64_t from[2] = {GroupOf(first, 2 * step), GroupOf(first, 2 * step + 1)};
      const int64_t left = LeftOf(first, step);
      const int64_t right = RightOf(first, step);
      for (int64_t key = 0; key < kTileRows; key += 2) {
        V p[2][2], ds[2][2];
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) {
#pragma GCC unroll 2
          for (int i = 0; i < 2; ++i) {
            const int64_t at = from[i] + (key + k) * kTileRows;
            const __mmask16 seen = Seen<kDiagonal>(first + key + k, 2 * step + i);
            p[k][i] = _mm512_maskz_mov_ps(seen, Exp2(Load(s.scores + at) * scale - log_sum_exp[i]));
            ds[k][i] = _mm512_maskz_mov_ps(seen, p[k][i] * (Load(s.dscores + at) - dy_y[i]));
          }
        }
        const int64_t row = left + key * kDepthOfStep;
        StoreKeys<true, false>(p[0], p[1], s.p_left + row, nullptr);
        StoreKeys<true, true>(ds[0], ds[1], s.ds_left + row,
                              s.ds_right + right + key / 2 * kLinesOfPanel);
      }
    }
  }
}

// [key, head size] += weights[key, query] rows[query, head size]
ESTEIRA_INLINE void AddToBlockOfKeys(const PairShape& shape, const Bf16* weights_left,
                                     const Bf16* rows_right, int64_t first_key, float* sums) {
  MultiplyTiles<true>(weights_left, kStepsOfBlock * kPanelStep, kStepsOfBlock, rows_right,
                      shape.width_panels, kStepsOfBlock,
                      sums + first_key / kLinesOfPanel * shape.width_panels * kPanelSums);
}

void TileLoadQueries(const AttentionPair<Bf16>& pair, TileScratch& s, int64_t head, int64_t first) {
  const int64_t head_size = pair.head_size;
  const int64_t queries = RowsOfTile(first, pair.sequence);
  const auto q = HeadRows(pair.q, first, head, head_size);
  const auto dy = HeadRows(pair.dy, first, head, head_size);
  const auto y = HeadRows(pair.y_saved, first, head, head_size);
  PackQueries(q, queries, head_size, /*along=*/true, s.queries_along_right);
  PackQueries(q, queries, head_size, /*along=*/false, s.queries_right);
  PackQueries(dy, queries, head_size, /*along=*/true, s.dy_along_right);
  PackQueries(dy, queries, head_size, /*along=*/false, s.dy_right);
  Fill(s.max, kBlock, 0.0f);
  Fill(s.sum, kBlock, 0.0f);
  for (int64_t i = 0; i < queries; ++i) {
    s.max[i] = pair.log_sum_exp.row(first + i)[head] * kLog2E;
    s.sum[i] = DotRows(dy.row(i), y.row(i), head_size);
  }
}

void TileBackwardBlock(const AttentionPair<Bf16>& pair, const PairShape& shape, TileScratch& s,
                       int64_t head, int64_t first) {
  TileLoadQueries(pair, s, head, first);
  Fill(s.out, shape.width_panels * kLinesOfPanel * kBlock, 0.0f);
  for (int64_t key = 0; key <= first; key += kBlock) {
    TileScores(shape, s.keys_left, key, s.queries_along_right, s.scores);
    TileScores(shape, s.values_left, key, s.dy_along_right, s.dscores);
    if (key == first) {
      TileBackwardScores<true>(s, pair.scale * kLog2E);
    } else {
      TileBackwardScores<false>(s, pair.scale * kLog2E);
    }
    AddToBlockOfKeys(shape, s.p_left, s.dy_right, key, s.dv);
    AddToBlockOfKeys(shape, s.ds_left, s.queries_right, key, s.dk);
    AddWeighted(shape, s.keys_across_left, key, s.ds_right, s.out);
  }
  Fill(s.sum, kBlock, pair.scale);
  StoreAcross(s.out, RowsOfTile(first, pair.sequence), pair.head_size, s.sum,
              HeadRows(pair.dq, first, head, pair.head_size));
}

// x <- sums * scale
void StoreKeySums(const AttentionPair<Bf16>& pair, const float* sums, float scale, RowsOf<Bf16> x) {
  const PanelResult result = {.rows = pair.sequence,
                              .columns = pair.head_size,
                              .scale = scale,
                              .narrow = x.data,
                              .stride = x.stride};
  for (int64_t key = 0; key < pair.sequence; key += kLinesOfPanel) {
    for (int64_t d = 0; d < pair.head_size; d += kLinesOfPanel, sums += kPanelSums) {
      FinishPanels(result, key, d, sums);
    }
  }
}

void TileAttentionBackward(const AttentionPair<Bf16>& pair) {
  const TileScope tiles;
  const PairShape shape(pair);
  TileScratch s(pair.scratch, pair.sequence, pair.head_size);
  PackKeys(pair.k, pair, s.keys_left);
  PackKeys(pair.v, pair, s.values_left);
  PackKeysAcross(pair.k, pair, s.keys_across_left);
  const int64_t elements = RoundedToBlock(pair.sequence) * shape.width_panels * kLinesOfPanel;
  Fill(s.dk, elements, 0.0f);
  Fill(s.dv, elements, 0.0f);
  for (int64_t head = 0; head < pair.group; ++head) {
    for (int64_t first = 0; first < pair.sequence; first += kBlock) {
      TileBackwardBlock(pair, shape, s, head, first);
    }
  }
  StoreKeySums(pair, s.dk, pair.scale, pair.dk);
  StoreKeySums(pair, s.dv, 1.0f, pair.dv);
}

}  // namespace
}  // namespace esteira
