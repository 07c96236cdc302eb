#include <cmath>
#include <cstring>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "worker/kernels/reference/operations.h"

namespace esteira::reference {
namespace {

// All elements as one row.
Matrix Flat(const Tensor& x) { return Matrix(x.Reshaped(1, x.elements())); }

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

const double kGeluScale = std::sqrt(2.0 / std::numbers::pi);
constexpr double kGeluCubic = 0.044715;

double GeluTanh(double x) { return std::tanh(kGeluScale * (x + kGeluCubic * x * x * x)); }

}  // namespace

absl::Status Convert(const Tensor& from, const Tensor& to) {
  const auto is_float = [](ElementType type) {
    return type == ElementType::kFp32 || type == ElementType::kBf16;
  };
  if (from.type == to.type) {
    if (from.elements() > 0) std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
    return absl::OkStatus();
  }
  if (!is_float(from.type) || !is_float(to.type)) {
    return absl::InvalidArgumentError("Convert is between fp32 and bf16, or a copy");
  }
  for (int64_t i = 0; i < from.elements(); ++i) Flat(to).Set(i, Flat(from)(i));
  return absl::OkStatus();
}

void Dropout(const Tensor& x, const DropoutMask& mask, const Tensor& y) {
  const auto dropped = static_cast<uint64_t>(std::lround(mask.rate * 65536));
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t of_sample = mask.sequence * x.columns;
    const auto sample = static_cast<uint64_t>(mask.first_sample + i / of_sample);
    const auto element = static_cast<uint64_t>(i % of_sample);
    const uint64_t word = RandomWord(RandomBits(mask.seed, mask.site, sample), element / 4);
    const bool kept = (word >> (16 * (element % 4))) % 65536 >= dropped;
    const double share = 1 - static_cast<double>(dropped) / 65536;
    Flat(y).Set(i, kept ? Flat(x)(i) / share : 0);
  }
}

void Add(const Tensor& a, const Tensor& b, const Tensor& sum) {
  for (int64_t i = 0; i < a.elements(); ++i) Flat(sum).Set(i, Flat(a)(i) + Flat(b)(i));
}

void AddIntegers(const Tensor& x, const Tensor& sum) {
  for (int64_t i = 0; i < x.elements(); ++i) sum.as<int64_t>()[i] += x.as<int64_t>()[i];
}

bool AddFixedPoint(const Tensor& x, float largest, const Tensor& sum) {
  bool refused = false;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const float value = x.as<float>()[i];
    x.as<float>()[i] = 0;
    if (std::abs(value) <= largest) {
      sum.as<int64_t>()[i] += std::llrint(std::ldexp(static_cast<double>(value), kFixedPointBits));
    } else {
      refused = true;
    }
  }
  return refused;
}

void FromFixedPoint(const Tensor& from, const Tensor& to) {
  for (int64_t i = 0; i < from.elements(); ++i) {
    to.as<float>()[i] = std::ldexp(static_cast<float>(from.as<int64_t>()[i]), -kFixedPointBits);
  }
}

void GeluForward(const Tensor& x, const Tensor& y) {
  for (int64_t i = 0; i < x.elements(); ++i) {
    const double value = Flat(x)(i);
    Flat(y).Set(i, 0.5 * value * (1.0 + GeluTanh(value)));
  }
}

void GeluBackward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
  for (int64_t i = 0; i < x.elements(); ++i) {
    const double value = Flat(x)(i);
    const double tanh = GeluTanh(value);
    const double inner = kGeluScale * (1.0 + 3.0 * kGeluCubic * value * value);
    const double slope = 0.5 * (1.0 + tanh) + 0.5 * value * (1.0 - tanh * tanh) * inner;
    Flat(dx).Set(i, Flat(dy)(i) * slope);
  }
}

void SwiGluForward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  for (int64_t i = 0; i < gate.elements(); ++i) {
    const double g = Flat(gate)(i);
    Flat(y).Set(i, g * Sigmoid(g) * Flat(up)(i));
  }
}

void SwiGluBackward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& dgate,
                    const Tensor& dup) {
  for (int64_t i = 0; i < gate.elements(); ++i) {
    const double d = Flat(dy)(i);
    const double g = Flat(gate)(i);
    const double u = Flat(up)(i);
    const double s = Sigmoid(g);
    Flat(dgate).Set(i, d * u * s * (1.0 + g * (1.0 - s)));
    Flat(dup).Set(i, d * g * s);
  }
}

absl::Status Rope(const Matrix& x, int64_t sequence, int64_t head_size, double theta,
                  bool inverse) {
  if (head_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Rope needs an even head size, not ", head_size));
  }
  const int64_t half = head_size / 2;
  for (int64_t n = 0; n < x.rows(); ++n) {
    for (int64_t i = 0; i < half; ++i) {
      const auto position = static_cast<double>(n % sequence);
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_size);
      const double angle = position * std::pow(theta, exponent) * (inverse ? -1.0 : 1.0);
      for (int64_t head = 0; head < x.columns(); head += head_size) {
        const double a = x(n, head + i);
        const double b = x(n, head + half + i);
        x.Set(n, head + i, a * std::cos(angle) - b * std::sin(angle));
        x.Set(n, head + half + i, b * std::cos(angle) + a * std::sin(angle));
      }
    }
  }
  return absl::OkStatus();
}

void AdamW(const AdamWStep& step, const Tensor& gradient_sum, const Tensor& master, const Tensor& m,
           const Tensor& v, const Tensor& parameters) {
  const auto t = static_cast<double>(step.step);
  for (int64_t i = 0; i < master.elements(); ++i) {
    const double g = Flat(gradient_sum)(i) * step.gradient_scale;
    const double new_m = step.beta1 * Flat(m)(i) + (1.0 - step.beta1) * g;
    const double new_v = step.beta2 * Flat(v)(i) + (1.0 - step.beta2) * g * g;
    const double m_hat = new_m / (1.0 - std::pow(step.beta1, t));
    const double v_hat = new_v / (1.0 - std::pow(step.beta2, t));
    const double old = Flat(master)(i);
    const double value = old - step.learning_rate * (m_hat / (std::sqrt(v_hat) + step.epsilon) +
                                                     step.weight_decay * old);
    Flat(m).Set(i, new_m);
    Flat(v).Set(i, new_v);
    Flat(master).Set(i, value);
    Flat(parameters).Set(i, Flat(master)(i));
  }
}

void SumSquaresByBlock(const Tensor& x, double* blocks) {
  constexpr int64_t kBlock = 64;
  constexpr int64_t kLanes = 8;
  for (int64_t b = 0; b < x.elements() / kBlock; ++b) {
    double lane[kLanes] = {};
    for (int64_t i = 0; i < kBlock; ++i) {
      const double value = Flat(x)(b * kBlock + i);
      lane[i % kLanes] += value * value;
    }
    const double even = (lane[0] + lane[4]) + (lane[2] + lane[6]);
    const double odd = (lane[1] + lane[5]) + (lane[3] + lane[7]);
    blocks[b] = even + odd;
  }
}

bool AnyNonFinite(const Tensor& x) {
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (!std::isfinite(Flat(x)(i))) return true;
  }
  return false;
}

}  // namespace esteira::reference
