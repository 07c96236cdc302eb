// Forward attention of bf16 in AMX tiles: 32 queries at a time against visits of up to 64 keys, so
// that everything but keys and values stays in the first-level cache. Scores lie as S[query, key]:
// as bf16, a row of them is a row of a left operand, and a row of the output a row of y.
#pragma once

#include "worker/kernels/cpu/tile_attention-inl.h"

namespace esteira {
namespace {

constexpr int64_t kQueries = kLinesOfPanel;
constexpr int64_t kPanelsOfVisit = 2;  // of keys
constexpr float kRaisedAfter = 8.0f;

class ForwardScratch {
 public:
  ForwardScratch(float* scratch, int64_t sequence, int64_t head_size) {
    const int64_t keys = RoundedToPanel(sequence);
    const int64_t width = RoundedToPanel(head_size);
    ScratchParts parts(scratch);
    parts.Take(&keys_right, keys * width);
    parts.Take(&values_right, keys * width);
    parts.Take(&queries_left, kQueries * width);
    parts.Take(&p_left, kQueries * kPanelsOfVisit * kLinesOfPanel);
    parts.Take(&scores, kPanelsOfVisit * kPanelSums);
    parts.Take(&out, kQueries * width);
    parts.Take(&sum, kQueries * kLanes);
    parts.Take(&max, kQueries);
    parts.Take(&limit, kQueries);
    elements = parts.taken();
  }

  Bf16 *keys_right, *values_right;  // [head size, key], [key, head size]
  Bf16 *queries_left, *p_left;
  float* scores;  // a panel of keys after the other
  float* out;     // [query, head size]
  float* sum;     // of exponentials: a vector for each query, of whose lanes it is the sum
  float* max;     // times scale
  float* limit;   // a larger score raises the maximum
  bool non_finite_keys = false;
  int64_t elements;
};

// Keys of a panel, 16 from `half` on, that the query `row` of the same panel sees.
ESTEIRA_INLINE __mmask16 SeenOnDiagonal(int64_t row, int64_t half) {
  const int64_t count = row + 1 - half * kTileRows;
  if (count >= kTileRows) return 0xffff;
  return count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1u << count) - 1);
}

// A query's scores exceed what its exponentials are relative to by too much: these become relative
// to the largest of `top`, and what was summed follows.
__attribute__((noinline)) void RaiseMaximum(ForwardScratch& s, int64_t row, V top, float scale,
                                            int64_t width) {
  const float max = _mm512_reduce_max_ps(top) * scale;
  const V factor = Exp2(Splat(s.max[row] - max));
  s.max[row] = max;
  s.limit[row] = (max + kRaisedAfter) / scale;
  Store(s.sum + row * kLanes, Load(s.sum + row * kLanes) * factor);
  float* const out = s.out + RowOfPanels(row);
  for (int64_t d = 0; d < width; d += kLinesOfPanel) {
    for (int64_t half = 0; half < 2; ++half) {
      float* const at = out + d / kLinesOfPanel * kPanelSums + half * kSumElements;
      Store(at, Load(at) * factor);
    }
  }
}

// Scores of a visit to exponentials, in p_left, and their sums. Exponentials are relative to a
// maximum that is raised only when a score exceeds it by 2^8: a rule of each query by itself.
template <int kPanels, bool kDiagonal>
void ExponentialsOfVisit(ForwardScratch& s, float scale, int64_t width) {
  for (int64_t row = 0; row < kQueries; ++row) {
    const float* const from = s.scores + RowOfPanels(row);
    V x[2 * kPanels];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kPanels; ++i) {
      x[i] = Load(from + i / 2 * kPanelSums + i % 2 * kSumElements);
      if (kDiagonal && i >= 2 * kPanels - 2) {
        x[i] = _mm512_mask_mov_ps(Splat(kLowestScore), SeenOnDiagonal(row, i % 2), x[i]);
      }
    }
    V top = x[0];
#pragma GCC unroll 8
    for (int i = 1; i < 2 * kPanels; ++i) top = _mm512_max_ps(top, x[i]);
    if (__builtin_expect(_mm512_cmp_ps_mask(top, Splat(s.limit[row]), _CMP_GT_OQ) != 0, 0)) {
      RaiseMaximum(s, row, top, scale, width);
    }
    const V max = Splat(s.max[row]);
    V sum = Load(s.sum + row * kLanes);
    Bf16* const to = s.p_left + row * kDepthOfStep;
#pragma GCC unroll 4
    for (int i = 0; i < kPanels; ++i) {
      const V low = Exp2(x[2 * i] * scale - max);
      const V high = Exp2(x[2 * i + 1] * scale - max);
      sum += low;
      sum += high;
      _mm512_store_si512(to + i * kPanelStep,
                         reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
    Store(s.sum + row * kLanes, sum);
  }
}

void ExponentialsToDiagonal(ForwardScratch& s, int64_t panels, float scale, int64_t width) {
  if (panels == 1) {
    ExponentialsOfVisit<1, true>(s, scale, width);
  } else {
    ExponentialsOfVisit<2, true>(s, scale, width);
  }
}

void StoreQueries(const AttentionPair<Bf16>& pair, const ForwardScratch& s, int64_t head,
                  int64_t first) {
  const int64_t queries = pair.sequence - first < kQueries ? pair.sequence - first : kQueries;
  const auto y = HeadRows(pair.y, first, head, pair.head_size);
  for (int64_t row = 0; row < queries; ++row) {
    if (row % kTileRows == 0) {
      const V sum = SumsOfLanes(s.sum + row * kLanes);
      Store(s.limit + row, (Load(s.max + row) + Log2(sum)) * kLn2);
      Store(s.max + row, 1.0f / sum);
    }
    pair.log_sum_exp.row(first + row)[head] = s.limit[row];
    const V factor = Splat(s.max[row]);
    const float* const out = s.out + RowOfPanels(row);
    for (int64_t d = 0; d < pair.head_size; d += kLinesOfPanel) {
      const float* const at = out + d / kLinesOfPanel * kPanelSums;
      _mm512_mask_storeu_epi16(y.row(row) + d, MaskOf(pair.head_size - d),
                               reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
                                   Load(at + kSumElements) * factor, Load(at) * factor)));
    }
  }
}

void ForwardQueries(const AttentionPair<Bf16>& pair, ForwardScratch& s, int64_t head,
                    int64_t first) {
  const int64_t width_panels = PanelsOf(pair.head_size);
  const int64_t width_steps = StepsOf(pair.head_size);
  const int64_t width = width_panels * kLinesOfPanel;
  const int64_t key_steps = StepsOf(pair.sequence);
  const float scale = pair.scale * kLog2E;
  const auto q = HeadRows(pair.q, first, head, pair.head_size);
  PackLeftAlong(q.data, q.stride, pair.sequence - first, pair.head_size, s.queries_left);
  const bool poison = s.non_finite_keys || AnyNonFinitePacked(s.queries_left, kQueries * width);
  Fill(s.out, kQueries * width, 0.0f);
  Fill(s.sum, kQueries * kLanes, 0.0f);
  Fill(s.max, kQueries, kLowestScore);
  Fill(s.limit, kQueries, kLowestScore);
  const int64_t panels = first / kLinesOfPanel + 1;
  for (int64_t panel = 0; panel < panels; panel += kPanelsOfVisit) {
    const int64_t rest = panels - panel;
    const int64_t visited = rest < kPanelsOfVisit ? rest : kPanelsOfVisit;
    for (int64_t i = 0; i < visited; ++i) {
      MultiplyPanels<false>(s.queries_left, s.keys_right + (panel + i) * width_steps * kPanelStep,
                            width_steps, s.scores + i * kPanelSums);
    }
    if (poison) PoisonScores(s.scores, visited * kPanelSums);
    if (rest <= kPanelsOfVisit) {
      ExponentialsToDiagonal(s, visited, scale, width);
    } else {
      ExponentialsOfVisit<kPanelsOfVisit, false>(s, scale, width);
    }
    for (int64_t d = 0; d < width_panels; ++d) {
      MultiplyPanels<true>(s.p_left, s.values_right + (d * key_steps + panel) * kPanelStep, visited,
                           s.out + d * kPanelSums);
    }
  }
  StoreQueries(pair, s, head, first);
}

void TileAttentionForward(const AttentionPair<Bf16>& pair) {
  const TileScope tiles;
  ForwardScratch s(pair.scratch, pair.sequence, pair.head_size);
  PackRight({.data = pair.k.data, .stride = pair.k.stride, .transposed = true}, pair.head_size,
            pair.sequence, s.keys_right);
  PackRight({.data = pair.v.data, .stride = pair.v.stride}, pair.sequence, pair.head_size,
            s.values_right);
  s.non_finite_keys = AnyNonFinitePacked(
      s.keys_right, RoundedToPanel(pair.sequence) * RoundedToPanel(pair.head_size));
  for (int64_t head = 0; head < pair.group; ++head) {
    for (int64_t first = 0; first < pair.sequence; first += kQueries) {
      ForwardQueries(pair, s, head, first);
    }
  }
}

}  // namespace
}  // namespace esteira
