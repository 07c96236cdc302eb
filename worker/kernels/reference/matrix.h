#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "worker/tensor/tensor.h"

namespace esteira {

// A tensor of fp32 or bf16 seen as a matrix of doubles. Stores round to nearest, ties to even.
class Matrix {
 public:
  explicit Matrix(const Tensor& tensor) : Matrix(tensor, tensor.columns) {}
  Matrix(const Tensor& tensor, int64_t row_stride) : tensor_(tensor), row_stride_(row_stride) {}

  bool exists() const { return tensor_.data != nullptr; }
  int64_t rows() const { return tensor_.rows; }
  int64_t columns() const { return tensor_.columns; }

  double operator()(int64_t row, int64_t column) const {
    const int64_t i = row * row_stride_ + column;
    if (tensor_.type == ElementType::kFp32) return static_cast<double>(tensor_.as<float>()[i]);
    const uint32_t bits = tensor_.as<uint16_t>()[i];
    return static_cast<double>(std::bit_cast<float>(bits << 16));
  }
  double operator()(int64_t i) const { return (*this)(0, i); }

  void Set(int64_t row, int64_t column, double value) const {
    const int64_t i = row * row_stride_ + column;
    const auto rounded = static_cast<float>(value);
    if (tensor_.type == ElementType::kFp32) {
      tensor_.as<float>()[i] = rounded;
    } else {
      tensor_.as<uint16_t>()[i] = ToBf16(rounded);
    }
  }
  void Set(int64_t i, double value) const { Set(0, i, value); }
  void Add(int64_t row, int64_t column, double value) const {
    Set(row, column, (*this)(row, column) + value);
  }
  void Add(int64_t i, double value) const { Add(0, i, value); }

 private:
  static uint16_t ToBf16(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }

  Tensor tensor_;
  int64_t row_stride_;
};

}  // namespace esteira
