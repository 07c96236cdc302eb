// Causal attention in tiles of 64 queries by 64 keys, in fp32: forward with the online softmax
// (Milakov & Gimelshein, 2018; Dao et al., FlashAttention, 2022), backward with probabilities
// recomputed from log_sum_exp. Tiles above the diagonal are skipped.
//
// Lanes are queries. Scores are kept as S[key, query], so that maximum, sum and rescaling need no
// step across lanes; queries and outputs are transposed to [head size, query] once for each tile of
// queries. Tiles follow each other in one order, whatever the number of threads.
#pragma once

#include "worker/kernels/cpu/pointwise-inl.h"
#include "worker/kernels/cpu/tile_gemm-inl.h"

namespace esteira {
namespace {

constexpr int64_t kTile = kAttentionTile;

ESTEIRA_INLINE int64_t RowsOfTile(int64_t first, int64_t sequence) {
  return sequence - first < kTile ? sequence - first : kTile;
}

constexpr int64_t PaddedHeadSize(int64_t head_size) { return (head_size + 15) / 16 * 16; }

// Of one thread: seven tiles of [64, head size rounded up] and two of [64, 64].
int64_t AttentionScratchElements(int64_t, int64_t head_size) {
  return kTile * (7 * PaddedHeadSize(head_size) + 2 * kTile);
}

// [64, head size] tiles have padded rows; their transposes [head size, 64] and the scores [64, 64]
// need none.
struct AttentionScratch {
  AttentionScratch(float* scratch, int64_t head_size) : padded(PaddedHeadSize(head_size)) {
    float** const tiles[] = {&q, &dy, &v, &product, &q_t, &dy_t, &out_t};
    for (float** tile : tiles) {
      *tile = scratch;
      scratch += kTile * padded;
    }
    scores = scratch;
    dscores = scratch + kTile * kTile;
  }

  int64_t padded;
  float *q, *dy, *v, *product, *q_t, *dy_t, *out_t, *scores, *dscores;
  float max[kTile];
  float sum[kTile];  // forward: of exponentials; backward: of dy y
};

// tile[r, 0 .. padded) <- scale * x[r, 0 .. columns), zeros in the padding.
template <typename T>
void LoadTile(RowsOf<const T> x, int64_t rows, int64_t columns, float scale, float* tile,
              int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    float* out = tile + r * padded;
    for (int64_t c = columns / kLanes * kLanes; c < padded; c += kLanes) Store(out + c, V{});
    const T* in = x.row(r);
    ForEachGroup(0, columns, [=](auto load, auto store) { store(out, load(in) * scale); });
  }
}

// out[c, r] <- tile[r, c]; queries beyond `rows` are zero.
void TransposeTile(const float* tile, int64_t rows, int64_t columns, int64_t padded, float* out) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) out[c * kTile + r] = tile[r * padded + c];
    for (int64_t r = rows; r < kTile; ++r) out[c * kTile + r] = 0.0f;
  }
}

// x[r, c] <- out_t[c, r] * factor[r], by way of `tile`.
template <typename T>
void StoreTransposed(const float* out_t, int64_t rows, int64_t columns, const float* factor,
                     float* tile, int64_t padded, RowsOf<T> x) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) tile[r * padded + c] = out_t[c * kTile + r] * factor[r];
  }
  for (int64_t r = 0; r < rows; ++r) FromFp32<T>(tile + r * padded, x.row(r), columns);
}

// packed[r, 0 .. columns) <- x[r], all rows of one sequence behind each other, in fp32.
template <typename T>
void PackRows(RowsOf<const T> x, int64_t rows, int64_t columns, float* packed) {
  for (int64_t r = 0; r < rows; ++r) ToFp32<T>(x.row(r), packed + r * columns, columns);
}

// scores[j, i] <- rows[j] . q[i]
void Scores(RowsOf<const float> rows, const float* queries_t, int64_t keys, int64_t head_size,
            float* scores) {
  TileGemm<false>({keys, kTile, head_size}, {rows.data, rows.stride, 1}, {queries_t, kTile},
                  {scores, kTile});
}

// out_t[d, i] += sum over j of rows[j, d] weights[j, i]
void AddWeightedRows(RowsOf<const float> rows, const float* weights, int64_t keys,
                     int64_t head_size, float* out_t) {
  TileGemm<true>({head_size, kTile, keys}, {rows.data, 1, rows.stride}, {weights, kTile},
                 {out_t, kTile});
}

// On the diagonal tile a query sees the keys up to itself.
template <bool kDiagonal>
ESTEIRA_INLINE V Masked(V score, VInt query, int64_t key, float masked) {
  if constexpr (!kDiagonal) return score;
  return query < static_cast<int32_t>(key) ? Splat(masked) : score;
}

// Scores to exponentials, with the running maximum and sum of each query; the output so far is
// rescaled. The poison makes the maximum NaN for a score of minus infinity, which softmax would
// otherwise turn into a silent zero.
template <bool kDiagonal>
void OnlineSoftmax(AttentionScratch& s, int64_t keys, int64_t head_size) {
  for (int64_t i = 0; i < kTile; i += kLanes) {
    const VInt query = LaneIndices() + static_cast<int32_t>(i);
    const V old_max = Load(s.max + i);
    V max = old_max;
    V poison{};
    for (int64_t j = 0; j < keys; ++j) {
      const V score = Load(s.scores + j * kTile + i);
      poison += Poison(score);
      max = Max(Masked<kDiagonal>(score, query, j, -__builtin_inff()), max);
    }
    max += poison;
    const V factor = ExpUpTo88(old_max - max);
    V sum = Load(s.sum + i) * factor;
    for (int64_t j = 0; j < keys; ++j) {
      float* at = s.scores + j * kTile + i;
      const V p = Masked<kDiagonal>(ExpUpTo88(Load(at) - max), query, j, 0.0f);
      Store(at, p);
      sum += p;
    }
    Store(s.max + i, max);
    Store(s.sum + i, sum);
    for (int64_t d = 0; d < head_size; ++d) {
      float* at = s.out_t + d * kTile + i;
      Store(at, Load(at) * factor);
    }
  }
}

template <typename T>
RowsOf<T> HeadRows(RowsOf<T> x, int64_t first_row, int64_t head, int64_t head_size) {
  return {x.row(first_row) + head * head_size, x.stride};
}

void Fill(float* data, int64_t n, float value) {
  for (int64_t i = 0; i < n; ++i) data[i] = value;
}

template <typename T>
void ForwardTile(const AttentionPair<T>& pair, AttentionScratch& s, int64_t head, int64_t first) {
  const int64_t head_size = pair.head_size;
  const RowsOf<const float> k{pair.packed, head_size};
  const RowsOf<const float> v{pair.packed + pair.sequence * head_size, head_size};
  const int64_t queries = RowsOfTile(first, pair.sequence);
  LoadTile(HeadRows(pair.q, first, head, head_size), queries, head_size, pair.scale, s.q, s.padded);
  TransposeTile(s.q, queries, head_size, s.padded, s.q_t);
  Fill(s.out_t, head_size * kTile, 0.0f);
  Fill(s.sum, kTile, 0.0f);
  Fill(s.max, kTile, -__builtin_inff());
  for (int64_t key = 0; key <= first; key += kTile) {
    const int64_t keys = RowsOfTile(key, pair.sequence);
    Scores({k.row(key), head_size}, s.q_t, keys, head_size, s.scores);
    key == first ? OnlineSoftmax<true>(s, keys, head_size)
                 : OnlineSoftmax<false>(s, keys, head_size);
    AddWeightedRows({v.row(key), head_size}, s.scores, keys, head_size, s.out_t);
  }
  for (int64_t i = 0; i < queries; ++i) {
    pair.log_sum_exp.row(first + i)[head] = s.max[i] + __builtin_logf(s.sum[i]);
    s.sum[i] = 1.0f / s.sum[i];
  }
  StoreTransposed(s.out_t, queries, head_size, s.sum, s.product, s.padded,
                  HeadRows(pair.y, first, head, head_size));
}

template <typename T>
void AttentionForwardPair(const AttentionPair<T>& pair) {
  AttentionScratch s(pair.scratch, pair.head_size);
  PackRows(pair.k, pair.sequence, pair.head_size, pair.packed);
  PackRows(pair.v, pair.sequence, pair.head_size, pair.packed + pair.sequence * pair.head_size);
  for (int64_t head = 0; head < pair.group; ++head) {
    for (int64_t first = 0; first < pair.sequence; first += kTile) {
      ForwardTile(pair, s, head, first);
    }
  }
}

// With P = exp(S - log_sum_exp) and dP[j, i] = v[j] . dy[i]: dS = P (dP - sum over d of dy y).
template <bool kDiagonal>
void BackwardScores(AttentionScratch& s, int64_t keys) {
  for (int64_t i = 0; i < kTile; i += kLanes) {
    const VInt query = LaneIndices() + static_cast<int32_t>(i);
    const V log_sum_exp = Load(s.max + i);
    const V dy_y = Load(s.sum + i);
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t at = j * kTile + i;
      const V p = Masked<kDiagonal>(Exp(Load(s.scores + at) - log_sum_exp), query, j, 0.0f);
      const V dp = Load(s.dscores + at);
      Store(s.scores + at, p);
      Store(s.dscores + at, Masked<kDiagonal>(p * (dp - dy_y), query, j, 0.0f));
    }
  }
}

// sums[key + j] += sum over i of weights[j, i] rows[i]
void AddToKeys(const AttentionScratch& s, const float* weights, const float* rows, int64_t queries,
               int64_t keys, RowsOf<float> sums) {
  TileGemm<false>({keys, s.padded, queries}, {weights, kTile, 1}, {rows, s.padded},
                  {s.product, s.padded});
  for (int64_t j = 0; j < keys; ++j) {
    AccumulateLoop<float>(s.product + j * s.padded, sums.row(j), sums.stride);
  }
}

template <typename T>
float DotRows(const T* a, const T* b, int64_t n) {
  V sum{};
  ForEachGroup(0, n, [&](auto load, auto) { sum += load(a) * load(b); });
  return SumLanes(sum);
}

template <typename T>
void LoadQueries(const AttentionPair<T>& pair, AttentionScratch& s, int64_t head, int64_t first) {
  const int64_t head_size = pair.head_size;
  const int64_t queries = RowsOfTile(first, pair.sequence);
  const auto dy = HeadRows(pair.dy, first, head, head_size);
  const auto y = HeadRows(pair.y_saved, first, head, head_size);
  LoadTile(HeadRows(pair.q, first, head, head_size), queries, head_size, pair.scale, s.q, s.padded);
  LoadTile(dy, queries, head_size, 1.0f, s.dy, s.padded);
  TransposeTile(s.q, queries, head_size, s.padded, s.q_t);
  TransposeTile(s.dy, queries, head_size, s.padded, s.dy_t);
  Fill(s.max, kTile, 0.0f);
  Fill(s.sum, kTile, 0.0f);
  for (int64_t i = 0; i < queries; ++i) {
    const float log_sum_exp = pair.log_sum_exp.row(first + i)[head];
    // An infinity must not become a silent zero.
    s.max[i] = log_sum_exp + (log_sum_exp - log_sum_exp);  // NOLINT(misc-redundant-expression)
    s.sum[i] = DotRows(dy.row(i), y.row(i), head_size);
  }
}

template <typename T>
void BackwardTile(const AttentionPair<T>& pair, AttentionScratch& s, int64_t head, int64_t first) {
  const int64_t head_size = pair.head_size;
  const int64_t queries = RowsOfTile(first, pair.sequence);
  const RowsOf<float> dk{pair.sums, head_size};
  const RowsOf<float> dv{pair.sums + pair.sequence * head_size, head_size};
  const RowsOf<const float> k{pair.packed, head_size};
  LoadQueries(pair, s, head, first);
  Fill(s.out_t, head_size * kTile, 0.0f);
  for (int64_t key = 0; key <= first; key += kTile) {
    const int64_t keys = RowsOfTile(key, pair.sequence);
    LoadTile(HeadRows(pair.v, key, 0, head_size), keys, head_size, 1.0f, s.v, s.padded);
    Scores({k.row(key), head_size}, s.q_t, keys, head_size, s.scores);
    Scores({s.v, s.padded}, s.dy_t, keys, head_size, s.dscores);
    key == first ? BackwardScores<true>(s, keys) : BackwardScores<false>(s, keys);
    AddToKeys(s, s.scores, s.dy, queries, keys, {dv.row(key), head_size});
    AddToKeys(s, s.dscores, s.q, queries, keys, {dk.row(key), head_size});
    AddWeightedRows({k.row(key), head_size}, s.dscores, keys, head_size, s.out_t);
  }
  Fill(s.sum, kTile, pair.scale);
  StoreTransposed(s.out_t, queries, head_size, s.sum, s.product, s.padded,
                  HeadRows(pair.dq, first, head, head_size));
}

template <typename T>
void AttentionBackwardPair(const AttentionPair<T>& pair) {
  AttentionScratch s(pair.scratch, pair.head_size);
  const int64_t elements = pair.sequence * pair.head_size;
  Fill(pair.sums, 2 * elements, 0.0f);
  PackRows(pair.k, pair.sequence, pair.head_size, pair.packed);
  for (int64_t head = 0; head < pair.group; ++head) {
    for (int64_t first = 0; first < pair.sequence; first += kTile) {
      BackwardTile(pair, s, head, first);
    }
  }
  for (int64_t t = 0; t < pair.sequence; ++t) {
    const float* sums = pair.sums + t * pair.head_size;
    FromFp32<T>(sums, pair.dk.row(t), pair.head_size);
    FromFp32<T>(sums + elements, pair.dv.row(t), pair.head_size);
  }
}

}  // namespace
}  // namespace esteira
