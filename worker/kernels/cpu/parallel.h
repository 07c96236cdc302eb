#pragma once

#include <algorithm>
#include <cstdint>

namespace esteira {

// Elements that one thread must have for a second one to pay.
inline constexpr int64_t kElementsOfThread = 16384;

// Splits [0, count) into at most `threads` ranges whose borders are multiples of `grain`, and runs
// body(part, begin, end) on each. The ranges depend on the arguments alone.
template <typename Body>
void ParallelRanges(int threads, int64_t count, int64_t grain, const Body& body) {
  const int64_t grains = (count + grain - 1) / grain;
  const int parts = static_cast<int>(std::min<int64_t>(threads, grains));
  if (parts <= 1) {
    if (count > 0) body(0, int64_t{0}, count);
    return;
  }
  const int64_t per_part = (grains + parts - 1) / parts * grain;
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) {
    const int64_t begin = std::min(count, part * per_part);
    const int64_t end = std::min(count, begin + per_part);
    if (begin < end) body(part, begin, end);
  }
}

// Rows of `columns` elements.
template <typename Body>
void ParallelRows(int threads, int64_t rows, int64_t columns, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kElementsOfThread / std::max<int64_t>(1, columns));
  ParallelRanges(threads, rows, grain, [&](int, int64_t begin, int64_t end) { body(begin, end); });
}

// Flat elements.
template <typename Body>
void ParallelElements(int threads, int64_t count, const Body& body) {
  ParallelRanges(threads, count, kElementsOfThread,
                 [&](int, int64_t begin, int64_t end) { body(begin, end - begin); });
}

// Columns of a matrix with `rows` rows, so that each thread sums its columns over all rows in
// order.
template <typename Body>
void ParallelColumns(int threads, int64_t rows, int64_t columns, const Body& body) {
  constexpr int64_t kCacheLine = 64;
  const int64_t grain = std::max(
      kCacheLine, kElementsOfThread / std::max<int64_t>(1, rows) / kCacheLine * kCacheLine);
  ParallelRanges(threads, columns, grain,
                 [&](int, int64_t begin, int64_t end) { body(begin, end); });
}

}  // namespace esteira
