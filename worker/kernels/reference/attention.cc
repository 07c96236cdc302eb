#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "worker/kernels/reference/operations.h"

namespace esteira::reference {
namespace {

// One query of one head: the rows and columns of the matrices that it touches.
struct Query {
  int64_t first_row;  // of its sequence
  int64_t position;
  int64_t head;
  int64_t q_column;
  int64_t kv_column;
};

template <typename Body>
void ForEachQuery(const AttentionShape& shape, Body body) {
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      for (int64_t t = 0; t < shape.sequence; ++t) {
        body(Query{.first_row = b * shape.sequence,
                   .position = t,
                   .head = head,
                   .q_column = head * shape.head_size,
                   .kv_column = head / group * shape.head_size});
      }
    }
  }
}

double Dot(const Matrix& a, int64_t a_row, int64_t a_column, const Matrix& b, int64_t b_row,
           int64_t b_column, int64_t size) {
  double sum = 0;
  for (int64_t d = 0; d < size; ++d) sum += a(a_row, a_column + d) * b(b_row, b_column + d);
  return sum;
}

struct Softmax {
  std::vector<double> p;  // of the keys up to the query
  double log_sum_exp = 0;
};

Softmax Probabilities(const AttentionShape& shape, const Query& query, const Matrix& q,
                      const Matrix& k) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_size));
  const int64_t row = query.first_row + query.position;
  Softmax softmax;
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j <= query.position; ++j) {
    const double score = scale * Dot(q, row, query.q_column, k, query.first_row + j,
                                     query.kv_column, shape.head_size);
    softmax.p.push_back(score);
    max = std::max(max, score);
  }
  double sum = 0;
  for (double& p : softmax.p) sum += p = std::exp(p - max);
  for (double& p : softmax.p) p /= sum;
  softmax.log_sum_exp = max + std::log(sum);
  return softmax;
}

// A matrix of sums in double: gradients of one key or value come from many queries.
class Sums {
 public:
  Sums(int64_t rows, int64_t columns)
      : rows_(rows), columns_(columns), values_(static_cast<size_t>(rows * columns)) {}
  double& operator()(int64_t row, int64_t column) {
    return values_[static_cast<size_t>(row * columns_ + column)];
  }
  void StoreTo(const Matrix& matrix) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) matrix.Set(r, c, (*this)(r, c));
    }
  }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<double> values_;
};

}  // namespace

void AttentionForward(const AttentionShape& shape, const Matrix& q, const Matrix& k,
                      const Matrix& v, const Matrix& y_NH, const Matrix& log_sum_exp) {
  ForEachQuery(shape, [&](const Query& query) {
    const Softmax softmax = Probabilities(shape, query, q, k);
    const int64_t row = query.first_row + query.position;
    log_sum_exp.Set(row, query.head, softmax.log_sum_exp);
    for (int64_t d = 0; d < shape.head_size; ++d) {
      double sum = 0;
      for (int64_t j = 0; j <= query.position; ++j) {
        sum += softmax.p[static_cast<size_t>(j)] * v(query.first_row + j, query.kv_column + d);
      }
      y_NH.Set(row, query.q_column + d, sum);
    }
  });
}

// From the softmax alone: neither the saved output nor log_sum_exp is used, so that an error in
// them is seen.
void AttentionBackward(const AttentionShape& shape, const Matrix& dy_NH, const Matrix& q,
                       const Matrix& k, const Matrix& v, const AttentionGradients& gradients) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_size));
  const int64_t rows = shape.batch * shape.sequence;
  Sums dq(rows, shape.num_heads * shape.head_size);
  Sums dk(rows, shape.num_kv_heads * shape.head_size);
  Sums dv(rows, shape.num_kv_heads * shape.head_size);
  ForEachQuery(shape, [&](const Query& query) {
    const Softmax softmax = Probabilities(shape, query, q, k);
    const int64_t row = query.first_row + query.position;
    std::vector<double> dp;
    double p_dp = 0;
    for (int64_t j = 0; j <= query.position; ++j) {
      dp.push_back(Dot(dy_NH, row, query.q_column, v, query.first_row + j, query.kv_column,
                       shape.head_size));
      p_dp += softmax.p[static_cast<size_t>(j)] * dp.back();
    }
    for (int64_t j = 0; j <= query.position; ++j) {
      const int64_t key = query.first_row + j;
      const double p = softmax.p[static_cast<size_t>(j)];
      const double ds = p * (dp[static_cast<size_t>(j)] - p_dp) * scale;
      for (int64_t d = 0; d < shape.head_size; ++d) {
        dv(key, query.kv_column + d) += p * dy_NH(row, query.q_column + d);
        dk(key, query.kv_column + d) += ds * q(row, query.q_column + d);
        dq(row, query.q_column + d) += ds * k(key, query.kv_column + d);
      }
    }
  });
  dq.StoreTo(gradients.dq);
  dk.StoreTo(gradients.dk);
  dv.StoreTo(gradients.dv);
}

}  // namespace esteira::reference
