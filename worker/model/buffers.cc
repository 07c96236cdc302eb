#include "worker/model/buffers.h"

#include "common/base/status_macros.h"

namespace esteira {

Tensor Slices::View(const char* name, int64_t rows, int64_t columns) const {
  const TensorSlice& slice = layout_.Find(name);
  CHECK(rows * columns <= slice.elements);
  return {data_ + slice.offset_bytes, slice.type, rows, columns};
}

Tensor RowsOf(Tensor x, int64_t begin, int64_t count) {
  return {x.data + begin * x.columns * BytesOf(x.type), x.type, count, x.columns};
}

Slices UnitBuffers::Saved(const UnitArguments& arguments) const {
  return {SavedLayout(model_, unit_, arguments.batch, arguments.sequence, precision_),
          arguments.saved};
}

Slices UnitBuffers::Workspace(const UnitArguments& arguments) const {
  return {WorkspaceLayout(model_, unit_, arguments.batch, arguments.sequence, precision_),
          arguments.workspace};
}

}  // namespace esteira
