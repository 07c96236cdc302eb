// Backward attention of bf16 in AMX tiles: blocks of 64 keys against visits of up to 256 queries.
// Sums of keys' gradients take the depth of a visit at once; those of queries' gradients come and
// go with each block. Scores lie as S[key, query], so that what belongs to a query lies in lanes.
#pragma once

#include "worker/kernels/cpu/tile_attention-inl.h"

namespace esteira {
namespace {

constexpr int64_t kPanelsOfBlock = 2;  // of keys
constexpr int64_t kKeysOfBlock = kPanelsOfBlock * kLinesOfPanel;
constexpr int64_t kQueryPanelsOfVisit = 8;
constexpr int64_t kVisitPanel = kQueryPanelsOfVisit * kPanelStep;

class BackwardScratch {
 public:
  BackwardScratch(float* scratch, int64_t sequence, int64_t head_size) {
    const int64_t lines = RoundedToPanel(sequence);
    const int64_t width = RoundedToPanel(head_size);
    ScratchParts parts(scratch);
    Bf16** const of_keys[] = {&keys_left, &values_left, &keys_across_left};
    Bf16** const of_queries[] = {&queries_along_right, &queries_right, &dy_along_right, &dy_right};
    for (Bf16** operand : of_keys) parts.Take(operand, kKeysOfBlock * width);
    for (Bf16** operand : of_queries) parts.Take(operand, lines * width);
    parts.Take(&p_left, kPanelsOfBlock * kVisitPanel);
    parts.Take(&ds_left, kPanelsOfBlock * kVisitPanel);
    parts.Take(&ds_right, kPanelsOfBlock * kPanelStep);
    parts.Take(&scores, kPanelSums);
    parts.Take(&dscores, kPanelSums);
    float** const sums[] = {&dq, &dk, &dv};
    for (float** matrix : sums) parts.Take(matrix, lines * width);
    parts.Take(&log_sum_exp, lines);
    parts.Take(&dy_y, lines);
    elements = parts.taken();
  }

  // Named by their place in a product; "across": the transpose of what memory holds.
  Bf16 *keys_left, *values_left, *keys_across_left;
  Bf16 *queries_along_right, *queries_right, *dy_along_right, *dy_right;
  Bf16 *p_left, *ds_left, *ds_right;
  float *scores, *dscores;  // [key, query]
  float* dq;                // [head size, query], its columns as QueryOfColumn says
  float *dk, *dv;           // [key, head size]
  float* log_sum_exp;       // in powers of two
  float* dy_y;              // sums of dy y
  int64_t elements;
};

// Values of two keys, one after the other, and 32 queries, as bf16 rows of a left operand.
struct KeyRows {
  __m512i even, odd;
};
ESTEIRA_INLINE KeyRows StoreLeft(const V (&x)[2][2], Bf16* left) {
  const KeyRows rows = {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x[0][1], x[0][0])),
                        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x[1][1], x[1][0]))};
  _mm512_store_si512(left, rows.even);
  _mm512_store_si512(left + kDepthOfStep, rows.odd);
  return rows;
}

// Queries of a panel, 16 from `half` on, that see the key `row` of the same panel.
ESTEIRA_INLINE __mmask16 SeeingOnDiagonal(int64_t row, int64_t half) {
  const int64_t hidden = row - half * kTileRows;
  if (hidden <= 0) return 0xffff;
  return hidden >= kTileRows ? __mmask16{0} : static_cast<__mmask16>(0xffffu << hidden);
}

// The columns of a panel of queries' gradients: what unpacking 16 bits makes of 32 queries.
ESTEIRA_INLINE int64_t QueryOfColumn(int64_t half, int64_t column) {
  return column / 4 * 8 + half * 4 + column % 4;
}

// P = exp(S - log_sum_exp) and dS = P (dP - sum over d of dy y) of 32 keys and 32 queries, as
// operands. Where a key or query is infinite, P may be 0, but its products with them are NaN.
template <bool kDiagonal>
void GradientsOfPanel(const BackwardScratch& s, float scale, int64_t first_query, Bf16* p_left,
                      Bf16* ds_left, Bf16* ds_right) {
  const V log_sum_exp[2] = {Load(s.log_sum_exp + first_query),
                            Load(s.log_sum_exp + first_query + kTileRows)};
  const V dy_y[2] = {Load(s.dy_y + first_query), Load(s.dy_y + first_query + kTileRows)};
  for (int64_t first = 0; first < kLinesOfPanel; first += kTileRows) {
    const int64_t from = RowOfPanels(first);
    for (int64_t key = 0; key < kTileRows; key += 2) {
      V p[2][2], ds[2][2];
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const int64_t at = from + (key + k) * kTileRows + half * kSumElements;
          p[k][half] = Exp2(Load(s.scores + at) * scale - log_sum_exp[half]);
          ds[k][half] = p[k][half] * (Load(s.dscores + at) - dy_y[half]);
          if constexpr (kDiagonal) {
            const __mmask16 seeing = SeeingOnDiagonal(first + key + k, half);
            p[k][half] = _mm512_maskz_mov_ps(seeing, p[k][half]);
            ds[k][half] = _mm512_maskz_mov_ps(seeing, ds[k][half]);
          }
        }
      }
      const int64_t row = (first + key) * kDepthOfStep;
      StoreLeft(p, p_left + row);
      const KeyRows rows = StoreLeft(ds, ds_left + row);
      Bf16* const right = ds_right + row / 2;
      _mm512_store_si512(right, _mm512_unpacklo_epi16(rows.even, rows.odd));
      _mm512_store_si512(right + kTileElements, _mm512_unpackhi_epi16(rows.even, rows.odd));
    }
  }
}

void ClearPanel(Bf16* panel) {
  for (int64_t i = 0; i < kPanelStep; i += kDepthOfStep) {
    _mm512_store_si512(panel + i, _mm512_setzero_si512());
  }
}

// sums (+)= left right; `begin`: the sums begin.
ESTEIRA_INLINE void AddProduct(bool begin, const Bf16* left, const Bf16* right, int64_t steps,
                               float* sums) {
  if (begin) {
    MultiplyPanels<false>(left, right, steps, sums);
  } else {
    MultiplyPanels<true>(left, right, steps, sums);
  }
}

// Sizes of a pair, in panels.
struct BackwardShape {
  explicit BackwardShape(const AttentionPair<Bf16>& pair)
      : width(PanelsOf(pair.head_size)),
        lines(PanelsOf(pair.sequence)),
        scale(pair.scale * kLog2E) {}
  int64_t width;  // of a head; as many steps
  int64_t lines;  // queries or keys; as many steps
  float scale;
};

// The keys and values of a block, from row `first` on.
void PackKeys(const AttentionPair<Bf16>& pair, int64_t first, BackwardScratch& s) {
  const int64_t rest = pair.sequence - first;
  const int64_t keys = rest < kKeysOfBlock ? rest : kKeysOfBlock;
  const StoredMatrix k = {.data = pair.k.row(first), .stride = pair.k.stride};
  const StoredMatrix v = {.data = pair.v.row(first), .stride = pair.v.stride};
  PackLeft(k, keys, pair.head_size, s.keys_left);
  PackLeft(v, keys, pair.head_size, s.values_left);
  PackLeft({.data = k.data, .stride = k.stride, .transposed = true}, pair.head_size, keys,
           s.keys_across_left);
}

// Rows as right operands [head size, query] and [query, head size].
void PackRows(RowsOf<const Bf16> x, int64_t sequence, int64_t head_size, Bf16* along,
              Bf16* across) {
  PackRight({.data = x.data, .stride = x.stride, .transposed = true}, head_size, sequence, along);
  PackRight({.data = x.data, .stride = x.stride}, sequence, head_size, across);
}

void LoadQueries(const AttentionPair<Bf16>& pair, int64_t head, BackwardScratch& s) {
  const auto q = HeadRows(pair.q, 0, head, pair.head_size);
  const auto dy = HeadRows(pair.dy, 0, head, pair.head_size);
  const auto y = HeadRows(pair.y_saved, 0, head, pair.head_size);
  PackRows(q, pair.sequence, pair.head_size, s.queries_along_right, s.queries_right);
  PackRows(dy, pair.sequence, pair.head_size, s.dy_along_right, s.dy_right);
  const int64_t lines = RoundedToPanel(pair.sequence);
  for (int64_t first = 0; first < lines; first += kTileRows) {
    alignas(64) float products[kTileRows * kLanes];
    alignas(64) float log_sum_exp[kTileRows] = {};
    for (int64_t i = 0; i < kTileRows; ++i) {
      const int64_t row = first + i;
      V sum{};
      if (row < pair.sequence) {
        log_sum_exp[i] = pair.log_sum_exp.row(row)[head];
        for (int64_t d = 0; d < pair.head_size; d += kLinesOfPanel) {
          sum = DotOfStep(dy.row(row) + d, y.row(row) + d, MaskOf(pair.head_size - d), sum);
        }
      }
      Store(products + i * kLanes, sum);
    }
    Store(s.dy_y + first, SumsOfLanes(products));
    const V exponent = Load(log_sum_exp) * kLog2E;
    Store(s.log_sum_exp + first, exponent + Poison(exponent));
  }
}

// A block of keys, its sums in panels from `sums` on.
struct BlockOfKeys {
  int64_t first;  // panel
  int64_t panels;
  int64_t sums;
  bool begin;  // its sums begin
};

// Gradients of 32 queries by a block of keys; `j`: their place in the visit.
void VisitQueries(const BackwardShape& shape, BackwardScratch& s, const BlockOfKeys& keys,
                  int64_t query, int64_t j) {
  const int64_t panel = shape.width * kPanelStep;
  const int64_t to_diagonal = query - keys.first + 1;
  const int64_t seen = to_diagonal < keys.panels ? to_diagonal : keys.panels;
  for (int64_t i = 0; i < seen; ++i) {
    MultiplyPanels<false>(s.keys_left + i * panel, s.queries_along_right + query * panel,
                          shape.width, s.scores);
    MultiplyPanels<false>(s.values_left + i * panel, s.dy_along_right + query * panel, shape.width,
                          s.dscores);
    Bf16* const p_left = s.p_left + i * kVisitPanel + j * kPanelStep;
    Bf16* const ds_left = s.ds_left + i * kVisitPanel + j * kPanelStep;
    Bf16* const ds_right = s.ds_right + i * kPanelStep;
    if (keys.first + i == query) {
      GradientsOfPanel<true>(s, shape.scale, query * kLinesOfPanel, p_left, ds_left, ds_right);
    } else {
      GradientsOfPanel<false>(s, shape.scale, query * kLinesOfPanel, p_left, ds_left, ds_right);
    }
  }
  for (int64_t i = seen; i < keys.panels; ++i) {
    ClearPanel(s.p_left + i * kVisitPanel + j * kPanelStep);
    ClearPanel(s.ds_left + i * kVisitPanel + j * kPanelStep);
  }
  for (int64_t d = 0; d < shape.width; ++d) {
    AddProduct(keys.first == 0, s.keys_across_left + d * keys.panels * kPanelStep, s.ds_right, seen,
               s.dq + (query * shape.width + d) * kPanelSums);
  }
}

void Visit(const BackwardShape& shape, BackwardScratch& s, const BlockOfKeys& keys, int64_t query) {
  const int64_t rest = shape.lines - query;
  const int64_t queries = rest < kQueryPanelsOfVisit ? rest : kQueryPanelsOfVisit;
  for (int64_t j = 0; j < queries; ++j) VisitQueries(shape, s, keys, query + j, j);
  const bool begin = keys.begin && query == keys.first;
  for (int64_t d = 0; d < shape.width; ++d) {
    const int64_t right = (d * shape.lines + query) * kPanelStep;
    for (int64_t i = 0; i < keys.panels; ++i) {
      const int64_t sums = ((keys.sums + i) * shape.width + d) * kPanelSums;
      AddProduct(begin, s.p_left + i * kVisitPanel, s.dy_right + right, queries, s.dv + sums);
      AddProduct(begin, s.ds_left + i * kVisitPanel, s.queries_right + right, queries, s.dk + sums);
    }
  }
}

// x[query, d] <- sums[d, query] * scale
void StoreQuerySums(const AttentionPair<Bf16>& pair, const float* sums, int64_t head) {
  const auto x = HeadRows(pair.dq, 0, head, pair.head_size);
  const V scale = Splat(pair.scale);
  for (int64_t first = 0; first < pair.sequence; first += kLinesOfPanel) {
    for (int64_t d = 0; d < pair.head_size; d += kLinesOfPanel, sums += kPanelSums) {
      const __mmask32 mask = MaskOf(pair.head_size - d);
      for (int64_t half = 0; half < 2; ++half) {
        const float* const from = sums + half * kSumElements;
        __m512i low[16], high[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          low[i] = reinterpret_cast<__m512i>(Load(from + i * kTileRows) * scale);
          high[i] =
              reinterpret_cast<__m512i>(Load(from + 2 * kSumElements + i * kTileRows) * scale);
        }
        Transpose(low);
        Transpose(high);
        for (int64_t i = 0; i < kTileRows; ++i) {
          const int64_t query = first + QueryOfColumn(half, i);
          if (query >= pair.sequence) continue;
          const auto row = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high[i]),
                                               reinterpret_cast<__m512>(low[i]));
          _mm512_mask_storeu_epi16(x.row(query) + d, mask, reinterpret_cast<__m512i>(row));
        }
      }
    }
  }
}

// x <- sums * scale, the rows of a block.
void StoreKeySums(const AttentionPair<Bf16>& pair, const BlockOfKeys& keys, const float* sums,
                  float scale, RowsOf<Bf16> x) {
  const int64_t first = keys.first * kLinesOfPanel;
  const int64_t rows = pair.sequence - first;
  const PanelResult result = {.rows = rows < kKeysOfBlock ? rows : kKeysOfBlock,
                              .columns = pair.head_size,
                              .scale = scale,
                              .narrow = x.row(first),
                              .stride = x.stride};
  for (int64_t key = 0; key < result.rows; key += kLinesOfPanel) {
    for (int64_t d = 0; d < pair.head_size; d += kLinesOfPanel, sums += kPanelSums) {
      FinishPanels(result, key, d, sums);
    }
  }
}

void TileAttentionBackward(const AttentionPair<Bf16>& pair) {
  const TileScope tiles;
  const BackwardShape shape(pair);
  BackwardScratch s(pair.scratch, pair.sequence, pair.head_size);
  for (int64_t head = 0; head < pair.group; ++head) {
    LoadQueries(pair, head, s);
    const bool last = head + 1 == pair.group;
    for (int64_t key = 0; key < shape.lines; key += kPanelsOfBlock) {
      const int64_t rest = shape.lines - key;
      const int64_t panels = rest < kPanelsOfBlock ? rest : kPanelsOfBlock;
      PackKeys(pair, key * kLinesOfPanel, s);
      // One head's sums are stored with each block; those of several wait for the last.
      const BlockOfKeys keys = {
          .first = key, .panels = panels, .sums = pair.group == 1 ? 0 : key, .begin = head == 0};
      for (int64_t query = key; query < shape.lines; query += kQueryPanelsOfVisit) {
        Visit(shape, s, keys, query);
      }
      if (!last) continue;
      const int64_t sums = keys.sums * shape.width * kPanelSums;
      StoreKeySums(pair, keys, s.dk + sums, pair.scale, pair.dk);
      StoreKeySums(pair, keys, s.dv + sums, 1.0f, pair.dv);
    }
    StoreQuerySums(pair, s.dq, head);
  }
}

}  // namespace
}  // namespace esteira
