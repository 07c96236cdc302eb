// Views of the buffers that a unit works in, laid out by common/plan/sizes.h for the micro-batch at
// hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/plan/model_spec.h"
#include "common/plan/sizes.h"
#include "worker/model/unit_compute.h"
#include "worker/tensor/tensor.h"

namespace esteira {

// The named tensors of one saved or workspace buffer. Valid while the buffer is.
class Slices {
 public:
  Slices(BufferLayout layout, std::byte* data) : layout_(std::move(layout)), data_(data) {}

  // The first rows * columns elements of a slice. CHECKs that it has them.
  Tensor View(const char* name, int64_t rows, int64_t columns) const;

 private:
  BufferLayout layout_;
  std::byte* data_;
};

// What a unit needs to know to lay out its saved and workspace buffers. A value.
class UnitBuffers {
 public:
  UnitBuffers(const ModelSpec& model, const UnitSpec& unit, Precision precision)
      : model_(model), unit_(unit), precision_(precision) {}

  Slices Saved(const UnitArguments& arguments) const;
  Slices Workspace(const UnitArguments& arguments) const;

 private:
  ModelSpec model_;
  UnitSpec unit_;
  Precision precision_;
};

// Rows [begin, begin + count) of x.
Tensor RowsOf(Tensor x, int64_t begin, int64_t count);

}  // namespace esteira
