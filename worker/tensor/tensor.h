#pragma once

#include <cstddef>
#include <cstdint>

#include "common/plan/sizes.h"

namespace esteira {

// A view of contiguous elements in device memory: it owns nothing. Two dimensions are enough for
// every kernel; a view with no rows is legal and every kernel then does nothing.
struct Tensor {
  std::byte* data = nullptr;
  ElementType type = ElementType::kFp32;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t elements() const { return rows * columns; }
  int64_t bytes() const { return elements() * BytesOf(type); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  // The same elements as another matrix; rows * columns must not change.
  Tensor Reshaped(int64_t new_rows, int64_t new_columns) const {
    return {data, type, new_rows, new_columns};
  }
};

}  // namespace esteira
